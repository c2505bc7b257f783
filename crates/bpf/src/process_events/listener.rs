//! Loads the programs and receives their events.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use libbpf_rs::{OpenObject, RingBuffer, RingBufferBuilder};
use model::{EpollId, Fd, Label, Nanoseconds, NetnsId, Pid, ProcessId};
use sys::error::KernelError;

use crate::app_requests::Cgroup;
use crate::in_initial_pid_namespace;
use crate::loaded::{Loaded, refused};
use crate::mirrored::{Field, Mirrored as _, mirrored, name};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/process_events.bpf.o"));

/// The maximum timeout of one poll. Longer waits are split.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The maximum number of requested images, and of requested ports. `NAMES_MAX` in `process_events.bpf.c`.
pub const NAMES_MAX: usize = 4096;

/// The number of bytes of an image's file name that are compared, including a terminating NUL. `IMAGE_BYTES`
/// in `process_events.h`.
const IMAGE_BYTES: usize = 32;

/// The events that are reported in addition to those of watched processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Report every new image in the reader's network namespace. Each `execve` there writes a record and
    /// makes the reader inspect the process.
    pub all_images: bool,
    /// Report new images of files with these names (without directory), in every namespace. Only the first 31
    /// bytes of a name are compared.
    pub images: BTreeSet<String>,
    /// Report every listening TCP socket in the reader's network namespace, and every UDP port that is bound
    /// there, but at most 8 UDP ports per process in ten seconds: a server binds a few ports at once,
    /// whereas a resolver binds one for each query.
    pub all_listeners: bool,
    /// Report the events of `all_listeners` in other network namespaces, too, so that a container's server is
    /// noticed even if its executable has none of the names in `images`.
    pub listeners_elsewhere: bool,
    /// Report listening TCP sockets and bound UDP sockets on these ports, in every namespace.
    pub ports: BTreeSet<u16>,
}

/// A port on which sockets listen, with its network namespace.
pub type ListenedPort = (NetnsId, u16);

/// Events that are reported only if the kernel supports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraEvents {
    /// Report new epolls, at the return of `do_epoll_create()`.
    pub epolls: bool,
    /// Report bound UDP ports, at `bind(2)` in all cgroups.
    pub udp_ports: bool,
}

/// An event with the time at which it occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// The event.
    pub event: ProcessEvent,
    /// The time, by `CLOCK_MONOTONIC`.
    pub at: Nanoseconds,
}

/// A process event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A watched process has forked; its child is now watched, too.
    Child {
        /// The new process.
        child: ProcessId,
        /// The child's parent, which is a watched process.
        parent: Pid,
    },
    /// A watched process executed a new image.
    Exec(ProcessId),
    /// A watched process has exited, and is no longer watched.
    Exit(ProcessId),
    /// A watched process has a new epoll.
    Epoll(EpollId),
    /// A process, whether watched or not, listens on a TCP port or has bound a UDP port.
    Listener {
        /// The process that called `listen(2)` or `bind(2)`.
        process: ProcessId,
        /// The port.
        port: u16,
        /// The socket's network namespace, which may differ from that of the process.
        netns: NetnsId,
    },
    /// A port for which a connection was [awaited](ProcessEvents::await_connections) has a connection, and is
    /// no longer awaited. The listening process may not have accepted the connection yet.
    Connection(ListenedPort),
}

/// Reports events of watched processes and their children.
pub struct ProcessEvents {
    loaded: Loaded,
    ring: RingBuffer<'static>,
    events: Receiver<TimedEvent>,
    waited: Waited,
    awaited: BTreeSet<ListenedPort>,
    lost: u64,
}

impl fmt::Debug for ProcessEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessEvents({:?}, {} lost)", self.loaded, self.lost)
    }
}

impl ProcessEvents {
    /// Creates a listener that reports forks, execs and exits of watched processes.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF or outside the initial pid namespace; otherwise the kernel's
    /// error.
    pub fn of_processes() -> Result<Self, KernelError> {
        Self::load(|_| Ok(()))
    }

