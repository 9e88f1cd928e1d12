//! The packages of distributions: installed into a clean Debian, started as the unit does, stopped
//! and removed.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::booted::Booted;
use super::server::{self, ANSWER, Server, command};
use super::{Places, Trial, debian};
use crate::package::tools;

const UNIT: &str = "usr/lib/systemd/system/rialto.service";

pub fn try_deb(places: &Places<'_>) -> anyhow::Result<()> {
    let file = places.built("rialto_", ".deb")?;
    let (root, release) = debian::root(places, "deb")?;
    let before = debian::paths(&root)?;
    fs::copy(&file, root.join("rialto.deb"))?;
    let trial = Trial::begin("deb");
    tools::output(&mut debian::inside(
        &root,
        None,
        &["dpkg", "--install", "/rialto.deb"],
    ))?;
    fs::remove_file(root.join("rialto.deb"))?;
    for unit in [
        "multi-user.target.wants/rialto.service",
        "sockets.target.wants/rialto.socket",
    ] {
        let link = root.join("etc/systemd/system").join(unit);
        ensure!(link.is_symlink(), "{unit} is not enabled");
    }
    trial.reports(&format!("installed in Debian {release}, and enabled"));
    serves(places, &trial, &root)?;
    tools::output(&mut debian::inside(&root, None, &["dpkg", "--purge", "rialto"]))?;
    nothing_is_left(&root, &before)?;
    ensure!(user(&root).is_none(), "the user rialto is left");
    trial.reports("purged: no file and no user is left");
    serves_under_systemd(places, &file)
}

/// Installs the package where systemd runs, and lets it do with the service what it does on a
/// machine.
fn serves_under_systemd(places: &Places<'_>, file: &Path) -> anyhow::Result<()> {
    let (root, release) = debian::root(places, "booted")?;
    fs::copy(file, root.join("rialto.deb"))?;
    let trial = Trial::begin("deb");
    let log = places.scratch.join("trial/booted.log");
    let machine = match Booted::start(&root, &log) {
        Ok(machine) => machine,
        Err(error) => {
            // Containers that are closed enough let no systemd run.
            trial.reports(&format!("systemd does not run here: {error:#}"));
            return Ok(());
        }
    };
    let trial = Trial::begin("deb");
    let apt = |words: &[&str]| {
        let start = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes"];
        machine.run(&[&start, words].concat())
    };
    let install = || apt(&["install", "--no-install-recommends", "/rialto.deb"]);
    let answers = || -> anyhow::Result<()> {
        let url = "http://127.0.0.1:3000/demo/mcp";
        let printed = machine.run(&["rialto", "call", url, "add", "a=2", "b=40"])?;
        ensure!(printed.contains(ANSWER), "the call was answered by: {printed}");
        Ok(())
    };
    let property = |name: &str| -> anyhow::Result<String> {
        let property = format!("--property={name}");
        let printed = machine.run(&["systemctl", "show", "--value", &property, "rialto.service"])?;
        Ok(printed.trim().to_owned())
    };
    install()?;
    answers()?;
    trial.reports_with_time(&format!(
        "apt-get install in Debian {release} with systemd, and the service answers at its socket"
    ));
    let status = machine.run(&["cat", &format!("/proc/{}/status", property("MainPID")?)])?;
    let runs_as = server::user_in(&status);
    ensure!(
        runs_as.is_some() && runs_as == user(&root),
        "it runs as user {runs_as:?}"
    );
    ensure!(
        status.lines().any(|line| line == "CapBnd:\t0000000000000000"),
        "it has rights: {status}"
    );
    trial.reports("runs as the user rialto, without any right");
    machine.run(&["systemctl", "kill", "--signal=KILL", "rialto.service"])?;
    answers()?;
    ensure!(property("NRestarts")? == "1", "systemd has not started it again");
    trial.reports("killed: the next call is answered by a new process");
    apt(&["remove", "rialto"])?;
    install()?;
    answers()?;
    trial.reports("removed and installed again, it answers");
    machine.run(&["systemctl", "stop", "rialto.socket", "rialto.service"])?;
    let end = (property("ActiveState")?, property("Result")?);
    ensure!(
        end == ("inactive".to_owned(), "success".to_owned()),
        "it has stopped as {end:?}"
    );
    apt(&["purge", "rialto"])?;
    fs::remove_file(root.join("rialto.deb"))?;
    let paths = debian::paths(&root)?;
    let left: Vec<&String> = paths.iter().filter(|path| path.contains("rialto")).collect();
    ensure!(
        left.is_empty() && user(&root).is_none(),
        "these are left: {left:?}"
    );
    trial.reports("stopped, purged: nothing of that name is left");
    Ok(())
}

