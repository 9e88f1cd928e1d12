//! Which era a destination's server speaks, and how that is learnt.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use protocol::client_face::modern::Meaning;
use protocol::error_code;
use protocol::exchange::{Client, Failure, Principal, UpstreamFault};
use protocol::message::Message;
use protocol::object::{Object, elements};
use protocol::session::Accepts;
use protocol::time::Moment;
use protocol::version::{Era, Version};
use tokio::sync::OnceCell;

use super::{Destination, LaneKey};
use crate::errand_port::Came;
use crate::lane::Lane;
use crate::reply::Refusal;
use crate::settings::{EraChoice, Secret, Transport};

/// How long a server may take to say which era it speaks, before it is taken for a legacy one. A mistake mends
/// itself: a modern server refuses the handshake that follows.
const PROBE_PATIENCE: Duration = Duration::from_secs(8);
/// A remote server that was legacy may have been renewed, and would go on answering as a legacy one.
const DOUBTED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What the server speaks to a modern client, once it was asked.
#[derive(Debug, Default)]
pub(super) struct Verdict(Mutex<Asked>);

#[derive(Debug, Default)]
struct Asked {
    era: Arc<OnceCell<Era>>,
    since: Option<Moment>,
}

impl Verdict {
    fn current(&self) -> Arc<OnceCell<Era>> {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&asked.era)
    }

    /// Forgets that a server was legacy, after a day.
    fn doubt(&self, now: Moment) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (asked.era.get(), asked.since) {
            (Some(Era::Legacy), None) => asked.since = Some(now),
            (Some(Era::Legacy), Some(since)) if now.since(since) > DOUBTED_AFTER => *asked = Asked::default(),
            (Some(Era::Legacy | Era::Modern) | None, _) => {}
        }
    }
}

impl Destination {
    /// The era in which legacy clients' servers are spoken to, for people.
    pub(crate) fn era_of_legacy_clients(&self) -> &'static str {
        match self.leg_of_legacy_clients() {
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        }
    }

    pub(super) fn leg_of_legacy_clients(&self) -> Era {
        match self.settings.era {
            EraChoice::Modern => Era::Modern,
            EraChoice::Auto if self.refuses_legacy.load(Ordering::Acquire) => Era::Modern,
            EraChoice::Auto | EraChoice::Legacy => Era::Legacy,
        }
    }

    /// The server would not have a legacy client. Gives whether it will have a modern one, so that it is worth
    /// trying again.
    pub(crate) async fn doubt_legacy(&self, headers: &HeaderMap) -> bool {
        if self.settings.era != EraChoice::Auto || self.refuses_legacy.load(Ordering::Acquire) {
            return false;
        }
        let modern = matches!(self.learn_era(headers).await, Ok(Era::Modern));
        if modern {
            tracing::info!(destination = %self.name, "speaks the modern era only; legacy clients are translated");
            self.refuses_legacy.store(true, Ordering::Release);
        }
        modern
    }

    /// What the server speaks to a modern client. It is asked once.
    pub(super) async fn learn_era(&self, headers: &HeaderMap) -> Result<Era, Refusal> {
        match self.settings.era {
            EraChoice::Legacy => return Ok(Era::Legacy),
            EraChoice::Modern => return Ok(Era::Modern),
            EraChoice::Auto => {}
        }
        // The old transport is older than the modern era.
        if self
            .remote
            .as_ref()
            .is_some_and(|server| server.transport() == Transport::Sse)
        {
            return Ok(Era::Legacy);
        }
        let verdict = self.verdict.current();
        if let Some(era) = verdict.get() {
            return Ok(*era);
        }
        // Whoever waits here has not begun anything; and nobody may start a server after the others were ended.
        tokio::select! {
            biased;
            refusal = self.closed() => Err(refusal),
            era = verdict.get_or_try_init(|| self.probe_era(self.passed_on(headers))) => era.copied(),
        }
    }

    /// Asks a server that nothing was said to yet, with the credentials of whoever wants to know.
    async fn probe_era(&self, from_headers: BTreeMap<String, Secret>) -> Result<Era, Refusal> {
        let passing = !from_headers.is_empty();
        let lane = if passing {
            self.start_lane(&from_headers, false)
        } else {
            let mut lanes = self.lanes();
            match lanes.get(&LaneKey::Unclaimed) {
                Some(lane) => Arc::clone(lane),
                None => {
                    let lane = self.start_lane(&BTreeMap::new(), false);
                    lanes.insert(LaneKey::Unclaimed, Arc::clone(&lane));
                    lane
                }
            }
        };
        let _lent = passing.then(|| Lent(Arc::clone(&lane)));
        lane.speak(Era::Modern);
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let departure = self.departure(client, discovery(), Meaning::Discover, Accepts::Json);
        let port = self.depart(&lane, departure);
        let verdict = match tokio::time::timeout(PROBE_PATIENCE, port.answer()).await {
            // Any refusal is what legacy servers say to a method they do not know.
            Ok(Came::Complete { body, failure: None }) if discovers_modern(&body) => Era::Modern,
            Ok(Came::Complete {
                failure: Some(failure),
                ..
            }) if is_no_verdict(&failure) => {
                port.give_up();
                return Err(Refusal::Unreached(failure));
            }
            // Some servers end when they are spoken to in this way.
            Ok(Came::Complete { .. }) => Era::Legacy,
            Ok(Came::Ask { .. } | Came::Stream) => Era::Legacy,
            Err(_) => Era::Legacy,
        };
        port.give_up();
        if !passing {
            lane.speak(verdict);
        }
        tracing::info!(destination = %self.name, era = ?verdict, "asked which era it speaks");
        Ok(verdict)
    }

    /// The server is known to speak the modern era, so that no call is ever parked here.
    pub(crate) fn is_known_modern(&self) -> bool {
        match self.settings.era {
            EraChoice::Legacy => false,
            EraChoice::Modern => true,
            EraChoice::Auto => self.verdict.current().get() == Some(&Era::Modern),
        }
    }

    /// Asks a remote server anew now and then.
    pub(super) fn doubt_verdict(&self, now: Moment) {
        if self.remote.is_some() {
            self.verdict.doubt(now);
        }
    }
}

