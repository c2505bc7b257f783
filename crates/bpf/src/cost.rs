//! Measures the run time of the BPF programs.

use std::os::fd::{AsFd, OwnedFd};

use model::Nanoseconds;
use sys::error::KernelError;

use super::loaded::Loaded;

/// The run time of a program while [`Statistics`] were enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// The program's name.
    pub program: String,
    /// How often the program ran.
    pub runs: u64,
    /// The total time of these runs. It includes the cost of reading the clock: an empty program measured 43
    /// ns on our test machine.
    pub time: Nanoseconds,
    /// How often the program was skipped because it was already running on that CPU.
    pub missed: u64,
}

/// Enables run-time statistics for all BPF programs until this value is dropped. The statistics themselves
/// have a small cost.
///
/// Kernel: 5.8, `bpf(BPF_ENABLE_STATS)`.
#[derive(Debug)]
#[must_use = "the kernel stops measuring when this is dropped"]
pub struct Statistics(
    #[expect(dead_code, reason = "measuring lasts as long as the descriptor is open")] OwnedFd,
);

impl Statistics {
    /// Enables the statistics.
    ///
    /// # Errors
    /// The kernel's error; EPERM without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self, KernelError> {
        sys::bpf::enable_run_time_statistics()
            .map(Self)
            .map_err(|errno| KernelError::errno("measure the run time of BPF programs", errno))
    }
}

/// Returns the run times of an object's programs.
pub(super) fn run_times(loaded: &Loaded) -> Result<Vec<RunTime>, KernelError> {
    let programs = loaded.object().progs().filter(|program| program.autoload());
    programs
        .map(|program| {
            let name = program.name().to_string_lossy().into_owned();
            let info = sys::bpf::run_statistics(program.as_fd())
                .map_err(|errno| KernelError::errno(format!("BPF program {name}: run time"), errno))?;
            Ok(RunTime {
                program: name,
                runs: info.runs,
                time: Nanoseconds(info.time_ns),
                missed: info.recursion_misses,
            })
        })
        .collect()
}
