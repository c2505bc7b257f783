//! The sources of the daemon's events: kernel notifications, process events, signals, and file changes.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::bpf::process_events::{
    ExtraEvents, ListenedPort, ProcessEvent, ProcessEvents, TimedEvent, Waited,
};
use linux::events::{Notice, Notices};
use linux::{KernelError, Netns, Signals};
use model::host::{Process, Socket, SocketState};
use model::{NetnsId, Pid};
use rustix::fs::inotify;
use rustix::io::Errno;
use session::Fault;

use crate::event_loop::EventLoop;
use crate::first_connections::FirstConnections;
use crate::scans::Scans;
use crate::status::EventSource;

/// The numbers by which the event loop reports the daemon's own descriptors.
pub(crate) const NOTICES: u32 = 0;
pub(crate) const PROCESS_EVENTS: u32 = 1;
pub(crate) const SIGNALS: u32 = 2;
pub(crate) const FILES: u32 = 3;
pub(crate) const APP_REQUESTS: u32 = 4;
pub(crate) const MEASURED: u32 = 5;
pub(crate) const GUARDED: u32 = 6;
pub(crate) const REQUESTED: u32 = 7;

/// The maximum number of process events to handle in one turn. The next turn handles the rest.
const PROCESS_EVENTS_MAX: usize = 4096;

/// All sources of the daemon's events.
pub(crate) struct EventSources {
    notices: Notices,
    process_events: Option<ProcessEvents>,
    refused: Vec<KernelError>,
    /// The optional events that BPF reports, in addition to those of processes and listeners.
    reports: ExtraEvents,
    signals: Signals,
    files: Files,
    /// The processes whose forks, execs and exits BPF reports.
    watched: BTreeSet<Pid>,
    first_connections: FirstConnections,
    /// Periodic scans for changes that no event reports.
    scans: Scans,
}

impl EventSources {
    /// Opens all sources, and adds them to the event loop.
    pub(crate) fn open(netns: &Netns, event_loop: &EventLoop, files: Files) -> Result<Self, Fault> {
        let failed =
            |errno: Errno| Fault::failed(format!("cannot add a descriptor to the daemon's epoll: {errno}"));
        let notices = Notices::of(netns)?;
        let mut refused = Vec::new();
        let mut opened = None;
        for too in [(true, true), (false, true), (true, false), (false, false)] {
            let too = ExtraEvents { epolls: too.0, udp_ports: too.1 };
            match ProcessEvents::of_processes_and_listeners(too) {
                Ok(events) => {
                    opened = Some((events, too));
                    break;
                }
                Err(error) => refused.push(error),
            }
        }
        let (process_events, reports) =
            opened.map_or((None, ExtraEvents::default()), |(events, too)| (Some(events), too));
        let mut scans = Scans::default();
        if process_events.is_none() {
            scans.begin()?;
        }
        let signals = Signals::catch_with_hang_up()?;
        for descriptor in notices.descriptors() {
            event_loop.watch(descriptor, NOTICES).map_err(failed)?;
        }
        if let Some(process_events) = &process_events {
            event_loop.watch(process_events.descriptor(), PROCESS_EVENTS).map_err(failed)?;
        }
        event_loop.watch(signals.as_fd(), SIGNALS).map_err(failed)?;
        if let Some(inotify) = &files.inotify {
            event_loop.watch(inotify.as_fd(), FILES).map_err(failed)?;
        }
        Ok(Self {
            notices,
            process_events,
            refused,
            reports,
            signals,
            files,
            watched: BTreeSet::new(),
            first_connections: FirstConnections::default(),
            scans,
        })
    }

    /// Whether BPF reports new epolls.
    pub(crate) fn sees_new_epolls(&self) -> bool {
        self.reports.epolls
    }

    /// Whether BPF reports processes and listeners.
    pub(crate) fn sees_processes(&self) -> bool {
        self.process_events.is_some()
    }

