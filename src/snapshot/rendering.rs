//! For whom resources are written.

/// A kind of client. Each has resources of its own under the same names, since they read the same fields differently
/// (measured on Envoy 1.40.0 and gRPC 1.85); among clients of one kind the bytes are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Rendering {
    /// Envoy, and whoever does not say what it is.
    #[default]
    Envoy,
    /// gRPC's own client (gRFC A27 and its successors), whose channel is the data plane. It has no panic mode and no
    /// overflow, takes DEGRADED for absent, and needs a weight on every locality.
    Grpc,
}

impl Rendering {
    /// All renderings.
    pub const ALL: [Self; 2] = [Self::Envoy, Self::Grpc];

    /// The rendering for a client that calls itself `user_agent_name`: "gRPC C-core linux Python", "gRPC Go", ….
    pub fn of_agent(user_agent_name: &str) -> Self {
        let is_grpc = user_agent_name.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("grpc"));
        if is_grpc { Self::Grpc } else { Self::Envoy }
    }

    /// The short name used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Grpc => "grpc",
        }
    }
}
