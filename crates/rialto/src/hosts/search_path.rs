//! Where the local service finds programs: on the `PATH` of the host that starts it, then on that
//! of the shell in which hosts were adopted.
//!
//! Hosts with a window have a short `PATH`. By that alone, the host that happens to start the
//! service would decide what all of them can start.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use crate::config::Environment;
use crate::user_files;

const FILE: &str = "shell-path";

fn file(environment: &Environment) -> Option<PathBuf> {
    Some(user_files::state_dir(environment)?.join(FILE))
}

/// Keeps the `PATH` of this process for services that hosts start.
pub(crate) fn remember(environment: &Environment) -> io::Result<()> {
    let (Some(file), Some(path)) = (file(environment), environment.filled("PATH")) else {
        return Ok(());
    };
    if let Some(directory) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let draft = file.with_extension(std::process::id().to_string());
    let mut opened = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&draft)?;
    opened.write_all(path.as_bytes())?;
    fs::rename(draft, file)
}

/// Returns the `PATH` of a service that this process starts.
pub(crate) fn of_service(environment: &Environment) -> String {
    let own = environment.get("PATH").unwrap_or_default();
    let kept = file(environment).and_then(|file| fs::read_to_string(file).ok());
    joined(own, kept.as_deref().unwrap_or_default())
}

/// Returns the directories of both, each once. In the second, relative ones do not count.
fn joined(own: &str, kept: &str) -> String {
    let mut directories: Vec<&str> = own.split(':').filter(|directory| !directory.is_empty()).collect();
    for directory in kept.split(':').filter(|directory| directory.starts_with('/')) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_host_come_first_and_each_once() {
        assert_eq!(
            joined("/usr/bin:/bin", "/home/me/.nvm/bin:.:/bin:"),
            "/usr/bin:/bin:/home/me/.nvm/bin"
        );
        assert_eq!(joined("", "/bin"), "/bin");
        assert_eq!(joined("/bin", ""), "/bin");
    }
}
