//! Counting a part of the time, so that it costs the server next to nothing.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use model::Delivered;
use sys::error::KernelError;

use super::counter::DeliveryCounter;
use super::snapshot::between;

/// How long is counted at a stretch: many batches of any application that has traffic worth judging.
const COUNTED: Duration = Duration::from_millis(50);

/// How long is paused between two stretches. Counting all the time costs a server of tiny requests up to 5 % of its
/// throughput, and so does turning the programs on and off ten times a second: each turn patches the kernel's text
/// and stops all CPUs for a moment (`cargo xtask bench counting` measures both). Once a second costs next to nothing.
const PAUSED: Duration = Duration::from_millis(950);

/// The pause before the first stretch: traffic has settled by then, and a short span still gets one stretch.
const LEAD: Duration = Duration::from_millis(200);

/// A [`DeliveryCounter`] that counts a twentieth of the time, on a thread of its own. Between [`Sampler::begin`] and
/// [`Sampler::end`] it alternates between counting and pausing; otherwise it costs nothing.
///
/// What it says is of the time that was counted ([`Delivered::interval`]): rates and shares are those of the whole
/// span as far as the traffic was alike, totals are not. A span shorter than a quarter of a second may have no sample.
#[derive(Debug)]
pub struct Sampler {
    orders: Option<Sender<Order>>,
    samples: Receiver<Result<Delivered, KernelError>>,
    thread: Option<JoinHandle<()>>,
    sampling: bool,
}

#[derive(Debug)]
enum Order {
    Begin,
    End,
}

impl Sampler {
    /// Loads the programs. Nothing is counted yet.
    ///
    /// # Errors
    /// As [`DeliveryCounter::load`].
    pub fn load() -> Result<Self, KernelError> {
        let mut counter = DeliveryCounter::load()?;
        counter.pause();
        let (orders, ordered) = channel();
        let (sampled, samples) = channel();
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
            while let Ok(Order::Begin) = ordered.recv() {
                if sampled.send(sample(&mut counter, &ordered)).is_err() {
                    break;
                }
            }
        });
        let thread = thread.map_err(|error| KernelError::io("a thread that samples deliveries", &error))?;
        Ok(Self { orders: Some(orders), samples, thread: Some(thread), sampling: false })
    }

    /// Begins to sample; restarts if it was begun and not ended.
    pub fn begin(&mut self) {
        if self.sampling {
            drop(self.end());
        }
        self.sampling = true;
        self.order(Order::Begin);
    }

    /// Ends sampling, and says what was counted since [`Sampler::begin`].
    ///
    /// # Errors
    /// The kernel's, if it did not let the programs count on.
    ///
    /// # Panics
    /// If sampling was not begun, which is a fault of the caller.
    pub fn end(&mut self) -> Result<Delivered, KernelError> {
        assert!(std::mem::take(&mut self.sampling), "only what was begun can be ended");
        self.order(Order::End);
        self.samples.recv().expect("a sampler that was begun has a sample")
    }

    fn order(&self, order: Order) {
        // The thread ends only when it is dropped, or by a panic, which `recv` then reports.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.orders = None; // the thread's end of the line
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Counts and pauses in turn until something else is ordered.
fn sample(counter: &mut DeliveryCounter, ordered: &Receiver<Order>) -> Result<Delivered, KernelError> {
    let no_order_within = |span| matches!(ordered.recv_timeout(span), Err(RecvTimeoutError::Timeout));
    let before = counter.snapshot()?;
    let mut pause = LEAD;
    let counted = loop {
        if !no_order_within(pause) {
            break Ok(());
        }
        pause = PAUSED;
        if let Err(error) = counter.resume() {
            break Err(error);
        }
        if !no_order_within(COUNTED) {
            break Ok(());
        }
        counter.pause();
    };
    if counted.is_err() {
        // The order to end is still to come, and must not be taken for one that follows it.
        let _ = ordered.recv();
    }
    let after = counter.snapshot();
    counter.pause();
    counted?;
    Ok(between(&before, &after?))
}
