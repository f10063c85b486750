//! Content versions.

use std::fmt;

/// XXH3-128 of canonical bytes: same content, same version, in every process, on every replica, after every restart.
///
/// It says *same or not*, never *later*: order is the plan's generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(u128);

impl ContentHash {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }

    /// Hashes a sequence of parts; the split between parts matters.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut h = xxhash_rust::xxh3::Xxh3::new();
        for part in parts {
            h.update(&(part.len() as u64).to_le_bytes());
            h.update(part);
        }
        Self(h.digest128())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.0 >> 96)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_same_in_every_build() {
        // A known answer: if this changes, every connected Envoy is sent everything again after an upgrade.
        assert_eq!(ContentHash::of(b"tidegate").to_string(), ContentHash::of(b"tidegate").to_string());
        assert_eq!(ContentHash::of(b"").to_string(), "99aa06d3014798d86001c324468d497f");
        assert_ne!(
            ContentHash::of_parts([b"ab".as_slice(), b"c"]),
            ContentHash::of_parts([b"a".as_slice(), b"bc"])
        );
    }
}
