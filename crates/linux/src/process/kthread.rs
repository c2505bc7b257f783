//! Reads and changes how the kernel threads of NAPIs are scheduled.
//!
//! A kernel thread has no pidfd that would keep its pid from being reused, so its name and start time are
//! checked before and after each use of its pid.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use model::{CpuSet, KthreadState, Nanoseconds, NapiId, Pid, RtThrottling, Scheduling, Slice, UtilClamp};
use rustix::io::Errno;
use sys::affinity::set_affinity;
use sys::error::{Cause, KernelError};
use sys::scheduling::{RawAttr, attributes, set_attributes};

use super::cpuset::isolated_partitions;
use super::stat::{Stat, TaskStatus};

/// `SCHED_*`. Kernel: `include/uapi/linux/sched.h`.
pub(super) mod policy {
    pub(in crate::process) const OTHER: u32 = 0;
    pub(in crate::process) const FIFO: u32 = 1;
    pub(in crate::process) const RR: u32 = 2;
    pub(in crate::process) const BATCH: u32 = 3;
}

/// `SCHED_FLAG_*`. Kernel: `include/uapi/linux/sched.h`.
pub(super) mod flag {
    pub(in crate::process) const RESET_ON_FORK: u64 = 0x01;
    pub(in crate::process) const KEEP_POLICY: u64 = 0x08;
    pub(in crate::process) const KEEP_PARAMS: u64 = 0x10;
    pub(in crate::process) const UTIL_CLAMP: u64 = 0x60;
}

/// The kernel thread that creates all other kernel threads. Kernel: `init/main.c` `rest_init()`.
const KTHREADD: Pid = Pid(2);

/// The prefixes of the names of NAPIs' threads and of `kthreadd`.
const NAMES: [&str; 2] = ["napi/", "kthreadd"];

/// The maximum time for a NAPI's thread to appear after it was requested. Normally the kernel creates the
/// thread before it answers the request; a driver that reopens its device creates the thread a little later.
pub(crate) const APPEARS_WITHIN: Duration = Duration::from_millis(500);

/// The interval between two attempts to find the thread.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Calls `look` until it returns something, for at most [`APPEARS_WITHIN`].
pub(crate) fn wait_for<T, E>(mut look: impl FnMut() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
    let until = Instant::now() + APPEARS_WITHIN;
    loop {
        match look()? {
            None if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
            found => return Ok(found),
        }
    }
}

/// Reads how the kernel thread of a NAPI is scheduled.
///
/// # Errors
/// [`Cause::Gone`] if the thread has exited, [`Cause::Absent`] if the pid belongs to another kind of task, as
/// in another pid namespace.
pub(crate) fn read(pid: Pid) -> Result<KthreadState, KernelError> {
    let started = confirm(pid, None)?;
    let status = file(pid, "status")?;
    let status = TaskStatus::parse(&status).ok_or_else(|| KernelError::malformed(name(pid), "status"))?;
    let attr = attributes(number(pid)?).map_err(|errno| failed(pid, errno))?;
    confirm(pid, Some(started))?;
    Ok(KthreadState {
        pid: Some(pid),
        cpus: status.affinity,
        scheduling: scheduling(attr),
        util_clamp: clamp(attr).filter(|_| has_clamps()),
        slice: slice(attr, default_slice()),
    })
}

/// Reads the initial settings of a NAPI's thread: every new kernel thread inherits the CPUs of `kthreadd`. It
/// also has the scheduling class of `kthreadd`, unless that class was changed: children do not inherit a
/// changed class.
///
/// Kernel: 6.18, `kernel/kthread.c` `kthread()`, `kthreadd()`.
pub(crate) fn begins() -> Result<KthreadState, KernelError> {
    let kthreadd = read(KTHREADD)?;
    let clamp = kthreadd.util_clamp.map(|_| UtilClamp::NONE);
    let slice = kthreadd.slice.map(|_| Slice::Default);
    Ok(KthreadState {
        pid: None,
        scheduling: Some(Scheduling::Other(0)),
        util_clamp: clamp,
        slice,
        ..kthreadd
    })
}

/// Restricts the thread to these CPUs.
pub(crate) fn set_cpus(pid: Pid, cpus: &CpuSet) -> Result<(), KernelError> {
    write(pid, |tid| set_affinity(tid, cpus)).map_err(|error| why_refused(error, cpus))
}

