//! When a file's content counts.
//!
//! Pure: no I/O. Whoever writes a file may be half done whenever it is read: truncated, moved away, one symlink of
//! two swapped. So a change counts only when two reads [`SETTLE`] apart agree, and a problem counts by the same
//! rule. A problem never takes the last good content away. Driven by [`super::file`].

use std::sync::Arc;
use std::time::Duration;

use crate::model::{ContentHash, MonoTime};

/// Pause between reads while nothing changes.
pub const POLL: Duration = Duration::from_millis(500);
/// Two reads this far apart must agree.
pub const SETTLE: Duration = Duration::from_millis(250);

/// What a file said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    /// Its text, never blank.
    pub text: Arc<str>,
    /// Of the text: same hash, same content.
    pub hash: ContentHash,
}

impl FileContent {
    /// `text` with its hash; `Err` if there is nothing but white space in it.
    pub fn new(text: &str) -> Result<Self, FileProblem> {
        if text.trim().is_empty() {
            return Err(FileProblem::Empty);
        }
        Ok(Self { text: Arc::from(text), hash: ContentHash::of(text.as_bytes()) })
    }
}

/// Why a file says nothing. None of these is an empty config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileProblem {
    /// Nothing has that name; it may be on its way.
    #[error("the file does not exist")]
    Missing,
    /// It is there, with nothing in it.
    #[error("the file is empty")]
    Empty,
    /// Larger than any config.
    #[error("the file has more than {limit} bytes")]
    TooLarge {
        /// What would be read.
        limit: usize,
    },
    /// Bytes that are no text.
    #[error("the file is not UTF-8")]
    NotText,
    /// The operating system refused.
    #[error("the file cannot be read: {0}")]
    Unreadable(Arc<str>),
}

/// What is known about a watched file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileState {
    /// The last settled content; it outlives every problem.
    pub content: Option<FileContent>,
    /// What is wrong with the file at present, and since when; `None` once it can be read again.
    pub problem: Option<(FileProblem, MonoTime)>,
}

/// What one read changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nothing that counts yet.
    Nothing,
    /// The file has settled on new content.
    Settled(FileContent),
    /// The file has settled on being unreadable, or is so for another reason.
    Problem(FileProblem),
    /// The file says again what it said before the problem.
    Recovered,
}

/// The rule of two reads, as a state machine.
#[derive(Debug, Default)]
pub struct Settle {
    state: FileState,
    /// What differs from the state, and when it was first seen.
    candidate: Option<(Read, MonoTime)>,
}

/// The result of reading a file once.
pub type Read = Result<FileContent, FileProblem>;

impl Settle {
    /// Starts from what was read and applied before the watch began.
    pub fn new(content: Option<FileContent>) -> Self {
        Self { state: FileState { content, problem: None }, candidate: None }
    }

    /// What is known.
    pub fn state(&self) -> &FileState {
        &self.state
    }

    /// Takes a read that ended at `now`; what it changed, and when to read again.
    pub fn on_read(&mut self, read: Read, now: MonoTime) -> (Change, MonoTime) {
        if self.is_known(&read) {
            self.candidate = None;
            return (Change::Nothing, now + POLL);
        }
        match &self.candidate {
            Some((seen, since)) if *seen == read => {
                let due = *since + SETTLE;
                if now < due {
                    return (Change::Nothing, due);
                }
                self.candidate = None;
                (self.apply(read, now), now + POLL)
            }
            Some(_) | None => {
                self.candidate = Some((read, now));
                (Change::Nothing, now + SETTLE)
            }
        }
    }

    fn is_known(&self, read: &Read) -> bool {
        match (read, &self.state.problem) {
            (Ok(content), None) => self.state.content.as_ref() == Some(content),
            (Err(problem), Some((known, _))) => problem == known,
            (Ok(_), Some(_)) | (Err(_), None) => false,
        }
    }

