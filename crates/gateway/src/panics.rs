//! Containment of panics: a panic while a call is served ends that call alone.
//!
//! A panic is a bug of Rialto. It costs the call in which it happened, or the link of one
//! instance, and nothing else: the frontend answers 500, a supervisor begins anew.
//! [`crate::fault_injection`] tests that.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use crate::reply::Refusal;

/// Runs the future; if it panics, the call is refused.
pub(crate) async fn contained<T, E: From<Refusal>>(
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    // The future's own state is gone with it; shared state is behind locks that survive a panic.
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(_) => {
            tracing::error!("a call ended in a panic");
            Err(Refusal::Panicked.into())
        }
    }
}
