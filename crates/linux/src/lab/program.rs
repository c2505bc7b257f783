//! Any server of TCP, as an ordinary process: in the lab, or in a network namespace that is there already.

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
use super::memcached::{READY_PAUSE, Said, end, said};
use crate::process::identify;

/// How long a server may take until it takes connections.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// How long one connection to it may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It ended by itself.
    #[error("the server exited immediately ({status}){}", Said(.words))]
    Ended {
        /// How.
        status: ExitStatus,
        /// What it wrote to standard error.
        words: String,
    },
    /// It runs and takes no connection.
    #[error("the server took no connection at {address} within {READY_WITHIN:?}: {why}{}", Said(.words))]
    Silent {
        /// Where it was asked.
        address: SocketAddr,
        /// What went wrong the last time.
        why: String,
        /// What it wrote to standard error.
        words: String,
    },
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Program {
    child: Child,
    process: ProcessId,
    address: SocketAddr,
    /// As for memcached: the init's end must not come before the child's. None outside of a lab.
    _init: Option<Arc<Init>>,
}

impl Program {
    /// Starts a server on the lab's server, and waits until the client can connect.
    pub(super) fn start_in_lab(
        (server, client): (&Netns, &Netns),
        init: &Arc<Init>,
        cpus: &CpuSet,
        mut command: Command,
        address: SocketAddr,
    ) -> Result<Self, ProgramError> {
        let words = prepare(&mut command)?;
        let spawned = server.run(|| {
            init.adopt_children()?;
            if !cpus.is_empty() {
                let pinned = sys::affinity::set_affinity(0, cpus);
                pinned.map_err(|errno| KernelError::errno(format!("a server on CPUs {cpus}"), errno))?;
            }
            spawn(&mut command)
        })??;
        Self::ready(spawned, client, address, words, Some(Arc::clone(init)))
    }

    /// Starts a server in a network namespace of this host, and waits until it takes connections there. It does not
    /// outlive the thread that starts it.
    ///
    /// # Errors
    /// If it cannot be started, exits immediately or takes no connection in time, with its own words.
    pub fn start_in(netns: &Netns, mut command: Command, address: SocketAddr) -> Result<Self, ProgramError> {
        let words = prepare(&mut command)?;
        // A process that is in the namespace already needs no privilege to enter it.
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

    /// The process, by its number in the namespace that netpolicy runs in.
    pub const fn process(&self) -> ProcessId {
        self.process
    }

    /// Where clients reach it.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Standard input and output closed, standard error kept; Ctrl-C on the terminal is not for it.
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
