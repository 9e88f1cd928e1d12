//! Where the files of hosts are on this system, as paths.
//!
//! Pure: the system and the environment are arguments, and nothing is looked up on disk.

use std::path::{Path, PathBuf};

use super::table::{Host, UserFiles};
use crate::config::Environment;

/// The operating systems whose places the table knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Linux,
    Macos,
    Windows,
}

impl System {
    /// Returns the system that this program was built for.
    pub(crate) const fn own() -> Self {
        if cfg!(target_os = "macos") {
            Self::Macos
        } else if cfg!(windows) {
            Self::Windows
        } else {
            Self::Linux
        }
    }
}

/// What places depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) system: System,
    pub(crate) environment: &'a Environment,
}

impl Surroundings<'_> {
    /// Returns the home directory.
    pub(crate) fn home(&self) -> Option<&Path> {
        let variable = match self.system {
            System::Linux | System::Macos => "HOME",
            System::Windows => "USERPROFILE",
        };
        self.environment.filled(variable).map(Path::new)
    }

    /// Returns the files of the user that a host may have, best first.
    pub(crate) fn user_files(&self, host: &Host) -> Vec<PathBuf> {
        let UserFiles {
            linux,
            macos,
            windows,
        } = host.user;
        let templates = match self.system {
            System::Linux => linux,
            System::Macos => macos,
            System::Windows => windows,
        };
        templates
            .iter()
            .filter_map(|template| self.fill(template))
            .collect()
    }

    /// Returns a path as people write it: `~` for the home directory.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let below = self.home().and_then(|home| path.strip_prefix(home).ok());
        match below {
            Some(below) if below.as_os_str().is_empty() => "~".to_owned(),
            Some(below) => format!("~/{}", below.display()),
            None => path.display().to_string(),
        }
    }

    fn fill(&self, template: &str) -> Option<PathBuf> {
        let Some(reference) = template.strip_prefix("${") else {
            return self.below_home(template);
        };
        let (inner, rest) = reference.split_once('}')?;
        let (variable, default) = inner.split_once(":-")?;
        let directory = match self.environment.filled(variable) {
            Some(directory) => PathBuf::from(directory),
            None => self.below_home(default)?,
        };
        Some(directory.join(rest.trim_start_matches('/')))
    }

    fn below_home(&self, text: &str) -> Option<PathBuf> {
        let below = text.strip_prefix('~')?;
        let home = self.home()?;
        match below.trim_start_matches('/') {
            "" => Some(home.to_owned()),
            below => Some(home.join(below)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::table;

    fn file(host: &str, system: System, variables: &[(&str, &str)]) -> String {
        let environment = variables.iter().copied().collect();
        let surroundings = Surroundings {
            system,
            environment: &environment,
        };
        let files = surroundings.user_files(table::named(host).expect(host));
        files[0].display().to_string()
    }

    #[test]
    fn files_are_where_the_system_and_the_variables_put_them() {
        let home = ("HOME", "/home/me");
        for (host, system, variables, path) in [
            ("cursor", System::Linux, vec![home], "/home/me/.cursor/mcp.json"),
            ("claude-code", System::Linux, vec![home], "/home/me/.claude.json"),
            (
                "claude-code",
                System::Linux,
                vec![home, ("CLAUDE_CONFIG_DIR", "/code/c")],
                "/code/c/.claude.json",
            ),
            (
                "claude-desktop",
                System::Linux,
                vec![home],
                "/home/me/.config/Claude/claude_desktop_config.json",
            ),
            (
                "claude-desktop",
                System::Linux,
                vec![home, ("XDG_CONFIG_HOME", "/x")],
                "/x/Claude/claude_desktop_config.json",
            ),
            (
                "claude-desktop",
                System::Macos,
                vec![("HOME", "/Users/me")],
                "/Users/me/Library/Application Support/Claude/claude_desktop_config.json",
            ),
            (
                "vscode",
                System::Windows,
                vec![
                    ("USERPROFILE", "C:/Users/me"),
                    ("APPDATA", "C:/Users/me/AppData/Roaming"),
                ],
                "C:/Users/me/AppData/Roaming/Code/User/mcp.json",
            ),
            (
                "codex",
                System::Linux,
                vec![home, ("CODEX_HOME", "")],
                "/home/me/.codex/config.toml",
            ),
        ] {
            assert_eq!(file(host, system, &variables), path);
        }
    }

    #[test]
    fn paths_are_shown_below_the_home_directory() {
        let environment = Environment::from_iter([("HOME", "/home/me")]);
        let surroundings = Surroundings {
            system: System::Linux,
            environment: &environment,
        };
        assert_eq!(
            surroundings.shown(Path::new("/home/me/.cursor/mcp.json")),
            "~/.cursor/mcp.json"
        );
        assert_eq!(surroundings.shown(Path::new("/home/meet")), "/home/meet");
    }

    #[test]
    fn without_a_home_directory_there_are_no_files() {
        let environment = Environment::default();
        let surroundings = Surroundings {
            system: System::Linux,
            environment: &environment,
        };
        let cursor = table::named("cursor").expect("a host");
        assert!(surroundings.user_files(cursor).is_empty());
    }
}
