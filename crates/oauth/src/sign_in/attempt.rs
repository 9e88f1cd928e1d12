//! One attempt at a token under the lock of the store: a refresh, or a new sign-in.

use url::Url;

use super::authorization_request::AuthorizationRequest;
use super::challenge::{Case, Demand, NextStep, Origin, next_step};
use super::token_request::{self, Granted, NotRenewed, no_client_authentication};
use super::{Limits, SharedSignIn, bearer, milliseconds, seconds};
use crate::browser::Browser;
use crate::callback::Expected;
use crate::callback::listener::{At, Listener};
use crate::discovery::{Discovered, discover};
use crate::error::SignInError;
use crate::issuer;
use crate::registration::{self, Choice, Client};
use crate::scope;
use crate::secret::Authorization;
use crate::settings::Grant;
use crate::store::{Binding, Entry, Failure, Lock, Record};
use crate::url_policy::printable;

const CLIENT_NAME: &str = "Rialto";

/// One attempt at a token, under the lock of the store.
pub(super) struct Attempt<'a> {
    pub(super) shared: &'a SharedSignIn,
    pub(super) limits: &'a mut Limits,
    pub(super) lock: Lock,
    pub(super) record: Record,
    pub(super) grant: Grant,
    /// When the wait for the lock began, in milliseconds since 1970.
    pub(super) began: u64,
    /// Whether `rialto login` started it, and not a refusal by the server.
    pub(super) is_login: bool,
}

