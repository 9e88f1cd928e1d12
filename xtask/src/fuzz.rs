//! Runs the fuzz targets, one after another, each for a while.
//!
//! Hides the nightly toolchain, cargo-fuzz and where both keep their things. The corpus in the
//! repository is only read: what a run finds goes to `.test-deps`, and an input that breaks a
//! promise to `fuzz/artifacts`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The tool's version, exact like every other pin.
const CARGO_FUZZ: &str = "0.13.2";
const TOOLCHAIN: &str = "+nightly";

/// What to run.
#[derive(Debug, PartialEq)]
pub struct Wanted {
    /// All of them, if none is named.
    target: Option<String>,
    minutes: f64,
}

impl Wanted {
    pub fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let mut wanted = Self {
            target: None,
            minutes: 1.0,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if word == "--minutes" {
                let value = words.next().context("--minutes needs a number")?;
                wanted.minutes = value
                    .parse()
                    .ok()
                    .filter(|minutes: &f64| minutes.is_finite() && *minutes > 0.0)
                    .with_context(|| format!("--minutes {value} is no time"))?;
            } else if word.starts_with('-') || wanted.target.is_some() {
                bail!("`fuzz` does not know `{word}`: it takes one target and --minutes M");
            } else {
                wanted.target = Some(word.clone());
            }
        }
        Ok(wanted)
    }
}

pub fn run(repository: &Path, test_deps: &Path, wanted: &Wanted) -> anyhow::Result<()> {
    let all = targets(repository)?;
    let chosen: Vec<&String> =
        match &wanted.target {
            None => all.iter().collect(),
            Some(name) => vec![all.iter().find(|target| *target == name).with_context(|| {
                format!("there is no fuzz target `{name}`; there are: {}", all.join(", "))
            })?],
        };
    require_nightly()?;
    let tool = install(repository, test_deps)?;
    let seconds = (wanted.minutes * 60.0).ceil() as u64;
    let mut broken = Vec::new();
    for target in &chosen {
        let found = test_deps.join("fuzz-corpus").join(target);
        fs::create_dir_all(&found).with_context(|| format!("cannot create {}", found.display()))?;
        println!("xtask: fuzzing {target} for {seconds} s");
        // The first folder takes what is found, the second is only read.
        let status = Command::new("cargo")
            .arg(TOOLCHAIN)
            .args(["fuzz", "run", target])
            .arg(&found)
            .arg(Path::new("fuzz").join("corpus").join(target))
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .args([
                "-timeout=20",
                "-rss_limit_mb=2048",
                "-print_final_stats=1",
                "-verbosity=0",
            ])
            .arg("-dict=fuzz/mcp.dict")
            .current_dir(repository)
            // Cargo finds `cargo fuzz` by its name on the path; its own settings must not choose
            // the stable toolchain.
            .env("PATH", path_with(&tool)?)
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .status()
            .context("cannot run cargo fuzz")?;
        if !status.success() {
            broken.push(target.as_str());
        }
    }
    println!(
        "\n{} targets, {} with findings, {seconds} s each",
        chosen.len(),
        broken.len()
    );
    if !broken.is_empty() {
        bail!("see above, and fuzz/artifacts: {}", broken.join(", "));
    }
    Ok(())
}

/// Every target there is: the files of `fuzz/fuzz_targets`.
fn targets(repository: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in
        fs::read_dir(repository.join("fuzz").join("fuzz_targets")).context("cannot list the targets")?
    {
        let path = entry.context("cannot list the targets")?.path();
        if let Some(name) = path.file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn require_nightly() -> anyhow::Result<()> {
    let advice = "fuzzing needs the nightly toolchain, which is not here: run `rustup toolchain install nightly`. \
                  `cargo xtask test` checks the same properties on the stable one";
    let output = Command::new("rustc")
        .args([TOOLCHAIN, "--version"])
        .env_remove("RUSTUP_TOOLCHAIN")
        .output()
        .context(advice)?;
    if !output.status.success() {
        bail!("{advice}");
    }
    Ok(())
}

/// Installs cargo-fuzz where the tests' other tools are, and gives the folder of its binary.
fn install(repository: &Path, test_deps: &Path) -> anyhow::Result<std::path::PathBuf> {
    let root = test_deps.join("cargo");
    let folder = root.join("bin");
    let installed = Command::new(folder.join("cargo-fuzz"))
        .args(["fuzz", "--version"])
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(CARGO_FUZZ));
    if !installed {
        eprintln!("xtask: installing cargo-fuzz {CARGO_FUZZ}");
        let status = Command::new("cargo")
            .args([
                "install",
                "cargo-fuzz",
                "--locked",
                "--quiet",
                "--version",
                CARGO_FUZZ,
                "--root",
            ])
            .arg(&root)
            .current_dir(repository)
            .status()
            .context("cannot run cargo install")?;
        if !status.success() {
            bail!(
                "cargo-fuzz {CARGO_FUZZ} cannot be installed: check the network or the registry setting of cargo"
            );
        }
    }
    Ok(folder)
}

fn path_with(folder: &Path) -> anyhow::Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).context("a folder of PATH cannot be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent")
    }

    #[test]
    fn flags_say_what_to_run_and_for_how_long() {
        let parse =
            |text: &str| Wanted::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let wanted = parse("lines --minutes 0.5").unwrap();
        assert_eq!((wanted.target.as_deref(), wanted.minutes), (Some("lines"), 0.5));
        assert_eq!(parse("").unwrap().target, None);
        for wrong in ["--minutes", "--minutes x", "--minutes -1", "a b", "--seeds"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_target_is_built_and_has_a_corpus_and_a_twin() {
        let manifest = fs::read_to_string(repository().join("fuzz/Cargo.toml")).unwrap();
        let twins = [
            "crates/protocol/tests/properties/main.rs",
            "crates/protocol/tests/simulation/main.rs",
            "crates/rialto/src/config/tests/any_text.rs",
        ]
        .map(|file| fs::read_to_string(repository().join(file)).unwrap())
        .concat();
        let targets = targets(repository()).unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            assert!(
                manifest.contains(&format!("name = \"{target}\"")),
                "{target} is not built"
            );
            let corpus = repository().join("fuzz/corpus").join(&target);
            assert!(
                fs::read_dir(corpus).unwrap().count() > 0,
                "{target} has no corpus"
            );
            let replayed = twins.contains(&format!("corpus::each(\"{target}\""))
                || twins.contains(&format!("fuzz/corpus/{target}"));
            assert!(replayed, "{target} has no twin");
        }
    }
}
