//! Uses irqbalance's socket to read and change its bans: the interrupts that irqbalance does not move.
//!
//! A command is one message; an answer is all data until the connection is closed. The answer to `setup` is
//! `SLEEP 10 IRQ 38 LOAD 0 DIFF 0 CLASS 5 … BANNED 00000001`: the numbers after `IRQ` are the bans, the mask
//! after `BANNED` lists banned CPUs. `settings ban irqs 38 39` replaces all earlier bans, so the command must
//! repeat the bans that are to stay; `NONE` means no bans. `settings` has no answer. Users other than root
//! get no answers.
//!
//! Three properties of irqbalance determine how the socket is used:
//!
//! - Versions up to 1.9.4 read at most 500 bytes of a command and drop the rest, which may cut the last
//!   number. Therefore a long command is preceded by a `setup` of the same length; if irqbalance does not
//!   read that to its end, the kernel resets the connection.
//! - After each ban, irqbalance scans the machine again. Before that scan, versions before 1.9.4 sleep one
//!   interval (10 s) without answering, so the writer waits.
//! - A client that closes a connection before the answer, or sends nothing, may kill irqbalance: irqbalance
//!   parses the data that an earlier connection left in its memory, answers that, and has no handler for
//!   SIGPIPE (under systemd the signal is ignored). So no connection is opened only to test whether
//!   irqbalance runs, and none is closed early.
//!
//! irqbalance: 1.0.9 to 1.9.5, `irqbalance.c` `sock_handle()`, `init_socket()`, `scan()`.

use std::collections::BTreeSet;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::host::RunningIrqbalance;
use model::{IrqNumber, Pid};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, UCred, connect, sendmsg, socket_with,
};
use sys::error::{Cause, Errno, KernelError};

use crate::peer::UnixPeer;

/// The directory of irqbalance's socket since version 1.5 (`irqbalance.h` `SOCKET_TMPFS`), unless irqbalance
/// cannot create the socket there.
const DIRECTORY: &str = "/run/irqbalance";

/// The time limit for each exchange with irqbalance. After a ban, versions before 1.9.4 do not listen for 10
/// s.
const PATIENCE: Duration = Duration::from_secs(15);

/// The maximum size of an answer: a line of some 60 bytes for each of 16 000 interrupts.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The number of bytes of a command that every version of irqbalance reads.
const COMMAND_BYTES_READ: usize = 500;

/// The maximum number of sockets that are tried: a killed irqbalance leaves its socket behind.
const SOCKETS_MAX: usize = 64;

/// Where to look for a running irqbalance, and how long to wait for it.
#[derive(Clone, Debug, Default)]
pub struct Irqbalance {
    /// The directory of irqbalance's socket; `None` for the default one.
    directory: Option<PathBuf>,
    patience: Option<Duration>,
}

/// A running irqbalance that answers on its socket.
#[derive(Clone, Debug)]
pub struct IrqbalanceSocket {
    address: SocketAddrUnix,
    pid: Pid,
    patience: Duration,
    bans: BTreeSet<IrqNumber>,
}

impl Irqbalance {
    /// Looks for irqbalance at its default place on this host.
    pub const fn new() -> Self {
        Self { directory: None, patience: None }
    }

    /// Looks for an irqbalance whose socket is in another directory.
    #[must_use]
    pub fn in_directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Sets the time limit for each exchange with irqbalance.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Returns the running irqbalance and its bans; `None` if none runs.
    ///
    /// # Errors
    /// EPERM for users other than root, ETIMEDOUT if irqbalance does not answer, [`Cause::Malformed`] for a
    /// malformed answer.
    pub fn running(&self) -> Result<Option<IrqbalanceSocket>, KernelError> {
        let patience = self.patience.unwrap_or(PATIENCE);
        for address in self.addresses() {
            let failed = |cause| KernelError { what: "irqbalance: setup".to_owned(), cause }.needing("root");
            let connection = match open(&address, patience) {
                // This socket is stale: its process no longer exists.
                Err(Errno::CONNREFUSED | Errno::NOENT) => continue,
                other => other.map_err(|errno| failed(Cause::Errno(errno)))?,
            };
            let peer = UnixPeer::of(&connection)?;
            // Only root's irqbalance can move interrupts; any user can bind an abstract name.
            if peer.uid != 0 || address.path().is_none() && !is_irqbalance(peer.pid) {
                continue;
            }
            let bans = ask(&connection, "setup", patience).and_then(|said| bans_said(&said));
            let bans = bans.map_err(|cause| about(peer.pid, "setup", cause))?;
            return Ok(Some(IrqbalanceSocket { address, pid: peer.pid, patience, bans }));
        }
        Ok(None)
    }

