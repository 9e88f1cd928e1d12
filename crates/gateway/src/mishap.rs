//! Panics: how far they reach, and how tests cause them.
//!
//! A panic is a mistake of ours. It costs the call in which it happened, or the link of one lane, and nothing else: the
//! door answers 500, a supervisor begins anew. Builds for development can be told ([`arrange`]) to panic when
//! a message with certain words passes, so that this is tested; in other builds these places do not exist.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use crate::reply::Refusal;

/// Where a panic can be arranged, with the words that cause it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// While a client's message is taken.
    Door,
    /// While the lines of a child are read.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "the reader looks only in builds for development")
    )]
    Reader,
    /// While a child is looked after.
    Supervisor,
    /// While the machine of an instance is called, which leaves its books as they are at that moment.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "an instance looks only in builds for development")
    )]
    Instance,
    /// While a message is carried to a remote server.
    Courier,
}

/// Does what the future does; if it panics, the call is refused.
pub(crate) async fn contained<T, E: From<Refusal>>(
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    // Whatever the future held is gone with it; what it shared is behind locks that survive a panic.
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(_) => {
            tracing::error!("a call ended in a panic");
            Err(Refusal::Mishap.into())
        }
    }
}

#[cfg(debug_assertions)]
mod arranged {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Place;

    static ARRANGED: AtomicBool = AtomicBool::new(false);
    /// The supervisor reads nothing itself, so that the reader tells it.
    static SUPERVISOR: AtomicBool = AtomicBool::new(false);

    /// From now on certain words cause a panic where they pass.
    pub fn arrange() {
        ARRANGED.store(true, Ordering::Relaxed);
    }

    impl Place {
        const fn words(self) -> &'static [u8] {
            match self {
                Self::Door => b"panic at the door",
                Self::Reader => b"panic in the reader",
                Self::Supervisor => b"panic in the supervisor",
                Self::Courier => b"panic on the way",
                Self::Instance => b"panic in the instance",
            }
        }
    }

    /// Panics if these bytes ask for it here. True: they ask for it at the supervisor, who is to have a look.
    pub(crate) fn perhaps(place: Place, bytes: &[u8]) -> bool {
        if !ARRANGED.load(Ordering::Relaxed) {
            return false;
        }
        let asks = |place: Place| memchr::memmem::find(bytes, place.words()).is_some();
        match place {
            Place::Supervisor => {
                if SUPERVISOR.swap(false, Ordering::Relaxed) {
                    panic!("arranged, in the supervisor");
                }
                false
            }
            Place::Reader if asks(Place::Supervisor) => {
                SUPERVISOR.store(true, Ordering::Relaxed);
                true
            }
            Place::Reader | Place::Door | Place::Courier | Place::Instance => {
                assert!(!asks(place), "arranged: {place:?}");
                false
            }
        }
    }
}

#[cfg(debug_assertions)]
pub use arranged::arrange;
#[cfg(debug_assertions)]
pub(crate) use arranged::perhaps;

#[cfg(not(debug_assertions))]
pub(crate) fn perhaps(_: Place, _: &[u8]) -> bool {
    false
}
