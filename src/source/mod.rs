//! Sources: where registrations come from.
//!
//! A source says who exists and how fresh that is. It never says who is healthy, and a source that is lost, or a
//! file that is gone or bad, is never an empty source: the last good view stays, and says why it may be stale.
//! Started by `app`; sources, prober and fleet meet only in [`crate::model`]'s types.
//!
//! ```text
//! file ─► [`file`] (settled text) ─► `config::parse` ─► [`view_of`] ─► SourceView, one chunk for each cluster
//! ```

pub mod file;
pub mod settle;
mod statics;

pub use file::{read, watch_file};
pub use settle::{FileContent, FileProblem, FileState};
pub use statics::view_of;
