//! The client's end of the connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use linux::Netns;
use rustix::net::sockopt::set_tcp_user_timeout;
use session::{Exit, Fault, HostState};

use super::args::{Peer, TwoMachines};
use super::line::{Lines, Seal, encode};
use super::message::{ALIVE_EVERY, Hello, Reply, Request, SILENCE_MAX};
use super::token::{Handshake, Prover, Token, handshake_lines};

/// The environment variable with the shell command to use instead of `ssh`. Its arguments are the destination
/// and the words of the remote command.
pub(crate) const SSH_VARIABLE: &str = "NETPOLICY_SSH_COMMAND";

/// The default command: ssh exits if the server's machine has not answered for [`SILENCE_MAX`].
const SSH: &str = "ssh -o ServerAliveInterval=5 -o ServerAliveCountMax=3";

/// How long to wait for the other machine's greeting. The operator may have to type a password.
const GREETS_WITHIN: Duration = Duration::from_secs(120);

/// How long to wait for any other reply. Servers may have to start, and a file may have to be filled.
const REPLIES_WITHIN: Duration = Duration::from_secs(300);

/// How long to wait for ssh to exit after its input was closed. In this time, the other machine restores
/// itself.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait in one attempt to connect by TCP and, until both ends are authenticated, for each
/// message.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);

/// The maximum number of bytes to read in one call.
const READ_BYTES: usize = 64 << 10;

/// A connection to the server's machine. Dropping it makes that machine restore itself.
#[derive(Debug)]
pub(crate) struct Control {
    server: String,
    link: Link,
    /// The stream for requests; `None` once it is closed.
    to: Arc<Mutex<Option<Sink>>>,
    replies: Receiver<Result<Reply, String>>,
    _alive: Sender<()>,
    is_lost: bool,
    /// Whether the other machine has greeted.
    has_greeted: bool,
}

/// The transport between both machines.
#[derive(Debug)]
enum Link {
    Ssh(Child),
    Tcp(TcpStream),
}

/// The stream for requests.
struct Sink {
    to: Box<dyn Write + Send>,
    seal: Option<Seal>,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("seal", &self.seal).finish_non_exhaustive()
    }
}

/// The stream of replies.
struct Source {
    from: Box<dyn Read + Send>,
    lines: Lines,
}

