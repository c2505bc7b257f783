//! Sysfs as seen from a network namespace.
//!
//! `/sys/class/net` shows the devices of the namespace in which `/sys` was mounted, which is often not the
//! observed one. So sysfs is mounted again inside the namespace, detached from the file system tree: no other
//! process sees the mount, and it disappears when its descriptor is closed.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use model::IfIndex;
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::KernelError;
use crate::netns::Netns;

/// The maximum size of a sysfs file: one page. Kernel: `fs/sysfs/file.c` `sysfs_kf_seq_show()`.
const TEXT_BYTES_MAX: usize = 4096;

/// Sysfs of one network namespace.
#[derive(Debug)]
pub struct SysFs {
    root: OwnedFd,
    /// The path of `root` relative to `/sys`, with a trailing slash; empty for `/sys` itself.
    below: String,
}

impl SysFs {
    /// Opens the sysfs of a namespace.
    ///
    /// # Errors
    /// As for [`SysFs::open_here`], and if the namespace cannot be entered.
    pub fn open(netns: &Netns) -> Result<Self, KernelError> {
        netns.run(Self::open_here)?
    }

    /// Opens the sysfs of the calling thread's namespace. For a caller that may not mount, opens `/sys`
    /// instead if the process's main thread is in the same namespace, because `/sys` then most likely shows
    /// that namespace.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN, if the namespace is not the process's own.
    pub fn open_here() -> Result<Self, KernelError> {
        match mount() {
            Ok(root) => Ok(Self::whole(root)),
            Err(Errno::PERM | Errno::NOSYS) if in_the_processs_own() => {
                let root =
                    openat(CWD, "/sys", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
                root.map(Self::whole).map_err(|errno| KernelError::errno("/sys", errno))
            }
            Err(errno) => {
                Err(KernelError::errno("mounting sysfs in a network namespace", errno)
                    .needing("CAP_SYS_ADMIN"))
            }
        }
    }

    const fn whole(root: OwnedFd) -> Self {
        Self { root, below: String::new() }
    }

    /// Opens a subdirectory, so that the paths of its files become shorter; `None` if it does not exist. This
    /// saves time: resolving a path from `/sys`, through the symbolic link with a device's name, takes longer
    /// than reading a file.
    ///
    /// # Errors
    /// The kernel's error, unless the directory does not exist.
    pub fn below(&self, path: &str) -> Result<Option<Self>, KernelError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&self.root, path, flags, Mode::empty()) {
            Ok(root) => Ok(Some(Self { root, below: format!("{}{path}/", self.below) })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(KernelError::errno(self.shown(path), errno)),
        }
    }

    /// Returns the absolute path, for messages.
    pub fn shown(&self, path: &str) -> String {
        format!("/sys/{}{path}", self.below)
    }

    /// Keeps this mount as long as `netns` lives, and with it the kernel's cached lookups. Later mounts of
    /// the same namespace share the cache of an existing mount; without one, the kernel creates each file and
    /// directory again.
    ///
    /// Kernel: 6.18, `fs/kernfs/mount.c` `kernfs_get_tree()`: one superblock for each namespace.
    pub fn keep_with(&self, netns: &Netns) {
        netns.keep_sysfs(|| self.root.try_clone().ok());
    }

    /// Reads a file by its path below `/sys`, without surrounding white space.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self, path: &str) -> Result<String, KernelError> {
        read(&self.root, path).map_err(|errno| KernelError::errno(self.shown(path), errno))
    }

    /// Like [`SysFs::read`], but returns `None` if the file does not exist.
    ///
    /// # Errors
    /// The kernel's error, unless the file does not exist.
    pub fn read_if_any(&self, path: &str) -> Result<Option<String>, KernelError> {
        match read(&self.root, path) {
            Ok(text) => Ok(Some(text)),
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::OPNOTSUPP | Errno::INVAL) => Ok(None),
            Err(errno) => Err(KernelError::errno(self.shown(path), errno)),
        }
    }

    /// Returns the last component of a symbolic link's target; `None` if there is no link.
    pub fn link_name(&self, path: &str) -> Option<String> {
        self.link_path(path)?.rsplit('/').next().map(str::to_owned)
    }

    /// Returns the target of a symbolic link; `None` if there is no link.
    pub fn link_path(&self, path: &str) -> Option<String> {
        readlinkat(&self.root, path, Vec::new()).ok()?.into_string().ok()
    }

    /// Returns the names in a directory, sorted; empty if the directory does not exist.
    ///
    /// # Errors
    /// The kernel's error, unless the directory does not exist.
    pub fn list(&self, path: &str) -> Result<Vec<String>, KernelError> {
        let failed = |errno| KernelError::errno(self.shown(path), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match openat(&self.root, path, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(errno) => return Err(failed(errno)),
        };
        let mut names = Vec::new();
        for entry in Dir::new(directory).map_err(failed)? {
            let name = OsString::from_vec(entry.map_err(failed)?.file_name().to_bytes().to_vec());
            names.extend(name.into_string().ok().filter(|name| name != "." && name != ".."));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens the directory of a device. The handle refers to the same device even after the device is
    /// renamed.
    ///
    /// # Errors
    /// [`crate::Cause::Gone`] if no device has this name, or a different device has it.
    pub fn device(&self, name: &str, ifindex: IfIndex) -> Result<DeviceDir, KernelError> {
        let path = format!("class/net/{name}");
        let gone = || KernelError::gone(name, format!("no device has index {ifindex} and this name"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match openat(&self.root, path.as_str(), flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Err(gone()),
            Err(errno) => return Err(KernelError::errno(format!("/sys/{path}"), errno)),
        };
        let device = DeviceDir { directory, path };
        if device.read("ifindex")?.parse() == Ok(ifindex.0) { Ok(device) } else { Err(gone()) }
    }
}

/// The directory of one network device.
#[derive(Debug)]
pub struct DeviceDir {
    directory: OwnedFd,
    path: String,
}

impl DeviceDir {
    /// Reads a file, without surrounding white space.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self, file: &str) -> Result<String, KernelError> {
        read(&self.directory, file).map_err(|errno| self.failed(file, errno))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write(&self, file: &str, text: &str) -> Result<(), KernelError> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        openat(&self.directory, file, flags, Mode::empty())
            .and_then(|file| rustix::io::write(file, text.as_bytes()))
            .map(|_| ())
            .map_err(|errno| self.failed(file, errno))
    }

    /// Returns the inode number of the device's directory.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn number(&self) -> Result<u64, KernelError> {
        let stat = rustix::fs::fstat(&self.directory);
        stat.map(|stat| stat.st_ino).map_err(|errno| self.failed(".", errno))
    }

    fn failed(&self, file: &str, errno: Errno) -> KernelError {
        KernelError::errno(format!("/sys/{}/{file}", self.path), errno)
    }
}

/// Creates a detached sysfs mount (fsmount without move_mount).
fn mount() -> Result<OwnedFd, Errno> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Returns whether the calling thread is in the network namespace of its process's main thread.
fn in_the_processs_own() -> bool {
    match (rustix::fs::stat("/proc/thread-self/ns/net"), rustix::fs::stat("/proc/self/ns/net")) {
        (Ok(thread), Ok(process)) => thread.st_ino == process.st_ino,
        _ => false,
    }
}

fn read(directory: &OwnedFd, path: &str) -> Result<String, Errno> {
    let file = openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; TEXT_BYTES_MAX];
    let length = rustix::io::read(&file, &mut text)?;
    Ok(String::from_utf8_lossy(&text[..length]).trim().to_owned())
}
