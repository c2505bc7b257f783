//! The measured rows that the recipes argue from.
//!
//! Source: the first submission of "Suspend IRQs during application busy periods" (2024-08), raw results as its
//! authors published them (martinkarsten/irqsuspend, `results/v1`), 10 runs for each row. Server: AMD EPYC 7662,
//! ConnectX-5, 8 receive queues, memcached 1.6.29 with 8 threads on 8 CPUs, 4480 connections at depth 1.

/// One configuration at one load.
struct Row {
    mode: &'static str,
    /// Requests answered in a second.
    per_second: u32,
    /// 99th percentile of the response time in µs, median of the runs.
    p99: u32,
    /// The share of the 8 server CPUs that was not idle, in per cent.
    busy: u32,
    /// Completion interrupts in a second, all queues.
    irqs: u32,
    /// CPU cycles for each request.
    cycles: u32,
}

/// At 800 000 requests a second offered.
mod at_800k {
    use super::Row;

    pub(super) const BASE: Row =
        Row { mode: "base", per_second: 800_057, p99: 2278, busy: 84, irqs: 105_501, cycles: 27_858 };
    pub(super) const DEFER20: Row =
        Row { mode: "defer20", per_second: 799_931, p99: 2481, busy: 89, irqs: 289, cycles: 29_853 };
    pub(super) const DEFER200: Row =
        Row { mode: "defer200", per_second: 800_013, p99: 727, busy: 73, irqs: 5, cycles: 24_654 };
    pub(super) const FULLBUSY: Row =
        Row { mode: "fullbusy", per_second: 799_966, p99: 191, busy: 100, irqs: 0, cycles: 32_737 };
    pub(super) const SUSPEND20: Row =
        Row { mode: "suspend20", per_second: 800_057, p99: 210, busy: 81, irqs: 324, cycles: 27_518 };
    pub(super) const SUSPEND200: Row =
        Row { mode: "suspend200", per_second: 800_079, p99: 361, busy: 67, irqs: 5, cycles: 22_728 };
}

/// In closed loop: as many as the server takes.
mod at_max {
    use super::Row;

    pub(super) const BASE: Row =
        Row { mode: "base", per_second: 982_241, p99: 7317, busy: 99, irqs: 88_105, cycles: 26_556 };
    pub(super) const DEFER200: Row =
        Row { mode: "defer200", per_second: 1_022_960, p99: 6652, busy: 100, irqs: 5, cycles: 25_520 };
    pub(super) const SUSPEND200: Row =
        Row { mode: "suspend200", per_second: 1_128_863, p99: 4383, busy: 100, irqs: 5, cycles: 23_203 };
}

impl Row {
    fn p99_and_busy(&self) -> String {
        format!("{} {} us at {} % CPU", self.mode, self.p99, self.busy)
    }

    fn cycles_and_busy(&self) -> String {
        format!("{} {} cycles a request at {} % CPU", self.mode, self.cycles, self.busy)
    }

    fn throughput_and_irqs(&self) -> String {
        format!("{} {}/s with {} interrupts/s", self.mode, self.per_second, self.irqs)
    }
}

/// Why `latency` is suspend20: nearly the tail of full busy polling, without its idle cost.
pub(super) fn latency() -> String {
    use at_800k::{BASE, DEFER20, FULLBUSY, SUSPEND20};
    format!(
        "p99 at 800k requests/s: {}, where {}, {} and {}",
        SUSPEND20.p99_and_busy(),
        BASE.p99_and_busy(),
        DEFER20.p99_and_busy(),
        FULLBUSY.p99_and_busy()
    )
}

/// Why `cpu` is suspend200: the fewest cycles for each request of all eleven configurations at that load.
pub(super) fn cpu() -> String {
    use at_800k::{BASE, DEFER200, SUSPEND200};
    format!(
        "at 800k requests/s: {} (p99 {} us), where {} and {}",
        SUSPEND200.cycles_and_busy(),
        SUSPEND200.p99,
        DEFER200.cycles_and_busy(),
        BASE.cycles_and_busy()
    )
}

/// Why `bulk` is defer200: it needs nothing of the application, so it serves whatever moves the bytes.
pub(super) fn bulk() -> String {
    use at_max::{BASE, DEFER200, SUSPEND200};
    format!(
        "at saturation: {}, where {}; {}/s of {} need an application that waits in epoll_wait, deferral needs none",
        DEFER200.throughput_and_irqs(),
        BASE.throughput_and_irqs(),
        SUSPEND200.per_second,
        SUSPEND200.mode
    )
}
