//! The guard process of a trial: a process of its own that sees the deadline pass, whatever becomes of the command, the
//! terminal and the connection that began the trial.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use apply::{Journal, JournalError, RollBackError, Transaction, TransactionName};
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
use crate::operator::Operator;
use crate::report;
use crate::session::Session;

/// The message of a guard that no longer depends on another process.
pub const READY: &[u8] = b"ready\n";

/// The longest single sleep of a guard: it looks at the clock again then, which a suspended host moves on.
const NAP_MAX: Duration = Duration::from_secs(10);

/// How often the guard of a trial looks whether that was confirmed or rolled back.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long after a rollback that failed it is tried again, and how often: another netpolicy may be at work, or stopped in
/// the middle of it. With the time that the journal itself waits for its lock this is more than an hour.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: u32 = 1_000;

/// The same where the end of the guard is waited for, as by systemd when it has stopped the daemon: the attach service may be started again meanwhile.
const ATTEMPTS_AT_ONCE: u32 = 20;

/// What a guard process was started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The deadline, in time since boot; zero to put back at once what others have left on trial.
    pub deadline: Nanoseconds,
    /// Descriptors of the namespaces that the trial changes.
    pub holding: Vec<i32>,
    /// A pipe whose other end closes when the program ends that is guarded, and that program.
    pub until_closed: Option<(i32, Pid)>,
}

/// A guard process that puts back what this program leaves, however it ends. Dropping it is such an end: the guard acts as soon as this program releases
/// the journal.
#[derive(Debug)]
pub struct Guardian {
    /// `None` once it has ended.
    guard: Option<Child>,
    /// Closes when this program ends.
    ours: Option<OwnedFd>,
}

impl Guardian {
    /// Starts it, as [`start`].
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(session: &Session, deadline: Nanoseconds, namespaces: &[Netns]) -> Result<Self, Fault> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(|errno| Fault::file("the pipe to the guard", errno.into()))?;
        let guard = start(session, deadline, namespaces, Some(&theirs))?;
        Ok(Self { guard: Some(guard), ours: Some(ours) })
    }

    /// Nothing is left for it to put back: it ends.
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
            // It waits for locks that are this program's until the caller has returned. Without a thread to wait for its end it stays a zombie.
            let waits = move || drop(guard.wait());
            let _reaper = std::thread::Builder::new().name("guard's end".to_owned()).spawn(waits);
        }
    }
}

/// Starts a guard for a deadline, and waits until it stands on its own. This comes before the first write of the
/// trial: from then on the trial is always watched. It holds these namespaces open: names and processes that
/// lead to them may go before the deadline.
///
/// `until_closed` is a pipe whose other end closes when this program ends, however it ends: the guard puts back then what
/// this program has left.
///
/// # Errors
/// If it does not start.
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

