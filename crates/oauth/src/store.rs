//! The token store that processes share, and the lock under which one of them refreshes.
//!
//! One file per endpoint, mode 0600, in a directory of mode 0700. Within it one entry per (issuer,
//! resource, client): what one authorization server gave is never shown to another. The secret
//! parts go to the keyring of the operating system where there is one; the file then holds the
//! rest, which is what `rialto status` lists.
//!
//! Reading needs no lock: a file is replaced as a whole. A writer holds the endpoint's lock from
//! reading to writing.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::error::SignInError;
use crate::registration::Client;
use crate::secret::Secret;
use crate::settings::Grant;

mod directory;
mod keys;
mod lock;

use directory::Directory;
pub(crate) use lock::Lock;

/// Entries per endpoint; the least recently used goes.
const ENTRIES: usize = 8;
/// Clients registered by hand per endpoint whose issuer is remembered.
const BINDINGS: usize = 64;
/// No file of Rialto is larger.
const FILE_LIMIT: u64 = 1024 * 1024;
const VERSION: u32 = 1;

/// Where tokens are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    pub directory: PathBuf,
    /// Whether to use the keyring of the operating system, if there is one.
    pub keyring: bool,
    /// How long to wait for another process that is signing in.
    pub lock_timeout: Duration,
}

impl StoreSettings {
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            keyring: cfg!(feature = "keyring"),
            lock_timeout: Duration::from_secs(600),
        }
    }
}

/// A token and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) access: Secret,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh: Option<Secret>,
    /// Seconds since 1970.
    pub(crate) received: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<u64>,
}

/// How long before its end a token is renewed.
const MARGIN: u64 = 60;

impl Token {
    /// Returns whether it is good for another request. The margin shrinks for tokens that live
    /// shorter than it.
    pub(crate) fn is_fresh(&self, now: u64) -> bool {
        let Some(expires) = self.expires else { return true };
        let life = expires.saturating_sub(self.received);
        now < expires.saturating_sub(MARGIN.min(life / 5))
    }

    pub(crate) fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// What one authorization server gave one client for one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) issuer: String,
    pub(crate) resource: String,
    pub(crate) client: Client,
    /// By which right the token was given, and another one can be had.
    #[serde(default)]
    pub(crate) grant: Grant,
    #[serde(default)]
    pub(crate) scopes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Token>,
    /// The challenge that led here: where a refresh finds the metadata again.
    #[serde(default)]
    pub(crate) challenge: Vec<String>,
    /// The origins that may receive the token again. An entry of an older version has none; its
    /// next use sets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origins: Option<Origins>,
    /// Set in the file if the secrets are in the keyring.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) in_keyring: bool,
}

/// The origin of an authorization server's token endpoint, as it was at the sign-in. Tokens and
/// secrets go nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origins {
    pub(crate) token: String,
}

/// The authorization server that the secret or key of a client registered by hand belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Binding {
    pub(crate) client: String,
    pub(crate) issuer: String,
    /// The origin of the token endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_origin: Option<String>,
}

impl Entry {
    pub(crate) fn new(issuer: String, resource: String, client: Client) -> Self {
        Self {
            issuer,
            resource,
            client,
            grant: Grant::default(),
            scopes: Vec::new(),
            token: None,
            challenge: Vec::new(),
            origins: None,
            in_keyring: false,
        }
    }

    /// Returns whether this issuer, with its token endpoint at this origin, gave what the entry
    /// holds.
    pub(crate) fn is_from(&self, issuer: &str, origins: &Origins) -> bool {
        let known = self.origins.as_ref();
        self.issuer == issuer && known.is_none_or(|known| known.token == origins.token)
    }

    fn is_for(&self, other: &Self) -> bool {
        (&self.issuer, &self.resource, &self.client.id) == (&other.issuer, &other.resource, &other.client.id)
    }
}

/// How the last attempt failed, for the processes that waited for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    pub(crate) why: String,
}

/// Everything about one endpoint. The first entry is the one in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) endpoint: String,
    #[serde(default)]
    pub(crate) entries: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bindings: Vec<Binding>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<Failure>,
}