    /// Like [`Irqbalance::running`], but does not wait for an irqbalance that is busy or sleeping: returns
    /// only its pid.
    ///
    /// # Errors
    /// Those of [`Irqbalance::running`].
    pub fn unless_busy(&self) -> Result<Option<RunningIrqbalance>, KernelError> {
        let busy = self.addresses().into_iter().find_map(|address| sleeping(&address.path()?));
        if let Some(pid) = busy {
            return Ok(Some(RunningIrqbalance { pid, banned: None }));
        }
        let running = self.running()?;
        Ok(running.map(|running| RunningIrqbalance { pid: running.pid, banned: Some(running.bans) }))
    }

    /// Whether an interrupt is banned.
    ///
    /// # Errors
    /// [`Cause::Gone`] if irqbalance does not run; those of [`Irqbalance::running`].
    pub fn is_banned(&self, irq: IrqNumber) -> Result<bool, KernelError> {
        Ok(self.needed()?.bans.contains(&irq))
    }

    /// Bans an interrupt, or lifts its ban. Other bans stay.
    ///
    /// # Errors
    /// [`Cause::Gone`] if irqbalance does not run, [`Cause::Absent`] if the command would be longer than
    /// irqbalance reads; those of [`Irqbalance::running`].
    pub fn ban(&self, irq: IrqNumber, banned: bool) -> Result<(), KernelError> {
        self.needed()?.ban(irq, banned)
    }

    fn needed(&self) -> Result<IrqbalanceSocket, KernelError> {
        self.running()?.ok_or_else(|| KernelError::gone("irqbalance", "not running"))
    }

    fn addresses(&self) -> Vec<SocketAddrUnix> {
        let directory = self.directory.as_deref().unwrap_or(Path::new(DIRECTORY));
        let mut addresses = in_directory(directory);
        if self.directory.is_none() {
            addresses.extend(abstract_names());
        }
        addresses.truncate(SOCKETS_MAX);
        addresses
    }
}

impl IrqbalanceSocket {
    /// irqbalance's pid.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The banned interrupts. irqbalance does not report interrupts that it leaves alone for other reasons: a
    /// policy script, a driver's module, or an affinity that the kernel manages.
    pub fn bans(&self) -> &BTreeSet<IrqNumber> {
        &self.bans
    }

    fn ban(mut self, irq: IrqNumber, banned: bool) -> Result<(), KernelError> {
        if self.bans.contains(&irq) == banned {
            return Ok(());
        }
        if banned {
            self.bans.insert(irq)
        } else {
            self.bans.remove(&irq)
        };
        let command = ban_command(&self.bans);
        if command.len() > COMMAND_BYTES_READ {
            self.reads(command.len())?;
        }
        match self.say(&command).map_err(|cause| about(self.pid, &command, cause))?.as_str() {
            "" => Ok(()),
            said => {
                let why = format!("unexpected reply `{}`", said.escape_debug());
                Err(about(self.pid, &command, Cause::Malformed(why)))
            }
        }
    }

    /// Checks that irqbalance reads a command of this length to its end.
    fn reads(&self, length: usize) -> Result<(), KernelError> {
        let said = self.say(&format!("{:length$}", "setup")).and_then(|said| bans_said(&said));
        match said {
            Ok(_) => Ok(()),
            Err(Cause::Errno(Errno::CONNRESET | Errno::PERM)) => {
                let what = format!("irqbalance[{}]: {} bans", self.pid, self.bans.len());
                let needs = format!("an irqbalance that reads commands of {length} bytes");
                Err(KernelError::absent(what, needs, None))
            }
            Err(cause) => Err(about(self.pid, "setup", cause)),
        }
    }

