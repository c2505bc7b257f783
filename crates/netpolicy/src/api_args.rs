//! Defines the command-line arguments for the daemon's sockets.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap_complete::ArgValueCandidates;

use crate::completing;

/// The sockets on which the daemon serves, and the users that may use them.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sockets")]
pub struct SocketArgs {
    /// Varlink socket (interface io.netpolicy) [default: /run/netpolicy/io.netpolicy, or `io.netpolicy` in the
    /// --state-dir].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Gid of the group whose members may request changes like root.
    #[arg(long, value_name = "GID")]
    pub api_group: Option<u32>,
    /// Socket that serves OpenMetrics over HTTP; '' disables it [default: /run/netpolicy/metrics, or `metrics` in
    /// the --state-dir].
    // clap's PathBuf parser rejects an empty value.
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub metrics_socket: Option<PathBuf>,
    /// Also write OpenMetrics to this file, for a textfile collector; its name ends in .prom.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,
    /// Also serve OpenMetrics over HTTP on this local address, to any local user.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    /// Socket of the attach service, which inspects processes if the daemon lacks CAP_SYS_PTRACE.
    #[arg(long, value_name = "PATH", default_value = daemon::attach_service::SOCKET)]
    pub attach_socket: PathBuf,
}

/// The session of the daemon's API for which this command runs.
#[derive(Clone, Debug, Default, Args)]
pub struct ApiSession {
    /// The daemon's pid.
    #[arg(long, value_name = "PID", hide = true)]
    pub api_session: Option<u32>,
    /// The API method and the client, which the journal records.
    #[arg(long, value_name = "TEXT", hide = true, requires = "api_session")]
    pub api_caller: Option<String>,
    /// Socket of the attach service, which inspects processes if the daemon lacks CAP_SYS_PTRACE.
    #[arg(long, value_name = "PATH", hide = true, requires = "api_session")]
    pub api_attach: Option<PathBuf>,
}

impl From<SocketArgs> for daemon::Sockets {
    fn from(sockets: SocketArgs) -> Self {
        let SocketArgs { socket, api_group, metrics_socket, metrics_file, metrics_listen, attach_socket } =
            sockets;
        Self {
            api: socket,
            api_group,
            metrics: metrics_socket,
            metrics_file,
            metrics_address: metrics_listen,
            attach: attach_socket,
        }
    }
}

/// Show the daemon's state: its requests, how many settings of each are in force, and problems.
///
/// Any user may run it; users other than root see only the requests for their own processes. Exits with 3 if
/// a request is not in force, or there are problems.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Exit with code 0 if the daemon answers at all, for health checks.
    #[arg(long)]
    pub alive: bool,

    /// The daemon's Varlink socket, if it is not the default one.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Withdraw a `set` request for a device, a service or a process.
///
/// Settings that nothing else requests are restored.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy unset device eth0
  netpolicy unset service 6379
  netpolicy unset task 812")]
pub struct Unset {
    /// The target whose request is withdrawn.
    #[command(subcommand)]
    pub target: UnsetTarget,
}

/// The target of `unset`.
#[derive(Debug, clap::Subcommand)]
pub enum UnsetTarget {
    /// A network device.
    Device {
        /// The name.
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(completing::devices))]
        name: String,
    },
    /// A service.
    Service {
        /// The name or port that was passed to `set`.
        #[arg(value_name = "NAME|PORT", add = ArgValueCandidates::new(completing::served))]
        name: String,
    },
    /// A process.
    Task {
        /// The pid.
        #[arg(value_name = "PID", add = ArgValueCandidates::new(completing::processes))]
        pid: u32,
    },
}
