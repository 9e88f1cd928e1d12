//! The texts of `cargo xtask package-texts`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{installed, passes, run};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const REPOSITORY: &str = "https://github.com/example/rialto";

/// Writes a list of checksums, and the texts for it.
fn texts(dist: &Path, files: &[&str]) -> String {
    let line = |name: &&str| {
        format!(
            "{}  {}\n",
            "0123456789abcdef".repeat(4),
            name.replace("VERSION", VERSION)
        )
    };
    fs::write(
        dist.join("SHA256SUMS"),
        files.iter().map(line).collect::<String>(),
    )
    .expect("written");
    let output = run(Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["package-texts", "--publish", "--repository", REPOSITORY, "--dist"])
        .arg(dist));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

const FILES: [&str; 7] = [
    "rialto-VERSION-universal-apple-darwin.tar.gz",
    "rialto-VERSION-x86_64-unknown-linux-gnu.tar.gz",
    "rialto-VERSION-aarch64-unknown-linux-gnu.tar.gz",
    "rialto-VERSION-x86_64-pc-windows-msvc.zip",
    "rialto-mcp-VERSION.tgz",
    "rialto_mcp-VERSION-py3-none-manylinux_2_17_x86_64.whl",
    "rialto-connect-VERSION-linux-x64.mcpb",
];

fn text(dist: &Path, file: &str) -> String {
    let path = dist.join("texts").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn release_without_windows_promises_nothing_for_windows() {
    let dist = tempfile::tempdir().expect("a folder");
    let linux = "rialto-VERSION-x86_64-unknown-linux-gnu.tar.gz";
    let said = texts(dist.path(), &[linux]);
    assert!(said.contains("winget: not written"), "{said}");
    assert!(!dist.path().join("texts/winget").exists());
    assert!(!dist.path().join("texts/scoop").exists());
    let formula = text(dist.path(), "homebrew/rialto.rb");
    assert!(formula.contains(&linux.replace("VERSION", VERSION)), "{formula}");
}

#[test]
fn texts_of_an_earlier_release_are_removed() {
    let dist = tempfile::tempdir().expect("a folder");
    texts(dist.path(), &FILES);
    assert!(dist.path().join("texts/winget").exists());
    texts(dist.path(), &[]);
    assert!(!dist.path().join("texts").exists());
}

#[test]
fn formula_is_ruby() {
    let dist = tempfile::tempdir().expect("a folder");
    texts(dist.path(), &FILES);
    // The parser of Ruby itself, which runs in Node.
    let script = r#"
        const { readFileSync } = await import("node:fs");
        const { loadPrism } = await import("@ruby/prism");
        const parse = await loadPrism();
        const result = parse(readFileSync(process.env.FORMULA, "utf8"));
        const found = [...result.errors, ...result.warnings].map((each) => each.message);
        if (found.length > 0) throw new Error(found.join("\n"));
        const body = result.value.statements.body;
        if (body.length !== 1 || body[0].name !== "Rialto") throw new Error("not one class");
        if (body[0].superclass.name !== "Formula") throw new Error("not a formula");
    "#;
    passes(
        Command::new("node")
            .args(["--no-warnings", "--input-type=module", "--eval", script])
            .current_dir(installed("packages-node"))
            .env("FORMULA", dist.path().join("texts/homebrew/rialto.rb")),
    );
}

#[test]
fn manifests_for_windows_have_what_their_schemas_require() {
    let dist = tempfile::tempdir().expect("a folder");
    texts(dist.path(), &FILES);
    let scoop: Value = serde_json::from_str(&text(dist.path(), "scoop/rialto.json")).expect("JSON");
    for key in ["version", "homepage", "license", "bin"] {
        assert!(scoop[key].is_string(), "{key} in {scoop}");
    }
    let program = &scoop["architecture"]["64bit"];
    assert_eq!(program["hash"].as_str().map(str::len), Some(64));

    let winget = |suffix: &str| yaml(&text(dist.path(), &format!("winget/Rialto.Rialto{suffix}.yaml")));
    let files = [
        ("", "version", &["DefaultLocale"][..]),
        (
            ".installer",
            "installer",
            &["InstallerType", "NestedInstallerType"],
        ),
        (
            ".locale.en-US",
            "defaultLocale",
            &[
                "PackageLocale",
                "Publisher",
                "PackageName",
                "License",
                "ShortDescription",
            ],
        ),
    ];
    for (suffix, kind, required) in files {
        let manifest = winget(suffix);
        assert_eq!(manifest["ManifestType"], kind);
        assert_eq!(manifest["PackageVersion"], VERSION);
        assert_eq!(manifest["PackageIdentifier"], "Rialto.Rialto");
        for key in required {
            assert!(manifest[*key].is_string(), "{key} in {manifest}");
        }
    }
    let installer = &winget(".installer")["Installers"][0];
    assert_eq!(installer["Architecture"], "x64");
    assert_eq!(installer["InstallerSha256"], "0123456789ABCDEF".repeat(4));
    let address =
        format!("{REPOSITORY}/releases/download/v{VERSION}/rialto-{VERSION}-x86_64-pc-windows-msvc.zip");
    assert_eq!(installer["InstallerUrl"], address);
    assert_eq!(program["url"], address);
}

/// The rules are those of the schema of 2025-12-11, and of the registry that takes the entry.
#[test]
fn entry_of_the_registry_keeps_to_its_rules() {
    let dist = tempfile::tempdir().expect("a folder");
    texts(dist.path(), &FILES);
    let entry: Value = serde_json::from_str(&text(dist.path(), "mcp-registry/server.json")).expect("JSON");
    assert_eq!(entry["name"], "io.github.example/rialto");
    assert_eq!(entry["version"], VERSION);
    let description = entry["description"].as_str().expect("a description");
    assert!((1..=100).contains(&description.chars().count()), "{description}");
    assert_eq!(entry["repository"]["url"], REPOSITORY);
    assert!(entry["repository"]["source"].is_string());
    let packages = entry["packages"].as_array().expect("packages");
    assert_eq!(packages.len(), 3);
    for package in packages {
        for key in ["registryType", "identifier", "version"] {
            assert!(package[key].is_string(), "{key} in {package}");
        }
        assert_eq!(package["transport"]["type"], "stdio");
        let arguments = package["packageArguments"].as_array();
        for argument in arguments.into_iter().flatten() {
            assert_eq!(argument["type"], "positional");
            let is_said = argument["value"].is_string() || argument["valueHint"].is_string();
            assert!(is_said, "{argument}");
        }
    }
    let bundle = &packages[2];
    assert_eq!(bundle["registryType"], "mcpb");
    assert_eq!(bundle["fileSha256"], "0123456789abcdef".repeat(4));
    let bundle = bundle["identifier"].as_str().expect("an address");
    assert!(
        bundle.starts_with("https://github.com/") && bundle.ends_with(".mcpb"),
        "{bundle}"
    );
}
