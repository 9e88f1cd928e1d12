//! The OAuth client that Rialto is at an authorization server: registered by hand, described by a
//! client-id metadata document, or registered now (dynamic client registration, RFC 7591).

use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use crate::secret::Secret;
use crate::signing::SigningKey;
use crate::url_policy::printable;

/// How a client proves itself at the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TokenAuth {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
    /// By its signature. Only an operator registers such a client, because the server must know its
    /// key.
    #[serde(rename = "private_key_jwt")]
    Signed,
}

impl TokenAuth {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Basic => "client_secret_basic",
            Self::Post => "client_secret_post",
            Self::Signed => "private_key_jwt",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Basic, Self::Post]
            .into_iter()
            .find(|method| method.name() == name)
    }

    /// For a client with or without a secret, out of what the authorization server offers.
    ///
    /// No list means `client_secret_basic` (RFC 8414, section 2), but a public client is what a
    /// native program is, so one without a secret is tried as such.
    pub(crate) fn choose(offered: Option<&[String]>, secret: bool) -> Option<Self> {
        let Some(offered) = offered else {
            return Some(if secret { Self::Basic } else { Self::None });
        };
        let ranked = if secret {
            [Self::Basic, Self::Post, Self::None]
        } else {
            [Self::None; 3]
        };
        ranked
            .into_iter()
            .find(|method| offered.iter().any(|name| name == method.name()))
    }

    /// What to ask for when registering: public if that is possible.
    pub(crate) fn to_register(offered: Option<&[String]>) -> Option<Self> {
        Self::choose(offered, false).or_else(|| Self::choose(offered, true))
    }
}

/// A client at one authorization server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) id: String,
    /// For [`TokenAuth::Signed`] the private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Secret>,
    pub(crate) auth: TokenAuth,
    /// Set if it was registered by Rialto: with this redirect URI, and good for no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) registered_for: Option<String>,
}

impl Client {
    /// Returns whether the operator gave this client a secret or a key, which belongs to one
    /// authorization server.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.secret.is_some() && self.registered_for.is_none()
    }
}

/// What the operator configured to identify Rialto with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// A client registered by hand.
    pub client_id: Option<String>,
    pub client_secret: Option<Secret>,
    /// In place of a secret, for client credentials.
    pub client_key: Option<SigningKey>,
    /// The address of a client-id metadata document that describes this program.
    pub metadata_url: Option<Url>,
    /// The only authorization server to sign in at. Without it, a secret or key belongs to the
    /// first that was used.
    pub issuer: Option<String>,
}

/// How the client is come by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    Known(Client),
    Register {
        endpoint: String,
        auth: TokenAuth,
    },
    /// The authorization server takes no registration.
    Nothing,
    /// Its token endpoint wants a proof that Rialto cannot give.
    NoProof,
}

/// What of the authorization server's metadata matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'a> {
    pub(crate) metadata_documents: bool,
    pub(crate) registration: Option<&'a str>,
    pub(crate) token_auth: Option<&'a [String]>,
}

/// By hand, else by document, else by an earlier registration, else by a new one (2025-11-25,
/// "Client Registration Approaches").
pub(crate) fn choose(identity: &Identity, offer: Offer<'_>, earlier: Option<&Client>) -> Choice {
    let by_hand =
        |id: &str, secret: Option<&Secret>| match TokenAuth::choose(offer.token_auth, secret.is_some()) {
            Some(auth) => Choice::Known(Client {
                id: id.to_owned(),
                secret: secret.filter(|_| auth != TokenAuth::None).cloned(),
                auth,
                registered_for: None,
            }),
            None => Choice::NoProof,
        };
    if let (Some(id), Some(key)) = (&identity.client_id, &identity.client_key) {
        let auth = TokenAuth::Signed;
        let taken = |offered: &[String]| offered.iter().any(|name| name == auth.name());
        return match offer.token_auth.is_none_or(taken) {
            true => Choice::Known(Client {
                id: id.clone(),
                secret: Some(key.pem().clone()),
                auth,
                registered_for: None,
            }),
            false => Choice::NoProof,
        };
    }
    if let Some(id) = &identity.client_id {
        return match by_hand(id, identity.client_secret.as_ref()) {
            // A client without a secret was registered as a public one, even if the list has other
            // methods only.
            Choice::NoProof if identity.client_secret.is_none() => Choice::Known(Client {
                id: id.clone(),
                secret: None,
                auth: TokenAuth::None,
                registered_for: None,
            }),
            choice => choice,
        };
    }
    if let Some(url) = identity
        .metadata_url
        .as_ref()
        .filter(|_| offer.metadata_documents)
    {
        return Choice::Known(Client {
            id: url.to_string(),
            secret: None,
            auth: TokenAuth::None,
            registered_for: None,
        });
    }
    if let Some(earlier) = earlier {
        return Choice::Known(earlier.clone());
    }
    match (offer.registration, TokenAuth::to_register(offer.token_auth)) {
        (Some(endpoint), Some(auth)) => Choice::Register {
            endpoint: endpoint.to_owned(),
            auth,
        },
        (Some(_), None) => Choice::NoProof,
        (None, _) => Choice::Nothing,
    }
}

