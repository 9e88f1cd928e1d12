//! Token revocation at the authorization server (RFC 7009).
//!
//! The token is removed from the store even if that fails; only the server can end its use
//! elsewhere.

use url::Url;

use super::client_authentication::{AuthenticatedForm, Form, with_secret};
use crate::discovery::discover;
use crate::error::SignInError;
use crate::http::Network;
use crate::issuer;
use crate::registration::Client;
use crate::store::{Entry, Token};
use crate::url_policy::printable;

/// What became of the tokens of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogoutOutcome {
    /// None was stored.
    Nothing,
    /// The authorization server has ended their use.
    Revoked,
    /// They are removed from the store, and good until they expire.
    Forgotten { why: String },
}

/// Returns the request that revokes a token, or nothing for a client that signs: it signs for
/// tokens only.
///
/// A server that revokes a refresh token revokes its access tokens too, so that one is named if
/// there is one (section 2.1).
fn revocation(client: &Client, token: &Token) -> Option<AuthenticatedForm> {
    let (token, hint) = match &token.refresh {
        Some(refresh) => (refresh, "refresh_token"),
        None => (&token.access, "access_token"),
    };
    let mut form = Form::default();
    form.append_pair("token", token.expose())
        .append_pair("token_type_hint", hint);
    with_secret(client, form)
}

/// Revokes the token of one entry, if its authorization server supports that.
pub(super) async fn revoke(network: &Network, endpoint: &Url, entry: &Entry) -> Result<(), SignInError> {
    let Some(token) = &entry.token else { return Ok(()) };
    let not = |why: &str| SignInError::NotRevoked {
        issuer: printable(&entry.issuer),
        why: why.to_owned(),
    };
    let found = discover(network, endpoint, &entry.challenge).await?;
    if !entry.is_from(&found.terms.issuer, &found.terms.origins) {
        return Err(not("the resource names another authorization server now"));
    }
    let place = found
        .terms
        .revocation_endpoint
        .ok_or_else(|| not("it has no place for that"))?;
    // The metadata may name any host here, and that host could use the refresh token.
    let origin = issuer::origin(&place).unwrap_or_default();
    if origin != found.terms.origins.token {
        return Err(not(&format!(
            "its revocation endpoint is at {}, which gave no token",
            printable(&origin)
        )));
    }
    let request =
        revocation(&entry.client, token).ok_or_else(|| not("this client signs, which is not done here"))?;
    let sent = network.post_form(&place, &request.form, request.authorization.as_ref());
    match sent.await?.status.as_u16() {
        200 => Ok(()),
        status => Err(not(&format!("it answered {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;
    use crate::registration::TokenAuth;
    use crate::secret::Secret;

    fn client(auth: TokenAuth) -> Client {
        Client {
            id: "robot one".into(),
            secret: (auth != TokenAuth::None).then(|| Secret::new("a+b")),
            auth,
            registered_for: None,
        }
    }

    fn token(refresh: Option<&str>) -> Token {
        Token {
            access: Secret::new("at"),
            refresh: refresh.map(Secret::new),
            received: 0,
            expires: None,
        }
    }

    #[test]
    fn client_authenticates_as_for_a_token() {
        let of = |auth| revocation(&client(auth), &token(Some("rt"))).unwrap();
        let token = "token=rt&token_type_hint=refresh_token";
        assert_eq!(
            of(TokenAuth::None).form.expose(),
            format!("{token}&client_id=robot+one")
        );
        assert_eq!(
            of(TokenAuth::Post).form.expose(),
            format!("{token}&client_id=robot+one&client_secret=a%2Bb")
        );
        let basic = of(TokenAuth::Basic);
        let shown = STANDARD.encode("robot+one:a%2Bb");
        assert_eq!(
            (basic.form.expose(), basic.authorization),
            (token, Some(Secret::new(format!("Basic {shown}"))))
        );
        assert_eq!(
            revocation(&client(TokenAuth::Signed), &super::tests::token(None)),
            None
        );
    }

    #[test]
    fn access_token_is_revoked_if_there_is_no_refresh_token() {
        let request = revocation(&client(TokenAuth::None), &token(None)).unwrap();
        assert!(
            request
                .form
                .expose()
                .starts_with("token=at&token_type_hint=access_token"),
            "{}",
            request.form.expose()
        );
    }
}