/// Whether a process that is started from now on has these descriptors too.
fn are_inherited(descriptors: &[BorrowedFd<'_>], inherited: bool) -> Result<(), Fault> {
    let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
    for descriptor in descriptors {
        rustix::io::fcntl_setfd(descriptor, flags)
            .map_err(|errno| Fault::file("a descriptor of the guard", errno.into()))?;
    }
    Ok(())
}

/// Where guards write what they did.
const LOG: &str = "guard.log";

/// Neither follows a symbolic link nor waits for the reader of a pipe.
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

/// Waits for the deadline, and rolls back what is unconfirmed by then. Ends within a second after the trial was confirmed, or
/// ended otherwise.
///
/// A signal does not end the watch. Stopping a unit or a session sends one to all processes there: the program that is guarded puts back by itself then, and if it
/// cannot, its end is seen as any other. A trial without a supervising program is put back at SIGTERM and SIGINT, as at its deadline.
///
/// # Errors
/// What could not be put back in the end.
pub fn run(
    watch: &Watch,
    session: &Session,
    operator: &dyn Operator,
    announce: impl FnOnce() -> std::io::Result<()>,
) -> Result<Exit, Fault> {
    let mut signals = Signals::catch()?;
    // A session of its own: no terminal, and no hang-up or Ctrl-C of another process reaches this one from here on.
    // What systemd starts leads one already.
    if rustix::process::getpgrp() != rustix::process::getpid() {
        rustix::process::setsid().map_err(|errno| Fault::failed(format!("setsid: {errno}")))?;
    }
    let held = watch.holding.iter().map(|number| Netns::inherited(*number));
    let held = held.collect::<Result<Vec<_>, _>>()?;
    let mut kernel = Kernel::new().holding(held);
    let deadline = watch.deadline;
    // A deadline of zero is for one that is not waited for: what is left of others is put back.
    if deadline != Nanoseconds::ZERO {
        announce().map_err(|error| Fault::file("the pipe to `try`", error))?;
    }
    let journal = session.journal()?;
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
                // A program that was stopped leaves in force what it had for a window. Whatever fails now is tried again.
                let _until_next_time = roll_back_expired_by(&mut kernel, session, operator, Who::Anybody);
            }
            None => {
                std::thread::sleep(left.min(LOOK_EVERY));
                if is_settled(&journal, deadline, &mut trial) {
                    return Ok(Exit::Done);
                }
                is_to_end |= is_asked_to_end(&mut signals);
                // One that is not in the journal yet is on its way there.
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

/// Whether one of the signals that have arrived asks this process to end. A hang-up is not meant for it.
fn is_asked_to_end(signals: &mut Signals) -> bool {
    std::iter::from_fn(|| signals.take()).any(|arrived| arrived.signal != Signal::HangUp)
}

/// Whether the trial with this deadline, once it is in the journal, waits for it no more. While it cannot be read it is taken
/// to wait.
fn is_settled(journal: &Journal, deadline: Nanoseconds, trial: &mut Option<TransactionName>) -> bool {
    if trial.is_none() {
        // The guard is there before the trial is, which may be settled by now. The deadline was chosen to the nanosecond.
        let is_own = |transaction: &&Transaction| transaction.begin().asked.deadline == Some(deadline);
        let history = journal.history().unwrap_or_default();
        *trial = history.transactions.iter().rev().find(is_own).map(Transaction::name);
    }
    let Some(name) = *trial else { return false };
    match journal.transaction(name) {
        Ok(transaction) => transaction.deadline().is_none(),
        Err(error) => matches!(error, JournalError::NoSuchTransaction { .. }),
    }
}

/// Waits for the other end of a pipe to be closed. This process has it as a descriptor that it was started with.
fn is_closed(pipe: i32, most: Duration) -> Result<bool, Fault> {
    let failed = |error| Fault::file("the pipe from the program that is guarded", error);
    let pipe = File::open(format!("/proc/self/fd/{pipe}")).map_err(failed)?;
    let most = Timespec::try_from(most).map_err(|_| Fault::failed("invalid time"))?;
    let mut polled = [PollFd::new(&pipe, PollFlags::empty())];
    match poll(&mut polled, Some(&most)) {
        Ok(_) => Ok(polled[0].revents().contains(PollFlags::HUP)),
        Err(errno) if errno.kind() == std::io::ErrorKind::Interrupted => Ok(false),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// The transactions that are put back before their deadline.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// Those of a program that ended before it could.
    By(Pid),
    /// A trial of this process alone, which was asked to end.
    Terminated,
}

/// Puts back what was left.
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

fn put_back_once(
    left: Left,
    deadline: Nanoseconds,
    journal: &Journal,
    kernel: &mut Kernel,
    operator: &dyn Operator,
) -> Result<(), Fault> {
    let history = journal.history()?;
    let is_left = |one: &&Transaction| {
        let begin = one.begin();
        let is_owned = matches!(left, Left::By(program) if begin.owned_by == Some(program));
        // What waits for the same deadline is the same program's: it was chosen to the nanosecond.
        let is_its = (is_owned && !begin.left_in_force) || one.deadline() == Some(deadline);
        is_its && one.standing().is_live()
    };
    // Its pipe may be closed a moment before its lock is released: such a rollback is refused, and tried again.
    for transaction in history.transactions.iter().rev().filter(is_left) {
        let name = transaction.name();
        match journal.roll_back(name, kernel, clock::now()) {
            Ok(undone) => operator.say(&match left {
                Left::By(program) => {
                    format!("process {program} ended and left {name}: rolled back. {undone}")
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
