//! `auth`: authentication. [`gateway::settings`] decides which values are valid; here they are
//! found, interpolated, and problems are reported at their place.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::SystemTime;

use gateway::settings::{
    AuthSettings, BackendSpec, Destination, IssuerUrl, JwtSettings, KeysUrl, Network, OpenPath,
    ProxySettings, PublicUrl, Scope, ScopedUse, SignatureAlgorithm, StaticToken, TokenHash, TokenName,
};

use super::globals::Layers;
use super::problem::Place;
use super::quantity;
use super::reader::{Fields, Given, Walk, one_of};
use super::tree::{Node, Value};
use crate::flags::ServeFlags;

const OPEN_PATHS: [(&str, OpenPath); 2] = [("ready", OpenPath::Ready), ("metrics", OpenPath::Metrics)];
const USER_HEADER: &str = "X-Forwarded-User";
/// What the bearer of a token without a name is called.
const UNNAMED: &str = "default";

/// Reads everything about callers.
pub(super) fn read(flags: &ServeFlags, layers: &mut Layers<'_, '_, '_>) -> AuthSettings {
    let walk = layers.fields.walk;
    let mut auth = AuthSettings::default();
    if let Some(mut fields) = section(layers.fields, "auth", "auth.") {
        auth.tokens = tokens(&mut fields);
        auth.jwt = section(&mut fields, "jwt", "auth.jwt.").and_then(jwt);
        auth.proxy = section(&mut fields, "proxy", "auth.proxy.").and_then(proxy);
        let public = fields.list("public").unwrap_or_default();
        auth.public = public
            .iter()
            .filter_map(|given| walk.parse(given, |text| one_of(text, &OPEN_PATHS)))
            .collect();
        fields.finish();
    }
    let hashes = layers.all_given(("--token-hash", &flags.token_hash), &["RIALTO_TOKEN_HASH"]);
    auth.tokens
        .extend(hashes.iter().filter_map(|given| bare_token(walk, given)));
    check_names(walk, &auth.tokens);
    auth
}

/// A public listener without authentication needs an explicit setting.
pub(super) fn check_listen(
    walk: &Walk<'_>,
    listen: SocketAddr,
    auth: &AuthSettings,
    allow_unauthenticated: bool,
    (public_url, has_allowed_hosts): (Option<&PublicUrl>, bool),
    place: Place,
) {
    if listen.ip().is_loopback() {
        return;
    }
    if listen.ip().is_unspecified() && public_url.is_none() && !has_allowed_hosts {
        walk.note(format!(
            "{listen} can be reached from other machines, but a request from there is refused with 403 until the name \
             in its address is allowed: add --allow-host NAME, or write `allowed_hosts`"
        ));
    }
    if !auth.is_on() && !allow_unauthenticated {
        walk.fail(
            place.clone(),
            format!(
                "{listen} can be reached from other machines, and there is no authentication: write `auth` (`rialto token` makes a token), listen on 127.0.0.1, or set --allow-unauthenticated"
            ),
        );
    }
    let needs_names = auth.jwt.as_ref().is_some_and(|jwt| jwt.audience.is_none());
    if needs_names && public_url.is_none() {
        walk.fail(
            place,
            "with `auth.jwt`, write `public_url`: what clients call this gateway, which is also what their tokens are for",
        );
    }
}

/// What a caller shows is for Rialto. Where it is passed on all the same, that should be meant.
pub(super) fn check_destinations(walk: &Walk<'_>, auth: &AuthSettings, destinations: &[Destination]) {
    for token in &auth.tokens {
        for name in token.destinations.iter().flatten() {
            if !destinations.iter().any(|destination| destination.name == *name) {
                walk.note(format!(
                    "the token `{}` is for `{name}`, and there is no destination of that name",
                    token.name.as_str()
                ));
            }
        }
    }
    if !auth.is_on() {
        return;
    }
    for destination in destinations {
        let (key, passed_on) = match &destination.backend {
            BackendSpec::Process(process) => (
                "env_from_headers",
                process
                    .env_from_headers
                    .values()
                    .any(|header| is_authorization(header)),
            ),
            BackendSpec::Remote(remote) => (
                "forward_headers",
                remote
                    .forward_headers
                    .iter()
                    .any(|header| is_authorization(header.as_str())),
            ),
            // Its members are looked at themselves.
            BackendSpec::Aggregate(_) => continue,
        };
        if passed_on {
            walk.note(format!(
                "destination `{}`: `{key}` passes on the tokens that callers send to Rialto; the operator of that server can use them here",
                destination.name
            ));
        }
    }
}

