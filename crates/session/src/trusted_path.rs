//! Checks that only root and this user can change a directory. A user who can write to the journal decides
//! what a rollback writes to the host, and a user who can write to one of its parent directories can replace
//! the journal.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::exit::Exit;
use crate::fault::Fault;

const ROOT: u32 = 0;
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The maximum number of symbolic links to follow, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// The extended attribute with a file's access control list.
const ACL: &str = "system.posix_acl_access";

/// Refuses a journal directory that users other than root and this one can change or replace, including
/// through parent directories and symbolic links. A directory that does not exist yet is created so that only
/// its owner can list it.
///
/// # Errors
/// If another user can change the directory. The error says by which right.
pub(crate) fn check_state_dir(state_dir: &Path) -> Result<(), Fault> {
    for directory in [state_dir.to_owned(), state_dir.join("journal")] {
        // A directory that this user cannot search is not checked further: the command fails for that reason
        // anyway.
        if let Some(found) = untrusted(&directory).map_err(|error| Fault::file(&directory, error))? {
            let words =
                format!("{found}, and a user who can write there decides what a rollback sets on this host");
            return Err(Fault::new(Exit::Refused, words).hint(
                "use a --state-dir that only you or root can write to, including all parent directories (chown, chmod go-w)",
            ));
        }
    }
    Ok(())
}

/// Refuses a path that users other than root and this one can change or replace.
///
/// # Errors
/// If another user can change a component of the path, or if a component cannot be inspected.
pub fn check(path: &Path) -> io::Result<()> {
    match untrusted(path)? {
        Some(found) => Err(io::Error::new(io::ErrorKind::PermissionDenied, found.to_string())),
        None => Ok(()),
    }
}

/// A directory or link on the way to a path that another user can change.
#[derive(Debug, PartialEq, Eq)]
struct Untrusted {
    at: PathBuf,
    why: String,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at.display(), self.why)
    }
}

/// Returns the first component of `path` that another user can change. The search ends at the first component
/// that does not exist or that this user cannot inspect.
fn untrusted(path: &Path) -> io::Result<Option<Untrusted>> {
    let trusted = Trusted::current();
    let absolute = std::path::absolute(path)?;
    let mut rest: VecDeque<OsString> = components(&absolute).collect();
    let mut at = PathBuf::from("/");
    let mut links = 0;
    // The directory that contains the next component.
    let mut parent = fs::symlink_metadata(&at)?;
    if let Some(why) = trusted.refusal(&Owner::of(&at, &parent), !rest.is_empty()) {
        return Ok(Some(Untrusted { at, why }));
    }
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            parent = fs::symlink_metadata(&at)?;
            continue;
        }
        let next = at.join(&name);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let anyone = parent.mode() & ALL_WRITE != 0;
                let why = format!(
                    "it does not exist yet, and every user can create it (mode {:o} of {})",
                    parent.mode() & 0o7777,
                    at.display()
                );
                return Ok(anyone.then_some(Untrusted { at: next, why }));
            }
            Err(error) => return Err(error),
        };
        if found.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::other("too many symbolic links"));
            }
            if !trusted.is_trusted(found.uid()) {
                let why = format!("this symbolic link belongs to another user (uid {})", found.uid());
                return Ok(Some(Untrusted { at: next, why }));
            }
            let target = fs::read_link(&next)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
                parent = fs::symlink_metadata(&at)?;
            }
            for part in components(&target).collect::<Vec<_>>().into_iter().rev() {
                rest.push_front(part);
            }
            continue;
        }
        if let Some(why) = trusted.refusal(&Owner::of(&next, &found), !rest.is_empty()) {
            return Ok(Some(Untrusted { at: next, why }));
        }
        (at, parent) = (next, found);
    }
    Ok(None)
}

fn components(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// The owner and permissions of a file or directory.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
    mode: u32,
    has_acl: bool,
}

impl Owner {
    fn of(path: &Path, found: &Metadata) -> Self {
        // If there is an access control list, the group bits are the mask of the rights that it grants.
        let has_acl = found.mode() & GROUP_WRITES != 0
            && rustix::fs::lgetxattr_query(path, ACL).is_ok_and(|length| length > 0);
        Self { uid: found.uid(), gid: found.gid(), mode: found.mode(), has_acl }
    }
}

/// The users whose directories this process trusts.
struct Trusted {
    ours: u32,
    /// The owner of `/` in a user namespace that does not map the host's root.
    above: Option<u32>,
}

impl Trusted {
    fn current() -> Self {
        let ours = rustix::process::geteuid().as_raw();
        // In such a namespace, the directories of the host's root all appear with the overflow uid.
        let above = linux::machine::has_unmapped_users()
            .then(|| fs::symlink_metadata("/").map(|root| root.uid()).ok())
            .flatten();
        Self { ours, above }
    }

    fn is_trusted(&self, uid: u32) -> bool {
        uid == self.ours || uid == ROOT || self.above == Some(uid)
    }

