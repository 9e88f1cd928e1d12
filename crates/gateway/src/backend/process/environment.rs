//! The environment of a child: a short allow-list from Rialto's own, plus what is configured.
//!
//! It hides the list. It refuses to pass anything else on, because Rialto's environment may hold
//! keys of the gateway and of other servers. A command given in a shell inherits that shell's
//! variables instead, without those that configure Rialto. It reads no environment itself: the
//! caller hands it over.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

use crate::platform;
use crate::settings::{Inherits, Secret};

/// What a child inherits, group by group. A name stands for itself; names are case-sensitive.
const ALLOWED: &[&[&str]] = &[
    // The user, and where programs and files are: nothing starts without these.
    &["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"],
    // Language and time, so that texts and dates come out as on the command line.
    &[
        "LANG",
        "LANGUAGE",
        "LC_ALL",
        "LC_COLLATE",
        "LC_CTYPE",
        "LC_MESSAGES",
        "LC_NUMERIC",
        "LC_TIME",
        "TZ",
    ],
    // Where to keep temporary, cached and configured things. `npx` and `uvx` cache whole packages
    // there.
    &[
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
    ],
    // Certificates of a company or a test network. These name files and hold no secret.
    &[
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
    ],
    // The way out of the network, in both spellings that programs look for. A proxy's own password
    // may be in the address; a child that is to reach anything needs it there.
    &["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"],
    &["all_proxy", "https_proxy", "http_proxy", "no_proxy"],
    // Where `npx` finds packages. Tokens are not listed: npm reads them from its user
    // configuration.
    &[
        "NPM_CONFIG_CACHE",
        "NPM_CONFIG_CAFILE",
        "NPM_CONFIG_PREFIX",
        "NPM_CONFIG_REGISTRY",
        "NPM_CONFIG_USERCONFIG",
    ],
    &[
        "npm_config_cache",
        "npm_config_cafile",
        "npm_config_prefix",
        "npm_config_registry",
        "npm_config_userconfig",
    ],
    // Where `pip` and `uvx` find packages and interpreters.
    &[
        "PIP_CACHE_DIR",
        "PIP_CERT",
        "PIP_CONFIG_FILE",
        "PIP_EXTRA_INDEX_URL",
        "PIP_INDEX_URL",
    ],
    &[
        "UV_CACHE_DIR",
        "UV_CONFIG_FILE",
        "UV_DEFAULT_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_INDEX",
        "UV_INDEX_URL",
    ],
    &["UV_NATIVE_TLS", "UV_PYTHON_INSTALL_DIR", "UV_TOOL_DIR"],
    // Version managers: a program in `PATH` is often their stand-in and finds the real one through
    // these.
    &[
        "ASDF_DATA_DIR",
        "ASDF_DIR",
        "MISE_CONFIG_DIR",
        "MISE_DATA_DIR",
        "NVM_DIR",
        "PYENV_ROOT",
        "VOLTA_HOME",
    ],
    // Many servers are published as images: where the container engine listens.
    &["DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST"],
    // What this operating system adds.
    platform::INHERITED,
];

/// Returns whether a child inherits this variable.
pub fn is_allowed(name: &OsStr) -> bool {
    ALLOWED
        .iter()
        .any(|group| group.iter().any(|allowed| OsStr::new(allowed) == name))
}

/// How the names of the variables begin that configure Rialto. Some hold its secrets.
const OURS: &str = "RIALTO_";

/// What systemd passes to Rialto itself. A child that took it for its own would look for Rialto's
/// socket, or report in its name (sd_listen_fds(3), sd_notify(3)).
const OF_SYSTEMD: [&str; 7] = [
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Returns whether a child inherits this variable by the given rule.
fn is_inherited(name: &OsStr, inherits: Inherits) -> bool {
    match inherits {
        Inherits::AllowList => is_allowed(name),
        Inherits::Everything => {
            let name = name.to_string_lossy();
            !name.starts_with(OURS) && !OF_SYSTEMD.contains(&&*name)
        }
    }
}

/// Returns the variables that are set in `parent`, are not passed on to `child`, and are named in
/// `lines`: a server that reports why it cannot start names what it lacks.
pub fn wanted_but_withheld<'a>(
    parent: impl IntoIterator<Item = &'a String>,
    child: &Environment,
    lines: &[String],
) -> Vec<&'a str> {
    /// Shorter names are words of a language too often.
    const SHORTEST: usize = 4;
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let is_named = |name: &str| {
        lines
            .iter()
            .flat_map(|line| {
                line.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
            })
            .any(|word| word == name)
    };
    parent
        .into_iter()
        .map(String::as_str)
        .filter(|name| name.len() >= SHORTEST && name.bytes().all(is_name) && !name.starts_with(OURS))
        .filter(|name| !child.0.contains_key(OsStr::new(name)) && is_named(name))
        .collect()
}

