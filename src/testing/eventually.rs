//! Waiting for a condition, with patience that the machine's owner sets.
//!
//! For tests over real sockets and processes only. It never decides whether something was fast enough.

use std::time::Duration;

use anyhow::bail;

const POLL: Duration = Duration::from_millis(10);
const DEFAULT_PATIENCE: Duration = Duration::from_secs(20);

/// How long a test waits before it gives up: `$TIDEGATE_PATIENCE` (`60s`), 20 s without it.
pub fn patience() -> Duration {
    let Ok(set) = std::env::var("TIDEGATE_PATIENCE") else { return DEFAULT_PATIENCE };
    let parsed = parse(&set);
    assert!(parsed.is_some(), "TIDEGATE_PATIENCE={set} is no duration; write for example 60s");
    parsed.unwrap_or(DEFAULT_PATIENCE)
}

fn parse(text: &str) -> Option<Duration> {
    Duration::try_from(text.parse::<jiff::SignedDuration>().ok()?).ok()
}

/// Asks `check` until it says `Ok`; its last `Err` explains what was still missing when [`patience`] ran out.
pub async fn eventually<T, E: std::fmt::Display>(
    what: &str,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> anyhow::Result<T> {
    let patience = patience();
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        match check().await {
            Ok(value) => return Ok(value),
            Err(missing) if tokio::time::Instant::now() >= deadline => {
                bail!("{what}: not within {patience:?}: {missing}")
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_is_asked_until_it_holds() {
        let mut left = 3;
        let check = async || {
            left -= 1;
            if left == 0 { Ok("done") } else { Err(format!("{left} left")) }
        };
        assert_eq!(eventually("countdown", check).await.unwrap(), "done");
    }

    #[test]
    fn patience_is_a_duration_with_a_unit() {
        assert_eq!(parse("60s"), Some(Duration::from_secs(60)));
        assert_eq!((parse("60"), parse("-1s")), (None, None));
    }
}