    fn apply(&mut self, read: Read, now: MonoTime) -> Change {
        match read {
            Err(problem) => {
                // "Since when" is about being unreadable at all, whatever the reasons were on the way.
                let since = self.state.problem.as_ref().map_or(now, |(_, since)| *since);
                self.state.problem = Some((problem.clone(), since));
                Change::Problem(problem)
            }
            Ok(content) => {
                self.state.problem = None;
                if self.state.content.as_ref() == Some(&content) {
                    return Change::Recovered;
                }
                self.state.content = Some(content.clone());
                Change::Settled(content)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> MonoTime {
        MonoTime::from_millis(ms)
    }

    fn text(text: &str) -> Read {
        FileContent::new(text)
    }

    #[test]
    fn a_change_counts_when_two_reads_agree() {
        let mut settle = Settle::new(text("one").ok());
        assert_eq!(settle.on_read(text("one"), ms(0)), (Change::Nothing, ms(500)));
        assert_eq!(settle.on_read(text("two"), ms(500)), (Change::Nothing, ms(750)));
        // A read that came early is no second opinion.
        assert_eq!(settle.on_read(text("two"), ms(600)), (Change::Nothing, ms(750)));
        let two = text("two").unwrap();
        assert_eq!(settle.on_read(text("two"), ms(750)), (Change::Settled(two.clone()), ms(1_250)));
        assert_eq!(settle.state().content, Some(two));
        assert_eq!(settle.on_read(text("two"), ms(1_250)), (Change::Nothing, ms(1_750)));
    }

    #[test]
    fn half_written_and_truncated_content_never_counts() {
        let mut settle = Settle::new(text("one").ok());
        for (read, at) in [(text(""), 500), (text("tw"), 750), (text("two"), 1_000)] {
            assert_eq!(settle.on_read(read, ms(at)), (Change::Nothing, ms(at + 250)));
        }
        assert_eq!(settle.on_read(text("two"), ms(1_250)).0, Change::Settled(text("two").unwrap()));
    }

    #[test]
    fn a_write_that_is_taken_back_is_forgotten() {
        let mut settle = Settle::new(text("one").ok());
        settle.on_read(text("two"), ms(500));
        assert_eq!(settle.on_read(text("one"), ms(750)), (Change::Nothing, ms(1_250)));
        assert_eq!(settle.on_read(text("two"), ms(1_250)), (Change::Nothing, ms(1_500)));
    }

    #[test]
    fn a_deleted_file_is_a_problem_and_keeps_its_last_content() {
        let mut settle = Settle::new(text("one").ok());
        settle.on_read(Err(FileProblem::Missing), ms(500));
        assert_eq!(settle.state().problem, None);
        let (change, next) = settle.on_read(Err(FileProblem::Missing), ms(750));
        assert_eq!((change, next), (Change::Problem(FileProblem::Missing), ms(1_250)));
        assert_eq!(settle.state().content, text("one").ok());
        // Another reason later: still the same outage.
        settle.on_read(text(""), ms(2_000));
        settle.on_read(text(""), ms(2_250));
        assert_eq!(settle.state().problem, Some((FileProblem::Empty, ms(750))));
        settle.on_read(text("one"), ms(3_000));
        assert_eq!(settle.on_read(text("one"), ms(3_250)).0, Change::Recovered);
        assert_eq!(settle.state(), &FileState { content: text("one").ok(), problem: None });
    }

    #[test]
    fn blank_text_is_an_empty_file() {
        assert_eq!(FileContent::new(" \r\n\t\n"), Err(FileProblem::Empty));
    }

    proptest! {
        #[test]
        fn it_never_spins_and_content_is_never_lost(reads in proptest::collection::vec((0_u8..5, 1_u64..600), 1..60)) {
            let mut settle = Settle::default();
            let (mut now, mut had, mut last) = (0, false, None);
            for (what, step) in reads {
                now += step;
                let read = match what {
                    0 => Err(FileProblem::Missing),
                    1 => text(""),
                    n => text(&n.to_string()),
                };
                let before = settle.state().clone();
                let (change, next) = settle.on_read(read.clone(), ms(now));
                prop_assert!(next > ms(now) && next <= ms(now) + POLL);
                prop_assert_eq!(change == Change::Nothing, before == *settle.state());
                if let Change::Settled(content) = change {
                    // Only what two consecutive reads saw.
                    prop_assert_eq!(last, Some(Ok(content)));
                }
                last = Some(read);
                had |= settle.state().content.is_some();
                prop_assert_eq!(had, settle.state().content.is_some());
            }
        }
    }
}
