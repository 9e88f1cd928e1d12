//! What is known of the server's tools, and the reading of their list where a call cannot do
//! without it.
//!
//! Three things about a call depend on its tool: which headers must mirror its arguments, whether
//! the server wants it as a task, and, where the server is reached by HTTP, which headers to send.
//! The knowledge comes from every list that passes by, and is forgotten when the server reports
//! changed tools. If a call needs a tool that was never listed, the list is read on Rialto's own
//! account: once for all calls that wait, a bounded number of pages, for a bounded time. A tool
//! that is unknown after that is not judged; the server alone knows what to do with it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::backend_face::WireId;
use crate::exchange::{Call, Client};
use crate::message::{Kind, Member, Message};
use crate::method::Method;
use crate::object::Object;
use crate::time::Moment;
use crate::tool_policy::ToolPolicy;
use crate::tool_schema::{CatalogueLimits, KnownTool, TaskSupport, ToolCatalogue, arguments_of};
use crate::version::{Era, TaskStyle};
use crate::wire::header::MirroredParams;

use super::ledger::Ledger;
use super::link::Link;
use super::state::{InFlight, Waiting};

/// Pages of the list that are read on Rialto's own account.
const MAX_PAGES: u32 = 16;
/// How long a call waits for the list, at most: half of the time that it has itself.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The code of a server that refuses the headers of a call, as it stands in the message.
const HEADER_MISMATCH: &str = "-32020";

/// What is known of the tools of an instance's server.
#[derive(Debug)]
pub(super) struct Tools {
    catalogue: ToolCatalogue,
    /// Which of the tools clients see.
    policy: Arc<ToolPolicy>,
    /// The list has been read to its end, or could not be: asking again would teach nothing.
    is_final: bool,
    /// How many tools clients are shown, if all of the list has passed by.
    shown: Option<usize>,
    reading: Option<Reading>,
    /// The server is reached over HTTP, where arguments may have to be mirrored in headers.
    mirrors: bool,
}

#[derive(Debug)]
struct Reading {
    id: WireId,
    /// The client in whose name the list is read.
    client: Arc<Client>,
    pages: u32,
    until: Moment,
    /// The tools have changed since it was begun.
    stale: bool,
}

/// What the answer to a request of Rialto's own was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    /// No page of the list.
    Other,
    /// A page; the next one has been asked for.
    Next,
    /// The last page: calls that waited for the list may go.
    Last,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            catalogue: ToolCatalogue::new(CatalogueLimits::default()),
            policy: Arc::default(),
            is_final: false,
            shown: None,
            reading: None,
            mirrors: false,
        }
    }
}

impl Tools {
    pub(super) fn set_policy(&mut self, policy: Arc<ToolPolicy>) {
        self.policy = policy;
    }

    /// Returns the number of tools that clients are shown, if a client was given the whole list
    /// since the tools last changed.
    pub(super) fn shown(&self) -> Option<usize> {
        self.shown
    }

    pub(super) fn mirror_arguments(&mut self) {
        self.mirrors = true;
    }

    pub(super) fn find(&self, name: &str) -> Option<&KnownTool> {
        self.catalogue.find(name)
    }

    fn named(&self, message: &Message) -> Option<&KnownTool> {
        self.find(&message.text(Member::Name)?)
    }

    /// Returns a list without the tools that clients must not see, if it has such.
    pub(super) fn without_denied(&self, message: &Message) -> Option<Message> {
        self.policy.without_denied(message)
    }

