//! How a role talks with the benchmark: a command per line on stdin, an answer per line on stdout.

use std::io::Write as _;
use std::net::SocketAddr;

use tokio::sync::mpsc;

/// What the benchmark wants; ends when it does.
pub struct Commands(mpsc::Receiver<String>);

impl Commands {
    pub fn new() -> Self {
        let (send, receive) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if send.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self(receive)
    }

    pub async fn next(&mut self) -> Option<String> {
        self.0.recv().await
    }
}

pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The benchmark may be gone; then so will be this process, at the next command.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

pub fn listening(address: SocketAddr) {
    say(&format!("listening {address}"));
}
