//! The timeline on stderr: a line for each thing that happened, and on a terminal one more that shows how far it is.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use tidegate::clock::Clock;
use tidegate::model::MonoTime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::load::Account;

/// How often the progress line is written anew.
const REFRESH: Duration = Duration::from_millis(200);
/// How long all of it takes.
pub const ABOUT_SECONDS: u32 = 20;
/// Lines that wait to be written.
const BACKLOG: usize = 256;
/// Back to the line's start, and wipe it.
const WIPE: &str = "\r\x1b[K";

/// Whose line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Something was done to the fleet.
    Event,
    Tidegate,
    Envoy,
    Users,
}

enum Line {
    Said(MonoTime, Who, String),
    Phase(&'static str),
    End,
}

/// Where lines go. Clones share the screen.
#[derive(Clone)]
pub struct Screen {
    clock: Clock,
    lines: mpsc::Sender<Line>,
}

/// The one who writes.
pub struct Printer(JoinSet<()>);

impl Screen {
    /// Times are those of `clock`.
    pub fn start(clock: Clock, users: watch::Receiver<Account>) -> (Self, Printer) {
        let (lines, queue) = mpsc::channel(BACKLOG);
        let live = std::io::stderr().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let mut printer = JoinSet::new();
        printer.spawn(print(Look { live, colour: live && !plain }, clock, queue, users));
        (Self { clock, lines }, Printer(printer))
    }

    /// Something happened now.
    pub async fn say(&self, who: Who, text: impl Into<String>) {
        self.say_at(self.clock.now(), who, text).await;
    }

    /// Something happened at `at`.
    pub async fn say_at(&self, at: MonoTime, who: Who, text: impl Into<String>) {
        self.put(Line::Said(at, who, text.into())).await;
    }

    /// What the progress line calls the present.
    pub async fn phase(&self, name: &'static str) {
        self.put(Line::Phase(name)).await;
    }

    /// Nothing is written any more when this returns.
    pub async fn close(&self, mut printer: Printer) {
        self.put(Line::End).await;
        while printer.0.join_next().await.is_some() {}
    }

    async fn put(&self, line: Line) {
        // Fails only after the end, when nobody looks.
        let _ = self.lines.send(line).await;
    }
}

#[derive(Clone, Copy)]
struct Look {
    live: bool,
    colour: bool,
}

async fn print(look: Look, clock: Clock, mut lines: mpsc::Receiver<Line>, users: watch::Receiver<Account>) {
    let mut refresh = tokio::time::interval(REFRESH);
    let mut phase = "start";
    loop {
        // Both can be dropped in favour of the other: neither takes anything before it is done.
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = refresh.tick(), if look.live => Some(Line::Phase(phase)),
        };
        let wipe = if look.live { WIPE } else { "" };
        match line {
            Some(Line::Said(at, who, text)) => {
                let time = at.since_start().as_secs_f64();
                eprintln!("{wipe}{time:>6.2} s  {} {text}", look.tag(who));
            }
            Some(Line::Phase(name)) => phase = name,
            Some(Line::End) | None => {
                eprint!("{wipe}");
                return;
            }
        }
        if look.live {
            let (ok, failed) = users.borrow().counts();
            let time = clock.now().since_start().as_secs();
            eprint!(
                "{WIPE}{time:>3} of about {ABOUT_SECONDS} s | {phase} | requests: {ok} ok, {failed} failed"
            );
            // A terminal that is gone is no reason to stop.
            let _ = std::io::stderr().flush();
        }
    }
}

impl Look {
    fn tag(self, who: Who) -> String {
        let (word, colour) = match who {
            Who::Event => ("event", AnsiColor::Yellow),
            Who::Tidegate => ("tidegate", AnsiColor::Cyan),
            Who::Envoy => ("Envoy", AnsiColor::Magenta),
            Who::Users => ("users", AnsiColor::Green),
        };
        let style = if self.colour { colour.on_default() } else { Style::new() };
        format!("{style}{word:<8}{style:#}")
    }
}