/// A lane that somebody's credentials were lent to for one question. It ends with the question, also when whoever asked
/// hangs up before the answer: no one else knows of it.
struct Lent(Arc<Lane>);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Whether the answer to our question names a modern revision. Some servers answer it and name legacy ones only;
/// and one that refuses the revision of the question says which ones it has, so that it can be asked again.
fn discovers_modern(answer: &[u8]) -> bool {
    let Some(envelope) = Object::parse(answer) else {
        return false;
    };
    let member = |name: &str| {
        let raw = envelope.get(name)?;
        Object::parse(raw.as_bytes())
    };
    if let Some(result) = member("result") {
        return result.get("supportedVersions").is_none_or(names_modern);
    }
    let refused = member("error").filter(|error| {
        let code = error.get("code").and_then(|code| code.parse().ok());
        code == Some(error_code::UNSUPPORTED_VERSION)
    });
    let data = refused.as_ref().and_then(|error| error.get("data"));
    data.and_then(|data| Object::parse(data.as_bytes()))
        .and_then(|data| data.get("supported").map(names_modern))
        .unwrap_or(false)
}

/// Whether a list of revisions has one of ours that is modern. Something that is no list says nothing against it.
fn names_modern(versions: &str) -> bool {
    elements(versions).is_none_or(|versions| {
        versions
            .iter()
            .any(|version| version.trim_matches('"') >= Version::NEWEST_MODERN.as_str())
    })
}

/// Whether a failed question says nothing about the server's era: it was not there, or did not let us in.
fn is_no_verdict(failure: &Failure) -> bool {
    match failure {
        Failure::Unavailable { .. }
        | Failure::Retired
        | Failure::Occupied
        | Failure::Overloaded { .. }
        | Failure::SessionEnded => true,
        Failure::Upstream(upstream) => match upstream.fault {
            UpstreamFault::Lost | UpstreamFault::Unauthorized | UpstreamFault::Unsafe => true,
            UpstreamFault::Nonsense | UpstreamFault::Refused => false,
        },
        Failure::Timeout { .. }
        | Failure::StartTimeout { .. }
        | Failure::Exited(_)
        | Failure::NotWelcomed
        | Failure::TooLarge { .. }
        | Failure::Unsupported { .. }
        | Failure::Unanswered { .. }
        | Failure::Invalid(_)
        | Failure::Cancelled => false,
    }
}

/// Our own question which era a server speaks.
fn discovery() -> Message {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{}","io.modelcontextprotocol/clientInfo":{{"name":"rialto","version":"{}"}},"io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#,
        Version::NEWEST_MODERN.as_str(),
        env!("CARGO_PKG_VERSION"),
    );
    Message::scan(bytes::Bytes::from(text)).expect("our own words are a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_modern_if_it_says_so_or_refuses_naming_a_modern_revision() {
        for (answer, modern) in [
            (r#"{"result":{"supportedVersions":["2026-07-28"]}}"#, true),
            (r#"{"result":{}}"#, true),
            (r#"{"result":{"supportedVersions":["2025-11-25"]}}"#, false),
            (
                r#"{"error":{"code":-32022,"message":"","data":{"supported":["2026-07-28"]}}}"#,
                true,
            ),
            (
                r#"{"error":{"code":-32022,"message":"","data":{"supported":["2025-11-25"]}}}"#,
                false,
            ),
            (r#"{"error":{"code":-32022,"message":""}}"#, false),
            (
                r#"{"error":{"code":-32601,"message":"","data":{"supported":["2026-07-28"]}}}"#,
                false,
            ),
            ("nonsense", false),
        ] {
            assert_eq!(discovers_modern(answer.as_bytes()), modern, "{answer}");
        }
    }

    #[test]
    fn our_own_question_is_a_message() {
        assert!(
            discovery()
                .text(protocol::message::Member::MetaProtocolVersion)
                .is_some()
        );
    }
}
