//! `cargo xtask package --test`: each package is installed into a clean root and answers a call.
//!
//! Hides roots, installers and the call. It refuses to skip: a tool that is missing, and a package
//! that was built and not tried, are errors. Nothing is installed on the machine itself, and
//! nothing that was started stays.

mod booted;
mod debian;
mod image;
mod mcpb;
mod npm;
mod pypi;
mod server;
mod system;
mod tarball;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};

use super::Format;
use super::program::{Linking, Needs};

/// Where everything is.
#[derive(Debug)]
pub struct Places<'a> {
    pub test_deps: &'a Path,
    pub dist: &'a Path,
    pub scratch: &'a Path,
    /// The files that were built in this run.
    pub names: &'a [String],
    /// What the portable program needs, if it was built.
    pub needs: Option<&'a Needs>,
}

impl Places<'_> {
    /// Returns the file of this run with such a name.
    fn built(&self, start: &str, end: &str) -> anyhow::Result<PathBuf> {
        let mut names = self.names.iter();
        let found = names.find(|name| name.starts_with(start) && name.ends_with(end));
        let name = found.with_context(|| format!("this run has built no {start}…{end}"))?;
        Ok(self.dist.join(name))
    }

    /// Returns an empty folder.
    fn empty(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.scratch.join("trial").join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// One trial, and what it reports line by line.
#[derive(Debug)]
struct Trial {
    name: String,
    began: Instant,
}

impl Trial {
    fn begin(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            began: Instant::now(),
        }
    }

    fn reports(&self, line: &str) {
        println!("{:<14} {line}", self.name);
    }

    /// Reports a fact with the time since the trial began.
    fn reports_with_time(&self, line: &str) {
        self.reports(&format!(
            "{line}, after {:.1} s",
            self.began.elapsed().as_secs_f64()
        ));
    }
}

/// Returns the programs of the machine that the trials need.
pub fn tools(formats: &[Format]) -> Vec<&'static str> {
    let mut tools = vec!["tar", "chroot", "unshare", "mount"];
    for format in formats {
        tools.extend_from_slice(match format {
            Format::Tarball => &["debootstrap"],
            Format::Pypi => &["python3"],
            Format::Npm | Format::Mcpb => &["node", "npm"],
            Format::Deb => &["debootstrap", "systemd-analyze", "systemd-nspawn", "nsenter"],
            Format::Rpm => &["debootstrap", "rpm", "systemd-analyze"],
            Format::Oci => &["crun"],
        });
    }
    tools
}

/// Tries every package of a run, and fails with all that went wrong.
pub fn run(places: &Places<'_>, chosen: &[(Format, Vec<Linking>)]) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("packages are installed into clean roots with chroot, which needs root");
    }
    let mut failures = Vec::new();
    for (format, linkings) in chosen {
        for linking in linkings {
            let linking = *linking;
            let tried = match format {
                Format::Tarball => tarball::try_out(places, linking),
                Format::Pypi => pypi::try_out(places, linking),
                Format::Npm => npm::try_out(places, linking),
                Format::Deb => system::try_deb(places),
                Format::Rpm => system::try_rpm(places),
                Format::Oci => image::try_out(places),
                Format::Mcpb => mcpb::try_out(places),
            };
            if let Err(error) = tried {
                println!("{:<14} FAILED: {error:#}", format.name());
                failures.push(format!("{} ({linking:?})", format.name()));
            }
        }
    }
    if !failures.is_empty() {
        bail!("packages do not work: {}", failures.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_installs_what_its_machine_lacks() {
        // What a Linux machine of GitHub has, or the steps before bring.
        const THERE: [&str; 8] = [
            "coreutils",
            "mount",
            "nodejs",
            "npm",
            "python3-venv",
            "systemd",
            "tar",
            "util-linux",
        ];
        let repository = crate::repository().unwrap();
        let workflow = std::fs::read_to_string(repository.join(".github/workflows/release.yml")).unwrap();
        let install = "apt-get install --yes ";
        let line = workflow
            .lines()
            .find_map(|line| Some(line.split_once(install)?.1));
        let installed: Vec<&str> = line.unwrap().split(' ').collect();
        for tool in tools(&Format::ALL) {
            let package = crate::package::tools::package_of(tool);
            let is_there = THERE.contains(&package) || installed.contains(&package);
            assert!(is_there, "{package} is missing");
        }
    }
}
