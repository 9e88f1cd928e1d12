//! The bundle: validated and unpacked by its official tool, and started as a host does.

use anyhow::{Context, ensure};
use serde_json::Value;

use super::server::{self, SERVE_DEMO, Server, command};
use super::{Places, Trial};
use crate::package::tools;
use crate::test_deps::PACKAGING_NODE;

/// Prints what a host starts: the official tool puts in the settings.
const CONFIGURATION: &str = r#"
const [tool, folder, url] = process.argv.slice(1);
const { getMcpConfigForManifest } = await import(`${tool}/dist/index.js`);
const { readFileSync } = await import("node:fs");
const manifest = JSON.parse(readFileSync(`${folder}/manifest.json`, "utf8"));
const config = await getMcpConfigForManifest({
  manifest, extensionPath: folder, systemDirs: {}, userConfig: { url }, pathSeparator: "/",
});
console.log(JSON.stringify(config));
"#;

pub fn try_out(places: &Places<'_>) -> anyhow::Result<()> {
    let bundle = places.built("rialto-connect-", ".mcpb")?;
    let tool = places
        .test_deps
        .join(PACKAGING_NODE)
        .join("node_modules/@anthropic-ai/mcpb");
    let folder = places.empty("mcpb")?;
    let mcpb = || {
        let mut mcpb = command("node");
        mcpb.arg(tool.join("dist/cli/cli.js")).env("HOME", &folder);
        mcpb
    };
    let trial = Trial::begin("mcpb");
    let unpacked = folder.join("bundle");
    tools::output(mcpb().arg("unpack").args([&bundle, &unpacked]))?;
    tools::output(mcpb().arg("validate").arg(unpacked.join("manifest.json")))?;
    trial.reports("the official tool unpacks it and finds its manifest valid");

    let program = unpacked.join("server/rialto");
    let mut serve = command(&program);
    let server = Server::start(
        serve.args(SERVE_DEMO).env("HOME", &folder),
        folder.join("serve.log"),
    )?;
    let printed = tools::stdout(
        command("node")
            .args(["--input-type=module", "--eval", CONFIGURATION])
            .args([&tool, &unpacked])
            .arg(server.url()),
    )?;
    let config: Value = serde_json::from_str(&printed).context("the tool prints JSON")?;
    ensure!(!printed.contains("${"), "a setting has no value: {printed}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut start = command(text(&config["command"]));
    start.env("HOME", &folder);
    start.args(config["args"].as_array().into_iter().flatten().map(text));
    for (name, value) in config["env"].as_object().into_iter().flatten() {
        start.env(name, text(value));
    }
    server::answers_over_stdio(&mut start)?;
    trial.reports_with_time("started as its manifest tells, it answers");
    server.stop()?;
    Ok(())
}
