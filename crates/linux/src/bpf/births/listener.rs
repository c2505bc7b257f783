//! The listening programs in the kernel, and what they tell.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use libbpf_rs::{OpenObject, RingBuffer, RingBufferBuilder};
use model::{EpollId, Fd, Label, Pid, ProcessId};

use crate::bpf::in_initial_pid_namespace;
use crate::bpf::loaded::{Loaded, refused};
use crate::bpf::record::Record;
use crate::error::KernelError;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/births.bpf.o"));

/// The longest that one wait lasts; longer ones are waits in a row.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Something that was born, changed or died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// A watched process has forked; its child is watched too.
    Child {
        /// The new process.
        child: ProcessId,
        /// The watched process, its parent.
        parent: Pid,
    },
    /// A watched process has a new image.
    Exec(ProcessId),
    /// A watched process has ended, and is watched no more.
    Exit(ProcessId),
    /// A watched process has a new epoll.
    Epoll(EpollId),
}

/// Listens to the scheduler for watched processes and their children.
pub struct Births {
    loaded: Loaded,
    ring: RingBuffer<'static>,
    told: Receiver<Birth>,
    lost: u64,
}

impl fmt::Debug for Births {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Births({:?}, {} lost)", self.loaded, self.lost)
    }
}

impl Births {
    /// Listens to births and deaths of processes.
    ///
    /// # Errors
    /// [`crate::Cause::Absent`] without kernel BTF or outside the initial pid namespace; else the kernel's refusal.
    pub fn of_processes() -> Result<Self, KernelError> {
        Self::load(|_| Ok(()))
    }

    /// Listens to births of epolls as well, at the return of `do_epoll_create()`.
    ///
    /// # Errors
    /// As [`Births::of_processes`]; also the kernel's refusal where it admits no programs at function returns: it
    /// is locked down, or built without them.
    pub fn of_processes_and_epolls() -> Result<Self, KernelError> {
        Self::load(|open| {
            for mut program in open.progs_mut() {
                program.set_autoload(true);
            }
            Ok(())
        })
        .map_err(|error| KernelError {
            what: "listen at the return of do_epoll_create()".to_owned(),
            ..error
        })
    }

    fn load(prepare: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>) -> Result<Self, KernelError> {
        if !in_initial_pid_namespace() {
            return Err(KernelError::absent(
                "listen to births of processes",
                "the initial pid namespace",
                None,
            ));
        }
        let mut loaded = Loaded::load("births", OBJECT, prepare)?;
        let (tell, told) = channel();
        let ring = ring(&loaded, tell)?;
        loaded.attach()?;
        Ok(Self { loaded, ring, told, lost: 0 })
    }

    /// Watches a process and all children that it will have.
    ///
    /// # Errors
    /// The kernel's, when more processes are watched than the table holds.
    pub fn watch(&self, process: Pid) -> Result<(), KernelError> {
        self.loaded.map("watched")?.set(&process.0.to_ne_bytes(), &[1])
    }

    /// Watches a process no more; its children stay watched.
    ///
    /// # Errors
    /// The kernel's, which means that the table is gone.
    pub fn ignore(&self, process: Pid) -> Result<(), KernelError> {
        self.loaded.map("watched")?.remove(&process.0.to_ne_bytes())
    }

    /// What was told next, in the order in which it happened on its CPU; `None` if nothing was for so long.
    ///
    /// # Errors
    /// The kernel's, which means that the buffer is gone.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Birth>, KernelError> {
        if let Ok(birth) = self.told.try_recv() {
            return Ok(Some(birth));
        }
        // The system call counts milliseconds; waking early would mean spinning for the rest.
        let whole = Duration::from_millis(
            u64::try_from(timeout.min(WAIT_MAX).as_micros()).unwrap_or(0).div_ceil(1000),
        );
        match self.ring.poll(whole) {
            Ok(()) => Ok(self.told.try_recv().ok()),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => Ok(self.told.try_recv().ok()),
            Err(_) => Err(refused("BPF map events: poll".to_owned())),
        }
    }

    /// How many events were lost since this was last asked, because nobody asked for them in time. After a loss it
    /// takes a look at every watched process to know again.
    ///
    /// # Errors
    /// The kernel's, which means that the table is gone.
    pub fn lost(&mut self) -> Result<u64, KernelError> {
        let value = self.loaded.map("lost")?.get(&[0; 4])?.unwrap_or_default();
        let lost = Record::new(&value).u64();
        let since = lost - self.lost;
        self.lost = lost;
        Ok(since)
    }
}

fn ring(loaded: &Loaded, tell: Sender<Birth>) -> Result<RingBuffer<'static>, KernelError> {
    let events = loaded.map("events")?;
    let hear = move |bytes: &[u8]| {
        // Nobody listens any more only while this is being dropped.
        let _ = read(bytes).map(|birth| tell.send(birth));
        0
    };
    let mut builder = RingBufferBuilder::new();
    builder.add(events.map(), hear).map_err(|_| refused("BPF map events".to_owned()))?;
    builder.build().map_err(|_| refused("BPF map events: map into memory".to_owned()))
}

/// Reads `struct birth`; `None` for a kind that we do not know.
fn read(bytes: &[u8]) -> Option<Birth> {
    /// How long a clock tick of `/proc` is, in nanoseconds: `USER_HZ` is 100 wherever we run.
    /// Kernel: 6.18, `include/uapi/asm-generic/param.h`.
    const TICK_NS: u64 = 10_000_000;
    let mut record = Record::new(bytes);
    let kind = record.u32();
    let pid = Pid(record.u32());
    let other = record.u32();
    let _pad = record.u32();
    let started = record.u64() / TICK_NS;
    let process = ProcessId { pid, started, comm: Label::new(&record.name()) };
    match kind {
        1 => Some(Birth::Child { child: process, parent: Pid(other) }),
        2 => Some(Birth::Exec(process)),
        3 => Some(Birth::Exit(process)),
        4 => Some(Birth::Epoll(EpollId { process, fd: Fd(other) })),
        _ => None,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_birth_is_read_as_the_program_writes_it() {
        let mut bytes = Vec::new();
        for number in [4_u32, 812, 17, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(77_319_999_999_u64.to_ne_bytes());
        bytes.extend(*b"memcached\0\0\0\0\0\0\0");
        assert_eq!(bytes.len(), 40, "sizeof(struct birth)");
        let process = ProcessId { pid: Pid(812), started: 7731, comm: Label::new("memcached") };
        let birth = read(&bytes);
        assert_eq!(birth, Some(Birth::Epoll(EpollId { process, fd: Fd(17) })));
        assert!(matches!(birth, Some(Birth::Epoll(epoll)) if epoll.process.comm.as_str() == "memcached"));
        bytes[0] = 9;
        assert_eq!(read(&bytes), None);
    }
}
