//! What servers offer to clients that sign in, and the tokens that are stored.

use std::path::PathBuf;
use std::time::Duration;

use oauth::{Challenge, Inspection};

use crate::doctor::finding::{Cure, Finding, Fix, Group, Report, Weight};

/// What was observed of signing in.
#[derive(Debug, Clone, Default)]
pub(crate) struct SignInSeen {
    pub(crate) servers: Vec<ProtectedSeen>,
    /// The directory of the tokens, if other users can open it.
    pub(crate) open_store: Option<PathBuf>,
    pub(crate) store_failure: Option<String>,
}

/// A remote server.
#[derive(Debug, Clone)]
pub(crate) struct ProtectedSeen {
    pub(crate) url: String,
    pub(crate) offer: OfferSeen,
    pub(crate) token: TokenSeen,
    /// Whether its requests carry credentials of the configuration or of a host.
    pub(crate) has_header: bool,
}

/// What a server offers.
#[derive(Debug, Clone)]
pub(crate) enum OfferSeen {
    /// It needs no sign-in.
    Open,
    Found(Box<Inspection>),
    /// Its metadata contradict each other, or it has none.
    Refused(String),
    Unreachable(String),
}

/// A stored token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum TokenSeen {
    #[default]
    Missing,
    /// Good for this long; `None`: it does not tell.
    Good {
        left: Option<Duration>,
        is_renewable: bool,
    },
    /// It had ended, and was renewed now.
    Renewed,
    Expired {
        ago: Duration,
    },
    /// It had ended, and the authorization server did not renew it.
    NotRenewed {
        why: String,
    },
}

/// Judges signing in.
pub(crate) fn judge(seen: &SignInSeen) -> Report {
    let mut report = Report::default();
    if let Some(path) = &seen.open_store {
        let shown = path.display().to_string();
        let finding = Finding::new(
            (Group::SignIn, "token store"),
            ("store_readable", Weight::Act),
            format!("can be opened by other users of this machine: {shown}"),
            "the mode of the directory lets them read tokens",
            Cure::Run(format!("chmod 700 {}", super::host::quoted(&shown))),
        );
        report.find(finding.fixed_by(Fix::Close(path.clone())));
    }
    if let Some(why) = &seen.store_failure {
        report.find(Finding::new(
            (Group::SignIn, "token store"),
            ("store_unreadable", Weight::Act),
            format!("cannot be read: {why}"),
            "without it each process would have to sign in anew",
            Cure::Run("rialto status".into()),
        ));
    }
    for server in &seen.servers {
        judge_server(server, &mut report);
    }
    report
}

fn judge_server(seen: &ProtectedSeen, report: &mut Report) {
    let at = (Group::SignIn, seen.url.as_str());
    let url = &seen.url;
    judge_token(seen, report);
    let has_credentials =
        seen.has_header || matches!(seen.token, TokenSeen::Good { .. } | TokenSeen::Renewed);
    let found = match &seen.offer {
        OfferSeen::Open => return report.fact(Group::SignIn, url, "needs no sign-in"),
        OfferSeen::Unreachable(why) => {
            return report.find(Finding::new(
                at,
                ("discovery_unreachable", Weight::Later),
                format!("could not be asked how to sign in: {why}"),
                "hosts ask the same before they open a browser",
                Cure::Run(format!("curl -i {url}")),
            ));
        }
        // A token that was issued by hand needs no discovery.
        OfferSeen::Refused(_) if has_credentials => return,
        OfferSeen::Refused(why) => {
            return report.find(Finding::new(
                at,
                ("discovery_fails", Weight::Act),
                format!("does not lead to a sign-in: {why}"),
                "Claude, ChatGPT and Cursor follow the same documents, and stop at the same place",
                Cure::Do(
                    "tell the operator of the server, or use a token: --header 'Authorization: Bearer …'"
                        .into(),
                ),
            ));
        }
        OfferSeen::Found(found) => found,
    };
    let registration = match (found.takes_documents, found.registers) {
        (true, true) => "by document or by registration",
        (true, false) => "by document",
        (false, true) => "by registration",
        (false, false) => "registered by hand only",
    };
    let iss = match found.names_itself {
        true => "with iss",
        false => "without iss",
    };
    let text = format!(
        "sign-in at {} for {}; clients are known {registration}; answers come {iss}",
        found.issuer, found.resource
    );
    report.fact(Group::SignIn, url, text);
    if found.challenge == Challenge::Bare && !found.is_described {
        report.find(Finding::new(
            at,
            ("no_resource_metadata", weight(has_credentials)),
            "answers 401 without `resource_metadata`, and has no /.well-known/oauth-protected-resource",
            "Claude, ChatGPT and Cursor look there for the authorization server",
            Cure::Do("tell the operator of the server: RFC 9728 describes both".into()),
        ));
    }
    if !found.registers && !found.takes_documents {
        report.find(Finding::new(
            at,
            ("no_registration", weight(has_credentials)),
            format!(
                "signs in at {}, which neither registers programs nor takes documents about them",
                found.issuer
            ),
            "Claude, ChatGPT, Cursor and Rialto cannot introduce themselves",
            Cure::Run(format!(
                "rialto login {url} --client-id ID --redirect-uri http://127.0.0.1:PORT/callback"
            )),
        ));
    }
    if let Some(obstacle) = &found.obstacle {
        report.find(Finding::new(
            at,
            ("sign_in_unsafe", weight(has_credentials)),
            format!("has a sign-in that safe clients refuse: {obstacle}"),
            "hosts that check the same refuse it, too",
            Cure::Do("tell the operator of the server".into()),
        ));
    }
}

