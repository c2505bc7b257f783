//! The epoll in which the daemon waits, and its sources. A source is a descriptor of another part of the
//! daemon, such as an API socket, with its handler.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use linux::epoll_wait_millis;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// The maximum number of sources. Adding a further one fails.
pub const SOURCES_MAX: usize = 256;

/// The maximum number of descriptors that one wait reports. The next wait reports the rest.
const READY_MAX: usize = 64;

/// The duration below which a wait uses a timerfd, because [`epoll_wait_millis`] rounds up to milliseconds.
const EXACT_BELOW: Duration = Duration::from_millis(10);

/// The number that identifies the timer in epoll events.
const TIMER: u64 = u64::MAX;

/// The lowest number of a source. Lower numbers identify the daemon's own descriptors.
const FIRST_SOURCE: u64 = 1 << 32;

/// A descriptor in the daemon's event loop, with its handler.
pub trait Source {
    /// Returns the descriptor, which must stay the same while the source exists.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the events that the source waits for. Called after each turn, so it must be fast.
    fn interest(&mut self) -> Interest;

    /// Handles the descriptor's events. Called when the descriptor is ready or the requested time has come.
    /// Must not block.
    fn ready(&mut self, ready: Ready, registrar: &mut Registrar) -> Stay;
}

/// The events that a source waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Whether to call the source when there is something to read, or a connection to accept.
    pub read: bool,
    /// Whether to call the source when there is room to write.
    pub write: bool,
    /// When to call the source even if nothing else happens.
    pub until: Option<Instant>,
}

/// The reasons why a source is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There is something to read or accept, including end of file.
    pub read: bool,
    /// Whether to call the source when there is room to write.
    pub write: bool,
    /// The other end is closed, or the descriptor has an error.
    pub hung_up: bool,
    /// The requested time has come.
    pub late: bool,
}

/// Whether a source stays in the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// The source stays in the loop.
    Stay,
    /// The source is dropped together with its descriptor.
    Leave,
}

/// Registers new sources, such as accepted connections.
#[derive(Default)]
pub struct Registrar {
    waiting: Vec<Box<dyn Source>>,
    room: usize,
}

impl Registrar {
    /// Adds a source; returns false and drops it if there is no room.
    pub fn admit(&mut self, source: Box<dyn Source>) -> bool {
        if self.waiting.len() >= self.room {
            return false;
        }
        self.waiting.push(source);
        true
    }

    /// Returns how many sources can still be added.
    pub fn room(&self) -> usize {
        self.room.saturating_sub(self.waiting.len())
    }
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registrar({} waiting, room for {})", self.waiting.len(), self.room)
    }
}

/// A source, with the interest that is registered with the epoll.
struct Slot {
    source: Box<dyn Source>,
    known: Interest,
}

/// The daemon's epoll, with its sources.
pub struct EventLoop {
    epoll: OwnedFd,
    timer: OwnedFd,
    sources: BTreeMap<u64, Slot>,
    next: u64,
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventLoop({} sources)", self.sources.len())
    }
}

