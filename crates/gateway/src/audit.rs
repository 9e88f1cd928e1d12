//! The audit log: exactly one JSON line for each record, written by hand into a [`LineSink`].
//!
//! It hides the format, the hashing of session ids, the cutting and the redaction. It never makes a
//! call wait, and it does not decide when a call has ended: that is for the code that answers it.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::io;
use std::time::{Duration, SystemTime};

use crate::escape::{self, MAX_VALUE_BYTES};
use crate::line_sink::{LineSink, Options};
use crate::settings::{AuditSettings, AuditSink, OnAuditFailure};

mod chain;
mod finisher;
mod redact;

use chain::Chain;
pub use chain::{ChainKey, Flaw, Verified, Verifier};
use finisher::{Finisher, Frame};

/// The longest body a record carries.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// A scratch line that grew beyond this (bodies) is given back.
const KEPT_CAPACITY: usize = 8 * 1024;

thread_local! {
    /// Records are composed here, so that the sink's lock is held for one copy only.
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
    /// The second of the last record, and how it is written.
    static SECOND: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// What a session is called in logs: its id is a secret, this is not.
///
/// The hash is not cryptographic and need not be: 48 bits tell too little about the 122 random bits
/// of an id to find it. It is the same in every run, so that logs of two processes can be joined.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionHash([u8; 12]);

impl SessionHash {
    pub fn of(session_id: &str) -> Self {
        // FNV-1a, then the finaliser of MurmurHash3 to spread what the last bytes changed.
        let mut hash = session_id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
        let mut digits = [0; 12];
        for digit in &mut digits {
            *digit = b"0123456789abcdef"[(hash >> 60) as usize];
            hash <<= 4;
        }
        Self(digits)
    }

    /// Reads what a session is called in logs.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let digits: [u8; 12] = text.as_bytes().try_into().ok()?;
        digits.iter().all(is_digit).then_some(Self(digits))
    }

    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("hexadecimal digits are text")
    }
}

impl fmt::Display for SessionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SessionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a call, a stream or a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Answered with a result, or accepted where no answer is due.
    Ok,
    /// Answered with an error by the server.
    Error,
    /// Not admitted by Rialto: the caller's fault or a limit.
    Refused,
    Timeout,
    /// The server ended during the call.
    Crashed,
    /// No server could be had.
    Unavailable,
    /// The answer was larger than allowed.
    TooLarge,
    /// The answer was no message.
    Invalid,
    /// Called off by the client, or by the end of its session.
    Cancelled,
    /// The client went away before the answer.
    Disconnected,
    /// A stream or a session ended as it should.
    Closed,
}

impl Outcome {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::Error,
        Self::Refused,
        Self::Timeout,
        Self::Crashed,
        Self::Unavailable,
        Self::TooLarge,
        Self::Invalid,
        Self::Cancelled,
        Self::Disconnected,
        Self::Closed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Crashed => "crashed",
            Self::Unavailable => "unavailable",
            Self::TooLarge => "too_large",
            Self::Invalid => "invalid",
            Self::Cancelled => "cancelled",
            Self::Disconnected => "disconnected",
            Self::Closed => "closed",
        }
    }
}

/// The subject of a record.
#[derive(Debug, Clone, Copy)]
pub enum RecordSubject<'a> {
    Fields {
        destination: &'a str,
        session: Option<SessionHash>,
        principal: &'a str,
    },
    /// The same, already written, for a subject with many records.
    Composed(&'a str),
}

impl RecordSubject<'_> {
    pub fn composed(self) -> String {
        let mut line = String::new();
        self.write(&mut line).expect("writing to a String cannot fail");
        line
    }

    fn write(self, line: &mut String) -> fmt::Result {
        match self {
            Self::Fields {
                destination,
                session,
                principal,
            } => {
                text(line, ",\"destination\":", Some(destination))?;
                text(line, ",\"session\":", session.as_ref().map(SessionHash::as_str))?;
                text(line, ",\"principal\":", Some(principal))
            }
            Self::Composed(composed) => line.write_str(composed),
        }
    }
}