    fn say(&self, words: &str) -> Result<String, Cause> {
        let connection = open(&self.address, self.patience).map_err(|errno| match errno {
            Errno::CONNREFUSED | Errno::NOENT => Cause::Gone("no longer running".to_owned()),
            errno => Cause::Errno(errno),
        })?;
        ask(&connection, words, self.patience)
    }
}

fn about(pid: Pid, request: &str, cause: Cause) -> KernelError {
    KernelError { what: format!("irqbalance[{pid}]: {request}"), cause }.needing("root")
}

/// Sends a command and reads the reply.
fn ask(connection: &UnixStream, words: &str, patience: Duration) -> Result<String, Cause> {
    let deadline = Instant::now() + patience;
    say(connection, words.as_bytes()).map_err(|errno| Cause::Errno(timed_out(errno)))?;
    let mut answer = Vec::new();
    let mut part = [0; 16384];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Cause::Errno(Errno::TIMEDOUT));
        }
        set_socket_timeout(connection, Timeout::Recv, Some(left)).map_err(Cause::Errno)?;
        let mut connection = connection;
        match connection.read(&mut part) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
                return Err(Cause::Errno(timed_out(errno)));
            }
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(Cause::Malformed(format!("more than {ANSWER_BYTES_MAX} bytes")));
        }
    }
    String::from_utf8(answer).map_err(|_| Cause::Malformed("bytes that are not text".to_owned()))
}

/// Returns the process that owns this socket if the process is in the sleep during which irqbalance does not
/// answer.
fn sleeping(socket: &std::ffi::CStr) -> Option<Pid> {
    let name = Path::new(socket.to_str().ok()?).file_name()?.to_str()?;
    let pid = Pid(pid_in(name)?);
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let call: i64 = call.split(' ').next()?.parse().ok()?;
    let sleeps = [libc::SYS_clock_nanosleep, libc::SYS_nanosleep].contains(&call);
    (sleeps && is_irqbalance(pid)).then_some(pid)
}

/// Parses the pid in a socket's name, such as `irqbalance812.sock`.
fn pid_in(name: &str) -> Option<u32> {
    name.strip_prefix("irqbalance")?.strip_suffix(".sock")?.parse().ok()
}

/// Lists the sockets of irqbalance in a directory, ordered by process.
fn in_directory(directory: &Path) -> Vec<SocketAddrUnix> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut sockets: Vec<(u32, PathBuf)> =
        entries.filter_map(|entry| Some((pid_in(entry.file_name().to_str()?)?, entry.path()))).collect();
    sockets.sort();
    sockets.into_iter().filter_map(|(_, path)| SocketAddrUnix::new(path).ok()).collect()
}

/// Lists the abstract names that may be irqbalance's: the names that versions up to 1.4 use, and 107 zero
/// bytes, to which later versions bind if they cannot create a file.
fn abstract_names() -> Vec<SocketAddrUnix> {
    let listed = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().nth(7)).collect();
    names.sort_unstable();
    names.dedup();
    let ours = names.into_iter().filter(|name| {
        let own = name.trim_matches('@');
        name.starts_with('@') && (own.is_empty() || own.starts_with("irqbalance") && own.ends_with(".sock"))
    });
    // `/proc/net/unix` shows zero bytes as `@`; an abstract name always begins with a zero byte.
    let bytes = ours.map(|name| name[1..].bytes().map(|byte| if byte == b'@' { 0 } else { byte }));
    bytes.filter_map(|name| SocketAddrUnix::new_abstract_name(&name.collect::<Vec<u8>>()).ok()).collect()
}

fn is_irqbalance(pid: Pid) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    comm.is_ok_and(|comm| comm.trim_end() == "irqbalance")
}

