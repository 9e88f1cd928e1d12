//! The metadata of an authorization server (RFC 8414, OpenID discovery), and the terms that follow
//! from it.
//!
//! Refused are endpoints that the URL policy does not allow, servers that do not offer PKCE with
//! S256, and authorization endpoints that bring OAuth parameters of their own.

use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::error::SignInError;
use crate::issuer;
use crate::registration::Offer;
use crate::store::Origins;
use crate::url_policy::{UrlPolicy, printable};

/// A metadata document. A document without both endpoints is not one.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ServerMetadata {
    pub(crate) issuer: Option<String>,
    authorization_endpoint: String,
    token_endpoint: String,
    registration_endpoint: Option<String>,
    scopes_supported: Option<Vec<String>>,
    response_types_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
    // A server that has these wrong can still be signed in at.
    #[serde(default)]
    revocation_endpoint: Value,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Value,
    #[serde(default)]
    authorization_response_iss_parameter_supported: Value,
    #[serde(default)]
    client_id_metadata_document_supported: Value,
}

impl ServerMetadata {
    /// Returns the endpoints that a server without metadata has (2025-03-26, "Fallbacks for Servers
    /// without Metadata Discovery").
    pub(crate) fn default_at(server: &Url) -> Self {
        let at = |path| issuer::at_path(server, path).to_string();
        Self {
            authorization_endpoint: at("/authorize"),
            token_endpoint: at("/token"),
            registration_endpoint: Some(at("/register")),
            ..Self::default()
        }
    }
}

/// What an authorization server offers, checked.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// The issuer, or the origin of a server that has no metadata at all.
    pub(crate) issuer: String,
    /// Whether the issuer is known from a document, and can be compared with.
    pub(crate) named: bool,
    /// Whether it promises to name itself in its answers (RFC 9207).
    pub(crate) names_itself: bool,
    /// Where people sign in, or why they must not. Client credentials need no such place.
    pub(crate) authorization_endpoint: Result<Url, SignInError>,
    pub(crate) token_endpoint: String,
    /// Where a token can be revoked (RFC 7009).
    pub(crate) revocation_endpoint: Option<String>,
    /// Set if the answer of a sign-in could come from another server than the one that gets the
    /// code: both origins differ, and the answer does not name its sender.
    pub(crate) split: Option<SignInError>,
    pub(crate) origins: Origins,
    metadata_documents: bool,
    registration_endpoint: Option<String>,
    pub(crate) token_auth: Option<Vec<String>>,
    pub(crate) scopes: Vec<String>,
}

impl Terms {
    /// Checks the metadata, which is `published`, or assumed for a server of 2025-03-26.
    pub(crate) fn new(
        metadata: &ServerMetadata,
        published: bool,
        endpoint: &Url,
        policy: &UrlPolicy,
    ) -> Result<Self, SignInError> {
        let origin = || endpoint.origin().ascii_serialization();
        let issuer = metadata.issuer.clone().unwrap_or_else(origin);
        let reachable = |url: &String| {
            let allowed = policy.check(url);
            allowed.map_err(|error| SignInError::unreachable(url, error))
        };
        reachable(&metadata.token_endpoint)?;
        metadata
            .registration_endpoint
            .as_ref()
            .map(reachable)
            .transpose()?;
        let revocation_endpoint = metadata.revocation_endpoint.as_str();
        let origins = Origins {
            token: issuer::origin(&metadata.token_endpoint).unwrap_or_default(),
        };
        let names_itself = metadata.authorization_response_iss_parameter_supported == true;
        let authorization = issuer::origin(&metadata.authorization_endpoint).unwrap_or_default();
        let split = (!names_itself && authorization != origins.token).then(|| SignInError::SplitAuthority {
            issuer: printable(&issuer),
            authorization: printable(&authorization),
            token: printable(&origins.token),
        });
        let token_auth = metadata.token_endpoint_auth_methods_supported.as_array();
        let token_auth = token_auth.map(|methods| {
            let names = methods.iter().filter_map(Value::as_str);
            names.map(str::to_owned).collect()
        });
        Ok(Self {
            split,
            origins,
            names_itself,
            token_auth,
            named: metadata.issuer.is_some(),
            authorization_endpoint: reachable(&metadata.authorization_endpoint)
                .and_then(|url| offers_codes(metadata, published, &issuer).map(|()| url)),
            token_endpoint: metadata.token_endpoint.clone(),
            revocation_endpoint: revocation_endpoint.map(str::to_owned),
            metadata_documents: metadata.client_id_metadata_document_supported == true,
            registration_endpoint: metadata.registration_endpoint.clone(),
            scopes: metadata.scopes_supported.clone().unwrap_or_default(),
            issuer,
        })
    }

