//! Authorization of requests to a remote server: the bearer token, and the retry when the server
//! challenges it.
//!
//! It decides nothing about signing in; that is `oauth`. A sign-in goes on even if the request that
//! caused it is abandoned: a person may take longer than a client waits, and the next request finds
//! the token.

use std::sync::Arc;

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};
use oauth::{Authorization, SignInError};
use protocol::delivery::AttemptOutcome;

use super::http_client::Response;
use super::server::{Outbound, Server};
use crate::tasks;

/// A request may need a token, then a better one, then one with more permissions.
const ROUNDS: usize = 3;
/// Challenges that are listened to, and how long one may be.
const MAX_CHALLENGES: usize = 8;
const MAX_CHALLENGE: usize = 4096;

/// Sends a request with the token there is; if the server refuses it, with another one.
pub(super) async fn signed(
    server: &Server,
    sign_in: &oauth::SignIn,
    outbound: &Outbound,
) -> Result<Response, AttemptOutcome> {
    let mut round = 0;
    loop {
        round += 1;
        let authorization = sign_in
            .authorization()
            .await
            .map_err(|error| not_signed_in(&error))?;
        let response = server.send_plain(&with(outbound, authorization.as_ref())).await?;
        let status = response.status().as_u16();
        if !matches!(status, 401 | 403) || round > ROUNDS {
            return Ok(response);
        }
        let challenges = challenges(response.headers());
        let sign_in = sign_in.clone();
        let renewal = tasks::spawn("sign-in", async move {
            sign_in
                .refused_using(authorization.as_ref(), status, &challenges)
                .await
        });
        match renewal.await {
            Ok(Ok(())) => {}
            // Not a matter of signing in: the server's answer stands.
            Ok(Err(SignInError::Forbidden { .. })) => return Ok(response),
            Ok(Err(error)) => return Err(not_signed_in(&error)),
            Err(_) => return Ok(response),
        }
    }
}

fn with(outbound: &Outbound, authorization: Option<&Authorization>) -> Outbound {
    let mut outbound = outbound.clone();
    if let Some(mut value) = authorization.and_then(|value| HeaderValue::from_str(value.expose()).ok()) {
        value.set_sensitive(true);
        Arc::make_mut(&mut outbound.headers).insert(AUTHORIZATION, value);
    }
    outbound
}

fn challenges(headers: &HeaderMap) -> Vec<String> {
    let values = headers
        .get_all(WWW_AUTHENTICATE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let short = values.filter(|value| value.len() <= MAX_CHALLENGE);
    short.take(MAX_CHALLENGES).map(str::to_owned).collect()
}

fn not_signed_in(error: &SignInError) -> AttemptOutcome {
    AttemptOutcome::NotSignedIn {
        what: error.to_string(),
    }
}