/// One line of the audit log.
#[derive(Debug, Clone, Copy)]
pub struct AuditRecord<'a> {
    pub whose: RecordSubject<'a>,
    pub http_method: &'a str,
    pub mcp_method: Option<&'a str>,
    pub tool: Option<&'a str>,
    /// The member of an aggregate that had the call.
    pub member: Option<&'a str>,
    /// What the member itself calls what was called; `tool` has the name that the client used.
    pub own_name: Option<&'a str>,
    /// The id as it came: raw JSON.
    pub rpc_id: Option<&'a [u8]>,
    pub status_code: u16,
    pub outcome: Outcome,
    /// Why Rialto refused the request or gave up the call.
    pub reason: Option<&'static str>,
    pub latency: Duration,
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// Bodies are written only when the settings ask for them; see [`Audit::wants_bodies`].
    pub request_body: Option<&'a [u8]>,
    pub response_body: Option<&'a [u8]>,
}

/// Where records go. When it is off, a record costs one comparison.
///
/// The caller's thread writes the short fields of a record. The sink's own thread does what takes
/// time: it redacts bodies and computes the links of the chain, in the order in which records were
/// taken.
#[derive(Debug)]
pub struct Audit {
    sink: Option<LineSink>,
    bodies: bool,
    on_failure: OnAuditFailure,
    /// Records are finished by the sink's thread.
    is_finished_later: bool,
}

impl Audit {
    /// How much of a body a record can use: of a longer one no more is needed.
    pub const BODY_BYTES: usize = redact::needed(MAX_BODY_BYTES);

    pub fn off() -> Self {
        Self {
            sink: None,
            bodies: false,
            on_failure: OnAuditFailure::Count,
            is_finished_later: false,
        }
    }

    /// Opens the sink that the settings name.
    pub fn open(settings: &AuditSettings) -> io::Result<Self> {
        let chain = match (&settings.sink, settings.chain) {
            (AuditSink::File(path), true) => Some(Chain::continuing(path)?),
            (AuditSink::Stdout, true) => Some(Chain::default()),
            (AuditSink::Off, _) | (AuditSink::Stdout | AuditSink::File(_), false) => None,
        };
        let finisher = Finisher {
            bodies: settings.bodies,
            chain,
            key: settings.chain_key.as_ref().map(ChainKey::new),
            line: String::new(),
        };
        let open = |options| match &settings.sink {
            AuditSink::Off => Ok(None),
            AuditSink::Stdout => LineSink::stdout(options).map(Some),
            AuditSink::File(path) => LineSink::file(path, options).map(Some),
        };
        Self::over(open, Options::named("audit"), finisher, settings.on_failure)
    }

    fn over(
        open: impl FnOnce(Options) -> io::Result<Option<LineSink>>,
        mut options: Options,
        mut finisher: Finisher,
        on_failure: OnAuditFailure,
    ) -> io::Result<Self> {
        let bodies = finisher.bodies;
        let is_finished_later = bodies || finisher.chain.is_some();
        if bodies {
            // Bodies wait as they came, and take less room once they are cut.
            options.max_bytes *= 4;
        }
        if is_finished_later {
            options.finish = Some(Box::new(move |batch, lines| finisher.finish(batch, lines)));
        }
        Ok(Self {
            sink: open(options)?,
            bodies,
            on_failure,
            is_finished_later,
        })
    }

    pub fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// Returns whether it is worth keeping bodies for the record.
    pub fn wants_bodies(&self) -> bool {
        self.bodies && self.is_on()
    }

