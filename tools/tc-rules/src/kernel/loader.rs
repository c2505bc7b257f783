//! Sends commands in portions, from several threads, and accounts for the results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Command;
use sys::error::KernelError;
use sys::netns::Netns;

use super::account::Account;
use super::encoder::{Encoder, Part};
use super::portion::{Piece, Portion};
use super::rule_socket::{RECEIVE_BYTES, RuleSocket};

/// Maximum number of workers.
pub const WORKERS_MAX: usize = 64;

/// Maximum number of portions queued for a worker; then the reader waits.
const QUEUE_PORTIONS: usize = 8;

/// Interval of progress reports.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Options for loading rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of sending threads, each with its own socket.
    pub workers: usize,
    /// Whether a refusal ends the load.
    pub stop_at_refusal: bool,
    /// Size of each socket's receive buffer, in bytes.
    pub receive_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { workers: 1, stop_at_refusal: true, receive_bytes: RECEIVE_BYTES }
    }
}

/// The state shared between threads.
#[derive(Debug, Default)]
struct Shared {
    account: Mutex<Account>,
    /// The number of commands that have a result.
    settled: AtomicU64,
    stopped: AtomicBool,
    stop_at_refusal: bool,
    failure: Mutex<Option<KernelError>>,
}

/// Loads rules.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    encoder: Encoder,
    workers: Vec<Worker>,
    idle: (Sender<Portion>, Receiver<Portion>),
}

/// A socket and, from the second portion on, the thread that sends.
#[derive(Debug)]
struct Worker {
    /// The socket; `None` while the thread owns it.
    socket: Option<RuleSocket>,
    thread: Option<(SyncSender<Job>, Sending)>,
    portions: u64,
}

/// A thread that returns its socket when it ends, unless sending has failed.
type Sending = JoinHandle<Option<RuleSocket>>;

enum Job {
    Deliver(Vec<Portion>),
    /// Sends a message on this channel when all earlier jobs are done.
    Settle(SyncSender<()>),
}

