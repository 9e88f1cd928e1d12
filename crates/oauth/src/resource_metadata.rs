//! The metadata of a protected resource (RFC 9728): which authorization servers it trusts, and
//! which scopes it has.
//!
//! The remote server writes this document, so it counts only if it is about the endpoint. One that
//! is about another resource ends the discovery.

use serde::Deserialize;
use url::Url;

use crate::error::SignInError;
use crate::scope;
use crate::url_policy::printable;

/// The largest number of issuers that are tried.
const ISSUERS: usize = 8;
/// The longest identifier of a resource. It is stored with each token.
const RESOURCE_BYTES: usize = 2048;

/// The metadata of the resource at our endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceMetadata {
    pub(crate) resource: String,
    pub(crate) scopes: Vec<String>,
    /// The issuers it names, as they stand.
    pub(crate) issuers: Vec<String>,
}

/// Where the address of a document comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The challenge names it, so the document must be there.
    Advertised,
    /// It is a well-known address, where there may be anything.
    WellKnown,
}

/// Reads a document. Returns nothing if it is not the metadata of a resource.
pub(crate) fn read(
    endpoint: &Url,
    body: &[u8],
    source: Source,
) -> Result<Option<ResourceMetadata>, SignInError> {
    #[derive(Deserialize)]
    struct Document {
        resource: Option<String>,
        scopes_supported: Option<Vec<String>>,
        authorization_servers: Option<Vec<String>>,
        /// Of early drafts, and still sent by some servers.
        authorization_server: Option<String>,
    }
    let Ok(document) = serde_json::from_slice::<Document>(body) else {
        return Ok(None);
    };
    let Some(resource) = document.resource else {
        return match source {
            Source::WellKnown => Ok(None),
            Source::Advertised => Err(SignInError::Discovery {
                resource: endpoint.to_string(),
                why: "the metadata that its challenge names has no `resource`".to_owned(),
            }),
        };
    };
    if resource.len() > RESOURCE_BYTES {
        return Err(SignInError::Discovery {
            resource: endpoint.to_string(),
            why: format!("the `resource` of its metadata has more than {RESOURCE_BYTES} bytes"),
        });
    }
    if !Url::parse(&resource).is_ok_and(|resource| covers(&resource, endpoint)) {
        return Err(SignInError::OtherResource {
            endpoint: endpoint.to_string(),
            resource: printable(&resource),
        });
    }
    let named = document.authorization_server.into_iter();
    let named = named.chain(document.authorization_servers.unwrap_or_default());
    let named = named.map(|issuer| issuer.trim().to_owned());
    let mut issuers = Vec::new();
    scope::add(
        &mut issuers,
        named.filter(|issuer| !issuer.is_empty()).take(ISSUERS),
    );
    // The address of a document is not an issuer, and the document could then claim any issuer.
    if let Some(address) = issuers.iter().find(|issuer| issuer.contains("/.well-known/")) {
        return Err(SignInError::Metadata {
            address: printable(address),
            why: "the server names the address of a document where it must name an issuer".to_owned(),
        });
    }
    let scopes = scope::parse(&document.scopes_supported.unwrap_or_default().join(" "));
    Ok(Some(ResourceMetadata {
        resource,
        scopes,
        issuers,
    }))
}

/// Returns whether a token for `resource` may be sent to `endpoint`: the same origin, and the same
/// path or one above it.
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
    fn resource_covers_its_endpoint_and_the_paths_below_it() {
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
    fn metadata_of_another_resource_is_refused_and_other_documents_are_passed_over() {
        let endpoint = Url::parse("https://a.example/mcp").unwrap();
        let read = |body: &str| read(&endpoint, body.as_bytes(), Source::WellKnown);
        let ours = read(r#"{"resource":"https://a.example/mcp","scopes_supported":["r","w"]}"#)
            .unwrap()
            .unwrap();
        assert_eq!(ours.scopes, ["r", "w"]);
        assert!(matches!(
            read(
                r#"{"resource":"https://a.example/mcp","authorization_servers":["https://b.example/.well-known/x"]}"#
            ),
            Err(SignInError::Metadata { .. })
        ));
        assert!(matches!(
            read(r#"{"resource":"https://b.example/mcp"}"#),
            Err(SignInError::OtherResource { .. })
        ));
        assert!(matches!(
            read(r#"{"resource":"urn:x"}"#),
            Err(SignInError::OtherResource { .. })
        ));
        assert_eq!(
            read(r#"{"issuer":"https://b.example","token_endpoint":"x"}"#).unwrap(),
            None
        );
        assert_eq!(read("<html>").unwrap(), None);
    }

    #[test]
    fn advertised_document_without_a_resource_is_an_error() {
        let endpoint = Url::parse("https://a.example/mcp").unwrap();
        let read = |body: &str| read(&endpoint, body.as_bytes(), Source::Advertised);
        assert!(matches!(read("{}"), Err(SignInError::Discovery { .. })));
        assert!(read("<html>").unwrap().is_none());
    }

    #[test]
    fn issuers_are_limited_and_so_is_the_identifier() {
        let endpoint = Url::parse("https://a.example/mcp").unwrap();
        let read = |body: serde_json::Value| read(&endpoint, body.to_string().as_bytes(), Source::WellKnown);
        let issuers: Vec<String> = (0..20)
            .map(|number| format!("https://{number}.example"))
            .collect();
        let body = serde_json::json!({"resource": "https://a.example", "authorization_servers": issuers});
        assert_eq!(read(body).unwrap().unwrap().issuers, issuers[..ISSUERS]);
        let resource = format!("https://a.example/mcp?{}", "x".repeat(RESOURCE_BYTES));
        let body = serde_json::json!({"resource": resource});
        assert!(matches!(read(body), Err(SignInError::Discovery { .. })));
    }

    #[test]
    fn issuers_are_listed_once_and_without_spaces() {
        let endpoint = Url::parse("https://a.example/mcp").unwrap();
        let body = br#"{"resource":"https://a.example","authorization_server":"https://i.example",
            "authorization_servers":[" https://i.example","","https://j.example"]}"#;
        let read = read(&endpoint, body, Source::WellKnown).unwrap().unwrap();
        assert_eq!(read.issuers, ["https://i.example", "https://j.example"]);
    }
}
