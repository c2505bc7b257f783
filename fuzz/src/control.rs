//! Fuzzes bytes on the connection between the two machines of a bench: any bytes, in any fragments, decode to
//! messages or an error. Decoded messages survive a round trip. On a connection that expects seals, bytes
//! that are not sealed with the token never decode to a message.

use experiments::machines::line::{Lines, encode};
use experiments::machines::message::{Reply, Request};
use experiments::machines::token::{Challenger, Handshake, Prover, Token, handshake_lines};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn run(bytes: &[u8]) {
    // The first byte determines into which fragments the rest is split.
    let (size, rest) =
        bytes.split_first().map_or((1, bytes), |(first, rest)| (usize::from(*first) + 1, rest));
    understood::<Request>(Lines::default(), size, rest);
    understood::<Reply>(Lines::default(), size, rest);
    let token = Token::of(b"a token that the input does not know");
    let challenger = Challenger::new().expect("random numbers");
    for message in understood::<Handshake>(handshake_lines(), size, rest) {
        assert!(challenger.check(&token, &message).is_err());
        let _ = Prover::answer(&token, &message);
    }
    let (prover, answer) = Prover::answer(&token, &challenger.challenge()).expect("a challenge");
    let (welcome, seals) = challenger.check(&token, &answer).expect("the same token");
    assert!(prover.check(&welcome).is_ok());
    let mut sealed = Lines::default();
    sealed.expect_seal(seals.received);
    assert!(understood::<Request>(sealed, size, rest).is_empty());
}

/// Returns the messages decoded from these bytes.
fn understood<T: DeserializeOwned + Serialize>(mut lines: Lines, size: usize, bytes: &[u8]) -> Vec<T> {
    let mut messages = Vec::new();
    for part in bytes.chunks(size) {
        lines.push(part);
        loop {
            match lines.next_message::<T>() {
                Ok(None) => break,
                Err(_) => return messages,
                Ok(Some(message)) => {
                    let line = encode(&message).expect("no longer than what came");
                    let mut again = Lines::default();
                    again.push(&line);
                    let again: T = again.next_message().expect("a message").expect("a whole one");
                    assert_eq!(encode(&again).expect("the same"), line);
                    messages.push(message);
                }
            }
        }
    }
    messages
}
