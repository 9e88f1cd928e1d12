//! The one server of a destination with `placement: one`: drives [`Singleton`] over the registry.
//!
//! The fleet calls its timer. Its requests wait for the registry, or until a server that moves has
//! ended at its old replica, for a bounded time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cluster::NodeId;
use cluster::ownership::{RequestId, Unavailable};
use cluster::record::Node;
use cluster::singleton::{Decision, Output, Singleton};
use parking_lot::Mutex;
use protocol::time::Moment;
use tokio::sync::oneshot;

use super::{Fleet, Undelivered};
use crate::driver::{Driver, Machine};
use crate::server_lease::ServerLease;
use crate::tasks;

/// How long a request waits: longer than a server may take to end, and the registry to answer.
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// Where the server of a destination is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerRoute {
    Here,
    There(Node),
    /// On no replica, and this one drains: another one starts it.
    Vacant,
    /// For a request of a peer: not here.
    NotHere,
    Refused(Unavailable),
}

/// The one server of a destination, as this replica knows it. See the [module](self).
pub(crate) struct PlacedServer {
    me: Weak<Self>,
    fleet: Weak<Fleet>,
    destination: Arc<str>,
    driver: Driver<Singleton>,
    lease: Arc<ServerLease>,
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    last: RequestId,
    senders: HashMap<RequestId, oneshot::Sender<Decision>>,
}

impl Machine for Singleton {
    type Output = Output;

    fn poll_output(&mut self) -> Option<Output> {
        Self::poll_output(self)
    }
}

impl std::fmt::Debug for PlacedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlacedServer")
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

