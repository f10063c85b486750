//! Binding a listener.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};

use crate::clock::Clock;

/// How long a busy port is tried again. A restart may meet the last moments of its predecessor.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// Connections waiting to be accepted; a fleet of Envoys reconnects at once.
const BACKLOG: u32 = 4096;

/// A port could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (`{key}`): {source}; {advice}")]
pub struct BindError {
    /// The config key of the address.
    key: &'static str,
    /// The address.
    address: SocketAddr,
    /// What the reader can do.
    advice: &'static str,
    /// The system's word.
    source: io::Error,
}

/// Binds `address`, also while old connections of a predecessor are still in TIME_WAIT. A port in use is tried for
/// two seconds. `key` is the config key that names the address, for the error.
pub async fn bind(clock: Clock, key: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    let give_up = clock.now() + PATIENCE;
    loop {
        let source = match try_bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        let busy = source.kind() == io::ErrorKind::AddrInUse;
        if !busy || clock.now() >= give_up {
            let advice = if busy {
                "another process listens there: stop it, or choose another port"
            } else if source.kind() == io::ErrorKind::PermissionDenied {
                "ports below 1024 need privileges: choose another port"
            } else {
                "choose an address of this machine"
            };
            return Err(BindError { key, address, advice, source });
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

fn try_bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_one_clear_error_after_two_seconds() {
        let taken = bind(Clock::start(), "listen.xds", ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = taken.local_addr().unwrap();
        tokio::time::pause();
        let clock = Clock::start();
        let error = bind(clock, "listen.xds", address).await.unwrap_err().to_string();
        assert!(clock.now().since_start() >= PATIENCE);
        assert!(error.contains(&address.to_string()) && error.contains("`listen.xds`"), "{error}");
        assert!(error.contains("another process listens there"), "{error}");
    }

    #[tokio::test]
    async fn a_port_that_becomes_free_is_taken() {
        let taken = bind(Clock::start(), "listen.xds", ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = taken.local_addr().unwrap();
        let again = bind(Clock::start(), "listen.xds", address);
        let free = async {
            tokio::time::sleep(RETRY_EVERY).await;
            drop(taken);
        };
        let (again, ()) = tokio::join!(again, free);
        assert_eq!(again.unwrap().local_addr().unwrap(), address);
    }

    #[tokio::test]
    async fn an_address_of_another_machine_fails_at_once() {
        let error = bind(Clock::start(), "listen.health", ([192, 0, 2, 1], 80).into()).await.unwrap_err();
        assert!(error.to_string().contains("choose an address of this machine"), "{error}");
    }
}
