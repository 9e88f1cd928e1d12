//! The tarballs: the portable one in an old Debian, the static one in a root with nothing in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::server::{SERVE_DEMO, Server};
use super::{Places, Trial, debian};
use crate::package::program::Linking;
use crate::package::tools;

pub fn try_out(places: &Places<'_>, linking: Linking) -> anyhow::Result<()> {
    let end = format!("{}.tar.gz", linking.target());
    let file = places.built("rialto-", &end)?;
    let (root, place) = match linking {
        Linking::Portable => {
            let (root, release) = debian::root(places, "tarball")?;
            (root, format!("Debian {release}"))
        }
        Linking::Static => (places.empty("empty")?, "an empty root".to_owned()),
    };
    let trial = Trial::begin("tarball");
    let folder = unpack(&file, &root)?;
    let program = format!("/{folder}/rialto");
    let serve: Vec<&str> = std::iter::once(program.as_str()).chain(SERVE_DEMO).collect();
    let log = places.scratch.join("trial/tarball.log");
    let server = Server::start(&mut debian::inside(&root, None, &serve), log)?;
    server.answers()?;
    trial.reports_with_time(&format!("{} answers in {place}", linking.target()));
    let status = server.stop()?;
    ensure!(status.success(), "after SIGTERM it ended with {status}");
    trial.reports("ends on SIGTERM with code 0");
    Ok(())
}

/// Unpacks an archive into a root, and returns the folder that it has made.
fn unpack(file: &Path, root: &Path) -> anyhow::Result<String> {
    tools::output(Command::new("tar").arg("-xzf").arg(file).arg("-C").arg(root))?;
    let name = file
        .file_name()
        .map(PathBuf::from)
        .context("an archive has a name")?;
    let name = name.to_string_lossy();
    Ok(name.trim_end_matches(".tar.gz").to_owned())
}
