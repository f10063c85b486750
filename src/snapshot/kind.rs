//! The resource types served.

/// The service by which a client asks. It decides which types there are, and how the ones refer to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Everything on one stream (ADS).
    Aggregated,
    /// Clusters alone. They take their endpoints from tidegate too, on a stream of its own.
    Clusters,
    /// Endpoints alone.
    Endpoints,
}

impl Door {
    /// The types served there, in order.
    pub const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Aggregated => &Kind::ALL,
            Self::Clusters => &[Kind::Cluster],
            Self::Endpoints => &[Kind::Endpoints],
        }
    }
}

/// A resource type, in make-before-break order: what is referred to comes before what refers to it (the xDS
/// protocol's "eventual consistency considerations"). The order of the variants *is* the order on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// CDS.
    Cluster,
    /// EDS.
    Endpoints,
    /// LDS.
    Listener,
    /// RDS.
    Route,
}

impl Kind {
    /// All kinds in order.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Endpoints, Self::Listener, Self::Route];

    /// The type URL on the wire.
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    /// The kind of a type URL; `None` for types that tidegate does not serve.
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == url)
    }

    /// True if a client may ask for everything without naming it.
    pub const fn has_wildcard(self) -> bool {
        match self {
            Self::Cluster | Self::Listener => true,
            Self::Endpoints | Self::Route => false,
        }
    }

    /// True if such a resource leads, by itself or through another, to clusters.
    pub const fn refers_to_clusters(self) -> bool {
        match self {
            Self::Cluster | Self::Endpoints => false,
            Self::Listener | Self::Route => true,
        }
    }

    /// The short name used in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cds",
            Self::Endpoints => "eds",
            Self::Listener => "lds",
            Self::Route => "rds",
        }
    }
}

/// One of something for each kind, in the order of [`Kind::ALL`].
#[derive(Debug, Clone, Default)]
pub struct ByKind<T>(pub [T; 4]);

impl<T> ByKind<T> {
    /// That of `kind`.
    pub const fn of(&self, kind: Kind) -> &T {
        let [clusters, endpoints, listeners, routes] = &self.0;
        match kind {
            Kind::Cluster => clusters,
            Kind::Endpoints => endpoints,
            Kind::Listener => listeners,
            Kind::Route => routes,
        }
    }

    /// That of `kind`.
    pub const fn of_mut(&mut self, kind: Kind) -> &mut T {
        let [clusters, endpoints, listeners, routes] = &mut self.0;
        match kind {
            Kind::Cluster => clusters,
            Kind::Endpoints => endpoints,
            Kind::Listener => listeners,
            Kind::Route => routes,
        }
    }
}
