//! `rialto login`, `rialto logout`, `rialto status`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gateway::escape;
use oauth::{LoginOutcome, LogoutOutcome, Settings, SignIn, StoredToken};
use url::Url;

use crate::config::{self, Environment, LogSettings};
use crate::flags::account::{LoginFlags, LogoutFlags, StatusFlags};
use crate::{exit, fail, sign_in, telemetry};

pub(crate) fn login(flags: &LoginFlags, environment: &Environment) -> ExitCode {
    let settings = match login_settings(flags, environment) {
        Ok(settings) => settings,
        Err(error) => return fail(exit::CONFIGURATION, &error),
    };
    let shown = flags.url.clone();
    run(environment, async move {
        match SignIn::new(settings)
            .login()
            .await
            .map_err(|error| error.to_string())?
        {
            LoginOutcome::NotNeeded => Ok(format!("{shown} asks for no sign-in\n")),
            LoginOutcome::SignedIn {
                issuer,
                scopes,
                expires,
            } => {
                let mut text = format!("signed in to {shown} at {}\n", one_line(&issuer));
                if !scopes.is_empty() {
                    let _ = writeln!(text, "permissions: {}", one_line(&scopes.join(" ")));
                }
                if let Some(expires) = expires {
                    let _ = writeln!(text, "the token is good for {}", left(expires, now()));
                }
                Ok(text)
            }
        }
    })
}

fn login_settings(flags: &LoginFlags, environment: &Environment) -> Result<Settings, String> {
    let mut settings = sign_in::settings(address(&flags.url)?, environment)?;
    settings.http.ca_file = flags.ca_file.as_ref().map(Into::into);
    sign_in::apply(&flags.client, &mut settings, environment)?;
    Ok(settings)
}

pub(crate) fn logout(flags: &LogoutFlags, environment: &Environment) -> ExitCode {
    let settings = address(&flags.url).and_then(|url| sign_in::settings(url, environment));
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return fail(exit::CONFIGURATION, &error),
    };
    let shown = flags.url.clone();
    run(environment, async move {
        let outcome = SignIn::new(settings).logout().await;
        Ok(match outcome.map_err(|error| error.to_string())? {
            LogoutOutcome::Nothing => format!("there were no tokens of {shown}\n"),
            LogoutOutcome::Revoked => format!("forgot the tokens of {shown}; they are revoked\n"),
            LogoutOutcome::Forgotten { why } => {
                format!("forgot the tokens of {shown}; until they end they are good, though: {why}\n")
            }
        })
    })
}

pub(crate) fn status(_: &StatusFlags, environment: &Environment) -> ExitCode {
    // The endpoint does not matter: only where tokens are kept.
    let anywhere = Url::parse("https://localhost/").map_err(|error| error.to_string());
    let settings = match anywhere.and_then(|url| sign_in::settings(url, environment)) {
        Ok(settings) => settings,
        Err(error) => return fail(exit::CONFIGURATION, &error),
    };
    match oauth::list(&settings.store.directory) {
        Ok(kept) => {
            say(&table(&kept, now()));
            ExitCode::SUCCESS
        }
        Err(error) => fail(exit::FAILED, &error.to_string()),
    }
}

fn address(text: &str) -> Result<Url, String> {
    config::remote::address(text).map_err(|error| format!("{text}: {error}"))
}

fn run(environment: &Environment, work: impl Future<Output = Result<String, String>>) -> ExitCode {
    let directives = environment.filled("RUST_LOG").unwrap_or("warn");
    let _telemetry = match telemetry::init(&LogSettings::human(Some(directives), environment)) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    };
    match runtime.block_on(work) {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(error) => fail(exit::FAILED, &one_line(&error)),
    }
}

