//! `rialto doctor`: why a server does not work from a host, and what helps.
//!
//! Observers (`look`) look at the machine and return plain data. Judges (`judge`) turn the data into
//! facts and findings. Only `fix` changes anything, and only on request.

mod finding;
mod fix;
mod judge;
mod look;
mod page;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gateway::backend::process::{Launcher, environment as child_environment};
use gateway::platform;
use gateway::settings::{BackendSpec, Destination, RemoteSpec, Secret, Settings, SignIn};
use gateway::{escape, tasks};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use url::Url;

use self::finding::{Cure, Finding, Group, Report, Weight};
use self::judge::server::ServerSeen;
use self::look::host::Looked;
use self::look::machine::Needed;
use self::look::server::Startable;
use self::look::sign_in::Remote;
use self::look::way_in::WayIn;
use crate::admin_socket::{Directory, Running};
use crate::config::{self, Environment, LogSettings, connection};
use crate::flags::{DoctorFlags, ServeFlags};
use crate::hosts::entry::Entry;
use crate::hosts::location::{Surroundings, System};
use crate::hosts::table::{self, HOSTS, Host};
use crate::trying::target;
use crate::{exit, fail, looking, serve, telemetry};

/// How many servers are started at once.
const SERVERS_AT_ONCE: usize = 4;

pub(crate) fn run(flags: &DoctorFlags, environment: &Environment) -> ExitCode {
    let directives = environment.filled("RUST_LOG").unwrap_or("off");
    let _telemetry = match telemetry::init(&LogSettings::human(Some(directives), environment)) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    let plan = match Plan::of(flags, environment) {
        Ok(plan) => plan,
        Err(message) => return fail(exit::CONFIGURATION, &message),
    };
    serve::close_to_children();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    };
    let mut report = match runtime.block_on(examine(plan, environment)) {
        Ok(report) => report,
        Err(unknown) => return fail(exit::UNKNOWN_NAME, &unknown),
    };
    if flags.fix {
        for problem in fix::apply(&mut report) {
            note(&problem);
        }
    }
    let shape = page::Shape {
        columns: looking::columns(),
        has_colour: looking::has_colour(environment),
    };
    looking::print(&match flags.json {
        true => format!("{:#}\n", page::json(&report)),
        false => page::text(&report, shape),
    });
    ExitCode::from(report.exit_code())
}

/// Returns the findings about the files of the user's hosts, as `--json` has them. It reads files and
/// the list of processes, and starts nothing.
pub(crate) fn findings_of_hosts(surroundings: &Surroundings<'_>) -> serde_json::Value {
    let looked = look::host::files(&HOSTS, None, surroundings);
    let copies = look::host::copies(&looked, &platform::own_processes().unwrap_or_default());
    let files: Vec<_> = looked.into_iter().map(|looked| looked.seen).collect();
    page::json(&judge::host::judge(&files, &copies))["findings"].take()
}

/// The command line as used.
struct Plan {
    subject: Option<String>,
    config: Option<String>,
    starts: bool,
    /// The servers of files in the working directory are started and asked as well. Such a file may
    /// have come with a clone: hosts ask their user before they start what it names.
    trusts_project: bool,
    headers: HeaderMap,
    ca_file: Option<PathBuf>,
    timeout: Duration,
    hold: Duration,
}

impl Plan {
    fn of(flags: &DoctorFlags, environment: &Environment) -> Result<Self, String> {
        let time = |name: &str, text: &str| {
            config::some_time(text).map_err(|message| format!("flag {name}: {message}"))
        };
        let hold = match flags.hold.as_str() {
            "0" | "0s" => Duration::ZERO,
            text => time("--hold", text)?,
        };
        Ok(Self {
            subject: flags.subject.clone(),
            config: flags.config.clone(),
            starts: !flags.no_start,
            trusts_project: flags.project,
            headers: headers(&flags.header, environment)?,
            ca_file: flags.ca_file.as_ref().map(PathBuf::from),
            timeout: time("--timeout", &flags.timeout)?,
            hold,
        })
    }

