//! The `tcp` check: connecting is the answer.
//!
//! It sends nothing and reads nothing. Called by `ask`.

use super::dial::dial;
use super::trace::{Failure, Trace, Verdict};
use crate::model::{Address, Detail, Outcome};

/// Connects, and lets go again.
pub(super) async fn put(address: Address, trace: &mut Trace) -> Result<Verdict, Failure> {
    dial(address, trace).await?;
    Ok((Outcome::Ok, Detail::None))
}
