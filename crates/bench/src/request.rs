//! The requests of the load, written by hand so that they cost next to nothing, and the check of
//! their answers.

use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::bail;
use memchr::memmem;

use crate::handler::{Era, MODERN_VERSION};

/// A revision that every measured system speaks.
pub const VERSION: &str = "2025-06-18";

/// What a call asks of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A text with so many bytes of padding comes back.
    Echo { padding: usize },
    /// So many progress messages come before the answer.
    Progress { count: usize },
    /// So many notifications go to all sessions.
    Notify { count: usize },
}

/// Where requests go, and what they show there.
#[derive(Debug, Clone, Copy)]
pub struct Front<'a> {
    pub address: SocketAddr,
    pub path: &'a str,
    /// A bearer token.
    pub token: Option<&'a str>,
}

/// A client: the words it uses, and the head that all its calls share. In the legacy era, a session
/// that was opened.
#[derive(Debug, Clone)]
pub struct Session {
    words: Era,
    /// The name of the tool `echo` there.
    tool: &'static str,
    head: Vec<u8>,
    tail: Vec<u8>,
}

/// The JSON of `initialize`.
pub fn initialize() -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{{\"protocolVersion\":\"{VERSION}\",\"capabilities\":{{}},\"clientInfo\":{{\"name\":\"bench-load\",\"version\":\"1\"}}}}}}"
    )
}

/// The JSON that follows it.
pub const INITIALIZED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";

/// A whole POST of `initialize`, which belongs to no session yet.
pub fn opening(front: Front<'_>) -> Vec<u8> {
    let body = initialize();
    let mut out = post_head(front);
    // Writing to a `Vec` cannot fail.
    let _ = write!(out, "Content-Length: {}\r\n\r\n{body}", body.len());
    out
}

fn post_head(front: Front<'_>) -> Vec<u8> {
    let Front { address, path, .. } = front;
    format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{}",
        credentials(front)
    )
    .into_bytes()
}

fn credentials(front: Front<'_>) -> String {
    let line = |token: &str| format!("Authorization: Bearer {token}\r\n");
    front.token.map(line).unwrap_or_default()
}

impl Session {
    /// A session of the legacy era.
    pub fn new(front: Front<'_>, id: &str) -> Self {
        let mine = format!("Mcp-Session-Id: {id}\r\nMcp-Protocol-Version: {VERSION}\r\n");
        Self::with(Era::Legacy, front, &mine)
    }

    /// The same, which calls `echo` by this name.
    pub fn calling(self, tool: &'static str) -> Self {
        Self { tool, ..self }
    }

    /// A modern client of the tool `echo`, which has this name: there is nothing to open.
    pub fn modern(front: Front<'_>, tool: &'static str) -> Self {
        let mine = format!(
            "Mcp-Protocol-Version: {MODERN_VERSION}\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
        );
        Self::with(Era::Modern, front, &mine).calling(tool)
    }

    fn with(words: Era, front: Front<'_>, mine: &str) -> Self {
        let Front { address, path, .. } = front;
        let mut head = post_head(front);
        head.extend_from_slice(mine.as_bytes());
        head.extend_from_slice(b"Content-Length: ");
        let tail = format!(
            " {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n{}{mine}\r\n",
            credentials(front)
        );
        Self {
            words,
            tool: ECHO,
            head,
            tail: tail.into_bytes(),
        }
    }

    /// Writes a call in the words of this client.
    pub fn write_call(&self, out: &mut Vec<u8>, call: Call, id: u64) {
        write_named_call(out, self.words, self.tool, call, id);
    }

    /// A whole POST with this body.
    pub fn post(&self, out: &mut Vec<u8>, body: &[u8]) {
        out.clear();
        out.extend_from_slice(&self.head);
        let _ = write!(out, "{}\r\n\r\n", body.len());
        out.extend_from_slice(body);
    }

    /// A whole GET for a stream.
    pub fn listen(&self) -> Vec<u8> {
        [b"GET", &self.tail[..]].concat()
    }

    /// A whole DELETE.
    pub fn delete(&self) -> Vec<u8> {
        [b"DELETE", &self.tail[..]].concat()
    }
}

/// What the server calls its tool `echo`.
pub const ECHO: &str = "echo";

/// Writes a call as JSON.
pub fn write_call(out: &mut Vec<u8>, words: Era, call: Call, id: u64) {
    write_named_call(out, words, ECHO, call, id);
}

