//! Ask / Tell ↔ a backend's messages: one file per era, and the one place that tells them apart.
//!
//! A face translates only foreign words. What a client of the same era wrote goes to the server as it is, but for
//! ids and tokens.

pub mod legacy;
pub mod modern;

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::digits::Digits;
use crate::exchange::{Client, Welcome};
use crate::message::{Member, Message};
use crate::method::{LogLevel, Method};
use crate::version::Era;
use crate::wire::outbox::Outbox;

/// An id that Rialto gave to a request it wrote to a server. Never a client's id, not even in part, and never
/// used twice by a multiplexer: an answer from before a restart finds nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireId(pub u64);

impl WireId {
    pub(crate) fn digits(self) -> Digits {
        Digits::of(self.0)
    }
}

/// Appends one line: the parts in order and a line break. Parts of what a client wrote may have line breaks between their
/// tokens, which become spaces: a line is one message, whatever it is made of.
fn write_line(out: &mut BytesMut, parts: &[&[u8]]) {
    let start = out.len();
    for part in parts {
        out.put_slice(part);
    }
    let line = &mut out[start..];
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\n', b'\r', &line[at..]) {
        line[at + found] = b' ';
        at += found + 1;
    }
    out.put_u8(b'\n');
}

/// What a server wrote, as far as the multiplexer needs to tell it apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// An answer; `None` if its id is none of ours.
    Answer(Option<WireId>),
    /// Progress; `None` if its token is none of ours.
    Progress(Option<WireId>),
    Ping,
    Question,
    /// The server withdraws its question with the raw id in the message.
    Withdrawal,
    Log,
    ListChanged,
    Updated,
    /// What became of a task.
    Task,
    /// The server has begun to send what we listen for.
    Listening(Option<WireId>),
    Other,
    /// Something that a server of this era must not say.
    Forbidden,
}

/// How a backend is spoken to.
#[derive(Debug)]
pub enum Face {
    Legacy(legacy::Handshake),
    Modern(modern::Discovery),
}

impl Face {
    pub fn new(era: Era, introduction: legacy::Introduction) -> Self {
        match era {
            Era::Legacy => Self::Legacy(legacy::Handshake::new(introduction)),
            Era::Modern => Self::Modern(modern::Discovery::default()),
        }
    }

    /// Whether such a server is listened to, and told with every request what its client wants; otherwise it
    /// keeps subscriptions and levels itself.
    pub fn listens(&self) -> bool {
        match self {
            Self::Legacy(_) => false,
            Self::Modern(_) => true,
        }
    }

    pub fn era(&self) -> Era {
        match self {
            Self::Legacy(_) => Era::Legacy,
            Self::Modern(_) => Era::Modern,
        }
    }

    /// Takes a client's introduction if the server needs one and none is held yet.
    pub fn offer(&mut self, client: &Client, introduction: Option<&Message>) {
        match self {
            Self::Legacy(handshake) => handshake.offer(client, introduction),
            Self::Modern(_) => {}
        }
    }

    pub fn welcome(&self) -> Option<&Arc<Welcome>> {
        match self {
            Self::Legacy(handshake) => handshake.welcome(),
            Self::Modern(discovery) => discovery.welcome(),
        }
    }

    /// Says the first thing on a silent link, if it can be said.
    pub fn begin(&mut self, id: WireId, out: &mut BytesMut) -> bool {
        match self {
            Self::Legacy(handshake) => handshake.begin(id, out),
            Self::Modern(discovery) => discovery.begin(id, out),
        }
    }

    /// Whether this answer is to the first thing that was said.
    pub fn awaits(&self, id: WireId) -> bool {
        match self {
            Self::Legacy(handshake) => handshake.awaits(id),
            Self::Modern(discovery) => discovery.awaits(id),
        }
    }

    /// Takes the server's answer to it. An error leaves the link silent, for someone else to try.
    pub fn handle_answer(&mut self, message: Message) -> Result<Arc<Welcome>, Message> {
        match self {
            Self::Legacy(handshake) => handshake.handle_answer(message),
            Self::Modern(discovery) => discovery.handle_answer(message),
        }
    }

    /// Tells a legacy server that its client is ready, once. Gives whether it was told now.
    pub fn confirm(&mut self, words: Option<&Message>, out: &mut BytesMut) -> bool {
        match self {
            Self::Legacy(handshake) => handshake.confirm(words, out),
            Self::Modern(_) => false,
        }
    }

