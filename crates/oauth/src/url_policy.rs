//! Which URLs signing in may request (server-side request forgery, DNS rebinding).
//!
//! The remote server writes its metadata and can name any URL in it. Rialto may run in a network
//! where `http://169.254.169.254/` or `http://10.0.0.1/` has secrets. So every URL is checked
//! before it is requested, and every name is resolved here, so that the checked address is the one
//! connected to. The HTTP client follows no redirects; the code that follows one checks its target
//! again.
//!
//! Public addresses may be reached over https. Loopback addresses, also over http, only if the
//! resource itself is named by one: that is development. Private addresses only if the resource is
//! named by one, or the operator allows it. Link-local, multicast and reserved addresses never.
//!
//! What it cannot do: a proxy resolves names by itself. With a proxy, only the proxy can check the
//! address of a name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// The kind of network that an address is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressClass {
    Public,
    Loopback,
    Private,
    /// Link-local (where clouds keep their metadata), multicast, reserved.
    Forbidden,
}

impl AddressClass {
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => embedded_v4(address).map_or_else(|| Self::of_v6(address), Self::of_v4),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [127, ..] => Self::Loopback,
            [10, ..] | [192, 168, ..] | [172, 16..=31, ..] | [100, 64..=127, ..] => Self::Private,
            // This network, link-local, protocol assignments, documentation, benchmarking, 6to4
            // relays, multicast and above.
            [0, ..]
            | [169, 254, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
            | [224..=255, ..] => Self::Forbidden,
            [1..=223, ..] => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let segments = address.segments();
        if address.is_loopback() {
            Self::Loopback
        } else if segments[0] & 0xfe00 == 0xfc00 {
            Self::Private
        } else if segments[0] & 0xe000 == 0x2000
            // Teredo, ORCHID and documentation lie within the global range.
            && !(segments[0] == 0x2001 && (segments[1] < 0x0200 || segments[1] == 0x0db8))
            && segments[0] != 0x3fff
        {
            Self::Public
        } else {
            Self::Forbidden
        }
    }
}

/// Returns the IPv4 address that an IPv6 one stands for: mapped, compatible, NAT64, 6to4.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| {
        let [p, q] = high.to_be_bytes();
        let [r, s] = low.to_be_bytes();
        Ipv4Addr::new(p, q, r, s)
    };
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] | [0, 0, 0, 0, 0xffff, 0] => Some(v4(g, h)),
        [0, 0, 0, 0, 0, 0] if !address.is_loopback() && !address.is_unspecified() => Some(v4(g, h)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

/// Why an address is not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("{0} is not a URL")]
    NotAUrl(String),
    #[error("{0} is not an https URL")]
    NotHttps(String),
    #[error("{0} carries a user name or a password")]
    Userinfo(String),
    #[error("{0} is a loopback address, and the server is not")]
    Loopback(String),
    #[error("{0} is a private address (allow it with --allow-private-addresses if that is your own network)")]
    Private(String),
    #[error("{0} is a link-local or reserved address")]
    Forbidden(String),
}

/// What may be reached on behalf of one resource.
#[derive(Debug, Clone)]
pub(crate) struct UrlPolicy {
    loopback: bool,
    private: bool,
}

impl UrlPolicy {
    /// `allow_private` is the operator's choice; the rest follows from how the resource is named.
    ///
    /// The addresses behind the name do not count, because the owner of the name chooses them.
    pub(crate) fn new(resource: &Url, allow_private: bool) -> Self {
        let named = resource.host().map(|host| match host {
            Host::Domain(name) if is_localhost(name) => AddressClass::Loopback,
            Host::Domain(_) => AddressClass::Public,
            Host::Ipv4(address) => AddressClass::of(address.into()),
            Host::Ipv6(address) => AddressClass::of(address.into()),
        });
        Self {
            loopback: named == Some(AddressClass::Loopback),
            private: allow_private || named == Some(AddressClass::Private),
        }
    }

