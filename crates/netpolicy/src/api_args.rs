//! What can be asked of the daemon's sockets on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap_complete::ArgValueCandidates;

use crate::completing;

/// Where the daemon serves, and whom.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sockets")]
pub struct Sockets {
    /// Where it serves its Varlink interface io.netpolicy [default: /run/netpolicy/io.netpolicy; with a --state-dir, in
    /// that].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// A group, by number, whose members may ask for changes as root may.
    #[arg(long, value_name = "GID")]
    pub api_group: Option<u32>,
    /// Where it answers HTTP with OpenMetrics [default: /run/netpolicy/metrics; with a --state-dir, in that]; an empty word
    /// for nowhere.
    // clap's own parser of paths takes no empty word.
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub metrics_socket: Option<PathBuf>,
    /// Write OpenMetrics into this file as well, for a collector of text files; its name ends in .prom.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,
    /// Answer HTTP with OpenMetrics on this address of the machine itself, too.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    /// Where a process with CAP_SYS_PTRACE looks into others for it, if it has not that right itself.
    #[arg(long, value_name = "PATH", default_value = daemon::attach_service::SOCKET)]
    pub attach_socket: PathBuf,
}

impl From<Sockets> for daemon::Sockets {
    fn from(sockets: Sockets) -> Self {
        let Sockets { socket, api_group, metrics_socket, metrics_file, metrics_listen, attach_socket } =
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

/// Show how the daemon stands: what is asked for, what of it is in force, and what is wrong.
///
/// Any user may ask; users other than root see only the requests for their own processes. Exit code 3 if something that is
/// asked for is not in force, or there are problems.
#[derive(Clone, Debug, Args)]
pub struct Status {
    /// Exit code 0 if the daemon answers, whatever it says: for health checks.
    #[arg(long)]
    pub alive: bool,

    /// Its Varlink socket, if it is not the usual one.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Let go what `set` asked of the daemon for a device or a process.
///
/// What nothing else asks for is put back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy unset device eth0
  netpolicy unset task 812")]
pub struct Unset {
    /// What was set.
    #[command(subcommand)]
    pub target: UnsetTarget,
}

/// What `unset` lets go.
#[derive(Debug, clap::Subcommand)]
pub enum UnsetTarget {
    /// A network device.
    Device {
        /// Its name.
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(completing::devices))]
        name: String,
    },
    /// A process.
    Task {
        /// Its pid.
        #[arg(value_name = "PID", add = ArgValueCandidates::new(completing::processes))]
        pid: u32,
    },
}
