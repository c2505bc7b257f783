//! What our programs cost the machine.

use std::os::fd::{AsFd, OwnedFd};

use model::Nanoseconds;
use sys::error::KernelError;

use super::loaded::Loaded;

/// How long a program has run, while [`Statistics`] were on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// The program's name.
    pub program: String,
    /// How often it ran.
    pub runs: u64,
    /// How long all these runs took together. Reading the clock is in it: a program that does
    /// nothing takes 43 ns on the machine where this was written.
    pub time: Nanoseconds,
    /// How often it should have run but was running already on that CPU.
    pub missed: u64,
}

/// While this lives, the kernel measures every BPF program's run time, which costs a little by itself.
///
/// Kernel: 5.8, `bpf(BPF_ENABLE_STATS)`.
#[derive(Debug)]
#[must_use = "the kernel stops measuring when this is dropped"]
pub struct Statistics(
    #[expect(dead_code, reason = "measuring lasts as long as the descriptor is open")] OwnedFd,
);

impl Statistics {
    /// Begins to measure.
    ///
    /// # Errors
    /// The kernel's, without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self, KernelError> {
        sys::bpf::enable_run_time_statistics()
            .map(Self)
            .map_err(|errno| KernelError::errno("measure the run time of BPF programs", errno))
    }
}

/// The run times of the programs of an object.
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
