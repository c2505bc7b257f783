//! What the daemon hears with: the kernel's notices, births of processes, signals, and changes of files.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::bpf::process_events::{ProcessEvents, TimedEvent, Waited};
use linux::events::{Notice, Notices};
use linux::{KernelError, Netns, Signals};
use model::{NetnsId, Pid};
use rustix::fs::inotify;
use rustix::io::Errno;
use session::Fault;

use crate::event_loop::EventLoop;
use crate::status::Hearing;

/// The daemon's own descriptors in its loop.
pub(crate) const NOTICES: u32 = 0;
pub(crate) const BIRTHS: u32 = 1;
pub(crate) const SIGNALS: u32 = 2;
pub(crate) const FILES: u32 = 3;
pub(crate) const WISHES: u32 = 4;

/// How many births are taken in one turn; the rest in the next.
const BIRTHS_MAX: usize = 4096;

/// All that the daemon hears with.
pub(crate) struct EventSources {
    notices: Notices,
    births: Option<ProcessEvents>,
    births_refused: Vec<KernelError>,
    epolls_told: bool,
    signals: Signals,
    files: Files,
    /// The processes whose births and ends are told.
    watched: BTreeSet<Pid>,
}

impl EventSources {
    /// Begins to listen to all of it.
    pub(crate) fn open(netns: &Netns, event_loop: &EventLoop, files: Files) -> Result<Self, Fault> {
        let failed = |errno: Errno| Fault::failed(format!("the daemon's epoll: {errno}"));
        let notices = Notices::of(netns)?;
        let mut births_refused = Vec::new();
        let mut births = None;
        let mut epolls_told = false;
        for epolls in [true, false] {
            match ProcessEvents::of_processes_and_listeners(epolls) {
                Ok(heard) => {
                    (births, epolls_told) = (Some(heard), epolls);
                    break;
                }
                Err(error) => births_refused.push(error),
            }
        }
        let signals = Signals::catch_with_hang_up()?;
        for descriptor in notices.descriptors() {
            event_loop.watch(descriptor, NOTICES).map_err(failed)?;
        }
        if let Some(births) = &births {
            event_loop.watch(births.descriptor(), BIRTHS).map_err(failed)?;
        }
        event_loop.watch(signals.as_fd(), SIGNALS).map_err(failed)?;
        if let Some(inotify) = &files.inotify {
            event_loop.watch(inotify.as_fd(), FILES).map_err(failed)?;
        }
        Ok(Self { notices, births, births_refused, epolls_told, signals, files, watched: BTreeSet::new() })
    }

    /// Whether the kernel tells of new epolls.
    pub(crate) fn epolls_are_told(&self) -> bool {
        self.epolls_told
    }

    /// Whether the kernel tells of processes and listeners.
    pub(crate) fn births_are_told(&self) -> bool {
        self.births.is_some()
    }

    /// What each kind of event is heard with.
    pub(crate) fn hearing(&self) -> Vec<Hearing> {
        let words = |errors: &[KernelError]| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let tick = Duration::from_nanos(crate::reconciler::TICK.0);
        let at_once = |what: &str, how: &str, refused: Vec<String>| Hearing {
            what: what.to_owned(),
            how: how.to_owned(),
            within: None,
            refused,
        };
        let seen = |what: &str, how: &str, within: Duration, refused: Vec<String>| Hearing {
            within: Some(within),
            ..at_once(what, how, refused)
        };
        let links = at_once(
            "links, queues, drivers, CPUs",
            "netlink (rt-link, netdev, ethtool, uevents)",
            words(self.notices.missing()),
        );
        let values = seen("values that somebody else sets", "looks", tick, Vec::new());
        let tracepoints = "BPF on tracepoints";
        let refused = words(&self.births_refused);
        let [processes, epolls] = match (&self.births, self.epolls_told) {
            (Some(_), true) => [
                at_once("processes and TCP listeners", tracepoints, Vec::new()),
                at_once("epolls", "BPF at the return of do_epoll_create()", Vec::new()),
            ],
            (Some(_), false) => [
                at_once("processes and TCP listeners", tracepoints, Vec::new()),
                seen("epolls", "scans, each second while a process is young", tick, refused),
            ],
            (None, _) => [
                seen("processes and TCP listeners", "scans of /proc", tick, refused.clone()),
                seen("epolls", "scans, each second while a process is young", tick, refused),
            ],
        };
        vec![links, processes, epolls, values]
    }

    /// The kernel's notices.
    pub(crate) fn notices(&self) -> Result<impl Iterator<Item = Notice>, KernelError> {
        Ok(self.notices.take()?.into_iter())
    }

    /// The births that were told, and whether some were lost.
    pub(crate) fn births(&mut self) -> Result<(Vec<TimedEvent>, bool), KernelError> {
        let Some(births) = &mut self.births else { return Ok((Vec::new(), false)) };
        let mut told = Vec::new();
        while let Some(birth) = births.next_timed(Duration::ZERO)? {
            told.push(birth);
            if told.len() >= BIRTHS_MAX {
                break;
            }
        }
        Ok((told, births.lost()? > 0))
    }

    /// From here on, these processes, images and listeners are told of.
    pub(crate) fn wait_for(&mut self, netns: NetnsId, waited: Waited) -> Result<(), KernelError> {
        self.births.as_mut().map_or(Ok(()), |births| births.wait_for(netns, waited))
    }

