//! Where an instance listens, in one spelling.

use std::fmt;
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

/// An IP address and port in canonical form: `::ffff:10.0.0.1` is `10.0.0.1`, all spellings of `::1` are one.
///
/// Two endpoints with the same `Address` are the same endpoint for every client (Envoy drops one of them silently).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(SocketAddr);

impl Address {
    /// Canonicalises `addr`. Scope ids and flow labels of IPv6 are dropped: no client could use them.
    pub fn new(addr: SocketAddr) -> Self {
        Self(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
    }

    /// The IP address.
    pub fn ip(&self) -> IpAddr {
        self.0.ip()
    }

    /// The port, never 0 in a validated config.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// As the standard library's type, for sockets.
    pub fn socket(&self) -> SocketAddr {
        self.0
    }
}

impl FromStr for Address {
    type Err = AddrParseError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse().map(Self::new)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where an instance stands, as Envoy's `Locality` says it. Empty strings mean unknown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locality {
    /// Region, for example `eu-west-1`.
    pub region: Arc<str>,
    /// Zone within the region, for example `eu-west-1a`.
    pub zone: Arc<str>,
}

impl Default for Locality {
    fn default() -> Self {
        Self { region: Arc::from(""), zone: Arc::from("") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_one_address() {
        let same = |a: &str, b: &str| a.parse::<Address>().unwrap() == b.parse::<Address>().unwrap();
        assert!(same("[::1]:80", "[0:0:0:0:0:0:0:1]:80"));
        assert!(same("[::ffff:10.0.0.1]:80", "10.0.0.1:80"));
        assert!(same("[fe80::1%7]:80", "[fe80::1]:80"));
        assert!(!same("10.0.0.1:80", "10.0.0.1:81"));
    }

    #[test]
    fn a_host_name_is_not_an_address() {
        assert!("gpu-1.example:8000".parse::<Address>().is_err());
    }
}
