//! Installs what the tests need, pinned, into one ignored folder.
//!
//! Hides npm, pip and the stamps. It refuses to install anything that the repository does not pin to an
//! exact version, and to write anywhere outside the folder.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// One folder of installed packages: what pins it and who installs it.
struct Environment {
    /// The folder's name under `.test-deps`.
    name: &'static str,
    installer: Installer,
    /// Where its pins are, from the repository's root.
    pins: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Installer {
    Npm,
    Pip,
}

const ENVIRONMENTS: &[Environment] = &[
    Environment {
        name: "node",
        installer: Installer::Npm,
        pins: &[
            "tests/interop/node/package.json",
            "tests/interop/node/package-lock.json",
        ],
    },
    Environment {
        name: "python1",
        installer: Installer::Pip,
        pins: &["tests/interop/python/requirements.txt"],
    },
];

/// What only `bench` needs.
const PEERS: &[Environment] = &[
    Environment {
        name: "peers-node",
        installer: Installer::Npm,
        pins: &[
            "tests/peers/node/package.json",
            "tests/peers/node/package-lock.json",
        ],
    },
    Environment {
        name: "peers-python",
        installer: Installer::Pip,
        pins: &["tests/peers/python/requirements.txt"],
    },
];

/// Says which pins a folder was installed from. It is written last, so a broken install has none.
const STAMP: &str = ".installed";

pub fn install(repository: &Path, folder: &Path) -> anyhow::Result<()> {
    let _lock = lock(folder)?;
    for environment in ENVIRONMENTS {
        environment
            .install(repository, folder)
            .with_context(|| format!("cannot install `{}` for the tests", environment.name))?;
    }
    Ok(())
}

/// Installs the peers, and gives what went wrong with each that cannot be: a bench without them is still one.
pub fn install_peers(repository: &Path, folder: &Path) -> anyhow::Result<Vec<anyhow::Error>> {
    let _lock = lock(folder)?;
    let tried = PEERS.iter().map(|environment| {
        environment
            .install(repository, folder)
            .with_context(|| format!("`{}` is left out", environment.name))
    });
    Ok(tried.filter_map(Result::err).collect())
}

/// Two runs at once must not install into each other's feet; the second waits and finds the stamp.
fn lock(folder: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let lock = File::create(folder.join(".lock")).context("cannot create the install lock")?;
    lock.lock().context("cannot take the install lock")?;
    Ok(lock)
}

impl Environment {
    fn install(&self, repository: &Path, folder: &Path) -> anyhow::Result<()> {
        let target = folder.join(self.name);
        let tool_version = self.installer.tool_version()?;
        let stamp = self.stamp(repository, &tool_version)?;
        if fs::read_to_string(target.join(STAMP)).is_ok_and(|found| found == stamp) {
            return Ok(());
        }
        eprintln!("xtask: installing {} ({tool_version})", self.name);
        if target.exists() {
            fs::remove_dir_all(&target).with_context(|| format!("cannot clear {}", target.display()))?;
        }
        fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
        for pin in self.pins {
            let source = repository.join(pin);
            let name = source.file_name().context("a pin file has a name")?;
            fs::copy(&source, target.join(name)).with_context(|| format!("cannot copy {pin}"))?;
        }
        match self.installer {
            Installer::Npm => npm_install(&target)?,
            Installer::Pip => pip_install(&target)?,
        }
        fs::write(target.join(STAMP), stamp).context("cannot write the stamp")
    }

    /// The hash of the pins and of the tool's version: a virtual environment does not survive a new Python.
    fn stamp(&self, repository: &Path, tool_version: &str) -> anyhow::Result<String> {
        let mut hash = Fnv::new();
        hash.add(tool_version.as_bytes());
        for pin in self.pins {
            let text = fs::read(repository.join(pin)).with_context(|| format!("cannot read {pin}"))?;
            hash.add(&text);
        }
        Ok(format!("{:016x}\n", hash.0))
    }
}

impl Installer {
    /// Asks the tool for its version, which is also how a missing tool is noticed.
    fn tool_version(self) -> anyhow::Result<String> {
        match self {
            Installer::Npm => {
                let node = version_of("node", "install Node.js 18 or newer")?;
                let npm = version_of("npm", "install npm; it comes with Node.js")?;
                Ok(format!("node {node}, npm {npm}"))
            }
            Installer::Pip => version_of("python3", "install Python 3.10 or newer with its venv module"),
        }
    }
}

fn version_of(tool: &str, advice: &str) -> anyhow::Result<String> {
    let output = Command::new(tool)
        .arg("--version")
        .output()
        .with_context(|| format!("the tests need `{tool}`, which does not run: {advice}"))?;
    if !output.status.success() {
        bail!("`{tool} --version` ended with {}: {advice}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn npm_install(target: &Path) -> anyhow::Result<()> {
    // `ci` takes the lock file as it is or fails; scripts of packages have no business here.
    run(
        Command::new("npm")
            .args([
                "ci",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
            ])
            .current_dir(target),
        "check the network or the npm registry setting, then run `cargo xtask setup` again",
    )
}

fn pip_install(target: &Path) -> anyhow::Result<()> {
    run(
        Command::new("python3").args(["-m", "venv"]).arg(target),
        "install the venv module of Python 3 (package python3-venv on Debian and Ubuntu)",
    )?;
    run(
        Command::new(target.join("bin").join("python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--requirement"])
            .arg(target.join("requirements.txt")),
        "check the network or the pip index setting, then run `cargo xtask setup` again",
    )
}

fn run(command: &mut Command, advice: &str) -> anyhow::Result<()> {
    let shown = shown(command);
    let status = command
        .status()
        .with_context(|| format!("`{shown}` does not run: {advice}"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}: {advice}");
    }
    Ok(())
}

fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// FNV-1a. Unlike the standard library's hasher it stays the same from one Rust to the next.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        // The length goes in first, so that two files cannot trade bytes at their border.
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_changes_with_the_pins_and_with_the_tool() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
        let [node, python] = ENVIRONMENTS else {
            panic!("two environments are expected here");
        };
        let stamp = node.stamp(repository, "1").expect("the pins are there");
        assert_eq!(stamp, node.stamp(repository, "1").expect("the pins are there"));
        assert_ne!(stamp, node.stamp(repository, "2").expect("the pins are there"));
        assert_ne!(stamp, python.stamp(repository, "1").expect("the pins are there"));
    }

    #[test]
    fn every_pin_is_exact_and_names_no_registry() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
        for pin in ENVIRONMENTS
            .iter()
            .chain(PEERS)
            .flat_map(|environment| environment.pins)
        {
            let text = fs::read_to_string(repository.join(pin)).expect("the pins are there");
            assert!(!text.contains("\"resolved\""), "{pin} names a registry");
            assert!(!text.contains("index-url"), "{pin} names a registry");
            if pin.ends_with("requirements.txt") {
                for line in text.lines().filter(|line| !line.starts_with('#')) {
                    assert!(line.contains("=="), "{pin}: `{line}` is not exact");
                }
            }
            if pin.ends_with("package.json") {
                let package: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                let dependencies = package["dependencies"].as_object().expect("dependencies");
                for (name, version) in dependencies {
                    let version = version.as_str().expect("a version is a string");
                    assert!(
                        version.starts_with(|first: char| first.is_ascii_digit()),
                        "{pin}: {name} {version} is not exact"
                    );
                }
            }
        }
    }
}
