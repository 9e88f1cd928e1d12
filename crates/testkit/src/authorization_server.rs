//! A protected MCP endpoint and its authorization server, on one loopback port, as strict as a good
//! one and as wrong as a test wants.
//!
//! It keeps accounts: every request is noted, codes and refresh tokens are good once, PKCE and
//! `resource` are checked, and a client authenticates the way it was registered. [`Conduct`] names
//! what it does wrong, and can be changed while it runs. It grants every sign-in without asking:
//! [`browser::visit`] stands for the user.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub mod browser;
mod form;
mod server;
mod tokens;

use form::Form;
use tokens::Accounts;

/// Where the resource's metadata is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceMetadata {
    /// At a place of its own, which the challenge names.
    Advertised,
    /// At the well-known place with the endpoint's path; the challenge is silent.
    WellKnownPath,
    /// At the root's well-known place.
    WellKnownRoot,
    /// Nowhere, as in 2025-03-26.
    Absent,
}

/// Where the authorization server's metadata is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorizationServerMetadata {
    OAuth,
    /// OpenID's name, put before the path of the issuer.
    OpenIdInserted,
    /// OpenID's name, after the path.
    OpenIdAppended,
    Absent,
}

/// How it behaves. The default is right in everything.
#[derive(Debug, Clone)]
pub struct Conduct {
    pub resource_metadata: ResourceMetadata,
    pub server_metadata: AuthorizationServerMetadata,
    /// The path of the issuer, such as `/tenant`.
    pub issuer_path: String,
    /// Serves the authorization server's metadata at this path instead.
    pub metadata_path: Option<String>,
    /// Members of the two documents that are to be other than they should; null removes one.
    pub resource_overrides: BTreeMap<String, Value>,
    pub server_overrides: BTreeMap<String, Value>,
    /// Where requests for the authorization server's metadata are sent instead.
    pub redirect_metadata_to: Option<String>,
    /// Bytes of padding in the authorization server's metadata.
    pub padding: usize,
    pub registration: bool,
    /// Tokens can be given back at `/revoke`.
    pub revocation: bool,
    /// A client that was registered by hand, with its secret.
    pub client_by_hand: Option<(String, Option<String>)>,
    /// The public key of the client by hand, in PEM form (P-256): it signs, and has no secret.
    pub client_key: Option<String>,
    /// In the challenge of a 401.
    pub challenge_scope: Option<String>,
    /// What a token needs, or 403.
    pub needed_scope: Option<String>,
    /// Refuses every token with 401.
    pub refuses_tokens: bool,
    /// The answer's `iss`, and its `state` if that is not the one that was sent.
    pub answer_issuer: Option<String>,
    pub answer_state: Option<String>,
    /// Answers every sign-in with this error.
    pub denies: Option<String>,
    pub expires_in: Option<u64>,
    pub refresh_tokens: bool,
    /// Grants this instead of what was asked for.
    pub grants_scope: Option<String>,
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            resource_metadata: ResourceMetadata::Advertised,
            server_metadata: AuthorizationServerMetadata::OAuth,
            issuer_path: String::new(),
            metadata_path: None,
            resource_overrides: BTreeMap::new(),
            server_overrides: BTreeMap::new(),
            redirect_metadata_to: None,
            padding: 0,
            registration: true,
            revocation: true,
            client_by_hand: None,
            client_key: None,
            challenge_scope: None,
            needed_scope: None,
            refuses_tokens: false,
            answer_issuer: None,
            answer_state: None,
            denies: None,
            expires_in: Some(3600),
            refresh_tokens: true,
            grants_scope: None,
        }
    }
}

/// One request that came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    /// Query and form together.
    pub form: HashMap<String, String>,
    pub body: String,
    pub authorization: Option<String>,
}

/// The running server; it ends when dropped.
#[derive(Debug)]
pub struct AuthorizationServer {
    shared: Arc<Shared>,
    _stop: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    conduct: Conduct,
    seen: Vec<Seen>,
    accounts: Accounts,
}

