//! What a word without quotes is.
//!
//! Pure: no I/O. YAML's core schema, with the two families of words that YAML 1.1 and 1.2 read differently kept
//! apart so that they can be refused: `no` and its kin, and numbers with leading zeros. Used by `outline` for
//! keys and by `yaml` for values.

/// A plain scalar's meaning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Plain {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Number(i64),
    /// Any other number.
    Float(f64),
    /// Digits after a leading zero: octal to some readers, decimal or text to others. The decimal reading, if it
    /// fits.
    LeadingZero(Option<u64>),
    /// `yes`, `no`, `on` or `off`: boolean to some readers, text to others.
    Norway,
    /// Text.
    Text,
}

/// Reads one plain scalar.
pub(super) fn resolve(text: &str) -> Plain {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "" | "~" | "null" => return Plain::Null,
        "true" => return Plain::Bool(true),
        "false" => return Plain::Bool(false),
        "yes" | "no" | "on" | "off" => return Plain::Norway,
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Plain::Text;
    }
    let whole = digits.bytes().all(|b| b.is_ascii_digit());
    let based = ["0x", "0o", "0b"].iter().any(|base| {
        lower.strip_prefix(base).is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_hexdigit()))
    });
    if (whole && digits.len() > 1 && digits.starts_with('0')) || based {
        return Plain::LeadingZero(if whole { digits.parse().ok() } else { None });
    }
    if let (true, Ok(number)) = (whole, text.parse::<i64>()) {
        return Plain::Number(number);
    }
    // Rust's grammar for floats is YAML's but for the words (`inf`, `nan`), which do not begin with a digit.
    text.parse::<f64>().map_or(Plain::Text, Plain::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_word_is_what_every_reader_takes_it_for_or_ambiguous() {
        let table = [
            ("", Plain::Null),
            ("~", Plain::Null),
            ("Null", Plain::Null),
            ("TRUE", Plain::Bool(true)),
            ("no", Plain::Norway),
            ("On", Plain::Norway),
            ("5", Plain::Number(5)),
            ("-5", Plain::Number(-5)),
            ("0", Plain::Number(0)),
            ("0777", Plain::LeadingZero(Some(777))),
            ("0o777", Plain::LeadingZero(None)),
            ("0x1F", Plain::LeadingZero(None)),
            ("1.10", Plain::Float(1.1)),
            ("99999999999999999999", Plain::Float(1e20)),
            ("10.0.0.1", Plain::Text),
            ("10.0.0.1:80", Plain::Text),
            ("5s", Plain::Text),
            ("-", Plain::Text),
            ("inf", Plain::Text),
            ("nope", Plain::Text),
        ];
        for (text, meaning) in table {
            assert_eq!(resolve(text), meaning, "{text:?}");
        }
    }
}
