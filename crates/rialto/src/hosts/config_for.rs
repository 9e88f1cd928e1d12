//! `rialto config --for HOST`: what to paste into a host for the destinations of a gateway.

use std::io::Write as _;
use std::process::ExitCode;

use gateway::settings::Settings;

use super::entry::Transport;
use super::plain::Plain;
use super::program::Program;
use super::shape::{self, Address};
use super::table::Host;
use crate::config::{self, ConfigError, Environment};
use crate::flags::ServeFlags;
use crate::flags::hosts::ConfigFlags;
use crate::{exit, fail, user_files};

/// What stands where a token goes.
const TOKEN: &str = "<your token>";
/// Where `rialto connect` looks for a token.
const TOKEN_VARIABLE: &str = "BEARER_TOKEN";

pub(crate) fn run(flags: &ConfigFlags, environment: &Environment) -> ExitCode {
    let settings = match load(flags, environment) {
        Ok(settings) => settings,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    if let Some(name) = unknown(flags, &settings) {
        return fail(exit::CONFIGURATION, &name);
    }
    let Some(base) = base(&settings) else {
        return fail(
            exit::CONFIGURATION,
            "the gateway listens on a port that is chosen at its start: write `listen: 127.0.0.1:3000`",
        );
    };
    let program = Program::own(environment).written(flags.host, false);
    let text = text(flags.host, &flags.names, &settings, &base, &program);
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(exit::FAILED, &format!("cannot write to stdout: {error}")),
    }
}

/// Reads the file that `serve` would read, or else the user's own.
fn load(flags: &ConfigFlags, environment: &Environment) -> Result<Settings, ConfigError> {
    let serve = |config: Option<String>| ServeFlags {
        config,
        ..ServeFlags::default()
    };
    let loaded = match config::settings(&serve(flags.config.clone()), environment) {
        Err(ConfigError::NothingToServe) => {
            let own = user_files::destinations(environment).filter(|path| path.exists());
            let own = own.and_then(|path| path.into_os_string().into_string().ok());
            config::settings(&serve(Some(own.ok_or(ConfigError::NothingToServe)?)), environment)
        }
        loaded => loaded,
    };
    Ok(loaded?.settings)
}

/// Returns the complaint about a name that is no destination.
fn unknown(flags: &ConfigFlags, settings: &Settings) -> Option<String> {
    let names: Vec<&str> = settings
        .destinations
        .iter()
        .map(|destination| destination.name.as_str())
        .collect();
    let unknown = flags.names.iter().find(|name| !names.contains(&name.as_str()))?;
    Some(format!(
        "there is no destination `{unknown}`; there are {}",
        names.join(", ")
    ))
}

/// Returns the address that clients use, without a slash at its end.
fn base(settings: &Settings) -> Option<String> {
    if let Some(public) = &settings.public_url {
        return Some(format!("{}{}", public.origin(), public.path()));
    }
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let address = settings.listen;
    let host = match address.ip().is_unspecified() {
        true => format!("localhost:{}", address.port()),
        false => address.to_string(),
    };
    (address.port() != 0).then(|| format!("{scheme}://{host}"))
}

fn text(host: &Host, names: &[String], settings: &Settings, base: &str, program: &str) -> String {
    let has_auth = settings.auth.is_on();
    let headers = match has_auth {
        true => vec![("Authorization".to_owned(), format!("Bearer {TOKEN}"))],
        false => Vec::new(),
    };
    let is_chosen = |name: &String| names.is_empty() || names.contains(name);
    let chosen = settings
        .destinations
        .iter()
        .filter(|destination| is_chosen(&destination.name));
    let entry = |name: &str| -> Plain {
        let url = format!("{base}/{name}/mcp");
        let address = Address {
            url: &url,
            transport: Transport::Http,
            headers: &headers,
        };
        shape::remote(host, name, &address).unwrap_or_else(|| {
            let words = [program, "connect", &url].map(str::to_owned);
            let env = match has_auth {
                true => vec![(TOKEN_VARIABLE.to_owned(), TOKEN.to_owned())],
                false => Vec::new(),
            };
            shape::stdio(host, name, &words, &env)
        })
    };
    let entries: Vec<(String, Plain)> = chosen
        .map(|destination| (destination.name.clone(), entry(&destination.name)))
        .collect();
    shape::pasted(host, &entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::table::{self, HOSTS};
    use crate::hosts::{document, entry, servers};

    const HASH: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn settings(globals: &str) -> Settings {
        let text =
            format!("{globals}\ndestinations:\n  one: {{ command: cat }}\n  two: {{ command: cat -u }}\n");
        let flags = ServeFlags::default();
        config::from_text(
            "test.yml",
            &text,
            std::path::PathBuf::new(),
            &flags,
            &Environment::default(),
        )
        .expect("loads")
        .settings
    }

    #[test]
    fn every_host_gets_every_destination_with_the_header_of_a_token() {
        let settings = settings(&format!("auth: {{ tokens: [{{ name: ci, hash: \"{HASH}\" }}] }}"));
        let base = base(&settings).expect("an address");
        for host in HOSTS {
            let text = text(host, &[], &settings, &base, "/usr/bin/rialto");
            let document = document::read(&text, host.format).expect(&text);
            let found = servers::all(host, &document, None);
            assert_eq!(found.len(), 2, "{}: {text}", host.id);
            match &found[0].entry {
                entry::Entry::Remote(remote) => {
                    assert_eq!(
                        remote.url.literal(),
                        Some("http://127.0.0.1:3000/one/mcp"),
                        "{}",
                        host.id
                    );
                    assert_eq!(remote.headers[0].1.literal(), Some("Bearer <your token>"));
                }
                entry::Entry::Rialto { is_attached: false } => {
                    assert_eq!(host.id, "claude-desktop");
                    assert!(text.contains("\"BEARER_TOKEN\": \"<your token>\""), "{text}");
                }
                other => panic!("{}: {other:?}", host.id),
            }
        }
    }

    #[test]
    fn the_public_address_is_used_and_names_choose() {
        let settings = settings("public_url: https://mcp.example.com/gate/");
        assert_eq!(base(&settings).as_deref(), Some("https://mcp.example.com/gate"));
        let cursor = table::named("cursor").expect("a host");
        let text = text(
            cursor,
            &["two".to_owned()],
            &settings,
            "https://mcp.example.com/gate",
            "rialto",
        );
        assert_eq!(
            text,
            "{\n  \"mcpServers\": {\n    \"two\": {\n      \"url\": \"https://mcp.example.com/gate/two/mcp\"\n    }\n  }\n}\n"
        );
    }

    #[test]
    fn a_port_that_is_not_known_yet_has_no_address() {
        assert_eq!(base(&settings("listen: 127.0.0.1:0")), None);
        assert_eq!(
            base(&settings("listen: 127.0.0.1:80")).as_deref(),
            Some("http://127.0.0.1:80")
        );
    }
}
