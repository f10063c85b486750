//! Fake instances. Each imitates one way a real one goes wrong, byte by byte.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::model::Address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

/// What a fake does after it has read a request's head.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Writes these bytes.
    Say(Vec<u8>),
    /// Writes this byte again and again, with a pause in between, until the peer is gone.
    Drip(u8, Duration),
    /// Writes this without end.
    Flood(Vec<u8>),
    /// Closes in order.
    Close,
    /// Resets the connection.
    Reset,
    /// Does nothing until the peer is gone.
    Hang,
}

/// `Say` for text.
pub(super) fn say(text: &str) -> Step {
    Step::Say(text.as_bytes().to_vec())
}

/// An ordinary answer with a body of two bytes.
pub(super) fn ok() -> Step {
    say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
}

/// A fake instance; it lives as long as the test's runtime.
pub(super) struct Fake {
    pub(super) address: Address,
    /// Heads of the requests received, in order.
    pub(super) requests: mpsc::Receiver<String>,
    connections: Arc<AtomicUsize>,
}

/// Where in its life a fake is when a request comes: both counted from 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) connection: usize,
    pub(super) request: usize,
}

impl Fake {
    /// Speaks HTTP/1.1 as `script` says.
    pub(super) async fn http1<F>(script: F) -> Self
    where
        F: Fn(Moment) -> Vec<Step> + Clone + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::new(listener.local_addr().unwrap());
        let (saw, requests) = mpsc::channel(10_000);
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, connection, script.clone(), saw.clone()));
            }
        });
        Self { address, requests, connections }
    }

    /// Always the same steps.
    pub(super) async fn always(steps: Vec<Step>) -> Self {
        Self::http1(move |_| steps.clone()).await
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(super) fn seen(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

async fn serve<F: Fn(Moment) -> Vec<Step>>(
    mut stream: TcpStream,
    connection: usize,
    script: F,
    saw: mpsc::Sender<String>,
) {
    for request in 0.. {
        let Some(head) = read_head(&mut stream).await else { return };
        let _ = saw.try_send(head);
        for step in script(Moment { connection, request }) {
            let done = match step {
                Step::Say(bytes) => stream.write_all(&bytes).await,
                Step::Drip(byte, pause) => loop {
                    if let Err(gone) = stream.write_all(&[byte]).await {
                        break Err(gone);
                    }
                    tokio::time::sleep(pause).await;
                },
                Step::Flood(bytes) => loop {
                    if let Err(gone) = stream.write_all(&bytes).await {
                        break Err(gone);
                    }
                },
                Step::Close => return,
                Step::Reset => {
                    let _ = stream.set_zero_linger();
                    return;
                }
                Step::Hang => {
                    while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {}
                    return;
                }
            };
            if done.is_err() {
                return;
            }
        }
    }
}

async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.ok()?;
        head.push(byte);
        if head.len() > 64 * 1024 {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// An address where nobody listens, and nobody else will.
pub(super) async fn nobody() -> (Address, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    (Address::new(socket.local_addr().unwrap()), socket)
}

/// A listener whose queue is full: packets to it vanish, like those to a host that lost power. Holds what fills it.
pub(super) struct BlackHole {
    pub(super) address: Address,
    _listener: TcpListener,
    _fill: Vec<TcpStream>,
}

impl BlackHole {
    pub(super) async fn open() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let at: SocketAddr = listener.local_addr().unwrap();
        let mut fill = Vec::new();
        while let Ok(entered) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(at)).await
        {
            fill.push(entered.unwrap());
            assert!(fill.len() < 100, "the queue does not fill up");
        }
        Self { address: Address::new(at), _listener: listener, _fill: fill }
    }
}
