//! One run: prepares every thread, opens the window for all of them at the same time, and sums
//! their counts.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use model::{Evidence, MemcachedWorkload, Nanoseconds, OfferedLoad, Origin, Pace, Requests, Workload};

use crate::clock::Moment;
use crate::record::Recorder;

use super::error::RunError;
use super::late;
use super::preload::preload;
use super::tally::{Tally, Times};
use super::worker::{Shared, Worker};

/// Delay between the last thread's report and the first due request, so that no thread starts late.
const START_DELAY: Nanoseconds = Nanoseconds::from_millis(5);

/// An edge of the measured window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The window opens.
    Opens,
    /// The window closes.
    Closes,
}

/// Hooks for the parts that the caller provides and the generator must not know: namespaces, CPUs, counters.
pub trait Environment: Sync {
    /// Called first in every client thread, before it creates its sockets: the place to enter a
    /// network namespace and to pin the thread.
    ///
    /// # Errors
    /// Any failure; it ends the run.
    fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let _ = thread;
        Ok(())
    }

    /// Called in every client thread once its connections are established, with the epoll that it
    /// will wait on: the place to set how that epoll waits.
    ///
    /// # Errors
    /// Any failure; it ends the run.
    fn on_thread_ready(
        &self,
        thread: u32,
        epoll: BorrowedFd<'_>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let _ = (thread, epoll);
        Ok(())
    }

    /// Called at both edges of the window, in the thread that started the run: the place to read
    /// counters.
    fn at_edge(&self, edge: Edge) {
        let _ = edge;
    }
}

/// An environment without namespaces, CPUs and counters.
impl Environment for () {}

/// The result of a run, before the caller adds its own counts.
#[derive(Clone, Debug)]
pub struct Run {
    workload: Workload,
    load: OfferedLoad,
    requests: Requests,
    throughput: f64,
    latency: Recorder,
    latency_from_send: Recorder,
    lateness: Recorder,
    generator_lateness: Recorder,
    generator_busy: f64,
    refusal: Option<String>,
}

impl Run {
    /// Converts the run into evidence and decides whether the run counts. Fields that the caller counts
    /// (`cpu`, `counters`, …) are `None` for the caller to fill in.
    pub fn into_evidence(self, label: impl Into<String>, origin: Origin) -> Evidence {
        let mut evidence = Evidence {
            requests: self.requests,
            throughput: self.throughput,
            latency: self.latency.distribution(),
            latency_from_send: Some(self.latency_from_send.distribution()),
            lateness: self.lateness.distribution(),
            generator_lateness: self.generator_lateness.distribution(),
            generator_busy: self.generator_busy,
            ..Evidence::new(label, origin, self.workload, self.load)
        };
        evidence.void = late::void_reason(&evidence);
        evidence
    }

    /// The first error text with which the server refused a request.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }
}

/// Offers a load to a memcached server and measures its answers.
///
/// # Errors
/// As for [`offer`].
pub fn memcached(
    server: SocketAddr,
    workload: &MemcachedWorkload,
    load: OfferedLoad,
    environment: &impl Environment,
) -> Result<Run, RunError> {
    offer(server, &Workload::Memcached(workload.clone()), load, environment)
}

