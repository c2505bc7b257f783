//! Other work on the same CPUs, of known size and for a bounded time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linux::KernelError;
use model::CpuSet;

/// Work and rest together.
const PERIOD: Duration = Duration::from_millis(10);

/// However a run ends, a hog ends by itself after this time.
const LIFE_MAX: Duration = Duration::from_secs(600);

/// What runs beside the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Background {
    /// Threads that compute.
    pub(super) hogs: u32,
    /// CPU that each of them uses, in percent.
    pub(super) duty: u32,
    /// Where they may run.
    pub(super) cpus: CpuSet,
}

/// Threads that compute until this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    stop: Arc<AtomicBool>,
    hogs: Vec<JoinHandle<Result<(), KernelError>>>,
}

impl Background {
    /// Begins the work.
    pub(super) fn start(&self) -> std::io::Result<Running> {
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
            // A hog that could not be placed has not worked; the panic hook has reported one that panicked.
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
