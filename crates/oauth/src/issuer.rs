//! Whether a metadata document is its issuer's own, and where that issuer's endpoints are.
//!
//! A remote server chooses which document is read. So a document counts only if it was requested
//! from a well-known address of the very issuer that it claims (RFC 8414, section 3.3), and if the
//! resource names that issuer letter for letter.

use url::Url;

/// Which issuers the resource allows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Allowed<'a> {
    /// Those of `authorization_servers` in the resource's metadata.
    Named(&'a [String]),
    /// The resource names none: only an issuer at the resource's own origin (2025-03-26).
    OriginOf(&'a Url),
}

/// Checks a metadata document that was requested from `address` and claims `issuer`.
pub(crate) fn check(issuer: Option<&str>, address: &Url, allowed: Allowed<'_>) -> Result<(), &'static str> {
    let issuer = issuer.ok_or("it names no issuer")?;
    let parsed = Url::parse(issuer).map_err(|_| "its issuer is no URL")?;
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err("its issuer has a query or a fragment");
    }
    if !is_well_known_address(address, &parsed) {
        return Err("it claims an issuer that publishes its metadata elsewhere");
    }
    let is_allowed = match allowed {
        Allowed::Named(named) => named.iter().any(|named| is_same(named, issuer)),
        Allowed::OriginOf(endpoint) => endpoint.origin() == parsed.origin(),
    };
    if is_allowed {
        Ok(())
    } else {
        Err("the server does not name its issuer as its authorization server")
    }
}

/// Returns whether two issuers are the same letter for letter; the slash of a bare origin counts
/// for nothing.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    without_root_slash(one) == without_root_slash(other)
}

fn without_root_slash(issuer: &str) -> &str {
    let bare = issuer.strip_suffix('/');
    bare.filter(|bare| {
        bare.split_once("://")
            .is_some_and(|(_, host)| !host.contains('/'))
    })
    .unwrap_or(issuer)
}

fn is_well_known_address(address: &Url, issuer: &Url) -> bool {
    address.origin().is_tuple() && well_known_addresses(issuer).contains(address)
}

/// Returns where an issuer may publish its metadata, in the order of 2025-11-25, "Authorization
/// Server Metadata Discovery".
pub(crate) fn well_known_addresses(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut paths = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
        format!("{path}/.well-known/openid-configuration"),
    ];
    paths.dedup();
    paths.iter().map(|path| at_path(issuer, path)).collect()
}

/// Returns the address of this path at the origin of a URL.
pub(crate) fn at_path(url: &Url, path: &str) -> Url {
    let mut address = url.clone();
    address.set_query(None);
    address.set_fragment(None);
    address.set_path(path);
    address
}

