//! How much clients may ask for, as used.

use std::net::IpAddr;

use protocol::buffer_budget;

use super::Network;

/// The default limit of connections of one address. Not of this machine: a proxy on it speaks for
/// many.
const CONNECTIONS_PER_ADDRESS: usize = 256;

/// The limits that hold for the whole gateway, over all destinations. `None`: no such limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSettings {
    /// Requests of one principal (of one address, for callers without a name) in a minute.
    pub requests_per_minute: Option<u32>,
    /// Requests of one session in a minute.
    pub session_requests_per_minute: Option<u32>,
    /// Unknown credentials of one address in a minute.
    pub refused_credentials_per_minute: u32,
    /// Sessions at once, of all destinations together.
    pub sessions: usize,
    /// Those of one principal; `None`: half of all, for callers with a name.
    pub sessions_per_principal: Option<usize>,
    /// Calls at once, from the reading of their bodies to their ends.
    pub calls: usize,
    /// Those of one principal; `None`: half of all, for callers with a name.
    pub calls_per_principal: Option<usize>,
    /// Streams for notices at once: those opened by GET, and `subscriptions/listen`.
    pub streams: usize,
    /// Those of one principal; `None`: half of all, for callers with a name.
    pub streams_per_principal: Option<usize>,
    /// Streams opened by GET of one session.
    pub streams_per_session: usize,
    /// Modern listens at once, of one destination.
    pub listens: usize,
    /// Modern calls that wait for their client's answer at once, of one destination.
    pub waiting_calls: usize,
    pub connections: usize,
    /// As configured, for every address but those of trusted proxies.
    pub connections_per_address: Option<usize>,
    /// Bytes that wait to be read: kept events, and answers that a connection has not sent yet.
    pub buffered_bytes: usize,
    /// Those of one principal, where there is `auth`; `None`: half of all.
    pub buffered_bytes_per_principal: Option<usize>,
    /// Events that one session keeps.
    pub buffered_bytes_per_session: usize,
    /// What is kept of ended calls for the page.
    pub ended_calls_bytes: usize,
    /// The proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<Network>,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            requests_per_minute: None,
            session_requests_per_minute: None,
            // A client with a wrong token may try once a second before it gets 429.
            refused_credentials_per_minute: 60,
            sessions: 10_000,
            sessions_per_principal: None,
            calls: 8192,
            calls_per_principal: None,
            streams: 10_000,
            streams_per_principal: None,
            streams_per_session: 64,
            listens: 256,
            waiting_calls: 1024,
            connections: 8192,
            connections_per_address: None,
            // Sixteen answers of the default `max_message_bytes`.
            buffered_bytes: 256 << 20,
            buffered_bytes_per_principal: None,
            buffered_bytes_per_session: 32 << 20,
            ended_calls_bytes: 1 << 20,
            trusted_proxies: Vec::new(),
        }
    }
}

impl LimitSettings {
    /// Returns the budget for what waits to be read.
    pub(crate) fn buffers(&self, tells_callers_apart: bool) -> buffer_budget::Limits {
        let per_principal = self
            .buffered_bytes_per_principal
            .unwrap_or(self.buffered_bytes / 2);
        buffer_budget::Limits {
            total: self.buffered_bytes,
            per_principal: tells_callers_apart.then_some(per_principal),
        }
    }

    /// Returns how many connections this peer may have. A proxy that is trusted speaks for many.
    pub(crate) fn connections_of(&self, peer: IpAddr) -> Option<usize> {
        let peer = peer.to_canonical();
        if self.trusted_proxies.iter().any(|network| network.contains(peer)) {
            return None;
        }
        self.connections_per_address
            .or_else(|| (!peer.is_loopback()).then_some(CONNECTIONS_PER_ADDRESS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_limit_by_default_unless_it_is_this_machine_or_a_trusted_proxy() {
        let mut limits = LimitSettings {
            trusted_proxies: vec![Network::parse("10.0.0.0/8").unwrap()],
            ..LimitSettings::default()
        };
        let of = |limits: &LimitSettings, peer: &str| limits.connections_of(peer.parse().unwrap());
        assert_eq!(of(&limits, "203.0.113.7"), Some(256));
        assert_eq!(of(&limits, "::ffff:203.0.113.7"), Some(256));
        assert_eq!(of(&limits, "10.1.2.3"), None);
        assert_eq!(of(&limits, "127.0.0.1"), None);
        assert_eq!(of(&limits, "::1"), None);
        limits.connections_per_address = Some(5);
        assert_eq!(
            of(&limits, "127.0.0.1"),
            Some(5),
            "what is configured holds for all"
        );
        assert_eq!(of(&limits, "10.1.2.3"), None);
    }
}
