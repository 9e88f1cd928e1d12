//! What the browser brings back: is it the answer to our question, and from whom we asked?
//!
//! Judged by hand and before rmcp sees it, because rmcp knows only answers with a code: a refusal (`error=…`) must pass the same checks before a
//! word of it is shown (2026-07-28, "Authorization Response Validation"; RFC 9207).

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
    /// It has said that it names itself in its answers.
    pub(crate) names_itself: bool,
}

/// An authorization code, and who it says it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) code: Secret,
    pub(crate) issuer: Option<String>,
}

/// What a request to the callback is.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// Not an answer to our question: a wrong state, or none. Anyone can send that, so it ends nothing.
    Stranger,
    Answer(Result<Code, SignInError>),
}

pub(crate) fn judge(query: &str, expected: &Expected) -> Verdict {
    let all = |wanted: &str| {
        let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == wanted);
        pairs.map(|(_, value)| value.into_owned()).collect::<Vec<_>>()
    };
    let [state] = all("state").try_into().unwrap_or_default();
    if verify_slices_are_equal(String::as_bytes(&state), expected.state.expose().as_bytes()).is_err() {
        return Verdict::Stranger;
    }
    Verdict::Answer(answer(
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
    // Compared as they stand: no case folding, no trailing slash, no default port (RFC 9207, section 2.4).
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
        ([], [code]) if !code.is_empty() => Ok(Code {
            code: Secret::new(code),
            issuer: issuers.first().cloned(),
        }),
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
        match judge(query, &expected(names_itself)) {
            Verdict::Answer(answer) => answer,
            Verdict::Stranger => panic!("{query} is from a stranger"),
        }
    }

    #[test]
    fn a_code_with_the_right_state_is_taken() {
        let code = answered("code=abc&state=s3", false).unwrap();
        assert_eq!(code.code.expose(), "abc");
    }

    #[test]
    fn a_wrong_state_is_nobody_s_answer() {
        for query in [
            "",
            "code=abc",
            "code=abc&state=",
            "code=abc&state=S3",
            "code=a&state=s3&state=s3",
            "error=x&state=s",
        ] {
            assert!(
                matches!(judge(query, &expected(false)), Verdict::Stranger),
                "{query}"
            );
        }
    }

    #[test]
    fn the_issuer_is_compared_to_the_letter() {
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
    fn who_said_he_names_himself_must() {
        assert!(matches!(
            answered("code=abc&state=s3", true),
            Err(SignInError::WrongIssuer { .. })
        ));
        assert!(answered("code=abc&state=s3&iss=https://auth.example.com", true).is_ok());
    }

    #[test]
    fn nothing_of_an_answer_from_elsewhere_is_shown() {
        let query = "error=access_denied&error_description=call+555&state=s3&iss=https://evil.example";
        let error = answered(query, false).unwrap_err().to_string();
        assert!(
            !error.contains("555") && !error.contains("evil") && !error.contains("access_denied"),
            "{error}"
        );
    }

    #[test]
    fn a_refusal_is_told_escaped() {
        let error = answered("error=access_denied&error_description=%1b[31mno&state=s3", false).unwrap_err();
        assert!(
            error.to_string().contains("access_denied (\\u{1b}[31mno)"),
            "{error}"
        );
    }

    #[test]
    fn an_answer_that_contradicts_itself_is_refused() {
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
