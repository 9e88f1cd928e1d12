//! The npm packages: `rialto-mcp` has a script, and one package per platform has the program.
//!
//! npm installs the package whose `os`, `cpu` and `libc` fit. No script runs at the installation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::program::{Linking, Program};
use super::tree::Tree;
use super::{Artefact, Sources, archive};

/// A platform that has a package.
#[derive(Clone, Copy, Debug)]
struct Platform {
    /// What follows `rialto-mcp-`.
    name: &'static str,
    os: &'static str,
    cpu: &'static str,
    libc: Option<&'static str>,
}

/// Every platform that a release builds. The script of the main package looks for these names.
const PLATFORMS: [Platform; 5] = [
    Platform {
        name: "linux-x64",
        os: "linux",
        cpu: "x64",
        libc: Some("glibc"),
    },
    Platform {
        name: "linux-x64-musl",
        os: "linux",
        cpu: "x64",
        libc: Some("musl"),
    },
    Platform {
        name: "linux-arm64",
        os: "linux",
        cpu: "arm64",
        libc: Some("glibc"),
    },
    Platform {
        name: "darwin-x64",
        os: "darwin",
        cpu: "x64",
        libc: None,
    },
    Platform {
        name: "darwin-arm64",
        os: "darwin",
        cpu: "arm64",
        libc: None,
    },
];

/// Returns the package with the script.
pub fn main_package(sources: &Sources<'_>) -> anyhow::Result<Artefact> {
    let mut tree = Tree::default();
    tree.text("package/package.json", &pretty(&main_manifest(sources)));
    tree.program(
        "package/bin/rialto.js",
        sources.text("packaging/npm/rialto.js")?.into_bytes(),
    );
    tree.text("package/README.md", &sources.text("packaging/npm/README.md")?);
    tree.add("package/", &sources.own_licences()?);
    packed(sources, "rialto-mcp", &tree)
}

/// Returns the package with the program for this platform.
pub fn platform_package(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Artefact> {
    let platform = match program.linking {
        Linking::Portable => PLATFORMS[0],
        Linking::Static => PLATFORMS[1],
    };
    let mut tree = Tree::default();
    tree.text(
        "package/package.json",
        &pretty(&platform_manifest(sources, platform)),
    );
    tree.program("package/bin/rialto", Arc::clone(&program.bytes));
    tree.add("package/", &sources.licences(program)?);
    packed(sources, &format!("rialto-mcp-{}", platform.name), &tree)
}

fn packed(sources: &Sources<'_>, name: &str, tree: &Tree) -> anyhow::Result<Artefact> {
    let file = format!("{name}-{}.tgz", sources.version.semver());
    Ok(Artefact::new(file, archive::tar_gz(tree, sources.version.epoch)?))
}

fn pretty(manifest: &Value) -> String {
    format!("{manifest:#}\n")
}

fn main_manifest(sources: &Sources<'_>) -> Value {
    let version = sources.version.semver();
    let platforms = PLATFORMS.iter();
    let optional: serde_json::Map<String, Value> = platforms
        .map(|platform| (format!("rialto-mcp-{}", platform.name), json!(version)))
        .collect();
    let mut manifest = manifest(
        sources,
        "rialto-mcp",
        "Any MCP client, any MCP server: one native binary in between",
    );
    manifest["bin"] = json!({ "rialto": "bin/rialto.js", "rialto-mcp": "bin/rialto.js" });
    manifest["engines"] = json!({ "node": ">=18" });
    manifest["keywords"] = json!(["mcp", "model-context-protocol", "proxy", "gateway", "bridge"]);
    manifest["optionalDependencies"] = Value::Object(optional);
    manifest
}

fn platform_manifest(sources: &Sources<'_>, platform: Platform) -> Value {
    let name = format!("rialto-mcp-{}", platform.name);
    let description = format!("The program of rialto-mcp for {}", platform.name);
    let mut manifest = manifest(sources, &name, &description);
    manifest["os"] = json!([platform.os]);
    manifest["cpu"] = json!([platform.cpu]);
    if let Some(libc) = platform.libc {
        manifest["libc"] = json!([libc]);
    }
    // Yarn leaves packages zipped otherwise, and a program in a zip does not run.
    manifest["preferUnplugged"] = json!(true);
    manifest
}

fn manifest(sources: &Sources<'_>, name: &str, description: &str) -> Value {
    let mut manifest = json!({
        "name": name,
        "version": sources.version.semver(),
        "description": description,
        "license": "MIT OR Apache-2.0",
    });
    if let Some(repository) = &sources.repository_url {
        manifest["repository"] = json!({ "type": "git", "url": format!("git+{repository}.git") });
    }
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::version::Version;

    #[test]
    fn manifests_pin_the_same_version_and_run_no_script() {
        let repository = crate::repository().unwrap();
        let version = Version::of_test(false, false);
        let sources = Sources::of_test(&repository, &version);
        let main = main_manifest(&sources);
        let version = "0.1.0-untagged.g0123abcd.dirty";
        assert_eq!(main["version"], version);
        assert_eq!(main["bin"]["rialto-mcp"], "bin/rialto.js");
        let optional = main["optionalDependencies"].as_object().unwrap();
        assert_eq!(optional.len(), PLATFORMS.len());
        assert!(optional.values().all(|wanted| wanted == version));
        let musl = platform_manifest(&sources, PLATFORMS[1]);
        assert_eq!(musl["name"], "rialto-mcp-linux-x64-musl");
        assert_eq!(musl["libc"], json!(["musl"]));
        for manifest in [main, musl] {
            assert!(manifest.get("scripts").is_none());
        }
    }

    #[test]
    fn script_knows_every_platform() {
        let repository = crate::repository().unwrap();
        let script = std::fs::read_to_string(repository.join("packaging/npm/rialto.js")).unwrap();
        for platform in PLATFORMS {
            assert!(script.contains(&format!("\"{}\"", platform.name)), "{platform:?}");
        }
    }
}
