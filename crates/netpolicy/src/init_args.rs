//! The arguments of `init` and `support-matrix`.

use std::path::PathBuf;

use clap::Args;
use model::PolicyName;

/// Write a first policy file for this host: the services that listen, and the devices that carry traffic.
///
/// Changes no setting. The file has a commented section for each device and service, and requests nothing
/// until you add a policy to a section. The file lists what was not visible: without privileges the processes
/// of other users, and always those of other network namespaces. An existing file is not overwritten.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy init                          print it
  netpolicy init /etc/netpolicy/policy.d/10-host.toml
                                          write it where the daemon and `netpolicy plan` read it
  netpolicy init --policy latency first.toml
                                          with this policy in every section
  netpolicy --netns shop init             of another network namespace")]
pub struct Init {
    /// Write to this file instead of standard output.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The policy to write into each section.
    #[arg(long, value_name = "POLICY", default_value_t = PolicyName::None, value_parser = policy)]
    pub policy: PolicyName,
}

/// List every mechanism: whether it can be used on this host, on which devices, which requirement is missing,
/// and the first kernel with it.
///
/// Checks kernel, drivers and capabilities; changes nothing. Some facts show only at a write, for example
/// whether a driver accepts a value.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy support-matrix                of this host and this user
  netpolicy -o json support-matrix | jq -r '.data.mechanisms[] | select(.usable | not).name'")]
pub struct SupportMatrixArgs {}

fn policy(text: &str) -> Result<PolicyName, String> {
    let all = PolicyName::ALL.map(PolicyName::as_str);
    text.parse().map_err(|_| format!("expected {}", all.join(", ")))
}
