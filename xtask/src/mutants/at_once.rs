//! Tests many mutants with one build.
//!
//! A copy of the repository gets all mutants of a sample, each behind a switch
//! ([`super::switch`]). The tests are built once, and run once for each mutant with its switch on.
//! The mutants that the compiler refuses behind a switch are then built one after the other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, bail};

use super::Report;
use super::switch::{self, Mutant, Switched};
use super::test_binary::{self, Binary, Ended};

/// The root of the crate, which gets the definition of the switch.
const ROOT: &str = "crates/protocol/src/lib.rs";

/// Tests the mutants, in a copy of the repository below `folder`.
pub fn test(repository: &Path, folder: &Path, mutants: &[Mutant]) -> anyhow::Result<Report<String>> {
    let (copy, target) = (folder.join("switched"), folder.join("target"));
    copy_repository(repository, &copy)?;
    let mut built = vec![true; mutants.len()];
    // Some errors, as of arithmetic that must overflow, are found by a build only.
    for step in ["check", "build"] {
        while let Some(refused) = write_and_compile(repository, &copy, &target, step, mutants, &mut built)? {
            println!("xtask: the compiler refuses {refused} of them behind a switch");
        }
    }
    let chosen: Vec<usize> = (0..mutants.len()).filter(|at| built[*at]).collect();
    println!("xtask: {} mutants in one build", chosen.len());
    let mut binaries = Binary::build_all(&copy, &target)?;
    let mut report = run_all(&binaries, mutants, &chosen)?;
    let alone: Vec<&Mutant> = (0..mutants.len())
        .filter(|at| !built[*at])
        .map(|at| &mutants[at])
        .collect();
    println!("xtask: {} mutants, each with a build of its own", alone.len());
    restore(repository, &copy, mutants)?;
    for (at, mutant) in alone.iter().enumerate() {
        let original = original_of(repository, &mutant.file)?;
        let path = copy.join(&mutant.file);
        write_if_changed(&path, switch::mutated(&original, mutant)?.as_bytes())?;
        let became = run_alone(&copy, &target, &mut binaries)?;
        write_if_changed(&path, original.as_bytes())?;
        let shown = became.map_or_else(|| "unviable".to_owned(), |ended| ended.to_string());
        println!("xtask: {} of {}: {shown} {}", at + 1, alone.len(), mutant.name);
        report.count(became, &mutant.name);
    }
    Ok(report)
}

/// Writes the files as they are without a mutant.
fn restore(repository: &Path, copy: &Path, mutants: &[Mutant]) -> anyhow::Result<()> {
    for file in mutants.iter().map(|mutant| mutant.file.as_str()).chain([ROOT]) {
        write_if_changed(&copy.join(file), original_of(repository, file)?.as_bytes())?;
    }
    Ok(())
}

/// Builds and runs the tests of a copy with one mutant. `None`: it cannot be built.
fn run_alone(copy: &Path, target: &Path, binaries: &mut [Binary]) -> anyhow::Result<Option<Ended>> {
    for step in ["check", "build"] {
        if !test_binary::errors(&test_binary::cargo(copy, target, &[step, "--lib"])?).is_empty() {
            return Ok(None);
        }
    }
    for binary in binaries {
        binary.build(copy, target)?;
        let ended = binary.run(None)?;
        if ended != Ended::Passed {
            return Ok(Some(ended));
        }
    }
    Ok(Some(Ended::Passed))
}

/// Copies what git knows or would add: no build, no installed tools. Nothing of an earlier copy is
/// left.
fn copy_repository(repository: &Path, copy: &Path) -> anyhow::Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy).with_context(|| format!("cannot delete {}", copy.display()))?;
    }
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(repository)
        .output()
        .context("cannot run git")?;
    if !listed.status.success() {
        bail!("git cannot list the files of the repository");
    }
    let listed = String::from_utf8(listed.stdout).context("a file has a name that is no text")?;
    for name in listed.split('\0').filter(|name| !name.is_empty()) {
        // A file that was deleted and not yet committed is still listed.
        if let Ok(content) = fs::read(repository.join(name)) {
            write_if_changed(&copy.join(name), &content)?;
        }
    }
    Ok(())
}

/// Writes a file, unless it is the same: cargo compiles what is newer than its build.
fn write_if_changed(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the mutants that may be built, and compiles. Returns how many the compiler refuses, and
/// marks them; `None` if it refuses none.
fn write_and_compile(
    repository: &Path,
    copy: &Path,
    target: &Path,
    step: &str,
    mutants: &[Mutant],
    built: &mut [bool],
) -> anyhow::Result<Option<usize>> {
    let mut by_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in mutants.iter().enumerate() {
        let of_file = by_file.entry(&mutant.file).or_default();
        if built[number] {
            of_file.push((number, mutant));
        }
    }
    let mut files: BTreeMap<String, Switched> = BTreeMap::new();
    for (name, of_file) in by_file {
        let original = original_of(repository, name)?;
        let switched = switch::switched(&original, &of_file)?;
        for number in &switched.left_out {
            built[*number] = false;
        }
        write_if_changed(&copy.join(name), switched.text.as_bytes())?;
        files.insert(name.to_owned(), switched);
    }
    let with_switch = |text: &str| format!("{text}{}", switch::DEFINITION);
    let text = match files.get(ROOT) {
        Some(switched) => with_switch(&switched.text),
        None => with_switch(&original_of(repository, ROOT)?),
    };
    write_if_changed(&copy.join(ROOT), text.as_bytes())?;
    let messages = test_binary::cargo(copy, target, &[step, "--lib"])?;
    let errors = test_binary::errors(&messages);
    let before = built.iter().filter(|built| **built).count();
    for error in &errors {
        for number in switch::blamed(&files, error) {
            built[number] = false;
        }
    }
    let refused = before - built.iter().filter(|built| **built).count();
    match (errors.len(), refused) {
        (0, _) => Ok(None),
        (_, 0) => bail!("the copy in {} does not compile", copy.display()),
        (_, refused) => Ok(Some(refused)),
    }
}

fn original_of(repository: &Path, name: &str) -> anyhow::Result<String> {
    fs::read_to_string(repository.join(name)).with_context(|| format!("cannot read {name}"))
}

/// Runs the tests for each of these mutants.
fn run_all(binaries: &[Binary], mutants: &[Mutant], chosen: &[usize]) -> anyhow::Result<Report<String>> {
    let next = Mutex::new(chosen.iter());
    let report = Mutex::new(Report::default());
    let take = || next.lock().ok()?.next().copied();
    let work = || -> anyhow::Result<()> {
        while let Some(number) = take() {
            let mut ended = Ended::Passed;
            for binary in binaries {
                ended = binary.run(Some(number))?;
                if ended != Ended::Passed {
                    break;
                }
            }
            let Ok(mut report) = report.lock() else {
                bail!("a run of tests has panicked")
            };
            let name = &mutants[number].name;
            report.count(Some(ended), name);
            let tested = report.caught + report.timeouts + report.missed.len();
            println!("xtask: {tested} of {}: {ended} {name}", chosen.len());
        }
        Ok(())
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => bail!("a run of tests has panicked"),
        })
    })?;
    report.into_inner().context("a run of tests has panicked")
}