/// What hinders a new sign-in matters less while there is a token.
fn weight(has_credentials: bool) -> Weight {
    match has_credentials {
        true => Weight::Note,
        false => Weight::Act,
    }
}

fn judge_token(seen: &ProtectedSeen, report: &mut Report) {
    let url = &seen.url;
    let login = || Cure::Run(format!("rialto login {url}"));
    let at = (Group::SignIn, url.as_str());
    match &seen.token {
        TokenSeen::Missing => {
            let asks = matches!(&seen.offer, OfferSeen::Found(found) if found.challenge != Challenge::Open);
            if asks && !seen.has_header {
                report.find(Finding::new(
                    at,
                    ("signed_out", Weight::Act),
                    "wants a token, and none is stored",
                    "`serve` never opens a browser, and `connect` does at the first call",
                    login(),
                ));
            }
        }
        TokenSeen::Good { left, is_renewable } => {
            let left = left.map_or_else(
                || "without an end that it names".to_owned(),
                |left| format!("for {}", humantime::format_duration(left)),
            );
            let renewed = match is_renewable {
                true => ", renewed by itself",
                false => "",
            };
            report.fact(Group::SignIn, url, format!("signed in {left}{renewed}"));
        }
        TokenSeen::Renewed => report.fact(Group::SignIn, url, "the token had ended, and was renewed"),
        TokenSeen::Expired { ago } => report.find(Finding::new(
            at,
            ("token_expired", Weight::Act),
            format!(
                "has a token that ended {} ago, and nothing to renew it with",
                humantime::format_duration(*ago)
            ),
            "the server refuses it with 401",
            login(),
        )),
        TokenSeen::NotRenewed { why } => report.find(Finding::new(
            at,
            ("token_not_renewed", Weight::Act),
            format!("has a token that has ended, and it was not renewed: {why}"),
            "the right to renew it was withdrawn, or has ended as well",
            login(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspection() -> Inspection {
        Inspection {
            challenge: Challenge::WithMetadata,
            is_described: true,
            is_published: true,
            resource: "https://a.example/mcp".into(),
            issuer: "https://auth.example".into(),
            names_itself: true,
            registers: true,
            takes_documents: false,
            obstacle: None,
        }
    }

    fn ids(offer: OfferSeen, token: TokenSeen, has_header: bool) -> Vec<&'static str> {
        let seen = SignInSeen {
            servers: vec![ProtectedSeen {
                url: "https://a.example/mcp".into(),
                offer,
                token,
                has_header,
            }],
            ..SignInSeen::default()
        };
        judge(&seen)
            .findings
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    fn good() -> TokenSeen {
        TokenSeen::Good {
            left: Some(Duration::from_secs(60)),
            is_renewable: true,
        }
    }

    #[test]
    fn good_token_at_a_good_server_is_a_fact() {
        assert!(ids(OfferSeen::Found(Box::new(inspection())), good(), false).is_empty());
        assert!(ids(OfferSeen::Open, TokenSeen::Missing, false).is_empty());
    }

    #[test]
    fn token_that_is_missing_or_has_ended_names_the_login() {
        let found = || OfferSeen::Found(Box::new(inspection()));
        let ended = TokenSeen::Expired {
            ago: Duration::from_secs(9),
        };
        assert_eq!(ids(found(), TokenSeen::Missing, false), ["signed_out"]);
        assert!(ids(found(), TokenSeen::Missing, true).is_empty());
        assert_eq!(ids(found(), ended, false), ["token_expired"]);
        let refused = TokenSeen::NotRenewed { why: "no".into() };
        assert_eq!(ids(found(), refused, false), ["token_not_renewed"]);
    }

    #[test]
    fn obstacles_of_a_sign_in_are_named_with_the_reason() {
        let with = |change: fn(&mut Inspection)| {
            let mut found = inspection();
            change(&mut found);
            ids(OfferSeen::Found(Box::new(found)), good(), false)
        };
        assert_eq!(with(|found| found.registers = false), ["no_registration"]);
        assert_eq!(
            with(|found| found.obstacle = Some("no PKCE".into())),
            ["sign_in_unsafe"]
        );
        let bare = |found: &mut Inspection| {
            found.challenge = Challenge::Bare;
            found.is_described = false;
        };
        assert_eq!(with(bare), ["no_resource_metadata"]);
        let wrong = || OfferSeen::Refused("another resource".into());
        assert_eq!(ids(wrong(), TokenSeen::Missing, false), ["discovery_fails"]);
        assert!(ids(wrong(), TokenSeen::Missing, true).is_empty());
    }
}
