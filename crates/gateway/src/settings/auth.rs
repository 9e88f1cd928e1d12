//! Authentication as used: the values of `auth` and of `public_url`, each checked when it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use url::{Host, Url};

/// The ways a caller may authenticate. None of them: every caller is `anonymous`.
#[derive(Debug, Clone, Default)]
pub struct AuthSettings {
    pub tokens: Vec<StaticToken>,
    pub jwt: Option<JwtSettings>,
    pub proxy: Option<ProxySettings>,
    /// Paths of the gateway itself that are open without authentication.
    pub public: BTreeSet<OpenPath>,
}

impl AuthSettings {
    /// Returns whether there is authentication.
    pub fn is_on(&self) -> bool {
        !self.tokens.is_empty() || self.jwt.is_some() || self.proxy.is_some()
    }
}

/// A path that can be opened. `/health` always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenPath {
    Ready,
    Metrics,
}

/// One bearer token, known by its hash only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticToken {
    pub name: TokenName,
    pub hash: TokenHash,
    /// The destinations it is valid for; all by default.
    pub destinations: Option<BTreeSet<String>>,
    pub expires: Option<SystemTime>,
    /// Its bearer may see the page, and act there.
    pub admin: bool,
}

/// What the bearer of a token is called. Never `anonymous`, and never with the `#` that stands
/// between an issuer and a subject, so that no token can have the name of another principal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenName(String);

impl TokenName {
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
        if text.is_empty() || text.len() > 64 || !text.chars().all(is_plain) {
            return Err("a name has 1 to 64 letters, digits or . _ @ -".to_owned());
        }
        if text.eq_ignore_ascii_case("anonymous") {
            return Err(
                "anonymous is what callers without a token are called: choose another name".to_owned(),
            );
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// SHA-256 of a token. That is enough for a text of 256 random bits: there is nothing to guess.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Reads `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "write `sha256:` and the 64 hexadecimal digits that `rialto token` prints, never the token itself";
        let digits = text.trim().strip_prefix("sha256:").ok_or(FORM)?.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != 64 {
            return Err(FORM.to_owned());
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| {
                char::from(pair[at])
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
            };
            *byte = digit(0)
                .zip(digit(1))
                .map(|(high, low)| high << 4 | low)
                .ok_or(FORM)?;
        }
        Ok(Self(hash))
    }

    pub(crate) fn new(hash: [u8; 32]) -> Self {
        Self(hash)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Display for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Tokens of an OAuth 2 authorization server.
#[derive(Debug, Clone)]
pub struct JwtSettings {
    pub issuer: IssuerUrl,
    /// What `aud` must name; `{destination}` in it stands for the destination's name. Without it,
    /// the URL of the destination.
    pub audience: Option<String>,
    /// Where the keys are; without it, the issuer's metadata name it.
    pub jwks_uri: Option<KeysUrl>,
    pub algorithms: BTreeSet<SignatureAlgorithm>,
    /// What `typ` of the header must name, in small letters and without `application/`; empty: all
    /// that name no other kind of token.
    pub types: BTreeSet<String>,
    /// What every token must allow.
    pub scopes: Vec<Scope>,
    /// What a method, or a tool, needs besides.
    pub scopes_for: BTreeMap<ScopedUse, Vec<Scope>>,
    /// What lets a caller see the page, and act there. Without it no caller of the issuer may.
    pub admin_scope: Option<Scope>,
}

impl JwtSettings {
    /// Returns host and port of the server that is asked for keys first.
    pub fn keys_host(&self) -> (&str, u16) {
        let url = self
            .jwks_uri
            .as_ref()
            .map_or_else(|| self.issuer.url(), KeysUrl::url);
        (
            url.host_str().unwrap_or_default(),
            url.port_or_known_default().unwrap_or(443),
        )
    }
}

/// What a scope can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScopedUse {
    Method(String),
    Tool(String),
}

impl ScopedUse {
    /// Reads `tools/call`, or `tool:NAME`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("tool:") {
            Some("") => Err("write the name of a tool after `tool:`".to_owned()),
            Some(tool) => Ok(Self::Tool(tool.to_owned())),
            None if text.is_empty() || text.contains(char::is_whitespace) => {
                Err("write a method such as tools/call, or tool:NAME".to_owned())
            }
            None => Ok(Self::Method(text.to_owned())),
        }
    }
}

