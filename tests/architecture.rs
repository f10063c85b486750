//! The rules of the code's structure, executable.
//!
//! Reads the sources and fails with `file:line: what is wrong`. Each rule is a function from sources to complaints,
//! and each is shown to bite on a small example below.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Paths relative to `src/`, with their text.
type Sources = BTreeMap<String, String>;

const MAX_LINES: usize = 600;
const MIN_HEAD_LINES: usize = 3;
const PURE_LINE: &str = "//! Pure: no I/O.";
const PURE_ROOMS: [&str; 5] = ["model", "config", "health", "policy", "snapshot"];

/// What each room may import, besides itself. A room that is not listed may import nothing.
const ALLOWED: [(&str, &[&str]); 17] = [
    ("model", &[]),
    ("pb", &[]),
    ("config", &["model"]),
    ("health", &["model"]),
    ("policy", &["model", "config", "health"]),
    ("snapshot", &["model", "config", "pb"]),
    ("clock", &["model"]),
    ("net", &["model", "config", "clock"]),
    ("telemetry", &["model", "config", "clock"]),
    ("source", &["model", "config", "clock", "net", "telemetry"]),
    ("probe", &["model", "config", "clock", "net", "telemetry", "pb"]),
    ("fleet", &["model", "config", "health", "policy", "clock", "telemetry"]),
    ("xds", &["model", "config", "snapshot", "clock", "net", "telemetry", "pb"]),
    ("admin", BELOW_ASSEMBLY),
    ("app", BELOW_ASSEMBLY),
    ("testing", EVERYTHING_BUT_CLI),
    ("fuzz", &["model", "config", "snapshot", "probe", "xds", "testing"]),
];
const BELOW_ASSEMBLY: &[&str] = &[
    "model",
    "pb",
    "config",
    "health",
    "policy",
    "snapshot",
    "clock",
    "net",
    "telemetry",
    "source",
    "probe",
    "fleet",
    "xds",
    "admin",
];
const EVERYTHING_BUT_CLI: &[&str] = &[
    "model",
    "pb",
    "config",
    "health",
    "policy",
    "snapshot",
    "clock",
    "net",
    "telemetry",
    "source",
    "probe",
    "fleet",
    "xds",
    "admin",
    "app",
];

/// Words that mean I/O, a clock or shared mutable state.
const IMPURE: [&str; 29] = [
    "tokio",
    "tokio_util",
    "tokio_stream",
    "hyper",
    "hyper_util",
    "tonic",
    "axum",
    "h2",
    "tracing",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "Cell",
    "RefCell",
    "OnceCell",
    "Mutex",
    "RwLock",
    "Condvar",
    "Instant",
    "SystemTime",
    "async",
    "await",
    "mpsc",
    "OnceLock",
    "LazyLock",
    "thread_local",
    "dashmap",
    "fastrand",
];
const IMPURE_PATHS: [&str; 5] = ["std::fs", "std::env", "std::thread", "std::process", "std::io"];

/// A word and the one file that may say it.
const CONFINED: [(&str, &str); 2] = [("envoy_types", "pb.rs"), ("serde_yaml", "config/yaml.rs")];

#[test]
fn rooms_import_only_what_they_may() {
    report(imports(&sources()));
}

#[test]
fn pure_files_name_no_io_no_clock_and_no_shared_state() {
    report(purity(&sources()));
}

#[test]
fn every_file_is_compiled() {
    report(reachability(&sources()));
}

#[test]
fn files_are_short() {
    report(lengths(&sources()));
}

#[test]
fn confined_crates_are_named_in_one_file() {
    report(confinement(&sources()));
}

#[test]
fn every_module_opens_with_a_head() {
    report(heads(&sources()));
}

// The rules.