/// Sets the thread's scheduling class and priority.
pub(crate) fn set_scheduling(pid: Pid, class: Scheduling) -> Result<(), KernelError> {
    write(pid, |tid| {
        let now = attributes(tid)?;
        let flags = now.flags & flag::RESET_ON_FORK;
        // Keep a slice that was set on the thread.
        let runtime = if now.runtime == default_slice() { 0 } else { now.runtime };
        let (policy, nice, priority) = match class {
            Scheduling::Other(nice) => (policy::OTHER, nice, 0),
            Scheduling::Batch(nice) => (policy::BATCH, nice, 0),
            Scheduling::Fifo(priority) => (policy::FIFO, 0, priority),
            Scheduling::RoundRobin(priority) => (policy::RR, 0, priority),
        };
        let (nice, priority) = (i32::from(nice), u32::from(priority));
        set_attributes(tid, RawAttr { policy, flags, nice, priority, runtime, ..RawAttr::default() })
    })
}

/// Sets a slice for the thread, or removes it. A thread of a real-time class has no slice and cannot be given
/// one.
///
/// Kernel: 6.12, `kernel/sched/syscalls.c` `__setparam_fair()`; a runtime of 0 selects the scheduler's
/// default slice.
pub(crate) fn set_slice(pid: Pid, slice: Slice) -> Result<(), KernelError> {
    write(pid, |tid| {
        let RawAttr { policy, flags, nice, priority, .. } = attributes(tid)?;
        let runtime = match slice {
            Slice::Default => 0,
            Slice::Own(span) => span.0,
        };
        let flags = flags & flag::RESET_ON_FORK;
        set_attributes(tid, RawAttr { policy, flags, nice, priority, runtime, ..RawAttr::default() })
    })
}

/// Clamps the thread's utilisation; [`UtilClamp::NONE`] removes the clamp.
pub(crate) fn set_clamp(pid: Pid, clamp: UtilClamp) -> Result<(), KernelError> {
    /// The value that removes a clamp. Kernel: 5.11, `uclamp_reset()`.
    const RESET: u32 = u32::MAX;
    write(pid, |tid| {
        let flags = flag::KEEP_POLICY | flag::KEEP_PARAMS | flag::UTIL_CLAMP;
        let flags = flags | attributes(tid)?.flags & flag::RESET_ON_FORK;
        let set = |util_min, util_max| {
            set_attributes(tid, RawAttr { flags, util_min, util_max, ..RawAttr::default() })
        };
        if clamp == UtilClamp::NONE {
            set(RESET, RESET)?;
            // If the thread is still real-time (its class may be restored only later), its minimum is now
            // sched_util_clamp_min_rt_default. In that case, set the whole range explicitly.
            if self::clamp(attributes(tid)?) == Some(UtilClamp::NONE) {
                return Ok(());
            }
        }
        set(clamp.min.into(), clamp.max.into())
    })
    .map_err(|error| match error.number() {
        Some(Errno::OPNOTSUPP) => KernelError::absent(error.what, "a kernel with CONFIG_UCLAMP_TASK", None),
        _ => error,
    })
}

/// Lists the threads of a device's NAPIs by their names, in the order of the NAPIs' ids: `napi/eth0-317`.
///
/// # Errors
/// If `/proc` cannot be listed, or a name was truncated so that its NAPI is unknown.
pub fn by_name(device: &str) -> Result<Vec<Pid>, KernelError> {
    let mut found = Vec::new();
    for pid in super::pids()? {
        let Ok(text) = file(pid, "comm") else { continue };
        let comm = String::from_utf8_lossy(&text);
        if let Some(id) = napi_in_name(comm.trim_end(), device) {
            // Any process can have a name like this, so check that it is a kernel thread.
            if confirm(pid, None).is_ok() {
                found.push((id, pid));
            }
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, pid)| pid).collect())
}

