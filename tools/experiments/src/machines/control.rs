//! The client's end of the connection.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use session::{Exit, Fault, HostState};

use super::args::TwoMachines;
use super::message::{ALIVE_EVERY, Hello, Lines, Reply, Request, encode};

/// The variable with the command that is used instead of `ssh`, for a shell. It is given the destination and
/// the words of the command to run there.
pub(crate) const SSH_VARIABLE: &str = "NETPOLICY_SSH_COMMAND";

/// Maximum time until the other machine greets: the operator may have to type a password.
const GREETS_WITHIN: Duration = Duration::from_secs(120);

/// Maximum time of any other reply: servers have to start, and a file to be filled.
const REPLIES_WITHIN: Duration = Duration::from_secs(300);

/// Maximum time until ssh exits after its input was closed. The other machine restores itself in this time.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// A connection to the server's machine. Dropping it makes that machine restore itself.
#[derive(Debug)]
pub(crate) struct Control {
    server: String,
    ssh: Child,
    /// `None` once it is closed.
    to: Arc<Mutex<Option<ChildStdin>>>,
    replies: Receiver<Result<Reply, String>>,
    _alive: Sender<()>,
    is_lost: bool,
}

impl Control {
    /// Connects, and checks that the other machine has the same version.
    ///
    /// # Errors
    /// If ssh or netpolicy cannot be started there; [`Exit::Unsupported`] for another version.
    pub(crate) fn connect(options: &TwoMachines) -> Result<Self, Fault> {
        let Some(server) = &options.server else {
            return Err(Fault::new(Exit::Usage, "no --server is named"));
        };
        let ssh = std::env::var(SSH_VARIABLE).ok().filter(|command| !command.trim().is_empty());
        let ssh = ssh.unwrap_or_else(|| "ssh".to_owned());
        let mut command = Command::new("/bin/sh");
        // Ctrl-C is for this program, which then restores the other machine: ssh heeds ignored signals.
        command.args(["-c", &format!("trap '' INT QUIT; exec {ssh} \"$@\""), "netpolicy-ssh", &server.host]);
        command.args(options.server_program.split_whitespace()).args(["bench", "serve", "--stdio"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut ssh = command.spawn().map_err(|error| Fault::file("/bin/sh", error))?;
        let (Some(to), Some(from)) = (ssh.stdin.take(), ssh.stdout.take()) else {
            return Err(Fault::failed("ssh has no pipes"));
        };
        let (sender, replies) = mpsc::channel();
        let (alive, ended) = mpsc::channel();
        let to = Arc::new(Mutex::new(Some(to)));
        let beats = Arc::clone(&to);
        let spawned =
            std::thread::Builder::new().name("replies".to_owned()).spawn(move || read(from, &sender));
        spawned.map_err(|error| Fault::file("a thread", error))?;
        let spawned =
            std::thread::Builder::new().name("alive".to_owned()).spawn(move || beat(&beats, &ended));
        spawned.map_err(|error| Fault::file("a thread", error))?;
        let server = server.to_string();
        let mut control = Self { server, ssh, to, replies, _alive: alive, is_lost: false };
        control.send(&Request::Hello(Hello::own()))?;
        match control.reply(GREETS_WITHIN)? {
            Reply::Hello(hello) => hello.check(&control.server)?,
            other => return Err(control.unexpected(&other)),
        }
        Ok(control)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// The failure there, or that the connection is lost: then the other machine restores itself.
    pub(crate) fn request(&mut self, request: &Request) -> Result<Reply, Fault> {
        self.send(request)?;
        self.reply(REPLIES_WITHIN)
    }

    /// The same for a request whose reply has no content.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub(crate) fn order(&mut self, request: &Request) -> Result<(), Fault> {
        match self.request(request)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The fault for a reply to something else.
    pub(crate) fn unexpected(&mut self, reply: &Reply) -> Fault {
        let words: String = format!("{reply:?}").chars().take(80).collect();
        self.lose(format!("it replied {words}, which was not expected"))
    }

    fn send(&mut self, request: &Request) -> Result<(), Fault> {
        let line = encode(request)?;
        if self.is_lost {
            return Err(self.lose("the connection was lost before".to_owned()));
        }
        let sent = write(&self.to, &line);
        sent.map_err(|error| match self.replies.recv_timeout(Duration::from_secs(1)) {
            // It said why it ended.
            Ok(Ok(Reply::Failed(failure))) => failure.into_fault(&self.server),
            _ => self.lose(error.to_string()),
        })
    }

    fn reply(&mut self, within: Duration) -> Result<Reply, Fault> {
        match self.replies.recv_timeout(within) {
            Ok(Ok(Reply::Failed(failure))) => Err(failure.into_fault(&self.server)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(why)) => Err(self.lose(why)),
            Err(RecvTimeoutError::Timeout) => Err(self.lose(format!("no reply within {within:?}"))),
            Err(RecvTimeoutError::Disconnected) => Err(self.lose("the connection ended".to_owned())),
        }
    }

    /// Ends the connection, and returns what that means for the other machine.
    fn lose(&mut self, why: String) -> Fault {
        self.is_lost = true;
        let ended = self.end();
        let server = &self.server;
        let (exit, why) = match ended.and_then(|status| status.code()) {
            // What netpolicy there ended with, and said on its standard error.
            Some(code @ (6 | 7)) => (Exit::of(code.try_into().unwrap_or(1)).unwrap_or(Exit::Failed), why),
            Some(2) => (
                Exit::Unsupported,
                format!("{why}; netpolicy there does not know `bench serve --stdio`: it has another version"),
            ),
            Some(127) => (Exit::Unsupported, format!("{why}; netpolicy or ssh is not installed")),
            Some(255) => (Exit::Failed, format!("{why}; ssh failed")),
            _ => (Exit::Failed, why),
        };
        Fault::new(exit, format!("the connection to {server} is lost: {why}"))
            .leaving(HostState::Unknown)
            .hint(format!(
                "{server} restores itself when the connection ends; `netpolicy history` there shows it"
            ))
    }

    /// Closes the connection and waits until ssh has exited.
    fn end(&mut self) -> Option<std::process::ExitStatus> {
        drop(self.to.lock().unwrap_or_else(PoisonError::into_inner).take());
        let begun = Instant::now();
        while begun.elapsed() < ENDS_WITHIN {
            match self.ssh.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
        let _ = self.ssh.kill();
        self.ssh.wait().ok()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end();
    }
}

fn write(to: &Mutex<Option<ChildStdin>>, line: &[u8]) -> std::io::Result<()> {
    match to.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        Some(to) => to.write_all(line),
        None => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}

/// Reads replies until the connection ends.
fn read(mut from: ChildStdout, replies: &Sender<Result<Reply, String>>) {
    let (mut lines, mut buffer) = (Lines::default(), vec![0; READ_BYTES]);
    loop {
        loop {
            match lines.next_message() {
                Ok(None) => break,
                Ok(Some(reply)) => {
                    if replies.send(Ok(reply)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let _ = replies.send(Err(error.to_string()));
                    return;
                }
            }
        }
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => lines.push(&buffer[..length]),
        }
    }
}

/// Says that this program is there, until the connection is dropped.
fn beat(to: &Mutex<Option<ChildStdin>>, ended: &Receiver<()>) {
    let Ok(line) = encode(&Request::Alive) else { return };
    while ended.recv_timeout(ALIVE_EVERY) == Err(RecvTimeoutError::Timeout) {
        if write(to, &line).is_err() {
            return;
        }
    }
}
