//! `rialto ui`: the page of a gateway that runs, in the browser.

use std::process::ExitCode;

use url::Url;

use super::{NOTHING_RUNS, block_on, choose, note, print, unknown};
use crate::admin_socket::{Directory, Running};
use crate::config::Environment;
use crate::flags::looking::UiFlags;
use crate::{exit, fail};

/// The error of a gateway that has no page.
const NO_PAGE: &str = "no page: it is switched off (`ui: false`), the gateway has no listener, or other machines can \
     reach it without `auth`";

pub(crate) fn ui(flags: &UiFlags, environment: &Environment) -> ExitCode {
    let (running, _) = block_on_running(environment);
    if running.is_empty() {
        return fail(exit::FAILED, NOTHING_RUNS);
    }
    let gateway = match &flags.name {
        Some(name) => match choose(&running, name, flags.gateway) {
            Ok(Some(gateway)) => gateway,
            Ok(None) => return fail(exit::FAILED, &unknown(&running, name)),
            Err(message) => return fail(exit::CONFIGURATION, &message),
        },
        None => match only(&running, flags.gateway) {
            Ok(gateway) => gateway,
            Err(message) => return fail(exit::CONFIGURATION, &message),
        },
    };
    let Some(address) = address(gateway, flags.name.as_deref()) else {
        return fail(exit::FAILED, NO_PAGE);
    };
    print(&format!("{address}\n"));
    if !flags.print
        && let Err(error) = oauth::Browser::open(&address)
    {
        note(&format!(
            "no browser could be opened ({error}): open the address yourself"
        ));
    }
    ExitCode::SUCCESS
}

fn block_on_running(environment: &Environment) -> (Vec<Running>, Vec<String>) {
    let mut running = (Vec::new(), Vec::new());
    block_on(async {
        running = Directory::of(environment).running().await;
        ExitCode::SUCCESS
    });
    running
}

/// Returns the only gateway, or the one with this process. An error names those that the user has
/// to choose from.
fn only(running: &[Running], pid: Option<u32>) -> Result<&Running, String> {
    let pids = || -> Vec<String> {
        let pids = running.iter().map(|gateway| gateway.snapshot["pid"].to_string());
        pids.collect()
    };
    match (running, pid) {
        ([only], None) => Ok(only),
        (_, None) => Err(format!(
            "several gateways run: choose one with --gateway {}",
            pids().join(" or --gateway ")
        )),
        (_, Some(pid)) => {
            let found = running.iter().find(|gateway| gateway.snapshot["pid"] == pid);
            found.ok_or_else(|| format!("no gateway has the process {pid}; there is {}", pids().join(", ")))
        }
    }
}

/// Returns the address of a gateway's page, or of one of its destinations there.
fn address(gateway: &Running, name: Option<&str>) -> Option<Url> {
    let mut url = Url::parse(gateway.snapshot["ui"].as_str()?).ok()?;
    if let Some(name) = name {
        url.set_fragment(Some(&format!("/destination/{name}")));
    }
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gateway(pid: u32, ui: Option<&str>) -> Running {
        Running {
            socket: std::path::PathBuf::new(),
            snapshot: json!({ "pid": pid, "ui": ui }),
        }
    }

    #[test]
    fn address_names_the_destination_behind_the_page() {
        let gateway = gateway(1, Some("http://127.0.0.1:3000/ui/"));
        let text = |name| address(&gateway, name).map(String::from);
        assert_eq!(text(None).as_deref(), Some("http://127.0.0.1:3000/ui/"));
        assert_eq!(
            text(Some("files")).as_deref(),
            Some("http://127.0.0.1:3000/ui/#/destination/files")
        );
        assert_eq!(address(&self::gateway(1, None), None), None);
    }

    #[test]
    fn several_gateways_are_told_apart_by_their_processes() {
        let two = [gateway(1, None), gateway(2, None)];
        assert!(only(&two, None).is_err_and(|text| text.contains("--gateway 1 or --gateway 2")));
        assert!(only(&two, Some(2)).is_ok_and(|one| one.snapshot["pid"] == 2));
        assert!(only(&two, Some(3)).is_err());
        assert!(only(&two[..1], None).is_ok());
    }
}
