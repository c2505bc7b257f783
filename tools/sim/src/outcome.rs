//! Runs a scenario and collects its results.

use crate::histogram::Histogram;
use crate::scenario::{Impossible, SPAN_MAX, Scenario};
use crate::watch::{Class, NoWatch, Watch};
use crate::world::{Tally, World};

/// The length of a run, in nanoseconds of simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Time before counting starts.
    pub warmup: u64,
    /// Counted time.
    pub window: u64,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The counted span, in nanoseconds.
    pub window: u64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Requests sent.
    pub sent: u64,
    /// Answers sent.
    pub answered: u64,
    /// Response times in nanoseconds.
    pub latency: Histogram,
    /// Shares of the CPUs' time, in the order of [`Class::ALL`].
    pub shares: [f64; 5],
    /// Packets taken from rings.
    pub packets: u64,
    /// Packets dropped because a ring was full.
    pub dropped: u64,
    /// Dropped requests, which are retransmitted after a timeout.
    pub retransmitted: u64,
    /// NIC interrupts.
    pub irqs: u64,
    /// Expirations of NAPI timers.
    pub timers: u64,
    /// Calls of the driver's poll.
    pub polls: u64,
    /// Context switches.
    pub switches: u64,
    /// Task migrations between CPUs.
    pub migrations: u64,
    /// Wake-ups of ksoftirqd.
    pub ksoftirqd: u64,
    /// Calls of `epoll_wait` that returned events.
    pub epoll_waits: u64,
    /// Events that `epoll_wait` returned.
    pub epoll_events: u64,
    /// Maximum number of events that one `epoll_wait` returned.
    pub epoll_batch_max: u32,
    /// How often threads went to sleep.
    pub epoll_sleeps: u64,
    /// How often IRQs were suspended.
    pub suspended: u64,
    /// How often suspended IRQs were resumed.
    pub resumed: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Requests due but unsent when the window opened, and when it closed.
    pub backlog: [u64; 2],
}

impl Outcome {
    /// Answers per second.
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    pub fn throughput(&self) -> f64 {
        self.answered as f64 * 1e9 / self.window as f64
    }

    /// The non-idle share of the CPUs' time, in 0..=1.
    pub fn busy(&self) -> f64 {
        1.0 - self.shares[Class::Idle as usize]
    }

    /// Growth of the backlog in requests per second. If it is far from zero, the server cannot keep up.
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    pub fn backlog_growth(&self) -> f64 {
        (self.backlog[1] as f64 - self.backlog[0] as f64) * 1e9 / self.window as f64
    }

    /// Whether the server fell behind: the backlog grew by more than this share of the answers.
    pub fn falls_behind(&self) -> bool {
        const SHARE: f64 = 0.01;
        self.backlog_growth() > SHARE * self.throughput()
    }
}

/// Runs a scenario.
///
/// # Errors
/// [`Impossible`] if no machine can have the scenario's values, or the run would be longer than an hour.
pub fn run(scenario: &Scenario, seed: u64, length: Length) -> Result<Outcome, Impossible> {
    run_watched(scenario, seed, length, NoWatch).map(|(outcome, _)| outcome)
}

/// Runs a scenario with an observer attached from the start.
///
/// # Errors
/// As in [`run`].
pub fn run_watched<W: Watch>(
    scenario: &Scenario,
    seed: u64,
    length: Length,
    watch: W,
) -> Result<(Outcome, W), Impossible> {
    scenario.check()?;
    if length.window == 0 || length.warmup.saturating_add(length.window) > SPAN_MAX.0 {
        return Err(Impossible {
            key: "window",
            beside: &["warmup"],
            reason: format!("it must be positive and at most {SPAN_MAX}"),
        });
    }
    let mut world = World::new(scenario, seed, watch);
    world.run_until(length.warmup);
    let spent_before = spent(&world);
    let backlog_before = world.backlog();
    world.open_window();
    world.run_until(length.warmup + length.window);
    let spent_after = spent(&world);
    let backlog = [backlog_before, world.backlog()];
    let spent: [u64; 5] = std::array::from_fn(|class| spent_after[class] - spent_before[class]);
    let all: u64 = spent.iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "times of a run, below 2^53 ns")]
    let shares = spent.map(|spent| spent as f64 / all as f64);
    let Tally { sent, answered, latency, packets, dropped, retransmitted, irqs, timers, polls, .. } =
        world.tally.clone();
    let tally = &world.tally;
    let outcome = Outcome {
        window: length.window,
        cpus: scenario.hardware.cpus,
        sent,
        answered,
        latency,
        shares,
        packets,
        dropped,
        retransmitted,
        irqs,
        timers,
        polls,
        switches: tally.switches,
        migrations: tally.migrations,
        ksoftirqd: tally.ksoftirqd,
        epoll_waits: tally.epoll_waits,
        epoll_events: tally.epoll_events,
        epoll_batch_max: tally.epoll_batch_max,
        epoll_sleeps: tally.epoll_sleeps,
        suspended: tally.suspended,
        resumed: tally.resumed,
        events: tally.events,
        backlog,
    };
    Ok((outcome, world.watch))
}

fn spent<W>(world: &World<W>) -> [u64; 5] {
    let mut sum = [0; 5];
    for cpu in world.cpus.iter() {
        for (sum, spent) in sum.iter_mut().zip(cpu.spent()) {
            *sum += spent;
        }
    }
    sum
}

impl<W: Watch> World<W> {
    /// Starts counting.
    fn open_window(&mut self) {
        self.tally = Tally::default();
        self.forget_ticks();
        self.recording = true;
    }
}
