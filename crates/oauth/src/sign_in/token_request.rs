//! The three token requests: for a code, for a refresh token, for the client's own credentials (RFC
//! 6749).
//!
//! Each of them names the resource (RFC 8707), so that the token is good for that resource alone.

use serde::Deserialize;

use super::authorization_request::AuthorizationRequest;
use super::client_authentication::{AuthenticatedForm, Form, with_assertion, with_secret};
use crate::callback::Code;
use crate::discovery::Discovered;
use crate::error::SignInError;
use crate::registration::{Client, TokenAuth};
use crate::scope;
use crate::secret::{Authorization, Secret};
use crate::store::{Entry, Token};
use crate::url_policy::printable;

/// A token, and the permissions that came with it.
#[derive(Debug)]
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

/// Exchanges the code of an authorization request for a token.
pub(super) async fn code(
    found: &Discovered,
    client: &Client,
    request: &AuthorizationRequest,
    code: &Code,
    scopes: &[String],
    now: u64,
) -> Result<Granted, SignInError> {
    let mut form = form("authorization_code", &found.resource, &[]);
    form.append_pair("code", code.0.expose())
        .append_pair("code_verifier", request.verifier.expose())
        .append_pair("redirect_uri", &request.redirect_uri);
    let form = with_secret(client, form).ok_or_else(|| no_client_authentication(found))?;
    let answer = send(found, form).await;
    let token = answer.map_err(|failure| no_token(found, failure))?;
    granted(token, scopes, now).map_err(|why| unusable(found, why))
}

/// Renews the token of an entry with its refresh token.
pub(super) async fn refresh(found: &Discovered, entry: &Entry, now: u64) -> Result<Granted, NotRenewed> {
    let Some(refresh) = entry.token.as_ref().and_then(|token| token.refresh.as_ref()) else {
        return Err(NotRenewed::Rejected);
    };
    let scopes = scope::with_offline_access(&entry.scopes, &found.terms.scopes);
    let mut form = form("refresh_token", &entry.resource, &scopes);
    form.append_pair("refresh_token", refresh.expose());
    let form = with_secret(&entry.client, form)
        .ok_or_else(|| NotRenewed::Failed(no_client_authentication(found)))?;
    let token = send(found, form).await.map_err(|failure| match failure {
        Failure::Request(error) => NotRenewed::Failed(error),
        Failure::Refused { code, .. } if code == "invalid_grant" => NotRenewed::Rejected,
        Failure::Refused { code, .. } if code == "invalid_client" => NotRenewed::UnknownClient,
        Failure::Refused { why, .. } => NotRenewed::Failed(SignInError::Refresh {
            resource: printable(&entry.resource),
            why: printable(&why),
        }),
    })?;
    let mut renewed =
        granted(token, &entry.scopes, now).map_err(|why| NotRenewed::Failed(unusable(found, why)))?;
    // A server that does not rotate leaves the refresh token out, and it stays good (RFC 6749,
    // section 6).
    renewed.token.refresh.get_or_insert_with(|| refresh.clone());
    Ok(renewed)
}

/// Requests a token in the client's own right.
pub(super) async fn client_credentials(
    found: &Discovered,
    client: &Client,
    scopes: &[String],
    now: u64,
) -> Result<Granted, SignInError> {
    let form = client_credentials_form(found, client, scopes, now);
    let form = form.ok_or_else(|| no_client_authentication(found))?;
    let answer = send(found, form).await;
    let token = answer.map_err(|failure| no_token(found, failure))?;
    granted(token, scopes, now).map_err(|why| unusable(found, why))
}

/// Returns nothing if the client has no secret and no key for this server.
fn client_credentials_form(
    found: &Discovered,
    client: &Client,
    scopes: &[String],
    now: u64,
) -> Option<AuthenticatedForm> {
    let form = form("client_credentials", &found.resource, scopes);
    // An assertion is made for an issuer, so a server without metadata gets none.
    let issuer = Some(&found.terms.issuer).filter(|_| found.terms.named);
    match (client.auth, &client.secret) {
        (TokenAuth::Signed, _) => with_assertion(client, issuer?, form, now),
        (TokenAuth::Basic | TokenAuth::Post, Some(_)) => with_secret(client, form),
        (TokenAuth::Basic | TokenAuth::Post, None) | (TokenAuth::None, _) => None,
    }
}

fn form(grant_type: &str, resource: &str, scopes: &[String]) -> Form {
    let mut form = Form::default();
    form.append_pair("grant_type", grant_type)
        .append_pair("resource", resource);
    if !scopes.is_empty() {
        form.append_pair("scope", &scopes.join(" "));
    }
    form
}

/// Why a token request gave no token.
enum Failure {
    /// The request failed before an answer was read.
    Request(SignInError),
    /// The answer is not a token. The code is empty if the answer has none.
    Refused { code: String, why: String },
}

