//! The three exchanges with an authorization server: a code, a refresh, the client's own credentials. rmcp makes them.

use rmcp::transport::auth::{
    AuthError, ClientCredentialsConfig, CredentialStore as _, InMemoryCredentialStore, OAuthClientConfig,
    OAuthTokenResponse, StoredCredentials,
};
use serde_json::{Value, json};
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use crate::callback::Code;
use crate::discovery::Discovered;
use crate::error::SignInError;
use crate::registration::{Client, TokenAuth};
use crate::scope;
use crate::secret::{Authorization, Secret};
use crate::signing;
use crate::store::{Entry, Token};
use crate::url_policy::printable;

/// A token, and the permissions that came with it.
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) scopes: Vec<String>,
}

/// Why a refresh gave nothing.
pub(super) enum NotRenewed {
    /// The refresh token is no longer good.
    Rejected,
    /// The authorization server does not know this client any more.
    UnknownClient,
    /// It may work later.
    Failed(SignInError),
}

/// Tells rmcp who we are.
pub(super) fn introduce(
    found: &mut Discovered,
    client: &Client,
    redirect_uri: &str,
) -> Result<(), SignInError> {
    found.settle_token_auth(client.auth);
    let mut config = OAuthClientConfig::new(&client.id, redirect_uri);
    if let Some(secret) = &client.secret {
        config = config.with_client_secret(secret.expose());
    }
    let issuer = found.terms.issuer.clone();
    found
        .manager
        .configure_client(config)
        .map_err(|error| no_token(&issuer, &error))
}

pub(super) async fn code(
    found: &Discovered,
    code: &Code,
    state: &Secret,
    requested: &[String],
    now: u64,
) -> Result<Granted, SignInError> {
    let exchange = found.manager.exchange_code_for_token_with_issuer(
        code.code.expose(),
        state.expose(),
        code.issuer.as_deref(),
    );
    // rmcp logs the code and what came for it, at debug level; nobody shall see that.
    let answer = exchange.with_subscriber(NoSubscriber::default()).await;
    let failed = |error| {
        found
            .edge
            .take_failure()
            .unwrap_or_else(|| no_token(&found.terms.issuer, &error))
    };
    granted(&answer.map_err(failed)?, requested, now, &found.terms.issuer)
}

pub(super) async fn refresh(found: &mut Discovered, entry: &Entry, now: u64) -> Result<Granted, NotRenewed> {
    let Some(token) = entry.token.as_ref() else {
        return Err(NotRenewed::Rejected);
    };
    let Some(refresh) = &token.refresh else {
        return Err(NotRenewed::Rejected);
    };
    let redirect_uri = entry
        .client
        .registered_for
        .as_deref()
        .unwrap_or("http://127.0.0.1/callback");
    introduce(found, &entry.client, redirect_uri).map_err(NotRenewed::Failed)?;
    let failed = |why: String| {
        NotRenewed::Failed(SignInError::Refresh {
            resource: printable(&entry.resource),
            why: printable(&why),
        })
    };
    // rmcp takes the refresh token out of a store, so it gets one with just that in it.
    let known: OAuthTokenResponse = serde_json::from_value(json!({
        "access_token": token.access.expose(),
        "token_type": "bearer",
        "refresh_token": refresh.expose(),
    }))
    .map_err(|error| failed(error.to_string()))?;
    let known = StoredCredentials::new(entry.client.id.clone(), Some(known), entry.scopes.clone(), None);
    let store = InMemoryCredentialStore::new();
    store
        .save(known)
        .await
        .map_err(|error| failed(error.to_string()))?;
    found.manager.set_credential_store(store);
    let answer = found
        .manager
        .refresh_token()
        .with_subscriber(NoSubscriber::default())
        .await;
    match answer {
        Ok(answer) => granted(&answer, &entry.scopes, now, &found.terms.issuer).map_err(NotRenewed::Failed),
        Err(AuthError::TokenRefreshRejected(_) | AuthError::AuthorizationRequired) => {
            Err(NotRenewed::Rejected)
        }
        // rmcp has texts for errors; this one has only its name in it.
        Err(AuthError::TokenRefreshFailed(why)) if why.contains("invalid_client") => {
            Err(NotRenewed::UnknownClient)
        }
        Err(error) => Err(match found.edge.take_failure() {
            Some(failure) => NotRenewed::Failed(failure),
            None => failed(error.to_string()),
        }),
    }
}

