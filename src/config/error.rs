//! What is wrong with a config, as data.
//!
//! Pure: no I/O. An error says where (path, line, column, bytes), what, and what to write instead; how that looks
//! on a terminal is `cli::render`'s business. Made by the other files of this module, read by `cli`, `app` and
//! `admin`.

use std::fmt;
use std::ops::Range;

use super::path::Path;

/// At most this many errors are reported at once. Nobody reads more, and each costs a pass over the file.
pub const MAX_ERRORS: usize = 20;

/// A place in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// In bytes of the text as given, a byte order mark included. Both ends are character boundaries.
    pub span: Range<usize>,
}

/// One thing to correct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key it is about; empty for the file as a whole.
    pub path: Path,
    /// Where that stands.
    pub place: Place,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// What to write instead.
    pub help: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.place.line, self.place.column, self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "; {}", self.help) }
    }
}

/// Everything that is wrong with a config, in the order of the text. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
    truncated: bool,
}

impl ConfigErrors {
    /// Sorts `errors` and keeps the first [`MAX_ERRORS`]; `more` says that some were not even looked for.
    /// `None` if there are none.
    pub(super) fn new(mut errors: Vec<ConfigError>, more: bool) -> Option<Self> {
        errors.sort_by(|a, b| {
            let key = |e: &ConfigError| (e.place.span.start, e.place.span.end);
            key(a).cmp(&key(b)).then_with(|| a.path.cmp(&b.path)).then_with(|| a.message.cmp(&b.message))
        });
        errors.dedup();
        let truncated = more || errors.len() > MAX_ERRORS;
        errors.truncate(MAX_ERRORS);
        (!errors.is_empty()).then_some(Self { errors, truncated })
    }

    /// One that stands alone.
    pub(super) fn one(error: ConfigError) -> Self {
        Self { errors: vec![error], truncated: false }
    }

    /// The errors, first in the text first.
    pub fn as_slice(&self) -> &[ConfigError] {
        &self.errors
    }

    /// Whether there may be more than are listed.
    pub const fn is_truncated(&self) -> bool {
        self.truncated
    }
}

impl fmt::Display for ConfigErrors {
    /// On one line: the first error, and how many more there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.errors.first() {
            first.fmt(f)?;
        }
        match self.errors.len() {
            0 | 1 if self.truncated => f.write_str(" (and more)"),
            0 | 1 => Ok(()),
            n if self.truncated => write!(f, " (and {} more at least)", n - 1),
            n => write!(f, " (and {} more)", n - 1),
        }
    }
}

impl std::error::Error for ConfigErrors {}
