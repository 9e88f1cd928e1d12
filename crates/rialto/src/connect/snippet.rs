//! What to paste into a host's configuration so that it starts this very command.
//!
//! Secrets are never repeated: a place is shown where they go.

use crate::config::Environment;
use crate::flags::ConnectFlags;
use crate::hosts::shape;
use crate::hosts::table::Host;

/// What stands where a secret goes.
const TOKEN: &str = "<your token>";
const SECRET: &str = "<the client's secret>";

pub(super) fn of(host: &Host, name: &str, flags: &ConnectFlags, environment: &Environment) -> String {
    let mut words = vec![program()];
    words.extend(arguments(flags, environment));
    let entry = shape::stdio(host, name, &words, &variables(flags, environment));
    shape::pasted(host, &[(name.to_owned(), entry)])
}

/// Hosts look for programs in other places than a shell does, so the whole path is written.
fn program() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| path.into_os_string().into_string().ok())
        .unwrap_or_else(|| "rialto".to_owned())
}

fn arguments(flags: &ConnectFlags, environment: &Environment) -> Vec<String> {
    let mut words = vec!["connect".to_owned()];
    words.extend(
        flags
            .url
            .clone()
            .or_else(|| environment.filled("URI").map(str::to_owned))
            .filter(|_| flags.config.is_none()),
    );
    for header in &flags.header {
        let (name, value) = header.expose().split_once(':').unwrap_or_default();
        // A reference is no secret; the variable is set in the host's file or its environment.
        let value = Some(value.trim()).filter(|value| is_reference(value));
        let header = format!("{}: {}", name.trim(), value.unwrap_or(TOKEN));
        words.extend(["--header".to_owned(), header]);
    }
    let client = &flags.client;
    if let Some(written) = &client.static_oauth_client_info {
        let file = Some(written.expose()).filter(|text| text.starts_with('@'));
        let shown = file.unwrap_or(SECRET).to_owned();
        words.extend(["--static-oauth-client-info".to_owned(), shown]);
    }
    for scope in &client.scope {
        words.extend(["--scope".to_owned(), scope.clone()]);
    }
    for (flag, set) in [
        ("--allow-split-authority", client.allow_split_authority),
        ("--allow-private-addresses", client.allow_private_addresses),
    ] {
        words.extend(set.then(|| flag.to_owned()));
    }
    for (flag, value) in [
        ("--config", absolute(flags.config.as_deref())),
        ("--aggregate", flags.aggregate.clone()),
        ("--header-file", absolute(flags.header_file.as_deref())),
        ("--bearer-env", flags.bearer_env.clone()),
        ("--auth", flags.auth.clone()),
        ("--client-id", client.client_id.clone()),
        ("--client-secret-env", client.client_secret_env.clone()),
        ("--client-key-file", absolute(client.client_key_file.as_deref())),
        ("--client-metadata-url", client.client_metadata_url.clone()),
        ("--issuer", client.issuer.clone()),
        ("--redirect-uri", client.redirect_uri.clone()),
        ("--grant", client.grant.clone()),
        ("--transport", flags.transport.clone()),
        ("--era", flags.era.clone()),
        ("--ca-file", absolute(flags.ca_file.as_deref())),
        ("--request-timeout", flags.request_timeout.clone()),
        ("--max-queue", flags.max_queue.clone()),
        ("--max-message-bytes", flags.max_message_bytes.clone()),
        ("--retry", flags.retry.clone()),
        ("--log-format", flags.log_format.clone()),
    ] {
        if let Some(value) = value {
            words.extend([flag.to_owned(), value]);
        }
    }
    if !flags.command.is_empty() {
        words.push("--".to_owned());
        words.extend(flags.command.iter().cloned());
    }
    words
}

/// Returns whether a value is one `${VAR}` and nothing else.
fn is_reference(value: &str) -> bool {
    let name = value.strip_prefix("${").and_then(|value| value.strip_suffix('}'));
    name.is_some_and(|name| {
        name.bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    })
}

/// Makes a path absolute: the host starts the program in a directory of its own choice.
fn absolute(path: Option<&str>) -> Option<String> {
    let path = path?;
    let whole = std::path::absolute(path).ok();
    Some(
        whole
            .and_then(|path| path.into_os_string().into_string().ok())
            .unwrap_or_else(|| path.to_owned()),
    )
}

/// Hosts pass on only the variables that they are configured to.
fn variables(flags: &ConnectFlags, environment: &Environment) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    match flags.bearer_env.as_deref() {
        Some(variable) => variables.push((variable.to_owned(), TOKEN.to_owned())),
        None if environment.filled("BEARER_TOKEN").is_some() => {
            variables.push(("BEARER_TOKEN".to_owned(), TOKEN.to_owned()));
        }
        None => {}
    }
    if let Some(variable) = flags.client.client_secret_env.as_deref() {
        variables.push((variable.to_owned(), SECRET.to_owned()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use gateway::settings::Secret;
    use serde_json::{Value, json};

    use super::*;
    use crate::hosts::table;

    fn shown(host: &str, flags: &ConnectFlags) -> Value {
        let environment = Environment::from_iter([("BEARER_TOKEN", "geheim")]);
        let host = table::named(host).expect(host);
        let text = of(host, "example", flags, &environment);
        assert!(!text.contains("geheim"), "{text}");
        serde_json::from_str(&text).expect("what is printed is JSON")
    }

    #[test]
    fn every_host_gets_its_own_shape_and_no_secret() {
        let flags = ConnectFlags {
            url: Some("https://mcp.example.com/mcp".into()),
            header: vec![Secret::new("X-Key: geheim")],
            header_file: Some("headers.txt".into()),
            request_timeout: Some("5m".into()),
            ..ConnectFlags::default()
        };
        for (host, servers, kind) in [
            ("claude-desktop", "mcpServers", Value::Null),
            ("claude-code", "mcpServers", "stdio".into()),
            ("cursor", "mcpServers", Value::Null),
            ("vscode", "servers", "stdio".into()),
        ] {
            let shown = shown(host, &flags);
            let entry = &shown[servers]["example"];
            assert_eq!(entry["type"], kind, "{host:?}");
            assert_eq!(entry["args"][0], "connect");
            assert_eq!(entry["args"][1], "https://mcp.example.com/mcp");
            assert_eq!(entry["args"][3], "X-Key: <your token>");
            assert!(
                entry["args"][5]
                    .as_str()
                    .is_some_and(|path| path.starts_with('/')),
                "{entry}"
            );
            assert_eq!(entry["env"]["BEARER_TOKEN"], TOKEN);
        }
    }

    #[test]
    fn the_variable_of_the_token_is_named_and_its_value_is_not() {
        let flags = ConnectFlags {
            command: vec!["cat".into(), "-u".into()],
            bearer_env: Some("EXAMPLE_TOKEN".into()),
            ..ConnectFlags::default()
        };
        let shown = shown("cursor", &flags);
        let entry = &shown["mcpServers"]["example"];
        assert_eq!(
            entry["args"],
            json!(["connect", "--bearer-env", "EXAMPLE_TOKEN", "--", "cat", "-u"])
        );
        assert_eq!(entry["env"], json!({"EXAMPLE_TOKEN": TOKEN}));
    }
}