/// One scope (RFC 6749, 3.3): it stands in a quoted header value, so nothing else is let through.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope(String);

impl Scope {
    pub fn parse(text: &str) -> Result<Self, String> {
        let fits = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        if text.is_empty() || !text.bytes().all(fits) {
            return Err("a scope is one word without quotes or spaces, such as mcp:call".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Signatures that a public key checks. There is no other kind here: a secret that both sides know
/// would let every verifier of a token make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignatureAlgorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl SignatureAlgorithm {
    /// All of them, by the words of RFC 7518 and RFC 8037.
    pub const WORDS: [(&'static str, Self); 9] = [
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("EdDSA", Self::EdDsa),
    ];

    pub fn all() -> BTreeSet<Self> {
        Self::WORDS.iter().map(|(_, algorithm)| *algorithm).collect()
    }
}

/// A proxy in front that names the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    pub header: http::HeaderName,
    /// The addresses it may speak from.
    pub from: Vec<Network>,
}

/// The issuer of tokens: compared to the letter, so kept as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerUrl {
    written: String,
    url: Url,
}

impl IssuerUrl {
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = confidential(text)?;
        Ok(Self {
            written: text.to_owned(),
            url,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.written
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }
}

/// Where keys are fetched from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysUrl(Url);

impl KeysUrl {
    pub fn parse(text: &str) -> Result<Self, String> {
        confidential(text).map(Self)
    }

    pub(crate) fn url(&self) -> &Url {
        &self.0
    }
}

/// `https`, or `http` to this very machine, where no one can stand in between.
fn confidential(text: &str) -> Result<Url, String> {
    let url = web_address(text)?;
    if url.scheme() == "https" || is_loopback(&url) {
        Ok(url)
    } else {
        Err("keys must come over https (http only from a loopback address)".to_owned())
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn web_address(text: &str) -> Result<Url, String> {
    const FORM: &str = "not a web address: write one such as https://mcp.example.com";
    let url = Url::parse(text.trim()).map_err(|_| FORM.to_owned())?;
    let is_plain = matches!(url.scheme(), "http" | "https")
        && url.host().is_some()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if is_plain { Ok(url) } else { Err(FORM.to_owned()) }
}

/// The address of the gateway as its clients see it, perhaps through a proxy: scheme, host, and a
/// path in front of `/NAME/mcp` where the proxy adds one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    origin: String,
    /// Without port.
    host: String,
    /// Empty, or a slash and something that does not end with one.
    path: String,
}

impl PublicUrl {
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = web_address(text)?;
        Ok(Self {
            origin: url.origin().ascii_serialization(),
            host: url.host_str().unwrap_or_default().to_owned(),
            path: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Returns the address itself, where there is nothing in between.
    pub(crate) fn of_listener(scheme: &str, address: std::net::SocketAddr) -> Self {
        let host = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Self {
            origin: format!("{scheme}://{host}:{}", address.port()),
            host,
            path: String::new(),
        }
    }

    pub fn origin(&self) -> &str {
        &self.origin
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn path(&self) -> &str {
        &self.path
    }
}

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "not a range of addresses: write one such as 10.0.0.0/8, fd00::/8 or 127.0.0.1";
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| FORM.to_owned())?;
        let most: u8 = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or(FORM)?,
            None => most,
        };
        Ok(Self { address, bits })
    }

    /// An IPv4 address may come in the clothes of an IPv6 one, on a listener for both.
    pub fn contains(&self, peer: IpAddr) -> bool {
        match (self.address, peer.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                u32::from(ours) & mask == u32::from(theirs) & mask
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                u128::from(ours) & mask == u128::from(theirs) & mask
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_and_no_others() {
        let contains = |network: &str, peer: &str| {
            Network::parse(network)
                .expect("a network")
                .contains(peer.parse().expect("an address"))
        };
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.1.2", "11.0.0.1"),
            ("192.168.1.7", "192.168.1.7", "192.168.1.8"),
            ("172.16.0.0/12", "172.31.255.255", "172.32.0.0"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::1", "::1", "::2"),
            ("127.0.0.1", "::ffff:127.0.0.1", "::1"),
        ] {
            assert!(contains(network, inside), "{inside} in {network}");
            assert!(!contains(network, outside), "{outside} in {network}");
        }
        assert!(contains("0.0.0.0/0", "8.8.8.8") && !contains("0.0.0.0/0", "::2"));
        assert!(contains("::/0", "::2") && !contains("::/0", "8.8.8.8"));
        for wrong in [
            "",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0/8",
            "example.com",
            "10.0.0.0/-1",
            "10.0.0.0/",
        ] {
            assert!(Network::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_come_over_https_or_from_this_machine() {
        for fine in [
            "https://login.example.com",
            "https://login.example.com/realms/x",
            "http://localhost:8080",
            "http://127.0.0.1:1",
            "http://[::1]:1/x",
        ] {
            assert!(IssuerUrl::parse(fine).is_ok(), "{fine}");
            assert_eq!(
                IssuerUrl::parse(fine).expect("fine").as_str(),
                fine,
                "kept to the letter"
            );
        }
        for wrong in [
            "http://login.example.com",
            "ftp://x",
            "file:///etc/passwd",
            "javascript:1",
            "https://u:p@x",
            "https://x?y",
            "https://x#y",
            "login.example.com",
        ] {
            assert!(IssuerUrl::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_public_url_is_an_origin_and_perhaps_a_path() {
        let parse = |text| PublicUrl::parse(text).expect("an address");
        let plain = parse("https://MCP.example.com/");
        assert_eq!(
            (plain.origin(), plain.host(), plain.path()),
            ("https://mcp.example.com", "mcp.example.com", "")
        );
        let deep = parse("https://example.com:8443/tools/");
        assert_eq!(
            (deep.origin(), deep.host(), deep.path()),
            ("https://example.com:8443", "example.com", "/tools")
        );
        assert_eq!(parse("http://[::1]:3000").host(), "[::1]");
        assert_eq!(
            PublicUrl::of_listener("http", "[::1]:7".parse().expect("an address")).origin(),
            "http://[::1]:7"
        );
    }

    #[test]
    fn hashes_are_read_as_they_are_written() {
        let text = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(TokenHash::parse(&text).expect("a hash").to_string(), text);
        for wrong in [
            "",
            "sha256:",
            "0f",
            "sha256:zz",
            &format!("sha256:{}", "0g".repeat(32)),
            &format!("md5:{}", "00".repeat(32)),
        ] {
            assert!(TokenHash::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_token_is_named_like_another_kind_of_principal() {
        for fine in ["ci", "alice@example.com", "a-b_c.1"] {
            assert!(TokenName::parse(fine).is_ok(), "{fine}");
        }
        for wrong in [
            "",
            "anonymous",
            "Anonymous",
            "https://issuer#alice",
            "proxy#bob",
            "a b",
            &"x".repeat(65),
        ] {
            assert!(TokenName::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn scopes_fit_into_a_quoted_value() {
        for wrong in ["", "a b", "a\"b", "a\\b", "ä"] {
            assert!(Scope::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Scope::parse("mcp:tools.call/x").is_ok());
        assert_eq!(ScopedUse::parse("tool:x"), Ok(ScopedUse::Tool("x".into())));
        assert_eq!(
            ScopedUse::parse("tools/call"),
            Ok(ScopedUse::Method("tools/call".into()))
        );
        assert!(ScopedUse::parse("tool:").is_err() && ScopedUse::parse("").is_err());
    }
}
