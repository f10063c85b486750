//! The integration tests, one binary: linking it once is what costs.

mod check;
mod probe;
