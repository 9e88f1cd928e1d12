//! Looks at this machine: starts the login shell and `--version` of runtimes, connects to proxies
//! and registries, and tries whether the port is free.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use chrono::{DateTime, Utc};
use gateway::backend::process::resolve;
use gateway::outside::{Offer, Outside, Query};
use gateway::settings::Settings;
use http::header::DATE;
use http::{HeaderMap, Method};
use rustix::fs::Access;
use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;
use url::Url;

use crate::check;
use crate::config::Environment;
use crate::doctor::judge::machine::{
    CacheSeen, CacheState, MachineSeen, OriginSeen, PortSeen, PortState, ProgramSeen, ProxySeen, RuntimeSeen,
    ShellSeen,
};
use crate::serve;
use crate::sign_in::PROXY_VARIABLES;

/// How long the login shell may take.
const SHELL_TIME: Duration = Duration::from_secs(2);
/// How long `--version` may take: the first start of a runtime reads it from disk.
const VERSION_TIME: Duration = Duration::from_secs(10);
/// How long others may take to answer.
const NETWORK_TIME: Duration = Duration::from_secs(5);
/// The longest output that is read.
const MAX_OUTPUT: u64 = 1 << 20;
/// How many origins are looked at.
const MAX_ORIGINS: usize = 12;
/// The variables that a login shell starts with; it sets the others itself.
const LOGIN: [&str; 8] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TERM",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];
const NPM_REGISTRY: &str = "https://registry.npmjs.org/";
const PYTHON_INDEX: &str = "https://pypi.org/simple/";

/// A server that is started with a program.
#[derive(Debug, Clone)]
pub(crate) struct Needed {
    pub(crate) program: String,
    /// Where its relative path begins.
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) server: String,
    /// The host with a window that starts it.
    pub(crate) window: Option<&'static str>,
}

/// Looks at everything that these servers need.
pub(crate) async fn look(
    needed: &[Needed],
    remotes: &[Url],
    settings: Option<&Settings>,
    environment: &Environment,
) -> MachineSeen {
    let shell = match needed.is_empty() {
        true => ShellSeen::Unasked,
        false => login_shell(environment).await,
    };
    let names: BTreeSet<&str> = needed.iter().map(|one| base(&one.program)).collect();
    let is_node = ["node", "npm", "npx"].iter().any(|name| names.contains(name));
    let is_npm = ["npm", "npx"].iter().any(|name| names.contains(name));
    let is_uv = ["uv", "uvx"].iter().any(|name| names.contains(name));
    let mut runtimes = Vec::new();
    for (program, is_needed) in [("node", is_node), ("uv", is_uv)] {
        if is_needed && let Ok(path) = found(program, None, environment.get("PATH")) {
            let version = version(&path, environment).await;
            runtimes.push(RuntimeSeen { program, version });
        }
    }
    let mut caches = Vec::new();
    if is_npm {
        caches.extend(cache("npm", npm_cache(environment), environment));
    }
    if is_uv {
        caches.extend(cache("uv", uv_cache(environment), environment));
    }
    let mut wanted: Vec<(String, Url, bool)> = Vec::new();
    if is_npm && let Ok(url) = npm_registry(environment).parse() {
        wanted.push(("npm registry".to_owned(), url, true));
    }
    if is_uv && let Ok(url) = python_index(environment).parse() {
        wanted.push(("Python index".to_owned(), url, false));
    }
    for url in remotes {
        let origin = url.origin().ascii_serialization();
        let is_known = wanted.iter().any(|(_, known, _)| known.origin() == url.origin());
        if !is_known && let Ok(url) = origin.parse() {
            wanted.push((origin, url, false));
        }
    }
    wanted.truncate(MAX_ORIGINS);
    let mut origins = Vec::new();
    for (what, url, is_for_node) in wanted {
        origins.push(origin(what, &url, is_for_node).await);
    }
    let node_certificates = environment.filled("NODE_EXTRA_CA_CERTS");
    MachineSeen {
        programs: programs(needed, &shell, environment),
        runtimes,
        caches,
        proxies: proxies(environment).await,
        no_proxy: ["NO_PROXY", "no_proxy"]
            .iter()
            .find_map(|name| environment.filled(name))
            .map(str::to_owned),
        origins,
        has_node_certificates: node_certificates.is_some_and(|file| std::fs::File::open(file).is_ok()),
        port: match settings {
            // Port 0 picks a free one.
            Some(settings) if settings.has_listener && settings.listen.port() != 0 => {
                Some(port(settings).await)
            }
            Some(_) | None => None,
        },
        shell,
    }
}

fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn found(program: &str, cwd: Option<&Path>, path: Option<&str>) -> Result<PathBuf, String> {
    resolve(program, cwd, path.map(OsStr::new)).map_err(|error| error.to_string())
}

/// Returns the programs, each once, with what is known of it.
fn programs(needed: &[Needed], shell: &ShellSeen, environment: &Environment) -> Vec<ProgramSeen> {
    let mut seen: Vec<ProgramSeen> = Vec::new();
    for one in needed {
        let cwd = one.cwd.as_deref();
        let at = seen.iter().position(|seen| seen.program == one.program);
        let at = at.unwrap_or_else(|| {
            seen.push(ProgramSeen {
                program: one.program.clone(),
                flaw: match one.program.contains('/') {
                    true => found(&one.program, cwd, None).err(),
                    false => None,
                },
                here: found(&one.program, cwd, environment.get("PATH")).ok(),
                in_login_shell: match shell {
                    ShellSeen::Path(path) => found(&one.program, cwd, Some(path)).ok(),
                    ShellSeen::Unasked | ShellSeen::Late { .. } | ShellSeen::Failed { .. } => None,
                },
                ..ProgramSeen::default()
            });
            seen.len() - 1
        });
        let Some(program) = seen.get_mut(at) else { continue };
        if !program.used_by.contains(&one.server) {
            program.used_by.push(one.server.clone());
        }
        if let Some(host) = one.window {
            program.in_windows.push(format!("{} in {host}", one.server));
        }
    }
    seen
}

async fn login_shell(environment: &Environment) -> ShellSeen {
    let Some(shell) = environment.filled("SHELL") else {
        return ShellSeen::Unasked;
    };
    let variables = LOGIN
        .iter()
        .filter_map(|name| Some((*name, environment.get(name)?)));
    let mut command = Command::new(shell);
    command.args(["-lc", "env"]).env_clear().envs(variables);
    let shell = shell.to_owned();
    match output(command, SHELL_TIME).await {
        Err(None) => ShellSeen::Late {
            shell,
            limit: SHELL_TIME,
        },
        Err(Some(why)) => ShellSeen::Failed { shell, why },
        // Its own files may print as well; the last one is that of `env`.
        Ok(text) => match text
            .lines()
            .filter_map(|line| line.strip_prefix("PATH="))
            .next_back()
        {
            Some(path) => ShellSeen::Path(path.to_owned()),
            None => ShellSeen::Failed {
                shell,
                why: "its environment has no PATH".to_owned(),
            },
        },
    }
}

async fn version(path: &Path, environment: &Environment) -> Result<String, String> {
    let mut command = Command::new(path);
    command.arg("--version").env_clear().envs(environment.all());
    match output(command, VERSION_TIME).await {
        Ok(text) => {
            let line = text.lines().next().unwrap_or_default().trim();
            let version = line.rsplit_once("uv ").map_or(line, |(_, version)| version);
            Ok(gateway::escape::one_line(version, 60))
        }
        Err(Some(why)) => Err(why),
        Err(None) => Err(format!("no answer within {VERSION_TIME:?}")),
    }
}