/// The complete environment of a child. It prints only the names, since any value may be a secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Nothing at all: for a child that must inherit nothing.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds or replaces one variable (for example one taken from a header of the session).
    pub fn set(&mut self, name: impl Into<OsString>, value: &Secret) {
        self.0.insert(name.into(), value.expose().into());
    }

    /// Returns the `PATH` that the child, and the search for its program, will use.
    pub fn path(&self) -> Option<&OsStr> {
        self.0.get(OsStr::new("PATH")).map(OsString::as_os_str)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.0.iter()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Builds a child's environment: what it inherits of `parent`, then what is configured on top.
pub fn environment<Name, Value>(
    parent: impl IntoIterator<Item = (Name, Value)>,
    inherits: Inherits,
    configured: &BTreeMap<String, Secret>,
) -> Environment
where
    Name: Into<OsString>,
    Value: Into<OsString>,
{
    let inherited = parent
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .filter(|(name, _)| is_inherited(name, inherits));
    let mut environment = Environment(inherited.collect());
    for (name, value) in configured {
        environment.set(name, value);
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_and_configured_variables_reach_the_child() {
        let parent = [
            ("PATH", "/bin"),
            ("RIALTO_TOKEN", "ours"),
            ("NPM_TOKEN", "theirs"),
            ("LANG", "C"),
        ];
        let configured = BTreeMap::from([("API_KEY".to_owned(), Secret::new("k"))]);
        let environment = environment(parent, Inherits::AllowList, &configured);
        let names: Vec<_> = environment
            .iter()
            .map(|(name, _)| name.to_string_lossy())
            .collect();
        assert_eq!(names, ["API_KEY", "LANG", "PATH"]);
    }

    #[test]
    fn a_command_of_a_shell_inherits_all_but_what_configures_rialto() {
        let parent = [
            ("BRAVE_API_KEY", "k"),
            ("PATH", "/bin"),
            ("RIALTO_TOKENS", "ours"),
        ];
        let environment = environment(parent, Inherits::Everything, &BTreeMap::new());
        let names: Vec<_> = environment
            .iter()
            .map(|(name, _)| name.to_string_lossy())
            .collect();
        assert_eq!(names, ["BRAVE_API_KEY", "PATH"]);
    }

    #[test]
    fn variables_that_are_set_and_named_but_not_passed_are_found() {
        let parent = [
            "BRAVE_API_KEY",
            "PATH",
            "PWD",
            "RIALTO_TOKENS",
            "UNNAMED",
            "API_KEY",
        ]
        .map(String::from);
        let child = environment([("PATH", "/bin")], Inherits::AllowList, &BTreeMap::new());
        let lines = [
            "PATH and PWD and RIALTO_TOKENS".to_owned(),
            "Error: `BRAVE_API_KEY` environment variable is required".to_owned(),
        ];
        assert_eq!(wanted_but_withheld(&parent, &child, &lines), ["BRAVE_API_KEY"]);
        assert!(wanted_but_withheld(&parent, &child, &[]).is_empty());
    }

    #[test]
    fn a_configured_variable_wins_over_an_inherited_one() {
        let configured = BTreeMap::from([("PATH".to_owned(), Secret::new("/opt/bin"))]);
        let environment = environment([("PATH", "/bin")], Inherits::AllowList, &configured);
        assert_eq!(environment.path(), Some(OsStr::new("/opt/bin")));
    }

    #[test]
    fn printing_an_environment_shows_no_value() {
        let configured = BTreeMap::from([("API_KEY".to_owned(), Secret::new("hush"))]);
        let printed = format!(
            "{:?}",
            environment([("PATH", "/secret/bin")], Inherits::AllowList, &configured)
        );
        assert_eq!(printed, r#"{"API_KEY", "PATH"}"#);
    }

    #[test]
    fn nothing_that_smells_of_a_secret_is_on_the_list() {
        for name in ALLOWED.iter().copied().flatten() {
            let upper = name.to_uppercase();
            for word in ["TOKEN", "SECRET", "PASS", "KEY", "AUTH", "CRED"] {
                assert!(!upper.contains(word), "{name}");
            }
        }
    }
}
