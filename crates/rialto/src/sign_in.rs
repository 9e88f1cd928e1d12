//! Signing in at remote servers, as this process can: where tokens are kept, how a page is opened.

use std::process::{Command, Stdio};

use oauth::{Browser, Grant, Secret, Settings, SigningKey, StoreSettings};
use url::Url;

use crate::config::{self, Environment};
use crate::flags::account::ClientFlags;
use crate::user_files;

/// The variables that name a proxy.
pub(crate) const PROXY_VARIABLES: [&str; 6] = [
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// The variable that holds a client's secret unless another was named.
const CLIENT_SECRET: &str = "RIALTO_CLIENT_SECRET";

/// For a process without a user in front.
pub(crate) fn settings(url: Url, environment: &Environment) -> Result<Settings, String> {
    let mut settings = Settings::new(url, store(environment)?);
    settings.http.proxy_hosts = proxy_hosts(environment);
    settings.http.allow_private_addresses =
        truth("RIALTO_ALLOW_PRIVATE_ADDRESSES", environment)?.unwrap_or(false);
    Ok(settings)
}

/// Returns whether flags or variables configure the sign-in.
pub(crate) fn is_told(flags: &ClientFlags, environment: &Environment) -> bool {
    let variables = [
        "RIALTO_SCOPE",
        "RIALTO_CLIENT_ID",
        "RIALTO_CLIENT_METADATA_URL",
        "RIALTO_ISSUER",
        "RIALTO_GRANT",
    ];
    *flags != ClientFlags::default()
        || variables
            .iter()
            .any(|variable| environment.filled(variable).is_some())
}

/// Puts the client of flags and variables into the settings, and checks the whole.
pub(crate) fn apply(
    flags: &ClientFlags,
    settings: &mut Settings,
    environment: &Environment,
) -> Result<(), String> {
    let text = |flag: &Option<String>, variable: &str| {
        let given = flag.as_deref().or_else(|| environment.filled(variable));
        given.map(str::to_owned)
    };
    let url = |name: &str, text: Option<String>| {
        let parsed = text.map(|text| Url::parse(&text).map_err(|error| format!("{name} {text}: {error}")));
        parsed.transpose()
    };
    settings.scopes.clone_from(&flags.scope);
    if flags.scope.is_empty()
        && let Some(scopes) = environment.filled("RIALTO_SCOPE")
    {
        settings.scopes = scopes.split_whitespace().map(str::to_owned).collect();
    }
    settings.redirect_uri = url("--redirect-uri", text(&flags.redirect_uri, "RIALTO_REDIRECT_URI"))?;
    settings.identity.metadata_url = url(
        "--client-metadata-url",
        text(&flags.client_metadata_url, "RIALTO_CLIENT_METADATA_URL"),
    )?;
    settings.identity.client_id = text(&flags.client_id, "RIALTO_CLIENT_ID");
    settings.identity.issuer = text(&flags.issuer, "RIALTO_ISSUER");
    settings.http.allow_private_addresses |= flags.allow_private_addresses;
    settings.allow_split_authority =
        flags.allow_split_authority || truth("RIALTO_ALLOW_SPLIT_AUTHORITY", environment)?.unwrap_or(false);
    if let Some(path) = text(&flags.client_key_file, "RIALTO_CLIENT_KEY_FILE") {
        let told = |why: &str| format!("--client-key-file {path}: {why}");
        let pem = std::fs::read_to_string(&path).map_err(|error| told(&error.to_string()))?;
        let key = SigningKey::from_pem(&pem);
        let key = key.ok_or_else(|| told("no private key in PEM form for RSA, P-256 or P-384"))?;
        settings.identity.client_key = Some(key);
    }
    let named = text(&flags.client_secret_env, "RIALTO_CLIENT_SECRET_ENV");
    let secret = environment.filled(named.as_deref().unwrap_or(CLIENT_SECRET));
    if let (Some(name), None) = (&named, secret) {
        return Err(format!("--client-secret-env: {name} is not set"));
    }
    // The variable of the default name may be set for another client than none.
    if named.is_some() || settings.identity.client_id.is_some() {
        settings.identity.client_secret = secret.map(Secret::new);
    }
    if let Some(written) = &flags.static_oauth_client_info {
        let (id, secret) = static_client(written.expose())?;
        settings.identity.client_id = Some(id);
        settings.identity.client_secret = secret;
    }
    settings.grant = match text(&flags.grant, "RIALTO_GRANT").as_deref() {
        Some("person") => Grant::AuthorizationCode,
        Some("client-credentials") => Grant::ClientCredentials,
        Some(other) => {
            return Err(format!("--grant {other}: write person or client-credentials"));
        }
        // People sign in without a key.
        None if settings.identity.client_key.is_some() => Grant::ClientCredentials,
        None => Grant::AuthorizationCode,
    };
    settings.browser = match settings.grant {
        Grant::AuthorizationCode => Some(browser(environment)?),
        Grant::ClientCredentials => None,
    };
    settings.validate().map_err(|error| error.to_string())
}

/// Returns a client that was registered by hand, as mcp-remote takes it. No error repeats the text:
/// it holds the secret.
fn static_client(written: &str) -> Result<(String, Option<Secret>), String> {
    const FLAG: &str = "--static-oauth-client-info";
    let read = match written.strip_prefix('@') {
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.map_err(|error| format!("{FLAG}: {path} cannot be read: {error}"))?)
        }
        None => None,
    };
    let client: serde_json::Value = serde_json::from_str(read.as_deref().unwrap_or(written))
        .map_err(|_| format!("{FLAG}: write {{ \"client_id\": \"…\" }}, or @FILE"))?;
    let member = |name: &str| client.get(name).and_then(serde_json::Value::as_str);
    let id = member("client_id").ok_or_else(|| format!("{FLAG}: `client_id` is missing"))?;
    Ok((id.to_owned(), member("client_secret").map(Secret::new)))
}

