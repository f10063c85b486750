//! The typed decoding: the only user of `serde_yaml`.
//!
//! Pure: no I/O. `serde_yaml` reads no text here: the tree comes from [`super::outline`], so there is one YAML
//! parser, and no second opinion on what a file says. It turns that tree into [`RawConfig`], stops at the first
//! wrong type or unknown key, and that one is taken out and the rest read again: at most [`MAX_ERRORS`] times.
//! Called by [`super::parse`].

use serde_path_to_error::Segment;
use serde_yaml::Value;

use super::error::{ConfigError, MAX_ERRORS};
use super::outline::{Kind, Node, Outline};
use super::path::{Path, Step};
use super::raw::{ADDRESS, DURATION, RawConfig, TCP};
use super::scalar::{Plain, resolve};
use super::suggest::{did_you_mean, nearest};

/// What could be decoded, and what could not.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    /// Everything that could.
    pub(super) raw: RawConfig,
    /// Why the rest could not.
    pub(super) errors: Vec<ConfigError>,
    /// What was left out of `raw` though something stands there: nothing more is to be said about it.
    pub(super) lost: Vec<Path>,
    /// Decoding was given up, there may be more errors.
    pub(super) more: bool,
}

/// Decodes `outline`.
pub(super) fn decode(outline: &Outline) -> Decoded {
    let mut decoded = Decoded::default();
    let mut value = decoded.value(&outline.root, &mut Vec::new());
    if value == Value::Null {
        // Refused as a whole.
        decoded.lost.push(Path::default());
        return decoded;
    }
    loop {
        let error = match serde_path_to_error::deserialize::<_, RawConfig>(&value) {
            Ok(raw) => {
                decoded.raw = raw;
                return decoded;
            }
            Err(error) => error,
        };
        if decoded.errors.len() >= MAX_ERRORS {
            decoded.more = true;
            return decoded;
        }
        let path = path_of(error.path());
        decoded.explain(outline, &path, &error.into_inner().to_string());
        let removed = take_out(&mut value, path.steps());
        decoded.lost.push(path);
        if !removed {
            // The file as a whole is no map: there is nothing else to look at.
            return decoded;
        }
    }
}

fn path_of(path: &serde_path_to_error::Path) -> Path {
    let steps = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    Path::new(steps.collect())
}

/// Removes what stands at `steps`: a key from its map; in a list the item becomes null, so that the others keep
/// their number. False if nothing stands there.
fn take_out(value: &mut Value, steps: &[Step]) -> bool {
    match (value, steps) {
        (Value::Mapping(map), [Step::Key(key)]) => map.remove(key.as_str()).is_some(),
        (Value::Mapping(map), [Step::Key(key), rest @ ..]) => {
            map.get_mut(key.as_str()).is_some_and(|inner| take_out(inner, rest))
        }
        (Value::Sequence(items), [Step::Index(index), rest @ ..]) => match (items.get_mut(*index), rest) {
            (Some(Value::Null) | None, []) => false,
            (Some(item), []) => {
                *item = Value::Null;
                true
            }
            (Some(item), rest) => take_out(item, rest),
            (None, _) => false,
        },
        _ => false,
    }
}

impl Decoded {
    /// `node` as `serde_yaml` sees it, without what no YAML reader should have to guess.
    fn value(&mut self, node: &Node, path: &mut Vec<Step>) -> Value {
        match &node.kind {
            Kind::Map(entries) => {
                let mut map = serde_yaml::Mapping::with_capacity(entries.len());
                for (key, value) in entries {
                    path.push(Step::Key(key.text.clone()));
                    let value = self.value(value, path);
                    path.pop();
                    if value != Value::Null {
                        map.insert(Value::String(key.text.clone()), value);
                    }
                }
                Value::Mapping(map)
            }
            Kind::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    path.push(Step::Index(index));
                    list.push(self.value(item, path));
                    path.pop();
                }
                Value::Sequence(list)
            }
            Kind::Scalar { text, plain: false } => Value::String(text.clone()),
            Kind::Scalar { text, plain: true } => self.plain(text, node, path),
            Kind::Refused => {
                self.lost.push(Path::new(path.clone()));
                Value::Null
            }
        }
    }

    /// A scalar without quotes. Null means that it was refused.
    fn plain(&mut self, text: &str, node: &Node, path: &[Step]) -> Value {
        let (message, help) = match resolve(text) {
            Plain::Text => return Value::String(text.to_owned()),
            Plain::Bool(value) => return Value::Bool(value),
            Plain::Number(number) => return Value::Number(number.into()),
            Plain::Float(number) => return Value::Number(number.into()),
            Plain::Null => {
                let name = path.last().map_or_else(|| "the file".to_owned(), describe);
                (
                    format!("{name} has no value"),
                    "write one (`{}` for an empty map), or remove the key".to_owned(),
                )
            }
            Plain::LeadingZero(number) => {
                let plain = number.map_or_else(|| "a decimal number".to_owned(), |n| format!("`{n}`"));
                (
                    format!("`{text}` is one number to some YAML readers and another to others"),
                    format!("write {plain}; or `\"{text}\"` in quotes if text is meant"),
                )
            }
            Plain::Norway => {
                let truth = matches!(text.to_ascii_lowercase().as_str(), "yes" | "on");
                (
                    format!("`{text}` is a boolean to some YAML readers and text to others"),
                    format!("write `{truth}`; or `\"{text}\"` in quotes if text is meant"),
                )
            }
        };
        let path = Path::new(path.to_vec());
        if self.errors.len() <= MAX_ERRORS {
            let place = node.place.clone();
            self.errors.push(ConfigError { path: path.clone(), place, message, help });
        }
        self.lost.push(path);
        Value::Null
    }

    /// Puts serde's `message` about `path` into words that say what to write.
    fn explain(&mut self, outline: &Outline, path: &Path, message: &str) {
        let (place, message, help) = if let Some(rest) = message.strip_prefix("unknown field `") {
            let known: Vec<&str> = rest.split('`').skip(2).step_by(2).collect();
            let name = rest.split('`').next().unwrap_or_default();
            let meant = nearest(name, known.iter().copied());
            if let Some((_, around)) = path.steps().split_last() {
                // What was meant is there, so that nobody may call it missing.
                self.lost.extend(meant.iter().map(|meant| Path::new(around.to_vec()).join(meant)));
            }
            let help = match did_you_mean(name, known.iter().copied()) {
                Some(question) => question,
                None if known.is_empty() => "remove it: no settings belong here".to_owned(),
                None => format!("known here: {}", known.join(", ")),
            };
            (outline.locate_key(path), format!("unknown key `{name}`"), help)
        } else {
            let expected = message.rsplit_once(", expected ").map_or(message, |(_, expected)| expected);
            let name = path.steps().last().map_or_else(|| "the file".to_owned(), describe);
            let (found, help) = outline.find(path).map_or_else(
                || ("something else".to_owned(), String::new()),
                |node| found_and_help(node, expected),
            );
            let message = format!("{name} must be {}, not {found}", in_words(expected));
            (outline.locate(path), message, help)
        };
        self.errors.push(ConfigError { path: path.clone(), place, message, help });
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Key(key) => format!("`{key}`"),
        Step::Index(index) => format!("item {}", index + 1),
    }
}

