//! Defines the command-line arguments of `netpolicy daemon`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::allow_args::AllowArgs;
use crate::api_args::SocketArgs;

/// Keep the policy in force through restarts, hotplug and resets.
///
/// Applies the policy files and stays: it follows devices, queues, drivers and CPUs by netlink, processes and
/// listeners by BPF, and applies the policy to them within milliseconds. Restores settings that another
/// program or a reset has changed, up to a limit. An invalid policy file leaves the previous policy in force.
///
/// Stopping or killing the daemon does not affect packets: everything stays in force, and the next daemon
/// resumes. SIGHUP reloads the policy files, and sets again what was left alone after a rollback.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy daemon                        keep /etc/netpolicy/policy.d in force
  netpolicy daemon --on-stop revert       restore everything on exit
  netpolicy rollback                      restore all that the daemon has set; it manages nothing until SIGHUP")]
pub struct DaemonArgs {
    /// What to do with the settings when the daemon is stopped. SIGKILL always leaves them in force.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_stop: Option<OnStopArg>,
    /// Read the daemon's own settings from this file instead of /etc/netpolicy/daemon.toml.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Changes that are allowed only with an option.
    #[command(flatten)]
    pub allow: AllowArgs,
    /// The sockets on which the daemon serves.
    #[command(flatten)]
    pub sockets: SocketArgs,
}

/// What to do with the daemon's settings when it is terminated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnStopArg {
    /// The settings stay in force.
    #[default]
    Keep,
    /// The settings are restored.
    Revert,
}

impl From<OnStopArg> for daemon::OnStop {
    fn from(on_stop: OnStopArg) -> Self {
        match on_stop {
            OnStopArg::Keep => Self::Keep,
            OnStopArg::Revert => Self::Revert,
        }
    }
}

/// Inspect processes on behalf of the daemon, which then needs no `CAP_SYS_PTRACE`.
#[derive(Clone, Debug, Args)]
pub struct AttachService {
    /// The socket on which the service listens.
    #[arg(long, value_name = "PATH", default_value = daemon::attach_service::SOCKET)]
    pub socket: PathBuf,
    /// Exit with code 0 if a service answers on the socket, for health checks.
    #[arg(long)]
    pub alive: bool,
}
