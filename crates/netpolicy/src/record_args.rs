//! The arguments of `record` and `diff`, and the option that reads a recording.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Save this host in a file, so that other commands show it elsewhere.
///
/// `show`, `doctor`, `plan`, `explain`, `history` and `verify` with --from FILE print what they would have
/// printed here. Names, addresses and users are replaced by pseudonyms, which are the same in each recording
/// of this host: the file can be attached to a report. netpolicy reads it without privileges. Changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy record host.json              with pseudonyms, to send it to others
  netpolicy record --with-names host.json as it is, for yourself
  netpolicy doctor --from host.json       what is wrong with the recorded host")]
pub struct Record {
    /// The file to write; an existing file is replaced. Only its owner can read it.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Write names, addresses and users as they are.
    #[arg(long)]
    pub with_names: bool,
    /// For how long to count packet delivery for `doctor`, in seconds; 0 only checks the settings.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub seconds: u64,
}

/// Compare two recordings: settings, versions, requests, transactions and findings.
///
/// Counters and numbers that change with each boot are left out. Exits with 3 if the recordings differ.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy diff before.json after.json   what an update has changed
  netpolicy -o jsonl diff a.json b.json   one record for each difference")]
pub struct Diff {
    /// A file that `netpolicy record` wrote.
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    pub a: PathBuf,
    /// Another one.
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    pub b: PathBuf,
}

/// The recording that a command reads instead of this host.
#[derive(Clone, Debug, Default, Args)]
pub struct FromArgs {
    /// Read the host from this file, which `netpolicy record` wrote, instead of the running kernel.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub from: Option<PathBuf>,
}