impl Record {
    fn new(endpoint: &Url) -> Self {
        Self {
            version: VERSION,
            endpoint: endpoint.to_string(),
            entries: Vec::new(),
            bindings: Vec::new(),
            failure: None,
        }
    }

    /// Returns where the secret of a client registered by hand was used before.
    pub(crate) fn binding(&self, client: &str) -> Option<Binding> {
        let bound = self.bindings.iter().find(|binding| binding.client == client);
        // An older version kept the entry alone.
        let entry = || {
            let by_hand = |entry: &&Entry| entry.client.id == client && entry.client.is_by_hand();
            let entry = self.entries.iter().find(by_hand)?;
            Some(Binding {
                client: client.to_owned(),
                issuer: entry.issuer.clone(),
                token_origin: entry.origins.as_ref().map(|origins| origins.token.clone()),
            })
        };
        bound.cloned().or_else(entry)
    }

    /// Remembers where the secret of a client is used. Only the operator names clients, so the list
    /// stays short.
    pub(crate) fn bind(&mut self, binding: Binding) {
        self.bindings.retain(|other| other.client != binding.client);
        self.bindings.insert(0, binding);
        self.bindings.truncate(BINDINGS);
    }

    pub(crate) fn current(&self) -> Option<&Entry> {
        self.entries.first()
    }

    /// Puts an entry first, in place of the one with the same key.
    pub(crate) fn put(&mut self, entry: Entry) {
        self.entries.retain(|other| !other.is_for(&entry));
        self.entries.insert(0, entry);
        self.entries.truncate(ENTRIES);
        self.failure = None;
    }

    /// Returns the client that was registered at this authorization server, if one was.
    pub(crate) fn registered_at(&self, issuer: &str) -> Option<&Client> {
        let ours = |entry: &&Entry| entry.issuer == issuer && entry.client.registered_for.is_some();
        self.entries.iter().find(ours).map(|entry| &entry.client)
    }

    pub(crate) fn forget_client(&mut self, issuer: &str, client: &str) {
        self.entries
            .retain(|entry| entry.issuer != issuer || entry.client.id != client);
    }
}

/// The store, as one endpoint sees it.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    settings: StoreSettings,
    endpoint: Url,
    /// The name of the files: the digest of the endpoint, since a URL is not a file name.
    stem: String,
}

impl Store {
    pub(crate) fn new(settings: StoreSettings, endpoint: Url) -> Self {
        let stem = digest(endpoint.as_str());
        Self {
            settings,
            endpoint,
            stem,
        }
    }

    /// What is kept, or an empty record. Without the lock it is what was true a moment ago.
    pub(crate) async fn load(&self) -> Result<Record, SignInError> {
        let store = self.clone();
        self.blocking(move || {
            let Some(directory) = Directory::open(&store.settings.directory)? else {
                return Ok(Record::new(&store.endpoint));
            };
            let record =
                read(&directory, &store.file())?.filter(|record| record.endpoint == store.endpoint.as_str());
            let mut record = record.unwrap_or_else(|| Record::new(&store.endpoint));
            record.entries.retain_mut(|entry| keys::fill(&store.stem, entry));
            Ok(record)
        })
        .await
    }

    /// Waits until no other process changes this endpoint's record.
    pub(crate) async fn lock(&self) -> Result<Lock, SignInError> {
        let store = self.clone();
        let directory = self
            .blocking(move || Directory::make(&store.settings.directory))
            .await?;
        let lock = lock::acquire(
            &directory,
            &format!("{}.lock", self.stem),
            self.settings.lock_timeout,
        )
        .await;
        lock.map_err(|failure| match failure {
            lock::LockFailure::Busy => SignInError::Busy {
                seconds: self.settings.lock_timeout.as_secs(),
            },
            lock::LockFailure::System(error) => self.failed(&error),
        })
    }