/// Lists the threads of these NAPIs by their names.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn of_napis(napis: &BTreeSet<NapiId>) -> Result<Vec<Pid>, KernelError> {
    let is_one = |pid: &Pid| {
        let comm = file(*pid, "comm").unwrap_or_default();
        let comm = String::from_utf8_lossy(&comm);
        let device = comm.strip_prefix("napi/").and_then(|rest| Some(rest.rsplit_once('-')?.0));
        let napi = device.and_then(|device| napi_in_name(comm.trim_end(), device));
        napi.is_some_and(|napi| napis.contains(&NapiId(napi))) && confirm(*pid, None).is_ok()
    };
    Ok(super::pids()?.into_iter().filter(is_one).collect())
}

/// Parses the NAPI's id in the name of its thread; `None` for a thread of another device, or a truncated
/// name.
///
/// Kernel: 5.12, `net/core/dev.c` `napi_kthread_create()`, `"napi/%s-%d"`; before 5.17 `/proc/PID/comm` shows
/// only 15 bytes of the name.
fn napi_in_name(comm: &str, device: &str) -> Option<u32> {
    /// The number of bytes of a name that older kernels keep. Kernel: `include/linux/sched.h` `TASK_COMM_LEN`
    /// without the terminating zero.
    const KEPT: usize = 15;
    let id = comm.strip_prefix("napi/")?.strip_prefix(device)?.strip_prefix('-')?;
    if comm.len() == KEPT {
        return None; // The name may have been truncated.
    }
    id.parse().ok()
}

/// Reads the limit on the run time of real-time threads.
pub(crate) fn rt_throttling() -> Result<RtThrottling, KernelError> {
    let number = |name: &str| {
        let path = format!("/proc/sys/kernel/{name}");
        let text = std::fs::read_to_string(&path).map_err(|error| KernelError::io(&*path, &error))?;
        let number = text.trim().parse();
        number.map_err(|_| KernelError::malformed(path, format!("`{}` is not a number", text.trim())))
    };
    Ok(RtThrottling { runtime_us: number("sched_rt_runtime_us")?, period_us: number("sched_rt_period_us")? })
}

/// Explains the error for rejected CPUs if the CPUs belong to isolated cpuset partitions.
///
/// Kernel: 6.18, `kernel/sched/syscalls.c` `__sched_setaffinity()`, `kernel/cgroup/cpuset.c`
/// `cpuset_cpus_allowed()`.
fn why_refused(error: KernelError, cpus: &CpuSet) -> KernelError {
    let isolated = isolated_partitions();
    let of_partition = !cpus.is_empty() && cpus.difference(&isolated).is_empty();
    match error.cause {
        Cause::Errno(errno @ Errno::INVAL) if of_partition => {
            let message = format!("CPUs {cpus} belong to an isolated cpuset partition");
            KernelError { cause: Cause::Extack { errno, message }, ..error }
        }
        _ => error,
    }
}

/// Changes the thread with this pid, and checks before and after that it is a NAPI's thread.
fn write(pid: Pid, change: impl FnOnce(libc::pid_t) -> Result<(), Errno>) -> Result<(), KernelError> {
    let started = confirm(pid, None)?;
    change(number(pid)?).map_err(|errno| failed(pid, errno))?;
    confirm(pid, Some(started)).map(drop)
}

/// Checks that a pid refers to a NAPI's thread or `kthreadd`, with this start time if given. Returns the
/// thread's start time.
fn confirm(pid: Pid, since: Option<u64>) -> Result<u64, KernelError> {
    let stat = Stat::parse(&file(pid, "stat")?).ok_or_else(|| KernelError::malformed(name(pid), "stat"))?;
    if !stat.kernel_thread || !NAMES.iter().any(|name| stat.comm.as_str().starts_with(name)) {
        let needs = format!(
            "the pid namespace of the kernel threads: in this namespace, the number belongs to {}",
            stat.comm
        );
        return Err(KernelError::absent(name(pid), needs, None));
    }
    match since {
        Some(started) if started != stat.started => Err(gone(pid)),
        _ => Ok(stat.started),
    }
}

fn file(pid: Pid, file: &str) -> Result<Vec<u8>, KernelError> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read(&path).map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::SRCH) => gone(pid),
        _ => KernelError::io(path, &error),
    })
}

