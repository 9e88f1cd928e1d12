//! A machine on which everything is as it should be.

use testkit::Rialto;
use testkit::authorization_server::{AuthorizationServer, Conduct};
use testkit::rialto::binary;

use crate::home::{Home, TOOL};
use crate::network::answering;

#[tokio::test]
async fn nothing_is_invented_on_a_healthy_machine() {
    let gateway = Rialto::serve(&["--demo"]).await.unwrap();
    let open = AuthorizationServer::start(Conduct::default());
    let home = Home::new();
    home.server("bin/npx", TOOL);
    home.server("bin/uvx", TOOL);
    home.program("bin/node", "echo v22.3.0");
    home.program("bin/uv", "echo uv 0.8.1");
    home.configure(&format!(
        "public_url: http://{}\ndestinations:\n  demo: {{ command: {}, args: [demo-server] }}\n  \
         files: {{ command: npx, args: [\"-y\", \"@a/files\"] }}\n  time: {{ command: uvx, args: [time] }}\n  \
         remote: {{ url: \"{}\" }}\n  guarded: {{ url: \"{}\", headers: {{ Authorization: \"Bearer x\" }} }}\n",
        gateway.address(),
        binary("rialto").display(),
        gateway.url_of("demo"),
        open.endpoint(),
    ));
    let attach = |name: &str| {
        format!(
            r#""{name}": {{"command": "{}", "args": ["attach", "{name}"]}}"#,
            binary("rialto").display()
        )
    };
    home.put(
        ".cursor/mcp.json",
        &format!(
            "{{\"mcpServers\": {{ {}, {} }}}}",
            attach("files"),
            attach("time")
        ),
    );
    home.put(
        ".claude.json",
        &format!(
            "{{\"mcpServers\": {{ {} }}, \"projects\": {{}}}}",
            attach("files")
        ),
    );
    home.put(
        ".config/Code/User/mcp.json",
        &format!(
            "{{ // mine\n\"servers\": {{ {} }}, \"inputs\": []}}",
            attach("time")
        ),
    );
    home.put(
        ".codex/config.toml",
        "[mcp_servers.own]\ncommand = \"npx\"\nargs = [\"-y\", \"own\"]\nenv = { API_KEY = \"geheim-1234\" }\n",
    );
    home.put(
        ".gemini/settings.json",
        r#"{"mcpServers": {"off": {"command": "nowhere", "disabled": true}}}"#,
    );
    let registry = answering(&format!("Date: {}\r\n", chrono::Utc::now().to_rfc2822()));
    let (npm, python) = (registry.clone(), format!("{registry}simple/"));
    let diagnosis = tokio::task::spawn_blocking(move || {
        let variables = [
            ("NPM_CONFIG_REGISTRY", npm.as_str()),
            ("UV_DEFAULT_INDEX", python.as_str()),
            ("HTTPS_PROXY", ""),
            ("NO_PROXY", "localhost,127.0.0.1"),
        ];
        // The guarded server takes no token of a test.
        home.doctor_with(&["--hold", "200ms", "demo"], &variables)
            .assert_ids(&[])
            .assert_code(0);
        home.doctor_with(&["--hold", "200ms", "remote"], &variables)
            .assert_ids(&[])
            .assert_code(0);
        for host in ["cursor", "claude-code", "vscode", "codex", "gemini-cli"] {
            home.doctor_with(&[host], &variables)
                .assert_ids(&[])
                .assert_code(0);
        }
        let config = home.text(".config/rialto/destinations.yml");
        let kept: Vec<&str> = config.lines().filter(|line| !line.contains("guarded")).collect();
        home.put(".config/rialto/destinations.yml", &kept.join("\n"));
        home.doctor_with(&["--hold", "200ms"], &variables)
    });
    let diagnosis = diagnosis.await.unwrap();
    diagnosis
        .assert_ids(&[])
        .assert_code(0)
        .assert_fact("node version v22.3.0")
        .assert_fact("uv version 0.8.1")
        .assert_fact("npm registry http://127.0.0.1")
        .assert_fact("Python index http://127.0.0.1")
        .assert_fact("cache of npm ~/.npm can be written")
        .assert_fact("clock")
        .assert_fact("legacy (2025-11-25) and modern (2026-07-28)")
        .assert_fact("Codex ~/.codex/config.toml, 1 server")
        .assert_fact("a stream was held for 200 ms")
        .assert_fact("needs no sign-in");
}

#[test]
fn empty_home_has_nothing_to_look_at() {
    let home = Home::new();
    let output = home.command(&["doctor"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("nothing was found to look at"), "{text}");
}
