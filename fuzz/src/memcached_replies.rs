//! Fuzzes the replies of a memcached, in fragments: where the fragments begin makes no difference.

use arbitrary::{Arbitrary, Unstructured};
use load::protocol::{Malformed, Parser, Reply};

pub(crate) fn run(input: &[u8]) {
    let input = Unstructured::new(input);
    let Ok((bytes, cuts)) = <(Vec<u8>, Vec<u16>)>::arbitrary_take_rest(input) else { return };
    let whole = replies(std::iter::once(&bytes[..]));
    let mut pieces = Vec::new();
    let mut rest = &bytes[..];
    for cut in cuts {
        let (piece, behind) = rest.split_at(usize::from(cut).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces.push(rest);
    assert_eq!(replies(pieces.into_iter()), whole);
}

/// Returns all replies in these fragments, and the error if they end in invalid bytes.
fn replies<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Reply>, Option<Malformed>) {
    let mut parser = Parser::default();
    let mut replies = Vec::new();
    for mut piece in pieces {
        loop {
            match parser.reply(&mut piece) {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(malformed) => return (replies, Some(malformed)),
            }
        }
    }
    (replies, None)
}
