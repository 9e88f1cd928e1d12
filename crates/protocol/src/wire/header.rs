//! Header validation: the `Mcp-*` headers that mirror a request's body (2026-07-28, Streamable
//! HTTP, "Request Metadata").
//!
//! This module encodes and decodes header values, and compares the headers of a POST with its body,
//! so that a proxy cannot route by one and the server act on the other. It repairs nothing: a
//! header that is doubled, illegal or different is an error. No error repeats a value, because the
//! arguments of a call have no place in a log.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use thiserror::Error;

use crate::message::{Kind, Member, Message, string};
use crate::tool_schema::{ArgumentsError, Mirrored, ToolHeaders, same_number, task_id_of};

/// Mirrors the revision of the request.
pub const VERSION: &str = "MCP-Protocol-Version";
/// Mirrors `method`.
pub const METHOD: &str = "Mcp-Method";
/// Mirrors `params.name`, `params.uri` or `params.taskId`.
pub const NAME: &str = "Mcp-Name";
/// What stands before the annotated name in the header of a mirrored argument.
pub const PARAM_PREFIX: &str = "Mcp-Param-";

const OPENING: &str = "=?base64?";
const CLOSING: &str = "?=";

/// Why the value of a header cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// A byte that no header value may have.
    #[error("it contains characters that must be sent as base64")]
    IllegalByte,
    /// The part marked as base64 is none.
    #[error("its base64 is malformed")]
    BadBase64,
    /// The decoded value is no UTF-8.
    #[error("its base64 does not hold UTF-8")]
    NotUtf8,
}

/// Writes a text as the value of `Mcp-Name` or `Mcp-Param-*`: as it is where a header can carry it.
pub fn encode(value: &str) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    let trimmed = trim(bytes).len() == bytes.len();
    if trimmed && bytes.iter().all(|byte| is_plain(*byte)) && !resembles_sentinel(value) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("{OPENING}{}{CLOSING}", STANDARD.encode(value)))
}

/// Reads the value of `Mcp-Name` or `Mcp-Param-*`.
///
/// Only padded standard base64 without stray bits is accepted, so that a text has one encoded form.
pub fn decode(value: &[u8]) -> Result<Cow<'_, str>, HeaderError> {
    let text = plain(value)?;
    if !text.starts_with(OPENING) || !text.ends_with(CLOSING) {
        return Ok(Cow::Borrowed(text));
    }
    // `=?base64?=` begins and ends like the encoded form, yet has no room for both marks.
    let inner = text
        .strip_prefix(OPENING)
        .and_then(|rest| rest.strip_suffix(CLOSING))
        .ok_or(HeaderError::BadBase64)?;
    let bytes = STANDARD.decode(inner).map_err(|_| HeaderError::BadBase64)?;
    String::from_utf8(bytes)
        .map(Cow::Owned)
        .map_err(|_| HeaderError::NotUtf8)
}

/// Returns a value without the blanks around it, if it has only the bytes that a header may carry.
fn plain(value: &[u8]) -> Result<&str, HeaderError> {
    let value = trim(value);
    if !value.iter().all(|byte| is_plain(*byte)) {
        return Err(HeaderError::IllegalByte);
    }
    std::str::from_utf8(value).map_err(|_| HeaderError::IllegalByte)
}

const fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e | b'\t')
}

/// Strips what RFC 9110 calls optional white space: spaces and tabs, nothing else.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Returns whether a reader could take the plain text for the encoded form. The marks are
/// lower-case and exact, but a careless reader may not know that, and encoding once too often does
/// no harm.
fn resembles_sentinel(value: &str) -> bool {
    value
        .get(..OPENING.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(OPENING))
        && value.ends_with(CLOSING)
}

/// How often a header was given, and its value if that was once.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Seen<'a> {
    /// Not given.
    #[default]
    Absent,
    /// Given once.
    One(&'a [u8]),
    /// Given more than once.
    Several,
}

impl<'a> Seen<'a> {
    fn add(&mut self, value: &'a [u8]) {
        *self = match self {
            Self::Absent => Self::One(value),
            Self::One(_) | Self::Several => Self::Several,
        };
    }
}