    pub(crate) fn is_for_development(&self) -> bool {
        self.loopback
    }

    /// A URL out of a document of the server, before anything is sent there or opened.
    pub(crate) fn check(&self, text: &str) -> Result<Url, UrlError> {
        let url = Url::parse(text).map_err(|_| UrlError::NotAUrl(printable(text)))?;
        self.check_url(&url)?;
        Ok(url)
    }

    pub(crate) fn check_url(&self, url: &Url) -> Result<(), UrlError> {
        let name = printable(url.as_str());
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Userinfo(printable(url.host_str().unwrap_or_default())));
        }
        // The parser has turned decimal, octal, hexadecimal and shortened forms into the address
        // they mean.
        let class = match url.host() {
            Some(Host::Domain(domain)) if is_localhost(domain) => AddressClass::Loopback,
            Some(Host::Domain(_)) => AddressClass::Public,
            Some(Host::Ipv4(address)) => AddressClass::of(address.into()),
            Some(Host::Ipv6(address)) => AddressClass::of(address.into()),
            None => return Err(UrlError::NotHttps(name)),
        };
        let development = class == AddressClass::Loopback && self.loopback;
        match url.scheme() {
            "https" => {}
            "http" if development => {}
            _ => return Err(UrlError::NotHttps(name)),
        }
        self.admit(class, name)
    }

    fn check_address(&self, host: &str, address: IpAddr) -> Result<(), UrlError> {
        self.admit(AddressClass::of(address), format!("{host} ({address})"))
    }

    fn admit(&self, class: AddressClass, name: String) -> Result<(), UrlError> {
        match class {
            AddressClass::Public => Ok(()),
            AddressClass::Loopback if self.loopback => Ok(()),
            AddressClass::Private if self.private => Ok(()),
            AddressClass::Loopback => Err(UrlError::Loopback(name)),
            AddressClass::Private => Err(UrlError::Private(name)),
            AddressClass::Forbidden => Err(UrlError::Forbidden(name)),
        }
    }
}

fn is_localhost(domain: &str) -> bool {
    let domain = domain.trim_end_matches('.');
    domain.eq_ignore_ascii_case("localhost") || domain.to_ascii_lowercase().ends_with(".localhost")
}

/// Returns a peer's text for a message: short, and without anything a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    const LONGEST: usize = 200;
    let mut short: String = text
        .chars()
        .take(LONGEST)
        .flat_map(char::escape_default)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

/// Resolves names and leaves out what the policy does not admit.
///
/// If one of several addresses is refused the whole name is: a name that points both outside and
/// inside is an attempt.
pub(crate) struct PolicyResolver {
    policy: UrlPolicy,
    /// Hosts of proxies, which the operator has chosen.
    trusted: Vec<String>,
    lookup: Arc<dyn Resolve>,
}