/// Returns the directory of the token store: what a user keeps between runs, but would not carry to
/// another machine.
fn store(environment: &Environment) -> Result<StoreSettings, String> {
    let state = user_files::state_dir(environment);
    let state = state.ok_or("there is no place to keep tokens in: set RIALTO_STATE_DIR or HOME")?;
    let mut store = StoreSettings::at(state.join("sign-in"));
    store.keyring &= truth("RIALTO_KEYRING", environment)?.unwrap_or(true);
    Ok(store)
}

fn truth(name: &str, environment: &Environment) -> Result<Option<bool>, String> {
    let given = environment.filled(name).map(config::truth);
    given.transpose().map_err(|error| format!("{name}: {error}"))
}

/// Returns the browser in which people sign in: that of the desktop, or the command of
/// `RIALTO_BROWSER`.
pub(crate) fn browser(environment: &Environment) -> Result<Browser, String> {
    let Some(line) = environment.filled("RIALTO_BROWSER") else {
        return Ok(Browser::desktop());
    };
    let command = config::command(line).map_err(|error| format!("RIALTO_BROWSER: {error}"))?;
    let (program, arguments) = match command.split_first() {
        Some((program, arguments)) => (program.clone(), arguments.to_vec()),
        None => return Err("RIALTO_BROWSER is empty".to_owned()),
    };
    Ok(Browser::opened_by(move |url| {
        // No shell, and nothing of ours to read or write: stdout may belong to a protocol.
        let ended = Command::new(&program)
            .args(&arguments)
            .arg(url.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        if ended.success() {
            Ok(())
        } else {
            Err(std::io::Error::other(format!("{program}: {ended}")))
        }
    }))
}

/// Proxies may stand at private addresses: the user has chosen them.
fn proxy_hosts(environment: &Environment) -> Vec<String> {
    let proxies = PROXY_VARIABLES.iter().filter_map(|name| environment.filled(name));
    let host = |text: &str| {
        let whole = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        Some(Url::parse(&whole).ok()?.host_str()?.to_owned())
    };
    proxies.filter_map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(variables: &[(&str, &str)]) -> Result<String, String> {
        let store = store(&variables.iter().copied().collect::<Environment>())?;
        Ok(store.directory.display().to_string())
    }

    #[test]
    fn tokens_are_kept_in_the_state_directory() {
        let all = [
            ("RIALTO_STATE_DIR", "/r"),
            ("XDG_STATE_HOME", "/x"),
            ("HOME", "/h"),
        ];
        assert_eq!(directory(&all).unwrap(), "/r/sign-in");
        assert_eq!(directory(&all[1..]).unwrap(), "/x/rialto/sign-in");
        assert_eq!(directory(&all[2..]).unwrap(), "/h/.local/state/rialto/sign-in");
        assert!(directory(&[]).unwrap_err().contains("RIALTO_STATE_DIR"));
    }

    #[test]
    fn client_of_mcp_remote_is_read_from_text_and_file() {
        let text = r#"{ "client_id": "me", "client_secret": "geheim", "other": 1 }"#;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("client info.json");
        std::fs::write(&file, text).unwrap();
        for written in [text.to_owned(), format!("@{}", file.display())] {
            let (id, secret) = static_client(&written).unwrap();
            assert_eq!(id, "me");
            assert_eq!(secret.unwrap().expose(), "geheim");
        }
        assert!(static_client(r#"{"client_id":"me"}"#).unwrap().1.is_none());
        for bad in ["geheim", r#"{"client_secret":"geheim"}"#, "@/nowhere"] {
            let error = static_client(bad).unwrap_err();
            assert!(
                error.starts_with("--static-oauth-client-info") && !error.contains("geheim"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_keyring_can_be_left_alone() {
        let variables = [("HOME", "/h"), ("RIALTO_KEYRING", "off")];
        assert!(!store(&variables.into_iter().collect()).unwrap().keyring);
        let variables = [("HOME", "/h"), ("RIALTO_KEYRING", "perhaps")];
        assert!(store(&variables.into_iter().collect()).is_err());
    }

    #[test]
    fn hosts_of_proxies_are_known_with_and_without_a_scheme() {
        let variables = [
            ("HTTPS_PROXY", "http://proxy.corp:3128"),
            ("http_proxy", "10.0.0.1:80"),
        ];
        assert_eq!(
            proxy_hosts(&variables.into_iter().collect()),
            ["proxy.corp", "10.0.0.1"]
        );
    }
}