/// If stdout is closed, the exit code tells the same.
fn say(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn table(kept: &[StoredToken], now: u64) -> String {
    if kept.is_empty() {
        return "signed in nowhere; rialto login URL signs in\n".to_owned();
    }
    let mut text = String::new();
    for one in kept {
        let state = match (one.signed_in, one.expires, one.renewable) {
            (false, _, _) => "signed out; run rialto login".to_owned(),
            (true, None, _) => "signed in".to_owned(),
            (true, Some(expires), true) if expires <= now => "signed in, renewed when next used".to_owned(),
            (true, Some(expires), false) if expires <= now => "expired; run rialto login".to_owned(),
            (true, Some(expires), true) => format!("signed in, renewed in {}", left(expires, now)),
            (true, Some(expires), false) => format!("signed in for {}", left(expires, now)),
        };
        let place = if one.in_keyring { "keyring" } else { "file" };
        let _ = writeln!(
            text,
            "{}\n  {state}\n  at {} as {} ({place})",
            one_line(&one.endpoint),
            one_line(&one.issuer),
            one_line(&one.client)
        );
        if !one.scopes.is_empty() {
            let _ = writeln!(text, "  permissions: {}", one_line(&one.scopes.join(" ")));
        }
    }
    text
}

/// Returns a text of a server or of an authorization server, safe for a terminal.
fn one_line(text: &str) -> String {
    escape::one_line(text, escape::MAX_VALUE_BYTES)
}

fn left(expires: u64, now: u64) -> String {
    humantime::format_duration(Duration::from_secs(expires.saturating_sub(now))).to_string()
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::account::ClientFlags;

    fn kept(expires: Option<u64>, renewable: bool) -> StoredToken {
        StoredToken {
            endpoint: "https://a.example/mcp".into(),
            issuer: "https://auth.example".into(),
            client: "c1".into(),
            scopes: vec!["read".into()],
            signed_in: true,
            expires,
            renewable,
            in_keyring: false,
        }
    }

    #[test]
    fn table_of_accounts_names_the_next_command() {
        for (expires, renewable, words) in [
            (None, false, "signed in\n"),
            (Some(3700), true, "renewed in 1h"),
            (Some(50), true, "renewed when next used"),
            (Some(50), false, "expired; run rialto login"),
        ] {
            let text = table(&[kept(expires, renewable)], 100);
            assert!(text.contains(words), "{text}");
        }
        assert!(table(&[], 0).contains("rialto login URL"));
    }

    #[test]
    fn the_table_shows_terminal_commands_and_obeys_none() {
        let evil = "\u{1b}]0;pwn\u{7}\n\u{9b}2J\u{202e}";
        let mut one = kept(None, false);
        for text in [&mut one.endpoint, &mut one.issuer, &mut one.client] {
            text.push_str(evil);
        }
        one.scopes.push(evil.to_owned());
        let text = table(&[one], 100);
        assert!(text.contains("\\u{1b}]0;pwn"), "{text:?}");
        assert_eq!(text.lines().count(), 4, "{text:?}");
        assert!(
            !text.lines().any(|line| line.contains(escape::is_hazard)),
            "{text:?}"
        );
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused_before_anything_is_asked() {
        let environment: Environment = [("HOME", "/h"), ("S", "hush")].into_iter().collect();
        let flags = LoginFlags {
            url: "https://a.example/mcp".into(),
            client: ClientFlags::default(),
            ca_file: None,
        };
        assert!(login_settings(&flags, &environment).is_ok());
        let elsewhere = LoginFlags {
            url: "ftp://a".into(),
            ..flags.clone()
        };
        let known = ClientFlags {
            client_id: Some("c".into()),
            ..ClientFlags::default()
        };
        let robot = ClientFlags {
            grant: Some("client-credentials".into()),
            ..known.clone()
        };
        let broken = [
            ClientFlags {
                client_secret_env: Some("S".into()),
                ..ClientFlags::default()
            },
            ClientFlags {
                client_secret_env: Some("MISSING".into()),
                ..known.clone()
            },
            ClientFlags {
                redirect_uri: Some("https://elsewhere/".into()),
                ..ClientFlags::default()
            },
            ClientFlags {
                client_key_file: Some("/nowhere/key.pem".into()),
                ..robot.clone()
            },
            ClientFlags {
                issuer: Some("example".into()),
                ..ClientFlags::default()
            },
            ClientFlags {
                client_id: Some("caf\u{e9}".into()),
                ..ClientFlags::default()
            },
            ClientFlags {
                grant: Some("robot".into()),
                ..known
            },
            robot,
        ];
        let broken = broken.map(|client| LoginFlags {
            client,
            ..flags.clone()
        });
        for broken in broken.into_iter().chain([elsewhere]) {
            assert!(login_settings(&broken, &environment).is_err(), "{broken:?}");
        }
    }
}