fn write_named_call(out: &mut Vec<u8>, words: Era, echo: &str, call: Call, id: u64) {
    let (name, count, padding) = match call {
        Call::Echo { padding } => (echo, 0, padding),
        Call::Progress { count } => ("progress", count, 0),
        Call::Notify { count } => ("notify", count, 0),
    };
    out.reserve(padding + 192);
    let _ = write!(
        out,
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"{name}\",\"arguments\":{{\"text\":\"m{id} "
    );
    out.resize(out.len() + padding, b'x');
    out.push(b'"');
    if let Call::Progress { .. } | Call::Notify { .. } = call {
        let _ = write!(out, ",\"count\":{count}");
    }
    out.push(b'}');
    match (words, call) {
        (Era::Legacy, Call::Progress { .. }) => {
            let _ = write!(out, ",\"_meta\":{{\"progressToken\":{id}}}");
        }
        (Era::Legacy, Call::Echo { .. } | Call::Notify { .. }) => {}
        (Era::Modern, _) => {
            let _ = write!(
                out,
                ",\"_meta\":{{\"io.modelcontextprotocol/protocolVersion\":\"{MODERN_VERSION}\",\"io.modelcontextprotocol/clientInfo\":{{\"name\":\"bench-load\",\"version\":\"1\"}},\"io.modelcontextprotocol/clientCapabilities\":{{}}"
            );
            if let Call::Progress { .. } = call {
                let _ = write!(out, ",\"progressToken\":{id}");
            }
            out.push(b'}');
        }
    }
    out.extend_from_slice(b"}}");
}

/// Whether `body` (JSON or events) is the answer to this call, whole, with its id and its marker.
pub fn check_answer(body: &[u8], call: Call, id: u64) -> anyhow::Result<()> {
    let padding = match call {
        Call::Echo { padding } => padding,
        Call::Notify { .. } => 0,
        Call::Progress { count } => {
            let found = memmem::find_iter(body, b"notifications/progress").count();
            if found != count {
                bail!("{found} of {count} progress messages on the call's own stream");
            }
            0
        }
    };
    let mut wanted = [0_u8; 24];
    let marker = marker(&mut wanted, id);
    let right_id = after(body, b"\"id\":").is_some_and(|rest| {
        let digits = &marker[1..marker.len() - 1];
        rest.starts_with(digits) && rest.get(digits.len()).is_some_and(|next| !next.is_ascii_digit())
    });
    let right_text = after(body, b"\"text\":")
        .and_then(|rest| rest.strip_prefix(b"\""))
        .and_then(|rest| rest.strip_prefix(marker))
        .is_some_and(|rest| {
            rest.get(padding) == Some(&b'"') && rest[..padding].iter().all(|byte| *byte == b'x')
        });
    if !right_id || !right_text {
        let shown = String::from_utf8_lossy(body.get(..160).unwrap_or(body));
        bail!("not the answer to call {id}: {shown}");
    }
    Ok(())
}

fn marker(space: &mut [u8; 24], id: u64) -> &[u8] {
    let length = {
        let mut cursor = std::io::Cursor::new(&mut space[..]);
        // 22 bytes at most, and there are 24.
        let _ = write!(cursor, "m{id} ");
        cursor.position() as usize
    };
    &space[..length]
}

fn after<'a>(body: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let at = memmem::find(body, key)?;
    let rest = &body[at + key.len()..];
    Some(rest.strip_prefix(b" ").unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Work;

    fn answer_in(era: Era, call: Call, id: u64) -> Vec<u8> {
        let (mut message, mut out) = (Vec::new(), Vec::new());
        write_call(&mut message, era, call, id);
        assert!(Work::of(&message).write_response(era, &mut out));
        out
    }

    fn answer_to(call: Call, id: u64) -> Vec<u8> {
        answer_in(Era::Legacy, call, id)
    }

    #[test]
    fn the_handlers_answer_passes_the_check() {
        for padding in [0, 10, 10_000] {
            let call = Call::Echo { padding };
            for era in [Era::Legacy, Era::Modern] {
                check_answer(&answer_in(era, call, 42), call, 42).expect("is the answer");
            }
        }
    }

    #[test]
    fn another_calls_answer_a_cut_one_and_missing_progress_are_noticed() {
        let call = Call::Echo { padding: 10 };
        let answer = answer_to(call, 42);
        assert!(check_answer(&answer, call, 4).is_err());
        assert!(check_answer(&answer, call, 421).is_err());
        assert!(check_answer(&answer[..answer.len() - 10], call, 42).is_err());
        let call = Call::Progress { count: 3 };
        assert!(check_answer(&answer_to(call, 1), call, 1).is_err());
    }
}
