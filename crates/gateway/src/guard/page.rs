//! The right to see the page at `/ui/`, and to act there.
//!
//! Without `auth` it is for browsers of this machine, where the gateway serves this machine alone.
//! With `auth` it is for admins: bearers of a token with `admin`, or with the scope `admin_scope`.
//! A browser cannot send a token when it opens a page. So an admin signs in once, and the browser
//! carries a sealed ticket from then on. The right is looked up anew for each request: a token that
//! is withdrawn ends the tickets that it gave.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::exchange::Principal;
use serde_json::{Value, json};

use super::scopes::Granted;
use super::tokens::{TokenCheck, hash_of};
use super::{Caller, Guard};
use crate::settings::{Settings, TokenHash};

/// How long an admin stays signed in.
const SIGNED_IN: Duration = Duration::from_secs(12 * 60 * 60);
/// Browsers keep about four kilobytes of a cookie.
const LONGEST_TICKET: usize = 2048;

/// For which visitors there is a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageAccess {
    /// There is no page.
    Off,
    /// Any browser of this machine.
    AnyLocal,
    /// Callers with the right. `is_over_tls`: browsers reach the gateway by `https`.
    Admins { is_over_tls: bool },
}

impl PageAccess {
    /// Returns for which visitors a gateway has a page that listens here.
    pub(crate) fn of(settings: &Settings, listen: SocketAddr) -> Self {
        let public = settings.public_url.as_ref();
        let is_behind_another = public.is_some() || !settings.allowed_hosts.is_empty();
        let is_public_over_tls = public.is_some_and(|url| url.origin().starts_with("https:"));
        match (settings.ui, settings.auth.is_on()) {
            (false, _) => Self::Off,
            (true, true) => Self::Admins {
                is_over_tls: settings.tls.is_some() || is_public_over_tls,
            },
            (true, false) if listen.ip().is_loopback() && !is_behind_another => Self::AnyLocal,
            (true, false) => Self::Off,
        }
    }
}

/// What an admin has shown. A ticket holds it, and no token.
#[derive(Debug)]
enum Right {
    /// The static token with this hash.
    Token(String),
    /// A token of the issuer that the principal names.
    Issued {
        principal: String,
        scopes: BTreeSet<String>,
        destinations: Option<BTreeSet<String>>,
    },
}

impl Right {
    /// Returns the text of a ticket that ends then, in seconds of Unix time.
    fn ticket(&self, until: u64) -> String {
        let ticket = match self {
            Self::Token(hash) => json!({ "until": until, "hash": hash }),
            Self::Issued {
                principal,
                scopes,
                destinations,
            } => json!({
                "until": until,
                "principal": principal,
                "scopes": scopes,
                "destinations": destinations,
            }),
        };
        ticket.to_string()
    }

    /// Reads a ticket, with its end.
    fn read(ticket: &str) -> Option<(Self, u64)> {
        let ticket: Value = serde_json::from_str(ticket).ok()?;
        let texts = |key: &str| -> Option<BTreeSet<String>> {
            let texts = ticket.get(key)?.as_array()?.iter();
            texts.map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let text = |key: &str| ticket.get(key).and_then(Value::as_str).map(str::to_owned);
        let right = match text("hash") {
            Some(hash) => Self::Token(hash),
            None => Self::Issued {
                principal: text("principal")?,
                scopes: texts("scopes")?,
                destinations: texts("destinations"),
            },
        };
        Some((right, ticket.get("until")?.as_u64()?))
    }
}

/// A ticket for a browser.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MadeTicket {
    pub(crate) text: String,
    pub(crate) lasts: Duration,
}

impl Guard {
    /// Returns a ticket for an admin that has shown this token; `None` if it would be too long for a
    /// cookie.
    pub(crate) fn page_ticket(&self, caller: &Caller, token: &[u8], now: SystemTime) -> Option<MadeTicket> {
        let made = self.page_right(caller, token, now);
        made.filter(|made| made.text.len() <= LONGEST_TICKET)
    }

