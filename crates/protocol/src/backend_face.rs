//! Ask / Tell ↔ a backend's messages: one file per era, and the one place that tells them apart.
//!
//! A face translates only foreign words. What a client of the same era wrote goes to the server as
//! it is, but for ids and tokens.

pub mod legacy;
pub mod modern;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::exchange::{Client, ServerInfo};
use crate::message::{Member, Message};
use crate::method::{LogLevel, Method};
use crate::version::{ChangeStyle, Era, LogLevelStyle, QuestionStyle, TaskStyle};
use crate::wire::outbox::Outbox;

/// Id rewriting: the id that Rialto gives to a request it writes to a server. It is never a
/// client's id, not even in part. A multiplexer never uses it twice, so a response from before a
/// restart matches no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireId(pub u64);

impl WireId {
    /// Returns the id in decimal, written into a buffer.
    pub(crate) fn decimal(self, buffer: &mut itoa::Buffer) -> &[u8] {
        buffer.format(self.0).as_bytes()
    }
}

/// Appends one line: the parts in order and a line break. Line breaks between the tokens of a
/// client's JSON become spaces, since a line is one message.
fn write_line(out: &mut BytesMut, parts: &[&[u8]]) {
    let start = out.len();
    for part in parts {
        out.put_slice(part);
    }
    let mut rest = out.get_mut(start..).unwrap_or_default();
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest)
        && let Some((line_break, after)) = rest.get_mut(at..).and_then(<[u8]>::split_first_mut)
    {
        *line_break = b' ';
        rest = after;
    }
    out.put_u8(b'\n');
}

/// What a server wrote, as far as the multiplexer needs to tell it apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// An answer; `None` if its id is none of Rialto's.
    Answer(Option<WireId>),
    /// Progress; `None` if its token is none of Rialto's.
    Progress(Option<WireId>),
    /// A ping.
    Ping,
    /// A request of the server.
    Question,
    /// The server withdraws its question with the raw id in the message.
    Withdrawal,
    /// A log line.
    Log,
    /// A list has changed.
    ListChanged,
    /// A resource has changed.
    Updated,
    /// What became of a task.
    Task,
    /// The server has begun to send what Rialto listens for.
    Listening(Option<WireId>),
    /// Any other notification.
    Other,
    /// A message that a server of this era must not send.
    Forbidden,
}

/// Returns what a server of this era declared about itself in the response to its handshake or
/// discovery.
pub fn read_server_info(era: Era, response: Message) -> ServerInfo {
    match era {
        Era::Legacy => legacy::read_server_info(response),
        Era::Modern => modern::read_server_info(response),
    }
}

/// The face of the era used towards a server: the negotiated one, or until then the one tried last.
#[derive(Debug)]
pub struct Face {
    era: Era,
    handshake: legacy::Handshake,
    discovery: modern::Discovery,
}

impl Face {
    /// Returns a face that tries this era first.
    pub fn new(era: Era, client_hello: legacy::ClientHello) -> Self {
        Self {
            era,
            handshake: legacy::Handshake::new(client_hello),
            discovery: modern::Discovery::default(),
        }
    }

    /// Returns the era that is spoken, or tried.
    pub fn era(&self) -> Era {
        self.era
    }

    /// Returns whether the server received the union of its clients' capabilities.
    pub fn declares_union(&self) -> bool {
        match self.era {
            Era::Legacy => self.handshake.declares_union(),
            Era::Modern => false,
        }
    }

    /// Sets the era that is to be tried first.
    pub(crate) fn set_era(&mut self, era: Era) {
        self.era = era;
    }

    /// Returns how the server asks.
    pub const fn questions(&self) -> QuestionStyle {
        self.era.questions()
    }

    /// Returns how changes at the server are learnt of.
    pub const fn changes(&self) -> ChangeStyle {
        self.era.changes()
    }

    /// Returns how the server receives the wanted log level.
    pub const fn log_levels(&self) -> LogLevelStyle {
        self.era.log_levels()
    }

    /// Returns which form the server's tasks have.
    pub const fn tasks(&self) -> TaskStyle {
        self.era.tasks()
    }

