//! Varlink's framing: JSON objects, each followed by a zero byte.
//!
//! According to varlink.org/Method-Call, a call is `{"method": …, "parameters": {…}, "more": …, "oneway":
//! …}`, and a reply is `{"parameters": {…}, "continues": …}` or `{"error": …, "parameters": {…}}`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The maximum length of a message, without its zero byte.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A call.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct VarlinkCall {
    /// The method's name, with its interface: `io.netpolicy.Status`.
    pub method: String,
    /// The parameters; `null` counts as no parameters.
    #[serde(default, deserialize_with = "nothing_or_more", skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// Whether the client wants no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oneway: bool,
    /// Whether the client accepts several answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Whether the client wants to switch to another protocol. No method supports it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upgrade: bool,
}

fn nothing_or_more<'de, D: Deserializer<'de>>(said: D) -> Result<Map<String, Value>, D::Error> {
    Ok(Option::deserialize(said)?.unwrap_or_default())
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct VarlinkReply {
    /// The error's name, with its interface; `None` for success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The parameters.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Whether further answers to the same call follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

/// Why received bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The message is too long.
    #[error("longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// The message is not a call.
    #[error("not a Varlink call: {0}")]
    NoCall(String),
}

/// Parses a call, given without its zero byte.
///
/// # Errors
/// If the call is too long, is not a JSON object, or has no method.
pub fn decode_call(bytes: &[u8]) -> Result<VarlinkCall, BadMessage> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(BadMessage::TooLong);
    }
    serde_json::from_slice(bytes).map_err(|error| BadMessage::NoCall(error.to_string()))
}

/// Encodes a call or a reply, with the zero byte.
///
/// # Panics
/// Never: all keys are text.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(message).expect("all keys are text");
    bytes.push(0);
    bytes
}

/// Splits received bytes into messages.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// The number of bytes at the start of the buffer that are known to contain no zero byte.
    looked: usize,
}

impl Frames {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete message, or `None` if it is still incomplete.
    ///
    /// # Errors
    /// If the buffered bytes are too many for a message.
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

    /// Whether a complete message is buffered.
    pub fn has_message(&self) -> bool {
        self.buffer.contains(&0)
    }

    /// Whether nothing is buffered.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The number of buffered bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_however_the_bytes_were_cut() {
        let call = |method: &str| VarlinkCall {
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
            assert!(said.starts_with("not a Varlink call: ") && !said.contains('\n'), "{said}");
        }
        // Much deeper nesting than in any real message: the parser must reject it before the stack overflows.
        let deep = format!("{{\"method\":\"a.b\",\"parameters\":{{\"x\":{}1", "[".repeat(10_000));
        assert!(decode_call(deep.as_bytes()).is_err());
    }
}
