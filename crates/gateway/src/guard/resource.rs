//! What a destination is called as an OAuth resource, and how clients learn where to sign in for it (RFC 9728).

use http::header::HeaderValue;
use serde_json::json;

use crate::settings::PublicUrl;

/// Where metadata about a resource is: this in front of the resource's own path.
pub(crate) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// By which of its paths a destination was reached. Each is a resource of its own to a client, which compares the
/// address it was given with the one in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// `/NAME/mcp`.
    Named,
    /// `/mcp/NAME`.
    Alias,
    /// `/mcp`.
    Root,
}

impl Door {
    fn path(self, destination: &str) -> String {
        match self {
            Self::Named => format!("/{destination}/mcp"),
            Self::Alias => format!("/mcp/{destination}"),
            Self::Root => "/mcp".to_owned(),
        }
    }
}

/// Names resources.
#[derive(Debug)]
pub(crate) struct Resources {
    base: PublicUrl,
}

impl Resources {
    pub(crate) fn new(base: PublicUrl) -> Self {
        Self { base }
    }

    /// The resource's identifier: the address that clients use.
    pub(crate) fn name(&self, destination: &str, door: Door) -> String {
        format!(
            "{}{}{}",
            self.base.origin(),
            self.base.path(),
            door.path(destination)
        )
    }

    /// Where its metadata are.
    pub(crate) fn metadata_url(&self, destination: &str, door: Door) -> String {
        let path = door.path(destination);
        format!("{}{WELL_KNOWN}{}{path}", self.base.origin(), self.base.path())
    }

    /// The path of the resource that a metadata path is about, as the router knows it. A proxy may leave the path it
    /// adds in place, or not.
    pub(crate) fn described<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(WELL_KNOWN)?;
        let inner = rest
            .strip_prefix(self.base.path())
            .filter(|inner| inner.is_empty() || inner.starts_with('/'))
            .unwrap_or(rest);
        match inner {
            "" | "/" => Some("/mcp"),
            _ if inner.starts_with('/') => Some(inner),
            _ => None,
        }
    }

    /// The metadata document.
    pub(crate) fn document(&self, destination: &str, door: Door, issuer: &str, scopes: &[&str]) -> String {
        let mut document = json!({
            "resource": self.name(destination, door),
            "authorization_servers": [issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": destination,
        });
        if !scopes.is_empty() {
            document["scopes_supported"] = json!(scopes);
        }
        format!("{document}\n")
    }
}

/// What is wrong with what a caller showed, in the words of RFC 6750, 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// It showed nothing.
    Nothing,
    InvalidRequest(&'static str),
    /// A token that is somebody's, and not good here and now.
    InvalidToken(&'static str),
    /// Nobody's: a guess, or a mistake.
    UnknownToken(&'static str),
    InsufficientScope,
}

/// A `WWW-Authenticate` header: what is wrong, where to sign in, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) complaint: Complaint,
    pub(crate) metadata: Option<String>,
    pub(crate) scopes: Vec<String>,
}

impl Challenge {
    pub(crate) fn header(&self) -> HeaderValue {
        let (error, description) = match self.complaint {
            Complaint::Nothing => (None, None),
            Complaint::InvalidRequest(why) => (Some("invalid_request"), Some(why)),
            Complaint::InvalidToken(why) | Complaint::UnknownToken(why) => (Some("invalid_token"), Some(why)),
            Complaint::InsufficientScope => (Some("insufficient_scope"), None),
        };
        let scope = (!self.scopes.is_empty()).then(|| self.scopes.join(" "));
        let parameters: Vec<String> = [
            ("error", error),
            ("error_description", description),
            ("scope", scope.as_deref()),
            ("resource_metadata", self.metadata.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}=\"{}\"", value?)))
        .collect();
        let text = match parameters.as_slice() {
            [] => "Bearer realm=\"rialto\"".to_owned(),
            parameters => format!("Bearer {}", parameters.join(", ")),
        };
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("Bearer"))
    }

    /// The same for people.
    pub(crate) fn text(&self) -> String {
        match self.complaint {
            Complaint::Nothing => "authentication is needed: send `Authorization: Bearer TOKEN`".to_owned(),
            Complaint::InvalidRequest(why) | Complaint::InvalidToken(why) | Complaint::UnknownToken(why) => {
                why.to_owned()
            }
            Complaint::InsufficientScope => format!("needs the scopes {}", self.scopes.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(base: &str) -> Resources {
        Resources::new(PublicUrl::parse(base).unwrap())
    }

    #[test]
    fn every_path_of_a_destination_has_its_own_name_and_metadata() {
        let plain = resources("https://mcp.example.com");
        let deep = resources("https://example.com/tools/");
        for (door, path) in [
            (Door::Named, "/demo/mcp"),
            (Door::Alias, "/mcp/demo"),
            (Door::Root, "/mcp"),
        ] {
            assert_eq!(plain.name("demo", door), format!("https://mcp.example.com{path}"));
            assert_eq!(
                plain.metadata_url("demo", door),
                format!("https://mcp.example.com/.well-known/oauth-protected-resource{path}")
            );
            assert_eq!(
                deep.name("demo", door),
                format!("https://example.com/tools{path}")
            );
            assert_eq!(
                deep.metadata_url("demo", door),
                format!("https://example.com/.well-known/oauth-protected-resource/tools{path}")
            );
            assert_eq!(plain.described(&format!("{WELL_KNOWN}{path}")), Some(path));
            assert_eq!(deep.described(&format!("{WELL_KNOWN}/tools{path}")), Some(path));
            assert_eq!(deep.described(&format!("{WELL_KNOWN}{path}")), Some(path));
        }
        assert_eq!(plain.described(WELL_KNOWN), Some("/mcp"));
        assert_eq!(
            plain.described("/.well-known/oauth-protected-resourcex/mcp"),
            None
        );
        assert_eq!(plain.described("/demo/mcp"), None);
    }

    #[test]
    fn the_document_says_who_gives_tokens_and_for_what() {
        let document = resources("https://x").document("demo", Door::Named, "https://login", &["mcp"]);
        let document: serde_json::Value = serde_json::from_str(&document).unwrap();
        assert_eq!(document["resource"], "https://x/demo/mcp");
        assert_eq!(document["authorization_servers"], json!(["https://login"]));
        assert_eq!(document["scopes_supported"], json!(["mcp"]));
    }

    #[test]
    fn challenges_are_spelled_as_the_rules_have_it() {
        let challenge = |complaint, metadata: Option<&str>, scopes: &[&str]| {
            let challenge = Challenge {
                complaint,
                metadata: metadata.map(str::to_owned),
                scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            };
            challenge.header().to_str().unwrap().to_owned()
        };
        assert_eq!(
            challenge(Complaint::Nothing, None, &[]),
            "Bearer realm=\"rialto\""
        );
        assert_eq!(
            challenge(Complaint::Nothing, Some("https://x/y"), &["a", "b"]),
            "Bearer scope=\"a b\", resource_metadata=\"https://x/y\""
        );
        assert_eq!(
            challenge(Complaint::InvalidToken("the token has expired"), None, &[]),
            "Bearer error=\"invalid_token\", error_description=\"the token has expired\""
        );
        assert_eq!(
            challenge(Complaint::InsufficientScope, Some("https://x/y"), &["a", "b"]),
            "Bearer error=\"insufficient_scope\", scope=\"a b\", resource_metadata=\"https://x/y\""
        );
    }
}
