//! Who may be asked how: every protocol of a check against every kind of server. Case 65.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::model::{Address, Detail, HttpProtocol, Outcome};
use tidegate::probe::Answer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;

use super::fakes::{Fake, Step, say};
use super::{MS, PATIENCE, ask, ask_kept, http};

const H1: HttpProtocol = HttpProtocol::Http1;
const H2: HttpProtocol = HttpProtocol::H2c;

/// A server of hyper's that speaks what it is told to. Gives the requests it saw.
async fn server(speaks: &'static [HttpProtocol]) -> (Address, mpsc::Receiver<Request<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(listener.local_addr().unwrap());
    let (saw, seen) = mpsc::channel(1_000);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let saw = saw.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let _ = saw.try_send(request.map(|_| ()));
                async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok")))) }
            });
            tokio::spawn(async move {
                let io = TokioIo::new(stream);
                // How a connection ends is the prober's to tell.
                let _ = match speaks {
                    [HttpProtocol::Http1] => {
                        hyper::server::conn::http1::Builder::new().serve_connection(io, service).await.is_ok()
                    }
                    [HttpProtocol::H2c] => hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service)
                        .await
                        .is_ok(),
                    _ => hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service)
                        .await
                        .is_ok(),
                };
            });
        }
    });
    (address, seen)
}

async fn grpc_server() -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(listener.local_addr().unwrap());
    let routes = tonic::service::Routes::default();
    let server = tonic::transport::Server::builder().add_routes(routes);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

fn is_clear_no(answer: &Answer) -> bool {
    match answer.outcome {
        Outcome::Unhealthy => matches!(answer.detail, Detail::Protocol(_)),
        Outcome::Unreachable => matches!(answer.detail, Detail::Io(..)),
        Outcome::Ok | Outcome::Slow | Outcome::Timeout | Outcome::Misconfigured | Outcome::Unknown => false,
    }
}

#[tokio::test]
async fn case_65_every_protocol_against_every_server() {
    let (h1_only, _seen1) = server(&[H1]).await;
    let (h2_only, _seen2) = server(&[H2]).await;
    let (both, _seen3) = server(&[H1, H2]).await;
    let grpc = grpc_server().await;

    for (address, protocol) in [(h1_only, H1), (h2_only, H2), (both, H1), (both, H2)] {
        let answer = ask(address, http(protocol), PATIENCE).await;
        assert_eq!((answer.outcome, answer.detail), (Outcome::Ok, Detail::Status(200)), "{protocol:?}");
    }
    for (address, protocol) in [(h1_only, H2), (h2_only, H1), (grpc, H1)] {
        let answer = ask(address, http(protocol), PATIENCE).await;
        assert!(is_clear_no(&answer), "{protocol:?}: {} {:?}", answer.outcome, answer.detail);
    }
    // A gRPC server says 200 to a path it does not have, and "unimplemented" beside it.
    let answer = ask(grpc, http(H2), PATIENCE).await;
    assert_eq!(answer.outcome, Outcome::Misconfigured, "{:?}", answer.detail);
    assert!(answer.detail.to_string().contains("grpc-status 12"), "{}", answer.detail);
}

#[tokio::test]
async fn case_65_an_http1_server_that_answers_the_preface_is_understood_as_such() {
    // uvicorn and nginx say 400 and close; others just close, or wait for the rest of what they take for a request.
    let refusal = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    for steps in [vec![say(refusal), Step::Close], vec![say(refusal), Step::Hang], vec![Step::Close]] {
        let fake = Fake::always(steps.clone()).await;
        let answer = ask(fake.address, http(H2), PATIENCE).await;
        assert!(is_clear_no(&answer), "{steps:?}: {} {:?}", answer.outcome, answer.detail);
    }
    let fake = Fake::always(vec![Step::Hang]).await;
    assert_eq!(ask(fake.address, http(H2), MS(200)).await.outcome, Outcome::Timeout);
}

#[tokio::test]
async fn case_65_scheme_and_authority_are_what_the_check_says() {
    for host in [None, Some("llama.example:8443")] {
        let (address, mut seen) = server(&[H2]).await;
        let mut question = http(H2);
        question.host = host.map(Into::into);
        question.path = "/v1/health?deep=1".into();
        question.headers =
            vec![(http::HeaderName::from_static("x-probe"), http::HeaderValue::from_static("1"))];
        assert_eq!(ask(address, question, PATIENCE).await.outcome, Outcome::Ok);
        let request = seen.try_recv().unwrap();
        assert_eq!(request.version(), http::Version::HTTP_2);
        assert_eq!(request.uri().scheme_str(), Some("http"));
        let authority = host.map_or_else(|| address.to_string(), str::to_owned);
        assert_eq!(request.uri().authority().map(|a| a.as_str()), Some(authority.as_str()));
        assert_eq!(request.uri().path_and_query().map(|p| p.as_str()), Some("/v1/health?deep=1"));
        assert!(!request.headers().contains_key("host"));
        assert!(request.headers()["user-agent"].to_str().unwrap().starts_with("tidegate/"));
        assert_eq!(request.headers()["x-probe"], "1");
    }
}

#[tokio::test]
async fn an_h2c_connection_is_kept_and_replaced_when_its_peer_has_gone() {
    let (address, mut seen) = server(&[H2]).await;
    let mut kept = None;
    for round in 0..20 {
        let (answer, next) = ask_kept(address, http(H2), PATIENCE, kept).await;
        assert_eq!((answer.outcome, answer.fresh), (Outcome::Ok, round == 0));
        kept = next;
    }
    assert_eq!(std::iter::from_fn(|| seen.try_recv().ok()).count(), 20);

    // A peer that ends each connection after its first answer, as one with a short idle time does.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut line) = h2::server::handshake(stream).await else { return };
                let Some(Ok((_, mut respond))) = line.accept().await else { return };
                let mut body = respond.send_response(Response::new(()), false).unwrap();
                body.send_data(Bytes::from_static(b"ok"), true).unwrap();
                // Drives the answer out, and dies under the next question.
                let _ = line.accept().await;
            });
        }
    });
    let mut kept = None;
    for round in 0..100 {
        let (answer, next) = ask_kept(address, http(H2), PATIENCE, kept).await;
        assert_eq!((answer.outcome, answer.retried), (Outcome::Ok, round > 0), "{}", answer.detail);
        kept = next;
    }
}

#[tokio::test]
async fn kept_connections_of_another_protocol_are_not_used() {
    let (address, _seen) = server(&[H1, H2]).await;
    let (_, kept) = ask_kept(address, http(H1), PATIENCE, None).await;
    assert!(kept.is_some());
    let (answer, _) = ask_kept(address, http(H2), PATIENCE, kept).await;
    assert!(answer.outcome == Outcome::Ok && answer.fresh && !answer.retried);
}

#[tokio::test]
async fn an_h2c_answer_without_end_is_judged_by_its_status() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut line) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((_, mut respond))) = line.accept().await {
                    let mut body = respond.send_response(Response::new(()), false).unwrap();
                    body.send_data(Bytes::from(vec![b'a'; 10_000_000]), true).unwrap();
                }
            });
        }
    });
    let (answer, kept) = ask_kept(address, http(H2), PATIENCE, None).await;
    assert_eq!((answer.outcome, answer.detail), (Outcome::Ok, Detail::Status(200)));
    assert!(kept.is_none());
}
