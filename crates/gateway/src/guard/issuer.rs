//! An issuer on the network: finds its keys and keeps them at hand. [`jwks`] decides what may be
//! fetched when.
//!
//! It goes to the addresses of the configuration and to the one that the issuer's own metadata
//! name, over https (or on this machine), follows no redirect, and reads no more than a limit.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jsonwebtoken::Algorithm;
use parking_lot::{Mutex, MutexGuard};
use protocol::time::Moment;
use url::Url;

use super::jwks::{self, FetchReason, JwksCache, Key};
use crate::clock::Clock;
use crate::settings::{IssuerUrl, KeysUrl};
use crate::tasks;

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// One limit over the metadata and the keys: an issuer that accepts and sends nothing costs this
/// once.
const FETCH_TIME: Duration = Duration::from_secs(10);
/// Requests that wait for one fetch; more are refused at once.
const MAX_WAITING: usize = 256;
const MAX_DOCUMENT: usize = 512 << 10;

/// Why there is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// The issuer has none of that name.
    Unknown,
    /// The issuer cannot be asked.
    Unavailable,
}

/// Why a fetch failed, for the log.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Http(String),
    #[error("answered {0}")]
    Status(u16),
    #[error("answered with more than {MAX_DOCUMENT} bytes")]
    TooLarge,
    #[error("no metadata of this issuer at any of its well-known addresses (last: {0})")]
    NoMetadata(String),
    #[error("the metadata name no usable jwks_uri")]
    NoKeysUrl,
    #[error("no set of keys")]
    NoKeys,
    #[error("no answer within {} s", FETCH_TIME.as_secs())]
    Silent,
}

#[derive(Debug)]
pub(crate) struct Issuer {
    name: IssuerUrl,
    configured_keys: Option<KeysUrl>,
    clock: Clock,
    ring: Mutex<JwksCache>,
    /// One fetch at a time. A request that finds one under way waits for it and shares its outcome.
    fetching: tokio::sync::Mutex<()>,
    /// Fetches that have come to their end.
    finished: AtomicU64,
    /// Permits of those that may wait for a fetch.
    waiting: tokio::sync::Semaphore,
    /// Made when it is first needed, since it loads the system's certificates.
    client: OnceLock<Option<reqwest::Client>>,
}

