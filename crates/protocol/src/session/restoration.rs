//! A session that outlives its process: what is kept of it, and how it goes on.
//!
//! The driver writes a record of the session: the client's handshake and what the client has set
//! since ([`Output::StateChanged`](super::Output::StateChanged)). Another process reads the record
//! and calls [`Session::restore`]. Calls in flight, streams and unread events are not kept: a
//! `Last-Event-ID` of an earlier process is recognised, and its call is answered as lost
//! ([`Session::resume_lost`]).

use std::sync::Arc;

use super::replay::{EventId, StreamKey};
use super::{Limits, Reader, Session};
use crate::client_face::legacy::{self, Classified};
use crate::exchange::{Ask, CallKey, Client, Failure, Request, SessionKey, SessionState};
use crate::message::{Member, Message};
use crate::method::Method;
use crate::time::Moment;
use crate::version::Version;

/// How many subscriptions of a session are kept. An instance grants fewer.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// The handshake of a client, as it was when the session was opened.
#[derive(Debug, Clone)]
pub enum Hello {
    /// The client's own `initialize`.
    Initialize(Message),
    /// The client never sent one, and speaks this revision.
    Implicit(Version),
}

/// What a session is restored from.
#[derive(Debug)]
pub struct Restored {
    /// The handshake of the client.
    pub hello: Hello,
    /// What the client has set since.
    pub state: SessionState,
    /// How many processes have had the session, this one included.
    pub epoch: u64,
}

/// What is kept of a session that outlives its process.
#[derive(Debug, Default)]
pub(super) struct KeptState {
    /// The handshake, for a session that was restored: Rialto may have to send it once more.
    hello: Option<Hello>,
    state: SessionState,
    /// The first key of calls and streams in this process.
    first_key: u64,
}

/// What an event id names in a session that may have been restored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventOrigin<'a> {
    /// An event of this process, by its id without a token.
    ThisProcess(&'a str),
    /// An event of a call's stream that went with an earlier process.
    LostCall,
    /// A notice that went with an earlier process.
    LostNotices,
}

/// What separates an event id from its token.
pub const TOKEN_MARK: char = '.';

impl KeptState {
    /// The server has fulfilled a request of the client. Returns the state, if that changed it.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "three methods set something, and no other does"
    )]
    pub(super) fn handle_success(&mut self, message: &Message) -> Option<SessionState> {
        match message.method() {
            Method::LoggingSetLevel | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {}
            _ => return None,
        }
        let Ok(Classified::Request(request)) = legacy::lift(message) else {
            return None;
        };
        let SessionState {
            log_level,
            subscriptions,
        } = &mut self.state;
        let has_changed = match request {
            Request::SetLevel { level } => log_level.replace(level) != Some(level),
            Request::Subscribe { uri } => {
                let is_new = !subscriptions.contains(&uri) && subscriptions.len() < MAX_SUBSCRIPTIONS;
                if is_new {
                    subscriptions.push(uri);
                }
                is_new
            }
            Request::Unsubscribe { uri } => {
                let before = subscriptions.len();
                subscriptions.retain(|known| *known != uri);
                subscriptions.len() < before
            }
            Request::Plain | Request::Watch { .. } => false,
        };
        has_changed.then(|| self.state.clone())
    }
}

impl Session {
    /// Returns a session that another process has opened, and the ask that presents it to its
    /// server.
    ///
    /// Keys of calls and streams begin at `epoch << 32`, so that no event id of an earlier process
    /// names a stream of this one.
    pub fn restore(
        key: SessionKey,
        client: Arc<Client>,
        limits: Limits,
        now: Moment,
        restored: Restored,
    ) -> (Self, Ask) {
        let Restored { hello, state, epoch } = restored;
        let (asked, implicit) = match &hello {
            Hello::Initialize(message) => {
                let asked = message.text(Member::ProtocolVersion);
                (asked.and_then(|text| Version::parse(&text)), false)
            }
            Hello::Implicit(version) => (Some(*version), true),
        };
        let mut session = Self::new(key, client, limits, now, asked, implicit);
        session.handshake.set_restored();
        session.next = first_key(epoch);
        session.kept_state = Some(Box::new(KeptState {
            hello: Some(hello),
            state,
            first_key: session.next,
        }));
        let ask = session.request_open(now);
        (session, ask)
    }

    /// Reports from now on what the client sets, so that the session can be restored elsewhere.
    pub fn keep_state(&mut self) {
        self.kept_state.get_or_insert_default();
    }

    /// Returns whether the session is to outlive its process.
    pub fn keeps_state(&self) -> bool {
        self.kept_state.is_some()
    }

