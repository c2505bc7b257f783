//! A network namespace that can be entered.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use model::{NetnsId, Pid};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::KernelError;

/// The directory of named namespaces (`ip netns`).
const NAMED: &str = "/run/netns";

/// The maximum number of processes to search for a namespace without a name.
const PROCESSES_MAX: usize = 65_536;

/// A network namespace. Holding it keeps the namespace alive, even without processes.
#[derive(Debug)]
pub struct Netns {
    file: OwnedFd,
    id: NetnsId,
    path: PathBuf,
    /// A mount of the namespace's sysfs, which preserves the kernel's cached lookups from one observation to
    /// the next.
    sysfs: OnceLock<OwnedFd>,
}

impl Netns {
    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// If `/proc` is not available.
    pub fn own() -> Result<Self, KernelError> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// Creates a namespace that contains only a loopback device, which is down. It is destroyed when this
    /// handle is dropped, unless a process has entered it.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN.
    pub fn create() -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("a new network namespace", errno);
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
                crate::unshare::unshare_network().map_err(failed)?;
                let own = Self::own()?;
                Ok(Self { path: PathBuf::from(format!("net:[{}]", own.id)), ..own })
            });
            let inside =
                inside.map_err(|error| KernelError::io("a thread for a new network namespace", &error))?;
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Opens the namespace of a process.
    ///
    /// # Errors
    /// [`crate::Cause::Gone`] if the process has exited; EACCES without permission to trace it.
    pub fn of_process(pid: Pid) -> Result<Self, KernelError> {
        Self::at(Path::new(&format!("/proc/{pid}/ns/net"))).map_err(|error| match error.number() {
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH) => {
                KernelError::gone(format!("network namespace of process {pid}"), "the process ended")
            }
            _ => error,
        })
    }

    /// Opens the namespace with this name, as in `ip netns`.
    ///
    /// # Errors
    /// ENOENT if there is none; EINVAL if the name is a path.
    pub fn named(name: &str) -> Result<Self, KernelError> {
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Err(KernelError::errno(format!("network namespace `{name}`"), rustix::io::Errno::INVAL));
        }
        Self::at(&Path::new(NAMED).join(name))
    }

    /// Opens the namespace that this file refers to.
    ///
    /// # Errors
    /// If the file cannot be opened, or is not a network namespace (EINVAL).
    pub fn at(path: &Path) -> Result<Self, KernelError> {
        let what = || format!("network namespace {}", path.display());
        // The file may be a pipe instead of an nsfs file, and opening it must not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| KernelError::errno(what(), errno))?;
        Self::of_file(file, path.to_owned())
    }

    /// Creates a handle from an open file of a namespace; `path` is its name in messages.
    ///
    /// # Errors
    /// EINVAL if the file is not a network namespace.
    pub fn of_file(file: OwnedFd, path: PathBuf) -> Result<Self, KernelError> {
        let id = id_of(&file)
            .map_err(|errno| KernelError::errno(format!("network namespace {}", path.display()), errno))?;
        Ok(Self { file, id, path, sysfs: OnceLock::new() })
    }

    /// Opens a second handle to the same namespace.
    ///
    /// # Errors
    /// If `/proc` is not available, or no descriptor is left.
    pub fn again(&self) -> Result<Self, KernelError> {
        Ok(Self { path: self.path.clone(), ..Self::at(&descriptor(self.file.as_raw_fd()))? })
    }

    /// Returns a path by which another process of the same user can open this namespace while this handle
    /// exists.
    pub fn path_for_others(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Opens the namespace that an inherited descriptor of this process refers to.
    ///
    /// # Errors
    /// As for [`Netns::at`].
    pub fn inherited(descriptor_number: RawFd) -> Result<Self, KernelError> {
        Self::at(&descriptor(descriptor_number))
    }

    /// Finds the namespace with this id among the caller's own, those with a name, those of processes, those
    /// that are mounted, and those that a process holds open.
    ///
    /// # Errors
    /// [`crate::Cause::Gone`] if none of these has the id.
    pub fn with_id(id: NetnsId) -> Result<Self, KernelError> {
        let own = Self::own()?;
        if own.id == id {
            return Ok(own);
        }
        known_files()
            .chain(mounted_files())
            .chain(held_files())
            .filter(|(number, _)| *number == id)
            .find_map(|(_, path)| Self::at(&path).ok().filter(|netns| netns.id == id))
            .ok_or_else(|| {
                let why = "no name, mount, process or open file refers to it";
                KernelError::gone(format!("network namespace {id}"), why)
            })
    }

    /// Returns all namespaces that are reachable by a name, a mount, a process or a process's descriptor,
    /// without duplicates.
    pub fn all() -> impl Iterator<Item = Self> {
        let mut seen = BTreeSet::new();
        known_files()
            .chain(mounted_files())
            .chain(held_files())
            .filter(move |(id, _)| seen.insert(*id))
            .filter_map(|(_, path)| Self::at(&path).ok())
    }

    /// Returns the path by which the namespace was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The namespace's id.
    pub const fn id(&self) -> NetnsId {
        self.id
    }

    /// Keeps the mount of the namespace's sysfs that `mount` returns, for the lifetime of this handle. Does
    /// nothing if the handle already has such a mount.
    pub(crate) fn keep_sysfs(&self, mount: impl FnOnce() -> Option<OwnedFd>) {
        if self.sysfs.get().is_none()
            && let Some(mount) = mount()
        {
            // Another thread may have stored an equivalent mount in the meantime.
            let _ = self.sysfs.set(mount);
        }
    }

    /// Moves the calling thread into the namespace permanently, unless it is already there.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN in both the namespace's user namespace and the caller's.
    pub fn enter(&self) -> Result<(), KernelError> {
        if Self::is_current(self.id) {
            return Ok(());
        }
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|errno| {
            let what = format!("entering network namespace {}", self.path.display());
            KernelError::errno(what, errno).needing("CAP_SYS_ADMIN")
        })
    }

    /// Runs a function inside the namespace and returns its result. Uses a separate thread, unless the
    /// calling thread is already in the namespace. Sockets that are opened inside stay inside.
    ///
    /// # Errors
    /// As for [`Netns::enter`].
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, KernelError> {
        if Self::is_current(self.id) {
            return Ok(body());
        }
        self.run_apart(body)
    }

    /// Like [`Netns::run`], but always on a separate thread: for functions that change properties of the
    /// thread, such as its CPUs.
    ///
    /// # Errors
    /// As for [`Netns::enter`].
    pub fn run_apart<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, KernelError> {
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
                // A process that is already in the namespace needs no privilege to enter it.
                if !Self::is_current(self.id) {
                    self.enter()?;
                }
                Ok(body())
            });
            let inside =
                inside.map_err(|error| KernelError::io("a thread inside a network namespace", &error))?;
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns whether the calling thread is in the namespace with this id.
    pub fn is_current(id: NetnsId) -> bool {
        rustix::fs::stat("/proc/thread-self/ns/net").is_ok_and(|stat| stat.st_ino == id.0)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the files of named namespaces and of processes' namespaces, each with the namespace's id. The id
/// comes from stat(2), so the file need not be opened.
fn known_files() -> impl Iterator<Item = (NetnsId, PathBuf)> {
    let named = entries(Path::new(NAMED)).map(|name| Path::new(NAMED).join(name));
    let of_processes = processes().map(|pid| Path::new("/proc").join(pid).join("ns/net"));
    named.chain(of_processes).filter_map(|path| {
        let id = NetnsId(rustix::fs::stat(&path).ok()?.st_ino);
        Some((id, path))
    })
}

/// Returns the path by which a descriptor of this process can be reopened.
fn descriptor(number: RawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{number}"))
}

/// Returns the files on which namespaces are mounted, each with the namespace's id.
fn mounted_files() -> impl Iterator<Item = (NetnsId, PathBuf)> {
    use std::os::unix::ffi::OsStringExt;
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines: Vec<(NetnsId, PathBuf)> = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            // Kernel: `fs/proc_namespace.c` `show_mountinfo()`: the fourth word is the root of the mount, the
            // fifth its mount point.
            let mut words = line.split(|byte| *byte == b' ').skip(3);
            let number = number_of(std::str::from_utf8(words.next()?).ok()?)?;
            Some((number, PathBuf::from(std::ffi::OsString::from_vec(unescaped(words.next()?)))))
        })
        .collect();
    lines.into_iter()
}

