//! Broken machines: programs, runtimes, caches, proxies, certificates, the clock, the port.

use std::net::TcpListener;

use testkit::Upstream;
use testkit::upstream::{CertificateAuthority, Flaw};

use crate::home::{Home, TOOL};
use crate::network::answering;

const NPX: &str = "destinations:\n  files: { command: npx, args: [\"-y\", files] }\n";

/// Returns a home in which `npx` runs a good server, from a registry without TLS.
fn with_npx(home: &Home, node: &str) {
    home.server("bin/npx", TOOL);
    home.program("bin/node", &format!("echo {node}"));
}

#[test]
fn missing_node_is_named_with_where_to_get_it() {
    let home = Home::new();
    home.configure(NPX);
    let registry = answering("");
    let diagnosis = home.doctor_with(&[], &[("NPM_CONFIG_REGISTRY", &registry)]);
    diagnosis
        .assert_ids(&["program_missing"])
        .assert_code(11)
        .assert_found("program_missing", "npx was not found", "https://nodejs.org");
}

#[test]
fn program_that_only_the_login_shell_finds_is_named_with_its_path() {
    let home = Home::new();
    home.configure("destinations:\n  files: { command: files-server }\n");
    home.server("nvm/files-server", TOOL);
    home.login_shell("nvm");
    let path = home.path("nvm/files-server");
    home.doctor(&["--no-start"])
        .assert_ids(&["program_not_on_path"])
        .assert_code(11)
        .assert_found(
            "program_not_on_path",
            "not on the PATH of Rialto",
            path.to_str().unwrap(),
        );
}

#[test]
fn program_that_a_host_with_a_window_does_not_find_is_named() {
    let home = Home::new();
    home.server("bin/files-server", TOOL);
    fs_create(&home, "empty");
    home.login_shell("empty");
    home.put(
        ".config/Claude/claude_desktop_config.json",
        r#"{"mcpServers": {"files": {"command": "files-server"}}}"#,
    );
    home.doctor(&[])
        .assert_ids(&["program_not_in_login_shell"])
        .assert_code(11)
        .assert_found(
            "program_not_in_login_shell",
            "files in Claude Desktop",
            home.path("bin/files-server").to_str().unwrap(),
        );
}

fn fs_create(home: &Home, folder: &str) {
    std::fs::create_dir(home.path(folder)).unwrap();
}

#[test]
fn login_shell_that_hangs_costs_two_seconds_and_a_note() {
    let home = Home::new();
    home.configure("destinations:\n  files: { command: files-server }\n");
    home.server("bin/files-server", TOOL);
    // It waits for a pipe that nothing writes to.
    let made = std::process::Command::new("mkfifo")
        .arg(home.path("pipe"))
        .status();
    assert!(made.unwrap().success());
    home.program(
        "login-shell",
        &format!("read -r line < {}", home.path("pipe").display()),
    );
    home.doctor(&["--no-start"])
        .assert_ids(&["login_shell_silent"])
        .assert_code(0)
        .assert_found("login_shell_silent", "within 2.0 s", "-lc env");
}

#[test]
fn node_that_is_too_old_is_named_with_its_version() {
    let home = Home::new();
    home.configure(NPX);
    with_npx(&home, "v16.20.2");
    let registry = answering("");
    home.doctor_with(&[], &[("NPM_CONFIG_REGISTRY", &registry)])
        .assert_ids(&["node_too_old"])
        .assert_code(11)
        .assert_found("node_too_old", "v16.20.2", "Node 22");
}

#[test]
fn cache_that_is_no_directory_is_named() {
    let home = Home::new();
    home.configure(NPX);
    with_npx(&home, "v22.3.0");
    home.put(".npm", "");
    let registry = answering("");
    home.doctor_with(&[], &[("NPM_CONFIG_REGISTRY", &registry)])
        .assert_ids(&["cache_not_writable"])
        .assert_code(11)
        .assert_found(
            "cache_not_writable",
            "is no directory: ~/.npm",
            "mv ~/.npm ~/.npm.old",
        );
}

