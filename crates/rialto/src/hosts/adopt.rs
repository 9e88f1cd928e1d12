//! `rialto adopt`: every stdio server of the hosts becomes a destination, and the hosts start
//! `rialto attach` in its place. `--undo` takes it back.
//!
//! The order is the safety: look, decide, show, record, write. However this program ends in
//! between, each file is whole, and `--undo` finds a record of every file that may have changed.

mod diff;
mod journal;
mod plan;
mod undo;

use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;

use gateway::escape;

use self::journal::{Journal, Written};
use self::plan::{Kind, OwnFiles, Plan, PlannedFile};
use self::undo::Outcome;
use super::destinations_text::{self, SECRETS_FILE};
use super::found::{self, Found};
use super::location::{Surroundings, System};
use super::program::Program;
use super::safe_file;
use super::search_path;
use super::table::Format;
use crate::config::Environment;
use crate::flags::hosts::AdoptFlags;
use crate::{exit, fail, user_files};

/// The mode of new files: what they hold is for this user alone.
const PRIVATE: u32 = 0o600;

pub(crate) fn run(flags: &AdoptFlags, environment: &Environment) -> ExitCode {
    let surroundings = Surroundings {
        system: System::own(),
        environment,
    };
    let done = match flags.undo {
        true => take_back(flags, &surroundings),
        false => adopt(flags, &surroundings),
    };
    match done {
        Ok(code) => code,
        Err(message) => fail(exit::FAILED, &message),
    }
}

fn adopt(flags: &AdoptFlags, surroundings: &Surroundings<'_>) -> Result<ExitCode, String> {
    // The lock comes first: what is decided must still hold when it is written.
    let journal = match flags.dry_run {
        true => None,
        false => Some(open_journal(surroundings)?),
    };
    let project = match flags.project {
        true => Some(
            std::env::current_dir()
                .map_err(|error| format!("the working directory is not known: {error}"))?,
        ),
        false => None,
    };
    let mut found = found::of_hosts(&flags.hosts, project.as_deref(), surroundings);
    leave_out_what_cannot_be_written(&mut found, surroundings);
    let own = own_files(flags, surroundings)?;
    let program = Program::own(surroundings.environment);
    let mut plan = plan::plan(&found.files, &own, &program, surroundings)?;
    plan.problems.splice(0..0, found.problems);
    plan.notes.splice(0..0, found.missing);
    print(&shown(&plan, surroundings))?;
    let code = match plan.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(exit::FAILED),
    };
    let (Some(journal), false) = (journal, plan.files.is_empty()) else {
        return Ok(code);
    };
    if !is_agreed(flags, &plan)? {
        return Ok(ExitCode::from(exit::FAILED));
    }
    // Without it, the service has the `PATH` of the host that starts it.
    let _ = search_path::remember(surroundings.environment);
    write(&journal, &plan, surroundings)?;
    print(&done(&plan))?;
    Ok(code)
}

fn open_journal(surroundings: &Surroundings<'_>) -> Result<Journal, String> {
    let state = user_files::state_dir(surroundings.environment);
    let state = state.ok_or("there is no place for copies: set HOME or RIALTO_STATE_DIR")?;
    Journal::open(&state).map_err(|error| error.to_string())
}

/// Moves files that must not be replaced to the problems.
fn leave_out_what_cannot_be_written(found: &mut Found, surroundings: &Surroundings<'_>) {
    let mut problems = Vec::new();
    found.files.retain(|file| {
        if file.host.format == Format::Yaml {
            return true;
        }
        match safe_file::inspect(&file.path) {
            Ok(_) => true,
            Err(refusal) => {
                problems.push(format!("{} {refusal}", surroundings.shown(&file.path)));
                false
            }
        }
    });
    found.problems.extend(problems);
}

/// Reads the user's own files of Rialto, and refuses those that must not be replaced.
fn own_files(flags: &AdoptFlags, surroundings: &Surroundings<'_>) -> Result<OwnFiles, String> {
    let usual = user_files::destinations(surroundings.environment);
    let destinations = match &flags.config {
        Some(path) => std::path::absolute(path).map_err(|error| format!("{path}: {error}"))?,
        None => {
            usual.ok_or("there is no place for destinations.yml: set HOME, or name a file with --config")?
        }
    };
    let text = |path: &Path| {
        safe_file::inspect(path).map_err(|refusal| format!("{} {refusal}", path.display()))?;
        found::read(path).map_err(|reason| format!("{}: {reason}", path.display()))
    };
    let destinations_text = text(&destinations)?;
    let present = destinations_text::present(destinations_text.as_deref().unwrap_or_default())
        .map_err(|reason| format!("{}: {reason}; nothing was changed", destinations.display()))?;
    let beside = destinations.parent().unwrap_or(Path::new(""));
    let secrets = beside.join(present.secrets_file.as_deref().unwrap_or(SECRETS_FILE));
    let secrets_text = text(&secrets)?;
    if let Ok(metadata) = secrets.metadata()
        && metadata.mode() & 0o077 != 0
    {
        return Err(format!(
            "{0} can be read by other users: chmod 600 {0}; nothing was changed",
            secrets.display()
        ));
    }
    Ok(OwnFiles {
        config: (!user_files::is_found_by_home(&destinations, surroundings.environment))
            .then(|| destinations.clone()),
        destinations,
        destinations_text,
        secrets,
        secrets_text,
        secrets_key: match present.secrets_file {
            Some(_) => None,
            None => Some(SECRETS_FILE.to_owned()),
        },
    })
}

