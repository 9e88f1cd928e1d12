//! What is known of the server's tools, and the reading of their list where a call cannot do without it.
//!
//! Three things about a call depend on its tool: which headers must mirror its arguments, whether a legacy server wants
//! it as a task, and, where the server is reached by HTTP, which headers to send. The knowledge comes from every list that
//! passes by, and is forgotten when the server says that its tools have changed. If a call needs a tool that
//! was never listed, the list is read on our own account: once for all who wait, a bounded number of pages, for a
//! bounded time. A tool that is unknown after that is not judged; the server alone knows what to do with it.

use std::sync::Arc;
use std::time::Duration;

use super::{InFlight, Multiplexer, Past, Pending, Waiting};
use crate::backend_face::WireId;
use crate::error_code;
use crate::exchange::{Call, Client, Tell};
use crate::message::{Kind, Member, Message, quoted};
use crate::method::Method;
use crate::object::Object;
use crate::time::Moment;
use crate::tool_schema::{CatalogueLimits, KnownTool, TaskSupport, ToolCatalogue, arguments_of};
use crate::version::Era;
use crate::wire::header::MirroredParams;

/// Pages of the list that are read on our own account.
const MAX_PAGES: u32 = 16;
/// How long a call waits for the list, at most: half of the time that it has itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of the tools of a lane's server.
#[derive(Debug)]
pub(super) struct Tools {
    catalogue: ToolCatalogue,
    /// The list has been read to its end, or could not be: asking again would teach nothing.
    settled: bool,
    reading: Option<Reading>,
    /// The server wants the arguments of calls mirrored in headers.
    mirrors: bool,
}

#[derive(Debug)]
struct Reading {
    id: WireId,
    /// In whose name the list is read.
    client: Arc<Client>,
    pages: u32,
    until: Moment,
    /// The tools have changed since it was begun.
    stale: bool,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            catalogue: ToolCatalogue::new(CatalogueLimits::default()),
            settled: false,
            reading: None,
            mirrors: false,
        }
    }
}

impl Multiplexer {
    /// What is known of a tool.
    pub fn tool(&self, name: &str) -> Option<&KnownTool> {
        self.tools.catalogue.find(name)
    }

    /// The server is reached by a way that wants arguments mirrored in headers: no call of a tool is sent before its
    /// list was looked at.
    pub fn mirror_arguments(&mut self) {
        self.tools.mirrors = true;
    }

    /// Whether the headers of a call say what its arguments say, as far as its tool is known. The error is for people.
    pub fn judge_mirrored(&self, message: &Message, params: &MirroredParams) -> Result<(), String> {
        let Some(tool) = message.text(Member::Name).and_then(|name| self.tool(&name)) else {
            return Ok(());
        };
        if tool.headers.is_empty() && params.is_empty() {
            return Ok(());
        }
        let arguments = arguments_of(message).map_err(|_| "`params.arguments` stands twice".to_owned())?;
        params
            .check(&tool.headers, arguments)
            .map_err(|mismatch| mismatch.to_string())
    }

    /// Answers a call whose headers say something else than its arguments. Gives whether it did.
    pub(super) fn refuse_mismatch(&mut self, call: &Call) -> bool {
        let Some(Err(text)) = call
            .mirrored
            .as_ref()
            .map(|params| self.judge_mirrored(&call.message, params))
        else {
            return false;
        };
        self.reply_error(call, error_code::HEADER_MISMATCH, &text, None);
        true
    }

