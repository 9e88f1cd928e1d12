//! How many connections: in all, of one address, and which of them is closed when there is no room.
//!
//! A connection on which no request is in flight does nothing for its peer that a new connection
//! could not do. When a limit is reached, such a connection makes room for the newcomer: first
//! those that never had a request let in at a destination (half-open ones, and those that only ever
//! got a 401, a 404 or `/health`), then the others, each time the one that has been idle longest. A
//! connection with a request in flight, a stream included, is never closed for another. This file
//! only counts and chooses; it knows no sockets: a connection is ended by the handle it came with.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use super::limits::network_of;

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub(crate) in_all: usize,
    /// For the address that connects; `None`: no limit.
    pub(crate) of_address: Option<usize>,
}

/// Every place is taken by a connection with a request in flight; the word names the limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LimitReached(pub(crate) &'static str);

/// Evictions are looked for in batches, since every look goes through all connections.
const CANDIDATES: usize = 64;

/// All connections. `H` is what ends one of them.
#[derive(Debug)]
pub(crate) struct ConnectionTable<H> {
    table: Mutex<TableState<H>>,
    /// Numbers the moments at which connections became idle.
    moments: AtomicU64,
}

#[derive(Debug)]
struct TableState<H> {
    next: u64,
    present: BTreeMap<u64, Arc<ConnectionState<H>>>,
    addresses: HashMap<IpAddr, BTreeSet<u64>>,
    /// Connections that were idle at the last look, the first to go in front, with the moment since
    /// when.
    candidates: VecDeque<(u64, u64)>,
}

/// What is known of one connection.
#[derive(Debug)]
struct ConnectionState<H> {
    address: IpAddr,
    handle: OnceLock<H>,
    /// Requests in flight, answers that are still being sent included.
    in_flight: AtomicUsize,
    /// Since when there has been none.
    idle_since: AtomicU64,
    /// A request was let in at a destination.
    is_authenticated: AtomicBool,
}

impl<H> ConnectionState<H> {
    /// Returns the order in which this connection goes, if it may go at all.
    fn rank(&self) -> Option<(bool, u64)> {
        let is_idle = self.in_flight.load(Acquire) == 0;
        is_idle.then(|| (self.is_authenticated.load(Acquire), self.idle_since.load(Acquire)))
    }
}

/// One connection's place.
#[derive(Debug)]
pub(crate) struct ConnectionSlot<H> {
    table: Arc<ConnectionTable<H>>,
    number: u64,
    state: Arc<ConnectionState<H>>,
}

/// A request in flight on a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlight<H>(Arc<ConnectionSlot<H>>);

/// A newcomer's place, and the connection that had to leave for it.
#[derive(Debug)]
pub(crate) struct Admitted<H> {
    pub(crate) slot: Arc<ConnectionSlot<H>>,
    pub(crate) evicted: Option<Evicted<H>>,
}

/// A connection that lost its place.
#[derive(Debug)]
pub(crate) struct Evicted<H> {
    pub(crate) handle: Option<H>,
    /// The limit that was reached.
    pub(crate) limit: &'static str,
}

impl<H> Default for ConnectionTable<H> {
    fn default() -> Self {
        Self {
            table: Mutex::new(TableState {
                next: 0,
                present: BTreeMap::new(),
                addresses: HashMap::new(),
                candidates: VecDeque::new(),
            }),
            moments: AtomicU64::new(0),
        }
    }
}

impl<H: Clone> ConnectionTable<H> {
    /// Returns a place for a connection of this peer, if need be that of an idle one.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: IpAddr,
        limits: ConnectionLimits,
    ) -> Result<Admitted<H>, LimitReached> {
        let address = network_of(peer.to_canonical());
        let mut table = self.lock();
        let of_address = table.addresses.get(&address).map_or(0, BTreeSet::len);
        let victim = if limits.of_address.is_some_and(|limit| of_address >= limit) {
            Some((table.idle_of(address), "connections_per_address"))
        } else if table.present.len() >= limits.in_all {
            Some((table.idle(), "connections"))
        } else {
            None
        };
        let evicted = match victim {
            None => None,
            Some((None, limit)) => return Err(LimitReached(limit)),
            Some((Some(number), limit)) => {
                let state = table.leave(number);
                let handle = state.and_then(|state| state.handle.get().cloned());
                Some(Evicted { handle, limit })
            }
        };
        let number = table.next;
        table.next += 1;
        let state = Arc::new(ConnectionState {
            address,
            handle: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            idle_since: AtomicU64::new(self.moments.fetch_add(1, AcqRel)),
            is_authenticated: AtomicBool::new(false),
        });
        table.addresses.entry(address).or_default().insert(number);
        table.present.insert(number, Arc::clone(&state));
        drop(table);
        Ok(Admitted {
            slot: Arc::new(ConnectionSlot {
                table: Arc::clone(self),
                number,
                state,
            }),
            evicted,
        })
    }
}

impl<H> ConnectionTable<H> {
    fn lock(&self) -> MutexGuard<'_, TableState<H>> {
        self.table.lock()
    }
}