    /// Whether what happens to this process is told.
    pub(crate) fn is_watched(&self, pid: Pid) -> bool {
        self.watched.contains(&pid)
    }

    /// The kernel tells of this process by itself, as of each child of one that is watched.
    pub(crate) fn note_watched(&mut self, pid: Pid) {
        self.watched.insert(pid);
    }

    /// The kernel tells of this process no more, because it has ended.
    pub(crate) fn note_ended(&mut self, pid: Pid) {
        self.watched.remove(&pid);
    }

    /// What happens to this process is told no more, if it was.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn stop_watching(&mut self, pid: Pid) -> Result<(), KernelError> {
        if self.watched.remove(&pid) { self.ignore(pid) } else { Ok(()) }
    }

    /// What happens to this process is told no more, also if nobody has asked for it.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn ignore(&self, pid: Pid) -> Result<(), KernelError> {
        self.births.as_ref().map_or(Ok(()), |births| births.ignore(pid))
    }

    /// The ends and the children of these are told of, and of no others. Gives why one of them could not be added.
    ///
    /// # Errors
    /// The kernel's, when one cannot be taken out.
    pub(crate) fn watch_alone(&mut self, known: &BTreeSet<Pid>) -> Result<Option<KernelError>, KernelError> {
        let mut full = None;
        for pid in known.difference(&self.watched).copied().collect::<Vec<_>>() {
            // Whoever does not fit is found by looking.
            if let Err(error) = self.births.as_ref().map_or(Ok(()), |births| births.watch(pid)) {
                full = Some(error);
                break;
            }
            self.watched.insert(pid);
        }
        for pid in self.watched.difference(known).copied().collect::<Vec<_>>() {
            self.ignore(pid)?;
            self.watched.remove(&pid);
        }
        Ok(full)
    }

    /// The signals.
    pub(crate) fn signals(&mut self) -> &mut Signals {
        &mut self.signals
    }

    /// The files that are watched.
    pub(crate) fn files(&mut self) -> &mut Files {
        &mut self.files
    }
}

/// What a watched directory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holds {
    /// Policy files.
    Policy,
    /// The journal.
    Journal,
    /// What applications ask for, in a BPF file system.
    Wishes,
    /// The directory that the one of [`Holds::Wishes`] is made in.
    PlaceOfWishes,
}

/// Directories whose changes are heard of.
pub(crate) struct Files {
    /// `None` where the kernel has none left; files are then read again when asked to.
    inotify: Option<OwnedFd>,
    wanted: Vec<(PathBuf, Holds)>,
    watched: BTreeMap<i32, (PathBuf, Holds)>,
}

impl Files {
    /// Begins to watch directories. One that is not there is watched once it is: [`Files::again`].
    pub(crate) fn watch(wanted: Vec<(PathBuf, Holds)>) -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let mut files = Self { inotify: inotify::init(flags).ok(), wanted, watched: BTreeMap::new() };
        files.again();
        files
    }

    /// Watches what was not there before; says whether there is a new directory of policy files.
    pub(crate) fn again(&mut self) -> bool {
        use inotify::WatchFlags;
        let Some(inotify) = &self.inotify else { return false };
        let mut policy = false;
        for (path, holds) in &self.wanted {
            if self.watched.values().any(|(watched, _)| watched == path) {
                continue;
            }
            let flags = match holds {
                Holds::Policy => {
                    WatchFlags::CLOSE_WRITE
                        | WatchFlags::MOVED_TO
                        | WatchFlags::MOVED_FROM
                        | WatchFlags::DELETE
                        | WatchFlags::CREATE
                        | WatchFlags::DELETE_SELF
                        | WatchFlags::MOVE_SELF
                }
                // Whoever writes closes the lock.
                Holds::Journal => WatchFlags::CLOSE_WRITE | WatchFlags::DELETE_SELF,
                // A registry gets its name when it is whole.
                Holds::Wishes => WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::DELETE_SELF,
                Holds::PlaceOfWishes => WatchFlags::CREATE | WatchFlags::DELETE_SELF,
            };
            if let Ok(number) = inotify::add_watch(inotify, path, flags) {
                policy |= *holds == Holds::Policy;
                self.watched.insert(number, (path.clone(), *holds));
            }
        }
        policy
    }

    /// Which of them changed; never [`Holds::PlaceOfWishes`], which is only looked at for new directories.
    pub(crate) fn changed(&mut self) -> BTreeSet<Holds> {
        let mut changed = BTreeSet::new();
        let Some(inotify) = &self.inotify else { return changed };
        let mut space = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(inotify, &mut space);
        while let Ok(event) = reader.next() {
            use inotify::ReadFlags;
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend([Holds::Policy, Holds::Journal, Holds::Wishes, Holds::PlaceOfWishes]);
                continue;
            }
            changed.extend(self.watched.get(&event.wd()).map(|(_, holds)| *holds));
            if event.events().intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                self.watched.remove(&event.wd());
            }
        }
        if changed.remove(&Holds::PlaceOfWishes) {
            let hears = |files: &Self| files.watched.values().any(|(_, holds)| *holds == Holds::Wishes);
            let heard = hears(self);
            if self.again() {
                changed.insert(Holds::Policy);
            }
            // It may have been filled before it was watched.
            if !heard && hears(self) {
                changed.insert(Holds::Wishes);
            }
        }
        changed
    }
}

/// The directory of a file.
pub(crate) fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
