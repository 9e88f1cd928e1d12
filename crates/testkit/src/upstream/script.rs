//! How a test chooses what the upstream does instead of its usual behaviour.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::exchange::Exchange;

/// One thing to do with a request. Texts are sent with `{id}`, `{token}` and `{session}` filled in
/// from it.
#[derive(Debug, Clone)]
pub enum Step {
    /// The tool is run, which the journal records.
    Execute,
    /// A whole answer.
    Respond {
        status: u16,
        headers: Vec<(String, String)>,
        body: String,
    },
    /// The head of an event stream.
    OpenStream,
    /// A piece of the open stream.
    Piece(Vec<u8>),
    /// An event of the open stream with this as its data.
    Event(String),
    /// The proper end of the open stream.
    EndStream,
    /// Bytes outside of any framing.
    Raw(Vec<u8>),
    /// Nothing more until the test opens the gate, or the peer hangs up.
    Wait(Gate),
    /// Nothing more until the peer hangs up.
    Stall,
    /// The same piece again and again, up to so many bytes or until the peer hangs up.
    Flood { piece: Vec<u8>, bytes: u64 },
    /// RST.
    Reset,
    /// FIN, before the end of the announced body.
    Close,
    /// What would have been done without a script.
    AsUsual,
}

impl Step {
    /// A whole answer in JSON.
    pub fn json(body: &str) -> Self {
        Self::with_status(200, "application/json", body)
    }

    /// A status and nothing else.
    pub fn status(status: u16) -> Self {
        Self::Respond {
            status,
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub fn with_status(status: u16, content_type: &str, body: &str) -> Self {
        Self::Respond {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.to_owned(),
        }
    }

    /// Refused for the time being.
    pub fn retry_after(status: u16, seconds: u64) -> Self {
        Self::Respond {
            status,
            headers: vec![("retry-after".to_owned(), seconds.to_string())],
            body: String::new(),
        }
    }

    pub fn redirect(status: u16, location: &str) -> Self {
        Self::Respond {
            status,
            headers: vec![("location".to_owned(), location.to_owned())],
            body: String::new(),
        }
    }

    /// The result of a tool call with this text, as the data of an event.
    pub fn result(text: &str) -> Self {
        Self::Event(result(text))
    }

    /// A progress notification about the call, as the data of an event.
    pub fn progress(progress: u64) -> Self {
        Self::Event(format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{{token}},"progress":{progress}}}}}"#
        ))
    }

    pub fn piece(text: &str) -> Self {
        Self::Piece(text.as_bytes().to_vec())
    }
}

/// The answer to a tool call, its id still to be filled in.
pub fn result(text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
}

/// Something a script waits for and a test decides.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Gate {
    /// Lets every waiting step pass, and every later one.
    pub fn open(&self) {
        self.0.close();
    }

    pub(super) async fn passed(&self) {
        // There is never a permit: the wait ends with the closing.
        let _ = self.0.acquire().await;
    }
}

/// Which requests a rule is about.
type Condition = Arc<dyn Fn(&Exchange) -> bool + Send + Sync>;

/// What to do with the next so many requests of a kind.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) condition: Condition,
    pub(super) times: usize,
    pub(super) steps: Vec<Step>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("times", &self.times)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}
