//! The container image: its layout checked, and run by crun with a read-only root.

use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::server::{self, SERVE_DEMO, Server, command};
use super::{Places, Trial, debian};
use crate::package::{checksum, tools};

pub fn try_out(places: &Places<'_>) -> anyhow::Result<()> {
    let file = places.built("rialto-", "-oci.tar")?;
    let folder = places.empty("oci")?;
    let layout = folder.join("layout");
    let root = folder.join("bundle/rootfs");
    std::fs::create_dir_all(&layout)?;
    std::fs::create_dir_all(&root)?;
    let trial = Trial::begin("oci");
    tools::output(Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(&layout))?;
    let index = json_of(&std::fs::read(layout.join("index.json"))?)?;
    let manifest = json_of(&blob(&layout, &index["manifests"][0])?)?;
    let config = json_of(&blob(&layout, &manifest["config"])?)?;
    for layer in manifest["layers"].as_array().context("an image has layers")? {
        blob(&layout, layer)?;
        let path = path_of(&layout, layer)?;
        tools::output(
            Command::new("tar")
                .arg("-xzpf")
                .arg(&path)
                .args(["--same-owner", "-C"])
                .arg(&root),
        )?;
    }
    trial.reports("every blob has the size and the checksum that refers to it");

    let signal = config["config"]["StopSignal"]
        .as_str()
        .context("the image names a signal")?;
    let container = Container {
        folder: &folder,
        name: format!("rialto-trial-{}", std::process::id()),
    };
    match container.run(&config["config"]) {
        Ok(server) => {
            server.answers()?;
            trial.reports_with_time("run by crun with a read-only root, it answers");
            runs_as_its_user(container.process()?)?;
            tools::output(container.crun().args(["kill", &container.name, signal]))?;
            ends(server.wait()?, signal)?;
        }
        Err(error) => {
            // Containers that are closed enough let no other one run.
            let reason = format!("{error:#}");
            let reason = reason.trim().lines().last().unwrap_or_default();
            trial.reports(&format!("crun does not run here: {reason}"));
            let arguments = arguments(&config["config"]);
            let words: Vec<&str> = arguments.iter().filter_map(Value::as_str).collect();
            let mut start = debian::inside_read_only(&root, "65532:65532", "var/lib/rialto", &words);
            for variable in config["config"]["Env"].as_array().into_iter().flatten() {
                let (name, value) = variable
                    .as_str()
                    .and_then(|text| text.split_once('='))
                    .context("a variable has a value")?;
                // The commands that mount are found by the PATH of this machine.
                if name != "PATH" {
                    start.env(name, value);
                }
            }
            let server = Server::start(&mut start, folder.join("chroot.log"))?;
            server.answers()?;
            trial.reports_with_time("run from its files with a read-only root, it answers");
            runs_as_its_user(server.pid())?;
            ensure!(signal == "SIGTERM", "the image stops on {signal}");
            ends(server.stop()?, signal)?;
        }
    }
    trial.reports(&format!("runs as user 65532, ends on {signal} with code 0"));
    Ok(())
}

fn runs_as_its_user(pid: u32) -> anyhow::Result<()> {
    let user = server::user_of(pid)?;
    ensure!(user == 65532, "it runs as user {user}");
    Ok(())
}

fn ends(status: ExitStatus, signal: &str) -> anyhow::Result<()> {
    ensure!(status.success(), "after {signal} it ended with {status}");
    Ok(())
}

/// Mounts the one arrangement of cgroups that crun accepts everywhere; nothing of it stays.
const UNIFIED: &str = r#"mount -t cgroup2 none /sys/fs/cgroup && exec "$0" "$@""#;

/// A container of crun.
struct Container<'a> {
    folder: &'a Path,
    name: String,
}

impl Container<'_> {
    fn crun(&self) -> Command {
        let mut crun = command("unshare");
        crun.args(["--mount", "--propagation", "private", "sh", "-c", UNIFIED, "crun"])
            .arg("--root")
            .arg(self.folder.join("state"))
            .arg("--cgroup-manager=disabled");
        crun
    }

    fn run(&self, config: &Value) -> anyhow::Result<Server> {
        let bundle = self.folder.join("bundle");
        std::fs::write(bundle.join("config.json"), format!("{:#}", runtime_spec(config)))?;
        let mut run = self.crun();
        run.args(["run", "--bundle"]).arg(bundle).arg(&self.name);
        Server::start(&mut run, self.folder.join("crun.log"))
    }

    fn process(&self) -> anyhow::Result<u32> {
        let state = json_of(&tools::output(self.crun().args(["state", &self.name]))?.stdout)?;
        let pid = state["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.context("crun knows the process")
    }
}

fn json_of(bytes: &[u8]) -> anyhow::Result<Value> {
    serde_json::from_slice(bytes).context("a file of the image is no JSON")
}

fn path_of(layout: &Path, reference: &Value) -> anyhow::Result<std::path::PathBuf> {
    let digest = reference["digest"].as_str().context("a reference has a digest")?;
    Ok(layout.join("blobs").join(digest.replace(':', "/")))
}

/// Returns a blob that is what refers to it.
fn blob(layout: &Path, reference: &Value) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path_of(layout, reference)?)?;
    let digest = format!("sha256:{}", checksum::sha256(&bytes));
    ensure!(
        reference["digest"] == digest && reference["size"] == bytes.len() as u64,
        "{reference} is not {digest} with {} bytes",
        bytes.len()
    );
    Ok(bytes)
}

/// Returns the program of an image with what serves the demo.
fn arguments(config: &Value) -> Vec<Value> {
    let mut arguments = config["Entrypoint"].as_array().cloned().unwrap_or_default();
    arguments.extend(SERVE_DEMO.map(Value::from));
    arguments
}

/// Returns what a runtime makes of an image: its user, its program and its environment, a root that
/// cannot be written, and no right.
fn runtime_spec(config: &Value) -> Value {
    let memory = |place: &str, options: Value| json!({ "destination": place, "type": "tmpfs", "source": "tmpfs", "options": options });
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 65532, "gid": 65532 },
            "args": arguments(config),
            "env": config["Env"],
            "cwd": config["WorkingDir"],
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            memory("/dev", json!(["nosuid", "mode=755"])),
            memory("/tmp", json!(["nosuid", "mode=1777"])),
            memory("/var/lib/rialto", json!(["nosuid", "mode=700", "uid=65532", "gid=65532"])),
        ],
        // The network is that of the machine, so that the address is reached from here.
        "linux": { "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "ipc" }] },
    })
}
