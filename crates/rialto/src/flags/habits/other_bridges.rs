//! The flags of supergateway, of both programs called mcp-proxy, and of mcp-remote.
//!
//! `docs/migrate.md` has the same as a table, with the whole lines of their documentation.

use serde_json::Value;

use super::{Line, Verb, quoted};
use crate::config::is_web_address;

const ERAS: &str = "Rialto asks the server which revisions it speaks";
const CERTIFICATES: &str = "certificates are always checked. To trust the server's own authority:\n\n    \
                            rialto connect URL --ca-file FILE";
const TOKEN_ENDPOINT: &str = "Rialto finds the token endpoint itself, from the server. Name its authorization server where \
                              that is not enough:\n\n    rialto connect URL --issuer https://ISSUER --grant \
                              client-credentials --client-id ID --client-secret-env NAME";

/// Where mcp-remote expects the browser after a sign-in.
#[derive(Debug, Default)]
pub(super) struct Callback {
    pub(super) host: Option<String>,
    pub(super) port: Option<String>,
    pub(super) path: Option<String>,
}

impl Callback {
    /// Returns the redirect URI, where the port was named: another one may not be registered.
    pub(super) fn redirect_uri(self) -> Option<String> {
        let port = self.port?;
        let host = self.host.unwrap_or_else(|| "localhost".to_owned());
        let path = self.path.unwrap_or_else(|| "/oauth/callback".to_owned());
        Some(format!("http://{host}:{port}{path}"))
    }
}

/// Returns whether a flag is about a remote server, for a client on stdio.
pub(super) fn is_of_a_client(name: &str) -> bool {
    matches!(
        name,
        "--sse"
            | "--streamableHttp"
            | "--verify-ssl"
            | "--no-verify-ssl"
            | "--username"
            | "--password"
            | "--digest"
    )
}

/// Returns whether a flag is about a server of this machine.
pub(super) fn is_of_a_server(name: &str) -> bool {
    matches!(
        name,
        "--stdio" | "--cors" | "--named-server" | "--named-server-config" | "--shell" | "--port" | "-p"
    )
}

/// Returns how many words follow a flag of another bridge, as far as the choice of the command
/// needs it.
pub(super) fn values(name: &str) -> Option<usize> {
    Some(match name {
        "--headers" | "-H" | "-e" | "--named-server" => 2,
        "--stdio"
        | "--outputTransport"
        | "--baseUrl"
        | "--ssePath"
        | "--messagePath"
        | "--streamableHttpPath"
        | "--sessionTimeout"
        | "--protocolVersion"
        | "--oauth2Bearer"
        | "--logLevel"
        | "--healthEndpoint"
        | "--host"
        | "--sse-host"
        | "--sse-port"
        | "--named-server-config"
        | "--expose-header"
        | "--log-level"
        | "--endpoint"
        | "--sseEndpoint"
        | "--streamEndpoint"
        | "--connectionTimeout"
        | "--requestTimeout"
        | "--keepAliveTimeout"
        | "--sessionIdleTimeout"
        | "--eventStoreMaxEvents"
        | "--maxBodySize"
        | "--apiKey"
        | "--sslCa"
        | "--sslCert"
        | "--sslKey"
        | "--tunnelSubdomain"
        | "--corsAddAllowedHeader"
        | "--gracefulShutdownTimeout"
        | "--upstreamProtocol"
        | "--client-secret"
        | "--token-url"
        | "--auth-timeout"
        | "--resource"
        | "--ignore-tool"
        | "--authorize-param"
        | "--auth-success-url"
        | "--connect-timeout"
        | "--headers-timeout"
        | "--body-timeout"
        | "--ping-interval"
        | "--protocol"
        | "--token-endpoint"
        | "--callback-path" => 1,
        _ => return None,
    })
}

/// Takes a flag of another bridge with its values. Returns `false` where it is none.
pub(super) fn take(line: &mut Line<'_>, name: &str) -> Result<bool, String> {
    match line.verb {
        Verb::Serve | Verb::Check => serve(line, name),
        Verb::Connect => connect(line, name),
    }
}

