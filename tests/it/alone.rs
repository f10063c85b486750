//! A test that measures its process needs one for itself: tests beside it open files and take memory too.

use std::process::{Command, Stdio};

const ALONE: &str = "TIDEGATE_TEST_ALONE";

/// True in a process in which `test` (its path, as the harness prints it) runs alone. Elsewhere it starts such a
/// process, waits for its success, and is false.
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complaint}");
    assert!(said.contains("1 passed"), "no test is called {test}: {said}");
    false
}
