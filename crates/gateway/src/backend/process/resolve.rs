//! Finds the program a child will run, by the rules of `execvp`, before anything is started.
//!
//! It hides the search and turns its failures into texts that name what was looked for, where, and
//! what to do. It never starts anything, never runs a shell and never consults Rialto's own
//! environment: the `PATH` that counts is the one the child will have.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where `execvp` looks when the environment has no `PATH`.
const PATH_OF_LAST_RESORT: &str = "/bin:/usr/bin";

/// Why a program cannot be run. Each text names the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("the command is empty: write the program to run as its first element")]
    Empty,
    #[error(
        "program `{program}` was not found in PATH: {}, or write its full path; searched: {searched}",
        installation(program)
    )]
    NotInPath { program: String, searched: String },
    #[error(
        "program `{program}` was not found at {}: correct the path; a relative one starts at the working directory of the server (`cwd`)",
        path.display()
    )]
    NotAtPath { program: String, path: PathBuf },
    #[error("{} is not a file that can be run (it is a {what}): name the program itself", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{} may not be executed: run `chmod +x` on it, or start it through its interpreter", path.display())]
    NotExecutable { path: PathBuf },
    #[error("{} cannot be read: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
}

/// Finds `program` as `execvp` would in a child with this working directory and this `PATH`.
///
/// The answer is absolute, so that it stays right after the child has changed its directory.
pub fn resolve(program: &str, cwd: Option<&Path>, path: Option<&OsStr>) -> Result<PathBuf, ResolveError> {
    if program.is_empty() {
        return Err(ResolveError::Empty);
    }
    if program.contains('/') {
        let candidate = absolute(cwd, Path::new(program));
        return match look_at(&candidate) {
            Found::Program => Ok(candidate),
            Found::Nothing => Err(ResolveError::NotAtPath {
                program: program.to_owned(),
                path: candidate,
            }),
            Found::Unfit(error) => Err(error),
        };
    }
    let path = path.map_or_else(|| OsString::from(PATH_OF_LAST_RESORT), OsStr::to_os_string);
    // Like `execvp`, go on past a file that cannot be run, and complain about it only if nothing
    // better follows: a later directory often holds the real program.
    let mut unfit = None;
    for directory in path.as_bytes().split(|byte| *byte == b':') {
        let candidate = absolute(cwd, &Path::new(OsStr::from_bytes(directory)).join(program));
        match look_at(&candidate) {
            Found::Program => return Ok(candidate),
            Found::Nothing => {}
            Found::Unfit(error) => unfit = unfit.or(Some(error)),
        }
    }
    Err(unfit.unwrap_or_else(|| ResolveError::NotInPath {
        program: program.to_owned(),
        searched: path.to_string_lossy().into_owned(),
    }))
}

/// Returns how a program comes to a machine that lacks it. For those that start most servers, that
/// is another product than the name tells.
fn installation(program: &str) -> &'static str {
    match program {
        "node" | "npm" | "npx" => "install Node.js (https://nodejs.org)",
        "uv" | "uvx" => "install uv (https://docs.astral.sh/uv)",
        "docker" => "install Docker (https://docs.docker.com/get-docker)",
        "bun" | "bunx" => "install Bun (https://bun.sh)",
        "deno" => "install Deno (https://deno.com)",
        _ => "install it, correct the name",
    }
}

fn absolute(cwd: Option<&Path>, path: &Path) -> PathBuf {
    let from_cwd = cwd.map_or_else(|| path.to_path_buf(), |cwd| cwd.join(path));
    // This fails only for an empty path or a lost working directory; the look that follows will
    // tell.
    std::path::absolute(&from_cwd).unwrap_or(from_cwd)
}

enum Found {
    Program,
    Nothing,
    Unfit(ResolveError),
}