impl Issuer {
    pub(crate) fn new(name: IssuerUrl, configured_keys: Option<KeysUrl>, clock: Clock) -> Self {
        Self {
            name,
            configured_keys,
            clock,
            ring: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            finished: AtomicU64::new(0),
            waiting: tokio::sync::Semaphore::new(MAX_WAITING),
            client: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    fn ring(&self) -> MutexGuard<'_, JwksCache> {
        self.ring.lock()
    }

    /// Returns which set of keys is in use; `None` if there is none that may be. Keys that have
    /// become old are fetched anew meanwhile: where all callers are cached, no other code would
    /// notice that a key was withdrawn.
    pub(crate) fn standing(self: &Arc<Self>, now: Moment) -> Option<u64> {
        let (edition, is_due) = {
            let ring = self.ring();
            (ring.is_usable(now).then(|| ring.edition())?, ring.is_due(now))
        };
        if is_due {
            let issuer = Arc::clone(self);
            tasks::spawn("issuer keys", async move {
                issuer.fetch(FetchReason::Fresher, edition).await;
            });
        }
        Some(edition)
    }

    /// Takes keys as if they had been fetched.
    #[cfg(test)]
    pub(crate) fn take(&self, keys: Vec<Arc<Key>>, now: Moment) {
        self.ring().replace(keys, now);
    }

    /// Fetches the keys before the first request needs them, so that a mistake is in the log from
    /// the start.
    pub(crate) async fn prepare(&self) {
        self.fetch(FetchReason::First, 0).await;
    }

    /// Returns the key that a token names, and the edition of the set it is from.
    pub(crate) async fn key(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(Arc<Key>, u64), NoKey> {
        let look = |want_too: bool| {
            let now = self.clock.now();
            let ring = self.ring();
            let key = ring.find(id, algorithm).filter(|_| ring.is_usable(now));
            let want = want_too.then(|| ring.want(key.is_some(), now)).flatten();
            (key, want, ring.edition(), ring.is_usable(now))
        };
        let (found, want, edition, _) = look(true);
        match (found, want) {
            (Some(key), None) => return Ok((key, edition)),
            (Some(key), Some(want)) => {
                let issuer = Arc::clone(self);
                tasks::spawn("issuer keys", async move { issuer.fetch(want, edition).await });
                return Ok((key, edition));
            }
            (None, Some(want)) => {
                // A task of its own: a client that hangs up does not end what others wait for.
                let issuer = Arc::clone(self);
                let fetching = tasks::spawn("issuer keys", async move { issuer.fetch(want, edition).await });
                let _ = fetching.await;
            }
            (None, None) => {}
        }
        match look(false) {
            (Some(key), _, edition, _) => Ok((key, edition)),
            (None, _, _, true) => Err(NoKey::Unknown),
            (None, _, _, false) => Err(NoKey::Unavailable),
        }
    }

    /// Fetches the keys, unless a fetch was under way, or the last one was too recent. A fetch that
    /// fails fails for all that waited for it: none of them tries again.
    async fn fetch(&self, want: FetchReason, seen: u64) {
        let finished = self.finished.load(Acquire);
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return;
        };
        let _alone = self.fetching.lock().await;
        if self.finished.load(Acquire) != finished {
            return;
        }
        {
            let mut ring = self.ring();
            if ring.edition() != seen || !ring.begin_fetch(want, self.clock.now()) {
                return;
            }
        }
        let downloaded = tokio::time::timeout(FETCH_TIME, self.download()).await;
        match downloaded.unwrap_or(Err(FetchError::Silent)) {
            Ok(keys) => {
                tracing::debug!(issuer = self.name(), keys = keys.len(), "keys fetched");
                self.ring().replace(keys, self.clock.now());
            }
            Err(error) => {
                tracing::warn!(issuer = self.name(), %error, "the keys of the issuer cannot be fetched");
            }
        }
        self.finished.fetch_add(1, Release);
    }

    async fn download(&self) -> Result<Vec<Arc<Key>>, FetchError> {
        let keys = match &self.configured_keys {
            Some(keys) => keys.clone(),
            None => self.discover().await?,
        };
        let document = self.get(keys.url().clone()).await?;
        let keys = jwks::read(&document).ok_or(FetchError::NoKeys)?;
        if keys.is_empty() {
            Err(FetchError::NoKeys)
        } else {
            Ok(keys)
        }
    }

    /// Reads the issuer's metadata. Those that call themselves something else are not this issuer's
    /// (RFC 8414, 3.3).
    async fn discover(&self) -> Result<KeysUrl, FetchError> {
        let mut last = String::new();
        for address in metadata_addresses(self.name.url()) {
            let document = match self.get(address).await {
                Ok(document) => document,
                Err(error) => {
                    last = error.to_string();
                    continue;
                }
            };
            let Ok(metadata) = serde_json::from_slice::<serde_json::Value>(&document) else {
                last = "no JSON".to_owned();
                continue;
            };
            if metadata.get("issuer").and_then(|issuer| issuer.as_str()) != Some(self.name()) {
                last = "another issuer's".to_owned();
                continue;
            }
            let keys = metadata.get("jwks_uri").and_then(|keys| keys.as_str());
            return keys
                .and_then(|keys| KeysUrl::parse(keys).ok())
                .ok_or(FetchError::NoKeysUrl);
        }
        Err(FetchError::NoMetadata(last))
    }

    async fn get(&self, address: Url) -> Result<Vec<u8>, FetchError> {
        // The address is not repeated in the message: it is the configuration's, or the issuer's to
        // know.
        let http = |error: reqwest::Error| FetchError::Http(innermost(&error.without_url()));
        let client = self.client.get_or_init(client).as_ref();
        let client = client.ok_or_else(|| FetchError::Http("no TLS".to_owned()))?;
        let request = client
            .get(address)
            .header(http::header::ACCEPT, "application/json");
        let mut response = request.send().await.map_err(http)?;
        if response.status() != http::StatusCode::OK {
            return Err(FetchError::Status(response.status().as_u16()));
        }
        let mut document = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(http)? {
            if document.len() + chunk.len() > MAX_DOCUMENT {
                return Err(FetchError::TooLarge);
            }
            document.extend_from_slice(&chunk);
        }
        Ok(document)
    }
}

fn client() -> Option<reqwest::Client> {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIME)
        .timeout(FETCH_TIME)
        .pool_max_idle_per_host(0)
        .build()
        .ok()
}

/// Returns the innermost error: the outer ones only tell that something failed.
fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}

/// Returns where an issuer's metadata may be (2025-11-25, authorization server metadata discovery).
fn metadata_addresses(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut paths = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        paths.push(format!("{path}/.well-known/openid-configuration"));
    }
    let at = |path: String| {
        let mut address = issuer.clone();
        address.set_path(&path);
        address
    };
    paths.into_iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_fetched_from_the_addresses_of_the_specification() {
        let addresses = |issuer: &str| -> Vec<String> {
            let issuer = Url::parse(issuer).unwrap();
            metadata_addresses(&issuer).iter().map(Url::to_string).collect()
        };
        assert_eq!(
            addresses("https://x"),
            [
                "https://x/.well-known/oauth-authorization-server",
                "https://x/.well-known/openid-configuration"
            ]
        );
        assert_eq!(
            addresses("https://x/realms/y/"),
            [
                "https://x/.well-known/oauth-authorization-server/realms/y",
                "https://x/.well-known/openid-configuration/realms/y",
                "https://x/realms/y/.well-known/openid-configuration"
            ]
        );
    }
}
