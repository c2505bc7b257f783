//! Defines the command line of `watch`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCandidates;
use latency::live::ServiceSelection;
use model::{Nanoseconds, Pid};

use crate::completing;

/// Measure the response times of a running service, from outside.
///
/// For a part of each second, BPF programs record when requests arrive, are read and are answered, and how
/// long packets waited in the NIC's ring. The service is not changed and need not cooperate. The report lists
/// what cannot be measured, with the reason: docs/reference/watch.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy watch memcached               the service of the policy files, unit or executable with this name
  netpolicy watch 11211                   the process that listens on this port
  netpolicy watch --pid 812 --seconds 60  a process, for a minute
  netpolicy watch redis --sample 1s       continuously: for a service with few requests
  netpolicy -o jsonl watch --port 80 | jq '.data.response.p99'
  netpolicy watch nginx --record day.jsonl")]
pub struct WatchArgs {
    /// The service to measure.
    #[command(flatten)]
    pub service: ServiceChoice,
    /// Duration in seconds; by default, until Ctrl-C.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// How much of each second to measure, from 10ms to 1s. A larger part covers more requests, but slows the
    /// service more.
    #[arg(long, value_name = "SPAN", default_value = "100ms", value_parser = sample)]
    pub sample: Nanoseconds,
    /// Record every window in this file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Arguments that select a service: its name, a pid, a port or a unit.
#[derive(Clone, Debug, Args)]
pub struct ServiceChoice {
    /// The name of a service in the policy files, a unit, an executable, or a port.
    #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(completing::served), required_unless_present_any = ["pid", "port", "unit"], conflicts_with_all = ["pid", "port", "unit"])]
    pub service: Option<String>,
    /// The process with this pid, and its children.
    #[arg(long, value_name = "N", conflicts_with_all = ["port", "unit"], value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// The process that listens on this port.
    #[arg(long, value_name = "N", conflicts_with = "unit", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The processes of this systemd unit.
    #[arg(long, value_name = "U")]
    pub unit: Option<String>,
}

impl ServiceChoice {
    /// Returns the selected service. clap ensures that there is exactly one.
    pub(crate) fn selection(&self) -> ServiceSelection {
        match (self.pid, self.port, &self.unit) {
            (Some(pid), ..) => ServiceSelection::Process(Pid(pid)),
            (None, Some(port), _) => ServiceSelection::Port(port),
            (None, None, Some(unit)) => ServiceSelection::Unit(unit.clone()),
            (None, None, None) => ServiceSelection::named(self.service.as_deref().unwrap_or_default()),
        }
    }
}

/// The minimum length of a window: a hundred times the time that attaching the programs takes.
const SAMPLE_MIN: Nanoseconds = Nanoseconds::from_millis(10);

fn sample(text: &str) -> Result<Nanoseconds, String> {
    let span: Nanoseconds = text.parse().map_err(|error| format!("{error}"))?;
    let most = Nanoseconds::from_millis(1_000);
    if (SAMPLE_MIN..=most).contains(&span) {
        Ok(span)
    } else {
        Err(format!("expected {SAMPLE_MIN} to {most} of each second"))
    }
}
