//! Whether a replica runs the one server of a destination (`placement: one`), and where it is
//! otherwise: a machine without I/O, for one destination of one replica.
//!
//! # Contract
//!
//! The driver reports facts with `handle_*`, carries out what [`Singleton::poll_output`] returns,
//! in that order, and calls [`Singleton::handle_timeout`] at [`Singleton::next_deadline`]. Time is
//! the replica's own monotonic clock, as an argument.
//!
//! - The server runs only while [`Singleton::is_here`]. The driver checks that for each request,
//!   since a replica that was paused finds its time over before its timer rings.
//! - After [`Output::End`] the driver ends the server within [`END_TIME`], and reports that with
//!   [`Singleton::handle_ended`].
//! - Every request gets exactly one [`Output::Answer`]. Every [`Output`] that asks the registry is
//!   answered by the `handle_*` function of its name, also when the registry did not answer: then
//!   with [`Away`].
//!
//! # Fencing
//!
//! The registry leases the destination's name to one replica for [`LEASE`], counted from a moment
//! after the replica asked. The replica counts from the moment at which it asked, and only up to
//! [`CERTAIN`]. What is left is the time to end the server. So the server has ended before the
//! registry gives the name to another replica, without any message between the two. Here
//! consistency comes before availability: a replica that cannot reach the registry ends its server.
//!
//! A paused process ends nothing while it is paused. Its server gets no further request, and ends
//! when the process goes on.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ownership::{Away, RequestId, Unavailable};
use crate::record::NodeId;
use crate::registry::{LEASE, NameLease, RENEWAL};

/// Returns the name that the registry leases for the server of a destination.
#[must_use]
pub fn name_of(destination: &str) -> String {
    format!("server:{destination}")
}

/// How long the driver may take to end the server.
pub const END_TIME: Duration = Duration::from_secs(2);

/// How long after it asked for its lease a replica lets the server run. A second is left for timers
/// that ring late.
pub const CERTAIN: Duration = LEASE
    .saturating_sub(END_TIME)
    .saturating_sub(Duration::from_secs(1));

/// The pause after a renewal without an answer.
const RETRY: Duration = Duration::from_millis(500);

/// Requests that wait for the registry, or for the end of the server.
const MAX_WAITING: usize = 1024;

/// How often one request asks the registry.
const MAX_ATTEMPTS: u32 = 4;

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// This replica runs the server.
    Here,
    /// This one does.
    There(NodeId),
    /// None does, and this one is ending: a successor starts it.
    Vacant,
    /// For a request of a peer: not this one. The peer asks the registry again.
    NotHere,
    /// It cannot be decided now; the client may try again.
    Refuse(Unavailable),
}

/// What the driver does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Lease the name, then [`Singleton::handle_leased`].
    Lease {
        /// Whether an earlier lease lasts.
        has_it: bool,
    },
    /// Read which replica has the name, then [`Singleton::handle_looked_up`].
    LookUp,
    /// Let the name go, then [`Singleton::handle_let_go`].
    LetGo,
    /// End the server and everything that is open at it, then [`Singleton::handle_ended`].
    End,
    /// Carry a request on.
    Answer {
        /// The request.
        request: RequestId,
        /// How.
        decision: Decision,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// It is not known which replica has the name.
    Unknown,
    Elsewhere(NodeId),
    /// This replica has it for certain until then, and renews it at `renewal`.
    Here {
        until: Duration,
        renewal: Duration,
    },
    /// The server is being ended.
    Ending {
        lets_go: bool,
    },
    /// The server has ended, and the name is being let go.
    LettingGo,
}

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Client,
    Peer,
}

#[derive(Debug)]
struct Waiting {
    request: RequestId,
    origin: Origin,
    /// The replica that could not be reached for it.
    unreached: Option<NodeId>,
}

/// One destination with one server in the fleet. See the [module](self) for its contract.
#[derive(Debug)]
pub struct Singleton {
    node: NodeId,
    state: State,
    is_draining: bool,
    /// Since when the registry is asked.
    asked: Option<Duration>,
    waiting: Vec<Waiting>,
    outputs: VecDeque<Output>,
}

