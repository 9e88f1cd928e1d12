//! The npm packages, with a Node that can become another program and with one that cannot.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::server::{self, SERVE_DEMO, Server, command};
use super::{Places, Trial};
use crate::package::program::Linking;
use crate::package::tools;
use crate::test_deps;

/// Makes of a Node one that is older than 22.15: it cannot become another program.
const OLDER: &str = "--import=data:text/javascript,delete process.execve";

pub fn try_out(places: &Places<'_>, linking: Linking) -> anyhow::Result<()> {
    let name = |end: &str| {
        let mut names = places.names.iter();
        let found = names.find(|name| name.starts_with(end) && name.ends_with(".tgz"));
        found.map(|name| places.dist.join(name))
    };
    if linking == Linking::Static {
        // npm of this machine refuses a package for musl; its program is that of the static
        // tarball.
        let file = name("rialto-mcp-linux-x64-musl").context("this run has built no such package")?;
        let listed = tools::stdout(command("tar").arg("-tzf").arg(file))?;
        ensure!(listed.contains("package/bin/rialto\n"), "{listed}");
        return Ok(());
    }
    let platform = name("rialto-mcp-linux-x64-0").context("this run has built no package for Linux")?;
    let main = name("rialto-mcp-0").context("this run has built no main package")?;

    let folder = places.empty("npm")?;
    let trial = Trial::begin("npm");
    std::fs::write(folder.join("package.json"), "{\"private\":true}\n")?;
    tools::output(
        command("npm")
            .current_dir(&folder)
            // Packages for other platforms are in no cache; npm leaves out what is optional.
            .args([
                "install",
                "--offline",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
            ])
            .args([&platform, &main])
            .env("HOME", &folder),
    )?;
    let modern = test_deps::installed_node(places.test_deps);
    for (node, flags) in [(modern, &[][..]), (PathBuf::from("node"), &[OLDER])] {
        let becomes = has_execve(&node, flags)?;
        let run = || with_node(&node, flags, &folder);
        let server = Server::start(run().args(SERVE_DEMO), folder.join("npm.log"))?;
        server.answers()?;
        let version = tools::stdout(command(&node).arg("--version"))?;
        let version = version.trim();
        trial.reports_with_time(&format!("rialto-mcp serve --demo answers with Node {version}"));
        server::answers_over_stdio(run().args(["connect", &server.url()]))?;
        trial.reports("rialto-mcp connect answers over stdio");
        match becomes {
            true => {
                ensure!(server.program()?.ends_with("rialto"), "a Node process stays");
                trial.reports("no Node process stays");
            }
            false => {
                killed_child_is_reported(&run, &folder)?;
                trial.reports("Node waits; a program that is killed gives code 137");
            }
        }
        let status = server.stop()?;
        ensure!(status.success(), "after SIGTERM it ended with {status}");
        let status = run()
            .args(["serve", "--config", "/no/such/file.yml"])
            .output()?
            .status;
        ensure!(
            status.code() == Some(2),
            "a wrong configuration ends with {status}"
        );
        trial.reports("SIGTERM and exit codes pass");
    }
    Ok(())
}

/// Returns the script as npm links it, run by a certain Node.
fn with_node(node: &Path, flags: &[&str], folder: &Path) -> Command {
    let mut command = command(node);
    command
        .args(flags)
        .arg(folder.join("node_modules/.bin/rialto-mcp"))
        .env("HOME", folder);
    command
}

fn has_execve(node: &Path, flags: &[&str]) -> anyhow::Result<bool> {
    let asked = ["-p", "typeof process.execve"];
    let printed = tools::stdout(command(node).args(flags).args(asked))?;
    Ok(printed.trim() == "function")
}

fn killed_child_is_reported(run: &dyn Fn() -> Command, folder: &Path) -> anyhow::Result<()> {
    let server = Server::start(run().args(SERVE_DEMO), folder.join("killed.log"))?;
    let [child] = server::children(server.pid())?[..] else {
        bail!("Node has not exactly one child");
    };
    let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
    kill_process(pid.context("a process has a number")?, Signal::KILL)?;
    let status = server.wait()?;
    ensure!(status.code() == Some(137), "Node ended with {status}");
    Ok(())
}
