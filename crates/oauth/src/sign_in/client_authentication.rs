//! Client authentication: how a client proves itself at an authorization server (RFC 6749, section
//! 2.3).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::registration::{Client, TokenAuth};
use crate::secret::Secret;
use crate::signing;

/// The parameters of a request, encoded as a form.
///
/// Unlike the serializer behind it, a form may be held over an `await` in a task that moves between
/// threads.
#[derive(Default)]
pub(super) struct Form(String);

impl Form {
    pub(super) fn append_pair(&mut self, name: &str, value: &str) -> &mut Self {
        let mut serializer = Serializer::new(std::mem::take(&mut self.0));
        self.0 = serializer.append_pair(name, value).finish();
        self
    }
}

/// A form that carries, or goes with, the proof of its client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AuthenticatedForm {
    pub(super) form: Secret,
    /// The value of the header `Authorization`.
    pub(super) authorization: Option<Secret>,
}

/// Adds the proof of a client with a secret, or the id of one without.
///
/// Returns nothing for a client that signs.
pub(super) fn with_secret(client: &Client, mut form: Form) -> Option<AuthenticatedForm> {
    let secret = client.secret.as_ref().map(Secret::expose);
    let authorization = match (client.auth, secret) {
        (TokenAuth::Signed, _) => return None,
        (TokenAuth::Basic, Some(secret)) => {
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let pair = format!("{}:{}", encoded(&client.id), encoded(secret));
            Some(Secret::new(format!("Basic {}", STANDARD.encode(pair))))
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
    Some(AuthenticatedForm {
        form: Secret::new(form.0),
        authorization,
    })
}

/// Adds the assertion that a client signs for this issuer (RFC 7523, section 2.2). The assertion
/// has the id in it.
pub(super) fn with_assertion(
    client: &Client,
    issuer: &str,
    mut form: Form,
    now: u64,
) -> Option<AuthenticatedForm> {
    let key = client.secret.as_ref()?;
    let assertion = signing::assertion(key.expose(), &client.id, issuer, now)?;
    form.append_pair(
        "client_assertion_type",
        "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    );
    form.append_pair("client_assertion", assertion.expose());
    Some(AuthenticatedForm {
        form: Secret::new(form.0),
        authorization: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertion_replaces_the_client_id() {
        let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let client = Client {
            id: "robot".into(),
            secret: Some(Secret::new(pem)),
            auth: TokenAuth::Signed,
            registered_for: None,
        };
        let form = Form::default();
        let signed = with_assertion(&client, "https://auth.example.com", form, 1000).unwrap();
        let names: Vec<_> = url::form_urlencoded::parse(signed.form.expose().as_bytes())
            .map(|(name, _)| name.into_owned())
            .collect();
        assert_eq!(names, ["client_assertion_type", "client_assertion"]);
        assert_eq!(with_secret(&client, Form::default()), None);
    }
}
