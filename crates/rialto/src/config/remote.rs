//! A remote destination: its address, what is sent along, and what of its clients' headers is
//! passed on.

use std::path::PathBuf;

use gateway::settings::{Outages, RemoteSpec, Retry, Secret, Sharing, SignIn, Transport};
use http::{HeaderName, HeaderValue};
use url::Url;

use super::environment::Environment;
use super::quantity;
use super::reader::{Fields, Given};

/// The keys that only a remote destination has.
pub(super) const KEYS: [&str; 6] = ["url", "headers", "forward_headers", "ca_file", "retry", "auth"];

/// What the transport itself writes; to configure them would break it.
const OURS: [&str; 12] = [
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "upgrade",
    "accept",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "last-event-id",
];

/// Reads what is particular to a remote destination. `None` if it has no usable address, which has
/// been reported then.
pub(super) fn read(
    fields: &mut Fields<'_, '_>,
    transport: Transport,
    sharing: Sharing,
) -> Option<RemoteSpec> {
    if !fields.has("url") {
        fields.take("url");
        fields.fail("has no address: write `url: https://…`");
    }
    let url = fields.parsed("url", address);
    let headers = fields
        .named_values("headers")
        .into_iter()
        .filter_map(|(name, value)| Some((header(fields, &name, &value)?, Secret::new(value.text))))
        .collect();
    let forward_headers = forward_headers(fields, sharing);
    let ca_file = fields
        .given("ca_file")
        .map(|given| fields.walk.sources.base.join(PathBuf::from(given.text)));
    let retry = fields.choice("retry", &[("safe", Retry::Safe), ("always", Retry::Always)]);
    let sign_in = match (fields.choice("auth", &[("none", false), ("oauth", true)]), &url) {
        (Some(true), Some(url)) => signed_in(url, ca_file.as_ref(), fields.walk.sources.environment)
            .unwrap_or_else(|message| {
                fields.fail(message);
                SignIn::No
            }),
        (Some(false) | None, _) | (Some(true), None) => SignIn::No,
    };
    for foreign in [
        "command",
        "args",
        "env",
        "cwd",
        "env_from_headers",
        "start",
        "idle_stop",
    ] {
        if let Some(given) = fields.take(foreign) {
            let place = fields.place(given.line, foreign);
            fields
                .walk
                .fail(place, "goes with a `command`; a remote server is given `headers`");
        }
    }
    Some(RemoteSpec {
        url: url?,
        transport,
        headers,
        forward_headers,
        ca_file,
        retry: retry.unwrap_or(Retry::Safe),
        outages: Outages::Refuse,
        sign_in,
        socket: None,
    })
}

/// Returns how a gateway signs in. It has no user in front: it uses the tokens of `rialto login`, and
/// refreshes them.
pub(super) fn signed_in(
    url: &Url,
    ca_file: Option<&PathBuf>,
    environment: &Environment,
) -> Result<SignIn, String> {
    let mut settings = crate::sign_in::settings(url.clone(), environment)
        .map_err(|message| format!("cannot sign in: {message}"))?;
    settings.http.ca_file = ca_file.cloned();
    Ok(SignIn::OAuth(oauth::SignIn::new(settings)))
}

/// Returns the address of a server.
pub(crate) fn address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|_| "not an address: write https://host/path".to_owned())?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("only http and https servers can be reached: write https://host/path".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("credentials in an address end up in logs: write them as `headers`".to_owned());
    }
    Ok(url)
}

/// Returns the name of a header that may be sent, if its value can be.
fn header(fields: &Fields<'_, '_>, name: &str, value: &Given) -> Option<HeaderName> {
    let named = match header_name(name) {
        Ok(named) => named,
        Err(message) => {
            fields.walk.fail(value.place.clone(), message);
            return None;
        }
    };
    if HeaderValue::from_str(&value.text).is_err() {
        fields.walk.fail(
            value.place.clone(),
            "holds characters that no header can carry, such as a line break: remove them",
        );
        return None;
    }
    Some(named)
}

/// Returns the name of a header that may be sent to a server.
pub(crate) fn header_name(text: &str) -> Result<HeaderName, String> {
    let name = quantity::header_name(text)?;
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| "not the name of an HTTP header: write one such as X-GitHub-Token".to_owned())?;
    if OURS.contains(&name.as_str()) {
        return Err(format!("`{name}` is written by the transport itself: remove it"));
    }
    Ok(name)
}

fn forward_headers(fields: &mut Fields<'_, '_>, sharing: Sharing) -> Vec<HeaderName> {
    let given = fields.list("forward_headers").unwrap_or_default();
    if let (Sharing::Shared, Some(first)) = (sharing, given.first()) {
        fields.walk.fail(
            first.place.clone(),
            "one shared link cannot carry the headers of each caller: write `process: per_identity` or `process: per_session`",
        );
    }
    given
        .iter()
        .filter_map(|given| fields.walk.parse(given, header_name))
        .collect()
}
