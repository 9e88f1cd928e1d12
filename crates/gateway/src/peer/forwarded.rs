//! What a replica vouches for when it forwards a client's request: one header, `rialto-forwarded`.
//!
//! It is one header, and a sender always replaces it. So no part of it can come from a client, even
//! where a part is optional. Only the listener for peers reads it.
//!
//! The replica that sends names itself in a header of its own, `rialto-sender`. That one is the same
//! in all requests of a connection, so HTTP/2 sends it once and then refers to it. The other header
//! differs from client to client, and is kept out of the table of such references.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cluster::NodeId;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The name of the header, in requests and in a peer's own refusals.
pub const FORWARDED: HeaderName = HeaderName::from_static("rialto-forwarded");

/// The name of the header with the id of the replica that sends.
pub const SENDER: HeaderName = HeaderName::from_static("rialto-sender");

/// The version of the format. Parts that a reader does not know could restrict what it may do, so
/// another version is refused.
const VERSION: &str = "1";

/// How often a request may be forwarded: once, from the replica that its client reached to the
/// owner.
pub const MAX_HOPS: u8 = 1;

/// Why a request is for the replica that receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// It is for a session that the receiver owns, or takes over.
    Session {
        /// The epoch under which the registry named the receiver; 0 if it named no owner.
        epoch: u64,
    },
    /// It is about something that lives in the receiver's process alone: a call that waits for its
    /// client, a task, a stream of the old transport.
    Node,
    /// The receiver runs the one instance of the destination.
    Placed,
    /// The sender drains, so that the receiver opens what the request needs.
    New,
}

/// What is known about a request that a replica sends to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// How often it was forwarded before; 0 for a request that came from a client.
    pub hops: u8,
    pub target: Target,
    /// The principal, as the guard of the sending replica authenticated it.
    pub principal: String,
    /// The other end of the connection that the request came on: a client, or a proxy before it.
    /// The guard of the receiver decides by it, as if the connection were its own.
    pub client: Option<SocketAddr>,
    /// How long the client still waits. It is a duration, since clocks of replicas differ. No
    /// sender sets it yet.
    pub deadline: Option<Duration>,
}

/// Why the header cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardedError {
    #[error("the header `{FORWARDED}` is missing")]
    Missing,
    #[error("the header `{FORWARDED}` occurs more than once")]
    Repeated,
    #[error(
        "the sender uses another version of the header `{FORWARDED}`: run the same Rialto on all replicas"
    )]
    Version,
    #[error("`{0}` in the header `{FORWARDED}` is missing or invalid")]
    Part(&'static str),
    #[error("the request was sent on by two replicas")]
    Loop,
}

impl Forwarded {
    /// Writes the header of a request that is sent now. It replaces any that a client has sent.
    pub fn write_into(&self, headers: &mut HeaderMap) {
        let mut text = String::with_capacity(128);
        let hops = self.hops.saturating_add(1);
        // Writing to a string does not fail.
        let _ = write!(text, "{VERSION};hops={hops}");
        let _ = match self.target {
            Target::Session { epoch } => write!(text, ";epoch={epoch}"),
            Target::Node => write!(text, ";for=node"),
            Target::Placed => write!(text, ";for=placed"),
            Target::New => write!(text, ";for=new"),
        };
        text.push_str(";principal=");
        URL_SAFE_NO_PAD.encode_string(&self.principal, &mut text);
        if let Some(client) = self.client {
            let _ = write!(text, ";client={client}");
        }
        if let Some(deadline) = self.deadline {
            let _ = write!(text, ";deadline={}", deadline.as_millis());
        }
        let mut value = HeaderValue::try_from(text).expect("every part is visible ASCII");
        // HTTP/2 then keeps it out of the table of headers, where it would replace those that recur.
        value.set_sensitive(true);
        headers.insert(FORWARDED, value);
    }

    /// Reads the header of a request that came from a peer, and removes it.
    pub fn take_from(headers: &mut HeaderMap) -> Result<Self, ForwardedError> {
        let mut values = headers.get_all(FORWARDED).iter();
        let value = values.next().ok_or(ForwardedError::Missing)?;
        if values.next().is_some() {
            return Err(ForwardedError::Repeated);
        }
        let forwarded = Self::parse(value.to_str().map_err(|_| ForwardedError::Version)?)?;
        headers.remove(FORWARDED);
        Ok(forwarded)
    }

    fn parse(text: &str) -> Result<Self, ForwardedError> {
        let mut parts = text.split(';');
        if parts.next() != Some(VERSION) {
            return Err(ForwardedError::Version);
        }
        let mut parts = Parts(parts.peekable());
        let hops: u8 = parts.required("hops", |text| text.parse().ok())?;
        let target = match parts.optional("epoch", |text| text.parse().ok())? {
            Some(epoch) => Target::Session { epoch },
            None => parts.required("for", |text| match text {
                "node" => Some(Target::Node),
                "placed" => Some(Target::Placed),
                "new" => Some(Target::New),
                _ => None,
            })?,
        };
        let principal = parts.required("principal", |text| {
            String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()
        })?;
        let client = parts.optional("client", |text| text.parse().ok())?;
        let deadline = parts.optional("deadline", |text| text.parse().ok().map(Duration::from_millis))?;
        if parts.0.next().is_some() {
            return Err(ForwardedError::Version);
        }
        if hops > MAX_HOPS {
            return Err(ForwardedError::Loop);
        }
        Ok(Self {
            hops,
            target,
            principal,
            client,
            deadline,
        })
    }
}

