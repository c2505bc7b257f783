//! Replaces a file safely, even if other users try to redirect its path with links.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, open, openat, renameat, unlinkat};

use crate::trusted_path;

/// Whether a file survives a power failure right after it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The contents are on disk before the file is renamed.
    Synced,
    /// The kernel writes the contents to disk at some later time.
    Unsynced,
}

/// Replaces a file atomically: writes a new file next to it, named `NAME.new`, and renames it. A reader sees
/// either the complete old file or the complete new one.
///
/// Follows no symbolic link as the last component of either path, opens no existing file, and does not wait
/// for a pipe.
///
/// # Errors
/// If another user can change the directory or one of its parents, or if the kernel refuses.
pub fn replace_file(path: &Path, mode: u32, content: &[u8], durability: Durability) -> io::Result<()> {
    replace(path, ".new", Leftover::Removed, mode, content, durability)
}

fn replace(
    path: &Path,
    suffix: &str,
    leftover: Leftover,
    mode: u32,
    content: &[u8],
    durability: Durability,
) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    trusted_path::check(directory)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(directory, flags, Mode::empty())?;
    let mut unfinished = name.to_owned();
    unfinished.push(suffix);
    if leftover == Leftover::Removed {
        // Remove the file that a killed process may have left behind.
        match unlinkat(&directory, Path::new(&unfinished), AtFlags::empty()).map_err(io::Error::from) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    let mut file = create(&directory, Path::new(&unfinished), mode)?;
    let mut write = || {
        file.write_all(content)?;
        match durability {
            Durability::Synced => file.sync_data()?,
            Durability::Unsynced => {}
        }
        Ok(renameat(&directory, Path::new(&unfinished), &directory, Path::new(name))?)
    };
    let written = write();
    if written.is_err() {
        // Ignore a failure to remove the file, because the first failure is reported.
        let _ = unlinkat(&directory, Path::new(&unfinished), AtFlags::empty());
    }
    written
}

/// Writes a file for the user, like [`replace_file`], but replaces only a regular file. The new file is first
/// named `NAME.new-PID`; it replaces no existing file of that name.
///
/// # Errors
/// As for [`replace_file`], or if the path is not a regular file.
pub fn write_user_file(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it exists, and is not a regular file"));
    }
    let unfinished = format!(".new-{}", std::process::id());
    replace(path, &unfinished, Leftover::Refused, mode, content, Durability::Unsynced)
}

/// What to do with an existing file that has the temporary name of the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    Removed,
    Refused,
}

fn create(directory: &OwnedFd, name: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::from_raw_mode(0o600))?;
    // Set the mode regardless of the umask.
    fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(File::from(file))
}

#[cfg(test)]
mod test {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_link_or_pipe_at_either_name_is_replaced_and_not_followed() {
        let scratch = tempfile::TempDir::with_prefix("netpolicy-replaced-").expect("a directory");
        let (precious, path) = (scratch.path().join("precious"), scratch.path().join("page.prom"));
        let unfinished = scratch.path().join("page.prom.new");
        fs::write(&precious, "precious").expect("written");
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).expect("permissions");
        symlink(&precious, &path).expect("linked");
        symlink(&precious, &unfinished).expect("linked");
        replace_file(&path, 0o644, b"page", Durability::Unsynced).expect("written");
        let kept = fs::metadata(&precious).expect("there");
        assert_eq!(fs::read(&precious).expect("read"), b"precious");
        assert_eq!(kept.permissions().mode() & 0o777, 0o600);
        let found = fs::symlink_metadata(&path).expect("there");
        assert!(found.is_file());
        assert_eq!(found.permissions().mode() & 0o777, 0o644);
        assert!(!unfinished.exists());
        let pipe = rustix::fs::CWD;
        rustix::fs::mknodat(pipe, &unfinished, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("a pipe");
        replace_file(&path, 0o600, b"again", Durability::Synced).expect("written without a reader");
        assert_eq!(fs::read(&path).expect("read"), b"again");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_users_file_replaces_regular_files_only_and_no_other() {
        let scratch = tempfile::TempDir::with_prefix("netpolicy-replaced-").expect("a directory");
        let (path, other) = (scratch.path().join("host.json"), scratch.path().join("host.json.new"));
        fs::write(&other, "precious").expect("written");
        for content in ["once", "again"] {
            write_user_file(&path, 0o600, content.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), content);
        }
        assert_eq!(fs::read_to_string(&other).expect("kept"), "precious");
        fs::remove_file(&path).expect("removed");
        symlink(&other, &path).expect("linked");
        let refused = write_user_file(&path, 0o600, b"x").expect_err("a link").to_string();
        assert!(refused.contains("not a regular file"), "{refused}");
        assert_eq!(fs::read_dir(scratch.path()).expect("listed").count(), 2);
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused_and_nothing_is_left_there() {
        let scratch = tempfile::TempDir::with_prefix("netpolicy-replaced-").expect("a directory");
        let open = scratch.path().join("open");
        fs::create_dir(&open).expect("created");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("permissions");
        let refused =
            replace_file(&open.join("x"), 0o644, b"", Durability::Unsynced).expect_err("refused").to_string();
        assert_eq!(refused, format!("{}: every user can write to it (mode 1777)", open.display()));
        assert_eq!(fs::read_dir(&open).expect("listed").count(), 0);
    }
}