pub(super) async fn client_credentials(
    mut found: Discovered,
    client: &Client,
    scopes: &[String],
    now: u64,
) -> Result<Granted, SignInError> {
    let Some(config) = own_right(client, scopes, &found.resource) else {
        let offered = found.terms.token_auth.clone().unwrap_or_default().join(", ");
        return Err(SignInError::NoClientAuthentication {
            issuer: printable(&found.terms.issuer),
            offered: printable(&offered),
        });
    };
    found.settle_token_auth(client.auth);
    let issuer = found.terms.issuer.clone();
    found
        .manager
        .configure_client_credentials(&config)
        .map_err(|error| no_token(&issuer, &error))?;
    let Discovered { manager, edge, .. } = found;
    // rmcp holds something over an await here that no other thread may see, so it stays on one.
    let runtime = tokio::runtime::Handle::current();
    let exchange = tokio::task::spawn_blocking(move || {
        let exchange = manager.exchange_client_credentials(&config);
        runtime.block_on(exchange.with_subscriber(NoSubscriber::default()))
    });
    let failed = |error| edge.take_failure().unwrap_or_else(|| no_token(&issuer, &error));
    let answer = exchange.await.map_err(|error| SignInError::Token {
        issuer: printable(&issuer),
        why: error.to_string(),
    })?;
    granted(&answer.map_err(failed)?, scopes, now, &issuer)
}

/// How a client proves itself, if it can.
fn own_right(client: &Client, scopes: &[String], resource: &str) -> Option<ClientCredentialsConfig> {
    let client_id = client.id.clone();
    let secret = client.secret.as_ref()?.expose();
    let scopes = scopes.to_vec();
    let resource = Some(resource.to_owned());
    match client.auth {
        TokenAuth::None => None,
        TokenAuth::Basic | TokenAuth::Post => Some(ClientCredentialsConfig::ClientSecret {
            client_id,
            client_secret: secret.to_owned(),
            scopes,
            resource,
        }),
        TokenAuth::Signed => Some(ClientCredentialsConfig::PrivateKeyJwt {
            client_id,
            signing_key: secret.into(),
            signing_algorithm: signing::algorithm(secret)?,
            token_endpoint_audience: None,
            scopes,
            resource,
        }),
    }
}

fn no_token(issuer: &str, error: &AuthError) -> SignInError {
    SignInError::Token {
        issuer: printable(issuer),
        why: printable(&error.to_string()),
    }
}

/// rmcp's answer is a type of the crate below it; its JSON is what the standard says.
fn granted(
    answer: &OAuthTokenResponse,
    requested: &[String],
    now: u64,
    issuer: &str,
) -> Result<Granted, SignInError> {
    let failed = |why: String| SignInError::Token {
        issuer: printable(issuer),
        why,
    };
    let answer = serde_json::to_value(answer).map_err(|error| failed(error.to_string()))?;
    judge(&answer, requested, now).map_err(|why| failed(why.to_owned()))
}

/// A token answer (RFC 6749, section 5.1).
fn judge(answer: &Value, requested: &[String], now: u64) -> Result<Granted, &'static str> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err("it is not a bearer token");
    }
    let access = Secret::new(text("access_token").unwrap_or_default());
    if Authorization::bearer(&access).is_none() {
        return Err("it is a token that no header can carry");
    }
    let expires = answer
        .get("expires_in")
        .and_then(Value::as_u64)
        .map(|seconds| now.saturating_add(seconds));
    // Left out, it means that what was asked for was granted.
    let scopes = text("scope").map_or_else(|| requested.to_vec(), scope::parse);
    let refresh = text("refresh_token")
        .filter(|token| !token.is_empty())
        .map(Secret::new);
    Ok(Granted {
        token: Token {
            access,
            refresh,
            received: now,
            expires,
        },
        scopes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: Value) -> Result<Granted, &'static str> {
        judge(&answer, &["asked".to_owned()], 1000)
    }

    #[test]
    fn a_bearer_token_is_taken_with_its_end_and_its_permissions() {
        let granted =
            judged(json!({"access_token":"a","token_type":"Bearer","expires_in":60,"scope":"r w"})).unwrap();
        assert_eq!(
            (granted.token.expires, granted.scopes.join(" ")),
            (Some(1060), "r w".to_owned())
        );
        let granted = judged(json!({"access_token":"a","token_type":"bearer"})).unwrap();
        assert_eq!(
            (granted.token.expires, granted.scopes.join(" ")),
            (None, "asked".to_owned())
        );
    }

    #[test]
    fn other_kinds_of_tokens_and_broken_ones_are_refused() {
        for answer in [
            json!({"access_token":"a","token_type":"DPoP"}),
            json!({"access_token":"a"}),
            json!({"access_token":"a\r\nb","token_type":"bearer"}),
            json!({"token_type":"bearer"}),
        ] {
            assert!(judged(answer.clone()).is_err(), "{answer}");
        }
    }
}
