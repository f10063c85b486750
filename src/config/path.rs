//! Where in a config something stands.
//!
//! Pure: no I/O. A [`Path`] is data that an error carries; a [`Cursor`] is the same thing on the stack while the
//! checks walk down, so that a file without errors allocates none. Used by every file of this module.

use std::fmt;

/// One step down.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Into a map, by key.
    Key(String),
    /// Into a list, counted from 0.
    Index(usize),
}

/// The way from the top of the file to a value: `clusters.llama.checks.readiness.interval`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Path(Vec<Step>);

impl Path {
    /// From its steps, outermost first. No steps mean the whole file.
    pub const fn new(steps: Vec<Step>) -> Self {
        Self(steps)
    }

    /// The steps, outermost first.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The path of `key` in the map at this path.
    pub fn join(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Self(steps)
    }

    /// Whether this is `other` or one of the maps and lists around it.
    pub fn holds(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain =
            |k: &str| !k.is_empty() && k.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        for (n, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(i) => write!(f, "[{i}]")?,
                Step::Key(key) => {
                    if n > 0 {
                        f.write_str(".")?;
                    }
                    if plain(key) { f.write_str(key)? } else { write!(f, "{key:?}")? }
                }
            }
        }
        Ok(())
    }
}

/// A [`Path`] as a chain of stack frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    parent: Option<&'a Cursor<'a>>,
    step: Option<Here<'a>>,
}

#[derive(Debug, Clone, Copy)]
enum Here<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Cursor<'a> {
    /// The whole file.
    pub(super) const ROOT: Cursor<'static> = Cursor { parent: None, step: None };

    /// Into a map.
    pub(super) const fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: Some(Here::Key(key)) }
    }

    /// Into a list.
    pub(super) const fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: Some(Here::Index(index)) }
    }

    /// The innermost key, for messages.
    pub(super) fn name(&self) -> &str {
        match self.step {
            Some(Here::Key(key)) => key,
            Some(Here::Index(_)) => self.parent.map_or("item", Cursor::name),
            None => "the file",
        }
    }

    /// As data.
    pub(super) fn path(&self) -> Path {
        let mut steps = Vec::new();
        let mut at = Some(self);
        while let Some(cursor) = at {
            match cursor.step {
                Some(Here::Key(key)) => steps.push(Step::Key(key.to_owned())),
                Some(Here::Index(index)) => steps.push(Step::Index(index)),
                None => {}
            }
            at = cursor.parent;
        }
        steps.reverse();
        Path(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_like_the_file() {
        let root = Cursor::ROOT;
        let clusters = root.key("clusters");
        let odd = clusters.key("llama-70b.v2");
        let routes = odd.key("routes");
        let first = routes.index(0);
        let prefix = first.key("prefix");
        assert_eq!(prefix.path().to_string(), "clusters.\"llama-70b.v2\".routes[0].prefix");
        assert_eq!(root.path().to_string(), "");
        assert_eq!(first.name(), "routes");
        assert!(routes.path().holds(&prefix.path()));
        assert!(!prefix.path().holds(&routes.path()));
    }
}