/// Opens a connection on which every call times out after `patience`.
fn open(address: &SocketAddrUnix, patience: Duration) -> Result<UnixStream, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    connect(&socket, address).map_err(timed_out)?;
    Ok(UnixStream::from(socket))
}

/// Sends a command in one message, together with this process's credentials: irqbalance checks the
/// credentials of the message, not those of the connection.
fn say(connection: &UnixStream, words: &[u8]) -> Result<(), Errno> {
    let own = UCred {
        pid: rustix::process::getpid(),
        uid: rustix::process::geteuid(),
        gid: rustix::process::getegid(),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    with.push(SendAncillaryMessage::ScmCredentials(own));
    match sendmsg(connection, &[IoSlice::new(words)], &mut with, SendFlags::NOSIGNAL)? {
        sent if sent == words.len() => Ok(()),
        _ => Err(Errno::NOBUFS),
    }
}

/// The kernel reports the timeout of a socket as EAGAIN.
fn timed_out(errno: Errno) -> Errno {
    if errno == Errno::AGAIN { Errno::TIMEDOUT } else { errno }
}

fn ban_command(bans: &BTreeSet<IrqNumber>) -> String {
    let irqs: Vec<String> = bans.iter().map(ToString::to_string).collect();
    // irqbalance stops parsing at a 0 unless it is the first number, so interrupt 0 must come first.
    let irqs = if irqs.is_empty() { "NONE".to_owned() } else { irqs.join(" ") };
    format!("settings ban irqs {irqs}")
}

/// Parses the bans in irqbalance's reply. Unauthorised clients get an empty reply.
fn bans_said(said: &str) -> Result<BTreeSet<IrqNumber>, Cause> {
    if said.is_empty() {
        return Err(Cause::Errno(Errno::PERM));
    }
    bans_in(said).map_err(Cause::Malformed)
}

/// Parses the bans in the answer to `setup`.
fn bans_in(answer: &str) -> Result<BTreeSet<IrqNumber>, String> {
    let mut bans = BTreeSet::new();
    let mut words = answer.split_whitespace();
    let mut whole = false;
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("no value after `{}`", word.escape_debug()))?;
        match word {
            "IRQ" => {
                let irq = value.parse().map_err(|_| format!("`IRQ {}`", value.escape_debug()))?;
                bans.insert(IrqNumber(irq));
            }
            "SLEEP" | "LOAD" | "DIFF" | "CLASS" => {}
            // This is the last keyword of an answer: a truncated answer lacks it.
            "BANNED" => whole = true,
            _ => return Err(format!("`{}`", word.escape_debug())),
        }
    }
    if whole { Ok(bans) } else { Err("the answer is truncated".to_owned()) }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    fn irqs(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<IrqNumber> {
        numbers.into_iter().map(IrqNumber).collect()
    }

    #[test]
    fn the_bans_are_read_and_the_cpus_are_not_taken_for_bans() {
        let answer =
            "SLEEP 10 IRQ 38 LOAD 12 DIFF 3 CLASS 5 IRQ 24 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000,00000001";
        assert_eq!(bans_in(answer), Ok(irqs([24, 38])));
        assert_eq!(bans_in("SLEEP 10 BANNED 0"), Ok(irqs([])));
    }

    #[test]
    fn an_answer_that_was_cut_or_is_none_is_malformed() {
        for answer in ["", "SLEEP 10", "SLEEP 10 IRQ", "SLEEP 10 IRQ x BANNED 0", "hello world", "BANNED"] {
            assert!(bans_in(answer).is_err(), "{answer}");
        }
    }

    #[test]
    fn interrupt_0_is_said_first_and_no_interrupt_is_a_word() {
        assert_eq!(ban_command(&irqs([38, 0, 4])), "settings ban irqs 0 4 38");
        assert_eq!(ban_command(&irqs([])), "settings ban irqs NONE");
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_parser_panic(answer in "(IRQ |BANNED |SLEEP |[0-9]{1,12} |[ -~\n\u{e9}]){0,40}") {
            let _ = bans_in(&answer);
        }
    }
}
