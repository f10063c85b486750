//! HTTP probes, whatever the version: the request, the kept connection, and the second try on a fresh one.
//!
//! It moves no bytes itself. Called by `ask`.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use http::{Request, Uri, Version};
use http_body_util::Full;

use super::dial::{Wire, dial};
use super::h2c::H2c;
use super::http1::Http1;
use super::trace::{Failure, Trace, Verdict};
use crate::model::{Address, HttpCheck, HttpProtocol};

/// What the prober calls itself.
pub(super) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));

/// A connection kept for the next question to the same address. Dropping it closes it.
pub struct Kept(Connection);

impl Kept {
    /// Waits until the peer ends it.
    pub(super) async fn ended(&mut self) {
        match &mut self.0 {
            Connection::Http1(connection) => connection.ended().await,
            Connection::H2c(connection) => connection.ended().await,
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Connection::Http1(_) => "Kept(http1)",
            Connection::H2c(_) => "Kept(h2c)",
        })
    }
}

/// An HTTP connection, not spawned.
enum Connection {
    /// HTTP/1.1.
    Http1(Box<Http1>),
    /// HTTP/2.
    H2c(Box<H2c>),
}

/// Asks over HTTP.
///
/// A kept connection may have been closed by the peer just as the question was on its way. If it breaks before any
/// byte of the answer, that says nothing about the peer's health, and the question is put once more, on a fresh
/// connection and by the same deadline. What happens to that one counts.
pub(super) async fn put(
    check: &HttpCheck,
    address: Address,
    kept: Option<Kept>,
    trace: &mut Trace,
) -> Result<(Verdict, Option<Kept>), Failure> {
    if let Some(Kept(mut connection)) = kept
        && check.reuse_connection
        && connection.speaks(check.protocol)
        && connection.is_alive().await
    {
        trace.reuses();
        match connection.exchange(request(check, address)?, check, trace).await {
            Err(Failure::Io(_)) if !connection.was_heard() => trace.starts_over(),
            ended => return connection.hand_back(ended?, check).await,
        }
    }
    let wire = dial(address, trace).await?;
    let mut connection = Connection::open(check.protocol, wire).await?;
    let verdict = connection.exchange(request(check, address)?, check, trace).await?;
    connection.hand_back(verdict, check).await
}

impl Connection {
    async fn open(protocol: HttpProtocol, wire: Wire) -> Result<Self, Failure> {
        match protocol {
            HttpProtocol::Http1 => Http1::open(wire).await.map(|line| Self::Http1(Box::new(line))),
            HttpProtocol::H2c => H2c::open(wire).await.map(|line| Self::H2c(Box::new(line))),
        }
    }

    fn speaks(&self, protocol: HttpProtocol) -> bool {
        match self {
            Self::Http1(_) => protocol == HttpProtocol::Http1,
            Self::H2c(_) => protocol == HttpProtocol::H2c,
        }
    }

    /// False if the peer has ended the connection meanwhile, or said something that nobody asked for.
    async fn is_alive(&mut self) -> bool {
        match self {
            Self::Http1(connection) => connection.is_alive().await,
            Self::H2c(connection) => connection.is_alive().await,
        }
    }

    async fn exchange(
        &mut self,
        request: Request<()>,
        check: &HttpCheck,
        trace: &mut Trace,
    ) -> Result<Verdict, Failure> {
        match self {
            Self::Http1(connection) => {
                connection.exchange(request.map(|()| Full::<Bytes>::default()), check, trace).await
            }
            Self::H2c(connection) => connection.exchange(request, check, trace).await,
        }
    }

    /// True if any part of the answer to the last question came.
    fn was_heard(&self) -> bool {
        match self {
            Self::Http1(connection) => connection.was_heard(),
            Self::H2c(connection) => connection.was_heard(),
        }
    }

    /// Keeps the connection, if the check and the peer want that and the answer was read to its end.
    async fn hand_back(
        mut self,
        verdict: Verdict,
        check: &HttpCheck,
    ) -> Result<(Verdict, Option<Kept>), Failure> {
        if check.reuse_connection && self.is_alive().await {
            return Ok((verdict, Some(Kept(self))));
        }
        match self {
            Self::Http1(connection) => connection.close().await,
            Self::H2c(connection) => connection.close().await,
        }
        Ok((verdict, None))
    }
}

/// The question as a request without a body.
fn request(check: &HttpCheck, address: Address) -> Result<Request<()>, Failure> {
    let wrong = |error: http::Error| Failure::Misconfigured(Arc::from(error.to_string()));
    let authority = check.host.as_deref().map_or_else(|| address.to_string(), str::to_owned);
    let (version, uri) = match check.protocol {
        HttpProtocol::Http1 => (Version::HTTP_11, Uri::try_from(&*check.path).map_err(|e| wrong(e.into()))?),
        HttpProtocol::H2c => {
            let parts =
                Uri::builder().scheme("http").authority(authority.as_str()).path_and_query(&*check.path);
            (Version::HTTP_2, parts.build().map_err(wrong)?)
        }
    };
    let mut request =
        Request::builder().method(check.method.clone()).version(version).uri(uri).body(()).map_err(wrong)?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, AGENT);
    if check.protocol == HttpProtocol::Http1 {
        headers.insert(HOST, HeaderValue::try_from(authority).map_err(|e| wrong(e.into()))?);
    }
    for (name, value) in &check.headers {
        headers.insert(name.clone(), value.clone());
    }
    if check.protocol == HttpProtocol::Http1 && !check.reuse_connection {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn check(protocol: HttpProtocol) -> HttpCheck {
        HttpCheck {
            path: Arc::from("/health?deep=1"),
            method: Method::GET,
            host: None,
            expected_statuses: vec![200..=299],
            protocol,
            reuse_connection: true,
            headers: Vec::new(),
        }
    }

    #[test]
    fn a_request_names_its_host_the_way_its_protocol_does() {
        let address: Address = "[::1]:8000".parse().unwrap();
        let h1 = request(&check(HttpProtocol::Http1), address).unwrap();
        assert_eq!(
            (h1.uri().to_string().as_str(), &h1.headers()[HOST]),
            ("/health?deep=1", &"[::1]:8000".parse().unwrap())
        );
        let h2 = request(&check(HttpProtocol::H2c), address).unwrap();
        assert_eq!(h2.uri().to_string(), "http://[::1]:8000/health?deep=1");
        assert!(!h2.headers().contains_key(HOST));
        let mut fresh = check(HttpProtocol::Http1);
        fresh.reuse_connection = false;
        fresh.host = Some(Arc::from("llama.example"));
        let fresh = request(&fresh, address).unwrap();
        assert_eq!(fresh.headers()[CONNECTION], "close");
        assert_eq!(fresh.headers()[HOST], "llama.example");
        assert!(fresh.headers()[USER_AGENT].to_str().unwrap().starts_with("tidegate/"));
    }

    #[test]
    fn a_host_that_is_none_is_our_own_mistake() {
        let mut bad = check(HttpProtocol::H2c);
        bad.host = Some(Arc::from("not a host"));
        let refused = request(&bad, "127.0.0.1:1".parse().unwrap());
        assert!(matches!(refused, Err(Failure::Misconfigured(_))));
    }
}
