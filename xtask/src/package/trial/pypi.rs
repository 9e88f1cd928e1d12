//! The wheel: checked by the tools of PyPI, installed by pip, and run by uvx.

use anyhow::{Context, bail, ensure};

use super::server::{self, SERVE_DEMO, Server, command};
use super::{Places, Trial};
use crate::package::program::Linking;
use crate::package::tools;
use crate::test_deps::PACKAGING_PYTHON;

pub fn try_out(places: &Places<'_>, linking: Linking) -> anyhow::Result<()> {
    let tag = match linking {
        Linking::Portable => "manylinux",
        Linking::Static => "musllinux",
    };
    let mut names = places.names.iter();
    let name = names
        .find(|name| name.contains(tag) && name.ends_with(".whl"))
        .context("this run has built no such wheel")?;
    let wheel = places.dist.join(name);
    let bin = places.test_deps.join(PACKAGING_PYTHON).join("bin");
    let trial = Trial::begin("pypi");
    tools::output(command(bin.join("twine")).args(["check", "--strict"]).arg(&wheel))?;
    tools::output(command(bin.join("check-wheel-contents")).arg(&wheel))?;
    trial.reports(&format!("{tag}: twine and check-wheel-contents find nothing"));
    if linking == Linking::Static {
        // pip of this machine takes no wheel for musl; its program is that of the static tarball.
        return Ok(());
    }

    let folder = places.empty("pypi")?;
    let trial = Trial::begin("pypi");
    let venv = folder.join("venv");
    tools::output(command(bin.join("python")).args(["-m", "venv"]).arg(&venv))?;
    tools::output(
        command(venv.join("bin/pip"))
            .args(["install", "--quiet", "--no-index", "--disable-pip-version-check"])
            .arg(&wheel),
    )?;
    let version = tools::stdout(command(venv.join("bin/rialto-mcp")).arg("--version"))?;
    ensure!(version.starts_with("rialto "), "it prints {version}");
    let mut serve = command(venv.join("bin/rialto-mcp"));
    let server = Server::start(
        serve.args(SERVE_DEMO).env("HOME", &folder),
        folder.join("pip.log"),
    )?;
    server.answers()?;
    trial.reports_with_time("pip install, then rialto-mcp serve --demo answers");
    let program = server.program()?;
    ensure!(
        program == venv.join("bin/rialto"),
        "the process runs {}",
        program.display()
    );
    trial.reports("no Python process stays");
    server.answers()?;

    let trial = Trial::begin("pypi");
    let uvx = || {
        let mut uvx = command(bin.join("uvx"));
        uvx.args(["--offline", "--no-config", "--python"])
            .arg(bin.join("python"))
            .arg("--from")
            .arg(&wheel)
            .arg("rialto-mcp")
            .env("HOME", &folder)
            .env("UV_CACHE_DIR", folder.join("uv"))
            .env("UV_TOOL_DIR", folder.join("tools"));
        uvx
    };
    let by_uvx = Server::start(uvx().args(SERVE_DEMO), folder.join("uvx.log"))?;
    by_uvx.answers()?;
    trial.reports_with_time("uvx rialto-mcp serve --demo answers");
    let [child] = server::children(by_uvx.pid())?[..] else {
        bail!("uvx has not exactly one child");
    };
    ensure!(
        server::program_of(child)?.ends_with("rialto"),
        "the child of uvx is not rialto"
    );
    let status = by_uvx.stop()?;
    // A process that uvx ends by a signal has that for its code.
    ensure!(
        status.success() || status.code() == Some(143),
        "after SIGTERM uvx ended with {status}"
    );
    server::answers_over_stdio(uvx().args(["connect", &server.url()]))?;
    trial.reports("uvx rialto-mcp connect answers over stdio");
    let status = server.stop()?;
    ensure!(status.success(), "after SIGTERM it ended with {status}");
    Ok(())
}
