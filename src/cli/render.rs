//! The only place that writes to stdout and stderr, apart from clap's own help.

use std::io::{self, IsTerminal as _, Write as _};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::{Value, json};

use crate::config::{self, Config, ConfigError, ConfigErrors};

/// Why a command failed, to stderr.
#[expect(clippy::print_stderr, reason = "the last word of the process; nowhere else to put it")]
pub(super) fn failure(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

/// One line of progress or outcome, to stderr: stdout is for data.
#[expect(clippy::print_stderr, reason = "what a person waits for")]
pub(super) fn message(text: &str) {
    eprintln!("{}", printable(text));
}

/// Names and reasons are others' words: they must not move the cursor.
fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return text.into();
    }
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect::<String>().into()
}

/// A table without borders, to stdout.
pub(super) fn table(header: Vec<&str>, rows: Vec<Vec<String>>) -> io::Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header).add_rows(rows);
    for line in table.lines() {
        writeln!(io::stdout(), "{}", printable(line.trim()))?;
    }
    Ok(())
}

/// Data to stdout.
pub(super) fn data(value: &Value, yaml: bool) -> anyhow::Result<()> {
    let text = if yaml { config::to_yaml(value)? } else { format!("{value:#}\n") };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// `text` to stdout, as it is.
pub(super) fn text(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes())
}

/// One line on stdout.
pub(super) fn config_summary(name: &str, config: &Config) -> io::Result<()> {
    let (clusters, instances, listeners) = counts(config);
    writeln!(
        io::stdout(),
        "{name}: ok, {}, {}, {}",
        plural(clusters, "cluster"),
        plural(instances, "instance"),
        plural(listeners, "listener"),
    )
}

fn counts(config: &Config) -> (usize, usize, usize) {
    let instances = config.clusters.values().map(|cluster| cluster.instances.len()).sum();
    (config.clusters.len(), instances, config.listeners.len())
}

/// A count with its noun.
pub(super) fn plural(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// The errors beside the lines they are about, to stderr; in colour on a terminal unless `NO_COLOR` is set
/// (no-color.org).
pub(super) fn config_errors(name: &str, source: &str, errors: &ConfigErrors) -> io::Result<()> {
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for error in errors.as_slice() {
        out.push_str(&renderer.render(&report(name, source, error)));
        out.push_str("\n\n");
    }
    let n = errors.as_slice().len();
    let more = if errors.is_truncated() { ", and perhaps more" } else { "" };
    writeln!(io::stderr(), "{out}{name}: {}{more}", plural(n, "error"))
}

fn report<'a>(name: &'a str, source: &'a str, error: &'a ConfigError) -> Vec<Group<'a>> {
    let span = error.place.span.clone();
    // Lossy decoding may have moved what follows, and nothing may make this panic.
    let span = if source.get(span.clone()).is_some() { span } else { 0..0 };
    let snippet = Snippet::source(source).path(name).annotation(AnnotationKind::Primary.span(span));
    let mut group = Level::ERROR.primary_title(&*error.message).element(snippet);
    if !error.help.is_empty() {
        group = group.element(Level::HELP.message(&*error.help));
    }
    vec![group]
}

/// The result as one JSON object on stdout.
pub(super) fn config_json(name: &str, result: Result<&Config, &ConfigErrors>) -> io::Result<()> {
    let object = match result {
        Ok(config) => {
            let (clusters, instances, listeners) = counts(config);
            json!({
                "file": name, "ok": true,
                "clusters": clusters, "instances": instances, "listeners": listeners,
            })
        }
        Err(errors) => json!({
            "file": name, "ok": false,
            "errors": errors.as_slice().iter().map(error_json).collect::<Vec<Value>>(),
            "truncated": errors.is_truncated(),
        }),
    };
    writeln!(io::stdout(), "{object}")
}

fn error_json(error: &ConfigError) -> Value {
    json!({
        "path": error.path.to_string(),
        "line": error.place.line,
        "column": error.place.column,
        "span": { "start": error.place.span.start, "end": error.place.span.end },
        "message": error.message,
        "help": error.help,
    })
}