impl EventLoop {
    /// Creates a loop without sources.
    ///
    /// # Errors
    /// The kernel's error if no descriptors are left.
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        Ok(Self { epoll, timer, sources: BTreeMap::new(), next: FIRST_SOURCE })
    }

    /// Also watches one of the daemon's own descriptors, which [`Self::wait`] reports by this number.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn watch(&self, descriptor: impl AsFd, number: u32) -> Result<(), Errno> {
        epoll::add(
            &self.epoll,
            descriptor,
            epoll::EventData::new_u64(u64::from(number)),
            epoll::EventFlags::IN,
        )
    }

    /// Adds a source.
    ///
    /// # Errors
    /// `EMFILE` if there are already [`SOURCES_MAX`] sources; otherwise the kernel's errors.
    pub fn admit(&mut self, mut source: Box<dyn Source>) -> Result<(), Errno> {
        if self.sources.len() >= SOURCES_MAX {
            return Err(Errno::MFILE);
        }
        let known = source.interest();
        let number = self.next;
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, source.descriptor(), data, flags(known))?;
        self.next += 1;
        self.sources.insert(number, Slot { source, known });
        Ok(())
    }

    /// The number of sources.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Waits until a descriptor is ready, but not longer than `until`, and then calls the ready sources.
    /// Returns the numbers of those of the daemon's own descriptors that are ready. A signal also ends the
    /// wait.
    ///
    /// # Errors
    /// The kernel's errors, except EINTR.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<Vec<u32>, Errno> {
        self.settle()?;
        let theirs = self.sources.values().filter_map(|slot| slot.known.until).min();
        let until = [until, theirs].into_iter().flatten().min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let exact = left.filter(|left| !left.is_zero() && *left < EXACT_BELOW);
        if let Some(left) = exact {
            self.set_timer(left)?;
        }
        let left = left.filter(|_| exact.is_none());
        let mut events = Vec::with_capacity(READY_MAX);
        let waited = epoll_wait_millis(&self.epoll, &mut events, left);
        if exact.is_some() {
            // Stopping the timer also clears its readiness.
            self.set_timer(Duration::ZERO)?;
        }
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let (mut own, mut ready) = (Vec::new(), BTreeMap::<u64, Ready>::new());
        for event in events {
            let number = event.data.u64();
            match u32::try_from(number) {
                Ok(number) => own.push(number),
                Err(_) if number == TIMER => {}
                Err(_) => drop(ready.insert(number, readiness(event.flags))),
            }
        }
        let now = Instant::now();
        for (number, slot) in &self.sources {
            if slot.known.until.is_some_and(|until| until <= now) {
                ready.entry(*number).or_default().late = true;
            }
        }
        self.serve(ready)?;
        Ok(own)
    }

    /// Starts the timer, or stops it if `span` is zero.
    fn set_timer(&self, span: Duration) -> Result<(), Errno> {
        let set = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(span) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &set).map(|_| ())
    }

    fn serve(&mut self, ready: BTreeMap<u64, Ready>) -> Result<(), Errno> {
        let mut registrar = Registrar { waiting: Vec::new(), room: SOURCES_MAX - self.sources.len() };
        for (number, ready) in ready {
            let Some(slot) = self.sources.get_mut(&number) else { continue };
            if slot.source.ready(ready, &mut registrar) == Stay::Leave {
                epoll::delete(&self.epoll, slot.source.descriptor())?;
                self.sources.remove(&number);
            }
        }
        for source in registrar.waiting {
            match self.admit(source) {
                Ok(()) | Err(Errno::MFILE) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Updates the epoll with the sources' current interests.
    fn settle(&mut self) -> Result<(), Errno> {
        for (number, slot) in &mut self.sources {
            let interest = slot.source.interest();
            if (interest.read, interest.write) != (slot.known.read, slot.known.write) {
                let data = epoll::EventData::new_u64(*number);
                epoll::modify(&self.epoll, slot.source.descriptor(), data, flags(interest))?;
            }
            slot.known = interest;
        }
        Ok(())
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    // Without `EPOLLIN`, also drop `EPOLLRDHUP`: otherwise, a source that has seen the end of its input would
    // be woken repeatedly while it is still sending its answer.
    flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, interest.read);
    flags.set(epoll::EventFlags::OUT, interest.write);
    flags
}

fn readiness(flags: epoll::EventFlags) -> Ready {
    use epoll::EventFlags;
    Ready {
        read: flags.intersects(EventFlags::IN | EventFlags::RDHUP),
        write: flags.contains(EventFlags::OUT),
        hung_up: flags.intersects(EventFlags::HUP | EventFlags::ERR),
        late: false,
    }
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}

#[cfg(test)]
mod test {
    use std::cell::RefCell;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use super::*;

    /// A source that writes back what it has read, once the stream is writable.
    struct Echo {
        stream: UnixStream,
        received: Vec<u8>,
        log: Rc<RefCell<Vec<Ready>>>,
        until: Option<Instant>,
    }

    impl Source for Echo {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }

        fn interest(&mut self) -> Interest {
            Interest { read: true, write: !self.received.is_empty(), until: self.until }
        }

        fn ready(&mut self, ready: Ready, _registrar: &mut Registrar) -> Stay {
            self.log.borrow_mut().push(ready);
            if ready.late {
                self.until = None;
            }
            if ready.write {
                self.stream.write_all(&std::mem::take(&mut self.received)).expect("written");
            } else if ready.read {
                let mut bytes = [0; 8];
                let length = self.stream.read(&mut bytes).expect("read");
                if length == 0 {
                    return Stay::Leave;
                }
                self.received.extend_from_slice(&bytes[..length]);
            }
            Stay::Stay
        }
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(5))
    }

    #[test]
    fn a_source_is_called_for_writes_when_it_has_output_and_leaves_when_the_other_end_does() {
        let mut event_loop = EventLoop::new().expect("an epoll");
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let log = Rc::default();
        let echo = Echo { stream: theirs, received: Vec::new(), log: Rc::clone(&log), until: None };
        event_loop.admit(Box::new(echo)).expect("room");
        ours.write_all(b"hallo").expect("written");
        assert!(event_loop.wait(soon()).expect("a turn").is_empty());
        assert!(event_loop.wait(soon()).expect("another").is_empty());
        let mut bytes = [0; 5];
        ours.read_exact(&mut bytes).expect("an echo");
        assert_eq!(&bytes, b"hallo");
        drop(ours);
        event_loop.wait(soon()).expect("a turn");
        assert_eq!(event_loop.sources(), 0);
    }

    #[test]
    fn a_wait_ends_at_its_time_and_not_at_the_next_whole_millisecond() {
        let mut event_loop = EventLoop::new().expect("an epoll");
        let span = Duration::from_micros(100);
        let mut took: Vec<Duration> = (0..20)
            .map(|_| {
                let begun = Instant::now();
                assert!(event_loop.wait(Some(begun + span)).expect("a turn").is_empty());
                begun.elapsed()
            })
            .collect();
        took.sort_unstable();
        assert!(took[0] >= span, "not before its time: {took:?}");
        assert!(took[0] < Duration::from_millis(1), "the shortest of twenty: {took:?}");
        let long = Duration::from_millis(12);
        let begun = Instant::now();
        event_loop.wait(Some(begun + long)).expect("a turn");
        assert!(begun.elapsed() >= long, "the timer must not be left running: {:?}", begun.elapsed());
    }

    #[test]
    fn a_source_is_called_at_its_time_and_the_daemon_at_its_own() {
        let mut event_loop = EventLoop::new().expect("an epoll");
        let (_ours, theirs) = UnixStream::pair().expect("a pair");
        let log: Rc<RefCell<Vec<Ready>>> = Rc::default();
        let until = Some(Instant::now() + Duration::from_millis(1));
        event_loop
            .admit(Box::new(Echo { stream: theirs, received: Vec::new(), log: Rc::clone(&log), until }))
            .expect("room");
        event_loop.wait(soon()).expect("a turn");
        assert_eq!(*log.borrow(), [Ready { late: true, ..Ready::default() }]);
        let (reading, writing) = rustix::pipe::pipe().expect("a pipe");
        event_loop.watch(&reading, 7).expect("watched");
        rustix::io::write(&writing, b"x").expect("written");
        assert_eq!(event_loop.wait(soon()).expect("a turn"), [7]);
    }
}
