//! The version of a package, as each format writes it.
//!
//! Hides git and the rules of the formats. Only a clean tree at the tag `vVERSION` is a release. Any
//! other is marked in a way that each format sorts below the release, and that no registry takes
//! for it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Version {
    /// `0.1.0`, as the manifest has it.
    base: String,
    /// Eight digits of the commit.
    commit: String,
    /// The day of the commit, `2026-11-19`.
    day: String,
    /// The time of the commit, in seconds: what archives have for a clock.
    pub epoch: u64,
    state: State,
}

/// What keeps a tree from being a release.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct State {
    tagged: bool,
    clean: bool,
}

impl Version {
    /// Reads the version of the manifest, and what git knows about the tree.
    pub fn read(repository: &Path) -> anyhow::Result<Self> {
        let git = |arguments: &[&str]| git(repository, arguments);
        let base = base(&std::fs::read_to_string(repository.join("Cargo.toml"))?)?;
        let tags = git(&["tag", "--points-at", "HEAD"])?;
        let tag = format!("v{base}");
        // Builders of distributions set their own.
        let epoch = match std::env::var_os("SOURCE_DATE_EPOCH") {
            Some(epoch) => epoch.to_string_lossy().into_owned(),
            None => git(&["log", "-1", "--format=%ct"])?,
        };
        Ok(Self {
            commit: git(&["rev-parse", "--short=8", "HEAD"])?,
            day: git(&["log", "-1", "--format=%cd", "--date=format:%Y-%m-%d"])?,
            epoch: epoch
                .parse()
                .context("SOURCE_DATE_EPOCH is a number of seconds")?,
            state: State {
                tagged: tags.lines().any(|line| line == tag),
                clean: git(&["status", "--porcelain"])?.is_empty(),
            },
            base,
        })
    }

    /// Returns the version of the manifest, without a mark.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns what the binary prints behind its version.
    pub fn build(&self) -> String {
        let modified = if self.state.clean { "" } else { ", modified" };
        format!("{} {}{modified}", self.commit, self.day)
    }

    /// Marks the package: its binary is not of this tree.
    pub fn with_foreign_binary(mut self) -> Self {
        self.state.clean = false;
        self
    }

    /// Returns why this is no release, for a person.
    pub fn warning(&self) -> Option<String> {
        let why = match self.state {
            State {
                tagged: true,
                clean: true,
            } => return None,
            State {
                tagged: false,
                clean: true,
            } => format!("the commit has no tag v{}", self.base),
            State {
                tagged: true,
                clean: false,
            } => "the tree or the binary is not of this commit".to_owned(),
            State {
                tagged: false,
                clean: false,
            } => format!(
                "the commit has no tag v{}, and the tree or the binary is not of this commit",
                self.base
            ),
        };
        Some(format!("no release: {why}; packages are {}", self.semver()))
    }

    /// Returns the marks of a version that is no release: `untagged.g1af03ea2.dirty`. The commit
    /// has a letter in front: a number may not begin with 0 in a semantic version.
    fn marks(&self) -> Option<String> {
        let mut marks = Vec::new();
        marks.extend((!self.state.tagged).then(|| "untagged".to_owned()));
        marks.extend((!self.state.tagged || !self.state.clean).then(|| format!("g{}", self.commit)));
        marks.extend((!self.state.clean).then(|| "dirty".to_owned()));
        (!marks.is_empty()).then(|| marks.join("."))
    }

    /// Returns the version for npm, `.mcpb`, file names and tags of images. It is a pre-release: npm
    /// drops what follows a `+`, and a tag of an image cannot have it.
    pub fn semver(&self) -> String {
        self.joined("-")
    }

    /// Returns the version for deb and rpm, where `~` sorts below the release.
    pub fn tilde(&self) -> String {
        self.joined("~")
    }

    /// Returns the version for PyPI, which takes no upload with a local part.
    pub fn pep440(&self) -> String {
        self.joined(".dev0+")
    }

    fn joined(&self, by: &str) -> String {
        match self.marks() {
            Some(marks) => format!("{}{by}{marks}", self.base),
            None => self.base.clone(),
        }
    }

    #[cfg(test)]
    pub fn of_test(tagged: bool, clean: bool) -> Self {
        Self {
            base: "0.1.0".to_owned(),
            commit: "0123abcd".to_owned(),
            day: "2026-11-19".to_owned(),
            epoch: 1_795_000_000,
            state: State { tagged, clean },
        }
    }
}

/// Returns the version of the workspace.
fn base(manifest: &str) -> anyhow::Result<String> {
    let (_, package) = manifest
        .split_once("[workspace.package]")
        .context("Cargo.toml has no [workspace.package]")?;
    package
        .lines()
        .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
        .map(str::to_owned)
        .context("[workspace.package] has no version")
}

fn git(repository: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git")
        .current_dir(repository)
        .args(arguments)
        .output()
        .context("git does not run; packages are named after the commit")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("git {} failed: {}", arguments.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_has_the_bare_version_in_every_format() {
        let release = Version::of_test(true, true);
        assert_eq!(release.warning(), None);
        for shown in [release.semver(), release.tilde(), release.pep440()] {
            assert_eq!(shown, "0.1.0");
        }
        assert_eq!(release.build(), "0123abcd 2026-11-19");
    }

    #[test]
    fn untagged_and_dirty_trees_are_marked_in_the_way_of_each_format() {
        let version = Version::of_test(false, false);
        assert_eq!(version.semver(), "0.1.0-untagged.g0123abcd.dirty");
        assert_eq!(version.tilde(), "0.1.0~untagged.g0123abcd.dirty");
        assert_eq!(version.pep440(), "0.1.0.dev0+untagged.g0123abcd.dirty");
        assert_eq!(version.build(), "0123abcd 2026-11-19, modified");
        let untagged = Version::of_test(false, true);
        assert_eq!(untagged.semver(), "0.1.0-untagged.g0123abcd");
        assert!(untagged.warning().unwrap().contains("no tag v0.1.0"));
        let dirty = Version::of_test(true, false);
        assert_eq!(dirty.tilde(), "0.1.0~g0123abcd.dirty");
        assert_eq!(Version::of_test(true, true).with_foreign_binary(), dirty);
    }

    #[test]
    fn version_is_that_of_the_workspace() {
        let manifest = "[workspace]\n\n[workspace.package]\nversion = \"1.2.3\"\nedition = \"2024\"\n";
        assert_eq!(base(manifest).unwrap(), "1.2.3");
        assert!(base("[package]\nversion = \"1.2.3\"\n").is_err());
    }
}
