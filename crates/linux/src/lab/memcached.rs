//! Runs the distribution's unmodified memcached as the lab's server.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{CpuSet, Pid, ProcessId};
use rustix::fs::{MemfdFlags, memfd_create};
use sys::error::KernelError;
use sys::netns::Netns;

use super::init::Init;
use crate::process::identify;

/// memcached's default port.
pub(super) const PORT: u16 = 11211;

/// The maximum time until memcached answers. memcached allocates its memory before it answers.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The interval between attempts to reach memcached.
pub(super) const READY_PAUSE: Duration = Duration::from_millis(5);

/// The maximum number of bytes of memcached's output that are reported if it does not start.
const WORDS_BYTES_MAX: u64 = 2048;

/// Options for starting memcached. All other options of memcached keep their defaults.
#[derive(Clone, Debug)]
pub struct MemcachedOptions {
    /// The number of worker threads (`-t`); each waits on a separate epoll.
    pub threads: u32,
    /// Assigns connections to workers by the NAPI through which the connections arrive, for this many NAPIs
    /// (`-N`); `None` assigns them in turn.
    pub napi_ids: Option<u32>,
    /// The user that memcached switches to (`-u`); it refuses to run as root.
    pub user: String,
    /// The maximum number of connections (`-c`).
    pub connections_max: u32,
    /// Memory for items, in megabytes (`-m`).
    pub memory_mb: u32,
    /// The CPUs on which memcached may run; empty for all.
    pub cpus: CpuSet,
    /// Variables to add to memcached's environment, for preload libraries.
    pub environment: Vec<(String, PathBuf)>,
}

impl Default for MemcachedOptions {
    fn default() -> Self {
        Self {
            threads: 1,
            napi_ids: None,
            user: "nobody".to_owned(),
            connections_max: 4096,
            memory_mb: 256,
            cpus: CpuSet::new(),
            environment: Vec::new(),
        }
    }
}

/// Why memcached could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The program is not installed.
    #[error("memcached is not installed: install the distribution's package `memcached`")]
    NotInstalled,
    /// memcached has exited.
    #[error("memcached exited immediately ({status}){}", ServerOutput(.words))]
    Ended {
        /// The exit status.
        status: ExitStatus,
        /// memcached's standard error.
        words: String,
    },
    /// memcached runs but does not answer.
    #[error("memcached did not answer at {address} within {READY_WITHIN:?}: {why}{}", ServerOutput(.words))]
    Silent {
        /// The address that was tried.
        address: SocketAddr,
        /// The last error.
        why: String,
        /// memcached's standard error.
        words: String,
    },
    /// The kernel returned an error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

pub(super) struct ServerOutput<'a>(pub(super) &'a str);

impl std::fmt::Display for ServerOutput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; it said: {}", self.0) }
    }
}

/// A running memcached. Dropping this value kills memcached.
#[derive(Debug)]
pub struct Memcached {
    child: Child,
    process: ProcessId,
    address: SocketAddr,
    version: String,
    /// Declared after the child, and so dropped after it: the init exits only when every process of its
    /// namespace has exited and was waited for.
    _init: Arc<Init>,
}

impl Memcached {
    pub(super) fn start(
        (server, client): (&Netns, &Netns),
        init: &Arc<Init>,
        address: SocketAddr,
        options: &MemcachedOptions,
    ) -> Result<Self, ServerError> {
        let io = |error: std::io::Error| KernelError::io("starting memcached", &error);
        // Use a memory file: a pipe would have no reader while memcached runs, so memcached would block once
        // the pipe is full.
        let words = memfd_create("memcached-stderr", MemfdFlags::CLOEXEC);
        let mut words = File::from(words.map_err(|errno| KernelError::errno("starting memcached", errno))?);
        let stderr = words.try_clone().map_err(io)?;
        // Use a separate thread: memcached inherits the thread's namespace and CPUs, while the caller's
        // thread keeps its own.
        let spawned = server.run_apart(|| {
            init.adopt_children()?;
            if !options.cpus.is_empty() {
                let pinned = sys::affinity::set_affinity(0, &options.cpus);
                pinned.map_err(|errno| {
                    KernelError::errno(format!("memcached on CPUs {}", options.cpus), errno)
                })?;
            }
            Ok::<_, KernelError>(command(address, options, stderr).spawn())
        })??;
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ServerError::NotInstalled);
            }
            Err(error) => return Err(io(error).into()),
        };
        match ready(&mut child, client, address, &mut words) {
            Ok((process, version)) => Ok(Self { child, process, address, version, _init: Arc::clone(init) }),
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

    /// The program's name and version, as it reports them, such as `memcached 1.6.18`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the exit status if memcached has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

pub(super) fn end(child: &mut Child) {
    // `kill` and `wait` fail only for a process that has exited and was waited for.
    let _ = child.kill();
    let _ = child.wait();
}

fn command(address: SocketAddr, options: &MemcachedOptions, stderr: File) -> Command {
    let mut command = Command::new("memcached");
    command.args(["-l", &address.ip().to_string(), "-p", &address.port().to_string(), "-U", "0"]);
    command.args(["-t", &options.threads.to_string(), "-u", &options.user]);
    command.args(["-c", &options.connections_max.to_string(), "-m", &options.memory_mb.to_string()]);
    if let Some(napis) = options.napi_ids {
        command.args(["-N", &napis.to_string()]);
    }
    command.envs(options.environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // Ctrl-C on the terminal must reach only the process that holds the lab, which then ends memcached.
    command.process_group(0);
    command
}

/// Sends requests to memcached from the client's side until it answers.
fn ready(
    child: &mut Child,
    client: &Netns,
    address: SocketAddr,
    words: &mut File,
) -> Result<(ProcessId, String), ServerError> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let why = match client.run(|| ask_version(&address))? {
            Ok(version) => return Ok((identify(Pid(child.id()))?, version)),
            Err(error) => error.to_string(),
        };
        let ended = child.try_wait().map_err(|error| KernelError::io("waiting for memcached", &error))?;
        if let Some(status) = ended {
            return Err(ServerError::Ended { status, words: said(words) });
        }
        if Instant::now() >= deadline {
            return Err(ServerError::Silent { address, why, words: said(words) });
        }
        std::thread::sleep(READY_PAUSE);
    }
}

fn ask_version(address: &SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(address, Duration::from_secs(1))?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.write_all(b"version\r\n")?;
    let mut answer = String::new();
    BufReader::new(connection.take(256)).read_line(&mut answer)?;
    match answer.trim_end().strip_prefix("VERSION ") {
        Some(version) => Ok(format!("memcached {version}")),
        None => Err(std::io::Error::other(format!(
            "it answered `{}` to the command `version`",
            answer.trim_end()
        ))),
    }
}

pub(super) fn said(words: &mut File) -> String {
    let mut bytes = Vec::new();
    // If the output cannot be read, the error omits it.
    let _ = words.rewind().and_then(|()| words.take(WORDS_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).trim().replace('\n', "; ")
}
