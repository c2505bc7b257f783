//! The server of `tcp-rr`, `tcp-stream`, `udp-rr`, `udp-stream` and `storage`: threads with an epoll each,
//! and an accepting thread that distributes connections round robin.
//!
//! It is an ordinary server that knows nothing of delivery modes: they are set from outside, as for
//! any other server. The exception is how long its `epoll_wait` may sleep, which cannot be set from
//! outside and is an option.

mod datagrams;
mod exchange;
mod options;
mod storage;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use model::{ExchangeWorkload, Nanoseconds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use datagrams::Datagrams;
use options::Inbox;
pub use options::{ServeError, ServerOptions, Service};
use worker::Worker;

/// Maximum number of connections waiting to be accepted; the kernel limits it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// How often the accepting thread checks whether it should stop.
const ACCEPT_TURN: Nanoseconds = Nanoseconds::from_millis(250);

impl ServerOptions {
    /// Checks that options are within their ranges and that the file can be opened.
    ///
    /// # Errors
    /// The error that [`serve`] would return.
    pub fn check(&self) -> Result<(), ServeError> {
        let within = |option, value, range: RangeInclusive<u32>| {
            let fits = range.contains(&value);
            if fits { Ok(()) } else { Err(ServeError::Option { option, value, range: format!("{range:?}") }) }
        };
        within("threads", self.threads, 1..=Self::THREADS_MAX)?;
        within("in-a-row", self.in_a_row, 1..=Self::IN_A_ROW_MAX)?;
        let sizes = |request_bytes, answer_bytes, range: RangeInclusive<u32>| {
            within("request-bytes", request_bytes, range.clone())?;
            within("answer-bytes", answer_bytes, range)
        };
        match &self.service {
            Service::Exchange { request_bytes, answer_bytes, .. } => {
                sizes(*request_bytes, *answer_bytes, 1..=ExchangeWorkload::BYTES_MAX)
            }
            Service::Datagrams { request_bytes, answer_bytes, .. } => {
                let (least, most) =
                    (ExchangeWorkload::DATAGRAM_BYTES_MIN, ExchangeWorkload::DATAGRAM_BYTES_MAX);
                sizes(*request_bytes, *answer_bytes, least..=most)
            }
            Service::Storage { path, writable } => storage::Store::open(path, *writable).map(drop),
        }
    }
}

/// The sockets of a server. A client that can connect can also send datagrams.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    /// The UDP sockets, one for each thread, of a server that answers datagrams.
    datagrams: Vec<Datagrams>,
}

impl Listener {
    /// The address that clients use.
    ///
    /// # Errors
    /// [`ServeError::Kernel`].
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        self.tcp.local_addr().map_err(|cause| ServeError::kernel("the address of the listener", cause))
    }
}

/// Listens on an address, with a backlog for connections that arrive at the same time.
///
/// # Errors
/// [`ServeError::Listen`].
pub fn listen_on(address: SocketAddr, options: &ServerOptions) -> Result<Listener, ServeError> {
    let listen_on = || {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        let tcp = TcpListener::from(socket);
        let mut datagrams = Vec::new();
        if let Service::Datagrams { request_bytes, answer_bytes, service_time } = options.service {
            let address = tcp.local_addr()?;
            for _ in 0..options.threads {
                datagrams.push(Datagrams::bind(address, (request_bytes, answer_bytes), service_time)?);
            }
        }
        listen(&tcp, BACKLOG)?;
        Ok(Listener { tcp, datagrams })
    };
    listen_on().map_err(|cause| ServeError::Listen { address, cause })
}

/// Serves until `stop` is set.
///
/// # Errors
/// [`ServeError`] if an option is out of range, a file cannot be opened, or the kernel is out of
/// resources.
pub fn serve(listener: Listener, options: &ServerOptions, stop: &AtomicBool) -> Result<(), ServeError> {
    options.check()?;
    let inboxes = (0..options.threads).map(|_| Inbox::new()).collect::<Result<Vec<_>, _>>()?;
    let mut datagrams = listener.datagrams.into_iter();
    let workers = inboxes.iter().map(|inbox| Worker::new(options, inbox, datagrams.next()));
    let workers = workers.collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut begun = Ok(());
        for (number, worker) in workers.into_iter().enumerate() {
            let named = thread::Builder::new().name(format!("serve-{number}"));
            match named.spawn_scoped(scope, move || worker.run(stop)) {
                Ok(handle) => threads.push(handle),
                Err(cause) => {
                    begun = Err(ServeError::kernel("a new thread", cause));
                    break;
                }
            }
        }
        let ended = begun.and_then(|()| accept(&listener.tcp, &inboxes, options.in_a_row, stop));
        stop.store(true, Ordering::Relaxed);
        inboxes.iter().for_each(Inbox::ring);
        let joined = threads
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.fold(ended, Result::and)
    })
}

/// Accepts connections and distributes them to the threads, `in_a_row` at a time.
fn accept(
    listener: &TcpListener,
    inboxes: &[Inbox],
    in_a_row: u32,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let turn = Timespec { tv_sec: 0, tv_nsec: i64::try_from(ACCEPT_TURN.0).unwrap_or(0) };
    let mut next = inboxes.iter().flat_map(|inbox| (0..in_a_row).map(move |_| inbox)).cycle();
    while !stop.load(Ordering::Relaxed) {
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&turn)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(ServeError::kernel("waiting for connections", errno)),
        }
        match listener.accept() {
            Ok((socket, _)) => {
                let prepared = socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true));
                // Drop a connection that the client has already closed.
                if prepared.is_ok()
                    && let Some(inbox) = next.next()
                {
                    inbox.put(socket.into());
                }
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(ServeError::kernel("accepting a connection", error)),
        }
    }
    Ok(())
}

/// Whether accepting can go on after this error. Kernel: accept(2), "Error handling".
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    [ConnectionAborted, ConnectionReset, Interrupted, WouldBlock].contains(&error.kind())
}
