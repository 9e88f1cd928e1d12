//! Lines of a child's stdout, cut incrementally and within a limit.
//!
//! [`LineFramer`] hides chunk borders, line ends and blank lines. A line above the limit is not
//! kept: it streams past an [`EnvelopeSeeker`], which finds only its id, so that exactly the call
//! with that id fails. The module refuses to judge whether a line is JSON, and it never joins the
//! half line of a child that ended with anything else.

mod seeker;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;

pub use seeker::EnvelopeSeeker;

/// The least room offered to one read.
const READ: usize = 64 * 1024;

/// The buffer's size while lines are small. Two reads long, so that small reads share one
/// allocation.
const BLOCK: usize = 2 * READ;

/// What the framer cut from the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// One line without its terminator. It is a slice of the read buffer and keeps that whole
    /// allocation alive, so code that keeps a line for long copies it.
    Line(Bytes),
    /// A line above the limit has ended. Its bytes are gone.
    TooLong(TooLong),
}

/// What is remembered of a line that was too long to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLong {
    /// The raw JSON of the top-level `id`, quotes included: a number or a string of at most 256
    /// bytes. `None` if there is none, if there are several, or if the line is no complete JSON
    /// object.
    pub id: Option<Bytes>,
    /// Whether there is a top-level `method`: then the line is a request or notification of the
    /// server, and its `id` is the server's, not one of ours.
    pub method: bool,
    /// How many bytes the line had, without its terminator.
    pub length: u64,
}

/// What is known of a line above the limit while it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// How many bytes of it have streamed past.
    pub length: u64,
    /// Whether it can still become a JSON object, and so name the request that it answers.
    pub may_be_message: bool,
}

/// Cuts a stream of bytes into lines of at most `max_line` bytes.
///
/// The caller reads into [`spare`](Self::spare), then calls [`next`](Self::next) until it gives
/// `None`, and so on. Kept to that order, the buffer never exceeds `max_line` and one read.
#[derive(Debug)]
pub struct LineFramer {
    buffer: BytesMut,
    /// How many bytes at the front of the buffer are known to hold no line feed.
    searched: usize,
    /// The size of the allocation behind the buffer. `BytesMut` tells only the part after what was
    /// split off.
    block: usize,
    /// How long the last line was that needed more than a block: the next such line is often about
    /// as long.
    expected: usize,
    max_line: usize,
    skipping: Option<Skipping>,
}

impl LineFramer {
    /// Returns a framer that keeps lines of up to `max_line` bytes. It allocates nothing before the
    /// first read.
    pub fn new(max_line: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            block: 0,
            expected: 0,
            max_line,
            skipping: None,
        }
    }

    /// Returns the buffer to read into, with room for at least 64 KiB. The caller only appends.
    pub fn spare(&mut self) -> &mut BytesMut {
        let held = self.buffer.len();
        if self.block > BLOCK && held <= BLOCK - READ {
            // A large line has gone. Its allocation must not stay for ever for the sake of small
            // ones.
            self.move_to_block_of(BLOCK);
        } else if !self.buffer.try_reclaim(READ) {
            // The growth is doubled here and not by `reserve`, which would double past the limit.
            let most = self.max_line.saturating_add(2 + READ);
            let grown = held.saturating_mul(2);
            // What proves longer than a read gets the room of its likes at once.
            let wanted = if held < READ {
                grown
            } else {
                grown.max(self.expected + READ)
            };
            self.grow_to(wanted.min(most).max(held + READ).max(BLOCK));
        }
        &mut self.buffer
    }

    /// Returns the next frame among the bytes read so far; `None` when more must be read first.
    #[expect(
        clippy::should_implement_trait,
        reason = "after None comes more as soon as more is read, which adapters of Iterator do not expect"
    )]
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            if self.skipping.is_some() {
                return self.skip();
            }
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(offset) = memchr(b'\n', unsearched) else {
                self.searched = self.buffer.len();
                if self.has_outgrown_the_limit() {
                    self.searched = 0;
                    self.skipping = Some(Skipping::default());
                    continue;
                }
                return None;
            };
            let mut line = self.buffer.split_to(self.searched + offset).freeze();
            self.buffer.advance(1);
            self.searched = 0;
            if line.len() > BLOCK {
                self.expected = line.len();
            }
            let length = line.strip_suffix(b"\r").unwrap_or(&line).len();
            if length > self.max_line {
                let mut skipping = Skipping::default();
                skipping.feed(&line);
                return Some(Frame::TooLong(skipping.finish()));
            }
            line.truncate(length);
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(Frame::Line(line));
            }
        }
    }

    /// Returns what is known of a line above the limit that has not ended yet. A child whose line
    /// never ends is seen by this.
    pub fn unfinished(&self) -> Option<Unfinished> {
        self.skipping.as_ref().map(|skipping| Unfinished {
            length: skipping.length,
            may_be_message: skipping.seeker.may_be_message(),
        })
    }

    /// The stream has ended: drops a half line and returns its length. The next child gets a new
    /// framer, so that nothing of this one can be joined with its output.
    pub fn finish(self) -> Option<u64> {
        let held = self.buffer.len() as u64;
        match self.skipping {
            Some(skipping) => Some(skipping.length + held),
            None if self.buffer.iter().all(u8::is_ascii_whitespace) => None,
            None => Some(held),
        }
    }

    /// Returns whether the unfinished line in the buffer is too long already. A carriage return
    /// just past the limit may still turn out to be part of the terminator.
    fn has_outgrown_the_limit(&self) -> bool {
        match self.buffer.len().checked_sub(self.max_line) {
            None | Some(0) => false,
            Some(1) => self.buffer.last() != Some(&b'\r'),
            Some(_) => true,
        }
    }

    /// Lets the over-long line stream past, up to its end if that has been read.
    fn skip(&mut self) -> Option<Frame> {
        let end = memchr(b'\n', &self.buffer);
        let passing = end.unwrap_or(self.buffer.len());
        if let Some(skipping) = &mut self.skipping {
            skipping.feed(self.buffer.get(..passing).unwrap_or_default());
        }
        self.buffer.advance(passing);
        end?;
        self.buffer.advance(1);
        self.skipping
            .take()
            .map(|skipping| Frame::TooLong(skipping.finish()))
    }

    /// Makes the allocation larger in place where the allocator can: a long line is neither copied
    /// nor are its pages touched again each time the block doubles.
    fn grow_to(&mut self, size: usize) {
        let mut bytes = Vec::from(std::mem::take(&mut self.buffer));
        bytes.reserve_exact(size.saturating_sub(bytes.len()));
        self.buffer = BytesMut::from(Bytes::from(bytes));
        self.block = size;
    }

    fn move_to_block_of(&mut self, size: usize) {
        let mut fresh = BytesMut::with_capacity(size);
        fresh.extend_from_slice(&self.buffer);
        self.buffer = fresh;
        self.block = size;
    }
}

/// An over-long line on its way past.
#[derive(Debug, Default)]
struct Skipping {
    seeker: EnvelopeSeeker,
    length: u64,
    ends_in_carriage_return: bool,
}

impl Skipping {
    fn feed(&mut self, chunk: &[u8]) {
        if let Some(last) = chunk.last() {
            self.ends_in_carriage_return = *last == b'\r';
        }
        self.length += chunk.len() as u64;
        self.seeker.feed(chunk);
    }

    fn finish(self) -> TooLong {
        let (id, method) = self.seeker.finish();
        TooLong {
            id,
            method,
            length: self.length - u64::from(self.ends_in_carriage_return),
        }
    }
}

#[cfg(test)]
mod tests;
