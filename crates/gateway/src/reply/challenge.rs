//! The `WWW-Authenticate` challenge for a request without a valid credential (RFC 6750, RFC 9728).

use http::header::HeaderValue;

/// What is wrong with the credentials of a caller, with the error codes of RFC 6750, 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChallengeError {
    /// It showed nothing.
    Nothing,
    InvalidRequest(&'static str),
    /// A token of a known caller that is not valid here and now.
    InvalidToken(&'static str),
    /// A token of no known caller: a guess, or a mistake.
    UnknownToken(&'static str),
    InsufficientScope,
}

/// A `WWW-Authenticate` header: what is wrong, where to sign in, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) challenge_error: ChallengeError,
    pub(crate) metadata: Option<String>,
    pub(crate) scopes: Vec<String>,
}

impl Challenge {
    pub(crate) fn header(&self) -> HeaderValue {
        let (error, description) = match self.challenge_error {
            ChallengeError::Nothing => (None, None),
            ChallengeError::InvalidRequest(why) => (Some("invalid_request"), Some(why)),
            ChallengeError::InvalidToken(why) | ChallengeError::UnknownToken(why) => {
                (Some("invalid_token"), Some(why))
            }
            ChallengeError::InsufficientScope => (Some("insufficient_scope"), None),
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
        match self.challenge_error {
            ChallengeError::Nothing => {
                "authentication is needed: send `Authorization: Bearer TOKEN`".to_owned()
            }
            ChallengeError::InvalidRequest(why)
            | ChallengeError::InvalidToken(why)
            | ChallengeError::UnknownToken(why) => why.to_owned(),
            ChallengeError::InsufficientScope => format!("needs the scopes {}", self.scopes.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_spelled_as_the_rules_have_it() {
        let challenge = |challenge_error, metadata: Option<&str>, scopes: &[&str]| {
            let challenge = Challenge {
                challenge_error,
                metadata: metadata.map(str::to_owned),
                scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            };
            challenge.header().to_str().unwrap().to_owned()
        };
        assert_eq!(
            challenge(ChallengeError::Nothing, None, &[]),
            "Bearer realm=\"rialto\""
        );
        assert_eq!(
            challenge(ChallengeError::Nothing, Some("https://x/y"), &["a", "b"]),
            "Bearer scope=\"a b\", resource_metadata=\"https://x/y\""
        );
        assert_eq!(
            challenge(ChallengeError::InvalidToken("the token has expired"), None, &[]),
            "Bearer error=\"invalid_token\", error_description=\"the token has expired\""
        );
        assert_eq!(
            challenge(
                ChallengeError::InsufficientScope,
                Some("https://x/y"),
                &["a", "b"]
            ),
            "Bearer error=\"insufficient_scope\", scope=\"a b\", resource_metadata=\"https://x/y\""
        );
    }
}
