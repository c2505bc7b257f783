//! The arguments of `sockets`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use model::PolicyName;

/// Let applications request a policy for their sockets and for themselves.
///
/// In a cgroup where this is enabled, setsockopt(SOL_SOCKET, SO_NETPOLICY), getsockopt and, if the kernel
/// supports it, prctl(PR_SET_NETPOLICY) work as in the kernel patches of 2016; include/netpolicy.h has the
/// numbers. plan, apply, try, verify and doctor honour these requests. Enabling lasts until `disable`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy sockets enable --cgroup system.slice/memcached.service
                                         its programs may request any policy
  netpolicy sockets enable --cgroup user.slice --allow bulk,cpu --allow-user 1000:latency,bulk
                                         which users may request which policies
  netpolicy sockets list                 enabled cgroups, and requests
  netpolicy sockets disable --all")]
pub struct SocketPolicies {
    /// The `sockets` subcommand to run.
    #[command(subcommand)]
    pub command: SocketsCommand,
}

/// The subcommands of `sockets`.
#[derive(Debug, Subcommand)]
pub enum SocketsCommand {
    /// Enable requests in a cgroup. If they are already enabled, only change which policies its programs may
    /// request.
    Enable(SocketsEnable),
    /// Stop answering the requests of a cgroup's programs.
    Disable(SocketsDisable),
    /// List the enabled cgroups, and the requests of their programs.
    List,
}

/// The arguments of `sockets enable`.
#[derive(Debug, Args)]
pub struct SocketsEnable {
    /// The cgroup: a directory, or a path below the root of the unified hierarchy. Requests are enabled in
    /// its descendants, too.
    #[arg(long, value_name = "PATH")]
    pub cgroup: PathBuf,
    /// The policies that any user may request. Processes with CAP_NET_ADMIN may request any policy, and every
    /// user may request `none`.
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', default_values = ["latency", "bulk", "cpu", "power"], value_parser = of_a_socket)]
    pub allow: Vec<PolicyName>,
    /// The policies that one user may request instead of those in --allow. May be given more than once.
    #[arg(long, value_name = "UID:POLICY,...")]
    pub allow_user: Vec<UserChoice>,
    /// Fail, with exit code 6, if prctl is unavailable.
    #[arg(long)]
    pub prctl: bool,
}

/// The arguments of `sockets disable`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SocketsDisable {
    /// Disable requests by the programs of this cgroup.
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// Disable requests by the programs of the cgroup with this id, for a cgroup that was removed.
    #[arg(long, value_name = "N")]
    pub id: Option<u64>,
    /// Disable requests by the programs of every cgroup, and by every process.
    #[arg(long)]
    pub all: bool,
}

/// The policies that one user may request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserChoice {
    /// The user.
    pub uid: u32,
    /// The policies.
    pub policies: Vec<PolicyName>,
}

impl FromStr for UserChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (uid, policies) = text.split_once(':').ok_or("write UID:POLICY,... as in 1000:latency,bulk")?;
        let uid = uid.parse().map_err(|_| format!("`{uid}` is not a user id"))?;
        // -1 is not a valid uid. Kernel: `include/linux/uidgid.h` `INVALID_UID`.
        if uid == u32::MAX {
            return Err(format!("{uid} is not a user id"));
        }
        let policies = policies.split(',').map(of_a_socket).collect::<Result<_, _>>()?;
        Ok(Self { uid, policies })
    }
}

/// Parses a policy for a socket: any policy except `mix`, which is only for devices.
fn of_a_socket(text: &str) -> Result<PolicyName, String> {
    match text.parse::<PolicyName>() {
        Ok(PolicyName::Mix) => Err("`mix` is a policy for devices only".to_owned()),
        Ok(policy) => Ok(policy),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_a_user_may_ask_for_is_a_number_and_policies() {
        let choice = UserChoice { uid: 1000, policies: vec![PolicyName::Latency, PolicyName::Bulk] };
        assert_eq!("1000:latency,bulk".parse(), Ok(choice));
        for wrong in ["latency", "nobody:latency", "1000:", "1000:mix", "4294967295:bulk", "1000:latecny"] {
            assert!(wrong.parse::<UserChoice>().is_err(), "{wrong}");
        }
    }
}
