//! The HTTP edge of signing in: every request to a metadata URL, a registration, an authorization server goes through here.
//!
//! rmcp is given this as its HTTP client. It adds what rmcp leaves to its client: the address guard, a limit to what is read,
//! timeouts, trust anchors; and it looks at what passes where rmcp is more lenient than it should be: a resource's metadata that speaks of another
//! resource ends the discovery, wherever it was found. Redirects are handed back, never followed: rmcp follows those of discovery
//! within the same origin, and each hop comes here again.
//!
//! rmcp begins a discovery by asking the endpoint for its challenge. We have had that challenge already, so the question is answered from
//! memory: nothing is sent.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{Method, StatusCode};
use parking_lot::{Mutex, MutexGuard};
use rmcp::transport::auth::{OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest};
use serde::Deserialize;
use url::Url;

use crate::error::SignInError;
use crate::url_policy::{PolicyResolver, UrlPolicy, printable};

/// Requests and answers as rmcp has them: whole bodies.
type Request = http::Request<Vec<u8>>;
type Response = http::Response<Vec<u8>>;

/// How metadata and token endpoints are asked.
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

/// One resource's view of the network.
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

    async fn send(&self, request: Request) -> Result<Response, SignInError> {
        let url = request.uri().to_string();
        let judged = self.policy.check(&url);
        if let Err(refusal) = judged {
            return Err(SignInError::Unreachable {
                url: printable(&url),
                refusal,
            });
        }
        let failed = |error: reqwest::Error| network_error(&url, &error);
        let request = reqwest::Request::try_from(request).map_err(failed)?;
        let mut response = self.client.execute(request).await.map_err(failed)?;
        let mut answer = http::Response::builder().status(response.status());
        if let Some(headers) = answer.headers_mut() {
            headers.clone_from(response.headers());
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > self.limit {
                return Err(SignInError::TooLarge {
                    url: printable(&url),
                    limit: self.limit,
                });
            }
            body.extend_from_slice(&chunk);
        }
        answer.body(body).map_err(|error| SignInError::Network {
            url: printable(&url),
            why: error.to_string(),
        })
    }

    /// A JSON document posted, for registration.
    pub(crate) async fn post_json(&self, url: &str, body: Vec<u8>) -> Result<(u16, Vec<u8>), SignInError> {
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(url)
            .header(CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .body(body)
            .map_err(|error| SignInError::Network {
                url: printable(url),
                why: error.to_string(),
            })?;
        let response = self.send(request).await?;
        Ok((response.status().as_u16(), response.into_body()))
    }

    /// A form posted, for revocation. Gives the status; what is in the answer says nothing more.
    pub(crate) async fn post_form(
        &self,
        url: &str,
        form: String,
        authorization: Option<&str>,
    ) -> Result<u16, SignInError> {
        let mut request = http::Request::builder()
            .method(Method::POST)
            .uri(url)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(authorization) = authorization {
            request = request.header(http::header::AUTHORIZATION, authorization);
        }
        let request = request
            .body(form.into_bytes())
            .map_err(|error| SignInError::Network {
                url: printable(url),
                why: error.to_string(),
            })?;
        Ok(self.send(request).await?.status().as_u16())
    }

    /// Asks the MCP endpoint for its challenge, with a request that does nothing there.
    ///
    /// `None` means that it answers without one. Only the head of the answer is read.
    pub(crate) async fn challenge(&self, endpoint: &Url) -> Result<Option<Vec<String>>, SignInError> {
        if let Err(refusal) = self.policy.check_url(endpoint) {
            return Err(SignInError::Unreachable {
                url: printable(endpoint.as_str()),
                refusal,
            });
        }
        let response = self
            .client
            .post(endpoint.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json, text/event-stream")
            .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
            .send()
            .await
            .map_err(|error| network_error(endpoint.as_str(), &error))?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(None);
        }
        let values = response.headers().get_all(WWW_AUTHENTICATE);
        Ok(Some(
            values
                .iter()
                .filter_map(|value| value.to_str().ok().map(str::to_owned))
                .collect(),
        ))
    }
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

/// What reqwest says, down to its cause, and without the URL: that may carry a query.
fn network_error(url: &str, error: &reqwest::Error) -> SignInError {
    let mut source: Option<&dyn std::error::Error> = std::error::Error::source(error);
    let mut why = if error.is_timeout() {
        "it took too long".to_owned()
    } else {
        String::new()
    };
    while let Some(cause) = source {
        // Each cause tells more than the one before.
        why = cause.to_string();
        source = cause.source();
    }
    if why.is_empty() {
        why = "the connection failed".to_owned();
    }
    let url = url.split(['?', '#']).next().unwrap_or(url);
    SignInError::Network {
        url: printable(url),
        why: printable(&why),
    }
}

/// What of a resource's metadata is kept for later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResourceDocument {
    pub(crate) resource: String,
    pub(crate) scopes: Vec<String>,
    /// The issuers it names, as they stand.
    pub(crate) issuers: Vec<String>,
}