/// Returns what will be written, for a person to look at. No secret is in it.
fn shown(plan: &Plan, surroundings: &Surroundings<'_>) -> String {
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    for file in &plan.files {
        let path = surroundings.shown(&file.path);
        match &file.kind {
            Kind::Secrets { count } => {
                let _ = writeln!(
                    text,
                    "{path}\n  {}, readable by you alone\n",
                    counted(*count, "secret from arguments", "secrets from arguments")
                );
            }
            Kind::Destinations => {
                let _ = writeln!(text, "{path}");
                push_lines(&mut text, file, plan);
            }
            Kind::Host { title, entries, .. } => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(name, destination)| match name == destination {
                        true => name.clone(),
                        false => format!("{name} as {destination}"),
                    })
                    .collect();
                let _ = writeln!(text, "{path}  ({title}: {})", entries.join(", "));
                push_lines(&mut text, file, plan);
            }
        }
    }
    for paste in &plan.pastes {
        let path = surroundings.shown(&paste.path);
        let _ = writeln!(
            text,
            "{path}  ({}): Rialto does not edit YAML. Replace program and arguments by hand:\n{}",
            paste.title, paste.text
        );
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for problem in &plan.problems {
        let _ = writeln!(text, "left alone: {problem}");
    }
    if plan.files.is_empty() && plan.pastes.is_empty() {
        let _ = match plan.adopted_before {
            0 => writeln!(
                text,
                "There is nothing to adopt: no stdio server was found in your hosts."
            ),
            count => writeln!(
                text,
                "There is nothing to adopt: {count} servers start through Rialto already."
            ),
        };
    }
    text
}

fn push_lines(text: &mut String, file: &PlannedFile, plan: &Plan) {
    let before = file.before.as_deref().unwrap_or_default();
    for line in diff::lines(before, &file.after, &plan.hidden) {
        let _ = writeln!(text, "{line}");
    }
    text.push('\n');
}

/// Prints a text in which names and lines of files stand. None of them may hide what is agreed to.
fn print(text: &str) -> Result<(), String> {
    std::io::stdout()
        .lock()
        .write_all(escape::lines(text).as_bytes())
        .map_err(|error| format!("cannot write to stdout: {error}"))
}

/// Returns whether the plan may be written: by `--yes`, or by an answer on the terminal.
fn is_agreed(flags: &AdoptFlags, plan: &Plan) -> Result<bool, String> {
    if flags.yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err("nothing was written, since no one can be asked here: add --yes".to_owned());
    }
    print(&format!("Write these {} files? [y/N] ", plan.files.len()))?;
    std::io::stdout().flush().map_err(|error| error.to_string())?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| format!("cannot read the answer: {error}"))?;
    let is_yes = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        print("Nothing was written.\n")?;
    }
    Ok(is_yes)
}

/// Records and writes. A file that changed since it was shown is not written.
fn write(journal: &Journal, plan: &Plan, surroundings: &Surroundings<'_>) -> Result<(), String> {
    let written: Vec<Written> = plan.files.iter().map(recorded).collect();
    journal
        .begin(&written)
        .map_err(|error| format!("{error}; nothing was changed"))?;
    for (at, file) in plan.files.iter().enumerate() {
        let result = match &file.before {
            Some(before) => safe_file::replace(&file.path, before.as_bytes(), file.after.as_bytes()),
            None => safe_file::create(&file.path, file.after.as_bytes(), PRIVATE),
        };
        if let Err(refusal) = result {
            let rest = match take_back_begun(journal, at) {
                Ok(()) => "; nothing was changed".to_owned(),
                Err(error) => {
                    format!("\n  what was written before it is taken back by `rialto adopt --undo`: {error}")
                }
            };
            return Err(format!("{} {refusal}{rest}", surroundings.shown(&file.path)));
        }
    }
    Ok(())
}

