//! The store of applications' requests: BPF programs and maps, pinned in a directory so that they remain
//! after a command exits.
//!
//! `DIRECTORY/registry` holds the maps of sockets and processes, which all cgroups share, and the programs
//! that copy a process's policy to its children. `DIRECTORY/cgroup_ID` holds the programs of one cgroup and
//! the policies that users may request there. Each directory is created under a temporary name and renamed
//! when complete.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};
use model::Pid;
use rustix::fs::statfs;
use sys::error::{Cause, Errno, KernelError};

use super::cgroup::Cgroup;
use crate::loaded::{Loaded, refused};
use crate::mirrored::{Field, Mirrored as _, mirrored};
use crate::{in_initial_pid_namespace, iterated};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/app_requests.bpf.o"));

/// Kernel: `include/uapi/linux/magic.h` `BPF_FS_MAGIC`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// `sizeof(struct request_record)`.
const RECORD_BYTES: usize = RawRequest::BYTES;
/// The maximum output of the socket iterator in bytes: four million records.
const SOCKETS_BYTES_MAX: u64 = 4 * (1 << 20) * RECORD_BYTES as u64;
/// `ANY_USER` of `app_requests.bpf.c`.
const ANY_USER: u32 = u32::MAX;

const SHARED_MAPS: [&str; 4] = ["sockets", "tasks", "lost", "asked"];
const SHARED_PROGRAMS: [&str; 2] = ["process_forked", "process_exited"];
const CGROUP_PROGRAMS: [&str; 3] = ["set_socket", "get_socket", "socket_made"];
const PRCTL_PROGRAM: &str = "task_asks";

/// The policies that a user may request in a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The user; `None` for all users without an entry.
    pub uid: Option<u32>,
    /// The allowed policies: bit N is policy number N. Number 0 is always allowed; with CAP_NET_ADMIN in the
    /// initial user namespace, all numbers are allowed.
    pub numbers: u32,
}

/// A cgroup whose processes may request policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    /// The cgroup's id.
    pub id: u64,
    /// The cgroup's directory; `None` if it was removed.
    pub path: Option<PathBuf>,
    /// Which users may request which policies.
    pub choices: Vec<Choice>,
    /// Whether `prctl` is enabled as well as `setsockopt`.
    pub prctl: bool,
}

/// The origin of a socket's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestSource {
    /// `setsockopt` set the policy, on the socket itself or on the listener that accepted it.
    Own,
    /// The socket inherited the policy of the process that created it.
    Task,
}

/// A socket with a requested policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRequest {
    /// The socket's inode.
    pub inode: u64,
    /// The policy's number.
    pub number: u32,
    /// The policy's origin.
    pub source: RequestSource,
}

/// The store of requests in one directory of a BPF file system.
#[derive(Clone, Debug)]
pub struct RequestStore {
    directory: PathBuf,
}

impl RequestStore {
    /// The default directory.
    pub const DIRECTORY: &'static str = "/sys/fs/bpf/netpolicy";

    /// Returns the directory of the pinned objects.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the store in this directory. The directory need not exist; its parent must be on a BPF file
    /// system.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Enables a cgroup, or changes only the `choices` of a cgroup that is already enabled. If `prctl` could
    /// not be enabled, returns the reason.
    ///
    /// # Errors
    /// [`Cause::Absent`] without a BPF file system, kernel BTF or the initial pid namespace; EEXIST if an
    /// ancestor or descendant is enabled, because the programs of both would handle the option; otherwise the
    /// kernel's error.
    pub fn enable(&self, cgroup: &Cgroup, choices: &[Choice]) -> Result<Option<KernelError>, KernelError> {
        self.register()?;
        let own = self.of_cgroup(cgroup.id());
        if own.exists() {
            write_choices(&pinned(&own.join("allowed"))?, choices)?;
        } else {
            if let Some(other) = self.related(cgroup)? {
                let what = format!("sockets of cgroup {}", cgroup.path().display());
                let message = format!(
                    "{} is already enabled, and its program would also handle the option: disable it first",
                    other.display()
                );
                return Err(KernelError { what, cause: Cause::Extack { errno: Errno::EXIST, message } });
            }
            let mut loaded = self.load_for(cgroup)?;
            write_choices(loaded.map("allowed")?.map(), choices)?;
            let making = self.making()?;
            loaded.pin_map("allowed", &making.0)?;
            loaded.pin_links(&making.0)?;
            making.becomes(&own)?;
        }
        Ok(self.enable_prctl(cgroup).err())
    }

