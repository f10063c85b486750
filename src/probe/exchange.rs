//! What one exchange over HTTP/1.1 and over h2c have in common: limits, who drives the connection, and what the head
//! of an answer means.
//!
//! Called by `http1`, `h2c` and `openai`.

use std::future::{Future, poll_fn};
use std::ops::RangeInclusive;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response, StatusCode};

use super::trace::Verdict;
use crate::model::{Detail, Outcome};

/// Longest answer read. A longer one is judged by its status, and its connection is not kept.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longest head of an answer. A longer one is a protocol violation.
pub(super) const MAX_HEAD_BYTES: u32 = 16 * 1024;

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

/// Waits until the connection ends, while nobody asks anything over it.
pub(super) async fn rest<L: Future + Unpin>(line: &mut L, ended: &mut bool) {
    poll_fn(|cx| {
        if !*ended {
            *ended = Pin::new(&mut *line).poll(cx).is_ready();
        }
        if *ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// What the head of an answer means by itself.
pub(super) fn judge<B>(expected: &[RangeInclusive<u16>], answer: &Response<B>) -> Verdict {
    let status = answer.status();
    let code = status.as_u16();
    if let Some(refusal) = grpc_refusal(answer.headers()) {
        return refusal;
    }
    if expected.iter().any(|range| range.contains(&code)) {
        return (Outcome::Ok, Detail::Status(code));
    }
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (Outcome::Misconfigured, Detail::Status(code)),
        StatusCode::TOO_MANY_REQUESTS => (Outcome::Slow, Detail::Status(code)),
        _ if status.is_redirection() => (Outcome::Unhealthy, Detail::Redirect(code)),
        _ => (Outcome::Unhealthy, Detail::Status(code)),
    }
}

/// A gRPC server answers an unknown path with HTTP 200 and its own refusal in the head: that is no yes. Status 12,
/// UNIMPLEMENTED, says that the question is wrong; any other is a no.
fn grpc_refusal(headers: &HeaderMap) -> Option<Verdict> {
    let grpc = headers.get(CONTENT_TYPE)?.as_bytes().starts_with(b"application/grpc");
    let status = headers.get("grpc-status")?.to_str().unwrap_or("?");
    let outcome = if status == "12" { Outcome::Misconfigured } else { Outcome::Unhealthy };
    let why = || format!("a gRPC server answered with grpc-status {status}: it wants a grpc check");
    (grpc && status != "0").then(|| (outcome, Detail::Protocol(Arc::from(why()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: u16) -> Verdict {
        judge(&[200..=299], &Response::builder().status(code).body(()).unwrap())
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
        let any = [200..=200, 300..=499];
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
            judge(&[200..=299], &head.body(()).unwrap()).0
        };
        assert_eq!(answer("12"), Outcome::Misconfigured);
        assert_eq!(answer("14"), Outcome::Unhealthy);
        assert_eq!(answer("0"), Outcome::Ok);
    }
}