fn imports(sources: &Sources) -> Vec<String> {
    let mut complaints = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| !is_test_file(file)) {
        let room = room_of(file);
        if matches!(room, "lib" | "main" | "cli") {
            continue;
        }
        let allowed = ALLOWED.iter().find(|(name, _)| *name == room).map_or(&[][..], |(_, names)| names);
        for (number, line) in product_code(text).lines().enumerate().map(|(n, line)| (n + 1, line)) {
            for name in imported(line) {
                if name != room && !allowed.contains(&name.as_str()) {
                    complaints.push(format!("{file}:{number}: {room} must not use crate::{name}"));
                }
            }
            if longest_super_chain(line) >= depth(file) {
                complaints.push(format!("{file}:{number}: `super` leaves the room; write crate::NAME"));
            }
        }
        if grouped_import(&product_code(text)) {
            complaints
                .push(format!("{file}:1: write one `use crate::NAME` per room, not `use crate::{{…}}`"));
        }
    }
    complaints
}

fn purity(sources: &Sources) -> Vec<String> {
    let mut complaints = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| !is_test_file(file)) {
        let declared = text.lines().take_while(|l| l.starts_with("//!")).any(|l| l.trim_end() == PURE_LINE);
        if !declared && !PURE_ROOMS.contains(&room_of(file)) {
            continue;
        }
        for (number, line) in product_code(text).lines().enumerate().map(|(n, line)| (n + 1, line)) {
            for word in words(line).filter(|word| IMPURE.contains(word) || word.starts_with("Atomic")) {
                complaints.push(format!("{file}:{number}: pure code must not name {word}"));
            }
            for path in IMPURE_PATHS.iter().filter(|path| line.contains(**path)) {
                complaints.push(format!("{file}:{number}: pure code must not name {path}"));
            }
        }
    }
    complaints
}

fn reachability(sources: &Sources) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut todo = vec!["lib.rs".to_owned(), "main.rs".to_owned()];
    while let Some(file) = todo.pop() {
        let Some(text) = sources.get(&file) else { continue };
        if !seen.insert(file.clone()) {
            continue;
        }
        let base = match file.rsplit_once('/') {
            Some((dir, "mod.rs")) => format!("{dir}/"),
            Some(_) => format!("{}/", file.trim_end_matches(".rs")),
            None if file == "lib.rs" || file == "main.rs" => String::new(),
            None => format!("{}/", file.trim_end_matches(".rs")),
        };
        for name in declared_modules(text) {
            todo.push(format!("{base}{name}.rs"));
            todo.push(format!("{base}{name}/mod.rs"));
        }
    }
    let unreached = sources.keys().filter(|file| !seen.contains(*file));
    unreached.map(|file| format!("{file}:1: no `mod` leads here, so it is never compiled")).collect()
}

fn lengths(sources: &Sources) -> Vec<String> {
    let long =
        sources.iter().map(|(file, text)| (file, text.lines().count())).filter(|(_, n)| *n > MAX_LINES);
    long.map(|(file, n)| format!("{file}:{n}: at most {MAX_LINES} lines, split by subject")).collect()
}

fn confinement(sources: &Sources) -> Vec<String> {
    let mut complaints = Vec::new();
    for (file, text) in sources {
        for (number, line) in blank_text(text).lines().enumerate().map(|(n, line)| (n + 1, line)) {
            for (word, home) in CONFINED.iter().filter(|(_, home)| home != file) {
                if words(line).any(|w| w == *word) {
                    complaints.push(format!("{file}:{number}: {word} is named in {home} alone"));
                }
            }
        }
    }
    complaints
}

fn heads(sources: &Sources) -> Vec<String> {
    let mut complaints = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| file.ends_with("mod.rs")) {
        let head: Vec<_> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        if head.iter().filter(|line| line.len() > 4).count() < MIN_HEAD_LINES {
            complaints.push(format!(
                "{file}:1: say in {MIN_HEAD_LINES} lines or more what the module does, never does, and who uses it"
            ));
        }
    }
    complaints
}

// Reading the sources.

