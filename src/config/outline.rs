//! The file's shape: every key and value with its place, before anything has a meaning.
//!
//! Pure: no I/O. Decides what is YAML that tidegate reads (one document of maps, lists and scalars) and refuses
//! what makes a config say something else than it seems to: duplicate keys, anchors and aliases, tags, keys that
//! are not text. It never follows an alias, so no small file becomes a large one. Called by [`super::parse`];
//! [`super::yaml`] decodes the tree, and every later error finds its place here.

use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::error::{ConfigError, MAX_ERRORS, Place};
use super::path::{Path, Step};
use super::scalar::{Plain, resolve};
use super::syntax;

/// Maps and lists nested deeper than this are refused. The deepest key that exists is on level 7.
pub(super) const MAX_DEPTH: usize = 32;

/// A file with more values than this is refused: it bounds memory where the size alone does not (`[1,1,1,…`).
/// Keys count too. Ten thousand instances with labels have 200,000.
pub(super) const MAX_VALUES: usize = 1_000_000;

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) kind: Kind,
}

/// What a value is.
#[derive(Debug)]
pub(super) enum Kind {
    /// Text; `plain` if it stands without quotes, so that it may also be a number or a boolean.
    Scalar { text: String, plain: bool },
    /// A list.
    List(Vec<Node>),
    /// A map in the order of the file, its keys unique.
    Map(Vec<(Key, Node)>),
    /// Refused already; what stands there is of no further interest.
    Refused,
}

/// A key and where it stands.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) text: String,
    pub(super) place: Place,
}

/// The whole file.
#[derive(Debug)]
pub(super) struct Outline {
    /// The document.
    pub(super) root: Node,
    /// What was refused on the way.
    pub(super) errors: Vec<ConfigError>,
    /// Maps in which a key could not be read: what seems to be missing there may be meant by it.
    pub(super) gaps: Vec<Path>,
}

impl Outline {
    /// Reads `text`, whose first byte is byte `offset` of the file. `Err` is a syntax error, which stands alone.
    pub(super) fn read(text: &str, offset: usize) -> Result<Self, Box<ConfigError>> {
        let options = granit_parser::options! {
            emit_comments: false,
            emit_anchor_events: true,
            emit_unresolved_aliases: true,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
            simple_key_max_lookahead: 1024,
        };
        let mut builder = Builder::new(text, offset);
        for next in Parser::new_from_str_with_options(text, options) {
            let (event, span) = next.map_err(|e: ScanError| Box::new(builder.syntax_error(&e)))?;
            if !builder.on(event, &span) {
                break;
            }
        }
        let root = builder.root.unwrap_or(Node {
            place: Place { line: 1, column: 1, span: offset..offset },
            kind: Kind::Refused,
        });
        Ok(Self { root, errors: builder.errors, gaps: builder.gaps })
    }

    /// The value at `path`.
    pub(super) fn find(&self, path: &Path) -> Option<&Node> {
        let mut node = &self.root;
        for step in path.steps() {
            node = child(node, step)?.1;
        }
        Some(node)
    }

    /// Where to point for an error at `path`: at a scalar itself, at the key of a map or list, at the innermost
    /// key around it if it does not exist.
    pub(super) fn locate(&self, path: &Path) -> Place {
        let mut place =
            Place { span: self.root.place.span.start..self.root.place.span.start, ..self.root.place };
        let mut node = &self.root;
        for step in path.steps() {
            let Some((key, value)) = child(node, step) else { return place };
            place = match (&value.kind, key) {
                (Kind::List(_) | Kind::Map(_) | Kind::Refused, Some(key)) => key.place.clone(),
                (Kind::Scalar { .. }, _) | (_, None) => value.place.clone(),
            };
            node = value;
        }
        place
    }

    /// Where the last key of `path` stands; [`Self::locate`] if there is none.
    pub(super) fn locate_key(&self, path: &Path) -> Place {
        let Some((last, around)) = path.steps().split_last() else { return self.locate(path) };
        match self.find(&Path::new(around.to_vec())).and_then(|parent| child(parent, last)) {
            Some((Some(key), _)) => key.place.clone(),
            Some((None, _)) | None => self.locate(path),
        }
    }
}

