//! The authorization request: what the browser is sent with (RFC 6749, section 4.1.1), with PKCE
//! (RFC 7636).

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use url::Url;

use crate::secret::Secret;

/// One request, and the secrets that tie its answer and its code to it.
#[derive(Debug)]
pub(super) struct AuthorizationRequest {
    /// The page to open.
    pub(super) url: Url,
    pub(super) state: Secret,
    /// The PKCE verifier, which the token request sends.
    pub(super) verifier: Secret,
    pub(super) redirect_uri: String,
}

impl AuthorizationRequest {
    pub(super) fn new(
        endpoint: &Url,
        client_id: &str,
        redirect_uri: &Url,
        resource: &str,
        scopes: &[String],
    ) -> Self {
        let (state, verifier) = (Secret::new(random::<16>()), Secret::new(random::<32>()));
        let mut url = endpoint.clone();
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", client_id)
            .append_pair("state", state.expose())
            .append_pair("code_challenge", &code_challenge(verifier.expose()))
            .append_pair("code_challenge_method", "S256")
            .append_pair("redirect_uri", redirect_uri.as_str())
            .append_pair("resource", resource);
        if !scopes.is_empty() {
            query.append_pair("scope", &scopes.join(" "));
        }
        drop(query);
        Self {
            url,
            state,
            verifier,
            redirect_uri: redirect_uri.to_string(),
        }
    }
}

fn random<const BYTES: usize>() -> String {
    let mut bytes = [0; BYTES];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random bytes");
    URL_SAFE_NO_PAD.encode(bytes)
}

fn code_challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_challenge_is_that_of_rfc_7636() {
        // Appendix B.
        assert_eq!(
            code_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        );
    }

    #[test]
    fn request_keeps_the_query_of_its_endpoint_and_escapes_its_own() {
        let endpoint = Url::parse("https://auth.example.com/authorize?tenant=1").unwrap();
        let redirect_uri = Url::parse("http://127.0.0.1:4711/callback").unwrap();
        let scopes = ["read".to_owned(), "write".to_owned()];
        let make = |scopes| {
            let resource = "https://a.example/mcp?b=c&d";
            AuthorizationRequest::new(&endpoint, "robot one", &redirect_uri, resource, scopes)
        };
        let request = make(&scopes[..]);
        let pairs: Vec<_> = request.url.query_pairs().into_owned().collect();
        let expected = [
            ("tenant", "1"),
            ("response_type", "code"),
            ("client_id", "robot one"),
            ("state", request.state.expose()),
            ("code_challenge", &code_challenge(request.verifier.expose())),
            ("code_challenge_method", "S256"),
            ("redirect_uri", "http://127.0.0.1:4711/callback"),
            ("resource", "https://a.example/mcp?b=c&d"),
            ("scope", "read write"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs, expected);
        let other = make(&[]);
        assert!(!other.url.as_str().contains("scope="));
        assert_ne!(request.state, other.state);
        assert_ne!(request.verifier, other.verifier);
        // RFC 7636, section 4.1: 43 to 128 characters.
        assert_eq!(request.verifier.expose().len(), 43);
    }
}