    /// Returns whether the servers of a file may be started and asked.
    fn trusts(&self, looked: &Looked) -> bool {
        self.trusts_project || !looked.seen.is_shared
    }
}

/// Reads `--header`. No error quotes a value.
fn headers(given: &[Secret], environment: &Environment) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for text in given {
        let wrong = || "flag --header: write 'NAME: VALUE'".to_owned();
        let (name, value) = text.expose().split_once(':').ok_or_else(wrong)?;
        let value =
            config::filled(value.trim(), environment).map_err(|why| format!("flag --header: {why}"))?;
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(HeaderName::try_from(name.trim()).map_err(|_| wrong())?, value);
    }
    Ok(headers)
}

/// What is looked at.
#[derive(Default)]
struct Scope {
    /// The destinations that are looked at.
    destinations: Vec<Destination>,
    /// The settings, if what concerns the whole gateway is looked at.
    whole: Option<Settings>,
    /// The files of hosts that are looked at.
    files: Vec<Looked>,
    /// The entries of hosts that are started.
    entries: Vec<Startable>,
    /// Servers that are reached over HTTP.
    remotes: Vec<Remote>,
    /// Every server with a stored token is looked at.
    has_all_tokens: bool,
    /// An address that was named.
    address: Option<Url>,
}

/// Looks at everything in the scope. An error names what there is instead of an unknown name.
async fn examine(plan: Plan, environment: &Environment) -> Result<Report, String> {
    let mut report = Report::default();
    let (settings, file) = configuration(&plan, environment, &mut report);
    let scope = scope(&plan, settings, environment, &mut report)?;
    let processes = platform::own_processes();
    let (running, silent) = Directory::of(environment).running().await;
    if plan.subject.is_none() {
        let surroundings = Surroundings {
            system: System::own(),
            environment,
        };
        let file = file.map(|file| surroundings.shown(Path::new(&file)));
        gateways(&running, &silent, file.as_deref(), &mut report);
    }

    let launcher = serve::launcher();
    let servers = servers(&scope, &plan, &launcher, environment);
    let needed = needed(&scope);
    let origins: Vec<Url> = scope
        .remotes
        .iter()
        .map(|remote| remote.url.clone())
        .filter(|url| url.scheme() == "https")
        .collect();
    let machine = look::machine::look(&needed, &origins, scope.whole.as_ref(), environment);
    let sign_in = look::sign_in::look(&scope.remotes, scope.has_all_tokens, environment);
    let ways_in = ways_in(&scope, &plan);
    if !ways_in.is_empty() && !plan.hold.is_zero() {
        let hold = humantime::format_duration(plan.hold);
        note(&format!(
            "holding an event stream for {hold}; --hold 0s skips this"
        ));
    }
    let way_in = async {
        let mut seen = Vec::new();
        for way_in in &ways_in {
            seen.push(look::way_in::look(way_in).await);
        }
        seen
    };
    let cluster = async {
        match scope
            .whole
            .as_ref()
            .and_then(|settings| settings.cluster.as_ref())
        {
            Some(cluster) => Some(look::cluster::look(cluster).await),
            None => None,
        }
    };
    let (machine, servers, sign_in, way_in, cluster) =
        tokio::join!(machine, servers, sign_in, way_in, cluster);

    report.extend(judge::machine::judge(&machine));
    for seen in &servers {
        report.extend(judge::server::judge(seen));
    }
    let copies = look::host::copies(&scope.files, &processes.unwrap_or_default());
    let files: Vec<_> = scope.files.into_iter().map(|looked| looked.seen).collect();
    report.extend(judge::host::judge(&files, &copies));
    report.extend(judge::sign_in::judge(&sign_in));
    for seen in &way_in {
        report.extend(judge::way_in::judge(seen));
    }
    if let Some(seen) = &cluster {
        report.extend(judge::cluster::judge(seen));
    }
    Ok(report)
}