    /// Checks that the headers of a call agree with its arguments, as far as its tool is known. The
    /// error is a text for users.
    pub(super) fn check_mirrored(&self, message: &Message, params: &MirroredParams) -> Result<(), String> {
        let Some(tool) = self.named(message) else {
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

    /// Returns how a tool stands to tasks, for a client of the extension at a server of core tasks.
    pub(super) fn task_support(&self, message: &Message, era: Era, link: &Link) -> TaskSupport {
        if !wants_core_task(era, link) || message.method() != Method::ToolsCall {
            return TaskSupport::Forbidden;
        }
        self.named(message)
            .map_or(TaskSupport::Forbidden, |tool| tool.tasks)
    }

    /// Returns whether a call has to wait until its tool is known.
    pub(super) fn must_learn(&self, call: &Call, link: &Link) -> bool {
        if self.is_final || call.message.method() != Method::ToolsCall {
            return false;
        }
        let mirrored = self.mirrors && link.face().mirrors_arguments();
        (mirrored || call.mirrored.is_some() || wants_core_task(call.era, link))
            && call
                .message
                .text(Member::Name)
                .is_some_and(|name| self.find(&name).is_none())
    }

    /// Returns whether a call that waits does so for the list.
    pub(super) fn is_awaited_by(&self, waiting: &Waiting, link: &Link) -> bool {
        (waiting.past.refreshed && !self.is_final) || self.must_learn(&waiting.call, link)
    }

    /// Begins to read the list if a call waits for it and it is not being read.
    pub(super) fn learn(&mut self, now: Moment, ledger: &mut Ledger, link: &mut Link) {
        if self.is_final || self.reading.is_some() || !link.is_ready() {
            return;
        }
        let client = ledger
            .waiting
            .iter()
            .find(|waiting| self.is_awaited_by(waiting, link))
            .and_then(|waiting| ledger.client(waiting.call.session))
            .map(Arc::clone);
        let Some(client) = client else { return };
        let until = now.after(LIST_TIMEOUT.min(ledger.limits.request_timeout / 2));
        self.read_page(client, 1, until, None, ledger, link);
    }

    fn read_page(
        &mut self,
        client: Arc<Client>,
        pages: u32,
        until: Moment,
        cursor: Option<&str>,
        ledger: &mut Ledger,
        link: &mut Link,
    ) {
        let id = ledger.next_wire();
        link.confirm(None, ledger);
        link.face()
            .write_tools_list(ledger.outgoing.end(), id, &client, cursor);
        ledger.enter_own(id, until);
        self.reading = Some(Reading {
            id,
            client,
            pages,
            until,
            stale: false,
        });
    }

    /// A request of Rialto's own has been answered.
    pub(super) fn handle_page(
        &mut self,
        id: WireId,
        message: &Message,
        ledger: &mut Ledger,
        link: &mut Link,
    ) -> Page {
        let Some(reading) = self.reading.take_if(|reading| reading.id == id) else {
            return Page::Other;
        };
        let page = match message.raw(Member::Result) {
            Some(result) if reading.stale || self.catalogue.add_page(result).is_ok() => result,
            Some(_) | None => {
                self.is_final = true;
                return Page::Last;
            }
        };
        let cursor = if reading.stale { None } else { next_cursor(page) };
        if reading.pages >= MAX_PAGES || (cursor.is_none() && !reading.stale) {
            self.is_final = true;
            return Page::Last;
        }
        // From the beginning, if the tools have changed meanwhile.
        let (pages, until) = (reading.pages + 1, reading.until);
        self.read_page(reading.client, pages, until, cursor.as_deref(), ledger, link);
        Page::Next
    }

    /// A request of Rialto's own will not be answered. Returns whether it was for the list: calls
    /// go on without it.
    pub(super) fn handle_unanswered(&mut self, id: WireId) -> bool {
        let was_reading = self.reading.take_if(|reading| reading.id == id).is_some();
        self.is_final |= was_reading;
        was_reading
    }

    /// Learns from a list that a client asked for.
    pub(super) fn note_list(&mut self, call: &InFlight, message: &Message, link: &Link) {
        // Otherwise no call will depend on it.
        if call.era.tasks() == TaskStyle::Core && !link.face().mirrors_arguments() {
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
        if self.catalogue.add_page(result).is_ok() && first && next_cursor(result).is_none() {
            self.is_final = true;
        }
    }

    /// Counts the tools of a list as a client is given it.
    pub(super) fn count_shown(&mut self, call: &InFlight, message: &Message) {
        let Some(list) = message.raw(Member::Result).and_then(Object::parse) else {
            return;
        };
        let params = call.message.raw(Member::Params).and_then(Object::parse);
        let is_first = params.is_none_or(|params| params.get("cursor").is_none());
        if is_first && list.get("nextCursor").is_none_or(|cursor| cursor == "null") {
            let tools = list.get("tools");
            let tools = tools.and_then(|tools| serde_json::from_str::<Vec<&RawValue>>(tools).ok());
            self.shown = tools.map(|tools| tools.len());
        }
    }

    /// The server's tools have changed, or it is another server.
    pub(super) fn forget(&mut self) {
        self.catalogue.clear();
        self.is_final = false;
        self.shown = None;
        if let Some(reading) = &mut self.reading {
            reading.stale = true;
        }
    }

    /// The link is gone, and with it the server that would have answered.
    pub(super) fn lose_link(&mut self) {
        self.forget();
        self.reading = None;
    }

    /// Returns whether a server has refused the headers of a call, which proves that it did not run
    /// it: the list is to be read anew and the call sent once more (2026-07-28, "Server
    /// Validation").
    pub(super) fn must_refresh(&self, call: &InFlight, message: &Message) -> bool {
        if message.kind() != Kind::Error || !self.mirrors || call.past.refreshed {
            return false;
        }
        let error = message.raw(Member::Error).and_then(Object::parse);
        let code = error.as_ref().and_then(|error| error.get("code"));
        call.method() == Method::ToolsCall && code == Some(HEADER_MISMATCH)
    }
}

/// Returns whether calls of tools may have to be made as core tasks for a client that knows the
/// extension.
fn wants_core_task(era: Era, link: &Link) -> bool {
    era.tasks() == TaskStyle::Extension && link.face().tasks() == TaskStyle::Core && link.offers_tasks()
}

/// Returns where a list goes on, raw.
fn next_cursor(result: &[u8]) -> Option<String> {
    Object::parse(result)?
        .get("nextCursor")
        .filter(|raw| raw.starts_with('"'))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, Multiplexer};
    use super::*;
    use crate::backend_face::legacy::ClientHello;
    use crate::wire::header::MirroredHeaders;

    #[test]
    fn headers_of_a_call_are_checked_if_its_tool_wants_any() {
        let mut tools = Tools::default();
        let list = br#"{"tools":[{"name":"plain","inputSchema":{}},{"name":"mirrored","inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}]}"#;
        tools.catalogue.add_page(list).unwrap();
        let call = |name: &str| {
            Message::own(format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","arguments":{{"region":"eu"}}}}}}"#
            ))
        };
        let none = MirroredHeaders::read([]).kept_params();
        let region =
            |value: &'static [u8]| MirroredHeaders::read([(&b"mcp-param-region"[..], value)]).kept_params();
        assert!(tools.check_mirrored(&call("plain"), &none).is_ok());
        assert!(tools.check_mirrored(&call("unknown"), &region(b"us")).is_ok());
        assert!(tools.check_mirrored(&call("mirrored"), &region(b"eu")).is_ok());
        assert!(tools.check_mirrored(&call("mirrored"), &region(b"us")).is_err());
        assert!(tools.check_mirrored(&call("mirrored"), &none).is_err());
        let mut machine = Multiplexer::new(Limits::default(), ClientHello::Newest);
        machine.tools = tools;
        assert!(machine.check_mirrored(&call("mirrored"), &region(b"eu")).is_ok());
        assert!(machine.check_mirrored(&call("mirrored"), &none).is_err());
    }
}