/// Offers a load to a server that speaks the workload's protocol, and measures its answers.
///
/// # Errors
/// [`RunError`] if there is nothing to judge: options out of range, no connection, a server that
/// exited.
pub fn offer(
    server: SocketAddr,
    workload: &Workload,
    load: OfferedLoad,
    environment: &impl Environment,
) -> Result<Run, RunError> {
    workload.check()?;
    if let OfferedLoad::PerSecond(rate) = load
        && !(0.0..=OfferedLoad::PER_SECOND_MAX).contains(&rate)
    {
        return Err(RunError::Load(load));
    }
    let shared = Shared::new(server, workload, load);
    let pace = workload.pace();
    let tallies = thread::scope(|scope| {
        let (ready, readies) = mpsc::channel();
        // Keep `alarm` until the window closes: otherwise threads that finish early would close the channel
        // and end the sleep.
        let (alarm, alarms) = mpsc::channel();
        let mut threads = Vec::new();
        let mut starters = Vec::new();
        let mut refused = None;
        for thread in 0..pace.threads {
            let (starter, start) = mpsc::channel();
            let (shared, ready) = (&shared, ready.clone());
            let alarm = Alarm { shared, sounds: Some(alarm.clone()) };
            let body = move || {
                let tally = client_thread(shared, thread, environment, ready, &start)?;
                alarm.disarm();
                Ok(tally)
            };
            match thread::Builder::new().name(format!("load-{thread}")).spawn_scoped(scope, body) {
                Ok(handle) => threads.push(handle),
                Err(cause) => {
                    refused = Some(RunError::Thread { thread, what: "a new thread", cause });
                    shared.abandon();
                    break;
                }
            }
            starters.push(starter);
        }
        drop(ready);
        // A thread that fails or panics drops its end of the channel without sending.
        let prepared = readies.iter().count();
        if prepared == pace.threads as usize {
            let times = times(&pace, Moment::now().after(START_DELAY));
            for starter in starters {
                // A thread that has exited reports its error when it is joined.
                let _ = starter.send(times);
            }
            if sleep_until(times.open, &alarms) {
                environment.at_edge(Edge::Opens);
                if sleep_until(times.close, &alarms) {
                    environment.at_edge(Edge::Closes);
                }
            }
        } else {
            shared.abandon();
            drop(starters);
        }
        drop(alarm);
        let joined = threads
            .into_iter()
            .zip(0..)
            .map(|(handle, thread)| handle.join().unwrap_or(Err(RunError::Panicked { thread })));
        let tallies: Vec<_> = joined.collect();
        match refused {
            Some(error) => Err(error),
            None => tallies.into_iter().collect::<Result<Vec<_>, _>>(),
        }
    })?;
    let mut tallies = tallies.into_iter().flatten();
    let Some(mut sum) = tallies.next() else { return Err(RunError::NobodyMeasured { server }) };
    for tally in tallies {
        sum.merge(&tally);
    }
    #[expect(clippy::cast_precision_loss, reason = "counts and spans of one run, below 2^53")]
    let (answers, idle) = (sum.answers_in_window as f64, sum.idle.0 as f64);
    #[expect(clippy::cast_precision_loss, reason = "threads times an hour, below 2^53")]
    let all = pace.window.0 as f64 * f64::from(pace.threads);
    Ok(Run {
        workload: workload.clone(),
        load,
        requests: sum.requests,
        throughput: answers / pace.window.as_secs_f64(),
        latency: sum.latency,
        latency_from_send: sum.latency_from_send,
        lateness: sum.lateness,
        generator_lateness: sum.generator_lateness,
        generator_busy: (1.0 - idle / all).clamp(0.0, 1.0),
        refusal: sum.refusal,
    })
}

/// The body of a client thread. Returns `None` if it was stopped.
fn client_thread(
    shared: &Shared<'_>,
    thread: u32,
    environment: &impl Environment,
    ready: mpsc::Sender<()>,
    start: &mpsc::Receiver<Times>,
) -> Result<Option<Tally>, RunError> {
    let turn = shared.turns.of(thread);
    environment.on_thread_start(thread).map_err(|cause| RunError::ThreadStart { thread, cause })?;
    turn.wait();
    let mut worker = Worker::connect(shared, thread)?;
    drop(turn);
    if let Some(memcached) = shared.requests.memcached()
        && memcached.workload.preload
    {
        preload(&mut worker, memcached)?;
    }
    let prepared = environment.on_thread_ready(thread, worker.epoll.as_fd());
    prepared.map_err(|cause| RunError::ThreadStart { thread, cause })?;
    shared.places.enter();
    // The thread that started the run waits until `ready` is dropped.
    let _ = ready.send(());
    drop(ready);
    match start.recv() {
        Ok(times) => worker.offer(times),
        Err(mpsc::RecvError) => Ok(None),
    }
}

fn times(pace: &Pace, begin: Moment) -> Times {
    let open = begin.after(pace.warmup);
    let close = open.after(pace.window);
    Times { begin, open, close, stop: close.after(pace.drain) }
}

/// Sleeps until `moment`. Returns false if a thread failed in the meantime.
fn sleep_until(moment: Moment, alarms: &mpsc::Receiver<()>) -> bool {
    let span = Duration::from_nanos(moment.since(Moment::now()).0);
    alarms.recv_timeout(span) == Err(RecvTimeoutError::Timeout)
}

/// Ends the whole run when a client thread fails or panics: dropping it without `disarm` raises the
/// alarm.
struct Alarm<'a> {
    shared: &'a Shared<'a>,
    sounds: Option<mpsc::Sender<()>>,
}

impl Alarm<'_> {
    fn disarm(mut self) {
        self.sounds = None;
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if let Some(sounds) = self.sounds.take() {
            self.shared.abandon();
            // The receiver is gone if the run has already ended.
            let _ = sounds.send(());
        }
    }
}
