//! Determines whether a process runs the executable that a policy names. `/proc/PID/exe` shows a path in the
//! process's own mount namespace, and any user can mount a file system over any path, in user and mount
//! namespaces that need no privilege. Therefore the file itself is compared with the file at that path in
//! netpolicy's mount namespace.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use model::{Glob, Pid};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, readlinkat, statx,
};
use rustix::io::Errno;
use sys::error::Cause;

use super::pinned::{PinnedProcess, unreadable};

/// The directories in which a bare file name is searched, in addition to the directory of the process's
/// executable.
const PROGRAMS: [&str; 6] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"];

/// The root directories to which a policy's paths may refer: our own, and that of process 1 if netpolicy runs
/// in a container that sees the host's processes.
const OURS: [&str; 2] = ["/", "/proc/1/root"];

/// The maximum number of paths whose files a search caches.
const PATHS_MAX: usize = 4096;

/// The maximum number of symbolic links in a path, the same as the kernel's: `include/linux/namei.h`
/// `MAXSYMLINKS`.
const LINKS_MAX: usize = 40;

/// The identity of a file, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileId {
    device: (u32, u32),
    inode: u64,
}

/// The executable of a process.
pub(super) struct Executable {
    /// The executable's path in the process's mount namespace.
    path: String,
    file: FileId,
    /// Whether the file was removed or replaced, as by an upgrade.
    is_deleted: bool,
}

impl Executable {
    pub(super) fn of(process: &PinnedProcess) -> Result<Self, Cause> {
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

/// Identifies a file, and returns its number of hard links. This does not query the file system's server,
/// which may be the process itself and never answer.
fn file_id(file: &OwnedFd) -> Result<(FileId, u32), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, "", flags, StatxFlags::INO | StatxFlags::NLINK)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Ok((FileId { device, inode: found.stx_ino }, found.stx_nlink))
}

/// A cache of the files to which the paths of a search lead.
#[derive(Debug, Default)]
pub(super) struct Executables {
    known: BTreeMap<String, [Option<FileId>; 2]>,
}