    /// Answers a call with an error of our own, in the caller's words.
    pub(super) fn reply_error(&mut self, call: &Call, code: i32, text: &str, data: Option<&str>) {
        let data = data.map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
        let message = Message::own(format!(
            r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{code},"message":{}{data}}}}}"#,
            quoted(text)
        ));
        self.tell(Tell::Reply {
            session: call.session,
            call: call.call,
            message,
            words: call.words,
        });
    }

    /// How a tool of a legacy server stands to tasks, for a modern client.
    pub(super) fn task_support(&self, message: &Message, words: Era) -> TaskSupport {
        if words != Era::Modern || self.face.listens() || !self.offers_tasks() {
            return TaskSupport::Forbidden;
        }
        match (message.method(), message.text(Member::Name)) {
            (Method::ToolsCall, Some(name)) => {
                self.tool(&name).map_or(TaskSupport::Forbidden, |tool| tool.tasks)
            }
            _ => TaskSupport::Forbidden,
        }
    }

    /// Whether a call has to wait until its tool is known.
    pub(super) fn must_learn(&self, call: &Call) -> bool {
        if self.tools.settled || call.message.method() != Method::ToolsCall {
            return false;
        }
        let as_task = call.words == Era::Modern && !self.face.listens() && self.offers_tasks();
        let mirrored = self.tools.mirrors && self.face.listens();
        (as_task || mirrored || call.mirrored.is_some())
            && call
                .message
                .text(Member::Name)
                .is_some_and(|name| self.tool(&name).is_none())
    }

    /// Whether a call that waits does so for the list.
    pub(super) fn awaits_tools(&self, waiting: &Waiting) -> bool {
        (waiting.past.refreshed && !self.tools.settled) || self.must_learn(&waiting.call)
    }

    /// Begins to read the list if a call waits for it and nobody reads it yet.
    pub(super) fn learn(&mut self, now: Moment) {
        if self.tools.settled || self.tools.reading.is_some() || !self.is_ready() {
            return;
        }
        let client = self
            .waiting
            .iter()
            .find(|waiting| self.awaits_tools(waiting))
            .and_then(|waiting| self.attached.get(&waiting.call.session))
            .map(|attached| Arc::clone(&attached.client));
        let Some(client) = client else { return };
        let until = now.after(PATIENCE.min(self.limits.request_timeout / 2));
        self.read_page(client, 1, until, None);
    }

    fn read_page(&mut self, client: Arc<Client>, pages: u32, until: Moment, cursor: Option<&str>) {
        let id = self.next_wire();
        self.face.confirm(None, self.outgoing.end());
        self.face
            .write_tools_list(self.outgoing.end(), id, &client, cursor);
        self.pending.insert(id, Pending::Own { until });
        self.wake_by(until);
        self.tools.reading = Some(Reading {
            id,
            client,
            pages,
            until,
            stale: false,
        });
    }

    /// A request of our own has been answered. Gives whether it was for a page of the list.
    pub(super) fn handle_page(&mut self, now: Moment, id: WireId, message: &Message) -> bool {
        let Some(reading) = self.tools.reading.take_if(|reading| reading.id == id) else {
            return false;
        };
        let page = match message.raw(Member::Result) {
            Some(result) if reading.stale || self.tools.catalogue.add_page(result).is_ok() => result,
            Some(_) | None => {
                self.settle_tools(now);
                return true;
            }
        };
        let cursor = if reading.stale { None } else { next_cursor(page) };
        if reading.pages >= MAX_PAGES || (cursor.is_none() && !reading.stale) {
            self.settle_tools(now);
        } else {
            // From the beginning, if the tools have changed meanwhile.
            self.read_page(
                reading.client,
                reading.pages + 1,
                reading.until,
                cursor.as_deref(),
            );
        }
        true
    }

    /// There is no more to be learnt: whoever waits goes on.
    fn settle_tools(&mut self, now: Moment) {
        self.tools.settled = true;
        self.tools.reading = None;
        self.admit(now);
    }

    /// A request of our own will not be answered. If it was for the list, calls go on without it.
    pub(super) fn expire_page(&mut self, now: Moment, id: WireId) {
        if self
            .tools
            .reading
            .as_ref()
            .is_some_and(|reading| reading.id == id)
        {
            self.settle_tools(now);
        }
    }

    /// Learns from a list that a client asked for.
    pub(super) fn note_tools(&mut self, call: &InFlight, message: &Message) {
        // Between two peers of the legacy era nobody will want to know.
        if call.words == Era::Legacy && !self.face.listens() {
            return;
        }
        let Some(result) = message.raw(Member::Result) else {
            return;
        };
        let first = call
            .message
            .raw(Member::Params)
            .and_then(Object::parse)
            .is_none_or(|params| params.get("cursor").is_none());
        if self.tools.catalogue.add_page(result).is_ok() && first && next_cursor(result).is_none() {
            self.tools.settled = true;
        }
    }

    /// The server's tools have changed, or it is another server.
    pub(super) fn forget_tools(&mut self) {
        self.tools.catalogue.clear();
        self.tools.settled = false;
        if let Some(reading) = &mut self.tools.reading {
            reading.stale = true;
        }
    }

    /// The link is gone, and with it who would have answered.
    pub(super) fn stop_learning(&mut self) {
        self.forget_tools();
        self.tools.reading = None;
    }

    /// The server has refused the headers of a call, which proves that it did not run it: the list is read anew and the
    /// call sent once more (2026-07-28, "Server Validation"). Gives whether that is so.
    pub(super) fn refresh_tools(&mut self, now: Moment, id: WireId, message: &Message) -> bool {
        let full = self.waiting.len() >= self.limits.waiting;
        if message.kind() != Kind::Error || !self.tools.mirrors || full {
            return false;
        }
        let Some(Pending::Call(call)) = self.pending.get(&id) else {
            return false;
        };
        let code = message.raw(Member::Error).and_then(Object::parse);
        let code = code.as_ref().and_then(|error| error.get("code"));
        if call.past.refreshed || call.method != Method::ToolsCall || code != Some("-32020") {
            return false;
        }
        let Some(call) = self.settle(now, id) else {
            return true;
        };
        self.forget_tools();
        self.waiting.push_back(Waiting {
            call: Call {
                session: call.session,
                call: call.call,
                request: call.request,
                message: call.message,
                words: call.words,
                mirrored: None,
                reads_events: call.reads_events,
            },
            deadline: call.deadline,
            starting: false,
            patience: call.patience,
            asked_first: false,
            occupied_until: None,
            past: Past {
                refreshed: true,
                ..call.past
            },
        });
        self.wake_by(call.deadline);
        self.learn(now);
        true
    }
}

/// Where a list goes on, raw.
fn next_cursor(result: &[u8]) -> Option<String> {
    Object::parse(result)?
        .get("nextCursor")
        .filter(|raw| raw.starts_with('"'))
        .map(str::to_owned)
}
