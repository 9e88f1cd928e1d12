//! What the registry stores: nodes and the records of sessions, and the format of a record. A
//! *node* is one run of a replica, from its start to its end.
//!
//! A record is JSON with a `version`. A record of another version is an error, never a guess: an
//! older Rialto must not drop members that a newer one wrote.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::error::RegistryError;

/// The version of the format. It changes with every change that an older reader would misread.
pub(crate) const VERSION: u32 = 1;

/// The largest record. A client's `initialize` has a few hundred bytes, with icons some tens of
/// KiB.
pub const MAX_RECORD_BYTES: usize = 1024 * 1024;

/// The longest name of a node: that of a host name (RFC 1035).
const MAX_NAME: usize = 253;

/// Seconds since the epoch of Unix, by the clock of the replica that wrote them. They are shown to
/// operators; no lease and no expiry depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

impl WallTime {
    /// Returns the time that lies so many seconds after the epoch of Unix.
    #[must_use]
    pub fn from_unix(seconds: u64) -> Self {
        Self(seconds)
    }

    /// Returns the seconds since the epoch of Unix.
    #[must_use]
    pub fn unix(self) -> u64 {
        self.0
    }
}

/// One run of one replica: its name, and a random incarnation that is new at each start.
///
/// The text is `name/incarnation`. A replica that restarts has another id, so that its earlier
/// sessions have no living owner and are taken over as those of any other replica.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Box<str>);

/// Why a text is no name or id of a node.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodeIdError {
    /// The name has a character that keys of the engine or log lines cannot show, or a wrong
    /// length.
    #[error("{0:?} is no name of a node: use 1 to {MAX_NAME} letters, digits, `.`, `-` or `_`")]
    Name(String),
    /// The part behind the name is no incarnation.
    #[error("{0:?} is no id of a node: it has the form name/incarnation")]
    Form(String),
}

impl NodeId {
    /// Returns an id with a new random incarnation.
    pub fn generate(name: &str) -> Result<Self, NodeIdError> {
        Self::new(name, Uuid::new_v4())
    }

    /// Returns the id of a given incarnation.
    pub fn new(name: &str, incarnation: Uuid) -> Result<Self, NodeIdError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
            return Err(NodeIdError::Name(name.to_owned()));
        }
        Ok(Self(format!("{name}/{}", incarnation.simple()).into()))
    }

    /// Returns the name without the incarnation.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(name, _)| name)
    }

    /// Returns the number of this run: the first half of its incarnation. Sealed states, and the
    /// URLs of the old transport, name a replica by it.
    #[must_use]
    pub fn process(&self) -> u64 {
        let incarnation = self.0.split_once('/').map_or("", |(_, incarnation)| incarnation);
        let incarnation = Uuid::try_parse(incarnation).unwrap_or_default();
        incarnation.as_u64_pair().0
    }

    /// Returns the whole id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<Self, NodeIdError> {
        let form = || NodeIdError::Form(text.to_owned());
        let (name, incarnation) = text.split_once('/').ok_or_else(form)?;
        let incarnation = Uuid::try_parse(incarnation).map_err(|_| form())?;
        Self::new(name, incarnation)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A replica, as it introduces itself to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Which run of which replica it is.
    pub id: NodeId,
    /// Where the other replicas reach it (`cluster.advertise`). A single machine has none.
    pub address: Option<String>,
    /// The version of Rialto that it runs.
    pub program: String,
    /// Whether it is ending: it takes no session over, and opens none for another replica.
    pub is_draining: bool,
}

/// What a client sent to open its session. Another process repeats it to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// The JSON text of the client's whole `initialize` message.
    Initialize(String),
    /// The client sent no `initialize`: Rialto did the handshake itself, in this revision.
    Implicit(String),
}

/// The part of a session that changes while it lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The log level that the client set last.
    pub log_level: Option<String>,
    /// The URIs of the resources that the client subscribed to. The session bounds their number.
    pub subscriptions: Vec<String>,
}

/// Everything that another process needs to go on with a session. No secret and no header is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The id that the client sends in `Mcp-Session-Id`.
    pub session: Uuid,
    /// The destination that the session belongs to.
    pub destination: String,
    /// The principal that opened it. No other principal may use it.
    pub principal: String,
    /// The replica that serves it; `None` after a drain has handed it over.
    pub owner: Option<NodeId>,
    /// 1 at creation, and one more with each take-over.
    pub epoch: u64,
    /// How the client opened it.
    pub hello: Hello,
    /// What changed since.
    pub state: State,
    /// When it was created.
    pub created: WallTime,
    /// When it was used last, to about a minute.
    pub last_active: WallTime,
}

