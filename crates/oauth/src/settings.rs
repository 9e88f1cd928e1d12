//! The settings of one sign-in.

use serde::{Deserialize, Serialize};
use url::Url;

use crate::browser::Browser;
use crate::error::SignInError;
use crate::http::HttpSettings;
use crate::registration::{Identity, is_client_id, is_metadata_url};
use crate::store::StoreSettings;

/// The OAuth grant by which a token is requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grant {
    /// A person signs in with a browser.
    #[default]
    AuthorizationCode,
    /// The client itself is entitled; it needs an id and a secret or a signing key, and no person.
    ClientCredentials,
}

/// For one remote resource and one process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The MCP endpoint.
    pub resource: Url,
    pub store: StoreSettings,
    /// Where people sign in. Without it, the error names the command to run.
    pub browser: Option<Browser>,
    pub identity: Identity,
    /// For a client registered by hand: where its answers go. A loopback address with a port.
    pub redirect_uri: Option<Url>,
    /// Asked for besides what the server wants.
    pub scopes: Vec<String>,
    pub grant: Grant,
    /// Whether people may sign in at one origin and their codes be sent to another, without RFC
    /// 9207.
    pub allow_split_authority: bool,
    pub http: HttpSettings,
    /// Do nothing that lasts or is seen until [`SignIn::wake`](crate::SignIn::wake): no window, no
    /// refresh, no lock.
    ///
    /// Hosts start a copy only to probe it, and kill it a moment later.
    pub asleep: bool,
}

impl Settings {
    pub fn new(resource: Url, store: StoreSettings) -> Self {
        Self {
            resource,
            store,
            browser: None,
            identity: Identity::default(),
            redirect_uri: None,
            scopes: Vec::new(),
            grant: Grant::default(),
            allow_split_authority: false,
            http: HttpSettings::default(),
            asleep: false,
        }
    }

    /// Returns an error for settings that cannot work, before anything is requested.
    pub fn validate(&self) -> Result<(), SignInError> {
        let wrong = |text: &str| Err(SignInError::Settings(text.to_owned()));
        if let Some(uri) = &self.redirect_uri {
            let loopback = matches!(uri.host_str(), Some("127.0.0.1" | "localhost"));
            if uri.scheme() != "http"
                || !loopback
                || uri.port().is_none()
                || uri.query().is_some()
                || uri.fragment().is_some()
            {
                return wrong(
                    "a redirect URI must look like http://127.0.0.1:PORT/callback or http://localhost:PORT/callback",
                );
            }
        }
        if self
            .identity
            .metadata_url
            .as_ref()
            .is_some_and(|url| !is_metadata_url(url))
        {
            return wrong("a client-id metadata document must be at an https URL with a path");
        }
        if self
            .identity
            .client_id
            .as_ref()
            .is_some_and(|id| !is_client_id(id))
        {
            return wrong("a client id has visible ASCII characters only");
        }
        if self.identity.issuer.as_ref().is_some_and(|issuer| {
            !Url::parse(issuer).is_ok_and(|issuer| issuer.origin().is_tuple() && issuer.query().is_none())
        }) {
            return wrong("an issuer must be a URL, such as https://login.example.com");
        }
        if self.identity.client_secret.is_some() && self.identity.client_id.is_none() {
            return wrong("a client secret needs a client id");
        }
        let (secret, key) = (&self.identity.client_secret, &self.identity.client_key);
        if key.is_some() && (secret.is_some() || self.identity.client_id.is_none()) {
            return wrong("a signing key needs a client id, and no client secret beside it");
        }
        if key.is_some() && self.grant != Grant::ClientCredentials {
            return wrong("a signing key is for client credentials; a person signs in without it");
        }
        if self.grant == Grant::ClientCredentials && secret.is_none() && key.is_none() {
            return wrong("client credentials need a client id, and a client secret or a signing key");
        }
        Ok(())
    }
}

/// Compares everything but the functions of the browser, which cannot be compared.
impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        (&self.resource, &self.store, &self.identity, &self.redirect_uri)
            == (
                &other.resource,
                &other.store,
                &other.identity,
                &other.redirect_uri,
            )
            && (&self.scopes, self.grant, &self.http, self.asleep)
                == (&other.scopes, other.grant, &other.http, other.asleep)
            && self.allow_split_authority == other.allow_split_authority
            && self.browser.is_some() == other.browser.is_some()
    }
}

impl Eq for Settings {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use crate::signing::SigningKey;

    fn settings() -> Settings {
        Settings::new(
            Url::parse("https://a.example/mcp").unwrap(),
            StoreSettings::at("/nowhere"),
        )
    }

    #[test]
    fn redirect_uri_is_a_loopback_address_with_a_port() {
        for (uri, good) in [
            ("http://127.0.0.1:8765/callback", true),
            ("http://localhost:8765/", true),
            ("http://localhost/callback", false),
            ("https://127.0.0.1:8765/callback", false),
            ("http://evil.example:8765/callback", false),
            ("http://127.0.0.1:8765/callback?x=1", false),
        ] {
            let settings = Settings {
                redirect_uri: Some(Url::parse(uri).unwrap()),
                ..settings()
            };
            assert_eq!(settings.validate().is_ok(), good, "{uri}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_errors() {
        let mut broken = settings();
        broken.identity.client_secret = Some(Secret::new("s"));
        assert!(broken.validate().is_err());
        let mut broken = settings();
        broken.identity.metadata_url = Some(Url::parse("https://a.example/").unwrap());
        assert!(broken.validate().is_err());
        let broken = Settings {
            grant: Grant::ClientCredentials,
            ..settings()
        };
        assert!(broken.validate().is_err());
        let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let mut signed = Settings {
            grant: Grant::ClientCredentials,
            ..settings()
        };
        signed.identity.client_key = SigningKey::from_pem(&pem);
        assert!(signed.validate().is_err(), "no id");
        signed.identity.client_id = Some("robot".into());
        assert!(signed.validate().is_ok());
        signed.identity.client_secret = Some(Secret::new("s"));
        assert!(signed.validate().is_err(), "a secret too");
        signed.identity.client_secret = None;
        signed.grant = Grant::AuthorizationCode;
        assert!(signed.validate().is_err(), "a person");
        assert!(settings().validate().is_ok());
    }
}