impl fmt::Debug for Seen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("Absent"),
            Self::One(value) => write!(f, "One({} bytes)", value.len()),
            Self::Several => f.write_str("Several"),
        }
    }
}

/// The mirroring headers of one POST. There are never more of them than the HTTP reader lets in.
#[derive(Clone, Default)]
pub struct MirroredHeaders<'a> {
    /// `MCP-Protocol-Version`
    pub version: Seen<'a>,
    /// `Mcp-Method`
    pub method: Seen<'a>,
    /// `Mcp-Name`
    pub name: Seen<'a>,
    /// What follows `Mcp-Param-`, in lower case, and the value as sent.
    pub params: Vec<(String, &'a [u8])>,
}

impl fmt::Debug for MirroredHeaders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params: Vec<_> = self.params.iter().map(|(name, _)| name).collect();
        f.debug_struct("MirroredHeaders")
            .field("version", &self.version)
            .field("method", &self.method)
            .field("name", &self.name)
            .field("params", &params)
            .finish()
    }
}

/// A header that mirrors something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirroringHeader {
    /// `MCP-Protocol-Version`
    Version,
    /// `Mcp-Method`
    Method,
    /// `Mcp-Name`
    Name,
    /// The header of an argument, with its name as the tool's schema spells it.
    Param(String),
}

impl fmt::Display for MirroringHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => f.write_str(VERSION),
            Self::Method => f.write_str(METHOD),
            Self::Name => f.write_str(NAME),
            Self::Param(name) => write!(f, "{PARAM_PREFIX}{name}"),
        }
    }
}

