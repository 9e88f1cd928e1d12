//! The registry of a fleet, on Valkey or Redis from version 7 on.
//!
//! Leases and expiry are keys with a time to live, so that the engine's clock alone decides. Every
//! comparison with a change is one script, which the engine runs as one step.
//!
//! | Key | Holds |
//! |---|---|
//! | `PREFIX:session:{ID}` | a hash: `v` version, `r` record, `e` epoch, `o` owner or empty, `s` state, `a` last use |
//! | `PREFIX:node:NAME/INCARNATION` | a replica as JSON; its time to live is the lease |
//! | `PREFIX:nodes` | the set of ids that may have a lease |
//! | `PREFIX:bucket:NAME` | the time up to which a bucket is used; gone when it is full again |
//! | `PREFIX:held:NAME` | the node that holds a name |
//! | `PREFIX:places:NAME` | a hash: the slots of each node in a pool |
//!
//! The record in `r` is the one of creation. The other fields replace its members of the same name,
//! so that a take-over or a touch does not write the client's `initialize` again.
//!
//! In a cluster `PREFIX` is `{PREFIX}`, so that the whole registry has one slot: a take-over compares
//! the session with the lease of its owner in one step, and one node has both.
//!
//! # Limits
//!
//! - In a cluster one node does all the work. While its slot is moved, the engine counts as away.
//! - Replication of the engine is asynchronous. A fail-over may lose the last operations, and then
//!   an epoch may be given twice. The owner tells the two apart: the loser is superseded at its
//!   next operation.
//! - Every operation ends within [`RedisSettings::command_timeout`], a batch of touches within one
//!   such time for each [`TOUCHES_AT_ONCE`] sessions.

mod connect;
mod inspect;
mod primary;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::Mutex;
use uuid::Uuid;

pub use self::connect::{ACL_RULES, ConnectError};
pub use self::inspect::{EngineReport, SessionCount};

use self::primary::{EngineUrl, NotFound};
use self::script::Scripts;
use crate::error::RegistryError;
use crate::record::{Node, NodeId, SessionRecord, State, VERSION, WallTime};
use crate::registry::{
    Change, Claim, Created, LEASE, Located, NameLease, NodeStatus, Operation, Owner, Registry, Renewed,
    SlotDemand, SlotGrant, TakeOver, TokenDemand, TokenGrant, Touch, Updated,
};

/// The most touches of one script: the engine does nothing else meanwhile, some milliseconds.
pub const TOUCHES_AT_ONCE: usize = 200;

/// The most commands that wait for the engine.
const COMMANDS_AT_ONCE: usize = 4096;

/// How long the slots of a pool stay without a demand. Replicas repeat theirs more often
/// ([`crate::allowance::REPEAT_INTERVAL`]); the slots of a dead replica end with its lease.
const SLOTS_STAY: Duration = Duration::from_secs(600);

/// The longest time to live: an engine refuses one that overflows its clock.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The codes of an engine that is there, but not yet, or no longer, one that can be written to.
const AWAY: [&str; 9] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MOVED",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
];

/// How the engine is reached.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://`, `rediss://` or `unix://`, with user, password and database; or the addresses of
    /// Sentinels or of nodes of a cluster.
    pub url: String,
    /// What every key begins with.
    pub prefix: String,
    /// Authorities in PEM that the engine's certificate may be of, in place of the system's.
    pub authorities: Option<Vec<u8>>,
    /// How long a command may take.
    pub command_timeout: Duration,
    /// How long a node lives without a renewal.
    pub lease: Duration,
}

impl RedisSettings {
    /// Returns the settings for a URL, with the defaults of the configuration.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            prefix: "rialto".to_owned(),
            authorities: None,
            command_timeout: Duration::from_secs(2),
            lease: LEASE,
        }
    }
}

impl RedisSettings {
    /// Returns what is wrong with the URL, without a connection.
    pub fn check_url(&self) -> Result<(), ConnectError> {
        connect::engine_url(self).map(drop)
    }
}