pub fn try_rpm(places: &Places<'_>) -> anyhow::Result<()> {
    let file = places.built("rialto-", ".rpm")?;
    let (root, release) = debian::root(places, "rpm")?;
    // Where packages for rpm come from there is a package that owns this folder.
    fs::create_dir_all(root.join("usr/share/licenses"))?;
    let before = debian::paths(&root)?;
    let rpm = || {
        let mut rpm = command("rpm");
        rpm.arg("--root").arg(&root).args(["--dbpath", "/var/lib/rpm"]);
        rpm
    };
    let trial = Trial::begin("rpm");
    tools::output(rpm().arg("--initdb"))?;
    // The libraries are those of Debian, which the database of rpm does not know.
    tools::output(rpm().args(["--install", "--nodeps"]).arg(&file))?;
    trial.reports(&format!("installed by rpm in a root of Debian {release}"));
    let verified = tools::stdout(rpm().args(["--verify", "--nodeps", "rialto"]))?;
    ensure!(verified.trim().is_empty(), "rpm --verify finds: {verified}");
    serves(places, &trial, &root)?;
    tools::output(rpm().args(["--erase", "rialto"]))?;
    nothing_is_left(&root, &before)?;
    trial.reports("erased: no file is left");
    Ok(())
}

/// Checks the units, and runs the command of the service as its user.
fn serves(places: &Places<'_>, trial: &Trial, root: &Path) -> anyhow::Result<()> {
    let user = user(root).context("the package has made no user")?;
    let configuration = fs::metadata(root.join("etc/rialto/destinations.yml"))?;
    ensure!(
        configuration.permissions().mode() & 0o777 == 0o640
            && configuration.uid() == 0
            && configuration.gid() == user,
        "the configuration is not for root and the service alone"
    );
    let mut verify = Command::new("systemd-analyze");
    verify.arg(format!("--root={}", root.display())).args([
        "--man=no",
        "verify",
        "rialto.service",
        "rialto.socket",
    ]);
    let found = tools::output(&mut verify)?;
    let found = String::from_utf8_lossy(&found.stderr).into_owned();
    let mut ours: Vec<&str> = found.lines().filter(|line| line.contains("rialto")).collect();
    // Older ones do not know this type, and take the line before it: the unit has both.
    ours.retain(|line| !line.ends_with("Failed to parse service type, ignoring: notify-reload"));
    ensure!(ours.is_empty(), "systemd-analyze finds: {}", ours.join("\n"));
    trial.reports("systemd-analyze verify finds nothing in its units");

    // What systemd does for the lines StateDirectory= and StateDirectoryMode=.
    let state = root.join("var/lib/rialto");
    fs::create_dir_all(&state)?;
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700))?;
    std::os::unix::fs::chown(&state, Some(user), Some(user))?;
    let unit = fs::read_to_string(root.join(UNIT))?;
    let values = |key: &str| -> Vec<String> {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(key));
        lines
            .flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    let mut line = vec!["/usr/bin/env".to_owned()];
    line.extend(values("Environment="));
    line.extend(values("ExecStart="));
    // The address comes from the socket of systemd, which is not here.
    line.extend(["--listen", "127.0.0.1:0"].map(str::to_owned));
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut start = debian::inside(root, Some("rialto:rialto"), &words);
    start.current_dir("/");
    let log = places.scratch.join("trial").join(format!("{}.log", trial.name));
    let server = Server::start(&mut start, log)?;
    server.answers()?;
    trial.reports_with_time("the command of its unit answers");
    let runs_as = server::user_of(server.pid())?;
    ensure!(runs_as == user, "it runs as user {runs_as} and not {user}");
    ensure!(state.join("state").is_dir(), "it keeps no state");
    let status = server.stop()?;
    ensure!(status.success(), "after SIGTERM it ended with {status}");
    trial.reports("runs as the user rialto, ends on SIGTERM with code 0");
    Ok(())
}

/// Returns the number of the user that packages make.
fn user(root: &Path) -> Option<u32> {
    let users = fs::read_to_string(root.join("etc/passwd")).ok()?;
    let line = users.lines().find_map(|line| line.strip_prefix("rialto:"))?;
    line.split(':').nth(1)?.parse().ok()
}

fn nothing_is_left(root: &Path, before: &std::collections::BTreeSet<String>) -> anyhow::Result<()> {
    let after = debian::paths(root)?;
    let left: Vec<&String> = after.difference(before).collect();
    ensure!(left.is_empty(), "these are left: {left:?}");
    let lost: Vec<&String> = before.difference(&after).collect();
    ensure!(lost.is_empty(), "these are lost: {lost:?}");
    Ok(())
}
