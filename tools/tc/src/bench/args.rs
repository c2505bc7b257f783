//! The options of `tc bench`.

use std::path::PathBuf;

use clap::Args;

/// Measure loading on this machine, in a separate network namespace, in comparison with tc.
#[derive(Debug, Args)]
pub struct TcBench {
    /// Number of rules per load.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=900_000))]
    pub rules: u32,
    /// Repetitions of each load.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// The program for comparison.
    #[arg(long, value_name = "PROGRAM", default_value = "tc")]
    pub tc: PathBuf,
    /// Number of loaders in the part parallel. Each loads --rules rules, or fewer if memory is short.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub loaders: u32,
    /// Measure only this part; may be given more than once. By default, all parts are measured except
    /// footprint, which is meaningful only on a freshly booted kernel, and parallel, which takes long.
    #[arg(long, value_name = "PART")]
    pub only: Vec<BenchPart>,
}

/// What `tc bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchPart {
    /// u32 rules, compared with tc and with the kernel's own cost.
    Loads,
    /// A file of classes and rules in turn, with `--with-tc`.
    WithTc,
    /// A file of one rule.
    OneRule,
    /// Only parsing and encoding.
    Parsing,
    /// The memory use of a long stream.
    Memory,
    /// Rejected loads.
    Failing,
    /// Rolling back a load.
    Rollback,
    /// Comparing u32 rules.
    Check,
    /// flower rules, compared with tc, with one worker and with two.
    Flower,
    /// Comparing flower rules.
    FlowerCheck,
    /// The kernel's memory per flower rule.
    Footprint,
    /// Many loaders at the same time, each on a device of its own or all on one: speed, memory, and what the
    /// loaders wait for.
    Parallel,
}
