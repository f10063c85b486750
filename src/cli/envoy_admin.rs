//! Reads the pages of an Envoy's admin interface: plain HTTP, bounded in size and time, GET alone.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::doctor::Pages;

/// Time for one page: a large Envoy needs seconds for its config.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest page read. A fleet with thousands of clusters stays below.
const MAX_PAGE_BYTES: usize = 64 * 1024 * 1024;
/// The counters that the doctor looks at, escaped for a URL: `^cluster\..*\.(…)$`.
const STATS: &str = "/stats?format=json&filter=%5Ecluster%5C..%2A%5C.\
                     (assignment_timeout_received%7Clb_healthy_panic)%24";

/// `HOST:PORT`, also when it is given as a URL.
pub(super) fn authority(text: &str) -> anyhow::Result<String> {
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let parsed: http::uri::Authority = bare.parse().with_context(|| format!("{text:?} is not HOST:PORT"))?;
    ensure!(
        parsed.port_u16().is_some_and(|port| port != 0) && !bare.contains('@'),
        "{text:?} is not HOST:PORT; write for example 127.0.0.1:9901"
    );
    Ok(bare.to_owned())
}

/// All pages that the doctor needs. `/runtime` and `/stats` may be missing: an admin interface can be told to keep
/// pages for itself.
pub(super) async fn pages(admin: &str) -> anyhow::Result<Pages> {
    Ok(Pages {
        server_info: page(admin, "/server_info").await?,
        fixed: page(admin, "/config_dump?resource=static_clusters").await?,
        active: page(admin, "/config_dump?resource=dynamic_active_clusters").await?,
        warming: page(admin, "/config_dump?resource=dynamic_warming_clusters").await?,
        hosts: page(admin, "/clusters?format=json").await?,
        runtime: page(admin, "/runtime").await.unwrap_or_default(),
        stats: page(admin, STATS).await.unwrap_or_default(),
    })
}

async fn page(admin: &str, path: &str) -> anyhow::Result<Value> {
    let got = tokio::time::timeout(PAGE_TIMEOUT, get(admin, path)).await;
    let body = match got {
        Ok(got) => got.with_context(|| format!("GET {path}"))?,
        Err(_) => bail!("GET {path}: no whole answer within {} s", PAGE_TIMEOUT.as_secs()),
    };
    serde_json::from_slice(&body).with_context(|| format!("GET {path}: is this an Envoy's admin interface?"))
}

async fn get(admin: &str, path: &str) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect(admin).await?;
    let (mut sender, line) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(header::HOST, admin).body(Empty::<Bytes>::new())?;
    let exchange = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        ensure!(head.status == StatusCode::OK, "{}", head.status);
        match Limited::new(body, MAX_PAGE_BYTES).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => bail!("{error}"),
        }
    };
    // The line must be polled for the exchange to move; it may end first, when the peer closes after its answer.
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        done = &mut exchange => done,
        ended = line => {
            ended?;
            exchange.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_is_given_as_host_and_port_or_as_a_url() {
        for good in ["127.0.0.1:9901", "http://127.0.0.1:9901", "http://127.0.0.1:9901/"] {
            assert_eq!(authority(good).unwrap(), "127.0.0.1:9901");
        }
        assert_eq!(authority("[::1]:9901").unwrap(), "[::1]:9901");
        assert_eq!(authority("envoy.edge.svc:9901").unwrap(), "envoy.edge.svc:9901");
        for bad in
            ["", "host", "host:", "host:0", "host:x", "https://host:1/a", "a@b:1", "a b:1", "host:1/stats"]
        {
            assert!(authority(bad).is_err(), "{bad}");
        }
    }
}
