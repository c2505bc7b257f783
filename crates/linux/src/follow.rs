//! Follows running processes: reports their new epolls, their children, and their exit.
//!
//! A kernel that allows fexit programs reports an epoll when it is created. On other kernels a scan finds the
//! epoll a little later: the scheduler's tracepoints report which processes to scan, and a BPF iterator scans
//! them. Without BPF, `/proc` is scanned. System call tracepoints are never used: they make every system call
//! of the machine slower.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use bpf::EpollScanner;
use bpf::epolls::EpollFile;
use bpf::process_events::{ProcessEvent, ProcessEvents};
use model::{EpollId, EpollParams, Fd, Pid, ProcessId};
use sys::error::{Cause, KernelError};

use crate::process::{self, PinnedProcess};

/// The age at which a process counts as settled: servers create their epolls while they start.
const SETTLED: Duration = Duration::from_secs(10);
/// How often a starting process is scanned. A new epoll is found within this time, well before its load has
/// ramped up.
const RESCAN_STARTING: Duration = Duration::from_millis(100);
/// How often a settled process is scanned: it rarely creates epolls.
const RESCAN_SETTLED: Duration = Duration::from_secs(1);
/// The minimum pause after a scan, as a multiple of the scan's duration: scans take at most a hundredth of a
/// CPU. A scan of 10 000 sockets takes 2 ms by iterator and 15 ms by `/proc`, so the largest processes are
/// scanned less often.
const PAUSE_FOR_SCAN: u32 = 100;
/// How often a process is scanned if the kernel reports its new epolls. Such a scan finds only epolls that
/// the process received over a socket from a process that is not followed.
const RESCAN_REPORTED: Duration = Duration::from_secs(10);
/// The maximum number of followed processes; the rest of a fork bomb is not followed.
const FOLLOWED_MAX: usize = 65_536;

/// How new epolls are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowMethod {
    /// The first of the following methods that this kernel and the caller's privileges allow.
    Auto,
    /// By a BPF program at the return of `do_epoll_create()`.
    Fentry,
    /// By scans with a BPF iterator: at this interval or, without one, at an interval that depends on the
    /// process's age and size; and after each exec.
    Rescan {
        /// A fixed scan interval, instead of 100 ms for starting and 1 s for settled processes. The cost of
        /// scans is then not limited.
        interval: Option<Duration>,
    },
    /// By scans of `/proc/PID/fd`, at the same intervals. Children and new images are then found by scans,
    /// too; a child that has children itself and exits between two scans is missed, and so is an epoll that
    /// replaces a closed one whose parameters had not been set.
    Proc {
        /// The fixed interval, as in [`FollowMethod::Rescan`].
        interval: Option<Duration>,
    },
}

impl fmt::Display for FollowMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scans = |f: &mut fmt::Formatter<'_>, by: &str, interval: &Option<Duration>| match interval {
            Some(interval) => write!(f, "scans by {by} every {interval:?}"),
            None => {
                write!(f, "scans by {by} every {RESCAN_STARTING:?} at first, every {RESCAN_SETTLED:?} later")
            }
        };
        match self {
            Self::Auto => f.write_str("the best available method"),
            Self::Fentry => f.write_str("a BPF program at the return of do_epoll_create()"),
            Self::Rescan { interval } => scans(f, "BPF iterator", interval),
            Self::Proc { interval } => scans(f, "/proc", interval),
        }
    }
}

/// Something that happened to a followed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowEvent {
    /// The process has an epoll that was not reported before. Epolls that exist when following begins are
    /// reported once, too, so that an epoll that was created after an earlier observation is not missed.
    NewEpoll(EpollId),
    /// A followed process has forked. This child is followed from now on. It shares its parent's epolls,
    /// which are not reported again.
    Child(ProcessId),
    /// The process has a new image, and a new name. Epolls that it kept are reported again.
    Exec(ProcessId),
    /// The process has exited and is no longer followed.
    Exit(ProcessId),
}

/// Follows processes, and all their present and future children.
///
/// The follower works only inside [`Follower::next`]: there is no background thread. Dropping the follower
/// leaves nothing behind.
#[derive(Debug)]
pub struct Follower {
    how: FollowMethod,
    refused: Vec<KernelError>,
    source: Source,
    followed: BTreeMap<Pid, Followed>,
    events: VecDeque<FollowEvent>,
}

