//! Ask / Tell ↔ a backend's messages. One file per era; [`legacy`] is the era with a handshake.

pub mod legacy;

use bytes::{BufMut, BytesMut};

/// An id that Rialto gave to a request it wrote to a server. Never a client's id, not even in part, and never
/// used twice by a multiplexer: an answer from before a restart finds nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireId(pub u64);

impl WireId {
    /// The id in decimal, in a buffer that costs no allocation.
    pub(crate) fn digits(self) -> Digits {
        let mut digits = Digits {
            buffer: [0; 20],
            start: 20,
        };
        let mut rest = self.0;
        loop {
            digits.start -= 1;
            digits.buffer[digits.start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return digits;
            }
        }
    }
}

pub(crate) struct Digits {
    buffer: [u8; 20],
    start: usize,
}

impl std::ops::Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// Appends one line: the parts in order and a line break.
fn write_line(out: &mut BytesMut, parts: &[&[u8]]) {
    for part in parts {
        out.put_slice(part);
    }
    out.put_u8(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_ids_are_written_in_decimal() {
        for id in [0, 7, 10, 41, 9_007_199_254_740_993, u64::MAX] {
            assert_eq!(&WireId(id).digits()[..], id.to_string().as_bytes());
        }
    }
}