impl fmt::Debug for RedisSettings {
    /// Leaves out the URL, which may hold a password.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RedisSettings")
            .field("prefix", &self.prefix)
            .field("command_timeout", &self.command_timeout)
            .finish_non_exhaustive()
    }
}

/// The registry of sessions on an engine that replicas share. Clones use one connection.
#[derive(Clone)]
pub struct RedisRegistry {
    shared: Arc<Shared>,
}

struct Shared {
    url: EngineUrl,
    /// Where the primary was, or was looked for, last.
    address: parking_lot::Mutex<String>,
    connection_config: AsyncConnectionConfig,
    /// The connection, with its number. Held while a new one is made, so that one is made at a
    /// time.
    connection: Mutex<(u64, Option<MultiplexedConnection>)>,
    scripts: Scripts,
    prefix: String,
    command_timeout: Duration,
    lease: Duration,
}

impl fmt::Debug for RedisRegistry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RedisRegistry")
            .field("prefix", &self.shared.prefix)
            .finish_non_exhaustive()
    }
}

/// What a script answers: a word, and what belongs to it.
type Reply = Vec<Option<Vec<u8>>>;

impl RedisRegistry {
    /// Connects to the engine and checks that it can hold the registry: its version, its policy
    /// of eviction, its role, and that its user may run every command that is needed.
    pub async fn connect(settings: &RedisSettings) -> Result<Self, ConnectError> {
        let url = connect::engine_url(settings)?;
        let prefix = match url.is_cluster() {
            true => format!("{{{}}}", settings.prefix),
            false => settings.prefix.clone(),
        };
        let connection_config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(settings.command_timeout))
            .set_response_timeout(Some(settings.command_timeout))
            .set_concurrency_limit(COMMANDS_AT_ONCE);
        let registry = Self {
            shared: Arc::new(Shared {
                address: parking_lot::Mutex::new(url.addresses()),
                url,
                connection_config,
                connection: Mutex::new((0, None)),
                scripts: Scripts::new(),
                prefix,
                command_timeout: settings.command_timeout,
                lease: settings.lease,
            }),
        };
        connect::check(&registry.shared).await?;
        connect::try_every_operation(&registry).await?;
        Ok(registry)
    }

    /// Runs one script.
    fn run(
        &self,
        script: impl FnOnce(&Scripts) -> &::redis::Script,
        keys: Vec<String>,
        arguments: Vec<Vec<u8>>,
    ) -> Operation<Reply> {
        let shared = Arc::clone(&self.shared);
        let script = script(&shared.scripts).clone();
        Box::pin(async move {
            let mut call = script.prepare_invoke();
            for key in keys {
                call.key(key);
            }
            for argument in arguments {
                call.arg(argument);
            }
            let done = shared.within(async |mut connection| call.invoke_async(&mut connection).await);
            done.await.map_err(|error| answer_of(&error))
        })
    }

    fn session_key(&self, session: Uuid) -> String {
        // In a cluster the first braces of a key count, and these are the second ones.
        format!("{}:session:{{{session}}}", self.shared.prefix)
    }

    fn node_prefix(&self) -> String {
        format!("{}:node:", self.shared.prefix)
    }

    fn node_key(&self, node: &NodeId) -> String {
        format!("{}{node}", self.node_prefix())
    }

    fn name_key(&self, name: &str) -> String {
        format!("{}:held:{name}", self.shared.prefix)
    }

    /// When the registry began, in milliseconds of the engine's clock.
    fn since_key(&self) -> String {
        format!("{}:since", self.shared.prefix)
    }

    fn bucket_key(&self, bucket: &str) -> String {
        format!("{}:bucket:{bucket}", self.shared.prefix)
    }

    fn slots_key(&self, pool: &str) -> String {
        format!("{}:places:{pool}", self.shared.prefix)
    }

    fn nodes_key(&self) -> String {
        format!("{}:nodes", self.shared.prefix)
    }
}

/// Why a command was not answered.
#[derive(Debug)]
enum CommandError {
    /// There is no connection to a primary.
    NotFound(NotFound),
    Redis(RedisError),
    Timeout(Duration),
}

