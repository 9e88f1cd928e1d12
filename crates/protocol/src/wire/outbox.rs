//! Lines on their way out, large ones without being copied.
//!
//! [`Outbox`] hides that a few pieces and not one buffer are written: what is small is gathered at
//! its [`end`](Outbox::end), what is large stays where it is and is only pointed to. It does not
//! know what a line is: the caller writes each line break.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Below this, a copy is cheaper than a piece of its own.
const SMALL: usize = 16 << 10;

/// What waits to be written, in order. Reading it as a [`Buf`] is writing it.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Bytes in the pieces.
    pieced: usize,
    end: BytesMut,
}

impl Outbox {
    /// Returns the end of all that waits, to write more to it.
    pub fn end(&mut self) -> &mut BytesMut {
        &mut self.end
    }

    /// Returns whether so few bytes are copied rather than shared.
    pub(crate) fn copies(length: usize) -> bool {
        length < SMALL
    }

    /// Adds bytes that are shared rather than copied if they are many.
    pub(crate) fn share(&mut self, bytes: Bytes) {
        if Self::copies(bytes.len()) {
            self.end.put_slice(&bytes);
            return;
        }
        if !self.end.is_empty() {
            let before = self.end.split().freeze();
            self.push(before);
        }
        self.push(bytes);
    }

    /// Returns whether everything was gathered at the end, so that [`Self::split_end`] takes all.
    pub(crate) fn is_gathered(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Takes what was gathered at the end. Its room is used again when the bytes are dropped.
    pub(crate) fn split_end(&mut self) -> Bytes {
        self.end.split().freeze()
    }

    /// Puts bytes before everything else.
    pub(crate) fn put_back(&mut self, bytes: Bytes) {
        self.pieced += bytes.len();
        self.pieces.push_front(bytes);
    }

    fn push(&mut self, piece: Bytes) {
        self.pieced += piece.len();
        self.pieces.push_back(piece);
    }

    /// Returns how many bytes wait.
    pub fn len(&self) -> usize {
        self.pieced + self.end.len()
    }

    /// Returns whether none wait.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.pieced = 0;
        self.end.clear();
    }

    /// Frees the memory that one large line needed, and keeps what many small ones need.
    pub fn shrink(&mut self, kept: usize) {
        if self.is_empty() && self.end.capacity() > kept {
            *self = Self::default();
        }
    }

    /// Returns a copy of all of it.
    pub fn copied(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.len());
        for piece in &self.pieces {
            whole.extend_from_slice(piece);
        }
        whole.extend_from_slice(&self.end);
        whole
    }

    /// Returns all of it in one buffer, copied if there are pieces.
    pub fn into_whole(mut self) -> BytesMut {
        if self.pieces.is_empty() {
            return self.end;
        }
        let length = self.len();
        let mut whole = BytesMut::with_capacity(length);
        whole.put((&mut self).take(length));
        whole
    }
}

/// An empty buffer to begin with.
impl From<BytesMut> for Outbox {
    fn from(end: BytesMut) -> Self {
        Self {
            end,
            ..Self::default()
        }
    }
}

impl Buf for Outbox {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&self.end[..], |piece| &piece[..])
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let part = count.min(piece.len());
            piece.advance(part);
            self.pieced -= part;
            count -= part;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.end.advance(count);
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let end = (!self.end.is_empty()).then_some(&self.end[..]);
        let chunks = self.pieces.iter().map(|piece| &piece[..]).chain(end);
        slices
            .iter_mut()
            .zip(chunks)
            .map(|(slice, chunk)| *slice = IoSlice::new(chunk))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large(byte: u8) -> Bytes {
        Bytes::from(vec![byte; SMALL])
    }

    /// Returns an outbox of text, a large piece, text, two large pieces and text, and the same in
    /// one buffer.
    fn mixed() -> (Outbox, Vec<u8>) {
        let mut outbox = Outbox::default();
        outbox.end().put_slice(b"begin");
        outbox.share(large(b'1'));
        outbox.end().put_slice(b"mid");
        outbox.share(Bytes::from_static(b"dle"));
        outbox.share(large(b'2'));
        outbox.share(large(b'3'));
        outbox.end().put_slice(b"end");
        let expected = [
            &b"begin"[..],
            &large(b'1'),
            b"middle",
            &large(b'2'),
            &large(b'3'),
            b"end",
        ]
        .concat();
        (outbox, expected)
    }

    #[test]
    fn outbox_keeps_the_order_of_its_pieces() {
        let (outbox, expected) = mixed();
        assert_eq!(outbox.len(), expected.len());
        assert_eq!(outbox.into_whole(), expected);
        for step in [1, 7, SMALL, SMALL + 5, 3 * SMALL] {
            let (mut outbox, expected) = mixed();
            let mut taken = Vec::new();
            while outbox.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 4];
                let count = outbox.chunks_vectored(&mut slices);
                let seen = slices[..count].iter().flat_map(|slice| slice.iter().copied());
                let before = taken.len();
                taken.extend(seen.take(step));
                let written = taken.len() - before;
                outbox.advance(written);
            }
            assert!(outbox.is_empty() && taken == expected, "in steps of {step}");
        }
    }

    #[test]
    fn a_large_piece_is_not_copied_and_a_small_one_needs_no_place_of_its_own() {
        let mut outbox = Outbox::default();
        let bytes = large(b'x');
        outbox.share(Bytes::from_static(b"small"));
        outbox.share(bytes.clone());
        assert_eq!(outbox.chunk(), b"small");
        outbox.advance(5);
        assert_eq!(outbox.chunk().as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn the_room_of_one_large_line_is_given_back_and_that_of_small_ones_is_kept() {
        let mut outbox = Outbox::from(BytesMut::with_capacity(100));
        outbox.shrink(100);
        assert_eq!(outbox.end().capacity(), 100);
        outbox.end().put_slice(&[0; 200]);
        outbox.shrink(100);
        assert_eq!(outbox.len(), 200, "what waits is never thrown away");
        outbox.advance(200);
        outbox.end().reserve(200);
        outbox.shrink(100);
        assert_eq!(outbox.end().capacity(), 0);
    }
}
