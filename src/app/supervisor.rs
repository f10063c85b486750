//! Named tasks, of which none may end unnoticed.

use std::any::Any;
use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// After this, tasks that were told to stop and did not are dropped: the process ends within five seconds.
const GRACE: Duration = Duration::from_secs(4);

/// How the process's tasks came to an end before anybody asked them to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskFailure {
    /// A task returned although nobody had asked it to.
    #[error("the task `{0}` ended by itself")]
    Ended(&'static str),
    /// A task panicked.
    #[error("the task `{0}` panicked: {1}")]
    Panicked(&'static str, String),
}

/// Runs tasks until one is told to stop, or one stops by itself: then all are told.
#[derive(Debug)]
pub struct Supervisor {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
    shutdown: CancellationToken,
}

impl Supervisor {
    /// A supervisor whose tasks are told to stop through `shutdown`.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), names: HashMap::new(), shutdown }
    }

    /// Starts a task that must run until shutdown.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Waits for `stop` or the first failure, then for all tasks to end.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), TaskFailure> {
        let mut stop = std::pin::pin!(stop);
        let failure = tokio::select! {
            () = stop.as_mut() => None,
            ended = self.tasks.join_next_with_id() => ended.map(|ended| self.failure(ended)),
        };
        self.shutdown.cancel();
        if let Some(failure) = &failure {
            tracing::error!(error = %failure, "shutting down");
        }
        let mut late = None;
        let all_end = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    late = Some(self.failure(Err(error)));
                }
            }
        };
        if tokio::time::timeout(GRACE, all_end).await.is_err() {
            tracing::warn!("some tasks did not end in time and are dropped");
        }
        failure.or(late).map_or(Ok(()), Err)
    }

    fn failure(&self, ended: Result<(Id, ()), JoinError>) -> TaskFailure {
        let name = |id: Id| self.names.get(&id).copied().unwrap_or("unnamed");
        match ended {
            Ok((id, ())) => TaskFailure::Ended(name(id)),
            Err(error) => {
                let name = name(error.id());
                error.try_into_panic().map_or(TaskFailure::Ended(name), |panic| {
                    TaskFailure::Panicked(name, panic_text(panic.as_ref()))
                })
            }
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_by_itself_ends_the_process_with_its_name() {
        let shutdown = CancellationToken::new();
        let mut tasks = Supervisor::new(shutdown.clone());
        tasks.spawn("obedient", shutdown.clone().cancelled_owned());
        tasks.spawn("quitter", async {});
        assert_eq!(tasks.run(std::future::pending()).await, Err(TaskFailure::Ended("quitter")));
        assert!(shutdown.is_cancelled());
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_with_its_words() {
        let shutdown = CancellationToken::new();
        let mut tasks = Supervisor::new(shutdown);
        tasks.spawn("bomb", async { panic!("boom {}", 1) });
        let failure = tasks.run(std::future::pending()).await;
        assert_eq!(failure, Err(TaskFailure::Panicked("bomb", "boom 1".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_stop_is_dropped() {
        let mut tasks = Supervisor::new(CancellationToken::new());
        tasks.spawn("deaf", std::future::pending());
        assert_eq!(tasks.run(async {}).await, Ok(()));
    }

    #[tokio::test]
    async fn asked_to_stop_all_end_well() {
        let shutdown = CancellationToken::new();
        let mut tasks = Supervisor::new(shutdown.clone());
        tasks.spawn("obedient", shutdown.cancelled_owned());
        assert_eq!(tasks.run(async {}).await, Ok(()));
    }
}