fn child<'a>(node: &'a Node, step: &Step) -> Option<(Option<&'a Key>, &'a Node)> {
    match (&node.kind, step) {
        (Kind::Map(entries), Step::Key(name)) => {
            entries.iter().find(|(key, _)| key.text == *name).map(|(key, value)| (Some(key), value))
        }
        (Kind::List(items), Step::Index(index)) => items.get(*index).map(|item| (None, item)),
        (
            Kind::Map(_) | Kind::List(_) | Kind::Scalar { .. } | Kind::Refused,
            Step::Key(_) | Step::Index(_),
        ) => None,
    }
}

/// A map or list that is still open.
enum Open {
    Map {
        place: Place,
        entries: Vec<(Key, Node)>,
        /// Line of the first use of each key.
        seen: HashMap<String, usize>,
        pending: Pending,
    },
    List {
        place: Place,
        items: Vec<Node>,
    },
}

/// What a map waits for.
enum Pending {
    /// A key.
    Key,
    /// The value of this key.
    Value(Key),
    /// A value that belongs to a refused key.
    Skip,
}

struct Builder<'t> {
    text: &'t str,
    offset: usize,
    open: Vec<Open>,
    root: Option<Node>,
    errors: Vec<ConfigError>,
    gaps: Vec<Path>,
    documents: usize,
    values: usize,
}

impl<'t> Builder<'t> {
    fn new(text: &'t str, offset: usize) -> Self {
        Self {
            text,
            offset,
            open: Vec::new(),
            root: None,
            errors: Vec::new(),
            gaps: Vec::new(),
            documents: 0,
            values: 0,
        }
    }

    fn syntax_error(&self, error: &ScanError) -> ConfigError {
        let mark = error.marker();
        let start = mark.byte_offset().unwrap_or(self.text.len()).min(self.text.len());
        let end =
            self.text.get(start..).and_then(|t| t.chars().next()).map_or(start, |c| start + c.len_utf8());
        let place =
            Place { line: mark.line(), column: mark.col() + 1, span: start + self.offset..end + self.offset };
        let (line, line_start) = self.line_at(start);
        syntax::explain(error.kind(), line, line_start + self.offset, place)
    }

    /// The line that byte `at` stands on, and where it begins.
    fn line_at(&self, at: usize) -> (&'t str, usize) {
        let (before, after) = self.text.split_at_checked(at).unwrap_or((self.text, ""));
        let start = before.rfind('\n').map_or(0, |n| n + 1);
        let end = at + after.find('\n').unwrap_or(after.len());
        (self.text.get(start..end).unwrap_or(""), start)
    }

    fn place(&self, span: &Span) -> Place {
        let bytes: Range<usize> = span.byte_range().unwrap_or(0..0);
        Place {
            line: span.start.line(),
            column: span.start.col() + 1,
            span: bytes.start + self.offset..bytes.end.max(bytes.start) + self.offset,
        }
    }

    /// The path of the value that comes next.
    fn path(&self) -> Path {
        let steps = self.open.iter().filter_map(|open| match open {
            Open::Map { pending: Pending::Value(key), .. } => Some(Step::Key(key.text.clone())),
            Open::Map { pending: Pending::Key | Pending::Skip, .. } => None,
            Open::List { items, .. } => Some(Step::Index(items.len())),
        });
        Path::new(steps.collect())
    }

    fn refuse(&mut self, place: Place, message: String, help: String) {
        self.refuse_at(self.path(), place, message, help);
    }

    fn refuse_at(&mut self, path: Path, place: Place, message: String, help: String) {
        // Beyond the limit only the count matters, so that no file grows its own list of errors.
        if self.errors.len() <= MAX_ERRORS {
            self.errors.push(ConfigError { path, place, message, help });
        }
    }

    /// Refuses a key and what belongs to it.
    fn refuse_key(&mut self, place: Place, message: String, help: String) {
        self.refuse(place, message, help);
        if self.gaps.len() <= MAX_ERRORS {
            self.gaps.push(self.path());
        }
    }

