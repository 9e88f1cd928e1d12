//! The texts of package managers that install a released file by its address: Homebrew, scoop,
//! winget, and the MCP registry.
//!
//! All of them are made from one [`Release`]: version and words from `Cargo.toml`, files and
//! checksums from `SHA256SUMS`. A text whose files are not in the release is not written, so that no
//! text promises what cannot be installed.

mod homebrew;
mod registry;
mod release;
mod scoop;
mod winget;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use release::Release;

/// The folder of the texts, in the folder of the released files.
const TEXTS: &str = "texts";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where `SHA256SUMS` is, and where the texts go. By default `dist` in the repository.
    dist: Option<PathBuf>,
    /// The address of the repository, if it is not that of `Cargo.toml`.
    repository: Option<String>,
    /// The texts are to be published: addresses that lead nowhere are refused.
    for_publishing: bool,
}

impl Wanted {
    pub fn parse(flags: &[String]) -> anyhow::Result<Self> {
        let mut wanted = Self {
            dist: None,
            repository: None,
            for_publishing: false,
        };
        let mut flags = flags.iter();
        while let Some(flag) = flags.next() {
            match flag.as_str() {
                "--dist" => wanted.dist = Some(flags.next().context("--dist needs a folder")?.into()),
                "--repository" => {
                    wanted.repository = Some(flags.next().context("--repository needs an address")?.clone());
                }
                "--publish" => wanted.for_publishing = true,
                _ => bail!(
                    "`package-texts` has no flag `{flag}`; it has --dist FOLDER, --repository URL and --publish"
                ),
            }
        }
        Ok(wanted)
    }
}

/// One text, and where it goes below the folder of the texts.
#[derive(Debug)]
struct Text {
    file: String,
    content: String,
}

/// Makes the texts of one package manager.
struct Maker {
    name: &'static str,
    /// Returns no text if the release has none of the files that this manager installs.
    make: fn(&Release) -> Vec<Text>,
    wants: &'static str,
}

const MAKERS: [Maker; 4] = [
    Maker {
        name: "Homebrew",
        make: homebrew::texts,
        wants: "a tarball for macOS or Linux",
    },
    Maker {
        name: "scoop",
        make: scoop::texts,
        wants: "a zip for Windows",
    },
    Maker {
        name: "winget",
        make: winget::texts,
        wants: "a zip for Windows",
    },
    Maker {
        name: "MCP registry",
        make: registry::texts,
        wants: "a package for npm, PyPI or MCP hosts",
    },
];

pub fn run(repository: &Path, wanted: &Wanted) -> anyhow::Result<()> {
    let dist = match &wanted.dist {
        Some(dist) => dist.clone(),
        None => repository.join("dist"),
    };
    let release = Release::read(repository, &dist, wanted.repository.as_deref())?;
    if wanted.for_publishing {
        release.check_address()?;
    }
    let folder = dist.join(TEXTS);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    for maker in MAKERS {
        let texts = (maker.make)(&release);
        if texts.is_empty() {
            println!("{}: not written, the release has not {}", maker.name, maker.wants);
        }
        for text in texts {
            let path = folder.join(&text.file);
            let above = path.parent().context("a text has a folder")?;
            fs::create_dir_all(above).with_context(|| format!("cannot make {}", above.display()))?;
            fs::write(&path, &text.content).with_context(|| format!("cannot write {}", path.display()))?;
            println!("{}: {}", maker.name, path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_understood() {
        let words = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
        let parsed = Wanted::parse(&words(&["--dist", "d", "--publish"])).expect("good flags");
        let expected = Wanted {
            dist: Some("d".into()),
            repository: None,
            for_publishing: true,
        };
        assert_eq!(parsed, expected);
        assert!(Wanted::parse(&words(&["--dist"])).is_err());
        assert!(Wanted::parse(&words(&["--draft"])).is_err());
    }

    #[test]
    fn release_without_files_has_no_text() {
        let release = Release::example("");
        for maker in MAKERS {
            assert!((maker.make)(&release).is_empty(), "{}", maker.name);
        }
    }
}