impl<H> TableState<H> {
    /// Returns the connection that goes first, of all.
    fn idle(&mut self) -> Option<u64> {
        if let Some(number) = self.next_candidate() {
            return Some(number);
        }
        let ranked = self.present.iter().map(|(number, state)| (*number, state));
        let mut idle: Vec<((bool, u64), u64)> = ranked
            .filter_map(|(number, state)| Some((state.rank()?, number)))
            .collect();
        if idle.len() > CANDIDATES {
            idle.select_nth_unstable(CANDIDATES);
            idle.truncate(CANDIDATES);
        }
        idle.sort_unstable();
        // Those that had a request let in are looked for anew each time, in case there are others
        // by then.
        let unauthenticated = idle
            .iter()
            .take_while(|((is_authenticated, _), _)| !is_authenticated);
        self.candidates = unauthenticated
            .map(|((_, since), number)| (*number, *since))
            .collect();
        self.next_candidate().or(idle.first().map(|(_, number)| *number))
    }

    /// Returns the next candidate that has been idle ever since it was one.
    fn next_candidate(&mut self) -> Option<u64> {
        while let Some((number, since)) = self.candidates.pop_front() {
            let rank = self.present.get(&number).and_then(|state| state.rank());
            if rank == Some((false, since)) {
                return Some(number);
            }
        }
        None
    }

    /// Returns the connection that goes first, of this address.
    fn idle_of(&self, address: IpAddr) -> Option<u64> {
        let numbers = self.addresses.get(&address)?.iter();
        let ranked = numbers.filter_map(|number| Some((self.present.get(number)?.rank()?, *number)));
        ranked.min().map(|(_, number)| number)
    }

    fn leave(&mut self, number: u64) -> Option<Arc<ConnectionState<H>>> {
        let state = self.present.remove(&number)?;
        if let Some(numbers) = self.addresses.get_mut(&state.address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.addresses.remove(&state.address);
            }
        }
        Some(state)
    }
}

impl<H> ConnectionSlot<H> {
    /// Sets how the connection can be ended.
    pub(crate) fn can_be_ended_by(&self, handle: H) {
        // Set once, where the connection is spawned.
        let _ = self.state.handle.set(handle);
    }

    /// Returns what ends the connection.
    pub(crate) fn handle(&self) -> Option<&H> {
        self.state.handle.get()
    }

    /// The head of a request has come.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight<H> {
        self.state.in_flight.fetch_add(1, AcqRel);
        InFlight(Arc::clone(self))
    }

    /// A request was let in at a destination.
    pub(crate) fn mark_authenticated(&self) {
        if !self.state.is_authenticated.load(Acquire) {
            self.state.is_authenticated.store(true, Release);
        }
    }

    /// Returns since when no request has been in flight, in numbered moments; `None` while one is.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        self.state.rank().map(|(_, since)| since)
    }
}

impl<H> Drop for InFlight<H> {
    fn drop(&mut self) {
        let ConnectionSlot { table, state, .. } = &*self.0;
        state
            .idle_since
            .store(table.moments.fetch_add(1, AcqRel), Release);
        state.in_flight.fetch_sub(1, AcqRel);
    }
}