impl AuthorizationServer {
    /// # Panics
    /// If no port or no thread is to be had.
    pub fn start(conduct: Conduct) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port");
        listener
            .set_nonblocking(true)
            .expect("a socket that does not block");
        let address = listener.local_addr().expect("an address");
        let state = State {
            conduct,
            seen: Vec::new(),
            accounts: Accounts::default(),
        };
        let shared = Arc::new(Shared {
            address,
            state: Mutex::new(state),
        });
        let (stop, stopped) = oneshot::channel();
        let served = shared.clone();
        std::thread::Builder::new()
            .name("authority".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime
                    .expect("a runtime")
                    .block_on(serve(listener, served, stopped));
            })
            .expect("a thread");
        Self { shared, _stop: stop }
    }

    /// The protected endpoint.
    pub fn endpoint(&self) -> String {
        self.shared.url("/mcp")
    }

    pub fn url(&self, path: &str) -> String {
        self.shared.url(path)
    }

    pub fn issuer(&self) -> String {
        let path = self.shared.lock().conduct.issuer_path.clone();
        self.shared.url(&path)
    }

    pub fn change(&self, change: impl FnOnce(&mut Conduct)) {
        change(&mut self.shared.lock().conduct);
    }

    /// Every request to a path so far, in order.
    pub fn seen(&self, path: &str) -> Vec<Seen> {
        self.shared
            .lock()
            .seen
            .iter()
            .filter(|seen| seen.path == path)
            .cloned()
            .collect()
    }

    pub fn paths(&self) -> Vec<String> {
        self.shared
            .lock()
            .seen
            .iter()
            .map(|seen| seen.path.clone())
            .collect()
    }

    /// Makes every token that was issued so far worthless, refresh tokens too if wanted.
    pub fn revoke(&self, refresh_tokens: bool) {
        self.shared.lock().accounts.revoke(refresh_tokens);
    }
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    let listener = TcpListener::from_std(listener).expect("a listener of this runtime");
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let shared = shared.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(shared.clone(), request));
                    let connection = hyper::server::conn::http1::Builder::new();
                    // A client that goes away is its own business.
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        }
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, std::convert::Infallible> {
    let (parts, body) = request.into_parts();
    let body = match Limited::new(body, 1024 * 1024).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(_) => return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE)),
    };
    let mut form = Form::parse(parts.uri.query().unwrap_or_default());
    if !body.starts_with('{') {
        form.add(&body);
    }
    let authorization = parts
        .headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let path = parts.uri.path().to_owned();
    let mut state = shared.lock();
    state.seen.push(Seen {
        method: parts.method.to_string(),
        path: path.clone(),
        form: form.all(),
        body: body.clone(),
        authorization: authorization.clone(),
    });
    let State {
        conduct, accounts, ..
    } = &mut *state;
    let site = Site {
        shared: &shared,
        conduct,
    };
    Ok(match (&parts.method, path.as_str()) {
        (_, "/mcp") => site.resource(authorization.as_deref(), &body, accounts),
        (&Method::GET, "/authorize") => site.authorize(&form, accounts),
        (&Method::POST, "/token") => site.token(&form, authorization.as_deref(), accounts),
        (&Method::POST, "/revoke") if conduct.revocation => {
            accounts.take_back(&form);
            plain(StatusCode::OK)
        }
        (&Method::POST, "/register") if conduct.registration => json_answer(
            StatusCode::CREATED,
            &accounts.register(&serde_json::from_str(&body).unwrap_or_default()),
        ),
        (&Method::GET, path) => site.document(path),
        _ => plain(StatusCode::NOT_FOUND),
    })
}

impl Shared {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is answered, given how to behave.
struct Site<'a> {
    shared: &'a Shared,
    conduct: &'a Conduct,
}

