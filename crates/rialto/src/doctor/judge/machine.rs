//! Programs, caches, proxies, certificates, the clock and the port of this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gateway::outside::Certificate;

use crate::doctor::finding::{Cure, Finding, Group, Report, Weight};
use crate::terminal::text::span;

/// The oldest Node that the official SDK supports.
const OLDEST_NODE: u64 = 18;
/// A clock that differs by more fails sign-ins: tokens are not valid yet, or no longer.
const SKEW: Duration = Duration::from_secs(60);
/// Products that inspect TLS put their name into the issuer.
const INTERCEPTORS: [&str; 18] = [
    "zscaler",
    "netskope",
    "palo alto",
    "fortinet",
    "fortigate",
    "blue coat",
    "bluecoat",
    "cisco umbrella",
    "skyhigh",
    "mcafee",
    "sophos",
    "kaspersky",
    "avast",
    "eset ssl",
    "bitdefender",
    "mitmproxy",
    "charles proxy",
    "portswigger",
];

/// What was observed of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct MachineSeen {
    pub(crate) programs: Vec<ProgramSeen>,
    pub(crate) shell: ShellSeen,
    pub(crate) runtimes: Vec<RuntimeSeen>,
    pub(crate) caches: Vec<CacheSeen>,
    pub(crate) proxies: Vec<ProxySeen>,
    pub(crate) no_proxy: Option<String>,
    pub(crate) origins: Vec<OriginSeen>,
    /// Whether `NODE_EXTRA_CA_CERTS` names a file that can be read.
    pub(crate) has_node_certificates: bool,
    pub(crate) port: Option<PortSeen>,
}

/// A program that servers are started with.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgramSeen {
    pub(crate) program: String,
    /// The servers.
    pub(crate) used_by: Vec<String>,
    /// Those among them that a host with a window starts, as `host: server`.
    pub(crate) in_windows: Vec<String>,
    /// Where it is, with the `PATH` of Rialto.
    pub(crate) here: Option<PathBuf>,
    /// Where it is, with that of the login shell.
    pub(crate) in_login_shell: Option<PathBuf>,
    /// Why a program that is named by its path cannot be run.
    pub(crate) flaw: Option<String>,
}

/// What the login shell tells about its `PATH`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ShellSeen {
    /// It was not asked.
    #[default]
    Unasked,
    /// It answered.
    Path(String),
    /// It did not answer in time.
    Late { shell: String, limit: Duration },
    /// It cannot be asked.
    Failed { shell: String, why: String },
}

/// A program that runs other programs.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeSeen {
    pub(crate) program: &'static str,
    pub(crate) version: Result<String, String>,
}

/// A directory that package runners write to.
#[derive(Debug, Clone)]
pub(crate) struct CacheSeen {
    pub(crate) of: &'static str,
    pub(crate) path: String,
    pub(crate) state: CacheState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheState {
    Writable,
    ReadOnly,
    /// Something else is in its place.
    NoDirectory,
    OtherUser(u32),
}

/// A variable that names a proxy.
#[derive(Debug, Clone)]
pub(crate) struct ProxySeen {
    pub(crate) variable: &'static str,
    /// The address without credentials, or why it is none.
    pub(crate) address: Result<String, String>,
    /// Why no connection comes about, if none does.
    pub(crate) failure: Option<String>,
}

/// An address that servers or package runners need.
#[derive(Debug, Clone)]
pub(crate) struct OriginSeen {
    /// Such as `npm registry`.
    pub(crate) what: String,
    pub(crate) origin: String,
    pub(crate) is_for_node: bool,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) failure: Option<String>,
    /// How far its clock is ahead of this one, in seconds.
    pub(crate) ahead: Option<i64>,
}