fn scheduling(attr: RawAttr) -> Option<Scheduling> {
    let nice = || i8::try_from(attr.nice).ok();
    let priority = || u8::try_from(attr.priority).ok();
    match attr.policy {
        policy::OTHER => nice().map(Scheduling::Other),
        policy::BATCH => nice().map(Scheduling::Batch),
        policy::FIFO => priority().map(Scheduling::Fifo),
        policy::RR => priority().map(Scheduling::RoundRobin),
        _ => None,
    }
}

fn clamp(attr: RawAttr) -> Option<UtilClamp> {
    Some(UtilClamp { min: attr.util_min.try_into().ok()?, max: attr.util_max.try_into().ok()? })
}

/// Returns the slice of a thread; `None` on kernels without slices per thread.
fn slice(attr: RawAttr, default: u64) -> Option<Slice> {
    let own = |runtime| {
        if runtime == 0 || runtime == default { Slice::Default } else { Slice::Own(Nanoseconds(runtime)) }
    };
    (default > 0).then(|| own(attr.runtime))
}

/// Reads the scheduler's default slice from `kthreadd`, in nanoseconds; 0 on kernels without slices per
/// thread.
///
/// Kernel: 6.12, `kernel/sched/syscalls.c` `get_params()`.
pub(super) fn default_slice() -> u64 {
    number(KTHREADD).ok().and_then(|kthreadd| attributes(kthreadd).ok()).map_or(0, |attr| attr.runtime)
}

/// Whether this kernel clamps utilisation, according to the attributes of the calling thread: a kernel
/// without clamps reports a maximum of 0.
///
/// Kernel: 6.18, `kernel/sched/syscalls.c` `sched_getattr()`.
fn has_clamps() -> bool {
    const THIS: libc::pid_t = 0;
    attributes(THIS).is_ok_and(|own| own.util_max > 0)
}

fn number(pid: Pid) -> Result<libc::pid_t, KernelError> {
    libc::pid_t::try_from(pid.0).map_err(|_| gone(pid))
}

fn name(pid: Pid) -> String {
    format!("kernel thread {pid}")
}

fn gone(pid: Pid) -> KernelError {
    KernelError::gone(name(pid), "it has ended")
}

fn failed(pid: Pid, errno: Errno) -> KernelError {
    match errno {
        Errno::SRCH => gone(pid),
        Errno::PERM => {
            let needs = "CAP_SYS_NICE in the initial user namespace".to_owned();
            KernelError { what: name(pid), cause: Cause::Denied { errno, needs } }
        }
        _ => KernelError::errno(name(pid), errno),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_is_known_by_the_device_and_id_in_its_name() {
        assert_eq!(napi_in_name("napi/eth0-317", "eth0"), Some(317));
        assert_eq!(napi_in_name("napi/nkb0-12345678", "nkb0"), Some(12_345_678));
        for other in ["napi/eth0-317", "napi/eth0.5-317", "napi/eth01-317", "ksoftirqd/0", "napi/eth-"] {
            assert_eq!(napi_in_name(other, "eth"), None, "{other}");
        }
    }

    #[test]
    fn a_name_that_may_have_been_cut_short_names_no_napi() {
        assert_eq!(napi_in_name("napi/enp1s0f0-8", "enp1s0f0"), None, "8193, cut after 15 bytes");
        assert_eq!(
            napi_in_name("napi/enp1s0f0-8193", "enp1s0f0"),
            Some(8193),
            "in the format of newer kernels"
        );
    }

    #[test]
    fn a_process_that_is_no_napis_thread_is_not_read_as_one() {
        let error = read(Pid(std::process::id())).expect_err("a test is not a kernel thread");
        assert!(matches!(error.cause, Cause::Absent { .. }), "{error}");
        let error = read(Pid(i32::MAX.unsigned_abs())).expect_err("no such thread");
        assert!(matches!(error.cause, Cause::Gone(_)), "{error}");
    }

    #[test]
    fn a_thread_that_appears_late_is_waited_for_and_one_that_never_does_is_not_forever() {
        let mut looks = 0;
        let found = wait_for(|| {
            looks += 1;
            Ok::<_, ()>((looks == 3).then_some("there"))
        });
        assert_eq!((found, looks), (Ok(Some("there")), 3));
        let begun = Instant::now();
        assert_eq!(wait_for(|| Ok::<Option<()>, ()>(None)), Ok(None));
        assert!(begun.elapsed() >= APPEARS_WITHIN);
    }
}
