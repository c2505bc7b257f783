//! A serving thread: an epoll, its connections, and the loop that answers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use model::Nanoseconds;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::datagrams::Datagrams;
use super::exchange::{Exchange, Wants};
use super::options::{Inbox, ServeError, ServerOptions, Service};
use super::storage::{Storage, Store};

/// Maximum number of events that one wait returns.
const EVENTS_MAX: usize = 256;

/// The epoll event data of the inbox's eventfd.
const BELL: u64 = u64::MAX;

/// The epoll event data of the UDP socket.
const DATAGRAMS: u64 = u64::MAX - 1;

/// A serving thread.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    inbox: &'a Inbox,
    epoll: OwnedFd,
    wait_at_most: Option<Timespec>,
    service: Prepared,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
}

/// A service with the resources that it needs.
#[derive(Debug)]
enum Prepared {
    Exchange {
        request_bytes: u32,
        answer_bytes: u32,
        service_time: Nanoseconds,
        /// Buffer for requests, whose content is ignored.
        buffer: Box<[u8]>,
    },
    Datagrams(Datagrams),
    Storage(Store),
}

/// A connection with its state.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    state: State,
    waits_to_write: bool,
}

#[derive(Debug)]
enum State {
    Exchange(Exchange),
    Storage(Storage),
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        options: &ServerOptions,
        inbox: &'a Inbox,
        datagrams: Option<Datagrams>,
    ) -> Result<Self, ServeError> {
        let refused = |errno| ServeError::kernel("an epoll", errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        epoll::add(&epoll, &inbox.bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(refused)?;
        let service = match &options.service {
            Service::Exchange { request_bytes, answer_bytes, service_time } => Prepared::Exchange {
                request_bytes: *request_bytes,
                answer_bytes: *answer_bytes,
                service_time: *service_time,
                buffer: vec![0; Exchange::READ_BYTES_MAX].into_boxed_slice(),
            },
            Service::Datagrams { .. } => {
                let datagrams = datagrams
                    .ok_or_else(|| ServeError::kernel("a UDP socket", io::ErrorKind::NotConnected))?;
                let data = epoll::EventData::new_u64(DATAGRAMS);
                epoll::add(&epoll, &datagrams.socket, data, epoll::EventFlags::IN).map_err(refused)?;
                Prepared::Datagrams(datagrams)
            }
            Service::Storage { path, writable } => Prepared::Storage(Store::open(path, *writable)?),
        };
        let wait_at_most = options.wait_at_most.map(|span| Timespec {
            tv_sec: i64::try_from(span.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(span.0 % 1_000_000_000).unwrap_or(0),
        });
        Ok(Self { inbox, epoll, wait_at_most, service, connections: Vec::new(), free: Vec::new() })
    }

    /// Serves until `stop` is set and the eventfd is signalled.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<(), ServeError> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        while !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), self.wait_at_most.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::NOSYS) => return Err(ServeError::NoExactWait),
                Err(errno) => return Err(ServeError::kernel("epoll_pwait2", errno)),
            }
            for event in &events {
                let data = event.data;
                if let (DATAGRAMS, Prepared::Datagrams(datagrams)) = (data.u64(), &mut self.service) {
                    datagrams.turn();
                    continue;
                }
                match usize::try_from(data.u64()) {
                    Ok(number) if data.u64() != BELL => self.turn(number),
                    _ => self.inbox.take().into_iter().for_each(|socket| self.adopt(socket)),
                }
            }
        }
        Ok(())
    }

    fn adopt(&mut self, socket: OwnedFd) {
        if self.free.is_empty() && self.connections.len() >= ServerOptions::CONNECTIONS_MAX {
            return;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let data = epoll::EventData::new_u64(number as u64);
        let state = match self.service {
            Prepared::Exchange { .. } => State::Exchange(Exchange::default()),
            Prepared::Storage(_) => State::Storage(Storage::new()),
            Prepared::Datagrams(_) => return self.free.push(number),
        };
        // A connection that the kernel refuses to register is closed, which the client notices.
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            self.connections[number] = Some(Connection { socket, state, waits_to_write: false });
        } else {
            self.free.push(number);
        }
    }

    fn turn(&mut self, number: usize) {
        let Some(connection) = self.connections.get_mut(number).and_then(Option::as_mut) else { return };
        let Connection { socket, state, waits_to_write } = connection;
        let wants = match (state, &mut self.service) {
            (
                State::Exchange(exchange),
                Prepared::Exchange { request_bytes, answer_bytes, service_time, buffer },
            ) => exchange.turn(socket, buffer, (*request_bytes, *answer_bytes), *service_time),
            (State::Storage(storage), Prepared::Storage(store)) => storage.turn(socket, store),
            (State::Exchange(_), Prepared::Storage(_) | Prepared::Datagrams(_))
            | (State::Storage(_), Prepared::Exchange { .. } | Prepared::Datagrams(_)) => {
                unreachable!("a server has one service")
            }
        };
        let must_wait = wants == Wants::Write;
        let mut kept = wants != Wants::End;
        if kept && must_wait != *waits_to_write {
            // Read nothing while an answer is unwritten: otherwise a client could fill the server's
            // memory.
            let flags = if must_wait { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let data = epoll::EventData::new_u64(number as u64);
            kept = epoll::modify(&self.epoll, &*socket, data, flags).is_ok();
            *waits_to_write = must_wait;
        }
        if !kept {
            self.connections[number] = None;
            self.free.push(number);
        }
    }
}
