//! Who owns the journal: a user who can write to it decides what a rollback writes to the host.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::exit::Exit;
use crate::fault::Fault;

/// Refuses a directory for transactions that others than root and this user can write to. One that is not there yet will be
/// made so that only its owner can list it.
///
/// # Errors
/// What is wrong with it, or with the journal in it.
pub(crate) fn check(state_dir: &Path) -> Result<(), Fault> {
    let ours = rustix::process::geteuid().as_raw();
    for directory in [state_dir.to_owned(), state_dir.join("journal")] {
        let found = match fs::metadata(&directory) {
            Ok(found) => found,
            // What this user may not look into, no command of theirs can read either: that fails by itself.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                return Ok(());
            }
            Err(error) => return Err(Fault::file(directory, error)),
        };
        // Opening the journal refuses what is not a directory.
        let Some(why) = found.is_dir().then(|| refusal(Owner::of(&found), ours)).flatten() else { continue };
        let words = format!(
            "{}: {why}, and a user who can write there decides what a rollback sets on this host",
            directory.display()
        );
        return Err(Fault::new(Exit::Refused, words)
            .hint("give --state-dir a directory that only you, or root, can write to (chown, chmod go-w)"));
    }
    Ok(())
}

/// Who may write to a directory.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Owner {
    fn of(directory: &Metadata) -> Self {
        Self { uid: directory.uid(), gid: directory.gid(), mode: directory.mode() }
    }
}

/// Why a directory is not trusted by the user `ours`.
fn refusal(directory: Owner, ours: u32) -> Option<String> {
    const GROUP_WRITES: u32 = 0o020;
    const ALL_WRITE: u32 = 0o002;
    const ROOT: u32 = 0;
    let Owner { uid, gid, mode } = directory;
    if uid != ours && uid != ROOT {
        return Some(format!("it belongs to another user (uid {uid})"));
    }
    if mode & ALL_WRITE != 0 {
        return Some(format!("every user can write to it (mode {:o})", mode & 0o7777));
    }
    // The group of a user is often that user alone; root's work is for no other group.
    if ours == ROOT && gid != ROOT && mode & GROUP_WRITES != 0 {
        return Some(format!("its group (gid {gid}) can write to it (mode {:o})", mode & 0o7777));
    }
    None
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_a_directory_that_no_other_user_can_write_to_is_trusted() {
        let said = |uid, gid, mode, ours| refusal(Owner { uid, gid, mode }, ours).unwrap_or_default();
        for (uid, gid, mode, ours) in
            [(0, 0, 0o40755, 0), (0, 0, 0o40775, 0), (0, 0, 0o40700, 1000), (1000, 1000, 0o40775, 1000)]
        {
            assert_eq!(said(uid, gid, mode, ours), "", "{uid}:{gid} {mode:o} for {ours}");
        }
        assert_eq!(said(65_534, 0, 0o40700, 0), "it belongs to another user (uid 65534)");
        assert_eq!(said(1001, 0, 0o40700, 1000), "it belongs to another user (uid 1001)");
        assert_eq!(said(0, 0, 0o41777, 0), "every user can write to it (mode 1777)");
        assert_eq!(said(0, 100, 0o40775, 0), "its group (gid 100) can write to it (mode 775)");
    }
}