/// The client that rmcp talks through, for one discovery and what follows from it.
pub(crate) struct Edge {
    network: Network,
    endpoint: Url,
    challenge: Vec<String>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    resource: Option<ResourceDocument>,
    /// The address that the latest document was requested from, before redirects.
    document: Option<Url>,
    /// Where the latest answer redirects to, and which request that continues.
    redirect: Option<(Url, Url)>,
    /// The first thing that went wrong here; rmcp's own error is made of texts.
    failure: Option<SignInError>,
}

impl Edge {
    pub(crate) fn new(network: Network, endpoint: Url, challenge: Vec<String>) -> Self {
        Self {
            network,
            endpoint,
            challenge,
            seen: Mutex::default(),
        }
    }

    pub(crate) fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    pub(crate) fn resource(&self) -> Option<ResourceDocument> {
        self.lock().resource.clone()
    }

    /// Returns the address that the latest document was requested from. rmcp stops at the document that it uses.
    pub(crate) fn document_address(&self) -> Option<Url> {
        self.lock().document.clone()
    }

    /// Notes where an answer came from. A redirect stays within its origin, so the first address of a chain counts.
    fn note_address(&self, url: &Url, response: &Response) {
        let mut seen = self.lock();
        let continued = seen.redirect.take().filter(|(target, _)| target == url);
        let asked = continued.map_or_else(|| url.clone(), |(_, asked)| asked);
        if response.status() == StatusCode::OK {
            seen.document = Some(asked);
        } else if response.status().is_redirection() {
            let location = response.headers().get(http::header::LOCATION);
            let target = location.and_then(|location| url.join(location.to_str().ok()?).ok());
            seen.redirect = target.map(|target| (target, asked));
        }
    }

    /// Why rmcp failed, if it failed because of what happened here.
    pub(crate) fn take_failure(&self) -> Option<SignInError> {
        self.lock().failure.take()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    async fn answer(&self, request: Request) -> Result<Response, SignInError> {
        let discovery = request.method() == Method::GET;
        if discovery && request.uri() == self.endpoint.as_str() {
            let mut answer = http::Response::builder().status(StatusCode::UNAUTHORIZED);
            for value in &self.challenge {
                answer = answer.header(WWW_AUTHENTICATE, value);
            }
            let unsaid = |_| SignInError::Settings("a challenge that no header can carry".to_owned());
            return answer.body(Vec::new()).map_err(unsaid);
        }
        let url = Url::parse(&request.uri().to_string()).ok();
        let response = self.network.send(request).await?;
        if let Some(url) = url.filter(|_| discovery) {
            self.note_address(&url, &response);
        }
        if discovery
            && response.status() == StatusCode::OK
            && let Some(document) = judge_resource(&self.endpoint, response.body())?
        {
            self.lock().resource = Some(document);
        }
        Ok(response)
    }
}

impl OAuthHttpClient for Edge {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            self.answer(request.request).await.map_err(|error| {
                self.lock().failure.get_or_insert_with(|| error.clone());
                Box::new(error) as OAuthHttpClientError
            })
        })
    }
}