    /// Takes one record. False: there was no room, and the record is lost (and counted).
    pub fn record(&self, record: &AuditRecord<'_>) -> bool {
        let Some(sink) = &self.sink else {
            return true;
        };
        LINE.with_borrow_mut(|line| {
            line.clear();
            compose(line, record, SystemTime::now()).expect("writing to a String cannot fail");
            let is_taken = if self.is_finished_later {
                let request = record.request_body.filter(|_| self.bodies).map(beginning);
                let response = record.response_body.filter(|_| self.bodies).map(beginning);
                let frame = Frame {
                    line: line.as_bytes(),
                    request,
                    response,
                    lost: sink.lost(),
                };
                let parts = [
                    &frame.head()[..],
                    frame.line,
                    request.unwrap_or_default(),
                    response.unwrap_or_default(),
                ];
                sink.push_parts(&parts)
            } else {
                line.push_str("}\n");
                sink.push(line.as_bytes())
            };
            line.clear();
            line.shrink_to(KEPT_CAPACITY);
            is_taken
        })
    }

    /// Returns whether calls are to be refused, because they could not be recorded. There is still
    /// room then for the records of all that run.
    pub fn refuses(&self) -> bool {
        match self.on_failure {
            OnAuditFailure::Count => false,
            OnAuditFailure::Refuse => self.sink.as_ref().is_some_and(LineSink::is_blocked),
        }
    }

    /// Returns the number of records that were lost.
    pub fn lost(&self) -> u64 {
        self.sink.as_ref().map_or(0, LineSink::lost)
    }

    /// Opens the file anew, after rotation.
    pub fn reopen(&self) {
        if let Some(sink) = &self.sink {
            sink.reopen();
        }
    }

    /// Waits until all records are written. False: not within `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        let is_written = self.sink.as_ref().is_none_or(|sink| sink.flush(timeout));
        if !is_written {
            tracing::error!("audit records are lost: they could not be written before the end");
        }
        is_written
    }
}

/// Writes everything but the bodies, up to the last brace, which is left out.
fn compose(line: &mut String, record: &AuditRecord<'_>, now: SystemTime) -> fmt::Result {
    line.push_str("{\"ts\":\"");
    timestamp(line, now)?;
    line.push('"');
    record.whose.write(line)?;
    match (record.http_method, record.mcp_method) {
        // The values of most records.
        ("POST", Some("tools/call")) => {
            line.push_str(",\"http_method\":\"POST\",\"mcp_method\":\"tools/call\"");
        }
        (http_method, mcp_method) => {
            text(line, ",\"http_method\":", Some(http_method))?;
            text(line, ",\"mcp_method\":", mcp_method)?;
        }
    }
    text(line, ",\"tool\":", record.tool)?;
    // Records of plain destinations have no such fields.
    if record.member.is_some() {
        text(line, ",\"member\":", record.member)?;
        text(line, ",\"own_name\":", record.own_name)?;
    }
    line.push_str(",\"rpc_id\":");
    rpc_id(line, record.rpc_id.unwrap_or(b"null"))?;
    let micros = u64::try_from(record.latency.as_micros()).unwrap_or(u64::MAX);
    number(line, ",\"status_code\":", record.status_code.into());
    line.push_str(",\"outcome\":\"");
    line.push_str(record.outcome.as_str());
    line.push('"');
    text(line, ",\"reason\":", record.reason)?;
    number(line, ",\"latency_ms\":", micros / 1000);
    thousandths(line, micros % 1000);
    number(line, ",\"request_bytes\":", record.request_bytes);
    number(line, ",\"response_bytes\":", record.response_bytes);
    Ok(())
}

/// Writes the time of day, as RFC 3339 with thousandths. All of it but these is written once a
/// second.
fn timestamp(line: &mut String, now: SystemTime) -> fmt::Result {
    let Ok(since) = now.duration_since(SystemTime::UNIX_EPOCH) else {
        return write!(
            line,
            "{}",
            humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH)
        );
    };
    SECOND.with_borrow_mut(|(second, written)| {
        if *second != since.as_secs() || written.is_empty() {
            written.clear();
            write!(written, "{}", humantime::format_rfc3339_seconds(now))?;
            // The thousandths come before the `Z`.
            written.pop();
            *second = since.as_secs();
        }
        line.push_str(written);
        thousandths(line, since.subsec_millis().into());
        line.push('Z');
        Ok(())
    })
}

