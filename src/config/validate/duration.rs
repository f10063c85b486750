//! Durations as text: `250ms`, `5s`, `1m 30s`.
//!
//! Pure: no I/O. Reads what jiff's friendly format reads, without the part of it that people could take for
//! something else: signs, `ago`, clock times, commas, and units that are not h, m, s, ms or us.

use std::time::Duration;

use jiff::SignedDuration;
use jiff::fmt::friendly::SpanParser;

use super::report::Problem;

const UNITS: [&str; 5] = ["h", "m", "s", "ms", "us"];
const EXAMPLES: &str = "write a duration such as `250ms`, `5s` or `1m 30s`";

/// Reads `text`; zero is a duration.
pub(super) fn parse(text: &str) -> Result<Duration, Problem> {
    // Far more than any duration needs, and it bounds what an error repeats.
    const MAX_LEN: usize = 32;
    if text.len() > MAX_LEN {
        return Err(Problem::new("the text is too long for a duration", EXAMPLES));
    }
    if text.starts_with('-') {
        return Err(Problem::new(format!("`{}` is negative", text.escape_debug()), EXAMPLES));
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        let help = format!("write `{text}s` for seconds or `{text}ms` for milliseconds");
        return Err(Problem::new(format!("`{text}` has no unit"), help));
    }
    let foreign = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | ' '));
    let mut units = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|unit| !unit.is_empty());
    if let (false, Some(unit)) = (text.contains(foreign), units.find(|unit| !UNITS.contains(unit))) {
        let help = "the units are h, m, s, ms and us, in this order: `1m 30s`";
        return Err(Problem::new(format!("`{unit}` is not a unit of time that is read here"), help));
    }
    const PARSER: SpanParser = SpanParser::new();
    match PARSER.parse_unsigned_duration(text) {
        Ok(duration) if !text.contains(foreign) => Ok(duration),
        Ok(_) | Err(_) => Err(Problem::new(format!("`{}` is not a duration", text.escape_debug()), EXAMPLES)),
    }
}

/// `duration` the way [`parse`] reads it.
pub(super) fn show(duration: Duration) -> String {
    SignedDuration::try_from(duration).map_or_else(|_| format!("{duration:?}"), |d| format!("{d:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_one_meaning() {
        let table = [
            ("250ms", 250),
            ("5s", 5_000),
            ("1m 30s", 90_000),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("0s", 0),
            ("1.5s", 1_500),
            ("5 s", 5_000),
            ("500us", 0),
        ];
        for (text, ms) in table {
            assert_eq!(parse(text).unwrap().as_millis(), ms, "{text}");
        }
        let refused = [
            "",
            " ",
            "5",
            "0.5",
            "-5s",
            "+5s",
            "5s ago",
            "1d",
            "1 week",
            "5sec",
            "1,5s",
            "00:05",
            "P5S",
            "PT5S",
            "1M",
            "5S",
            "1s1m",
            "99999999999999999999s",
            "5µs",
            "s",
            "1e3s",
            "five",
            "5ss",
            "9999999999999999h",
        ];
        for text in refused {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"1".repeat(1_000)).is_err());
        assert_eq!(parse("5").unwrap_err().help, "write `5s` for seconds or `5ms` for milliseconds");
    }

    #[test]
    fn a_shown_duration_can_be_read_back() {
        for ms in [0, 1, 250, 1_000, 90_000, 3_600_000, 86_400_000] {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse(&show(duration)), Ok(duration));
        }
    }
}
