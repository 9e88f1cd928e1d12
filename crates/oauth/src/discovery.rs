//! From a challenge to an authorization server whose terms are acceptable.
//!
//! rmcp looks for the documents (RFC 9728, RFC 8414, OpenID discovery, the fall-back of 2025-03-26) in their order. What it lets pass
//! and we do not: metadata that is not its issuer's own (`issuer`), metadata that does not say it does PKCE, endpoints that are no https URLs,
//! and authorization endpoints that bring OAuth parameters of their own.

use std::sync::Arc;

use rmcp::transport::auth::{AuthorizationManager, AuthorizationMetadata, AuthorizationMetadataSource};
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;
use url::Url;

use crate::error::SignInError;
use crate::http::{Edge, Network, ResourceDocument};
use crate::issuer::{self, Allowed};
use crate::registration::{Offer, TokenAuth};
use crate::store::Origins;
use crate::url_policy::{UrlPolicy, printable};

/// What an authorization server offers, judged.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// The issuer, or the origin of a server that has no metadata at all.
    pub(crate) issuer: String,
    /// Whether the issuer is known from a document, and can be compared with.
    pub(crate) named: bool,
    /// It says that it names itself in its answers (RFC 9207).
    pub(crate) names_itself: bool,
    /// Whether a person may be sent there; tokens can be asked for without that.
    pub(crate) browser: Result<(), SignInError>,
    /// Set if the answer of a sign-in could come from another server than the one that gets the code: both origins differ
    /// and the answer does not say who it is from.
    pub(crate) split: Option<SignInError>,
    /// Where its endpoints are.
    pub(crate) origins: Origins,
    metadata_documents: bool,
    registration: Option<String>,
    pub(crate) token_auth: Option<Vec<String>>,
    pub(crate) scopes: Vec<String>,
}

impl Terms {
    pub(crate) fn offer(&self) -> Offer<'_> {
        Offer {
            metadata_documents: self.metadata_documents,
            registration: self.registration.as_deref(),
            token_auth: self.token_auth.as_deref(),
        }
    }
}

/// What was found. The manager is rmcp's, ready for one sign-in or refresh.
pub(crate) struct Discovered {
    pub(crate) manager: AuthorizationManager,
    pub(crate) edge: Arc<Edge>,
    pub(crate) terms: Terms,
    /// Whether the resource has metadata of its own.
    pub(crate) described: bool,
    /// Whether the authorization server has metadata, or all is assumed as in 2025-03-26.
    pub(crate) published: bool,
    /// The identifier to name in `resource`, and what the resource lists.
    pub(crate) resource: String,
    pub(crate) resource_scopes: Vec<String>,
    metadata: AuthorizationMetadata,
}

pub(crate) async fn discover(
    network: &Network,
    endpoint: &Url,
    challenge: &[String],
) -> Result<Discovered, SignInError> {
    let edge = Arc::new(Edge::new(network.clone(), endpoint.clone(), challenge.to_vec()));
    let failed = |why: String| SignInError::Discovery {
        resource: endpoint.to_string(),
        why: printable(&why),
    };
    let mut manager = AuthorizationManager::new_with_oauth_http_client(endpoint.clone(), edge.clone())
        .await
        .map_err(|error| failed(error.to_string()))?;
    // rmcp logs what it exchanges, codes and identity tokens too, at debug level; nobody shall see those.
    let found = manager
        .resolve_metadata()
        .with_subscriber(NoSubscriber::default())
        .await;
    let found = found.map_err(|error| edge.take_failure().unwrap_or_else(|| failed(error.to_string())))?;
    let published = found.source != AuthorizationMetadataSource::LegacyEndpointFallback;
    let document = edge.resource();
    if published {
        compare_issuer(&found.metadata, &edge, document.as_ref())?;
    }
    let terms = judge(&found.metadata, published, endpoint, &network.policy)?;
    manager.set_metadata(found.metadata.clone());
    let described = document.is_some();
    let (resource, resource_scopes) = match document {
        Some(document) => (document.resource, document.scopes),
        None => (endpoint.to_string(), Vec::new()),
    };
    Ok(Discovered {
        published,
        manager,
        edge,
        terms,
        described,
        resource,
        resource_scopes,
        metadata: found.metadata,
    })
}

impl Discovered {
    /// Where a token can be given back (RFC 7009).
    pub(crate) fn revocation_endpoint(&self) -> Option<String> {
        let fields = &self.metadata.additional_fields;
        let place = fields.get("revocation_endpoint")?.as_str()?;
        Some(place.to_owned())
    }

    /// Tells rmcp by which of the offered methods the client proves itself; left alone it prefers `client_secret_basic`.
    pub(crate) fn settle_token_auth(&mut self, auth: TokenAuth) {
        let mut metadata = self.metadata.clone();
        let settled = serde_json::json!([auth.name()]);
        metadata
            .additional_fields
            .insert("token_endpoint_auth_methods_supported".to_owned(), settled);
        self.manager.set_metadata(metadata);
    }
}

