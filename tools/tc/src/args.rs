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

/// How many threads may send.
const WORKERS: std::ops::RangeInclusive<u8> = 1..=64;

/// Load filter rules from batch files of tc, several times faster than tc, with a result for every rule.
#[derive(Debug, Args)]
pub struct Tc {
    /// What to do.
    #[command(subcommand)]
    pub command: TcCommand,
}

/// What `tc` does.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "see the help of each command")]
pub enum TcCommand {
    Load(TcLoad),
    Diff(TcDiff),
    Dump(TcDump),
    Bench(TcBench),
    /// Undo a load unless asked to keep it. Started by `tc load --atomic`, with the rules as its standard output.
    #[command(hide = true)]
    Guard,
}

/// Load a batch file.
///
/// The whole file is read first: if one line is wrong, nothing is sent. Then it is sent in portions, and every line has
/// a result: loaded, refused in the kernel's own words, or not sent.
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
    /// Which actions have one counter for all CPUs: where packets are expected seldom, all, or none. Without this, those
    /// whose line says no_percpu.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub no_percpu: Option<Percpu>,
    /// Make one instance of actions that do the same. Their rules then count together: the packets of one rule can
    /// no longer be counted apart.
    #[arg(long)]
    pub share_actions: bool,
    /// Give each rule of flower a cookie that stands for it, by which --check and tc diff know it again without looking at all
    /// of it: for many rules that are compared often.
    #[arg(long, conflicts_with = "share_actions")]
    pub cookies: bool,
    /// Read the file, say what it would do, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Compare the kernel's rules with the file instead: missing, different, extra.
    #[arg(long, conflicts_with_all = ["dry_run", "atomic", "resume"])]
    pub check: bool,
    /// All or nothing: the first refusal takes back what was loaded, and so does the death of this command.
    #[arg(long, conflicts_with_all = ["keep_going", "resume"])]
    pub atomic: bool,
    /// Load into a chain of their own, and then switch the rule of this priority over to it: packets meet the rules of the
    /// last such load, or the new ones, and never a part. Then the old chain is removed.
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u16).range(1..), conflicts_with_all = ["dry_run", "atomic", "resume", "keep_going"])]
    pub swap: Option<u16>,
    /// Continue after wrong lines and refused rules.
    #[arg(long)]
    pub keep_going: bool,
    /// Load only the rules that the kernel does not have yet.
    #[arg(long)]
    pub resume: bool,
    /// Pass lines about queueing disciplines and classes to the installed tc, in their turn: it does
    /// them when all before is done, and what follows waits. They are not checked beforehand.
    #[arg(long)]
    pub with_tc: bool,
    /// How many threads send. Several are of use for flower, on several devices, chains or priorities.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(i64::from(*WORKERS.start())..=i64::from(*WORKERS.end())))]
    pub workers: u8,
}

/// Which actions have one counter for all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Percpu {
    /// Those of rules that pick out few packets, or that are for hardware only.
    Auto,
    /// All that can.
    Always,
    /// None, even where the file asks for it.
    Never,
}

/// Compare the kernel's rules with a batch file. Exit code 3 if they differ.
#[derive(Debug, Args)]
pub struct TcDiff {
    /// The file; - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Compare with the chain that the rule of this priority leads to, as `tc load --swap` left it.
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u16).range(1..))]
    pub swap: Option<u16>,
    /// The counters that the rules were loaded with: as `tc load --no-percpu`.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub no_percpu: Option<Percpu>,
    /// Leave out lines about queueing disciplines and classes that are not understood here, and count them.
    #[arg(long)]
    pub with_tc: bool,
}

/// Print the kernel's rules as a batch file that can be loaded again.
#[derive(Debug, Args)]
pub struct TcDump {
    /// The device; without it and without --block, all of the network namespace.
    #[arg(long, value_name = "NAME")]
    pub dev: Option<String>,
    /// The hook or class: ingress, egress, or a class as in 1:10. Without it, all of the device.
    #[arg(long, value_name = "HOOK", requires = "dev")]
    pub parent: Option<String>,
    /// The block that devices share.
    #[arg(long, value_name = "NUMBER", conflicts_with = "dev", value_parser = clap::value_parser!(u32).range(1..))]
    pub block: Option<u32>,
    /// Begin with the lines that make clsact and ingress, so that a device without them can load the file.
    #[arg(long)]
    pub qdisc: bool,
}
