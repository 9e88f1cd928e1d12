//! Sign-in and token refresh single-flight: the token of one remote resource within one process.
//!
//! **Single flight.** Within the process one call refreshes or signs in, and the others wait for
//! it. Between processes the lock of the store does the same, over the whole sign-in: ten processes
//! started at once open one window. A process that gets the lock reads the store before anything
//! else, and mostly finds its token there. A sign-in that fails also fails the calls that waited
//! for it, so that one refusal does not open ten more windows.
//!
//! **What never happens by itself.** [`SignIn::authorization`] never opens a window; only a refusal
//! by the server does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use url::Url;

use crate::browser::Browser;
use crate::discovery::discover;
use crate::error::{ScopeFlags, SignInError};
use crate::http::Network;
use crate::scope::StepUps;
use crate::secret::Authorization;
use crate::settings::{Grant, Settings};
use crate::store::{Entry, Record, Store};

mod attempt;
mod authorization_request;
mod challenge;
mod client_authentication;
mod revocation;
mod token_request;

use attempt::{Attempt, renew};
use challenge::{Demand, Origin, WindowLimit};
pub use revocation::LogoutOutcome;
use token_request::NotRenewed;

/// How often the store is read for a sign-in by another process, in milliseconds.
const LOOK_AGAIN: u64 = 1000;

/// Signing in at one remote resource. Clones share everything.
#[derive(Debug, Clone)]
pub struct SignIn(Arc<SharedSignIn>);

#[derive(Debug)]
struct SharedSignIn {
    settings: Settings,
    endpoint: Url,
    /// Made when it is first needed: reading the system's certificates takes a while.
    network: OnceLock<Result<Network, SignInError>>,
    awake: AtomicBool,
    store: Store,
    held: Mutex<Held>,
    /// Held by the call that refreshes or signs in.
    work: tokio::sync::Mutex<Limits>,
}

/// What is in memory.
#[derive(Debug)]
struct Held {
    entry: Option<Entry>,
    origin: Origin,
    /// When the store was last looked into, in milliseconds since 1970.
    looked: u64,
}

#[derive(Debug, Default)]
struct Limits {
    step_ups: StepUps,
    windows: WindowLimit,
}

/// How `login` ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginOutcome {
    SignedIn {
        issuer: String,
        scopes: Vec<String>,
        expires: Option<u64>,
    },
    /// The server asks for no token and names no authorization server.
    NotNeeded,
}

/// Two are equal if they were made of the same settings.
impl PartialEq for SignIn {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.settings == other.0.settings
    }
}

impl Eq for SignIn {}

impl SignIn {
    pub fn new(settings: Settings) -> Self {
        let mut endpoint = settings.resource.clone();
        endpoint.set_fragment(None);
        let store = Store::new(settings.store.clone(), endpoint.clone());
        Self(Arc::new(SharedSignIn {
            awake: AtomicBool::new(!settings.asleep),
            settings,
            endpoint,
            network: OnceLock::new(),
            store,
            held: Mutex::new(Held {
                entry: None,
                origin: Origin::Store,
                looked: 0,
            }),
            work: tokio::sync::Mutex::default(),
        }))
    }

    /// Returns the same for a process with a person in front, whose browser this is. `asleep` is as
    /// in [`Settings::asleep`].
    #[must_use]
    pub fn in_browser(&self, browser: Browser, asleep: bool) -> Self {
        Self::new(Settings {
            browser: Some(browser),
            asleep,
            ..self.0.settings.clone()
        })
    }

    /// Returns the value of `Authorization`, if there is a token. Refreshes it before it expires,
    /// and never opens a browser.
    pub async fn authorization(&self) -> Result<Option<Authorization>, SignInError> {
        let shared = &*self.0;
        if let Some(known) = shared.cached() {
            return Ok(known);
        }
        if !shared.is_awake() {
            return shared.stored_token().await;
        }
        let mut work = shared.work.lock().await;
        if let Some(known) = shared.cached() {
            return Ok(known);
        }
        let record = shared.store.load().await?;
        let now = seconds();
        let entry = shared
            .pick(&record)
            .filter(|entry| entry.token.is_some())
            .cloned();
        let Some(entry) = entry else {
            shared.hold(None, Origin::Store);
            return Ok(None);
        };
        if entry.token.as_ref().is_some_and(|token| token.is_fresh(now)) {
            return Ok(shared.hold(Some(entry), Origin::Store));
        }
        // Boxed, so that the usual way, which ends above, stays small in every request's future.
        Box::pin(shared.renewed_in_time(&mut work)).await
    }

    /// Ends the sleep of [`Settings::asleep`]: the client is more than a probe.
    pub fn wake(&self) {
        self.0.awake.store(true, Ordering::Release);
    }

