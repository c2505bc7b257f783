//! The command line of `tc`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::bench::args::TcBench;

/// The commands of this program.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "see the help of the command")]
pub enum Commands {
    Tc(Tc),
}

/// The allowed numbers of sending threads.
const WORKERS: std::ops::RangeInclusive<u8> = 1..=64;

/// Load, compare and dump filter rules as batch files of tc, with a result for every line.
#[derive(Debug, Args)]
pub struct Tc {
    /// The `tc` subcommand to run.
    #[command(subcommand)]
    pub command: TcCommand,
}

/// The subcommands of `tc`.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "see the help of each command")]
pub enum TcCommand {
    Load(TcLoad),
    Diff(TcDiff),
    Dump(TcDump),
    Bench(TcBench),
    /// Wait for the end of an atomic load, and undo it unless told to keep it. Started by `tc load --atomic`,
    /// with the rules as its standard output.
    #[command(hide = true)]
    Guard,
}

/// Load a batch file.
///
/// The whole file is read first: if one line is wrong, nothing is sent. Then it is sent in portions, and
/// every line has a result: loaded, refused in the kernel's own words, or not sent.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy tc load rules.batch                   load it; stop at the first refusal
  netpolicy tc load rules.batch --atomic          all of it or nothing
  netpolicy tc load rules.batch --swap 10         switch each hook over from the last such load
  netpolicy tc load rules.batch --resume          what an interrupted load has left out
  netpolicy tc load rules.batch --no-percpu auto --share-actions
                                                  faster and smaller, with coarser counters")]
pub struct TcLoad {
    /// The file; - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Which actions get one counter for all CPUs instead of one per CPU: those of rules that rarely see
    /// packets (auto), all (always), or none (never). By default, those whose line has no_percpu.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub no_percpu: Option<Percpu>,
    /// Let equal actions share one instance. Rules that share an instance also share its counters: packets
    /// can no longer be counted per rule.
    #[arg(long)]
    pub share_actions: bool,
    /// Give each flower rule a cookie, by which --check and tc diff recognise the rule without comparing the
    /// rest of it. Useful for many rules that are compared often.
    #[arg(long, conflicts_with = "share_actions")]
    pub cookies: bool,
    /// Read the file, report what it would do, and exit.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not load: compare the kernel's rules with the file, and report those that are missing, different or
    /// extra.
    #[arg(long, conflicts_with_all = ["dry_run", "atomic", "resume"])]
    pub check: bool,
    /// All or nothing: undo the load at the first refusal, or if this command dies.
    #[arg(long, conflicts_with_all = ["keep_going", "resume"])]
    pub atomic: bool,
    /// Load into a new chain, switch the rule of this priority to that chain, and remove the old chain.
    /// Packets meet either the rules of the previous such load or the new ones, never a mixture.
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u16).range(1..), conflicts_with_all = ["dry_run", "atomic", "resume", "keep_going"])]
    pub swap: Option<u16>,
    /// Continue after wrong lines and refused rules.
    #[arg(long)]
    pub keep_going: bool,
    /// Load only the rules that the kernel lacks.
    #[arg(long)]
    pub resume: bool,
    /// Pass lines about qdiscs and classes to the installed tc, in the order of the file: each waits for all
    /// earlier lines, and all later lines wait for it. They are not checked beforehand.
    #[arg(long)]
    pub with_tc: bool,
    /// The number of sending threads. Several threads are useful for flower rules on several devices, chains
    /// or priorities.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(i64::from(*WORKERS.start())..=i64::from(*WORKERS.end())))]
    pub workers: u8,
}

/// Values of `--no-percpu`: which actions get one counter for all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Percpu {
    /// Actions of rules that match few packets, or that are offloaded only.
    Auto,
    /// All actions that support it.
    Always,
    /// No actions, even if the file requests it.
    Never,
}

/// Compare the kernel's rules with a batch file. Exit code 3 if they differ.
#[derive(Debug, Args)]
pub struct TcDiff {
    /// The file; - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Compare with the chain that `tc load --swap` filled and to which the rule of this priority leads.
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u16).range(1..))]
    pub swap: Option<u16>,
    /// The value of `tc load --no-percpu` with which the rules were loaded.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub no_percpu: Option<Percpu>,
    /// Skip lines about qdiscs and classes that netpolicy does not parse, and report how many were skipped.
    #[arg(long)]
    pub with_tc: bool,
}

/// Print the kernel's rules as a batch file that can be loaded again.
#[derive(Debug, Args)]
pub struct TcDump {
    /// The device; without it and without --block, the whole network namespace.
    #[arg(long, value_name = "NAME")]
    pub dev: Option<String>,
    /// The hook or class: ingress, egress, or a class as in 1:10. Default: the whole device.
    #[arg(long, value_name = "HOOK", requires = "dev")]
    pub parent: Option<String>,
    /// The shared block.
    #[arg(long, value_name = "NUMBER", conflicts_with = "dev", value_parser = clap::value_parser!(u32).range(1..))]
    pub block: Option<u32>,
    /// Begin with lines that create clsact and ingress, so that the file loads on a device without them.
    #[arg(long)]
    pub qdisc: bool,
}