    /// Like [`ProcessEvents::of_processes`], but also reports new epolls, at the return of
    /// `do_epoll_create()`.
    ///
    /// # Errors
    /// As for [`ProcessEvents::of_processes`]; also the kernel's error if the kernel allows no programs at
    /// function returns, because it is locked down or built without support for them.
    pub fn of_processes_and_epolls() -> Result<Self, KernelError> {
        Self::load(|open| load_too(open, &[EPOLLS])).map_err(not_at_epolls)
    }

    /// Creates a listener that reports events of processes and TCP listeners, and those events in `too` that
    /// the kernel supports. [`ProcessEvents::wait_for`] requests events of unwatched processes.
    ///
    /// # Errors
    /// As for [`ProcessEvents::of_processes`]; with epolls, as for
    /// [`ProcessEvents::of_processes_and_epolls`]; with UDP ports, also without a mounted cgroup2 hierarchy,
    /// or if another program is attached exclusively to the root cgroup.
    pub fn of_processes_and_listeners(too: ExtraEvents) -> Result<Self, KernelError> {
        let epolls = too.epolls.then_some(EPOLLS);
        let udp = if too.udp_ports { &UDP[..] } else { &[] };
        let names: Vec<&str> = [LISTENERS].into_iter().chain(epolls).chain(udp.iter().copied()).collect();
        let what = match too {
            ExtraEvents { epolls: true, udp_ports: true } => "report epolls and UDP ports",
            ExtraEvents { epolls: true, udp_ports: false } => "report epolls",
            ExtraEvents { epolls: false, udp_ports: true } => "report UDP ports",
            ExtraEvents { epolls: false, udp_ports: false } => "report processes and TCP listeners",
        };
        Self::load(|open| load_too(open, &names))
            .map_err(|error| KernelError { what: what.to_owned(), ..error })
    }

    /// Also reports these events from now on, for a reader in this namespace. If the requested names and
    /// ports do not fit into the maps, none of the new events is reported.
    ///
    /// # Errors
    /// The kernel's error, if the maps are full ([`NAMES_MAX`]).
    pub fn wait_for(&mut self, netns: NetnsId, waited: Waited) -> Result<(), KernelError> {
        let (images, ports) = (self.loaded.map("images")?, self.loaded.map("ports")?);
        for old in self.waited.images.difference(&waited.images) {
            images.remove(&image(old))?;
        }
        for old in self.waited.ports.difference(&waited.ports) {
            ports.remove(&u32::from(*old).to_ne_bytes())?;
        }
        for new in &waited.images {
            images.set(&image(new), &[1])?;
        }
        for new in &waited.ports {
            ports.set(&u32::from(*new).to_ne_bytes(), &[1])?;
        }
        let flags = [waited.all_images, waited.all_listeners, waited.listeners_elsewhere];
        let flags = flags.iter().zip(0..).map(|(flag, bit)| u32::from(*flag) << bit).sum();
        self.loaded.map("wanted")?.set(&[0; 4], &WantedWhere { netns: inum(netns), flags }.to_bytes())?;
        self.waited = waited;
        Ok(())
    }

    /// Reports the next TCP connection to each of these ports, which replace those of the previous call.
    ///
    /// # Errors
    /// The kernel's error, if the map is full ([`NAMES_MAX`]).
    pub fn await_connections(&mut self, ports: &BTreeSet<ListenedPort>) -> Result<(), KernelError> {
        if *ports == self.awaited {
            return Ok(());
        }
        let table = self.loaded.map("awaited")?;
        for old in self.awaited.difference(ports) {
            table.remove(&key(*old))?;
        }
        for new in ports.difference(&self.awaited) {
            table.set(&key(*new), &[1])?;
        }
        self.awaited.clone_from(ports);
        Ok(())
    }