    /// Enables `prctl` in an enabled cgroup, and leaves its choices unchanged.
    ///
    /// # Errors
    /// The kernel's error, if no program may be attached to the hook of `prctl`.
    pub fn enable_prctl(&self, cgroup: &Cgroup) -> Result<(), KernelError> {
        let own = self.of_cgroup(cgroup.id());
        if own.join(PRCTL_PROGRAM).exists() {
            return Ok(());
        }
        self.load_prctl_for(cgroup, &own).and_then(|mut loaded| loaded.pin_links(&own))
    }

    /// Disables a cgroup: immediately for sockets, and a moment later for `prctl`. If no cgroup is enabled
    /// any more and no process has a policy, also removes the policies of sockets. Returns false if the
    /// cgroup was not enabled.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn disable(&self, id: u64) -> Result<bool, KernelError> {
        let own = self.of_cgroup(id);
        for name in CGROUP_PROGRAMS {
            // Detach explicitly: after the last pin is removed, the kernel detaches the program only some
            // time later. The link does not exist if the cgroup was removed.
            let _ = Link::open(own.join(name)).and_then(|link| link.detach());
        }
        let was = remove(&own)?;
        self.end_if_unused()?;
        Ok(was)
    }

    fn end_if_unused(&self) -> Result<(), KernelError> {
        if self.enabled_ids()?.is_empty() && self.tasks()?.is_empty() {
            remove(&self.registry())?;
            let _ = std::fs::remove_dir(&self.directory); // ENOTEMPTY is expected while cgroups are enabled
        }
        Ok(())
    }

    /// Returns the enabled cgroups, in the order of their ids.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn enabled(&self) -> Result<Vec<Enabled>, KernelError> {
        self.enabled_ids()?
            .into_iter()
            .map(|id| {
                let own = self.of_cgroup(id);
                let choices = read_choices(&pinned(&own.join("allowed"))?)?;
                let prctl = own.join(PRCTL_PROGRAM).exists();
                Ok(Enabled { id, path: Cgroup::path_of(id), choices, prctl })
            })
            .collect()
    }

    /// Returns the processes that have a policy, each with its policy number.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn tasks(&self) -> Result<BTreeMap<Pid, u32>, KernelError> {
        let tasks = pinned_if_any(&self.registry().join("tasks"))?;
        Ok(tasks.as_ref().map(tasks_in).unwrap_or_default())
    }

    /// Sets the policy of a process, which its future children inherit. `None` removes the policy.
    ///
    /// # Errors
    /// As for [`RequestStore::enable`].
    pub fn set_task(&self, process: Pid, number: Option<u32>) -> Result<(), KernelError> {
        let what = format!("policy of process {process}");
        let key = process.0.to_ne_bytes();
        let done = match number {
            Some(number) => {
                self.register()?;
                pinned(&self.registry().join("tasks"))?.update(&key, &number.to_ne_bytes(), MapFlags::ANY)
            }
            None => match pinned_if_any(&self.registry().join("tasks"))? {
                Some(tasks) => tasks.delete(&key),
                None => return Ok(()),
            },
        };
        match done {
            // If the process exited before its entry was written, remove the entry: otherwise the next
            // process with the same pid would have that policy.
            Ok(()) if number.is_some() && has_ended(process) => self.set_task(process, None),
            Ok(()) if number.is_some() => Ok(()),
            Ok(()) => self.end_if_unused(),
            Err(error) if number.is_none() && error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            Err(_) => Err(refused(what)),
        }
    }

    /// Returns the number of child processes that did not inherit a policy because the map was full.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn lost(&self) -> Result<u64, KernelError> {
        let Some(lost) = pinned_if_any(&self.registry().join("lost"))? else { return Ok(0) };
        let value =
            lost.lookup(&[0; 4], MapFlags::ANY).map_err(|_| refused("BPF map lost: lookup".to_owned()))?;
        Ok(value.map_or(0, |value| u64::take(&value)))
    }

    /// Returns the open sockets with a policy.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn sockets(&self) -> Result<Vec<SocketRequest>, KernelError> {
        let Some(sockets) = pinned_if_any(&self.registry().join("sockets"))? else { return Ok(Vec::new()) };
        sockets_in(&iterator()?, &sockets)
    }

    pub(super) fn registry(&self) -> PathBuf {
        self.directory.join("registry")
    }

    fn of_cgroup(&self, id: u64) -> PathBuf {
        self.directory.join(format!("cgroup_{id}"))
    }

    fn enabled_ids(&self) -> Result<Vec<u64>, KernelError> {
        let mut ids: Vec<u64> = names_in(&self.directory)?
            .iter()
            .filter_map(|name| name.strip_prefix("cgroup_")?.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Creates the maps and programs that all cgroups share, unless they exist.
    fn register(&self) -> Result<(), KernelError> {
        if self.registry().exists() {
            return Ok(());
        }
        if !in_initial_pid_namespace() {
            return Err(KernelError::absent("policies of processes", "the initial pid namespace", None));
        }
        let mut loaded = self.load(&SHARED_PROGRAMS, &[])?;
        loaded.attach()?;
        let making = self.making()?;
        for name in SHARED_MAPS {
            loaded.pin_map(name, &making.0)?;
        }
        loaded.pin_links(&making.0)?;
        making.becomes(&self.registry())
    }

    /// Loads the programs for a cgroup, and attaches them.
    fn load_for(&self, cgroup: &Cgroup) -> Result<Loaded, KernelError> {
        let mut loaded = self.load(&CGROUP_PROGRAMS, &SHARED_MAPS.map(|name| (name, self.registry())))?;
        loaded.attach_to_cgroup(cgroup.as_fd(), |_| true)?;
        Ok(loaded)
    }

    /// Loads the program that handles `prctl` in a cgroup, and attaches it. It uses the cgroup's table of
    /// choices in `own`.
    fn load_prctl_for(&self, cgroup: &Cgroup, own: &Path) -> Result<Loaded, KernelError> {
        let shared = SHARED_MAPS.map(|name| (name, self.registry()));
        let mut loaded = self
            .load(&[PRCTL_PROGRAM], &[&shared[..], &[("allowed", own.to_owned())]].concat())
            .map_err(|error| KernelError { what: "answer prctl".to_owned(), ..error })?;
        let directory = u32::try_from(cgroup.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
        loaded.map("answered")?.set(&[0; 4], &directory.to_ne_bytes())?;
        loaded.attach()?;
        Ok(loaded)
    }

    fn load(&self, programs: &[&str], reused: &[(&str, PathBuf)]) -> Result<Loaded, KernelError> {
        Loaded::load("app_requests", OBJECT, |open| {
            autoload(open, programs);
            for mut map in open.maps_mut() {
                let name = map.name().to_string_lossy().into_owned();
                let pinned = reused.iter().find(|(reused, _)| *reused == name);
                // A registry that an older netpolicy created may lack a map.
                let pinned =
                    pinned.map(|(name, directory)| directory.join(name)).filter(|path| path.exists());
                if let Some(pinned) = pinned {
                    map.reuse_pinned_map(pinned)?;
                }
            }
            Ok(())
        })
    }

    /// Returns the path of an enabled ancestor or descendant of this cgroup, if any.
    fn related(&self, cgroup: &Cgroup) -> Result<Option<PathBuf>, KernelError> {
        let paths = self.enabled_ids()?.into_iter().filter_map(Cgroup::path_of);
        let related = |path: &PathBuf| cgroup.path().starts_with(path) || path.starts_with(cgroup.path());
        Ok(paths.into_iter().find(related))
    }

    /// Creates a temporary directory for new pins. Removes temporary directories of processes that have
    /// exited.
    fn making(&self) -> Result<Making, KernelError> {
        const PREFIX: &str = "making_";
        let what = |path: &Path| format!("directory {}", path.display());
        let parent = self.directory.parent().unwrap_or(Path::new("/"));
        let file_system = statfs(parent).map_err(|errno| KernelError::errno(what(parent), errno))?;
        // The signedness of `f_type` depends on the architecture; the magic number has 32 bits.
        if u64::try_from(file_system.f_type).map_or(true, |kind| kind & 0xffff_ffff != BPF_FS_MAGIC) {
            let needs = "a BPF file system there (mount -t bpf bpf /sys/fs/bpf)";
            return Err(KernelError::absent(what(parent), needs, None));
        }
        create_own(&self.directory)?;
        for name in names_in(&self.directory)? {
            let pid = name.strip_prefix(PREFIX);
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove(&self.directory.join(name))?;
            }
        }
        let path = self.directory.join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| KernelError::io(what(&path), &error))?;
        Ok(Making(path))
    }
}

