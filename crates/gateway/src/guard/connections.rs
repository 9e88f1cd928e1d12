//! How many connections: in all, of one address, and which of them goes when there is no room.
//!
//! A connection that has not yet finished the head of its first request is *half-open*: it costs its peer nothing and
//! may never become anything. When a limit is reached, the oldest of those makes room for the newcomer, so that
//! whoever fills all places with silence keeps nobody out. One that has said what it wants is never closed for another.
//! This file only counts and chooses; it refuses to know sockets: a connection is ended by the handle it came with.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::limits::network_of;

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) in_all: usize,
    /// For the address that knocks; `None`: as many as there are.
    pub(crate) of_address: Option<usize>,
}

/// Every place is taken by somebody who has said what he wants; the word names the limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full(pub(crate) &'static str);

/// All connections. `H` is what ends one of them.
#[derive(Debug)]
pub(crate) struct ConnectionRoll<H>(Mutex<Roll<H>>);

#[derive(Debug)]
struct Roll<H> {
    next: u64,
    count: usize,
    addresses: HashMap<IpAddr, Address>,
    /// In the order they came. The handle is missing for the moment between entering and being able to end.
    half_open: BTreeMap<u64, (IpAddr, Option<H>)>,
}

#[derive(Debug, Default)]
struct Address {
    count: usize,
    half_open: BTreeSet<u64>,
}

/// One connection's place.
#[derive(Debug)]
pub(crate) struct Place<H> {
    roll: Arc<ConnectionRoll<H>>,
    number: u64,
    address: IpAddr,
    /// It has said what it wants, and keeps its place to its end.
    introduced: AtomicBool,
}

/// A newcomer's place, and whoever had to leave for it.
#[derive(Debug)]
pub(crate) struct Entered<H> {
    pub(crate) place: Arc<Place<H>>,
    pub(crate) sent_home: Option<SentHome<H>>,
}

/// A half-open connection that lost its place.
#[derive(Debug)]
pub(crate) struct SentHome<H> {
    pub(crate) handle: Option<H>,
    /// The limit that was reached.
    pub(crate) limit: &'static str,
}

impl<H> Default for ConnectionRoll<H> {
    fn default() -> Self {
        Self(Mutex::new(Roll {
            next: 0,
            count: 0,
            addresses: HashMap::new(),
            half_open: BTreeMap::new(),
        }))
    }
}

impl<H> ConnectionRoll<H> {
    fn lock(&self) -> MutexGuard<'_, Roll<H>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection of this peer, if need be that of the oldest half-open one.
    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr, room: Room) -> Result<Entered<H>, Full> {
        let address = network_of(peer.to_canonical());
        let mut roll = self.lock();
        let of_address = roll.addresses.get(&address);
        let is_crowded = room
            .of_address
            .is_some_and(|limit| of_address.is_some_and(|address| address.count >= limit));
        let sent_home = if is_crowded {
            let oldest = of_address.and_then(|address| address.half_open.first().copied());
            Some((oldest, "connections_per_address"))
        } else if roll.count >= room.in_all {
            let oldest = roll.half_open.keys().next().copied();
            Some((oldest, "connections"))
        } else {
            None
        };
        let sent_home = match sent_home {
            None => None,
            Some((None, limit)) => return Err(Full(limit)),
            Some((Some(oldest), limit)) => {
                let handle = roll.leave_half_open(oldest);
                Some(SentHome { handle, limit })
            }
        };
        let number = roll.next;
        roll.next += 1;
        roll.count += 1;
        let of_address = roll.addresses.entry(address).or_default();
        of_address.count += 1;
        of_address.half_open.insert(number);
        roll.half_open.insert(number, (address, None));
        drop(roll);
        Ok(Entered {
            place: Arc::new(Place {
                roll: Arc::clone(self),
                number,
                address,
                introduced: AtomicBool::new(false),
            }),
            sent_home,
        })
    }
}

impl<H> Roll<H> {
    /// Takes a half-open connection off the roll, and gives what ends it.
    fn leave_half_open(&mut self, number: u64) -> Option<H> {
        let (address, handle) = self.half_open.remove(&number)?;
        self.leave(number, address);
        handle
    }

    fn leave(&mut self, number: u64, address: IpAddr) {
        self.count -= 1;
        if let Some(of_address) = self.addresses.get_mut(&address) {
            of_address.count -= 1;
            of_address.half_open.remove(&number);
            if of_address.count == 0 {
                self.addresses.remove(&address);
            }
        }
    }
}

impl<H> Place<H> {
    /// Says how the connection can be ended, as long as that is of interest.
    pub(crate) fn can_be_ended_by(&self, handle: H) {
        if let Some((_, empty)) = self.roll.lock().half_open.get_mut(&self.number) {
            *empty = Some(handle);
        }
    }

    /// The head of a request has come.
    pub(crate) fn introduce(&self) {
        if self.introduced.load(Acquire) {
            return;
        }
        let mut roll = self.roll.lock();
        // One that was sent home a moment ago has no place to keep.
        if roll.half_open.remove(&self.number).is_some() {
            if let Some(of_address) = roll.addresses.get_mut(&self.address) {
                of_address.half_open.remove(&self.number);
            }
            self.introduced.store(true, Release);
        }
    }
}

