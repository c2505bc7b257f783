//! The command line of `lab`.

use std::ffi::OsString;

use clap::Args;

/// Create two hosts on this machine, one with memcached, for experiments.
///
/// Two unnamed network namespaces, a veth between them whose server end has a NAPI for each queue, and the
/// distribution's memcached. Without a command the lab stays until Ctrl-C; with one, the command runs on the
/// client, and its exit code is returned. The machine's own network is not touched, and nothing is left
/// afterwards, however this ends.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy lab --queues 2 --threads 2    inspect it from another terminal with the printed commands
  netpolicy lab -- memcstat --servers=192.0.2.1
                                          query memcached from the client")]
pub struct LabArgs {
    /// Number of queues of the network devices.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub queues: u32,
    /// Number of memcached worker threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// A command to run on the client, and its arguments.
    #[arg(value_name = "CMD", last = true)]
    pub command: Vec<OsString>,
}