/// Reads the configuration, if there is one.
fn configuration(
    plan: &Plan,
    environment: &Environment,
    report: &mut Report,
) -> (Option<Settings>, Option<String>) {
    let file = match target::file(plan.config.as_deref(), environment) {
        Ok(Some(file)) => file,
        Ok(None) => return (None, None),
        Err(foreign) => {
            report.find(Finding::new(
                (Group::Servers, &foreign.file),
                ("configuration", Weight::Act),
                format!("belongs to user {}, and was not read", foreign.owner),
                "its author would choose what runs here",
                Cure::Do(format!(
                    "name it with --config {} if you trust it, or change to another directory",
                    judge::host::quoted(&foreign.file)
                )),
            ));
            return (None, None);
        }
    };
    let flags = ServeFlags {
        config: Some(file.clone()),
        ..ServeFlags::default()
    };
    match config::settings(&flags, environment) {
        Ok(loaded) => (Some(loaded.settings), Some(file)),
        Err(error) => {
            report.find(Finding::new(
                (Group::Servers, &file),
                ("configuration", Weight::Act),
                format!("cannot be used: {error}"),
                "no destination of it can be served",
                Cure::Run(format!("rialto check --config {}", judge::host::quoted(&file))),
            ));
            (None, Some(file))
        }
    }
}

/// Reports which gateways of this user run.
fn gateways(running: &[Running], silent: &[String], file: Option<&str>, report: &mut Report) {
    for gateway in running {
        let destinations = gateway.snapshot["destinations"].as_array().map_or(0, Vec::len);
        let text = format!(
            "runs as process {}, with {destinations} destinations",
            gateway.snapshot["pid"]
        );
        report.fact(Group::Servers, "gateway", text);
    }
    for why in silent {
        report.find(Finding::new(
            (Group::Servers, "a gateway"),
            ("gateway_silent", Weight::Act),
            format!("does not answer: {why}"),
            "`rialto attach`, `ps` and `top` cannot reach it",
            Cure::Run("rialto service status".into()),
        ));
    }
    if running.is_empty()
        && let Some(file) = file
    {
        report.fact(Group::Servers, file, "is not served now");
    }
}

