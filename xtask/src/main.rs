//! The project's own chores, run as `cargo xtask …`.
//!
//! Hides where the tests' foreign tools live and how they get there. It refuses to skip: a tool
//! that is missing, a test that fails and a test that is ignored all end the run with an error.

mod bench;
mod conformance;
mod fuzz;
mod lines;
mod mutants;
mod package;
mod package_texts;
mod quick;
mod simulate;
mod test_deps;
mod test_run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

const HELP: &str = "\
cargo xtask COMMAND

  test [FILTER…]   install what the tests need, build every binary, run every test of the
                   workspace, and close with a summary. A FILTER keeps the tests whose name
                   contains it. Fails if a test fails or is ignored. The conformance suite
                   below is part of it, and docs/conformance.md must be what it measures.
  test --quick     what to run before each commit, in a few minutes: format, lints, the tests of
                   `protocol` with a short simulation, of `gateway` and of the documents, and a
                   few of the whole binary. Nothing is installed.
  conformance [FILTER…]
                   only the official conformance suite: through `rialto serve`, and natively to
                   compare; and, for clients, through `rialto connect`. What ran completely and
                   without failures is written to docs/conformance.md. What is known not to pass
                   is listed in tests/conformance/expected-failures.txt.
  simulate [--seeds N] [--first S]
                   run the simulation of the core over N seeds (1000) from S (0) on, in release
                   with overflow checks
  simulate --seed S
                   replay one seed and print its history
  simulate-fleet [FLAG…]
                   simulate 1,000 replicas with 1,000,000 sessions, in release: what the engine
                   does and what clients see, also when a tenth dies and the engine fails.
                   --replicas N, --sessions N, --calls N, --keep-alive PERCENT, --engine N
  fuzz [TARGET] [--minutes M]
                   run every fuzz target, or one, for M minutes each (1). Needs the nightly
                   toolchain; installs cargo-fuzz into .test-deps, keeps what it finds there,
                   and leaves an input that breaks a promise in fuzz/artifacts
  lines            count the lines of product code, without tests, comments and blank lines
  mutants --sample N [--seed S] [--only TEXT]…
                   change `protocol` in N small ways, one at a time, and list the changes that
                   its own tests do not notice. Fails below 95 %. Installs cargo-mutants into
                   .test-deps, and leaves its logs there
  package [NAME…]  build what people install into dist/, with checksums and a list of what is in
                   it: tarball, pypi, npm, deb, rpm, oci, mcpb, or all of them. Programs are built
                   with profile `dist`, against an old glibc, and without any library.
                   --test: then install each into a clean root and let it answer a call. Needs
                   root, for chroot.
                   --binary PATH, --static-binary PATH: package these programs.
                   --no-static, --no-portable: leave packages with one of the programs out.
                   --profile NAME: build with another profile.
  licences TARGET  print the licences of everything in the program for TARGET; a tarball that is
                   made without `package` has them from here
  setup            only the install
  bench [FLAG…]    build Rialto as packages do (profile `dist`) and measure it beside native, the
                   bare pipe and the peers; prints the table and writes docs/benchmarks.md.
                   --quick: Rialto and native only, under a minute, writes nothing.
                   --instructions: instructions per call, under valgrind.
                   --order FILE: a linker script for GNU ld that lays together what a start and
                   plain calls run, as valgrind sees it. The full run makes one and links by it.
                   --only ROW, --rounds N, --seconds S: less, or more, of it; writes nothing.
  package-texts [--dist FOLDER] [--repository URL] [--publish]
                   write the texts for Homebrew, scoop, winget and the MCP registry into
                   dist/texts, from Cargo.toml and dist/SHA256SUMS. A text whose files are not
                   there is not written. --repository stands in for the address in Cargo.toml;
                   --publish refuses one that leads nowhere
  help             this text

