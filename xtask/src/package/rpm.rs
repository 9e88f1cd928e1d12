//! The RPM package, made by `rpmbuild`.

use std::process::Command;

use anyhow::Context;

use super::program::{Needs, Program};
use super::tree::Tree;
use super::{Artefact, Sources, system, tools};

pub fn build(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Artefact> {
    let mut tree = system::files(sources, program, "usr/share/zsh/site-functions")?;
    tree.add("usr/share/licenses/rialto/", &sources.licences(program)?);
    tree.text(
        "usr/share/doc/rialto/CHANGELOG.md",
        &sources.text("CHANGELOG.md")?,
    );
    let version = sources.version.tilde();
    let folder = sources.scratch("rpm")?;
    let root = folder.join("root");
    tree.write(&root)?;
    let spec = sources
        .text("packaging/rpm/rialto.spec")?
        .replace("@VERSION@", &version)
        .replace("@ROOT@", &root.display().to_string())
        .replace("@DEPENDS@", &requires(&program.needs))
        .replace("@FILES@\n", &files(&tree));
    let spec_file = folder.join("rialto.spec");
    std::fs::write(&spec_file, spec)?;
    tools::output(
        Command::new("rpmbuild")
            .arg("-bb")
            .arg(&spec_file)
            .args(["--target", "x86_64"])
            .args(["--define", &format!("_topdir {}", folder.join("top").display())])
            .args(["--define", "_buildhost rialto"])
            .args(["--define", "_binary_payload w6.xzdio"])
            .args(["--define", "use_source_date_epoch_as_buildtime 1"])
            .args(["--define", "clamp_mtime_to_source_date_epoch 1"])
            .args(["--define", "source_date_epoch_from_changelog 0"])
            .env("SOURCE_DATE_EPOCH", sources.version.epoch.to_string()),
    )?;
    let name = format!("rialto-{version}-1.x86_64.rpm");
    let built = folder.join("top/RPMS/x86_64").join(&name);
    let bytes = std::fs::read(&built).with_context(|| format!("rpmbuild made no {name}"))?;
    Ok(Artefact::new(name, bytes))
}

/// Folders that belong to the package, or to packages that it does not need.
const FOLDERS: [&str; 6] = [
    "usr/share/doc/rialto",
    "usr/share/fish",
    "usr/share/fish/vendor_completions.d",
    "usr/share/licenses/rialto",
    "usr/share/zsh",
    "usr/share/zsh/site-functions",
];

/// Returns the list of files. The configuration has a line of its own in the spec.
fn files(tree: &Tree) -> String {
    let folders = FOLDERS.iter().map(|path| format!("%dir /{path}\n"));
    let files = tree.files().filter(|(path, _)| *path != system::CONFIGURATION);
    folders
        .chain(files.map(|(path, _)| format!("/{path}\n")))
        .collect()
}

/// Returns the libraries of a program, as rpm names what packages provide.
fn requires(needs: &Needs) -> String {
    let mut requires: Vec<String> = Vec::new();
    for library in &needs.libraries {
        match needs.glibc {
            Some((major, minor)) if library == "libc.so.6" => {
                requires.push(format!("{library}(GLIBC_{major}.{minor})(64bit)"));
            }
            _ => requires.push(format!("{library}()(64bit)")),
        }
    }
    requires.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_requires_the_libraries_of_its_program() {
        let needs = Needs {
            libraries: vec!["libm.so.6".to_owned(), "libc.so.6".to_owned()],
            glibc: Some((2, 17)),
        };
        assert_eq!(
            requires(&needs),
            "libm.so.6()(64bit), libc.so.6(GLIBC_2.17)(64bit)"
        );
    }
}
