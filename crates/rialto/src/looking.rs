//! `rialto ps`, `rialto top` and `rialto tap`: what runs now, from the admin sockets of this user.

mod page;
pub(crate) mod table;
mod top;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use gateway::{escape, local_client};
use serde_json::{Value, json};

use crate::admin_socket::{Directory, Running};
use crate::config::Environment;
use crate::flags::looking::{PsFlags, TapFlags, TopFlags};
use crate::terminal::text::Style;
use crate::{exit, fail};
pub(crate) use page::ui;
use table::{Shape, Table};

/// The error where no gateway answers.
const NOTHING_RUNS: &str =
    "no gateway of this user runs: `rialto serve` starts one, `rialto service install` keeps one";

/// Runs a command that waits for other processes.
pub(crate) fn block_on(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    }
}

pub(crate) fn ps(flags: &PsFlags, environment: &Environment) -> ExitCode {
    block_on(async {
        let (running, silent) = Directory::of(environment).running().await;
        if flags.json {
            print(&format!("{}\n", as_json(&running, &silent)));
        } else {
            let shape = Shape {
                columns: columns(),
                sessions: flags.sessions,
                has_colour: has_colour(environment),
            };
            print(&Table::of(&running).text(shape));
            for why in &silent {
                note(why);
            }
        }
        match running.is_empty() {
            true => fail(exit::FAILED, NOTHING_RUNS),
            false => ExitCode::SUCCESS,
        }
    })
}

pub(crate) fn top(flags: &TopFlags, environment: &Environment) -> ExitCode {
    match top::Plan::of(flags) {
        Ok(plan) => block_on(top::run(plan, environment)),
        Err(message) => fail(exit::CONFIGURATION, &message),
    }
}

pub(crate) fn tap(flags: &TapFlags, environment: &Environment) -> ExitCode {
    block_on(async {
        let (running, _) = Directory::of(environment).running().await;
        let gateway = match choose(&running, &flags.name, flags.gateway) {
            Ok(Some(gateway)) => gateway,
            Ok(None) => return fail(exit::FAILED, &unknown(&running, &flags.name)),
            Err(message) => return fail(exit::CONFIGURATION, &message),
        };
        match follow(gateway, flags).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(
                exit::FAILED,
                &format!("the gateway ended, or this reader was too slow: {error}"),
            ),
        }
    })
}

/// Prints messages as they come, until there are enough, the gateway ends, or stdout does.
async fn follow(gateway: &Running, flags: &TapFlags) -> io::Result<()> {
    let path = format!("/v1/tap/{}", flags.name);
    let mut lines = local_client::open(&gateway.socket, &path).await?;
    if !lines.status.is_success() {
        let why = lines.next().await?.unwrap_or_default();
        return Err(io::Error::other(String::from_utf8_lossy(&why).into_owned()));
    }
    let mut left = flags.count.unwrap_or(u64::MAX);
    while left > 0
        && let Some(line) = lines.next().await?
    {
        // An empty line is a sign of life.
        if line.is_empty() {
            continue;
        }
        let mut stdout = io::stdout().lock();
        let written = stdout
            .write_all(&line)
            .and_then(|()| stdout.write_all(b"\n"))
            .and_then(|()| stdout.flush());
        if written.is_err() {
            // `head` has seen enough.
            return Ok(());
        }
        left -= 1;
    }
    Ok(())
}

/// Returns the gateway that has a destination of this name; `None` if no gateway has. An error
/// names those that the user has to choose from.
pub(crate) fn choose<'a>(
    running: &'a [Running],
    name: &str,
    pid: Option<u32>,
) -> Result<Option<&'a Running>, String> {
    let wanted = |gateway: &&Running| {
        let of_pid = pid.is_none_or(|pid| gateway.snapshot["pid"] == pid);
        of_pid && destination(gateway, name).is_some()
    };
    let found: Vec<&Running> = running.iter().filter(wanted).collect();
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only)),
        several => {
            let pids: Vec<String> = several
                .iter()
                .map(|gateway| gateway.snapshot["pid"].to_string())
                .collect();
            Err(format!(
                "several gateways have a destination `{name}`: choose one with --gateway {}",
                pids.join(" or --gateway ")
            ))
        }
    }
}

fn destination<'a>(gateway: &'a Running, name: &str) -> Option<&'a Value> {
    let destinations = gateway.snapshot["destinations"].as_array()?;
    destinations
        .iter()
        .find(|destination| destination["name"] == name && destination["configured"] == true)
}

/// Returns the error for a name that no gateway has.
pub(crate) fn unknown(running: &[Running], name: &str) -> String {
    if running.is_empty() {
        return NOTHING_RUNS.to_owned();
    }
    let names: std::collections::BTreeSet<&str> = running
        .iter()
        .filter_map(|gateway| gateway.snapshot["destinations"].as_array())
        .flatten()
        .filter_map(|destination| destination["name"].as_str())
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    format!(
        "no gateway that runs has a destination `{name}`; there is {}",
        names.join(", ")
    )
}

fn as_json(running: &[Running], silent: &[String]) -> Value {
    let gateways: Vec<Value> = running
        .iter()
        .map(|gateway| {
            let mut snapshot = gateway.snapshot.clone();
            snapshot["socket"] = gateway.socket.to_string_lossy().into();
            snapshot
        })
        .collect();
    json!({ "gateways": gateways, "silent": silent })
}

/// Returns the width of the terminal on stdout. What is piped is not cut.
pub(crate) fn columns() -> usize {
    if !io::stdout().is_terminal() {
        return usize::MAX;
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let columns = size
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0);
    columns.unwrap_or(80)
}

pub(crate) fn has_colour(environment: &Environment) -> bool {
    io::stdout().is_terminal()
        && environment.filled("NO_COLOR").is_none()
        && environment.get("TERM") != Some("dumb")
}

/// Writes to stdout. If that is closed, the exit code has the result.
pub(crate) fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

fn note(text: &str) {
    let text = escape::one_line(text, 300);
    let line = Style::Dim.paint(&text, io::stderr().is_terminal());
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(pid: u32, names: &[&str]) -> Running {
        let destinations: Vec<Value> = names
            .iter()
            .map(|name| json!({ "name": name, "configured": true }))
            .collect();
        Running {
            socket: format!("/run/{pid}.sock").into(),
            snapshot: json!({ "pid": pid, "destinations": destinations }),
        }
    }

    #[test]
    fn name_is_looked_up_at_all_gateways() {
        let running = [gateway(1, &["files"]), gateway(2, &["files", "git"])];
        let pid = |name, pid| {
            let chosen = choose(&running, name, pid).expect("no choice");
            chosen.map(|gateway| gateway.snapshot["pid"].clone())
        };
        assert_eq!(pid("git", None), Some(json!(2)));
        assert_eq!(pid("files", Some(1)), Some(json!(1)));
        assert_eq!(pid("other", None), None);
        let error = choose(&running, "files", None).expect_err("two have it");
        assert!(error.contains("--gateway 1 or --gateway 2"), "{error}");
        assert!(unknown(&running, "x").ends_with("there is files, git"));
        assert_eq!(unknown(&[], "x"), NOTHING_RUNS);
    }

    #[test]
    fn json_has_every_gateway_with_its_socket() {
        let json = as_json(&[gateway(7, &["a"])], &["x: refused".to_owned()]);
        assert_eq!(json["gateways"][0]["socket"], "/run/7.sock");
        assert_eq!(json["gateways"][0]["pid"], 7);
        assert_eq!(json["silent"][0], "x: refused");
    }
}