    /// Describes how each kind of event is detected.
    pub(crate) fn event_sources(&self) -> Vec<EventSource> {
        let words = |errors: &[KernelError]| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let tick = Duration::from_nanos(crate::reconciler::TICK.0);
        let scan = Duration::from_nanos(crate::reconciler::SCAN_EVERY.0);
        let look = Duration::from_nanos(crate::known::LOOK_AT_ALL_EVERY.0);
        let immediate = |what: &str, how: &str, refused: Vec<String>| EventSource {
            what: what.to_owned(),
            how: how.to_owned(),
            within: None,
            refused,
        };
        let seen = |what: &str, how: &str, within: Duration, refused: Vec<String>| EventSource {
            within: Some(within),
            ..immediate(what, how, refused)
        };
        let links = immediate(
            "links, queues, drivers, CPUs",
            "netlink (rt-link, netdev, ethtool, uevents)",
            words(self.notices.missing()),
        );
        let values = seen("values that other programs set", "looks", tick, Vec::new());
        let tracepoints = "BPF on tracepoints";
        let refused = words(&self.refused);
        let [processes, udp, epolls] = ["processes and TCP listeners", "UDP ports", "epolls"];
        let scanned = |what| seen(what, "scans of new processes", scan, refused.clone());
        let young = "scans every second while a process is young";
        let of_processes = match &self.process_events {
            Some(_) => [
                immediate(processes, tracepoints, Vec::new()),
                match self.reports.udp_ports {
                    true => immediate(udp, "BPF at bind(2)", Vec::new()),
                    false => seen(udp, "looks", look, refused.clone()),
                },
                match self.reports.epolls {
                    true => immediate(epolls, "BPF at the return of do_epoll_create()", Vec::new()),
                    false => seen(epolls, young, tick, refused),
                },
            ],
            None => [scanned(processes), scanned(udp), seen(epolls, young, tick, refused)],
        };
        iter::once(links).chain(of_processes).chain([values]).collect()
    }

    /// Takes the kernel's notifications.
    pub(crate) fn notices(&self) -> Result<impl Iterator<Item = Notice>, KernelError> {
        Ok(self.notices.take()?.into_iter())
    }

    /// Takes the process events since the last turn. Also returns whether any events were lost.
    pub(crate) fn take_process_events(&mut self) -> Result<(Vec<TimedEvent>, bool), KernelError> {
        let Some(process_events) = &mut self.process_events else { return Ok((Vec::new(), false)) };
        let mut events = Vec::new();
        while let Some(event) = process_events.next_timed(Duration::ZERO)? {
            match event.event {
                ProcessEvent::Connection(port) => self.first_connections.came(port),
                ProcessEvent::Listener { port, netns, .. } => self.first_connections.listens((netns, port)),
                _ => {}
            }
            events.push(event);
            if events.len() >= PROCESS_EVENTS_MAX {
                break;
            }
        }
        Ok((events, process_events.lost()? > 0))
    }

    /// Sets for which executables and listeners BPF reports events from now on.
    pub(crate) fn wait_for(&mut self, netns: NetnsId, waited: Waited) -> Result<(), KernelError> {
        self.process_events.as_mut().map_or(Ok(()), |process_events| process_events.wait_for(netns, waited))
    }

