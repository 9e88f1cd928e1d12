//! The operations of the registry, and what each of them promises. An *engine* carries them out: in
//! memory, in a file, or on Redis.
//!
//! # Contract
//!
//! - A *claim* names a session, its owner and its epoch. A replica serves a session while it holds
//!   the claim. Every operation that changes a record compares the claim with what is stored, in
//!   one atomic step of the engine.
//! - Epochs of a session only rise. Each epoch has at most one owner.
//! - A take-over succeeds only where the owner's lease has ended by the engine's clock, the session
//!   has no owner, or the owner itself asks.
//! - Every operation may be repeated after a lost answer. The repetition of an operation that
//!   succeeded does no harm, and its answer tells what holds now.
//! - A future that is dropped may or may not have had its effect, as if its answer were lost.
//! - Every operation ends: with an answer, or with [`RegistryError::Unreachable`] after the time
//!   limit of the engine.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use uuid::Uuid;

use crate::error::RegistryError;
use crate::record::{Node, NodeId, SessionRecord, State, WallTime};

/// How long a node lives without a renewal, by the engine's clock.
pub const LEASE: Duration = Duration::from_secs(10);

/// How often a node renews its lease: two renewals may fail before the lease ends.
pub const RENEWAL: Duration = Duration::from_secs(3);

/// An operation under way. It owns what it needs, so that any task can carry it on.
pub type Operation<T> = Pin<Box<dyn Future<Output = Result<T, RegistryError>> + Send>>;

/// What a replica holds when it serves a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The session.
    pub session: Uuid,
    /// The replica that serves it.
    pub owner: NodeId,
    /// The epoch under which it does.
    pub epoch: u64,
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease goes on.
    Renewed,
    /// The lease had ended, or the engine came back empty. The node joins again and writes the
    /// record of each session again; a session that has another owner by now is dropped.
    Unknown,
}

/// A node and the rest of its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node.
    pub node: Node,
    /// How long its lease lasts without a renewal. An engine without leases returns [`LEASE`].
    pub lease: Duration,
}

/// Whether a record was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The record is stored, and its owner may serve the session.
    Created,
    /// The same epoch with another owner, or a higher epoch, is there. It was left as it is.
    Exists(Box<Located>),
}

/// Whether the owner of a record lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Its lease lasts. It alone may serve the session.
    Living(Node),
    /// Its lease has ended, or the session was handed over: a replica may take it over.
    Gone,
}

/// A record that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// What is stored.
    pub record: SessionRecord,
    /// Whether its owner lives, at the moment of the look-up.
    pub owner: Owner,
}

/// How a take-over went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeOver {
    /// The caller owns the session now. The record has the new epoch.
    Won(Box<SessionRecord>),
    /// The epoch is no longer the one that was seen, or the owner lives. This is what holds now.
    Lost(Box<Located>),
    /// There is no such session: it ended, or expired.
    Unknown,
}

/// What changes in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The session was used.
    Touch(WallTime),
    /// The client changed its log level or subscriptions.
    State(State),
}

/// Whether a claim still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updated {
    /// It did, and the change is stored.
    Done,
    /// The session has another owner or a higher epoch, which is this one. The caller drops its
    /// copy.
    Superseded(u64),
    /// The registry has no such session, or only an earlier epoch of it: the session expired, or
    /// the engine lost it. The owner may write the record again.
    Unknown,
}

/// One of many sessions that were used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// The session, as its owner holds it.
    pub claim: Claim,
    /// When it was used last.
    pub at: WallTime,
    /// How long the record stays from now on.
    pub idle: Duration,
}

/// What a replica takes from a bucket.
///
/// A bucket holds the tokens of a minute and refills evenly, by the engine's clock. A bucket that
/// the engine does not know is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenDemand {
    /// How many tokens a minute refills, and the most that the bucket holds; at least 1.
    pub per_minute: u32,
    /// How many are wanted.
    pub want: u32,
    /// How many were used without the engine, while it could not be reached. They are taken even
    /// if the bucket has fewer, and refilling makes up for the rest.
    pub spent: u32,
}

/// What a replica got from a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenGrant {
    /// How many tokens the replica may use: those wanted, or all that there were.
    pub granted: u32,
    /// How many are left.
    pub left: u32,
    /// How long it takes until there is one; zero if some are left.
    pub wait: Duration,
}

/// How many slots of a pool a replica has from now on.
///
/// The replica states what it wants as a total, so the demand may be repeated after a lost answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotDemand {
    /// The slots of the pool, for all replicas together.
    pub limit: u32,
    /// What the replica keeps in any case, since it is in use.
    pub held: u32,
    /// The total that it would like; below what it had, the others are given back.
    pub want: u32,
}