    /// The server has refused (401, or 403 with `insufficient_scope`). Ok means: worth sending the
    /// request once more with a new [`authorization`](Self::authorization).
    pub async fn refused(&self, status: u16, www_authenticate: &[String]) -> Result<(), SignInError> {
        let used = self.0.held().entry.as_ref().and_then(bearer);
        self.refused_using(used.as_ref(), status, www_authenticate).await
    }

    /// The same, for callers that know which token the refused request carried: a refusal of the
    /// token before does not count against the one that replaced it.
    pub async fn refused_using(
        &self,
        used: Option<&Authorization>,
        status: u16,
        www_authenticate: &[String],
    ) -> Result<(), SignInError> {
        let shared = &*self.0;
        let demand = Demand::new(status, www_authenticate, &shared.endpoint)?;
        if !shared.is_awake() {
            return Err(SignInError::Asleep {
                resource: shared.endpoint.to_string(),
            });
        }
        let began = milliseconds();
        let mut work = shared.work.lock().await;
        // Without a browser and without a stored token there is nothing to wait for.
        if shared.settings.browser.is_none()
            && shared.settings.grant == Grant::AuthorizationCode
            && shared.store.load().await?.entries.is_empty()
        {
            return Err(shared.login_needed(demand.scopes()));
        }
        let lock = shared.store.lock().await?;
        let record = shared.store.load().await?;
        let grant = shared.grant(&record);
        let mut attempt = Attempt {
            shared,
            limits: &mut work,
            lock,
            record,
            grant,
            began,
            is_login: false,
        };
        Box::pin(attempt.satisfy(used, &demand, www_authenticate)).await
    }

    /// Signs in now, even if a token is stored already. For `rialto login`.
    pub async fn login(&self) -> Result<LoginOutcome, SignInError> {
        let shared = &*self.0;
        let network = shared.network()?;
        let challenge = network.challenge(&shared.endpoint).await?;
        let mut work = shared.work.lock().await;
        let lock = shared.store.lock().await?;
        let record = shared.store.load().await?;
        let found = discover(
            network,
            &shared.endpoint,
            challenge.as_deref().unwrap_or_default(),
        )
        .await?;
        if challenge.is_none() && !found.described {
            return Ok(LoginOutcome::NotNeeded);
        }
        let challenge = challenge.unwrap_or_default();
        let demand = Demand::new(401, &challenge, &shared.endpoint)?;
        let mut attempt = Attempt {
            shared,
            limits: &mut work,
            lock,
            record,
            grant: shared.settings.grant,
            began: milliseconds(),
            is_login: true,
        };
        let entry = attempt.obtain(found, demand.scopes(), &[], &challenge).await?;
        Ok(LoginOutcome::SignedIn {
            issuer: entry.issuer,
            scopes: entry.scopes,
            expires: entry.token.and_then(|token| token.expires),
        })
    }

    /// Forgets everything about the resource, and then has its tokens revoked where that is
    /// possible.
    pub async fn logout(&self) -> Result<LogoutOutcome, SignInError> {
        let shared = &*self.0;
        let _work = shared.work.lock().await;
        let lock = shared.store.lock().await?;
        let record = shared.store.load().await?;
        shared.hold(None, Origin::Store);
        if !shared.store.remove(&lock).await? {
            return Ok(LogoutOutcome::Nothing);
        }
        let mut outcome = LogoutOutcome::Revoked;
        for entry in &record.entries {
            let revoked = match shared.network() {
                Ok(network) => Box::pin(revocation::revoke(network, &shared.endpoint, entry)).await,
                Err(error) => Err(error),
            };
            if let Err(error) = revoked {
                outcome = LogoutOutcome::Forgotten {
                    why: error.to_string(),
                };
            }
        }
        Ok(outcome)
    }
}

impl SharedSignIn {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    fn network(&self) -> Result<&Network, SignInError> {
        let made = self.network.get_or_init(|| {
            self.settings.validate()?;
            Network::new(&self.endpoint, &self.settings.http)
        });
        made.as_ref().map_err(SignInError::clone)
    }

    fn is_awake(&self) -> bool {
        self.awake.load(Ordering::Acquire)
    }

    /// Returns the token of the store if it is still good, without a refresh and without waiting.
    async fn stored_token(&self) -> Result<Option<Authorization>, SignInError> {
        let record = self.store.load().await?;
        let fresh = |entry: &&Entry| {
            entry
                .token
                .as_ref()
                .is_some_and(|token| token.is_fresh(seconds()))
        };
        Ok(self.pick(&record).filter(fresh).and_then(bearer))
    }

    /// By which right a token is to be had: the one that the last was had by.
    fn grant(&self, record: &Record) -> Grant {
        match (self.settings.grant, self.pick(record)) {
            (Grant::AuthorizationCode, Some(entry)) => entry.grant,
            (chosen, _) => chosen,
        }
    }