impl Executables {
    /// Whether a process runs the requested executable.
    ///
    /// A path, or a pattern of paths, refers to files in the policy's own mount namespace. If `in_container`
    /// is set, because the section names a container, the path may also refer to files in the container's
    /// mount namespace. A bare name matches every executable with this file name, no matter who wrote the
    /// file.
    pub(super) fn is_run_by(
        &mut self,
        process: &PinnedProcess,
        exe: &Executable,
        asked: &Glob,
        in_container: bool,
    ) -> Result<bool, Cause> {
        if asked.as_str().contains('/') {
            if asked.meets(&exe.path) && (in_container || self.is_ours(exe, process)?) {
                return Ok(true);
            }
            return Ok(asked.is_literal() && self.leads_to(asked.as_str(), exe, process, in_container)?);
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
            if self.leads_to(&format!("{directory}/{asked}"), exe, process, in_container)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the path of a process's executable leads to the same file in our own mount namespace. An
    /// executable that was replaced while the process ran is accepted if it is on the same file system as its
    /// replacement, unless the process is in another user namespace, where it can mount any directory over
    /// any other.
    fn is_ours(&mut self, exe: &Executable, process: &PinnedProcess) -> Result<bool, Cause> {
        Ok(self.lookup(&exe.path)?.into_iter().flatten().any(|ours| {
            ours == exe.file
                || (exe.is_deleted && ours.device == exe.file.device && process.is_in_our_user_namespace())
        }))
    }

    /// Whether a path leads to the executable, possibly by symbolic links: Debian's `redis-server` is a link
    /// to `redis-check-rdb`.
    fn leads_to(
        &mut self,
        path: &str,
        exe: &Executable,
        process: &PinnedProcess,
        in_container: bool,
    ) -> Result<bool, Cause> {
        if self.lookup(path)?.contains(&Some(exe.file)) {
            return Ok(true);
        }
        Ok(in_container
            && resolve_in_foreign(process.file("root")?, path).map_err(unreadable)? == Some(exe.file))
    }

    fn lookup(&mut self, path: &str) -> Result<[Option<FileId>; 2], Cause> {
        if let Some(known) = self.known.get(path) {
            return Ok(*known);
        }
        let mut found = [None; 2];
        for (root, found) in OURS.into_iter().zip(&mut found) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            // A daemon that uses the attach service may not inspect process 1.
            let Ok(root) = openat(CWD, root, flags, Mode::empty()) else { continue };
            *found = resolve_in(root, path).map_err(unreadable)?;
        }
        if self.known.len() < PATHS_MAX {
            self.known.insert(path.to_owned(), found);
        }
        Ok(found)
    }
}

/// Returns the path by which a process was started if its executable has another name: Debian's
/// `/usr/bin/redis-server` is a link to `redis-check-rdb`. `None` if the names agree, no such link is found,
/// or the process cannot be read.
pub fn started_as(pid: Pid) -> Option<String> {
    let process = PinnedProcess::open(pid).ok()?;
    let exe = Executable::of(&process).ok()?;
    let comm = process.id.comm.as_str();
    if comm.is_empty() || comm == exe.name() || comm.contains('/') {
        return None;
    }
    let in_container = process.file("root").is_ok();
    let mut executables = Executables::default();
    let directories = PROGRAMS.into_iter().chain([exe.directory()]);
    let mut paths = directories.map(|directory| format!("{directory}/{comm}"));
    paths.find(|path| executables.leads_to(path, &exe, &process, in_container).unwrap_or(false))
}

/// Resolves a path below a root directory, without leaving that directory by absolute links or `..`; `None`
/// if there is no such file.
///
/// `openat2` with `RESOLVE_IN_ROOT` would do the same, but systemd's `RestrictSUIDSGID=` denies the whole
/// system call (ENOSYS), and both of netpolicy's units set that option: `src/shared/seccomp-util.c`
/// `seccomp_restrict_suid_sgid()`.
///
/// # Errors
/// The kernel's error, unless it shows that the path leads to no file.
fn resolve_in(root: OwnedFd, path: &str) -> Result<Option<FileId>, Errno> {
    match walk(root, path) {
        Ok(file) => file_id(&file).map(|(id, _)| Some(id)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
        // Without CAP_DAC_READ_SEARCH, the file cannot be reached, so this user cannot execute it either.
        Err(Errno::ACCESS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Like [`resolve_in`], below the root of an untrusted process, whose file systems may have a server that
/// never answers. Therefore only the kernel's cache of path names is used. In the systemd units, which do not
/// allow `openat2`, the path is walked by a worker, which can be abandoned.
///
/// # Errors
/// Those of [`resolve_in`].
#[expect(clippy::disallowed_methods, reason = "if openat2 is denied, the path is walked")]
fn resolve_in_foreign(root: OwnedFd, path: &str) -> Result<Option<FileId>, Errno> {
    let how = ResolveFlags::IN_ROOT | ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
    match openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
        Ok(file) => file_id(&file).map(|(id, _)| Some(id)),
        Err(Errno::NOSYS) => resolve_in(root, path),
        // The path is not in the cache, so it is not the executable of a running process, which would be
        // there.
        Err(_) => Ok(None),
    }
}

fn walk(root: OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The remaining components in reverse order: the next one is last.
    let mut left: Vec<String> = components(path);
    let mut way = vec![root];
    let mut links = 0;
    while let (Some(name), Some(directory)) = (left.pop(), way.last()) {
        if name == ".." {
            if way.len() > 1 {
                way.pop();
            }
            continue;
        }
        // Open the component as a directory first: only then does the kernel mount autofs file systems on
        // demand.
        let found = match openat(directory, &name, flags | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => openat(directory, &name, flags, Mode::empty())?,
            opened => opened?,
        };
        let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let mode = statx(&found, "", asked, StatxFlags::TYPE)?.stx_mode;
        if FileType::from_raw_mode(u32::from(mode)) != FileType::Symlink {
            way.push(found);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let target = readlinkat(&found, "", Vec::new())?;
        let target = target.to_str().map_err(|_| Errno::NOENT)?;
        if target.starts_with('/') {
            way.truncate(1);
        }
        left.extend(components(target));
    }
    way.pop().ok_or(Errno::NOENT)
}

/// Splits a path into its components, the last one first.
fn components(path: &str) -> Vec<String> {
    path.split('/').rev().filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect()
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    fn led(root: &Path, path: &str) -> Option<u64> {
        let root = openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("the root");
        resolve_in(root, path).expect("a walk").map(|file| file.inode)
    }

    #[test]
    fn links_are_followed_within_the_root() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        for directory in ["usr/bin", "usr/sbin", "etc/alternatives"] {
            std::fs::create_dir_all(root.join(directory)).expect("a directory");
        }
        std::fs::write(root.join("usr/bin/check"), "").expect("a file");
        for (target, link) in [
            ("usr/bin", "bin"),
            ("check", "usr/bin/server"),
            ("/etc/alternatives/web", "usr/sbin/web"),
            ("../../../../bin/server", "etc/alternatives/web"),
            ("round", "usr/round"),
            ("/proc/self/exe", "usr/self"),
        ] {
            symlink(target, root.join(link)).expect("a link");
        }
        let file = std::fs::metadata(root.join("usr/bin/check")).expect("a file").ino();
        for path in [
            "/usr/bin/check",
            "/bin/server",
            "usr//bin/./server",
            "/usr/sbin/web",
            "/../usr/sbin/../bin/check",
        ] {
            assert_eq!(led(root, path), Some(file), "{path}");
        }
        for path in ["/usr/bin/none", "/usr/bin/check/x", "/usr/round", "/usr/self", "/usr/bin/server/x"] {
            assert_eq!(led(root, path), None, "{path}");
        }
    }

    #[test]
    fn a_program_that_was_started_by_a_link_is_found_by_the_name_of_the_link() {
        let directory = tempfile::tempdir().expect("a directory");
        let (program, link) = (directory.path().join("net-check-rdb"), directory.path().join("net-server"));
        std::fs::copy("/usr/bin/sleep", &program).expect("coreutils are there");
        symlink(&program, &link).expect("a link");
        for (started, named) in [(&link, Some(&link)), (&program, None)] {
            let mut child = Command::new(started).arg("60").stdout(Stdio::null()).spawn().expect("it starts");
            let found = started_as(Pid(child.id()));
            child.kill().and_then(|()| child.wait()).expect("it ends");
            assert_eq!(found.as_deref(), named.and_then(|path| path.to_str()), "{}", started.display());
        }
    }
}
