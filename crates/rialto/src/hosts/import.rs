//! `rialto import`: the servers of the hosts as a file of destinations.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use gateway::escape;

use super::carry::{self, Purpose, SecretsTo};
use super::destinations_text::{self, SECRETS_FILE};
use super::entry::Entry;
use super::found::{self, Found, HostFile};
use super::location::{Surroundings, System};
use super::merge::{self, Draft, Known, Wanted};
use super::reference::Carry;
use super::safe_file;
use crate::config::Environment;
use crate::flags::hosts::ImportFlags;
use crate::{exit, fail};

/// The mode of files that may hold secrets.
const PRIVATE: u32 = 0o600;

/// Servers as destinations, and what the user should know.
#[derive(Debug, Default)]
struct Imported {
    drafts: Vec<Draft>,
    notes: Vec<String>,
}

pub(crate) fn run(flags: &ImportFlags, environment: &Environment) -> ExitCode {
    let surroundings = Surroundings {
        system: System::own(),
        environment,
    };
    let project = match flags.project {
        true => match std::env::current_dir() {
            Ok(directory) => Some(directory),
            Err(error) => {
                return fail(
                    exit::FAILED,
                    &format!("the working directory is not known: {error}"),
                );
            }
        },
        false => None,
    };
    let found = found::of_hosts(&flags.hosts, project.as_deref(), &surroundings);
    let to = match flags.output {
        Some(_) => SecretsTo::File,
        None => SecretsTo::Variables,
    };
    let imported = import(&found, &surroundings, to);
    for note in found.problems.iter().chain(&found.missing).chain(&imported.notes) {
        // If stderr is closed, nothing reads notes.
        let _ = writeln!(std::io::stderr().lock(), "rialto: {}", escape::lines(note));
    }
    if imported.drafts.is_empty() {
        return fail(
            exit::FAILED,
            "found no server that can be imported; `rialto import HOST` names the file where one is expected",
        );
    }
    let written = match &flags.output {
        None => print(&imported),
        Some(path) => write(Path::new(path), &imported),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(exit::FAILED, &message),
    }
}

/// Returns the destinations of all entries that can be one.
fn import(found: &Found, surroundings: &Surroundings<'_>, to: SecretsTo) -> Imported {
    let mut imported = Imported::default();
    let mut wanted = Vec::new();
    for file in &found.files {
        let shown = surroundings.shown(&file.path);
        for repeated in &file.document.repeated {
            imported.notes.push(format!(
                "{shown}:{}: the key `{}` stands twice; the last one counts",
                repeated.line, repeated.key
            ));
        }
        wanted.extend(of_file(file, &shown, surroundings, &mut imported.notes));
    }
    let (drafts, _) = merge::all(&wanted, &Known::default(), Purpose::Import, to);
    imported.drafts = drafts;
    imported
}

fn of_file(
    file: &HostFile,
    shown: &str,
    surroundings: &Surroundings<'_>,
    notes: &mut Vec<String>,
) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for server in &file.servers {
        let place = format!("{shown}:{}: `{}`", server.node.line, server.name);
        let carry = Carry {
            project: server.project.as_deref(),
            home: surroundings.home(),
        };
        let (target, left_out) = match &server.entry {
            Entry::Stdio(stdio) => (carry::stdio(stdio, carry, Purpose::Import), &stdio.left_out),
            Entry::Remote(remote) => (carry::remote(remote, carry), &remote.left_out),
            Entry::Rialto { .. } => {
                notes.push(format!("{place} is left out: it starts Rialto already"));
                continue;
            }
            Entry::Unusable(reason) => {
                notes.push(format!("{place} is left out: it {reason}"));
                continue;
            }
        };
        match target {
            Ok(target) => {
                if !left_out.is_empty() {
                    let keys = left_out.join(", ");
                    notes.push(format!(
                        "{place}: not carried over, since it is for the host: {keys}"
                    ));
                }
                wanted.push(Wanted {
                    name: server.name.clone(),
                    qualifier: qualifier(file, server.project.as_deref()),
                    origin: origin(file, shown, server.project.as_deref(), surroundings),
                    target,
                });
            }
            Err(reason) => notes.push(format!("{place} is left out: it {reason}")),
        }
    }
    wanted
}

/// Returns what tells a server apart from another of its name.
pub(super) fn qualifier(file: &HostFile, project: Option<&Path>) -> String {
    let directory = project.and_then(Path::file_name);
    match directory {
        Some(directory) => directory.to_string_lossy().into_owned(),
        None => file.host.id.to_owned(),
    }
}

/// Returns where a server is from, for a comment.
pub(super) fn origin(
    file: &HostFile,
    shown: &str,
    project: Option<&Path>,
    surroundings: &Surroundings<'_>,
) -> String {
    match project {
        Some(project) if file.project.is_none() => {
            format!(
                "{}: {shown}, project {}",
                file.host.title,
                surroundings.shown(project)
            )
        }
        Some(_) | None => format!("{}: {shown}", file.host.title),
    }
    // A comment is one line.
    .replace(char::is_control, " ")
}

const HEAD: &str = "Written by `rialto import`. Serve it with: rialto serve --config FILE";

fn print(imported: &Imported) -> Result<(), String> {
    let drafts: Vec<&Draft> = imported.drafts.iter().collect();
    let mut head = HEAD.to_owned();
    for draft in &drafts {
        for secret in &draft.rendered.secrets {
            head.push_str(&format!(
                "\nSet the variable {}: a secret of `{}`, which is not printed here.",
                secret.name, draft.name
            ));
        }
    }
    let text = destinations_text::fresh(&drafts, &head, None);
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .map_err(|error| format!("cannot write to stdout: {error}"))
}

fn write(path: &Path, imported: &Imported) -> Result<(), String> {
    let drafts: Vec<&Draft> = imported.drafts.iter().collect();
    let secrets: Vec<_> = drafts.iter().flat_map(|draft| &draft.rendered.secrets).collect();
    let beside = path.parent().unwrap_or(Path::new("")).join(SECRETS_FILE);
    let files: Vec<&Path> = [Some(path), (!secrets.is_empty()).then_some(beside.as_path())]
        .into_iter()
        .flatten()
        .collect();
    if let Some(file) = files.iter().find(|file| file.symlink_metadata().is_ok()) {
        return Err(format!(
            "{} exists already, and nothing is overwritten: name another file, or move it away",
            file.display()
        ));
    }
    if !secrets.is_empty() {
        let text = destinations_text::with_secrets("", &secrets)?;
        create(&beside, &text)?;
    }
    let secrets_file = (!secrets.is_empty()).then_some(SECRETS_FILE);
    create(path, &destinations_text::fresh(&drafts, HEAD, secrets_file))?;
    let note = match secrets.len() {
        0 => String::new(),
        count => format!(
            "; {count} secrets are in {}, which only you can read",
            beside.display()
        ),
    };
    let servers = imported.drafts.len();
    let _ = writeln!(
        std::io::stderr().lock(),
        "rialto: wrote {servers} destinations to {}{note}\nrialto: next: rialto check --config {}",
        path.display(),
        path.display()
    );
    Ok(())
}

fn create(path: &Path, text: &str) -> Result<(), String> {
    safe_file::create(path, text.as_bytes(), PRIVATE)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}
