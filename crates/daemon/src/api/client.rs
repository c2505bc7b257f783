//! The client of the daemon's API, used by commands.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use linux::peer::UnixPeer;
use serde_json::{Map, Value};
use session::{Exit, Fault};

use super::wire::{VarlinkCall, VarlinkReply, encode};
use crate::socket_file;

/// How long a command waits for an answer for which the daemon need not observe the host. On a large host,
/// one turn of the daemon's loop may take seconds.
const GREETING_MAX: Duration = Duration::from_secs(10);

/// How long a command waits for an answer for which the daemon commits changes or observes the host.
const PATIENCE: Duration = Duration::from_secs(60);

/// The maximum size of an answer.
const REPLY_BYTES_MAX: usize = 16 << 20;

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// The daemon's address and pid, for error messages.
    who: String,
    rest: Vec<u8>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection was lost.
    #[error("{0} ended the connection: {1}")]
    Broken(String, io::Error),
    /// No answer arrived in time.
    #[error("{0} has not answered within {1} s")]
    Silent(String, u64),
    /// The received bytes are not a valid answer.
    #[error("the daemon's answer is malformed: {0}")]
    Malformed(String),
    /// The daemon refused the call.
    #[error("{}", said(.0))]
    Refused(VarlinkReply),
}

impl Client {
    /// Connects to the daemon. Returns `None` if no daemon is running.
    ///
    /// # Errors
    /// If there is a socket but connecting to it fails.
    pub fn connect(path: &Path) -> io::Result<Option<Self>> {
        let of_root = rustix::process::geteuid().is_root().then(|| socket_file::roots(path));
        let stream = of_root.and_then(|path| socket_file::connect(&path, GREETING_MAX).ok());
        let stream = match stream.map_or_else(|| socket_file::connect(path, GREETING_MAX), Ok) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::other(format!(
                    "the process that listens on this port has accepted no connection within {} s",
                    GREETING_MAX.as_secs()
                )));
            }
            other => other?,
        };
        let pid = UnixPeer::of(&stream).map(|peer| format!(", process {}", peer.pid)).unwrap_or_default();
        let who = format!("the daemon at {}{pid}", path.display());
        Ok(Some(Self { stream, who, rest: Vec::new() }))
    }

    /// Calls a method of the daemon's interface, and waits for the answer.
    ///
    /// # Errors
    /// If the call is refused, or no answer arrives.
    pub fn call(
        &mut self,
        method: &str,
        parameters: Map<String, Value>,
    ) -> Result<Map<String, Value>, CallError> {
        let patience = if method == "Status" { GREETING_MAX } else { PATIENCE };
        self.stream.set_read_timeout(Some(patience)).map_err(|error| self.broken(error, patience))?;
        self.say(method, parameters)?;
        self.hear_within(patience).map(|reply| reply.parameters)
    }

    fn say(&mut self, method: &str, parameters: Map<String, Value>) -> Result<(), CallError> {
        let method = format!("{}.{method}", super::method::INTERFACE);
        let call = VarlinkCall { method, parameters, oneway: false, more: false, upgrade: false };
        match self.stream.write_all(&encode(&call)) {
            // On EPIPE, continue: the daemon sends the reason for rejecting a client before it closes the
            // connection, and the reason is read next.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            said => said.map_err(|error| self.broken(error, GREETING_MAX)),
        }
    }

    fn broken(&self, error: io::Error, patience: Duration) -> CallError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                CallError::Silent(self.who.clone(), patience.as_secs())
            }
            _ => CallError::Broken(self.who.clone(), error),
        }
    }

    fn hear_within(&mut self, patience: Duration) -> Result<VarlinkReply, CallError> {
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
            match self.stream.read(&mut part) {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into(), patience)),
                Ok(length) => self.rest.extend_from_slice(&part[..length]),
                Err(error) => return Err(self.broken(error, patience)),
            }
        };
        let rest = self.rest.split_off(end + 1);
        let message = std::mem::replace(&mut self.rest, rest);
        let reply: VarlinkReply = serde_json::from_slice(&message[..end])
            .map_err(|error| CallError::Malformed(error.to_string()))?;
        if reply.error.is_some() { Err(CallError::Refused(reply)) } else { Ok(reply) }
    }
}

/// Formats an error reply. Uses the daemon's own text if the reply has one.
fn said(reply: &VarlinkReply) -> String {
    let error = reply.error.as_deref().unwrap_or_default();
    match (reply.parameters.get("why").and_then(Value::as_str), error.rsplit('.').next()) {
        (Some(why), _) => why.to_owned(),
        (None, Some("PermissionDenied")) => "permission denied".to_owned(),
        (None, _) => {
            let about: Vec<&str> = reply.parameters.values().filter_map(Value::as_str).collect();
            format!("the daemon: {error} {}", about.join(" ")).trim_end().to_owned()
        }
    }
}

impl From<CallError> for Fault {
    fn from(error: CallError) -> Self {
        let reply = match &error {
            CallError::Refused(reply) => reply,
            CallError::Silent(..) => return Self::failed(error).hint(
                "`netpolicy verify`, `history` and `rollback` work without the daemon; stopping it is safe and changes nothing",
            ),
            CallError::Broken(..) | CallError::Malformed(_) => return Self::failed(error),
        };
        let code =
            reply.parameters.get("exit").and_then(Value::as_u64).and_then(|code| u8::try_from(code).ok());
        let denied = reply.error.as_deref().is_some_and(|error| error.ends_with("PermissionDenied"));
        let exit = match code {
            _ if denied => Exit::Refused,
            Some(code) => Exit::of(code).unwrap_or(Exit::Failed),
            None => Exit::Failed,
        };
        let hint = reply.parameters.get("hint").and_then(Value::as_str).map(str::to_owned);
        let fault = Self::new(exit, error.to_string());
        match hint {
            Some(hint) => fault.hint(hint),
            None if denied => {
                fault.hint("only root and the members of the group given by --api-group may connect")
            }
            None => fault,
        }
    }
}
