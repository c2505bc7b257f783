//! Counts deliveries for part of the time, so that the cost is negligible.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use model::Delivered;
use sys::error::KernelError;

use super::counter::DeliveryCounter;
use super::snapshot::between;

/// The length of a sample. It covers many batches of any application with enough traffic to be judged.
const COUNTED: Duration = Duration::from_millis(50);

/// The pause between samples. Counting all the time costs a server of tiny requests up to 5 % of its
/// throughput. Attaching and detaching the programs ten times a second costs as much, because each time the
/// kernel patches its text and stops all CPUs for a moment (`cargo xtask bench counting` measures both). At
/// one sample per second, the cost is negligible.
const PAUSED: Duration = Duration::from_millis(950);

/// The pause before the first sample. It is long enough for traffic to settle, and short enough that a short
/// observation still gets a sample.
const LEAD: Duration = Duration::from_millis(200);

/// A [`DeliveryCounter`] on a separate thread that counts five percent of the time. Between
/// [`DeliverySampler::begin`] and [`DeliverySampler::end`], the sampler alternates between counting and
/// pausing; at other times it costs nothing.
///
/// The result covers only the time that was counted ([`Delivered::interval`]). If the traffic was uniform,
/// rates and shares are representative of the whole observation; totals are not. An observation shorter than
/// a quarter of a second may have no sample.
#[derive(Debug)]
pub struct DeliverySampler {
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

impl DeliverySampler {
    /// Loads the programs without counting.
    ///
    /// # Errors
    /// As for [`DeliveryCounter::load`].
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

    /// Starts sampling. If sampling has already started, ends it and starts again.
    pub fn begin(&mut self) {
        if self.sampling {
            drop(self.end());
        }
        self.sampling = true;
        self.order(Order::Begin);
    }

    /// Ends sampling, and returns the counts since [`DeliverySampler::begin`].
    ///
    /// # Errors
    /// The kernel's error, if counting could not be resumed.
    ///
    /// # Panics
    /// If sampling was not started: a bug in the caller.
    pub fn end(&mut self) -> Result<Delivered, KernelError> {
        assert!(std::mem::take(&mut self.sampling), "no window was started");
        self.order(Order::End);
        self.samples.recv().expect("a sampler that was begun has a sample")
    }

    fn order(&self, order: Order) {
        // The thread exits only on drop or by a panic, which `recv` then reports.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }
}

impl Drop for DeliverySampler {
    fn drop(&mut self) {
        self.orders = None; // closes the channel, which ends the thread
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Alternates between counting and pausing until the next order.
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
        // Sampling stopped early because of an error. Receive the order to end that is still to come, so that
        // it is not mistaken for a later order.
        let _ = ordered.recv();
    }
    let after = counter.snapshot();
    counter.pause();
    counted?;
    Ok(between(&before, &after?))
}
