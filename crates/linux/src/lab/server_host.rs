//! Runs servers in an existing network namespace of this machine, for clients on other machines.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use model::CpuSet;
use sys::error::KernelError;
use sys::netns::Netns;

use super::init::Init;
use super::memcached::{Memcached, MemcachedOptions, ServerError};
use super::program::{ProgramError, ServerProgram};
use super::scratch::Scratch;

/// A network namespace for servers that end with this process, as in a lab.
#[derive(Debug)]
pub struct ServerHost {
    init: Arc<Init>,
    netns: Netns,
    scratch: Scratch,
}

impl ServerHost {
    /// Prepares this network namespace for servers.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN.
    pub fn new(netns: Netns) -> Result<Self, KernelError> {
        Ok(Self { init: Arc::new(Init::start(&netns)?), netns, scratch: Scratch::new()? })
    }

    /// The network namespace.
    pub const fn netns(&self) -> &Netns {
        &self.netns
    }

    /// A directory for files that disappear with this process.
    pub fn scratch(&self) -> PathBuf {
        self.scratch.path()
    }

    /// Starts memcached, and waits until it answers.
    ///
    /// # Errors
    /// If memcached is not installed, exits immediately or does not answer in time; the error contains its
    /// standard error.
    pub fn start_memcached(
        &self,
        address: SocketAddr,
        options: &MemcachedOptions,
    ) -> Result<Memcached, ServerError> {
        Memcached::start((&self.netns, &self.netns), &self.init, address, options)
    }

    /// Starts a server that may run on these CPUs, and waits until it accepts connections.
    ///
    /// # Errors
    /// If the server cannot be started, exits immediately or accepts no connection in time; the error
    /// contains its standard error.
    pub fn start_program(
        &self,
        cpus: &CpuSet,
        command: Command,
        address: SocketAddr,
    ) -> Result<ServerProgram, ProgramError> {
        ServerProgram::start_in_lab((&self.netns, &self.netns), &self.init, cpus, command, address)
    }
}
