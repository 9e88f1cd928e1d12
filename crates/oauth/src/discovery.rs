//! Metadata discovery: from a challenge to the authorization server of a resource.
//!
//! The order is that of 2025-11-25, "Authorization Server Discovery":
//!
//! 1. The metadata of the resource: where the challenge names it, else at its well-known addresses.
//! 2. The metadata of the first authorization server that the resource names and that publishes
//!    any.
//! 3. If the resource names none, metadata at the server's own origin, else the default endpoints
//!    (2025-03-26).
//!
//! A document that is not there, or that is no metadata, leads on to the next address. A server
//! that fails, and a document that contradicts the one before it, end the discovery: the next
//! address may be an attacker's choice.

use std::time::Duration;

use http::StatusCode;
use http::header::LOCATION;
use url::Url;

use crate::error::SignInError;
use crate::http::{Network, Response};
use crate::issuer::{self, Allowed};
use crate::resource_metadata::{self, ResourceMetadata, Source};
use crate::server_metadata::{ServerMetadata, Terms};
use crate::url_policy::printable;
use crate::www_authenticate;

/// How many requests one document may take: the first, and one for each redirect.
const REQUESTS: usize = 10;

/// How long a discovery may take. Other requests wait for it, and a peer decides how many documents
/// it has.
const TIME: Duration = Duration::from_secs(60);

/// A resource, and the authorization server to sign in at.
pub(crate) struct Discovered {
    pub(crate) network: Network,
    pub(crate) terms: Terms,
    /// Whether the resource has metadata of its own.
    pub(crate) described: bool,
    /// Whether the authorization server has metadata, or all is assumed as in 2025-03-26.
    pub(crate) published: bool,
    /// The identifier to name in `resource`, and what the resource lists.
    pub(crate) resource: String,
    pub(crate) resource_scopes: Vec<String>,
}

/// Finds the authorization server of the resource at `endpoint`, which sent the headers
/// `challenge`.
pub(crate) async fn discover(
    network: &Network,
    endpoint: &Url,
    challenge: &[String],
) -> Result<Discovered, SignInError> {
    let search = Search { network, endpoint };
    let found = tokio::time::timeout(TIME, search.run(challenge)).await;
    found.unwrap_or_else(|_| Err(search.failed("its metadata were not read within a minute")))
}

struct Search<'a> {
    network: &'a Network,
    endpoint: &'a Url,
}

