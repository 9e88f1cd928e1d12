//! The challenge of a server that refused a request, and what to do about it. Decisions only; time
//! is an argument.

use std::collections::VecDeque;

use url::Url;

use crate::error::SignInError;
use crate::scope;
use crate::www_authenticate::values;

/// What the server wants (RFC 6750, section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    /// 401: a token, or a better one. The scopes are those the challenge names.
    Token { scopes: Vec<String> },
    /// 403 `insufficient_scope`: the same person, with more permissions.
    Scopes { scopes: Vec<String> },
}

impl Demand {
    pub(super) fn new(status: u16, challenges: &[String], endpoint: &Url) -> Result<Self, SignInError> {
        let mut scopes = Vec::new();
        let mut insufficient = false;
        for challenge in challenges {
            let mut errors = values(challenge, "error").into_iter();
            insufficient |= errors.any(|error| error == "insufficient_scope");
            for list in values(challenge, "scope") {
                scope::add(&mut scopes, scope::parse(&list));
            }
        }
        match status {
            401 => Ok(Self::Token { scopes }),
            403 if insufficient => Ok(Self::Scopes { scopes }),
            _ => Err(SignInError::Forbidden {
                resource: endpoint.to_string(),
            }),
        }
    }

    pub(super) fn scopes(&self) -> &[String] {
        match self {
            Self::Token { scopes } | Self::Scopes { scopes } => scopes,
        }
    }
}

/// How the token that is held was come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Store,
    Renewed,
    SignedIn,
}

/// The situation after a 401 for a token that is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) origin: Origin,
    /// Seconds since the token was issued.
    pub(super) age: u64,
    pub(super) renewable: bool,
    /// The resource still names the authorization server that issued the token, at the same place.
    pub(super) same_issuer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    Renew,
    SignIn,
    /// The token is as new as it can be, and is refused all the same.
    Fail,
}

/// A token younger than this that is refused will not be helped by the same step again.
const PROBATION: u64 = 30;

pub(super) fn next_step(case: Case) -> NextStep {
    let young = case.age < PROBATION;
    let usual = if case.renewable {
        NextStep::Renew
    } else {
        NextStep::SignIn
    };
    match case.origin {
        // What one authorization server issued is no use at another.
        _ if !case.same_issuer => NextStep::SignIn,
        Origin::SignedIn if young => NextStep::Fail,
        Origin::Renewed if young => NextStep::SignIn,
        Origin::Store | Origin::Renewed | Origin::SignedIn => usual,
    }
}

/// Keeps a server from opening one browser window after the other.
#[derive(Debug, Default)]
pub(super) struct WindowLimit(VecDeque<u64>);

impl WindowLimit {
    const SPAN: u64 = 600;
    const MOST: usize = 4;

    /// Returns whether one more may be opened now.
    pub(super) fn another(&mut self, now: u64) -> bool {
        self.0.retain(|opened| now.saturating_sub(*opened) < Self::SPAN);
        let free = self.0.len() < Self::MOST;
        if free {
            self.0.push_back(now);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(status: u16, challenge: &str) -> Result<Demand, SignInError> {
        Demand::new(
            status,
            &[challenge.to_owned()],
            &Url::parse("https://a.example/mcp").unwrap(),
        )
    }

    #[test]
    fn status_401_wants_a_token_and_403_with_insufficient_scope_more_scopes() {
        let scopes = vec!["read".to_owned(), "write".to_owned()];
        let challenge = r#"Bearer error="insufficient_scope", scope="read write""#;
        assert_eq!(
            demand(401, challenge).unwrap(),
            Demand::Token {
                scopes: scopes.clone()
            }
        );
        assert_eq!(demand(403, challenge).unwrap(), Demand::Scopes { scopes });
        assert!(demand(403, r#"Bearer error="invalid_token""#).is_err());
        assert!(demand(500, challenge).is_err());
    }

    #[test]
    fn each_step_is_tried_once_before_the_next() {
        let case = |origin, age, renewable| {
            next_step(Case {
                origin,
                age,
                renewable,
                same_issuer: true,
            })
        };
        assert_eq!(case(Origin::Store, 5, true), NextStep::Renew);
        assert_eq!(case(Origin::Store, 5, false), NextStep::SignIn);
        assert_eq!(case(Origin::Renewed, 5, true), NextStep::SignIn);
        assert_eq!(case(Origin::Renewed, 3000, true), NextStep::Renew);
        assert_eq!(case(Origin::SignedIn, 5, true), NextStep::Fail);
        assert_eq!(case(Origin::SignedIn, 3000, true), NextStep::Renew);
        assert_eq!(case(Origin::SignedIn, 3000, false), NextStep::SignIn);
    }

    #[test]
    fn changed_authorization_server_means_a_new_sign_in() {
        for origin in [Origin::Store, Origin::Renewed, Origin::SignedIn] {
            assert_eq!(
                next_step(Case {
                    origin,
                    age: 1,
                    renewable: true,
                    same_issuer: false
                }),
                NextStep::SignIn
            );
        }
    }

    #[test]
    fn window_limit_ends_repeated_sign_ins() {
        let mut windows = WindowLimit::default();
        assert_eq!((0..9).filter(|now| windows.another(*now)).count(), 4);
        assert!(windows.another(700));
    }
}
