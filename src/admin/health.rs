//! The HTTP side: `/livez`, `/readyz`, `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::report::{ConfigStatus, Report};
use crate::model::{Plan, SourceView};
use crate::snapshot::Snapshot;

/// The published values that the answers are made from.
#[derive(Debug, Clone)]
pub struct HealthCtx {
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

/// After `shutdown` requests that have begun get this long: a peer that never ends its request must not hold the
/// process.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until `shutdown`.
pub async fn serve(listener: TcpListener, ctx: HealthCtx, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(ctx);
    let ending = shutdown.clone();
    let serve = axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned());
    let out_of_patience = async {
        ending.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = serve.into_future() => {
            if let Err(error) = served {
                tracing::error!(%error, "the health endpoint ended");
            }
        }
        () = out_of_patience => tracing::debug!("a peer of the health endpoint never ended its request"),
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
