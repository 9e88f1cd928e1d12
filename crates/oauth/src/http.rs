//! The HTTP client of signing in: every request to metadata, registration, token and revocation
//! endpoints.
//!
//! Each URL passes the URL policy before it is requested, and each name when it is resolved.
//! Documents have a size limit, exchanges a timeout. The client follows no redirect by itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use url::Url;

use crate::error::SignInError;
use crate::secret::Secret;
use crate::url_policy::{PolicyResolver, UrlPolicy, printable};

/// How metadata and token endpoints are requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// One whole exchange.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    /// The largest document that is read.
    pub document_limit: usize,
    /// Certificates in PEM form that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Hosts of the proxies in use, which may stand at a private address.
    pub proxy_hosts: Vec<String>,
    /// Whether names may resolve to private addresses.
    pub allow_private_addresses: bool,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(10),
            document_limit: 256 * 1024,
            ca_file: None,
            proxy_hosts: Vec::new(),
            allow_private_addresses: false,
        }
    }
}

/// The HTTP client for one resource, bound to the addresses that the resource's URL policy allows.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    client: reqwest::Client,
    pub(crate) policy: UrlPolicy,
    limit: usize,
}

impl Network {
    pub(crate) fn new(resource: &Url, settings: &HttpSettings) -> Result<Self, SignInError> {
        let policy = UrlPolicy::new(resource, settings.allow_private_addresses);
        let names = PolicyResolver::new(policy.clone(), settings.proxy_hosts.clone());
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Arc::new(names))
            .connect_timeout(settings.connect_timeout)
            .timeout(settings.timeout)
            .user_agent(concat!("rialto/", env!("CARGO_PKG_VERSION")));
        if policy.is_for_development() {
            builder = builder.no_proxy();
        }
        if let Some(file) = &settings.ca_file {
            builder = builder.tls_certs_merge(certificates(file).map_err(SignInError::Settings)?);
        }
        let client = builder
            .build()
            .map_err(|error| SignInError::Settings(error.to_string()))?;
        Ok(Self {
            client,
            policy,
            limit: settings.document_limit,
        })
    }

    /// Requests a metadata document. A redirect is returned, not followed.
    pub(crate) async fn get(&self, url: &Url) -> Result<Response, SignInError> {
        self.check(url)?;
        let request = self
            .client
            .get(url.clone())
            .header(ACCEPT, "application/json")
            // 2025-03-26, "Server Metadata Discovery", wants it on these requests.
            .header("mcp-protocol-version", "2025-03-26");
        self.send(url, request).await
    }

    /// Posts a JSON document, for registration.
    pub(crate) async fn post_json(&self, url: &str, body: Vec<u8>) -> Result<Response, SignInError> {
        let url = self.parse(url)?;
        let request = self
            .client
            .post(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(body);
        self.send(&url, request).await
    }

    /// Posts a form, for tokens and their revocation.
    pub(crate) async fn post_form(
        &self,
        url: &str,
        form: &Secret,
        authorization: Option<&Secret>,
    ) -> Result<Response, SignInError> {
        let url = self.parse(url)?;
        let mut request = self
            .client
            .post(url.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json")
            .body(form.expose().to_owned());
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization.expose());
        }
        self.send(&url, request).await
    }

    /// Sends a request to a URL that the policy allows, and reads the answer up to the limit.
    async fn send(&self, url: &Url, request: reqwest::RequestBuilder) -> Result<Response, SignInError> {
        let failed = |error: reqwest::Error| network_error(url, &error);
        let mut response = request.send().await.map_err(failed)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > self.limit {
                return Err(SignInError::TooLarge {
                    url: printable(url.as_str()),
                    limit: self.limit,
                });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Response {
            status: response.status(),
            headers: std::mem::take(response.headers_mut()),
            body,
        })
    }

    fn check(&self, url: &Url) -> Result<(), SignInError> {
        let allowed = self.policy.check_url(url);
        allowed.map_err(|error| SignInError::unreachable(url.as_str(), error))
    }

    fn parse(&self, url: &str) -> Result<Url, SignInError> {
        let allowed = self.policy.check(url);
        allowed.map_err(|error| SignInError::unreachable(url, error))
    }

    /// Requests the challenge of the MCP endpoint, with a `ping`, which changes nothing there.
    ///
    /// Returns nothing if the endpoint answers without a challenge. Reads only the head of the
    /// answer.
    pub(crate) async fn challenge(&self, endpoint: &Url) -> Result<Option<Vec<String>>, SignInError> {
        self.check(endpoint)?;
        let response = self
            .client
            .post(endpoint.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
            .send()
            .await
            .map_err(|error| network_error(endpoint, &error))?;
        let refused = response.status() == StatusCode::UNAUTHORIZED;
        Ok(refused.then(|| challenges(response.headers())))
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// Returns the values of `WWW-Authenticate`, at most eight of at most 4 KiB: they are stored with
/// the token.
pub(crate) fn challenges(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .filter(|value| value.len() <= 4096)
        .take(8)
        .map(str::to_owned)
        .collect()
}

fn certificates(file: &Path) -> Result<Vec<reqwest::Certificate>, String> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let found = reqwest::Certificate::from_pem_bundle(&text);
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| format!("{shown} holds no certificates"))
}

/// Names the innermost cause of a failure, and the URL without its query, which may be secret.
fn network_error(url: &Url, error: &reqwest::Error) -> SignInError {
    let mut source: Option<&dyn std::error::Error> = std::error::Error::source(error);
    let mut why = if error.is_timeout() {
        "it took too long".to_owned()
    } else {
        String::new()
    };
    while let Some(cause) = source {
        // The innermost cause is the most precise one.
        why = cause.to_string();
        source = cause.source();
    }
    if why.is_empty() {
        why = "the connection failed".to_owned();
    }
    let url = url.as_str();
    SignInError::Network {
        url: printable(url.split(['?', '#']).next().unwrap_or(url)),
        why: printable(&why),
    }
}
