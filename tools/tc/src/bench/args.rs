//! The options of `tc bench`.

use std::path::PathBuf;

use clap::Args;

/// Measure how fast rules are loaded on this machine, compared with tc, in a separate network namespace.
#[derive(Debug, Args)]
pub struct TcBench {
    /// Number of rules per load.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=900_000))]
    pub rules: u32,
    /// Repetitions of each load.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// The tc program to compare with.
    #[arg(long, value_name = "PROGRAM", default_value = "tc")]
    pub tc: PathBuf,
    /// Number of concurrent loaders in the part `parallel`. Each loads --rules rules, or fewer if memory is
    /// short.
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
    /// Loading u32 rules, compared with tc and with the kernel's own cost.
    Loads,
    /// Loading a file in which classes and rules alternate, with `--with-tc`.
    WithTc,
    /// Loading a file of one rule.
    OneRule,
    /// Only parsing and encoding.
    Parsing,
    /// The memory use of reading a long stream of rules.
    Memory,
    /// Rejected loads.
    Failing,
    /// Rolling back a load.
    Rollback,
    /// Comparing u32 rules.
    Check,
    /// Loading flower rules, compared with tc, with one worker and with two.
    Flower,
    /// Comparing flower rules.
    FlowerCheck,
    /// The kernel's memory per flower rule.
    Footprint,
    /// Many loaders at the same time, each on a separate device or all on one: speed, memory, and what the
    /// loaders wait for.
    Parallel,
}
