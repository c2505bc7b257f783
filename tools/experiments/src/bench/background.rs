//! Runs background work on the same CPUs, with a known load and a time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linux::KernelError;
use model::CpuSet;

/// The length of a cycle of work and rest.
const PERIOD: Duration = Duration::from_millis(10);

/// The time after which a thread of background work exits by itself, however the run ends.
const LIFE_MAX: Duration = Duration::from_secs(600);

/// The background work that runs next to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Background {
    /// Number of computing threads.
    pub(crate) hogs: u32,
    /// CPU use of each thread, in percent.
    pub(crate) duty: u32,
    /// The CPUs on which the threads may run.
    pub(crate) cpus: CpuSet,
}

/// Threads that compute until this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    hogs: Vec<JoinHandle<Result<(), KernelError>>>,
}

impl Background {
    /// Starts the threads.
    pub(crate) fn start(&self) -> std::io::Result<Running> {
        let mut running = Running { stop: Arc::default(), hogs: Vec::new() };
        for number in 0..self.hogs {
            let (stop, cpus, duty) = (Arc::clone(&running.stop), self.cpus.clone(), self.duty);
            let hog = std::thread::Builder::new().name(format!("hog-{number}"));
            running.hogs.push(hog.spawn(move || work(&stop, &cpus, duty))?);
        }
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for hog in self.hogs.drain(..) {
            // Ignore failures: a thread that could not be pinned has not run, and the panic hook has reported
            // a thread that panicked.
            let _ = hog.join();
        }
    }
}

fn work(stop: &AtomicBool, cpus: &CpuSet, duty: u32) -> Result<(), KernelError> {
    linux::process::pin_this_thread(cpus)?;
    let begin = Instant::now();
    let busy = PERIOD * duty / 100;
    while !stop.load(Ordering::Relaxed) && begin.elapsed() < LIFE_MAX {
        let turn = Instant::now();
        while turn.elapsed() < busy {
            std::hint::spin_loop();
        }
        std::thread::sleep(PERIOD.saturating_sub(turn.elapsed()));
    }
    Ok(())
}
