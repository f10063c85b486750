//! A fake completion server: `/health` says 200 whatever happens, and every other path streams as the test says.
//!
//! It imitates, byte by byte, how vLLM (`data: …\n\n`, an in-band error as `data: {"error": …}` and `[DONE]` in an
//! answer of status 200, a usage chunk without choices) and llama.cpp (a CR LF after each event, a chat's first chunk
//! with the role alone and a null for content) stream, and the ways in which they and others go wrong.

#![expect(clippy::disallowed_methods, reason = "fakes live in tasks of the test's own runtime")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A part of an answer.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// An event with this data; `{ID}` in it is the request's own id.
    Event(String),
    /// Bytes of the stream as they are.
    Raw(&'static str),
    Wait(Duration),
    /// Nothing more until the peer is gone.
    Hang,
    /// The end of the answer, in order. Without it the connection just closes.
    End,
}

#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// 200, and these steps.
    Stream(Vec<Step>),
    /// The same, with each byte of the stream in a chunk and a packet of its own.
    Dribble(Vec<Step>),
    /// The same, with CR LF for every LF, and a chunk border between CR and LF.
    CrLf(Vec<Step>),
    /// This status and this JSON.
    Refuse(u16, &'static str),
    /// Requests are read and never answered.
    Silent,
    /// The n-th completion asked for from now on is answered as the n-th of these says; later ones as the last.
    Each(Vec<Mode>),
}

/// One request for a completion.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) body: serde_json::Value,
}

/// The server; it lives as long as the test's runtime.
pub(crate) struct Completions {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    asked: watch::Sender<Vec<Asked>>,
}

impl Completions {
    pub(crate) async fn start(mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(mode);
        let asked = watch::Sender::new(Vec::new());
        let seen = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, modes.clone(), seen.clone()));
            }
        });
        Self { address, mode, asked }
    }

    /// From now on, and as if nothing had been asked yet.
    pub(crate) fn set(&self, mode: Mode) {
        self.asked.send_modify(Vec::clear);
        self.mode.send_replace(mode);
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode.borrow().clone()
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }
}

async fn serve(mut stream: TcpStream, modes: watch::Receiver<Mode>, seen: watch::Sender<Vec<Asked>>) {
    let _ = stream.set_nodelay(true);
    while let Ok((head, body)) = read_request(&mut stream).await {
        let answered = if head.starts_with("GET /health ") {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await
        } else {
            let mut number = 0;
            seen.send_modify(|asked| {
                asked.push(Asked { head, body: serde_json::from_slice(&body).unwrap_or_default() });
                number = asked.len();
            });
            let mode = modes.borrow().clone();
            answer(&mut stream, &mode, number).await
        };
        if answered.is_err() {
            return;
        }
    }
}

async fn answer(stream: &mut TcpStream, mode: &Mode, number: usize) -> io::Result<()> {
    const HEAD: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let mode = match mode {
        Mode::Each(modes) => modes.get(number - 1).or(modes.last()).unwrap(),
        other => other,
    };
    match mode {
        Mode::Stream(steps) | Mode::Dribble(steps) | Mode::CrLf(steps) => {
            stream.write_all(HEAD).await?;
            for step in steps {
                play(stream, step, mode, number).await?;
            }
            if matches!(steps.last(), Some(Step::End)) {
                Ok(())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        Mode::Refuse(status, body) => {
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} No\r\ncontent-type: application/json\r\ncontent-length: {length}");
            stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await
        }
        Mode::Silent => until_gone(stream).await,
        Mode::Each(_) => unreachable!("not nested"),
    }
}

async fn play(stream: &mut TcpStream, step: &Step, mode: &Mode, number: usize) -> io::Result<()> {
    let text = match step {
        Step::Event(data) => format!("data: {}\n\n", data.replace("{ID}", &format!("cmpl-{number}"))),
        Step::Raw(text) => (*text).to_owned(),
        Step::Wait(pause) => {
            tokio::time::sleep(*pause).await;
            return Ok(());
        }
        Step::Hang => return until_gone(stream).await,
        Step::End => return stream.write_all(b"0\r\n\r\n").await,
    };
    match mode {
        Mode::Dribble(_) => {
            for byte in text.as_bytes() {
                chunk(stream, &[*byte]).await?;
            }
            Ok(())
        }
        Mode::CrLf(_) => {
            for line in text.split_inclusive('\n') {
                chunk(stream, format!("{}\r", line.trim_end_matches('\n')).as_bytes()).await?;
                chunk(stream, b"\n").await?;
            }
            Ok(())
        }
        _ => chunk(stream, text.as_bytes()).await,
    }
}

async fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    stream.write_all(&out).await
}

async fn until_gone(stream: &mut TcpStream) -> io::Result<()> {
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Err(io::ErrorKind::BrokenPipe.into())
}

async fn read_request(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head
        .to_ascii_lowercase()
        .split_once("content-length: ")
        .map_or(0, |(_, rest)| rest.split("\r\n").next().and_then(|length| length.parse().ok()).unwrap_or(0));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((head, body))
}

pub(crate) fn event(data: &str) -> Step {
    Step::Event(data.to_owned())
}

/// A chunk of `/v1/completions`.
pub(crate) fn token(text: &str) -> Step {
    event(&format!(
        r#"{{"id":"{{ID}}","object":"text_completion","created":1,"model":"tiny","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":null}}],"usage":null}}"#
    ))
}

/// A chunk of `/v1/chat/completions`.
pub(crate) fn delta(delta: &str) -> Step {
    event(&format!(
        r#"{{"id":"{{ID}}","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#
    ))
}

pub(crate) fn finish() -> Step {
    event(
        r#"{"id":"{ID}","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"length"}]}"#,
    )
}

pub(crate) fn usage() -> Step {
    event(
        r#"{"id":"{ID}","object":"text_completion","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
    )
}

pub(crate) fn done() -> Step {
    event("[DONE]")
}

/// What a healthy server says.
pub(crate) fn well() -> Vec<Step> {
    vec![token(" a"), token(" b"), token(" c"), finish(), usage(), done(), Step::End]
}

/// The same, with so much time before the first token.
pub(crate) fn after(pause: Duration) -> Vec<Step> {
    let mut steps = vec![Step::Wait(pause)];
    steps.extend(well());
    steps
}
