//! What can be asked of `netpolicy daemon` on the command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::allow_args::Allow;
use crate::api_args::Sockets;

/// Keep the policy in force through restarts, hotplug and resets.
///
/// Applies the policy files and stays: it watches devices, queues, drivers and CPUs by netlink, of
/// processes and listeners by BPF, and sets what they need within milliseconds. What another program, or a reset, takes
/// away is put right again, up to a limit. A policy file that is wrong leaves the policy as it was.
///
/// Ending or killing it changes nothing about packets: everything stays in force, and the next daemon goes on with it.
/// SIGHUP reads the policy files again, and takes up what was left alone after a rollback.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy daemon                        keep /etc/netpolicy/policy.d in force
  netpolicy daemon --on-stop revert       restore everything at the end
  netpolicy rollback                      restore all that the daemon has set; it manages nothing until SIGHUP")]
pub struct Daemon {
    /// What happens to the settings when the daemon is stopped. SIGKILL always leaves them.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_stop: Option<OnStop>,
    /// Read the daemon's own settings from this file instead of /etc/netpolicy/daemon.toml.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What else may be done.
    #[command(flatten)]
    pub allow: Allow,
    /// Where it serves.
    #[command(flatten)]
    pub sockets: Sockets,
}

/// What becomes of the daemon's settings when it is asked to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnStop {
    /// They stay in force.
    #[default]
    Keep,
    /// They are restored.
    Revert,
}

impl From<OnStop> for daemon::OnStop {
    fn from(on_stop: OnStop) -> Self {
        match on_stop {
            OnStop::Keep => Self::Keep,
            OnStop::Revert => Self::Revert,
        }
    }
}

/// Inspect processes on behalf of the daemon, which then needs no `CAP_SYS_PTRACE`.
#[derive(Clone, Debug, Args)]
pub struct AttachService {
    /// Where it is asked.
    #[arg(long, value_name = "PATH", default_value = daemon::attach_service::SOCKET)]
    pub socket: PathBuf,
}
