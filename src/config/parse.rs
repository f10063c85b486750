//! The steps from bytes to [`Config`], in order.
//!
//! Pure: no I/O. Each step sees what the one before could make of the file, so that errors of all of them are
//! reported together; only text that cannot be read at all stops at once. Called through [`super::parse`].

use super::error::{ConfigError, ConfigErrors, Place};
use super::outline::{Kind, Outline};
use super::path::Path;
use super::validate::{Seen, validate};
use super::{Config, MAX_BYTES, yaml};

const BOM: &str = "\u{feff}";

pub(super) fn bytes(bytes: &[u8]) -> Result<Config, ConfigErrors> {
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return self::text(text),
        Err(error) => error,
    };
    let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
    let good = std::str::from_utf8(good).unwrap_or_default();
    let line = good.bytes().filter(|b| *b == b'\n').count() + 1;
    let column = good.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    let place = Place { line, column, span: good.len()..good.len() };
    Err(alone(place, "the file is not UTF-8 from here on", "save it as UTF-8"))
}

pub(super) fn text(text: &str) -> Result<Config, ConfigErrors> {
    let start = Place { line: 1, column: 1, span: 0..0 };
    if text.len() > MAX_BYTES {
        let message = format!("the file has {} bytes; at most {MAX_BYTES} are read", text.len());
        return Err(alone(start, &message, "is it the right file?"));
    }
    let body = text.strip_prefix(BOM).unwrap_or(text);
    let outline = Outline::read(body, text.len() - body.len()).map_err(|error| ConfigErrors::one(*error))?;
    let empty = match &outline.root.kind {
        Kind::Scalar { text, plain } => *plain && text.is_empty(),
        Kind::Refused => outline.errors.is_empty(),
        Kind::Map(_) | Kind::List(_) => false,
    };
    if empty {
        return Err(alone(
            start,
            "the file is empty",
            "add your pools under `clusters:`, or `clusters: {}` if there are none yet",
        ));
    }
    let decoded = yaml::decode(&outline);
    let mut errors = outline.errors.clone();
    let whole = !decoded.more && !decoded.lost.contains(&Path::default());
    let config = if whole {
        let seen = Seen { outline: &outline, lost: &decoded.lost };
        validate(&decoded.raw, seen).map_err(|found| errors.extend(found)).ok()
    } else {
        None
    };
    errors.extend(decoded.errors);
    match (config, ConfigErrors::new(errors, decoded.more)) {
        (Some(config), None) => Ok(config),
        (_, Some(errors)) => Err(errors),
        // Refused without a reason would be a bug here; it must not read as a good config all the same.
        (None, None) => {
            Err(alone(start, "the file cannot be read as a config", "compare it with docs/config.md"))
        }
    }
}

fn alone(place: Place, message: &str, help: &str) -> ConfigErrors {
    let (message, help) = (message.to_owned(), help.to_owned());
    ConfigErrors::one(ConfigError { path: Path::default(), place, message, help })
}