    /// Makes BPF report, once, the next connection to each port on which these processes listen. Scans find
    /// servers whose first packet BPF does not report.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn await_packets<'a>(
        &mut self,
        processes: impl Iterator<Item = &'a Process>,
    ) -> Result<(), KernelError> {
        let (mut ports, mut scanned) = (BTreeSet::<ListenedPort>::new(), BTreeSet::new());
        for process in processes {
            let listened = plan::listened_ports(process);
            // No event reports the first datagram of a UDP socket, so scan for it even if the process also
            // listens on TCP.
            let by_udp = |socket: &Socket| socket.state == SocketState::Udp && plan::serves(socket);
            if process.sockets.iter().any(by_udp) || self.process_events.is_none() {
                scanned.insert(process.id.pid);
            }
            ports.extend(listened);
        }
        self.scans.look_at(scanned);
        let ports = self.first_connections.awaited(ports);
        self.process_events.as_mut().map_or(Ok(()), |process_events| process_events.await_connections(&ports))
    }

    /// Whether scans look for the first packet of any server.
    pub(crate) fn scans_for_packets(&self) -> bool {
        self.scans.looks_at_any()
    }

    pub(crate) fn scans(&mut self) -> &mut Scans {
        &mut self.scans
    }

    /// Resets the limits that apply per tick.
    pub(crate) fn tick(&mut self) {
        self.first_connections.forget();
    }

    /// Whether BPF reports this process's forks, execs and exits.
    pub(crate) fn is_watched(&self, pid: Pid) -> bool {
        self.watched.contains(&pid)
    }

    /// Records that BPF watches this process. It automatically watches each child of a watched process.
    pub(crate) fn note_watched(&mut self, pid: Pid) {
        self.watched.insert(pid);
    }

    /// Records that BPF no longer watches this process, because it has exited.
    pub(crate) fn note_ended(&mut self, pid: Pid) {
        self.watched.remove(&pid);
    }

    /// Stops watching this process, if it is watched.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn stop_watching(&mut self, pid: Pid) -> Result<(), KernelError> {
        if self.watched.remove(&pid) { self.ignore(pid) } else { Ok(()) }
    }

    /// Stops watching this process, even if BPF watches it only because it is the child of another one.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn ignore(&self, pid: Pid) -> Result<(), KernelError> {
        self.process_events.as_ref().map_or(Ok(()), |process_events| process_events.ignore(pid))
    }

    /// Watches exactly these processes, for exits and new children. Returns the error if a process could not
    /// be added.
    ///
    /// # Errors
    /// The kernel's error if a process cannot be removed.
    pub(crate) fn watch_alone(&mut self, known: &BTreeSet<Pid>) -> Result<Option<KernelError>, KernelError> {
        let mut full = None;
        for pid in known.difference(&self.watched).copied().collect::<Vec<_>>() {
            // The kernel's table has no room for this process. Scans will find the process's changes.
            if let Err(error) =
                self.process_events.as_ref().map_or(Ok(()), |process_events| process_events.watch(pid))
            {
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

    pub(crate) fn signals(&mut self) -> &mut Signals {
        &mut self.signals
    }

    pub(crate) fn files(&mut self) -> &mut Files {
        &mut self.files
    }
}

/// What a watched directory contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holds {
    /// Policy files.
    Policy,
    /// The journal.
    Journal,
    /// The requests of applications, in a BPF file system.
    AppRequests,
    /// The parent of the directory for [`Holds::AppRequests`].
    ParentOfAppRequests,
}

/// The directories that inotify watches for changes.
pub(crate) struct Files {
    /// `None` if the user's limit of inotify instances is reached; files are then read again only on request.
    inotify: Option<OwnedFd>,
    wanted: Vec<(PathBuf, Holds)>,
    watched: BTreeMap<i32, (PathBuf, Holds)>,
}

impl Files {
    /// Starts watching these directories. [`Files::again`] adds those that do not exist yet.
    pub(crate) fn watch(wanted: Vec<(PathBuf, Holds)>) -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let mut files = Self { inotify: inotify::init(flags).ok(), wanted, watched: BTreeMap::new() };
        files.again();
        files
    }

    /// Also watches directories that were missing before. Returns whether one of the newly watched
    /// directories is for policy files.
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
                // Each writer of the journal closes the lock file when it has finished.
                Holds::Journal => WatchFlags::CLOSE_WRITE | WatchFlags::DELETE_SELF,
                // A registry is complete when it has been renamed to its final name.
                Holds::AppRequests => WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::DELETE_SELF,
                Holds::ParentOfAppRequests => WatchFlags::CREATE | WatchFlags::DELETE_SELF,
            };
            if let Ok(number) = inotify::add_watch(inotify, path, flags) {
                policy |= *holds == Holds::Policy;
                self.watched.insert(number, (path.clone(), *holds));
            }
        }
        policy
    }

    /// Returns which kinds of directories have changed. Excludes [`Holds::ParentOfAppRequests`], which is
    /// only watched for new directories.
    pub(crate) fn changed(&mut self) -> BTreeSet<Holds> {
        let mut changed = BTreeSet::new();
        let Some(inotify) = &self.inotify else { return changed };
        let mut space = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(inotify, &mut space);
        while let Ok(event) = reader.next() {
            use inotify::ReadFlags;
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend([
                    Holds::Policy,
                    Holds::Journal,
                    Holds::AppRequests,
                    Holds::ParentOfAppRequests,
                ]);
                continue;
            }
            changed.extend(self.watched.get(&event.wd()).map(|(_, holds)| *holds));
            if event.events().intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                self.watched.remove(&event.wd());
            }
        }
        if changed.remove(&Holds::ParentOfAppRequests) {
            let watches =
                |files: &Self| files.watched.values().any(|(_, holds)| *holds == Holds::AppRequests);
            let before = watches(self);
            if self.again() {
                changed.insert(Holds::Policy);
            }
            // Requests may have been made before the directory was watched, so it counts as changed.
            if !before && watches(self) {
                changed.insert(Holds::AppRequests);
            }
        }
        changed
    }
}

/// Returns the directory that contains a file.
pub(crate) fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
