//! What HTTP/1.1 and h2c probes share: the request, the verdict on an answer, and the second try on a fresh
//! connection.
//!
//! It moves no bytes itself. Called by `ask`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use http_body_util::Empty;

use super::ask::{Connection, Failure, Kept, Trace, Verdict};
use super::dial::{Wire, dial};
use super::{h2c::H2c, http1::Http1};
use crate::model::{Address, Detail, HttpCheck, HttpProtocol, Outcome};

/// Longest answer read. A longer one is judged by its status, and its connection is not kept.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longest head of an answer. A longer one is a protocol violation.
pub(super) const MAX_HEAD_BYTES: u32 = 16 * 1024;

const AGENT: HeaderValue = HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));

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
                connection.exchange(request.map(|()| Empty::<Bytes>::new()), check, trace).await
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

/// Polls `work` together with the connection it depends on: nobody else does. `None` if the connection ended first.
pub(super) async fn drive<L, W>(line: &mut L, ended: &mut bool, work: W) -> Option<W::Output>
where
    L: Future + Unpin,
    W: Future,
{
    let mut work = pin!(work);
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if !*ended {
            *ended = Pin::new(&mut *line).poll(cx).is_ready();
        }
        // What the connection has just brought may be what `work` waits for.
        match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if *ended => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Lets the connection do what it can without waiting: send what is queued, notice an end.
pub(super) async fn nudge<L: Future + Unpin>(line: &mut L, ended: &mut bool) {
    poll_fn(|cx| {
        if !*ended {
            *ended = Pin::new(&mut *line).poll(cx).is_ready();
        }
        Poll::Ready(())
    })
    .await;
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

/// What the head of an answer means by itself.
pub(super) fn judge<B>(check: &HttpCheck, answer: &Response<B>) -> Verdict {
    let status = answer.status();
    let code = status.as_u16();
    if let Some(grpc) = grpc_refusal(answer.headers()) {
        return (Outcome::Misconfigured, Detail::Protocol(grpc));
    }
    if check.expected_statuses.iter().any(|range| range.contains(&code)) {
        return (Outcome::Ok, Detail::Status(code));
    }
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (Outcome::Misconfigured, Detail::Status(code)),
        StatusCode::TOO_MANY_REQUESTS => (Outcome::Slow, Detail::Status(code)),
        _ if status.is_redirection() => (Outcome::Unhealthy, Detail::Redirect(code)),
        _ => (Outcome::Unhealthy, Detail::Status(code)),
    }
}

/// A gRPC server answers an unknown path with HTTP 200 and its own refusal in the head: that is no yes.
fn grpc_refusal(headers: &HeaderMap) -> Option<Arc<str>> {
    let grpc = headers.get(CONTENT_TYPE)?.as_bytes().starts_with(b"application/grpc");
    let status = headers.get("grpc-status")?.to_str().unwrap_or("?");
    (grpc && status != "0").then(|| {
        Arc::from(format!("a gRPC server answered with grpc-status {status}: ask it with a grpc check"))
    })
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

    fn judged(code: u16) -> Verdict {
        judge(&check(HttpProtocol::Http1), &Response::builder().status(code).body(()).unwrap())
    }

    #[test]
    fn a_status_is_read_as_the_check_says() {
        assert_eq!(judged(200), (Outcome::Ok, Detail::Status(200)));
        assert_eq!(judged(302), (Outcome::Unhealthy, Detail::Redirect(302)));
        assert_eq!(judged(401), (Outcome::Misconfigured, Detail::Status(401)));
        assert_eq!(judged(403), (Outcome::Misconfigured, Detail::Status(403)));
        assert_eq!(judged(404), (Outcome::Unhealthy, Detail::Status(404)));
        assert_eq!(judged(429), (Outcome::Slow, Detail::Status(429)));
        assert_eq!(judged(503), (Outcome::Unhealthy, Detail::Status(503)));
        let mut any = check(HttpProtocol::Http1);
        any.expected_statuses = vec![200..=200, 300..=499];
        let answer = |code: u16| Response::builder().status(code).body(()).unwrap();
        for code in [302, 401, 429] {
            assert_eq!(
                judge(&any, &answer(code)),
                (Outcome::Ok, Detail::Status(code)),
                "expected is expected"
            );
        }
    }

    #[test]
    fn a_grpc_refusal_is_not_a_yes() {
        let answer = |status: &str| {
            let head =
                Response::builder().header("content-type", "application/grpc").header("grpc-status", status);
            judge(&check(HttpProtocol::H2c), &head.body(()).unwrap()).0
        };
        assert_eq!(answer("12"), Outcome::Misconfigured);
        assert_eq!(answer("0"), Outcome::Ok);
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
