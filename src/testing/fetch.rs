//! One HTTP/1.1 request on one fresh connection.
//!
//! For admin pages and load: no pool, no redirects, no retries, no task left behind. Not a probe (that is
//! `crate::probe`, which is under test).

use std::net::SocketAddr;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status line's code.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Answer {
    /// The body as text, with bad UTF-8 replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends one request without a body and reads the whole answer.
pub async fn request(
    method: Method,
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(to).await.with_context(|| format!("connecting to {to}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::builder().method(method).uri(path).header("host", to.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let exchange = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        anyhow::Ok(Answer { status: head.status, headers: head.headers, body })
    };
    // The connection must be polled for the exchange to move; it may end first when the peer closes after its answer.
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        ended = connection => {
            ended?;
            exchange.await
        }
    }
}

/// `GET path`.
pub async fn get(to: SocketAddr, path: &str) -> anyhow::Result<Answer> {
    request(Method::GET, to, path, &[]).await
}
