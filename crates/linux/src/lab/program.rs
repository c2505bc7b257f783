//! Starts any TCP server as an ordinary process, in a lab or in an existing network namespace.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{CpuSet, Pid, ProcessId};
use rustix::fs::{MemfdFlags, memfd_create};
use sys::error::KernelError;
use sys::netns::Netns;

use super::init::Init;
use super::memcached::{READY_PAUSE, ServerOutput, end, said};
use crate::process::identify;

/// The maximum time until a server accepts connections.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The maximum time for one attempt to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program has exited.
    #[error("the server exited immediately ({status}){}", ServerOutput(.words))]
    Ended {
        /// The exit status.
        status: ExitStatus,
        /// The program's standard error.
        words: String,
    },
    /// The program runs but accepts no connection.
    #[error("the server accepted no connection at {address} within {READY_WITHIN:?}: {why}{}", ServerOutput(.words))]
    Silent {
        /// The address that was tried.
        address: SocketAddr,
        /// The last error.
        why: String,
        /// The program's standard error.
        words: String,
    },
    /// The kernel returned an error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A running server. Dropping this value kills the server.
#[derive(Debug)]
pub struct ServerProgram {
    child: Child,
    process: ProcessId,
    address: SocketAddr,
    /// Declared after the child, so dropped after it, as in `Memcached`. `None` outside a lab.
    _init: Option<Arc<Init>>,
}

impl ServerProgram {
    /// Starts a server on the lab's server host, and waits until the client can connect.
    pub(super) fn start_in_lab(
        (server, client): (&Netns, &Netns),
        init: &Arc<Init>,
        cpus: &CpuSet,
        mut command: Command,
        address: SocketAddr,
    ) -> Result<Self, ProgramError> {
        let words = prepare(&mut command)?;
        let spawned = server.run_apart(|| {
            init.adopt_children()?;
            if !cpus.is_empty() {
                let pinned = sys::affinity::set_affinity(0, cpus);
                pinned.map_err(|errno| KernelError::errno(format!("a server on CPUs {cpus}"), errno))?;
            }
            spawn(&mut command)
        })??;
        Self::ready(spawned, client, address, words, Some(Arc::clone(init)))
    }

    /// Starts a server in a network namespace of this host, and waits until it accepts connections there. The
    /// server ends when the thread that starts it ends.
    ///
    /// # Errors
    /// If the server cannot be started, exits immediately or accepts no connection in time; the error
    /// contains its standard error.
    pub fn start_in(netns: &Netns, mut command: Command, address: SocketAddr) -> Result<Self, ProgramError> {
        let words = prepare(&mut command)?;
        // A process that is already in the namespace needs no privilege to enter it.
        let own = (!Netns::is_current(netns.id())).then(|| netns.as_fd().try_clone_to_owned()).transpose();
        sys::child::bind(&mut command, own.map_err(|error| KernelError::io("a network namespace", &error))?);
        let child = spawn(&mut command)?;
        Self::ready(child, netns, address, words, None)
    }

    fn ready(
        mut child: Child,
        from: &Netns,
        address: SocketAddr,
        mut words: File,
        init: Option<Arc<Init>>,
    ) -> Result<Self, ProgramError> {
        match wait(&mut child, from, address, &mut words) {
            Ok(process) => Ok(Self { child, process, address, _init: init }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// Returns the process, with its pid in netpolicy's pid namespace.
    pub const fn process(&self) -> ProcessId {
        self.process
    }

    /// The address to which clients connect.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ServerProgram {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Prepares a command: closes standard input and output, captures standard error, and keeps Ctrl-C on the
/// terminal away from it.
fn prepare(command: &mut Command) -> Result<File, KernelError> {
    let words = memfd_create("server-stderr", MemfdFlags::CLOEXEC);
    let words = File::from(words.map_err(|errno| KernelError::errno("starting a server", errno))?);
    let stderr = words.try_clone().map_err(|error| KernelError::io("starting a server", &error))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
    Ok(words)
}

fn spawn(command: &mut Command) -> Result<Child, KernelError> {
    let spawned = command.spawn();
    spawned.map_err(|error| KernelError::io(format!("starting {:?}", command.get_program()), &error))
}

fn wait(
    child: &mut Child,
    from: &Netns,
    address: SocketAddr,
    words: &mut File,
) -> Result<ProcessId, ProgramError> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let why = match from.run(|| TcpStream::connect_timeout(&address, CONNECT_WITHIN))? {
            Ok(_) => return Ok(identify(Pid(child.id()))?),
            Err(error) => error.to_string(),
        };
        let ended = child.try_wait().map_err(|error| KernelError::io("waiting for a server", &error))?;
        if let Some(status) = ended {
            return Err(ProgramError::Ended { status, words: said(words) });
        }
        if Instant::now() >= deadline {
            return Err(ProgramError::Silent { address, why, words: said(words) });
        }
        std::thread::sleep(READY_PAUSE);
    }
}