/// The source of a follower's events.
#[derive(Debug)]
enum Source {
    /// The kernel reports events of processes, and scans find epolls.
    Bpf { events: Box<ProcessEvents>, scanner: EpollScanner },
    /// Scans find everything.
    Proc,
}

/// A followed process.
#[derive(Debug)]
struct Followed {
    id: ProcessId,
    /// The epolls that the process had at the last scan.
    known: BTreeMap<Identity, ScannedEpoll>,
    /// Epolls that the kernel reported since the last scan.
    reported: Vec<Fd>,
    due: Instant,
    /// The number of new images that were reported.
    images: u32,
    /// The executable at the last scan, or the parent's, for a child that was not scanned yet. `None` if the
    /// kernel reports new images.
    image: Option<String>,
}

/// An epoll as a scan found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScannedEpoll {
    fd: Fd,
    params: Option<EpollParams>,
}

/// The identity by which scans recognise an epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    File(EpollFile),
    Descriptor(Fd),
}

impl Followed {
    /// Creates an entry for a process of which nothing is known yet; it is scanned immediately.
    fn new(id: ProcessId) -> Self {
        let (known, reported) = (BTreeMap::new(), Vec::new());
        Self { id, known, reported, due: Instant::now(), images: 0, image: None }
    }

    /// Creates an entry for a child, which inherits what was reported about its parent.
    fn child(&self, id: ProcessId) -> Self {
        let (known, reported, image) = (self.known.clone(), self.reported.clone(), self.image.clone());
        Self { known, reported, image, ..Self::new(id) }
    }
}

impl ScannedEpoll {
    /// Whether this is a new epoll that replaced an earlier one. A new epoll may have the kernel address and
    /// the descriptor of a closed one. But it has no parameters yet, and the closed one may have had some.
    fn replaces(&self, before: &Self) -> bool {
        before.params.is_some_and(is_set) && !self.params.is_some_and(is_set)
    }
}

fn is_set(params: EpollParams) -> bool {
    params.busy_poll_usecs > 0 || params.busy_poll_budget > 0 || params.prefer_busy_poll
}

impl Follower {
    /// Starts following these processes.
    ///
    /// # Errors
    /// [`Cause::Gone`] if one of them has exited already; the kernel's error for the requested method.
    pub fn new(processes: &[ProcessId], how: FollowMethod) -> Result<Self, KernelError> {
        let (how, source, refused) = choose(how)?;
        let mut follower = Self { how, refused, source, followed: BTreeMap::new(), events: VecDeque::new() };
        for process in processes {
            follower.follow(*process)?;
        }
        Ok(follower)
    }

    /// The method by which new epolls are found; never [`FollowMethod::Auto`].
    pub fn how(&self) -> FollowMethod {
        self.how
    }

    /// The kernel's errors, which show why better methods are unavailable.
    pub fn refused(&self) -> &[KernelError] {
        &self.refused
    }

    /// The processes that are followed.
    pub fn followed(&self) -> impl Iterator<Item = ProcessId> {
        self.followed.values().map(|followed| followed.id)
    }

    /// Follows another process, and the children that it already has: it may have forked before it was
    /// watched.
    ///
    /// # Errors
    /// Those of [`Follower::new`].
    pub fn follow(&mut self, process: ProcessId) -> Result<(), KernelError> {
        self.follow_alone(process)?;
        let mut parents = vec![process];
        while let Some(parent) = parents.pop() {
            // The exit of a process that has exited meanwhile is reported like any other.
            let Ok(parent) = PinnedProcess::reopen(&parent) else { continue };
            for child in children(&parent).unwrap_or_default() {
                let Ok(child) = process::identify(child) else { continue };
                if !self.is_followed(&child) && self.follow_alone(child).is_ok() {
                    self.events.push_back(FollowEvent::Child(child));
                    parents.push(child);
                }
            }
        }
        Ok(())
    }

    fn is_followed(&self, process: &ProcessId) -> bool {
        self.followed.get(&process.pid).is_some_and(|followed| followed.id.started == process.started)
    }

    fn follow_alone(&mut self, process: ProcessId) -> Result<(), KernelError> {
        let what = || format!("follow {process}");
        // Watch first and read afterwards, so that events in between are reported.
        if let Source::Bpf { events, .. } = &self.source {
            events.watch(process.pid)?;
        }
        if let Err(cause) = PinnedProcess::reopen(&process) {
            if let Source::Bpf { events, .. } = &self.source {
                events.ignore(process.pid)?;
            }
            return Err(KernelError { what: what(), cause });
        }
        self.adopt(Followed::new(process));
        Ok(())
    }