/// Takes the newest adoption back, of which so many files were written.
fn take_back_begun(journal: &Journal, written: usize) -> Result<(), String> {
    let records = journal.records().map_err(|error| error.to_string())?;
    let mut record = records.into_iter().next().ok_or("there is no record of it")?;
    record.files.truncate(written);
    let outcomes = undo::take_back(journal, &record, false, &mut false).map_err(|error| error.to_string())?;
    match outcomes.iter().find(|(_, outcome)| !outcome.is_taken_back()) {
        Some((path, _)) => Err(format!("{} was edited", path.display())),
        None => Ok(()),
    }
}

fn recorded(file: &PlannedFile) -> Written {
    Written {
        path: file.path.clone(),
        before: file.before.as_ref().map(|text| text.as_bytes().to_vec()),
        after: file.after.as_bytes().to_vec(),
        edit: match &file.kind {
            Kind::Secrets { .. } | Kind::Destinations => None,
            Kind::Host { format, changes, .. } => Some((*format, changes.clone())),
        },
    }
}

fn done(plan: &Plan) -> String {
    let mut entries = 0;
    let mut destinations: Vec<&str> = Vec::new();
    let mut hosts = Vec::new();
    for file in &plan.files {
        if let Kind::Host {
            title,
            entries: of_file,
            ..
        } = &file.kind
        {
            entries += of_file.len();
            hosts.push(*title);
            destinations.extend(of_file.iter().map(|(_, destination)| destination.as_str()));
        }
    }
    destinations.sort_unstable();
    destinations.dedup();
    format!(
        "{} of {} now {} through Rialto, which shares {}.\nRestart these hosts. To take it back: rialto adopt --undo\n",
        counted(entries, "entry", "entries"),
        hosts.join(", "),
        if entries == 1 { "starts" } else { "start" },
        counted(destinations.len(), "server", "servers")
    )
}

fn counted(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn take_back(flags: &AdoptFlags, surroundings: &Surroundings<'_>) -> Result<ExitCode, String> {
    let journal = open_journal(surroundings)?;
    let records = journal.records().map_err(|error| error.to_string())?;
    if records.is_empty() {
        print("There is nothing to undo: no adoption is recorded.\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut is_whole = true;
    let mut text = String::new();
    let mut is_needed = false;
    for record in &records {
        let outcomes = undo::take_back(&journal, record, flags.force, &mut is_needed)
            .map_err(|error| error.to_string())?;
        for (path, outcome) in outcomes {
            is_whole &= outcome.is_taken_back();
            let _ = writeln!(text, "{}", told(&surroundings.shown(&path), &outcome));
        }
    }
    if is_whole {
        text.push_str("Everything is as it was before `rialto adopt`. Restart your hosts.\n");
    }
    print(&text)?;
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(exit::FAILED),
    })
}

fn told(path: &str, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Restored => format!("{path}: restored"),
        Outcome::Removed => format!("{path}: removed, as it was not there before"),
        Outcome::PutBack => format!("{path}: was edited since; its servers are put back, and the edit stays"),
        Outcome::PutBackExcept(edited) => format!(
            "{path}: was edited since; its servers are put back, except {}, which was edited itself; --force restores \
             the whole file and keeps a copy of the edited one",
            edited.join(", ")
        ),
        Outcome::Forced(kept) => format!("{path}: restored; the edited file is kept in {}", kept.display()),
        Outcome::LeftAlone => format!(
            "{path}: was edited since, so it is left alone; --force restores it and keeps a copy of the edited file"
        ),
        Outcome::Needed => format!("{path}: stays, since a file that was left alone may need it"),
        Outcome::Failed(reason) => format!("{path} {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_changed_since_it_was_shown_is_left_and_the_others_are_taken_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path()).expect("a journal");
        let environment = Environment::default();
        let surroundings = Surroundings {
            system: System::own(),
            environment: &environment,
        };
        let file = |name: &str, before: Option<&str>| PlannedFile {
            path: folder.path().join(name),
            before: before.map(str::to_owned),
            after: "adopted".to_owned(),
            kind: Kind::Destinations,
        };
        for name in ["first", "second"] {
            fs::write(folder.path().join(name), "shown").expect("a file");
        }
        let plan = Plan {
            files: vec![
                file("new", None),
                file("first", Some("shown")),
                file("second", Some("shown")),
            ],
            ..Plan::default()
        };
        fs::write(folder.path().join("second"), "edited").expect("a file");
        let said = write(&journal, &plan, &surroundings).expect_err("it changed");
        assert!(
            said.ends_with("was changed meanwhile: run the command again; nothing was changed"),
            "{said}"
        );
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        assert_eq!(read("new"), None);
        assert_eq!(read("first").as_deref(), Some("shown"));
        assert_eq!(read("second").as_deref(), Some("edited"));
        assert!(journal.records().expect("records").is_empty());
    }
}
