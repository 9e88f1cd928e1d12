//! Values that may be sent to one peer and never shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A token or a client's secret. It prints as `[redacted]`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value itself, for the one place that sends or stores it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[redacted]")
    }
}

/// The value of the `Authorization` header for one remote resource.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization(String);

impl Authorization {
    /// Returns a bearer token, if it is one that a header can carry (RFC 6750, section 2.1:
    /// `b64token`).
    ///
    /// What an authorization server calls a token reaches a header here, so nothing but the
    /// characters that the grammar allows passes: no space, no control character, nothing that ends
    /// a line.
    pub(crate) fn bearer(token: &Secret) -> Option<Self> {
        let token = token.expose();
        let fits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(format!("Bearer {token}")))
    }

    /// Returns the header's value, for the request it belongs to.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Authorization([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_printed_redacted() {
        let secret = Secret::new("swordfish");
        let authorization = Authorization::bearer(&secret).unwrap();
        assert_eq!(
            format!("{secret:?} {authorization:?}"),
            "[redacted] Authorization([redacted])"
        );
        assert_eq!(authorization.expose(), "Bearer swordfish");
    }

    #[test]
    fn token_that_would_break_the_header_is_refused() {
        for token in ["", "a b", "a\r\nX-Other: 1", "tök"] {
            assert_eq!(Authorization::bearer(&Secret::new(token)), None, "{token:?}");
        }
    }
}