async fn send(found: &Discovered, request: AuthenticatedForm) -> Result<TokenResponse, Failure> {
    let AuthenticatedForm { form, authorization } = request;
    let endpoint = &found.terms.token_endpoint;
    let sent = found.network.post_form(endpoint, &form, authorization.as_ref());
    let response = sent.await.map_err(Failure::Request)?;
    if response.status.as_u16() != 200 {
        return Err(refusal(response.status.as_u16(), &response.body));
    }
    parse(&response.body).map_err(|why| Failure::Refused {
        code: String::new(),
        why: why.to_owned(),
    })
}

/// Reads an error response (RFC 6749, section 5.2).
fn refusal(status: u16, body: &[u8]) -> Failure {
    #[derive(Deserialize)]
    struct ErrorResponse {
        error: String,
        error_description: Option<String>,
    }
    match serde_json::from_slice::<ErrorResponse>(body) {
        Ok(ErrorResponse {
            error: code,
            error_description,
        }) => {
            let description = error_description.map(|text| format!(": {text}"));
            let why = format!("{code}{}", description.unwrap_or_default());
            Failure::Refused { code, why }
        }
        Err(_) => Failure::Refused {
            code: String::new(),
            why: format!("it answers with status {status}"),
        },
    }
}

/// A token response (RFC 6749, section 5.1).
#[derive(Debug, Deserialize)]
struct TokenResponse {
    access_token: Secret,
    token_type: String,
    expires_in: Option<u64>,
    refresh_token: Option<Secret>,
    scope: Option<String>,
}

fn parse(body: &[u8]) -> Result<TokenResponse, &'static str> {
    // The parser's own message could quote the answer, and with it a token.
    serde_json::from_slice(body).map_err(|_| "its answer is not a token response")
}

fn granted(answer: TokenResponse, requested: &[String], now: u64) -> Result<Granted, &'static str> {
    if !answer.token_type.eq_ignore_ascii_case("bearer") {
        return Err("it is not a bearer token");
    }
    if Authorization::bearer(&answer.access_token).is_none() {
        return Err("it is a token that no header can carry");
    }
    let refresh = answer.refresh_token;
    Ok(Granted {
        token: Token {
            access: answer.access_token,
            refresh: refresh.filter(|token| !token.expose().is_empty()),
            received: now,
            expires: answer.expires_in.map(|seconds| now.saturating_add(seconds)),
        },
        // Left out, it means that what was requested was granted.
        scopes: answer
            .scope
            .map_or_else(|| requested.to_vec(), |scopes| scope::parse(&scopes)),
    })
}

fn no_token(found: &Discovered, failure: Failure) -> SignInError {
    match failure {
        Failure::Request(error) => error,
        Failure::Refused { why, .. } => unusable(found, &why),
    }
}

fn unusable(found: &Discovered, why: &str) -> SignInError {
    SignInError::Token {
        issuer: printable(&found.terms.issuer),
        why: printable(why),
    }
}

pub(super) fn no_client_authentication(found: &Discovered) -> SignInError {
    let offered = found.terms.token_auth.clone().unwrap_or_default().join(", ");
    SignInError::NoClientAuthentication {
        issuer: printable(&found.terms.issuer),
        offered: printable(&offered),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(answer: Value) -> Result<Granted, &'static str> {
        let body = answer.to_string();
        parse(body.as_bytes()).and_then(|token| granted(token, &["asked".to_owned()], 1000))
    }

    #[test]
    fn bearer_token_is_accepted_with_its_expiry_and_scopes() {
        let granted =
            read(json!({"access_token":"a","token_type":"Bearer","expires_in":60,"scope":"r w"})).unwrap();
        assert_eq!(
            (granted.token.expires, granted.scopes.join(" ")),
            (Some(1060), "r w".to_owned())
        );
        let granted = read(json!({"access_token":"a","token_type":"bearer"})).unwrap();
        assert_eq!(
            (granted.token.expires, granted.scopes.join(" ")),
            (None, "asked".to_owned())
        );
    }

    #[test]
    fn token_of_another_type_and_broken_token_are_refused() {
        for answer in [
            json!({"access_token":"a","token_type":"DPoP"}),
            json!({"access_token":"a"}),
            json!({"access_token":"a\r\nb","token_type":"bearer"}),
            json!({"token_type":"bearer"}),
            json!({"access_token":"a","token_type":"bearer","expires_in":"soon"}),
            json!(["a"]),
        ] {
            assert!(read(answer.clone()).is_err(), "{answer}");
        }
    }

    #[test]
    fn refusal_names_its_code_and_description() {
        let refused = |status, body: &str| match refusal(status, body.as_bytes()) {
            Failure::Refused { code, why } => (code, why),
            Failure::Request(error) => panic!("{error}"),
        };
        assert_eq!(
            refused(400, r#"{"error":"invalid_grant","error_description":"used"}"#),
            ("invalid_grant".to_owned(), "invalid_grant: used".to_owned())
        );
        let no_code = (String::new(), "it answers with status 502".to_owned());
        assert_eq!(refused(502, "<html>"), no_code);
    }
}
