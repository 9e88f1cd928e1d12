//! A trusted proxy that names the caller in a header. The header counts only from the proxy's own
//! address.

use std::net::IpAddr;

use http::HeaderMap;
use protocol::exchange::Principal;

use crate::reply::Refusal;
use crate::settings::ProxySettings;

/// The prefix of a user's name, so that no user can have the name of a token.
pub(super) const VOUCHER: &str = "proxy";
/// Longer than any honest user name.
const MAX_USER: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TrustedProxies {
    settings: ProxySettings,
}

impl TrustedProxies {
    pub(crate) fn new(settings: ProxySettings) -> Self {
        Self { settings }
    }

    /// Returns the caller that a trusted proxy names. From any other peer the header means nothing.
    pub(crate) fn user(&self, peer: IpAddr, headers: &HeaderMap) -> Result<Option<Principal>, Refusal> {
        if !self.settings.from.iter().any(|network| network.contains(peer)) {
            return Ok(None);
        }
        let mut values = headers.get_all(&self.settings.header).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        // A second one is the client's own, and the two cannot be distinguished.
        if values.next().is_some() {
            return Err(Refusal::DoubledHeader("user"));
        }
        let user = std::str::from_utf8(value.as_bytes()).unwrap_or_default().trim();
        let is_plain = !user.is_empty() && user.len() <= MAX_USER && !user.chars().any(char::is_control);
        Ok(is_plain.then(|| Principal::named(&format!("{VOUCHER}#{user}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Network;
    use http::{HeaderName, HeaderValue};

    const HEADER: HeaderName = HeaderName::from_static("x-forwarded-user");

    fn user(peer: &str, values: &[&[u8]]) -> Result<Option<String>, Refusal> {
        let proxies = TrustedProxies::new(ProxySettings {
            header: HEADER,
            from: vec![
                Network::parse("10.0.0.0/8").unwrap(),
                Network::parse("::1").unwrap(),
            ],
        });
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        let found = proxies.user(peer.parse().unwrap(), &headers)?;
        Ok(found.map(|principal| principal.as_str().to_owned()))
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        assert_eq!(user("10.1.2.3", &[b"alice"]), Ok(Some("proxy#alice".into())));
        assert_eq!(user("::1", &[b"alice"]), Ok(Some("proxy#alice".into())));
        assert_eq!(
            user("::ffff:10.1.2.3", &[b"alice"]),
            Ok(Some("proxy#alice".into()))
        );
        assert_eq!(user("192.168.0.1", &[b"alice"]), Ok(None));
        assert_eq!(user("192.168.0.1", &[b"alice", b"bob"]), Ok(None));
    }

    #[test]
    fn proxy_that_names_no_user_or_two_is_refused() {
        assert_eq!(user("10.1.2.3", &[]), Ok(None));
        for invalid in [&b""[..], b"  ", b"\xff", &[b'x'; MAX_USER + 1]] {
            assert_eq!(user("10.1.2.3", &[invalid]), Ok(None));
        }
        assert_eq!(
            user("10.1.2.3", &[b"alice", b"alice"]),
            Err(Refusal::DoubledHeader("user"))
        );
    }
}
