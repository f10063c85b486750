//! The watcher on real files, in paused time: every way that a file is replaced in practice.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::source::settle::{POLL, SETTLE};

struct Watch {
    dir: TempDir,
    state: watch::Receiver<FileState>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Watch {
    /// Watches `name` in a new directory that `prepare` has filled.
    async fn start(name: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let path = dir.path().join(name);
        let content = read(&path).await.ok();
        let (sender, state) = watch::channel(FileState { content, problem: None });
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_file(path, Clock::start(), sender, cancel.clone()));
        let mut watch = Self { dir, state, cancel, tasks };
        watch.quiet().await;
        watch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The state that is published next, within the time a settled change may take.
    async fn next(&mut self) -> FileState {
        let patience = POLL + SETTLE + Duration::from_millis(50);
        timeout(patience, self.state.changed()).await.expect("nothing was published").unwrap();
        self.state.borrow_and_update().clone()
    }

    async fn expect(&mut self, text: &str) {
        let state = self.next().await;
        assert_eq!(state.content.as_ref().map(|c| &*c.text), Some(text));
        assert_eq!(state.problem, None);
    }

    async fn quiet(&mut self) {
        sleep(3 * POLL).await;
        assert!(!self.state.has_changed().unwrap(), "{:?}", self.state.borrow().clone());
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_in_place_is_seen() {
    let mut watch = Watch::start("c.yaml", |dir| fs::write(dir.join("c.yaml"), "one").unwrap()).await;
    fs::write(watch.path("c.yaml"), "two").unwrap();
    watch.expect("two").await;
    fs::write(watch.path("c.yaml"), "two").unwrap();
    watch.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_rename_over_the_file_is_seen() {
    let mut watch = Watch::start("c.yaml", |dir| fs::write(dir.join("c.yaml"), "one").unwrap()).await;
    for text in ["two", "three"] {
        fs::write(watch.path("new"), text).unwrap();
        fs::rename(watch.path("new"), watch.path("c.yaml")).unwrap();
        watch.expect(text).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_editors_save_is_seen_once() {
    let mut watch = Watch::start("c.yaml", |dir| fs::write(dir.join("c.yaml"), "one").unwrap()).await;
    // vim: the old file becomes a backup, a new one is written, the backup goes.
    fs::rename(watch.path("c.yaml"), watch.path("c.yaml~")).unwrap();
    sleep(SETTLE - Duration::from_millis(10)).await;
    fs::write(watch.path("c.yaml"), "two").unwrap();
    fs::remove_file(watch.path("c.yaml~")).unwrap();
    watch.expect("two").await;
    watch.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn truncate_then_write_never_shows_the_hole() {
    let mut watch = Watch::start("c.yaml", |dir| fs::write(dir.join("c.yaml"), "one").unwrap()).await;
    for part in ["", "t", "tw"] {
        fs::write(watch.path("c.yaml"), part).unwrap();
        sleep(Duration::from_millis(200)).await;
    }
    fs::write(watch.path("c.yaml"), "two").unwrap();
    watch.expect("two").await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_configmap_swaps_each_arrive_though_the_old_directory_goes() {
    let swap = |dir: &Path, n: usize| {
        let target = format!("..2026_{n:03}");
        fs::create_dir(dir.join(&target)).unwrap();
        fs::write(dir.join(&target).join("c.yaml"), format!("version {n}")).unwrap();
        symlink(&target, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        if n > 0 {
            fs::remove_dir_all(dir.join(format!("..2026_{:03}", n - 1))).unwrap();
        }
    };
    let mut watch = Watch::start("c.yaml", |dir| {
        swap(dir, 0);
        symlink("..data/c.yaml", dir.join("c.yaml")).unwrap();
    })
    .await;
    for n in 1..=100 {
        swap(watch.dir.path(), n);
        watch.expect(&format!("version {n}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_pointed_elsewhere_is_seen() {
    let mut watch = Watch::start("c.yaml", |dir| {
        fs::write(dir.join("a"), "one").unwrap();
        fs::write(dir.join("b"), "two").unwrap();
        symlink("a", dir.join("c.yaml")).unwrap();
    })
    .await;
    fs::remove_file(watch.path("c.yaml")).unwrap();
    symlink("b", watch.path("c.yaml")).unwrap();
    watch.expect("two").await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_or_emptied_file_is_a_problem_and_never_an_empty_config() {
    let mut watch = Watch::start("c.yaml", |dir| fs::write(dir.join("c.yaml"), "one").unwrap()).await;
    fs::remove_file(watch.path("c.yaml")).unwrap();
    let gone = watch.next().await;
    assert_eq!(gone.problem.as_ref().map(|(p, _)| p), Some(&FileProblem::Missing));
    assert_eq!(gone.content.as_ref().map(|c| &*c.text), Some("one"));
    watch.quiet().await;
    fs::write(watch.path("c.yaml"), "\n").unwrap();
    let empty = watch.next().await;
    assert_eq!(empty.problem.map(|(p, _)| p), Some(FileProblem::Empty));
    assert_eq!(empty.content, gone.content);
    fs::write(watch.path("c.yaml"), "one").unwrap();
    watch.expect("one").await;
    fs::remove_file(watch.path("c.yaml")).unwrap();
    watch.next().await;
    fs::write(watch.path("c.yaml"), "two").unwrap();
    watch.expect("two").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_text_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    assert_eq!(read(&path).await, Err(FileProblem::Missing));
    fs::write(&path, b"a\xff").unwrap();
    assert_eq!(read(&path).await, Err(FileProblem::NotText));
    fs::write(&path, vec![b' '; MAX_BYTES + 1]).unwrap();
    assert_eq!(read(&path).await, Err(FileProblem::TooLarge { limit: MAX_BYTES }));
    assert!(matches!(read(dir.path()).await, Err(FileProblem::Unreadable(_))));
    symlink("c.yaml", dir.path().join("link")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    assert!(matches!(read(&dir.path().join("loop")).await, Err(FileProblem::Unreadable(_))));
    fs::write(&path, "a: b").unwrap();
    assert_eq!(&*read(&dir.path().join("link")).await.unwrap().text, "a: b");
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_when_it_is_cancelled_or_nobody_listens() {
    let mut watch = Watch::start("c.yaml", |dir| fs::write(dir.join("c.yaml"), "one").unwrap()).await;
    watch.cancel.cancel();
    timeout(POLL, watch.tasks.join_next()).await.unwrap().unwrap().unwrap();
    let watch = Watch::start("c.yaml", |dir| fs::write(dir.join("c.yaml"), "one").unwrap()).await;
    let Watch { dir: _dir, state, cancel: _cancel, mut tasks } = watch;
    drop(state);
    timeout(POLL, tasks.join_next()).await.unwrap().unwrap().unwrap();
}