    /// Returns whether the server, reached over HTTP, wants the arguments of calls mirrored in
    /// headers.
    pub const fn mirrors_arguments(&self) -> bool {
        match self.era {
            Era::Legacy => false,
            Era::Modern => true,
        }
    }

    /// Returns whether everything that the server sends about a request over HTTP comes before its
    /// response ends.
    pub const fn is_silent_after_exchange(&self) -> bool {
        match self.era {
            Era::Legacy => false,
            Era::Modern => true,
        }
    }

    /// Takes a client's `initialize`, for a legacy server, if none is held yet.
    pub fn offer(&mut self, client: &Client, initialize: Option<&Message>) {
        self.handshake.offer(client, initialize);
    }

    /// Returns what the server declared about itself, once it has.
    pub fn server_info(&self) -> Option<&Arc<ServerInfo>> {
        match self.era {
            Era::Legacy => self.handshake.server_info(),
            Era::Modern => self.discovery.server_info(),
        }
    }

    /// Returns whether the first message of this era can be written.
    pub fn can_begin(&self, era: Era) -> bool {
        match era {
            Era::Legacy => self.handshake.can_begin(),
            Era::Modern => self.discovery.can_begin(),
        }
    }

    /// Writes the first message of this era, if it can be written. The era is the one spoken from
    /// now on.
    pub fn begin(&mut self, era: Era, id: WireId, out: &mut BytesMut) -> bool {
        self.era = era;
        match era {
            Era::Legacy => self.handshake.begin(id, out),
            Era::Modern => self.discovery.begin(id, out),
        }
    }

    /// Takes the server's answer to the first message of an era. A result settles the era, and no
    /// other answer is awaited then. An error leaves that era untried.
    pub fn handle_answer(&mut self, era: Era, message: Message) -> Result<Arc<ServerInfo>, Message> {
        match era {
            Era::Legacy => {
                let server_info = self.handshake.handle_answer(message)?;
                self.discovery.reset();
                self.era = era;
                Ok(server_info)
            }
            Era::Modern => {
                let server_info = self.discovery.handle_answer(message)?;
                self.handshake.reset();
                self.era = era;
                Ok(server_info)
            }
        }
    }

    /// There will be no answer to the first message of this era.
    pub fn abandon(&mut self, era: Era) {
        match era {
            Era::Legacy => self.handshake.reset(),
            Era::Modern => self.discovery.reset(),
        }
    }

    /// Sends `notifications/initialized` to a legacy server, once. Returns whether it was sent now.
    pub fn confirm(&mut self, notification: Option<&Message>, out: &mut BytesMut) -> bool {
        match self.era {
            Era::Legacy => self.handshake.confirm(notification, out),
            Era::Modern => false,
        }
    }

    /// No client of the handshake is left: the next client may send its own `initialize`.
    pub fn forget_initialize(&mut self) {
        self.handshake.forget_initialize();
    }

    /// The link is gone: the next one starts silent.
    pub fn reset(&mut self) {
        self.handshake.reset();
        self.discovery.reset();
    }

    /// Returns the era of what the server sends. Until it has shown that it is modern, it may send
    /// requests as a legacy server.
    fn shown_era(&self) -> Era {
        match self.era {
            Era::Modern if self.discovery.server_info().is_some() => Era::Modern,
            Era::Modern | Era::Legacy => Era::Legacy,
        }
    }

    /// Returns what a message of the server is.
    pub fn recognise(&self, message: &Message) -> Arrival {
        match self.shown_era() {
            Era::Legacy => legacy::recognise(message),
            Era::Modern => modern::recognise(message),
        }
    }

