//! The daemon's sockets: the API over Varlink, and metrics as OpenMetrics.
//!
//! Read in this order: `wire` (bytes), `method` (methods and parameters), `connection_stats` (limits),
//! `connection` (one client), `job` (slow queries), `metrics` (the metrics page), `client` (the API's
//! client). All sources are non-blocking and run in the event loop of one thread (`thread`), so clients get
//! answers even while the daemon's own thread is busy.
//!
//! Permissions: the kernel identifies the client (`SO_PEERCRED`). Root, and the members of a group that the
//! operator may name, may call every method. Any other user may read the status, but sees only the requests
//! for its own processes. Refusals are answered, counted and logged; the log is rate-limited.

mod client;
mod connection;
mod connection_stats;
mod job;
mod log_budget;
pub mod method;
mod metrics;
mod office;
mod page;
mod text_format;
mod thread;
pub mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use linux::peer::UnixPeer;

pub use client::{CallError, Client};
pub use connection::{CALLS_MAX, IDLE_MAX, OUTPUT_BYTES_MAX, PATIENCE};
pub use connection_stats::{
    CLIENTS_MAX, CLIENTS_OF_OTHERS_MAX, CLIENTS_PER_USER_MAX, ConnectionStats, Tally,
};
pub use job::{JOBS_MAX, QueryHandler};
pub use metrics::open_metrics;
pub use office::OpenError;
pub use thread::Serving;

use self::connection::Connection;
use self::connection_stats::Entrant;
use self::log_budget::Whose;
use self::office::{Office, refused};
use crate::sessions::Sessions;
use crate::socket_file;
pub use crate::socket_file::ListenError;
use crate::{Interest, Ready, Registrar, Shared, Source, Stay};

/// The maximum number of connections to accept in one turn of the event loop.
const ACCEPTS_MAX: usize = 16;

/// The sockets to serve, and the users that may use them.
pub struct ApiOptions {
    /// The Varlink socket.
    pub socket: PathBuf,
    /// A group whose members may call every method, like root.
    pub group: Option<u32>,
    /// A socket that serves metrics over HTTP.
    pub metrics_socket: Option<PathBuf>,
    /// A file to which metrics are written, for a textfile collector.
    pub metrics_file: Option<PathBuf>,
    /// A loopback address that serves metrics over HTTP.
    pub metrics_address: Option<SocketAddr>,
    /// Receives log lines.
    pub log: Box<dyn Fn(&str) + Send>,
    /// The function that answers queries for which the host must be observed.
    pub answer_query: QueryHandler,
    /// The sessions, which run the calls that measure services.
    pub sessions: Sessions,
}

impl fmt::Debug for ApiOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("socket", &self.socket)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// Opens the sockets as sources for an event loop. Dropping the loop closes them. The socket files remain,
/// and the next daemon replaces them.
///
/// # Errors
/// If another daemon serves these sockets, or the kernel refuses to open them.
pub fn open(shared: &Shared, options: ApiOptions) -> Result<Vec<Box<dyn Source>>, OpenError> {
    let ApiOptions {
        socket,
        group,
        metrics_socket,
        metrics_file,
        metrics_address,
        log,
        answer_query,
        sessions,
    } = options;
    let stats = ConnectionStats::new(log);
    // Any user may connect: the peer's credentials decide which calls are answered.
    let listener = listen(&socket, 0o666)?;
    let office = Rc::new(Office {
        shared: shared.clone(),
        stats: Rc::clone(&stats),
        group,
        answer_query,
        jobs: Rc::default(),
        sessions,
    });
    let of_root = listen(&socket_file::roots(&socket), 0o600)?;
    let mut sources: Vec<Box<dyn Source>> = vec![
        Box::new(Listener { listener: of_root, office: Rc::clone(&office) }),
        Box::new(Listener { listener, office }),
    ];
    if let Some(path) = metrics_socket {
        let listener = listen(&path, 0o660)?;
        sources.push(Box::new(page::Pages::on_socket(listener, shared.clone(), Rc::clone(&stats))));
    }
    if let Some(address) = metrics_address {
        let pages = page::Pages::on_address(address, shared.clone(), Rc::clone(&stats))?;
        sources.push(Box::new(pages));
    }
    if let Some(path) = metrics_file {
        sources.push(Box::new(page::TextFile::new(path, shared.clone(), stats)?));
    }
    Ok(sources)
}

/// Creates a non-blocking listener at a path, unless another listener is there.
fn listen(path: &Path, mode: u32) -> Result<UnixListener, OpenError> {
    let listener = socket_file::listen(path, mode)?;
    listener.set_nonblocking(true).map_err(refused(path.display()))?;
    Ok(listener)
}

/// The listener for Varlink clients.
#[derive(Debug)]
struct Listener {
    listener: UnixListener,
    office: Rc<Office>,
}

impl Listener {
    fn accept(&self, registrar: &mut Registrar) -> std::io::Result<()> {
        let (stream, _) = self.listener.accept()?;
        let Ok(peer) = UnixPeer::of(&stream) else { return Ok(()) };
        stream.set_nonblocking(true)?;
        let is_trusted = self.office.trusts(&peer);
        let client = Entrant { owner: peer.owner(), is_trusted };
        let whose = if is_trusted { Whose::Trusted(peer.uid) } else { Whose::User(peer.uid) };
        match self.office.stats.enter(client, whose) {
            Some(place) => {
                registrar.admit(Box::new(Connection::new(stream, peer, Rc::clone(&self.office), place)));
            }
            None => connection::reject(&stream),
        }
        Ok(())
    }
}

impl Source for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn interest(&mut self) -> Interest {
        Interest { read: true, ..Interest::default() }
    }

    fn ready(&mut self, _ready: Ready, registrar: &mut Registrar) -> Stay {
        // Stop if no client is waiting or no descriptors are left; the next turn continues.
        for _ in 0..ACCEPTS_MAX {
            if self.accept(registrar).is_err() {
                break;
            }
        }
        Stay::Stay
    }
}
