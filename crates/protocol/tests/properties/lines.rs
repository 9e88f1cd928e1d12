//! Cutting lines: the way the bytes arrive changes nothing, and a plain split gives the same.

use bytes::Bytes;
use protocol::wire::line::{Frame, LineFramer};

/// The first byte is the limit, the second the size of a chunk.
///
/// # Panics
/// If two ways of cutting the rest disagree.
pub(crate) fn holds(data: &[u8]) {
    let [limit, chunk, input @ ..] = data else { return };
    let limit = usize::from(*limit);
    let (whole, left) = frames(limit, std::iter::once(input));
    assert_eq!(frames(limit, input.chunks(1)), (whole.clone(), left));
    assert_eq!(
        frames(limit, input.chunks(usize::from(*chunk).max(1))),
        (whole.clone(), left)
    );
    against_a_plain_split(limit, input, &whole);
}

fn frames<'a>(limit: usize, chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<u64>) {
    let mut framer = LineFramer::new(limit);
    let mut frames = Vec::new();
    for chunk in chunks {
        framer.spare().extend_from_slice(chunk);
        while let Some(frame) = framer.next() {
            // What is kept is copied, so that no frame holds another's buffer.
            frames.push(match frame {
                Frame::Line(line) => Frame::Line(Bytes::copy_from_slice(&line)),
                Frame::TooLong(gone) => Frame::TooLong(gone),
            });
        }
    }
    (frames, framer.finish())
}

fn against_a_plain_split(limit: usize, input: &[u8], frames: &[Frame]) {
    let mut pieces: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    // The last piece has no end yet.
    pieces.pop();
    let expected: Vec<(u64, Option<&[u8]>)> = pieces
        .into_iter()
        .map(|piece| piece.strip_suffix(b"\r").unwrap_or(piece))
        .filter(|piece| piece.len() > limit || !piece.trim_ascii().is_empty())
        .map(|piece| (piece.len() as u64, (piece.len() <= limit).then_some(piece)))
        .collect();
    let found: Vec<(u64, Option<&[u8]>)> = frames
        .iter()
        .map(|frame| match frame {
            Frame::Line(line) => (line.len() as u64, Some(&line[..])),
            Frame::TooLong(gone) => (gone.length, None),
        })
        .collect();
    assert_eq!(found, expected);
}