impl<H> Drop for Place<H> {
    fn drop(&mut self) {
        let mut roll = self.roll.lock();
        if self.introduced.load(Acquire) {
            roll.leave(self.number, self.address);
        } else {
            // Nothing happens if it was sent home: it is off the roll already.
            drop(roll.leave_half_open(self.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Entry = Result<Entered<u32>, Full>;

    fn knock(roll: &Arc<ConnectionRoll<u32>>, peer: &str, in_all: usize, of_address: Option<usize>) -> Entry {
        roll.enter(peer.parse().unwrap(), Room { in_all, of_address })
    }

    fn place(entry: Entry, handle: u32) -> Arc<Place<u32>> {
        let entered = entry.unwrap();
        assert!(entered.sent_home.is_none(), "{:?}", entered.sent_home);
        entered.place.can_be_ended_by(handle);
        entered.place
    }

    #[test]
    fn c08_the_oldest_half_open_connection_makes_room() {
        let roll = Arc::new(ConnectionRoll::default());
        let first = place(knock(&roll, "192.0.2.1", 3, None), 1);
        let second = place(knock(&roll, "192.0.2.2", 3, None), 2);
        let third = place(knock(&roll, "192.0.2.3", 3, None), 3);
        first.introduce();
        let entered = knock(&roll, "192.0.2.4", 3, None).unwrap();
        let sent_home = entered.sent_home.unwrap();
        assert_eq!((sent_home.handle, sent_home.limit), (Some(2), "connections"));
        // What the loser still does changes nothing.
        second.introduce();
        drop(second);
        assert_eq!(roll.lock().count, 3);
        third.introduce();
        entered.place.introduce();
        assert_eq!(
            knock(&roll, "192.0.2.5", 3, None).unwrap_err(),
            Full("connections")
        );
        drop(first);
        assert!(knock(&roll, "192.0.2.5", 3, None).unwrap().sent_home.is_none());
    }

    #[test]
    fn c08_an_address_that_is_full_makes_room_of_its_own() {
        let roll = Arc::new(ConnectionRoll::default());
        let other = place(knock(&roll, "192.0.2.2", 9, Some(2)), 9);
        let first = place(knock(&roll, "192.0.2.1", 9, Some(2)), 1);
        let second = place(knock(&roll, "192.0.2.1", 9, Some(2)), 2);
        second.introduce();
        let entered = knock(&roll, "192.0.2.1", 9, Some(2)).unwrap();
        let sent_home = entered.sent_home.unwrap();
        assert_eq!(
            (sent_home.handle, sent_home.limit),
            (Some(1), "connections_per_address")
        );
        entered.place.introduce();
        assert_eq!(
            knock(&roll, "192.0.2.1", 9, Some(2)).unwrap_err(),
            Full("connections_per_address")
        );
        assert!(
            knock(&roll, "192.0.2.1", 9, None).is_ok(),
            "a proxy may have many"
        );
        drop((first, second, entered.place, other));
        assert!(roll.lock().addresses.is_empty(), "nobody is left in the roll");
    }

    #[test]
    fn of_ipv6_the_network_counts() {
        let roll = Arc::new(ConnectionRoll::default());
        let _first = place(knock(&roll, "2001:db8::1", 9, Some(1)), 1);
        assert!(
            knock(&roll, "2001:db8::2", 9, Some(1))
                .unwrap()
                .sent_home
                .is_some()
        );
        assert!(
            knock(&roll, "2001:db8:1::1", 9, Some(1))
                .unwrap()
                .sent_home
                .is_none()
        );
    }

    proptest! {
        /// Whoever comes, speaks and goes: the limits hold, who has spoken stays, and in the end nobody is left.
        #[test]
        fn whatever_happens_the_roll_is_right(steps in proptest::collection::vec((0_u8..4, 0_u8..4), 0..200)) {
            let roll = Arc::new(ConnectionRoll::<usize>::default());
            let mut present: Vec<(usize, Arc<Place<usize>>, bool)> = Vec::new();
            for (at, (what, who)) in steps.into_iter().enumerate() {
                let place = usize::from(who) % present.len().max(1);
                match what {
                    0 | 1 => {
                        let peer = IpAddr::from([192, 0, 2, who]);
                        let entered = roll.enter(peer, Room { in_all: 5, of_address: Some(3) });
                        match entered {
                            Ok(entered) => {
                                entered.place.can_be_ended_by(at);
                                if let Some(gone) = entered.sent_home {
                                    let gone = gone.handle.expect("every one has a handle");
                                    let index = present.iter().position(|(number, ..)| *number == gone);
                                    let (_, _, introduced) = present.remove(index.expect("it was there"));
                                    prop_assert!(!introduced, "one that has spoken was closed");
                                }
                                present.push((at, entered.place, false));
                            }
                            Err(Full(_)) => prop_assert!(present.iter().filter(|(.., spoken)| *spoken).count() >= 3),
                        }
                    }
                    2 if !present.is_empty() => {
                        present[place].1.introduce();
                        present[place].2 = true;
                    }
                    _ if !present.is_empty() => drop(present.swap_remove(place)),
                    _ => {}
                }
                prop_assert_eq!(roll.lock().count, present.len());
                prop_assert!(present.len() <= 5);
            }
            present.clear();
            let roll = roll.lock();
            prop_assert!(roll.count == 0 && roll.addresses.is_empty() && roll.half_open.is_empty());
        }
    }
}
