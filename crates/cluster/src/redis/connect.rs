//! What is checked when Rialto starts: each fault of an engine has an error that names the fix.

use std::collections::HashMap;

use ::redis::ErrorKind;
use thiserror::Error;
use uuid::Uuid;

use super::primary::{EngineUrl, NotFound};
use super::{AWAY, CommandError, RedisRegistry, RedisSettings, Shared};
use crate::error::RegistryError;
use crate::record::{Hello, Node, NodeId, SessionRecord, State, WallTime};
use crate::registry::{Change, Registry as _, SlotDemand, TokenDemand, Touch};

/// The first version that is served: `INFO` and the rules of scripts are those of 7.
const OLDEST: u32 = 7;

/// The rules of a user that may do everything that is needed, for `ACL SETUSER`.
pub const ACL_RULES: &str =
    "+@hash +@set +@string +del +exists +pexpire +pttl +time +evalsha +script|load +info";

/// Why an engine cannot be used.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The URL is none of an engine.
    #[error(
        "the URL of the engine is not understood ({reason}): use redis://HOST:PORT, rediss://HOST:PORT for TLS, \
         unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/NAME or redis+cluster://HOST:PORT,HOST:PORT"
    )]
    Url {
        /// What is wrong. The URL itself may hold a password.
        reason: String,
    },
    /// There is no connection, or no answer.
    #[error("the engine at {address} cannot be reached ({reason}): check the address, and that it runs")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// It closed a connection without TLS before it answered.
    #[error("the engine at {address} closed the connection: if it expects TLS, use rediss:// in the URL")]
    TlsNeeded {
        /// Where it is.
        address: String,
    },
    /// It does not speak TLS, or its certificate is not trusted.
    #[error(
        "no TLS with the engine at {address} ({reason}): check that it runs, use redis:// if it has no TLS, \
         or name the authority of its certificate"
    )]
    Tls {
        /// Where it is.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// It wants a user and a password, or others.
    #[error(
        "the engine at {address} refused the credentials ({reason}): put them into the URL, rediss://USER:PASSWORD@HOST"
    )]
    Credentials {
        /// Where it is.
        address: String,
        /// What it answered.
        reason: String,
    },
    /// Something else answers there.
    #[error("at {address} there is no Redis or Valkey ({reason}): check the port of the URL")]
    OtherProgram {
        /// Where it was looked for.
        address: String,
        /// What it answered.
        reason: String,
    },
    /// It is too old.
    #[error("the engine at {address} has version {version}: Rialto needs Redis or Valkey {OLDEST} or newer")]
    TooOld {
        /// Where it is.
        address: String,
        /// The version.
        version: String,
    },
    /// It deletes keys when its memory is full.
    #[error(
        "the engine at {address} has the policy {policy}, which deletes sessions when memory is full: \
         set `maxmemory-policy noeviction`"
    )]
    Evicts {
        /// Where it is.
        address: String,
        /// The policy.
        policy: String,
    },
    /// It is a copy that cannot be written to.
    #[error("the engine at {address} is a read-only replica: give the address of its primary")]
    Replica {
        /// Where it is.
        address: String,
    },
    /// It is one node of a cluster.
    #[error(
        "the engine at {address} runs in cluster mode: use redis+cluster://HOST:PORT,HOST:PORT, \
         with several of its nodes"
    )]
    ClusterMode {
        /// Where it is.
        address: String,
    },
    /// It is no node of a cluster. Replicas with another URL would have other keys.
    #[error("the engine at {address} is not in cluster mode: use redis://HOST:PORT, or rediss:// for TLS")]
    NoCluster {
        /// Where it is.
        address: String,
    },
    /// A Sentinel wants a password, or another.
    #[error(
        "the Sentinel at {address} refused the credentials ({reason}): end the URL with \
         ?sentinel_password=PASSWORD"
    )]
    SentinelCredentials {
        /// Where the Sentinel is.
        address: String,
        /// What it answered.
        reason: String,
    },
    /// A Sentinel does not know the name.
    #[error(
        "the Sentinel at {address} knows no primary of the name in the URL: write the name of its \
         `sentinel monitor` behind the last `/`"
    )]
    UnknownPrimary {
        /// Where the Sentinel is.
        address: String,
    },
    /// Its user may not do what is needed.
    #[error(
        "the engine at {address} forbids a command ({reason}): give the user \
         `~{prefix}:* {ACL_RULES}`"
    )]
    Forbidden {
        /// Where it is.
        address: String,
        /// What it answered.
        reason: String,
        /// What every key begins with.
        prefix: String,
    },
    /// It refuses to write for another reason.
    #[error("the engine at {address} cannot keep sessions: {reason}")]
    Unusable {
        /// Where it is.
        address: String,
        /// What it answered.
        reason: RegistryError,
    },
}

