//! Sends commands in portions, from several threads, and keeps account.

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

/// The most workers.
pub const WORKERS_MAX: usize = 64;

/// The most portions that wait for a worker; then the reader waits.
const QUEUE_PORTIONS: usize = 8;

/// How often the progress of a load is reported.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How rules are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many threads send, each over a socket of its own.
    pub workers: usize,
    /// Whether a refusal ends the loading.
    pub stop_at_refusal: bool,
    /// How many bytes of answers the kernel may keep for each socket.
    pub receive_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { workers: 1, stop_at_refusal: true, receive_bytes: RECEIVE_BYTES }
    }
}

/// What the threads share.
#[derive(Debug, Default)]
struct Shared {
    account: Mutex<Account>,
    /// How many commands have a result.
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

/// One socket, and from the second portion on the thread that sends.
#[derive(Debug)]
struct Worker {
    /// Until there is a thread.
    socket: Option<RuleSocket>,
    thread: Option<(SyncSender<Job>, JoinHandle<()>)>,
    portions: u64,
}

enum Job {
    Deliver(Vec<Portion>),
    /// Answer when all before this is done.
    Settle(SyncSender<()>),
}

impl Loader {
    /// A loader into this namespace.
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

    /// An encoder for a part of so many bytes of a file, which this loader shall [`Loader::send`].
    pub fn encoder(&self, bytes: u64) -> Encoder {
        Encoder::holding(self.workers.len(), bytes)
    }

    /// Sends what was encoded, all of it, and waits for the results. `look` is called meanwhile.
    ///
    /// # Errors
    /// As [`Loader::push`].
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

    /// Has each worker send its queue, beside the others, and waits for them.
    fn send_beside(
        &mut self,
        queues: &mut [Vec<Portion>],
        look: &mut impl FnMut(&Self),
    ) -> Result<(), KernelError> {
        // Nothing is read meanwhile: for one alone, a thread would only have to be woken.
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

    /// Takes a command. It is sent with others, later.
    ///
    /// # Errors
    /// What sending failed with, other than refusals.
    pub fn push(&mut self, line: u32, command: &Command) -> Result<(), KernelError> {
        self.encoder.push(line, command);
        if self.encoder.has_parts() { self.hand_on() } else { Ok(()) }
    }

    /// Takes the removal of a rule, for the first worker.
    ///
    /// # Errors
    /// As [`Loader::push`].
    pub fn push_removal(&mut self, line: u32, rule: &crate::Filter) -> Result<(), KernelError> {
        self.encoder.push_removal(line, rule);
        if self.encoder.has_parts() { self.hand_on() } else { Ok(()) }
    }

    /// How many commands have a result.
    pub fn settled(&self) -> u64 {
        self.shared.settled.load(Ordering::Relaxed)
    }

    /// Ends the loading: what is not sent yet is not sent, and accounted for.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the loading has ended, by a refusal or by [`Loader::stop`]: what is pushed now is not sent.
    pub fn has_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Sends all that is left, and waits for every result.
    ///
    /// # Errors
    /// As [`Loader::push`].
    pub fn settle(&mut self) -> Result<(), KernelError> {
        self.encoder.close_all();
        self.hand_on()?;
        self.settle_sent(&mut |_| ())
    }

    /// Waits for the result of all that was handed to the workers.
    fn settle_sent(&self, look: &mut impl FnMut(&Self)) -> Result<(), KernelError> {
        for worker in &self.workers {
            if let Some((jobs, _)) = &worker.thread {
                let (done, wait) = sync_channel(1);
                // A thread that is gone has left its reason in `failure`.
                if jobs.send(Job::Settle(done)).is_ok() {
                    while wait.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                        look(self);
                    }
                }
            }
        }
        self.failure()
    }

    /// Sends what is left and gives the account.
    ///
    /// # Errors
    /// As [`Loader::push`].
    pub fn finish(mut self) -> Result<Account, KernelError> {
        self.settled_account()
    }

    /// As [`Loader::finish`], from a loader that is then at its end.
    ///
    /// # Errors
    /// As [`Loader::push`].
    pub fn settled_account(&mut self) -> Result<Account, KernelError> {
        self.settle()?;
        for worker in self.workers.drain(..) {
            if let Some((jobs, thread)) = worker.thread {
                drop(jobs);
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
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

    /// Hands full portions on to the workers. The first one of each is sent from here: a short file needs no thread.
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

    /// Sends a portion over the socket of a worker that has no thread yet, and looks after each piece.
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

    /// Has the thread of a worker send portions.
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
) -> Result<(SyncSender<Job>, JoinHandle<()>), KernelError> {
    let (jobs, queue) = sync_channel::<Job>(QUEUE_PORTIONS);
    let body = move || {
        for job in queue {
            match job {
                Job::Deliver(portions) => {
                    for mut portion in portions {
                        if let Err(error) = shared.deliver(&mut socket, &portion) {
                            *lock(&shared.failure) = Some(error);
                            return;
                        }
                        portion.clear();
                        let _ = idle.send(portion);
                    }
                }
                Job::Settle(done) => _ = done.send(()),
            }
        }
    };
    let thread = std::thread::Builder::new().name("tc-rules".to_owned()).spawn(body);
    let thread = thread.map_err(|error| KernelError::io("a thread that sends rules", &error))?;
    Ok((jobs, thread))
}

impl Shared {
    /// Sends a portion and enters what became of it.
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

/// Locks the state, also after a thread with the lock has panicked: the account it left is still valid.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
