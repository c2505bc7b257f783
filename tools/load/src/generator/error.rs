//! Why a run could not be made. A run that was made but does not count is not an error: see `Evidence::void`.

use std::io;
use std::net::SocketAddr;

use model::pace::OutOfRange;
use model::{Nanoseconds, OfferedLoad};

use crate::protocol::Malformed;

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An option is out of its range.
    #[error("workload: {0}")]
    Option(#[from] OutOfRange),
    /// The load cannot be offered.
    #[error("load {0:?} cannot be offered: the rate must be above 0 and at most {max}", max = OfferedLoad::PER_SECOND_MAX)]
    Load(OfferedLoad),
    /// The caller's preparation of a client thread failed: its namespace, its CPU.
    #[error("client thread {thread} could not be prepared: {cause}")]
    ThreadStart {
        /// The thread's number.
        thread: u32,
        /// What the caller said.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No thread, no epoll, or a wait on it refused.
    #[error("client thread {thread}: {what}: {cause}")]
    Thread {
        /// The thread's number.
        thread: u32,
        /// What was refused.
        what: &'static str,
        /// The kernel's words.
        #[source]
        cause: io::Error,
    },
    /// The kernel, or a filter of system calls, lacks `epoll_pwait2`: the generator cannot wake when a request is due.
    #[error(
        "client thread {thread}: epoll_pwait2 is missing: the load generator needs Linux 5.11, and no filter of system calls that rejects it"
    )]
    NoExactWait {
        /// The thread's number.
        thread: u32,
    },
    /// A client thread panicked: a fault of the generator or of the caller's preparation.
    #[error("client thread {thread} panicked")]
    Panicked {
        /// The thread's number.
        thread: u32,
    },
    /// The server takes no connection.
    #[error("server {server}: connection {connection} of client thread {thread}: {cause}")]
    Connect {
        /// Its address.
        server: SocketAddr,
        /// The thread's number.
        thread: u32,
        /// The connection's number in the thread.
        connection: usize,
        /// The kernel's words.
        #[source]
        cause: io::Error,
    },
    /// The server refused a key in the load phase.
    #[error("server {server} refused to set key `{key}` before the run: {words}")]
    PreloadRefused {
        /// Its address.
        server: SocketAddr,
        /// The key.
        key: String,
        /// The server's words.
        words: String,
    },
    /// The server stopped answering in the load phase.
    #[error("server {server} answered nothing for {after} while keys were set before the run")]
    PreloadStalled {
        /// Its address.
        server: SocketAddr,
        /// How long was waited.
        after: Nanoseconds,
    },
    /// The server sent an answer without a request.
    #[error("server {server} broke the protocol: {cause}")]
    Malformed {
        /// Its address.
        server: SocketAddr,
        /// What it said.
        #[source]
        cause: Malformed,
    },
    /// A reply that fits no request.
    #[error("server {server} broke the protocol: it replied {reply} to {request}")]
    WrongReply {
        /// Its address.
        server: SocketAddr,
        /// The reply.
        reply: String,
        /// The request, or that there was none.
        request: &'static str,
    },
    /// Connections broke and could not be made again, or broke too often.
    #[error(
        "server {server} is gone: {lost} connections of client thread {thread} were lost, the last: {cause}"
    )]
    ServerLost {
        /// Its address.
        server: SocketAddr,
        /// The thread's number.
        thread: u32,
        /// How many connections it lost.
        lost: u64,
        /// The kernel's words.
        #[source]
        cause: io::Error,
    },
    /// Every client thread was stopped.
    #[error("no client thread measured server {server}")]
    NobodyMeasured {
        /// Its address.
        server: SocketAddr,
    },
}