fn sources() -> Sources {
    fn walk(root: &Path, dir: &Path, into: &mut Sources) {
        for entry in std::fs::read_dir(dir).expect("src is readable") {
            let path: PathBuf = entry.expect("src is readable").path();
            if path.is_dir() {
                walk(root, &path, into);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root).expect("below src").to_str().expect("UTF-8").to_owned();
                into.insert(name, std::fs::read_to_string(&path).expect("a source file is UTF-8"));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Sources::new();
    walk(&root, &root, &mut found);
    assert!(found.contains_key("lib.rs"), "no sources in {}", root.display());
    found
}

fn report(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n  src/{}\n", complaints.join("\n  src/"));
}

fn room_of(file: &str) -> &str {
    file.split('/').next().unwrap_or(file).trim_end_matches(".rs")
}

/// Levels between the file's module and the crate root.
fn depth(file: &str) -> usize {
    file.split('/').filter(|part| *part != "mod.rs").count()
}

fn is_test_file(file: &str) -> bool {
    file.ends_with("tests.rs") || file.contains("/tests/")
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn imported(line: &str) -> Vec<String> {
    let after_crate = line.split("crate::").skip(1);
    after_crate
        .filter_map(|rest| words(rest).next().filter(|w| rest.starts_with(w)).map(str::to_owned))
        .collect()
}

fn grouped_import(code: &str) -> bool {
    code.contains("crate::{")
}

fn longest_super_chain(line: &str) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for part in line.split("::") {
        run = if part.ends_with("super") { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

fn declared_modules(text: &str) -> Vec<String> {
    let code = blank_text(text);
    let declaration = |line: &str| {
        let rest = line.trim().strip_suffix(';')?;
        let name = rest.strip_prefix("mod ").or_else(|| rest.rsplit_once(" mod ").map(|(_, name)| name))?;
        words(name).next().filter(|w| *w == name).map(str::to_owned)
    };
    code.lines().filter_map(declaration).collect()
}

/// The code without comments, string contents and items under `#[cfg(test)]`; line numbers stay.
fn product_code(text: &str) -> String {
    let code = blank_text(text);
    let mut out = String::with_capacity(code.len());
    let mut skipping: Option<usize> = None;
    for line in code.lines() {
        let indent = line.len() - line.trim_start().len();
        let trimmed = line.trim();
        match skipping {
            None if trimmed == "#[cfg(test)]" => skipping = Some(indent),
            None => out.push_str(line),
            Some(level) if indent == level && !trimmed.starts_with('#') && trimmed.ends_with([';', '}']) => {
                skipping = None;
            }
            Some(_) => {}
        }
        out.push('\n');
    }
    out
}

/// Blanks comments and the contents of string and character literals; line breaks stay.
fn blank_text(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = match (chars[i], chars.get(i + 1)) {
            ('/', Some('/')) => find(&chars, i, |c| c[0] == '\n', 0),
            ('/', Some('*')) => find(&chars, i + 2, |c| c.starts_with(&['*', '/']), 2),
            ('r', Some('"' | '#')) if raw_hashes(&chars, i).is_some() => {
                let hashes = raw_hashes(&chars, i).unwrap_or(0);
                let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
                find(&chars, i + hashes + 2, |c| c.starts_with(&close), close.len())
            }
            ('"', _) => end_of_string(&chars, i + 1),
            ('\'', Some('\\')) => find(&chars, i + 3, |c| c[0] == '\'', 1),
            ('\'', Some(_)) if chars.get(i + 2) == Some(&'\'') => i + 3,
            _ => {
                out.push(chars[i]);
                i += 1;
                continue;
            }
        };
        out.extend(chars[i..end].iter().filter(|c| **c == '\n'));
        i = end;
    }
    out
}

fn find(chars: &[char], from: usize, hit: impl Fn(&[char]) -> bool, length: usize) -> usize {
    let found = (from..chars.len()).find(|at| hit(&chars[*at..]));
    found.map_or(chars.len(), |at| (at + length).min(chars.len()))
}

fn raw_hashes(chars: &[char], at: usize) -> Option<usize> {
    if at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_') && chars[at - 1] != 'b' {
        return None;
    }
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

fn end_of_string(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

// Each rule bites.

fn small(files: &[(&str, &str)]) -> Sources {
    files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn an_import_across_the_wrong_border_is_found() {
    let found = imports(&small(&[
        ("health/mod.rs", "use crate::model::A;\nuse crate::probe::B;\n"),
        ("probe/mod.rs", "// crate::fleet\nlet s = \"crate::fleet\";\nfn f() { crate::app::x() }\n"),
        ("xds/sotw.rs", "#[cfg(test)]\nmod tests {\n    use crate::fleet::X;\n}\nuse crate::fleet::Y;\n"),
        ("fleet/tests.rs", "use crate::xds::X;\n"),
        ("testing/mod.rs", "use crate::app::X;\nuse crate::cli::X;\n"),
        ("cli/mod.rs", "use crate::app::X;\n"),
    ]));
    assert_eq!(
        found,
        [
            "health/mod.rs:2: health must not use crate::probe",
            "probe/mod.rs:3: probe must not use crate::app",
            "testing/mod.rs:2: testing must not use crate::cli",
            "xds/sotw.rs:5: xds must not use crate::fleet",
        ]
    );
}

#[test]
fn a_way_around_the_import_rule_is_found() {
    let found = imports(&small(&[
        ("health/mod.rs", "use super::probe::B;\n"),
        ("model/a.rs", "use super::b::B;\nuse super::super::probe::B;\n"),
        ("net/mod.rs", "use crate::{\n    probe::A,\n};\n"),
    ]));
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn io_in_a_pure_file_is_found() {
    let found = purity(&small(&[
        ("policy/mod.rs", "use std::sync::atomic::AtomicU64;\nuse std::time::Duration;\n"),
        ("xds/delta.rs", "//! A stream.\n//! Pure: no I/O.\n\nasync fn f() { tracing::info!() }\n"),
        ("xds/server.rs", "//! Not pure.\nuse tokio::net::TcpStream;\n"),
        ("model/a.rs", "/// An Instant is not named in code.\nstruct InstantNoodles;\nuse std::fs;\n"),
    ]));
    assert_eq!(
        found,
        [
            "model/a.rs:3: pure code must not name std::fs",
            "policy/mod.rs:1: pure code must not name AtomicU64",
            "xds/delta.rs:4: pure code must not name async",
            "xds/delta.rs:4: pure code must not name tracing",
        ]
    );
}

#[test]
fn a_file_that_is_never_compiled_is_found() {
    let found = reachability(&small(&[
        ("lib.rs", "pub mod a;\nmod b;\n// mod c;\n"),
        ("main.rs", "fn main() {}\n"),
        ("a/mod.rs", "mod x;\n#[cfg(test)]\nmod tests;\n"),
        ("a/x.rs", ""),
        ("a/tests.rs", "mod deep;\n"),
        ("a/tests/deep.rs", ""),
        ("b.rs", "pub(crate) mod d;\n"),
        ("b/d.rs", ""),
        ("c.rs", ""),
        ("a/lost.rs", ""),
    ]));
    let names: Vec<_> = found.iter().map(|c| c.split(':').next().unwrap()).collect();
    assert_eq!(names, ["a/lost.rs", "c.rs"]);
}

#[test]
fn a_long_file_a_stray_crate_and_a_missing_head_are_found() {
    let long = "x\n".repeat(MAX_LINES + 1);
    assert_eq!(lengths(&small(&[("a.rs", &long), ("b.rs", &long[2..])])).len(), 1);
    let stray = small(&[
        ("pb.rs", "use envoy_types::pb;"),
        ("a.rs", "use envoy_types::pb;"),
        ("b.rs", "// envoy_types"),
    ]);
    assert_eq!(confinement(&stray), ["a.rs:1: envoy_types is named in pb.rs alone"]);
    let found = heads(&small(&[
        ("a/mod.rs", "//! One line.\n"),
        ("b/mod.rs", "//! What it does.\n//!\n//! What it never does.\n//! Who uses it.\n"),
        ("c/mod.rs", "mod x;\n"),
    ]));
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn text_is_told_from_code() {
    let code = blank_text("a('x', '\\'', \"b\\\"c\", r#\"d\"e\"#) /* f\n */ g::<'h>() // i\nj");
    assert_eq!(words(&code).collect::<Vec<_>>(), ["a", "g", "h", "j"]);
    assert_eq!(code.lines().count(), 3);
}