/// How many slots of a pool a replica has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotGrant {
    /// The total from now on, until its lease ends.
    pub granted: u32,
    /// What the engine had noted before. Less than the replica believes means that its lease had
    /// ended, or that the engine lost everything.
    pub before: u32,
    /// What is left for all replicas.
    pub free: u32,
}

/// What became of a request to lease a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameLease {
    /// This node has the name, until its lease of it ends.
    Held(NodeId),
    /// No node has it, but the registry is new: an earlier one may have named a node that still
    /// uses the name. It is free after this time.
    Unsettled(Duration),
}

/// The registry of sessions. See the [module](self) for what all engines promise.
///
/// Records expire after the time `idle` that the last operation on them gave.
pub trait Registry: Debug + Send + Sync {
    /// Adds a node, with a full lease. Joining again renews.
    fn join(&self, node: &Node) -> Operation<()>;

    /// Extends the lease of a node that still has one.
    fn renew(&self, node: &NodeId) -> Operation<Renewed>;

    /// Ends the lease of a node at once. Its sessions can be taken over from now on.
    fn leave(&self, node: &NodeId) -> Operation<()>;

    /// Returns the nodes whose lease lasts, in the order of their ids.
    fn nodes(&self) -> Operation<Vec<NodeStatus>>;

    /// Stores a record: of a new session, or again after the engine lost it. Replaces a lower
    /// epoch, and the same epoch of the same owner.
    fn create(&self, record: &SessionRecord, idle: Duration) -> Operation<Created>;

    /// Returns a session's record and whether its owner lives.
    fn look_up(&self, session: Uuid) -> Operation<Option<Located>>;

    /// Makes a node the owner of a session whose epoch is the one that was `seen`, if its owner is
    /// gone or is the node itself. The epoch rises by one.
    fn take_over(&self, session: Uuid, seen: u64, by: &NodeId, idle: Duration) -> Operation<TakeOver>;

    /// Changes the record of a session that the caller owns.
    fn update(&self, claim: &Claim, change: Change, idle: Duration) -> Operation<Updated>;

    /// Notes the use of many sessions, in as few round trips as the engine allows. The results are
    /// in the order of the sessions.
    fn touch_many(&self, touches: Vec<Touch>) -> Operation<Vec<Updated>>;

    /// Hands a session over: its record stays until it expires, without owner, under the same
    /// epoch.
    fn release(&self, claim: &Claim) -> Operation<Updated>;

    /// Deletes the record of a session that ended.
    fn remove(&self, claim: &Claim) -> Operation<Updated>;

    /// Takes tokens of a bucket, for requests that this replica admits. After a lost answer the
    /// tokens may be gone: the caller admits nothing for them.
    fn lease_tokens(&self, bucket: &str, demand: TokenDemand) -> Operation<TokenGrant>;

    /// Sets how many slots of a pool a node has. They end with the lease of the node.
    fn lease_slots(&self, pool: &str, node: &NodeId, demand: SlotDemand) -> Operation<SlotGrant>;

    /// Makes a node the holder of a name for the time `ttl`, unless another node holds it whose
    /// lease lasts. Returns the holder. A name stands for what only one replica has, such as a task
    /// that its server runs (`task:…`).
    fn hold(&self, name: &str, node: &NodeId, ttl: Duration) -> Operation<NodeId>;

    /// Leases a name to a node for [`LEASE`], or renews that lease, unless another node has it.
    /// Such a lease ends with its own time or by [`Registry::let_go`], and not with the lease of
    /// the node.
    ///
    /// `has_it`: an earlier lease of this node lasts for certain. A registry that forgot it gives
    /// it back at once. A registry that is new gives a name to no other node until every lease of
    /// an earlier registry has ended. A node must not use a name longer than [`LEASE`] after it
    /// asked.
    fn lease_name(&self, name: &str, node: &NodeId, has_it: bool) -> Operation<NameLease>;

    /// Returns the node that holds a name. Its lease may have ended.
    fn holder(&self, name: &str) -> Operation<Option<NodeId>>;

    /// Lets a name go that a node holds. A name of another node stays.
    fn let_go(&self, name: &str, node: &NodeId) -> Operation<()>;
}

impl SessionRecord {
    /// Returns what the owner of this record holds; `None` for a record without owner.
    #[must_use]
    pub fn claim(&self) -> Option<Claim> {
        let owner = self.owner.clone()?;
        Some(Claim {
            session: self.session,
            owner,
            epoch: self.epoch,
        })
    }
}
