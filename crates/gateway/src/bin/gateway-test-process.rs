//! Development only: the processes that `crates/gateway/tests/process.rs` starts.
//!
//! `bridge` is a Rialto in small: one child that ignores SIGTERM, under a warden. `warden` is that
//! warden.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Error, Result, Write as _};

use gateway::backend::process::{LaunchOrder, Launcher, Running, WardenCommand, environment, warden};
use gateway::settings::Inherits;
use tokio::io::AsyncBufReadExt as _;

/// A child with a grandchild. Both ignore SIGTERM, and the grandchild's process id is the first
/// line on stdout.
const STUBBORN: &str = "(trap '' TERM; exec sleep 1000) & echo $!; trap '' TERM; while :; do wait; done";

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("warden") => {
            warden::run();
            Ok(())
        }
        Some("bridge") => tokio::runtime::Runtime::new()?.block_on(bridge()),
        _ => Err(Error::other("gateway-test-process bridge|warden")),
    }
}

/// Writes the process ids of child and grandchild, then answers each line on stdin once the warden
/// knows the child.
async fn bridge() -> Result<()> {
    let own: OsString = std::env::current_exe()?.into();
    let launcher = Launcher::new(WardenCommand {
        argv: vec![own, "warden".into()],
    });
    let env = environment(
        [("PATH", "/usr/local/bin:/usr/bin:/bin")],
        Inherits::AllowList,
        &BTreeMap::new(),
    );
    let order = LaunchOrder {
        argv: ["/bin/sh", "-c", STUBBORN].map(str::to_owned).to_vec(),
        env,
        cwd: None,
    };
    let Running {
        pid,
        mut stdout,
        child,
        stdin,
        ..
    } = launcher.launch(&order).map_err(Error::other)?;
    let mut grandchild = String::new();
    tokio::io::BufReader::with_capacity(1, &mut stdout)
        .read_line(&mut grandchild)
        .await?;
    write(&format!("{pid} {}", grandchild.trim_end()))?;
    let mut input = tokio::io::BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    while input.read_line(&mut line).await? > 0 {
        launcher.guarded().await;
        write("guarded")?;
    }
    drop((stdin, child));
    Ok(())
}

fn write(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
