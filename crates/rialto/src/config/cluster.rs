//! `cluster`: the fleet that a replica belongs to.

use std::net::SocketAddr;

use cluster::{NodeId, RedisSettings};
use gateway::platform;
use gateway::settings::ClusterSettings;

use super::globals::{Layers, beside};
use super::problem::Place;
use super::quantity;
use super::reader::{Given, Walk};
use super::tree::Value;

const PREFIX: &str = "rialto";
/// The longest prefix: it is part of every key.
const MAX_PREFIX: usize = 64;
/// The longest name of a replica: longer host names are cut.
const MAX_NAME: usize = 253;
/// The name of a replica on a host without a name of its own.
const NAMELESS: &str = "replica";

/// What is configured, before anything is parsed.
#[derive(Default)]
struct AsWritten {
    url: Option<Given>,
    key_file: Option<Given>,
    listen: Option<Given>,
    advertise: Option<Given>,
    prefix: Option<Given>,
    name: Option<Given>,
}

/// Reads `cluster` and its variables. `public` is the address for clients.
pub(super) fn read(layers: &mut Layers<'_, '_, '_>, public: SocketAddr) -> Option<ClusterSettings> {
    const FORM: &str =
        "must be a map: write `cluster: { url: redis://HOST:6379, key_file: FILE, listen: ADDRESS:PORT }`";
    let walk = layers.fields.walk;
    let mut written = AsWritten::default();
    let mut place = None;
    if let Some(node) = layers.fields.take("cluster") {
        place = Some(layers.fields.place(node.line, "cluster"));
        match node.value {
            Value::Map(entries) => {
                let mut inner = layers.fields.inner("cluster.", node.line, entries);
                written = AsWritten {
                    url: inner.given("url"),
                    key_file: inner.given("key_file"),
                    listen: inner.given("listen"),
                    advertise: inner.given("advertise"),
                    prefix: inner.given("prefix"),
                    name: inner.given("name"),
                };
                inner.finish();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                walk.fail(layers.fields.place(node.line, "cluster"), FORM);
                return None;
            }
        }
    }
    let mut over = |variable: &'static str, field: &mut Option<Given>| {
        if let Some(given) = layers.variable(&[variable]) {
            place.get_or_insert_with(|| given.place.clone());
            *field = Some(given);
        }
    };
    over("RIALTO_CLUSTER_URL", &mut written.url);
    over("RIALTO_CLUSTER_KEY_FILE", &mut written.key_file);
    over("RIALTO_CLUSTER_LISTEN", &mut written.listen);
    over("RIALTO_CLUSTER_ADVERTISE", &mut written.advertise);
    over("RIALTO_CLUSTER_PREFIX", &mut written.prefix);
    over("RIALTO_CLUSTER_NAME", &mut written.name);
    let host_name = host_name(layers);
    parse(walk, written, &place?, public, host_name)
}

/// Checks all members, so that all problems are found at once.
fn parse(
    walk: &Walk<'_>,
    written: AsWritten,
    place: &Place,
    public: SocketAddr,
    host_name: String,
) -> Option<ClusterSettings> {
    let missing = |key: &str, fix: &str| {
        walk.fail(place.clone(), format!("`cluster.{key}` is missing: {fix}"));
        None::<Given>
    };
    let url = written
        .url
        .or_else(|| {
            missing(
                "url",
                "write the address of Redis or Valkey, such as redis://127.0.0.1:6379",
            )
        })
        .and_then(|given| url(walk, &given));
    let key_file = written
        .key_file
        .or_else(|| {
            missing(
                "key_file",
                "make the file with `rialto cluster key`, and name it there",
            )
        })
        .and_then(|given| {
            let relative_to = beside(&given.place, walk);
            walk.parse(&given, |text| match text {
                "" => Err("write the path of a file".to_owned()),
                path => Ok(relative_to.join(path)),
            })
        });
    let listen = written.listen.or_else(|| {
        missing(
            "listen",
            "write an address that the other replicas reach, such as 10.0.0.5:3001",
        )
    });
    let listen_place = listen.as_ref().map(|given| given.place.clone());
    let listen = listen.and_then(|given| {
        walk.parse(&given, |text| match quantity::listen(text)? {
            address if address == public && address.port() != 0 => {
                Err("clients use this address (`listen`): choose another port".to_owned())
            }
            address => Ok(address),
        })
    });
    let advertise = match (written.advertise, listen, listen_place) {
        (Some(given), _, _) => walk.parse(&given, advertise),
        (None, Some(listen), Some(place)) if listen.ip().is_unspecified() => {
            let message = format!(
                "`{listen}` is every address of this machine, and the other replicas need one of them: \
                 set `cluster.advertise`, such as 10.0.0.5:{}",
                listen.port()
            );
            walk.fail(place, message);
            None
        }
        (None, listen, _) => listen.map(|listen| listen.to_string()),
    };
    let prefix = match written.prefix {
        Some(given) => walk.parse(&given, prefix),
        None => Some(PREFIX.to_owned()),
    };
    let name = match written.name {
        Some(given) => walk.parse(&given, name),
        None => Some(host_name),
    };
    Some(ClusterSettings {
        url: url?,
        key_file: key_file?,
        listen: listen?,
        advertise: advertise?,
        prefix: prefix?,
        name: name?,
    })
}