    /// Ends the event ids of a call's stream with a token, in a session that outlives its process.
    /// `token` makes it from the id of the request, once for the stream; it begins with
    /// [`TOKEN_MARK`].
    pub fn set_stream_token(&mut self, reader: Reader, token: impl FnOnce(&[u8]) -> Option<Box<str>>) {
        if self.keeps_state() {
            self.calls.set_token(reader.stream, token);
        }
    }

    /// Answers a call of an earlier process, whose answer is lost: the stream has one event, and
    /// ends.
    pub fn resume_lost(&mut self, now: Moment, id: &[u8]) -> Reader {
        let answer = legacy::lower_failure(id, &Failure::OwnerLost);
        let stream = StreamKey(self.new_key());
        self.calls.open_ended(now, stream, answer, &self.limits)
    }

    /// Returns what an event id names.
    pub(super) fn event_origin<'a>(&self, last: &'a str) -> EventOrigin<'a> {
        let Some(kept) = &self.kept_state else {
            return EventOrigin::ThisProcess(last);
        };
        let (id, token) = match last.split_once(TOKEN_MARK) {
            Some((id, token)) => (id, Some(token)),
            None => (last, None),
        };
        match (EventId::parse(id), token) {
            (Some(event), Some(_)) if event.stream.0 < kept.first_key => EventOrigin::LostCall,
            (Some(event), None) if event.stream.0 < kept.first_key => EventOrigin::LostNotices,
            (Some(_) | None, _) => EventOrigin::ThisProcess(id),
        }
    }

    /// Returns the ask that presents a restored session to its server; `None` for any other
    /// session.
    pub(super) fn restoration(&self, call: CallKey) -> Option<Ask> {
        let kept = self.kept_state.as_ref()?;
        let initialize = match kept.hello.as_ref()? {
            Hello::Initialize(message) => Some(message.clone()),
            Hello::Implicit(_) => None,
        };
        Some(Ask::Restore {
            session: self.key,
            call,
            client: Arc::clone(&self.client),
            initialize,
            era: legacy::ERA,
            state: kept.state.clone(),
        })
    }
}

