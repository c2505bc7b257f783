//! The other end: how the commands speak to the daemon.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::wire::{Call, Reply, encode};

/// How long a command waits for an answer. A commit on a large host takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an answer may be.
const REPLY_BYTES_MAX: usize = 16 << 20;

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    rest: Vec<u8>,
}

/// Why a call brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection broke, or the answer did not come in time.
    #[error("the daemon: {0}")]
    Broken(#[from] io::Error),
    /// What came is no answer.
    #[error("the daemon's answer is malformed: {0}")]
    Malformed(String),
    /// The daemon said no.
    #[error("{}", said(.0))]
    Refused(Reply),
}

impl Client {
    /// Connects to the daemon; `None` where none runs.
    ///
    /// # Errors
    /// If there is a socket that cannot be connected to.
    pub fn connect(path: &Path) -> io::Result<Option<Self>> {
        let stream = match UnixStream::connect(path) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            other => other?,
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Some(Self { stream, rest: Vec::new() }))
    }

    /// Calls a method of the daemon's interface, and waits for its answer.
    ///
    /// # Errors
    /// If it is refused, or does not come.
    pub fn call(
        &mut self,
        method: &str,
        parameters: Map<String, Value>,
    ) -> Result<Map<String, Value>, CallError> {
        self.say(method, parameters, false)?;
        self.hear().map(|reply| reply.parameters)
    }

    /// Calls a method whose answer comes again whenever it changes; [`Client::hear`] hears the next.
    ///
    /// # Errors
    /// If it cannot be said.
    pub fn call_more(&mut self, method: &str, parameters: Map<String, Value>) -> Result<(), CallError> {
        self.say(method, parameters, true)
    }

    fn say(&mut self, method: &str, parameters: Map<String, Value>, more: bool) -> Result<(), CallError> {
        let method = format!("{}.{method}", super::method::INTERFACE);
        let call = Call { method, parameters, oneway: false, more, upgrade: false };
        Ok(self.stream.write_all(&encode(&call))?)
    }

    /// The next answer.
    ///
    /// # Errors
    /// If it is an error, or does not come.
    pub fn hear(&mut self) -> Result<Reply, CallError> {
        let mut looked = 0;
        let end = loop {
            if let Some(at) = self.rest[looked..].iter().position(|&byte| byte == 0) {
                break looked + at;
            }
            looked = self.rest.len();
            if looked > REPLY_BYTES_MAX {
                return Err(CallError::Malformed(format!("longer than {REPLY_BYTES_MAX} bytes")));
            }
            let mut part = [0; 16 * 1024];
            match self.stream.read(&mut part)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                length => self.rest.extend_from_slice(&part[..length]),
            }
        };
        let rest = self.rest.split_off(end + 1);
        let message = std::mem::replace(&mut self.rest, rest);
        let reply: Reply = serde_json::from_slice(&message[..end])
            .map_err(|error| CallError::Malformed(error.to_string()))?;
        if reply.error.is_some() { Err(CallError::Refused(reply)) } else { Ok(reply) }
    }
}

/// An error in the daemon's own words, where it has some.
fn said(reply: &Reply) -> String {
    let error = reply.error.as_deref().unwrap_or_default();
    match (reply.parameters.get("why").and_then(Value::as_str), error.rsplit('.').next()) {
        (Some(why), _) => why.to_owned(),
        (None, Some("PermissionDenied")) => "the daemon does not take this from you".to_owned(),
        (None, _) => {
            let about: Vec<&str> = reply.parameters.values().filter_map(Value::as_str).collect();
            format!("the daemon: {error} {}", about.join(" ")).trim_end().to_owned()
        }
    }
}