impl Search<'_> {
    async fn run(&self, challenge: &[String]) -> Result<Discovered, SignInError> {
        let Self { network, endpoint } = *self;
        let resource = self.resource_metadata(challenge).await?;
        let published = match resource.as_ref().map(|resource| resource.issuers.as_slice()) {
            None | Some([]) => self.own_server_metadata().await?,
            Some(issuers) => Some(self.named_server_metadata(issuers).await?),
        };
        let is_published = published.is_some();
        let metadata = published.unwrap_or_else(|| ServerMetadata::default_at(endpoint));
        let terms = Terms::new(&metadata, is_published, endpoint, &network.policy)?;
        let described = resource.is_some();
        let (resource, resource_scopes) = match resource {
            Some(found) => (found.resource, found.scopes),
            None => (endpoint.to_string(), Vec::new()),
        };
        Ok(Discovered {
            network: network.clone(),
            terms,
            described,
            published: is_published,
            resource,
            resource_scopes,
        })
    }

    async fn resource_metadata(&self, challenge: &[String]) -> Result<Option<ResourceMetadata>, SignInError> {
        let advertised = self.advertised(challenge);
        let mut candidates: Vec<_> = advertised
            .map(|url| (url, Source::Advertised))
            .into_iter()
            .collect();
        for url in resource_addresses(self.endpoint) {
            if !candidates.iter().any(|(other, _)| *other == url) {
                candidates.push((url, Source::WellKnown));
            }
        }
        for (url, source) in candidates {
            let response = self.get(&url).await?;
            if response.status == StatusCode::OK
                && let Some(found) = resource_metadata::read(self.endpoint, &response.body, source)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the address in a challenge that may be requested.
    fn advertised(&self, challenge: &[String]) -> Option<Url> {
        let values = challenge.iter();
        let mut values = values.flat_map(|header| www_authenticate::values(header, "resource_metadata"));
        values.find_map(|value| {
            let value = value.trim();
            let url = Url::parse(value).or_else(|_| self.endpoint.join(value)).ok()?;
            let allowed = self.network.policy.check_url(&url);
            let allowed =
                allowed.inspect_err(|error| tracing::debug!(%error, "address in a challenge ignored"));
            allowed.ok().filter(|()| !value.is_empty()).map(|()| url)
        })
    }

    /// Requests the metadata of each issuer that the resource names, until one publishes any.
    async fn named_server_metadata(&self, issuers: &[String]) -> Result<ServerMetadata, SignInError> {
        let mut refused = None;
        for named in issuers {
            let issuer = match self.network.policy.check(named) {
                Ok(issuer) => issuer,
                Err(error) => {
                    refused.get_or_insert(SignInError::unreachable(named, error));
                    continue;
                }
            };
            for address in issuer::well_known_addresses(&issuer) {
                let found = self.server_metadata(&address, &issuer, Allowed::Named(issuers));
                if let Some(metadata) = found.await? {
                    return Ok(metadata);
                }
            }
        }
        // Nothing else is tried: it would send people to a server that the resource never named.
        let none = || self.failed(&format!("no metadata is published by {}", issuers.join(", ")));
        Err(refused.unwrap_or_else(none))
    }

    /// Requests metadata of an authorization server at the endpoint's own origin (2025-03-26).
    async fn own_server_metadata(&self) -> Result<Option<ServerMetadata>, SignInError> {
        let with_path = issuer::at_path(self.endpoint, self.endpoint.path().trim_end_matches('/'));
        let origin = issuer::at_path(self.endpoint, "");
        let addresses = issuer::well_known_addresses(&with_path).into_iter();
        let mut candidates: Vec<_> = addresses.map(|address| (address, &with_path)).collect();
        if with_path != origin {
            let address = issuer::well_known_addresses(&origin).into_iter().next();
            candidates.extend(address.map(|address| (address, &origin)));
        }
        for (address, issuer) in candidates {
            let found = self.server_metadata(&address, issuer, Allowed::OriginOf(self.endpoint));
            if let Some(metadata) = found.await? {
                return Ok(Some(metadata));
            }
        }
        Ok(None)
    }

    /// Requests metadata of `issuer` from one of its well-known addresses. Returns nothing if there
    /// is none.
    async fn server_metadata(
        &self,
        address: &Url,
        issuer: &Url,
        allowed: Allowed<'_>,
    ) -> Result<Option<ServerMetadata>, SignInError> {
        let response = self.get(address).await?;
        if response.status != StatusCode::OK {
            return Ok(None);
        }
        let Ok(metadata) = serde_json::from_slice::<ServerMetadata>(&response.body) else {
            return Ok(None);
        };
        let claimed = metadata.issuer.as_deref();
        if !claimed.is_some_and(|claimed| issuer::is_same(claimed, issuer.as_str())) {
            let claimed = claimed.unwrap_or("none");
            return Err(self.failed(&format!(
                "{address} must name the issuer {issuer} and names {claimed}"
            )));
        }
        match issuer::check(claimed, address, allowed) {
            Ok(()) => Ok(Some(metadata)),
            Err(why) => Err(SignInError::Metadata {
                address: printable(address.as_str()),
                why: why.to_owned(),
            }),
        }
    }

    /// Requests a document, and follows redirects within its origin: elsewhere, another host would
    /// answer for it.
    async fn get(&self, url: &Url) -> Result<Response, SignInError> {
        let mut current = url.clone();
        for _ in 0..REQUESTS {
            let response = self.network.get(&current).await?;
            let status = response.status;
            let is_transient = matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
            );
            if status.is_server_error() || is_transient {
                return Err(self.failed(&format!("{current} answers {status}")));
            }
            let location = response.headers.get(LOCATION);
            let Some(location) = location.filter(|_| status.is_redirection()) else {
                return Ok(response);
            };
            let target = location.to_str().ok().and_then(|text| current.join(text).ok());
            current = match target {
                Some(target) if target.origin().is_tuple() && target.origin() == url.origin() => target,
                Some(_) | None => return Err(self.failed(&format!("{current} redirects to another origin"))),
            };
        }
        Err(self.failed(&format!("{url} redirects too often")))
    }

    fn failed(&self, why: &str) -> SignInError {
        SignInError::Discovery {
            resource: self.endpoint.to_string(),
            why: printable(why),
        }
    }
}

/// Returns where a resource may publish its metadata (RFC 9728, section 3.1): with its path, else
/// without.
///
/// Some servers append the well-known path to their own, which is tried in between.
fn resource_addresses(endpoint: &Url) -> Vec<Url> {
    const DOCUMENT: &str = "/.well-known/oauth-protected-resource";
    let path = endpoint.path().trim_end_matches('/');
    let mut paths = vec![
        format!("{DOCUMENT}{path}"),
        format!("{path}{DOCUMENT}"),
        DOCUMENT.to_owned(),
    ];
    paths.dedup();
    paths.iter().map(|path| issuer::at_path(endpoint, path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(endpoint: &str) -> Vec<String> {
        let found = resource_addresses(&Url::parse(endpoint).unwrap());
        found.into_iter().map(String::from).collect()
    }

    #[test]
    fn resource_is_looked_up_with_its_path_first() {
        assert_eq!(
            addresses("https://a.example/v1/mcp/?x=1"),
            [
                "https://a.example/.well-known/oauth-protected-resource/v1/mcp",
                "https://a.example/v1/mcp/.well-known/oauth-protected-resource",
                "https://a.example/.well-known/oauth-protected-resource",
            ]
        );
        assert_eq!(
            addresses("https://a.example"),
            ["https://a.example/.well-known/oauth-protected-resource"]
        );
    }
}