/// Is this document a resource's metadata, and is it about our endpoint?
///
/// Documents of authorization servers pass here too; they have endpoints, and no `resource`.
fn judge_resource(endpoint: &Url, body: &[u8]) -> Result<Option<ResourceDocument>, SignInError> {
    #[derive(Deserialize)]
    struct Document {
        resource: Option<String>,
        token_endpoint: Option<serde::de::IgnoredAny>,
        #[serde(default)]
        scopes_supported: Option<Vec<String>>,
        #[serde(default)]
        authorization_servers: Option<Vec<String>>,
        /// Of early drafts; rmcp reads it still.
        #[serde(default)]
        authorization_server: Option<String>,
    }
    let Ok(Document {
        resource: Some(resource),
        token_endpoint: None,
        scopes_supported,
        authorization_servers,
        authorization_server,
    }) = serde_json::from_slice(body)
    else {
        return Ok(None);
    };
    if !Url::parse(&resource).is_ok_and(|resource| covers(&resource, endpoint)) {
        return Err(SignInError::OtherResource {
            endpoint: endpoint.to_string(),
            resource: printable(&resource),
        });
    }
    let issuers: Vec<String> = authorization_server
        .into_iter()
        .chain(authorization_servers.unwrap_or_default())
        .collect();
    // Not an issuer but the address of a document, which could then claim any issuer.
    if let Some(address) = issuers.iter().find(|issuer| issuer.contains("/.well-known/")) {
        return Err(SignInError::Metadata {
            address: printable(address),
            why: "the server names the address of a document where it must name an issuer".to_owned(),
        });
    }
    let mut scopes = Vec::new();
    crate::scope::add(
        &mut scopes,
        crate::scope::parse(&scopes_supported.unwrap_or_default().join(" ")),
    );
    Ok(Some(ResourceDocument {
        resource,
        scopes,
        issuers,
    }))
}

/// Whether a token for `resource` may be sent to `endpoint`: the same origin, and the same path or one above it.
fn covers(resource: &Url, endpoint: &Url) -> bool {
    let (above, path) = (resource.path().trim_end_matches('/'), endpoint.path());
    let below = path
        .strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    resource.fragment().is_none()
        && resource.origin() == endpoint.origin()
        && resource.origin().is_tuple()
        && below
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_covered(resource: &str, endpoint: &str) -> bool {
        covers(&Url::parse(resource).unwrap(), &Url::parse(endpoint).unwrap())
    }

    #[test]
    fn a_resource_covers_its_endpoint_and_what_lies_below_it() {
        for (resource, endpoint) in [
            ("https://a.example/mcp", "https://a.example/mcp"),
            ("https://a.example", "https://a.example/mcp"),
            ("https://a.example/", "https://a.example/mcp/x"),
            ("https://a.example:443/mcp/", "https://a.example/mcp"),
            ("https://a.example/mcp", "https://a.example/mcp?tenant=1"),
        ] {
            assert!(is_covered(resource, endpoint), "{resource} {endpoint}");
        }
        for (resource, endpoint) in [
            ("https://evil.example/mcp", "https://a.example/mcp"),
            ("http://a.example/mcp", "https://a.example/mcp"),
            ("https://a.example:444/mcp", "https://a.example/mcp"),
            ("https://a.example/mc", "https://a.example/mcp"),
            ("https://a.example/mcp/x", "https://a.example/mcp"),
            ("https://a.example/mcp#x", "https://a.example/mcp"),
        ] {
            assert!(!is_covered(resource, endpoint), "{resource} {endpoint}");
        }
    }

    #[test]
    fn metadata_of_another_resource_is_refused_and_an_authority_is_none() {
        let endpoint = Url::parse("https://a.example/mcp").unwrap();
        let judge = |body: &str| judge_resource(&endpoint, body.as_bytes());
        let ours = judge(r#"{"resource":"https://a.example/mcp","scopes_supported":["r","w"]}"#)
            .unwrap()
            .unwrap();
        assert_eq!(ours.scopes, ["r", "w"]);
        assert!(matches!(
            judge(
                r#"{"resource":"https://a.example/mcp","authorization_servers":["https://b.example/.well-known/x"]}"#
            ),
            Err(SignInError::Metadata { .. })
        ));
        assert!(matches!(
            judge(r#"{"resource":"https://b.example/mcp"}"#),
            Err(SignInError::OtherResource { .. })
        ));
        assert!(matches!(
            judge(r#"{"resource":"urn:x"}"#),
            Err(SignInError::OtherResource { .. })
        ));
        assert_eq!(
            judge(r#"{"issuer":"https://b.example","token_endpoint":"x"}"#).unwrap(),
            None
        );
        assert_eq!(judge("<html>").unwrap(), None);
    }
}
