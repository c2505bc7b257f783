//! Starts memcached so that it receives through the NAPI of a wire's near end, with a client at the far end.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use linux::{Netns, process};
use model::{EmptyPolls, EpollId, EpollParams, Nanoseconds, NapiId, ProcessId};
use netlink::netdev::{NapiChange, Netdev};
use rustix::process::setpriority_process;
use rustix::thread::gettid;

use crate::subject::{Subject, eventually};
use crate::wire::{Wire, run};

/// The server's address, which is the near end's.
const SERVER: &str = "192.0.2.1:11211";
const CONNECTIONS: usize = 20;
/// The number of requests that a connection sends before it waits for all their answers: these requests keep
/// the server busy while the client is not.
const DEPTH: usize = 32;
/// The niceness of client and server, so that the delivery of packets does not depend on other load on this
/// machine.
const FIRST: i32 = -19;
/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with one worker thread; dropping this stops it.
pub struct AskedServer {
    memcached: Subject,
    wire: Wire,
    request: Vec<u8>,
}

impl AskedServer {
    pub fn start() -> Result<Self, Failed> {
        Self::start_with(&[])
    }

    /// Starts the server on a new wire, with these variables in its environment.
    pub fn start_with(environment: &[(&'static str, OsString)]) -> Result<Self, Failed> {
        Self::behind(Wire::new(1)?, environment)
    }

    /// Starts the server at the near end of this wire.
    pub fn behind(wire: Wire, environment: &[(&'static str, OsString)]) -> Result<Self, Failed> {
        let memcached = "memcached -u root -t 1 -U 0 -l 192.0.2.1 -p 11211";
        let line = format!("netns exec {} nice -n {FIRST} {memcached}", wire.near);
        // `ip netns exec` and `nice` exec the command, so the pid stays the same.
        let mut command = Command::new("ip");
        command.args(line.split(' ')).envs(environment.iter().map(|(name, value)| (name, value)));
        let memcached = Subject::start(&mut command)?;
        let server = Self { memcached, wire, request: Vec::new() }.asked_for(1);
        eventually("memcached listens", || server.connect().ok())?;
        Ok(server)
    }

    /// Turns on segmentation offload at the client; the packets to the server then bypass the NAPI.
    pub fn with_segmentation_offload(self) -> Result<Self, Failed> {
        run(&format!("ip netns exec {} ethtool -K far0 tso on", self.wire.far))?;
        Ok(self)
    }

    /// Makes each request ask for this many keys, none of which exist. Many keys keep the server busier than
    /// its client.
    #[must_use]
    pub fn asked_for(mut self, keys: usize) -> Self {
        self.request = [&b"get"[..], &b" nothing".repeat(keys), b"\r\n"].concat();
        self
    }

    /// The wire between server and client.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    pub fn process(&self) -> Result<ProcessId, Failed> {
        Ok(process::identify(self.memcached.pid())?)
    }

    /// The NAPIs of the wire's near device.
    pub fn napis(&self) -> Result<Vec<NapiId>, Failed> {
        let napis = self.wire.near()?.run(|| Netdev::open_here()?.napis(None))??;
        Ok(napis.iter().map(|napi| NapiId(napi.id)).collect())
    }

    pub fn set_napis(&self, change: NapiChange) -> Result<(), Failed> {
        let napis = self.napis()?;
        let set = || -> Result<(), String> {
            let mut netdev = Netdev::open_here().map_err(|error| error.to_string())?;
            for napi in &napis {
                netdev.set_napi(*napi, &change).map_err(|refused| format!("napi-set: {refused:?}"))?;
            }
            Ok(())
        };
        Ok(self.wire.near()?.run(set)??)
    }

    /// Configures the NAPIs and the server's epolls as `suspend200` of the IRQ suspension document does.
    pub fn suspend(&self) -> Result<(), Failed> {
        self.suspend_by(Nanoseconds::from_micros(200), Nanoseconds::from_millis(20))
    }

    /// Sets up suspension with other times: `flush` is the time between polls by the timer, `turn` the
    /// longest iteration of the server's loop.
    pub fn suspend_by(&self, flush: Nanoseconds, turn: Nanoseconds) -> Result<(), Failed> {
        self.set_napis(NapiChange {
            defer_hard_irqs: Some(EmptyPolls(100)),
            gro_flush_timeout: Some(flush),
            irq_suspend_timeout: Some(turn),
            ..NapiChange::default()
        })?;
        self.set_epolls(EpollParams {
            busy_poll_usecs: 0,
            busy_poll_budget: 64,
            prefer_busy_poll: true,
            events_only: false,
        })
    }

    /// Detaches the server's epolls from NAPIs: they do not busy-poll.
    pub fn rest(&self) -> Result<(), Failed> {
        self.set_epolls(EpollParams::default())
    }

    fn set_epolls(&self, params: EpollParams) -> Result<(), Failed> {
        let process = self.process()?;
        for epoll in bpf::EpollScanner::load()?.epolls(process.pid)? {
            process::write_epoll(&EpollId { process, fd: epoll.fd }, params)?;
        }
        Ok(())
    }

    /// Sends requests in a closed loop for this long; returns the number of answered requests.
    pub fn ask(&self, span: Duration) -> Result<u64, Failed> {
        let answered = AtomicU64::new(0);
        let since = Instant::now();
        self.ask_while(|| since.elapsed() < span, &answered)?;
        Ok(answered.into_inner())
    }

    /// Sends requests in a closed loop while `so` returns true, and returns the number of answered requests.
    pub fn ask_while(&self, so: impl Fn() -> bool + Send, answered: &AtomicU64) -> Result<(), Failed> {
        let client = || {
            setpriority_process(Some(gettid()), FIRST)?; // Applies to this thread only.
            self.ask_here(so, answered)
        };
        std::thread::scope(|scope| scope.spawn(client).join().map_err(|_| "the client panicked")?)
    }

    fn ask_here(&self, so: impl Fn() -> bool, answered: &AtomicU64) -> Result<(), Failed> {
        let connections: Result<Vec<_>, _> = (0..CONNECTIONS).map(|_| self.connect()).collect();
        let mut connections = connections?;
        let requests = self.request.repeat(DEPTH);
        let mut answers = vec![0; b"END\r\n".len() * DEPTH];
        for connection in &mut connections {
            connection.write_all(&requests)?;
        }
        // One connection at a time receives its answers and sends its next requests, while the other
        // connections keep the server busy.
        for turn in (0..CONNECTIONS).cycle() {
            let connection = &mut connections[turn];
            connection.read_exact(&mut answers)?;
            if !answers.ends_with(b"END\r\n") {
                return Err(format!("memcached says {:?}", String::from_utf8_lossy(&answers)).into());
            }
            answered.fetch_add(u64::try_from(DEPTH)?, Ordering::Relaxed);
            if !so() {
                break;
            }
            connection.write_all(&requests)?;
        }
        Ok(())
    }

    /// Opens a connection from the client's namespace. A socket stays in the namespace in which it was
    /// created.
    fn connect(&self) -> Result<TcpStream, Failed> {
        let server: SocketAddr = SERVER.parse()?;
        let connect = || TcpStream::connect_timeout(&server, PATIENCE);
        let stream = Netns::named(&self.wire.far)?.run(connect)??;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}