/// Runs a program to its end and returns what it wrote to stdout. `None`: it took too long.
async fn output(mut command: Command, limit: Duration) -> Result<String, Option<String>> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| Some(error.to_string()))?;
    let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let stdout = child.stdout.take();
    let read = async {
        let mut text = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(MAX_OUTPUT).read_to_end(&mut text).await;
        }
        (child.wait().await, text)
    };
    let done = timeout(limit, read).await;
    if done.is_err()
        && let Some(group) = group
    {
        // What the shell has started may hold its output.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    match done {
        Err(_) => Err(None),
        Ok((Ok(status), _)) if !status.success() => Err(Some(status.to_string())),
        Ok((Ok(_), text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Ok((Err(error), _)) => Err(Some(error.to_string())),
    }
}

fn npm_cache(environment: &Environment) -> Option<PathBuf> {
    let named = ["npm_config_cache", "NPM_CONFIG_CACHE"];
    let named = named.iter().find_map(|name| environment.filled(name));
    match named {
        Some(path) => Some(PathBuf::from(path)),
        None => Some(Path::new(environment.filled("HOME")?).join(".npm")),
    }
}

fn uv_cache(environment: &Environment) -> Option<PathBuf> {
    if let Some(path) = environment.filled("UV_CACHE_DIR") {
        return Some(PathBuf::from(path));
    }
    match environment.filled("XDG_CACHE_HOME") {
        Some(cache) => Some(Path::new(cache).join("uv")),
        None => Some(Path::new(environment.filled("HOME")?).join(".cache/uv")),
    }
}

/// Looks at a directory, or at the one above in which it would be made.
fn cache(of: &'static str, path: Option<PathBuf>, environment: &Environment) -> Option<CacheSeen> {
    use std::os::unix::fs::MetadataExt as _;
    let path = path?;
    let existing = path.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    let metadata = std::fs::metadata(existing);
    let own = rustix::process::geteuid().as_raw();
    let can_write = rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let state = match metadata {
        Ok(metadata) if !metadata.is_dir() => CacheState::NoDirectory,
        Ok(_) if can_write => CacheState::Writable,
        Ok(metadata) if metadata.uid() != own => CacheState::OtherUser(metadata.uid()),
        Ok(_) => CacheState::ReadOnly,
        Err(_) => CacheState::NoDirectory,
    };
    // What is wrong is above a directory that does not exist yet.
    let named = match state {
        CacheState::Writable => &path,
        CacheState::ReadOnly | CacheState::NoDirectory | CacheState::OtherUser(_) => existing,
    };
    Some(CacheSeen {
        of,
        path: shown(named, environment),
        state,
    })
}

fn shown(path: &Path, environment: &Environment) -> String {
    let home = environment.filled("HOME").map(Path::new);
    match home.and_then(|home| path.strip_prefix(home).ok()) {
        Some(below) if !below.as_os_str().is_empty() => format!("~/{}", below.display()),
        Some(_) | None => path.display().to_string(),
    }
}

/// Returns the registry that npm uses.
fn npm_registry(environment: &Environment) -> String {
    let named = ["npm_config_registry", "NPM_CONFIG_REGISTRY"];
    if let Some(url) = named.iter().find_map(|name| environment.filled(name)) {
        return url.to_owned();
    }
    let named = ["npm_config_userconfig", "NPM_CONFIG_USERCONFIG"];
    let file = match named.iter().find_map(|name| environment.filled(name)) {
        Some(file) => PathBuf::from(file),
        None => Path::new(environment.filled("HOME").unwrap_or("/")).join(".npmrc"),
    };
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "registry").then(|| value.trim().to_owned())
    });
    line.unwrap_or_else(|| NPM_REGISTRY.to_owned())
}

fn python_index(environment: &Environment) -> String {
    let named = ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"];
    let named = named.iter().find_map(|name| environment.filled(name));
    named.unwrap_or(PYTHON_INDEX).to_owned()
}

async fn proxies(environment: &Environment) -> Vec<ProxySeen> {
    let mut seen = Vec::new();
    for variable in PROXY_VARIABLES {
        let Some(text) = environment.filled(variable) else {
            continue;
        };
        let parsed = proxy_address(text);
        let failure = match &parsed {
            Ok((host, port)) => {
                let connected = timeout(NETWORK_TIME, TcpStream::connect((host.as_str(), *port))).await;
                match connected {
                    Ok(Ok(_)) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some(format!("no connection within {NETWORK_TIME:?}")),
                }
            }
            Err(_) => None,
        };
        seen.push(ProxySeen {
            variable,
            address: parsed.map(|(host, port)| format!("{host}:{port}")),
            failure,
        });
    }
    seen
}

