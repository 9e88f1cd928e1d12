//! Static bearer tokens: made once, shown once, kept as hashes.

use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use protocol::exchange::Principal;

use super::Caller;
use crate::settings::{Secret, StaticToken, TokenHash};

/// The prefix of a token of Rialto, by which leak scanners recognise it.
const PREFIX: &str = "rialto_";

/// The configured static tokens.
#[derive(Debug, Default)]
pub(crate) struct StaticTokens {
    entries: Vec<(StaticToken, Arc<Caller>)>,
}

/// What a token turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenCheck<'a> {
    /// Good for what it was shown for.
    Good(&'a Arc<Caller>),
    Expired,
    /// Good, but somewhere else.
    Elsewhere,
    /// The token of no known caller.
    Unknown,
}

impl StaticTokens {
    pub(crate) fn new(tokens: &[StaticToken]) -> Self {
        let entry = |token: &StaticToken| {
            let caller = Caller {
                until: token.expires,
                destinations: token.destinations.clone(),
                is_admin: token.admin,
                ..Caller::unlimited(Principal::named(token.name.as_str()))
            };
            (token.clone(), Arc::new(caller))
        };
        Self {
            entries: tokens.iter().map(entry).collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether every token by which this principal came in at a destination is still good
    /// there.
    pub(crate) fn keeps(&self, earlier: &Self, principal: &str, destination: &str) -> bool {
        let good_for = |tokens: &'_ Self| -> Vec<TokenHash> {
            let entries = tokens.entries.iter();
            entries
                .filter(|(entry, _)| entry.name.as_str() == principal && is_for(entry, destination))
                .map(|(entry, _)| entry.hash.clone())
                .collect()
        };
        let good_now = good_for(self);
        good_for(earlier).iter().all(|hash| good_now.contains(hash))
    }

    /// Judges a token for a destination, or for the gateway itself. Every entry is compared, each
    /// in constant time, so that the time taken tells nothing about any of them.
    pub(crate) fn check(
        &self,
        hash: &TokenHash,
        destination: Option<&str>,
        now: SystemTime,
    ) -> TokenCheck<'_> {
        let mut found = None;
        for (entry, caller) in &self.entries {
            if verify_slices_are_equal(entry.hash.as_bytes(), hash.as_bytes()).is_ok() {
                found = Some((entry, caller));
            }
        }
        let Some((entry, caller)) = found else {
            return TokenCheck::Unknown;
        };
        if entry.expires.is_some_and(|expires| expires <= now) {
            TokenCheck::Expired
        } else if destination.is_none_or(|name| is_for(entry, name)) {
            TokenCheck::Good(caller)
        } else {
            TokenCheck::Elsewhere
        }
    }
}

/// Returns whether a token may be shown at a destination.
fn is_for(token: &StaticToken, destination: &str) -> bool {
    let destinations = token.destinations.as_ref();
    destinations.is_none_or(|names| names.contains(destination))
}

pub(crate) fn hash_of(token: &[u8]) -> TokenHash {
    let digest = digest::digest(&digest::SHA256, token);
    TokenHash::new(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

/// A fresh token, and what to keep of it.
#[derive(Debug)]
pub struct Minted {
    pub token: Secret,
    pub hash: TokenHash,
}

/// Makes a token of 256 random bits; `None` if the system has no randomness to give.
pub fn mint() -> Option<Minted> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).ok()?;
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
    Some(Minted {
        hash: hash_of(token.as_bytes()),
        token: Secret::new(token),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TokenName;
    use std::time::Duration;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn entry(name: &str, token: &str) -> StaticToken {
        StaticToken {
            name: TokenName::parse(name).unwrap(),
            hash: hash_of(token.as_bytes()),
            destinations: None,
            expires: None,
            admin: false,
        }
    }

    #[test]
    fn a_token_is_known_by_its_hash() {
        let tokens = StaticTokens::new(&[entry("alice", "a"), entry("bob", "b")]);
        let whose = |token: &[u8], destination| match tokens.check(&hash_of(token), destination, NOW) {
            TokenCheck::Good(caller) => Some(caller.principal.as_str()),
            TokenCheck::Expired | TokenCheck::Elsewhere | TokenCheck::Unknown => None,
        };
        assert_eq!(whose(b"b", Some("demo")), Some("bob"));
        assert_eq!(whose(b"a", None), Some("alice"));
        assert_eq!(
            tokens.check(&hash_of(b"c"), Some("demo"), NOW),
            TokenCheck::Unknown
        );
        assert_eq!(
            tokens.check(&hash_of(b""), Some("demo"), NOW),
            TokenCheck::Unknown
        );
    }

    #[test]
    fn a_token_ends_at_its_time() {
        let ends = NOW + Duration::from_secs(10);
        let tokens = StaticTokens::new(&[StaticToken {
            expires: Some(ends),
            ..entry("alice", "a")
        }]);
        assert!(matches!(
            tokens.check(&hash_of(b"a"), None, ends - Duration::from_nanos(1)),
            TokenCheck::Good(caller) if caller.until == Some(ends)
        ));
        assert_eq!(tokens.check(&hash_of(b"a"), None, ends), TokenCheck::Expired);
    }

    #[test]
    fn a_token_for_some_destinations_is_not_good_at_others() {
        let tokens = StaticTokens::new(&[StaticToken {
            destinations: Some(["demo".to_owned()].into()),
            ..entry("alice", "a")
        }]);
        assert!(matches!(
            tokens.check(&hash_of(b"a"), Some("demo"), NOW),
            TokenCheck::Good(..)
        ));
        assert_eq!(
            tokens.check(&hash_of(b"a"), Some("other"), NOW),
            TokenCheck::Elsewhere
        );
        assert!(
            matches!(tokens.check(&hash_of(b"a"), None, NOW), TokenCheck::Good(..)),
            "the gateway itself"
        );
    }

    #[test]
    fn a_principal_is_kept_while_everything_it_came_in_by_is_good() {
        let only = |name: &str| StaticToken {
            destinations: Some([name.to_owned()].into()),
            ..entry("alice", "a")
        };
        let before = StaticTokens::new(&[entry("alice", "a"), entry("bob", "b")]);
        let keeps = |now: &[StaticToken]| StaticTokens::new(now).keeps(&before, "alice", "demo");
        assert!(keeps(&[entry("alice", "a")]));
        assert!(keeps(&[entry("alice", "a"), entry("alice", "a2")]), "one more");
        assert!(keeps(&[only("demo")]));
        assert!(!keeps(&[entry("bob", "b")]), "taken back");
        assert!(!keeps(&[entry("alice", "a2")]), "exchanged");
        assert!(!keeps(&[only("other")]), "good elsewhere only");
        assert!(!keeps(&[entry("bob", "a")]), "given to another");
        let empty = StaticTokens::default();
        assert!(empty.keeps(&empty, "anonymous", "demo"));
    }

    #[test]
    fn a_fresh_token_opens_its_own_lock_and_is_never_shown_by_accident() {
        let minted = mint().unwrap();
        assert_eq!(hash_of(minted.token.expose().as_bytes()), minted.hash);
        assert_eq!(minted.token.expose().len(), PREFIX.len() + 43);
        assert_ne!(mint().unwrap().token, minted.token);
        assert!(!format!("{minted:?}").contains(minted.token.expose()));
    }
}