    pub(crate) fn offer(&self) -> Offer<'_> {
        Offer {
            metadata_documents: self.metadata_documents,
            registration: self.registration_endpoint.as_deref(),
            token_auth: self.token_auth.as_deref(),
        }
    }
}

/// Checks that a browser may be sent to the authorization endpoint for a code.
fn offers_codes(metadata: &ServerMetadata, published: bool, issuer: &str) -> Result<(), SignInError> {
    let issuer = printable(issuer);
    if let Some(parameter) = issuer::oauth_parameter(&metadata.authorization_endpoint) {
        return Err(SignInError::AuthorizationParameters {
            issuer,
            parameter: printable(&parameter),
        });
    }
    let lists = |list: &Option<Vec<String>>, name: &str| {
        let list = list.as_ref();
        list.map(|list| list.iter().any(|listed| listed == name))
    };
    // A server of 2025-03-26 without any metadata has no place to list it.
    if published && lists(&metadata.code_challenge_methods_supported, "S256") != Some(true) {
        return Err(SignInError::NoPkce { issuer });
    }
    if lists(&metadata.response_types_supported, "code") == Some(false) {
        return Err(SignInError::Token {
            issuer,
            why: "it does not offer the response type `code`".to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(metadata: serde_json::Value, published: bool) -> Result<Terms, SignInError> {
        let endpoint = Url::parse("https://mcp.example.com/mcp").unwrap();
        let metadata: ServerMetadata = serde_json::from_value(metadata).unwrap();
        let terms = Terms::new(&metadata, published, &endpoint, &UrlPolicy::new(&endpoint, false))?;
        terms.authorization_endpoint.clone().map(|_| terms)
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
    fn server_with_pkce_and_https_is_accepted() {
        let terms = terms(good(), true).unwrap();
        assert_eq!(terms.issuer, "https://auth.example.com");
        assert!(!terms.names_itself);
    }

    #[test]
    fn server_without_s256_is_refused() {
        for methods in [
            serde_json::json!(null),
            serde_json::json!([]),
            serde_json::json!(["plain"]),
        ] {
            let mut metadata = good();
            metadata["code_challenge_methods_supported"] = methods;
            assert!(matches!(terms(metadata, true), Err(SignInError::NoPkce { .. })));
        }
    }

    #[test]
    fn server_without_metadata_needs_no_list_of_pkce_methods() {
        let mut metadata = good();
        metadata["code_challenge_methods_supported"] = serde_json::json!(null);
        assert!(terms(metadata, false).is_ok());
    }

    #[test]
    fn endpoint_that_is_no_https_url_is_refused() {
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
                    matches!(terms(metadata, true), Err(SignInError::Unreachable { .. })),
                    "{key} {url}"
                );
            }
        }
    }

    #[test]
    fn server_that_issues_no_codes_is_refused() {
        let mut metadata = good();
        metadata["response_types_supported"] = serde_json::json!(["token"]);
        assert!(matches!(terms(metadata, true), Err(SignInError::Token { .. })));
    }

    #[test]
    fn optional_members_of_a_wrong_type_count_as_absent() {
        let mut metadata = good();
        metadata["revocation_endpoint"] = serde_json::json!(7);
        metadata["client_id_metadata_document_supported"] = serde_json::json!("yes");
        metadata["token_endpoint_auth_methods_supported"] = serde_json::json!("none");
        let terms = terms(metadata, true).unwrap();
        assert!(!terms.metadata_documents && terms.token_auth.is_none());
        assert_eq!(terms.revocation_endpoint, None);
    }
}