    /// Returns the same, however long it is.
    pub(crate) fn page_right(&self, caller: &Caller, token: &[u8], now: SystemTime) -> Option<MadeTicket> {
        let lasts = caller.time_left(now).unwrap_or(SIGNED_IN).min(SIGNED_IN);
        let until = now.checked_add(lasts)?.duration_since(UNIX_EPOCH).ok()?;
        let right = match &caller.granted {
            Granted::Everything => Right::Token(hash_of(token).to_string()),
            Granted::Scopes(scopes) => Right::Issued {
                principal: caller.principal.as_str().to_owned(),
                scopes: scopes.clone(),
                destinations: caller.destinations.clone(),
            },
        };
        let text = right.ticket(until.as_secs());
        Some(MadeTicket { text, lasts })
    }

    /// Returns the admin that a ticket names, if the right still holds.
    pub(crate) fn page_admin(&self, ticket: &str, now: SystemTime) -> Option<Arc<Caller>> {
        let (right, until) = Right::read(ticket)?;
        let until = UNIX_EPOCH.checked_add(Duration::from_secs(until))?;
        if until <= now {
            return None;
        }
        let admin = match right {
            Right::Token(hash) => {
                let hash = TokenHash::parse(&hash).ok()?;
                match self.tokens.check(&hash, None, now) {
                    TokenCheck::Good(caller) => Arc::clone(caller),
                    TokenCheck::Expired | TokenCheck::Elsewhere | TokenCheck::Unknown => return None,
                }
            }
            Right::Issued {
                principal,
                scopes,
                destinations,
            } => {
                let verifier = self.jwt.as_ref()?;
                let (issuer, _) = principal.split_once('#')?;
                let is_admin = verifier.admin_scope().is_some_and(|scope| scopes.contains(scope));
                if issuer != verifier.issuer().name() {
                    return None;
                }
                Arc::new(Caller {
                    principal: Principal::named(&principal),
                    granted: Granted::Scopes(scopes),
                    destinations,
                    until: Some(until),
                    is_admin,
                })
            }
        };
        admin.is_admin.then_some(admin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::settings::{AuthSettings, PublicUrl, StaticToken, TokenName};

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn token(name: &str, admin: bool) -> StaticToken {
        StaticToken {
            name: TokenName::parse(name).unwrap(),
            hash: hash_of(name.as_bytes()),
            destinations: None,
            expires: None,
            admin,
        }
    }

    fn guard(tokens: Vec<StaticToken>) -> Guard {
        let auth = AuthSettings {
            tokens,
            ..AuthSettings::default()
        };
        let base = PublicUrl::parse("https://mcp.example.com").unwrap();
        Guard::new(&auth, base, ["demo"].into_iter(), None, Clock::new())
    }

    fn ticket(guard: &Guard, name: &str) -> MadeTicket {
        let hash = hash_of(name.as_bytes());
        let TokenCheck::Good(caller) = guard.tokens.check(&hash, None, NOW) else {
            panic!("the token is good");
        };
        guard
            .page_ticket(caller, name.as_bytes(), NOW)
            .expect("it is short")
    }

    #[test]
    fn ticket_of_an_admin_ends_with_its_time_and_with_its_token() {
        let guard = guard(vec![token("alice", true)]);
        let made = ticket(&guard, "alice");
        let end = NOW + SIGNED_IN;
        let admin = guard.page_admin(&made.text, end - Duration::from_secs(1));
        assert_eq!(
            admin.map(|admin| admin.principal.clone()),
            Some(Principal::named("alice"))
        );
        assert_eq!(guard.page_admin(&made.text, end), None);
        let without = self::guard(vec![token("bob", true)]);
        assert_eq!(without.page_admin(&made.text, NOW), None);
        let demoted = self::guard(vec![token("alice", false)]);
        assert_eq!(demoted.page_admin(&made.text, NOW), None);
    }

    #[test]
    fn ticket_of_an_issuer_that_is_not_configured_opens_nothing() {
        let guard = guard(vec![token("alice", true)]);
        let right = Right::Issued {
            principal: "https://issuer#root".to_owned(),
            scopes: ["admin".to_owned()].into(),
            destinations: Some(["demo".to_owned()].into()),
        };
        let text = right.ticket(60);
        assert!(Right::read(&text).is_some());
        assert_eq!(guard.page_admin(&text, NOW), None);
        assert_eq!(guard.page_admin("{}", NOW), None);
    }
}