What the tests need is pinned in tests/interop and tests/conformance (package.json with its
lock file for npm, requirements.txt for pip) and installed into .test-deps, which git ignores. Nothing is
installed twice: a stamp of the pins in each folder says what is there already. Delete
.test-deps to start afresh. On the machine there must be: node 20 or newer with npm, and
python3 3.10 or newer with its venv module; and apt-get with dpkg-deb, for nginx and Redis.

Tests find the folder by RIALTO_TEST_DEPS, which `cargo xtask test` sets; after
`cargo xtask setup` a plain `cargo test` finds it too. The peers of `bench` are pinned in
tests/peers and installed only for it; one that cannot be installed is left out and named.
";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Vec<String>) -> anyhow::Result<()> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[] as &[String]),
    };
    match (command, rest) {
        ("test", [flag]) if flag == "--quick" => quick::run(&repository()?),
        ("test", filters) => test(filters),
        ("conformance", filters) => conformance(filters),
        ("bench", flags) => bench::run(&repository()?, flags),
        ("simulate", flags) => simulate::run(&repository()?, &simulate::Seeds::parse(flags)?),
        ("simulate-fleet", flags) => simulate::run_fleet(&repository()?, flags),
        ("fuzz", flags) => {
            let wanted = fuzz::Wanted::parse(flags)?;
            let repository = repository()?;
            fuzz::run(&repository, &repository.join(".test-deps"), &wanted)
        }
        ("lines", []) => lines::run(&repository()?),
        ("mutants", flags) => {
            let sample = mutants::Sample::parse(flags)?;
            let repository = repository()?;
            mutants::run(&repository, &repository.join(".test-deps"), &sample)
        }
        ("package-texts", flags) => package_texts::run(&repository()?, &package_texts::Wanted::parse(flags)?),
        ("package", flags) => {
            let wanted = package::Wanted::parse(flags)?;
            let repository = repository()?;
            package::run(&repository, &repository.join(".test-deps"), &wanted)
        }
        ("licences", [target]) => package::print_licences(&repository()?, target),
        ("setup", []) => setup(&repository()?).map(drop),
        ("help" | "--help" | "-h", []) => {
            print!("{HELP}");
            Ok(())
        }
        ("lines" | "setup" | "help", [extra, ..]) => {
            bail!("`{command}` takes no argument, but `{extra}` was given")
        }
        _ => bail!("there is no command `{command}`; `cargo xtask help` lists them"),
    }
}

fn setup(repository: &Path) -> anyhow::Result<PathBuf> {
    let folder = repository.join(".test-deps");
    test_deps::install(repository, &folder)?;
    Ok(folder)
}

fn test(filters: &[String]) -> anyhow::Result<()> {
    let repository = repository()?;
    let folder = setup(&repository)?;
    test_run::build(&repository)?;
    let mut summary = test_run::run(&repository, &folder, filters)?;
    if conformance::matches(filters) {
        let places = conformance::Places {
            repository: &repository,
            test_deps: &folder,
        };
        let mut report = conformance::run(&places, filters)?;
        conformance::check_document(&places, &mut report);
        summary.add_conformance(report);
    }
    println!("\n{summary}");
    summary.verdict()
}

fn conformance(filters: &[String]) -> anyhow::Result<()> {
    let repository = repository()?;
    let folder = setup(&repository)?;
    test_run::build(&repository)?;
    if !conformance::matches(filters) {
        bail!(
            "no cell has a name that contains the filter; names look like {}",
            conformance::EXAMPLE
        );
    }
    let places = conformance::Places {
        repository: &repository,
        test_deps: &folder,
    };
    let report = conformance::run(&places, filters)?;
    conformance::write_document(&places, &report)?;
    println!(
        "\n{} cells passed, {} failed",
        report.passed,
        report.failures.len()
    );
    for failure in &report.failures {
        println!("  failed: {failure}");
    }
    if !report.failures.is_empty() {
        bail!("{} cells of the conformance suite failed", report.failures.len());
    }
    Ok(())
}

/// The folder above this crate. It is known when the crate is built, and cargo rebuilds after a
/// move.
fn repository() -> anyhow::Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .context("xtask has no folder above it")
}