/// Returns where the URL leads.
pub(super) fn engine_url(settings: &RedisSettings) -> Result<EngineUrl, ConnectError> {
    EngineUrl::of(settings).map_err(|reason| ConnectError::Url { reason })
}

/// What the engine reports about itself.
pub(super) struct Info(HashMap<String, String>);

impl Info {
    /// Asks the engine.
    pub(super) async fn of(shared: &Shared) -> Result<Self, CommandError> {
        let info: String = shared
            .within(async |mut connection| ::redis::cmd("INFO").query_async(&mut connection).await)
            .await?;
        let members = info.lines().filter_map(|line| line.trim().split_once(':'));
        let members = members.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Self(members.collect()))
    }

    /// Returns one member, such as `redis_version`.
    pub(super) fn member(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Checks what the engine reports about itself.
pub(super) async fn check(shared: &Shared) -> Result<(), ConnectError> {
    let info = Info::of(shared)
        .await
        .map_err(|error| first_error(shared, &error))?;
    let address = shared.address();
    let member = |name: &str| info.member(name);
    let Some(version) = member("redis_version") else {
        return Err(ConnectError::OtherProgram {
            address,
            reason: "its INFO has no version".to_owned(),
        });
    };
    // Valkey reports the version of Redis that it stands for, and its own beside it.
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST) {
        let version = version.to_owned();
        return Err(ConnectError::TooOld { address, version });
    }
    match (member("cluster_enabled") == Some("1"), shared.url.is_cluster()) {
        (true, false) => return Err(ConnectError::ClusterMode { address }),
        (false, true) => return Err(ConnectError::NoCluster { address }),
        (true, true) | (false, false) => {}
    }
    if member("role").is_some_and(|role| role != "master") {
        return Err(ConnectError::Replica { address });
    }
    match member("maxmemory_policy") {
        // Every key has a time to live, so each of the other policies may delete it.
        Some(policy) if policy != "noeviction" => Err(ConnectError::Evicts {
            address,
            policy: policy.to_owned(),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Does every operation once, on a node and a session that no replica has, so that a user without a
/// permission is found at start and not at the first take-over.
pub(super) async fn try_every_operation(registry: &RedisRegistry) -> Result<(), ConnectError> {
    operations(registry).await.map_err(|reason| {
        let address = registry.shared.address();
        let text = reason.to_string();
        // A command inside a script has no code of its own: the words are those of 7.0 and of later
        // ones.
        let denials = [
            "NOPERM",
            "NoPerm",
            "user executing the script can't",
            "ACL failure",
        ];
        if denials.iter().any(|denial| text.contains(denial)) {
            return ConnectError::Forbidden {
                address,
                reason: text,
                prefix: registry.shared.prefix.clone(),
            };
        }
        match reason {
            RegistryError::Unreachable(reason) => ConnectError::Unreachable { address, reason },
            RegistryError::Refused(_)
            | RegistryError::Full(_)
            | RegistryError::OtherVersion { .. }
            | RegistryError::Unreadable(_)
            | RegistryError::TooLarge { .. } => ConnectError::Unusable { address, reason },
        }
    })
}

async fn operations(registry: &RedisRegistry) -> Result<(), RegistryError> {
    let idle = registry.shared.lease;
    let unnamed = |error: crate::record::NodeIdError| RegistryError::Unreadable(error.to_string());
    let node = Node {
        id: NodeId::generate("check").map_err(unnamed)?,
        address: None,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        is_draining: false,
    };
    let now = WallTime::from_unix(0);
    let record = SessionRecord {
        session: Uuid::new_v4(),
        destination: String::new(),
        principal: String::new(),
        owner: Some(node.id.clone()),
        epoch: 1,
        hello: Hello::Implicit(String::new()),
        state: State::default(),
        created: now,
        last_active: now,
    };
    registry.join(&node).await?;
    registry.renew(&node.id).await?;
    registry.nodes().await?;
    registry.create(&record, idle).await?;
    registry.look_up(record.session).await?;
    // Another node reads the owner's lease first.
    let other = NodeId::generate("check").map_err(unnamed)?;
    registry.take_over(record.session, 1, &other, idle).await?;
    registry.take_over(record.session, 1, &node.id, idle).await?;
    let taken = SessionRecord { epoch: 2, ..record };
    if let Some(claim) = taken.claim() {
        registry
            .update(&claim, Change::State(State::default()), idle)
            .await?;
        let touch = Touch {
            claim: claim.clone(),
            at: now,
            idle,
        };
        registry.touch_many(vec![touch]).await?;
        registry.remove(&claim).await?;
        registry.release(&claim).await?;
    }
    let demand = TokenDemand {
        per_minute: 1,
        want: 0,
        spent: 0,
    };
    registry.lease_name("check", &node.id, true).await?;
    registry.let_go("check", &node.id).await?;
    registry.lease_tokens("check", demand).await?;
    let demand = |want| SlotDemand {
        limit: 1,
        held: 0,
        want,
    };
    for want in [1, 0] {
        registry.lease_slots("check", &node.id, demand(want)).await?;
    }
    registry.leave(&node.id).await
}

/// Returns what the error of the first command means.
fn first_error(shared: &Shared, error: &CommandError) -> ConnectError {
    let address = shared.address();
    let is_tls = shared.url.is_tls();
    let (error, is_of_sentinel) = match error {
        CommandError::Redis(error) => (error, false),
        CommandError::NotFound(NotFound {
            error,
            is_of_sentinel,
            ..
        }) => (error, *is_of_sentinel),
        // A plain engine reads the first message of TLS, and waits for more.
        CommandError::Timeout(_) if is_tls => {
            let reason = error.to_string();
            return ConnectError::Tls { address, reason };
        }
        CommandError::Timeout(_) => {
            let reason = error.to_string();
            return ConnectError::Unreachable { address, reason };
        }
    };
    let reason = error.to_string();
    if is_tls && error.is_io_error() && !error.is_connection_refusal() {
        return ConnectError::Tls { address, reason };
    }
    let kind = error.kind();
    if kind == ErrorKind::MasterNameNotFoundBySentinel {
        return ConnectError::UnknownPrimary { address };
    }
    let is_refused = kind == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
        || (is_of_sentinel && error.code() == Some("NOPERM"));
    if is_refused && is_of_sentinel {
        return ConnectError::SentinelCredentials { address, reason };
    }
    if is_refused {
        return ConnectError::Credentials { address, reason };
    }
    if kind == ErrorKind::RESP3NotSupported {
        return ConnectError::TooOld {
            address,
            version: "older than 6".to_owned(),
        };
    }
    match error.code() {
        Some("NOPERM") => ConnectError::Forbidden {
            address,
            reason,
            prefix: shared.prefix.clone(),
        },
        Some(code) if AWAY.contains(&code) => ConnectError::Unreachable { address, reason },
        Some(_) => ConnectError::OtherProgram { address, reason },
        None if error.is_connection_refusal() || error.is_timeout() => {
            ConnectError::Unreachable { address, reason }
        }
        None if error.is_connection_dropped() => ConnectError::TlsNeeded { address },
        None if error.is_io_error() => ConnectError::Unreachable { address, reason },
        None => ConnectError::OtherProgram { address, reason },
    }
}
