//! The registry of the model, with one rule broken if a test wants it.

use std::time::Duration;

use cluster::memory::MemoryEngine;
use cluster::{
    Change, Claim, Created, Located, Node, NodeId, Renewed, SessionRecord, TakeOver, Updated, WallTime,
};
use uuid::Uuid;

/// Longer than any world.
pub(crate) const IDLE: Duration = Duration::from_secs(1_000_000);

/// What is broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mutation {
    #[default]
    Nothing,
    /// A take-over compares no epoch.
    NoEpoch,
    /// A take-over reads no lease.
    NoLease,
    /// A take-over leaves the epoch as it is.
    SameEpoch,
    /// A record replaces any other.
    WriteOver,
    /// A lease that has ended is renewed.
    RenewsEnded,
    /// A replica keeps a copy that it shall drop.
    KeepsCopy,
    /// A replica sends a request again whose end is uncertain.
    SendsAgain,
}

/// What a replica asks of the registry.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    Join(Node),
    Renew(NodeId),
    LookUp(Uuid),
    TakeOver { session: Uuid, seen: u64, by: NodeId },
    Create(SessionRecord),
    Release(Claim),
    Touch(Claim),
}

/// What the registry answers.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Joined,
    Renewed(Renewed),
    Located(Option<Box<Located>>),
    TakeOver(TakeOver),
    Created(Created),
    Released(Updated),
    Touched(Updated),
}

#[derive(Default)]
pub(crate) struct Engine {
    memory: MemoryEngine,
    pub(crate) mutation: Mutation,
}

impl Engine {
    pub(crate) fn execute(&mut self, now: Duration, command: &Command) -> Reply {
        match command {
            Command::Join(node) => {
                self.memory.join(now, node);
                Reply::Joined
            }
            Command::Renew(node) => Reply::Renewed(self.memory.renew(now, node)),
            Command::LookUp(session) => Reply::Located(self.memory.look_up(now, *session).map(Box::new)),
            Command::TakeOver { session, seen, by } => {
                Reply::TakeOver(self.take_over(now, *session, *seen, by))
            }
            Command::Create(record) => Reply::Created(self.create(now, record)),
            Command::Release(claim) => Reply::Released(self.memory.release(now, claim)),
            Command::Touch(claim) => {
                let touch = Change::Touch(WallTime::from_unix(now.as_secs()));
                Reply::Touched(self.memory.update(now, claim, touch, IDLE))
            }
        }
    }

    /// Renews as `RenewsEnded` does it: a lease that has ended begins again.
    pub(crate) fn renew_ended(&mut self, now: Duration, node: &Node) -> Reply {
        self.memory.join(now, node);
        Reply::Renewed(Renewed::Renewed)
    }

    fn take_over(&mut self, now: Duration, session: Uuid, seen: u64, by: &NodeId) -> TakeOver {
        let found = self.memory.look_up(now, session);
        let current = found.as_ref().map(|located| located.record.clone());
        let seen = match (&current, self.mutation) {
            (Some(record), Mutation::NoEpoch) => record.epoch,
            _ => seen,
        };
        if let (Some(record), Mutation::NoLease) = (&current, self.mutation)
            && let Some(owner) = &record.owner
        {
            self.memory.leave(owner);
        }
        let taken = self.memory.take_over(now, session, seen, by, IDLE);
        if let (TakeOver::Won(record), Mutation::SameEpoch) = (&taken, self.mutation) {
            let mut kept = record.clone();
            self.memory.remove(now, &record.claim().unwrap());
            kept.epoch -= 1;
            self.memory.create(now, &kept, IDLE);
            return TakeOver::Won(kept);
        }
        taken
    }

    fn create(&mut self, now: Duration, record: &SessionRecord) -> Created {
        let created = self.memory.create(now, record, IDLE);
        if let (Created::Exists(located), Mutation::WriteOver) = (&created, self.mutation)
            && let Some(claim) = located.record.claim()
        {
            self.memory.remove(now, &claim);
            return self.memory.create(now, record, IDLE);
        }
        created
    }

    pub(crate) fn look_up(&self, now: Duration, session: Uuid) -> Option<Located> {
        self.memory.look_up(now, session)
    }

    pub(crate) fn lose_everything(&mut self) {
        self.memory = MemoryEngine::default();
    }
}
