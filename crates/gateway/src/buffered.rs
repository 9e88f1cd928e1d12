//! What waits to be read, counted for the whole gateway: [`BufferBudget`] decides, this carries it
//! out.
//!
//! Sessions and modern requests report their events when these have changed by [`STEP`]; an answer
//! is counted from the moment it is given to its connection until the last of it is sent, if it is
//! larger than [`SMALL`]. So a plain call touches nothing here.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use bytes::{Buf, Bytes};
use parking_lot::{Mutex, MutexGuard};
use protocol::buffer_budget::{BufferBudget, Exceeded, Held, HolderKey, Limits, Output};
use protocol::exchange::Principal;
use protocol::time::Moment;
use tokio::task::AbortHandle;

use crate::clock::Clock;
use crate::metrics::LimitHits;

/// Changes of less are not reported.
const STEP: usize = 4 << 10;
/// Answers up to this are not counted: a connection buffers as much for other reasons.
pub(crate) const SMALL: usize = 64 << 10;

/// Something that keeps events for a reader.
pub(crate) trait KeepsEvents: Send + Sync {
    /// Drops the oldest events, at least so many bytes as far as possible. Returns what is left.
    fn drop_events(&self, bytes: usize) -> KeptEvents;
}

/// The events that something keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptEvents {
    pub(crate) bytes: usize,
    /// When the oldest of them came.
    pub(crate) since: Moment,
}

enum Holder {
    Events(Weak<dyn KeepsEvents>),
    Answer(AbortHandle),
}

/// The budget of a gateway.
pub(crate) struct Buffered {
    clock: Clock,
    hits: Arc<LimitHits>,
    state: Mutex<BudgetState>,
}

struct BudgetState {
    budget: BufferBudget,
    holders: HashMap<HolderKey, Holder>,
}

impl std::fmt::Debug for Buffered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffered").finish_non_exhaustive()
    }
}

impl Buffered {
    pub(crate) fn new(limits: Limits, clock: Clock, hits: Arc<LimitHits>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            hits,
            state: Mutex::new(BudgetState {
                budget: BufferBudget::new(limits),
                holders: HashMap::new(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock()
    }

    /// Sets other limits, which hold at once.
    pub(crate) fn set_limits(&self, limits: Limits) {
        self.lock().budget.set_limits(limits);
        self.carry_out();
    }

    /// Returns how many bytes wait to be read.
    pub(crate) fn total(&self) -> usize {
        self.lock().budget.total()
    }

    /// Counts an answer of this many bytes until the returned hold is dropped.
    pub(crate) fn hold_answer(
        self: &Arc<Self>,
        principal: Principal,
        bytes: usize,
        connection: AbortHandle,
    ) -> Arc<Hold> {
        let key = {
            let mut state = self.lock();
            let key = state.budget.open(principal, Held::Answer);
            state.holders.insert(key, Holder::Answer(connection));
            state.budget.handle_held(key, bytes, self.clock.now());
            key
        };
        self.carry_out();
        Arc::new(Hold {
            buffered: Arc::clone(self),
            key,
        })
    }

    fn report(&self, key: HolderKey, kept: KeptEvents) {
        self.lock().budget.handle_held(key, kept.bytes, kept.since);
        self.carry_out();
    }

    /// Does what the budget decides. No lock is held while a session or a connection is touched.
    fn carry_out(&self) {
        loop {
            let (key, going, exceeded) = {
                let mut state = self.lock();
                let Some(output) = state.budget.poll_output() else {
                    return;
                };
                let (key, bytes, exceeded) = match output {
                    Output::DropEvents {
                        holder,
                        bytes,
                        exceeded,
                    } => (holder, bytes, exceeded),
                    Output::Close { holder, exceeded } => (holder, 0, exceeded),
                };
                let going = match state.holders.get(&key) {
                    Some(Holder::Events(keeper)) => Going::Events(keeper.upgrade(), bytes),
                    Some(Holder::Answer(connection)) => Going::Connection(connection.clone()),
                    None => continue,
                };
                (key, going, exceeded)
            };
            self.hits.count(match exceeded {
                Exceeded::Total => "buffered_bytes",
                Exceeded::PerPrincipal => "buffered_bytes_per_principal",
            });
            match going {
                Going::Events(Some(keeper), bytes) => {
                    let kept = keeper.drop_events(bytes);
                    self.lock().budget.handle_dropped(key, kept.bytes, kept.since);
                }
                Going::Events(None, _) => {}
                Going::Connection(connection) => connection.abort(),
            }
        }
    }

    fn close(&self, key: HolderKey) {
        let mut state = self.lock();
        state.budget.close(key);
        state.holders.remove(&key);
    }
}

enum Going {
    Events(Option<Arc<dyn KeepsEvents>>, usize),
    Connection(AbortHandle),
}

/// A holder that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    buffered: Arc<Buffered>,
    key: HolderKey,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.buffered.close(self.key);
    }
}

/// The events of one session or modern request, as far as they were reported.
#[derive(Debug, Default)]
pub(crate) struct ReportedEvents {
    /// Set where events are counted; without it nothing is.
    counted: OnceLock<(Weak<dyn KeepsEvents>, Arc<Buffered>)>,
    hold: OnceLock<Hold>,
    reported: std::sync::atomic::AtomicUsize,
}

impl std::fmt::Debug for dyn KeepsEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeepsEvents")
    }
}

impl ReportedEvents {
    /// From now on the events of `keeper` are counted.
    pub(crate) fn count(&self, keeper: Weak<dyn KeepsEvents>, buffered: &Arc<Buffered>) {
        let _ = self.counted.set((keeper, Arc::clone(buffered)));
    }

    /// Returns whether so many bytes are to be reported.
    pub(crate) fn is_due(&self, bytes: usize) -> bool {
        let reported = self.reported.load(std::sync::atomic::Ordering::Relaxed);
        bytes.abs_diff(reported) >= STEP || (bytes == 0 && reported > 0)
    }

    /// Reports what is kept. To be called without a lock of the keeper's.
    pub(crate) fn report(&self, principal: &Principal, kept: KeptEvents) {
        let Some((keeper, buffered)) = self.counted.get() else {
            return;
        };
        self.reported
            .store(kept.bytes, std::sync::atomic::Ordering::Relaxed);
        let hold = self.hold.get_or_init(|| {
            let mut state = buffered.lock();
            let key = state.budget.open(principal.clone(), Held::Events);
            state.holders.insert(key, Holder::Events(Weak::clone(keeper)));
            Hold {
                buffered: Arc::clone(buffered),
                key,
            }
        });
        buffered.report(hold.key, kept);
    }

    /// Notes what is left after events were dropped for the budget, which knows it already.
    pub(crate) fn dropped(&self, kept: KeptEvents) {
        self.reported
            .store(kept.bytes, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A piece of a body: bytes, and what counts them until the last of them is sent.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    _hold: Option<Arc<Hold>>,
}

impl Piece {
    pub(crate) fn new(bytes: Bytes, hold: Option<Arc<Hold>>) -> Self {
        Self { bytes, _hold: hold }
    }

    /// Returns the bytes. Those that are counted stay so until they are dropped.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self._hold {
            Some(_) => Bytes::from_owner(self),
            None => self.bytes,
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
