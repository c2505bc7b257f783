//! Provides a directory in memory that no other process sees: the lab's files disappear with the lab.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};
use sys::error::KernelError;

/// The maximum size of the directory, as an option of tmpfs.
const SIZE: &str = "64m";

/// A tmpfs that is mounted nowhere. The tmpfs and its contents disappear when this process exits or drops it.
#[derive(Debug)]
pub(super) struct Scratch {
    root: OwnedFd,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, KernelError> {
        let root = mount().map_err(|errno| KernelError::errno("a tmpfs for the lab's files", errno))?;
        Ok(Self { root })
    }

    /// Returns the directory's path, which is valid until this value is dropped.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.root.as_raw_fd()))
    }
}

fn mount() -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "size", SIZE)?;
    fsconfig_set_string(&context, "mode", "0700")?;
    fsconfig_create(&context)?;
    // NOEXEC is not set: a server may have to load a library from this directory.
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}
