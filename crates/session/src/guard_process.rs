//! The guard process of a trial: a separate process that enforces the deadline even if the command, the
//! terminal or the connection that started the trial goes away.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use apply::{Journal, JournalError, Knobs, RollBackError, Standing, Transaction, TransactionName};
use linux::{Kernel, Netns, Signal, Signals};
use model::{Nanoseconds, Pid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::clock;
use crate::exit::Exit;
use crate::expire::{Who, roll_back_expired_by};
use crate::fault::Fault;
use crate::operator::{Operator, Silent};
use crate::report;
use crate::session::Session;

/// The message that a guard sends when it no longer depends on another process.
pub const READY: &[u8] = b"ready\n";

/// The longest sleep of a guard. After each sleep, it rereads the clock, which also advances while the host
/// is suspended.
const NAP_MAX: Duration = Duration::from_secs(10);

/// How often the guard of a trial checks whether the trial was confirmed or rolled back.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The delay before a failed rollback is retried. Another netpolicy process may hold the journal's lock, or
/// may be stopped. Including the wait for that lock, all attempts together take more than an hour.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: u32 = 1_000;

/// The maximum number of attempts while another process waits for the guard to exit, as systemd does after it
/// has stopped the daemon. The attach service may restart meanwhile.
const ATTEMPTS_AT_ONCE: u32 = 20;

/// The parameters of a guard process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardParams {
    /// The deadline, as time since boot. Zero means that the guard immediately restores the trials that other
    /// programs have left behind.
    pub deadline: Nanoseconds,
    /// Descriptors of the namespaces that the trial changes.
    pub holding: Vec<i32>,
    /// The guarded program, and a pipe whose other end closes when that program exits.
    pub until_closed: Option<(i32, Pid)>,
}

/// A guard process that restores this program's settings after this program exits, for whatever reason. If
/// this value is dropped, the guard process restores the settings as soon as this program releases the
/// journal.
#[derive(Debug)]
pub struct Guardian {
    /// The guard process; `None` once it has exited.
    guard: Option<Child>,
    /// This program's end of a pipe, which closes when this program exits.
    ours: Option<OwnedFd>,
}

impl Guardian {
    /// Starts the guard, like [`start`].
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(session: &Session, deadline: Nanoseconds, namespaces: &[Netns]) -> Result<Self, Fault> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(|errno| Fault::file("the pipe to the guard", errno.into()))?;
        let guard = start(session, deadline, namespaces, Some(&theirs))?;
        Ok(Self { guard: Some(guard), ours: Some(ours) })
    }

    /// Ends the guard, because there is nothing left to restore.
    pub fn dismiss(mut self) {
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.kill();
            let _ = guard.wait();
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.ours.take());
        if let Some(mut guard) = self.guard.take() {
            // The guard waits for locks that this program holds until the caller returns. A thread reaps the
            // guard, which would otherwise remain a zombie.
            let waits = move || drop(guard.wait());
            let _reaper = std::thread::Builder::new().name("guard's end".to_owned()).spawn(waits);
        }
    }
}

/// Starts a guard for a deadline, and waits until the guard no longer depends on this process. The caller
/// makes the first write only after that, so a trial always has a guard. The guard holds these namespaces
/// open, because the names and processes that refer to them may disappear before the deadline.
///
/// `until_closed` is a pipe whose other end closes when this program exits, for whatever reason. The guard
/// then restores the settings that this program has left behind.
///
/// # Errors
/// If the guard cannot be started.
pub fn start(
    session: &Session,
    deadline: Nanoseconds,
    namespaces: &[Netns],
    until_closed: Option<&OwnedFd>,
) -> Result<Child, Fault> {
    let failed = |error| Fault::file("/proc/self/exe", error);
    let log = log(&session.state_dir)?;
    let mut guard = Command::new("/proc/self/exe");
    guard.arg("guard").arg("--deadline").arg(deadline.0.to_string());
    guard.arg("--state-dir").arg(&session.state_dir);
    for netns in namespaces {
        guard.arg("--holding").arg(netns.as_fd().as_raw_fd().to_string());
    }
    if let Some(socket) = linux::attach::socket() {
        guard.arg("--attach-socket").arg(socket);
    }
    if let Some(pipe) = until_closed {
        guard.arg("--until-closed").arg(pipe.as_raw_fd().to_string());
        guard.arg("--program").arg(std::process::id().to_string());
    }
    guard.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::from(log));
    let descriptors: Vec<BorrowedFd<'_>> =
        namespaces.iter().map(AsFd::as_fd).chain(until_closed.map(AsFd::as_fd)).collect();
    are_inherited(&descriptors, true)?;
    let spawned = guard.spawn();
    are_inherited(&descriptors, false)?;
    let mut guard = spawned.map_err(failed)?;
    let mut ready = Vec::new();
    if let Some(mut announced) = guard.stdout.take() {
        announced.read_to_end(&mut ready).map_err(failed)?;
    }
    if ready == READY {
        return Ok(guard);
    }
    let _ = guard.kill();
    let _ = guard.wait();
    let log = session.state_dir.join(LOG);
    Err(Fault::failed("the guard of the trial did not start").hint(format!("see {}", log.display())))
}

