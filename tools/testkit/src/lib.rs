//! The harness of tests on the running kernel, and of tests that start the built programs: a dev-dependency of the crates that have
//! such tests.
#![expect(missing_docs, missing_debug_implementations, reason = "only tests call this")]
#![forbid(unsafe_code)]

mod asked_once;
pub mod asked_server;
pub mod balancer;
pub mod command;
pub mod dns;
pub mod fits;
pub mod kernel_sources;
pub mod markdown;
mod need;
mod only;
pub mod operator;
pub mod programs;
pub mod scratch;
pub mod subject;
pub mod unpacked;
pub mod wire;

use libtest_mimic::{Arguments, Failed, Trial};
use model::{Cpu, CpuSet};

pub use need::{Need, repeated, test};

/// Runs the selected tests one after another, because they count polls and packets of the same CPUs, and ends the process.
pub fn run(trials: impl IntoIterator<Item = Vec<Trial>>) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, only::only(trials.into_iter().flatten().collect())).exit()
}

/// Returns the last CPU of this machine, on which tests run a server.
pub fn last_cpu() -> Result<Cpu, Failed> {
    let online: CpuSet = std::fs::read_to_string("/sys/devices/system/cpu/online")?.parse()?;
    Ok(online.iter().last().unwrap_or(Cpu(0)))
}