/// The parts of a header that were not read yet. Their order is fixed.
struct Parts<'a>(std::iter::Peekable<std::str::Split<'a, char>>);

impl<'a> Parts<'a> {
    fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, ForwardedError> {
        self.optional(name, read)?.ok_or(ForwardedError::Part(name))
    }

    fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<Option<T>, ForwardedError> {
        let value = |part: &&'a str| part.split_once('=').filter(|(found, _)| *found == name);
        let Some((_, value)) = self.0.peek().and_then(value) else {
            return Ok(None);
        };
        self.0.next();
        read(value).map(Some).ok_or(ForwardedError::Part(name))
    }
}

/// Returns the header value by which a replica names itself to its peers.
pub(super) fn sender(node: &NodeId) -> HeaderValue {
    HeaderValue::try_from(node.as_str()).expect("ids of replicas are visible ASCII")
}

/// What a peer itself answers, in the same header, when its handler did not take the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerAnswer {
    /// It does not own the session; the epoch that it knows, if it knows one.
    NotOwner(Option<u64>),
    /// The request did not reach its handler.
    Refused,
}

impl PeerAnswer {
    pub(super) fn value(self) -> HeaderValue {
        match self {
            Self::NotOwner(Some(epoch)) => {
                HeaderValue::try_from(format!("not-owner; epoch={epoch}")).expect("digits are ASCII")
            }
            Self::NotOwner(None) => HeaderValue::from_static("not-owner"),
            Self::Refused => HeaderValue::from_static("refused"),
        }
    }

    /// Returns what the peer itself answered; `None` for a response of its handler.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(FORWARDED)?.to_str().ok()?;
        if text == "refused" {
            return Some(Self::Refused);
        }
        let rest = text.strip_prefix("not-owner")?;
        let epoch = rest.strip_prefix("; epoch=").and_then(|text| text.parse().ok());
        Some(Self::NotOwner(epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded() -> Forwarded {
        Forwarded {
            hops: 0,
            target: Target::Session { epoch: 3 },
            principal: "Ärger;epoch=9".to_owned(),
            client: Some("[2001:db8::1]:443".parse().unwrap()),
            deadline: Some(Duration::from_millis(1500)),
        }
    }

    fn written(forwarded: &Forwarded) -> HeaderMap {
        let mut headers = HeaderMap::new();
        forwarded.write_into(&mut headers);
        headers
    }

    #[test]
    fn values_survive_the_header_and_counts_the_hop() {
        let smallest = Forwarded {
            client: None,
            deadline: None,
            principal: String::new(),
            ..forwarded()
        };
        let others = [Target::Node, Target::Placed, Target::New].map(|target| Forwarded {
            target,
            ..forwarded()
        });
        for sent in [forwarded(), smallest].into_iter().chain(others) {
            let mut headers = written(&sent);
            let received = Forwarded::take_from(&mut headers).unwrap();
            assert_eq!(received, Forwarded { hops: 1, ..sent });
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn header_of_a_client_is_replaced() {
        let mut headers = written(&Forwarded {
            principal: "admin".to_owned(),
            ..forwarded()
        });
        headers.append(FORWARDED, HeaderValue::from_static("1;deadline=5"));
        let honest = Forwarded {
            deadline: None,
            ..forwarded()
        };
        honest.write_into(&mut headers);
        let received = Forwarded::take_from(&mut headers).unwrap();
        assert_eq!((received.principal, received.deadline), (honest.principal, None));
    }

    #[test]
    fn request_that_was_sent_on_twice_is_a_loop() {
        let first = Forwarded::take_from(&mut written(&forwarded())).unwrap();
        let second = Forwarded::take_from(&mut written(&first));
        assert_eq!(second, Err(ForwardedError::Loop));
    }

    #[test]
    fn anything_else_is_refused() {
        let good = written(&forwarded())[FORWARDED].to_str().unwrap().to_owned();
        let take = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED, HeaderValue::try_from(text).unwrap());
            Forwarded::take_from(&mut headers).unwrap_err()
        };
        assert_eq!(
            Forwarded::take_from(&mut HeaderMap::new()),
            Err(ForwardedError::Missing)
        );
        let mut twice = written(&forwarded());
        twice.append(FORWARDED, HeaderValue::try_from(&good).unwrap());
        assert_eq!(Forwarded::take_from(&mut twice), Err(ForwardedError::Repeated));
        assert_eq!(take(""), ForwardedError::Version);
        assert_eq!(take(&good.replacen('1', "2", 1)), ForwardedError::Version);
        assert_eq!(take(&format!("{good};scope=all")), ForwardedError::Version);
        assert_eq!(
            take(&good.replace("epoch=3", "epoch=x")),
            ForwardedError::Part("epoch")
        );
        for other in ["", ";for=all", ";epoch=3;for=node"] {
            let text = good.replace(";epoch=3", other);
            assert!(matches!(take(&text), ForwardedError::Part("for" | "principal")));
        }
        assert_eq!(
            take(&good.replace("principal=", "principal=!")),
            ForwardedError::Part("principal")
        );
    }

    #[test]
    fn answers_of_a_peer_differ_from_those_of_its_handler() {
        for answer in [
            PeerAnswer::NotOwner(None),
            PeerAnswer::NotOwner(Some(u64::MAX)),
            PeerAnswer::Refused,
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED, answer.value());
            assert_eq!(PeerAnswer::of(&headers), Some(answer));
        }
        assert_eq!(PeerAnswer::of(&HeaderMap::new()), None);
    }
}
