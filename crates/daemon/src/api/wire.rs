//! The bytes of Varlink: JSON objects with a zero byte behind each.
//!
//! Varlink: varlink.org/Method-Call, a call is `{"method": …, "parameters": {…}, "more": …, "oneway": …}`, a reply
//! `{"parameters": {…}, "continues": …}` or `{"error": …, "parameters": {…}}`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// How long one message may be, without its zero byte.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A call, as it was said.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Call {
    /// Interface and method: `io.netpolicy.Status`.
    pub method: String,
    /// What goes with it; `null` is as if there were nothing.
    #[serde(default, deserialize_with = "nothing_or_more", skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// Whether no answer is wanted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oneway: bool,
    /// Whether more than one answer is wanted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Whether another protocol shall be spoken from here on. Nothing here does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upgrade: bool,
}

fn nothing_or_more<'de, D: Deserializer<'de>>(said: D) -> Result<Map<String, Value>, D::Error> {
    Ok(Option::deserialize(said)?.unwrap_or_default())
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Reply {
    /// Interface and name of an error; `None` for an answer that is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What goes with it.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Whether there are more answers to come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// It is longer than any.
    #[error("longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// It is no call.
    #[error("no Varlink call: {0}")]
    NoCall(String),
}

/// Reads one call, without its zero byte.
///
/// # Errors
/// If it is too long, no JSON object, or has no method.
pub fn decode_call(bytes: &[u8]) -> Result<Call, BadMessage> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(BadMessage::TooLong);
    }
    serde_json::from_slice(bytes).map_err(|error| BadMessage::NoCall(error.to_string()))
}

/// The bytes of a call or a reply, with the zero byte.
///
/// # Panics
/// Never: all keys are text.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(message).expect("all keys are text");
    bytes.push(0);
    bytes
}

/// What has come so far, cut into messages.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// How much of it is known to have no zero byte.
    looked: usize,
}

impl Frames {
    /// Adds what has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message; `None` if there is none yet.
    ///
    /// # Errors
    /// If what is there is too long for one.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, BadMessage> {
        let end = self.buffer[self.looked..].iter().position(|&byte| byte == 0).map(|at| at + self.looked);
        match end {
            Some(end) if end > MESSAGE_BYTES_MAX => Err(BadMessage::TooLong),
            None if self.buffer.len() > MESSAGE_BYTES_MAX => Err(BadMessage::TooLong),
            None => {
                self.looked = self.buffer.len();
                Ok(None)
            }
            Some(end) => {
                let rest = self.buffer.split_off(end + 1);
                let mut message = std::mem::replace(&mut self.buffer, rest);
                message.pop();
                self.looked = 0;
                Ok(Some(message))
            }
        }
    }

    /// Whether a whole message waits.
    pub fn has_message(&self) -> bool {
        self.buffer.contains(&0)
    }

    /// Whether the beginning of a message waits, or more.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_however_the_bytes_were_cut() {
        let call = |method: &str| Call {
            method: method.to_owned(),
            parameters: Map::new(),
            oneway: false,
            more: true,
            upgrade: false,
        };
        let calls = [call("a.b.C"), call("d.e.F")];
        let bytes: Vec<u8> = calls.iter().flat_map(encode).collect();
        for size in 1..bytes.len() {
            let mut frames = Frames::default();
            let mut decoded = Vec::new();
            for part in bytes.chunks(size) {
                frames.push(part);
                while let Some(message) = frames.next_message().expect("short") {
                    decoded.push(decode_call(&message).expect("a call"));
                }
            }
            assert_eq!(decoded, calls);
            assert!(frames.is_empty());
        }
    }

    #[test]
    fn what_is_longer_than_a_message_is_refused_before_its_end_has_come() {
        let mut frames = Frames::default();
        frames.push(&vec![b' '; MESSAGE_BYTES_MAX]);
        assert_eq!(frames.next_message(), Ok(None));
        frames.push(b" ");
        assert_eq!(frames.next_message(), Err(BadMessage::TooLong));
        frames.push(&[0]);
        assert_eq!(frames.next_message(), Err(BadMessage::TooLong));
    }

    #[test]
    fn parameters_that_are_null_are_none() {
        for said in [&b"{\"method\":\"a.b\",\"parameters\":null}"[..], b"{\"method\":\"a.b\"}"] {
            assert_eq!(decode_call(said).map(|call| call.parameters), Ok(Map::new()));
        }
    }

    #[test]
    fn what_is_no_call_is_refused_in_one_line() {
        for bytes in [&b""[..], b"{}", b"[]", b"{\"method\":1}", b"{\"method\":\"a\",\"more\":3}", b"\xff"] {
            let said = decode_call(bytes).expect_err("no call").to_string();
            assert!(said.starts_with("no Varlink call: ") && !said.contains('\n'), "{said}");
        }
        // Deeper than anybody needs: the reader stops before the stack does.
        let deep = format!("{{\"method\":\"a.b\",\"parameters\":{{\"x\":{}1", "[".repeat(10_000));
        assert!(decode_call(deep.as_bytes()).is_err());
    }
}