/// Returns the origin of a URL, or nothing if it has none.
pub(crate) fn origin(url: &str) -> Option<String> {
    let origin = Url::parse(url).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

/// Returns the first OAuth parameter in the query of an authorization endpoint.
///
/// Such an endpoint could bring its own client, redirect URI or state, or a request object that
/// replaces them all.
pub(crate) fn oauth_parameter(endpoint: &str) -> Option<String> {
    const PARAMETERS: [&str; 16] = [
        "client_id",
        "redirect_uri",
        "state",
        "response_type",
        "response_mode",
        "request",
        "request_uri",
        "scope",
        "resource",
        "code_challenge",
        "code_challenge_method",
        "nonce",
        "claims",
        "registration",
        "authorization_details",
        "dpop_jkt",
    ];
    let url = Url::parse(endpoint).ok()?;
    let mut names = url.query_pairs().map(|(name, _)| name.into_owned());
    let is_oauth = |name: &String| {
        PARAMETERS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name.trim()))
    };
    names.find(is_oauth)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(issuer: &str, address: &str, named: &str) -> Result<(), &'static str> {
        let named = [named.to_owned()];
        check(
            Some(issuer),
            &Url::parse(address).unwrap(),
            Allowed::Named(&named),
        )
    }

    const HONEST: &str = "https://honest.example";

    #[test]
    fn document_at_a_well_known_address_of_its_named_issuer_counts() {
        for (issuer, address) in [
            (
                HONEST,
                "https://honest.example/.well-known/oauth-authorization-server",
            ),
            (HONEST, "https://honest.example/.well-known/openid-configuration"),
            (
                "https://honest.example/a",
                "https://honest.example/.well-known/oauth-authorization-server/a",
            ),
            (
                "https://honest.example/a",
                "https://honest.example/.well-known/openid-configuration/a",
            ),
            (
                "https://honest.example/a/",
                "https://honest.example/a/.well-known/openid-configuration",
            ),
        ] {
            assert_eq!(checked(issuer, address, issuer), Ok(()), "{issuer} {address}");
        }
        let address = "https://honest.example/.well-known/openid-configuration";
        assert_eq!(checked(HONEST, address, "https://honest.example/"), Ok(()));
        assert_eq!(checked("https://honest.example/", address, HONEST), Ok(()));
    }

    #[test]
    fn document_from_elsewhere_does_not_count_whatever_it_claims() {
        for address in [
            "https://evil.example/.well-known/oauth-authorization-server",
            "https://evil.example/.well-known/about",
            "https://honest.example/.well-known/about",
            "https://honest.example/.well-known/oauth-authorization-server/other",
            "https://honest.example/other/.well-known/openid-configuration",
            "https://honest.example/.well-known/openid-configuration?x=1",
            "https://honest.example:444/.well-known/openid-configuration",
            "http://honest.example/.well-known/openid-configuration",
        ] {
            assert!(checked(HONEST, address, HONEST).is_err(), "{address}");
            assert!(checked(HONEST, address, address).is_err(), "{address}");
        }
    }

    #[test]
    fn issuer_that_the_resource_does_not_name_letter_for_letter_does_not_count() {
        let address = "https://honest.example/.well-known/oauth-authorization-server";
        for named in [
            "https://HONEST.example",
            "https://honest.example:443",
            "https://evil.example",
            "https://honest.example/a",
            "https://honest.example//",
            "",
        ] {
            assert!(checked(HONEST, address, named).is_err(), "{named}");
        }
        let tenant = "https://honest.example/a";
        let address = "https://honest.example/.well-known/oauth-authorization-server/a";
        assert!(checked(tenant, address, "https://honest.example/a/").is_err());
        assert!(check(None, &Url::parse(address).unwrap(), Allowed::Named(&[])).is_err());
    }

    #[test]
    fn resource_without_metadata_has_its_issuer_at_its_own_origin() {
        let endpoint = Url::parse("https://mcp.example/mcp").unwrap();
        let from = |issuer: &str, address: &str| {
            let address = Url::parse(address).unwrap();
            check(Some(issuer), &address, Allowed::OriginOf(&endpoint))
        };
        let own = "https://mcp.example/.well-known/oauth-authorization-server";
        assert_eq!(from("https://mcp.example", own), Ok(()));
        assert!(from(HONEST, own).is_err());
        assert!(
            from(
                HONEST,
                "https://honest.example/.well-known/oauth-authorization-server"
            )
            .is_err()
        );
    }

    #[test]
    fn oauth_parameters_of_an_endpoint_are_found_in_every_spelling() {
        let of = |query: &str| oauth_parameter(&format!("https://a.example/authorize{query}"));
        for query in [
            "?state=x",
            "?a=1&Client_ID=x",
            "?%72equest_uri=x",
            "?+scope=x",
            "?state",
        ] {
            assert!(of(query).is_some(), "{query}");
        }
        for query in ["", "?tenant=1", "?p=b2c_1_sign_in&statement=x", "#state=x"] {
            assert_eq!(of(query), None, "{query}");
        }
    }
}
