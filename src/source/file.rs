//! Reads a file and publishes what it has settled on.
//!
//! It polls, by content: a poll sees every way of writing a file (in place, rename, delete and create again, a
//! ConfigMap's symlink swap, an editor's save) on every file system, NFS included, where change notifications see
//! some of them. It opens the path as given each time and never follows a symlink by itself, so a target directory
//! that disappears takes nothing with it. What counts as a change is [`super::settle`]'s decision. Run by `app`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::settle::{Change, FileContent, FileProblem, FileState, Settle};
use crate::clock::Clock;
use crate::config::MAX_BYTES;

/// Reads `path` once, at most [`MAX_BYTES`] of it.
pub async fn read(path: &Path) -> Result<FileContent, FileProblem> {
    let problem = |error: io::Error| {
        if error.kind() == io::ErrorKind::NotFound {
            FileProblem::Missing
        } else {
            FileProblem::Unreadable(Arc::from(error.to_string()))
        }
    };
    // Opening a pipe would wait for a writer, and a device may never end.
    let meta = tokio::fs::metadata(path).await.map_err(problem)?;
    if !meta.is_file() {
        return Err(FileProblem::Unreadable(Arc::from("it is not a regular file")));
    }
    let file = tokio::fs::File::open(path).await.map_err(problem)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).await.map_err(problem)?;
    if bytes.len() > MAX_BYTES {
        return Err(FileProblem::TooLarge { limit: MAX_BYTES });
    }
    let text = String::from_utf8(bytes).map_err(|_| FileProblem::NotText)?;
    FileContent::new(&text)
}

/// Watches `path` until `cancel` fires or nobody listens to `state` any more, starting from the content that
/// `state` holds. Publishes settled content and problems, and nothing while neither changes.
pub async fn watch_file(
    path: PathBuf,
    clock: Clock,
    state: watch::Sender<FileState>,
    cancel: CancellationToken,
) {
    let initial = state.borrow().content.clone();
    let mut settle = Settle::new(initial);
    let mut wake_at = clock.now();
    loop {
        // Dropping a sleep or a read half way loses nothing: the next round would read the whole file again.
        let content = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = state.closed() => return,
            content = async { clock.sleep_until(wake_at).await; read(&path).await } => content,
        };
        let (change, next) = settle.on_read(content, clock.now());
        wake_at = next;
        match change {
            Change::Nothing => continue,
            Change::Settled(content) => {
                tracing::info!(path = %path.display(), hash = %content.hash, "file has new content");
            }
            Change::Problem(problem) => {
                tracing::warn!(path = %path.display(), error = %problem, "file cannot be used; keeping the last good content");
            }
            Change::Recovered => tracing::info!(path = %path.display(), "file can be read again, unchanged"),
        }
        state.send_replace(settle.state().clone());
    }
}

#[cfg(test)]
mod tests;
