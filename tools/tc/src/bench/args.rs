//! The options of `tc bench`.

use std::path::PathBuf;

use clap::Args;

/// Measure loading on this machine, in a network namespace of its own, side by side with tc.
#[derive(Debug, Args)]
pub struct TcBench {
    /// How many rules each load has.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=900_000))]
    pub rules: u32,
    /// How often each load is repeated.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// The program to compare with.
    #[arg(long, value_name = "PROGRAM", default_value = "tc")]
    pub tc: PathBuf,
    /// Measures this part; may be given more than once. Without it, all but footprint, which is only true on a kernel
    /// that was just booted.
    #[arg(long, value_name = "PART")]
    pub only: Vec<BenchPart>,
}

/// What `tc bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchPart {
    /// Rules of u32, beside tc and beside the kernel's own cost.
    Loads,
    /// A file of one rule.
    OneRule,
    /// Reading and encoding alone.
    Parsing,
    /// The memory of a long stream.
    Memory,
    /// Refusals.
    Failing,
    /// Taking a load back.
    Rollback,
    /// Comparing rules of u32.
    Check,
    /// Rules of flower, beside tc, with one worker and with two.
    Flower,
    /// Comparing rules of flower.
    FlowerCheck,
    /// The kernel's memory for each rule of flower.
    Footprint,
}
