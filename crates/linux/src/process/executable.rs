//! Whether a process runs the executable that a policy names. `/proc/PID/exe` reads as a path in the process's own file systems, and
//! any user can mount a file system of their own over any path: in user and mount namespaces that need no privilege. So what
//! counts is the file, as the policy's author sees it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use model::{Glob, Pid};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, readlinkat, statx,
};
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

/// The most symbolic links on the way to a file, as of the kernel: `include/linux/namei.h` `MAXSYMLINKS`.
const LINKS_MAX: usize = 40;

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
            if asked.meets(&exe.path) && (in_container || self.is_ours(&exe, process)?) {
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
    fn is_ours(&mut self, exe: &Executable, process: &Pinned) -> Result<bool, Cause> {
        Ok(self.lookup(&exe.path)?.into_iter().flatten().any(|ours| {
            ours == exe.file
                || (exe.is_deleted && ours.device == exe.file.device && process.is_in_our_user_namespace())
        }))
    }

    /// Whether a path leads to the executable, symbolic links followed: Debian's `redis-server` is one to `redis-check-rdb`.
    fn leads_to(
        &mut self,
        path: &str,
        exe: &Executable,
        process: &Pinned,
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
            // The daemon may not look into process 1 where the attach service does that for it.
            let Ok(root) = openat(CWD, root, flags, Mode::empty()) else { continue };
            *found = resolve_in(root, path).map_err(unreadable)?;
        }
        if self.known.len() < PATHS_MAX {
            self.known.insert(path.to_owned(), found);
        }
        Ok(found)
    }
}

/// The path by which a process was started, where its executable has another name: Debian's `/usr/bin/redis-server` is a link
/// to `redis-check-rdb`. `None` where the names agree, no such link is found, or the process cannot be read.
pub fn started_as(pid: Pid) -> Option<String> {
    let process = Pinned::open(pid).ok()?;
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

/// The file that a path leads to below a root directory, which absolute links and `..` do not leave; `None` if there is none.
///
/// `openat2` with `RESOLVE_IN_ROOT` would do the same, but systemd's `RestrictSUIDSGID=` denies the whole system call (ENOSYS), and
/// both units have it: `src/shared/seccomp-util.c` `seccomp_restrict_suid_sgid()`.
///
/// # Errors
/// Of the kernel, other than for a path that leads nowhere.
fn resolve_in(root: OwnedFd, path: &str) -> Result<Option<FileId>, Errno> {
    match walk(root, path) {
        Ok(file) => file_id(&file).map(|(id, _)| Some(id)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
        // Without CAP_DAC_READ_SEARCH, such a file is only known to be none that this user may execute.
        Err(Errno::ACCESS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The same below the root of a process that is not trusted, whose file systems may have a server that never answers: only what the
/// kernel has in its cache is looked at. Under the units, which have no `openat2`, the path is walked: a worker does that, which can be
/// given up.
///
/// # Errors
/// As [`resolve_in`].
#[expect(clippy::disallowed_methods, reason = "where it is denied, the path is walked")]
fn resolve_in_foreign(root: OwnedFd, path: &str) -> Result<Option<FileId>, Errno> {
    let how = ResolveFlags::IN_ROOT | ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
    match openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
        Ok(file) => file_id(&file).map(|(id, _)| Some(id)),
        Err(Errno::NOSYS) => resolve_in(root, path),
        // What is not in the cache is not what the process runs.
        Err(_) => Ok(None),
    }
}

fn walk(root: OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // What is still to be walked, the next component last.
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
        // As a directory first: only so does the kernel mount what autofs mounts at need.
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

/// The components of a path, the last one first.
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