/// Returns whether a client id has the characters that one may have (RFC 6749, appendix A.1).
pub(crate) fn is_client_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A client-id metadata document must be at an https URL with a path (2025-11-25, "Client ID
/// Metadata Documents").
pub(crate) fn is_metadata_url(url: &Url) -> bool {
    url.scheme() == "https" && url.path() != "/" && url.fragment().is_none() && url.username().is_empty()
}

/// Returns the body of a registration request.
pub(crate) fn request(name: &str, redirect_uri: &str, auth: TokenAuth, scopes: &[String]) -> Vec<u8> {
    let mut body = json!({
        "client_name": name,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": auth.name(),
        // Without it an OpenID provider takes us for a web site and refuses a loopback address
        // (2026-07-28).
        "application_type": "native",
    });
    if !scopes.is_empty() {
        body["scope"] = scopes.join(" ").into();
    }
    body.to_string().into_bytes()
}

/// Reads the answer to a registration request.
pub(crate) fn read_registration(
    status: u16,
    body: &[u8],
    redirect_uri: &str,
    asked: TokenAuth,
) -> Result<Client, String> {
    #[derive(Deserialize)]
    struct Registered {
        client_id: Option<String>,
        client_secret: Option<Secret>,
        token_endpoint_auth_method: Option<String>,
        error: Option<String>,
        error_description: Option<String>,
    }
    let Ok(registered) = serde_json::from_slice::<Registered>(body) else {
        return Err(format!("status {status}, and no JSON"));
    };
    if !(200..300).contains(&status) {
        let words = [registered.error, registered.error_description]
            .into_iter()
            .flatten();
        let words = words.map(|text| printable(&text)).collect::<Vec<_>>().join(", ");
        return Err(format!("status {status} {words}").trim_end().to_owned());
    }
    let Some(id) = registered.client_id.filter(|id| !id.is_empty()) else {
        return Err("no client_id in the answer".to_owned());
    };
    if !is_client_id(&id) {
        return Err("a client_id with characters that are no visible ASCII".to_owned());
    }
    // Some answer with an empty secret for a public client.
    let secret = registered
        .client_secret
        .filter(|secret| !secret.expose().is_empty());
    let auth = match registered.token_endpoint_auth_method.as_deref() {
        Some(name) => TokenAuth::named(name).ok_or_else(|| format!("registered for {}", printable(name)))?,
        // Servers that leave it out mean what was requested, unless they sent a secret unrequested.
        None if asked == TokenAuth::None && secret.is_some() => TokenAuth::Basic,
        None => asked,
    };
    if auth != TokenAuth::None && secret.is_none() {
        return Err(format!("registered for {} without a secret", auth.name()));
    }
    Ok(Client {
        id,
        secret: secret.filter(|_| auth != TokenAuth::None),
        auth,
        registered_for: Some(redirect_uri.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLBACK: &str = "http://127.0.0.1:4711/callback";

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|&name| name.to_owned()).collect()
    }

    fn offer(documents: bool, registration: Option<&str>) -> Offer<'_> {
        Offer {
            metadata_documents: documents,
            registration,
            token_auth: None,
        }
    }

    fn by_document() -> Identity {
        Identity {
            metadata_url: Some(Url::parse("https://rialto.example/client.json").unwrap()),
            ..Identity::default()
        }
    }

    fn id(choice: &Choice) -> Option<&str> {
        match choice {
            Choice::Known(client) => Some(&client.id),
            Choice::Register { .. } | Choice::Nothing | Choice::NoProof => None,
        }
    }

    #[test]
    fn client_registered_by_hand_goes_first() {
        let identity = Identity {
            client_id: Some("mine".into()),
            ..by_document()
        };
        assert_eq!(id(&choose(&identity, offer(true, Some("r")), None)), Some("mine"));
    }

    #[test]
    fn metadata_document_goes_before_registration_where_it_is_supported() {
        let choice = choose(&by_document(), offer(true, Some("r")), None);
        assert_eq!(id(&choice), Some("https://rialto.example/client.json"));
        let choice = choose(&by_document(), offer(false, Some("r")), None);
        assert_eq!(
            choice,
            Choice::Register {
                endpoint: "r".into(),
                auth: TokenAuth::None
            }
        );
    }

    #[test]
    fn server_without_any_way_to_register_gets_no_client() {
        assert_eq!(choose(&by_document(), offer(false, None), None), Choice::Nothing);
        let token_auth = names(&["tls_client_auth"]);
        let offer = Offer {
            metadata_documents: false,
            registration: Some("r"),
            token_auth: Some(&token_auth),
        };
        assert_eq!(choose(&Identity::default(), offer, None), Choice::NoProof);
    }

    #[test]
    fn earlier_registration_is_used_again() {
        let earlier = read_registration(201, br#"{"client_id":"c7"}"#, CALLBACK, TokenAuth::None).unwrap();
        assert_eq!(
            id(&choose(
                &Identity::default(),
                offer(false, Some("r")),
                Some(&earlier)
            )),
            Some("c7")
        );
    }

    #[test]
    fn client_authentication_is_a_method_that_the_server_offers() {
        let choose = |offered: &[&str], secret| TokenAuth::choose(Some(&names(offered)), secret);
        assert_eq!(
            choose(&["client_secret_post", "client_secret_basic"], true),
            Some(TokenAuth::Basic)
        );
        assert_eq!(choose(&["client_secret_post"], true), Some(TokenAuth::Post));
        assert_eq!(choose(&["none"], true), Some(TokenAuth::None));
        assert_eq!(choose(&["client_secret_post"], false), None);
        assert_eq!(
            TokenAuth::to_register(Some(&names(&["client_secret_post"]))),
            Some(TokenAuth::Post)
        );
        assert_eq!(TokenAuth::to_register(None), Some(TokenAuth::None));
    }

    #[test]
    fn registration_request_is_for_a_native_program() {
        let body: serde_json::Value =
            serde_json::from_slice(&request("Rialto", CALLBACK, TokenAuth::None, &[])).unwrap();
        assert_eq!(body["application_type"], "native");
        assert_eq!(body["redirect_uris"][0], CALLBACK);
        assert_eq!(body.get("scope"), None);
    }

    #[test]
    fn registered_client_is_what_the_server_answers() {
        let read = |body: &str| read_registration(201, body.as_bytes(), CALLBACK, TokenAuth::None);
        let plain = read(r#"{"client_id":"c","client_secret":""}"#).unwrap();
        assert_eq!((plain.auth, plain.secret), (TokenAuth::None, None));
        let secret = read(r#"{"client_id":"c","client_secret":"s"}"#).unwrap();
        assert_eq!(secret.auth, TokenAuth::Basic);
        let post = read(
            r#"{"client_id":"c","client_secret":"s","token_endpoint_auth_method":"client_secret_post"}"#,
        );
        assert_eq!(post.unwrap().auth, TokenAuth::Post);
        assert!(read(r#"{"client_id":"c","token_endpoint_auth_method":"client_secret_post"}"#).is_err());
        for id in ["", r"\u001b]0;pwn\u0007", "caf\u{e9}", r"a\nb", r"\u007f"] {
            assert!(read(&format!(r#"{{"client_id":"{id}"}}"#)).is_err(), "{id}");
        }
        assert!(read("<html>").is_err());
    }

    #[test]
    fn refused_registration_is_reported_without_control_characters() {
        let body = br#"{"error":"invalid_redirect_uri","error_description":"\u001b[31mno"}"#;
        let why = read_registration(400, body, CALLBACK, TokenAuth::None).unwrap_err();
        assert!(
            why.contains("invalid_redirect_uri") && !why.contains('\u{1b}'),
            "{why}"
        );
    }
}