/// Writes a point and three digits.
fn thousandths(line: &mut String, number: u64) {
    line.push('.');
    line.push_str(three_digits(number));
}

/// Writes a number without leading zeros.
fn number(line: &mut String, key: &'static str, number: u64) {
    line.push_str(key);
    if number >= 1000 {
        self::number(line, "", number / 1000);
        line.push_str(three_digits(number % 1000));
    } else {
        let digits = three_digits(number);
        let zeros = usize::from(number < 100) + usize::from(number < 10);
        line.push_str(&digits[zeros..]);
    }
}

/// Returns the digits of what is below a thousand. They are looked up: nearly every number of a
/// record is one of these.
fn three_digits(number: u64) -> &'static str {
    let at = (number % 1000) as usize * 3;
    &DIGITS[at..at + 3]
}

/// `000` to `999`.
const DIGITS: &str = {
    const BYTES: [u8; 3000] = {
        let mut bytes = [b'0'; 3000];
        let mut number = 0;
        while number < 1000 {
            bytes[3 * number] += (number / 100) as u8;
            bytes[3 * number + 1] += (number / 10 % 10) as u8;
            bytes[3 * number + 2] += (number % 10) as u8;
            number += 1;
        }
        bytes
    };
    match str::from_utf8(&BYTES) {
        Ok(digits) => digits,
        Err(_) => panic!("digits are text"),
    }
};

fn text(line: &mut String, key: &'static str, value: Option<&str>) -> fmt::Result {
    line.push_str(key);
    match value {
        Some(value) => escape::json_string(line, value, MAX_VALUE_BYTES),
        None => line.write_str("null"),
    }
}

/// An id is JSON already. What is too long, or is no id at all, is written as a string instead, so
/// that the line stays one valid line for any input.
fn rpc_id(line: &mut String, raw: &[u8]) -> fmt::Result {
    let text = || String::from_utf8_lossy(&raw[..raw.len().min(MAX_VALUE_BYTES + 4)]);
    let of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    match raw {
        b"null" => line.write_str("null"),
        [b'0'..=b'9' | b'-', ..] if raw.len() <= MAX_VALUE_BYTES && raw.iter().all(of_number) => {
            line.extend(raw.iter().map(|byte| char::from(*byte)));
            Ok(())
        }
        [b'"', inner @ .., b'"']
            if raw.len() <= MAX_VALUE_BYTES && !inner.iter().any(u8::is_ascii_control) =>
        {
            escape::json_text(line, &text())
        }
        _ => escape::json_string(line, &text(), MAX_VALUE_BYTES),
    }
}

/// Returns a record as a line of the audit log has it, without a line break and without bodies.
pub(crate) fn line_of(record: &AuditRecord<'_>) -> String {
    let mut line = String::new();
    compose(&mut line, record, SystemTime::now()).expect("writing to a String cannot fail");
    line.push('}');
    line
}

/// Returns the same with the bodies that the record has, as the audit log shows them.
pub(crate) fn line_with_bodies(record: &AuditRecord<'_>) -> String {
    let mut line = line_of(record);
    for (key, body) in [
        (",\"request_body\":", record.request_body),
        (",\"response_body\":", record.response_body),
    ] {
        if let Some(body) = body {
            line.pop();
            let shown = redacted(beginning(body), MAX_BODY_BYTES);
            line.push_str(key);
            escape::json_string(&mut line, &shown, 2 * MAX_BODY_BYTES)
                .expect("writing to a String cannot fail");
            line.push('}');
        }
    }
    line
}

/// Returns a body as a record shows it: its secrets replaced, and cut at the limit.
pub(crate) fn redacted(body: &[u8], limit: usize) -> String {
    let text = redact::redact(body, limit);
    if text.len() <= limit {
        return text;
    }
    format!("{}{}", escape::cut(&text, limit), escape::TRUNCATED)
}

/// Returns as much of a body as a record can use.
fn beginning(body: &[u8]) -> &[u8] {
    &body[..body.len().min(Audit::BODY_BYTES)]
}

#[cfg(test)]
mod tests;