    /// Replaces the record. The lock keeps other processes from doing so at the same time.
    pub(crate) async fn save(&self, _lock: &Lock, record: &Record) -> Result<(), SignInError> {
        let (store, mut record) = (self.clone(), record.clone());
        self.blocking(move || {
            let directory = Directory::make(&store.settings.directory)?;
            let before = read(&directory, &store.file())?
                .map(|record| record.entries)
                .unwrap_or_default();
            for gone in before
                .iter()
                .filter(|old| !record.entries.iter().any(|entry| entry.is_for(old)))
            {
                keys::forget(&store.stem, gone);
            }
            for entry in &mut record.entries {
                entry.in_keyring = store.settings.keyring && keys::hand_over(&store.stem, entry);
            }
            let text = serde_json::to_vec_pretty(&record).map_err(io::Error::other)?;
            if text.len() as u64 > FILE_LIMIT {
                let why = format!("the record would have more than {FILE_LIMIT} bytes, and is not written");
                return Err(io::Error::other(why));
            }
            directory.replace(&store.file(), &text)
        })
        .await
    }

    /// Forgets the endpoint, in the keyring too.
    pub(crate) async fn remove(&self, _lock: &Lock) -> Result<bool, SignInError> {
        let store = self.clone();
        self.blocking(move || {
            let Some(directory) = Directory::open(&store.settings.directory)? else {
                return Ok(false);
            };
            for entry in read(&directory, &store.file())?
                .map(|record| record.entries)
                .unwrap_or_default()
            {
                keys::forget(&store.stem, &entry);
            }
            directory.remove(&store.file())
        })
        .await
    }

    fn file(&self) -> String {
        format!("{}.json", self.stem)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, SignInError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|panic| Err(io::Error::other(panic)))
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> SignInError {
        SignInError::Store {
            path: self.settings.directory.display().to_string(),
            why: error.to_string(),
        }
    }
}

/// Returns a file of the store, or nothing if there is none.
///
/// A file that cannot be parsed is an error. If it counted as absent, the binding of a client's
/// secret to its issuer would be lost with it.
fn read(directory: &Directory, name: &str) -> io::Result<Option<Record>> {
    let Some(text) = directory.read(name, FILE_LIMIT)? else {
        return Ok(None);
    };
    match serde_json::from_slice::<Record>(&text) {
        Ok(record) if record.version == VERSION => Ok(Some(record)),
        Ok(_) | Err(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{name} is not a record of this version of Rialto; delete it and sign in again"),
        )),
    }
}

fn digest(text: &str) -> String {
    use std::fmt::Write as _;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    digest
        .as_ref()
        .iter()
        .take(16)
        .fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

/// One line of `rialto status`: nothing secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    pub endpoint: String,
    pub issuer: String,
    pub client: String,
    pub scopes: Vec<String>,
    /// Whether there is a token at all.
    pub signed_in: bool,
    /// Seconds since 1970.
    pub expires: Option<u64>,
    pub renewable: bool,
    pub in_keyring: bool,
}

/// Returns everything that is kept in a directory, the entry in use of each endpoint. Reads files
/// only, no keyring.
pub fn list(directory: &Path) -> Result<Vec<StoredToken>, SignInError> {
    let failed = |error: io::Error| SignInError::Store {
        path: directory.display().to_string(),
        why: error.to_string(),
    };
    let Some(opened) = Directory::open(directory).map_err(failed)? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for name in opened.names(".json").map_err(failed)? {
        let record = match read(&opened, &name) {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "file of the token store left out");
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        let Some(entry) = record.current() else { continue };
        let token = entry.token.as_ref();
        all.push(StoredToken {
            endpoint: record.endpoint.clone(),
            issuer: entry.issuer.clone(),
            client: entry.client.id.clone(),
            scopes: entry.scopes.clone(),
            signed_in: token.is_some(),
            expires: token.and_then(|token| token.expires),
            renewable: entry.grant == Grant::ClientCredentials
                || token.is_some_and(|token| token.refresh.is_some()),
            in_keyring: entry.in_keyring,
        });
    }
    all.sort_by(|one, other| one.endpoint.cmp(&other.endpoint));
    Ok(all)
}

#[cfg(test)]
mod tests;
