//! `limits` and `trusted_proxies`: how much clients may ask for, and whose word about addresses
//! counts.

use gateway::settings::{LimitSettings, Network};

use super::globals::Layers;
use super::quantity;
use super::reader::{Fields, Given};
use super::tree::Value;

/// Reads the map `limits`, key by key, each of them overruled by its variable.
pub(super) fn read(layers: &mut Layers<'_, '_, '_>) -> LimitSettings {
    let proxies = layers.all(("", &[]), &["RIALTO_TRUSTED_PROXIES"], "trusted_proxies");
    let mut map = map(layers.fields);
    let mut read = Read {
        layers,
        map: &mut map,
    };
    let default = LimitSettings::default();
    let settings = LimitSettings {
        requests_per_minute: read
            .count("requests_per_minute", "RIALTO_LIMIT_REQUESTS_PER_MINUTE")
            .map(rate),
        session_requests_per_minute: read
            .count(
                "session_requests_per_minute",
                "RIALTO_LIMIT_SESSION_REQUESTS_PER_MINUTE",
            )
            .map(rate),
        refused_credentials_per_minute: read
            .count(
                "refused_credentials_per_minute",
                "RIALTO_LIMIT_REFUSED_CREDENTIALS_PER_MINUTE",
            )
            .map_or(default.refused_credentials_per_minute, rate),
        sessions: read
            .count("sessions", "RIALTO_LIMIT_SESSIONS")
            .unwrap_or(default.sessions),
        sessions_per_principal: read.count("sessions_per_principal", "RIALTO_LIMIT_SESSIONS_PER_PRINCIPAL"),
        calls: read.count("calls", "RIALTO_LIMIT_CALLS").unwrap_or(default.calls),
        calls_per_principal: read.count("calls_per_principal", "RIALTO_LIMIT_CALLS_PER_PRINCIPAL"),
        streams: read
            .count("streams", "RIALTO_LIMIT_STREAMS")
            .unwrap_or(default.streams),
        streams_per_principal: read.count("streams_per_principal", "RIALTO_LIMIT_STREAMS_PER_PRINCIPAL"),
        streams_per_session: read
            .count("streams_per_session", "RIALTO_LIMIT_STREAMS_PER_SESSION")
            .unwrap_or(default.streams_per_session),
        listens: read
            .count("listens", "RIALTO_LIMIT_LISTENS")
            .unwrap_or(default.listens),
        waiting_calls: read
            .count("waiting_calls", "RIALTO_LIMIT_WAITING_CALLS")
            .unwrap_or(default.waiting_calls),
        connections: read
            .count("connections", "RIALTO_LIMIT_CONNECTIONS")
            .unwrap_or(default.connections),
        connections_per_address: read
            .count("connections_per_address", "RIALTO_LIMIT_CONNECTIONS_PER_ADDRESS"),
        buffered_bytes: read
            .size("buffered_bytes", "RIALTO_LIMIT_BUFFERED_BYTES")
            .unwrap_or(default.buffered_bytes),
        buffered_bytes_per_principal: read.size(
            "buffered_bytes_per_principal",
            "RIALTO_LIMIT_BUFFERED_BYTES_PER_PRINCIPAL",
        ),
        buffered_bytes_per_session: read
            .size(
                "buffered_bytes_per_session",
                "RIALTO_LIMIT_BUFFERED_BYTES_PER_SESSION",
            )
            .unwrap_or(default.buffered_bytes_per_session),
        ended_calls_bytes: read
            .size("ended_calls_bytes", "RIALTO_LIMIT_ENDED_CALLS_BYTES")
            .unwrap_or(default.ended_calls_bytes),
        trusted_proxies: Vec::new(),
    };
    if let Some(map) = map {
        map.finish();
    }
    let walk = layers.fields.walk;
    LimitSettings {
        trusted_proxies: proxies
            .iter()
            .filter_map(|given| walk.parse(given, Network::parse))
            .collect(),
        ..settings
    }
}

fn map<'w, 'a>(fields: &mut Fields<'w, 'a>) -> Option<Fields<'w, 'a>> {
    let node = fields.take("limits")?;
    match node.value {
        Value::Map(entries) => Some(fields.inner("limits.", node.line, entries)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
            let kind = node.value.kind();
            fields.walk.fail(
                fields.place(node.line, "limits"),
                format!("must be a map, not {kind}: write one `requests_per_minute: 60` per line"),
            );
            None
        }
    }
}

struct Read<'r, 'f, 'w, 'a> {
    layers: &'r Layers<'f, 'w, 'a>,
    map: &'r mut Option<Fields<'w, 'a>>,
}

impl Read<'_, '_, '_, '_> {
    fn count(&mut self, key: &'static str, variable: &'static str) -> Option<usize> {
        let given = self.given(key, variable)?;
        self.layers.fields.walk.parse(&given, quantity::count)
    }

    fn size(&mut self, key: &'static str, variable: &'static str) -> Option<usize> {
        let given = self.given(key, variable)?;
        self.layers.fields.walk.parse(&given, quantity::size)
    }

    fn given(&mut self, key: &'static str, variable: &'static str) -> Option<Given> {
        // Taken even if it is overruled: the key is known either way.
        let field: Option<Given> = self.map.as_mut().and_then(|map| map.given(key));
        self.layers.variable(&[variable]).or(field)
    }
}

/// `quantity::count` gives no more than fits.
fn rate(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
