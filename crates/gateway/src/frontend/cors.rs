//! CORS headers for browsers. [`origin`] decides which origins may call; here the answers to those
//! get their headers, and no others.
//!
//! [`origin`]: crate::guard::origin

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use super::body::Body;
use super::respond;

/// What a page may read of an answer besides its body.
const EXPOSED: HeaderValue = HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate, Retry-After");
/// How long a browser may remember the answer, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const REQUESTED_METHOD: HeaderName = header::ACCESS_CONTROL_REQUEST_METHOD;

/// Returns whether a request only asks what would be allowed.
pub(crate) fn is_preflight(method: &http::Method, headers: &HeaderMap) -> bool {
    *method == http::Method::OPTIONS && headers.contains_key(REQUESTED_METHOD)
}

/// Returns the answer to a question of a browser on behalf of an origin that may call.
pub(crate) fn preflight(headers: &HeaderMap, methods: &'static str) -> Response<Body> {
    let mut response = respond::empty(StatusCode::NO_CONTENT);
    let out = response.headers_mut();
    out.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static(methods),
    );
    out.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        // `Mcp-Param-*` cannot be listed in advance, and the origin is one that was allowed by
        // name.
        out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}

/// Lets the origin that a request came from read its answer, an error included. No credentials of
/// the browser's own are ever allowed: a token is sent by a page that has one, never by a cookie.
pub(crate) fn allow(response: &mut Response<Body>, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}

/// The answer depends on the origin, even where the request had none.
pub(crate) fn vary(response: &mut Response<Body>) {
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn a_browser_may_send_the_headers_it_asks_for_and_no_cookies() {
        let headers = HeaderMap::from_iter([(
            header::ACCESS_CONTROL_REQUEST_HEADERS,
            HeaderValue::from_static("authorization, mcp-param-city"),
        )]);
        let mut response = preflight(&headers, "GET, POST");
        allow(&mut response, HeaderValue::from_static("https://app.example.com"));
        let header = |name: HeaderName| response.headers()[name].to_str().unwrap();
        assert_eq!(response.status(), 204);
        assert_eq!(
            header(header::ACCESS_CONTROL_ALLOW_HEADERS),
            "authorization, mcp-param-city"
        );
        assert_eq!(header(header::ACCESS_CONTROL_ALLOW_METHODS), "GET, POST");
        assert_eq!(
            header(header::ACCESS_CONTROL_ALLOW_ORIGIN),
            "https://app.example.com"
        );
        assert!(
            !response
                .headers()
                .contains_key(header::ACCESS_CONTROL_ALLOW_CREDENTIALS)
        );
    }

    #[test]
    fn a_preflight_names_the_method_it_is_about() {
        let asked = HeaderMap::from_iter([(REQUESTED_METHOD, HeaderValue::from_static("POST"))]);
        assert!(is_preflight(&Method::OPTIONS, &asked));
        assert!(!is_preflight(&Method::OPTIONS, &HeaderMap::new()));
        assert!(!is_preflight(&Method::POST, &asked));
    }
}
