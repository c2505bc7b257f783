//! Fuzzes bytes from clients on the daemon's socket: any bytes, in any fragments, decode to calls or
//! refusals, and to no more messages than were sent.

use daemon::api::method::Method;
use daemon::api::wire::{Frames, MESSAGE_BYTES_MAX, decode_call, encode};

pub(crate) fn run(bytes: &[u8]) {
    let mut frames = Frames::default();
    // The first byte determines into which fragments the rest is split.
    let (size, rest) =
        bytes.split_first().map_or((1, bytes), |(first, rest)| (usize::from(*first) + 1, rest));
    let mut heard = 0;
    for part in rest.chunks(size) {
        frames.push(part);
        loop {
            match frames.next_message() {
                Ok(None) => break,
                Err(_) => return,
                Ok(Some(message)) => {
                    heard += message.len() + 1;
                    assert!(message.len() <= MESSAGE_BYTES_MAX && heard <= rest.len());
                    let Ok(call) = decode_call(&message) else { continue };
                    if let Err(refusal) = Method::of(&call, "fuzz") {
                        assert!(refusal.error.contains('.'));
                    }
                    // A decoded call survives a round trip.
                    let again = encode(&call);
                    assert_eq!(decode_call(&again[..again.len() - 1]).as_ref(), Ok(&call));
                }
            }
        }
    }
}