impl Shared {
    /// Runs commands on the connection, or on a new one where there is none, within the time limit.
    async fn within<T>(
        &self,
        commands: impl AsyncFnOnce(MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, CommandError> {
        let mut used = None;
        let done = tokio::time::timeout(self.command_timeout, async {
            let (number, connection) = self.connection().await.map_err(CommandError::NotFound)?;
            used = Some(number);
            commands(connection).await.map_err(CommandError::Redis)
        });
        let done = match done.await {
            Ok(done) => done,
            Err(_) => Err(CommandError::Timeout(self.command_timeout)),
        };
        if let (Err(error), Some(number)) = (&done, used)
            && error.spoils_the_connection()
        {
            self.forget(number).await;
        }
        done
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), NotFound> {
        let mut held = self.connection.lock().await;
        let (number, connection) = &mut *held;
        if let Some(connection) = connection {
            return Ok((*number, connection.clone()));
        }
        let key = format!("{}:nodes", self.prefix);
        let found = self.url.find(&self.connection_config, &key).await;
        let address = match &found {
            Ok(found) => &found.address,
            Err(error) => &error.address,
        };
        self.address.lock().clone_from(address);
        let made = found?.connection;
        *number += 1;
        *connection = Some(made.clone());
        Ok((*number, made))
    }

    /// Returns where the primary was, or was looked for, last.
    fn address(&self) -> String {
        self.address.lock().clone()
    }

    /// Drops a connection, unless another was made since.
    async fn forget(&self, used: u64) {
        let mut held = self.connection.lock().await;
        let (number, connection) = &mut *held;
        if *number == used {
            *connection = None;
        }
    }
}

impl CommandError {
    /// Returns whether the next command shall have a new connection. After a time-out the path may
    /// be dead. A server that is no longer the primary refuses every write on this connection.
    fn spoils_the_connection(&self) -> bool {
        match self {
            Self::NotFound(_) => false,
            Self::Timeout(_) => true,
            Self::Redis(error) => {
                error.is_unrecoverable_error()
                    || error.is_timeout()
                    || matches!(
                        error.kind(),
                        ErrorKind::Server(
                            ServerErrorKind::ReadOnly | ServerErrorKind::Moved | ServerErrorKind::ClusterDown
                        )
                    )
            }
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(limit) => write!(out, "no answer in {} ms", limit.as_millis()),
            Self::NotFound(NotFound { address, error, .. }) => write!(out, "{address}: {error}"),
            Self::Redis(error) => error.fmt(out),
        }
    }
}

/// Returns what an error means to the caller of an operation.
fn answer_of(error: &CommandError) -> RegistryError {
    let text = error.to_string();
    let CommandError::Redis(error) = error else {
        return RegistryError::Unreachable(text);
    };
    match error.code() {
        Some("OOM") => RegistryError::Full(text),
        Some(code) if AWAY.contains(&code) => RegistryError::Unreachable(text),
        Some(_) => RegistryError::Refused(text),
        None => RegistryError::Unreachable(text),
    }
}

fn millis(time: Duration) -> Vec<u8> {
    time.min(LONGEST).as_millis().to_string().into_bytes()
}

fn text(value: impl fmt::Display) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn owner_text(owner: Option<&NodeId>) -> Vec<u8> {
    owner.map(text).unwrap_or_default()
}

fn unreadable(reason: impl fmt::Display) -> RegistryError {
    RegistryError::Unreadable(reason.to_string())
}

/// The members of a reply, taken one after the other.
struct Members(std::vec::IntoIter<Option<Vec<u8>>>);

impl Members {
    /// Splits a reply into its word and the rest. A record of another version is an error here.
    fn of(reply: Reply) -> Result<(String, Self), RegistryError> {
        let mut members = Self(reply.into_iter());
        let word = members.string()?;
        if word == "version" {
            let found = members.number()?;
            return Err(RegistryError::OtherVersion {
                found: u32::try_from(found).unwrap_or(u32::MAX),
                known: VERSION,
            });
        }
        Ok((word, members))
    }

    fn optional(&mut self) -> Result<Option<Vec<u8>>, RegistryError> {
        self.0.next().ok_or_else(|| unreadable("the answer is too short"))
    }

    fn bytes(&mut self) -> Result<Vec<u8>, RegistryError> {
        self.optional()?.ok_or_else(|| unreadable("a member is missing"))
    }

    fn string(&mut self) -> Result<String, RegistryError> {
        String::from_utf8(self.bytes()?).map_err(unreadable)
    }

    fn number(&mut self) -> Result<u64, RegistryError> {
        self.string()?.parse().map_err(unreadable)
    }

    /// Reads what `located` of the scripts returns.
    fn located(mut self) -> Result<Located, RegistryError> {
        let mut record = SessionRecord::decode(&self.bytes()?)?;
        record.epoch = self.number()?;
        let owner = self.string()?;
        record.owner = match owner.is_empty() {
            true => None,
            false => Some(owner.parse().map_err(unreadable)?),
        };
        record.state = State::decode(&self.bytes()?)?;
        record.last_active = WallTime::from_unix(self.number()?);
        let owner = match self.optional()? {
            Some(node) => Owner::Living(Node::decode(&node)?),
            None => Owner::Gone,
        };
        Ok(Located { record, owner })
    }

    /// Reads a number that was given as one of 32 bits.
    fn small(&mut self) -> Result<u32, RegistryError> {
        self.string()?.parse().map_err(unreadable)
    }

    fn updated(&mut self, word: &str) -> Result<Updated, RegistryError> {
        match word {
            "done" => Ok(Updated::Done),
            "superseded" => Ok(Updated::Superseded(self.number()?)),
            "unknown" => Ok(Updated::Unknown),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(word: &str) -> RegistryError {
    unreadable(format!("the answer `{word}` was not expected"))
}

/// Reads the answer to an operation on a claim.
fn updated(reply: Reply) -> Result<Updated, RegistryError> {
    let (word, mut members) = Members::of(reply)?;
    members.updated(&word)
}

/// Reads the node that holds a name.
fn holder_of(reply: Reply) -> Result<Option<NodeId>, RegistryError> {
    let (word, mut members) = Members::of(reply)?;
    match word.as_str() {
        "held" => Ok(Some(members.string()?.parse().map_err(unreadable)?)),
        "unknown" => Ok(None),
        other => Err(unexpected(other)),
    }
}

/// Returns the arguments that every operation on a claim begins with.
fn claim_arguments(claim: &Claim) -> Vec<Vec<u8>> {
    vec![text(VERSION), text(claim.epoch), text(&claim.owner)]
}

/// Turns the answer of one operation into that of another.
fn then<T: Send + 'static>(
    operation: Operation<Reply>,
    read: impl FnOnce(Reply) -> Result<T, RegistryError> + Send + 'static,
) -> Operation<T> {
    Box::pin(async move { read(operation.await?) })
}

fn failed<T: Send + 'static>(error: RegistryError) -> Operation<T> {
    Box::pin(std::future::ready(Err(error)))
}

impl Registry for RedisRegistry {
    fn join(&self, node: &Node) -> Operation<()> {
        let encoded = match node.encode() {
            Ok(encoded) => encoded.into_bytes(),
            Err(error) => return failed(error),
        };
        let keys = vec![self.node_key(&node.id), self.nodes_key(), self.since_key()];
        let arguments = vec![encoded, millis(self.shared.lease), text(&node.id)];
        then(self.run(|scripts| &scripts.join, keys, arguments), |_| Ok(()))
    }

    fn renew(&self, node: &NodeId) -> Operation<Renewed> {
        let keys = vec![self.node_key(node)];
        let arguments = vec![millis(self.shared.lease)];
        then(self.run(|scripts| &scripts.renew, keys, arguments), |reply| {
            let (word, _) = Members::of(reply)?;
            match word.as_str() {
                "done" => Ok(Renewed::Renewed),
                "unknown" => Ok(Renewed::Unknown),
                other => Err(unexpected(other)),
            }
        })
    }

    fn leave(&self, node: &NodeId) -> Operation<()> {
        let keys = vec![self.node_key(node), self.nodes_key()];
        then(self.run(|scripts| &scripts.leave, keys, vec![text(node)]), |_| {
            Ok(())
        })
    }

    fn nodes(&self) -> Operation<Vec<NodeStatus>> {
        let arguments = vec![text(self.node_prefix())];
        let nodes = self.run(|scripts| &scripts.nodes, vec![self.nodes_key()], arguments);
        then(nodes, |reply| {
            let mut members = Members(reply.into_iter());
            let mut nodes = Vec::new();
            while members.0.len() > 0 {
                nodes.push(NodeStatus {
                    node: Node::decode(&members.bytes()?)?,
                    lease: Duration::from_millis(members.number()?),
                });
            }
            nodes.sort_by(|one, other| one.node.id.cmp(&other.node.id));
            Ok(nodes)
        })
    }

    fn create(&self, record: &SessionRecord, idle: Duration) -> Operation<Created> {
        let (encoded, state) = match record
            .encode()
            .and_then(|text| Ok((text, record.state.encode()?)))
        {
            Ok(encoded) => encoded,
            Err(error) => return failed(error),
        };
        let arguments = vec![
            text(VERSION),
            text(record.epoch),
            owner_text(record.owner.as_ref()),
            text(self.node_prefix()),
            millis(idle),
            encoded.into_bytes(),
            state.into_bytes(),
            text(record.last_active.unix()),
        ];
        let keys = vec![self.session_key(record.session)];
        then(self.run(|scripts| &scripts.create, keys, arguments), |reply| {
            let (word, members) = Members::of(reply)?;
            match word.as_str() {
                "done" => Ok(Created::Created),
                "located" => Ok(Created::Exists(Box::new(members.located()?))),
                other => Err(unexpected(other)),
            }
        })
    }

    fn look_up(&self, session: Uuid) -> Operation<Option<Located>> {
        let arguments = vec![text(VERSION), text(self.node_prefix())];
        let found = self.run(
            |scripts| &scripts.look_up,
            vec![self.session_key(session)],
            arguments,
        );
        then(found, |reply| {
            let (word, members) = Members::of(reply)?;
            match word.as_str() {
                "located" => Ok(Some(members.located()?)),
                "unknown" => Ok(None),
                other => Err(unexpected(other)),
            }
        })
    }

    fn take_over(&self, session: Uuid, seen: u64, by: &NodeId, idle: Duration) -> Operation<TakeOver> {
        let arguments = vec![
            text(VERSION),
            text(seen),
            text(by),
            text(self.node_prefix()),
            millis(idle),
        ];
        let keys = vec![self.session_key(session)];
        then(self.run(|scripts| &scripts.take_over, keys, arguments), |reply| {
            let (word, members) = Members::of(reply)?;
            match word.as_str() {
                "won" => Ok(TakeOver::Won(Box::new(members.located()?.record))),
                "located" => Ok(TakeOver::Lost(Box::new(members.located()?))),
                "unknown" => Ok(TakeOver::Unknown),
                other => Err(unexpected(other)),
            }
        })
    }

    fn update(&self, claim: &Claim, change: Change, idle: Duration) -> Operation<Updated> {
        let (field, value) = match change {
            Change::Touch(at) => ("a", text(at.unix())),
            Change::State(state) => match state.encode() {
                Ok(state) => ("s", state.into_bytes()),
                Err(error) => return failed(error),
            },
        };
        let mut arguments = claim_arguments(claim);
        arguments.extend([millis(idle), text(field), value]);
        let keys = vec![self.session_key(claim.session)];
        then(self.run(|scripts| &scripts.update, keys, arguments), updated)
    }

    fn touch_many(&self, touches: Vec<Touch>) -> Operation<Vec<Updated>> {
        let registry = self.clone();
        Box::pin(async move {
            let mut results = Vec::with_capacity(touches.len());
            for chunk in touches.chunks(TOUCHES_AT_ONCE) {
                let keys = chunk
                    .iter()
                    .map(|touch| registry.session_key(touch.claim.session));
                let mut arguments = vec![text(VERSION)];
                for touch in chunk {
                    let Touch { claim, at, idle } = touch;
                    arguments.extend([
                        text(claim.epoch),
                        text(&claim.owner),
                        millis(*idle),
                        text(at.unix()),
                    ]);
                }
                let reply = registry
                    .run(|scripts| &scripts.touch_many, keys.collect(), arguments)
                    .await?;
                let mut members = Members(reply.into_iter());
                for _ in chunk {
                    let word = members.string()?;
                    results.push(members.updated(&word)?);
                }
            }
            Ok(results)
        })
    }

    fn release(&self, claim: &Claim) -> Operation<Updated> {
        let keys = vec![self.session_key(claim.session)];
        let released = self.run(|scripts| &scripts.release, keys, claim_arguments(claim));
        then(released, updated)
    }

    fn remove(&self, claim: &Claim) -> Operation<Updated> {
        let keys = vec![self.session_key(claim.session)];
        let removed = self.run(|scripts| &scripts.remove, keys, claim_arguments(claim));
        then(removed, updated)
    }

    fn lease_tokens(&self, bucket: &str, demand: TokenDemand) -> Operation<TokenGrant> {
        let keys = vec![self.bucket_key(bucket)];
        let arguments = vec![
            text(demand.per_minute.max(1)),
            text(demand.want),
            text(demand.spent),
        ];
        let leased = self.run(|scripts| &scripts.lease_tokens, keys, arguments);
        then(leased, |reply| {
            let (word, mut members) = Members::of(reply)?;
            if word != "done" {
                return Err(unexpected(&word));
            }
            Ok(TokenGrant {
                granted: members.small()?,
                left: members.small()?,
                wait: Duration::from_micros(members.number()?),
            })
        })
    }

    fn lease_slots(&self, pool: &str, node: &NodeId, demand: SlotDemand) -> Operation<SlotGrant> {
        let keys = vec![self.slots_key(pool)];
        let arguments = vec![
            text(node),
            text(self.node_prefix()),
            text(demand.limit),
            text(demand.held),
            text(demand.want),
            millis(SLOTS_STAY),
        ];
        let leased = self.run(|scripts| &scripts.lease_slots, keys, arguments);
        then(leased, |reply| {
            let (word, mut members) = Members::of(reply)?;
            if word != "done" {
                return Err(unexpected(&word));
            }
            Ok(SlotGrant {
                granted: members.small()?,
                before: members.small()?,
                free: members.small()?,
            })
        })
    }

    fn hold(&self, name: &str, node: &NodeId, ttl: Duration) -> Operation<NodeId> {
        let arguments = vec![text(node), text(self.node_prefix()), millis(ttl)];
        let held = self.run(|scripts| &scripts.hold, vec![self.name_key(name)], arguments);
        then(held, |reply| {
            holder_of(reply)?.ok_or_else(|| unexpected("unknown"))
        })
    }

    fn lease_name(&self, name: &str, node: &NodeId, has_it: bool) -> Operation<NameLease> {
        let keys = vec![self.name_key(name), self.since_key()];
        let arguments = vec![text(node), millis(self.shared.lease), text(u8::from(has_it))];
        let leased = self.run(|scripts| &scripts.lease_name, keys, arguments);
        then(leased, |reply| {
            let (word, mut members) = Members::of(reply)?;
            match word.as_str() {
                "held" => Ok(NameLease::Held(members.string()?.parse().map_err(unreadable)?)),
                "unsettled" => Ok(NameLease::Unsettled(Duration::from_millis(members.number()?))),
                other => Err(unexpected(other)),
            }
        })
    }

    fn holder(&self, name: &str) -> Operation<Option<NodeId>> {
        let found = self.run(|scripts| &scripts.holder, vec![self.name_key(name)], Vec::new());
        then(found, holder_of)
    }

    fn let_go(&self, name: &str, node: &NodeId) -> Operation<()> {
        let arguments = vec![text(node)];
        let gone = self.run(|scripts| &scripts.let_go, vec![self.name_key(name)], arguments);
        then(gone, |_| Ok(()))
    }
}
