//! Panics on demand, for tests of their containment ([`crate::panics`]).
//!
//! In debug builds, after [`enable`], a message that contains a site's trigger panics there. Other
//! builds have none of these sites.

/// Where a panic can be caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// While a client's message is taken.
    Frontend,
    /// While the lines of a child are read.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "the reader looks only in builds for development")
    )]
    Reader,
    /// While a child is supervised.
    Supervisor,
    /// While the machine of an instance is called, which leaves its state as it is at that moment.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "an instance looks only in builds for development")
    )]
    Instance,
    /// While a message is sent to a remote server.
    Sender,
}

#[cfg(debug_assertions)]
mod enabled {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Site;

    static ENABLED: AtomicBool = AtomicBool::new(false);
    /// The supervisor reads no messages, so the reader passes the trigger on.
    static SUPERVISOR: AtomicBool = AtomicBool::new(false);

    /// Makes messages that contain a trigger cause a panic.
    pub fn enable() {
        ENABLED.store(true, Ordering::Relaxed);
    }

    impl Site {
        const fn trigger(self) -> &'static [u8] {
            match self {
                Self::Frontend => b"panic in the frontend",
                Self::Reader => b"panic in the reader",
                Self::Supervisor => b"panic in the supervisor",
                Self::Sender => b"panic in the sender",
                Self::Instance => b"panic in the instance",
            }
        }
    }

    /// Panics if these bytes contain the trigger of this site. Returns whether the reader found the
    /// trigger of the supervisor, which is then to be woken.
    pub(crate) fn maybe_panic(site: Site, bytes: &[u8]) -> bool {
        if !ENABLED.load(Ordering::Relaxed) {
            return false;
        }
        let triggers = |site: Site| memchr::memmem::find(bytes, site.trigger()).is_some();
        match site {
            Site::Supervisor => {
                if SUPERVISOR.swap(false, Ordering::Relaxed) {
                    panic!("injected: Supervisor");
                }
                false
            }
            Site::Reader if triggers(Site::Supervisor) => {
                SUPERVISOR.store(true, Ordering::Relaxed);
                true
            }
            Site::Reader | Site::Frontend | Site::Sender | Site::Instance => {
                assert!(!triggers(site), "injected: {site:?}");
                false
            }
        }
    }
}

#[cfg(debug_assertions)]
pub use enabled::enable;
#[cfg(debug_assertions)]
pub(crate) use enabled::maybe_panic;

#[cfg(not(debug_assertions))]
pub(crate) fn maybe_panic(_: Site, _: &[u8]) -> bool {
    false
}
