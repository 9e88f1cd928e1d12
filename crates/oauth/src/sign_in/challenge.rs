//! What to do about a refusal. Decisions only; time is an argument.

use std::collections::VecDeque;

use rmcp::transport::auth::WWWAuthenticateParams;
use url::Url;

use crate::error::SignInError;
use crate::scope;

/// What the server wants, in its own words (RFC 6750, section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    /// 401: a token, or a better one. The scopes are those the challenge names.
    Token { scopes: Vec<String> },
    /// 403 `insufficient_scope`: the same person, with more permissions.
    Scopes { scopes: Vec<String> },
}

impl Demand {
    pub(super) fn of(status: u16, challenges: &[String], endpoint: &Url) -> Result<Self, SignInError> {
        let mut scopes = Vec::new();
        let mut insufficient = false;
        for challenge in challenges {
            let parsed = WWWAuthenticateParams::parse(challenge, endpoint);
            insufficient |= parsed.is_insufficient_scope();
            scope::add(
                &mut scopes,
                scope::parse(parsed.scope.as_deref().unwrap_or_default()),
            );
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
pub(super) enum Remedy {
    Renew,
    SignIn,
    /// It was just done, and has not helped.
    GiveUp,
}

/// A token younger than this that is refused will not be helped by the same step again.
const PROBATION: u64 = 30;

pub(super) fn remedy(case: Case) -> Remedy {
    let young = case.age < PROBATION;
    let usual = if case.renewable {
        Remedy::Renew
    } else {
        Remedy::SignIn
    };
    match case.origin {
        // What one authorization server issued is no use at another.
        _ if !case.same_issuer => Remedy::SignIn,
        Origin::SignedIn if young => Remedy::GiveUp,
        Origin::Renewed if young => Remedy::SignIn,
        Origin::Store | Origin::Renewed | Origin::SignedIn => usual,
    }
}

/// Keeps a server from opening one browser window after the other.
#[derive(Debug, Default)]
pub(super) struct Windows(VecDeque<u64>);

impl Windows {
    const SPAN: u64 = 600;
    const MOST: usize = 4;

    /// Whether one more may be opened now.
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
        Demand::of(
            status,
            &[challenge.to_owned()],
            &Url::parse("https://a.example/mcp").unwrap(),
        )
    }

    #[test]
    fn a_401_wants_a_token_and_a_403_more_scopes_if_it_says_so() {
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
    fn each_step_is_tried_once_and_then_the_next() {
        let case = |origin, age, renewable| {
            remedy(Case {
                origin,
                age,
                renewable,
                same_issuer: true,
            })
        };
        assert_eq!(case(Origin::Store, 5, true), Remedy::Renew);
        assert_eq!(case(Origin::Store, 5, false), Remedy::SignIn);
        assert_eq!(case(Origin::Renewed, 5, true), Remedy::SignIn);
        assert_eq!(case(Origin::Renewed, 3000, true), Remedy::Renew);
        assert_eq!(case(Origin::SignedIn, 5, true), Remedy::GiveUp);
        assert_eq!(case(Origin::SignedIn, 3000, true), Remedy::Renew);
        assert_eq!(case(Origin::SignedIn, 3000, false), Remedy::SignIn);
    }

    #[test]
    fn another_authorization_server_means_another_sign_in() {
        for origin in [Origin::Store, Origin::Renewed, Origin::SignedIn] {
            assert_eq!(
                remedy(Case {
                    origin,
                    age: 1,
                    renewable: true,
                    same_issuer: false
                }),
                Remedy::SignIn
            );
        }
    }

    #[test]
    fn a_server_cannot_open_windows_without_end() {
        let mut windows = Windows::default();
        assert_eq!((0..9).filter(|now| windows.another(*now)).count(), 4);
        assert!(windows.another(700));
    }
}
