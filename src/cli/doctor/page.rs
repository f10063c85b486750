//! Envoy's admin pages, read without trusting them: what is missing or of another type is as if absent.
//!
//! Pure: no I/O.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::Value;

use crate::model::Address;

/// An Envoy's version, without the patch level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32);

impl Version {
    /// The one that tidegate is tested with, and the first that does not hold changes of health back.
    pub(super) const TESTED: Self = Self(1, 40);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// From `COMMIT/1.40.0/Clean/RELEASE/BoringSSL`.
pub(super) fn version(server_info: &Value) -> Option<Version> {
    let mut numbers = text(&server_info["version"]).split('/').nth(1)?.split('.');
    let mut next = || numbers.next()?.parse().ok();
    Some(Version(next()?, next()?))
}

/// The node id; empty if it has none.
pub(super) fn node(server_info: &Value) -> &str {
    text(&server_info["node"]["id"])
}

/// A string; empty if it is none.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The elements of a list; none if it is no list.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A duration as protobuf's JSON writes it: `1.500s`.
pub(super) fn duration(value: &Value) -> Option<Duration> {
    let seconds = value.as_str()?.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// What runtime says about `key`, if anything.
pub(super) fn runtime<'a>(page: &'a Value, key: &str) -> Option<&'a str> {
    page["entries"][key]["final_value"].as_str()
}

/// A counter or gauge.
pub(super) fn stat(page: &Value, name: &str) -> Option<u64> {
    list(&page["stats"]).iter().find(|stat| stat["name"] == name)?["value"].as_u64()
}

/// `{socket_address: {address, port_value}}`.
pub(super) fn address(value: &Value) -> Option<Address> {
    let socket = &value["socket_address"];
    let ip: IpAddr = socket["address"].as_str()?.parse().ok()?;
    let port = u16::try_from(socket["port_value"].as_u64()?).ok()?;
    Some(Address::new(SocketAddr::new(ip, port)))
}
