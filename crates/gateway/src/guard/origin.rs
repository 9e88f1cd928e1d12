//! Host and Origin checks: a page on the web must not reach a server on this machine by a name that
//! it made resolve to a loopback address (DNS rebinding), nor by a cross-site request.

use std::net::{IpAddr, SocketAddr};

use http::Uri;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Authority;

use crate::reply::Refusal;
use crate::settings::Settings;
use crate::single_header::SingleHeader;

/// The names this gateway answers to and the origins it serves.
#[derive(Debug)]
pub(crate) struct OriginGuard {
    listen: IpAddr,
    /// What most clients write: the address that is listened on. It need not be taken apart each
    /// time.
    usual: Option<HeaderValue>,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl OriginGuard {
    /// The configured `public_url` is ours too, and pages from there are our own.
    pub(crate) fn new(settings: &Settings, listen: SocketAddr) -> Self {
        let public = settings.public_url.as_ref();
        Self::named(
            listen,
            settings
                .allowed_hosts
                .iter()
                .map(String::as_str)
                .chain(public.map(|url| url.host())),
            settings
                .allowed_origins
                .iter()
                .map(String::as_str)
                .chain(public.map(|url| url.origin())),
        )
    }

    fn named<'n>(
        listen: SocketAddr,
        hosts: impl Iterator<Item = &'n str>,
        origins: impl Iterator<Item = &'n str>,
    ) -> Self {
        let usual = Some(listen.to_string()).filter(|address| host_of(address).is_some());
        Self {
            listen: listen.ip(),
            usual: usual.and_then(|address| HeaderValue::from_str(&address).ok()),
            hosts: hosts
                .map(|host| host.trim_end_matches('.').to_ascii_lowercase())
                .collect(),
            origins: origins
                .map(|origin| origin.trim_end_matches('/').to_ascii_lowercase())
                .collect(),
        }
    }

    /// Returns whether answers depend on where a request comes from.
    pub(crate) fn names_origins(&self) -> bool {
        !self.origins.is_empty()
    }

    /// Returns the origin to allow in the answer, if the request came from one.
    ///
    /// A target that names a host counts instead of the `Host` header (RFC 9112, 3.2.2); here both
    /// must be Rialto's.
    pub(crate) fn admit(&self, target: &Uri, headers: &HeaderMap) -> Result<Option<HeaderValue>, Refusal> {
        let (mut host, mut origin) = (SingleHeader::Absent, SingleHeader::Absent);
        let mut is_cross_site = false;
        for (name, value) in headers {
            match name.as_str() {
                "host" => host = host.and(value),
                "origin" => origin = origin.and(value),
                "sec-fetch-site" => {
                    is_cross_site |= value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"cross-site");
                }
                _ => {}
            }
        }
        let SingleHeader::Once(host) = host else {
            return Err(Refusal::MissingHost);
        };
        let named = target.authority().map(Authority::as_str);
        let is_ours = |authority: &str| host_of(authority).is_some_and(|host| self.knows_host(host));
        let is_usual = self.usual.as_ref() == Some(host);
        if !is_usual && !host.to_str().is_ok_and(is_ours) || !named.is_none_or(is_ours) {
            return Err(Refusal::ForeignHost);
        }
        let origin = match origin {
            // A browser sends no `Origin` with the GET of a script or an image, but
            // `Sec-Fetch-Site` tells where the page is from.
            SingleHeader::Absent if is_cross_site => return Err(Refusal::ForeignOrigin),
            SingleHeader::Absent => return Ok(None),
            SingleHeader::Once(origin) => origin,
            SingleHeader::Repeated => return Err(Refusal::ForeignOrigin),
        };
        let text = origin.to_str().map_err(|_| Refusal::ForeignOrigin)?;
        if self.knows_origin(text) {
            Ok(Some(origin.clone()))
        } else {
            Err(Refusal::ForeignOrigin)
        }
    }

    /// The same for the page, which also takes requests of its own origin: a name or an address of
    /// this gateway that was not configured as an origin.
    pub(crate) fn admit_page(
        &self,
        target: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Refusal> {
        match self.admit(target, headers) {
            // The host was known. So a name that was made to lead here is refused all the same.
            Err(Refusal::ForeignOrigin) if is_own_origin(headers) => Ok(None),
            judged => judged,
        }
    }

    fn knows_host(&self, host: &str) -> bool {
        if is_loopback_name(host) || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
            return true;
        }
        // Rebinding needs a name. An address can only be this machine's own, if Rialto listens on
        // it.
        match host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
        {
            Ok(address) => address == self.listen || self.listen.is_unspecified(),
            Err(_) => false,
        }
    }

    fn knows_origin(&self, origin: &str) -> bool {
        if self
            .origins
            .iter()
            .any(|known| known.eq_ignore_ascii_case(origin))
        {
            return true;
        }
        let rest = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        rest.and_then(host_of).is_some_and(is_loopback_name)
    }
}

