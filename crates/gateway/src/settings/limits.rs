//! How much clients may ask for, as used.

use super::Network;

/// The limits that hold for the whole gateway, whatever the destination. `None`: no such limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSettings {
    /// Requests of one principal (of one address, for callers without a name) in a minute.
    pub requests_per_minute: Option<u32>,
    /// Requests of one session in a minute.
    pub session_requests_per_minute: Option<u32>,
    /// Credentials of one address in a minute that are nobody's.
    pub refused_credentials_per_minute: u32,
    /// Sessions at once, of all destinations together.
    pub sessions: usize,
    pub sessions_per_principal: Option<usize>,
    /// Calls at once, from the reading of their bodies to their ends.
    pub calls: usize,
    pub calls_per_principal: Option<usize>,
    /// Streams for notices at once: those opened by GET, and `subscriptions/listen`.
    pub streams: usize,
    pub connections: usize,
    pub connections_per_address: Option<usize>,
    /// Whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<Network>,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            requests_per_minute: None,
            session_requests_per_minute: None,
            // A client with a wrong token may try once a second without being told anything else.
            refused_credentials_per_minute: 60,
            sessions: 10_000,
            sessions_per_principal: None,
            calls: 8192,
            calls_per_principal: None,
            streams: 10_000,
            connections: 8192,
            connections_per_address: None,
            trusted_proxies: Vec::new(),
        }
    }
}
