//! The authorization response: does it belong to the request, and does it come from the server that
//! was asked?
//!
//! A refusal (`error=…`) must pass the same checks as a code before a word of it is shown
//! (2026-07-28, "Authorization Response Validation"; RFC 9207).

use aws_lc_rs::constant_time::verify_slices_are_equal;
use url::form_urlencoded;

use crate::error::SignInError;
use crate::secret::Secret;
use crate::url_policy::printable;

pub(crate) mod listener;
mod page;

/// What an answer must match.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) state: Secret,
    /// The issuer of the metadata that was used, for comparing.
    pub(crate) issuer: Option<String>,
    /// Whether the server promises to name itself in its answers.
    pub(crate) names_itself: bool,
}

/// An authorization code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) Secret);

/// What a request to the callback is.
#[derive(Debug, Clone)]
pub(crate) enum CallbackRequest {
    /// Not an answer to the request: a wrong state, or none. Any web page can send that, so it ends
    /// nothing.
    Unrelated,
    Answer(Result<Code, SignInError>),
}

pub(crate) fn classify(query: &str, expected: &Expected) -> CallbackRequest {
    let all = |wanted: &str| {
        let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == wanted);
        pairs.map(|(_, value)| value.into_owned()).collect::<Vec<_>>()
    };
    let [state] = all("state").try_into().unwrap_or_default();
    if verify_slices_are_equal(String::as_bytes(&state), expected.state.expose().as_bytes()).is_err() {
        return CallbackRequest::Unrelated;
    }
    CallbackRequest::Answer(answer(
        &all("iss"),
        &all("error"),
        &all("error_description"),
        &all("code"),
        expected,
    ))
}

fn answer(
    issuers: &[String],
    errors: &[String],
    descriptions: &[String],
    codes: &[String],
    expected: &Expected,
) -> Result<Code, SignInError> {
    // Compared as they stand: no case folding, no trailing slash, no default port (RFC 9207,
    // section 2.4).
    let genuine = match (issuers, &expected.issuer) {
        ([], _) => !expected.names_itself,
        ([named], Some(issuer)) => named == issuer,
        ([_], None) | ([_, _, ..], _) => false,
    };
    if !genuine {
        let issuer = expected.issuer.as_deref().unwrap_or("that was asked");
        return Err(SignInError::WrongIssuer {
            issuer: printable(issuer),
        });
    }
    match (errors, codes) {
        ([error], _) => Err(SignInError::Denied {
            code: printable(error),
            description: descriptions
                .first()
                .map(|text| format!(" ({})", printable(text)))
                .unwrap_or_default(),
        }),
        ([], [code]) if !code.is_empty() => Ok(Code(Secret::new(code))),
        ([], []) => Err(SignInError::Callback("it has neither a code nor an error")),
        ([], [_, ..]) | ([_, ..], _) => Err(SignInError::Callback("it has a parameter twice")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(names_itself: bool) -> Expected {
        Expected {
            state: Secret::new("s3"),
            issuer: Some("https://auth.example.com".into()),
            names_itself,
        }
    }

    fn answered(query: &str, names_itself: bool) -> Result<Code, SignInError> {
        match classify(query, &expected(names_itself)) {
            CallbackRequest::Answer(answer) => answer,
            CallbackRequest::Unrelated => panic!("{query} has another state"),
        }
    }

    #[test]
    fn code_with_the_right_state_is_accepted() {
        let code = answered("code=abc&state=s3", false).unwrap();
        assert_eq!(code.0.expose(), "abc");
    }

    #[test]
    fn answer_with_a_wrong_state_is_ignored() {
        for query in [
            "",
            "code=abc",
            "code=abc&state=",
            "code=abc&state=S3",
            "code=a&state=s3&state=s3",
            "error=x&state=s",
        ] {
            assert!(
                matches!(classify(query, &expected(false)), CallbackRequest::Unrelated),
                "{query}"
            );
        }
    }

    #[test]
    fn issuer_is_compared_letter_for_letter() {
        let with = |iss: &str| answered(&format!("code=abc&state=s3&iss={iss}"), false);
        assert!(with("https://auth.example.com").is_ok());
        for iss in [
            "https://auth.example.com/",
            "https://AUTH.example.com",
            "https://auth.example.com:443",
            "https://evil.example",
            "",
            "https://auth.example.com&iss=https://auth.example.com",
        ] {
            assert!(matches!(with(iss), Err(SignInError::WrongIssuer { .. })), "{iss}");
        }
    }

    #[test]
    fn server_that_promises_iss_must_send_it() {
        assert!(matches!(
            answered("code=abc&state=s3", true),
            Err(SignInError::WrongIssuer { .. })
        ));
        assert!(answered("code=abc&state=s3&iss=https://auth.example.com", true).is_ok());
    }

    #[test]
    fn answer_of_another_issuer_is_not_shown() {
        let query = "error=access_denied&error_description=call+555&state=s3&iss=https://evil.example";
        let error = answered(query, false).unwrap_err().to_string();
        assert!(
            !error.contains("555") && !error.contains("evil") && !error.contains("access_denied"),
            "{error}"
        );
    }

    #[test]
    fn refusal_is_reported_escaped() {
        let error = answered("error=access_denied&error_description=%1b[31mno&state=s3", false).unwrap_err();
        assert!(
            error.to_string().contains("access_denied (\\u{1b}[31mno)"),
            "{error}"
        );
    }

    #[test]
    fn answer_that_contradicts_itself_is_refused() {
        for query in [
            "state=s3",
            "code=a&code=b&state=s3",
            "code=&state=s3",
            "error=a&error=b&state=s3",
        ] {
            assert!(
                matches!(answered(query, false), Err(SignInError::Callback(_))),
                "{query}"
            );
        }
    }
}
