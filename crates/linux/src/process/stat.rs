//! Parses the parts of `/proc/PID/stat` and `/proc/PID/status` that identify a task, its parent, its user and
//! its CPUs.

use model::{CpuSet, Label, Pid};

/// The attributes that identify a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) comm: Label,
    /// Whether this is a kernel thread.
    pub(crate) kernel_thread: bool,
    /// When the task started, in clock ticks since boot.
    pub(crate) started: u64,
}

impl Stat {
    /// Parses the text of `/proc/PID/stat` or `/proc/PID/task/TID/stat`; `None` if the text does not have the
    /// kernel's format.
    ///
    /// The name is the only field that a program chooses. It may contain spaces and parentheses, so it ends
    /// at the *last* `)`: all the fields after it are numbers, except one letter.
    ///
    /// Kernel: 6.18, `fs/proc/array.c` `do_task_stat()`; fields 2 (comm), 9 (flags) and 22 (starttime).
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        /// Kernel: 6.18, `include/linux/sched.h` `PF_KTHREAD`.
        const PF_KTHREAD: u64 = 0x0020_0000;
        /// The number of the first field after the name, counted from 1 as in proc_pid_stat(5).
        const STATE: usize = 3;
        let open = text.iter().position(|&b| b == b'(')?;
        let close = text.iter().rposition(|&b| b == b')')?;
        let comm = String::from_utf8_lossy(text.get(open + 1..close)?);
        let mut fields = std::str::from_utf8(&text[close + 1..]).ok()?.split_ascii_whitespace();
        let flags: u64 = fields.nth(9 - STATE)?.parse().ok()?;
        let started = fields.nth(22 - 9 - 1)?.parse().ok()?;
        Some(Self { comm: Label::new(&comm), kernel_thread: flags & PF_KTHREAD != 0, started })
    }
}

/// The parent and the user of a task, and the CPUs that it may run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskStatus {
    /// The task's parent; `None` if the parent is in another pid namespace, or there is none.
    pub(crate) parent: Option<Pid>,
    /// The effective user.
    pub(crate) uid: u32,
    /// The CPUs that the task may run on.
    pub(crate) affinity: CpuSet,
}

impl TaskStatus {
    /// Parses the text of `/proc/PID/status` or `/proc/PID/task/TID/status`; `None` if the text does not have
    /// the kernel's format.
    ///
    /// Kernel: 6.18, `fs/proc/array.c` `task_state()` (`PPid`, `Uid`), `task_cpus_allowed()`
    /// (`Cpus_allowed_list`). The kernel escapes a line break in the task's name, so a name cannot pass for a
    /// line.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let line = |name: &str| {
            let line = text.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
            std::str::from_utf8(line).ok()
        };
        let parent: Option<u32> = line("PPid:").and_then(|parent| parent.trim().parse().ok());
        let effective = line("Uid:")?.split_ascii_whitespace().nth(1)?;
        let affinity = line("Cpus_allowed_list:")?;
        let parent = parent.filter(|parent| *parent > 0).map(Pid);
        Some(Self { parent, uid: effective.parse().ok()?, affinity: affinity.parse().ok()? })
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    /// Returns the content of `/proc/PID/stat` on Linux 6.18 for a task with this name.
    fn line(comm: &str) -> String {
        format!(
            "812 ({comm}) S 1 812 812 0 -1 4194624 6029 0 12 0 5 14 0 0 20 0 10 0 7731 425349120 1184 18446744073709551615 1 1 0"
        )
    }

    proptest! {
        #[test]
        fn a_task_is_identified_whatever_it_calls_itself(comm in "[ -~]{0,15}") {
            let stat = Stat::parse(line(&comm).as_bytes()).expect("parses");
            prop_assert_eq!(stat.comm.as_str(), comm);
            prop_assert_eq!(stat.started, 7731);
        }

        #[test]
        fn no_bytes_upset_the_readers(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Stat::parse(&bytes), TaskStatus::parse(&bytes));
        }
    }

    #[test]
    fn a_name_with_parentheses_and_numbers_is_still_a_name() {
        let stat = Stat::parse(line("a) R 1 2 (3) b").as_bytes()).expect("parses");
        assert_eq!((stat.comm.as_str(), stat.started, stat.kernel_thread), ("a) R 1 2 (3) b", 7731, false));
    }

    #[test]
    fn a_kernel_thread_is_known_by_its_flag() {
        let text =
            b"15 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 0 9 0 0 20 0 1 0 9 0 0 18446744073709551615";
        assert!(Stat::parse(text).expect("parses").kernel_thread);
    }

    #[test]
    fn the_effective_user_counts() {
        let text = b"Name:\ta\\nUid:\t1\nPPid:\t7\nUmask:\t0022\nUid:\t0\t65534\t0\t65534\nCpus_allowed:\tff\nCpus_allowed_list:\t0-1,4\n";
        let status = TaskStatus::parse(text).expect("parses");
        assert_eq!(
            (status.parent, status.uid, status.affinity.to_string()),
            (Some(Pid(7)), 65534, "0-1,4".to_owned())
        );
    }
}