    /// Returns the next event, or `None` if nothing happened within the timeout.
    ///
    /// # Errors
    /// The kernel's error; the exit of a process is an event and not an error.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<FollowEvent>, KernelError> {
        let deadline = Instant::now() + timeout;
        self.listen(Duration::ZERO)?;
        loop {
            if let Some(event) = self.events.pop_front() {
                self.look_again_after(event);
                return Ok(Some(event));
            }
            self.scan_due()?;
            if !self.events.is_empty() {
                continue;
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            let due = self.followed.values().map(|followed| followed.due).min();
            let until = due.map_or(deadline, |due| due.min(deadline));
            self.listen(until.saturating_duration_since(now))?;
        }
    }

    /// Schedules another scan: a caller that receives an epoll sets its parameters before it
    /// calls `next` again. That scan sees the parameters set, so later scans can tell if they disappear.
    fn look_again_after(&mut self, event: FollowEvent) {
        if let FollowEvent::NewEpoll(epoll) = event
            && let Some(followed) = self.followed.get_mut(&epoll.process.pid)
        {
            followed.due = Instant::now();
        }
    }

    fn adopt(&mut self, followed: Followed) {
        if self.followed.len() < FOLLOWED_MAX {
            self.followed.insert(followed.id.pid, followed);
        }
    }

    /// Waits for events until the timeout, and processes all that have arrived.
    fn listen(&mut self, timeout: Duration) -> Result<(), KernelError> {
        let Source::Bpf { events, .. } = &mut self.source else {
            std::thread::sleep(timeout);
            return Ok(());
        };
        let mut arrived = Vec::new();
        let mut patience = timeout;
        while let Some(event) = events.next(patience)? {
            arrived.push(event);
            patience = Duration::ZERO;
            if arrived.len() >= FOLLOWED_MAX {
                break;
            }
        }
        let lost = events.lost()?;
        for event in arrived {
            self.process(event);
        }
        if lost > 0 {
            self.catch_up();
        }
        Ok(())
    }

    fn process(&mut self, event: ProcessEvent) {
        match event {
            // This child was already found when its parent's children were read.
            ProcessEvent::Child { child, .. } if self.is_followed(&child) => {}
            ProcessEvent::Child { child, parent } => {
                let parent = self.followed.get(&parent);
                let followed = parent.map_or_else(|| Followed::new(child), |parent| parent.child(child));
                self.adopt(followed);
                self.events.push_back(FollowEvent::Child(child));
            }
            ProcessEvent::Exec(process) => {
                if let Some(followed) = self.followed.get_mut(&process.pid) {
                    followed.id = process;
                    followed.known.clear();
                    followed.images += 1;
                    followed.due = Instant::now();
                    self.events.push_back(FollowEvent::Exec(process));
                }
            }
            ProcessEvent::Exit(process) => self.end(process.pid),
            // The follower did not request these events.
            ProcessEvent::Listener { .. } | ProcessEvent::Connection(_) => {}
            ProcessEvent::Epoll(epoll) => {
                if let Some(followed) = self.followed.get_mut(&epoll.process.pid) {
                    followed.reported.push(epoll.fd);
                    self.events.push_back(FollowEvent::NewEpoll(epoll));
                }
            }
        }
    }

    /// Recovers from lost events: scans every process, and drops those that have exited.
    fn catch_up(&mut self) {
        let ids: Vec<ProcessId> = self.followed().collect();
        for id in ids {
            if matches!(PinnedProcess::reopen(&id), Err(Cause::Gone(_))) {
                self.end(id.pid);
            } else if let Some(followed) = self.followed.get_mut(&id.pid) {
                followed.due = Instant::now();
            }
        }
    }

    fn end(&mut self, pid: Pid) {
        if let Some(followed) = self.followed.remove(&pid) {
            self.events.push_back(FollowEvent::Exit(followed.id));
        }
    }

    fn scan_due(&mut self) -> Result<(), KernelError> {
        let now = Instant::now();
        let due: Vec<Pid> =
            self.followed.iter().filter(|(_, followed)| followed.due <= now).map(|(pid, _)| *pid).collect();
        for pid in due {
            match self.scan(pid) {
                Err(error) if matches!(error.cause, Cause::Gone(_)) => self.end(pid),
                result => result?,
            }
        }
        Ok(())
    }

