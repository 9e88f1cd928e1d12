//! What must hold, checked from what passes the registry and from what runs. It shares no code with it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use cluster::registry::LEASE;
use cluster::{Created, NodeId, Renewed, TakeOver, Updated};
use uuid::Uuid;

use crate::engine::{Command, Reply};

#[derive(Default)]
pub(crate) struct Judge {
    leases: HashMap<NodeId, Duration>,
    /// Owner and epoch of each session, as the operations so far leave them.
    sessions: HashMap<Uuid, (Option<NodeId>, u64)>,
    owners: HashMap<(Uuid, u64), NodeId>,
    servers: HashMap<(Uuid, u64), NodeId>,
    ran: HashSet<u64>,
    /// After the registry lost everything an epoch can be given twice: only the end counts.
    pub(crate) is_lenient: bool,
    pub(crate) served: u64,
    pub(crate) taken: u64,
    pub(crate) violations: Vec<String>,
}

impl Judge {
    /// Looks at one operation at the moment at which the registry does it.
    pub(crate) fn handle_command(&mut self, now: Duration, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::Join(node), _) => {
                self.leases.insert(node.id.clone(), now + LEASE);
            }
            (Command::Renew(node), Reply::Renewed(Renewed::Renewed)) => {
                if !self.lives(now, node) {
                    self.strict(format!("an ended lease was renewed: {node}"));
                }
                self.leases.insert(node.clone(), now + LEASE);
            }
            (Command::Create(record), Reply::Created(Created::Created)) => {
                let before = self.sessions.get(&record.session).cloned();
                if before.is_some_and(|(_, epoch)| epoch > record.epoch) {
                    self.strict(format!("an epoch fell: {record:?}"));
                }
                self.own(record.session, record.epoch, record.owner.as_ref());
            }
            (Command::TakeOver { session, seen, by }, Reply::TakeOver(TakeOver::Won(record))) => {
                self.taken += 1;
                match self.sessions.get(session).cloned() {
                    None => self.strict(format!("a session that is not there was taken over: {session}")),
                    Some((owner, epoch)) => {
                        if epoch != *seen {
                            self.strict(format!("another epoch was seen: {seen} and not {epoch}"));
                        }
                        let lives = owner
                            .as_ref()
                            .is_some_and(|owner| owner != by && self.lives(now, owner));
                        if lives {
                            self.strict(format!(
                                "a session was taken over, and its owner lives: {owner:?}"
                            ));
                        }
                    }
                }
                self.own(*session, record.epoch, Some(by));
            }
            (Command::Release(claim), Reply::Released(Updated::Done)) => {
                if let Some(session) = self.sessions.get_mut(&claim.session) {
                    session.0 = None;
                }
            }
            _ => {}
        }
    }

    /// Looks at a request that a replica serves.
    pub(crate) fn handle_served(&mut self, request: u64, session: Uuid, epoch: u64, by: &NodeId) {
        self.served += 1;
        if !self.ran.insert(request) {
            self.violations.push(format!("request {request} ran twice"));
        }
        let server = self
            .servers
            .entry((session, epoch))
            .or_insert_with(|| by.clone())
            .clone();
        if server != *by {
            self.strict(format!(
                "two replicas served {session} under epoch {epoch}: {server} and {by}"
            ));
        }
    }

    pub(crate) fn handle_loss(&mut self) {
        self.is_lenient = true;
        self.leases.clear();
        self.sessions.clear();
    }

    fn own(&mut self, session: Uuid, epoch: u64, owner: Option<&NodeId>) {
        self.sessions.insert(session, (owner.cloned(), epoch));
        let Some(owner) = owner else {
            return;
        };
        let first = self
            .owners
            .entry((session, epoch))
            .or_insert_with(|| owner.clone())
            .clone();
        if first != *owner {
            self.strict(format!(
                "two owners of one epoch of {session}, {epoch}: {first} and {owner}"
            ));
        }
    }

    fn lives(&self, now: Duration, node: &NodeId) -> bool {
        self.leases.get(node).is_some_and(|ends| *ends > now)
    }

    fn strict(&mut self, violation: String) {
        if !self.is_lenient {
            self.violations.push(violation);
        }
    }
}
