//! The accounts of the authorization server: clients, codes, tokens. Every rule that a client might
//! break is checked here.

use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Value, json};

use super::Conduct;
use super::form::{Form, decode};

#[derive(Debug, Default)]
pub(super) struct Accounts {
    clients: HashMap<String, Client>,
    codes: HashMap<String, Code>,
    refresh: HashMap<String, Grant>,
    access: HashMap<String, Vec<String>>,
    issued: u32,
}

#[derive(Debug, Clone)]
struct Client {
    secret: Option<String>,
    method: String,
    redirect_uri: Option<String>,
}

#[derive(Debug, Clone)]
struct Grant {
    client: String,
    scopes: Vec<String>,
    resource: String,
}

#[derive(Debug)]
struct Code {
    grant: Grant,
    challenge: String,
    redirect_uri: String,
}

/// An error code of RFC 6749.
type Refusal = &'static str;

impl Accounts {
    fn fresh(&mut self, what: &str) -> String {
        self.issued += 1;
        format!("{what}-{}", self.issued)
    }

    pub(super) fn scopes_of(&self, token: &str) -> Option<&Vec<String>> {
        self.access.get(token)
    }

    pub(super) fn revoke(&mut self, refresh_tokens: bool) {
        self.access.clear();
        if refresh_tokens {
            self.refresh.clear();
        }
    }

    /// A token that its client gives back: with a refresh token goes all that its client was given.
    pub(super) fn take_back(&mut self, form: &Form) {
        let token = form.owned("token");
        if self.refresh.remove(&token).is_some() {
            self.access.clear();
        }
        self.access.remove(&token);
    }

    pub(super) fn register(&mut self, request: &Value) -> Value {
        let id = self.fresh("client");
        let method = request["token_endpoint_auth_method"]
            .as_str()
            .unwrap_or("client_secret_basic")
            .to_owned();
        let secret = (method != "none").then(|| self.fresh("secret"));
        let redirect_uri = request["redirect_uris"][0].as_str().map(str::to_owned);
        let client = Client {
            secret: secret.clone(),
            method: method.clone(),
            redirect_uri,
        };
        self.clients.insert(id.clone(), client);
        let mut answer = json!({
            "client_id": id,
            "redirect_uris": request["redirect_uris"],
            "token_endpoint_auth_method": method,
        });
        if let Some(secret) = secret {
            answer["client_secret"] = secret.into();
        }
        answer
    }

    fn client(&self, id: &str, conduct: &Conduct) -> Option<Client> {
        let registered = self.clients.get(id).cloned();
        let by_hand = conduct
            .client_by_hand
            .as_ref()
            .filter(|(known, _)| known == id)
            .map(|(_, secret)| Client {
                secret: secret.clone(),
                method: if secret.is_some() {
                    "client_secret_basic".to_owned()
                } else {
                    "none".to_owned()
                },
                redirect_uri: None,
            });
        // The address of a metadata document is a client; the document itself is not fetched.
        let described = id.starts_with("https://").then(|| Client {
            secret: None,
            method: "none".to_owned(),
            redirect_uri: None,
        });
        registered.or(by_hand).or(described)
    }

    pub(super) fn code(&mut self, form: &Form, conduct: &Conduct, origin: &str) -> Result<String, Refusal> {
        let client = self
            .client(&form.owned("client_id"), conduct)
            .ok_or("invalid_client")?;
        let redirect_uri = form.owned("redirect_uri");
        let known = client.redirect_uri.is_none_or(|known| known == redirect_uri);
        let right = form.get("response_type") == Some("code")
            && form.get("code_challenge_method") == Some("S256")
            && form.get("state").is_some_and(|state| state.len() >= 16)
            && form
                .get("resource")
                .is_some_and(|resource| resource.starts_with(origin))
            && redirect_uri.starts_with("http://127.0.0.1:") | redirect_uri.starts_with("http://localhost:");
        if !known || !right {
            return Err("invalid_request");
        }
        let code = self.fresh("code");
        let asked = conduct.grants_scope.clone().unwrap_or(form.owned("scope"));
        let grant = Grant {
            client: form.owned("client_id"),
            scopes: asked.split_whitespace().map(str::to_owned).collect(),
            resource: form.owned("resource"),
        };
        let challenge = form.owned("code_challenge");
        self.codes.insert(
            code.clone(),
            Code {
                grant,
                challenge,
                redirect_uri,
            },
        );
        Ok(code)
    }