#[test]
fn certificate_of_a_proxy_that_opens_tls_is_named_by_its_issuer() {
    let home = Home::new();
    home.configure(NPX);
    with_npx(&home, "v22.3.0");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let authority = CertificateAuthority::new();
    let server = Upstream::legacy().with_tls(&authority, Flaw::Nothing).start();
    let server = runtime.block_on(server).unwrap();
    let registry = server.origin();
    let ca_file = home.put("ca.pem", authority.pem());
    // A store of its own, as that of a machine without the authority.
    let other = home.put("other.pem", CertificateAuthority::new().pem());
    let doctor = |trusted: &str| {
        let variables = [
            ("NPM_CONFIG_REGISTRY", registry.as_str()),
            ("SSL_CERT_FILE", trusted),
        ];
        home.doctor_with(&[], &variables)
    };
    doctor(other.to_str().unwrap())
        .assert_ids(&["tls_not_trusted"])
        .assert_code(11)
        .assert_found(
            "tls_not_trusted",
            "an authority for one test",
            "NODE_EXTRA_CA_CERTS",
        );
    doctor(ca_file.to_str().unwrap()).assert_ids(&[]).assert_code(0);
}

#[test]
fn registry_that_is_down_is_to_be_tried_later() {
    let home = Home::new();
    home.configure(NPX);
    with_npx(&home, "v22.3.0");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let registry = format!("http://{closed}/");
    home.doctor_with(&[], &[("NPM_CONFIG_REGISTRY", &registry)])
        .assert_ids(&["origin_unreachable"])
        .assert_code(10)
        .assert_found("origin_unreachable", "npm registry", "curl -I http://127.0.0.1");
}

#[test]
fn wrong_clock_is_named_by_the_difference() {
    let home = Home::new();
    home.configure(NPX);
    with_npx(&home, "v22.3.0");
    let registry = answering("Date: Thu, 01 Jan 2015 00:00:00 GMT\r\n");
    home.doctor_with(&[], &[("NPM_CONFIG_REGISTRY", &registry)])
        .assert_ids(&["clock_wrong"])
        .assert_code(11)
        .assert_found("clock_wrong", "ahead of that of every server", "");
}

#[test]
fn proxy_variables_that_mislead_are_named() {
    let home = Home::new();
    home.configure("destinations:\n  files: { command: files-server }\n");
    home.server("bin/files-server", TOOL);
    home.doctor_with(&["--no-start"], &[("HTTPS_PROXY", "garbage")])
        .assert_ids(&["proxy_malformed"])
        .assert_code(11)
        .assert_found(
            "proxy_malformed",
            "HTTPS_PROXY",
            "export HTTPS_PROXY=http://HOST:PORT",
        );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://me:geheim@{}", listener.local_addr().unwrap());
    let diagnosis = home.doctor_with(&["--no-start"], &[("http_proxy", &proxy)]);
    diagnosis.assert_ids(&["proxy_for_this_machine"]).assert_found(
        "proxy_for_this_machine",
        "NO_PROXY",
        "export NO_PROXY=localhost,127.0.0.1,::1",
    );
    assert!(!diagnosis.json.to_string().contains("geheim"));
    drop(listener);
    let variables = [
        ("http_proxy", proxy.as_str()),
        ("NO_PROXY", "localhost,127.0.0.1"),
    ];
    home.doctor_with(&["--no-start"], &variables)
        .assert_ids(&["proxy_unreachable"])
        .assert_code(10);
}

#[test]
fn port_of_another_program_is_named() {
    let home = Home::new();
    home.server("bin/files-server", TOOL);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let text = format!("listen: {address}\ndestinations:\n  files: {{ command: files-server }}\n");
    home.put(".config/rialto/destinations.yml", &text);
    home.doctor(&["--no-start"])
        .assert_ids(&["port_taken"])
        .assert_code(11)
        .assert_found(
            "port_taken",
            &address.to_string(),
            "rialto serve --listen 127.0.0.1:0",
        );
}

#[test]
fn name_of_a_program_on_windows_is_named() {
    let home = Home::new();
    home.put(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"files": {"command": "npx.cmd", "args": ["-y", "files"]}}}"#,
    );
    home.doctor(&[])
        .assert_ids(&["program_of_windows"])
        .assert_code(11)
        .assert_found("program_of_windows", "npx.cmd", "write npx instead of npx.cmd");
}
