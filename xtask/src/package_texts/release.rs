//! What all texts are made from: the words of `Cargo.toml`, and the released files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

/// The end of a host name that leads nowhere (RFC 6761, section 6.4). `Cargo.toml` has such an
/// address until the project has another.
const NOWHERE: &str = ".invalid";

/// The package whose words the texts repeat.
const PACKAGE: &str = "rialto";

/// A version of Rialto, and the files that were made of it.
#[derive(Debug)]
pub struct Release {
    pub version: String,
    pub description: String,
    pub license: String,
    pub keywords: Vec<String>,
    pub repository: String,
    checksums: BTreeMap<String, String>,
}

/// A file that can be downloaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Download<'r> {
    pub name: &'r str,
    pub url: String,
    /// In hexadecimal digits, as `sha256sum` prints it.
    pub sha256: &'r str,
}

impl Release {
    /// Reads the release from the repository and from the folder of its files. An `address` stands
    /// in for that of `Cargo.toml`.
    pub fn read(repository: &Path, dist: &Path, address: Option<&str>) -> anyhow::Result<Self> {
        let cargo = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(repository)
            .output()
            .context("cannot run `cargo metadata`")?;
        if !cargo.status.success() {
            bail!(
                "`cargo metadata` failed: {}",
                String::from_utf8_lossy(&cargo.stderr)
            );
        }
        let metadata: Value =
            serde_json::from_slice(&cargo.stdout).context("`cargo metadata` prints JSON")?;
        let sums = dist.join("SHA256SUMS");
        let sums = match sums.exists() {
            true => fs::read_to_string(&sums).with_context(|| format!("cannot read {}", sums.display()))?,
            false => String::new(),
        };
        Self::of(&metadata, address, &sums)
    }

    /// Takes the release from what `cargo metadata` prints.
    fn of(metadata: &Value, address: Option<&str>, sums: &str) -> anyhow::Result<Self> {
        let package = metadata["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|package| package["name"] == PACKAGE)
            .context("the workspace has no package `rialto`")?;
        let text = |key: &str| {
            package[key]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("crates/rialto/Cargo.toml has no `{key}`"))
        };
        let repository = match address {
            Some(address) => address.to_owned(),
            None => text("repository")?,
        };
        Ok(Self {
            version: text("version")?,
            description: text("description")?,
            license: text("license")?,
            keywords: package["keywords"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|keyword| Some(keyword.as_str()?.to_owned()))
                .collect(),
            repository: repository.trim_end_matches('/').to_owned(),
            checksums: checksums(sums)?,
        })
    }

    /// Refuses an address of the repository that leads nowhere.
    pub fn check_address(&self) -> anyhow::Result<()> {
        if !self.repository.starts_with("https://") || self.host().ends_with(NOWHERE) {
            bail!(
                "`{}` is no address to publish: set `repository` in Cargo.toml, or use --repository",
                self.repository
            );
        }
        Ok(())
    }

    /// Returns the files of the release whose names begin and end like this.
    pub fn downloads(&self, start: &str, end: &str) -> Vec<Download<'_>> {
        let fits = |name: &str| name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end));
        let found = self.checksums.iter().filter(|(name, _)| fits(name));
        found
            .map(|(name, sha256)| Download {
                name,
                url: format!("{}/releases/download/v{}/{name}", self.repository, self.version),
                sha256,
            })
            .collect()
    }

    /// Returns whether the release has a file of this name.
    pub fn has(&self, name: &str) -> bool {
        self.checksums.contains_key(name)
    }

    /// Returns the archive for a target triple.
    pub fn archive(&self, target: &str, ending: &str) -> Option<Download<'_>> {
        let name = format!("rialto-{}-{target}.{ending}", self.version);
        let mut found = self.downloads(&name, "").into_iter();
        found.find(|download| download.name == name)
    }

    /// Returns the licences, of which a user may choose one.
    pub fn licences(&self) -> Vec<&str> {
        self.license.split(" OR ").map(str::trim).collect()
    }

    fn host(&self) -> &str {
        let rest = self.repository.strip_prefix("https://").unwrap_or_default();
        rest.split('/').next().unwrap_or_default()
    }

    /// Returns the name in the MCP registry: the reversed host, and the owner on a shared one.
    pub fn registry_name(&self) -> String {
        let owner = self
            .repository
            .strip_prefix("https://github.com/")
            .and_then(|rest| rest.split('/').next());
        match owner {
            Some(owner) => format!("io.github.{owner}/{PACKAGE}"),
            None => {
                let labels: Vec<&str> = self.host().rsplit('.').collect();
                format!("{}/{PACKAGE}", labels.join("."))
            }
        }
    }

    /// Returns whether the repository is on GitHub.
    pub fn is_on_github(&self) -> bool {
        self.host() == "github.com"
    }

    #[cfg(test)]
    pub fn example(sums: &str) -> Self {
        let package = serde_json::json!({
            "name": PACKAGE,
            "version": "1.2.3",
            "description": "Any \"client\" #{x}, any server",
            "license": "MIT OR Apache-2.0",
            "keywords": ["mcp", "proxy"],
            "repository": "https://github.com/example/rialto/",
        });
        let metadata = serde_json::json!({ "packages": [package] });
        Self::of(&metadata, None, sums).expect("a good example")
    }
}