impl Control {
    /// Connects from this namespace, and checks that the other machine has the same version.
    ///
    /// # Errors
    /// If ssh or netpolicy cannot be started, or no program listens on the port; [`Exit::Unsupported`] for
    /// another version, [`Exit::Refused`] for another token.
    pub(crate) fn connect(options: &TwoMachines, netns: &Netns) -> Result<Self, Fault> {
        let usage = |words: String, hint: &str| Fault::new(Exit::Usage, words).hint(hint);
        let Some(peer) = &options.server else {
            return Err(Fault::new(Exit::Usage, "no --server is named"));
        };
        let (link, sink, source) = match (peer, &options.token) {
            (Peer::Ssh { host }, None) => by_ssh(host, options)?,
            (Peer::Tcp { host, port }, Some(path)) => {
                let token = Token::read(path)?;
                netns.run(|| by_tcp((host, *port), peer, &token))??
            }
            (Peer::Ssh { .. }, Some(_)) => {
                return Err(usage(
                    format!("--server ssh:{peer} needs no --token"),
                    "ssh authenticates both machines",
                ));
            }
            (Peer::Tcp { .. }, None) => {
                let hint = "name the token file of `netpolicy bench serve --listen` on that machine";
                return Err(usage(format!("--server {peer} needs --token"), hint));
            }
        };
        let (sender, replies) = mpsc::channel();
        let (alive, ended) = mpsc::channel();
        let to = Arc::new(Mutex::new(Some(sink)));
        let beats = Arc::clone(&to);
        let spawned =
            std::thread::Builder::new().name("replies".to_owned()).spawn(move || read(source, &sender));
        spawned.map_err(|error| Fault::file("a thread", error))?;
        let spawned =
            std::thread::Builder::new().name("alive".to_owned()).spawn(move || beat(&beats, &ended));
        spawned.map_err(|error| Fault::file("a thread", error))?;
        let server = peer.to_string();
        let mut control =
            Self { server, link, to, replies, _alive: alive, is_lost: false, has_greeted: false };
        control.send(&Request::Hello(Hello::own()))?;
        match control.reply(GREETS_WITHIN)? {
            Reply::Hello(hello) => hello.check(&control.server)?,
            other => return Err(control.unexpected(&other)),
        }
        control.has_greeted = true;
        Ok(control)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// If the request fails on the other machine, or the connection is lost; the other machine then restores
    /// itself.
    pub(crate) fn request(&mut self, request: &Request) -> Result<Reply, Fault> {
        self.send(request)?;
        self.reply(REPLIES_WITHIN)
    }

    /// Sends a request whose reply has no content, and waits for the reply.
    ///
    /// # Errors
    /// As for [`Self::request`].
    pub(crate) fn order(&mut self, request: &Request) -> Result<(), Fault> {
        match self.request(request)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Creates the fault for a reply that does not belong to the request.
    pub(crate) fn unexpected(&mut self, reply: &Reply) -> Fault {
        let words: String = format!("{reply:?}").chars().take(80).collect();
        self.lose(format!("unexpected reply: {words}"))
    }

    fn send(&mut self, request: &Request) -> Result<(), Fault> {
        if self.is_lost {
            return Err(self.lose("the connection was already lost".to_owned()));
        }
        let line = encode(request)?;
        let sent = write(&self.to, &line);
        // If the server closed the connection, it sent the reason first.
        sent.map_err(|error| match self.replies.recv_timeout(Duration::from_secs(1)) {
            Ok(Ok(Reply::Failed(failure))) => failure.into_fault(&self.server),
            Ok(Ok(Reply::Hello(hello))) => {
                hello.check(&self.server).err().unwrap_or_else(|| self.lose(error.to_string()))
            }
            Ok(Err(why)) => self.lose(why),
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

    /// Ends the connection, and returns the fault with the state of the other machine.
    fn lose(&mut self, why: String) -> Fault {
        self.is_lost = true;
        let ended = self.end();
        let server = &self.server;
        let (exit, why) = match ended.and_then(|status| status.code()) {
            // ssh exits with the exit code of the other machine's netpolicy, which has printed the reason to
            // standard error.
            Some(code @ (6 | 7)) => (Exit::of(code.try_into().unwrap_or(1)).unwrap_or(Exit::Failed), why),
            // netpolicy exited on the other machine before its greeting, because clap rejected the command
            // line.
            Some(2) if !self.has_greeted => (
                Exit::Unsupported,
                format!(
                    "{why}; its netpolicy does not support `bench serve --stdio`: it has another version"
                ),
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

    /// Closes the connection and waits until the other machine has restored itself and closed the connection,
    /// too. Returns the exit status of ssh.
    fn end(&mut self) -> Option<ExitStatus> {
        drop(self.to.lock().unwrap_or_else(PoisonError::into_inner).take());
        let begun = Instant::now();
        match &mut self.link {
            Link::Ssh(ssh) => {
                while begun.elapsed() < ENDS_WITHIN {
                    match ssh.try_wait() {
                        Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                        Ok(status) => return status,
                        Err(_) => return None,
                    }
                }
                let _ = ssh.kill();
                ssh.wait().ok()
            }
            Link::Tcp(stream) => {
                let _ = stream.shutdown(Shutdown::Write);
                while let Some(left) = ENDS_WITHIN.checked_sub(begun.elapsed()) {
                    if self.replies.recv_timeout(left).is_err() {
                        break;
                    }
                }
                let _ = stream.shutdown(Shutdown::Both);
                None
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts netpolicy on another machine.
fn by_ssh(host: &str, options: &TwoMachines) -> Result<(Link, Sink, Source), Fault> {
    let ssh = std::env::var(SSH_VARIABLE).ok().filter(|command| !command.trim().is_empty());
    let ssh = ssh.unwrap_or_else(|| SSH.to_owned());
    let mut command = Command::new("/bin/sh");
    // Ctrl-C must reach only this program, which then restores the other machine. ssh keeps ignoring signals
    // that are ignored when it starts.
    command.args(["-c", &format!("trap '' INT QUIT; exec {ssh} \"$@\""), "netpolicy-ssh", host]);
    command.args(options.server_program.split_whitespace()).args(["bench", "serve", "--stdio"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut ssh = command.spawn().map_err(|error| Fault::file("/bin/sh", error))?;
    let (Some(to), Some(from)) = (ssh.stdin.take(), ssh.stdout.take()) else {
        return Err(Fault::failed("ssh has no pipes"));
    };
    let source = Source { from: Box::new(from), lines: Lines::default() };
    Ok((Link::Ssh(ssh), Sink { to: Box::new(to), seal: None }, source))
}

/// Connects to `bench serve --listen` on another machine, and authenticates both ends.
fn by_tcp(address: (&str, u16), peer: &Peer, token: &Token) -> Result<(Link, Sink, Source), Fault> {
    let failed = |error| Fault::file(peer.to_string(), error);
    // `--listen` takes no host name.
    let to = address.to_socket_addrs().ok().and_then(|mut to| to.next());
    let listen = to.map_or_else(|| "ADDRESS:PORT".to_owned(), |to| to.to_string());
    let listen = format!("run `netpolicy bench serve --listen {listen} --token FILE` there");
    let stream = connected(address).map_err(|error| failed(error).hint(listen))?;
    // Messages mark the start and end of a window, so they must not be delayed.
    stream.set_nodelay(true).map_err(failed)?;
    // Limit the wait: a machine that lost its power or its network acknowledges nothing.
    let silence = u32::try_from(SILENCE_MAX.as_millis()).unwrap_or(u32::MAX);
    set_tcp_user_timeout(&stream, silence).map_err(|errno| failed(errno.into()))?;
    for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        set(&stream, Some(CONNECTS_WITHIN)).map_err(failed)?;
    }
    let (mut to, from) = (stream.try_clone().map_err(failed)?, stream.try_clone().map_err(failed)?);
    let mut source = Source { from: Box::new(from), lines: handshake_lines() };
    let of_peer = |fault: Fault| Fault { cause: format!("{peer}: {}", fault.cause).into(), ..fault };
    let challenge = source.shake().map_err(of_peer)?;
    let (prover, answer) = Prover::answer(token, &challenge).map_err(of_peer)?;
    to.write_all(&encode(&answer)?).map_err(failed)?;
    let welcome = source.shake().map_err(of_peer)?;
    let seals = prover.check(&welcome).map_err(|why| of_peer(Fault::new(Exit::Refused, why)))?;
    source.lines.expect_seal(seals.received);
    stream.set_read_timeout(None).map_err(failed)?;
    Ok((Link::Tcp(stream), Sink { to: Box::new(to), seal: Some(seals.sent) }, source))
}

fn connected(address: (&str, u16)) -> std::io::Result<TcpStream> {
    let mut last = std::io::ErrorKind::NotFound.into();
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECTS_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn write(to: &Mutex<Option<Sink>>, line: &[u8]) -> std::io::Result<()> {
    match to.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        Some(Sink { to, seal: Some(seal) }) => to.write_all(&seal.seal(line)),
        Some(Sink { to, seal: None }) => to.write_all(line),
        None => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}

impl Source {
    /// Waits for the next message of the handshake.
    fn shake(&mut self) -> Result<Handshake, Fault> {
        let mut buffer = [0; 512];
        loop {
            if let Some(message) = self.lines.next_message().map_err(Fault::failed)? {
                return Ok(message);
            }
            match self.from.read(&mut buffer) {
                Ok(0) => return Err(Fault::failed("it closed the connection")),
                Ok(length) => self.lines.push(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err(Fault::failed(format!("no message within {CONNECTS_WITHIN:?}")));
                }
                Err(error) => return Err(Fault::failed(error)),
            }
        }
    }
}

/// Reads replies until the connection ends.
fn read(Source { mut from, mut lines }: Source, replies: &Sender<Result<Reply, String>>) {
    let mut buffer = vec![0; READ_BYTES];
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
            Ok(0) => return,
            Ok(length) => lines.push(&buffer[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                let _ = replies.send(Err(error.to_string()));
                return;
            }
        }
    }
}

/// Sends keep-alives until the connection is dropped.
fn beat(to: &Mutex<Option<Sink>>, ended: &Receiver<()>) {
    let Ok(line) = encode(&Request::Alive) else { return };
    while ended.recv_timeout(ALIVE_EVERY) == Err(RecvTimeoutError::Timeout) {
        if write(to, &line).is_err() {
            return;
        }
    }
}
