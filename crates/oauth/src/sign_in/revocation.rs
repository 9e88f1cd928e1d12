//! Telling an authorization server that a token is not wanted any more (RFC 7009).
//!
//! A token is forgotten here whatever comes of it; that it is also of no use to anybody else depends on the server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::discovery::discover;
use crate::error::SignInError;
use crate::http::Network;
use crate::issuer;
use crate::registration::{Client, TokenAuth};
use crate::store::{Entry, Token};
use crate::url_policy::printable;

/// What became of the tokens of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogoutOutcome {
    /// There were none.
    Nothing,
    /// They are of no use to anybody.
    Revoked,
    /// They are forgotten here, and good until they end.
    Forgotten { why: String },
}

/// What is said to revoke a token, in words of HTTP.
#[derive(Debug, PartialEq, Eq)]
struct Revocation {
    form: String,
    authorization: Option<String>,
}

/// With a refresh token goes what was had by it, so that one is named if there is one (section 2.1). `None`: the client would have
/// to prove itself in a way that is only known for asking for tokens.
fn revocation(client: &Client, token: &Token) -> Option<Revocation> {
    let mut form = Serializer::new(String::new());
    match &token.refresh {
        Some(refresh) => form
            .append_pair("token", refresh.expose())
            .append_pair("token_type_hint", "refresh_token"),
        None => form
            .append_pair("token", token.access.expose())
            .append_pair("token_type_hint", "access_token"),
    };
    let secret = client.secret.as_ref().map(|secret| secret.expose());
    let authorization = match (client.auth, secret) {
        (TokenAuth::Signed, _) => return None,
        (TokenAuth::Basic, Some(secret)) => {
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let pair = format!("{}:{}", encoded(&client.id), encoded(secret));
            Some(format!("Basic {}", STANDARD.encode(pair)))
        }
        (TokenAuth::Post, Some(secret)) => {
            form.append_pair("client_id", &client.id)
                .append_pair("client_secret", secret);
            None
        }
        (TokenAuth::None, _) | (TokenAuth::Basic | TokenAuth::Post, None) => {
            form.append_pair("client_id", &client.id);
            None
        }
    };
    Some(Revocation {
        form: form.finish(),
        authorization,
    })
}

/// Revokes what one entry holds, if its authorization server lets itself be told.
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
        .revocation_endpoint()
        .ok_or_else(|| not("it has no place for that"))?;
    let origin = issuer::origin(&place).unwrap_or_default();
    if !entry.may_be_revoked_at(&origin) {
        return Err(not(&format!(
            "its place for that has moved to {}, which gave no token",
            printable(&origin)
        )));
    }
    let told =
        revocation(&entry.client, token).ok_or_else(|| not("this client signs, which is not done here"))?;
    match network
        .post_form(&place, told.form, told.authorization.as_deref())
        .await?
    {
        200 => Ok(()),
        status => Err(not(&format!("it answered {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_client_proves_itself_as_for_a_token() {
        let of = |auth| revocation(&client(auth), &token(Some("rt"))).unwrap();
        let token = "token=rt&token_type_hint=refresh_token";
        assert_eq!(of(TokenAuth::None).form, format!("{token}&client_id=robot+one"));
        assert_eq!(
            of(TokenAuth::Post).form,
            format!("{token}&client_id=robot+one&client_secret=a%2Bb")
        );
        let basic = of(TokenAuth::Basic);
        let shown = STANDARD.encode("robot+one:a%2Bb");
        assert_eq!(
            (basic.form, basic.authorization),
            (token.into(), Some(format!("Basic {shown}")))
        );
        assert_eq!(
            revocation(&client(TokenAuth::Signed), &super::tests::token(None)),
            None
        );
    }

    #[test]
    fn without_a_refresh_token_the_access_token_goes() {
        let told = revocation(&client(TokenAuth::None), &token(None)).unwrap();
        assert!(
            told.form.starts_with("token=at&token_type_hint=access_token"),
            "{}",
            told.form
        );
    }
}