impl SessionRecord {
    /// Returns the record as JSON text.
    pub fn encode(&self) -> Result<String, RegistryError> {
        let (initialize, implicit) = match &self.hello {
            Hello::Initialize(message) => (Some(message.clone()), None),
            Hello::Implicit(revision) => (None, Some(revision.clone())),
        };
        let stored = StoredRecord {
            version: VERSION,
            session: self.session.to_string(),
            destination: self.destination.clone(),
            principal: self.principal.clone(),
            owner: self.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            epoch: self.epoch,
            initialize,
            implicit,
            state: StoredState::from(&self.state),
            created: self.created.0,
            last_active: self.last_active.0,
        };
        bounded(serde_json::to_string(&stored))
    }

    /// Returns the record that a JSON text holds.
    pub fn decode(text: &[u8]) -> Result<Self, RegistryError> {
        check_version(text)?;
        let stored: StoredRecord = serde_json::from_slice(text).map_err(unreadable)?;
        let hello = match (stored.initialize, stored.implicit) {
            (Some(message), None) => Hello::Initialize(message),
            (None, Some(revision)) => Hello::Implicit(revision),
            (Some(_), Some(_)) | (None, None) => {
                return Err(unreadable("it must have either `initialize` or `implicit`"));
            }
        };
        let owner = stored.owner.map(|owner| owner.parse().map_err(unreadable));
        Ok(Self {
            session: Uuid::try_parse(&stored.session).map_err(unreadable)?,
            destination: stored.destination,
            principal: stored.principal,
            owner: owner.transpose()?,
            epoch: stored.epoch,
            hello,
            state: stored.state.into(),
            created: WallTime(stored.created),
            last_active: WallTime(stored.last_active),
        })
    }
}

impl Node {
    /// Returns the node as JSON text.
    pub fn encode(&self) -> Result<String, RegistryError> {
        let stored = StoredNode {
            version: VERSION,
            id: self.id.as_str().to_owned(),
            address: self.address.clone(),
            program: self.program.clone(),
            is_draining: self.is_draining,
        };
        bounded(serde_json::to_string(&stored))
    }

    /// Returns the node that a JSON text holds.
    pub fn decode(text: &[u8]) -> Result<Self, RegistryError> {
        check_version(text)?;
        let stored: StoredNode = serde_json::from_slice(text).map_err(unreadable)?;
        Ok(Self {
            id: stored.id.parse().map_err(unreadable)?,
            address: stored.address,
            program: stored.program,
            is_draining: stored.is_draining,
        })
    }
}

impl State {
    /// Returns the state as JSON text.
    pub fn encode(&self) -> Result<String, RegistryError> {
        bounded(serde_json::to_string(&StoredState::from(self)))
    }

    /// Returns the state that a JSON text holds.
    pub fn decode(text: &[u8]) -> Result<Self, RegistryError> {
        let stored: StoredState = serde_json::from_slice(text).map_err(unreadable)?;
        Ok(stored.into())
    }
}

/// Refuses a text that no engine shall store.
fn bounded(text: serde_json::Result<String>) -> Result<String, RegistryError> {
    let text = text.map_err(unreadable)?;
    if text.len() > MAX_RECORD_BYTES {
        return Err(RegistryError::TooLarge {
            bytes: text.len(),
            limit: MAX_RECORD_BYTES,
        });
    }
    Ok(text)
}

/// Refuses a text of another version before its members are read: they may have another shape.
fn check_version(text: &[u8]) -> Result<(), RegistryError> {
    let Versioned { version } = serde_json::from_slice(text).map_err(unreadable)?;
    if version != VERSION {
        return Err(RegistryError::OtherVersion {
            found: version,
            known: VERSION,
        });
    }
    Ok(())
}

