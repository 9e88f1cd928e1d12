//! Lines of a child's stdout, cut incrementally and within a limit.
//!
//! [`LineFramer`] hides chunk borders, line ends and blank lines. A line above the limit is not kept: it
//! streams past an [`EnvelopeSeeker`], which remembers only whose answer it was, so that exactly that caller
//! can be told. The module refuses to judge whether a line is JSON, and it never joins the half line of a
//! child that ended with anything else.

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

/// The least room offered to one read.
const READ: usize = 64 * 1024;

/// The buffer's size while lines are small. Two reads long, so that small reads share one allocation.
const BLOCK: usize = 2 * READ;

/// The longest raw `id` that is remembered of an over-long line. Ids towards a child are the bridge's own
/// and far shorter.
const MAX_ID: usize = 256;

/// The longest way to write `method` as a key: six characters, each as `\u00XX`.
const MAX_KEY: usize = 36;

/// What the framer cut from the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// One line without its terminator. It is a slice of the read buffer and keeps that whole allocation
    /// alive, so who stores a line for long copies it.
    Line(Bytes),
    /// A line above the limit has ended. Its bytes are gone.
    TooLong(TooLong),
}

/// What is remembered of a line that was too long to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLong {
    /// The raw JSON of the top-level `id`, quotes included: a number or a string of at most 256 bytes. `None`
    /// if there is none, if there are several, or if the line is no complete JSON object.
    pub id: Option<Bytes>,
    /// Whether there is a top-level `method`: then the line is a request or notification of the server, and
    /// its `id` is the server's, not one of ours.
    pub method: bool,
    /// How many bytes the line had, without its terminator.
    pub length: u64,
}

/// Cuts a stream of bytes into lines of at most `max_line` bytes.
///
/// The caller reads into [`spare`](Self::spare), then calls [`next`](Self::next) until it gives `None`, and
/// so on. Kept to that order, the buffer never exceeds `max_line` and one read.
#[derive(Debug)]
pub struct LineFramer {
    buffer: BytesMut,
    /// How many bytes at the front of the buffer are known to hold no line feed.
    searched: usize,
    /// The size of the allocation behind the buffer. `BytesMut` tells only the part after what was split off.
    block: usize,
    max_line: usize,
    skipping: Option<Skipping>,
}

impl LineFramer {
    /// A framer that keeps lines of up to `max_line` bytes. It allocates nothing before the first read.
    pub fn new(max_line: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            block: 0,
            max_line,
            skipping: None,
        }
    }

    /// The buffer to read into, with room for at least 64 KiB. The caller only appends.
    pub fn spare(&mut self) -> &mut BytesMut {
        let held = self.buffer.len();
        if self.block > BLOCK && held <= BLOCK - READ {
            // A large line has gone. Its allocation must not stay for ever for the sake of small ones.
            self.move_to_block_of(BLOCK);
        } else if self.buffer.capacity() - held < READ && !self.buffer.try_reclaim(READ) {
            // The growth is doubled here and not by `reserve`, which would double past the limit.
            let most = self.max_line.saturating_add(2 + READ);
            let wanted = held.saturating_mul(2).min(most);
            self.grow_to(wanted.max(held + READ).max(BLOCK));
        }
        &mut self.buffer
    }

    /// The next frame among the bytes read so far; `None` when more must be read first.
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

    /// How many bytes of an over-long line have streamed past, while it lasts. A child whose line never ends
    /// is seen by this.
    pub fn skipped_so_far(&self) -> Option<u64> {
        self.skipping.as_ref().map(|skipping| skipping.length)
    }

    /// The stream has ended: a half line is dropped, and its length told. The next child gets a new framer,
    /// so that nothing of this one can be joined with its output.
    pub fn finish(self) -> Option<u64> {
        let held = self.buffer.len() as u64;
        match self.skipping {
            Some(skipping) => Some(skipping.length + held),
            None if self.buffer.iter().all(u8::is_ascii_whitespace) => None,
            None => Some(held),
        }
    }

    /// Whether the unfinished line in the buffer is too long whatever follows. A carriage return just past
    /// the limit may still turn out to be part of the terminator.
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

    /// Makes the allocation larger in place where the allocator can: a long line is neither copied nor are
    /// its pages touched again each time the block doubles.
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