impl<H> Drop for ConnectionSlot<H> {
    fn drop(&mut self) {
        // Nothing happens if it was evicted: it has left the table already.
        drop(self.table.lock().leave(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Entry = Result<Admitted<u32>, LimitReached>;
    /// Connections by their handles, and whether a request is in flight.
    type Present = Vec<(usize, Arc<ConnectionSlot<usize>>, Option<InFlight<usize>>)>;

    fn connect(
        table: &Arc<ConnectionTable<u32>>,
        peer: &str,
        in_all: usize,
        of_address: Option<usize>,
    ) -> Entry {
        table.admit(peer.parse().unwrap(), ConnectionLimits { in_all, of_address })
    }

    fn slot(entry: Entry, handle: u32) -> Arc<ConnectionSlot<u32>> {
        let admitted = entry.unwrap();
        assert!(admitted.evicted.is_none(), "{:?}", admitted.evicted);
        admitted.slot.can_be_ended_by(handle);
        admitted.slot
    }

    fn evicted(entry: Entry) -> (Arc<ConnectionSlot<u32>>, Option<u32>, &'static str) {
        let admitted = entry.unwrap();
        let evicted = admitted.evicted.expect("a connection made room");
        admitted.slot.can_be_ended_by(99);
        (admitted.slot, evicted.handle, evicted.limit)
    }

    #[test]
    fn c08_the_oldest_half_open_connection_makes_room() {
        let table = Arc::new(ConnectionTable::default());
        let first = slot(connect(&table, "192.0.2.1", 3, None), 1);
        let second = slot(connect(&table, "192.0.2.2", 3, None), 2);
        let third = slot(connect(&table, "192.0.2.3", 3, None), 3);
        let busy = first.begin();
        let (fourth, handle, limit) = evicted(connect(&table, "192.0.2.4", 3, None));
        assert_eq!((handle, limit), (Some(2), "connections"));
        // What the loser still does changes nothing.
        drop(second.begin());
        drop(second);
        assert_eq!(table.lock().present.len(), 3);
        let others = (third.begin(), fourth.begin());
        let refused = connect(&table, "192.0.2.5", 3, None).unwrap_err();
        assert_eq!(refused, LimitReached("connections"));
        drop((busy, others));
        drop(first);
        assert!(connect(&table, "192.0.2.5", 3, None).unwrap().evicted.is_none());
    }

    #[test]
    fn refused_requests_make_no_connection_safe_and_recognised_ones_go_last() {
        let table = Arc::new(ConnectionTable::default());
        let refused = slot(connect(&table, "192.0.2.1", 3, None), 1);
        let client = slot(connect(&table, "192.0.2.2", 3, None), 2);
        let streaming = slot(connect(&table, "192.0.2.3", 3, None), 3);
        client.mark_authenticated();
        drop(client.begin());
        streaming.mark_authenticated();
        let _stream = streaming.begin();
        // The latest of all requests, and none that was authenticated.
        drop(refused.begin());
        let (newcomer, handle, _) = evicted(connect(&table, "192.0.2.4", 3, None));
        assert_eq!(handle, Some(1));
        newcomer.mark_authenticated();
        drop(newcomer.begin());
        let (last, handle, _) = evicted(connect(&table, "192.0.2.5", 3, None));
        assert_eq!(handle, Some(2), "idle for longest of those that were let in");
        let _busy = (last.begin(), newcomer.begin());
        assert_eq!(
            connect(&table, "192.0.2.6", 3, None).unwrap_err(),
            LimitReached("connections")
        );
    }

    #[test]
    fn c08_an_address_that_is_full_makes_room_of_its_own() {
        let table = Arc::new(ConnectionTable::default());
        let other = slot(connect(&table, "192.0.2.2", 9, Some(2)), 9);
        let first = slot(connect(&table, "192.0.2.1", 9, Some(2)), 1);
        let second = slot(connect(&table, "192.0.2.1", 9, Some(2)), 2);
        let busy = second.begin();
        let (third, handle, limit) = evicted(connect(&table, "192.0.2.1", 9, Some(2)));
        assert_eq!((handle, limit), (Some(1), "connections_per_address"));
        let also_busy = third.begin();
        assert_eq!(
            connect(&table, "192.0.2.1", 9, Some(2)).unwrap_err(),
            LimitReached("connections_per_address")
        );
        assert!(
            connect(&table, "192.0.2.1", 9, None).is_ok(),
            "a proxy may have many"
        );
        drop((busy, also_busy));
        drop((first, second, third, other));
        assert!(table.lock().addresses.is_empty(), "nothing is left in the roll");
    }

    #[test]
    fn of_ipv6_the_network_counts() {
        let table = Arc::new(ConnectionTable::default());
        let _first = slot(connect(&table, "2001:db8::1", 9, Some(1)), 1);
        assert!(
            connect(&table, "2001:db8::2", 9, Some(1))
                .unwrap()
                .evicted
                .is_some()
        );
        let other = connect(&table, "2001:db8:1::1", 9, Some(1)).unwrap();
        assert!(other.evicted.is_none());
    }

    proptest! {
        /// For any sequence of connections and requests the limits hold, busy connections stay, and
        /// in the end nothing is left.
        #[test]
        fn table_is_right_after_any_sequence(steps in proptest::collection::vec((0_u8..5, 0_u8..4), 0..200)) {
            let table = Arc::new(ConnectionTable::<usize>::default());
            let mut present: Present = Vec::new();
            for (at, (what, host)) in steps.into_iter().enumerate() {
                let slot = usize::from(host) % present.len().max(1);
                match what {
                    0 | 1 => {
                        let peer = IpAddr::from([192, 0, 2, host]);
                        let admitted = table.admit(peer, ConnectionLimits { in_all: 5, of_address: Some(3) });
                        match admitted {
                            Ok(admitted) => {
                                admitted.slot.can_be_ended_by(at);
                                if let Some(gone) = admitted.evicted {
                                    let gone = gone.handle.expect("every one has a handle");
                                    let index = present.iter().position(|(number, ..)| *number == gone);
                                    let (_, _, busy) = present.remove(index.expect("it was there"));
                                    prop_assert!(busy.is_none(), "a busy one was closed");
                                }
                                present.push((at, admitted.slot, None));
                            }
                            Err(LimitReached(_)) => prop_assert!(present.iter().filter(|(.., busy)| busy.is_some()).count() >= 3),
                        }
                    }
                    2 if !present.is_empty() => present[slot].2 = Some(present[slot].1.begin()),
                    3 if !present.is_empty() => present[slot].2 = None,
                    _ if !present.is_empty() => drop(present.swap_remove(slot)),
                    _ => {}
                }
                prop_assert_eq!(table.lock().present.len(), present.len());
                prop_assert!(present.len() <= 5);
            }
            present.clear();
            let table = table.lock();
            prop_assert!(table.present.is_empty() && table.addresses.is_empty());
        }
    }
}