/// What is wrong with a mirroring header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MismatchReason {
    /// It is required and not given.
    #[error("is missing")]
    Missing,
    /// It is given more than once.
    #[error("is given more than once")]
    Repeated,
    /// The body has another value there.
    #[error("does not match {0}")]
    Differs(&'static str),
    /// Its value cannot be decoded.
    #[error("cannot be read: {0}")]
    Unreadable(HeaderError),
    /// The body has no such value.
    #[error("is given, but {0} has no value")]
    WithoutValue(&'static str),
    /// The body has the value more than once.
    #[error("cannot be compared: {0} is ambiguous")]
    Ambiguous(&'static str),
}

/// The headers and the body of a request disagree: HTTP 400, JSON-RPC error
/// [`HeaderMismatch::CODE`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{header} {reason}")]
pub struct HeaderMismatch {
    /// The header concerned.
    pub header: MirroringHeader,
    /// What is wrong with it.
    pub reason: MismatchReason,
}

impl HeaderMismatch {
    /// `HeaderMismatch` of revision 2026-07-28.
    pub const CODE: i32 = -32020;

    const fn new(header: MirroringHeader, reason: MismatchReason) -> Self {
        Self { header, reason }
    }
}

const VERSION_MEMBER: &str = "_meta.io.modelcontextprotocol/protocolVersion";
const ARGUMENT: &str = "the argument it mirrors";

impl<'a> MirroredHeaders<'a> {
    /// Picks the mirroring headers out of all headers of a POST; their case does not matter.
    pub fn read<'n>(headers: impl IntoIterator<Item = (&'n [u8], &'a [u8])>) -> Self {
        let mut seen = Self::default();
        for (name, value) in headers {
            if name.eq_ignore_ascii_case(VERSION.as_bytes()) {
                seen.version.add(value);
            } else if name.eq_ignore_ascii_case(METHOD.as_bytes()) {
                seen.method.add(value);
            } else if name.eq_ignore_ascii_case(NAME.as_bytes()) {
                seen.name.add(value);
            } else if let Some(param) = param_name(name) {
                seen.params.push((param, value));
            }
        }
        seen
    }

    /// Checks that the given headers agree with the body. It comes before the check of the version,
    /// so that two different versions are reported as a mismatch.
    ///
    /// The specification leaves the headers of notifications undefined; only their version is
    /// looked at.
    pub fn check_mismatch(&self, message: &Message) -> Result<(), HeaderMismatch> {
        let version = message.text(Member::MetaProtocolVersion);
        match message.kind() {
            Kind::Request => {
                check_plain(
                    MirroringHeader::Version,
                    self.version,
                    version.as_deref(),
                    VERSION_MEMBER,
                )?;
                let method = message.method_name();
                check_plain(MirroringHeader::Method, self.method, method.as_deref(), "method")?;
                self.check_name(message)
            }
            Kind::Notification if version.is_some() || self.version == Seen::Several => check_plain(
                MirroringHeader::Version,
                self.version,
                version.as_deref(),
                VERSION_MEMBER,
            ),
            // A notification may rely on its header alone, and clients of this revision post no
            // responses.
            Kind::Notification | Kind::Result | Kind::Error => Ok(()),
        }
    }

    /// Checks that the headers that the request must have are there. It comes after the check of
    /// the version, because another version has other headers.
    pub fn check_presence(&self, message: &Message) -> Result<(), HeaderMismatch> {
        match message.kind() {
            Kind::Request => {}
            Kind::Notification | Kind::Result | Kind::Error => return Ok(()),
        }
        let missing = |header| Err(HeaderMismatch::new(header, MismatchReason::Missing));
        if self.version == Seen::Absent {
            return missing(MirroringHeader::Version);
        }
        if self.method == Seen::Absent {
            return missing(MirroringHeader::Method);
        }
        if self.name == Seen::Absent
            && let Some(source) = NameSource::of(message)
            // A call without a name has nothing to mirror: it is wrong, but not in its headers.
            && source.raw(message)?.is_some_and(|raw| raw.starts_with(b"\""))
        {
            return missing(MirroringHeader::Name);
        }
        Ok(())
    }

    fn check_name(&self, message: &Message) -> Result<(), HeaderMismatch> {
        let mismatch = |reason| Err(HeaderMismatch::new(MirroringHeader::Name, reason));
        let given = match self.name {
            Seen::Absent => return Ok(()),
            Seen::One(given) => given,
            Seen::Several => return mismatch(MismatchReason::Repeated),
        };
        // A method that Rialto does not know may mirror something that Rialto does not know either.
        let Some(source) = NameSource::of(message) else {
            return Ok(());
        };
        let Some(wanted) = source.raw(message)?.and_then(string) else {
            return mismatch(MismatchReason::WithoutValue(source.member()));
        };
        match decode(given) {
            Ok(given) if given == wanted => Ok(()),
            Ok(_) => mismatch(MismatchReason::Differs(source.member())),
            Err(error) => mismatch(MismatchReason::Unreadable(error)),
        }
    }

    /// Checks the `Mcp-Param-*` headers that the tool's schema asks for against the arguments.
    /// Others are ignored, as the specification demands.
    pub fn check_params(&self, tool: &ToolHeaders, arguments: Option<&[u8]>) -> Result<(), HeaderMismatch> {
        let params = self.params.iter().map(|(name, value)| (name.as_str(), *value));
        check_params(params, tool, arguments)
    }

    /// Returns the headers of arguments, to be judged later.
    pub fn kept_params(&self) -> MirroredParams {
        let kept = self.params.iter();
        MirroredParams(
            kept.map(|(name, value)| (name.clone(), Bytes::copy_from_slice(value)))
                .collect(),
        )
    }
}

/// The `Mcp-Param-*` headers of one POST, kept until its tool is known.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MirroredParams(Vec<(String, Bytes)>);

impl MirroredParams {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks them against the arguments.
    pub fn check(&self, tool: &ToolHeaders, arguments: Option<&[u8]>) -> Result<(), HeaderMismatch> {
        let params = self.0.iter().map(|(name, value)| (name.as_str(), &value[..]));
        check_params(params, tool, arguments)
    }
}

impl fmt::Debug for MirroredParams {
    /// Without the values: the arguments of a call have no place in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

fn check_params<'a>(
    params: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    tool: &ToolHeaders,
    arguments: Option<&[u8]>,
) -> Result<(), HeaderMismatch> {
    let values = tool.mirrored(arguments).map_err(|error| match error {
        ArgumentsError::Repeated { header } => HeaderMismatch::new(
            MirroringHeader::Param(header),
            MismatchReason::Ambiguous(ARGUMENT),
        ),
        ArgumentsError::NotJson { header } => HeaderMismatch::new(
            MirroringHeader::Param(header),
            MismatchReason::WithoutValue(ARGUMENT),
        ),
    })?;
    for (entry, value) in tool.entries().iter().zip(values) {
        let mut given = Seen::Absent;
        for (_, sent) in params
            .clone()
            .filter(|(name, _)| name.eq_ignore_ascii_case(&entry.name))
        {
            given.add(sent);
        }
        check_param(given, &value)
            .map_err(|reason| HeaderMismatch::new(MirroringHeader::Param(entry.name.clone()), reason))?;
    }
    Ok(())
}

/// Returns what follows `Mcp-Param-` in a header's name, in lower case.
fn param_name(name: &[u8]) -> Option<String> {
    let (prefix, rest) = name.split_at_checked(PARAM_PREFIX.len())?;
    if !prefix.eq_ignore_ascii_case(PARAM_PREFIX.as_bytes()) || rest.is_empty() {
        return None;
    }
    std::str::from_utf8(rest).ok().map(str::to_ascii_lowercase)
}

/// Compares a header that has no encoded form.
fn check_plain(
    header: MirroringHeader,
    seen: Seen<'_>,
    wanted: Option<&str>,
    member: &'static str,
) -> Result<(), HeaderMismatch> {
    let reason = match (seen, wanted) {
        (Seen::Absent, _) => return Ok(()),
        (Seen::Several, _) => MismatchReason::Repeated,
        (Seen::One(_), None) => MismatchReason::WithoutValue(member),
        (Seen::One(given), Some(wanted)) => match plain(given) {
            Ok(given) if given == wanted => return Ok(()),
            Ok(_) => MismatchReason::Differs(member),
            Err(error) => MismatchReason::Unreadable(error),
        },
    };
    Err(HeaderMismatch::new(header, reason))
}

fn check_param(given: Seen<'_>, value: &Mirrored<'_>) -> Result<(), MismatchReason> {
    let given = match given {
        Seen::Several => return Err(MismatchReason::Repeated),
        Seen::One(given) => decode(given).map_err(MismatchReason::Unreadable)?,
        Seen::Absent => {
            return match value {
                // No header can carry a structure; the server decides whether the tool accepts one.
                Mirrored::Nothing | Mirrored::Structure => Ok(()),
                Mirrored::Text(_) | Mirrored::Number(_) | Mirrored::Boolean(_) | Mirrored::Broken => {
                    Err(MismatchReason::Missing)
                }
            };
        }
    };
    let equal = match value {
        Mirrored::Nothing => return Err(MismatchReason::WithoutValue(ARGUMENT)),
        Mirrored::Text(text) => given == *text,
        Mirrored::Number(number) => same_number(&given, number),
        Mirrored::Boolean(boolean) => given == if *boolean { "true" } else { "false" },
        Mirrored::Structure | Mirrored::Broken => false,
    };
    if equal {
        Ok(())
    } else {
        Err(MismatchReason::Differs(ARGUMENT))
    }
}

/// Where the body has what `Mcp-Name` mirrors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameSource {
    Name,
    Uri,
    TaskId,
}

impl NameSource {
    fn of(message: &Message) -> Option<Self> {
        Some(match message.method_name()?.as_ref() {
            "tools/call" | "prompts/get" => Self::Name,
            "resources/read" => Self::Uri,
            // The tasks extension.
            "tasks/get" | "tasks/update" | "tasks/cancel" => Self::TaskId,
            _ => return None,
        })
    }

    const fn member(self) -> &'static str {
        match self {
            Self::Name => "params.name",
            Self::Uri => "params.uri",
            Self::TaskId => "params.taskId",
        }
    }

    fn raw(self, message: &Message) -> Result<Option<&[u8]>, HeaderMismatch> {
        match self {
            Self::Name => Ok(message.raw(Member::Name)),
            Self::Uri => Ok(message.raw(Member::Uri)),
            Self::TaskId => task_id_of(message).map_err(|_| {
                HeaderMismatch::new(MirroringHeader::Name, MismatchReason::Ambiguous(self.member()))
            }),
        }
    }
}

#[cfg(test)]
mod tests;
