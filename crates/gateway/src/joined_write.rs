//! Small pieces that are written together, as the head and the body of most messages are: joined
//! first, since the kernel takes one plain write for less than a gathered one.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

/// Up to so many bytes a copy is cheaper.
const JOINED: usize = 768;

/// Writes the pieces as [`AsyncWrite::poll_write_vectored`] does.
pub(crate) fn poll_write<S: AsyncWrite + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let mut joined = [0; JOINED];
    let mut length = 0;
    for piece in pieces {
        let Some(room) = joined.get_mut(length..length + piece.len()) else {
            return Pin::new(stream).poll_write_vectored(context, pieces);
        };
        room.copy_from_slice(piece);
        length += piece.len();
    }
    Pin::new(stream).poll_write(context, &joined[..length])
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn pieces_arrive_in_their_order_whether_they_are_joined_or_not() {
        for (head, body) in [
            (0, 0),
            (100, 0),
            (0, 100),
            (300, JOINED - 300),
            (300, JOINED),
            (JOINED, 1),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(4 * JOINED);
            let (head, body) = (vec![b'h'; head], vec![b'b'; body]);
            let pieces = [IoSlice::new(&head), IoSlice::new(&[]), IoSlice::new(&body)];
            let written = poll_fn(|context| poll_write(&mut ours, context, &pieces))
                .await
                .unwrap();
            drop(ours);
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).await.unwrap();
            assert_eq!(written, read.len());
            assert!([head, body].concat().starts_with(&read));
        }
    }
}
