//! What `serve` shows on a terminal: which lines, and what becomes of each destination at start.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::sync::Arc;

use gateway::settings::{BackendSpec, Destination, Settings, Sharing, Start};
use gateway::{Gateway, Probe, tasks};

use super::{reachable, scheme};
use crate::config::{Environment, LogFormat, LogSettings};
use crate::flags::source::VerbosityFlags;
use crate::telemetry::{self, Telemetry};
use crate::terminal::{self, Banner, Happening, Look, State, Terminal, Wanted};

/// What is logged on a terminal: what needs a person, and what the person asked for.
const ON_A_TERMINAL: &str = "warn,gateway::gateway=info,rialto::serve::reload=info";
/// The lines about calls and refusals.
const CALLS: &str = "gateway::record::call_log=debug,gateway::frontend::http=debug";

/// Sets up logs: on the terminal, if there is one, or as lines.
pub(super) fn start(
    mut logs: LogSettings,
    verbosity: VerbosityFlags,
    access_log: Option<bool>,
    environment: &Environment,
) -> anyhow::Result<(Telemetry, Option<Terminal>)> {
    let is_terminal = logs.format == LogFormat::Human && io::stderr().is_terminal();
    let shows_calls = access_log.unwrap_or(is_terminal && !verbosity.quiet);
    let usual = if is_terminal { ON_A_TERMINAL } else { "info" };
    let chosen = logs
        .filter
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let mut directives = chosen.unwrap_or(usual).to_owned();
    if shows_calls {
        directives = format!("{directives},{CALLS}");
    }
    if !is_terminal {
        logs.filter = Some(directives);
        return Ok((telemetry::init(&logs)?, None));
    }
    let look = Look {
        has_colour: logs.colour,
        may_rewrite: environment.get("TERM").is_some_and(|term| term != "dumb"),
    };
    let wanted = Wanted {
        calls: shows_calls,
        output: !verbosity.quiet,
        inside: chosen.is_some() && !verbosity.quiet,
    };
    let terminal = Terminal::start(look, wanted)?;
    let telemetry = telemetry::init_terminal(&directives, &terminal, wanted)?;
    Ok((telemetry, Some(terminal)))
}

/// Shows the destinations, and tries out those that can be used by now.
pub(super) fn begin(terminal: &Terminal, gateway: &Arc<Gateway>, settings: &Settings, address: SocketAddr) {
    let banner = banner(settings, address, gateway.has_page());
    let tried: Vec<String> = banner
        .destinations
        .iter()
        .filter(|destination| matches!(destination.state, State::Starting { .. }))
        .map(|destination| destination.name.clone())
        .collect();
    terminal.show(Happening::Began(banner));
    for name in tried {
        let (terminal, gateway) = (terminal.clone(), Arc::clone(gateway));
        tasks::spawn("try-out", async move {
            if let Some(probe) = Box::pin(gateway.try_out(&name)).await {
                terminal.show(Happening::Settled {
                    name,
                    state: outcome(probe),
                });
            }
        });
    }
}

fn banner(settings: &Settings, address: SocketAddr, has_page: bool) -> Banner {
    let base = format!("{}://{}", scheme(settings), reachable(address));
    let destinations = settings
        .destinations
        .iter()
        .map(|destination| terminal::Destination {
            name: destination.name.clone(),
            url: format!("{base}/{}/mcp", destination.name),
            state: at_start(destination, settings.cluster.is_some()),
        });
    Banner {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        destinations: destinations.collect(),
        root: settings.root_destination.as_ref().map(|_| format!("{base}/mcp")),
        needs_token: settings.auth.is_on(),
        page: has_page.then(|| format!("{base}/ui/")),
        address: base,
    }
}

/// Returns what is known of a destination before it has been tried out.
fn at_start(destination: &Destination, is_in_fleet: bool) -> State {
    match &destination.backend {
        // Another replica may run the server, and a process of a session starts with it.
        BackendSpec::Process(process)
            if is_in_fleet
                || process.start == Start::Lazy
                || destination.instances.sharing != Sharing::Shared =>
        {
            State::Waiting
        }
        BackendSpec::Process(process) => {
            // The program alone: what follows it may hold a secret.
            let program = process.argv.first().map(String::as_str).unwrap_or_default();
            let program = program.rsplit('/').next().unwrap_or(program);
            State::Starting {
                server: program.to_owned(),
            }
        }
        BackendSpec::Remote(_) | BackendSpec::Aggregate(_) if is_in_fleet => State::Waiting,
        BackendSpec::Aggregate(aggregate) => State::Starting {
            server: match aggregate.plan.members().len() {
                1 => "1 destination".to_owned(),
                count => format!("{count} destinations"),
            },
        },
        BackendSpec::Remote(remote) => State::Starting {
            server: remote.url.host_str().unwrap_or_default().to_owned(),
        },
    }
}

fn outcome(probe: Probe) -> State {
    match probe.result {
        Ok(presented) => State::Ready {
            tools: presented.tools,
            took: probe.took,
        },
        // Its stderr is shown from the terminal's own lines.
        Err(error) => State::Failed {
            lines: error
                .lines()
                .filter(|line| !line.trim_start().starts_with("stderr:"))
                .map(str::to_owned)
                .collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::flags::ServeFlags;
    use crate::flags::source::SourceFlags;

    fn settings(flags: &ServeFlags) -> Settings {
        config::settings(flags, &Environment::default())
            .expect("settings")
            .settings
    }

    #[test]
    fn banner_names_programs_and_none_of_their_arguments() {
        let flags = ServeFlags {
            command: ["/opt/weather-server", "--key", "geheim"]
                .map(str::to_owned)
                .to_vec(),
            ..ServeFlags::default()
        };
        let banner = banner(
            &settings(&flags),
            "0.0.0.0:4711".parse().expect("an address"),
            false,
        );
        assert!(!format!("{banner:?}").contains("geheim"), "{banner:?}");
        assert_eq!(banner.address, "http://localhost:4711");
        assert_eq!(banner.root.as_deref(), Some("http://localhost:4711/mcp"));
        let [only] = banner.destinations.as_slice() else {
            panic!("{banner:?}");
        };
        assert_eq!(only.url, "http://localhost:4711/weather-server/mcp");
        let expected = State::Starting {
            server: "weather-server".to_owned(),
        };
        assert_eq!(only.state, expected);
    }

    #[test]
    fn destination_whose_server_waits_for_a_client_is_not_tried_out() {
        let flags = ServeFlags {
            command: vec!["cat".to_owned()],
            process: Some("per_session".to_owned()),
            ..ServeFlags::default()
        };
        let banner = banner(
            &settings(&flags),
            "127.0.0.1:1".parse().expect("an address"),
            false,
        );
        assert!(
            banner
                .destinations
                .iter()
                .all(|found| found.state == State::Waiting)
        );
    }

    #[test]
    fn remote_destination_is_named_by_its_host() {
        let flags = ServeFlags {
            source: SourceFlags {
                url: Some("https://mcp.example.com/mcp?key=geheim".to_owned()),
                ..SourceFlags::default()
            },
            ..ServeFlags::default()
        };
        let banner = banner(
            &settings(&flags),
            "127.0.0.1:1".parse().expect("an address"),
            false,
        );
        assert!(format!("{banner:?}").contains("mcp.example.com"), "{banner:?}");
        assert!(!format!("{banner:?}").contains("geheim"), "{banner:?}");
    }
}
