//! The program that is packaged: built or given, without its symbols, and what it needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail};

use super::tools;
use super::tree::Tree;
use super::version::Version;
use crate::test_deps::PACKAGING_PYTHON;

/// How a program finds the libraries of the system.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Linking {
    /// Linked against an old glibc, so that it runs on every distribution that has one.
    Portable,
    /// Without any library. Names are looked up in files and by DNS alone, so it is for images and
    /// for systems without glibc: glibc cannot load the plug-ins of another version of itself, and
    /// ends the process where `/etc/nsswitch.conf` names one.
    Static,
}

/// The glibc that portable programs are linked against; that of RHEL 7.
const OLD_GLIBC: &str = "2.17";

#[derive(Debug)]
pub struct Program {
    pub linking: Linking,
    /// The stripped program.
    pub bytes: Arc<[u8]>,
    /// Its symbols, for a debugger.
    pub symbols: Arc<[u8]>,
    pub needs: Needs,
    /// Completions and pages of the manual, as the program prints them.
    pub shell: Shell,
}

/// What shells and `man` read.
#[derive(Debug)]
pub struct Shell {
    pub bash: Arc<[u8]>,
    pub zsh: Arc<[u8]>,
    pub fish: Arc<[u8]>,
    /// Each page with the name of its file.
    pub pages: Vec<(String, Arc<[u8]>)>,
}

/// The libraries that a program is linked with.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Needs {
    pub libraries: Vec<String>,
    /// The newest version of a symbol of glibc: 2 and 17.
    pub glibc: Option<(u32, u32)>,
}

/// Where programs are built, and how.
#[derive(Debug)]
pub struct Builder<'a> {
    pub repository: &'a Path,
    pub test_deps: &'a Path,
    pub profile: &'a str,
    pub version: &'a Version,
    /// A folder that this run may fill.
    pub scratch: &'a Path,
}

impl Linking {
    /// Returns the last part of names of archives.
    pub fn target(self) -> &'static str {
        match self {
            Linking::Portable => "x86_64-unknown-linux-gnu",
            Linking::Static => "x86_64-unknown-linux-static",
        }
    }
}

impl Builder<'_> {
    /// Builds a program, or takes the one that is given, and learns what it needs.
    pub fn program(&self, linking: Linking, given: Option<&Path>) -> anyhow::Result<Program> {
        let built = match given {
            Some(path) => path.to_owned(),
            None => self.build(linking)?,
        };
        self.split(linking, &built)
            .with_context(|| format!("cannot package {}", built.display()))
    }

    fn build(&self, linking: Linking) -> anyhow::Result<PathBuf> {
        const TARGET: &str = "x86_64-unknown-linux-gnu";
        let mut command = Command::new("cargo");
        command.current_dir(self.repository);
        let target_dir = self.repository.join("target").join(match linking {
            Linking::Portable => "package-portable",
            Linking::Static => "package-static",
        });
        let mut flags = self.remapped("--remap-path-prefix=", &target_dir)?;
        match linking {
            Linking::Portable => {
                let tools = self.test_deps.join(PACKAGING_PYTHON).join("bin");
                command
                    .env("PATH", tools::path_with(&tools)?)
                    .env("CARGO_ZIGBUILD_PYTHON_PATH", tools.join("python"))
                    .args(["zigbuild", "--target", &format!("{TARGET}.{OLD_GLIBC}")]);
            }
            Linking::Static => {
                flags.push("-Ctarget-feature=+crt-static".to_owned());
                command
                    .args(["build", "--target", TARGET])
                    // There is no keyring in an image.
                    .arg("--no-default-features");
            }
        }
        command
            .args(["--locked", "--package", "rialto", "--bin", "rialto"])
            .args(["--profile", self.profile, "--target-dir"])
            .arg(&target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            // The libraries in C name their files too.
            .env(
                "CFLAGS",
                self.remapped("-ffile-prefix-map=", &target_dir)?.join(" "),
            )
            .env("RIALTO_BUILD", self.version.build());
        eprintln!("xtask: {}", tools::line(&command));
        let status = command.status().context("cargo does not run")?;
        if !status.success() {
            bail!("the build of the {linking:?} program ended with {status}");
        }
        let folder = match self.profile {
            "dev" => "debug",
            other => other,
        };
        Ok(target_dir.join(TARGET).join(folder).join("rialto"))
    }

    /// Returns an option for each folder of this machine whose name shall not be in a program.
    fn remapped(&self, option: &str, target_dir: &Path) -> anyhow::Result<Vec<String>> {
        let home = match std::env::var_os("CARGO_HOME") {
            Some(home) => PathBuf::from(home),
            None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
        };
        // The last one that fits wins.
        let folders = [
            (home.as_path(), "/cargo"),
            (self.repository, "/rialto"),
            (target_dir, "/target"),
        ];
        Ok(folders
            .iter()
            .map(|(folder, name)| format!("{option}{}={name}", folder.display()))
            .collect())
    }

    /// Takes the symbols out of a program, and reads what it needs.
    fn split(&self, linking: Linking, built: &Path) -> anyhow::Result<Program> {
        let folder = self.scratch.join(linking.target());
        std::fs::create_dir_all(&folder)?;
        let (program, symbols) = (folder.join("rialto"), folder.join("rialto.debug"));
        tools::output(
            Command::new("objcopy")
                .args(["--only-keep-debug", "--enable-deterministic-archives"])
                .args([built, &symbols]),
        )?;
        tools::output(Command::new("strip").arg("-o").args([&program, built]))?;
        // The link has the name of the file and its checksum, so a debugger finds it.
        tools::output(
            Command::new("objcopy")
                .current_dir(&folder)
                .args(["--add-gnu-debuglink=rialto.debug", "rialto"]),
        )?;
        let headers = tools::stdout(Command::new("objdump").arg("-p").arg(&program))?;
        let needs = Needs::of_headers(&headers);
        match linking {
            Linking::Static if !needs.libraries.is_empty() => {
                bail!("the static program needs {}", needs.libraries.join(", "));
            }
            Linking::Portable if needs.glibc.is_none() => bail!("the portable program needs no glibc"),
            Linking::Static | Linking::Portable => {}
        }
        Ok(Program {
            linking,
            bytes: std::fs::read(&program)?.into(),
            symbols: std::fs::read(&symbols)?.into(),
            needs,
            shell: self.shell(&program, &folder)?,
        })
    }

    fn shell(&self, program: &Path, folder: &Path) -> anyhow::Result<Shell> {
        let completions = |shell| -> anyhow::Result<Arc<[u8]>> {
            let printed = tools::output(Command::new(program).args(["completions", shell]))?;
            Ok(printed.stdout.into())
        };
        let pages = folder.join("man");
        std::fs::create_dir_all(&pages)?;
        tools::output(Command::new(program).arg("man").arg("--dir").arg(&pages))?;
        let mut found = Vec::new();
        for page in std::fs::read_dir(&pages)? {
            let page = page?;
            let name = page.file_name().to_string_lossy().into_owned();
            found.push((name, std::fs::read(page.path())?.into()));
        }
        found.sort();
        Ok(Shell {
            bash: completions("bash")?,
            zsh: completions("zsh")?,
            fish: completions("fish")?,
            pages: found,
        })
    }

    /// Returns whether a program is of this commit: its version and its build are these.
    pub fn is_of_this_tree(&self, program: &Path) -> anyhow::Result<bool> {
        let printed = tools::stdout(Command::new(program).arg("--version"))?;
        let expected = format!("rialto {} ({})", self.version.base(), self.version.build());
        Ok(printed.trim() == expected)
    }
}

