//! The Debian package, made by `dpkg-deb`.

use std::process::Command;

use super::program::{Needs, Program};
use super::tree::{Content, Tree};
use super::{Artefact, Sources, archive, system, tools};

pub fn build(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Artefact> {
    let mut tree = system::files(sources, program, "usr/share/zsh/vendor-completions")?;
    let doc = "usr/share/doc/rialto/";
    tree.file(
        format!("{doc}changelog.gz"),
        archive::gzip(sources.text("CHANGELOG.md")?.as_bytes())?,
    );
    tree.text(format!("{doc}copyright"), &copyright(sources, program)?);
    let size: usize = tree
        .entries()
        .values()
        .map(|entry| match &entry.content {
            Content::File(bytes) => bytes.len().div_ceil(1024),
            Content::Directory => 1,
        })
        .sum();
    tree.add("DEBIAN/", &scripts(sources, &program.needs, size)?);
    let version = sources.version.tilde();
    let folder = sources.scratch("deb")?;
    tree.write(&folder.join("root"))?;
    let name = format!("rialto_{version}_amd64.deb");
    let file = folder.join(&name);
    tools::output(
        Command::new("dpkg-deb")
            // Old systems know no newer compression; one thread makes the same bytes everywhere.
            .args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"])
            .args([&folder.join("root"), &file])
            .env("SOURCE_DATE_EPOCH", sources.version.epoch.to_string()),
    )?;
    Ok(Artefact::new(name, std::fs::read(file)?))
}

fn scripts(sources: &Sources<'_>, needs: &Needs, size: usize) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    let control = sources
        .text("packaging/deb/control")?
        .replace("@VERSION@", &sources.version.tilde())
        .replace("@SIZE@", &size.to_string())
        .replace("@DEPENDS@", &depends(needs));
    tree.text("control", &control);
    tree.text("conffiles", &format!("/{}\n", system::CONFIGURATION));
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        let text = sources.text(&format!("packaging/deb/{script}"))?;
        tree.program(script, text.into_bytes());
    }
    Ok(tree)
}

/// Returns the packages that have the libraries of a program.
fn depends(needs: &Needs) -> String {
    let mut packages = Vec::new();
    packages.extend(
        needs
            .glibc
            .map(|(major, minor)| format!("libc6 (>= {major}.{minor})")),
    );
    if needs.libraries.iter().any(|library| library == "libgcc_s.so.1") {
        packages.push("libgcc-s1".to_owned());
    }
    packages.join(", ")
}

fn copyright(sources: &Sources<'_>, program: &Program) -> anyhow::Result<String> {
    let mut text = String::from("Rialto is under the MIT licence or the Apache License 2.0, as you like.\n");
    for (name, bytes) in sources.licences(program)?.files() {
        text.push_str(&format!(
            "\n{}\n{name}\n\n{}\n",
            "=".repeat(80),
            String::from_utf8_lossy(bytes)
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_depends_on_the_libraries_of_its_program() {
        let mut needs = Needs {
            libraries: vec!["libc.so.6".to_owned()],
            glibc: Some((2, 17)),
        };
        assert_eq!(depends(&needs), "libc6 (>= 2.17)");
        needs.libraries.push("libgcc_s.so.1".to_owned());
        assert_eq!(depends(&needs), "libc6 (>= 2.17), libgcc-s1");
    }
}