impl PolicyResolver {
    pub(crate) fn new(policy: UrlPolicy, trusted: Vec<String>) -> Self {
        Self {
            policy,
            trusted,
            lookup: Arc::new(SystemResolver),
        }
    }
}

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let trusted = self
            .trusted
            .iter()
            .any(|trusted| trusted.eq_ignore_ascii_case(&host));
        let policy = self.policy.clone();
        let found = self.lookup.resolve(name);
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = found.await?.collect();
            if !trusted {
                for address in &addresses {
                    policy.check_address(&host, address.ip())?;
                }
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// The resolver of the operating system.
struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(resource: &str) -> UrlPolicy {
        UrlPolicy::new(&Url::parse(resource).unwrap(), false)
    }

    const REMOTE: &str = "https://mcp.example.com/mcp";

    #[test]
    fn public_https_url_is_allowed() {
        let policy = policy(REMOTE);
        for url in [
            "https://auth.example.com/token",
            "https://93.184.216.34/",
            "https://[2606:4700::1111]/x",
        ] {
            assert!(policy.check(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn other_schemes_than_https_are_refused() {
        let policy = policy(REMOTE);
        for url in [
            "http://auth.example.com/",
            "javascript:alert(1)",
            "file:///etc/passwd",
            "data:text/html,x",
            "ftp://auth.example.com/",
        ] {
            assert!(matches!(policy.check(url), Err(UrlError::NotHttps(_))), "{url}");
        }
        for text in ["-flag", "", "$(reboot)", "/relative"] {
            assert!(matches!(policy.check(text), Err(UrlError::NotAUrl(_))), "{text}");
        }
    }

    #[test]
    fn inner_address_is_refused_in_every_spelling() {
        let policy = policy(REMOTE);
        for host in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[::127.0.0.1]",
            "[::]",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "[fd00::1]",
            "169.254.169.254",
            "2852039166",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "[ff02::1]",
            "[2001:db8::1]",
            "[2001:0:4136:e378::1]",
            "[fec0::1]",
        ] {
            assert!(policy.check(&format!("https://{host}/")).is_err(), "{host}");
        }
    }

    #[test]
    fn loopback_url_is_for_a_loopback_server_only() {
        let policy = policy("http://127.0.0.1:3000/mcp");
        assert!(policy.check("http://127.0.0.1:9/").is_ok());
        assert!(policy.check("http://localhost:9/").is_ok());
        assert!(policy.check("https://auth.example.com/").is_ok());
        assert!(matches!(
            policy.check("http://auth.example.com/"),
            Err(UrlError::NotHttps(_))
        ));
        assert!(matches!(
            policy.check("https://10.0.0.1/"),
            Err(UrlError::Private(_))
        ));
        assert!(matches!(
            policy.check("https://169.254.169.254/"),
            Err(UrlError::Forbidden(_))
        ));
    }

    #[test]
    fn private_address_needs_a_private_server_or_the_operator() {
        assert!(policy("https://10.0.0.7/mcp").check("https://10.0.0.9/").is_ok());
        let allowed = UrlPolicy::new(&Url::parse(REMOTE).unwrap(), true);
        assert!(allowed.check("https://10.0.0.9/").is_ok());
        assert!(allowed.check("http://10.0.0.9/").is_err());
        assert!(allowed.check("https://127.0.0.1/").is_err());
        assert!(allowed.check("https://169.254.169.254/").is_err());
    }

    #[test]
    fn url_with_a_password_is_refused_without_showing_it() {
        let refusal = policy(REMOTE)
            .check("https://user:hunter2@auth.example.com/")
            .unwrap_err();
        assert!(!refusal.to_string().contains("hunter2"));
    }

    struct Names(Vec<IpAddr>);

    impl Resolve for Names {
        fn resolve(&self, _: Name) -> Resolving {
            let found: Vec<_> = self
                .0
                .iter()
                .map(|address| SocketAddr::new(*address, 0))
                .collect();
            Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
        }
    }

    async fn resolve(trusted: &[&str], found: &[&str]) -> Result<usize, String> {
        let names = PolicyResolver {
            policy: policy(REMOTE),
            trusted: trusted.iter().map(|&host| host.to_owned()).collect(),
            lookup: Arc::new(Names(
                found.iter().map(|address| address.parse().unwrap()).collect(),
            )),
        };
        let found = names.resolve("rebound.example.com".parse().unwrap()).await;
        found.map(Iterator::count).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn name_that_resolves_to_an_inner_address_is_refused() {
        assert_eq!(resolve(&[], &["93.184.216.34"]).await, Ok(1));
        for address in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:10.0.0.1"] {
            assert!(resolve(&[], &[address]).await.is_err(), "{address}");
            assert!(
                resolve(&[], &["93.184.216.34", address]).await.is_err(),
                "both, {address}"
            );
        }
    }

    #[tokio::test]
    async fn proxy_may_have_a_private_address() {
        assert_eq!(resolve(&["rebound.example.com"], &["10.0.0.1"]).await, Ok(1));
    }
}
