//! What a destination is called as an OAuth resource, and how clients learn where to sign in for it
//! (RFC 9728).

use serde_json::json;

use crate::settings::PublicUrl;

/// Where metadata about a resource is: this in front of the resource's own path.
pub(crate) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// By which of its paths a destination was reached. Each is a resource of its own to a client,
/// which compares the address it was given with the one in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointPath {
    /// `/NAME/mcp`.
    Named,
    /// `/mcp/NAME`.
    Alias,
    /// `/mcp`.
    Root,
}

impl EndpointPath {
    pub(crate) fn path(self, destination: &str) -> String {
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

    /// Returns the origin of all of them.
    pub(crate) fn origin(&self) -> &str {
        self.base.origin()
    }

    /// Returns the resource's identifier: the address that clients use.
    pub(crate) fn name(&self, destination: &str, endpoint_path: EndpointPath) -> String {
        format!(
            "{}{}{}",
            self.base.origin(),
            self.base.path(),
            endpoint_path.path(destination)
        )
    }

    /// Returns where its metadata are.
    pub(crate) fn metadata_url(&self, destination: &str, endpoint_path: EndpointPath) -> String {
        let path = endpoint_path.path(destination);
        format!("{}{WELL_KNOWN}{}{path}", self.base.origin(), self.base.path())
    }

    /// Returns the path of the resource that a metadata path is about, as the router knows it. A
    /// proxy may leave the path it adds in place, or not.
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

    /// Returns the metadata document.
    pub(crate) fn document(
        &self,
        destination: &str,
        endpoint_path: EndpointPath,
        issuer: &str,
        scopes: &[&str],
    ) -> String {
        let mut document = json!({
            "resource": self.name(destination, endpoint_path),
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
        for (endpoint_path, path) in [
            (EndpointPath::Named, "/demo/mcp"),
            (EndpointPath::Alias, "/mcp/demo"),
            (EndpointPath::Root, "/mcp"),
        ] {
            assert_eq!(
                plain.name("demo", endpoint_path),
                format!("https://mcp.example.com{path}")
            );
            assert_eq!(
                plain.metadata_url("demo", endpoint_path),
                format!("https://mcp.example.com/.well-known/oauth-protected-resource{path}")
            );
            assert_eq!(
                deep.name("demo", endpoint_path),
                format!("https://example.com/tools{path}")
            );
            assert_eq!(
                deep.metadata_url("demo", endpoint_path),
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
    fn metadata_name_the_issuer_and_the_scopes() {
        let document =
            resources("https://x").document("demo", EndpointPath::Named, "https://login", &["mcp"]);
        let document: serde_json::Value = serde_json::from_str(&document).unwrap();
        assert_eq!(document["resource"], "https://x/demo/mcp");
        assert_eq!(document["authorization_servers"], json!(["https://login"]));
        assert_eq!(document["scopes_supported"], json!(["mcp"]));
    }
}