/// Finds the top-level `id` and `method` of a JSON object that is never held as a whole.
///
/// It is fed chunk by chunk, does not recurse, and keeps one key and one id, both bounded. It is no
/// validator: it is strict about the members of the outermost object, since a wrong id would end another
/// caller's call, and below them it only counts brackets and strings.
#[derive(Debug, Default)]
pub struct EnvelopeSeeker {
    place: Place,
    /// The last byte of the previous chunk was a backslash that escapes the first of the next.
    escaped: bool,
    /// Open brackets inside the current member's value.
    depth: u64,
    key: Key,
    member: Member,
    id: Id,
    method: bool,
}

/// Where in the line the seeker stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    BeforeObject,
    FirstKeyOrEnd,
    BeforeKey,
    InKey,
    BeforeColon,
    BeforeValue,
    InString,
    InScalar,
    InNested,
    InNestedString,
    AfterValue,
    AfterObject,
    /// This is no JSON object; nothing found in it counts.
    Broken,
}

/// Which member of the outermost object the seeker is in.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Member {
    Id,
    Method,
    #[default]
    Other,
}

/// What is known of the top-level `id`.
#[derive(Debug, Default)]
enum Id {
    #[default]
    Absent,
    Raw(Vec<u8>),
    /// Too long, of another type, or there twice.
    Unusable,
}

impl Id {
    /// Adds to the id while it is usable; past the bound it is given up, not cut.
    fn extend(&mut self, bytes: &[u8]) {
        match self {
            Self::Raw(raw) if raw.len() + bytes.len() <= MAX_ID => raw.extend_from_slice(bytes),
            Self::Raw(_) => *self = Self::Unusable,
            Self::Absent | Self::Unusable => {}
        }
    }
}