fn look_at(candidate: &Path) -> Found {
    let metadata = match fs::metadata(candidate) {
        Ok(metadata) => metadata,
        Err(error) => {
            return match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Found::Nothing,
                _ => Found::Unfit(ResolveError::Unreadable {
                    path: candidate.to_path_buf(),
                    reason: error.to_string(),
                }),
            };
        }
    };
    let path = candidate.to_path_buf();
    if metadata.is_dir() {
        Found::Unfit(ResolveError::NotAFile {
            path,
            what: "directory",
        })
    } else if !metadata.is_file() {
        Found::Unfit(ResolveError::NotAFile {
            path,
            what: "special file",
        })
    } else if metadata.permissions().mode() & 0o111 == 0 {
        Found::Unfit(ResolveError::NotExecutable { path })
    } else {
        Found::Program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_file(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().expect("a parent")).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_bare_name_is_searched_in_the_path_of_the_child() {
        let home = tempfile::tempdir().unwrap();
        write_file(&home.path().join("b/server"), 0o755);
        let path = format!("{0}/a:{0}/b", home.path().display());
        assert_eq!(
            resolve("server", None, Some(OsStr::new(&path))),
            Ok(home.path().join("b/server"))
        );
    }

    #[test]
    fn a_file_that_cannot_be_run_is_passed_over_for_a_later_one() {
        let home = tempfile::tempdir().unwrap();
        write_file(&home.path().join("a/server"), 0o644);
        write_file(&home.path().join("b/server"), 0o755);
        let path = format!("{0}/a:{0}/b", home.path().display());
        assert_eq!(
            resolve("server", None, Some(OsStr::new(&path))),
            Ok(home.path().join("b/server"))
        );
        let only_a = format!("{}/a", home.path().display());
        assert_eq!(
            resolve("server", None, Some(OsStr::new(&only_a))),
            Err(ResolveError::NotExecutable {
                path: home.path().join("a/server")
            })
        );
    }

    #[test]
    fn a_name_with_a_slash_starts_at_the_working_directory_and_ignores_the_path() {
        let home = tempfile::tempdir().unwrap();
        write_file(&home.path().join("bin/server"), 0o755);
        assert_eq!(
            resolve("bin/server", Some(home.path()), Some(OsStr::new("/nowhere"))),
            Ok(home.path().join("bin/server"))
        );
    }

    #[test]
    fn a_relative_path_entry_starts_at_the_working_directory_of_the_child() {
        let home = tempfile::tempdir().unwrap();
        write_file(&home.path().join("bin/server"), 0o755);
        assert_eq!(
            resolve("server", Some(home.path()), Some(OsStr::new("bin"))),
            Ok(home.path().join("bin/server"))
        );
    }

    #[test]
    fn error_names_the_program_the_path_and_the_remedy() {
        let error = resolve("no-such-server", None, Some(OsStr::new("/nowhere:/else"))).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("`no-such-server`") && text.contains("/nowhere:/else"),
            "{text}"
        );
        assert!(text.contains("install it"), "{text}");
    }

    #[test]
    fn a_directory_is_not_a_program() {
        let home = tempfile::tempdir().unwrap();
        let error = resolve("./", Some(home.path()), None).unwrap_err();
        assert!(
            matches!(
                error,
                ResolveError::NotAFile {
                    what: "directory",
                    ..
                }
            ),
            "{error:?}"
        );
    }

    #[test]
    fn remedy_comes_before_the_directories_that_were_searched() {
        let path = Some(OsStr::new("/nowhere/a:/nowhere/b"));
        let said = |program: &str| resolve(program, None, path).unwrap_err().to_string();
        assert_eq!(
            said("npx"),
            "program `npx` was not found in PATH: install Node.js (https://nodejs.org), or write its full path; \
             searched: /nowhere/a:/nowhere/b"
        );
        assert!(said("my-server").contains("install it, correct the name, or write its full path; searched"));
    }

    #[test]
    fn an_empty_command_is_refused() {
        assert_eq!(resolve("", None, None), Err(ResolveError::Empty));
    }

    #[test]
    fn without_a_path_the_standard_directories_are_searched() {
        assert!(resolve("sh", None, None).is_ok());
    }
}