    /// Nobody is left whom the introduction was made for: the next client may introduce itself.
    pub fn forget_introduction(&mut self) {
        match self {
            Self::Legacy(handshake) => handshake.forget_introduction(),
            Self::Modern(_) => {}
        }
    }

    /// The link is gone: the next one starts silent.
    pub fn reset(&mut self) {
        match self {
            Self::Legacy(handshake) => handshake.reset(),
            Self::Modern(discovery) => discovery.reset(),
        }
    }

    pub fn recognise(&self, message: &Message) -> Arrival {
        match self {
            Self::Legacy(_) => legacy::recognise(message),
            Self::Modern(_) => modern::recognise(message),
        }
    }

    /// Writes a client's request under our id, its progress token replaced by the same id.
    pub fn write_call(&self, out: &mut Outbox, line: &Outgoing<'_>) {
        match (self, line.words) {
            (Self::Legacy(_), Era::Legacy) | (Self::Modern(_), Era::Modern) if line.extra.is_empty() => {
                let digits = line.id.digits();
                line.message.splice_to(
                    out,
                    &[(Member::Id, &digits), (Member::MetaProgressToken, &digits)],
                );
                write_line(out.end(), &[]);
            }
            (Self::Legacy(_), _) => legacy::write_translated(out.end(), line),
            (Self::Modern(discovery), _) => {
                modern::write_translated(out.end(), line, discovery.takes_tasks());
            }
        }
    }

    /// Asks about a task, on our own account.
    pub fn write_task(&self, out: &mut BytesMut, request: &TaskRequest<'_>) {
        match self {
            Self::Legacy(_) => legacy::write_task(out, request),
            Self::Modern(_) => modern::write_task(out, request),
        }
    }

    /// Asks for a page of the list of tools, on our own account; the raw cursor of one that is not the first.
    pub fn write_tools_list(&self, out: &mut BytesMut, id: WireId, client: &Client, cursor: Option<&str>) {
        match self {
            Self::Legacy(_) => legacy::write_tools_list(out, id, cursor),
            Self::Modern(_) => modern::write_tools_list(out, id, client, cursor),
        }
    }

    /// Passes on what a client tells the server, if a server of this era can be told.
    pub fn write_notice(&mut self, out: &mut BytesMut, message: &Message) {
        match self {
            Self::Legacy(handshake) => {
                handshake.confirm(None, out);
                message.splice(out, &[]);
                write_line(out, &[]);
            }
            // Roots and the like are asked for anew with every request; there is nobody to tell.
            Self::Modern(_) => {}
        }
    }

    /// Asks the server whether it is there.
    pub fn write_ping(&self, out: &mut BytesMut, id: WireId) {
        match self {
            Self::Legacy(_) => legacy::write_ping(out, id),
            // This era has no ping; what every server must answer does as well.
            Self::Modern(_) => modern::write_discover(out, id),
        }
    }

    /// What a server of this era says that it cannot be asked to do by a notification is refused; a modern one
    /// must never be written a response.
    pub fn write_refusal(&self, out: &mut BytesMut, question: &[u8], code: i32, text: &str) {
        match self {
            Self::Legacy(_) => legacy::write_refusal(out, question, code, text),
            Self::Modern(_) => {}
        }
    }
}

/// A request on its way to the server.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub message: &'a Message,
    pub words: Era,
    pub id: WireId,
    pub client: &'a Client,
    /// The level of log lines that the client wants to hear, if it ever said.
    pub level: Option<LogLevel>,
    /// Members to add to the params, raw: the answers of a further round.
    pub extra: &'a [(&'static str, Bytes)],
}

/// A request of our own about a task.
#[derive(Debug)]
pub struct TaskRequest<'a> {
    pub method: Method,
    pub id: WireId,
    pub task: &'a str,
    /// In whose name.
    pub client: &'a Client,
    /// What the task wanted to know, raw (modern era).
    pub answers: Option<String>,
}

/// Writes `notifications/cancelled` for one of our requests.
pub fn write_cancel(out: &mut BytesMut, message: Option<&Message>, id: WireId, reason: &str) {
    let digits = id.digits();
    match message {
        Some(message) => {
            message.splice(out, &[(Member::RequestId, &digits)]);
            write_line(out, &[]);
        }
        None => write_line(
            out,
            &[
                br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#,
                &digits,
                br#","reason":"#,
                crate::message::quoted(reason).as_bytes(),
                b"}}",
            ],
        ),
    }
}

#[cfg(test)]
mod tests;
