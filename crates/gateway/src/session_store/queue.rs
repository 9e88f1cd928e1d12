//! What is to be written into records: one entry for each session, in which the newest fact counts.

use std::collections::{BTreeMap, HashMap};

use cluster::record::State;
use cluster::registry::{Claim, Touch};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// How a session ends in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Removed,
    Released,
}

/// What is to be written for one session: first the state, then the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Write {
    /// The state, and whether the session is an implicit one.
    pub(super) state: Option<(State, bool)>,
    pub(super) ending: Option<Ending>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By session and epoch: a session may be restored here while an earlier copy ends.
    writes: BTreeMap<(Uuid, u64), (Claim, Write)>,
    touches: HashMap<Uuid, Touch>,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Notify,
    /// Changes whenever something was written.
    written: watch::Sender<()>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            filled: Notify::new(),
            written: watch::Sender::new(()),
        }
    }
}

impl Queue {
    pub(super) fn set_state(&self, claim: &Claim, state: State, is_implicit: bool) {
        self.change(claim, |write| {
            if write.ending.is_none() {
                write.state = Some((state, is_implicit));
            }
        });
    }

    /// The first end counts.
    pub(super) fn end(&self, claim: &Claim, ending: Ending) {
        self.change(claim, |write| {
            if write.ending.is_none() {
                write.ending = Some(ending);
            }
            if write.ending == Some(Ending::Removed) {
                write.state = None;
            }
        });
    }

    fn change(&self, claim: &Claim, change: impl FnOnce(&mut Write)) {
        {
            let mut waiting = self.waiting.lock();
            let entry = waiting.writes.entry(key(claim));
            let (_, write) = entry.or_insert_with(|| (claim.clone(), Write::default()));
            change(write);
        }
        self.filled.notify_one();
    }

    pub(super) fn touch(&self, touches: Vec<Touch>) {
        if touches.is_empty() {
            return;
        }
        {
            let mut waiting = self.waiting.lock();
            let touches = touches.into_iter().map(|touch| (touch.claim.session, touch));
            waiting.touches.extend(touches);
        }
        self.filled.notify_one();
    }

    /// Waits until something is to be written.
    pub(super) async fn filled(&self) {
        loop {
            let filled = self.filled.notified();
            {
                let waiting = self.waiting.lock();
                if !waiting.writes.is_empty() || !waiting.touches.is_empty() {
                    return;
                }
            }
            filled.await;
        }
    }

    pub(super) fn take_touches(&self) -> Vec<Touch> {
        let touches = std::mem::take(&mut self.waiting.lock().touches);
        touches.into_values().collect()
    }

    /// Returns a session and what is to be written for it. It stays in the queue until it is
    /// written.
    pub(super) fn next(&self) -> Option<(Claim, Write)> {
        let waiting = self.waiting.lock();
        waiting.writes.values().next().cloned()
    }

    /// This was written. What has come since stays in the queue.
    pub(super) fn handle_written(&self, claim: &Claim, written: &Write) {
        {
            let mut waiting = self.waiting.lock();
            if let Some((_, write)) = waiting.writes.get_mut(&key(claim)) {
                if write == written {
                    waiting.writes.remove(&key(claim));
                } else if write.state == written.state {
                    write.state = None;
                }
            }
        }
        self.written.send_replace(());
    }

    /// Waits until nothing is queued for this session, or for any.
    pub(super) async fn emptied(&self, claim: Option<&Claim>) {
        let mut written = self.written.subscribe();
        loop {
            let is_empty = {
                let waiting = self.waiting.lock();
                match claim {
                    Some(claim) => !waiting.writes.contains_key(&key(claim)),
                    None => waiting.writes.is_empty(),
                }
            };
            if is_empty {
                return;
            }
            // The sender is here, so the channel is not closed.
            let _ = written.changed().await;
        }
    }
}

fn key(claim: &Claim) -> (Uuid, u64) {
    (claim.session, claim.epoch)
}

#[cfg(test)]
mod tests {
    use cluster::record::NodeId;

    use super::*;

    fn claim(session: u128, epoch: u64) -> Claim {
        Claim {
            session: Uuid::from_u128(session),
            owner: NodeId::new("local", Uuid::from_u128(9)).unwrap(),
            epoch,
        }
    }

    fn state(level: &str) -> State {
        State {
            log_level: Some(level.to_owned()),
            subscriptions: Vec::new(),
        }
    }

    #[test]
    fn newest_state_counts_and_stays_if_it_came_while_an_older_one_was_written() {
        let queue = Queue::default();
        let claim = claim(1, 1);
        queue.set_state(&claim, state("debug"), false);
        queue.set_state(&claim, state("info"), false);
        let (_, write) = queue.next().unwrap();
        assert_eq!(write.state, Some((state("info"), false)));
        queue.set_state(&claim, state("error"), false);
        queue.handle_written(&claim, &write);
        let (_, write) = queue.next().unwrap();
        assert_eq!(write.state, Some((state("error"), false)));
        queue.handle_written(&claim, &write);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn released_session_is_written_with_its_state_and_a_removed_one_without() {
        let queue = Queue::default();
        let (released, removed) = (claim(1, 1), claim(2, 1));
        for claim in [&released, &removed] {
            queue.set_state(claim, state("debug"), false);
        }
        queue.end(&released, Ending::Released);
        queue.end(&removed, Ending::Removed);
        queue.end(&removed, Ending::Released);
        let mut written = Vec::new();
        while let Some((claim, write)) = queue.next() {
            queue.handle_written(&claim, &write);
            written.push((write.state.is_some(), write.ending));
        }
        let expected = [(true, Some(Ending::Released)), (false, Some(Ending::Removed))];
        assert_eq!(written, expected);
    }

    #[test]
    fn end_that_came_while_the_state_was_written_stays_without_it() {
        let queue = Queue::default();
        let claim = claim(1, 1);
        queue.set_state(&claim, state("debug"), false);
        let (_, write) = queue.next().unwrap();
        queue.end(&claim, Ending::Released);
        queue.handle_written(&claim, &write);
        let (_, write) = queue.next().unwrap();
        assert_eq!((write.state, write.ending), (None, Some(Ending::Released)));
    }

    #[tokio::test]
    async fn queue_is_waited_for_by_session_and_as_a_whole() {
        let queue = Queue::default();
        let (one, other) = (claim(1, 1), claim(2, 1));
        queue.emptied(None).await;
        queue.set_state(&one, state("debug"), false);
        queue.filled().await;
        queue.emptied(Some(&other)).await;
        queue.emptied(Some(&claim(1, 2))).await;
        let (_, write) = queue.next().unwrap();
        let writing = async { queue.handle_written(&one, &write) };
        tokio::join!(queue.emptied(Some(&one)), queue.emptied(None), writing);
    }
}
