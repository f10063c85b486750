//! `tidegate check` and the command line around it, on the real binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs the binary in the repository, so that paths in its output are short.
fn tidegate(args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_good_config_is_one_line_and_exit_code_0() {
    let ran = tidegate(&["check", "examples/configs/full.yaml"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout, "examples/configs/full.yaml: ok, 2 clusters, 2 instances, 1 listener\n");
    let ran = tidegate(&["check", "-o", "json", "examples/configs/minimal.yaml"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "file": "examples/configs/minimal.yaml", "ok": true, "clusters": 1, "instances": 2, "listeners": 1
        })
    );
}

#[test]
fn a_bad_config_is_shown_beside_its_lines_with_exit_code_2() {
    let ran = tidegate(&["check", "envoy/bad-config/duplicate-clusters.yaml"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    let expected = "\
error: `clusters` is given twice; the first is on line 1
 --> envoy/bad-config/duplicate-clusters.yaml:5:1
  |
5 | clusters:
  | ^^^^^^^^
  |
  = help: keep one of them, or merge the two

envoy/bad-config/duplicate-clusters.yaml: 1 error
";
    assert_eq!(ran.stderr, expected);
}

#[test]
fn a_bad_config_as_json_has_every_error_with_its_place() {
    let ran = tidegate(&["check", "--output", "json", "envoy/bad-config/times-that-do-not-fit.yaml"]);
    let text = include_str!("../../envoy/bad-config/times-that-do-not-fit.yaml");
    let start = text.find("600ms").unwrap();
    assert_eq!((ran.code, ran.stderr.as_str()), (2, ""));
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["ok"], &json["truncated"]), (&false.into(), &false.into()));
    assert_eq!(json["errors"].as_array().unwrap().len(), 3);
    assert_eq!(
        json["errors"][1],
        serde_json::json!({
            "path": "clusters.llama.checks.readiness.budget",
            "line": 8, "column": 17, "span": { "start": start, "end": start + 5 },
            "message": "`budget` is 600ms, longer than `timeout` (500ms)",
            "help": "write at most 500ms, or raise `timeout`",
        })
    );
}

/// The text and the listing beside each fixture tell the same: the terminal shows whatever the library found.
#[test]
fn every_bad_config_fails_with_exit_code_2_and_shows_every_message() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/bad-config");
    let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    assert!(files.len() >= 25);
    for file in files {
        let ran = tidegate(&["check", file.to_str().unwrap()]);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", file.display());
        assert!(!ran.stderr.contains('\u{1b}'), "colour without a terminal");
        let listing = std::fs::read_to_string(file.with_extension("expected")).unwrap();
        for line in listing.lines().filter_map(|line| line.strip_prefix("  ")) {
            assert!(ran.stderr.contains(line), "{}: {line:?} is not in\n{}", file.display(), ran.stderr);
        }
    }
}

#[test]
fn odd_bytes_are_shown_without_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    let odd: [&[u8]; 5] = [
        b"\xef\xbb\xbfclusters:\r\n  a: 5\r\n",
        b"clusters:\n  \xff: {}\n",
        b"\xef\xbb\xbf",
        "clusters: { \u{202e}münchen: {} }\n".as_bytes(),
        b"clusters:\n  a: \"\0\"\n",
    ];
    for bytes in odd {
        std::fs::write(&file, bytes).unwrap();
        let ran = tidegate(&["check", file.to_str().unwrap()]);
        assert_eq!(ran.code, 2, "{bytes:?}\n{}", ran.stderr);
        assert!(ran.stderr.contains("error: ") && !ran.stderr.contains("panicked"), "{}", ran.stderr);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_exit_code_1() {
    let ran = tidegate(&["check", "no/such/file.yaml"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.starts_with("error: cannot read no/such/file.yaml: "), "{}", ran.stderr);
    assert_eq!(tidegate(&["check", "src"]).code, 1);
}

#[test]
fn a_wrong_command_line_is_exit_code_64_and_help_is_not_wrong() {
    let wrong: [&[&str]; 5] =
        [&[], &["chek"], &["check"], &["check", "-o", "xml", "x"], &["serve", "--confg", "x"]];
    for args in wrong {
        let ran = tidegate(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{args:?}");
        assert!(ran.stderr.contains("--help"), "{args:?}: {}", ran.stderr);
    }
    let version = tidegate(&["--version"]);
    assert_eq!((version.code, version.stdout), (0, format!("tidegate {}\n", env!("CARGO_PKG_VERSION"))));
    let help = tidegate(&["check", "--help"]);
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("--output"), "{}", help.stdout);
}