    /// Returns why a component is not trusted; `None` if it is trusted. In a sticky parent directory, other
    /// users cannot replace files that they do not own.
    fn refusal(&self, owner: &Owner, on_the_way: bool) -> Option<String> {
        let Owner { uid, gid, mode, has_acl } = *owner;
        let sticky = on_the_way && mode & STICKY != 0;
        if !self.is_trusted(uid) || (!on_the_way && uid != self.ours && uid != ROOT) {
            return Some(format!("it belongs to another user (uid {uid})"));
        }
        if mode & ALL_WRITE != 0 && !sticky {
            return Some(format!("every user can write to it (mode {:o})", mode & 0o7777));
        }
        if has_acl && !sticky {
            return Some("its access control list lets other users write to it (getfacl)".to_owned());
        }
        // A user's group often contains only that user. The files of root, however, must not be writable by
        // any other group.
        if self.ours == ROOT && gid != ROOT && mode & GROUP_WRITES != 0 && !sticky {
            return Some(format!("its group (gid {gid}) can write to it (mode {:o})", mode & 0o7777));
        }
        None
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use tempfile::{Builder, TempDir};

    use super::*;

    #[test]
    fn only_a_directory_that_no_other_user_can_write_to_is_trusted() {
        let said = |uid, gid, mode, ours, on_the_way| {
            let owner = Owner { uid, gid, mode, has_acl: false };
            Trusted { ours, above: None }.refusal(&owner, on_the_way).unwrap_or_default()
        };
        for (uid, gid, mode, ours) in
            [(0, 0, 0o40755, 0), (0, 0, 0o40775, 0), (0, 0, 0o40700, 1000), (1000, 1000, 0o40775, 1000)]
        {
            for on_the_way in [false, true] {
                assert_eq!(said(uid, gid, mode, ours, on_the_way), "", "{uid}:{gid} {mode:o} for {ours}");
            }
        }
        for on_the_way in [false, true] {
            assert_eq!(said(65_534, 0, 0o40700, 0, on_the_way), "it belongs to another user (uid 65534)");
            assert_eq!(said(1001, 0, 0o40700, 1000, on_the_way), "it belongs to another user (uid 1001)");
            assert_eq!(said(0, 0, 0o40777, 0, on_the_way), "every user can write to it (mode 777)");
            assert_eq!(
                said(0, 100, 0o40775, 0, on_the_way),
                "its group (gid 100) can write to it (mode 775)"
            );
        }
        assert_eq!(said(0, 0, 0o41777, 0, false), "every user can write to it (mode 1777)");
        assert_eq!(said(0, 0, 0o41777, 0, true), "", "/tmp on the way");
    }

    #[test]
    fn an_access_control_list_that_grants_writing_is_refused() {
        let owner = Owner { uid: 0, gid: 0, mode: 0o40775, has_acl: true };
        let said = Trusted { ours: 0, above: None }.refusal(&owner, false).unwrap_or_default();
        assert_eq!(said, "its access control list lets other users write to it (getfacl)");
    }

    #[test]
    fn in_a_user_namespace_the_owner_of_the_root_directory_is_trusted_on_the_way() {
        let trusted = Trusted { ours: 0, above: Some(65_534) };
        let owner = Owner { uid: 65_534, gid: 65_534, mode: 0o40755, has_acl: false };
        assert_eq!(trusted.refusal(&owner, true), None);
        assert!(trusted.refusal(&owner, false).is_some(), "the directory itself must belong to this user");
    }

    fn directory() -> TempDir {
        let mut builder = Builder::new();
        builder.prefix("netpolicy-trusted-").permissions(fs::Permissions::from_mode(0o755));
        builder.tempdir().expect("a directory")
    }

    fn said(path: &Path) -> String {
        untrusted(path).expect("looked at").map(|found| found.to_string()).unwrap_or_default()
    }

    #[test]
    fn every_directory_and_link_on_the_way_counts() {
        let scratch = directory();
        let way = scratch.path().join("theirs");
        let state = way.join("deeper/state");
        fs::create_dir_all(&state).expect("created");
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("permissions");
        let link = scratch.path().join("link");
        symlink("theirs/deeper/../deeper/state", &link).expect("linked");
        assert_eq!(said(&state), "");
        assert_eq!(said(&link), "");
        assert_eq!(said(&state.join("missing/yet")), "");
        fs::set_permissions(&way, fs::Permissions::from_mode(0o777)).expect("permissions");
        let refused = format!("{}: every user can write to it (mode 777)", way.display());
        assert_eq!(said(&state), refused);
        assert_eq!(said(&link), refused);
        fs::set_permissions(&way, fs::Permissions::from_mode(0o1777)).expect("permissions");
        assert_eq!(said(&state), "", "in a sticky directory, other users' files cannot be replaced");
        let missing = way.join("missing");
        let refused = format!(
            "{}: it does not exist yet, and every user can create it (mode 1777 of {})",
            missing.display(),
            way.display()
        );
        assert_eq!(said(&missing), refused);
        symlink(&link, scratch.path().join("link-to-link")).expect("linked");
        assert_eq!(said(&scratch.path().join("link-to-link")), "");
        symlink("loop", scratch.path().join("loop")).expect("linked");
        assert!(untrusted(&scratch.path().join("loop")).is_err());
    }

    #[test]
    fn a_directory_or_link_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        const NOBODY: u32 = 65_534;
        let scratch = directory();
        let way = scratch.path().join("theirs");
        let state = way.join("state");
        fs::create_dir_all(&state).expect("created");
        chown(&way, Some(NOBODY), None).expect("given away");
        let refused = format!("{}: it belongs to another user (uid 65534)", way.display());
        assert_eq!(said(&state), refused);
        let link = scratch.path().join("link");
        symlink(&state, &link).expect("linked");
        assert_eq!(said(&link), refused, "a link of root to a directory of another user");
        let theirs = scratch.path().join("theirs-link");
        symlink("/", &theirs).expect("linked");
        std::os::unix::fs::lchown(&theirs, Some(NOBODY), None).expect("given away");
        let refused = format!("{}: this symbolic link belongs to another user (uid 65534)", theirs.display());
        assert_eq!(said(&theirs), refused);
    }
}