    /// Writes a client's request under Rialto's id, its progress token replaced by the same id.
    pub fn write_call(&self, out: &mut Outbox, line: &OutgoingRequest<'_>) {
        match (self.era, line.era) {
            // Only a translated call has members to add.
            (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => {
                let mut buffer = itoa::Buffer::new();
                let id = line.id.decimal(&mut buffer);
                line.message
                    .splice_to(out, &[(Member::Id, id), (Member::MetaProgressToken, id)]);
                write_line(out.end(), &[]);
            }
            (Era::Legacy, Era::Modern) => legacy::write_translated(out.end(), line),
            (Era::Modern, Era::Legacy) => {
                modern::write_translated(out.end(), line, self.discovery.takes_tasks());
            }
        }
    }

    /// Asks about a task, for Rialto itself.
    pub fn write_task(&self, out: &mut BytesMut, request: &TaskRequest<'_>) {
        match self.era {
            Era::Legacy => legacy::write_task(out, request),
            Era::Modern => modern::write_task(out, request),
        }
    }

    /// Asks the server to send what the filters name, where its era has a request for it.
    pub(crate) fn write_listen(
        &self,
        out: &mut BytesMut,
        id: WireId,
        filters: &BTreeSet<modern::ListenFilter>,
    ) {
        match (self.era, self.discovery.server_info()) {
            (Era::Modern, Some(server_info)) => modern::write_listen(out, id, server_info, filters),
            (Era::Modern, None) | (Era::Legacy, _) => {}
        }
    }

    /// Asks for a page of the list of tools, for Rialto itself; the raw cursor of one that is not
    /// the first.
    pub fn write_tools_list(&self, out: &mut BytesMut, id: WireId, client: &Client, cursor: Option<&str>) {
        match self.era {
            Era::Legacy => legacy::write_tools_list(out, id, cursor),
            Era::Modern => modern::write_tools_list(out, id, client, cursor),
        }
    }

    /// Passes on a client's notification, if this era has a counterpart for it.
    pub fn write_notice(&mut self, out: &mut BytesMut, message: &Message) {
        match self.era {
            Era::Legacy => {
                self.handshake.confirm(None, out);
                message.splice(out, &[]);
                write_line(out, &[]);
            }
            // A modern server asks for roots with each request, so it needs no notification.
            Era::Modern => {}
        }
    }

    /// Asks the server whether it is there.
    pub fn write_ping(&self, out: &mut BytesMut, id: WireId) {
        match self.era {
            Era::Legacy => legacy::write_ping(out, id),
            // This era has no ping; what every server must answer does as well.
            Era::Modern => modern::write_discover(out, id),
        }
    }

    /// Refuses a question of a legacy server. A modern server is never sent a response.
    pub fn write_refusal(&self, out: &mut BytesMut, question: &[u8], code: i32, text: &str) {
        match self.shown_era() {
            Era::Legacy => legacy::write_refusal(out, question, code, text),
            Era::Modern => {}
        }
    }
}

/// A request on its way to the server.
#[derive(Debug)]
pub struct OutgoingRequest<'a> {
    /// The request as its client wrote it.
    pub message: &'a Message,
    /// The era that the message is written in.
    pub era: Era,
    /// The id that it gets.
    pub id: WireId,
    /// The client that it comes from.
    pub client: &'a Client,
    /// The log level that the client has chosen, if any.
    pub level: Option<LogLevel>,
    /// Members to add to the params, raw: the answers of a further round.
    pub extra: &'a [(&'static str, Bytes)],
}

/// A request of Rialto's own about a task.
#[derive(Debug)]
pub struct TaskRequest<'a> {
    /// `tasks/get`, `tasks/update`, `tasks/cancel` or `tasks/result`.
    pub method: Method,
    /// The id that it gets.
    pub id: WireId,
    /// The id of the task.
    pub task: &'a str,
    /// In whose name.
    pub client: &'a Client,
    /// What the task wanted to know, raw (modern era).
    pub answers: Option<String>,
}

/// Writes `notifications/cancelled` for a request of Rialto.
pub fn write_cancel(out: &mut BytesMut, message: Option<&Message>, id: WireId, reason: &str) {
    let mut buffer = itoa::Buffer::new();
    let id = id.decimal(&mut buffer);
    match message {
        Some(message) => {
            message.splice(out, &[(Member::RequestId, id)]);
            write_line(out, &[]);
        }
        None => write_line(
            out,
            &[
                br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#,
                id,
                br#","reason":"#,
                crate::message::quoted(reason).as_bytes(),
                b"}}",
            ],
        ),
    }
}

#[cfg(test)]
mod tests;