impl Attempt<'_> {
    pub(super) async fn satisfy(
        &mut self,
        used: Option<&Authorization>,
        demand: &Demand,
        challenge: &[String],
    ) -> Result<(), SignInError> {
        let shared = self.shared;
        let now = seconds();
        let entry = shared.pick(&self.record).cloned();
        if let Some(kept) = &entry
            && kept.token.as_ref().is_some_and(|token| token.is_fresh(now))
            && bearer(kept).as_ref() != used
        {
            // Another call or another process has renewed it.
            shared.hold(entry.clone(), Origin::Store);
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
            Demand::Token { scopes } => Box::pin(self.replace(entry, scopes, challenge, now)).await,
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
        let shared = self.shared;
        let found = discover(shared.network()?, &shared.endpoint, challenge).await?;
        if let Some((entry, token)) = entry
            .as_ref()
            .and_then(|entry| Some((entry, entry.token.as_ref()?)))
        {
            let by_person = entry.grant == Grant::AuthorizationCode;
            let case = Case {
                origin: shared.held().origin,
                age: now.saturating_sub(token.received),
                renewable: by_person && token.refresh.is_some(),
                same_issuer: entry.is_from(&found.terms.issuer, &found.terms.origins),
            };
            match next_step(case) {
                NextStep::SignIn => {}
                NextStep::Fail => {
                    return Err(SignInError::StillRefused {
                        resource: shared.endpoint.to_string(),
                    });
                }
                NextStep::Renew => match renew(&found, entry, now).await {
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
        let shared = self.shared;
        let granted = entry
            .as_ref()
            .map(|entry| entry.scopes.clone())
            .unwrap_or_default();
        if !self.limits.step_ups.another(scopes) {
            return Err(SignInError::ScopesNotGranted {
                resource: shared.endpoint.to_string(),
                scopes: scopes.join(" "),
            });
        }
        let found = discover(shared.network()?, &shared.endpoint, challenge).await?;
        self.obtain(found, scopes, &granted, challenge).await.map(|_| ())
    }

    /// Requests a new token by the grant of this attempt, and stores it, or how the request failed.
    pub(super) async fn obtain(
        &mut self,
        found: Discovered,
        challenged: &[String],
        granted: &[String],
        challenge: &[String],
    ) -> Result<Entry, SignInError> {
        if let Some(named) = &self.shared.settings.identity.issuer
            && !issuer::is_same(named, &found.terms.issuer)
        {
            return Err(SignInError::NotTheIssuer {
                resource: self.shared.endpoint.to_string(),
                found: printable(&found.terms.issuer),
                named: printable(named),
            });
        }
        let scopes = scope::choose(scope::Known {
            challenged,
            configured: &self.shared.settings.scopes,
            resource: &found.resource_scopes,
            granted,
            authority: &found.terms.scopes,
        });
        let obtained = match (self.grant, self.shared.settings.browser.clone()) {
            (Grant::ClientCredentials, _) => self.by_client_credentials(&found, &scopes).await,
            (Grant::AuthorizationCode, None) => return Err(self.shared.login_needed(challenged)),
            (Grant::AuthorizationCode, Some(browser)) => self.by_browser(&found, &browser, &scopes).await,
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
                self.shared.store.save(&self.lock, &self.record).await?;
                Err(error)
            }
        }
    }

    async fn by_client_credentials(
        &mut self,
        found: &Discovered,
        scopes: &[String],
    ) -> Result<Entry, SignInError> {
        let known = self.shared.pick(&self.record);
        let known = known.filter(|entry| entry.grant == Grant::ClientCredentials);
        let known = known.map(|entry| &entry.client);
        let client = match registration::choose(&self.shared.settings.identity, found.terms.offer(), known) {
            Choice::Known(client) => client,
            Choice::Register { .. } | Choice::Nothing | Choice::NoProof => {
                return Err(no_client_authentication(found));
            }
        };
        self.bind(found, &client).await?;
        let now = seconds();
        let origins = Some(found.terms.origins.clone());
        let entry = Entry::new(found.terms.issuer.clone(), found.resource.clone(), client);
        let Granted { token, scopes } =
            token_request::client_credentials(found, &entry.client, scopes, now).await?;
        Ok(Entry {
            scopes,
            token: Some(token),
            grant: Grant::ClientCredentials,
            origins,
            ..entry
        })
    }

    /// Checks that the client may be used at this authorization server, and remembers that it is.
    ///
    /// This comes before the secret is sent: an exchange that fails has shown the secret as well.
    async fn bind(&mut self, found: &Discovered, client: &Client) -> Result<(), SignInError> {
        if !client.is_by_hand() {
            return Ok(());
        }
        let terms = &found.terms;
        let binding = Binding {
            client: client.id.clone(),
            issuer: terms.issuer.clone(),
            token_origin: Some(terms.origins.token.clone()),
        };
        let named = self.shared.settings.identity.issuer.is_some();
        let resource = self.shared.endpoint.to_string();
        match self.record.binding(&client.id) {
            Some(known) if !issuer::is_same(&known.issuer, &terms.issuer) => {
                // With `--issuer` the operator has chosen; it was compared before.
                if !named {
                    return Err(SignInError::OtherIssuer {
                        resource,
                        found: printable(&terms.issuer),
                        client: printable(&client.id),
                        known: printable(&known.issuer),
                    });
                }
            }
            Some(known)
                if !self.is_login
                    && known
                        .token_origin
                        .as_ref()
                        .is_some_and(|origin| *origin != terms.origins.token) =>
            {
                return Err(SignInError::MovedTokenEndpoint {
                    issuer: printable(&terms.issuer),
                    host: printable(&terms.origins.token),
                    resource,
                });
            }
            Some(known) if known == binding => return Ok(()),
            Some(_) | None => {}
        }
        self.record.bind(binding);
        self.shared.store.save(&self.lock, &self.record).await
    }

    async fn by_browser(
        &mut self,
        found: &Discovered,
        browser: &Browser,
        scopes: &[String],
    ) -> Result<Entry, SignInError> {
        let endpoint = found.terms.authorization_endpoint.clone()?;
        if let Some(split) = found.terms.split.clone()
            && !self.shared.settings.allow_split_authority
        {
            return Err(split);
        }
        if !self.limits.windows.another(seconds()) {
            return Err(SignInError::StillRefused {
                resource: self.shared.endpoint.to_string(),
            });
        }
        let (listener, client) = self.client(found, scopes).await?;
        self.bind(found, &client).await?;
        let request = AuthorizationRequest::new(
            &endpoint,
            &client.id,
            listener.redirect_uri(),
            &found.resource,
            scopes,
        );
        let expected = Expected {
            state: request.state.clone(),
            issuer: found.terms.named.then(|| found.terms.issuer.clone()),
            names_itself: found.terms.names_itself,
        };
        // The answer may come while the page is still being opened.
        let answer = listener.answer(&expected, browser.timeout);
        tokio::pin!(answer);
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = browser.show(&request.url) => answer.await,
        };
        if matches!(answer, Err(SignInError::SignInTimeout { .. })) && client.registered_for.is_some() {
            // The authorization server may have forgotten the client, and shown that in the browser
            // only.
            self.record.forget_client(&found.terms.issuer, &client.id);
        }
        let answer = answer?;
        let Granted { token, scopes } =
            token_request::code(found, &client, &request, &answer, scopes, seconds()).await?;
        let entry = Entry::new(found.terms.issuer.clone(), found.resource.clone(), client);
        Ok(Entry {
            scopes,
            token: Some(token),
            origins: Some(found.terms.origins.clone()),
            ..entry
        })
    }

    /// Returns the client to sign in as, and a listener at its redirect URI.
    async fn client(&self, found: &Discovered, scopes: &[String]) -> Result<(Listener, Client), SignInError> {
        let shared = self.shared;
        let chosen = shared.settings.redirect_uri.as_ref();
        let earlier = self.record.registered_at(&found.terms.issuer);
        // A client that registered itself is good for its own port only; if that is taken now, it
        // registers again.
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
        let issuer = printable(&found.terms.issuer);
        let client = match registration::choose(&shared.settings.identity, found.terms.offer(), earlier) {
            Choice::Known(client) => client,
            Choice::Nothing => return Err(SignInError::NoRegistration { issuer }),
            Choice::NoProof => return Err(no_client_authentication(found)),
            Choice::Register { endpoint, auth } => {
                let redirect_uri = listener.redirect_uri().as_str();
                let body = registration::request(CLIENT_NAME, redirect_uri, auth, scopes);
                let registered = match shared.network()?.post_json(&endpoint, body).await {
                    Ok(answer) => registration::read_registration(
                        answer.status.as_u16(),
                        &answer.body,
                        redirect_uri,
                        auth,
                    )
                    .map_err(|why| SignInError::Registration { issuer, why }),
                    Err(error) => Err(error),
                };
                // The endpoint was assumed, as in 2025-03-26; without it the server has no sign-in.
                let token_needed = |_| SignInError::TokenNeeded {
                    resource: shared.endpoint.to_string(),
                };
                match found.published {
                    true => registered?,
                    false => registered.map_err(token_needed)?,
                }
            }
        };
        Ok((listener, client))
    }

    async fn keep(&mut self, entry: Entry, origin: Origin) -> Result<(), SignInError> {
        self.record.put(entry.clone());
        self.shared.store.save(&self.lock, &self.record).await?;
        self.shared.hold(Some(entry), origin);
        Ok(())
    }
}

/// A refresh, if the resource still names the authorization server that issued the token, at the
/// same place.
pub(super) async fn renew(found: &Discovered, entry: &Entry, now: u64) -> Result<Entry, NotRenewed> {
    if !entry.is_from(&found.terms.issuer, &found.terms.origins) {
        return Err(NotRenewed::Rejected);
    }
    let origins = entry
        .origins
        .clone()
        .unwrap_or_else(|| found.terms.origins.clone());
    let Granted { token, scopes } = token_request::refresh(found, entry, now).await?;
    Ok(Entry {
        token: Some(token),
        scopes,
        origins: Some(origins),
        ..entry.clone()
    })
}