    pub(super) fn exchange(
        &mut self,
        form: &Form,
        authorization: Option<&str>,
        conduct: &Conduct,
        issuer: &str,
    ) -> Result<Value, Refusal> {
        let client = self.proven(form, authorization, conduct, issuer)?;
        let grant = match form.get("grant_type") {
            Some("authorization_code") => {
                let code = self.codes.remove(&form.owned("code")).ok_or("invalid_grant")?;
                let verifier = digest(&SHA256, form.owned("code_verifier").as_bytes());
                let matches = URL_SAFE_NO_PAD.encode(verifier.as_ref()) == code.challenge
                    && code.redirect_uri == form.owned("redirect_uri");
                if !matches {
                    return Err("invalid_grant");
                }
                code.grant
            }
            // Good once: rotated with every use.
            Some("refresh_token") => self
                .refresh
                .remove(&form.owned("refresh_token"))
                .ok_or("invalid_grant")?,
            Some("client_credentials") => Grant {
                client: client.clone(),
                scopes: form
                    .owned("scope")
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
                resource: form.owned("resource"),
            },
            _ => return Err("unsupported_grant_type"),
        };
        if grant.client != client {
            return Err("invalid_grant");
        }
        if form.get("resource") != Some(&grant.resource) || grant.resource.is_empty() {
            return Err("invalid_target");
        }
        let access = self.fresh("access");
        self.access.insert(access.clone(), grant.scopes.clone());
        let mut answer = json!({ "access_token": access, "token_type": "Bearer" });
        if let Some(seconds) = conduct.expires_in {
            answer["expires_in"] = seconds.into();
        }
        if !grant.scopes.is_empty() {
            answer["scope"] = grant.scopes.join(" ").into();
        }
        if conduct.refresh_tokens && form.get("grant_type") != Some("client_credentials") {
            let refresh = self.fresh("refresh");
            self.refresh.insert(refresh.clone(), grant);
            answer["refresh_token"] = refresh.into();
        }
        Ok(answer)
    }

    /// Returns the client of a request, authenticated by its registered method and no other.
    fn proven(
        &self,
        form: &Form,
        authorization: Option<&str>,
        conduct: &Conduct,
        issuer: &str,
    ) -> Result<String, Refusal> {
        if let Some(assertion) = form.get("client_assertion") {
            return signed(form, assertion, conduct, issuer).ok_or("invalid_client");
        }
        let basic = authorization
            .and_then(|value| value.strip_prefix("Basic "))
            .and_then(|value| {
                let text = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
                let (id, secret) = text.split_once(':')?;
                Some((decode(id), decode(secret)))
            });
        let (id, secret, method) = match (basic, form.get("client_secret")) {
            (Some((id, secret)), None) => (id, Some(secret), "client_secret_basic"),
            (None, Some(secret)) => (
                form.owned("client_id"),
                Some(secret.to_owned()),
                "client_secret_post",
            ),
            (None, None) => (form.owned("client_id"), None, "none"),
            (Some(_), Some(_)) => return Err("invalid_request"),
        };
        let client = self.client(&id, conduct).ok_or("invalid_client")?;
        let by_hand = conduct
            .client_by_hand
            .as_ref()
            .is_some_and(|(known, _)| *known == id);
        if client.secret != secret || (client.method != method && !by_hand) {
            return Err("invalid_client");
        }
        Ok(id)
    }
}

/// Returns the client that signed the assertion for this server and a short time (RFC 7523, section
/// 3).
fn signed(form: &Form, assertion: &str, conduct: &Conduct, issuer: &str) -> Option<String> {
    let (id, _) = conduct.client_by_hand.as_ref()?;
    let kind = form.get("client_assertion_type")?;
    let key = DecodingKey::from_ec_pem(conduct.client_key.as_ref()?.as_bytes()).ok()?;
    let mut rules = Validation::new(Algorithm::ES256);
    rules.set_required_spec_claims(&["exp", "aud", "iss", "sub"]);
    rules.set_issuer(&[id]);
    rules.sub = Some(id.clone());
    rules.set_audience(&[issuer]);
    jsonwebtoken::decode::<Value>(assertion, &key, &rules).ok()?;
    (kind == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer").then(|| id.clone())
}