fn is_authorization(header: &str) -> bool {
    header.eq_ignore_ascii_case("authorization")
}

/// Returns a map inside of another one.
fn section<'w, 'a>(
    fields: &mut Fields<'w, 'a>,
    key: &'static str,
    prefix: &'static str,
) -> Option<Fields<'w, 'a>> {
    let node = fields.take(key)?;
    match node.value {
        Value::Map(entries) => Some(fields.inner(prefix, node.line, entries)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
            let message = format!("must be a map, not {}", node.value.kind());
            fields.walk.fail(fields.place(node.line, key), message);
            None
        }
    }
}

fn tokens(fields: &mut Fields<'_, '_>) -> Vec<StaticToken> {
    const FORM: &str = "write one `- { name: NAME, hash: \"sha256:…\" }` per token; `rialto token` prints it";
    let Some(node) = fields.take("tokens") else {
        return Vec::new();
    };
    let Value::List(items) = node.value else {
        fields.walk.fail(
            fields.place(node.line, "tokens"),
            format!("must be a list, not {}: {FORM}", node.value.kind()),
        );
        return Vec::new();
    };
    let entry = |Node { line, value }| match value {
        Value::Map(entries) => token(fields.inner("auth.tokens.", line, entries)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
            // Not quoted: it may be the token itself.
            fields.walk.fail(
                fields.place(line, "tokens"),
                format!("a token must be a map: {FORM}"),
            );
            None
        }
    };
    items.into_iter().filter_map(entry).collect()
}

fn token(mut fields: Fields<'_, '_>) -> Option<StaticToken> {
    let name = required(&mut fields, "name", TokenName::parse);
    let hash = match fields.given("hash") {
        Some(given) => secretly(fields.walk, &given, TokenHash::parse),
        None => {
            fields.fail("`hash` is missing: `rialto token` prints it");
            None
        }
    };
    let destinations = fields
        .list("destinations")
        .map(|names| names.into_iter().map(|given| given.text).collect());
    let expires = fields.parsed("expires", moment);
    let admin = fields.parsed("admin", quantity::truth).unwrap_or(false);
    if admin && destinations.is_some() {
        fields.fail("the page shows every destination: write `admin` or `destinations`, not both");
    }
    fields.finish();
    let token = StaticToken {
        name: name?,
        hash: hash?,
        destinations,
        expires,
        admin,
    };
    Some(token)
}

/// Returns a token of the command line: `sha256:…`, or `NAME=sha256:…`.
fn bare_token(walk: &Walk<'_>, given: &Given) -> Option<StaticToken> {
    let parse = |text: &str| {
        let (name, hash) = text.split_once('=').unwrap_or((UNNAMED, text));
        Ok((TokenName::parse(name)?, TokenHash::parse(hash)?))
    };
    let (name, hash) = secretly(walk, given, parse)?;
    Some(StaticToken {
        name,
        hash,
        destinations: None,
        expires: None,
        admin: false,
    })
}

/// Judges a text that may be a token by mistake, and so is never shown.
fn secretly<T>(walk: &Walk<'_>, given: &Given, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
    match parse(&given.text) {
        Ok(value) => Some(value),
        Err(message) => {
            walk.fail(given.place.clone(), message);
            None
        }
    }
}

/// Two tokens of one name would be one principal, which may be meant; one hash for two names cannot
/// be.
fn check_names(walk: &Walk<'_>, tokens: &[StaticToken]) {
    for (at, token) in tokens.iter().enumerate() {
        let twin = tokens.iter().take(at).find(|other| other.hash == token.hash);
        if let Some(twin) = twin {
            walk.fail(
                Place::File {
                    file: walk.file.clone(),
                    line: 0,
                },
                format!(
                    "the tokens `{}` and `{}` have the same hash: make another one with `rialto token`",
                    twin.name.as_str(),
                    token.name.as_str()
                ),
            );
        }
        if token.expires.is_some_and(|expires| expires <= SystemTime::now()) {
            walk.note(format!("the token `{}` has expired", token.name.as_str()));
        }
    }
}

fn moment(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text.trim())
        .map_err(|_| "not a point in time: write one such as 2027-01-31T00:00:00Z".to_owned())
}

