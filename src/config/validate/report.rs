//! The list of what is wrong, and the values that need nothing but their limits checked.
//!
//! Pure: no I/O. Used by the checks of this directory.

use std::time::Duration;

use super::super::defaults::Setting;
use super::super::error::{ConfigError, MAX_ERRORS};
use super::super::outline::Outline;
use super::super::path::{Cursor, Path};
use super::super::raw::RawDuration;
use super::super::suggest::did_you_mean;
use super::{Config, duration};

/// What was written, for places, and what of it could not be decoded.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct Seen<'a> {
    /// Where everything stands.
    pub(in crate::config) outline: &'a Outline,
    /// Values that stand in the file but not in the raw config.
    pub(in crate::config) lost: &'a [Path],
}

/// The value is wrong and the report says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Invalid;

/// Collects errors.
#[derive(Debug)]
pub(super) struct Report<'a> {
    seen: Seen<'a>,
    errors: Vec<ConfigError>,
}

impl<'a> Report<'a> {
    pub(super) fn new(seen: Seen<'a>) -> Self {
        Self { seen, errors: Vec::new() }
    }

    /// `config` if nothing was reported, else the report.
    pub(super) fn finish(self, config: Result<Config, Invalid>) -> Result<Config, Vec<ConfigError>> {
        match config {
            Ok(config) if self.errors.is_empty() => Ok(config),
            Ok(_) | Err(Invalid) => Err(self.errors),
        }
    }

    /// Reports the value at `at`.
    pub(super) fn fail(&mut self, at: &Cursor<'_>, message: String, help: String) -> Invalid {
        if self.errors.len() <= MAX_ERRORS {
            let path = at.path();
            let place = self.seen.outline.locate(&path);
            self.errors.push(ConfigError { path, place, message, help });
        }
        Invalid
    }

    /// Reports the key at `at`.
    pub(super) fn fail_key(&mut self, at: &Cursor<'_>, message: String, help: String) -> Invalid {
        if self.errors.len() <= MAX_ERRORS {
            let path = at.path();
            let place = self.seen.outline.locate_key(&path);
            self.errors.push(ConfigError { path, place, message, help });
        }
        Invalid
    }

    /// Reports that `key` is missing at `at`, unless something stands there that was already reported.
    pub(super) fn missing(&mut self, at: &Cursor<'_>, key: &str, help: &str) -> Invalid {
        let missing = at.key(key);
        if self.is_lost(&missing) || self.seen.outline.gaps.contains(&at.path()) {
            return Invalid;
        }
        let message = match at.path().steps() {
            [] => format!("`{key}` is missing"),
            [..] => format!("`{}` lacks `{key}`", at.name()),
        };
        if self.errors.len() <= MAX_ERRORS {
            let place = self.seen.outline.locate_key(&at.path());
            self.errors.push(ConfigError { path: missing.path(), place, message, help: help.to_owned() });
        }
        Invalid
    }

    /// Whether something stands at `at` that was already reported.
    pub(super) fn is_lost(&self, at: &Cursor<'_>) -> bool {
        !self.seen.lost.is_empty() && {
            let path = at.path();
            self.seen.lost.iter().any(|lost| lost.holds(&path))
        }
    }

    /// A number within the limits of `setting`, or its default.
    pub(super) fn number(
        &mut self,
        at: &Cursor<'_>,
        given: Option<u64>,
        setting: &Setting<u64>,
    ) -> Result<u32, Invalid> {
        if given.is_none() && self.is_lost(at) {
            return Err(Invalid);
        }
        let number = given.unwrap_or(setting.default);
        let (min, max) = (setting.limits.start(), setting.limits.end());
        match u32::try_from(number) {
            Ok(small) if setting.limits.contains(&number) => Ok(small),
            Ok(_) | Err(_) => Err(self.fail(
                at,
                format!("`{}` is {number}, outside {min} to {max}", at.name()),
                format!("write a number from {min} to {max}; the default is {}", setting.default),
            )),
        }
    }

    /// A duration within the limits of `setting`, or its default.
    pub(super) fn duration(
        &mut self,
        at: &Cursor<'_>,
        given: Option<&RawDuration>,
        setting: &Setting<Duration>,
    ) -> Result<Duration, Invalid> {
        let Some(RawDuration(text)) = given else {
            return if self.is_lost(at) { Err(Invalid) } else { Ok(setting.default) };
        };
        let value = match duration::parse(text) {
            Ok(value) => value,
            Err(problem) => {
                return Err(self.fail(at, format!("`{}`: {}", at.name(), problem.message), problem.help));
            }
        };
        if setting.limits.contains(&value) {
            return Ok(value);
        }
        let show = duration::show;
        let (min, max) = (show(*setting.limits.start()), show(*setting.limits.end()));
        Err(self.fail(
            at,
            format!("`{}` is {}, outside {min} to {max}", at.name(), show(value)),
            format!("write a duration from {min} to {max}; the default is {}", show(setting.default)),
        ))
    }

    /// One of a few words, or the default.
    pub(super) fn choice<T: Copy>(
        &mut self,
        at: &Cursor<'_>,
        given: Option<&String>,
        default: T,
        choices: &[(&'static str, T)],
    ) -> Result<T, Invalid> {
        let Some(given) = given else {
            return if self.is_lost(at) { Err(Invalid) } else { Ok(default) };
        };
        if let Some((_, value)) = choices.iter().find(|(word, _)| word == given) {
            return Ok(*value);
        }
        let words = choices.iter().map(|(word, _)| *word);
        let help = match did_you_mean(given, words.clone()) {
            Some(question) => question,
            None => format!("write one of: {}", words.collect::<Vec<_>>().join(", ")),
        };
        Err(self.fail(at, format!("`{}` cannot be `{}`", at.name(), given.escape_debug()), help))
    }
}

/// What is wrong with a piece of text, wherever it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) help: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into() }
    }
}
