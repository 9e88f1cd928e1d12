//! `cargo xtask package`: everything that people install, in `dist/`.
//!
//! Hides formats and tools. A package is made from the program and from files of this repository,
//! and has nothing of the machine in it: the same commit gives the same bytes. It refuses to call a
//! package a release that is none: see `version`.

mod archive;
mod checksum;
mod deb;
mod licences;
mod mcpb;
mod npm;
mod oci;
mod program;
mod pypi;
mod rpm;
mod system;
mod tarball;
mod tools;
mod tree;
mod trial;
mod version;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::test_deps;
use program::{Builder, Linking, Program};
use tree::Tree;
use version::Version;

/// A kind of package.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Format {
    Tarball,
    Pypi,
    Npm,
    Deb,
    Rpm,
    Oci,
    Mcpb,
}

impl Format {
    const ALL: [Self; 7] = [
        Self::Tarball,
        Self::Pypi,
        Self::Npm,
        Self::Deb,
        Self::Rpm,
        Self::Oci,
        Self::Mcpb,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Tarball => "tarball",
            Self::Pypi => "pypi",
            Self::Npm => "npm",
            Self::Deb => "deb",
            Self::Rpm => "rpm",
            Self::Oci => "oci",
            Self::Mcpb => "mcpb",
        }
    }

    /// Returns the programs that it has, each in a file of its own.
    fn programs(self) -> &'static [Linking] {
        match self {
            Self::Tarball | Self::Pypi | Self::Npm => &[Linking::Portable, Linking::Static],
            Self::Deb | Self::Rpm | Self::Mcpb => &[Linking::Portable],
            Self::Oci => &[Linking::Static],
        }
    }

    /// Returns the programs of the machine that make it.
    fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Tarball | Self::Pypi | Self::Npm | Self::Oci | Self::Mcpb => &[],
            Self::Deb => &["dpkg-deb"],
            Self::Rpm => &["rpmbuild"],
        }
    }
}

/// What the command line asks for.
#[derive(Debug, Eq, PartialEq)]
pub struct Wanted {
    formats: Vec<Format>,
    /// Whether no format was named: then `dist` is begun anew.
    all: bool,
    linkings: Vec<Linking>,
    profile: String,
    portable: Option<PathBuf>,
    static_: Option<PathBuf>,
    test: bool,
}

impl Wanted {
    pub fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let mut wanted = Self {
            formats: Vec::new(),
            all: false,
            linkings: vec![Linking::Portable, Linking::Static],
            profile: "dist".to_owned(),
            portable: None,
            static_: None,
            test: false,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.with_context(|| format!("`{argument}` wants a value"))
            };
            match argument.as_str() {
                "--test" => wanted.test = true,
                "--profile" => wanted.profile = value()?.clone(),
                "--binary" => wanted.portable = Some(value()?.into()),
                "--static-binary" => wanted.static_ = Some(value()?.into()),
                "--no-static" => wanted.linkings = vec![Linking::Portable],
                "--no-portable" => wanted.linkings = vec![Linking::Static],
                name => {
                    let format = Format::ALL.into_iter().find(|format| format.name() == name);
                    wanted.formats.push(format.with_context(|| {
                        let names = Format::ALL.map(Format::name).join(", ");
                        format!("there is no package `{name}`; there are {names}")
                    })?);
                }
            }
        }
        if wanted.formats.is_empty() {
            wanted.all = true;
            wanted.formats = Format::ALL.to_vec();
        }
        Ok(wanted)
    }

    fn programs(&self, format: Format) -> impl Iterator<Item = Linking> {
        let programs = format.programs().iter().copied();
        programs.filter(|linking| self.linkings.contains(linking))
    }

    fn needs(&self, linking: Linking) -> bool {
        let mut formats = self.formats.iter();
        formats.any(|format| self.programs(*format).any(|needed| needed == linking))
    }

    fn given(&self, linking: Linking) -> Option<&Path> {
        match linking {
            Linking::Portable => self.portable.as_deref(),
            Linking::Static => self.static_.as_deref(),
        }
    }
}

/// A file in `dist`.
#[derive(Debug)]
pub struct Artefact {
    name: String,
    bytes: Vec<u8>,
}

impl Artefact {
    fn new(name: String, bytes: Vec<u8>) -> Self {
        Self { name, bytes }
    }
}

