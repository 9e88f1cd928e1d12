//! The state as pages are shown it: composed once for all of them, as often as it changes.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::time::Moment;

/// The time between two looks at the state.
const LOOK: Duration = Duration::from_millis(240);
/// After this time the state is shown anew, since ages and figures of the last minutes move on.
const STALE: Duration = Duration::from_secs(5);

/// What pages were shown last.
#[derive(Debug, Default)]
pub(crate) struct ShownState(Mutex<Shown>);

#[derive(Debug, Default, Clone)]
struct Shown {
    looked: Option<Moment>,
    composed: Option<Moment>,
    outline: String,
    version: u64,
    event: Bytes,
}

impl ShownState {
    /// Returns the state, with its number. `outline` describes the state now, `compose` writes it.
    pub(crate) fn event(
        &self,
        now: Moment,
        outline: impl FnOnce() -> String,
        compose: impl FnOnce() -> String,
    ) -> (u64, Bytes) {
        let (composed, known) = {
            let mut shown = self.0.lock();
            if shown.looked.is_some_and(|looked| now.since(looked) < LOOK) && shown.version > 0 {
                return (shown.version, shown.event.clone());
            }
            // The others take what was shown last until this look is over.
            shown.looked = Some(now);
            (shown.composed, shown.outline.clone())
        };
        let outline = outline();
        let is_stale = composed.is_none_or(|composed| now.since(composed) >= STALE);
        let event = (is_stale || outline != known).then(|| Bytes::from(compose()));
        let mut shown = self.0.lock();
        if let Some(event) = event {
            shown.outline = outline;
            shown.composed = Some(now);
            shown.version += 1;
            shown.event = event;
        }
        (shown.version, shown.event.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_composed_when_it_has_changed_and_once_for_all_pages() {
        let shown = ShownState::default();
        let start = Moment::default();
        let look = |after: u64, outline: &str| {
            let now = start.after(Duration::from_millis(after));
            shown.event(now, || outline.to_owned(), || format!("state {outline}"))
        };
        assert_eq!(look(0, "a"), (1, Bytes::from("state a")));
        assert_eq!(look(100, "b"), (1, Bytes::from("state a")), "too soon");
        assert_eq!(look(250, "b"), (2, Bytes::from("state b")));
        assert_eq!(look(500, "b"), (2, Bytes::from("state b")), "no change");
        assert_eq!(look(5250, "b"), (3, Bytes::from("state b")), "ages move on");
    }
}
