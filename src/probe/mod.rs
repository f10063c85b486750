//! The prober: asks every instance its configured questions and reports what it saw.
//!
//! So far only its timetable. It never judges an instance. Called by `app`.

mod rate;
pub mod timetable;