impl Site<'_> {
    fn resource(&self, authorization: Option<&str>, body: &str, accounts: &Accounts) -> Answer {
        let token = authorization.and_then(|value| value.strip_prefix("Bearer "));
        let granted = token
            .and_then(|token| accounts.scopes_of(token))
            .filter(|_| !self.conduct.refuses_tokens);
        let mut challenge = match self.conduct.resource_metadata {
            ResourceMetadata::Advertised => {
                format!("Bearer resource_metadata=\"{}\"", self.shared.url("/about/mcp"))
            }
            ResourceMetadata::WellKnownPath | ResourceMetadata::WellKnownRoot | ResourceMetadata::Absent => {
                "Bearer realm=\"mcp\"".to_owned()
            }
        };
        let Some(granted) = granted else {
            if let Some(scope) = &self.conduct.challenge_scope {
                challenge.push_str(&format!(", scope=\"{scope}\""));
            }
            return challenged(StatusCode::UNAUTHORIZED, &challenge);
        };
        match &self.conduct.needed_scope {
            Some(needed)
                if !needed
                    .split(' ')
                    .all(|scope| granted.iter().any(|have| have == scope)) =>
            {
                challenge.push_str(&format!(", error=\"insufficient_scope\", scope=\"{needed}\""));
                challenged(StatusCode::FORBIDDEN, &challenge)
            }
            _ => server::answer(body),
        }
    }

    fn authorize(&self, form: &Form, accounts: &mut Accounts) -> Answer {
        let Some(redirect_uri) = form.get("redirect_uri") else {
            return plain(StatusCode::BAD_REQUEST);
        };
        let mut answer = vec![(
            "state",
            self.conduct.answer_state.clone().unwrap_or(form.owned("state")),
        )];
        if let Some(issuer) = &self.conduct.answer_issuer {
            answer.push(("iss", issuer.clone()));
        }
        match &self.conduct.denies {
            Some(error) => answer.push(("error", error.clone())),
            None => match accounts.code(form, self.conduct, &self.shared.url("")) {
                Ok(code) => answer.push(("code", code)),
                Err(error) => return error_answer(error),
            },
        }
        let mut response = plain(StatusCode::FOUND);
        let location = format!("{redirect_uri}?{}", form::encode(&answer));
        response
            .headers_mut()
            .insert(LOCATION, location.parse().expect("a location"));
        response
    }

    fn token(&self, form: &Form, authorization: Option<&str>, accounts: &mut Accounts) -> Answer {
        let issuer = self.shared.url(&self.conduct.issuer_path);
        match accounts.exchange(form, authorization, self.conduct, &issuer) {
            Ok(token) => json_answer(StatusCode::OK, &token),
            Err(error) => error_answer(error),
        }
    }

    fn document(&self, path: &str) -> Answer {
        let conduct = self.conduct;
        let resource = match conduct.resource_metadata {
            ResourceMetadata::Advertised => "/about/mcp",
            ResourceMetadata::WellKnownPath => "/.well-known/oauth-protected-resource/mcp",
            ResourceMetadata::WellKnownRoot => "/.well-known/oauth-protected-resource",
            ResourceMetadata::Absent => "",
        };
        if path == resource {
            let document = json!({
                "resource": self.shared.url("/mcp"),
                "authorization_servers": [self.shared.url(&conduct.issuer_path)],
            });
            return json_answer(StatusCode::OK, &overridden(document, &conduct.resource_overrides));
        }
        let tenant = &conduct.issuer_path;
        let authorization_server = match conduct.server_metadata {
            AuthorizationServerMetadata::OAuth => format!("/.well-known/oauth-authorization-server{tenant}"),
            AuthorizationServerMetadata::OpenIdInserted => {
                format!("/.well-known/openid-configuration{tenant}")
            }
            AuthorizationServerMetadata::OpenIdAppended => {
                format!("{tenant}/.well-known/openid-configuration")
            }
            AuthorizationServerMetadata::Absent => String::new(),
        };
        if path != conduct.metadata_path.as_ref().unwrap_or(&authorization_server) {
            return plain(StatusCode::NOT_FOUND);
        }
        if let Some(elsewhere) = &conduct.redirect_metadata_to {
            let mut response = plain(StatusCode::FOUND);
            response
                .headers_mut()
                .insert(LOCATION, elsewhere.parse().expect("a location"));
            return response;
        }
        let mut document = json!({
            "issuer": self.shared.url(tenant),
            "authorization_endpoint": self.shared.url("/authorize"),
            "token_endpoint": self.shared.url("/token"),
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "padding": " ".repeat(conduct.padding),
        });
        if conduct.revocation {
            document["revocation_endpoint"] = self.shared.url("/revoke").into();
        }
        if conduct.registration {
            document["registration_endpoint"] = self.shared.url("/register").into();
        }
        json_answer(StatusCode::OK, &overridden(document, &conduct.server_overrides))
    }
}

fn overridden(mut document: Value, overrides: &BTreeMap<String, Value>) -> Value {
    for (name, value) in overrides {
        match (document.as_object_mut(), value) {
            (Some(members), Value::Null) => drop(members.remove(name)),
            (Some(members), value) => drop(members.insert(name.clone(), value.clone())),
            (None, _) => {}
        }
    }
    document
}

fn plain(status: StatusCode) -> Answer {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

fn challenged(status: StatusCode, challenge: &str) -> Answer {
    let mut response = plain(status);
    response
        .headers_mut()
        .insert(WWW_AUTHENTICATE, challenge.parse().expect("a challenge"));
    response
}

fn json_answer(status: StatusCode, document: &Value) -> Answer {
    let mut response = Response::new(Full::from(document.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", "application/json".parse().expect("a type"));
    response
}

fn error_answer(error: &str) -> Answer {
    let status = if error == "invalid_client" {
        StatusCode::UNAUTHORIZED
    } else {
        StatusCode::BAD_REQUEST
    };
    json_answer(status, &json!({ "error": error }))
}