    /// Returns a descriptor that becomes readable when there is an event.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        sys::bpf::ring_descriptor(&self.ring)
    }

    fn load(prepare: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>) -> Result<Self, KernelError> {
        if !in_initial_pid_namespace() {
            return Err(KernelError::absent("watch events of processes", "the initial pid namespace", None));
        }
        let mut loaded = Loaded::load("process_events", OBJECT, prepare)?;
        let (sender, events) = channel();
        let ring = ring(&loaded, sender)?;
        if loaded.has(UDP[0]) {
            loaded.attach_to_cgroup(Cgroup::open(Path::new("/"))?.as_fd(), |name| UDP.contains(&name))?;
        }
        loaded.attach_if(|name| !UDP.contains(&name))?;
        Ok(Self { loaded, ring, events, waited: Waited::default(), awaited: BTreeSet::new(), lost: 0 })
    }

    /// Watches a process and all its future children.
    ///
    /// # Errors
    /// The kernel's error, if more processes are watched than the map holds.
    pub fn watch(&self, process: Pid) -> Result<(), KernelError> {
        self.loaded.map("watched")?.set(&process.0.to_ne_bytes(), &[1])
    }

    /// Stops watching a process; its children stay watched.
    ///
    /// # Errors
    /// The kernel's error, which means that the map is gone.
    pub fn ignore(&self, process: Pid) -> Result<(), KernelError> {
        self.loaded.map("watched")?.remove(&process.0.to_ne_bytes())
    }

    /// Waits for the next event. Events of the same CPU arrive in order. Returns `None` after the timeout.
    ///
    /// # Errors
    /// The kernel's error, which means that the buffer is gone.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<ProcessEvent>, KernelError> {
        Ok(self.next_timed(timeout)?.map(|timed| timed.event))
    }

    /// Like [`ProcessEvents::next`], but also returns the time of the event.
    ///
    /// # Errors
    /// As for [`ProcessEvents::next`].
    pub fn next_timed(&mut self, timeout: Duration) -> Result<Option<TimedEvent>, KernelError> {
        if let Some(event) = self.received() {
            return Ok(Some(event));
        }
        // The system call has millisecond resolution. Round up, because waking early would mean spinning for
        // the rest.
        let whole = Duration::from_millis(
            u64::try_from(timeout.min(WAIT_MAX).as_micros()).unwrap_or(0).div_ceil(1000),
        );
        match self.ring.poll(whole) {
            Ok(()) => Ok(self.received()),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => Ok(self.received()),
            Err(_) => Err(refused("BPF map events: poll".to_owned())),
        }
    }

    fn received(&mut self) -> Option<TimedEvent> {
        let event = self.events.try_recv().ok()?;
        if let ProcessEvent::Connection(port) = &event.event {
            self.awaited.remove(port);
        }
        Some(event)
    }

    /// Returns the number of events that were lost since the last call because they were not read in time.
    /// After a loss, the caller must inspect every watched process again.
    ///
    /// # Errors
    /// The kernel's error, which means that the map is gone.
    pub fn lost(&mut self) -> Result<u64, KernelError> {
        let value = self.loaded.map("lost")?.get(&[0; 4])?.unwrap_or_default();
        let lost = u64::take(&value);
        let since = lost - self.lost;
        self.lost = lost;
        Ok(since)
    }
}

fn ring(loaded: &Loaded, sender: Sender<TimedEvent>) -> Result<RingBuffer<'static>, KernelError> {
    let events = loaded.map("events")?;
    let on_record = move |bytes: &[u8]| {
        // Sending fails only while the receiver is being dropped.
        let _ = read(bytes).map(|event| sender.send(event));
        0
    };
    let mut builder = RingBufferBuilder::new();
    builder.add(events.map(), on_record).map_err(|_| refused("BPF map events".to_owned()))?;
    builder.build().map_err(|_| refused("BPF map events: map into memory".to_owned()))
}

/// The programs that are loaded only on request.
const EPOLLS: &str = "epoll_created";
const LISTENERS: &str = "socket_changed";
const UDP: [&str; 2] = ["udp_bound", "udp6_bound"];

fn load_too(open: &mut OpenObject, names: &[&str]) -> libbpf_rs::Result<()> {
    for mut program in open.progs_mut().filter(|program| names.iter().any(|name| program.name() == *name)) {
        program.set_autoload(true);
    }
    Ok(())
}

fn not_at_epolls(error: KernelError) -> KernelError {
    KernelError { what: "attach to the return of do_epoll_create()".to_owned(), ..error }
}

