//! What stands in the program besides Rialto: each crate with its version, its licence and the
//! text of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use super::archive::rfc3339;
use super::checksum;
use super::tools;
use super::version::Version;

/// A crate that is linked into the program.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Component {
    pub name: String,
    pub version: String,
    pub licence: String,
    /// SHA-256 of what the registry has, from Cargo.lock. Crates of this repository have none.
    pub checksum: Option<String>,
    folder: PathBuf,
    /// What it depends on, as `name@version`.
    below: BTreeSet<String>,
}

impl Component {
    fn id(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

/// What the packages of this command are for.
pub const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Returns the crates that are linked into the program for a target of Rust, sorted.
pub fn components(repository: &Path, platform: &str) -> anyhow::Result<Vec<Component>> {
    let metadata = tools::output(
        Command::new("cargo")
            .current_dir(repository)
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", platform]),
    )?;
    let metadata = serde_json::from_slice(&metadata.stdout).context("cargo metadata prints JSON")?;
    let lock = std::fs::read_to_string(repository.join("Cargo.lock"))?;
    linked(&metadata, &lock)
}

fn linked(metadata: &Value, lock: &str) -> anyhow::Result<Vec<Component>> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(metadata, "packages")
        .into_iter()
        .map(|package| (text(&package, "id"), package))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"], "nodes")
        .into_iter()
        .map(|node| (text(&node, "id"), node))
        .collect();
    let (start, _) = packages
        .iter()
        .find(|(_, package)| package["name"] == "rialto")
        .context("cargo metadata has no package rialto")?;
    // Crates that only build scripts or tests use are not in the program.
    let below = |id: &str| -> Vec<String> {
        let dependencies = nodes.get(id).map(|node| list(node, "deps")).unwrap_or_default();
        let is_linked = |dependency: &&Value| {
            let kinds = list(dependency, "dep_kinds");
            kinds.iter().any(|kind| kind["kind"].is_null())
        };
        dependencies
            .iter()
            .filter(is_linked)
            .map(|dependency| text(dependency, "pkg"))
            .collect()
    };
    let id = |id: &str| {
        let package = packages.get(id).unwrap_or(&Value::Null);
        format!("{}@{}", text(package, "name"), text(package, "version"))
    };
    let checksums = checksums(lock);
    let mut seen = BTreeSet::from([start.clone()]);
    let mut next = vec![start.clone()];
    let mut found = Vec::new();
    while let Some(crate_id) = next.pop() {
        let package = &packages[&crate_id];
        let manifest = PathBuf::from(text(package, "manifest_path"));
        let licence = text(package, "license").replace('/', " OR ");
        let below = below(&crate_id);
        found.push(Component {
            checksum: checksums.get(&id(&crate_id)).cloned(),
            name: text(package, "name"),
            version: text(package, "version"),
            licence,
            folder: manifest.parent().map(Path::to_path_buf).unwrap_or_default(),
            below: below.iter().map(|below| id(below)).collect(),
        });
        next.extend(below.into_iter().filter(|below| seen.insert(below.clone())));
    }
    found.sort();
    Ok(found)
}

/// Returns the checksums that Cargo.lock has, by `name@version`.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let value = |block: &str, key: &str| -> Option<String> {
        let start = format!("{key} = \"");
        let mut lines = block.lines();
        lines.find_map(|line| Some(line.strip_prefix(&start)?.strip_suffix('"')?.to_owned()))
    };
    lock.split("[[package]]")
        .filter_map(|block| {
            let id = format!("{}@{}", value(block, "name")?, value(block, "version")?);
            Some((id, value(block, "checksum")?))
        })
        .collect()
}

/// Returns the list of what is in the program, as CycloneDX 1.6.
pub fn bill_of_materials(components: &[Component], version: &Version) -> String {
    let component = |of: &Component| {
        let mut entry = json!({
            "type": "library",
            "bom-ref": of.id(),
            "name": of.name,
            "version": of.version,
            "licenses": [{ "expression": of.licence }],
        });
        if let Some(checksum) = &of.checksum {
            entry["purl"] = json!(format!("pkg:cargo/{}@{}", of.name, of.version));
            entry["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        entry
    };
    let (own, others): (Vec<&Component>, Vec<&Component>) = components
        .iter()
        .partition(|component| component.name == "rialto");
    let mut subject = own.first().map(|own| component(own)).unwrap_or_default();
    subject["type"] = json!("application");
    subject["version"] = json!(version.semver());
    let depends = |of: &Component| json!({ "ref": of.id(), "dependsOn": of.below });
    let mut document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": rfc3339(version.epoch),
            "component": subject,
        },
        "components": others.into_iter().map(component).collect::<Vec<_>>(),
        "dependencies": components.iter().map(depends).collect::<Vec<_>>(),
    });
    // A number that is new for each content, and the same for the same content.
    let hash = checksum::sha256(document.to_string().as_bytes());
    document["serialNumber"] = json!(format!("urn:uuid:{}", uuid(&hash)));
    format!("{document:#}\n")
}

/// Returns the first digits of a hash as a UUID of version 8, which leaves its bits to us.
fn uuid(hash: &str) -> String {
    let part = |from: usize, to: usize| &hash[from..to];
    format!(
        "{}-{}-8{}-8{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 15),
        part(15, 18),
        part(18, 30)
    )
}

