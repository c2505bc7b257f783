//! Sends commands in portions, from several threads, and keeps account.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rules::Command;

use super::account::Account;
use super::lane::{Lanes, Way};
use super::portion::Portion;
use super::rule_socket::{RECEIVE_BYTES, RuleSocket};
use crate::error::KernelError;
use crate::netns::Netns;

/// The most workers.
pub const WORKERS_MAX: usize = 64;

/// How many portions wait for a worker before the reader waits for him.
const QUEUE_PORTIONS: usize = 8;

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
    lanes: Lanes,
    workers: Vec<Worker>,
    idle: (Sender<Portion>, Receiver<Portion>),
    /// What waits for [`Loader::release`]; `None` once it has come.
    held: Option<Vec<Held>>,
    held_bytes: usize,
}

/// What is done once the loader is released.
#[derive(Debug)]
enum Held {
    /// This worker sends this.
    Portion(usize, Portion),
    /// All before this is done first.
    Settle,
}

/// One socket, its open portion, and from the second portion on the thread that sends.
#[derive(Debug)]
struct Worker {
    open: Portion,
    /// Until there is a thread.
    socket: Option<RuleSocket>,
    thread: Option<(SyncSender<Job>, JoinHandle<()>)>,
    portions: u64,
}

enum Job {
    Deliver(Portion),
    /// Answer when all before this is done.
    Settle(SyncSender<()>),
}

