//! Envoy's own account of each request: when *it* started, and who served.
//!
//! A client's start is earlier than Envoy's (connect, queue, scheduling), so "no request started on an ejected
//! instance after the ACK" can only be judged here. Envoy stamps with the machine's wall clock; [`wall_micros`] reads
//! the same clock. Take it right after the ACK arrives: on one machine the two are then comparable to the
//! microsecond, as long as nobody steps the clock.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;

/// The text format of one line, for `log_format.text_format_source.inline_string`.
pub const FORMAT: &str =
    "%START_TIME(%s.%6f)% %RESPONSE_CODE% %UPSTREAM_HOST% %RESPONSE_FLAGS% %DURATION% %REQ(:PATH)%\\n";

/// One request as Envoy saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// When Envoy read the request's head, in microseconds of wall time.
    pub start_micros: u64,
    /// The status sent downstream; 0 if the client left first.
    pub status: u16,
    /// The instance chosen, if there was one.
    pub upstream: Option<SocketAddr>,
    /// Envoy's response flags (`UH`: nobody healthy, `UF`: connection failed, `NC`: no such cluster), or empty.
    pub flags: String,
    /// From the start to the last byte sent.
    pub duration: Duration,
    /// The path.
    pub path: String,
}

/// The wall clock in microseconds, as Envoy stamps.
#[expect(
    clippy::disallowed_types,
    reason = "Envoy stamps with wall time: the comparison needs the same clock"
)]
pub fn wall_micros() -> u64 {
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// An `access_log:` list with one file logger, in flow style, for any HTTP connection manager.
pub fn yaml(path: &str) -> String {
    format!(
        "[{{name: file, typed_config: {{\
         '@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: '{path}', \
         log_format: {{text_format_source: {{inline_string: \"{FORMAT}\"}}}}}}}}]"
    )
}

/// Reads a log file; a last line that Envoy has not finished is left out.
pub fn read(path: &Path) -> anyhow::Result<Vec<Served>> {
    parse(&std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?)
}

/// Parses lines of [`FORMAT`].
pub fn parse(text: &str) -> anyhow::Result<Vec<Served>> {
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| parse_line(line).with_context(|| format!("access log line {line:?}"))).collect()
}

fn parse_line(line: &str) -> anyhow::Result<Served> {
    let mut fields = line.split_whitespace();
    let mut next = || fields.next().context("too few fields");
    let (seconds, micros) = next()?.split_once('.').context("no fraction of a second")?;
    let start_micros = seconds.parse::<u64>()? * 1_000_000 + micros.parse::<u64>()?;
    let status = next()?.parse()?;
    let upstream = next()?;
    let flags = next()?;
    Ok(Served {
        start_micros,
        status,
        upstream: if upstream == "-" { None } else { Some(upstream.parse()?) },
        flags: if flags == "-" { String::new() } else { flags.to_owned() },
        duration: Duration::from_millis(next()?.parse()?),
        path: next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_and_an_unfinished_one_waits() {
        let text = "1700000000.000042 200 127.0.0.1:8000 - 7 /a\n1700000001.5 503 - UH 0 /b\n17000";
        let served = parse(text).unwrap();
        assert_eq!(served.len(), 2);
        assert_eq!(served[0].start_micros, 1_700_000_000_000_042);
        assert_eq!(served[0].upstream, "127.0.0.1:8000".parse().ok());
        assert_eq!((served[1].status, served[1].upstream, served[1].flags.as_str()), (503, None, "UH"));
        assert!(parse("x\n").is_err());
    }
}