/// Returns the licences of all crates in one text. Equal texts stand there once.
pub fn texts(components: &[Component]) -> anyhow::Result<String> {
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for component in components.iter().filter(|component| component.checksum.is_some()) {
        let files = licence_files(&component.folder)?;
        if files.is_empty() {
            without.push(format!("  {} ({})", component.id(), component.licence));
        }
        for file in files {
            let text = String::from_utf8_lossy(&std::fs::read(&file)?).replace('\r', "");
            let ids = by_text.entry(text.trim().to_owned()).or_default();
            // A crate may have the same text under two names.
            if ids.last() != Some(&component.id()) {
                ids.push(component.id());
            }
        }
    }
    let mut all = String::from("Rialto contains these crates, under the licences that follow.\n\n");
    for component in components.iter().filter(|component| component.checksum.is_some()) {
        writeln!(all, "  {} ({})", component.id(), component.licence)?;
    }
    if !without.is_empty() {
        writeln!(
            all,
            "\nThese come without a text of their licence:\n\n{}",
            without.join("\n")
        )?;
    }
    for (text, ids) in by_text {
        writeln!(all, "\n{}\n{}\n\n{text}", "=".repeat(80), ids.join(", "))?;
    }
    Ok(all)
}

fn licence_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    const STARTS: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if STARTS.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the licences of everything in the program of a tarball. Its name has a target of Rust,
/// or `universal` for both processors of macOS, or `static` for a program without a library.
pub fn of_tarball(repository: &Path, target: &str) -> anyhow::Result<String> {
    let (platform, is_static) = platform_of(target);
    let mut all = texts(&components(repository, &platform)?)?;
    if is_static {
        all.push_str(&glibc()?);
    }
    Ok(all)
}

/// Returns the target of Rust of a tarball, and whether glibc is in its program.
fn platform_of(target: &str) -> (String, bool) {
    match target.strip_suffix("-static") {
        Some(start) => (format!("{start}-gnu"), true),
        // The crates for both processors are the same.
        None => (target.replace("universal-", "aarch64-"), false),
    }
}

/// Returns the licence of glibc, which is part of a static program.
pub fn glibc() -> anyhow::Result<String> {
    const TEXT: &str = "/usr/share/common-licenses/LGPL-2.1";
    let text = std::fs::read_to_string(TEXT)
        .with_context(|| format!("the static program has glibc in it, whose licence is in {TEXT}"))?;
    Ok(format!(
        "\n{}\nglibc (LGPL-2.1-or-later), linked statically. The source of Rialto, with which it can\n\
         be linked against another glibc, is where this file comes from.\n\n{}\n",
        "=".repeat(80),
        text.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "\
version = 4

[[package]]
name = \"used\"
version = \"1.0.0\"
source = \"registry\"
checksum = \"abc\"

[[package]]
name = \"rialto\"
version = \"0.1.0\"
";

    fn metadata() -> Value {
        let package = |name: &str, version: &str| {
            json!({
                "id": name, "name": name, "version": version, "license": "MIT/Apache-2.0",
                "manifest_path": format!("/src/{name}/Cargo.toml"),
            })
        };
        let dependency = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        json!({
            "packages": [
                package("rialto", "0.1.0"), package("used", "1.0.0"),
                package("tested", "1.0.0"), package("built", "1.0.0"),
            ],
            "resolve": { "nodes": [
                { "id": "rialto", "deps": [
                    dependency("used", Value::Null),
                    dependency("tested", json!("dev")),
                    dependency("built", json!("build")),
                ] },
                { "id": "used", "deps": [dependency("used", Value::Null)] },
            ] },
        })
    }

    #[test]
    fn target_of_a_tarball_is_one_of_rust() {
        let platform = |target| platform_of(target);
        let expected = |platform: &str, is_static| (platform.to_owned(), is_static);
        assert_eq!(
            platform("aarch64-unknown-linux-static"),
            expected("aarch64-unknown-linux-gnu", true)
        );
        assert_eq!(
            platform("universal-apple-darwin"),
            expected("aarch64-apple-darwin", false)
        );
        assert_eq!(
            platform("aarch64-unknown-linux-gnu"),
            expected("aarch64-unknown-linux-gnu", false)
        );
    }

    #[test]
    fn only_what_is_linked_is_in_the_bill() {
        let found = linked(&metadata(), LOCK).unwrap();
        let names: Vec<String> = found.iter().map(Component::id).collect();
        assert_eq!(names, ["rialto@0.1.0", "used@1.0.0"]);
        assert_eq!(found[1].checksum.as_deref(), Some("abc"));
        let text = bill_of_materials(&found, &Version::of_test(true, true));
        assert_eq!(text, bill_of_materials(&found, &Version::of_test(true, true)));
        let bill: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(bill["metadata"]["component"]["name"], "rialto");
        assert_eq!(bill["components"][0]["purl"], "pkg:cargo/used@1.0.0");
        assert_eq!(
            bill["components"][0]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        assert_eq!(bill["dependencies"][0]["dependsOn"][0], "used@1.0.0");
        let serial = bill["serialNumber"].as_str().unwrap();
        assert_eq!(serial.len(), "urn:uuid:".len() + 36, "{serial}");
    }
}