/// The address that the configuration listens on.
#[derive(Debug, Clone)]
pub(crate) struct PortSeen {
    pub(crate) address: SocketAddr,
    pub(crate) state: PortState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortState {
    Free,
    Gateway,
    /// Another program listens.
    Taken,
    Refused(String),
}

/// Judges the machine.
pub(crate) fn judge(seen: &MachineSeen) -> Report {
    let mut report = Report::default();
    shell(&seen.shell, &mut report);
    for program in &seen.programs {
        judge_program(program, &seen.shell, &mut report);
    }
    for runtime in &seen.runtimes {
        judge_runtime(runtime, &mut report);
    }
    for cache in &seen.caches {
        judge_cache(cache, &mut report);
    }
    judge_proxies(seen, &mut report);
    for origin in &seen.origins {
        judge_origin(origin, seen.has_node_certificates, &mut report);
    }
    judge_clock(&seen.origins, &mut report);
    if let Some(port) = &seen.port {
        judge_port(port, &mut report);
    }
    report
}

fn at(subject: &str) -> (Group, &str) {
    (Group::Machine, subject)
}

fn shell(seen: &ShellSeen, report: &mut Report) {
    let (shell, what) = match seen {
        ShellSeen::Unasked => return,
        ShellSeen::Path(_) => return report.fact(Group::Machine, "login shell", "answers with its PATH"),
        ShellSeen::Late { shell, limit } => (
            shell,
            format!("did not answer `{shell} -lc env` within {}", span(*limit)),
        ),
        ShellSeen::Failed { shell, why } => (shell, format!("did not answer `{shell} -lc env`: {why}")),
    };
    report.find(Finding::new(
        at("login shell"),
        ("login_shell_silent", Weight::Note),
        what,
        "desktop programs ask it for their PATH at start, and do without if it is slow",
        Cure::Run(format!("time {shell} -lc env")),
    ));
}

fn judge_program(seen: &ProgramSeen, shell: &ShellSeen, report: &mut Report) {
    let name = seen.program.as_str();
    let users = list(&seen.used_by);
    if let Some(flaw) = &seen.flaw {
        return report.find(Finding::new(
            at(name),
            ("program_missing", Weight::Act),
            format!("cannot be run: {flaw}; needed by {users}"),
            "a server is a program, and this one is not where its entry looks for it",
            Cure::Run(format!("ls -l {name}")),
        ));
    }
    let is_of_windows = name.ends_with(".cmd") || name.ends_with(".exe");
    match (&seen.here, &seen.in_login_shell) {
        (None, _) if is_of_windows && !cfg!(windows) => {
            let bare = name.rsplit_once('.').map_or(name, |(bare, _)| bare);
            report.find(Finding::new(
                at(name),
                ("program_of_windows", Weight::Act),
                format!("is the name of a program on Windows, so that it starts nothing here; needed by {users}"),
                "files that several machines share need a name that all of them have",
                Cure::Do(format!("write {bare} instead of {name}")),
            ));
        }
        (None, None) => report.find(Finding::new(
            at(name),
            ("program_missing", Weight::Act),
            format!("was not found, neither on the PATH of Rialto nor on that of the login shell; needed by {users}"),
            "a server is a program, and this one is not installed, or its name is wrong",
            install(name),
        )),
        (None, Some(path)) => report.find(Finding::new(
            at(name),
            ("program_not_on_path", Weight::Act),
            format!("is at {} for your login shell, and not on the PATH of Rialto; needed by {users}", path.display()),
            "Rialto has the PATH of the program that started it: a desktop, a service manager or an older shell",
            Cure::Do(format!("write {} instead of {name}, or start Rialto from a login shell", path.display())),
        )),
        (Some(path), None) if matches!(shell, ShellSeen::Path(_)) && !seen.in_windows.is_empty() => {
            report.find(Finding::new(
                at(name),
                ("program_not_in_login_shell", Weight::Act),
                format!(
                    "is at {} in this shell, but not on the PATH of the login shell, which hosts with a window get: {}",
                    path.display(),
                    list(&seen.in_windows)
                ),
                "a shell that sets PATH for terminals only (nvm in .bashrc, for instance) hides it from desktop programs",
                Cure::Do(format!("write {} instead of {name} into these entries", path.display())),
            ));
        }
        (Some(_), _) if name.contains('/') => report.fact(Group::Machine, name, "is there"),
        (Some(path), _) => report.fact(Group::Machine, name, path.display().to_string()),
    }
}

fn install(program: &str) -> Cure {
    match program {
        "node" | "npm" | "npx" => {
            Cure::Do("install Node 22 or newer from https://nodejs.org, or with your package manager".into())
        }
        "uv" | "uvx" => Cure::Run("curl -LsSf https://astral.sh/uv/install.sh | sh".into()),
        "docker" => Cure::Do("install Docker from https://docs.docker.com/get-docker".into()),
        "bun" | "bunx" => Cure::Run("curl -fsSL https://bun.sh/install | bash".into()),
        "deno" => Cure::Run("curl -fsSL https://deno.land/install.sh | sh".into()),
        program => Cure::Do(format!(
            "install {program}, correct its name, or write its full path"
        )),
    }
}

fn judge_runtime(seen: &RuntimeSeen, report: &mut Report) {
    let name = seen.program;
    match &seen.version {
        Err(why) => report.find(Finding::new(
            at(name),
            ("runtime_broken", Weight::Act),
            format!("did not answer `{name} --version`: {why}"),
            "servers that are started with it fail the same way",
            Cure::Run(format!("{name} --version")),
        )),
        Ok(version) => {
            let major = version.trim_start_matches('v').split('.').next();
            let major: Option<u64> = major.and_then(|major| major.parse().ok());
            match major {
                Some(major) if name == "node" && major < OLDEST_NODE => report.find(Finding::new(
                    at(name),
                    ("node_too_old", Weight::Act),
                    format!("has version {version}"),
                    format!("the official SDK for servers needs Node {OLDEST_NODE} or newer"),
                    install("node"),
                )),
                Some(_) | None => report.fact(Group::Machine, name, format!("version {version}")),
            }
        }
    }
}

fn judge_cache(seen: &CacheSeen, report: &mut Report) {
    let subject = format!("cache of {}", seen.of);
    let path = &seen.path;
    let (what, cure) = match seen.state {
        CacheState::Writable => {
            return report.fact(Group::Machine, &subject, format!("{path} can be written"));
        }
        CacheState::ReadOnly => (
            format!("cannot be written: {path}"),
            Cure::Run(format!("chmod u+rwx {path}")),
        ),
        CacheState::NoDirectory => (
            format!("is no directory: {path}"),
            Cure::Run(format!("mv {path} {path}.old")),
        ),
        CacheState::OtherUser(user) => (
            format!("belongs to user {user}: {path}"),
            Cure::Run(format!("sudo chown -R \"$(id -u)\" {path}")),
        ),
    };
    let why = format!(
        "{} keeps packages there, and fails where it cannot write",
        seen.of
    );
    report.find(Finding::new(
        at(&subject),
        ("cache_not_writable", Weight::Act),
        what,
        why,
        cure,
    ));
}

fn judge_proxies(seen: &MachineSeen, report: &mut Report) {
    for proxy in &seen.proxies {
        let name = proxy.variable;
        match (&proxy.address, &proxy.failure) {
            (Err(why), _) => report.find(Finding::new(
                at(name),
                ("proxy_malformed", Weight::Act),
                format!("is no address of a proxy: {why}"),
                "some programs ignore it, others fail",
                Cure::Run(format!("export {name}=http://HOST:PORT    # or: unset {name}")),
            )),
            (Ok(address), Some(why)) => report.find(Finding::new(
                at(name),
                ("proxy_unreachable", Weight::Later),
                format!("names {address}, which cannot be reached: {why}"),
                "everything that leaves this machine goes there first",
                Cure::Run(format!("unset {name}    # if there is no proxy any more")),
            )),
            (Ok(address), None) => report.fact(Group::Machine, name, format!("{address} answers")),
        }
    }
    let is_set = seen.proxies.iter().any(|proxy| {
        let upper = proxy.variable.to_ascii_uppercase();
        matches!(upper.as_str(), "HTTP_PROXY" | "ALL_PROXY")
    });
    let excepts = |name: &str| {
        let list = seen.no_proxy.as_deref().unwrap_or_default();
        list.split([',', ' ']).any(|entry| entry == name || entry == "*")
    };
    if is_set && !(excepts("localhost") && excepts("127.0.0.1")) {
        report.find(Finding::new(
            at("NO_PROXY"),
            ("proxy_for_this_machine", Weight::Act),
            "does not except localhost and 127.0.0.1, although a proxy is set for http",
            "hosts then look for a gateway of this machine at the proxy, which cannot reach it",
            Cure::Run("export NO_PROXY=localhost,127.0.0.1,::1".into()),
        ));
    }
}

fn judge_origin(seen: &OriginSeen, has_node_certificates: bool, report: &mut Report) {
    let subject = seen.what.as_str();
    let origin = &seen.origin;
    let doubted = seen
        .certificate
        .as_ref()
        .and_then(|presented| Some((presented, presented.doubt.as_ref()?)));
    if let Some((presented, doubt)) = doubted {
        return report.find(Finding::new(
            at(subject),
            ("tls_not_trusted", Weight::Act),
            format!("{origin} presents a certificate of `{}`, which this machine does not trust: {doubt}", presented.issuer),
            "a proxy that opens TLS issues its own certificates, and each program must be given its authority",
            Cure::Run("export NODE_EXTRA_CA_CERTS=CA.pem SSL_CERT_FILE=CA.pem    # that authority, in PEM".into()),
        ));
    }
    if let Some(why) = &seen.failure {
        return report.find(Finding::new(
            at(subject),
            ("origin_unreachable", Weight::Later),
            format!("{origin} cannot be reached: {why}"),
            "what is not in a cache yet cannot be fetched",
            Cure::Run(format!("curl -I {origin}")),
        ));
    }
    let Some(certificate) = &seen.certificate else {
        return report.fact(Group::Machine, subject, format!("{origin} answers"));
    };
    let issuer = certificate.issuer.to_ascii_lowercase();
    let is_interceptor = INTERCEPTORS.iter().any(|name| issuer.contains(name));
    if is_interceptor && seen.is_for_node && !has_node_certificates {
        return report.find(Finding::new(
            at(subject),
            ("tls_intercepted", Weight::Act),
            format!(
                "{origin} presents a certificate of `{}`: TLS is opened on the way",
                certificate.issuer
            ),
            "this machine trusts that authority, but Node has a list of its own",
            Cure::Run("export NODE_EXTRA_CA_CERTS=CA.pem    # that authority, in PEM".into()),
        ));
    }
    report.fact(
        Group::Machine,
        subject,
        format!("{origin} answers, with a certificate of {}", certificate.issuer),
    );
}

fn judge_clock(origins: &[OriginSeen], report: &mut Report) {
    let ahead: Vec<i64> = origins.iter().filter_map(|origin| origin.ahead).collect();
    // One server may be wrong about the time; all of them are not.
    let Some(least) = ahead.iter().copied().min_by_key(|ahead| ahead.unsigned_abs()) else {
        return;
    };
    let skew = Duration::from_secs(least.unsigned_abs());
    if skew <= SKEW {
        return report.fact(Group::Machine, "clock", "agrees with that of servers");
    }
    let direction = if least > 0 { "behind" } else { "ahead of" };
    report.find(Finding::new(
        at("clock"),
        ("clock_wrong", Weight::Act),
        format!(
            "is {} {direction} that of every server that was asked",
            span(skew)
        ),
        "certificates and tokens hold for a time: with a wrong clock they are refused",
        match cfg!(target_os = "macos") {
            true => Cure::Run("sudo sntp -sS time.apple.com".into()),
            false => Cure::Run("sudo timedatectl set-ntp true".into()),
        },
    ));
}

fn judge_port(seen: &PortSeen, report: &mut Report) {
    let address = seen.address;
    let subject = address.to_string();
    let (what, cure) = match &seen.state {
        PortState::Free => return report.fact(Group::Machine, &subject, "is free for `rialto serve`"),
        PortState::Gateway => return report.fact(Group::Machine, &subject, "is served by a gateway"),
        PortState::Taken => (
            "is taken by another program".to_owned(),
            Cure::Run(format!("rialto serve --listen {}:0", host(address))),
        ),
        PortState::Refused(why) => (
            format!("cannot be listened on: {why}"),
            Cure::Run("rialto serve --listen 127.0.0.1:3000".into()),
        ),
    };
    report.find(Finding::new(
        at(&subject),
        ("port_taken", Weight::Act),
        what,
        "`rialto serve` cannot listen there, and clients reach the other program",
        cure,
    ));
}

fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

/// Returns names for a sentence; many are cut.
pub(crate) fn list(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    match names.len() {
        0 => "no server".to_owned(),
        count if count > SHOWN => format!("{} and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(seen: &MachineSeen) -> Vec<&'static str> {
        judge(seen)
            .findings
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    fn origin(issuer: &str, doubt: Option<&str>) -> OriginSeen {
        OriginSeen {
            what: "npm registry".into(),
            origin: "https://npm.example".into(),
            is_for_node: true,
            certificate: Some(Certificate {
                issuer: issuer.into(),
                doubt: doubt.map(str::to_owned),
            }),
            failure: None,
            ahead: Some(0),
        }
    }

    #[test]
    fn program_is_missing_hidden_or_fine() {
        let path = |text: &str| Some(PathBuf::from(text));
        let shell = || ShellSeen::Path("/bin".into());
        for (here, login, windows, expected) in [
            (None, None, vec![], Some("program_missing")),
            (None, path("/n/npx"), vec![], Some("program_not_on_path")),
            (
                path("/n/npx"),
                None,
                vec!["Cursor: a".to_owned()],
                Some("program_not_in_login_shell"),
            ),
            (path("/n/npx"), None, vec![], None),
            (path("/n/npx"), path("/n/npx"), vec!["Cursor: a".to_owned()], None),
        ] {
            let seen = MachineSeen {
                programs: vec![ProgramSeen {
                    program: "npx".into(),
                    used_by: vec!["a".into()],
                    in_windows: windows,
                    here,
                    in_login_shell: login,
                    flaw: None,
                }],
                shell: shell(),
                ..MachineSeen::default()
            };
            assert_eq!(ids(&seen), Vec::from_iter(expected), "{seen:?}");
        }
    }

    #[test]
    fn silent_login_shell_hides_nothing_from_hosts() {
        let seen = MachineSeen {
            programs: vec![ProgramSeen {
                program: "npx".into(),
                in_windows: vec!["Cursor: a".to_owned()],
                here: Some("/n/npx".into()),
                ..ProgramSeen::default()
            }],
            shell: ShellSeen::Late {
                shell: "/bin/zsh".into(),
                limit: Duration::from_secs(2),
            },
            ..MachineSeen::default()
        };
        assert_eq!(ids(&seen), ["login_shell_silent"]);
    }

    #[test]
    fn old_node_is_named_and_a_new_one_is_a_fact() {
        for (version, expected) in [("v16.20.0", 1), ("v18.0.0", 0), ("v22.3.0", 0), ("strange", 0)] {
            let seen = MachineSeen {
                runtimes: vec![RuntimeSeen {
                    program: "node",
                    version: Ok(version.into()),
                }],
                ..MachineSeen::default()
            };
            assert_eq!(judge(&seen).findings.len(), expected, "{version}");
        }
    }

    #[test]
    fn certificates_are_judged_by_trust_and_issuer() {
        let of = |origin: OriginSeen, has_node_certificates| MachineSeen {
            origins: vec![origin],
            has_node_certificates,
            ..MachineSeen::default()
        };
        assert_eq!(
            ids(&of(origin("Corp CA", Some("UnknownIssuer")), false)),
            ["tls_not_trusted"]
        );
        assert_eq!(
            ids(&of(origin("Zscaler Root CA", None), false)),
            ["tls_intercepted"]
        );
        assert!(ids(&of(origin("Zscaler Root CA", None), true)).is_empty());
        assert!(ids(&of(origin("WE1", None), false)).is_empty());
    }

    #[test]
    fn clock_is_wrong_only_if_every_server_differs() {
        let of = |ahead: &[i64]| MachineSeen {
            origins: ahead
                .iter()
                .map(|ahead| OriginSeen {
                    ahead: Some(*ahead),
                    ..origin("WE1", None)
                })
                .collect(),
            ..MachineSeen::default()
        };
        assert_eq!(ids(&of(&[4000, 4001])), ["clock_wrong"]);
        assert!(ids(&of(&[4000, 1])).is_empty());
        assert!(ids(&of(&[])).is_empty());
        let behind = judge(&of(&[4000])).findings.remove(0);
        assert!(behind.what.contains("behind"), "{behind:?}");
    }

    #[test]
    fn proxy_must_except_this_machine() {
        let of = |no_proxy: Option<&str>| MachineSeen {
            proxies: vec![ProxySeen {
                variable: "http_proxy",
                address: Ok("http://proxy:3128".into()),
                failure: None,
            }],
            no_proxy: no_proxy.map(str::to_owned),
            ..MachineSeen::default()
        };
        assert_eq!(ids(&of(None)), ["proxy_for_this_machine"]);
        assert_eq!(ids(&of(Some("localhost"))), ["proxy_for_this_machine"]);
        assert!(ids(&of(Some("localhost,127.0.0.1"))).is_empty());
        assert!(ids(&of(Some("*"))).is_empty());
    }
}
