//! Syntax errors of YAML in words that say what to do.
//!
//! Pure: no I/O. Called by `outline` for the one error at which reading stops.

use granit_parser::ErrorKind;

use super::error::{ConfigError, Place};
use super::outline::MAX_DEPTH;
use super::path::Path;

/// The error `kind` at `place`, whose line is `line` and begins at byte `line_start` of the file.
pub(super) fn explain(kind: &ErrorKind, line: &str, line_start: usize, mut place: Place) -> ConfigError {
    let indent = line.get(..line.len() - line.trim_start().len()).unwrap_or("");
    let (message, help) = if let Some((before, _)) = indent.split_once('\t') {
        let tab = line_start + before.len();
        place = Place { line: place.line, column: before.chars().count() + 1, span: tab..tab + 1 };
        ("a tab is used for indentation".to_owned(), "indent with spaces, two for each level")
    } else {
        (message(kind), help(kind))
    };
    ConfigError { path: Path::default(), place, message, help: help.into() }
}

fn message(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::RecursionLimitExceeded => {
            format!("maps and lists are nested more than {MAX_DEPTH} deep")
        }
        ErrorKind::InvalidIndentation => "the indentation fits no line above".into(),
        ErrorKind::ExpectedBlockMappingKey => "a key of the map above is expected here".into(),
        ErrorKind::UnclosedFlowCollection { open } => format!("`{open}` is never closed"),
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => format!("`{open}` is closed by `{close}`"),
        ErrorKind::UnclosedQuotedScalar => "the quote is never closed".into(),
        ErrorKind::SimpleKeyExpected => "a `:` is missing after this key".into(),
        ErrorKind::MappingValueNotAllowed => "a `:` is not allowed here".into(),
        ErrorKind::UnexpectedCharacter { character } => format!("{character:?} is not allowed here"),
        // The parser's own words for the rest: a list of all of them would say the same once more.
        other => other.to_string(),
    }
}

fn help(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::RecursionLimitExceeded => "write the config flatter",
        ErrorKind::InvalidIndentation | ErrorKind::ExpectedBlockMappingKey => {
            "give keys of one map the same indentation"
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar => "use spaces instead of tabs",
        ErrorKind::UnclosedFlowCollection { open: '[' } => "add the `]`",
        ErrorKind::UnclosedFlowCollection { .. } => "add the `}`",
        ErrorKind::MismatchedFlowCollectionEnd { open: '[', .. } => "close it with `]`",
        ErrorKind::MismatchedFlowCollectionEnd { .. } => "close it with `}`",
        ErrorKind::UnclosedQuotedScalar => "add the closing quote",
        ErrorKind::SimpleKeyExpected | ErrorKind::UnexpectedEof => {
            "write `key: value`, with a space after the `:`"
        }
        ErrorKind::MappingValueNotAllowed => {
            "is the `:` missing at the end of the line above? a value that contains `: ` needs quotes"
        }
        ErrorKind::UnexpectedCharacter { .. } => "put the value in quotes",
        _ => "correct the YAML here; `key: value` lines, indented with spaces",
    }
}