/// What packages are made from, besides programs.
#[derive(Debug)]
pub struct Sources<'a> {
    repository: &'a Path,
    version: &'a Version,
    /// Where the code is, if the manifest of the workspace has it.
    repository_url: Option<String>,
    scratch: PathBuf,
    licences: OnceCell<String>,
}

impl<'a> Sources<'a> {
    fn new(repository: &'a Path, version: &'a Version, scratch: PathBuf) -> anyhow::Result<Self> {
        let manifest = std::fs::read_to_string(repository.join("Cargo.toml"))?;
        let url = manifest
            .lines()
            .find_map(|line| line.strip_prefix("repository = \"")?.strip_suffix('"'));
        Ok(Self {
            repository,
            version,
            repository_url: url.map(str::to_owned),
            scratch,
            licences: OnceCell::new(),
        })
    }

    #[cfg(test)]
    fn of_test(repository: &'a Path, version: &'a Version) -> Self {
        Self::new(repository, version, PathBuf::from("/no/such/folder")).unwrap()
    }

    /// Returns a text of the repository.
    fn text(&self, path: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.repository.join(path)).with_context(|| format!("cannot read {path}"))
    }

    /// Returns an empty folder for a tool.
    fn scratch(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.scratch.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Returns the licences of Rialto.
    fn own_licences(&self) -> anyhow::Result<Tree> {
        let mut tree = Tree::default();
        for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
            tree.text(file, &self.text(file)?);
        }
        Ok(tree)
    }

    /// Returns the licences of everything that is in a program.
    fn licences(&self, program: &Program) -> anyhow::Result<Tree> {
        let mut tree = self.own_licences()?;
        if self.licences.get().is_none() {
            let texts = licences::texts(&licences::components(self.repository, licences::PLATFORM)?)?;
            self.licences.get_or_init(|| texts);
        }
        let mut texts = self.licences.get().cloned().unwrap_or_default();
        if program.linking == Linking::Static {
            texts.push_str(&licences::glibc()?);
        }
        tree.text("LICENSE-THIRD-PARTY", &texts);
        Ok(tree)
    }
}

/// Prints the licences that a tarball has, for machines on which only the program is built.
pub fn print_licences(repository: &Path, target: &str) -> anyhow::Result<()> {
    print!("{}", licences::of_tarball(repository, target)?);
    Ok(())
}

pub fn run(repository: &Path, test_deps: &Path, wanted: &Wanted) -> anyhow::Result<()> {
    let mut needed = vec!["git", "cargo", "strip", "objcopy", "objdump"];
    needed.extend(wanted.formats.iter().flat_map(|format| format.tools()));
    if wanted.test {
        needed.extend(trial::tools(&wanted.formats));
    }
    tools::require(&needed)?;
    let builds_portable = wanted.needs(Linking::Portable) && wanted.portable.is_none();
    if builds_portable || wanted.test {
        test_deps::install_packaging(repository, test_deps)?;
    }

    let mut version = Version::read(repository)?;
    let scratch = repository.join("target").join("package");
    std::fs::create_dir_all(&scratch)?;
    for linking in [Linking::Portable, Linking::Static] {
        let given = wanted.given(linking).filter(|_| wanted.needs(linking));
        if let Some(given) = given
            && !builder(repository, test_deps, wanted, &version, &scratch).is_of_this_tree(given)?
        {
            version = version.with_foreign_binary();
        }
    }
    if let Some(warning) = version.warning() {
        eprintln!("xtask: {warning}");
    }
    let builder = builder(repository, test_deps, wanted, &version, &scratch);
    let sources = Sources::new(repository, &version, scratch.clone())?;
    let mut programs = Vec::new();
    for linking in [Linking::Portable, Linking::Static] {
        if wanted.needs(linking) {
            let program = builder.program(linking, wanted.given(linking))?;
            println!(
                "{:<60} {:>11} bytes, needs {}",
                format!("program for {}", linking.target()),
                program.bytes.len(),
                program.needs.shown()
            );
            programs.push(program);
        }
    }
    let dist = repository.join("dist");
    begin(&dist, wanted.all)?;
    let mut names = Vec::new();
    for artefact in artefacts(&sources, wanted, &programs)? {
        std::fs::write(dist.join(&artefact.name), &artefact.bytes)
            .with_context(|| format!("cannot write dist/{}", artefact.name))?;
        println!("{:<60} {:>11} bytes", artefact.name, artefact.bytes.len());
        names.push(artefact.name);
    }
    checksum::write(&dist, &names)?;
    if wanted.test {
        let chosen: Vec<(Format, Vec<Linking>)> = wanted
            .formats
            .iter()
            .map(|format| (*format, wanted.programs(*format).collect()))
            .collect();
        let mut portable = programs.iter();
        let portable = portable.find(|program| program.linking == Linking::Portable);
        let places = trial::Places {
            test_deps,
            dist: &dist,
            scratch: &scratch,
            names: &names,
            needs: portable.map(|program| &program.needs),
        };
        trial::run(&places, &chosen)?;
    }
    Ok(())
}

