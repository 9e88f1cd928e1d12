//! The archive that is unpacked by hand, and the symbols of its program beside it.

use std::sync::Arc;

use super::archive;
use super::program::{Linking, Program};
use super::tree::Tree;
use super::{Artefact, Sources};

pub fn build(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Vec<Artefact>> {
    let name = name(sources, program);
    let mut tree = Tree::default();
    tree.add(&format!("{name}/"), &contents(sources, program)?);
    let mut symbols = Tree::default();
    symbols.file(format!("{name}/rialto.debug"), Arc::clone(&program.symbols));
    let epoch = sources.version.epoch;
    Ok(vec![
        Artefact::new(format!("{name}.tar.gz"), archive::tar_gz(&tree, epoch)?),
        Artefact::new(
            format!("{name}-symbols.tar.gz"),
            archive::tar_gz(&symbols, epoch)?,
        ),
    ])
}

/// Returns the name of the archive, and of the folder in it.
pub fn name(sources: &Sources<'_>, program: &Program) -> String {
    format!("rialto-{}-{}", sources.version.semver(), program.linking.target())
}

fn contents(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    tree.program("rialto", Arc::clone(&program.bytes));
    let shell = &program.shell;
    tree.file("completions/rialto.bash", Arc::clone(&shell.bash));
    tree.file("completions/_rialto", Arc::clone(&shell.zsh));
    tree.file("completions/rialto.fish", Arc::clone(&shell.fish));
    for (page, text) in &shell.pages {
        tree.file(format!("man/man1/{page}"), Arc::clone(text));
    }
    for file in ["README.md", "CHANGELOG.md"] {
        tree.text(file, &sources.text(file)?);
    }
    tree.add("", &sources.licences(program)?);
    if program.linking == Linking::Portable {
        for unit in ["rialto.service", "rialto.socket"] {
            tree.text(
                format!("systemd/{unit}"),
                &sources.text(&format!("packaging/systemd/{unit}"))?,
            );
        }
    }
    Ok(tree)
}
