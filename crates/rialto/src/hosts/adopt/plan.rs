//! What `rialto adopt` will write, decided from texts alone.
//!
//! Nothing is read or written here. The order of the files is the order of writing: a destination
//! is there before a host starts it.

use std::path::{Path, PathBuf};

use crate::hosts::carry::{self, Purpose, SecretValue, SecretsTo};
use crate::hosts::destinations_text;
use crate::hosts::edit::{self, Change};
use crate::hosts::entry::{self, Entry};
use crate::hosts::found::HostFile;
use crate::hosts::import;
use crate::hosts::location::Surroundings;
use crate::hosts::merge::{self, Draft, Wanted};
use crate::hosts::plain::Plain;
use crate::hosts::program::{self, Program};
use crate::hosts::reference::Carry;
use crate::hosts::secret;
use crate::hosts::shape;
use crate::hosts::table::Format;

/// The user's files of Rialto, as they are now.
#[derive(Debug, Clone)]
pub(super) struct OwnFiles {
    pub(super) destinations: PathBuf,
    pub(super) destinations_text: Option<String>,
    pub(super) secrets: PathBuf,
    pub(super) secrets_text: Option<String>,
    /// What `secrets_file` must name, if the file of destinations has no such key.
    pub(super) secrets_key: Option<String>,
    /// What `rialto attach` must be given to find the file; `None` for the usual one.
    pub(super) config: Option<PathBuf>,
}

/// One file to write.
#[derive(Debug, Clone)]
pub(super) struct PlannedFile {
    pub(super) path: PathBuf,
    pub(super) before: Option<String>,
    pub(super) after: String,
    pub(super) kind: Kind,
}

/// Whose file it is.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Never shown.
    Secrets {
        count: usize,
    },
    Destinations,
    Host {
        title: &'static str,
        format: Format,
        changes: Vec<Change>,
        /// The entries that change, and their destinations.
        entries: Vec<(String, String)>,
    },
}

/// Lines for a file that Rialto does not edit.
#[derive(Debug, Clone)]
pub(super) struct Paste {
    pub(super) title: &'static str,
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Everything that will be written, and what the user should know.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) files: Vec<PlannedFile>,
    pub(super) pastes: Vec<Paste>,
    pub(super) notes: Vec<String>,
    /// Files that are left alone, with the reason.
    pub(super) problems: Vec<String>,
    /// What must not be printed.
    pub(super) hidden: Vec<String>,
    /// Entries that start through Rialto already.
    pub(super) adopted_before: usize,
}

/// An entry on its way to a destination.
struct Candidate<'a> {
    file: usize,
    server: &'a crate::hosts::servers::Server,
    stdio: &'a entry::Stdio,
}

/// Decides. An error is one that concerns all files.
pub(super) fn plan(
    files: &[HostFile],
    own: &OwnFiles,
    program: &Program,
    surroundings: &Surroundings<'_>,
) -> Result<Plan, String> {
    let mut left_alone: Vec<Option<String>> = files.iter().map(in_doubt).collect();
    // A file whose edit fails gets no destinations, so everything is decided again without it.
    loop {
        let attempt = attempt(files, &left_alone, own, program, surroundings)?;
        match attempt {
            Attempt::Planned(mut plan) => {
                for (file, reason) in files.iter().zip(&left_alone) {
                    if let Some(reason) = reason {
                        plan.problems
                            .push(format!("{}: {reason}", surroundings.shown(&file.path)));
                    }
                }
                return Ok(plan);
            }
            Attempt::Without(file, reason) => match left_alone.get_mut(file) {
                Some(slot) => *slot = Some(reason),
                None => return Err(reason),
            },
        }
    }
}

/// Returns why a file must not be edited, before anything else is known.
fn in_doubt(file: &HostFile) -> Option<String> {
    let has_stdio = file
        .servers
        .iter()
        .any(|server| matches!(server.entry, Entry::Stdio(_)));
    let repeated = file.document.repeated.first().filter(|_| has_stdio)?;
    Some(format!(
        "line {}: the key `{}` stands twice, and nothing tells which one counts: remove one of them",
        repeated.line, repeated.key
    ))
}