/// Encodes a file name in the program's format: truncated, and padded with zeros.
fn image(name: &str) -> Vec<u8> {
    let mut bytes = [0; IMAGE_BYTES];
    let length = name.len().min(IMAGE_BYTES - 1);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    ImageName { bytes }.to_bytes()
}

/// Returns a namespace's inode number, which has 32 bits (`include/linux/ns_common.h`) and is never 0.
fn inum(netns: NetnsId) -> u32 {
    u32::try_from(netns.0).unwrap_or(0)
}

fn key((netns, port): ListenedPort) -> Vec<u8> {
    ListenerKey { netns: inum(netns), port: u32::from(port) }.to_bytes()
}

mirrored! {
    /// `struct process_event`.
    struct RawEvent = "process_event" {
        kind: u32,
        tgid: u32,
        other: u32,
        netns: u32,
        started_ns: u64,
        at_ns: u64,
        comm: [u8; 16],
    }

    /// `struct wanted_where`.
    struct WantedWhere = "wanted_where" {
        netns: u32,
        flags: u32,
    }

    /// `struct image_name`.
    struct ImageName = "image_name" {
        bytes: [u8; IMAGE_BYTES],
    }

    /// `struct listener_key`.
    struct ListenerKey = "listener_key" {
        netns: u32,
        port: u32,
    }
}

/// Parses a `struct process_event`. Returns `None` for an unknown kind.
fn read(bytes: &[u8]) -> Option<TimedEvent> {
    /// The clock tick of `/proc` in nanoseconds: `USER_HZ` is 100 on all supported architectures. Kernel:
    /// 6.18, `include/uapi/asm-generic/param.h`.
    const TICK_NS: u64 = 10_000_000;
    let RawEvent { kind, tgid, other, netns, started_ns, at_ns, comm } = RawEvent::of(bytes);
    let netns = NetnsId(u64::from(netns));
    let at = Nanoseconds(at_ns);
    let process = ProcessId { pid: Pid(tgid), started: started_ns / TICK_NS, comm: Label::new(&name(&comm)) };
    let event = match kind {
        1 => ProcessEvent::Child { child: process, parent: Pid(other) },
        2 => ProcessEvent::Exec(process),
        3 => ProcessEvent::Exit(process),
        4 => ProcessEvent::Epoll(EpollId { process, fd: Fd(other) }),
        5 => ProcessEvent::Listener { process, port: u16::try_from(other).ok()?, netns },
        6 => ProcessEvent::Connection((netns, u16::try_from(other).ok()?)),
        _ => return None,
    };
    Some(TimedEvent { event, at })
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, RawEvent, WantedWhere, ImageName, ListenerKey);

    #[test]
    fn an_event_is_read_as_the_program_writes_it() {
        let mut bytes = Vec::new();
        for number in [4_u32, 812, 17, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(77_319_999_999_u64.to_ne_bytes());
        bytes.extend(88_000_000_001_u64.to_ne_bytes());
        bytes.extend(*b"memcached\0\0\0\0\0\0\0");
        assert_eq!(bytes.len(), 48, "sizeof(struct process_event)");
        let process = ProcessId { pid: Pid(812), started: 7731, comm: Label::new("memcached") };
        let timed = read(&bytes);
        assert_eq!(timed.map(|timed| timed.at), Some(Nanoseconds(88_000_000_001)));
        let event = timed.map(|timed| timed.event);
        assert_eq!(event, Some(ProcessEvent::Epoll(EpollId { process, fd: Fd(17) })));
        assert!(
            matches!(event, Some(ProcessEvent::Epoll(epoll)) if epoll.process.comm.as_str() == "memcached")
        );
        bytes[0] = 9;
        assert_eq!(read(&bytes), None);
    }

    #[test]
    fn a_long_file_name_counts_as_its_beginning() {
        assert_eq!(image("memcached")[..10], *b"memcached\0");
        let long = "a".repeat(40);
        assert_eq!((image(&long)[30], image(&long)[31]), (b'a', 0));
    }
}
