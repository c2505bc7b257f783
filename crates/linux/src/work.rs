//! Measures the run time of processes and of the softirqs that work for them: together they are the CPU time
//! of a service, independent of other load.

use std::collections::BTreeMap;

use bpf::softirqs::SoftirqTime;
use model::{Nanoseconds, NapiId, Pid};
use sys::clock::run_time_of;
use sys::error::KernelError;

/// The run time of processes, and of the softirqs that poll certain NAPIs while other tasks are running.
///
/// Hard interrupts during other tasks, and transitions into and out of idle states, are not included.
#[derive(Debug)]
pub struct WorkTime {
    processes: Vec<Pid>,
    softirqs: SoftirqTime,
}

impl WorkTime {
    /// Starts counting the run time of the processes and softirqs.
    ///
    /// # Errors
    /// Those of [`SoftirqTime::of`].
    pub fn of(
        processes: impl IntoIterator<Item = Pid>,
        napis: impl IntoIterator<Item = NapiId>,
    ) -> Result<Self, KernelError> {
        let processes: Vec<Pid> = processes.into_iter().collect();
        let mut softirqs = SoftirqTime::of(napis, processes.iter().copied())?;
        softirqs.resume()?;
        Ok(Self { processes, softirqs })
    }

    /// Returns the total run time of the processes and softirqs so far. The time of a running thread may lag
    /// by up to one tick.
    ///
    /// # Errors
    /// [`sys::Cause::Gone`] if a process has exited; the kernel's error.
    pub fn read(&self) -> Result<Nanoseconds, KernelError> {
        let mut sum = self.softirqs.spent()?.time;
        for pid in &self.processes {
            let of_process = i32::try_from(pid.0).ok().and_then(run_time_of);
            let Some(of_process) = of_process else {
                return Err(KernelError::gone(format!("the run time of process {pid}"), "the process ended"));
            };
            sum.0 += of_process.0;
        }
        Ok(sum)
    }
}

/// Returns the run time so far of the threads of these processes; `None` if none of the processes exists.
pub fn run_time(processes: &[Pid]) -> Option<Nanoseconds> {
    let times = processes.iter().filter_map(|pid| run_time_of(i32::try_from(pid.0).ok()?));
    times.reduce(|sum, time| Nanoseconds(sum.0 + time.0))
}

/// Lists a process and its current descendants, the process first; at most [`FAMILY_MAX`].
pub fn family(first: Pid) -> Vec<Pid> {
    let mut family = vec![first];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        at += 1;
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid);
            family.extend(children.take(FAMILY_MAX - family.len().min(FAMILY_MAX)));
        }
    }
    family
}

/// The maximum number of processes in a family that are found.
pub const FAMILY_MAX: usize = 4096;

/// The run time of each process at one moment, without kernel threads.
#[derive(Clone, Debug)]
pub struct RunTimes(BTreeMap<Pid, Nanoseconds>);

impl RunTimes {
    /// Reads the present run times.
    pub fn now() -> Self {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let times = pids.filter_map(|pid: i32| {
            // A kernel thread has no command line. It may be working for the measured processes, so it is
            // excluded.
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            (!command.is_empty()).then_some(())?;
            Some((Pid(u32::try_from(pid).ok()?), run_time_of(pid)?))
        });
        Self(times.collect())
    }

    /// Returns how long processes other than `ours` have run since these run times were read. A process that
    /// has exited in the meantime is not included, so the result is a lower bound.
    pub fn others_since(&self, ours: &[Pid]) -> Nanoseconds {
        let now = Self::now();
        let others = now.0.iter().filter(|(pid, _)| !ours.contains(pid));
        let before = |pid: &Pid| self.0.get(pid).map_or(0, |time| time.0);
        Nanoseconds(others.map(|(pid, time)| time.0.saturating_sub(before(pid))).sum())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_that_works_has_a_run_time_and_one_that_is_gone_has_none() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let before = run_time_of(own).expect("this process runs");
        let begin = std::time::Instant::now();
        let mut turns = 0_u64;
        while begin.elapsed() < std::time::Duration::from_millis(20) {
            turns = std::hint::black_box(turns + 1);
        }
        let after = run_time_of(own).expect("this process runs");
        assert!(after.0 > before.0, "{before} to {after} in {turns} turns");
        let mut child = std::process::Command::new("true").spawn().expect("starts");
        let pid = i32::try_from(child.id()).expect("a pid");
        child.wait().expect("ends");
        assert_eq!(run_time_of(pid), None);
    }

    #[test]
    fn what_other_processes_run_is_counted_and_what_ours_run_is_not() {
        let before = RunTimes::now();
        let mut other = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; exec sleep 30"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
        let mut said = [0; 4];
        std::io::Read::read_exact(other.stdout.as_mut().expect("piped"), &mut said).expect("it counted");
        let pid = Pid(other.id());
        let all = before.others_since(&[]);
        let ran = run_time_of(i32::try_from(pid.0).expect("a pid")).expect("it sleeps");
        assert!(ran.0 > 0 && all.0 >= ran.0, "{all} of which {ran}");
        let everyone: Vec<Pid> = RunTimes::now().0.into_keys().collect();
        assert!(everyone.contains(&pid) && before.others_since(&everyone).0 < all.0);
        other.kill().expect("is killed");
        other.wait().expect("ends");
    }

    #[test]
    fn a_family_has_the_children_of_children() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 30 & sh -c 'sleep 30 & wait' & wait"])
            .spawn()
            .expect("starts");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut found = family(Pid(shell.id()));
        while found.len() < 4 && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
            found = family(Pid(shell.id()));
        }
        assert_eq!(found.first(), Some(&Pid(shell.id())));
        assert_eq!(found.len(), 4, "a shell, its sleep, its child shell, and that shell's sleep: {found:?}");
        for pid in found.iter().rev() {
            let pid = i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        shell.wait().expect("ends");
    }
}