impl EnvelopeSeeker {
    /// Takes the next bytes of the line.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((&byte, after)) = rest.split_first() {
            rest = match self.place {
                Place::InKey | Place::InString | Place::InNestedString => self.string(rest),
                Place::InNested => self.nested(rest),
                // The byte that ends a scalar belongs to the object and is looked at again.
                Place::InScalar if matches!(byte, b',' | b'}' | b' ' | b'\t' | b'\n' | b'\r') => {
                    self.place = Place::AfterValue;
                    rest
                }
                Place::Broken => return,
                Place::BeforeObject
                | Place::FirstKeyOrEnd
                | Place::BeforeKey
                | Place::BeforeColon
                | Place::BeforeValue
                | Place::InScalar
                | Place::AfterValue
                | Place::AfterObject => {
                    self.step(byte);
                    after
                }
            };
        }
    }

    /// The line has ended: the raw `id`, and whether there was a `method`. A line that is no complete object
    /// has neither.
    pub fn finish(self) -> (Option<Bytes>, bool) {
        if self.place != Place::AfterObject {
            return (None, false);
        }
        match self.id {
            // Whoever is told about the line gets the id back, so that one which is no JSON would spoil what is said.
            Id::Raw(raw) if serde_json::from_slice::<&serde_json::value::RawValue>(&raw).is_ok() => {
                (Some(Bytes::from(raw)), self.method)
            }
            Id::Absent | Id::Raw(_) | Id::Unusable => (None, self.method),
        }
    }

    /// One byte of the outermost object, outside strings and nested values.
    fn step(&mut self, byte: u8) {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        self.place = match (self.place, byte) {
            (Place::BeforeObject, b'{') => Place::FirstKeyOrEnd,
            (Place::FirstKeyOrEnd | Place::AfterValue, b'}') => Place::AfterObject,
            (Place::FirstKeyOrEnd | Place::BeforeKey, b'"') => {
                self.key = Key::default();
                Place::InKey
            }
            (Place::BeforeColon, b':') => Place::BeforeValue,
            (Place::BeforeValue, _) => self.begin_value(byte),
            (Place::InScalar, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'+' | b'-' | b'.') => {
                self.capture(&[byte]);
                Place::InScalar
            }
            (Place::AfterValue, b',') => Place::BeforeKey,
            (_, _) => Place::Broken,
        };
    }

    fn begin_value(&mut self, byte: u8) -> Place {
        let (place, usable_as_id) = match byte {
            b'"' => (Place::InString, true),
            b'-' | b'0'..=b'9' => (Place::InScalar, true),
            b't' | b'f' | b'n' => (Place::InScalar, false),
            b'{' | b'[' => (Place::InNested, false),
            _ => return Place::Broken,
        };
        match self.member {
            Member::Id => {
                // Of two ids either could be the one the server meant, so neither is believed.
                self.id = match self.id {
                    Id::Absent if usable_as_id => Id::Raw(vec![byte]),
                    Id::Absent | Id::Raw(_) | Id::Unusable => Id::Unusable,
                };
            }
            Member::Method => self.method = true,
            Member::Other => {}
        }
        self.depth = u64::from(place == Place::InNested);
        place
    }

    fn capture(&mut self, bytes: &[u8]) {
        match self.member {
            Member::Id => self.id.extend(bytes),
            Member::Method | Member::Other => {}
        }
    }

    /// The inside of a string, up to its closing quote or the end of the chunk; gives what follows.
    fn string<'chunk>(&mut self, chunk: &'chunk [u8]) -> &'chunk [u8] {
        let mut from = usize::from(std::mem::take(&mut self.escaped));
        let quote = loop {
            let Some(offset) = memchr2(b'"', b'\\', chunk.get(from..).unwrap_or_default()) else {
                break None;
            };
            let at = from + offset;
            if chunk.get(at) == Some(&b'"') {
                break Some(at);
            }
            from = at + 2;
            if from > chunk.len() {
                self.escaped = true;
                break None;
            }
        };
        let (inside, rest) = chunk.split_at(quote.map_or(chunk.len(), |at| at + 1));
        match self.place {
            Place::InKey => {
                self.key.extend(inside);
                if quote.is_some() {
                    self.member = self.key.member();
                    self.place = Place::BeforeColon;
                }
            }
            Place::InString => {
                self.capture(inside);
                if quote.is_some() {
                    self.place = Place::AfterValue;
                }
            }
            Place::InNestedString => {
                if quote.is_some() {
                    self.place = Place::InNested;
                }
            }
            Place::BeforeObject
            | Place::FirstKeyOrEnd
            | Place::BeforeKey
            | Place::BeforeColon
            | Place::BeforeValue
            | Place::InScalar
            | Place::InNested
            | Place::AfterValue
            | Place::AfterObject
            | Place::Broken => self.place = Place::Broken,
        }
        rest
    }

    /// The inside of a nested value outside its strings; gives what follows the string's opening quote or
    /// the value's last bracket.
    fn nested<'chunk>(&mut self, chunk: &'chunk [u8]) -> &'chunk [u8] {
        for (at, byte) in chunk.iter().enumerate() {
            match byte {
                b'"' => self.place = Place::InNestedString,
                b'{' | b'[' => {
                    self.depth += 1;
                    continue;
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth > 0 {
                        continue;
                    }
                    self.place = Place::AfterValue;
                }
                _ => continue,
            }
            return chunk.get(at + 1..).unwrap_or_default();
        }
        &[]
    }
}

/// The raw bytes of a key with its closing quote, as far as they can still spell a name that matters.
#[derive(Debug)]
struct Key {
    raw: [u8; MAX_KEY + 1],
    /// May pass the array's length: then the key is none of ours.
    length: usize,
}

impl Default for Key {
    fn default() -> Self {
        Self {
            raw: [0; MAX_KEY + 1],
            length: 0,
        }
    }
}