/// Creates a directory. An existing directory is accepted only if no other user can change its content,
/// because on a BPF file system mounted without `mode=`, any user can create directories.
fn create_own(directory: &Path) -> Result<(), KernelError> {
    let what = || format!("directory {}", directory.display());
    let failed = |error: &std::io::Error| KernelError::io(what(), error).needing("CAP_SYS_ADMIN");
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(&error)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(directory).map_err(|error| failed(&error))?;
    let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if !is_own || found.mode() & 0o022 != 0 {
        let needs = "a directory that only this user can write to; remove the existing one";
        return Err(KernelError::absent(what(), needs, None));
    }
    Ok(())
}

impl fmt::Display for RequestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory.display().fmt(f)
    }
}

/// A temporary directory, removed on drop unless it was renamed.
struct Making(PathBuf);

impl Making {
    fn becomes(self, path: &Path) -> Result<(), KernelError> {
        match std::fs::rename(&self.0, path) {
            Ok(()) => Ok(()),
            // Another process has renamed its directory first; its content is equivalent.
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {
                Ok(())
            }
            Err(error) => Err(KernelError::io(format!("rename to {}", path.display()), &error)),
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let _ = remove(&self.0); // ENOENT is expected if it was renamed
    }
}

/// Whether a process has exited. Zombies count as exited: they have no executable.
fn has_ended(process: Pid) -> bool {
    let link = std::fs::read_link(format!("/proc/{process}/exe"));
    link.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn autoload(open: &mut OpenObject, names: &[&str]) {
    for mut program in open.progs_mut() {
        if names.iter().any(|name| program.name() == *name) {
            program.set_autoload(true);
        }
    }
}

/// Loads the iterator over sockets. The caller passes it the map to read.
pub(super) fn iterator() -> Result<Loaded, KernelError> {
    Loaded::load("app_requests", OBJECT, |open| {
        for mut map in open.maps_mut() {
            map.set_autocreate(false)?;
        }
        autoload(open, &["socket_requests"]);
        Ok(())
    })
}

/// Returns the open sockets with a policy.
pub(super) fn sockets_in(iterator: &Loaded, sockets: &MapHandle) -> Result<Vec<SocketRequest>, KernelError> {
    let iterator =
        sys::bpf::iterate_sockets_in(iterator.program("socket_requests")?.as_fd(), sockets.as_fd())
            .map_err(|errno| KernelError::errno("sockets with a policy", errno))?;
    let bytes = iterated::bytes(iterator, SOCKETS_BYTES_MAX)?;
    Ok(bytes.chunks_exact(RECORD_BYTES).map(socket_request).collect())
}

/// Returns the processes that have a policy, each with its policy number.
pub(super) fn tasks_in(tasks: &MapHandle) -> BTreeMap<Pid, u32> {
    let most = usize::try_from(tasks.max_entries()).unwrap_or(usize::MAX);
    let mut found = BTreeMap::new();
    for key in tasks.keys().take(most) {
        // A process may exit during the iteration; its entry is then gone.
        if let Ok(Some(value)) = tasks.lookup(&key, MapFlags::ANY) {
            found.insert(Pid(u32::take(&key)), u32::take(&value));
        }
    }
    found
}

pub(super) fn pinned(path: &Path) -> Result<MapHandle, KernelError> {
    MapHandle::from_pinned_path(path).map_err(|_| refused(format!("BPF map {}", path.display())))
}

pub(super) fn pinned_if_any(path: &Path) -> Result<Option<MapHandle>, KernelError> {
    if path.exists() { pinned(path).map(Some) } else { Ok(None) }
}

fn write_choices(allowed: &impl MapCore, choices: &[Choice]) -> Result<(), KernelError> {
    let failed = |_| refused("BPF map allowed".to_owned());
    let key = |choice: &Choice| choice.uid.unwrap_or(ANY_USER).to_ne_bytes();
    // Add new choices before removing old ones, so that a user in both lists is never refused in between.
    for choice in choices {
        allowed.update(&key(choice), &choice.numbers.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
    }
    let kept: Vec<[u8; 4]> = choices.iter().map(key).collect();
    let most = usize::try_from(allowed.max_entries()).unwrap_or(usize::MAX);
    let known: Vec<Vec<u8>> = allowed.keys().take(most).collect();
    for old in known.iter().filter(|old| !kept.iter().any(|new| new == old.as_slice())) {
        allowed.delete(old).map_err(failed)?;
    }
    Ok(())
}

fn read_choices(allowed: &MapHandle) -> Result<Vec<Choice>, KernelError> {
    let mut choices = Vec::new();
    let most = usize::try_from(allowed.max_entries()).unwrap_or(usize::MAX);
    for key in allowed.keys().take(most) {
        let value = allowed.lookup(&key, MapFlags::ANY);
        let value = value.map_err(|_| refused("BPF map allowed: lookup".to_owned()))?.unwrap_or_default();
        let uid = Some(u32::take(&key)).filter(|uid| *uid != ANY_USER);
        choices.push(Choice { uid, numbers: u32::take(&value) });
    }
    choices.sort_unstable_by_key(|choice| choice.uid);
    Ok(choices)
}

mirrored! {
    /// `struct request_record`.
    struct RawRequest = "request_record" {
        inode: u64,
        policy: u32,
        source: u32,
    }

    /// `struct asker`.
    struct Asker = "asker" {
        tgid: u32,
        pad: u32,
    }
}

/// Returns the process that a `struct asker` names.
pub(super) fn asker(bytes: &[u8]) -> Pid {
    Pid(Asker::of(bytes).tgid)
}

/// Reads `struct request_record`.
fn socket_request(record: &[u8]) -> SocketRequest {
    let RawRequest { inode, policy, source } = RawRequest::of(record);
    // `enum request_source`.
    let source = if source == 1 { RequestSource::Own } else { RequestSource::Task };
    SocketRequest { inode, number: policy, source }
}

fn names_in(directory: &Path) -> Result<Vec<String>, KernelError> {
    match std::fs::read_dir(directory) {
        Ok(entries) => {
            Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(KernelError::io(format!("directory {}", directory.display()), &error)),
    }
}

/// Removes a directory of pins. Returns false if it does not exist.
fn remove(directory: &Path) -> Result<bool, KernelError> {
    let failed = |error: &std::io::Error| KernelError::io(format!("remove {}", directory.display()), error);
    for name in names_in(directory)? {
        std::fs::remove_file(directory.join(name)).map_err(|error| failed(&error))?;
    }
    match std::fs::remove_dir(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(&error)),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, RawRequest, Asker);

    #[test]
    fn a_directory_that_another_user_may_change_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let at = std::env::temp_dir().join(format!("netpolicy-bpf-{}", std::process::id()));
        create_own(&at).expect("created");
        create_own(&at).expect("there already");
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o777)).expect("opened to all");
        assert!(create_own(&at).is_err());
        std::fs::remove_dir(&at).expect("removed");
        symlink("/proc", &at).expect("a link");
        assert!(create_own(&at).is_err());
        std::fs::remove_file(&at).expect("removed");
    }

    #[test]
    fn a_socket_with_a_policy_is_read_as_the_program_writes_it() {
        let mut bytes = Vec::new();
        bytes.extend(35_845_u64.to_ne_bytes());
        bytes.extend([3_u32, 1].into_iter().flat_map(u32::to_ne_bytes));
        assert_eq!(bytes.len(), RECORD_BYTES, "sizeof(struct request_record)");
        assert_eq!(
            socket_request(&bytes),
            SocketRequest { inode: 35_845, number: 3, source: RequestSource::Own }
        );
        bytes[12] = 2;
        assert_eq!(socket_request(&bytes).source, RequestSource::Task);
    }
}
