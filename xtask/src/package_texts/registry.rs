//! The entry of the MCP registry: `rialto connect` as a server that any host can start.

use serde_json::{Value, json};

use super::Text;
use super::release::Release;

const SCHEMA: &str = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json";

/// The name of the package at npm and PyPI, where `rialto` is taken.
const PACKAGE: &str = "rialto-mcp";

pub fn texts(release: &Release) -> Vec<Text> {
    let version = &release.version;
    let mut packages = Vec::new();
    if release.has(&format!("{PACKAGE}-{version}.tgz")) {
        packages.push(package("npm", "npx", version));
    }
    if !release
        .downloads(&format!("rialto_mcp-{version}-"), ".whl")
        .is_empty()
    {
        packages.push(package("pypi", "uvx", version));
    }
    // One for each system.
    for bundle in release.downloads(&format!("rialto-connect-{version}-"), ".mcpb") {
        packages.push(json!({
            "registryType": "mcpb",
            "identifier": bundle.url,
            "version": version,
            "fileSha256": bundle.sha256,
            "transport": { "type": "stdio" },
        }));
    }
    if packages.is_empty() {
        return Vec::new();
    }
    let mut entry = json!({
        "$schema": SCHEMA,
        "name": release.registry_name(),
        "title": "Rialto",
        "description": release.description,
        "version": version,
        "websiteUrl": release.repository,
        "packages": packages,
    });
    // The registry knows few hosts, and takes the address for one of them.
    if release.is_on_github() {
        entry["repository"] = json!({ "url": release.repository, "source": "github" });
    }
    vec![Text {
        file: "mcp-registry/server.json".to_owned(),
        content: format!("{entry:#}\n"),
    }]
}

fn package(kind: &str, runtime: &str, version: &str) -> Value {
    json!({
        "registryType": kind,
        "identifier": PACKAGE,
        "version": version,
        "runtimeHint": runtime,
        "transport": { "type": "stdio" },
        "packageArguments": [
            { "type": "positional", "value": "connect" },
            {
                "type": "positional",
                "valueHint": "url",
                "description": "The address of a remote MCP server",
                "isRequired": true,
            },
        ],
        "environmentVariables": [{
            "name": "BEARER_TOKEN",
            "description": "The token for that server. Without it Rialto signs in, where the server asks for it",
            "isRequired": false,
            "isSecret": true,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_has_the_packages_of_the_release_and_no_other() {
        let sums: String = ["rialto-mcp-1.2.3.tgz", "rialto-connect-1.2.3-linux-x64.mcpb"]
            .iter()
            .map(|name| format!("{}  {name}\n", "ef".repeat(32)))
            .collect();
        let entry: Value = serde_json::from_str(&texts(&Release::example(&sums))[0].content).expect("JSON");
        let kinds: Vec<&str> = entry["packages"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|package| package["registryType"].as_str())
            .collect();
        assert_eq!(kinds, ["npm", "mcpb"]);
        assert_eq!(entry["packages"][1]["fileSha256"], "ef".repeat(32));
        assert_eq!(entry["repository"]["source"], "github");
    }
}
