use clap::CommandFactory as _;

use super::*;
use crate::flags::CommandLine;

fn understood(line: &[&str], variables: &[(&str, &str)]) -> Result<Understood, String> {
    let args = std::iter::once("rialto").chain(line.iter().copied());
    let environment = variables.iter().copied().collect();
    understand(
        args.map(OsString::from).collect(),
        &CommandLine::command(),
        &environment,
    )
}

/// What the words of a line become, as one text.
#[track_caller]
fn becomes(line: &[&str], expected: &str) {
    let understood = understood(line, &[("HOME", "/home/me")]).expect("accepted");
    let words: Vec<_> = understood
        .args
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy())
        .collect();
    assert_eq!(words.join(" "), expected, "{line:?}");
}

#[track_caller]
fn answered(line: &[&str], part: &str) {
    let answer = understood(line, &[]).expect_err("not accepted");
    assert!(answer.contains(part), "{line:?}: {answer}");
}

#[test]
fn command_needs_no_dashes_in_front() {
    becomes(
        &["serve", "npx", "-y", "x", "--port", "1"],
        "serve -- npx -y x --port 1",
    );
    becomes(&["npx", "-y", "x"], "serve -- npx -y x");
    becomes(&["./run.sh", "--demo"], "serve -- ./run.sh --demo");
    becomes(&["check", "uvx", "x"], "check -- uvx x");
    becomes(&["connect", "npx", "-y", "x"], "connect -- npx -y x");
    becomes(&["serve", "--name", "a", "cat", "-u"], "serve --name a -- cat -u");
    becomes(&["serve", "--name=a", "cat"], "serve --name=a -- cat");
    becomes(&["serve", "--", "cat", "--", "x"], "serve -- cat -- x");
    becomes(&["--port", "8080", "uvx", "x"], "serve --port=8080 -- uvx x");
    becomes(&["serve", "-v", "cat"], "serve -v -- cat");
}

#[test]
fn whole_command_may_stand_in_quotes() {
    becomes(&["serve", "npx -y 'a b'"], "serve -- npx -y a b");
    becomes(&["serve", "--", "npx -y x"], "serve -- npx -y x");
    becomes(&["npx -y x"], "serve -- npx -y x");
    becomes(&["serve", "x ${HOME}/y"], "serve -- x /home/me/y");
    answered(
        &["serve", "cd /srv && npx x"],
        "rialto serve -- sh -c 'cd /srv && npx x'",
    );
}

#[test]
fn program_with_a_space_in_its_path_is_no_quoted_command() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("my server");
    std::fs::write(&program, "").expect("written");
    let program = program.to_str().expect("text");
    let understood = understood(&["serve", program], &[]).expect("accepted");
    assert_eq!(understood.args, ["rialto", "serve", "--", program]);
}

#[test]
fn address_is_a_server_to_serve_to_check_or_to_connect_to() {
    becomes(&["serve", "https://h/mcp"], "serve https://h/mcp");
    becomes(
        &["serve", "https://h/mcp", "--name", "n"],
        "serve --name n https://h/mcp",
    );
    becomes(
        &["check", "https://h/mcp", "--json"],
        "check --json https://h/mcp",
    );
    becomes(
        &["https://h/mcp", "--era", "modern"],
        "connect --era modern https://h/mcp",
    );
    becomes(
        &["--header", "A: b", "https://h"],
        "connect --header A: b https://h",
    );
}

#[test]
fn lines_of_rialto_itself_stay_as_they_are() {
    for line in [
        &["serve", "--demo"][..],
        &["serve", "--config", "x.yml", "--token-hash", "a=sha256:0"],
        &["check", "--listen", ":0", "--", "npx", "-y", "x"],
        &["connect", "--bearer-env", "A", "https://h/mcp"],
        &["login", "https://h/mcp", "--scope", "a"],
        &["audit", "verify", "a"],
        &["serve", "--nope"],
        &["--help"],
    ] {
        becomes(line, &line.join(" "));
    }
    becomes(&["--demo"], "serve --demo");
    becomes(&["--copy-self", "/x"], "copy-self /x");
    becomes(&["version"], "--version");
}

#[test]
fn word_that_is_no_command_is_answered_with_the_line_that_was_meant() {
    answered(&["serv", "--demo"], "rialto serve");
    answered(&["chekc"], "rialto check");
    answered(
        &["localhost:3000/mcp"],
        "rialto connect http://localhost:3000/mcp",
    );
    answered(
        &["mcp.example.com/mcp"],
        "rialto connect http://mcp.example.com/mcp",
    );
    answered(
        &["weather", "--key", "a b"],
        "rialto serve -- weather --key 'a b'",
    );
}

#[test]
fn host_and_port_become_one_address() {
    becomes(
        &["serve", "--host", "0.0.0.0", "--port", "80", "cat"],
        "serve --listen=0.0.0.0:80 -- cat",
    );
    becomes(
        &["serve", "--host=::1", "cat"],
        "serve --listen=[::1]:3000 -- cat",
    );
    becomes(&["serve", "-p", "80", "cat"], "serve --port=80 -- cat");
}