impl Program {
    /// Returns the completions and the pages where every system has them, below `/usr`.
    pub fn system_files(&self) -> anyhow::Result<Tree> {
        let mut tree = Tree::default();
        let Shell {
            bash,
            zsh: _,
            fish,
            pages,
        } = &self.shell;
        tree.file("share/bash-completion/completions/rialto", Arc::clone(bash));
        tree.file("share/fish/vendor_completions.d/rialto.fish", Arc::clone(fish));
        for (name, page) in pages {
            tree.file(format!("share/man/man1/{name}.gz"), super::archive::gzip(page)?);
        }
        Ok(tree)
    }
}

impl Needs {
    /// Reads what `objdump -p` prints.
    fn of_headers(headers: &str) -> Self {
        let words = headers.split_whitespace();
        let versions: BTreeSet<(u32, u32)> = words
            .filter_map(|word| word.strip_prefix("GLIBC_"))
            .filter_map(|version| {
                let (major, minor) = version.split_once('.')?;
                // `2.2.5` is older than every version that matters.
                let minor = minor.split('.').next()?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            })
            .collect();
        let libraries = headers.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("NEEDED")).then(|| words.next())?
        });
        Self {
            libraries: libraries.map(str::to_owned).collect(),
            glibc: versions.last().copied(),
        }
    }

    /// Returns the needs for a person.
    pub fn shown(&self) -> String {
        match self.glibc {
            Some((major, minor)) => format!("glibc {major}.{minor} ({})", self.libraries.join(", ")),
            None => "no library".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_the_libraries_and_the_newest_symbol_of_glibc() {
        let headers = "\
Dynamic Section:
  NEEDED               libgcc_s.so.1
  NEEDED               libc.so.6
  SONAME               x

Version References:
  required from libc.so.6:
    0x09691974 0x00 17 GLIBC_2.3.4
    0x06969197 0x00 12 GLIBC_2.17
    0x09691a75 0x00 05 GLIBC_2.2.5
    0x0d696919 0x00 09 GLIBC_2.9
  required from libgcc_s.so.1:
    0x0b792650 0x00 06 GCC_3.0
";
        let needs = Needs::of_headers(headers);
        assert_eq!(needs.libraries, ["libgcc_s.so.1", "libc.so.6"]);
        assert_eq!(needs.glibc, Some((2, 17)));
        assert_eq!(needs.shown(), "glibc 2.17 (libgcc_s.so.1, libc.so.6)");
        assert_eq!(Needs::of_headers("Program Header:\n"), Needs::default());
    }
}