/// Returns host and port of a proxy. An error does not quote the text, which may have a password.
fn proxy_address(text: &str) -> Result<(String, u16), String> {
    let whole = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    let url = Url::parse(&whole).map_err(|error| error.to_string())?;
    let is_proxy = matches!(
        url.scheme(),
        "http" | "https" | "socks4" | "socks4a" | "socks5" | "socks5h"
    );
    if !is_proxy {
        return Err(format!("`{}` is no kind of proxy", url.scheme()));
    }
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or("it names no host")?.to_owned();
    // `http://garbage` is a name without a domain and a port that no proxy has by default.
    let port = match (url.port(), url.scheme()) {
        (Some(port), _) => port,
        (None, "https") => 443,
        (None, "http") if host.contains('.') || host == "localhost" => 80,
        (None, "http") => return Err("it names a host without a domain, and no port".to_owned()),
        (None, _) => 1080,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok((bare, port))
}

async fn origin(what: String, url: &Url, is_for_node: bool) -> OriginSeen {
    let mut seen = OriginSeen {
        what,
        origin: url.origin().ascii_serialization(),
        is_for_node,
        certificate: None,
        failure: None,
        ahead: None,
    };
    let outside = match Outside::of(url, Offer::Http1And2, None) {
        Ok(outside) => outside,
        Err(why) => {
            seen.failure = Some(why);
            return seen;
        }
    };
    let query = Query {
        method: Method::HEAD,
        url: url.clone(),
        headers: HeaderMap::new(),
        body: bytes::Bytes::new(),
    };
    match timeout(NETWORK_TIME, outside.send(query)).await {
        Ok(Ok(response)) => seen.ahead = ahead(&response.headers, Utc::now()),
        Ok(Err(error)) => seen.failure = Some(error.why),
        Err(_) => seen.failure = Some(format!("no answer within {NETWORK_TIME:?}")),
    }
    seen.certificate = outside.certificate();
    seen
}

/// Returns how far the clock of a server is ahead, in seconds.
fn ahead(headers: &HeaderMap, now: DateTime<Utc>) -> Option<i64> {
    let date = headers.get(DATE)?.to_str().ok()?;
    let date = DateTime::parse_from_rfc2822(date).ok()?;
    Some((date.with_timezone(&Utc) - now).num_seconds())
}

async fn port(settings: &Settings) -> PortSeen {
    let mut address = settings.listen;
    let state = match serve::bind(address) {
        // A program that listens with SO_REUSEADDR can be beside a socket that only is bound.
        Ok(socket) => match socket.listen(1) {
            Ok(_) => PortState::Free,
            Err(error) => refused(settings, &error).await,
        },
        Err(error) => refused(settings, &error).await,
    };
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    PortSeen { address, state }
}

async fn refused(settings: &Settings, error: &std::io::Error) -> PortState {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => match check::is_gateway(settings).await {
            true => PortState::Gateway,
            false => PortState::Taken,
        },
        _ => PortState::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_with_and_without_a_scheme() {
        for (text, expected) in [
            ("http://proxy.corp:3128", Some(("proxy.corp", 3128))),
            ("proxy.corp:3128", Some(("proxy.corp", 3128))),
            ("http://me:pw@10.0.0.1", Some(("10.0.0.1", 80))),
            ("socks5://localhost", Some(("localhost", 1080))),
            ("http://[::1]:8080", Some(("::1", 8080))),
            ("garbage", None),
            ("ftp://proxy.corp", None),
            ("http://", None),
        ] {
            let found = proxy_address(text).ok();
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(found, expected, "{text}");
        }
        let error = proxy_address("http://me:geheim@").expect_err("no host");
        assert!(!error.contains("geheim"), "{error}");
    }

    #[test]
    fn clock_of_a_server_is_compared_by_its_date() {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Thu, 19 Nov 2026 14:00:00 GMT".parse().expect("a value"));
        let now = DateTime::parse_from_rfc3339("2026-11-19T13:00:00Z").expect("a time");
        assert_eq!(ahead(&headers, now.with_timezone(&Utc)), Some(3600));
        assert_eq!(ahead(&HeaderMap::new(), now.with_timezone(&Utc)), None);
    }

    #[test]
    fn registry_is_that_of_variables_and_files() {
        let home = tempfile::tempdir().expect("a directory");
        let text = home.path().to_str().expect("text");
        let of = |more: &[(&str, &str)]| {
            let variables = [("HOME", text)].into_iter().chain(more.iter().copied());
            npm_registry(&variables.collect())
        };
        assert_eq!(of(&[]), NPM_REGISTRY);
        std::fs::write(
            home.path().join(".npmrc"),
            "x=1\nregistry = https://npm.example/\n",
        )
        .expect("written");
        assert_eq!(of(&[]), "https://npm.example/");
        assert_eq!(of(&[("NPM_CONFIG_REGISTRY", "https://b/")]), "https://b/");
    }
}
