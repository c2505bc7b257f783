//! Whether a process runs the executable that a policy names. `/proc/PID/exe` reads as a path in the process's own file systems, and
//! any user can mount a file system of their own over any path: in user and mount namespaces that need no privilege. So what
//! counts is the file, as the policy's author sees it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use model::Glob;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use sys::error::Cause;

use super::pinned::{Pinned, unreadable};

/// Where a bare name is looked for, in addition to the directory of the executable.
const PROGRAMS: [&str; 6] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"];

/// The file systems that a policy's paths may mean: our own, and that of process 1 where netpolicy runs in a container that
/// sees the host's processes.
const OURS: [&str; 2] = ["/", "/proc/1/root"];

/// The most paths that are remembered of a search.
const PATHS_MAX: usize = 4096;

/// A file, however it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileId {
    device: (u32, u32),
    inode: u64,
}

/// The executable of a process.
struct Executable {
    /// As the process's mount namespace has it.
    path: String,
    file: FileId,
    /// Whether it was removed or replaced, as an upgrade does.
    is_deleted: bool,
}

impl Executable {
    fn of(process: &Pinned) -> Result<Self, Cause> {
        let path = process.executable()?;
        let (file, links) = file_id(&process.file("exe")?).map_err(unreadable)?;
        Ok(Self { path, file, is_deleted: links == 0 })
    }

    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    fn directory(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(directory, _)| directory)
    }
}

/// Identifies a file without asking the file system's server, which may be the process's own and never answer; and how many names
/// it has.
fn file_id(file: &OwnedFd) -> Result<(FileId, u32), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, "", flags, StatxFlags::INO | StatxFlags::NLINK)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Ok((FileId { device, inode: found.stx_ino }, found.stx_nlink))
}

/// What the paths of a search lead to.
#[derive(Debug, Default)]
pub(super) struct Executables {
    known: BTreeMap<String, [Option<FileId>; 2]>,
}

impl Executables {
    /// Whether a process runs the executable that is asked for.
    ///
    /// A path, or a pattern of paths, means files of the policy's own file system. A section that names a container means the
    /// container's, where `in_container` is. A bare name means every executable with this file name, whoever wrote it.
    pub(super) fn is_run_by(
        &mut self,
        process: &Pinned,
        asked: &Glob,
        in_container: bool,
    ) -> Result<bool, Cause> {
        let exe = Executable::of(process)?;
        if asked.as_str().contains('/') {
            if asked.meets(&exe.path) && (in_container || self.is_ours(&exe, process)) {
                return Ok(true);
            }
            return Ok(asked.is_literal() && self.leads_to(asked.as_str(), &exe, process, in_container)?);
        }
        if asked.meets(exe.name()) {
            return Ok(true);
        }
        if !asked.is_literal() {
            return Ok(false);
        }
        let directories: Vec<String> =
            PROGRAMS.into_iter().chain([exe.directory()]).map(str::to_owned).collect();
        for directory in directories {
            if self.leads_to(&format!("{directory}/{asked}"), &exe, process, in_container)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a process's path is the same file in our own file system. One that was replaced under the process is accepted on the
    /// file system of the one that is there now, unless the process is in a user namespace of its own: there it can mount any
    /// directory over any other.
    fn is_ours(&mut self, exe: &Executable, process: &Pinned) -> bool {
        self.lookup(&exe.path).into_iter().flatten().any(|ours| {
            ours == exe.file
                || (exe.is_deleted && ours.device == exe.file.device && process.is_in_our_user_namespace())
        })
    }

    /// Whether a path leads to the executable, symbolic links followed: Debian's `redis-server` is one to `redis-check-rdb`.
    fn leads_to(
        &mut self,
        path: &str,
        exe: &Executable,
        process: &Pinned,
        in_container: bool,
    ) -> Result<bool, Cause> {
        if self.lookup(path).contains(&Some(exe.file)) {
            return Ok(true);
        }
        Ok(in_container && lookup_in(process, path)? == Some(exe.file))
    }

    fn lookup(&mut self, path: &str) -> [Option<FileId>; 2] {
        if let Some(known) = self.known.get(path) {
            return *known;
        }
        let found = OURS.map(|root| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).ok()?;
            let led = resolve(&root, path, ResolveFlags::IN_ROOT).ok()?;
            file_id(&led).ok().map(|(id, _)| id)
        });
        if self.known.len() < PATHS_MAX {
            self.known.insert(path.to_owned(), found);
        }
        found
    }
}

/// What a path leads to in the file system of a container's process. Only what the kernel has in its cache is looked at: a file
/// system of the container may have a server that never answers.
fn lookup_in(process: &Pinned, path: &str) -> Result<Option<FileId>, Cause> {
    let root = process.file("root")?;
    let led = resolve(&root, path, ResolveFlags::IN_ROOT | ResolveFlags::CACHED).ok();
    Ok(led.and_then(|file| file_id(&file).ok()).map(|(id, _)| id))
}

fn resolve(root: &OwnedFd, path: &str, how: ResolveFlags) -> Result<OwnedFd, Errno> {
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how | ResolveFlags::NO_MAGICLINKS)
}
