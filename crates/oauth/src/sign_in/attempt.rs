//! One go at a token, with the lock in hand: renew it, or have someone sign in.

use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;
use url::Url;

use super::exchange::{self, Granted, NotRenewed};
use super::remedy::{Case, Demand, Origin, Remedy, remedy};
use super::{Inner, Limits, bearer, milliseconds, seconds};
use crate::browser::Person;
use crate::callback::Expected;
use crate::callback::listener::{At, Listener};
use crate::discovery::{Discovered, discover};
use crate::error::SignInError;
use crate::guard::shown;
use crate::registration::{self, Choice, Client};
use crate::scope;
use crate::secret::{Authorization, Secret};
use crate::settings::Grant;
use crate::store::{Entry, Failure, Lock, Record};

const CLIENT_NAME: &str = "Rialto";

/// One go at a token, with the lock in hand.
pub(super) struct Attempt<'a> {
    pub(super) inner: &'a Inner,
    pub(super) limits: &'a mut Limits,
    pub(super) lock: Lock,
    pub(super) record: Record,
    pub(super) grant: Grant,
    /// When the wait for the lock began, in milliseconds since 1970.
    pub(super) began: u64,
}

impl Attempt<'_> {
    pub(super) async fn satisfy(
        &mut self,
        used: Option<&Authorization>,
        demand: &Demand,
        challenge: &[String],
    ) -> Result<(), SignInError> {
        let inner = self.inner;
        let now = seconds();
        let entry = inner.pick(&self.record).cloned();
        if let Some(kept) = &entry
            && kept.token.as_ref().is_some_and(|token| token.is_fresh(now))
            && bearer(kept).as_ref() != used
        {
            // Another call or another process has been quicker.
            inner.hold(entry.clone(), Origin::Store);
            let enough = demand.scopes().iter().all(|scope| kept.scopes.contains(scope));
            if enough || matches!(demand, Demand::Token { .. }) {
                return Ok(());
            }
        }
        if let Some(failure) = self
            .record
            .failure
            .as_ref()
            .filter(|failure| failure.at >= self.began)
        {
            return Err(SignInError::Elsewhere {
                why: failure.why.clone(),
            });
        }
        match demand {
            Demand::Token { scopes } => self.replace(entry, scopes, challenge, now).await,
            Demand::Scopes { scopes } => self.widen(entry, scopes, challenge).await,
        }
    }

    /// After a 401.
    async fn replace(
        &mut self,
        entry: Option<Entry>,
        scopes: &[String],
        challenge: &[String],
        now: u64,
    ) -> Result<(), SignInError> {
        let inner = self.inner;
        let mut found = discover(inner.network()?, &inner.endpoint, challenge).await?;
        if let Some((entry, token)) = entry
            .as_ref()
            .and_then(|entry| Some((entry, entry.token.as_ref()?)))
        {
            let by_person = entry.grant == Grant::AuthorizationCode;
            let case = Case {
                origin: inner.held().origin,
                age: now.saturating_sub(token.received),
                renewable: by_person && token.refresh.is_some(),
                same_issuer: found.terms.issuer == entry.issuer,
            };
            match remedy(case) {
                Remedy::SignIn => {}
                Remedy::GiveUp => {
                    return Err(SignInError::StillRefused {
                        resource: inner.endpoint.to_string(),
                    });
                }
                Remedy::Renew => match renew(&mut found, entry, now).await {
                    Ok(renewed) => {
                        let renewed = Entry {
                            challenge: challenge.to_vec(),
                            ..renewed
                        };
                        self.keep(renewed, Origin::Renewed).await?;
                        return Ok(());
                    }
                    Err(NotRenewed::Failed(error)) => return Err(error),
                    Err(NotRenewed::Rejected) => {}
                    Err(NotRenewed::UnknownClient) => {
                        self.record.forget_client(&entry.issuer, &entry.client.id)
                    }
                },
            }
            // The manager of a failed refresh is used up.
            found = discover(inner.network()?, &inner.endpoint, challenge).await?;
        }
        self.obtain(found, scopes, &[], challenge).await.map(|_| ())
    }

    /// After a 403 that asks for more. A refresh cannot widen, so it is always a new sign-in.
    async fn widen(
        &mut self,
        entry: Option<Entry>,
        scopes: &[String],
        challenge: &[String],
    ) -> Result<(), SignInError> {
        let inner = self.inner;
        let granted = entry
            .as_ref()
            .map(|entry| entry.scopes.clone())
            .unwrap_or_default();
        if !self.limits.step_ups.another(scopes) {
            return Err(SignInError::ScopesNotGranted {
                resource: inner.endpoint.to_string(),
                scopes: scopes.join(" "),
            });
        }
        let found = discover(inner.network()?, &inner.endpoint, challenge).await?;
        self.obtain(found, scopes, &granted, challenge).await.map(|_| ())
    }

    /// A new token, by whichever grant; kept if it comes, and the failure if not.
    pub(super) async fn obtain(
        &mut self,
        found: Discovered,
        challenged: &[String],
        granted: &[String],
        challenge: &[String],
    ) -> Result<Entry, SignInError> {
        let scopes = scope::choose(scope::Known {
            challenged,
            configured: &self.inner.settings.scopes,
            resource: &found.resource_scopes,
            granted,
            authority: &found.terms.scopes,
        });
        let obtained = match (self.grant, self.inner.settings.person.clone()) {
            (Grant::ClientCredentials, _) => self.by_own_right(found, &scopes).await,
            (Grant::AuthorizationCode, None) => return Err(self.inner.login_needed(challenged)),
            (Grant::AuthorizationCode, Some(person)) => self.by_person(found, &person, &scopes).await,
        };
        match obtained {
            Ok(entry) => {
                let entry = Entry {
                    challenge: challenge.to_vec(),
                    ..entry
                };
                self.keep(entry.clone(), Origin::SignedIn).await?;
                Ok(entry)
            }
            Err(error) => {
                self.record.failure = Some(Failure {
                    at: milliseconds(),
                    why: error.to_string(),
                });
                self.inner.store.save(&self.lock, &self.record).await?;
                Err(error)
            }
        }
    }

    async fn by_own_right(&mut self, found: Discovered, scopes: &[String]) -> Result<Entry, SignInError> {
        let known = self.inner.pick(&self.record);
        let known = known
            .filter(|entry| entry.grant == Grant::ClientCredentials && entry.issuer == found.terms.issuer);
        let known = known.map(|entry| &entry.client);
        let client = match registration::choose(&self.inner.settings.identity, found.terms.offer(), known) {
            Choice::Known(client) => client,
            Choice::Register { .. } | Choice::Nothing | Choice::NoProof => return Err(no_proof(&found)),
        };
        let now = seconds();
        let entry = Entry::new(found.terms.issuer.clone(), found.resource.clone(), client);
        let Granted { token, scopes } =
            exchange::client_credentials(found, &entry.client, scopes, now).await?;
        Ok(Entry {
            scopes,
            token: Some(token),
            grant: Grant::ClientCredentials,
            ..entry
        })
    }

    async fn by_person(
        &mut self,
        mut found: Discovered,
        person: &Person,
        scopes: &[String],
    ) -> Result<Entry, SignInError> {
        found.terms.browser.clone()?;
        if !self.limits.windows.another(seconds()) {
            return Err(SignInError::StillRefused {
                resource: self.inner.endpoint.to_string(),
            });
        }
        let (listener, client) = self.client(&found, scopes).await?;
        let redirect_uri = listener.redirect_uri().to_string();
        exchange::introduce(&mut found, &client, &redirect_uri)?;
        let asked: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let url = found
            .manager
            .get_authorization_url(&asked)
            .with_subscriber(NoSubscriber::default())
            .await;
        let failed = |why: String| SignInError::Token {
            issuer: shown(&found.terms.issuer),
            why: shown(&why),
        };
        let url = Url::parse(&url.map_err(|error| failed(error.to_string()))?)
            .map_err(|error| failed(error.to_string()))?;
        let expected = Expected {
            state: state_of(&url).ok_or_else(|| failed("no state was made".to_owned()))?,
            issuer: found.terms.named.then(|| found.terms.issuer.clone()),
            names_itself: found.terms.names_itself,
        };
        // The answer may come while the page is still being opened.
        let answer = listener.answer(&expected, person.patience);
        tokio::pin!(answer);
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = person.show(&url) => answer.await,
        };
        if matches!(answer, Err(SignInError::NobodyCame { .. })) && client.registered_for.is_some() {
            // Perhaps the authorization server has forgotten the client and told the person so, and not us.
            self.record.forget_client(&found.terms.issuer, &client.id);
        }
        let Granted { token, scopes } =
            exchange::code(&found, &answer?, &expected.state, scopes, seconds()).await?;
        let entry = Entry::new(found.terms.issuer, found.resource, client);
        Ok(Entry {
            scopes,
            token: Some(token),
            ..entry
        })
    }

    /// Who we are there, and an open door at the address this client's answers go to.
    async fn client(&self, found: &Discovered, scopes: &[String]) -> Result<(Listener, Client), SignInError> {
        let inner = self.inner;
        let chosen = inner.settings.redirect_uri.as_ref();
        let earlier = self.record.registered_at(&found.terms.issuer);
        // A client that registered itself is good for its own port only; if that is taken now, it registers again.
        let earlier_uri = earlier.and_then(|client| Url::parse(client.registered_for.as_deref()?).ok());
        let (listener, earlier) = match (chosen, earlier_uri) {
            (Some(uri), earlier_uri) => {
                let same = earlier_uri.as_ref() == Some(uri);
                (
                    Listener::open(At::RedirectUri(uri)).await?,
                    earlier.filter(|_| same),
                )
            }
            (None, Some(uri)) => match Listener::open(At::RedirectUri(&uri)).await {
                Ok(listener) => (listener, earlier),
                Err(_) => (Listener::open(At::AnyPort).await?, None),
            },
            (None, None) => (Listener::open(At::AnyPort).await?, None),
        };
        let issuer = shown(&found.terms.issuer);
        let client = match registration::choose(&inner.settings.identity, found.terms.offer(), earlier) {
            Choice::Known(client) => client,
            Choice::Nothing => return Err(SignInError::NoRegistration { issuer }),
            Choice::NoProof => return Err(no_proof(found)),
            Choice::Register { endpoint, auth } => {
                let redirect_uri = listener.redirect_uri().as_str();
                let body = registration::request(CLIENT_NAME, redirect_uri, auth, scopes);
                let (status, answer) = inner.network()?.post_json(&endpoint, body).await?;
                registration::judge(status, &answer, redirect_uri, auth)
                    .map_err(|why| SignInError::Registration { issuer, why })?
            }
        };
        Ok((listener, client))
    }

    async fn keep(&mut self, entry: Entry, origin: Origin) -> Result<(), SignInError> {
        self.record.put(entry.clone());
        self.inner.store.save(&self.lock, &self.record).await?;
        self.inner.hold(Some(entry), origin);
        Ok(())
    }
}

fn no_proof(found: &Discovered) -> SignInError {
    let offered = found.terms.token_auth.clone().unwrap_or_default().join(", ");
    SignInError::NoClientAuthentication {
        issuer: shown(&found.terms.issuer),
        offered: shown(&offered),
    }
}

fn state_of(url: &Url) -> Option<Secret> {
    url.query_pairs()
        .find(|(name, _)| name == "state")
        .map(|(_, state)| Secret::new(state))
}

/// A refresh, if the resource still names the authorization server that issued the token.
pub(super) async fn renew(found: &mut Discovered, entry: &Entry, now: u64) -> Result<Entry, NotRenewed> {
    if found.terms.issuer != entry.issuer {
        return Err(NotRenewed::Rejected);
    }
    let Granted { token, scopes } = exchange::refresh(found, entry, now).await?;
    Ok(Entry {
        token: Some(token),
        scopes,
        ..entry.clone()
    })
}