    fn scan(&mut self, pid: Pid) -> Result<(), KernelError> {
        let begun = Instant::now();
        let Some(followed) = self.followed.get_mut(&pid) else { return Ok(()) };
        let (images, reported_before) = (followed.images, followed.reported.len());
        let mut children = Vec::new();
        let seen = match &self.source {
            Source::Bpf { scanner, .. } => by_iterator(scanner, pid)?,
            Source::Proc => {
                let scan = by_proc(&followed.id)
                    .map_err(|cause| KernelError { what: format!("follow {}", followed.id), cause })?;
                children = scan.children;
                let before = followed.image.replace(scan.image.clone());
                if before.is_some_and(|before| before != scan.image) {
                    followed.id = scan.id;
                    followed.known.clear();
                    self.events.push_back(FollowEvent::Exec(scan.id));
                }
                scan.epolls
            }
        };
        // An epoll that was created during the scan was reported before the scan ended, so it is not a second
        // epoll.
        self.listen(Duration::ZERO)?;
        let Some(followed) = self.followed.get_mut(&pid) else { return Ok(()) };
        if followed.images != images {
            // The scan saw the previous image, or parts of both; the report of the new image has scheduled
            // another scan.
            return Ok(());
        }
        for (what, epoll) in &seen {
            let is_new = followed.known.get(what).is_none_or(|before| epoll.replaces(before));
            if is_new && !followed.reported.contains(&epoll.fd) {
                self.events.push_back(FollowEvent::NewEpoll(EpollId { process: followed.id, fd: epoll.fd }));
            }
        }
        // An epoll that was reported meanwhile may have been created too late for this scan; the next scan
        // sees it.
        followed.reported.drain(..reported_before);
        followed.reported.retain(|fd| seen.values().all(|epoll| epoll.fd != *fd));
        followed.known = seen;
        let now = Instant::now();
        followed.due = now + pause(self.how, &followed.id, now.duration_since(begun));
        let mut new = Vec::new();
        for child in children.into_iter().filter_map(running) {
            new.push(followed.child(child));
        }
        for child in new {
            if !self.followed.contains_key(&child.id.pid) {
                self.events.push_back(FollowEvent::Child(child.id));
                self.adopt(child);
            }
        }
        Ok(())
    }
}

/// Opens the source for a method, and returns the kernel's errors for better methods.
fn choose(how: FollowMethod) -> Result<(FollowMethod, Source, Vec<KernelError>), KernelError> {
    let bpf =
        |events: ProcessEvents| Ok(Source::Bpf { events: Box::new(events), scanner: EpollScanner::load()? });
    match how {
        FollowMethod::Fentry => {
            Ok((how, ProcessEvents::of_processes_and_epolls().and_then(bpf)?, Vec::new()))
        }
        FollowMethod::Rescan { .. } => Ok((how, ProcessEvents::of_processes().and_then(bpf)?, Vec::new())),
        FollowMethod::Proc { .. } => Ok((how, Source::Proc, Vec::new())),
        FollowMethod::Auto => {
            let mut refused = Vec::new();
            for how in [FollowMethod::Fentry, FollowMethod::Rescan { interval: None }] {
                match choose(how) {
                    Ok((how, source, _)) => return Ok((how, source, refused)),
                    Err(error) => refused.push(error),
                }
            }
            Ok((FollowMethod::Proc { interval: None }, Source::Proc, refused))
        }
    }
}

/// Returns how long to wait until a process is scanned again.
fn pause(how: FollowMethod, process: &ProcessId, scan: Duration) -> Duration {
    match how {
        FollowMethod::Rescan { interval: Some(interval) }
        | FollowMethod::Proc { interval: Some(interval) } => interval,
        FollowMethod::Fentry => RESCAN_REPORTED,
        FollowMethod::Auto
        | FollowMethod::Rescan { interval: None }
        | FollowMethod::Proc { interval: None } => {
            let advised = if age(process) < SETTLED { RESCAN_STARTING } else { RESCAN_SETTLED };
            advised.max(scan * PAUSE_FOR_SCAN)
        }
    }
}

