//! Installs a library in a place where programs can load it but no other user can change it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, mkdir, openat, renameat, unlinkat};
use rustix::io::Errno;
use sys::error::KernelError;

/// A library to preload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Caps how long `epoll_wait` sleeps; built from `preload/epoll_cap.c`.
    Cap,
    /// Counts how many events `epoll_wait` returned; built from `preload/epoll_count.c`.
    Count,
}

impl Library {
    const fn content(self) -> &'static [u8] {
        match self {
            Self::Cap => include_bytes!(concat!(env!("OUT_DIR"), "/epoll_cap.so")),
            Self::Count => include_bytes!(concat!(env!("OUT_DIR"), "/epoll_count.so")),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Cap => "epoll-cap",
            Self::Count => "epoll-count",
        }
    }
}

/// The library's permissions: everyone may load it, but only its owner may replace it.
const MODE: Mode = Mode::from_raw_mode(0o755);

/// Writes a library into a directory, which is created if it does not exist, and returns its path. The name
/// contains a hash of the content, so that programs of two versions of netpolicy do not disturb each other.
/// An existing library stays untouched; a new one appears atomically.
///
/// Libraries of other versions stay, some 15 KB each, until `/run` is recreated at the next boot. An unused
/// library must not be removed: a process may pass on `LD_PRELOAD` to its children without having loaded the
/// library itself.
///
/// # Errors
/// If the directory, or a file of that name in it, is a symbolic link, belongs to another user or may be
/// changed by others: their code would run as the program that loads it. Also if the path has a blank or a
/// colon, at which the dynamic linker would cut it.
pub fn install(library: Library, directory: &Path) -> Result<PathBuf, KernelError> {
    let content = library.content();
    let name = format!("netpolicy-{}-{:016x}.so", library.name(), fnv1a(content));
    let path = directory.join(&name);
    let refused = |why: &str| KernelError::malformed(format!("install {}", path.display()), why);
    let failed = |errno: Errno| KernelError::errno(format!("install {}", path.display()), errno);
    if !path.is_absolute() {
        return Err(refused("the dynamic linker needs an absolute path"));
    }
    let is_cut = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    if path.as_os_str().as_encoded_bytes().iter().any(is_cut) {
        return Err(refused("the dynamic linker cuts LD_PRELOAD at blanks and colons"));
    }
    match mkdir(directory, MODE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, directory, flags, Mode::empty()).map_err(failed)?;
    if !only_we_may_change(&directory).map_err(failed)? {
        return Err(refused("its directory belongs to another user, or others may write there"));
    }
    match existing(&directory, &name, content).map_err(failed)? {
        Existing::Ours => {}
        Existing::Foreign => return Err(refused("there is another file with this name")),
        Existing::None | Existing::Damaged => replace(&directory, &name, content).map_err(failed)?,
    }
    Ok(path)
}

/// The state of an existing file that has the library's name.
enum Existing {
    None,
    /// The installed library is identical.
    Ours,
    /// A file of ours with other content, for example after the disk was full or the machine lost power.
    Damaged,
    /// The file is not ours, or not a regular file.
    Foreign,
}

fn existing(directory: &OwnedFd, name: &str, expected: &[u8]) -> Result<Existing, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Existing::None),
        Err(Errno::LOOP | Errno::NXIO) => return Ok(Existing::Foreign),
        Err(errno) => return Err(errno),
    };
    let is_file = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile;
    if !is_file || !only_we_may_change(&file)? {
        return Ok(Existing::Foreign);
    }
    // Read one byte more than our library has, to detect a longer file.
    let mut content = vec![0; expected.len() + 1];
    let length = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut content[..], 0))?;
    let same = content.get(..length) == Some(expected);
    let loadable = Mode::from_raw_mode(fstat(&file)?.st_mode).contains(MODE);
    Ok(if same && loadable { Existing::Ours } else { Existing::Damaged })
}

/// Writes the library under a temporary name of this process, and renames it when it is complete.
fn replace(directory: &OwnedFd, name: &str, content: &[u8]) -> Result<(), Errno> {
    let temporary = format!(".{name}.{}", std::process::id());
    let written = write_new(directory, &temporary, content)
        .and_then(|()| renameat(directory, temporary.as_str(), directory, name));
    if written.is_err() {
        let _ = unlinkat(directory, temporary.as_str(), AtFlags::empty()); // the first failure is reported
    }
    written
}

fn write_new(directory: &OwnedFd, name: &str, content: &[u8]) -> Result<(), Errno> {
    // Remove a temporary file that a killed process with the same pid left behind.
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, MODE)?;
    let mut rest = content;
    while !rest.is_empty() {
        match rustix::io::write(&file, rest) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    fchmod(&file, MODE) // independent of the umask
}

/// Whether a file or directory belongs to us or to root, and is not writable by its group or others.
fn only_we_may_change(file: impl AsFd) -> Result<bool, Errno> {
    let stat = fstat(file)?;
    let owned = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
    Ok(owned && !Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH))
}

/// Computes the 64-bit FNV-1a hash, which distinguishes versions of a library; an existing file is compared
/// by its whole content.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod test {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::{Builder, TempDir};

    use super::*;

    /// Creates a directory to which no other user may write, independent of the umask.
    fn directory() -> TempDir {
        let mut builder = Builder::new();
        builder.prefix("netpolicy-preload-").permissions(Permissions::from_mode(0o700));
        builder.tempdir().expect("a directory")
    }

    #[test]
    fn the_library_is_installed_once_and_mended_when_damaged() {
        let scratch = directory();
        let directory = scratch.path().join("new");
        let path = install(Library::Cap, &directory).expect("installed");
        let first = std::fs::metadata(&path).expect("there");
        assert_eq!(first.permissions().mode() & 0o7777, 0o755);
        assert_eq!(install(Library::Cap, &directory).expect("again"), path);
        assert_eq!(std::fs::metadata(&path).expect("there").modified().ok(), first.modified().ok());
        std::fs::write(&path, b"half").expect("damaged");
        assert_eq!(install(Library::Cap, &directory).expect("mended"), path);
        assert_eq!(std::fs::read(&path).expect("read"), Library::Cap.content());
        assert_eq!(std::fs::read_dir(&directory).expect("listed").count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let scratch = directory();
        let open = scratch.path().join("open");
        std::fs::create_dir(&open).expect("created");
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("permissions");
        assert!(install(Library::Cap, &open).is_err());
        let link = scratch.path().join("link");
        symlink(scratch.path(), &link).expect("linked");
        assert_eq!(install(Library::Cap, &link).expect_err("refused").number(), Some(Errno::NOTDIR));
    }

    #[test]
    fn something_else_with_the_librarys_name_is_left_alone() {
        let scratch = directory();
        let path = install(Library::Cap, scratch.path()).expect("installed");
        std::fs::remove_file(&path).expect("removed");
        symlink("/dev/null", &path).expect("linked");
        assert!(install(Library::Cap, scratch.path()).is_err());
        assert!(path.is_symlink());
    }

    #[test]
    fn a_path_that_the_dynamic_linker_would_cut_is_refused() {
        for path in ["/run/a b", "/run/a:b", "relative"] {
            assert!(install(Library::Cap, Path::new(path)).is_err(), "{path}");
        }
    }
}