enum Attempt {
    Planned(Plan),
    /// The edit of this file fails.
    Without(usize, String),
}

fn attempt(
    files: &[HostFile],
    left_alone: &[Option<String>],
    own: &OwnFiles,
    program: &Program,
    surroundings: &Surroundings<'_>,
) -> Result<Attempt, String> {
    let mut plan = Plan::default();
    let (candidates, wanted) = candidates(files, left_alone, surroundings, &mut plan);
    let present = destinations_text::present(own.destinations_text.as_deref().unwrap_or_default())
        .map_err(|reason| in_file(&own.destinations, &reason))?;
    let secrets = destinations_text::secrets(own.secrets_text.as_deref().unwrap_or_default())
        .map_err(|reason| in_file(&own.secrets, &reason))?;
    let known = destinations_text::known(&present, secrets);
    let (drafts, indices) = merge::all(&wanted, &known, Purpose::Attach, SecretsTo::File);
    add_own_files(&drafts, own, &mut plan)?;
    for file in files {
        secret::collect(&Plain::of(&file.document.root), &mut plan.hidden);
    }
    for (index, file) in files.iter().enumerate() {
        let of_file: Vec<(&Candidate<'_>, &Draft)> = candidates
            .iter()
            .zip(&indices)
            .filter(|(candidate, _)| candidate.file == index)
            .filter_map(|(candidate, draft)| Some((candidate, drafts.get(*draft)?)))
            .collect();
        if of_file.is_empty() {
            continue;
        }
        let written = program.written(file.host, file.project.is_some());
        let words = |draft: &Draft| program::attach(written.clone(), &draft.name, own.config.as_deref());
        if file.host.format == Format::Yaml {
            plan.pastes.push(paste(file, &of_file, words));
            continue;
        }
        let changes: Vec<Change> = of_file
            .iter()
            .flat_map(|(candidate, draft)| {
                let server = candidate.server;
                entry::point_at(&server.place, &server.node, &candidate.stdio.form, &words(draft))
            })
            .collect();
        let after = match edit::apply(&file.text, file.host.format, &changes) {
            Ok(after) => after,
            Err(error) => return Ok(Attempt::Without(index, error.to_string())),
        };
        plan.files.push(PlannedFile {
            path: file.path.clone(),
            before: Some(file.text.clone()),
            after,
            kind: Kind::Host {
                title: file.host.title,
                format: file.host.format,
                changes,
                entries: of_file
                    .iter()
                    .map(|(candidate, draft)| (candidate.server.name.clone(), draft.name.clone()))
                    .collect(),
            },
        });
    }
    Ok(Attempt::Planned(plan))
}

/// Returns the entries that can be adopted, and notes about the others.
fn candidates<'a>(
    files: &'a [HostFile],
    left_alone: &[Option<String>],
    surroundings: &Surroundings<'_>,
    plan: &mut Plan,
) -> (Vec<Candidate<'a>>, Vec<Wanted>) {
    let mut candidates = Vec::new();
    let mut wanted = Vec::new();
    for (index, file) in files.iter().enumerate() {
        if left_alone.get(index).is_some_and(Option::is_some) {
            continue;
        }
        let shown = surroundings.shown(&file.path);
        for server in &file.servers {
            let place = format!("{shown}:{}: `{}`", server.node.line, server.name);
            let stdio = match &server.entry {
                Entry::Stdio(stdio) => stdio,
                Entry::Rialto { is_attached } => {
                    plan.adopted_before += usize::from(*is_attached);
                    continue;
                }
                // The host reaches it without a process on this machine.
                Entry::Remote(_) => continue,
                Entry::Unusable(reason) => {
                    plan.notes.push(format!("{place} stays as it is: it {reason}"));
                    continue;
                }
            };
            let carry = Carry {
                project: server.project.as_deref(),
                home: surroundings.home(),
            };
            match carry::stdio(stdio, carry, Purpose::Attach) {
                Ok(target) => {
                    wanted.push(Wanted {
                        name: server.name.clone(),
                        qualifier: import::qualifier(file, server.project.as_deref()),
                        origin: import::origin(file, &shown, server.project.as_deref(), surroundings),
                        target,
                    });
                    candidates.push(Candidate {
                        file: index,
                        server,
                        stdio,
                    });
                }
                Err(reason) => plan.notes.push(format!("{place} stays as it is: it {reason}")),
            }
        }
    }
    (candidates, wanted)
}