/// Returns whether the one origin of a request is the host that it asks.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else {
        return false;
    };
    let Some((_, authority)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else {
        return false;
    };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
}

/// Returns the host of `host[:port]`, where nothing else may stand: no user, no path, no trailing
/// dot.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let end = rest.find(']')?;
        (&authority[..end + 2], &rest[end + 1..])
    } else {
        match authority.find(':') {
            Some(colon) => (&authority[..colon], &authority[colon..]),
            None => (authority, ""),
        }
    };
    let port_is_fine = match port.strip_prefix(':') {
        Some(digits) => {
            !digits.is_empty() && digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit())
        }
        None => port.is_empty(),
    };
    let host_is_fine = !host.is_empty()
        && !host.ends_with('.')
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    (port_is_fine && host_is_fine).then_some(host)
}

fn is_loopback_name(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host == "127.0.0.1" || host == "[::1]"
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::HeaderName;

    fn guard(listen: &str) -> OriginGuard {
        OriginGuard::named(
            listen.parse().unwrap(),
            ["mcp.example.com", "[fd00::7]"].into_iter(),
            ["https://app.example.com", "https://port.example.com:8443"].into_iter(),
        )
    }

    fn admit(guard: &OriginGuard, host: &str, origin: Option<&str>) -> Result<Option<HeaderValue>, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        guard.admit(&Uri::from_static("/mcp"), &headers)
    }

    #[test]
    fn loopback_names_and_configured_hosts_pass_with_any_port() {
        let guard = guard("127.0.0.1:3000");
        for host in [
            "localhost",
            "localhost:3000",
            "127.0.0.1:3000",
            "[::1]:3000",
            "LOCALHOST",
            "mcp.example.com",
            "MCP.example.com:443",
            "[fd00::7]",
            "[FD00::7]:3000",
        ] {
            assert!(admit(&guard, host, None).is_ok(), "{host}");
        }
    }

    #[test]
    fn foreign_hosts_are_refused_in_every_disguise() {
        let guard = guard("127.0.0.1:3000");
        for host in [
            "evil.example",
            "evil.example:3000",
            "localhost.evil.example",
            "localhost.",
            "user@localhost",
            "127.0.0.1.evil",
            "0.0.0.0",
            "192.168.1.1",
            "[::1",
            "[::1]x",
            "localhost:",
            "localhost:x",
            "localhost/",
            "",
            "127.0.0.1:3000:1",
            "2130706433",
            "0x7f000001",
            "127.1",
            "mcp.example.com.",
            "mcp.example.com.evil",
            "evil.mcp.example.com",
            "mcp.example.com@evil.example",
            "mcp.example.com:443@evil.example",
            "mcp.example.com\\@evil.example",
            "[::1]:",
            "[::1]:x",
            "::1",
            "[::ffff:127.0.0.1]",
            "[fd00::8]",
            "fd00::7",
            "[::1]@evil.example",
            "localhost:123456",
            "localhost,evil.example",
            "localhost evil.example",
            "localhost%00.evil.example",
            "*",
        ] {
            assert_eq!(admit(&guard, host, None), Err(Refusal::ForeignHost), "{host}");
        }
    }

    #[test]
    fn addresses_pass_when_we_listen_on_them() {
        assert!(admit(&guard("192.168.1.1:3000"), "192.168.1.1:3000", None).is_ok());
        assert!(admit(&guard("0.0.0.0:3000"), "10.0.0.7:3000", None).is_ok());
        assert!(admit(&guard("0.0.0.0:3000"), "evil.example", None).is_err());
    }

    #[test]
    fn origins_are_checked_and_null_is_refused() {
        let guard = guard("127.0.0.1:3000");
        for origin in [
            "http://localhost:8080",
            "https://127.0.0.1",
            "http://[::1]:1",
            "https://app.example.com",
            "https://port.example.com:8443",
        ] {
            assert_eq!(admit(&guard, "localhost", Some(origin)).unwrap().unwrap(), origin);
        }
        for origin in [
            "null",
            "https://evil.example",
            "http://localhost.evil.example",
            "file://",
            "https://app.example.com.evil",
            "http://mcp.example.com@localhost",
            "NULL",
            "",
            "http://app.example.com",
            "https://app.example.com:444",
            "https://app.example.com.",
            "https://app.example.com/",
            "https://app.example.com/path",
            "https://user@app.example.com",
            "https://port.example.com",
            "https://mcp.example.com",
            "ftp://localhost",
            "chrome-extension://localhost",
            "http://localhost.",
            "http://[::1",
            "http://127.0.0.1.evil.example",
            "https://app.example.com https://evil.example",
            "http://localhost, https://evil.example",
        ] {
            assert_eq!(
                admit(&guard, "localhost", Some(origin)),
                Err(Refusal::ForeignOrigin),
                "{origin}"
            );
        }
    }

    #[test]
    fn page_takes_its_own_origin_at_a_host_that_is_known() {
        let guard = guard("0.0.0.0:3000");
        let admit = |host: &str, origins: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            for origin in origins {
                headers.append(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            }
            guard.admit_page(&Uri::from_static("/ui/sign-in"), &headers)
        };
        assert_eq!(admit("10.0.0.7:3000", &["http://10.0.0.7:3000"]), Ok(None));
        let named = ["https://mcp.example.com:3000"];
        assert_eq!(admit("mcp.example.com:3000", &named), Ok(None));
        for origins in [
            &["http://10.0.0.8:3000"][..],
            &["http://10.0.0.7:3001"],
            &["null"],
            &["http://10.0.0.7:3000", "http://10.0.0.7:3000"],
        ] {
            let judged = admit("10.0.0.7:3000", origins);
            assert_eq!(judged, Err(Refusal::ForeignOrigin), "{origins:?}");
        }
        let rebound = admit("evil.example", &["http://evil.example"]);
        assert_eq!(rebound, Err(Refusal::ForeignHost));
    }

    #[test]
    fn a_target_that_names_another_host_is_refused() {
        let guard = guard("127.0.0.1:3000");
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("localhost"))]);
        let admit = |target| guard.admit(&Uri::from_static(target), &headers);
        assert_eq!(admit("http://localhost:3000/mcp"), Ok(None));
        assert_eq!(admit("http://evil.example/mcp"), Err(Refusal::ForeignHost));
        assert_eq!(
            admit("http://localhost@evil.example/mcp"),
            Err(Refusal::ForeignHost)
        );
    }

    #[test]
    fn a_page_of_another_site_needs_an_allowed_origin() {
        let guard = guard("127.0.0.1:3000");
        let admit = |site: &'static str, origin: Option<&'static str>| {
            let mut headers = HeaderMap::from_iter([
                (header::HOST, HeaderValue::from_static("localhost")),
                (
                    HeaderName::from_static("sec-fetch-site"),
                    HeaderValue::from_static(site),
                ),
            ]);
            headers.extend(origin.map(|origin| (header::ORIGIN, HeaderValue::from_static(origin))));
            guard.admit(&Uri::from_static("/old/sse"), &headers)
        };
        for site in ["same-origin", "same-site", "none"] {
            assert_eq!(admit(site, None), Ok(None), "{site}");
        }
        for site in ["cross-site", "Cross-Site"] {
            assert_eq!(admit(site, None), Err(Refusal::ForeignOrigin), "{site}");
        }
        assert!(admit("cross-site", Some("https://app.example.com")).is_ok());
        assert!(admit("cross-site", Some("https://evil.example")).is_err());
    }

    #[test]
    fn two_hosts_or_none_are_refused() {
        let guard = guard("127.0.0.1:3000");
        let mut headers = HeaderMap::new();
        assert_eq!(
            guard.admit(&Uri::from_static("/mcp"), &headers),
            Err(Refusal::MissingHost)
        );
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        headers.append(header::HOST, HeaderValue::from_static("evil"));
        assert_eq!(
            guard.admit(&Uri::from_static("/mcp"), &headers),
            Err(Refusal::MissingHost)
        );
    }
}