fn builder<'a>(
    repository: &'a Path,
    test_deps: &'a Path,
    wanted: &'a Wanted,
    version: &'a Version,
    scratch: &'a Path,
) -> Builder<'a> {
    Builder {
        repository,
        test_deps,
        profile: &wanted.profile,
        version,
        scratch,
    }
}

/// Makes `dist`, and removes what an earlier run has put there.
fn begin(dist: &Path, anew: bool) -> anyhow::Result<()> {
    std::fs::create_dir_all(dist)?;
    let list = dist.join(checksum::LIST);
    if anew && let Ok(before) = std::fs::read_to_string(&list) {
        for name in checksum::listed(&before) {
            // A list that was changed by hand shall not lead out of the folder.
            if !name.contains('/') && dist.join(name).is_file() {
                std::fs::remove_file(dist.join(name))?;
            }
        }
        std::fs::remove_file(list)?;
    }
    Ok(())
}

fn artefacts(sources: &Sources<'_>, wanted: &Wanted, programs: &[Program]) -> anyhow::Result<Vec<Artefact>> {
    let mut artefacts = Vec::new();
    for format in &wanted.formats {
        if *format == Format::Npm {
            artefacts.push(npm::main_package(sources)?);
        }
        for linking in wanted.programs(*format) {
            let mut programs = programs.iter();
            let Some(program) = programs.find(|program| program.linking == linking) else {
                bail!("the {linking:?} program was not built");
            };
            match format {
                Format::Tarball => artefacts.extend(tarball::build(sources, program)?),
                Format::Pypi => artefacts.push(pypi::build(sources, program)?),
                Format::Npm => artefacts.push(npm::platform_package(sources, program)?),
                Format::Deb => artefacts.push(deb::build(sources, program)?),
                Format::Rpm => artefacts.push(rpm::build(sources, program)?),
                Format::Oci => artefacts.push(oci::build(sources, program)?),
                Format::Mcpb => artefacts.push(mcpb::build(sources, program)?),
            }
        }
    }
    let components = licences::components(sources.repository, licences::PLATFORM)?;
    let bill = licences::bill_of_materials(&components, sources.version);
    let name = format!("rialto-{}.cdx.json", sources.version.semver());
    artefacts.push(Artefact::new(name, bill.into_bytes()));
    Ok(artefacts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(arguments: &[&str]) -> anyhow::Result<Wanted> {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        Wanted::parse(&arguments)
    }

    #[test]
    fn names_choose_packages_and_the_programs_that_they_need() {
        let all = wanted(&[]).unwrap();
        assert!(all.all && all.needs(Linking::Portable) && all.needs(Linking::Static));
        let deb = wanted(&["deb", "--binary", "x", "--test"]).unwrap();
        assert_eq!(deb.formats, [Format::Deb]);
        assert!(deb.test && !deb.all && !deb.needs(Linking::Static));
        assert_eq!(deb.given(Linking::Portable), Some(Path::new("x")));
        assert!(!wanted(&["npm", "--no-static"]).unwrap().needs(Linking::Static));
        let error = wanted(&["snap"]).unwrap_err().to_string();
        assert!(error.contains("there are tarball, pypi"), "{error}");
        assert!(wanted(&["--binary"]).is_err());
    }

    #[test]
    fn new_run_removes_what_an_earlier_one_listed_and_nothing_else() {
        let dist = std::env::temp_dir().join(format!("rialto-dist-{}", std::process::id()));
        std::fs::create_dir_all(&dist).unwrap();
        for name in ["old.deb", "own.txt"] {
            std::fs::write(dist.join(name), name).unwrap();
        }
        checksum::write(&dist, &["old.deb".to_owned()]).unwrap();
        begin(&dist, false).unwrap();
        assert!(dist.join("old.deb").exists());
        begin(&dist, true).unwrap();
        assert!(!dist.join("old.deb").exists() && !dist.join(checksum::LIST).exists());
        assert!(dist.join("own.txt").exists());
        std::fs::remove_dir_all(&dist).unwrap();
    }
}