fn paste(
    file: &HostFile,
    entries: &[(&Candidate<'_>, &Draft)],
    words: impl Fn(&Draft) -> Vec<String>,
) -> Paste {
    let entries: Vec<_> = entries
        .iter()
        .map(|(candidate, draft)| {
            let name = candidate.server.name.clone();
            // Its variables stay where they are: the lines replace command and arguments.
            (name.clone(), shape::stdio(file.host, &name, &words(draft), &[]))
        })
        .collect();
    Paste {
        title: file.host.title,
        path: file.path.clone(),
        text: shape::pasted(file.host, &entries),
    }
}

const HEAD: &str = "\
The servers that `rialto adopt` found in your hosts. Each host starts `rialto attach NAME`,
and all of them share what runs. `rialto adopt --undo` takes everything back.";

/// Plans the changes of the user's own files, the secrets first.
fn add_own_files(drafts: &[Draft], own: &OwnFiles, plan: &mut Plan) -> Result<(), String> {
    let fresh: Vec<&Draft> = drafts.iter().filter(|draft| !draft.is_known).collect();
    let secrets: Vec<&SecretValue> = fresh.iter().flat_map(|draft| &draft.rendered.secrets).collect();
    if fresh.is_empty() {
        return Ok(());
    }
    if !secrets.is_empty() {
        let before = own.secrets_text.clone();
        let after = destinations_text::with_secrets(before.as_deref().unwrap_or_default(), &secrets)
            .map_err(|reason| in_file(&own.secrets, &reason))?;
        if before.as_deref() != Some(after.as_str()) {
            plan.files.push(PlannedFile {
                path: own.secrets.clone(),
                before,
                after,
                kind: Kind::Secrets { count: secrets.len() },
            });
        }
    }
    let key = own.secrets_key.as_deref().filter(|_| !secrets.is_empty());
    let before = own.destinations_text.clone();
    let after = match before.as_deref().map(str::trim) {
        None | Some("") => destinations_text::fresh(&fresh, HEAD, key),
        Some(_) => {
            let text = before.as_deref().unwrap_or_default();
            destinations_text::extended(text, &fresh, key)
                .map_err(|reason| by_hand(own, &fresh, key, &reason))?
        }
    };
    plan.files.push(PlannedFile {
        path: own.destinations.clone(),
        before,
        after,
        kind: Kind::Destinations,
    });
    Ok(())
}

fn in_file(path: &Path, reason: &str) -> String {
    format!("{}: {reason}; nothing was changed", path.display())
}

/// Returns the message with the lines that the user adds.
fn by_hand(own: &OwnFiles, drafts: &[&Draft], secrets_file: Option<&str>, reason: &str) -> String {
    let mut lines = String::new();
    if let Some(file) = secrets_file {
        lines.push_str(&format!("secrets_file: {file}\n"));
    }
    lines.push_str("destinations:\n");
    for draft in drafts {
        lines.push_str(&destinations_text::entry(draft, 2));
    }
    format!(
        "{}: {reason}. Add these lines by hand, then adopt again; nothing was changed\n{lines}",
        own.destinations.display()
    )
}

#[cfg(test)]
mod tests;
