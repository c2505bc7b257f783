//! The guard of a trial: a process of its own that sees the deadline pass, whatever becomes of the command, the
//! terminal and the connection that began the trial.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use linux::{Kernel, Netns};
use model::Nanoseconds;
use rustix::io::FdFlags;
use session::{Exit, Fault, clock};

use super::expire::{Who, roll_back_expired_by};
use crate::args::Guard;
use crate::context::Context;

/// What a guard writes when it depends on no other process any more.
const READY: &[u8] = b"ready\n";

/// The longest single sleep of a guard: it looks at the clock again then, which a suspended host moves on.
const NAP_MAX: Duration = Duration::from_secs(10);

/// How long after a rollback that failed it is tried again, and how often: another netpolicy may be at work, or stopped in
/// the middle of it. With the time that the journal itself waits for its lock this is more than an hour.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: u32 = 1_000;

/// Starts a guard for a deadline, and waits until it stands on its own. This comes before the first write of the
/// trial: from then on the trial is always watched. It holds these namespaces open: names and processes that
/// lead to them may go before the deadline.
pub(crate) fn start(context: &Context, deadline: Nanoseconds, namespaces: &[Netns]) -> Result<Child, Fault> {
    let failed = |error| Fault::file("/proc/self/exe", error);
    let log = log(&context.session.state_dir)?;
    let mut guard = Command::new("/proc/self/exe");
    guard.arg("guard").arg("--deadline").arg(deadline.0.to_string());
    guard.arg("--state-dir").arg(&context.session.state_dir);
    for netns in namespaces {
        guard.arg("--holding").arg(netns.as_fd().as_raw_fd().to_string());
    }
    guard.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::from(log));
    are_inherited(namespaces, true)?;
    let spawned = guard.spawn();
    are_inherited(namespaces, false)?;
    let mut guard = spawned.map_err(failed)?;
    let mut ready = Vec::new();
    if let Some(mut stdout) = guard.stdout.take() {
        stdout.read_to_end(&mut ready).map_err(failed)?;
    }
    if ready == READY {
        return Ok(guard);
    }
    let _ = guard.kill();
    let _ = guard.wait();
    let log = context.session.state_dir.join(LOG);
    Err(Fault::failed("the guard of the trial did not start").hint(format!("see {}", log.display())))
}

/// Whether a process that is started from now on has these namespaces' descriptors too.
fn are_inherited(namespaces: &[Netns], inherited: bool) -> Result<(), Fault> {
    let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
    for netns in namespaces {
        rustix::io::fcntl_setfd(netns, flags)
            .map_err(|errno| Fault::file("the descriptor of a network namespace", errno.into()))?;
    }
    Ok(())
}

/// Where guards write what they did.
const LOG: &str = "guard.log";

fn log(state_dir: &Path) -> Result<File, Fault> {
    let path = state_dir.join(LOG);
    std::fs::create_dir_all(state_dir).map_err(|error| Fault::file(state_dir, error))?;
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| Fault::file(path, error))
}

/// Waits for the deadline, and rolls back what is unconfirmed by then. A trial that was confirmed, or ended
/// otherwise, is none of its business any more.
pub(crate) fn run(arguments: &Guard, context: &Context) -> Result<Exit, Fault> {
    // A session of its own: no terminal, and no hang-up or Ctrl-C of another process reaches this one from here on.
    rustix::process::setsid().map_err(|errno| Fault::failed(format!("setsid: {errno}")))?;
    let held = arguments.holding.iter().map(|number| Netns::inherited(*number));
    let held = held.collect::<Result<Vec<_>, _>>()?;
    let mut kernel = Kernel::new().holding(held);
    announce().map_err(|error| Fault::file("the pipe to `try`", error))?;
    let deadline = Nanoseconds(arguments.deadline);
    loop {
        let left = Duration::from_nanos(deadline.0.saturating_sub(clock::now().since_boot.0));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(NAP_MAX));
    }
    let mut last = Ok(());
    for _ in 0..ATTEMPTS_MAX {
        last = roll_back_expired_by(&mut kernel, &context.session, &context.console, Who::Guard);
        match &last {
            Ok(()) => break,
            Err(fault) => context.console.fault(fault),
        }
        std::thread::sleep(AGAIN_AFTER);
    }
    last.map(|()| Exit::Done)
}

/// Says that this process stands on its own, and lets go of the pipe: `try` reads to its end.
fn announce() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(READY)?;
    out.flush()?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