#[test]
fn lines_of_supergateway_mean_the_same() {
    becomes(
        &[
            "--stdio",
            "uvx mcp-server-git",
            "--port",
            "8000",
            "--baseUrl",
            "http://localhost:8000",
            "--ssePath",
            "/sse",
        ],
        "serve --legacy-sse --port=8000 -- uvx mcp-server-git",
    );
    becomes(
        &[
            "--stdio",
            "cat",
            "--outputTransport",
            "streamableHttp",
            "--stateful",
            "--sessionTimeout",
            "60000",
        ],
        "serve --session-idle=60000ms -- cat",
    );
    becomes(
        &[
            "--outputTransport",
            "streamableHttp",
            "--stdio",
            "cat",
            "--cors",
            "https://a",
            "https://b",
        ],
        "serve --allow-origin=https://a --allow-origin=https://b -- cat",
    );
    becomes(
        &[
            "--sse",
            "https://h",
            "--oauth2Bearer",
            "t",
            "--header",
            "X-A: b",
            "--logLevel",
            "debug",
        ],
        "connect --transport=sse --header=Authorization: Bearer t --header X-A: b --verbose https://h",
    );
    becomes(
        &["--streamableHttp", "https://h/mcp"],
        "connect --transport=streamable-http https://h/mcp",
    );
    answered(&["--stdio", "cat", "--outputTransport", "ws"], "/mcp");
    answered(&["--stdio", "cat", "--cors"], "--allow-origin");
    answered(&["--stdio", "cat", "--ssePath", "/events"], "/sse");
}

#[test]
fn lines_of_both_mcp_proxies_mean_the_same() {
    becomes(
        &["--port=8080", "uvx", "x", "--port", "1"],
        "serve --port=8080 -- uvx x --port 1",
    );
    becomes(
        &["--port", "8080", "-e", "KEY", "VALUE", "-e", "B=C", "--", "cat"],
        "serve --env=KEY=VALUE --env=B=C --port=8080 -- cat",
    );
    becomes(
        &["--named-server", "a", "uvx x", "--named-server", "b", "uvx y"],
        "serve --server=a=uvx x --server=b=uvx y",
    );
    becomes(&["--named-server-config", "./s.json"], "serve --config=./s.json");
    becomes(
        &["--headers", "Authorization", "Bearer t", "http://h/sse"],
        "connect --header=Authorization: Bearer t http://h/sse",
    );
    becomes(
        &["--transport", "streamablehttp", "http://h/mcp"],
        "connect --transport streamablehttp http://h/mcp",
    );
    becomes(
        &["--pass-environment", "--stateless=true", "cat", "-u"][..2],
        "serve",
    );
    becomes(
        &["--port", "80", "--shell", "--", "tsx", "server.js"],
        "serve --port=80 -- sh -c tsx server.js",
    );
    becomes(
        &["--server", "sse", "--requestTimeout", "5", "--debug", "--", "cat"],
        "serve --request-timeout=5ms --stream-timeout=5ms --verbose --legacy-sse -- cat",
    );
    becomes(&["serve", "--server", "a=uvx x"], "serve --server a=uvx x");
    answered(&["--tunnel", "--", "cat"], "--public-url");
    answered(&["--apiKey", "geheim", "--", "cat"], "--token-hash");
    answered(&["--no-pass-environment", "cat"], "destinations.yml");
}

#[test]
fn lines_of_mcp_remote_mean_the_same() {
    becomes(
        &[
            "https://h/sse",
            "9696",
            "--host",
            "127.0.0.1",
            "--allow-http",
            "--debug",
        ],
        "connect --verbose --redirect-uri=http://127.0.0.1:9696/oauth/callback https://h/sse",
    );
    becomes(
        &[
            "https://h",
            "--static-oauth-client-metadata",
            r#"{ "scope": "a b", "client_name": "x" }"#,
        ],
        "connect --scope=a --scope=b https://h",
    );
    becomes(
        &[
            "https://h",
            "--transport",
            "sse-only",
            "--silent",
            "--enable-proxy",
            "--auth-timeout",
            "60",
        ],
        "connect --transport sse-only --quiet https://h",
    );
    answered(&["https://h", "--ignore-tool", "delete*"], r#"deny: ["delete*"]"#);
    answered(&["https://h", "--resource", "https://t"], "RIALTO_STATE_DIR");
}

/// A policy that is left out would let more through than the line asked for.
#[test]
fn no_answer_and_no_note_repeats_a_secret() {
    for line in [
        &["--apiKey", "geheim", "--", "cat"][..],
        &["--stdio", "cat", "--oauth2Bearer", "geheim"],
        &["connect", "https://h", "--client-secret", "geheim"],
        &[
            "https://h",
            "--static-oauth-client-metadata",
            r#"{"client_secret":"geheim"}"#,
        ],
    ] {
        let said = match understood(line, &[]) {
            Ok(understood) => understood.notes.join("\n"),
            Err(answer) => answer,
        };
        assert!(!said.is_empty() && !said.contains("geheim"), "{line:?}: {said}");
    }
}

proptest::proptest! {
    #[test]
    fn any_line_is_understood_or_answered_without_a_panic(
        words in proptest::collection::vec("(--[a-zA-Z-]{0,12}(=[ -~]{0,4})?|-[a-z]|[ -~]{0,10})", 0..6),
    ) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _ = understood(&words, &[]);
    }
}