fn serve(line: &mut Line<'_>, name: &str) -> Result<bool, String> {
    match name {
        // supergateway
        "--stdio" => {
            let text = line.value(name)?;
            line.command = line.words_of(&text)?;
            // Its clients use HTTP+SSE, unless another transport is named.
            line.old_clients.get_or_insert(true);
        }
        "--outputTransport" => match line.value(name)?.as_str() {
            "sse" => line.old_clients = Some(true),
            "streamableHttp" => line.old_clients = Some(false),
            "stdio" => {
                return Err(
                    "a server on stdio needs no bridge to stdio, but for another era. Write:\n\n    \
                     rialto connect -- COMMAND"
                        .into(),
                );
            }
            other => {
                return Err(format!(
                    "Rialto does not serve {other}. Clients reach the server over Streamable HTTP at /mcp; leave \
                     `--outputTransport` out"
                ));
            }
        },
        "--baseUrl" => {
            let url = line.value(name)?;
            // Rialto knows its own address; only another one has to be named.
            if !["http://localhost", "http://127.0.0.1"]
                .iter()
                .any(|own| url.starts_with(own))
            {
                line.push("--public-url", url);
            }
        }
        "--ssePath" | "--sseEndpoint" => path(line, name, &["/sse"])?,
        "--messagePath" => path(line, name, &["/message"])?,
        "--streamableHttpPath" | "--streamEndpoint" => path(line, name, &["/mcp"])?,
        "--endpoint" => path(line, name, &["/mcp", "/sse"])?,
        "--healthEndpoint" => {
            let wanted = line.value(name)?;
            line.note(format!(
                "{name} {wanted} is left out: Rialto answers at /health and /ready"
            ));
        }
        "--sessionTimeout" => milliseconds(line, name, &["--session-idle"])?,
        "--logLevel" | "--log-level" => match line.value(name)?.to_ascii_lowercase().as_str() {
            "debug" => line.set("--verbose"),
            "none" | "warning" | "error" | "critical" => line.set("--quiet"),
            _ => {}
        },
        "--cors" => cors(line)?,
        "--oauth2Bearer" => {
            let _ = line.value(name)?;
            return Err(
                "a token for a stdio server is a variable of its own. Write:\n\n    \
                        rialto serve --env NAME -- COMMAND"
                    .into(),
            );
        }
        "--stateful" | "--stateless" | "--no-stateless" => {}
        "--protocolVersion" => {
            let wanted = line.value(name)?;
            line.note(format!("{name} {wanted} is left out: {ERAS}"));
        }
        // mcp-proxy of PyPI
        "--host" | "--sse-host" => line.host = Some(line.value(name)?),
        "--sse-port" => line.port = Some(line.value(name)?),
        "-e" => {
            let first = line.value(name)?;
            let value = match first.contains('=') {
                true => first,
                false => format!("{first}={}", line.value(name)?),
            };
            line.push("--env", value);
        }
        "--pass-environment" | "--no-debug" => {}
        "--expose-header" => {
            let header = line.value(name)?;
            line.note(format!(
                "{name} {header} is left out: pages may read the headers of MCP"
            ));
        }
        "--no-pass-environment" => {
            return Err(
                "a command of the command line inherits this shell's environment. In a file it gets a short list \
                 only. Write it to destinations.yml, and:\n\n    rialto serve"
                    .into(),
            );
        }
        "--named-server" => {
            let (server, command) = (line.value(name)?, line.value(name)?);
            line.push("--server", format!("{server}={command}"));
        }
        "--named-server-config" => {
            let file = line.value(name)?;
            line.push("--config", file);
        }
        // mcp-proxy of npm. Rialto's own --server has a name and a command.
        "--server" => match line.words.last().and_then(|word| word.to_str()) {
            Some("sse") => {
                line.words.pop();
                line.old_clients = Some(true);
            }
            Some("stream") => {
                line.words.pop();
            }
            Some(_) | None => return Ok(false),
        },
        "--connectionTimeout" => milliseconds(line, name, &["--start-timeout"])?,
        "--requestTimeout" => milliseconds(line, name, &["--request-timeout", "--stream-timeout"])?,
        "--gracefulShutdownTimeout" => {
            let wanted = line.value(name)?;
            line.note(format!(
                "{name} is left out: RIALTO_DRAIN_TIMEOUT={wanted}ms sets that time"
            ));
        }
        "--sessionIdleTimeout" => match line.value(name)?.as_str() {
            "0" => {
                return Err(
                    "every session ends some time after its last request. Name a long time:\n\n    \
                     rialto serve --session-idle 7d -- COMMAND"
                        .into(),
                );
            }
            wanted => push_milliseconds(line, name, wanted, &["--session-idle"])?,
        },
        "--keepAliveTimeout" | "--eventStoreMaxEvents" => {
            let wanted = line.value(name)?;
            line.note(format!("{name} {wanted} is left out: Rialto has no such setting"));
        }
        "--upstreamProtocol" => {
            let wanted = line.value(name)?;
            line.note(format!("{name} {wanted} is left out: {ERAS}"));
        }
        "--eventStore" | "--no-eventStore" | "--modern" | "--no-modern" => {}
        "--maxBodySize" => {
            let bytes = line.value(name)?;
            if bytes == "0" {
                return Err("messages always have a limit. Name a large one:\n\n    \
                            rialto serve --max-message-bytes 64MiB -- COMMAND"
                    .into());
            }
            line.push("--max-message-bytes", bytes);
        }
        "--debug" => line.set("--verbose"),
        "--shell" => line.in_shell = true,
        "--sslCert" => {
            let file = line.value(name)?;
            line.push("--tls-cert", file);
        }
        "--sslKey" => {
            let file = line.value(name)?;
            line.push("--tls-key", file);
        }
        "--sslCa" => {
            let _ = line.value(name)?;
            return Err("Rialto does not ask clients for certificates; they authenticate with tokens. `rialto token` \
                        makes one. Write:\n\n    rialto serve --token-hash HASH -- COMMAND"
                .into());
        }
        "--apiKey" => {
            let _ = line.value(name)?;
            return Err(
                "clients authenticate with a bearer token instead of X-API-Key. `rialto token` makes one. \
                        Write:\n\n    rialto serve --token-hash HASH -- COMMAND"
                    .into(),
            );
        }
        "--tunnel" | "--tunnelSubdomain" => {
            return Err(
                "Rialto opens no tunnel. Start one of your choice, and name its URL:\n\n    \
                        rialto serve --public-url https://NAME --token-hash HASH -- COMMAND"
                    .into(),
            );
        }
        "--corsAddAllowedHeader" => {
            let header = line.value(name)?;
            line.note(format!(
                "{name} {header} is left out: pages may send the headers of MCP"
            ));
        }
        // mcp-remote and others, where they put a remote server on HTTP
        "--sse" | "--streamableHttp" => {
            let url = line.value(name)?;
            line.positional.push(url.into());
            transport(line, name);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn connect(line: &mut Line<'_>, name: &str) -> Result<bool, String> {
    match name {
        // supergateway
        "--sse" | "--streamableHttp" => {
            let url = line.value(name)?;
            line.positional.push(url.into());
            transport(line, name);
        }
        "--oauth2Bearer" => {
            let token = line.value(name)?;
            line.push("--header", format!("Authorization: Bearer {token}"));
        }
        "--outputTransport" => {
            let wanted = line.value(name)?;
            if wanted != "stdio" {
                let server = line
                    .positional
                    .first()
                    .map(|url| url.to_string_lossy().into_owned());
                let server = server.unwrap_or_else(|| "URL".to_owned());
                return Err(format!(
                    "to put a remote server on HTTP, write:\n\n    rialto serve {}",
                    quoted(&server)
                ));
            }
        }
        "--logLevel" | "--log-level" => match line.value(name)?.to_ascii_lowercase().as_str() {
            "debug" => line.set("--verbose"),
            "none" | "warning" | "error" | "critical" => line.set("--quiet"),
            _ => {}
        },
        // mcp-proxy of PyPI
        "--headers" | "-H" => {
            let (header, value) = (line.value(name)?, line.value(name)?);
            line.push("--header", format!("{header}: {value}"));
        }
        "--client-secret" => {
            let _ = line.value(name)?;
            return Err("a secret on the command line is visible to every user of this machine. Put it in a variable, \
                        and write:\n\n    rialto connect URL --grant client-credentials --client-id ID \
                        --client-secret-env NAME"
                .into());
        }
        "--token-url" => {
            let _ = line.value(name)?;
            return Err(TOKEN_ENDPOINT.into());
        }
        "--no-verify-ssl" => return Err(CERTIFICATES.into()),
        "--verify-ssl" => {
            // Its value may be left out: then the next word is the address.
            let next = line.words.last().and_then(|word| word.to_str());
            match next.filter(|word| !is_web_address(word) && !word.starts_with('-')) {
                Some("false") => return Err(CERTIFICATES.into()),
                Some("true") => {
                    line.words.pop();
                }
                Some(_) => {
                    let file = line.value(name)?;
                    line.push("--ca-file", file);
                }
                None => {}
            }
        }
        "--username" | "--password" | "--digest" => {
            return Err(
                "a password on the command line is visible to every user of this machine. Write `Authorization: Basic \
                 …` into a file, and:\n\n    rialto connect URL --header-file FILE"
                    .into(),
            );
        }
        // mcp-remote
        "--allow-http" | "--enable-proxy" | "--no-debug" | "--ipv4" | "--disable-cookies"
        | "--keep-alive" => {}
        "--connect-timeout" | "--headers-timeout" | "--body-timeout" | "--ping-interval" => {
            let wanted = line.value(name)?;
            line.note(format!(
                "{name} {wanted} is left out: Rialto connects again by itself; --request-timeout limits a call"
            ));
        }
        "--auth-success-url" => {
            let wanted = line.value(name)?;
            line.note(format!(
                "{name} {wanted} is left out: Rialto has a page of its own"
            ));
        }
        "--protocol" => {
            let wanted = line.value(name)?;
            line.push("--era", wanted);
        }
        "--client-credentials" => line.push("--grant", "client-credentials"),
        "--token-endpoint" => {
            let _ = line.value(name)?;
            return Err(TOKEN_ENDPOINT.into());
        }
        "--device-code" => {
            return Err(
                "Rialto signs in with a browser, on this machine or another. Do it once, and then connect:\n\n    \
                 rialto login URL"
                    .into(),
            );
        }
        "--authorize-param" | "--use-id-token" => {
            return Err(format!(
                "Rialto has no {name}. Get a token in your own way, put it in a variable, and write:\n\n    \
                 rialto connect URL --bearer-env NAME"
            ));
        }
        "--debug" => line.set("--verbose"),
        "--silent" => line.set("--quiet"),
        "--auth-timeout" => {
            let wanted = line.value(name)?;
            line.note(format!(
                "{name} {wanted} is left out: Rialto waits longer for a sign-in"
            ));
        }
        "--host" => line.callback.host = Some(line.value(name)?),
        "--callback-path" => line.callback.path = Some(line.value(name)?),
        "--resource" => {
            let _ = line.value(name)?;
            return Err("Rialto has one account for each server. A second account needs a directory of its own:\n\n    \
                        RIALTO_STATE_DIR=DIR RIALTO_KEYRING=off rialto connect URL"
                .into());
        }
        "--disable-resource-parameter" => {
            return Err(
                "Rialto always names the resource, as the specification requires. Where the authorization \
                        server does not allow that, use a token of your own:\n\n    \
                        rialto connect URL --bearer-env NAME"
                    .into(),
            );
        }
        "--ignore-tool" => {
            let glob = line.value(name)?;
            return Err(format!(
                "`connect` passes all tools on. To leave tools out, write this to destinations.yml, and start `rialto \
                 serve`:\n\n    destinations:\n      NAME:\n        url: URL\n        tools: {{ deny: [{}] }}",
                serde_json::Value::from(glob)
            ));
        }
        "--static-oauth-client-metadata" => {
            let text = line.value(name)?;
            metadata(line, name, &text)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn transport(line: &mut Line<'_>, name: &str) {
    line.push(
        "--transport",
        match name {
            "--sse" => "sse",
            _ => "streamable-http",
        },
    );
}

/// Accepts a path that Rialto has, and names it otherwise.
fn path(line: &mut Line<'_>, name: &str, own: &[&str]) -> Result<(), String> {
    let wanted = line.value(name)?;
    if own.contains(&wanted.as_str()) {
        return Ok(());
    }
    Err(format!(
        "{name} {wanted}: the path of Rialto is {}, or the same under /NAME; leave the flag out",
        own.join(" or ")
    ))
}

fn milliseconds(line: &mut Line<'_>, name: &str, flags: &[&str]) -> Result<(), String> {
    let wanted = line.value(name)?;
    push_milliseconds(line, name, &wanted, flags)
}

fn push_milliseconds(line: &mut Line<'_>, name: &str, wanted: &str, flags: &[&str]) -> Result<(), String> {
    if wanted.is_empty() || !wanted.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{name} {wanted}: write a number of milliseconds"));
    }
    for flag in flags {
        line.push(flag, format!("{wanted}ms"));
    }
    Ok(())
}

/// `--cors` without a value means every page, which Rialto never allows.
fn cors(line: &mut Line<'_>) -> Result<(), String> {
    let mut origins = 0;
    while let Some(origin) = line
        .words
        .last()
        .and_then(|word| word.to_str())
        .map(str::to_owned)
    {
        if !is_web_address(&origin) {
            break;
        }
        line.words.pop();
        line.push("--allow-origin", origin);
        origins += 1;
    }
    match origins {
        0 => Err(
            "pages of this machine are let in by default. For another page, name it:\n\n    \
                  rialto serve --allow-origin https://PAGE -- COMMAND"
                .into(),
        ),
        _ => Ok(()),
    }
}

/// Takes the scopes of mcp-remote's client metadata. Rialto writes the other members itself.
fn metadata(line: &mut Line<'_>, name: &str, text: &str) -> Result<(), String> {
    if text.starts_with('@') {
        return Err(format!(
            "{name}: Rialto writes the metadata of its client itself. Scopes of the file are flags:\n\n    \
             rialto connect URL --scope SCOPE --scope SCOPE"
        ));
    }
    let members = match serde_json::from_str(text) {
        Ok(Value::Object(members)) => members,
        Ok(_) | Err(_) => return Err(format!("{name}: not a JSON object")),
    };
    for (member, value) in members {
        match (member.as_str(), &value) {
            ("scope", Value::String(scopes)) => {
                for scope in scopes.split_whitespace() {
                    line.push("--scope", scope);
                }
            }
            (_, _) => line.note(format!("`{member}` of {name} is left out: Rialto writes its own")),
        }
    }
    Ok(())
}
