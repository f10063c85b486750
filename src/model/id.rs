//! Names: checked once where they enter, cheap to clone ever after.

use std::fmt;
use std::sync::Arc;

/// Longest name accepted, in bytes. DNS names and Kubernetes object names end here too (RFC 1035 §2.3.4).
const MAX_LEN: usize = 253;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The name has no characters.
    #[error("a name must not be empty")]
    Empty,
    /// The name is longer than 253 bytes.
    #[error("the name has {0} bytes; at most {MAX_LEN} are allowed")]
    TooLong(usize),
    /// A character that would be ambiguous in a resource name, a metric label or a log line.
    #[error("{0:?} is not allowed in a name; use letters, digits, '-', '_', '.' and ':'")]
    BadChar(char),
}

fn checked(name: &str) -> Result<Arc<str>, IdError> {
    if name.is_empty() {
        return Err(IdError::Empty);
    }
    if name.len() > MAX_LEN {
        return Err(IdError::TooLong(name.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    match name.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(IdError::BadChar(c)),
        None => Ok(Arc::from(name)),
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `name` and takes it over.
            pub fn new(name: &str) -> Result<Self, IdError> {
                checked(name).map(Self)
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type! {
    /// A cluster: a named pool of interchangeable instances of one model. Envoy's word and Envoy's name for it.
    ClusterName
}
name_type! {
    /// An instance's identity within its cluster, given by its source (pod UID, service id, or a name in the file).
    /// Never the address: a reused address inherits nothing.
    InstanceId
}
name_type! {
    /// A listener that tidegate serves over LDS.
    ListenerName
}

/// One instance of one cluster; printed as `cluster/instance`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey {
    /// The pool it belongs to.
    pub cluster: ClusterName,
    /// Its identity there.
    pub id: InstanceId,
}

impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.id)
    }
}

impl fmt::Debug for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_where_they_enter() {
        assert!(ClusterName::new("llama-70b.v2:eu_1").is_ok());
        assert_eq!(ClusterName::new(""), Err(IdError::Empty));
        assert_eq!(InstanceId::new("a/b"), Err(IdError::BadChar('/')));
        assert_eq!(InstanceId::new("a b"), Err(IdError::BadChar(' ')));
        assert_eq!(InstanceId::new("münchen"), Err(IdError::BadChar('ü')));
        assert_eq!(ListenerName::new(&"x".repeat(254)), Err(IdError::TooLong(254)));
    }
}
