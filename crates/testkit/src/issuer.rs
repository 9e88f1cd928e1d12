//! A stand-in for an authorization server: metadata, a set of keys, and tokens signed with them.
//!
//! It signs any claims that a test wants, changes its keys, goes away, and counts how often its
//! keys were fetched. It issues no tokens over HTTP; a real provider does that in another test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::failure::{Failure, Result};

const HOUR: u64 = 60 * 60;

/// A running issuer; it ends with the test's runtime.
#[derive(Debug, Clone)]
pub struct Issuer {
    url: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The last one signs; all of them are published.
    keys: Vec<SigningKey>,
    keys_made: usize,
    fetches: usize,
    is_down: bool,
}

struct SigningKey {
    id: String,
    key: EncodingKey,
    public: Value,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("fetches", &self.fetches)
            .finish_non_exhaustive()
    }
}

impl Issuer {
    /// Listens on loopback with one fresh key.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let issuer = Self {
            url: format!("http://{}", listener.local_addr()?),
            state: Arc::default(),
        };
        issuer.rotate()?;
        let serving = issuer.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "the testkit may not use the product's tasks"
        )]
        tokio::spawn(async move { serving.serve(listener).await });
        Ok(issuer)
    }

    /// The issuer's name, which is where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How often the set of keys was asked for.
    pub fn fetches(&self) -> usize {
        self.state().fetches
    }

    /// From now on it answers nothing but 503, or answers again.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// Signs with a fresh key from now on; the older ones stay published.
    pub fn rotate(&self) -> Result<()> {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(|_| Failure::new("no key could be made"))?;
        let key = EncodingKey::from_ec_der(document.as_ref());
        let public = Jwk::from_encoding_key(&key, Algorithm::ES256)
            .map_err(|error| Failure::new(format!("a key without a public half: {error}")))?;
        let mut public = serde_json::to_value(public)?;
        let mut state = self.state();
        state.keys_made += 1;
        let id = format!("key-{}", state.keys_made);
        public["kid"] = json!(id);
        public["use"] = json!("sig");
        state.keys.push(SigningKey { id, key, public });
        Ok(())
    }

    /// Publishes only the key that signs.
    pub fn withdraw_older_keys(&self) {
        let mut state = self.state();
        let newest = state.keys.pop();
        state.keys = newest.into_iter().collect();
    }

    /// Returns a good token for an hour, for this subject and audience. Further claims replace or
    /// add to these.
    pub fn token(&self, subject: &str, audience: &str, further: Value) -> String {
        let now = now();
        let mut claims = json!({
            "iss": self.url, "sub": subject, "aud": audience,
            "iat": now, "exp": now + HOUR,
        });
        for (name, value) in further.as_object().into_iter().flatten() {
            claims[name] = value.clone();
        }
        self.sign(&claims, None)
    }

    /// Signs exactly these claims; under another key's name, if one is given.
    ///
    /// # Panics
    /// When the library cannot sign.
    pub fn sign(&self, claims: &Value, key_id: Option<&str>) -> String {
        let state = self.state();
        let key = state.keys.last().expect("an issuer has a key");
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(key_id.unwrap_or(&key.id).to_owned());
        encode(&header, claims, &key.key).expect("claims can be signed")
    }

    /// The public half of the key that signs, as text.
    pub fn public_key(&self) -> String {
        self.state()
            .keys
            .last()
            .map(|key| key.public.to_string())
            .unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let issuer = self.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let response = issuer.answer(request.uri().path());
                async move { Ok::<_, std::convert::Infallible>(response) }
            });
            #[expect(
                clippy::disallowed_methods,
                reason = "the testkit may not use the product's tasks"
            )]
            tokio::spawn(async move {
                // A client that goes away is no concern of the issuer's.
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        let mut state = self.state();
        let (status, body) = match path {
            "/keys" => {
                state.fetches += 1;
                let keys: Vec<&Value> = state.keys.iter().map(|key| &key.public).collect();
                (200, json!({ "keys": keys }))
            }
            "/.well-known/oauth-authorization-server" => {
                let metadata = json!({
                    "issuer": self.url,
                    "jwks_uri": format!("{}/keys", self.url),
                    "authorization_endpoint": format!("{}/authorize", self.url),
                    "token_endpoint": format!("{}/token", self.url),
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                });
                (200, metadata)
            }
            _ => (404, json!({})),
        };
        let status = if state.is_down { 503 } else { status };
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        *response.status_mut() = hyper::StatusCode::from_u16(status).expect("a known status");
        response
    }
}

/// Seconds since 1970, as tokens have them.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
