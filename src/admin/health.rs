//! The HTTP side: `/livez`, `/readyz`, `/metrics`.
//!
//! Decides how long a peer may be silent, and how long it may stay. Changes nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::report::{ConfigStatus, Report};
use crate::clock::Clock;
use crate::model::{Plan, SourceView};
use crate::net::{self, Port};
use crate::snapshot::Snapshot;

/// The published values that the answers are made from.
#[derive(Debug, Clone)]
pub struct HealthCtx {
    /// The clock.
    pub clock: Clock,
    /// All metrics.
    pub registry: Arc<Registry>,
    /// The config's fate.
    pub config: watch::Receiver<ConfigStatus>,
    /// Who exists.
    pub view: watch::Receiver<Arc<SourceView>>,
    /// What is decided.
    pub plan: watch::Receiver<Arc<Plan>>,
    /// What is served.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
}

/// The head of the first request is there within this time, or the peer is let go.
const FIRST_REQUEST: Duration = Duration::from_secs(5);
/// The head of each further one: a scraper may keep its connection from one scrape to the next.
const NEXT_REQUEST: Duration = Duration::from_secs(60);
/// After this a connection is closed between two requests, and in the middle of one [`GRACE`] later: a peer that asks
/// and never reads the answer is not silent, and must not stay for ever either.
const MAX_AGE: Duration = Duration::from_secs(600);
/// Bytes buffered per connection, and so the longest head.
const MAX_BUFFER: usize = 64 * 1024;
/// What requests under way get after `shutdown`: a peer that never ends its request must not hold the process.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until `shutdown`.
pub async fn serve(listener: TcpListener, port: Port, ctx: HealthCtx, shutdown: CancellationToken) {
    let clock = ctx.clock;
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(ctx);
    let serve = |socket: TcpStream| converse(socket, router.clone(), shutdown.clone());
    net::accept(listener, port, clock, shutdown.clone(), serve).await;
}

/// One connection, from the first byte to the last.
async fn converse(socket: TcpStream, router: Router, shutdown: CancellationToken) {
    let router = TowerToHyperService::new(router);
    let asked = CancellationToken::new();
    let heard = asked.clone();
    let service = service_fn(move |request| {
        heard.cancel();
        router.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(NEXT_REQUEST).max_buf_size(MAX_BUFFER);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(socket), service));
    let silent = async {
        if tokio::time::timeout(FIRST_REQUEST, asked.cancelled()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let result = tokio::select! {
        result = connection.as_mut() => Ok(result),
        () = silent => return tracing::debug!("a connection to the health port asked nothing"),
        // In time or not, what follows is the same.
        _ = tokio::time::timeout(MAX_AGE, shutdown.cancelled()) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await
        }
    };
    if !matches!(result, Ok(Ok(()))) {
        tracing::debug!(?result, "a connection to the health port ended");
    }
}

async fn readyz(State(ctx): State<HealthCtx>, uri: Uri) -> Response {
    let report = {
        let snapshot = ctx.snapshots.borrow().clone();
        let (config, view, plan) =
            (ctx.config.borrow().clone(), ctx.view.borrow().clone(), ctx.plan.borrow().clone());
        Report::new(&config, &view, &plan, snapshot.as_deref())
    };
    let status = if report.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose =
        uri.query().is_some_and(|q| q.split('&').any(|p| p == "verbose" || p.starts_with("verbose=")));
    let text = match (verbose, report.is_ready()) {
        (true, _) => report.to_string(),
        (false, true) => "ready\n".to_owned(),
        (false, false) => "not ready\n".to_owned(),
    };
    (status, text).into_response()
}

async fn metrics(State(ctx): State<HealthCtx>) -> Response {
    let mut text = String::new();
    if encode(&mut text, &ctx.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinSet;

    use super::*;

    /// A connection on which `/` has been asked for, and the task that serves it.
    async fn asked(answer: &'static str) -> (TcpStream, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let router = Router::new().route("/", get(move || async move { answer }));
        let mut tasks = JoinSet::new();
        tasks.spawn(converse(socket, router, CancellationToken::new()));
        peer.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        peer.readable().await.unwrap();
        (peer, tasks)
    }

    #[tokio::test]
    async fn a_kept_connection_is_let_go_after_a_minute() {
        let (mut peer, _tasks) = asked("ok").await;
        tokio::time::pause();
        let clock = Clock::start();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
        let stayed = clock.now().since_start();
        assert!(stayed > NEXT_REQUEST / 2 && stayed < NEXT_REQUEST * 2, "{stayed:?}");
    }

    #[tokio::test]
    async fn a_peer_that_never_reads_its_answer_does_not_stay_for_ever() {
        let (_peer, mut tasks) = asked("x".repeat(64 * 1024 * 1024).leak()).await;
        tokio::time::pause();
        let clock = Clock::start();
        tasks.join_next().await.unwrap().unwrap();
        let stayed = clock.now().since_start();
        assert!(stayed > MAX_AGE / 2 && stayed < MAX_AGE * 2, "{stayed:?}");
    }
}
