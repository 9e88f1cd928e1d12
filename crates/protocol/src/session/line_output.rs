//! A session whose client reads everything from one stream of lines.
//!
//! Over stdio there is no POST to answer and no stream to resume: every message is written to
//! stdout, in the order in which it came. The session keeps nothing; the caller that writes the
//! lines limits what waits.

use bytes::Bytes;

use super::{Ending, Output, Session};
use crate::message::Written;

/// How a session's messages reach its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputMode {
    /// Each answer where it was asked for, the rest on streams that can be resumed.
    Streams,
    /// Everything on one stream of lines.
    Lines,
}

/// A line for a client that reads lines.
#[derive(Debug)]
pub enum OutgoingLine {
    /// The session is open. Nothing is written for this; the answer follows if one is due.
    Opened,
    /// The answer to a request of the client.
    Answer {
        /// The JSON-RPC response.
        line: Written,
        /// How the call ended.
        ending: Ending,
        /// How large the request was.
        request_bytes: usize,
    },
    /// A request of the server, which waits for its answer.
    Question(Bytes),
    /// Anything else: progress, log lines, changes, withdrawn questions.
    Notice(Bytes),
}

impl Session {
    /// Returns the same session for a client that reads lines. Answers then come as
    /// [`Output::Line`], and there is nothing to poll or to read.
    #[must_use]
    pub fn on_lines(mut self) -> Self {
        self.output_mode = OutputMode::Lines;
        self
    }

    pub(super) fn reads_lines(&self) -> bool {
        self.output_mode == OutputMode::Lines
    }

    pub(super) fn send_line(&mut self, line: OutgoingLine) {
        self.outputs.push_back(Output::Line(line));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Accepted, Accepts, Limits};
    use super::*;
    use crate::exchange::{CallKey, Client, Failure, Principal, QuestionKey, ServerInfo, SessionKey, Tell};
    use crate::message::Message;
    use crate::time::Moment;
    use crate::version::{Era, Version};

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn lines_of(session: &mut Session) -> Vec<String> {
        std::iter::from_fn(|| session.poll_output())
            .filter_map(|output| match output {
                Output::Line(OutgoingLine::Opened) => Some("opened".to_owned()),
                Output::Line(OutgoingLine::Answer { line, .. }) => Some(text(&line.into_bytes())),
                Output::Line(OutgoingLine::Question(line) | OutgoingLine::Notice(line)) => Some(text(&line)),
                Output::Wake(_) | Output::Ask(_) | Output::Ended(_) | Output::StateChanged(_) => None,
            })
            .collect()
    }

    fn text(bytes: &Bytes) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn open() -> Session {
        let initialize = message(
            r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#,
        );
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let limits = Limits::default();
        let (session, ..) = Session::open(
            SessionKey(1),
            client,
            limits,
            Moment::START,
            initialize,
            Accepts::Both,
        );
        session.on_lines()
    }

    fn open_session(session: &mut Session) {
        let server_info = ServerInfo {
            message: message(r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}"#),
            era: Era::Legacy,
            version: Some(Version::V2025_06_18),
            changing_lists: vec![],
            logs: false,
            subscriptions: false,
            tasks: false,
            info: None,
        };
        let tell = Tell::Opened {
            session: SessionKey(1),
            call: CallKey(1),
            server_info: Arc::new(server_info),
        };
        session.handle_tell(Moment::START, tell);
    }

    fn call(session: &mut Session) -> CallKey {
        let request = message(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}"#);
        match session.handle_message(Moment::START, request, Accepts::Both) {
            Ok(Accepted::Call { call, .. }) => call,
            other => panic!("no call: {other:?}"),
        }
    }

    #[test]
    fn lines_are_sent_in_the_order_in_which_they_came() {
        let mut session = open();
        open_session(&mut session);
        let call = call(&mut session);
        let (key, now) = (SessionKey(1), Moment::START);
        let progress = message(
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#,
        );
        let changed = message(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
        session.handle_tell(
            now,
            Tell::Related {
                session: key,
                call,
                message: progress,
            },
        );
        session.handle_tell(
            now,
            Tell::Question {
                session: key,
                call: Some(call),
                question: QuestionKey(3),
                message: message(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#),
            },
        );
        session.handle_tell(
            now,
            Tell::Withdrawn {
                session: key,
                question: QuestionKey(3),
                message: None,
            },
        );
        session.handle_tell(
            now,
            Tell::Notice {
                session: key,
                message: changed,
            },
        );
        session.handle_tell(
            now,
            Tell::Reply {
                session: key,
                call,
                message: message(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#),
                era: Era::Legacy,
            },
        );
        let lines = lines_of(&mut session);
        let expected = [
            "opened",
            r#""id":"i""#,
            "notifications/progress",
            r#""id":3,"method":"roots/list""#,
            "notifications/cancelled",
            "list_changed",
            r#""id":7,"result":{}"#,
        ];
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, part) in lines.iter().zip(expected) {
            assert!(line.contains(part), "{line} has no {part}");
        }
        assert_eq!((session.open_calls(), session.open_questions()), (0, 0));
        assert_eq!(session.held_bytes(), 0, "nothing is kept for readers");
    }

    #[test]
    fn a_question_on_a_line_waits_as_long_as_its_server_does() {
        let mut session = open();
        open_session(&mut session);
        let call = call(&mut session);
        session.handle_tell(
            Moment::START,
            Tell::Question {
                session: SessionKey(1),
                call: Some(call),
                question: QuestionKey(3),
                message: message(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#),
            },
        );
        session.handle_tick(Moment::START.after(std::time::Duration::from_secs(500)));
        assert_eq!(session.open_questions(), 1);
        let answer = message(r#"{"jsonrpc":"2.0","id":3,"result":{"roots":[]}}"#);
        let taken = session
            .handle_message(Moment::START, answer, Accepts::Both)
            .unwrap();
        assert!(matches!(taken, Accepted::Noted(Some(_))), "{taken:?}");
    }

    #[test]
    fn a_refused_handshake_is_answered_without_opening_the_session() {
        let mut session = open();
        session.handle_tell(
            Moment::START,
            Tell::Failed {
                session: SessionKey(1),
                call: CallKey(1),
                failure: Failure::HandshakeRefused,
            },
        );
        let lines = lines_of(&mut session);
        assert!(
            matches!(&lines[..], [line] if line.contains("handshake")),
            "{lines:?}"
        );
        assert!(!session.is_opened());
    }

    #[test]
    fn question_on_a_line_is_withdrawn_on_a_line_whether_or_not_a_call_caused_it() {
        let mut session = open();
        open_session(&mut session);
        let call = call(&mut session);
        lines_of(&mut session);
        for cause in [Some(call), None] {
            session.handle_tell(
                Moment::START,
                Tell::Question {
                    session: SessionKey(1),
                    call: cause,
                    question: QuestionKey(3),
                    message: message(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#),
                },
            );
            session.handle_tell(
                Moment::START,
                Tell::Withdrawn {
                    session: SessionKey(1),
                    question: QuestionKey(3),
                    message: None,
                },
            );
            let lines = lines_of(&mut session);
            let is_withdrawn = matches!(&lines[..], [asked, withdrawn] if asked.contains("roots/list") && withdrawn.contains("notifications/cancelled"));
            assert!(is_withdrawn, "{lines:?}");
        }
    }
}
