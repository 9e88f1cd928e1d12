//! Programs that packages are made and tried with.
//!
//! A program that is missing ends the run, with the command that installs it. Which exist is asked
//! before anything is built.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, bail};

/// Programs of the machine, with the command that installs each on Debian and its kind.
const INSTALLED_BY: &[(&str, &str)] = &[
    ("git", "apt-get install git"),
    ("cargo", "see https://rustup.rs"),
    ("strip", "apt-get install binutils"),
    ("objcopy", "apt-get install binutils"),
    ("objdump", "apt-get install binutils"),
    ("dpkg-deb", "apt-get install dpkg"),
    ("dpkg", "apt-get install dpkg"),
    ("rpmbuild", "apt-get install rpm"),
    ("rpm", "apt-get install rpm"),
    ("lintian", "apt-get install lintian"),
    ("debootstrap", "apt-get install debootstrap"),
    ("chroot", "apt-get install coreutils"),
    ("unshare", "apt-get install util-linux"),
    ("nsenter", "apt-get install util-linux"),
    ("systemd-nspawn", "apt-get install systemd-container"),
    ("crun", "apt-get install crun"),
    ("mount", "apt-get install mount"),
    ("systemd-analyze", "apt-get install systemd"),
    ("tar", "apt-get install tar"),
    ("node", "apt-get install nodejs"),
    ("npm", "apt-get install npm"),
    ("python3", "apt-get install python3-venv"),
];

/// Fails with every program that does not exist, and how to install it.
pub fn require(programs: &[&str]) -> anyhow::Result<()> {
    require_in(programs, &std::env::var_os("PATH").unwrap_or_default())
}

fn require_in(programs: &[&str], path: &OsStr) -> anyhow::Result<()> {
    // Two kinds of packages may need the same one.
    let programs: BTreeSet<&str> = programs.iter().copied().collect();
    let missing: Vec<String> = programs
        .iter()
        .filter(|program| !std::env::split_paths(path).any(|folder| folder.join(program).is_file()))
        .map(|program| {
            let install = INSTALLED_BY.iter().find(|(name, _)| name == program);
            let (_, install) = install.unwrap_or(&("", "it is in no list of xtask"));
            format!("  {program}: {install}")
        })
        .collect();
    if !missing.is_empty() {
        bail!("programs are missing:\n{}", missing.join("\n"));
    }
    Ok(())
}

/// Returns the package that has a program.
#[cfg(test)]
pub fn package_of(program: &str) -> &'static str {
    let found = INSTALLED_BY.iter().find(|(name, _)| *name == program);
    let (_, command) = found.expect("the program is in the list");
    command.rsplit(' ').next().expect("a command has a word")
}

/// Runs a program to its end and returns what it printed. A failure has its errors.
pub fn output(command: &mut Command) -> anyhow::Result<Output> {
    let line = line(command);
    let output = command
        .output()
        .with_context(|| format!("`{line}` does not run"))?;
    if !output.status.success() {
        bail!(
            "`{line}` ended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

/// Runs a program to its end and returns its output as text.
pub fn stdout(command: &mut Command) -> anyhow::Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stdout).into_owned())
}

/// Returns a command as it is typed.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Returns `PATH` with a folder in front.
pub fn path_with(folder: &Path) -> anyhow::Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(PathBuf::from(folder)).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).context("the folder can stand in PATH")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_the_command_that_installs_them() {
        let error = require_in(&["rpmbuild", "strip", "strip"], OsStr::new("/no/such/folder")).unwrap_err();
        let text = error.to_string();
        assert_eq!(text.matches("strip:").count(), 1, "{text}");
        assert!(text.contains("rpmbuild: apt-get install rpm"), "{text}");
        assert!(text.contains("strip: apt-get install binutils"), "{text}");
        assert!(require_in(&[], OsStr::new("/no/such/folder")).is_ok());
    }
}