fn required<T>(
    fields: &mut Fields<'_, '_>,
    key: &'static str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    if !fields.has(key) {
        fields.fail(format!("`{key}` is missing"));
    }
    fields.parsed(key, parse)
}

fn jwt(mut fields: Fields<'_, '_>) -> Option<JwtSettings> {
    let walk = fields.walk;
    let issuer = required(&mut fields, "issuer", IssuerUrl::parse);
    let audience = fields.parsed("audience", |text| match text.trim() {
        "" => Err("write what `aud` must name; {destination} stands for the destination's name".to_owned()),
        text => Ok(text.to_owned()),
    });
    let jwks_uri = fields.parsed("jwks_uri", KeysUrl::parse);
    let algorithms: Option<BTreeSet<SignatureAlgorithm>> = fields.list("algorithms").map(|given| {
        given
            .iter()
            .filter_map(|given| walk.parse(given, |text| one_of(text, &SignatureAlgorithm::WORDS)))
            .collect()
    });
    let types = fields.list("types").unwrap_or_default();
    let types = types
        .iter()
        .filter_map(|given| walk.parse(given, token_type))
        .collect();
    let scopes = fields.list("required_scopes").unwrap_or_default();
    let scopes = self::scopes(walk, &scopes);
    let scopes_for = scopes_for(&mut fields);
    let admin_scope = fields.parsed("admin_scope", Scope::parse);
    fields.finish();
    Some(JwtSettings {
        issuer: issuer?,
        audience,
        jwks_uri,
        algorithms: algorithms.unwrap_or_else(SignatureAlgorithm::all),
        types,
        scopes,
        scopes_for,
        admin_scope,
    })
}

/// Returns a media type as the header of a token names it; `application/` may be left out (RFC
/// 7515, 4.1.9).
fn token_type(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let bare = text.strip_prefix("application/").unwrap_or(&text);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    if bare.is_empty() || !bare.bytes().all(is_plain) {
        return Err("is no type of a token: write one like `at+jwt`".to_owned());
    }
    Ok(bare.to_owned())
}

fn scopes(walk: &Walk<'_>, given: &[Given]) -> Vec<Scope> {
    given
        .iter()
        .filter_map(|given| walk.parse(given, Scope::parse))
        .collect()
}

fn scopes_for(fields: &mut Fields<'_, '_>) -> BTreeMap<ScopedUse, Vec<Scope>> {
    const FORM: &str = "write `tools/call: [SCOPE]` or `\"tool:NAME\": [SCOPE]`";
    let Some(node) = fields.take("scopes") else {
        return BTreeMap::new();
    };
    let Value::Map(entries) = node.value else {
        fields.walk.fail(
            fields.place(node.line, "scopes"),
            format!("must be a map, not {}: {FORM}", node.value.kind()),
        );
        return BTreeMap::new();
    };
    let entry = |(key, node): (String, Node)| {
        let field = format!("scopes.{key}");
        let place = fields.place(node.line, &field);
        let needed = scopes(fields.walk, &fields.scalars(node, &field));
        match ScopedUse::parse(&key) {
            Ok(scoped) => Some((scoped, needed)),
            Err(message) => {
                fields.walk.fail(place, message);
                None
            }
        }
    };
    entries.into_iter().filter_map(entry).collect()
}

fn proxy(mut fields: Fields<'_, '_>) -> Option<ProxySettings> {
    let walk = fields.walk;
    let header = fields.parsed("header", |text| {
        let name = quantity::header_name(text)?;
        match name.to_ascii_lowercase().as_str() {
            "authorization" | "cookie" | "host" | "origin" => {
                Err("clients send this header themselves: write one that only the proxy sets".to_owned())
            }
            _ => http::HeaderName::try_from(name).map_err(|error| error.to_string()),
        }
    });
    let from = fields.list("from").unwrap_or_default();
    if from.is_empty() {
        fields.fail("`from` is missing: write the addresses that the proxy speaks from, such as [127.0.0.1]");
    }
    let from: Vec<Network> = from
        .iter()
        .filter_map(|given| walk.parse(given, Network::parse))
        .collect();
    fields.finish();
    let default = http::HeaderName::try_from(USER_HEADER).expect("the usual header has a valid name");
    Some(ProxySettings {
        header: header.unwrap_or(default),
        from,
    })
}