impl PlacedServer {
    pub(super) fn new(fleet: Weak<Fleet>, node: NodeId, destination: &str) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            fleet,
            destination: destination.into(),
            driver: Driver::new(Singleton::new(node)),
            lease: Arc::default(),
            answers: Mutex::default(),
        })
    }

    /// Returns whether the server may run here.
    pub(crate) fn lease(&self) -> &Arc<ServerLease> {
        &self.lease
    }

    /// Decides about a request of a client.
    pub(crate) async fn find(&self) -> ServerRoute {
        self.ask(Singleton::handle_request).await
    }

    /// Decides about a request of a peer.
    pub(crate) async fn find_for_peer(&self) -> ServerRoute {
        self.ask(Singleton::handle_peer_request).await
    }

    /// Decides again about a request that did not run where it was sent, after so many attempts.
    pub(crate) async fn find_again(
        &self,
        node: &NodeId,
        undelivered: Undelivered<'_>,
        attempts: u32,
    ) -> ServerRoute {
        self.ask(|machine, request, now| match undelivered {
            Undelivered::NotSent(node) => machine.handle_not_sent(request, node, now),
            Undelivered::NotOwner => machine.handle_not_here(request, node, attempts, now),
        })
        .await
    }

    async fn ask(&self, act: impl FnOnce(&mut Singleton, RequestId, Duration)) -> ServerRoute {
        let id = match self.decide(act).await {
            Decision::There(id) => id,
            decided => return of(decided),
        };
        match self.living(&id).await {
            Ok(Some(node)) => return ServerRoute::There(node),
            Ok(None) => {}
            Err(refusal) => return ServerRoute::Refused(refusal),
        }
        // It has ended, and let the name go; or its lease of the name lasts longer than its own.
        let again = |machine: &mut Singleton, request, now| machine.handle_not_sent(request, &id, now);
        match self.decide(again).await {
            Decision::There(id) => match self.living(&id).await {
                Ok(node) => node.map_or(
                    ServerRoute::Refused(Unavailable::OwnerUnreached),
                    ServerRoute::There,
                ),
                Err(refusal) => ServerRoute::Refused(refusal),
            },
            decided => of(decided),
        }
    }

    async fn decide(&self, act: impl FnOnce(&mut Singleton, RequestId, Duration)) -> Decision {
        let (sender, receiver) = oneshot::channel();
        let request = {
            let mut answers = self.answers.lock();
            answers.last += 1;
            let request = answers.last;
            answers.senders.insert(request, sender);
            request
        };
        self.act(|machine, now| act(machine, request, now));
        let decided = tokio::time::timeout(LONGEST_WAIT, receiver).await;
        let Ok(Ok(decision)) = decided else {
            drop(self.answers.lock().senders.remove(&request));
            return Decision::Refuse(Unavailable::Busy);
        };
        decision
    }

    async fn living(&self, id: &NodeId) -> Result<Option<Node>, Unavailable> {
        let fleet = self.fleet.upgrade().ok_or(Unavailable::Away)?;
        let living = fleet.living(|node| node.id == *id).await;
        living.map_err(|error| {
            tracing::warn!(%error, "the replicas of the fleet cannot be read");
            Unavailable::Away
        })
    }

    /// Starts no server from now on.
    pub(super) fn drain(&self) {
        self.act(|machine, _| machine.handle_drain());
    }

    /// Takes that nothing is open at the server.
    pub(crate) fn handle_served(&self) {
        self.act(|machine, _| machine.handle_served());
    }

    /// Ends the server or renews its lease, if that is due. Returns when to call this again.
    pub(super) fn handle_timeout(&self) -> Option<Moment> {
        self.act(Singleton::handle_timeout);
        self.driver.lock().next_deadline().map(Moment::since_start)
    }

    /// Calls the machine, and carries out what comes of it. What it decides about the server holds
    /// before anything of it is carried out.
    fn act(&self, act: impl FnOnce(&mut Singleton, Duration)) {
        let Some(fleet) = self.fleet.upgrade() else {
            return;
        };
        let now = fleet.clock.now().elapsed();
        let has_moved = self.driver.act(
            |machine, _| {
                let before = machine.next_deadline();
                act(machine, now);
                self.lease.set(machine.certain_until());
                machine.next_deadline() != before
            },
            |output| self.carry_out(&fleet, output),
        );
        if has_moved {
            fleet.deadline_moved.notify_one();
        }
    }

    /// Returns the name that the registry leases.
    pub(super) fn name(&self) -> String {
        cluster::singleton::name_of(&self.destination)
    }

    fn carry_out(&self, fleet: &Fleet, output: Output) {
        let Some(me) = self.me.upgrade() else {
            return;
        };
        let (name, node) = (self.name(), &fleet.node.id);
        match output {
            Output::Lease { has_it } => {
                let leasing = fleet.registry.lease_name(&name, node, has_it);
                fleet.operate(leasing, move |_, leased| {
                    me.act(|machine, now| machine.handle_leased(leased, now));
                });
            }
            Output::LookUp => fleet.operate(fleet.registry.holder(&name), move |_, holder| {
                me.act(|machine, _| machine.handle_looked_up(holder));
            }),
            Output::LetGo => fleet.operate(fleet.registry.let_go(&name, node), move |_, _| {
                me.act(Singleton::handle_let_go);
            }),
            Output::End => {
                tracing::info!(destination = %self.destination, "the one server of the fleet leaves this replica");
                let ending = fleet
                    .sessions()
                    .map(|sessions| sessions.end_server(&self.destination));
                tasks::spawn("registry", async move {
                    if let Some(ending) = ending {
                        ending.await;
                    }
                    me.act(Singleton::handle_ended);
                });
            }
            Output::Answer { request, decision } => {
                let sender = self.answers.lock().senders.remove(&request);
                // A request that was given up needs no answer.
                drop(sender.map(|sender| sender.send(decision)));
            }
        }
    }
}

/// Returns a decision that names no other replica.
fn of(decision: Decision) -> ServerRoute {
    match decision {
        Decision::Here => ServerRoute::Here,
        Decision::There(_) => ServerRoute::Refused(Unavailable::OwnerUnreached),
        Decision::Vacant => ServerRoute::Vacant,
        Decision::NotHere => ServerRoute::NotHere,
        Decision::Refuse(refusal) => ServerRoute::Refused(refusal),
    }
}