/// Returns the URL of the engine. No message quotes it: it may hold a password.
fn url(walk: &Walk<'_>, given: &Given) -> Option<String> {
    let url = given.text.trim();
    match RedisSettings::new(url).check_url() {
        Ok(()) => Some(url.to_owned()),
        Err(error) => {
            walk.fail(given.place.clone(), error.to_string());
            None
        }
    }
}

/// Returns where the other replicas reach this one: `HOST:PORT`.
fn advertise(text: &str) -> Result<String, String> {
    const FORM: &str = "not an address of this replica: write HOST:PORT, such as 10.0.0.5:3001";
    let text = text.trim();
    let (host, port) = text.rsplit_once(':').ok_or(FORM)?;
    if host.contains(':') && !host.starts_with('[') {
        return Err("write an IPv6 address in brackets, such as [fd00::5]:3001".to_owned());
    }
    let host = quantity::host(host).map_err(|_| FORM.to_owned())?;
    let bare = host.trim_matches(['[', ']']);
    if bare.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified()) {
        return Err("the other replicas need one address of this machine, such as 10.0.0.5:3001".to_owned());
    }
    match port.parse::<u16>() {
        Ok(0) => Err("port 0 cannot be reached: write the port of `cluster.listen`".to_owned()),
        Ok(port) => Ok(format!("{host}:{port}")),
        Err(_) => Err(FORM.to_owned()),
    }
}

/// Returns what keys in the engine begin with. Rules of the engine's users have patterns, so that
/// no special character is allowed.
fn prefix(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if text.is_empty() || text.len() > MAX_PREFIX || !text.bytes().all(is_plain) {
        return Err(format!(
            "not a prefix of keys: write 1 to {MAX_PREFIX} letters, digits, `.`, `-`, `_` or `:`, such as rialto"
        ));
    }
    Ok(text.to_owned())
}

/// Returns the name of a replica.
fn name(text: &str) -> Result<String, String> {
    match NodeId::generate(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!(
            "not a name of a replica: write 1 to {MAX_NAME} letters, digits, `.`, `-` or `_`"
        )),
    }
}

/// Returns the name of this host, as far as it can name a replica. An incarnation tells two
/// replicas with one name apart.
fn host_name(layers: &Layers<'_, '_, '_>) -> String {
    let host = layers.variable(&["HOSTNAME"]).map(|given| given.text);
    let host: String = host
        .or_else(platform::host_name)
        .unwrap_or_default()
        .trim()
        .chars()
        .take(MAX_NAME)
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') => c,
            _ => '-',
        })
        .collect();
    match host.is_empty() {
        true => NAMELESS.to_owned(),
        false => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertised_address_is_one_that_can_be_reached() {
        assert_eq!(advertise("10.0.0.5:3001"), Ok("10.0.0.5:3001".to_owned()));
        assert_eq!(
            advertise(" Pod-1.rialto:3001"),
            Ok("pod-1.rialto:3001".to_owned())
        );
        assert_eq!(advertise("[fd00::5]:3001"), Ok("[fd00::5]:3001".to_owned()));
        for (wrong, fix) in [
            ("10.0.0.5", "HOST:PORT"),
            (":3001", "HOST:PORT"),
            ("a b:3001", "HOST:PORT"),
            ("10.0.0.5:", "HOST:PORT"),
            ("10.0.0.5:0", "port of `cluster.listen`"),
            ("0.0.0.0:3001", "one address"),
            ("[::]:3001", "one address"),
            ("fd00::5:3001", "in brackets"),
        ] {
            let error = advertise(wrong).expect_err(wrong);
            assert!(error.contains(fix), "{wrong}: {error}");
        }
    }

    #[test]
    fn prefix_and_name_have_no_special_characters() {
        assert_eq!(prefix("rialto:blue"), Ok("rialto:blue".to_owned()));
        assert_eq!(name("replica-1"), Ok("replica-1".to_owned()));
        for wrong in ["", "a*", "a b", "ä", &"a".repeat(65)] {
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "a/b", "a b"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
