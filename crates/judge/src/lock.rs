//! One comparison at a time in a network namespace.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;

use model::NetnsId;
use rustix::fs::{FlockOperation, flock};
use session::{Exit, Fault, Session};

/// A lock that is held while settings of a network namespace alternate. Two comparisons would disturb each other's windows, whether or not they
/// share queues. The kernel releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct ComparisonLock(#[expect(dead_code, reason = "held for its lock")] File);

impl ComparisonLock {
    /// Takes it.
    ///
    /// # Errors
    /// Exit 7 if another process has it, with its number.
    pub fn take(session: &Session, netns: NetnsId) -> Result<Self, Fault> {
        // The journal's own checks come first: who may write there.
        session.journal()?;
        std::fs::create_dir_all(&session.state_dir)
            .map_err(|error| Fault::file(&session.state_dir, error))?;
        let path = session.state_dir.join(format!("comparing-{}", netns.0));
        let failed = |error| Fault::file(&path, error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0));
        let mut file = options.open(&path).map_err(failed)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            file.read_to_string(&mut holder).map_err(failed)?;
            let holder = holder.trim();
            return Err(Fault::new(
                Exit::Refused,
                format!("process {holder} compares or guards settings of this network namespace already"),
            )
            .hint(format!("wait until it ends, or end it: kill {holder}")));
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self(file))
    }
}