/// Sets whether processes that are started later inherit these descriptors.
fn are_inherited(descriptors: &[BorrowedFd<'_>], inherited: bool) -> Result<(), Fault> {
    let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
    for descriptor in descriptors {
        rustix::io::fcntl_setfd(descriptor, flags)
            .map_err(|errno| Fault::file("a descriptor of the guard", errno.into()))?;
    }
    Ok(())
}

/// The log file of guards.
const LOG: &str = "guard.log";

/// With these flags, opening a file neither follows a symbolic link nor waits for the reader of a pipe.
const WITHOUT_LINKS_AND_WAITING: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

fn log(state_dir: &Path) -> Result<File, Fault> {
    let path = state_dir.join(LOG);
    std::fs::create_dir_all(state_dir).map_err(|error| Fault::file(state_dir, error))?;
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(WITHOUT_LINKS_AND_WAITING)
        .open(&path)
        .map_err(|error| Fault::file(path, error))
}

/// Waits for the deadline, and then rolls back the trial if it is not confirmed. Exits within a second after
/// the trial was confirmed or ended in another way, or after its journal was deleted.
///
/// If the guard has a program to watch, signals do not end the guard. A signal that stops a unit or a session
/// reaches all its processes: the guarded program then rolls back by itself, or the guard notices its exit. A
/// trial without such a program is rolled back on SIGTERM and SIGINT, as at its deadline.
///
/// # Errors
/// If settings cannot be restored. The error lists them.
pub fn run(
    watch: &GuardParams,
    session: &Session,
    operator: &dyn Operator,
    announce: impl FnOnce() -> std::io::Result<()>,
) -> Result<Exit, Fault> {
    let mut signals = Signals::catch()?;
    // Create a session: from here on, no hang-up or Ctrl-C of the terminal reaches this process. A process
    // that systemd started already leads a session.
    if rustix::process::getpgrp() != rustix::process::getpid() {
        rustix::process::setsid().map_err(|errno| Fault::failed(format!("setsid: {errno}")))?;
    }
    let held = watch.holding.iter().map(|number| Netns::inherited(*number));
    let held = held.collect::<Result<Vec<_>, _>>()?;
    let mut kernel = Kernel::new().holding(held);
    let deadline = watch.deadline;
    // With a deadline of zero, no process waits for the announcement, because the guard restores the trials
    // of other programs.
    if deadline != Nanoseconds::ZERO {
        announce().map_err(|error| Fault::file("the pipe to `try`", error))?;
    }
    let journal = session.journal()?;
    // Ignore a directory that has no links from the start: some FUSE file systems do not count links.
    let directory = File::open(&session.state_dir).ok().filter(|directory| !has_no_links(directory));
    let (mut trial, mut is_to_end) = (None, false);
    loop {
        let left = Duration::from_nanos(deadline.0.saturating_sub(clock::now().since_boot.0));
        if left.is_zero() {
            break;
        }
        match watch.until_closed {
            Some((pipe, program)) => {
                if is_closed(pipe, left.min(NAP_MAX))? {
                    return put_back(Left::By(program), deadline, &mut kernel, session, operator);
                }
                // If the program was killed while it was stopped, it may have left the settings of a window
                // in force. A failure to restore them is retried in the next iteration.
                let _until_next_time = roll_back_expired_by(&mut kernel, session, operator, Who::Anybody);
            }
            None => {
                std::thread::sleep(left.min(LOOK_EVERY));
                let is_deleted =
                    directory.as_ref().is_some_and(|directory| is_deleted(directory, &session.state_dir));
                if is_deleted || is_settled(&journal, deadline, &mut trial) {
                    return Ok(Exit::Done);
                }
                is_to_end |= is_asked_to_end(&mut signals);
                // A trial that is not in the journal yet will be soon, so wait for it.
                if is_to_end && trial.is_some() {
                    return put_back(Left::Terminated, deadline, &mut kernel, session, operator);
                }
            }
        }
    }
    let mut last = Ok(());
    let attempts = if deadline == Nanoseconds::ZERO { ATTEMPTS_AT_ONCE } else { ATTEMPTS_MAX };
    for _ in 0..attempts {
        last = roll_back_expired_by(&mut kernel, session, operator, Who::Guard);
        match &last {
            Ok(()) => break,
            Err(fault) => operator.say(&report::words(fault, false)),
        }
        std::thread::sleep(AGAIN_AFTER);
    }
    last.map(|()| Exit::Done)
}

/// Returns whether any received signal asks this process to end. A hang-up does not.
fn is_asked_to_end(signals: &mut Signals) -> bool {
    std::iter::from_fn(|| signals.take()).any(|arrived| arrived.signal != Signal::HangUp)
}

/// Returns whether the directory at this path was deleted. A directory that was only moved, or whose file
/// system was unmounted, still has links. If the directory was copied before it was deleted, the copy is at
/// the path.
fn is_deleted(directory: &File, path: &Path) -> bool {
    has_no_links(directory) && matches!(path.try_exists(), Ok(false))
}

fn has_no_links(directory: &File) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Returns whether the trial with this deadline was confirmed or has ended. Returns false if the trial is not
/// in the journal yet, and while the journal is unreadable or missing.
fn is_settled(journal: &Journal, deadline: Nanoseconds, trial: &mut Option<TransactionName>) -> bool {
    if trial.is_none() {
        // The guard starts before the trial, which may already have ended. No other trial has the same
        // deadline to the nanosecond.
        let is_own = |transaction: &&Transaction| transaction.begin().asked.deadline == Some(deadline);
        let history = journal.history().unwrap_or_default();
        *trial = history.transactions.iter().rev().find(is_own).map(Transaction::name);
    }
    let Some(name) = *trial else { return false };
    match journal.transaction(name) {
        Ok(transaction) => transaction.deadline().is_none(),
        Err(JournalError::NoSuchTransaction { directory, .. }) => directory.is_dir(),
        Err(_) => false,
    }
}

/// Waits for the other end of an inherited pipe to close. Returns whether it has closed.
fn is_closed(pipe: i32, most: Duration) -> Result<bool, Fault> {
    let failed = |error| Fault::file("the pipe from the guarded program", error);
    let pipe = File::open(format!("/proc/self/fd/{pipe}")).map_err(failed)?;
    let most = Timespec::try_from(most).map_err(|_| Fault::failed("invalid time"))?;
    let mut polled = [PollFd::new(&pipe, PollFlags::empty())];
    match poll(&mut polled, Some(&most)) {
        Ok(_) => Ok(polled[0].revents().contains(PollFlags::HUP)),
        Err(errno) if errno.kind() == std::io::ErrorKind::Interrupted => Ok(false),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Which transactions to roll back before their deadline.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// The transactions of a program that exited before it could roll them back.
    By(Pid),
    /// The trial of this guard, which was asked to end.
    Terminated,
}

/// Rolls back what a program has left behind, as its guard does, but without retrying.
///
/// # Errors
/// If a transaction cannot be rolled back. Older transactions are then left as they are.
pub fn restore_left_by<K: Knobs>(program: Pid, journal: &Journal, kernel: &mut K) -> Result<(), Fault> {
    put_back_once(Left::By(program), Nanoseconds::ZERO, journal, kernel, &Silent)
}

/// Rolls back these transactions, and retries if that fails.
fn put_back(
    left: Left,
    deadline: Nanoseconds,
    kernel: &mut Kernel,
    session: &Session,
    operator: &dyn Operator,
) -> Result<Exit, Fault> {
    let journal = session.journal()?;
    let mut last = Ok(());
    for _ in 0..ATTEMPTS_MAX {
        last = put_back_once(left, deadline, &journal, kernel, operator);
        match &last {
            Ok(()) => break,
            Err(fault) => operator.say(&report::words(fault, false)),
        }
        std::thread::sleep(AGAIN_AFTER);
    }
    last.map(|()| Exit::Done)
}

fn put_back_once<K: Knobs>(
    left: Left,
    deadline: Nanoseconds,
    journal: &Journal,
    kernel: &mut K,
    operator: &dyn Operator,
) -> Result<(), Fault> {
    let history = journal.history()?;
    let is_left = |one: &&Transaction| {
        let begin = one.begin();
        let is_owned = matches!(left, Left::By(program) if begin.owned_by == Some(program));
        // A transaction with the same deadline belongs to the same program, because no two deadlines are
        // equal to the nanosecond. A transaction that was meant to stay in force, but is not complete, is
        // rolled back, too.
        let is_to_stay = begin.left_in_force && one.standing() != Standing::Unfinished;
        let is_its = (is_owned && !is_to_stay) || one.deadline() == Some(deadline);
        is_its && one.standing().is_live()
    };
    // The program's pipe may close shortly before its lock is released. The rollback is then refused and
    // retried.
    for transaction in history.transactions.iter().rev().filter(is_left) {
        let name = transaction.name();
        match journal.roll_back(name, kernel, clock::now()) {
            Ok(undone) => operator.say(&match left {
                Left::By(program) => {
                    format!("process {program} exited and left {name}: rolled back. {undone}")
                }
                Left::Terminated => {
                    format!("the guard of {name} was asked to end: rolled back. {undone}")
                }
            }),
            Err(RollBackError::NothingToUndo { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