/// Returns the first key of calls and streams in this epoch.
const fn first_key(epoch: u64) -> u64 {
    // An event id has room for 63 bits, so an epoch for 31.
    (epoch & 0x7fff_ffff) << 32
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::exchange::{Principal, Tell};
    use crate::method::LogLevel;
    use crate::session::{Accepted, Accepts, Answer, Output, Reading, StreamRefusal};
    use crate::version::Era;

    fn client() -> Arc<Client> {
        Arc::new(Client::declaring(Principal::anonymous(), None, None))
    }

    fn restored(epoch: u64) -> (Session, Ask) {
        let restored = Restored {
            hello: Hello::Implicit(Version::V2025_11_25),
            state: SessionState::default(),
            epoch,
        };
        Session::restore(
            SessionKey(1),
            client(),
            Limits::default(),
            Moment::START,
            restored,
        )
    }

    /// A client's request, and the server's answer to it. Returns the state that is to be written
    /// down.
    fn exchange(session: &mut Session, method: &str, params: &str, answer: &str) -> Option<SessionState> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let taken = session.handle_message(Moment::START, Message::own(text), Accepts::Json);
        let Ok(Accepted::Call { call, .. }) = taken else {
            panic!("a request is taken: {taken:?}");
        };
        let reply = Tell::Reply {
            session: SessionKey(1),
            call,
            message: Message::own(format!(r#"{{"jsonrpc":"2.0","id":9,{answer}}}"#)),
            era: Era::Legacy,
        };
        session.handle_tell(Moment::START, reply);
        let outputs = std::iter::from_fn(|| session.poll_output());
        let mut states = outputs.filter_map(|output| match output {
            Output::StateChanged(state) => Some(*state),
            Output::Wake(_) | Output::Ask(_) | Output::Line(_) | Output::Ended(_) => None,
        });
        states.next()
    }

    const DONE: &str = r#""result":{}"#;
    const REFUSED: &str = r#""error":{"code":-32603,"message":"no"}"#;

    #[test]
    fn keys_of_each_life_are_apart() {
        for epoch in [1, 2, 0x7fff_ffff] {
            let (mut session, ask) = restored(epoch);
            let Ask::Restore { call, .. } = ask else {
                panic!("a restored session is restored at its server: {ask:?}");
            };
            assert_eq!(call.0, epoch << 32);
            let reader = session.listen(Moment::START).unwrap();
            assert_eq!(reader.stream.0, (epoch << 32) + 1);
        }
    }

    /// A call of `session` that is answered by a stream. Returns what its client reads first.
    fn stream(session: &mut Session) -> String {
        let text = r#"{"jsonrpc":"2.0","id":"x.7","method":"tools/call","params":{}}"#;
        let taken = session.handle_message(Moment::START, Message::own(text.to_owned()), Accepts::Both);
        let Ok(Accepted::Call { call, .. }) = taken else {
            panic!("a request is taken: {taken:?}");
        };
        let waiting = Tell::Waiting {
            session: SessionKey(1),
            call,
        };
        session.handle_tell(Moment::START, waiting);
        let Answer::Stream(reader) = session.poll_answer(call) else {
            panic!("a call that takes long is answered by a stream");
        };
        session.set_stream_token(reader, |id| Some(format!(".{}", id.len()).into()));
        session.set_stream_token(reader, |_| panic!("a stream has one token"));
        read(session, reader).0
    }

    fn read(session: &mut Session, reader: Reader) -> (String, Reading) {
        let mut out = BytesMut::new();
        let reading = session.read(Moment::START, reader, &mut out);
        (String::from_utf8(out.to_vec()).unwrap(), reading)
    }

    #[test]
    fn stream_of_a_call_names_its_call_and_is_lost_in_the_next_life() {
        let (mut session, _) = restored(2);
        let primed = stream(&mut session);
        assert!(primed.starts_with("id: 8589934593-0.5\n"), "{primed}");
        let last = "8589934593-0.5";
        assert!(
            session.resume(Moment::START, last).is_ok(),
            "its process still has it"
        );
        let (mut session, _) = restored(3);
        assert_eq!(session.resume(Moment::START, last), Err(StreamRefusal::Lost));
        let reader = session.resume_lost(Moment::START, br#""x.7""#);
        let (text, reading) = read(&mut session, reader);
        let (data, outcome) = (
            r#""id":"x.7","error""#,
            r#""reason":"owner_lost","outcome":"unknown""#,
        );
        assert!(text.contains(data) && text.contains(outcome), "{text}");
        assert_eq!((text.matches("data: ").count(), reading), (1, Reading::Ended));
        let end = format!("{}-1", reader.stream.0);
        assert_eq!(session.resume(Moment::START, &end), Err(StreamRefusal::Finished));
    }

    #[test]
    fn stream_of_notices_of_an_earlier_life_is_opened_anew() {
        let (mut session, _) = restored(3);
        let reader = session.resume(Moment::START, "8589934593-7").unwrap();
        assert_eq!(reader.stream.0 >> 32, 3);
        let unknown = format!("{}-0", (3_u64 << 32) + 9);
        assert_eq!(
            session.resume(Moment::START, &unknown),
            Err(StreamRefusal::UnknownEvent)
        );
        assert_eq!(
            session.resume(Moment::START, "7"),
            Err(StreamRefusal::UnknownEvent)
        );
    }

    #[test]
    fn state_is_reported_when_the_server_has_confirmed_it_and_differs() {
        let (mut session, _) = restored(2);
        let subscribed = |uris: &[&str], log_level| {
            let subscriptions = uris.iter().map(|uri| (*uri).to_owned()).collect();
            Some(SessionState {
                log_level,
                subscriptions,
            })
        };
        let level = r#"{"level":"debug"}"#;
        let debug = Some(LogLevel::Debug);
        let steps = [
            ("logging/setLevel", level, REFUSED, None),
            ("logging/setLevel", level, DONE, subscribed(&[], debug)),
            ("logging/setLevel", level, DONE, None),
            (
                "resources/subscribe",
                r#"{"uri":"x:/a"}"#,
                DONE,
                subscribed(&["x:/a"], debug),
            ),
            ("resources/subscribe", r#"{"uri":"x:/a"}"#, DONE, None),
            ("resources/subscribe", r#"{"uri":"x:/b"}"#, REFUSED, None),
            ("tools/call", r#"{"uri":"x:/c"}"#, DONE, None),
            ("resources/unsubscribe", r#"{"uri":"x:/b"}"#, DONE, None),
            (
                "resources/unsubscribe",
                r#"{"uri":"x:/a"}"#,
                DONE,
                subscribed(&[], debug),
            ),
        ];
        for (method, params, answer, expected) in steps {
            assert_eq!(
                exchange(&mut session, method, params, answer),
                expected,
                "{method} {params}"
            );
        }
    }

    #[test]
    fn state_of_a_session_that_ends_with_its_process_is_not_reported() {
        let (key, limits) = (SessionKey(1), Limits::default());
        let version = Version::V2025_11_25;
        let (mut session, _) = Session::open_implicit(key, client(), limits, Moment::START, version);
        let level = r#"{"level":"debug"}"#;
        assert_eq!(exchange(&mut session, "logging/setLevel", level, DONE), None);
        session.keep_state();
        let state = exchange(&mut session, "logging/setLevel", level, DONE);
        assert_eq!(state.and_then(|state| state.log_level), Some(LogLevel::Debug));
    }
}
