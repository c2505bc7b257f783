//! The arguments of `report` and `audit`.

use std::path::PathBuf;

use crate::fleet::Issue;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Summarise this host for `audit`: drift, findings, requests not in force, standing proofs.
///
/// Gather one report of each host by any means, such as Ansible, and give them to `netpolicy audit`. A report
/// names the host, its devices and its services.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy -o json report > \"$(uname -n).json\"
  netpolicy report --seconds 10           count packet delivery longer, for hosts with little traffic")]
pub struct Report {
    /// For how long to count packet delivery, in seconds; 0 only checks the settings.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub seconds: u64,
}

/// Summarise the reports of many hosts: each issue with the number of hosts that have it, worst first.
///
/// Exits with 3 if a host has the issue of --gate or a worse one. Of several reports of a host, the newest
/// counts. A file that is not a report is an issue, and does not stop the audit.
#[derive(Debug, Args)]
#[command(after_help = "\
Issues, worst first:
  missing      an expected host did not report
  unreadable   a report cannot be read
  harmful      a standing proof shows that a policy harms
  problem      doctor found a problem
  drift        an applied setting has changed
  refused      policy files are refused
  lacking      the host lacks a mechanism that its policy files need
  conflict     another program sets the same things
  not-engaged  a delivery mode is set and delivers few packets
  missed-goal  a service misses its goal
  pending      policy files are not applied
  known-fault  the kernel or a driver has a known fault
  stale        the report is old
  warning      doctor warns
  no-proof     a service has no standing proof that its policy helps

Examples:
  netpolicy audit reports/
  netpolicy audit reports/ --expect hosts.txt --html audit.html
  netpolicy audit reports/ --gate drift   exits with 3 only for drift and worse")]
pub struct Audit {
    /// Reports, or directories with reports (*.json, *.jsonl).
    #[arg(value_name = "FILE|DIR", required = true)]
    pub from: Vec<PathBuf>,
    /// A file with the names of all hosts, one per line; `#` begins a comment.
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Exit with 3 if a host has this issue or a worse one.
    #[arg(long, value_name = "ISSUE", default_value = "stale", value_parser = issue())]
    pub gate: Issue,
    /// The age, in hours, above which a report is stale.
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=8760))]
    pub max_age: u64,
    /// Also write an HTML page with charts to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Parses an issue from its word.
fn issue() -> impl TypedValueParser<Value = Issue> {
    PossibleValuesParser::new(Issue::ALL.map(Issue::as_str))
        .map(|word| Issue::ALL.into_iter().find(|issue| issue.as_str() == word).unwrap_or(Issue::Stale))
}
