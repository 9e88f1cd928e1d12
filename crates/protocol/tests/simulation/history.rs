//! What happened, as it is checked afterwards and printed when a seed is replayed.

use std::fmt::Write as _;
use std::time::Duration;

use protocol::time::Moment;

/// Stands in a template for the id that only the wire knows.
pub(crate) const ID: &str = "\u{1}";

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "some parts are only printed when a seed is replayed")]
pub(crate) enum Fact {
    SessionOpened {
        session: usize,
        home: Home,
        principal: &'static str,
    },
    SessionClosed {
        session: usize,
    },
    /// The gateway was ended and started again.
    GatewayRestarted,
    /// A client sent a request. `template` is the text that its server is to read, with [`ID`] for
    /// the id and the progress token.
    Posted {
        session: usize,
        post: usize,
        /// The backend that it is for; `None` if Rialto answers it, or gives it to several.
        owner: Option<usize>,
        id: String,
        method: &'static str,
        template: String,
        /// Client and server speak different eras: the words on the wire are others.
        translated: bool,
        /// It comes back to this request.
        retry_of: Option<usize>,
        /// How long its server may be silent; `None`: as long as it likes.
        limit: Option<Duration>,
    },
    /// The server refused the handshake that was to open a session: it is attached to no server.
    Refused {
        session: usize,
    },
    /// Rialto does the handshake of a session once more.
    Reopened {
        session: usize,
    },
    /// The number of a request in its session.
    Numbered {
        session: usize,
        post: usize,
        call: u64,
    },
    /// The bridge ended a call without an answer of the server.
    GivenUp {
        session: usize,
        /// The backend that had it, if one had.
        backend: Option<usize>,
        call: u64,
        /// Its server was silent for too long.
        timed_out: bool,
    },
    /// The client closed the connection that it would have read the answer from.
    HungUp {
        post: usize,
    },
    /// A client read an answer. `reason` is why the bridge failed it, if it did.
    Ended {
        session: usize,
        post: usize,
        body: String,
        reason: Option<String>,
    },
    /// The server read a client's request.
    Executed {
        backend: usize,
        epoch: u32,
        wire: u64,
        post: usize,
        line: String,
    },
    /// The server answered one; `template` has [`ID`] for the id.
    Answered {
        backend: usize,
        epoch: u32,
        wire: u64,
        post: usize,
        template: String,
    },
    /// The server sent the status of the task of a request.
    Polled {
        post: usize,
    },
    /// A modern server asked by its answer: the call may be sent again.
    AskedByAnswer {
        post: usize,
    },
    /// A modern server read the answer to what it asked so.
    InputRead {
        post: usize,
        nonce: u64,
    },
    /// The server's answer was too long to be read.
    TooLong {
        post: usize,
    },
    /// The server read that a call is cancelled.
    CancelRead {
        backend: usize,
        epoch: u32,
        wire: u64,
    },
    /// The server wrote something that is no answer, because of `post` if it has one.
    ServerWrote {
        backend: usize,
        seq: u64,
        post: Option<usize>,
        kind: Kind,
        uri: Option<String>,
        attached: usize,
    },
    /// The server asked; its own id for it.
    Asked {
        backend: usize,
        epoch: u32,
        question: u64,
        post: Option<usize>,
    },
    Withdrew {
        backend: usize,
        epoch: u32,
        question: u64,
    },
    /// The server read an answer to its question; the nonce of the client that gave it, if one did.
    AnswerRead {
        backend: usize,
        epoch: u32,
        question: u64,
        nonce: Option<u64>,
    },
    /// A client answered what it took for a question to it: the message with this number, if it has
    /// read one.
    Replied {
        session: usize,
        nonce: u64,
        seq: Option<u64>,
    },
    /// The bridge handed a notice to a session.
    Delivered {
        session: usize,
        seq: u64,
    },
    Listened {
        session: usize,
        connection: usize,
    },
    Resumed {
        session: usize,
        connection: usize,
        post: Option<usize>,
        stream: u64,
        number: u64,
    },
    ResumeRefused {
        session: usize,
        post: Option<usize>,
        why: String,
    },
    /// A client read an event.
    ClientRead {
        session: usize,
        connection: usize,
        stream: u64,
        number: u64,
        seq: Option<u64>,
        post: Option<usize>,
    },
    /// A client read that events were lost.
    GapRead {
        session: usize,
        connection: usize,
    },
    /// A call of a client of an aggregate, by its number in its session, is for this member alone.
    Owned {
        session: usize,
        call: u64,
        owner: usize,
    },
    /// A member of an aggregate was given a call of a client.
    GivenCall {
        session: usize,
        call: u64,
        backend: usize,
    },
    /// A member of an aggregate was asked to cancel one.
    GivenCancel {
        session: usize,
        call: u64,
        backend: usize,
    },
    /// The audit of an aggregate names this member for a call.
    Routed {
        session: usize,
        call: u64,
        backend: usize,
    },
    /// A client of an aggregate read a message which names the member that it is from.
    Attributed {
        session: usize,
        seq: u64,
        backend: Option<usize>,
    },
    /// An aggregate has these members from now on.
    Reloaded {
        members: Vec<usize>,
    },
    LinkDown {
        backend: usize,
        epoch: u32,
    },
    /// The server reads and writes nothing any more.
    Hung {
        backend: usize,
        epoch: u32,
    },
    LinkUp {
        backend: usize,
        epoch: u32,
    },
    /// A limit was exceeded at some moment.
    Exceeded {
        what: &'static str,
        found: usize,
        limit: usize,
    },
    /// Something was left in a machine at the end.
    Left {
        what: &'static str,
        found: usize,
    },
    /// Something that is wrong by itself.
    Wrong {
        what: String,
    },
}

/// The backends that a session may receive something of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Home {
    Backend(usize),
    /// The members of an aggregate, those of every reload together.
    Members(Vec<usize>),
}

impl Home {
    pub(crate) fn has(&self, backend: usize) -> bool {
        match self {
            Self::Backend(home) => *home == backend,
            Self::Members(members) => members.contains(&backend),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Progress,
    Log,
    Question,
    ListChanged,
    Updated,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) facts: Vec<(Moment, Fact)>,
}

impl History {
    pub(crate) fn note(&mut self, now: Moment, fact: Fact) {
        self.facts.push((now, fact));
    }

    pub(crate) fn print(&self) -> String {
        let mut out = String::new();
        for (at, fact) in &self.facts {
            let _ = writeln!(out, "{:>9.3} {fact:?}", at.elapsed().as_secs_f64());
        }
        out
    }
}