    /// Takes the next event; false if the rest of the file is not to be read.
    fn on(&mut self, event: Event<'_>, span: &Span) -> bool {
        let place = self.place(span);
        self.values += usize::from(event.is_node());
        if self.values > MAX_VALUES {
            let message = format!("the file has more than {MAX_VALUES} values; this is one too many");
            self.refuse_at(Path::default(), place, message, "is it the right file?".into());
            return false;
        }
        if event.tag().is_some() {
            let tag = span.tag_span().map_or_else(|| place.clone(), |tag| self.place(&tag));
            self.refuse(tag, "tags such as `!!str` are not read".into(), "remove the tag; quote text".into());
        }
        match event {
            Event::DocumentStart(..) => return self.document(place),
            Event::Scalar(text, style, ..) => {
                self.scalar(text.into_owned(), style == ScalarStyle::Plain, place)
            }
            Event::MappingStart(..) => self.start(Open::Map {
                place,
                entries: Vec::new(),
                seen: HashMap::new(),
                pending: Pending::Key,
            }),
            Event::SequenceStart(..) => self.start(Open::List { place, items: Vec::new() }),
            Event::MappingEnd | Event::SequenceEnd => self.end(),
            Event::Anchor(_, name) => self.refuse(
                place,
                format!("anchors such as `&{name}` are not read"),
                "write the value out in each place that needs it".into(),
            ),
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.refuse(
                    place.clone(),
                    "aliases such as `*name` are not read".into(),
                    "write the value out in each place that needs it".into(),
                );
                self.value(Node { place, kind: Kind::Refused });
            }
            // Comments are switched off; what a later version of the parser adds is no data either.
            _ => {}
        }
        true
    }

    fn document(&mut self, place: Place) -> bool {
        self.documents += 1;
        if self.documents > 1 {
            self.refuse(
                place,
                "a second document starts here".into(),
                "a config is one document: remove this `---` and what belongs to the other one".into(),
            );
        }
        self.documents == 1
    }

    fn scalar(&mut self, text: String, plain: bool, place: Place) {
        match self.open.last_mut() {
            Some(Open::Map { pending: Pending::Key, .. }) => self.key(text, plain, place),
            Some(Open::Map { .. } | Open::List { .. }) | None => {
                self.value(Node { place, kind: Kind::Scalar { text, plain } });
            }
        }
    }

    fn key(&mut self, text: String, plain: bool, place: Place) {
        let quoted = || format!("write `{text:?}` in quotes");
        let refusal = if plain && text == "<<" {
            Some(("merge keys (`<<`) are not read".into(), "write the merged keys out".into()))
        } else if plain {
            match resolve(&text) {
                Plain::Text => None,
                Plain::Null => Some(("a key is empty".into(), "write a name before the `:`".into())),
                Plain::Bool(_)
                | Plain::Number(_)
                | Plain::Float(_)
                | Plain::LeadingZero(_)
                | Plain::Norway => {
                    Some((format!("`{text}` as a key is not text to every YAML reader"), quoted()))
                }
            }
        } else {
            None
        };
        if let Some((message, help)) = refusal {
            self.refuse_key(place, message, help);
            return self.pend(Pending::Skip);
        }
        if let Some(first) = self.first_use(&text, place.line) {
            self.refuse_at(
                self.path().join(&text),
                place,
                format!("`{text}` is given twice; the first is on line {first}"),
                "keep one of them, or merge the two".into(),
            );
            return self.pend(Pending::Skip);
        }
        self.pend(Pending::Value(Key { text, place }));
    }

    /// Notes that `key` is used in the innermost map on `line`; the line of its first use if there was one.
    fn first_use(&mut self, key: &str, line: usize) -> Option<usize> {
        let Some(Open::Map { seen, .. }) = self.open.last_mut() else { return None };
        match seen.get(key) {
            Some(first) => Some(*first),
            None => {
                seen.insert(key.to_owned(), line);
                None
            }
        }
    }

    fn pend(&mut self, next: Pending) {
        if let Some(Open::Map { pending, .. }) = self.open.last_mut() {
            *pending = next;
        }
    }

    fn start(&mut self, open: Open) {
        if let Some(Open::Map { pending: Pending::Key, .. }) = self.open.last() {
            let place = match &open {
                Open::Map { place, .. } | Open::List { place, .. } => place.clone(),
            };
            self.refuse_key(place, "a key must be text, not a map or list".into(), "write a name".into());
        }
        self.open.push(open);
    }

    fn end(&mut self) {
        match self.open.pop() {
            Some(Open::Map { place, entries, .. }) => self.value(Node { place, kind: Kind::Map(entries) }),
            Some(Open::List { place, items }) => self.value(Node { place, kind: Kind::List(items) }),
            None => {}
        }
    }

    /// A value is complete: hands it to whatever is open.
    fn value(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, pending, .. }) => {
                *pending = match std::mem::replace(pending, Pending::Key) {
                    Pending::Value(key) => {
                        entries.push((key, node));
                        Pending::Key
                    }
                    Pending::Skip => Pending::Key,
                    // A key that is a map, list or alias: refused when it began.
                    Pending::Key => Pending::Skip,
                };
            }
        }
    }
}
