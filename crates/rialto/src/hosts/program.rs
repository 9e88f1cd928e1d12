//! How a host's file names this program: by name or by its path.

use std::path::{Path, PathBuf};

use super::table::Host;
use crate::config::Environment;

/// The name that shells know.
const NAME: &str = "rialto";

/// This program, as it can be written into files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its path, if it is known and can be written.
    path: Option<String>,
    /// Whether the name alone leads to it, with the `PATH` of this process.
    is_on_path: bool,
}

impl Program {
    /// Returns this program.
    pub(crate) fn own(environment: &Environment) -> Self {
        let own = std::env::current_exe().ok();
        let is_on_path = own.as_deref().is_some_and(|own| {
            let found = found_in(environment.get("PATH").unwrap_or_default());
            found.and_then(|found| found.canonicalize().ok()) == own.canonicalize().ok()
        });
        Self::at(
            own.and_then(|own| own.into_os_string().into_string().ok()),
            is_on_path,
        )
    }

    /// Returns the program at a path.
    pub(crate) const fn at(path: Option<String>, is_on_path: bool) -> Self {
        Self { path, is_on_path }
    }

    /// Returns what stands in a file. A file of a project is shared with other machines, where the
    /// program may be elsewhere. A host with a window has another `PATH` than the shell.
    pub(crate) fn written(&self, host: &Host, is_shared: bool) -> String {
        match (&self.path, is_shared, host.is_gui) {
            (Some(path), false, true) => path.clone(),
            (Some(path), false, false) if !self.is_on_path => path.clone(),
            (Some(_) | None, _, _) => NAME.to_owned(),
        }
    }
}

fn found_in(path: &str) -> Option<PathBuf> {
    let directories = path.split(':').filter(|directory| !directory.is_empty());
    directories
        .map(|directory| Path::new(directory).join(NAME))
        .find(|file| file.is_file())
}

/// Returns the words of `rialto attach` for a destination.
pub(crate) fn attach(program: String, destination: &str, config: Option<&Path>) -> Vec<String> {
    let mut words = vec![program, "attach".to_owned(), destination.to_owned()];
    if let Some(config) = config {
        words.extend(["--config".to_owned(), config.to_string_lossy().into_owned()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::table;

    #[test]
    fn hosts_with_a_window_get_the_path_and_shared_files_the_name() {
        let installed = Program {
            path: Some("/usr/bin/rialto".into()),
            is_on_path: true,
        };
        let built = Program {
            is_on_path: false,
            ..installed.clone()
        };
        let written = |program: &Program, host: &str, is_shared| {
            program.written(table::named(host).expect(host), is_shared)
        };
        assert_eq!(written(&installed, "cursor", false), "/usr/bin/rialto");
        assert_eq!(written(&installed, "cursor", true), "rialto");
        assert_eq!(written(&installed, "codex", false), "rialto");
        assert_eq!(written(&built, "codex", false), "/usr/bin/rialto");
        assert_eq!(written(&built, "codex", true), "rialto");
    }

    #[test]
    fn another_file_of_destinations_is_named() {
        assert_eq!(
            attach("rialto".into(), "a", Some(Path::new("/x.yml"))),
            ["rialto", "attach", "a", "--config", "/x.yml"]
        );
        assert_eq!(attach("rialto".into(), "a", None).len(), 3);
    }
}