/// The age of a process, to a hundredth of a second.
fn age(process: &ProcessId) -> Duration {
    let now = Duration::from_secs(sys::clock::since_boot().0 / 1_000_000_000);
    now.saturating_sub(Duration::from_millis(process.started.saturating_mul(10)))
}

/// Scans a process with the iterator. An epoll with several descriptors is listed under the last.
fn by_iterator(scanner: &EpollScanner, pid: Pid) -> Result<BTreeMap<Identity, ScannedEpoll>, KernelError> {
    let epolls = scanner.epolls(pid)?.into_iter();
    Ok(epolls
        .take(process::EPOLLS_MAX)
        .map(|epoll| (Identity::File(epoll.file), ScannedEpoll { fd: epoll.fd, params: epoll.params }))
        .collect())
}

/// The result of a scan of `/proc`.
struct ProcScan {
    id: ProcessId,
    epolls: BTreeMap<Identity, ScannedEpoll>,
    children: Vec<Pid>,
    image: String,
}

fn by_proc(id: &ProcessId) -> Result<ProcScan, Cause> {
    let process = PinnedProcess::reopen(id)?;
    let epolls = process::inspected_epolls(id)?.into_iter();
    let epolls = epolls.map(|(fd, params)| (Identity::Descriptor(fd), ScannedEpoll { fd, params })).collect();
    let image = match process.executable() {
        Ok(image) => image,
        // A zombie, which has no image.
        Err(Cause::Gone(why)) => return Err(Cause::Gone(why)),
        Err(_) => String::new(),
    };
    Ok(ProcScan { id: process.id, epolls, children: children(&process)?, image })
}

/// Identifies a process, unless it has exited. A zombie is still listed among its parent's children, but
/// counts as exited.
fn running(pid: Pid) -> Option<ProcessId> {
    let process = PinnedProcess::open(pid).ok()?;
    process.confirm_running().ok()?;
    Some(process.id)
}

/// Lists the current children of a process; none on kernels without CONFIG_PROC_CHILDREN.
///
/// Kernel: 6.18, `fs/proc/array.c` `children_seq_show()`.
fn children(process: &PinnedProcess) -> Result<Vec<Pid>, Cause> {
    let mut threads = Vec::new();
    process.numbers("task", |tid| {
        threads.push(tid);
        true
    })?;
    let mut children = Vec::new();
    let mut text = Vec::new();
    for tid in threads {
        if process.read(&format!("task/{tid}/children"), &mut text).is_ok() {
            let text = String::from_utf8_lossy(&text);
            children.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid));
        }
    }
    Ok(children)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_epoll_that_lost_its_parameters_is_another() {
        let seen = |usecs| {
            let params = EpollParams {
                busy_poll_usecs: usecs,
                busy_poll_budget: 0,
                prefer_busy_poll: false,
                events_only: false,
            };
            ScannedEpoll { fd: Fd(4), params: Some(params) }
        };
        assert!(seen(0).replaces(&seen(64)));
        assert!(!seen(64).replaces(&seen(0)), "its parameters have been set");
        assert!(!seen(32).replaces(&seen(64)), "its parameters have been changed");
        assert!(!seen(0).replaces(&seen(0)));
    }

    #[test]
    fn a_starting_process_is_scanned_more_often_than_a_settled_one() {
        let boot = ProcessId { pid: Pid(1), started: 0, comm: model::Label::default() };
        let young = ProcessId { started: sys::clock::since_boot().0 / 10_000_000, ..boot };
        let scan = Duration::from_micros(50);
        let by_age = FollowMethod::Rescan { interval: None };
        assert_eq!(pause(by_age, &boot, scan), RESCAN_SETTLED);
        assert_eq!(pause(by_age, &young, scan), RESCAN_STARTING);
        let fixed = FollowMethod::Proc { interval: Some(Duration::from_millis(7)) };
        assert_eq!(pause(fixed, &boot, scan), Duration::from_millis(7));
        assert_eq!(
            pause(by_age, &young, Duration::from_millis(15)),
            Duration::from_millis(1500),
            "a large one"
        );
    }

    #[test]
    fn a_process_that_has_ended_cannot_be_followed() {
        let id = process::identify(Pid(std::process::id())).expect("we run");
        let another = ProcessId { started: id.started + 1, ..id };
        let error =
            Follower::new(&[another], FollowMethod::Proc { interval: None }).expect_err("not this one");
        assert!(matches!(error.cause, Cause::Gone(_)), "{error}");
    }
}
