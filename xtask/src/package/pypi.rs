//! The wheels `rialto-mcp`: the program, and a console script that becomes it.
//!
//! `uvx rialto-mcp` runs the script of that name. The program is called `rialto` everywhere.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Context;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::program::{Linking, Needs, Program};
use super::tree::Tree;
use super::{Artefact, Sources, archive, checksum};

pub fn build(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Artefact> {
    let version = sources.version.pep440();
    let tag = tag(program.linking, &program.needs)?;
    let mut tree = Tree::default();
    tree.program(
        format!("rialto_mcp-{version}.data/scripts/rialto"),
        Arc::clone(&program.bytes),
    );
    tree.text("rialto_mcp/__init__.py", "");
    tree.text("rialto_mcp/__main__.py", &sources.text("packaging/pypi/main.py")?);
    let info = format!("rialto_mcp-{version}.dist-info");
    let licences = sources.licences(program)?;
    tree.add(&format!("{info}/licenses/"), &licences);
    let names: Vec<&str> = licences.files().map(|(name, _)| name).collect();
    let readme = sources.text("packaging/pypi/README.md")?;
    tree.text(
        format!("{info}/METADATA"),
        &metadata(sources, &version, &names, &readme),
    );
    tree.text(format!("{info}/WHEEL"), &wheel(&tag));
    tree.text(
        format!("{info}/entry_points.txt"),
        "[console_scripts]\nrialto-mcp = rialto_mcp.__main__:main\n",
    );
    let record = record(&tree, &format!("{info}/RECORD"));
    tree.text(format!("{info}/RECORD"), &record);
    let name = format!("rialto_mcp-{version}-py3-none-{tag}.whl");
    Ok(Artefact::new(name, archive::zip(&tree, sources.version.epoch)?))
}

/// Returns the platform of a wheel: installers compare it with the machine's C library.
fn tag(linking: Linking, needs: &Needs) -> anyhow::Result<String> {
    match linking {
        Linking::Portable => {
            let (major, minor) = needs.glibc.context("a portable program needs a glibc")?;
            // PEP 600 begins with 2.5; what needs less runs there too.
            let minor = minor.max(5);
            Ok(format!("manylinux_{major}_{minor}_x86_64"))
        }
        // It has no library of either kind, and systems with glibc take the other wheel.
        Linking::Static => Ok("musllinux_1_1_x86_64".to_owned()),
    }
}

fn metadata(sources: &Sources<'_>, version: &str, licences: &[&str], readme: &str) -> String {
    let mut text = format!(
        "Metadata-Version: 2.4\n\
         Name: rialto-mcp\n\
         Version: {version}\n\
         Summary: Any MCP client, any MCP server: one native binary in between\n\
         Keywords: mcp,model context protocol,proxy,gateway,bridge\n\
         License-Expression: MIT OR Apache-2.0\n"
    );
    for licence in licences {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "License-File: {licence}");
    }
    if let Some(repository) = &sources.repository_url {
        let _ = writeln!(text, "Project-URL: Repository, {repository}");
    }
    text.push_str(
        "Classifier: Environment :: Console\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Classifier: Programming Language :: Rust\n\
         Requires-Python: >=3.8\n\
         Description-Content-Type: text/markdown\n\n",
    );
    text.push_str(readme);
    text
}

fn wheel(tag: &str) -> String {
    format!("Wheel-Version: 1.0\nGenerator: rialto\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n")
}

/// Returns the list of files with their checksums. It has none for itself.
fn record(tree: &Tree, own: &str) -> String {
    let mut lines: Vec<String> = tree
        .files()
        .map(|(path, bytes)| {
            let sum = BASE64_URL_SAFE_NO_PAD.encode(checksum::digest(bytes));
            format!("{path},sha256={sum},{}", bytes.len())
        })
        .collect();
    lines.push(format!("{own},,"));
    lines.sort();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_of_a_wheel_is_what_its_program_needs() {
        let needs = |minor| Needs {
            libraries: Vec::new(),
            glibc: Some((2, minor)),
        };
        let tag = |linking, needs| tag(linking, &needs).unwrap();
        assert_eq!(tag(Linking::Portable, needs(17)), "manylinux_2_17_x86_64");
        assert_eq!(tag(Linking::Portable, needs(34)), "manylinux_2_34_x86_64");
        assert_eq!(tag(Linking::Static, Needs::default()), "musllinux_1_1_x86_64");
    }

    #[test]
    fn record_has_every_file_and_no_checksum_of_itself() {
        let mut tree = Tree::default();
        tree.text("a", "abc");
        assert_eq!(
            record(&tree, "RECORD"),
            "RECORD,,\na,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\n"
        );
    }
}