    /// Returns the answer without any work, if memory has it; `Some(None)` means that there was no
    /// token a moment ago.
    fn cached(&self) -> Option<Option<Authorization>> {
        let held = self.held();
        match &held.entry {
            Some(entry) => {
                let fresh = entry
                    .token
                    .as_ref()
                    .is_some_and(|token| token.is_fresh(seconds()));
                fresh.then(|| bearer(entry))
            }
            None => (milliseconds().saturating_sub(held.looked) < LOOK_AGAIN).then_some(None),
        }
    }

    fn hold(&self, entry: Option<Entry>, origin: Origin) -> Option<Authorization> {
        let authorization = entry.as_ref().and_then(bearer);
        let mut held = self.held();
        // What comes out of the store may be what this process put there; then it is known better
        // where it is from.
        let same = held.entry.as_ref().and_then(bearer) == authorization;
        if origin != Origin::Store || !same {
            held.origin = origin;
        }
        held.entry = entry;
        held.looked = milliseconds();
        authorization
    }

    /// Returns the entry to use: the latest, or the latest of the client the operator chose.
    fn pick<'a>(&self, record: &'a Record) -> Option<&'a Entry> {
        match &self.settings.identity.client_id {
            Some(id) => record.entries.iter().find(|entry| entry.client.id == *id),
            None => record.current(),
        }
    }

    fn login_needed(&self, scopes: &[String]) -> SignInError {
        SignInError::LoginNeeded {
            resource: self.endpoint.to_string(),
            scopes: ScopeFlags(scopes.to_vec()),
        }
    }

    /// Renews a token that is about to end. If that fails it is used as long as it lasts.
    async fn renewed_in_time(&self, limits: &mut Limits) -> Result<Option<Authorization>, SignInError> {
        let lock = self.store.lock().await?;
        let mut record = self.store.load().await?;
        let Some(entry) = self.pick(&record).cloned() else {
            return Ok(self.hold(None, Origin::Store));
        };
        let Some(token) = entry.token.clone() else {
            return Ok(self.hold(None, Origin::Store));
        };
        let now = seconds();
        if token.is_fresh(now) {
            return Ok(self.hold(Some(entry), Origin::Store));
        }
        let renewed = match discover(self.network()?, &self.endpoint, &entry.challenge).await {
            Ok(found) if entry.grant == Grant::ClientCredentials => {
                let challenge = entry.challenge.clone();
                let scopes = entry.scopes.clone();
                let mut attempt = Attempt {
                    shared: self,
                    limits,
                    lock,
                    record,
                    grant: Grant::ClientCredentials,
                    began: milliseconds(),
                    is_login: false,
                };
                let entry = attempt.obtain(found, &scopes, &[], &challenge).await?;
                return Ok(bearer(&entry));
            }
            Ok(found) => match renew(&found, &entry, now).await {
                Ok(renewed) => renewed,
                Err(NotRenewed::Failed(error)) => return self.make_do(entry, now, error),
                Err(NotRenewed::Rejected | NotRenewed::UnknownClient) => {
                    // The next request goes without a token, and its refusal names what is wanted.
                    record.put(Entry { token: None, ..entry });
                    self.store.save(&lock, &record).await?;
                    return Ok(self.hold(None, Origin::Store));
                }
            },
            Err(error) => return self.make_do(entry, now, error),
        };
        record.put(renewed.clone());
        self.store.save(&lock, &record).await?;
        tracing::debug!(resource = %self.endpoint, "token refreshed");
        Ok(self.hold(Some(renewed), Origin::Renewed))
    }

    fn make_do(
        &self,
        entry: Entry,
        now: u64,
        error: SignInError,
    ) -> Result<Option<Authorization>, SignInError> {
        if entry.token.as_ref().is_none_or(|token| token.is_over(now)) {
            return Err(error);
        }
        tracing::warn!(%error, "a token could not be refreshed before it expires");
        Ok(bearer(&entry))
    }
}

fn bearer(entry: &Entry) -> Option<Authorization> {
    entry
        .token
        .as_ref()
        .and_then(|token| Authorization::bearer(&token.access))
}

fn since_1970() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn seconds() -> u64 {
    since_1970().as_secs()
}

fn milliseconds() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreSettings;

    #[test]
    fn sign_in_can_be_spawned_on_any_runtime() {
        fn check(_: &impl Send) {}
        let endpoint = Url::parse("https://a.example/mcp").unwrap();
        let sign_in = SignIn::new(Settings::new(endpoint, StoreSettings::at("/nowhere")));
        check(&sign_in.authorization());
        check(&sign_in.refused(401, &[]));
        check(&sign_in.login());
        check(&sign_in.logout());
    }
}