/// Decides what is looked at. An error names what there is.
fn scope(
    plan: &Plan,
    settings: Option<Settings>,
    environment: &Environment,
    report: &mut Report,
) -> Result<Scope, String> {
    let surroundings = Surroundings {
        system: System::own(),
        environment,
    };
    let directory = std::env::current_dir().ok();
    let files = |hosts: &[&'static Host]| look::host::files(hosts, directory.as_deref(), &surroundings);
    let Some(subject) = &plan.subject else {
        let destinations = settings
            .as_ref()
            .map_or(Vec::new(), |settings| settings.destinations.clone());
        let files = files(&HOSTS);
        let mut remotes: Vec<Remote> = destinations.iter().filter_map(remote_of).collect();
        let trusted = files.iter().filter(|looked| plan.trusts(looked));
        for remote in trusted.flat_map(remotes_of) {
            if !remotes.iter().any(|known| known.url == remote.url) {
                remotes.push(remote);
            }
        }
        return Ok(Scope {
            destinations,
            whole: settings,
            files,
            remotes,
            has_all_tokens: true,
            ..Scope::default()
        });
    };
    if config::is_web_address(subject) {
        let url = config::remote::address(subject)?;
        let remote = Remote {
            url: url.clone(),
            has_header: plan.headers.contains_key(http::header::AUTHORIZATION),
            ca_file: plan.ca_file.clone(),
        };
        return Ok(Scope {
            remotes: vec![remote],
            address: Some(url),
            whole: None,
            ..Scope::default()
        });
    }
    let mut scope = Scope::default();
    let mut is_known = false;
    if let Some(destination) = settings
        .iter()
        .flat_map(|settings| &settings.destinations)
        .find(|destination| destination.name == *subject)
    {
        is_known = true;
        scope.remotes.extend(remote_of(destination));
        scope.destinations.push(destination.clone());
    }
    let host = table::named(subject);
    let looked = match host {
        Some(host) => files(&[host]),
        None => files(&HOSTS),
    };
    if let Some(host) = host {
        is_known = true;
        if looked.is_empty() {
            let places: Vec<String> = surroundings
                .user_files(host)
                .iter()
                .map(|path| surroundings.shown(path))
                .collect();
            report.find(Finding::new(
                (Group::Hosts, host.title),
                ("no_file", Weight::Act),
                format!("has no file: there is no {}", places.join(" or ")),
                "it starts no server of this user",
                Cure::Run(format!("rialto install {} NAME", host.id)),
            ));
        }
    }
    let mut names: Vec<String> = Vec::new();
    for looked in looked {
        let mut is_wanted = host.is_some();
        for server in looked.file.iter().flat_map(|file| &file.servers) {
            names.push(server.name.clone());
            if host.is_none() && server.name != *subject {
                continue;
            }
            is_wanted = true;
            match &server.entry {
                Entry::Stdio(_) | Entry::Remote(_) if !plan.trusts(&looked) => {
                    let file = &looked.seen.shown;
                    let text =
                        format!("was not tried: {file} is of this directory; --project tries what it names");
                    report.fact(Group::Servers, &server.name, text);
                }
                Entry::Stdio(stdio) => {
                    match look::host::startable(server, stdio, surroundings.home(), environment) {
                        Ok(startable) => {
                            let is_double = |known: &Startable| known.argv == startable.argv;
                            if !scope.entries.iter().any(is_double) {
                                scope.entries.push(startable);
                            }
                        }
                        Err(why) => {
                            report.fact(Group::Servers, &server.name, format!("was not started: it {why}"))
                        }
                    }
                }
                Entry::Remote(_) | Entry::Rialto { .. } | Entry::Unusable(_) => {}
            }
        }
        if is_wanted {
            is_known = true;
            if plan.trusts(&looked) {
                scope.remotes.extend(remotes_of(&looked));
            }
            scope.files.push(looked);
        }
    }
    match is_known {
        true => Ok(scope),
        false => {
            let destinations = settings.iter().flat_map(|settings| &settings.destinations);
            let mut known: Vec<String> = destinations.map(|destination| destination.name.clone()).collect();
            known.append(&mut names);
            known.dedup();
            let known = match known.is_empty() {
                true => "there are no destinations, and no entries of hosts".to_owned(),
                false => format!("there is {}", known.join(", ")),
            };
            Err(format!(
                "no destination, no host and no entry of a host is called `{}`; {}",
                escape::one_line(subject, 100),
                escape::one_line(&known, 2000)
            ))
        }
    }
}

fn remote_of(destination: &Destination) -> Option<Remote> {
    let BackendSpec::Remote(spec) = &destination.backend else {
        return None;
    };
    Some(Remote {
        url: spec.url.clone(),
        has_header: has_credentials(spec),
        ca_file: spec.ca_file.clone(),
    })
}

/// Returns whether requests carry credentials that are no stored token.
fn has_credentials(spec: &RemoteSpec) -> bool {
    let is_credential = |name: &HeaderName| {
        let name = name.as_str();
        name == "authorization" || name.contains("key") || name.contains("token")
    };
    let forwards = spec.forward_headers.iter().any(is_credential);
    let sends = spec.headers.iter().any(|(name, _)| is_credential(name));
    (forwards || sends) && spec.sign_in == SignIn::No
}

/// Returns the servers that a host reaches over HTTP.
fn remotes_of(looked: &Looked) -> Vec<Remote> {
    let servers = looked.file.iter().flat_map(|file| &file.servers);
    servers
        .filter_map(|server| {
            let Entry::Remote(remote) = &server.entry else {
                return None;
            };
            let url = config::remote::address(remote.url.literal()?).ok()?;
            Some(Remote {
                url,
                // Hosts keep the tokens of their own sign-ins to themselves.
                has_header: true,
                ca_file: None,
            })
        })
        .collect()
}

/// Returns the programs that servers in the scope are started with.
fn needed(scope: &Scope) -> Vec<Needed> {
    let destinations = scope.destinations.iter().filter_map(|destination| {
        let BackendSpec::Process(spec) = &destination.backend else {
            return None;
        };
        Some(Needed {
            program: spec.argv.first()?.clone(),
            cwd: spec.cwd.clone(),
            server: destination.name.clone(),
            window: None,
        })
    });
    let mut needed: Vec<Needed> = destinations.collect();
    needed.extend(look::host::needed(&scope.files));
    needed
}

/// Looks at the servers of the scope, several at a time.
async fn servers(
    scope: &Scope,
    plan: &Plan,
    launcher: &Launcher,
    environment: &Environment,
) -> Vec<ServerSeen> {
    if !plan.starts {
        return Vec::new();
    }
    let room = Arc::new(Semaphore::new(SERVERS_AT_ONCE));
    let mut under_way = Vec::new();
    for destination in &scope.destinations {
        let (room, limit) = (Arc::clone(&room), plan.timeout);
        let name = destination.name.clone();
        under_way.push(match &destination.backend {
            BackendSpec::Process(spec) => {
                let server = Startable {
                    name,
                    argv: spec.argv.clone(),
                    variables: child_environment(environment.all(), spec.inherits, &spec.env),
                    cwd: spec.cwd.clone(),
                };
                in_turn(
                    room,
                    look::server::stdio(server, launcher.clone(), limit, environment.all()),
                )
            }
            BackendSpec::Remote(spec) => {
                let url = Some(spec.url.to_string());
                let connection = connection::directly(destination.clone());
                let environment = environment.clone();
                in_turn(room, async move {
                    ServerSeen {
                        url,
                        ..look::server::remote(name, connection, limit, &environment).await
                    }
                })
            }
            // Its members are looked at.
            BackendSpec::Aggregate(_) => continue,
        });
    }
    for server in &scope.entries {
        let looking = look::server::stdio(server.clone(), launcher.clone(), plan.timeout, environment.all());
        under_way.push(in_turn(Arc::clone(&room), async move {
            ServerSeen {
                is_entry: true,
                ..looking.await
            }
        }));
    }
    let mut seen = Vec::new();
    for one in under_way {
        seen.extend(one.await);
    }
    seen
}

fn in_turn(
    room: Arc<Semaphore>,
    looking: impl Future<Output = ServerSeen> + Send + 'static,
) -> tokio::task::JoinHandle<ServerSeen> {
    tasks::spawn("look at a server", async move {
        let _permit = room.acquire().await;
        looking.await
    })
}

/// Returns the addresses that are looked at from outside.
fn ways_in(scope: &Scope, plan: &Plan) -> Vec<WayIn> {
    let way_in = |url: Url, ours: Option<&Settings>| WayIn {
        url,
        ours: ours.cloned(),
        headers: plan.headers.clone(),
        ca_file: plan.ca_file.clone(),
        hold: plan.hold,
    };
    if let Some(url) = &scope.address {
        return vec![way_in(url.clone(), None)];
    }
    let Some(settings) = &scope.whole else {
        return Vec::new();
    };
    let (Some(public), Some(destination)) = (&settings.public_url, settings.destinations.first()) else {
        return Vec::new();
    };
    let url = format!("{}{}/{}/mcp", public.origin(), public.path(), destination.name);
    url.parse()
        .ok()
        .map(|url| way_in(url, Some(settings)))
        .into_iter()
        .collect()
}

/// Something that a person at the terminal should know meanwhile.
fn note(text: &str) {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() || !text.starts_with("holding") {
        let _ = writeln!(stderr, "rialto: {}", escape::one_line(text, 500));
    }
}