/// Reads lines of `sha256sum`: 64 digits, two characters, a name.
fn checksums(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (sha256, name) = line
            .split_once(' ')
            .with_context(|| format!("SHA256SUMS: `{line}` is not a checksum and a name"))?;
        let name = name.trim_start_matches([' ', '*']);
        let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        // A name becomes a part of addresses and of scripts. deb and rpm have `~` before a release.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+~-".contains(&byte);
        if !is_hash || name.is_empty() || !name.bytes().all(is_plain) {
            bail!("SHA256SUMS: `{line}` is not a checksum and the name of a file");
        }
        if found
            .insert(name.to_owned(), sha256.to_ascii_lowercase())
            .is_some()
        {
            bail!("SHA256SUMS names {name} twice");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str) -> String {
        format!("{}  {name}\n", "ab".repeat(32))
    }

    #[test]
    fn file_is_found_by_its_name_or_by_its_ends() {
        let sums = line("rialto-1.2.3-x.tar.gz") + &line("rialto_mcp-1.2.3-py3-none-any.whl");
        let release = Release::example(&sums);
        let found = release.archive("x", "tar.gz").expect("it is there");
        assert_eq!(
            found.url,
            "https://github.com/example/rialto/releases/download/v1.2.3/rialto-1.2.3-x.tar.gz"
        );
        assert_eq!(found.sha256, "ab".repeat(32));
        let wheels = release.downloads("rialto_mcp-1.2.3-", ".whl");
        assert_eq!(wheels.len(), 1);
        assert_eq!(wheels[0].name, "rialto_mcp-1.2.3-py3-none-any.whl");
        assert!(release.downloads("rialto-1.2.3-x.tar.gz", ".tar.gz").is_empty());
        assert!(release.has("rialto-1.2.3-x.tar.gz") && !release.has("rialto-1.2.3"));
        assert_eq!(release.archive("y", "tar.gz"), None);
    }

    #[test]
    fn files_of_a_rehearsal_are_read_too() {
        let names = [
            "rialto_0.1.0~untagged.g0123abcd_amd64.deb",
            "x-0.1.0.dev0+untagged.whl",
        ];
        let sums: String = names.map(line).concat();
        assert_eq!(checksums(&sums).expect("names of packages").len(), 2);
    }

    #[test]
    fn broken_checksums_are_refused() {
        for bad in [
            "abc  file",
            "no-checksum",
            &line("a/b"),
            &line("a\"b"),
            &format!("{}  ", "ab".repeat(32)),
            &line("twice").repeat(2),
        ] {
            assert!(checksums(bad).is_err(), "{bad}");
        }
        assert_eq!(
            checksums(&line("file").replace("  ", " *"))
                .expect("binary mode")
                .len(),
            1
        );
    }

    #[test]
    fn name_in_the_registry_follows_the_repository() {
        let mut release = Release::example("");
        assert_eq!(release.registry_name(), "io.github.example/rialto");
        release.repository = "https://git.example.org/rialto".to_owned();
        assert_eq!(release.registry_name(), "org.example.git/rialto");
    }

    #[test]
    fn address_that_leads_nowhere_is_not_published() {
        let mut release = Release::example("");
        release.check_address().expect("a good address");
        for bad in ["https://example.invalid/rialto", "http://example.org/rialto", ""] {
            release.repository = bad.to_owned();
            assert!(release.check_address().is_err(), "{bad}");
        }
    }
}
