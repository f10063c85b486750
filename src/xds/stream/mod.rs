//! The xDS protocol of one stream, without a socket.
//!
//! Pure: no I/O. [`SotwStream`] and [`DeltaStream`] take requests and are asked for the next response against a
//! snapshot; the shell around them sends it. They are *pulled*: nothing is queued, so a slow client gets the newest
//! state and only that. Between a response and its ACK or NACK the same content is not sent again (delta: per
//! resource; SotW: per type).
//!
//! Order on an aggregated stream is make before break: clusters, their endpoints, listeners, routes; removals of
//! what others may refer to come last, when nothing that could still refer to it is under way.

mod delta;
mod holdings;
mod parked;
mod sotw;
mod subscription;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
pub use delta::DeltaStream;
pub use holdings::{Finding, Holding, Said, Standing, Truth};
use prost::Message;
pub use sotw::SotwStream;

use crate::snapshot::{Kind, Rendering, Resource, ResourceSet, Snapshot};

/// A protocol variant, as the state of one stream.
pub trait Protocol: Unpin + Send + 'static {
    /// What its clients say.
    type Request: Message + Default + Send + 'static;

    /// Takes the encoded node out of a request; empty if there is none.
    fn node(request: &mut Self::Request) -> Bytes;

    /// The nonce of the response that a request answers; empty if it answers none.
    fn nonce(request: &Self::Request) -> &str;

    /// True if the request may change for which clusters the client asks the endpoints.
    fn changes_endpoints(request: &Self::Request) -> bool;

    /// The client is of this kind: said once, before its first request.
    fn render(&mut self, rendering: Rendering);

    /// Takes a request. A type that is not served is ignored: Envoys ask for more than they need.
    ///
    /// # Errors
    ///
    /// If the stream cannot go on.
    fn on_request(&mut self, request: &Self::Request) -> Result<Verdict, Refusal>;

    /// The next response that `snapshot` calls for, if any.
    fn next(&mut self, snapshot: &Snapshot) -> Option<Response>;

    /// The resources of `kind` that this client is given.
    fn set_of<'a>(&self, kind: Kind, snapshot: &'a Snapshot) -> &'a ResourceSet;

    /// The clusters whose endpoints the client asks for by name.
    fn endpoints_asked_for(&self) -> &BTreeSet<Arc<str>>;

    /// True if the client has acknowledged the endpoints of cluster `name` as `resource` says them.
    fn has_settled(&self, name: &str, resource: &Resource) -> bool;

    /// What the response of `nonce` would be blamed for, if it has no answer yet.
    fn suspect(&self, nonce: &str) -> Option<Suspect>;

    /// This version is not sent until [`Self::try_again`].
    fn hold_back(&mut self, suspect: &Suspect);

    /// It may be sent again.
    fn try_again(&mut self, suspect: &Suspect);

    /// What the client holds of all that it asks for, beside what there is.
    fn holdings(&self, snapshot: &Snapshot) -> Vec<Holding>;

    /// Looks at everything, where [`Self::next`] looks at what has changed, and makes it send what it would have gone on
    /// leaving out. There is none, as far as the shortcuts are right.
    fn audit(&mut self, snapshot: &Snapshot) -> Vec<Finding>;
}

/// A response to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Its type.
    pub kind: Kind,
    /// True in the incremental variant.
    pub delta: bool,
    /// Unique within the stream, rising.
    pub nonce: String,
    /// Version of the response as a whole.
    pub version: Arc<str>,
    /// New and changed resources (SotW clusters and listeners: all of them).
    pub resources: Vec<Arc<Resource>>,
    /// Names that are gone; delta only.
    pub removed: Vec<Arc<str>>,
}

/// What a request told us about an earlier response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    None,
    /// The client has taken these resources, and does without what else was said.
    Acked(Kind, Vec<Arc<Resource>>, Gone),
    /// The client has refused these resources, or to do without what else was said, with its words. They are not sent
    /// again until they change.
    Nacked(Kind, Vec<Arc<Resource>>, Gone, Arc<str>),
}

/// What a response takes from its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gone {
    /// These.
    Names(Vec<Arc<str>>),
    /// All that it does not list.
    Others,
}

/// A version that a client may be unable to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Its type.
    pub kind: Kind,
    /// Whose version; [`WHOLE_SET`] if the client takes all of the type or nothing (SotW clusters and listeners).
    pub name: Arc<str>,
    /// Of the resource, or of the set.
    pub version: Arc<str>,
}

impl Suspect {
    /// For people.
    pub fn title(&self) -> &str {
        if *self.name == *WHOLE_SET { "*" } else { &self.name }
    }
}

/// Stands for all resources of a type together. No resource has an empty name.
pub const WHOLE_SET: &str = "";

/// Why a stream cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A peer that names more resources than any fleet has is broken or hostile.
    #[error("{names} resource names of {kind} on one stream; at most {limit} are accepted", kind = .kind.as_str())]
    TooManyNames {
        /// The type.
        kind: Kind,
        /// How many it would be.
        names: usize,
        /// How many are accepted.
        limit: usize,
    },
}

/// Most names that one stream may ask for, per type.
pub const MAX_NAMES: usize = 100_000;

/// Longest client message kept of a NACK, in bytes; Envoy's may be many pages.
const MAX_NACK_TEXT: usize = 2048;

fn nack_text(message: &str) -> Arc<str> {
    message.get(..message.floor_char_boundary(MAX_NACK_TEXT)).unwrap_or_default().into()
}

/// Counts the nonces of a stream.
#[derive(Debug, Default)]
struct Nonces(u64);

impl Nonces {
    fn next(&mut self) -> String {
        self.0 += 1;
        self.0.to_string()
    }
}
