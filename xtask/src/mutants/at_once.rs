//! Tests many mutants with one build.
//!
//! A copy of the repository gets all mutants of a sample, each behind a switch
//! ([`super::switch`]). The tests are built once, and run once for each mutant with its switch on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::switch::{self, Mutant, Switched};
use super::{FEWER_CASES, PACKAGE, Report};

/// The test binaries in the order in which they run for a mutant: those that catch most in the
/// least time first.
const BINARIES: &[&str] = &[
    "conversations",
    "protocol",
    "properties",
    "transparency",
    "simulation",
];
/// How much longer than without a mutant a test binary may run.
const SLOWER: u32 = 10;
const LEAST_LIMIT: Duration = Duration::from_secs(60);
/// The address space of a test binary in KiB. A mutant may allocate for ever.
const MEMORY: &str = "4000000";

/// What became of the mutants, and those that need a build of their own.
pub struct Outcome {
    pub report: Report<String>,
    pub left_out: Vec<String>,
}

/// Tests the mutants, in a copy of the repository below `folder`.
pub fn test(repository: &Path, folder: &Path, target: &Path, mutants: &[Mutant]) -> anyhow::Result<Outcome> {
    let copy = folder.join("switched");
    copy_repository(repository, &copy)?;
    let mut built = vec![true; mutants.len()];
    // Some errors, as of arithmetic that must overflow, are found by a build only.
    for step in ["check", "build"] {
        while let Some(refused) = write_and_compile(repository, &copy, target, step, mutants, &mut built)? {
            println!("xtask: the compiler refuses {refused} of them behind a switch");
        }
    }
    let chosen: Vec<usize> = (0..mutants.len()).filter(|at| built[*at]).collect();
    let left_out = (0..mutants.len()).filter(|at| !built[*at]);
    let left_out = left_out.map(|at| mutants[at].name.clone()).collect();
    println!("xtask: {} mutants in one build", chosen.len());
    let binaries = Binary::build(&copy, target)?;
    let report = run_all(&binaries, mutants, &chosen)?;
    Ok(Outcome { report, left_out })
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
    let root = "crates/protocol/src/lib.rs";
    let with_switch = |text: &str| format!("{text}{}", switch::DEFINITION);
    let text = match files.get(root) {
        Some(switched) => with_switch(&switched.text),
        None => with_switch(&original_of(repository, root)?),
    };
    write_if_changed(&copy.join(root), text.as_bytes())?;
    let messages = cargo(copy, target, &[step, "--lib"])?;
    let errors: Vec<&Value> = messages
        .iter()
        .filter(|message| message["reason"] == "compiler-message")
        .map(|message| &message["message"])
        .filter(|message| message["level"] == "error")
        .filter(|message| message["spans"].as_array().is_some_and(|spans| !spans.is_empty()))
        .collect();
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

/// Runs cargo for the package, and returns what it reports.
fn cargo(copy: &Path, target: &Path, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
    let output = Command::new("cargo")
        .args(arguments)
        .args(["--quiet", "--package", PACKAGE, "--message-format=json"])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        // The tests run many times for one build. Overflows are still checked.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// A test binary, and how long it may run.
struct Binary {
    path: PathBuf,
    folder: PathBuf,
    limit: Duration,
}

/// How a run of tests ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed,
    TooLate,
}

impl Binary {
    /// Builds the tests, and runs each once without a mutant.
    fn build(copy: &Path, target: &Path) -> anyhow::Result<Vec<Self>> {
        let messages = cargo(copy, target, &["test", "--no-run"])?;
        let mut binaries = Vec::new();
        for name in BINARIES {
            let built = messages.iter().find(|message| {
                message["target"]["name"] == *name
                    && message["profile"]["test"] == true
                    && message["executable"].is_string()
            });
            let path = built.and_then(|message| message["executable"].as_str());
            let mut binary = Self {
                path: path
                    .with_context(|| format!("the tests `{name}` were not built"))?
                    .into(),
                folder: copy.join("crates/protocol"),
                limit: Duration::from_secs(600),
            };
            let start = Instant::now();
            if binary.run(None)? != Ended::Passed {
                bail!("the tests `{name}` fail without a mutant");
            }
            binary.limit = LEAST_LIMIT.max(start.elapsed() * SLOWER);
            binaries.push(binary);
        }
        Ok(binaries)
    }

    fn run(&self, mutant: Option<usize>) -> anyhow::Result<Ended> {
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "ulimit -v \"$1\" 2>/dev/null; shift; exec \"$@\"",
                "sh",
                MEMORY,
            ])
            .arg(&self.path)
            .arg("--quiet")
            .current_dir(&self.folder)
            .envs(FEWER_CASES)
            .env("RUST_BACKTRACE", "0")
            // As many mutants as there are cores run at a time.
            .env("RUST_TEST_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(number) = mutant {
            command.env("MUTANT", number.to_string());
        }
        let mut child = command.spawn().context("cannot run the tests")?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().context("cannot wait for the tests")? {
                return Ok(if status.success() {
                    Ended::Passed
                } else {
                    Ended::Failed
                });
            }
            if start.elapsed() > self.limit {
                child.kill().context("cannot end the tests")?;
                child.wait().context("cannot wait for the tests")?;
                return Ok(Ended::TooLate);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
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
            match ended {
                Ended::Passed => {
                    println!("xtask: missed {}", mutants[number].name);
                    report.missed.push(mutants[number].name.clone());
                }
                Ended::Failed => report.caught += 1,
                Ended::TooLate => report.timeouts += 1,
            }
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
