//! A cgroup to which BPF programs can be attached.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, fstatfs};
use sys::error::KernelError;

/// Kernel: `include/uapi/linux/magic.h` `CGROUP2_SUPER_MAGIC`.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// The maximum number of cgroups to visit in a search for a cgroup id.
const LOOKED_AT_MAX: usize = 100_000;

/// An open cgroup of the unified hierarchy.
#[derive(Debug)]
pub struct Cgroup {
    directory: OwnedFd,
    id: u64,
    path: PathBuf,
}

impl Cgroup {
    /// Opens a cgroup by its directory, or by its path relative to the root of the hierarchy, such as
    /// `system.slice/memcached.service`.
    ///
    /// # Errors
    /// If the cgroup does not exist, or belongs to cgroup v1, which has no socket programs.
    pub fn open(path: &Path) -> Result<Self, KernelError> {
        let root = root()?;
        let below = root.join(path.strip_prefix("/").unwrap_or(path));
        // An existing absolute path outside this hierarchy is kept, so that it is rejected instead of being
        // looked up below the root.
        let path = if path.starts_with(&root) || !below.exists() && path.is_absolute() && path.exists() {
            path.to_owned()
        } else {
            below
        };
        let what = || format!("cgroup {}", path.display());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|errno| KernelError::errno(what(), errno))?;
        let stat = fstat(&directory).map_err(|errno| KernelError::errno(what(), errno))?;
        let file_system = fstatfs(&directory).map_err(|errno| KernelError::errno(what(), errno))?;
        if u64::try_from(file_system.f_type) != Ok(CGROUP2_MAGIC) {
            return Err(KernelError::absent(what(), "a cgroup of the unified hierarchy (cgroup2)", None));
        }
        Ok(Self { directory, id: stat.st_ino, path })
    }

    /// Returns the cgroup's id, which is unique until the next boot.
    ///
    /// Kernel: 5.5, `kernel/cgroup/cgroup.c` `cgroup_id()`: the inode of its directory.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The cgroup's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the cgroup with this id, or `None` if the cgroup was removed.
    pub(super) fn path_of(id: u64) -> Option<PathBuf> {
        use std::os::unix::fs::{DirEntryExt, MetadataExt};
        let root = root().ok()?;
        if std::fs::metadata(&root).ok()?.ino() == id {
            return Some(root);
        }
        let mut looked_at = 0;
        let mut ahead = vec![root];
        while let Some(directory) = ahead.pop() {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                if entry.ino() == id {
                    return Some(entry.path());
                }
                looked_at += 1;
                if looked_at < LOOKED_AT_MAX {
                    ahead.push(entry.path());
                }
            }
        }
        None
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns the mount point of the unified hierarchy.
fn root() -> Result<PathBuf, KernelError> {
    const MOUNTS: &str = "/proc/self/mounts";
    let mounts = std::fs::read_to_string(MOUNTS).map_err(|error| KernelError::io(MOUNTS, &error))?;
    mount_point(&mounts)
        .ok_or_else(|| KernelError::absent("cgroups", "a mounted unified hierarchy (cgroup2)", None))
}

/// Returns the first mount point of type cgroup2. Kernel: `fs/proc_namespace.c` `show_vfsmnt()`.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_beside_those_of_version_1() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("proc /proc proc rw 0 0\n"), None);
    }
}