impl Singleton {
    /// Returns the machine of a replica that does not know yet where the server is.
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            state: State::Unknown,
            is_draining: false,
            asked: None,
            waiting: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Returns the next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] is to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.state {
            State::Here { until, .. } if self.asked.is_some() => Some(until),
            State::Here { until, renewal } => Some(until.min(renewal)),
            State::Unknown | State::Elsewhere(_) | State::Ending { .. } | State::LettingGo => None,
        }
    }

    /// Returns until when this replica has the server for certain; zero if it has not.
    #[must_use]
    pub fn certain_until(&self) -> Duration {
        match self.state {
            State::Here { until, .. } => until,
            State::Unknown | State::Elsewhere(_) | State::Ending { .. } | State::LettingGo => Duration::ZERO,
        }
    }

    /// Returns whether this replica has the server for certain.
    #[must_use]
    pub fn is_here(&self, now: Duration) -> bool {
        now < self.certain_until()
    }

    /// Ends the server if its time is over, and renews the lease if it is due.
    pub fn handle_timeout(&mut self, now: Duration) {
        let State::Here { until, renewal } = self.state else {
            return;
        };
        if now >= until {
            self.end(false);
        } else if now >= renewal && self.asked.is_none() {
            self.asked = Some(now);
            self.outputs.push_back(Output::Lease { has_it: true });
        }
    }

    /// Decides about a request of a client, for anything but what is open here.
    pub fn handle_request(&mut self, request: RequestId, now: Duration) {
        self.handle_timeout(now);
        match &self.state {
            State::Here { .. } if !self.is_draining => self.answer(request, Decision::Here),
            State::Elsewhere(node) => {
                let decision = Decision::There(node.clone());
                self.answer(request, decision);
            }
            State::Here { .. } | State::Unknown | State::Ending { .. } | State::LettingGo => {
                self.wait(request, Origin::Client, None, now);
            }
        }
    }

    /// Decides about a request that a peer sent here, since the registry named this replica, or the
    /// peer is ending and no replica had the server.
    pub fn handle_peer_request(&mut self, request: RequestId, now: Duration) {
        self.handle_timeout(now);
        match &self.state {
            State::Here { .. } if !self.is_draining => self.answer(request, Decision::Here),
            State::Here { .. }
            | State::Elsewhere(_)
            | State::Unknown
            | State::Ending { .. }
            | State::LettingGo => {
                self.wait(request, Origin::Peer, None, now);
            }
        }
    }

    /// Takes back a request that was not sent, because this replica could not be reached.
    pub fn handle_not_sent(&mut self, request: RequestId, node: &NodeId, now: Duration) {
        self.forget(node);
        self.wait(request, Origin::Client, Some(node.clone()), now);
    }

    /// Takes back a request that this replica refused, because it does not have the server.
    pub fn handle_not_here(&mut self, request: RequestId, node: &NodeId, attempts: u32, now: Duration) {
        self.forget(node);
        if attempts >= MAX_ATTEMPTS {
            return self.answer(request, Decision::Refuse(Unavailable::Busy));
        }
        self.wait(request, Origin::Client, None, now);
    }

    /// Takes the answer to [`Output::Lease`].
    pub fn handle_leased(&mut self, leased: Result<NameLease, Away>, now: Duration) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        let is_own = matches!(&leased, Ok(NameLease::Held(node)) if *node == self.node);
        match (&mut self.state, leased) {
            (State::Here { until, renewal }, Ok(_)) if is_own => {
                *until = asked + CERTAIN;
                *renewal = asked + RENEWAL;
                self.handle_timeout(now);
            }
            (State::Here { .. }, Ok(NameLease::Held(_))) => self.end(false),
            (State::Here { renewal, .. }, Ok(NameLease::Unsettled(_)) | Err(Away)) => {
                *renewal = now + RETRY;
                self.handle_timeout(now);
            }
            // What waits goes on when the server has ended.
            (State::Ending { .. } | State::LettingGo, _) => {}
            (State::Unknown | State::Elsewhere(_), Err(Away)) => {
                self.settle(&Decision::Refuse(Unavailable::Away));
            }
            (State::Unknown | State::Elsewhere(_), Ok(NameLease::Unsettled(_))) => {
                self.settle(&Decision::Refuse(Unavailable::Settling));
            }
            (State::Unknown | State::Elsewhere(_), Ok(NameLease::Held(node))) if !is_own => {
                self.settle_elsewhere(node);
            }
            (State::Unknown | State::Elsewhere(_), Ok(_)) if self.is_draining => {
                self.state = State::LettingGo;
                self.outputs.push_back(Output::LetGo);
            }
            (State::Unknown | State::Elsewhere(_), Ok(_)) => {
                self.state = State::Here {
                    until: asked + CERTAIN,
                    renewal: asked + RENEWAL,
                };
                // The answer may have come late.
                self.handle_timeout(now);
                match self.state {
                    State::Here { .. } => self.settle(&Decision::Here),
                    State::Unknown | State::Elsewhere(_) | State::Ending { .. } | State::LettingGo => {}
                }
            }
        }
    }

    /// Takes the answer to [`Output::LookUp`].
    pub fn handle_looked_up(&mut self, holder: Result<Option<NodeId>, Away>) {
        self.asked = None;
        match holder {
            Err(Away) => self.settle(&Decision::Refuse(Unavailable::Away)),
            Ok(Some(node)) if node != self.node => self.settle_elsewhere(node),
            Ok(Some(_) | None) => self.settle(&Decision::Vacant),
        }
    }

    /// Takes the end of the server.
    pub fn handle_ended(&mut self, now: Duration) {
        let State::Ending { lets_go } = self.state else {
            return;
        };
        match lets_go {
            true => {
                self.state = State::LettingGo;
                self.outputs.push_back(Output::LetGo);
            }
            false => {
                self.state = State::Unknown;
                self.ask_for_waiting(now);
            }
        }
    }

    /// Takes the answer to [`Output::LetGo`]. Without an answer the lease ends by its time.
    pub fn handle_let_go(&mut self, now: Duration) {
        if self.state == State::LettingGo {
            self.state = State::Unknown;
            self.ask_for_waiting(now);
        }
    }

    /// Starts no server from now on. One that runs goes on until [`Self::handle_served`].
    pub fn handle_drain(&mut self) {
        self.is_draining = true;
    }

    /// Takes that nothing is open at the server: one of a replica that is ending moves.
    pub fn handle_served(&mut self) {
        if self.is_draining && matches!(self.state, State::Here { .. }) {
            self.end(true);
        }
    }

    fn end(&mut self, lets_go: bool) {
        self.state = State::Ending { lets_go };
        self.outputs.push_back(Output::End);
    }

    fn answer(&mut self, request: RequestId, decision: Decision) {
        self.outputs.push_back(Output::Answer { request, decision });
    }

    fn forget(&mut self, node: &NodeId) {
        if self.state == State::Elsewhere(node.clone()) {
            self.state = State::Unknown;
        }
    }

    fn wait(&mut self, request: RequestId, origin: Origin, unreached: Option<NodeId>, now: Duration) {
        if self.waiting.len() >= MAX_WAITING {
            return self.answer(request, Decision::Refuse(Unavailable::Busy));
        }
        self.waiting.push(Waiting {
            request,
            origin,
            unreached,
        });
        self.ask_for_waiting(now);
    }

    fn ask_for_waiting(&mut self, now: Duration) {
        let may_ask = match self.state {
            State::Unknown | State::Elsewhere(_) => true,
            State::Here { .. } | State::Ending { .. } | State::LettingGo => false,
        };
        if self.waiting.is_empty() || self.asked.is_some() || !may_ask {
            return;
        }
        self.asked = Some(now);
        self.outputs.push_back(match self.is_draining {
            true => Output::LookUp,
            false => Output::Lease { has_it: false },
        });
    }

    fn settle_elsewhere(&mut self, node: NodeId) {
        self.state = State::Elsewhere(node.clone());
        self.settle(&Decision::There(node));
    }

    fn settle(&mut self, decision: &Decision) {
        for waiting in std::mem::take(&mut self.waiting) {
            let decision = match (waiting.origin, decision) {
                (Origin::Client, Decision::There(node)) if waiting.unreached.as_ref() == Some(node) => {
                    Decision::Refuse(Unavailable::OwnerUnreached)
                }
                // Nothing is proxied twice.
                (Origin::Peer, Decision::There(_) | Decision::Vacant) => Decision::NotHere,
                (
                    Origin::Client | Origin::Peer,
                    Decision::Here
                    | Decision::There(_)
                    | Decision::Vacant
                    | Decision::NotHere
                    | Decision::Refuse(_),
                ) => decision.clone(),
            };
            self.answer(waiting.request, decision);
        }
    }
}

#[cfg(test)]
mod tests;
