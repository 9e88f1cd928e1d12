use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::seeker::tests::object;
use super::*;
use crate::wire::pieces::cut;

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
fn end_of_a_too_long_line_is_counted_though_it_was_not_taken() {
    let mut framer = LineFramer::new(10);
    framer.spare().extend_from_slice(&[b'x'; 20]);
    assert_eq!(framer.next(), None);
    framer.spare().extend_from_slice(&[b'x'; 5]);
    assert_eq!(framer.finish(), Some(25));
}

#[test]
fn there_is_room_to_read_whatever_is_left_after_a_large_line() {
    for left in [0, READ, BLOCK - READ, BLOCK - READ + 1, BLOCK, BLOCK + READ] {
        let mut framer = LineFramer::new(16 * BLOCK);
        let large = [vec![b'x'; 4 * BLOCK], b"\n".to_vec(), vec![b'y'; left]].concat();
        let mut input = large.as_slice();
        let mut frames = Vec::new();
        while !input.is_empty() {
            read(&mut framer, &mut input);
            drain(&mut framer, &mut frames);
        }
        assert_eq!(frames.len(), 1);
        let mut more: &[u8] = b"z\n";
        read(&mut framer, &mut more);
        drain(&mut framer, &mut frames);
        let last = [vec![b'y'; left], b"z".to_vec()].concat();
        assert!(matches!(&frames[1], Frame::Line(line) if *line == last), "{left}");
    }
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
            let unfinished = Unfinished {
                length: (round + 1) * 50_000,
                may_be_message: false,
            };
            assert_eq!(framer.unfinished(), Some(unfinished));
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
fn unfinished_line_may_be_a_message_as_long_as_it_reads_like_an_object() {
    let mut framer = LineFramer::new(4);
    let unfinished = |length, may_be_message| {
        Some(Unfinished {
            length,
            may_be_message,
        })
    };
    framer.spare().extend_from_slice(br#"{"id""#);
    assert_eq!((framer.next(), framer.unfinished()), (None, unfinished(5, true)));
    framer.spare().extend_from_slice(b":7");
    assert_eq!((framer.next(), framer.unfinished()), (None, unfinished(7, true)));
    framer.spare().extend_from_slice(b"?");
    assert_eq!((framer.next(), framer.unfinished()), (None, unfinished(8, false)));
}

#[test]
fn small_lines_get_small_blocks_after_a_large_one() {
    let mut framer = LineFramer::new(16 * 1024 * 1024);
    let large = [vec![b'x'; 1_000_000], b"\n".to_vec()].concat();
    let mut input = large.as_slice();
    while !input.is_empty() {
        read(&mut framer, &mut input);
        drain(&mut framer, &mut Vec::new());
    }
    let small = [vec![b'x'; 1000], b"\n".to_vec()].concat();
    // The receiver keeps every line, so that no block can be used again.
    let mut frames = Vec::new();
    for _ in 0..1000 {
        read(&mut framer, &mut small.as_slice());
        drain(&mut framer, &mut frames);
        assert_eq!(framer.block, BLOCK);
    }
    assert_eq!(frames.len(), 1000);
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
fn a_long_line_gets_the_room_of_the_last_one_at_once_and_never_more_than_the_limit() {
    let blocks = |framer: &mut LineFramer, length: usize| {
        let line = [vec![b'x'; length], b"\n".to_vec()].concat();
        let (mut input, mut blocks) = (line.as_slice(), Vec::new());
        while !input.is_empty() {
            read(framer, &mut input);
            blocks.push(framer.block);
            drain(framer, &mut Vec::new());
        }
        blocks.dedup();
        blocks
    };
    let limit = 3_000_000;
    let mut framer = LineFramer::new(limit);
    assert!(blocks(&mut framer, 1_000_000).len() > 3, "it doubles");
    assert_eq!(blocks(&mut framer, 1_000_000), [BLOCK, 1_000_000 + READ]);
    assert_eq!(blocks(&mut framer, 1_000), [BLOCK]);
    assert_eq!(blocks(&mut framer, 900_000), [BLOCK, 1_000_000 + READ]);
    assert!(
        blocks(&mut framer, limit)
            .iter()
            .all(|block| *block <= limit + 2 + READ)
    );
    assert_eq!(blocks(&mut framer, limit), [BLOCK, limit + READ]);
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
    fn arbitrary_bytes_never_panic(input in vec(any::<u8>(), 0..300), max_line in 0_usize..20) {
        frames_of(max_line, &[&input]);
    }
}