/// serde's names of types, for people.
fn in_words(expected: &str) -> &str {
    match expected {
        "a string" => "text",
        "a boolean" => "`true` or `false`",
        "a sequence" => "a list",
        "u64" => "a whole number, zero or more",
        other => other,
    }
}

/// Longest value repeated, in characters.
const MAX_QUOTED: usize = 60;

/// What stands at `node`, and what to write there instead to get what was `expected`.
fn found_and_help(node: &Node, expected: &str) -> (String, String) {
    let (text, plain) = match &node.kind {
        Kind::Scalar { text, plain } => (text, *plain),
        Kind::Map(_) => return ("a map".into(), example(expected)),
        Kind::List(_) => return ("a list".into(), example(expected)),
        Kind::Refused => return ("something else".into(), example(expected)),
    };
    let meaning = if plain { resolve(text) } else { Plain::Text };
    // What is long is no value, and a wrong file may be a secret one.
    let shown = text
        .char_indices()
        .nth(MAX_QUOTED)
        .map_or(text.as_str(), |(at, _)| text.get(..at).unwrap_or_default());
    if shown.len() < text.len() {
        return (format!("the text {shown:?}…"), example(expected));
    }
    let found = match meaning {
        Plain::Bool(_) => format!("the boolean `{text}`"),
        Plain::Number(_) | Plain::Float(_) | Plain::LeadingZero(_) => format!("the number `{text}`"),
        Plain::Null | Plain::Norway | Plain::Text => format!("the text {text:?}"),
    };
    let number = matches!(resolve(text), Plain::Number(n) if n >= 0);
    let percentage = text.strip_suffix('%').filter(|n| matches!(resolve(n), Plain::Number(_)));
    let help = match (expected, meaning) {
        (DURATION, Plain::Number(n)) if n >= 0 => {
            format!("write `{text}s` for seconds or `{text}ms` for milliseconds")
        }
        (DURATION, Plain::Float(n)) if n >= 0.0 => format!("write `{text}s` for seconds"),
        ("a string", _) => format!("write `\"{text}\"` in quotes"),
        ("u64", Plain::Text) if percentage.is_some() => format!("write `{}`", percentage.unwrap_or_default()),
        ("u64", Plain::Text) if number => format!("write `{text}` without quotes"),
        ("a boolean", _) => match text.to_ascii_lowercase().as_str() {
            "yes" | "on" | "true" | "1" => "write `true`".into(),
            "no" | "off" | "false" | "0" => "write `false`".into(),
            _ => example(expected),
        },
        _ => example(expected),
    };
    (found, help)
}

fn example(expected: &str) -> String {
    match expected {
        ADDRESS => "write `IP:PORT`, such as `10.0.0.1:8000` or `\"[fd00::1]:8000\"`",
        TCP => "write `tcp: {}`",
        DURATION => "write a duration such as `500ms`, `5s` or `1m 30s`",
        "a string" => "write text",
        "a boolean" => "write `true` or `false`",
        "a sequence" => "write a list, one `- …` line for each item",
        "u64" => "write a whole number such as `1`",
        _ => "write `key: value` lines, indented under the key",
    }
    .to_owned()
}

/// `value` as YAML, for output.
pub(crate) fn to_yaml(value: &serde_json::Value) -> Result<String, serde_yaml::Error> {
    serde_yaml::to_string(value)
}