/// Returns the number in a link such as `net:[4026531840]`.
fn number_of(link: &str) -> Option<NetnsId> {
    link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok().map(NetnsId)
}

/// Decodes a path in `/proc/self/mountinfo`, where white space and backslashes are written as `\ooo`.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        let octal =
            behind.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                plain.push(escaped);
                rest = &behind[3..];
            }
            None => {
                plain.push(byte);
                rest = behind;
            }
        }
    }
    plain
}

/// Returns the namespace files that processes hold open, such as the client namespace of a lab, each with the
/// namespace's id.
fn held_files() -> impl Iterator<Item = (NetnsId, PathBuf)> {
    processes().map(|pid| Path::new("/proc").join(pid).join("fd")).flat_map(|directory| {
        let descriptors: Vec<_> = entries(&directory).collect();
        descriptors.into_iter().filter_map(move |fd| {
            let path = directory.join(fd);
            let link = std::fs::read_link(&path).ok()?;
            Some((number_of(link.to_str()?)?, path))
        })
    })
}

/// Returns the names of the processes' directories in `/proc`.
fn processes() -> impl Iterator<Item = std::ffi::OsString> {
    entries(Path::new("/proc"))
        .filter(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .take(PROCESSES_MAX)
}

/// Returns the id of a namespace file; EINVAL if the file is something else.
fn id_of(file: &OwnedFd) -> Result<NetnsId, rustix::io::Errno> {
    /// Kernel: `include/uapi/linux/magic.h` `NSFS_MAGIC`.
    const NSFS_MAGIC: u64 = 0x6e73_6673;
    let on_nsfs = u64::try_from(rustix::fs::fstatfs(file)?.f_type).is_ok_and(|magic| magic == NSFS_MAGIC);
    if !on_nsfs {
        return Err(rustix::io::Errno::INVAL);
    }
    Ok(NetnsId(rustix::fs::fstat(file)?.st_ino))
}

/// Returns the names in a directory; none if the directory does not exist.
fn entries(directory: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_own_namespace_is_found_by_its_number() {
        let own = Netns::own().expect("own");
        assert!(Netns::is_current(own.id()));
        assert_eq!(Netns::with_id(own.id()).expect("found").id(), own.id());
        assert_eq!(Netns::of_process(Pid(std::process::id())).expect("ours").id(), own.id());
    }

    #[test]
    fn a_place_in_mountinfo_is_read_with_its_blanks() {
        assert_eq!(unescaped(br"/run/a\040b\134c"), br"/run/a b\c");
        assert_eq!(unescaped(br"\04"), br"\04");
        assert_eq!(number_of("net:[4026531840]"), Some(NetnsId(4_026_531_840)));
        assert_eq!(number_of("mnt:[4026531840]"), None);
    }

    #[test]
    fn a_file_that_is_no_namespace_is_refused() {
        let error = Netns::at(Path::new("/proc/self/stat")).expect_err("refused");
        assert_eq!(error.number(), Some(rustix::io::Errno::INVAL));
        assert!(Netns::named("../../proc/self/ns/net").is_err());
    }

    #[test]
    fn a_process_that_ended_has_no_namespace_any_more() {
        let mut child = std::process::Command::new("true").spawn().expect("spawned");
        child.wait().expect("waited");
        let error = Netns::of_process(Pid(child.id())).expect_err("gone");
        assert!(matches!(error.cause, crate::Cause::Gone(_)), "{error}");
    }
}
