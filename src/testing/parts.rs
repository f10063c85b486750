//! Where real programs come from.
//!
//! `tests/parts.py` does the work (and says on stderr how far it is), so that the test harness, `.ci/run` and a
//! person at a shell get the same file in the same way. A part that cannot be had is an error that says what to do;
//! no test is ever skipped for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, bail};

/// The Envoy binary: `$TIDEGATE_ENVOY`, or the pinned one, fetched on first use. Blocks while it is fetched.
pub fn envoy_binary() -> anyhow::Result<PathBuf> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    found(&FOUND, "envoy")
}

/// The directory with the module that runs llama.cpp's server, for `PYTHONPATH`: `$TIDEGATE_LLAMA`, or the pinned one,
/// fetched on first use. Blocks while it is fetched.
pub fn llama_modules() -> anyhow::Result<PathBuf> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    found(&FOUND, "llama")
}

/// A directory for `PYTHONPATH` with grpcio, which brings gRPC's own xDS client: `$TIDEGATE_GRPCIO`, or the pinned one,
/// fetched on first use. Blocks while it is fetched.
pub fn grpcio() -> anyhow::Result<PathBuf> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    found(&FOUND, "grpcio")
}

/// A directory for `PYTHONPATH`, beside [`grpcio`]'s, with xDS's messages and stubs: `$TIDEGATE_XDS_PROTOS`, or the pinned
/// one, fetched on first use. Blocks while it is fetched.
pub fn xds_protos() -> anyhow::Result<PathBuf> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    found(&FOUND, "xds_protos")
}

fn found(once: &OnceLock<PathBuf>, name: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = once.get() {
        return Ok(path.clone());
    }
    let path = fetch(name)?;
    Ok(once.get_or_init(|| path).clone())
}

fn fetch(name: &str) -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parts.py");
    let done = Command::new("python3")
        .arg(&script)
        .arg(name)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("python3 is needed to run {}", script.display()))?;
    if !done.status.success() {
        bail!("{} could not get {name}: its message on stderr says what to do", script.display());
    }
    let path = String::from_utf8(done.stdout).context("the path of a part is UTF-8")?;
    Ok(PathBuf::from(path.trim_end()))
}
