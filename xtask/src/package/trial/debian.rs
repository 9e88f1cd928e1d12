//! Root file systems of Debian, made by debootstrap, and what runs in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::Places;
use super::server::command;
use crate::package::program::Needs;
use crate::package::tools;

/// Releases with their glibc, the oldest first. 11 is the oldest that a mirror has.
const RELEASES: [(&str, (u32, u32)); 3] = [("bullseye", (2, 31)), ("bookworm", (2, 36)), ("trixie", (2, 41))];

/// Returns the oldest release whose glibc is new enough.
fn oldest(needs: &Needs) -> anyhow::Result<&'static str> {
    let mut releases = RELEASES.iter();
    let fits = releases.find(|(_, glibc)| needs.glibc.is_none_or(|needed| needed <= *glibc));
    fits.map(|(name, _)| *name)
        .with_context(|| format!("no release of Debian has {}", needs.shown()))
}

/// Returns a new root of the oldest release that can run the program, and the name of that.
pub fn root(places: &Places<'_>, name: &str) -> anyhow::Result<(PathBuf, &'static str)> {
    let release = oldest(places.needs.context("the portable program was not built")?)?;
    let base = places.test_deps.join(format!("debian-{release}"));
    if !base.exists() {
        eprintln!("xtask: installing Debian {release} into a folder");
        // A root that is half made shall not be taken for one.
        let draft = places.test_deps.join(format!("debian-{release}-draft"));
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        tools::output(
            Command::new("debootstrap")
                .args(["--variant=minbase", "--include=systemd", release])
                .arg(&draft),
        )?;
        fs::rename(&draft, &base)?;
    }
    let root = places.empty(name)?;
    tools::output(
        Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(base.join("."))
            .arg(&root),
    )?;
    Ok((root, release))
}

/// Makes the places of the mounts that follow. The root is `$0`.
const PLACES: &str = r#"set -e
mkdir -p "$0/proc" "$0/dev" "$0/tmp"
"#;

/// Mounts what every system gives a process, in a name space of its own: nothing of it stays.
const MOUNT: &str = r#"mount -t proc proc "$0/proc"
mount -t tmpfs -o mode=755 tmpfs "$0/dev"
mknod -m 666 "$0/dev/null" c 1 3
mknod -m 666 "$0/dev/random" c 1 8
mknod -m 666 "$0/dev/urandom" c 1 9
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
"#;

/// Returns a command that runs in a root, with `/proc`, three devices, an empty `/tmp` and nothing
/// else of this machine. The process is the one that is started: its number is that of the command.
pub fn inside(root: &Path, user: Option<&str>, program: &[&str]) -> Command {
    mounted(&format!("{PLACES}{MOUNT}"), root, user, program)
}

/// Returns a command as `inside` does, in a root that cannot be written but for a folder of the
/// user.
pub fn inside_read_only(root: &Path, user: &str, home: &str, program: &[&str]) -> Command {
    // What is mounted below a folder before that is bound to itself would be hidden.
    let script = format!(
        "{PLACES}mount --bind \"$0\" \"$0\"\nmount -o remount,bind,ro \"$0\"\n{MOUNT}\
         mount -t tmpfs -o mode=700 tmpfs \"$0/{home}\"\nchown {user} \"$0/{home}\"\n"
    );
    mounted(&script, root, Some(user), program)
}

fn mounted(script: &str, root: &Path, user: Option<&str>, program: &[&str]) -> Command {
    let mut command = command("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(format!("{script}exec chroot \"$@\""))
        .arg(root);
    command.args(user.map(|user| format!("--userspec={user}")));
    command.arg(root).args(program);
    command
}

/// Returns every path in a root, but for what a package manager writes about itself.
pub fn paths(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    const OF_TOOLS: [&str; 5] = [
        "var/lib/dpkg",
        "var/lib/rpm",
        "var/log",
        "var/cache",
        "etc/.pwd.lock",
    ];
    let mut paths = BTreeSet::new();
    let mut next = vec![root.to_owned()];
    while let Some(folder) = next.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            let name = path.strip_prefix(root).context("the path is below the root")?;
            let name = name.to_string_lossy().into_owned();
            // `passwd-` is the copy of `passwd` before the last change.
            let is_copy = name.starts_with("etc/") && name.ends_with('-');
            if is_copy || OF_TOOLS.iter().any(|tool| name.starts_with(tool)) || name == "proc" {
                continue;
            }
            if entry.file_type()?.is_dir() {
                next.push(path);
            }
            paths.insert(name);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_release_with_the_glibc_is_chosen() {
        let needs = |minor| Needs {
            libraries: Vec::new(),
            glibc: Some((2, minor)),
        };
        assert_eq!(oldest(&needs(17)).unwrap(), "bullseye");
        assert_eq!(oldest(&needs(34)).unwrap(), "bookworm");
        assert!(oldest(&needs(99)).is_err());
    }
}
