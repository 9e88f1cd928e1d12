//! `rialto completions` and `rialto man`: what packages install beside the program.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::Command;

use crate::flags::{self, CompletionsFlags, ManFlags};
use crate::{exit, fail};

pub(crate) fn completions(flags: &CompletionsFlags) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut flags::shown(), "rialto", &mut script);
    print(&script)
}

pub(crate) fn man(flags: &ManFlags) -> ExitCode {
    let pages = match pages() {
        Ok(pages) => pages,
        Err(error) => return fail(exit::FAILED, &format!("cannot write the man pages: {error}")),
    };
    if let Some(directory) = &flags.dir {
        return match write(&pages, directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(
                exit::FAILED,
                &format!("cannot write to {}: {error}", directory.display()),
            ),
        };
    }
    let wanted = match flags.command.as_slice() {
        [] => "rialto".to_owned(),
        words => format!("rialto-{}", words.join("-")),
    };
    match pages.iter().find(|page| page.name == wanted) {
        Some(page) => print(&page.text),
        None => {
            let names: Vec<_> = pages.iter().map(|page| page.name.as_str()).collect();
            let names = names.join(", ");
            fail(
                exit::CONFIGURATION,
                &format!("there is no page {wanted}; there are {names}"),
            )
        }
    }
}

fn print(text: &[u8]) -> ExitCode {
    match io::stdout().lock().write_all(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(exit::FAILED, &format!("cannot write to stdout: {error}")),
    }
}

/// One page of section 1 of the manual.
struct Page {
    /// `rialto-audit-verify`.
    name: String,
    text: Vec<u8>,
}

/// Returns a page for each command that the help shows.
fn pages() -> io::Result<Vec<Page>> {
    let mut whole = flags::shown();
    whole.build();
    let mut pages = Vec::new();
    add(&mut pages, "rialto", &whole)?;
    Ok(pages)
}

fn add(pages: &mut Vec<Page>, name: &str, command: &Command) -> io::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    pages.push(Page {
        name: name.to_owned(),
        text,
    });
    for inner in command.get_subcommands() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            add(pages, &format!("{name}-{}", inner.get_name()), inner)?;
        }
    }
    Ok(())
}

fn write(pages: &[Page], directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for page in pages {
        fs::write(directory.join(format!("{}.1", page.name)), &page.text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_help_has_a_page() {
        let pages = pages().expect("pages");
        let names: Vec<_> = pages.iter().map(|page| page.name.as_str()).collect();
        for name in [
            "rialto",
            "rialto-serve",
            "rialto-connect",
            "rialto-audit-verify",
            "rialto-man",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("warden")), "{names:?}");
        let serve = pages
            .iter()
            .find(|page| page.name == "rialto-serve")
            .expect("a page");
        let text = String::from_utf8_lossy(&serve.text).replace('\\', "");
        for part in [".TH rialto-serve 1", "--token-hash", "Examples:"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn pages_are_written_to_a_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let inner = directory.path().join("man1");
        write(&pages().expect("pages"), &inner).expect("written");
        assert!(inner.join("rialto.1").exists() && inner.join("rialto-cluster-key.1").exists());
    }

    #[test]
    fn completions_know_commands_and_flags() {
        for shell in [
            clap_complete::Shell::Bash,
            clap_complete::Shell::Zsh,
            clap_complete::Shell::Fish,
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut flags::shown(), "rialto", &mut script);
            let script = String::from_utf8(script).expect("text");
            for part in ["serve", "token-hash", "print-config", "claude-desktop"] {
                assert!(script.contains(part), "{shell}: {part}");
            }
            assert!(!script.contains("warden"), "{shell}");
        }
    }
}
