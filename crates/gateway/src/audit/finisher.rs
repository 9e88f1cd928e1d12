//! What the thread of the audit log does to records: it redacts their bodies and links them to the
//! chain.
//!
//! A record comes as a frame: its short fields as they are written, and the beginnings of its
//! bodies as they came.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::chain::{Chain, ChainKey};
use super::{MAX_BODY_BYTES, redact};
use crate::escape;

/// Bytes before the parts of a frame: three lengths and the number of lost records.
const HEAD_BYTES: usize = 3 * size_of::<u32>() + size_of::<u64>();
/// The length of a body that there is none of.
const NO_BODY: u32 = u32::MAX;

/// A record on its way to the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// The record without its bodies, up to its last brace.
    pub(super) line: &'a [u8],
    pub(super) request: Option<&'a [u8]>,
    pub(super) response: Option<&'a [u8]>,
    /// Records that were lost before this one was taken.
    pub(super) lost: u64,
}

impl<'a> Frame<'a> {
    /// Returns what stands before the line and the bodies.
    pub(super) fn head(&self) -> [u8; HEAD_BYTES] {
        let length =
            |part: &[u8]| u32::try_from(part.len()).expect("records and what they use of bodies are small");
        let body = |body: Option<&[u8]>| body.map_or(NO_BODY, length);
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&length(self.line).to_le_bytes());
        head[4..8].copy_from_slice(&body(self.request).to_le_bytes());
        head[8..12].copy_from_slice(&body(self.response).to_le_bytes());
        head[12..].copy_from_slice(&self.lost.to_le_bytes());
        head
    }

    /// Returns the first frame of a batch, and the rest.
    fn split(batch: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (line, rest) = take_length(batch)?;
        let (request, rest) = take_length(rest)?;
        let (response, rest) = take_length(rest)?;
        let (lost, rest) = rest.split_first_chunk()?;
        let (line, rest) = take_part(rest, line)?;
        let (request, rest) = take_part(rest, request)?;
        let (response, rest) = take_part(rest, response)?;
        let frame = Self {
            line: line.unwrap_or_default(),
            request,
            response,
            lost: u64::from_le_bytes(*lost),
        };
        Some((frame, rest))
    }
}

fn take_length(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*length), rest))
}

fn take_part(bytes: &[u8], length: u32) -> Option<(Option<&[u8]>, &[u8])> {
    if length == NO_BODY {
        return Some((None, bytes));
    }
    let (part, rest) = bytes.split_at_checked(length as usize)?;
    Some((Some(part), rest))
}

/// Makes lines of frames.
#[derive(Debug, Default)]
pub(super) struct Finisher {
    pub(super) bodies: bool,
    pub(super) chain: Option<Chain>,
    pub(super) key: Option<ChainKey>,
    /// The line that is being made.
    pub(super) line: String,
}

impl Finisher {
    /// Appends the lines of all frames; returns how many could not be made.
    pub(super) fn finish(&mut self, mut batch: &[u8], lines: &mut Vec<u8>) -> u64 {
        let mut failed = 0;
        while let Some((frame, rest)) = Frame::split(batch) {
            batch = rest;
            // A mistake in one record must not end the thread that writes all of them.
            match catch_unwind(AssertUnwindSafe(|| self.finish_one(&frame))) {
                Ok(()) => lines.extend_from_slice(self.line.as_bytes()),
                Err(_) => failed += 1,
            }
        }
        failed
    }

    fn finish_one(&mut self, frame: &Frame<'_>) {
        use std::fmt::Write as _;
        let line = &mut self.line;
        line.clear();
        line.push_str(&String::from_utf8_lossy(frame.line));
        if self.bodies {
            body(line, ",\"request_body\":", frame.request);
            body(line, ",\"response_body\":", frame.response);
        }
        let Some(chain) = &mut self.chain else {
            return line.push_str("}\n");
        };
        // A record that found no room has no link; that it is missing shall be known all the same.
        if frame.lost > 0 {
            // Writing to a `String` cannot fail.
            let _ = write!(line, ",\"lost\":{}", frame.lost);
        }
        chain.link(line, self.key.as_ref());
    }
}

fn body(line: &mut String, key: &'static str, body: Option<&[u8]>) {
    line.push_str(key);
    match body {
        // Writing to a `String` cannot fail.
        Some(body) => {
            let redacted = redact::redact(body, MAX_BODY_BYTES);
            let _ = escape::json_string(line, &redacted, MAX_BODY_BYTES);
        }
        None => line.push_str("null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            frames in proptest::collection::vec(
                (any::<Vec<u8>>(), any::<Option<Vec<u8>>>(), any::<Option<Vec<u8>>>(), any::<u64>()),
                0..5,
            ),
        ) {
            let frames: Vec<Frame<'_>> = frames
                .iter()
                .map(|(line, request, response, lost)| Frame {
                    line,
                    request: request.as_deref(),
                    response: response.as_deref(),
                    lost: *lost,
                })
                .collect();
            let mut batch = Vec::new();
            for frame in &frames {
                batch.extend_from_slice(&frame.head());
                batch.extend_from_slice(frame.line);
                batch.extend_from_slice(frame.request.unwrap_or_default());
                batch.extend_from_slice(frame.response.unwrap_or_default());
            }
            let mut rest = &batch[..];
            let mut found = Vec::new();
            while let Some((frame, after)) = Frame::split(rest) {
                found.push(frame);
                rest = after;
            }
            prop_assert_eq!(found, frames);
            prop_assert!(rest.is_empty());
        }
    }
}