impl Loader {
    /// A loader into this namespace.
    ///
    /// # Errors
    /// If a socket cannot be had.
    pub fn open(netns: &Netns, options: Options) -> Result<Self, KernelError> {
        let count = options.workers.clamp(1, WORKERS_MAX);
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            let socket = Some(RuleSocket::open(netns, options.receive_bytes)?);
            workers.push(Worker { open: Portion::default(), socket, thread: None, portions: 0 });
        }
        let shared = Arc::new(Shared { stop_at_refusal: options.stop_at_refusal, ..Shared::default() });
        let lanes = Lanes::among(count);
        Ok(Self { shared, lanes, workers, idle: channel(), held: None, held_bytes: 0 })
    }

    /// The same, which sends nothing before it is released.
    ///
    /// # Errors
    /// As [`Loader::open`].
    pub fn open_held(netns: &Netns, options: Options) -> Result<Self, KernelError> {
        Ok(Self { held: Some(Vec::new()), ..Self::open(netns, options)? })
    }

    /// How many bytes are held.
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Sends what was held, and from now on what is pushed. `look` is called between portions.
    ///
    /// # Errors
    /// As [`Loader::push`].
    pub fn release(&mut self, mut look: impl FnMut(&Self)) -> Result<(), KernelError> {
        let alone = self.workers.len() == 1;
        for held in self.held.take().unwrap_or_default() {
            match held {
                // Nothing is read meanwhile: a thread would only have to be woken for each portion.
                Held::Portion(worker, portion) if alone => self.send_from_here(worker, portion)?,
                Held::Portion(worker, portion) => self.send(worker, portion)?,
                Held::Settle => self.settle_sent()?,
            }
            look(self);
        }
        self.held_bytes = 0;
        Ok(())
    }

    /// Takes a command. It is sent with others, later.
    ///
    /// # Errors
    /// What sending failed with, other than refusals.
    pub fn push(&mut self, line: u32, command: &Command) -> Result<(), KernelError> {
        match self.lanes.way(command) {
            Way::Worker(worker) => {
                self.workers[worker].open.push(line, command);
                if self.workers[worker].open.is_full() {
                    self.dispatch(worker)?;
                }
                Ok(())
            }
            Way::Alone => {
                self.settle()?;
                self.workers[0].open.push(line, command);
                self.settle()
            }
        }
    }

    /// Takes the removal of a rule, for the first worker.
    ///
    /// # Errors
    /// As [`Loader::push`].
    pub fn push_removal(&mut self, line: u32, rule: &rules::Filter) -> Result<(), KernelError> {
        self.workers[0].open.push_removal(line, rule);
        if self.workers[0].open.is_full() { self.dispatch(0) } else { Ok(()) }
    }

    /// How many commands have a result.
    pub fn settled(&self) -> u64 {
        self.shared.settled.load(Ordering::Relaxed)
    }

    /// Whether a refusal has ended the loading: what is pushed now is not sent.
    pub fn has_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Sends all that is left, and waits for every result.
    ///
    /// # Errors
    /// As [`Loader::push`].
    pub fn settle(&mut self) -> Result<(), KernelError> {
        for worker in 0..self.workers.len() {
            if !self.workers[worker].open.is_empty() {
                self.dispatch(worker)?;
            }
        }
        if let Some(held) = &mut self.held {
            held.push(Held::Settle);
            return Ok(());
        }
        self.settle_sent()
    }

    /// Waits for the result of all that was handed to the workers.
    fn settle_sent(&self) -> Result<(), KernelError> {
        for worker in &self.workers {
            if let Some((jobs, _)) = &worker.thread {
                let (done, wait) = sync_channel(1);
                // A thread that is gone has left its reason in `failure`.
                if jobs.send(Job::Settle(done)).is_ok() {
                    let _ = wait.recv();
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
        self.release(|_| ())?;
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

    /// Hands the open portion of a worker on.
    fn dispatch(&mut self, worker: usize) -> Result<(), KernelError> {
        let open = &mut self.workers[worker].open;
        // The next one will be about as long.
        let fresh = self.idle.1.try_recv().unwrap_or_else(|_| Portion::with_room(open.bytes()));
        let portion = std::mem::replace(open, fresh);
        if let Some(held) = &mut self.held {
            self.held_bytes += portion.bytes();
            held.push(Held::Portion(worker, portion));
            return Ok(());
        }
        self.send(worker, portion)
    }

    /// Sends a portion over the socket of a worker that has no thread yet.
    fn send_from_here(&mut self, worker: usize, mut portion: Portion) -> Result<(), KernelError> {
        let Some(socket) = &mut self.workers[worker].socket else { return self.send(worker, portion) };
        let result = self.shared.deliver(socket, &mut portion);
        portion.clear();
        let _ = self.idle.0.send(portion);
        result
    }

    /// Has a worker send a portion. The first one is sent from here: a short file needs no thread.
    fn send(&mut self, number: usize, portion: Portion) -> Result<(), KernelError> {
        let worker = &mut self.workers[number];
        worker.portions += 1;
        if worker.portions == 1 && worker.socket.is_some() {
            return self.send_from_here(number, portion);
        }
        if let Some(socket) = worker.socket.take() {
            worker.thread = Some(spawn(socket, Arc::clone(&self.shared), self.idle.0.clone())?);
        }
        let sent = worker.thread.as_ref().is_some_and(|(jobs, _)| jobs.send(Job::Deliver(portion)).is_ok());
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
                Job::Deliver(mut portion) => {
                    if let Err(error) = shared.deliver(&mut socket, &mut portion) {
                        *lock(&shared.failure) = Some(error);
                        return;
                    }
                    portion.clear();
                    let _ = idle.send(portion);
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
    fn deliver(&self, socket: &mut RuleSocket, portion: &mut Portion) -> Result<(), KernelError> {
        let count = u64::try_from(portion.lines().len()).unwrap_or(u64::MAX);
        if self.stopped.load(Ordering::Relaxed) {
            lock(&self.account).unsent.extend_from_slice(portion.lines());
            return Ok(());
        }
        let delivered = socket.deliver(portion)?;
        if self.stop_at_refusal && (delivered.lost || !delivered.refused.is_empty()) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        let mut account = lock(&self.account);
        let refused = u64::try_from(delivered.refused.len()).unwrap_or(u64::MAX);
        if delivered.lost {
            let known: std::collections::BTreeSet<u32> = delivered.refused.iter().map(|r| r.line).collect();
            account.unknown.extend(portion.lines().iter().filter(|line| !known.contains(line)));
        } else {
            account.loaded += count.saturating_sub(refused);
        }
        account.refused.extend(delivered.refused);
        self.settled.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }
}

/// What a thread that panicked left behind is still an account.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