fn unreadable(error: impl fmt::Display) -> RegistryError {
    RegistryError::Unreadable(error.to_string())
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct StoredRecord {
    version: u32,
    session: String,
    destination: String,
    principal: String,
    owner: Option<String>,
    epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    initialize: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    implicit: Option<String>,
    #[serde(flatten)]
    state: StoredState,
    created: u64,
    last_active: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredNode {
    version: u32,
    id: String,
    address: Option<String>,
    program: String,
    #[serde(default)]
    is_draining: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredState {
    log_level: Option<String>,
    subscriptions: Vec<String>,
}

impl From<&State> for StoredState {
    fn from(state: &State) -> Self {
        Self {
            log_level: state.log_level.clone(),
            subscriptions: state.subscriptions.clone(),
        }
    }
}

impl From<StoredState> for State {
    fn from(stored: StoredState) -> Self {
        Self {
            log_level: stored.log_level,
            subscriptions: stored.subscriptions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SessionRecord {
        SessionRecord {
            session: Uuid::from_u128(7),
            destination: "files".to_owned(),
            principal: "alice".to_owned(),
            owner: Some(NodeId::new("a", Uuid::from_u128(1)).unwrap()),
            epoch: 3,
            hello: Hello::Initialize(r#"{"jsonrpc":"2.0","id":"ä","method":"initialize"}"#.to_owned()),
            state: State {
                log_level: Some("debug".to_owned()),
                subscriptions: vec!["file:///a".to_owned(), "file:///b".to_owned()],
            },
            created: WallTime::from_unix(1_800_000_000),
            last_active: WallTime::from_unix(1_800_000_060),
        }
    }

    #[test]
    fn record_comes_back_as_it_was_written() {
        let implicit = SessionRecord {
            owner: None,
            hello: Hello::Implicit("2025-06-18".to_owned()),
            state: State::default(),
            ..record()
        };
        for record in [record(), implicit] {
            let text = record.encode().unwrap();
            assert_eq!(SessionRecord::decode(text.as_bytes()).unwrap(), record);
            let state = record.state.encode().unwrap();
            assert_eq!(State::decode(state.as_bytes()).unwrap(), record.state);
        }
        let node = Node {
            id: NodeId::generate("pod-1.example").unwrap(),
            address: Some("10.0.0.7:3001".to_owned()),
            program: "0.1.0".to_owned(),
            is_draining: true,
        };
        assert_eq!(Node::decode(node.encode().unwrap().as_bytes()).unwrap(), node);
    }

    #[test]
    fn format_of_a_record_is_that_of_its_version() {
        let text = record().encode().unwrap();
        let written = r#"{"version":1,"session":"00000000-0000-0000-0000-000000000007","destination":"files","principal":"alice","owner":"a/00000000000000000000000000000001","epoch":3,"initialize":"{\"jsonrpc\":\"2.0\",\"id\":\"ä\",\"method\":\"initialize\"}","log_level":"debug","subscriptions":["file:///a","file:///b"],"created":1800000000,"last_active":1800000060}"#;
        assert_eq!(text, written, "another format needs another version");
    }

    #[test]
    fn record_of_another_version_is_an_error_that_names_both() {
        let text = record()
            .encode()
            .unwrap()
            .replace("\"version\":1", "\"version\":2");
        let error = SessionRecord::decode(text.as_bytes()).unwrap_err();
        assert_eq!(error, RegistryError::OtherVersion { found: 2, known: 1 });
        // A later version may have other members, so the version alone decides.
        let error = SessionRecord::decode(br#"{"version":9}"#).unwrap_err();
        assert_eq!(error, RegistryError::OtherVersion { found: 9, known: 1 });
        assert!(error.to_string().contains("version 9"), "{error}");
    }

    #[test]
    fn damaged_record_is_unreadable() {
        let text = record().encode().unwrap();
        let both = text.replace("\"log_level\"", "\"implicit\":\"2025-06-18\",\"log_level\"");
        let texts = [
            "",
            "[]",
            "{}",
            r#"{"version":1}"#,
            &text.replace("a/0", "a"),
            &text.replace("-0000-", "-"),
            &text.replace("\"initialize\":", "\"other\":"),
            &both,
        ];
        for text in texts {
            let error = SessionRecord::decode(text.as_bytes()).unwrap_err();
            assert!(matches!(error, RegistryError::Unreadable(_)), "{text}: {error}");
        }
    }

    #[test]
    fn record_beyond_the_limit_is_refused() {
        let record = SessionRecord {
            hello: Hello::Initialize("x".repeat(MAX_RECORD_BYTES)),
            ..record()
        };
        let error = record.encode().unwrap_err();
        assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn id_of_a_node_has_a_plain_name_and_an_incarnation() {
        let id = NodeId::generate("pod-1.example").unwrap();
        assert_eq!(id.name(), "pod-1.example");
        assert_eq!(id.as_str().parse::<NodeId>().unwrap(), id);
        assert_ne!(id, NodeId::generate("pod-1.example").unwrap());
        for name in ["", "a/b", "a b", "{a}", "ä", &"a".repeat(MAX_NAME + 1)] {
            assert!(NodeId::generate(name).is_err(), "{name}");
        }
        for text in ["a", "a/", "a/b", "/00000000000000000000000000000001"] {
            assert!(text.parse::<NodeId>().is_err(), "{text}");
        }
    }
}