impl Loader {
    /// Creates a loader for this namespace.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn open(netns: &Netns, options: Options) -> Result<Self, KernelError> {
        let count = options.workers.clamp(1, WORKERS_MAX);
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            let socket = Some(RuleSocket::open(netns, options.receive_bytes)?);
            workers.push(Worker { socket, thread: None, portions: 0 });
        }
        let shared = Arc::new(Shared { stop_at_refusal: options.stop_at_refusal, ..Shared::default() });
        Ok(Self { shared, encoder: Encoder::among(count), workers, idle: channel() })
    }

    /// Creates an encoder for a part of a file of this length, to be passed to [`Loader::send`].
    pub fn encoder(&self, bytes: u64) -> Encoder {
        Encoder::holding(self.workers.len(), bytes)
    }

    /// Sends everything that was encoded and waits for the results, calling `look` periodically.
    ///
    /// # Errors
    /// As for [`Loader::push`].
    pub fn send(&mut self, mut encoded: Encoder, mut look: impl FnMut(&Self)) -> Result<(), KernelError> {
        self.settle()?;
        encoded.close_all();
        let mut queues: Vec<Vec<Portion>> = self.workers.iter().map(|_| Vec::new()).collect();
        for part in encoded.take().into_iter().chain([Part::Settle]) {
            match part {
                Part::Send(worker, portion) => queues[worker].push(portion),
                Part::Settle => self.send_beside(&mut queues, &mut look)?,
            }
        }
        Ok(())
    }

    /// Lets the workers send their queues concurrently, and waits for all workers.
    fn send_beside(
        &mut self,
        queues: &mut [Vec<Portion>],
        look: &mut impl FnMut(&Self),
    ) -> Result<(), KernelError> {
        // With a single queue, send from this thread: it has nothing else to do, and waking another thread
        // would only cost time.
        let alone = queues.iter().filter(|queue| !queue.is_empty()).count() <= 1;
        for (worker, queue) in queues.iter_mut().enumerate().filter(|(_, queue)| !queue.is_empty()) {
            if alone && self.workers[worker].socket.is_some() {
                for portion in queue.drain(..) {
                    self.send_from_here(worker, &portion, look)?;
                }
            } else {
                self.send_beside_us(worker, std::mem::take(queue))?;
            }
        }
        self.settle_sent(look)
    }

    /// Queues a command, which is sent later together with others.
    ///
    /// # Errors
    /// Any failure to send, other than refusals.
    pub fn push(&mut self, line: u32, command: &Command) -> Result<(), KernelError> {
        self.encoder.push(line, command);
        if self.encoder.has_parts() { self.hand_on() } else { Ok(()) }
    }

    /// Queues the removal of a rule, for the first worker.
    ///
    /// # Errors
    /// As for [`Loader::push`].
    pub fn push_removal(&mut self, line: u32, rule: &crate::Filter) -> Result<(), KernelError> {
        self.encoder.push_removal(line, rule);
        if self.encoder.has_parts() { self.hand_on() } else { Ok(()) }
    }

    /// The number of commands with a result.
    pub fn settled(&self) -> u64 {
        self.shared.settled.load(Ordering::Relaxed)
    }

    /// Stops the load: commands that have not been sent are only recorded as unsent.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the load has stopped, by a refusal or by [`Loader::stop`]: later commands are not sent.
    pub fn has_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Sends all remaining commands, and waits for every result.
    ///
    /// # Errors
    /// As for [`Loader::push`].
    pub fn settle(&mut self) -> Result<(), KernelError> {
        self.encoder.close_all();
        self.hand_on()?;
        self.settle_sent(&mut |_| ())?;
        self.take_sockets_back();
        Ok(())
    }

    /// Ends idle threads, so that the next portion is sent from this thread. If a load settles every few
    /// lines, for example because lines for tc are in between, waking a thread takes longer than sending the
    /// lines.
    fn take_sockets_back(&mut self) {
        for worker in &mut self.workers {
            worker.portions = 0;
            let Some((jobs, thread)) = worker.thread.take() else { continue };
            drop(jobs);
            match thread.join() {
                Ok(socket) => worker.socket = socket,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    }

    /// Waits for the results of everything passed to the workers.
    fn settle_sent(&self, look: &mut impl FnMut(&Self)) -> Result<(), KernelError> {
        for worker in &self.workers {
            if let Some((jobs, _)) = &worker.thread {
                let (done, wait) = sync_channel(1);
                // A thread that has exited left its error in `failure`.
                if jobs.send(Job::Settle(done)).is_ok() {
                    while wait.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                        look(self);
                    }
                }
            }
        }
        self.failure()
    }

    /// Sends the rest and returns the account.
    ///
    /// # Errors
    /// As for [`Loader::push`].
    pub fn finish(mut self) -> Result<Account, KernelError> {
        self.settled_account()
    }

    /// Sends the rest and returns the account, like [`Loader::finish`]; do not use the loader afterwards.
    ///
    /// # Errors
    /// As for [`Loader::push`].
    pub fn settled_account(&mut self) -> Result<Account, KernelError> {
        self.settle()?;
        self.workers.clear();
        let mut account = lock(&self.shared.account);
        let mut account = std::mem::take(&mut *account);
        account.sort();
        Ok(account)
    }

    fn failure(&self) -> Result<(), KernelError> {
        match lock(&self.shared.failure).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Passes full portions to the workers. The first portion of each worker is sent from this thread, so
    /// that a short file needs no other thread.
    fn hand_on(&mut self) -> Result<(), KernelError> {
        for part in self.encoder.take() {
            match part {
                Part::Send(number, portion) => {
                    let worker = &mut self.workers[number];
                    worker.portions += 1;
                    if worker.portions == 1 && worker.socket.is_some() {
                        self.send_from_here(number, &portion, &mut |_| ())?;
                    } else {
                        self.send_beside_us(number, vec![portion])?;
                    }
                }
                Part::Settle => self.settle_sent(&mut |_| ())?,
            }
        }
        while let Ok(portion) = self.idle.1.try_recv() {
            self.encoder.give_back(portion);
        }
        Ok(())
    }

    /// Sends a portion from this thread over the socket of a worker without a thread, and checks the result
    /// of each piece.
    fn send_from_here(
        &mut self,
        worker: usize,
        portion: &Portion,
        look: &mut impl FnMut(&Self),
    ) -> Result<(), KernelError> {
        let Some(mut socket) = self.workers[worker].socket.take() else { return self.failure() };
        let sent = portion.pieces().try_for_each(|piece| {
            self.shared.deliver_piece(&mut socket, piece)?;
            look(self);
            Ok(())
        });
        self.workers[worker].socket = Some(socket);
        sent
    }

    /// Lets the thread of a worker send portions.
    fn send_beside_us(&mut self, number: usize, portions: Vec<Portion>) -> Result<(), KernelError> {
        let worker = &mut self.workers[number];
        if let Some(socket) = worker.socket.take() {
            worker.thread = Some(spawn(socket, Arc::clone(&self.shared), self.idle.0.clone())?);
        }
        let sent = worker.thread.as_ref().is_some_and(|(jobs, _)| jobs.send(Job::Deliver(portions)).is_ok());
        if sent { Ok(()) } else { self.failure() }
    }
}

fn spawn(
    mut socket: RuleSocket,
    shared: Arc<Shared>,
    idle: Sender<Portion>,
) -> Result<(SyncSender<Job>, Sending), KernelError> {
    let (jobs, queue) = sync_channel::<Job>(QUEUE_PORTIONS);
    let body = move || {
        for job in queue {
            match job {
                Job::Deliver(portions) => {
                    for mut portion in portions {
                        if let Err(error) = shared.deliver(&mut socket, &portion) {
                            *lock(&shared.failure) = Some(error);
                            return None;
                        }
                        portion.clear();
                        let _ = idle.send(portion);
                    }
                }
                Job::Settle(done) => _ = done.send(()),
            }
        }
        Some(socket)
    };
    let thread = std::thread::Builder::new().name("tc-rules".to_owned()).spawn(body);
    let thread = thread.map_err(|error| KernelError::io("a thread that sends rules", &error))?;
    Ok((jobs, thread))
}

impl Shared {
    /// Sends a portion and accounts for the results.
    fn deliver(&self, socket: &mut RuleSocket, portion: &Portion) -> Result<(), KernelError> {
        portion.pieces().try_for_each(|piece| self.deliver_piece(socket, piece))
    }

    fn deliver_piece(&self, socket: &mut RuleSocket, piece: Piece<'_>) -> Result<(), KernelError> {
        let count = u64::try_from(piece.lines().len()).unwrap_or(u64::MAX);
        if self.stopped.load(Ordering::Relaxed) {
            lock(&self.account).unsent.extend_from_slice(piece.lines());
            return Ok(());
        }
        let delivered = socket.deliver(piece, self.stop_at_refusal)?;
        let count = count.saturating_sub(u64::try_from(delivered.unsent.len()).unwrap_or(u64::MAX));
        if self.stop_at_refusal && (delivered.lost || !delivered.refused.is_empty()) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        let mut account = lock(&self.account);
        let refused = u64::try_from(delivered.refused.len()).unwrap_or(u64::MAX);
        if delivered.lost {
            let refused = delivered.refused.iter().map(|refused| refused.line);
            let known: std::collections::BTreeSet<u32> =
                refused.chain(delivered.unsent.iter().copied()).collect();
            account.unknown.extend(piece.lines().iter().filter(|line| !known.contains(line)));
        } else {
            account.loaded += count.saturating_sub(refused);
        }
        account.refused.extend(delivered.refused);
        account.unsent.extend(delivered.unsent);
        self.settled.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }
}

/// Locks the state, even if a thread panicked while holding the lock, because the account is still valid.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