/// Checks that the document in use is its issuer's own, beside what rmcp compares.
fn compare_issuer(
    metadata: &AuthorizationMetadata,
    edge: &Edge,
    document: Option<&ResourceDocument>,
) -> Result<(), SignInError> {
    let address = edge.document_address();
    let allowed = match document {
        Some(document) if !document.issuers.is_empty() => Allowed::Named(&document.issuers),
        Some(_) | None => Allowed::OriginOf(edge.endpoint()),
    };
    let checked = match &address {
        Some(address) => issuer::check(metadata.issuer.as_deref(), address, allowed),
        None => Err("it came from nowhere"),
    };
    checked.map_err(|why| SignInError::Metadata {
        address: printable(address.as_ref().map_or("", Url::as_str)),
        why: why.to_owned(),
    })
}

fn judge(
    metadata: &AuthorizationMetadata,
    published: bool,
    endpoint: &Url,
    policy: &UrlPolicy,
) -> Result<Terms, SignInError> {
    let issuer = match &metadata.issuer {
        Some(issuer) => issuer.clone(),
        None => endpoint.origin().ascii_serialization(),
    };
    let shown_issuer = printable(&issuer);
    let reachable = |url: &String| match policy.check(url) {
        Ok(_) => Ok(()),
        Err(refusal) => Err(SignInError::Unreachable {
            url: printable(url),
            refusal,
        }),
    };
    reachable(&metadata.token_endpoint)?;
    let revocation = metadata.additional_fields.get("revocation_endpoint");
    let origins = Origins {
        token: issuer::origin(&metadata.token_endpoint).unwrap_or_default(),
        revocation: revocation
            .and_then(serde_json::Value::as_str)
            .and_then(issuer::origin),
    };
    metadata
        .registration_endpoint
        .as_ref()
        .map_or(Ok(()), reachable)?;
    let s256 = metadata.code_challenge_methods_supported.as_ref();
    let s256 = s256.is_some_and(|methods| methods.iter().any(|method| method == "S256"));
    let flag = |name: &str| {
        metadata
            .additional_fields
            .get(name)
            .and_then(serde_json::Value::as_bool)
            == Some(true)
    };
    let list = |name: &str| {
        let list = metadata.additional_fields.get(name)?.as_array()?;
        Some(
            list.iter()
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect(),
        )
    };
    let names_itself = flag("authorization_response_iss_parameter_supported");
    let authorization = issuer::origin(&metadata.authorization_endpoint).unwrap_or_default();
    let split = (!names_itself && authorization != origins.token).then(|| SignInError::SplitAuthority {
        issuer: shown_issuer.clone(),
        authorization: printable(&authorization),
        token: printable(&origins.token),
    });
    let parameter = issuer::oauth_parameter(&metadata.authorization_endpoint);
    Ok(Terms {
        issuer,
        split,
        origins,
        named: metadata.issuer.is_some(),
        browser: match reachable(&metadata.authorization_endpoint) {
            Err(error) => Err(error),
            // A server of 2025-03-26 without any metadata has no place to say it.
            Ok(()) if parameter.is_some() => Err(SignInError::AuthorizationParameters {
                issuer: shown_issuer,
                parameter: printable(&parameter.unwrap_or_default()),
            }),
            Ok(()) if published && !s256 => Err(SignInError::NoPkce { issuer: shown_issuer }),
            Ok(()) => Ok(()),
        },
        names_itself,
        metadata_documents: flag("client_id_metadata_document_supported"),
        registration: metadata.registration_endpoint.clone(),
        token_auth: list("token_endpoint_auth_methods_supported"),
        scopes: metadata.scopes_supported.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(metadata: serde_json::Value, published: bool) -> Result<Terms, SignInError> {
        let endpoint = Url::parse("https://mcp.example.com/mcp").unwrap();
        let metadata = serde_json::from_value(metadata).unwrap();
        let terms = judge(&metadata, published, &endpoint, &UrlPolicy::new(&endpoint, false))?;
        terms.browser.clone().map(|()| terms)
    }

    fn good() -> serde_json::Value {
        serde_json::json!({
            "issuer": "https://auth.example.com",
            "authorization_endpoint": "https://auth.example.com/authorize",
            "token_endpoint": "https://auth.example.com/token",
            "code_challenge_methods_supported": ["plain", "S256"],
        })
    }

    #[test]
    fn an_authority_with_pkce_and_https_is_accepted() {
        let terms = judged(good(), true).unwrap();
        assert_eq!(terms.issuer, "https://auth.example.com");
        assert!(!terms.names_itself);
    }

    #[test]
    fn an_authority_that_does_not_say_s256_is_refused() {
        for methods in [
            serde_json::json!(null),
            serde_json::json!([]),
            serde_json::json!(["plain"]),
        ] {
            let mut metadata = good();
            metadata["code_challenge_methods_supported"] = methods;
            assert!(matches!(judged(metadata, true), Err(SignInError::NoPkce { .. })));
        }
    }

    #[test]
    fn a_server_without_any_metadata_cannot_say_so() {
        let mut metadata = good();
        metadata["code_challenge_methods_supported"] = serde_json::json!(null);
        assert!(judged(metadata, false).is_ok());
    }

    #[test]
    fn endpoints_that_are_no_https_urls_are_refused() {
        for key in [
            "authorization_endpoint",
            "token_endpoint",
            "registration_endpoint",
        ] {
            for url in [
                "javascript:alert(1)",
                "file:///bin/sh",
                "-flag",
                "http://auth.example.com/",
                "https://10.0.0.1/",
            ] {
                let mut metadata = good();
                metadata[key] = url.into();
                assert!(
                    matches!(judged(metadata, true), Err(SignInError::Unreachable { .. })),
                    "{key} {url}"
                );
            }
        }
    }
}