impl Key {
    fn extend(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(room) = self.raw.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
        }
        self.length = end;
    }

    fn member(&self) -> Member {
        let Some(raw) = self
            .length
            .checked_sub(1)
            .and_then(|length| self.raw.get(..length))
        else {
            return Member::Other;
        };
        if spells(raw, b"id") {
            Member::Id
        } else if spells(raw, b"method") {
            Member::Method
        } else {
            Member::Other
        }
    }
}

/// Whether the raw inside of a JSON string means `name`, a word of ASCII letters. A letter can be written
/// as itself or as `\u00XX`; the other escapes mean no letter.
fn spells(raw: &[u8], name: &[u8]) -> bool {
    let mut rest = raw;
    for letter in name {
        rest = match rest {
            [b'\\', b'u', b'0', b'0', high, low, after @ ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) if high * 16 + low == *letter => after,
                (_, _) => return false,
            },
            [byte, after @ ..] if byte == letter => after,
            _ => return false,
        };
    }
    rest.is_empty()
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use serde_json::value::RawValue;

    use super::*;

    /// Reads like a pipe does: what fits into the spare room, and no more.
    fn read(framer: &mut LineFramer, input: &mut &[u8]) {
        let spare = framer.spare();
        let room = spare.capacity() - spare.len();
        assert!(room >= READ);
        let (now, later) = input.split_at(room.min(input.len()));
        spare.extend_from_slice(now);
        *input = later;
    }

    fn drain(framer: &mut LineFramer, frames: &mut Vec<Frame>) {
        while let Some(frame) = framer.next() {
            frames.push(frame);
        }
    }

    fn frames_of(max_line: usize, chunks: &[&[u8]]) -> (Vec<Frame>, Option<u64>) {
        let mut framer = LineFramer::new(max_line);
        let mut frames = Vec::new();
        for chunk in chunks {
            let mut input = *chunk;
            while !input.is_empty() {
                read(&mut framer, &mut input);
                drain(&mut framer, &mut frames);
            }
        }
        (frames, framer.finish())
    }

    fn line(text: &str) -> Frame {
        Frame::Line(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn too_long(id: Option<&str>, method: bool, length: usize) -> Frame {
        let id = id.map(|id| Bytes::copy_from_slice(id.as_bytes()));
        Frame::TooLong(TooLong {
            id,
            method,
            length: length as u64,
        })
    }

    fn sought(chunks: &[&[u8]]) -> (Option<String>, bool) {
        let mut seeker = EnvelopeSeeker::default();
        for chunk in chunks {
            seeker.feed(chunk);
        }
        let (id, method) = seeker.finish();
        (id.map(|id| String::from_utf8(id.to_vec()).unwrap()), method)
    }

    fn id_in(text: &str) -> Option<String> {
        sought(&[text.as_bytes()]).0
    }

    /// Cuts the input at the given places, whatever their order.
    fn cut<'a>(input: &'a [u8], places: &[Index]) -> Vec<&'a [u8]> {
        let mut at: Vec<usize> = places.iter().map(|place| place.index(input.len() + 1)).collect();
        at.extend([0, input.len()]);
        at.sort_unstable();
        at.windows(2).map(|pair| &input[pair[0]..pair[1]]).collect()
    }

    #[test]
    fn id_that_is_no_json_is_not_remembered() {
        for id in ["1x", "01", "-", "1.", "\"\\q\"", "\"\t\"", "\"\\u12g4\""] {
            let text = format!(r#"{{"id":{id},"method":"x"}}"#);
            assert_eq!(sought(&[text.as_bytes()]), (None, true), "{id}");
        }
        let mut seeker = EnvelopeSeeker::default();
        seeker.feed(b"{\"id\":\"\xff\"}");
        assert_eq!(seeker.finish(), (None, false));
    }

    #[test]
    fn lines_lose_their_terminator_and_blank_lines_vanish() {
        let (frames, half) = frames_of(100, &[b"\n{\"a\":1}\r\n\r\n \t\nnoise\n\nrest"]);
        assert_eq!(frames, [line("{\"a\":1}"), line("noise")]);
        assert_eq!(half, Some(4));
    }

    #[test]
    fn lines_of_one_read_share_its_allocation() {
        let mut framer = LineFramer::new(100);
        framer.spare().extend_from_slice(b"first\nsecond\n");
        let start = framer.buffer.as_ptr() as usize;
        let (Some(Frame::Line(first)), Some(Frame::Line(second))) = (framer.next(), framer.next()) else {
            panic!("two lines");
        };
        assert_eq!(first.as_ptr() as usize, start);
        assert_eq!(second.as_ptr() as usize, start + 6);
    }

    #[test]
    fn half_line_at_the_end_is_discarded() {
        assert_eq!(frames_of(100, &[b"one\n{\"id\":"]), (vec![line("one")], Some(6)));
        assert_eq!(frames_of(4, &[b"{\"id\":12345"]), (vec![], Some(11)));
        assert_eq!(frames_of(100, &[b"one\n"]).1, None);
        assert_eq!(frames_of(100, &[b"one\n\r"]).1, None);
        assert_eq!(LineFramer::new(100).finish(), None);
    }

    #[test]
    fn line_of_exactly_the_limit_is_kept_and_one_byte_more_is_not() {
        for end in ["\n", "\r\n"] {
            let input = format!("12345678{end}123456789{end}1{end}");
            let expected = vec![line("12345678"), too_long(None, false, 9), line("1")];
            assert_eq!(frames_of(8, &[input.as_bytes()]).0, expected);
            let bytes: Vec<&[u8]> = input.as_bytes().chunks(1).collect();
            assert_eq!(frames_of(8, &bytes).0, expected);
        }
    }

    #[test]
    fn carriage_return_inside_a_line_stays() {
        assert_eq!(frames_of(8, &[b"a\rb\r\r\n"]).0, [line("a\rb\r")]);
        assert_eq!(frames_of(1, &[b"ab\r\r\n"]).0, [too_long(None, false, 3)]);
    }

    #[test]
    fn over_long_line_names_its_id_wherever_it_stands() {
        let big = "x".repeat(500_000);
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":42,"result":{{"id":1,"text":"{big}"}}}}"#),
            format!(r#"{{"result":{{"id":1,"text":"\"}},{big}"}},"jsonrpc":"2.0","id": 42 }}"#),
        ] {
            let input = format!("{text}\nafter\n");
            let expected = [too_long(Some("42"), false, text.len()), line("after")];
            assert_eq!(frames_of(1000, &[input.as_bytes()]).0, expected);
        }
        let request = format!(r#"{{"id":"q","params":"{big}","method":"sampling/createMessage"}}"#);
        let input = format!("{request}\r\n");
        assert_eq!(
            frames_of(1000, &[input.as_bytes()]).0,
            [too_long(Some("\"q\""), true, request.len())]
        );
    }

    #[test]
    fn line_without_end_costs_bounded_memory() {
        let max_line = 1024 * 1024;
        let most = max_line + 2 + READ;
        let mut framer = LineFramer::new(max_line);
        let noise = vec![b'x'; 50_000];
        for round in 0..400_u64 {
            let mut input = noise.as_slice();
            read(&mut framer, &mut input);
            assert!(framer.block <= most && framer.buffer.capacity() <= most);
            assert_eq!(framer.next(), None);
            if round * 50_000 > max_line as u64 {
                assert_eq!(framer.skipped_so_far(), Some((round + 1) * 50_000));
                assert!(framer.buffer.is_empty());
            }
        }
        assert!(
            framer.spare().capacity() <= BLOCK,
            "the kept part of the line has been given back"
        );
        assert_eq!(framer.finish(), Some(400 * 50_000));
    }

    #[test]
    fn buffer_shrinks_after_a_large_line() {
        let mut framer = LineFramer::new(16 * 1024 * 1024);
        let large = [vec![b'x'; 10_000_000], b"\nsmall\nhalf".to_vec()].concat();
        let mut frames = Vec::new();
        let mut input = large.as_slice();
        while !input.is_empty() {
            read(&mut framer, &mut input);
            assert!(framer.block <= 16 * 1024 * 1024 + 2 + READ);
            drain(&mut framer, &mut frames);
        }
        assert_eq!(frames.len(), 2);
        assert!(framer.block > BLOCK);
        drop(frames);
        assert!(framer.spare().capacity() <= BLOCK);
        assert_eq!(framer.block, BLOCK);
        assert_eq!(framer.finish(), Some(4));
    }

    #[test]
    fn small_lines_reuse_one_block_once_they_are_dropped() {
        let mut framer = LineFramer::new(1024);
        for _ in 0..10_000 {
            framer
                .spare()
                .extend_from_slice(&[b"0123456789".repeat(10), b"\n".to_vec()].concat());
            assert!(framer.next().is_some());
            assert_eq!(framer.next(), None);
            assert_eq!(framer.block, BLOCK);
        }
    }

    #[test]
    fn nested_and_quoted_ids_are_not_the_envelopes() {
        assert_eq!(
            id_in(r#"{"result":{"id":1},"list":[{"id":2}],"text":"\"id\":3"}"#),
            None
        );
        assert_eq!(id_in(r#"{"a":"id","b":"id","id":4}"#).as_deref(), Some("4"));
        assert_eq!(id_in(r#"{"a":"\\","id":5}"#).as_deref(), Some("5"));
    }

    #[test]
    fn escaped_keys_count() {
        assert_eq!(id_in(r#"{"\u0069d":7}"#).as_deref(), Some("7"));
        assert_eq!(id_in(r#"{"\u0069\u0064":"a\"b"}"#).as_deref(), Some(r#""a\"b""#));
        let method = r#"{"\u006D\u0065\u0074\u0068\u006f\u0064":"x"}"#;
        assert_eq!(sought(&[method.as_bytes()]), (None, true));
        for other in [
            r#""id\u0000""#,
            r#""ID""#,
            r#""i""#,
            r#""idd""#,
            r#""\u0169d""#,
            r#""\id""#,
            r#""""#,
        ] {
            assert_eq!(id_in(&format!("{{{other}:1}}")), None, "{other}");
        }
    }

    #[test]
    fn ids_that_are_no_number_or_string_or_too_long_or_doubled_are_none() {
        for value in ["null", "true", "{}", "[1]", &format!("\"{}\"", "i".repeat(255))] {
            assert_eq!(id_in(&format!("{{\"id\":{value}}}")), None, "{value}");
        }
        let longest = format!("\"{}\"", "i".repeat(254));
        assert_eq!(id_in(&format!("{{\"id\":{longest}}}")), Some(longest));
        assert_eq!(id_in(r#"{"id":1,"id":2}"#), None);
        assert_eq!(id_in(r#"{"id":1,"id":{}}"#), None);
    }

    #[test]
    fn what_is_no_complete_object_has_no_id() {
        for text in [
            "",
            "[]",
            "null",
            r#"["id",1]"#,
            r#"{"id":1"#,
            r#"{"id":1,"a":"b"#,
            r#"{"id":1} x"#,
            r#"{"id":1}{"id":2}"#,
            r#"{"id":1 2}"#,
            r#"{"id" 1}"#,
            r#"{"id":1,}"#,
            r#"{"a":1"id":2}"#,
            r#"x{"id":1}"#,
            r#"{id:1}"#,
            r#"{"a":]"id":1}"#,
        ] {
            assert_eq!(sought(&[text.as_bytes()]), (None, false), "{text}");
        }
    }

    #[test]
    fn very_deep_nesting_needs_no_stack() {
        let text = format!(r#"{{"a":{}{},"id":9}}"#, "[".repeat(400_000), "]".repeat(400_000));
        assert_eq!(id_in(&text).as_deref(), Some("9"));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".{0,12}".prop_map(Into::into),
            r#"["\\{}\[\]:,id]{0,12}"#.prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(serde_json::Value::Array),
                vec((key(), inner), 0..4).prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("id".to_owned()),
            Just("method".to_owned()),
            Just("result".to_owned()),
            ".{0,8}"
        ]
    }

    /// A key as a JSON string, with some of its characters escaped although they need not be.
    fn spelled(key: &str, escape: u8) -> String {
        if !key.chars().all(|letter| letter.is_ascii_alphanumeric()) {
            return serde_json::to_string(key).unwrap();
        }
        let letters = key
            .bytes()
            .enumerate()
            .map(|(at, letter)| match (escape >> (at % 8)) & 1 {
                0 => char::from(letter).to_string(),
                _ if at % 2 == 0 => format!("\\u{letter:04x}"),
                _ => format!("\\u{letter:04X}"),
            });
        format!("\"{}\"", letters.collect::<String>())
    }

    /// The text of an object whose keys differ, in any order and with any white space.
    fn object() -> impl Strategy<Value = String> {
        let space = || "[ \t\r\n]{0,2}";
        let member = (key(), json(), any::<u8>(), space(), space());
        (vec(member, 0..6), space()).prop_map(|(members, end)| {
            let mut seen = std::collections::BTreeSet::new();
            let members: Vec<String> = members
                .into_iter()
                .filter(|(key, ..)| seen.insert(key.clone()))
                .map(|(key, value, escape, before, after)| {
                    format!("{before}{}{after}:{before}{value}{after}", spelled(&key, escape))
                })
                .collect();
            format!("{end}{{{end}{}}}{end}", members.join(","))
        })
    }

    fn lines() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            object().prop_map(String::into_bytes),
            vec(any::<u8>(), 0..40),
            "[a\\\\\"{}:, ]{0,40}".prop_map(String::into_bytes),
        ];
        let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r"), Just("")];
        vec((piece, end), 0..8).prop_map(|pieces| {
            pieces
                .into_iter()
                .flat_map(|(piece, end)| [piece, end.as_bytes().to_vec()].concat())
                .collect()
        })
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_frames(
            input in lines(), places in vec(any::<Index>(), 0..8), max_line in 0_usize..60,
        ) {
            let whole = frames_of(max_line, &[&input]);
            prop_assert_eq!(&frames_of(max_line, &cut(&input, &places)), &whole);
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            prop_assert_eq!(&frames_of(max_line, &bytes), &whole);
        }

        #[test]
        fn framer_agrees_with_a_plain_split(input in lines(), max_line in 0_usize..60) {
            let mut pieces: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
            pieces.pop();
            let pieces = pieces.into_iter().map(|piece| piece.strip_suffix(b"\r").unwrap_or(piece));
            let expected: Vec<(usize, Option<&[u8]>)> = pieces
                .filter(|piece| piece.len() > max_line || !piece.trim_ascii().is_empty())
                .map(|piece| (piece.len(), (piece.len() <= max_line).then_some(piece)))
                .collect();
            let (frames, _) = frames_of(max_line, &[&input]);
            let found: Vec<(usize, Option<&[u8]>)> = frames
                .iter()
                .map(|frame| match frame {
                    Frame::Line(line) => (line.len(), Some(line.as_ref())),
                    Frame::TooLong(gone) => (gone.length as usize, None),
                })
                .collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn seeker_agrees_with_serde(text in object(), places in vec(any::<Index>(), 0..6)) {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(&text).unwrap();
            let id = members
                .get("id")
                .map(|raw| raw.get())
                .filter(|raw| raw.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')))
                .filter(|raw| raw.len() <= MAX_ID)
                .map(str::to_owned);
            let expected = (id, members.contains_key("method"));
            prop_assert_eq!(&sought(&[text.as_bytes()]), &expected);
            prop_assert_eq!(&sought(&cut(text.as_bytes(), &places)), &expected);
        }

        #[test]
        fn arbitrary_bytes_never_panic(input in vec(any::<u8>(), 0..300), max_line in 0_usize..20) {
            let mut seeker = EnvelopeSeeker::default();
            seeker.feed(b"{\"a\":");
            seeker.feed(&input);
            seeker.finish();
            frames_of(max_line, &[&input]);
        }
    }
}
