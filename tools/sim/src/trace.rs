//! Records the sequence of station events, for comparison with a trace of a running kernel.

use std::fmt;

use crate::watch::{Fact, Watch};

/// Records the events for which the kernel also has tracepoints, up to a limit.
#[derive(Clone, Debug)]
pub struct Trace {
    lines: Vec<Line>,
    limit: usize,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The time, in nanoseconds.
    pub at: u64,
    /// The event.
    pub fact: Fact,
}

impl Trace {
    /// Creates a trace of at most this many events.
    pub const fn new(limit: usize) -> Self {
        Self { lines: Vec::new(), limit }
    }

    /// The recorded events.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }
}

impl Watch for Trace {
    fn see(&mut self, now: u64, fact: Fact) {
        let station = match fact {
            Fact::Irq { .. }
            | Fact::Timer { .. }
            | Fact::Polled { .. }
            | Fact::EpollReturned { .. }
            | Fact::Slept { .. }
            | Fact::Woken { .. }
            | Fact::Suspended { .. }
            | Fact::Resumed { .. }
            | Fact::Dropped { .. } => true,
            Fact::Arrived { .. }
            | Fact::Taken { .. }
            | Fact::Round { .. }
            | Fact::Spent { .. }
            | Fact::Sent { .. }
            | Fact::Answered { .. } => false,
        };
        if station && self.lines.len() < self.limit {
            self.lines.push(Line { at: now, fact });
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (micros, nanos) = (self.at / 1000, self.at % 1000);
        write!(f, "{micros:>9}.{nanos:03} ")?;
        match self.fact {
            Fact::Irq { queue, cpu, .. } => write!(f, "irq rx-{queue} cpu {cpu}"),
            Fact::Timer { napi, cpu } => write!(f, "timer napi {napi} cpu {cpu}"),
            Fact::Polled { napi, cpu, work, budget, by } => {
                write!(f, "poll napi {napi} cpu {cpu} work {work}/{budget} by {by:?}")
            }
            Fact::EpollReturned { thread, events } => write!(f, "epoll_wait thread {thread} events {events}"),
            Fact::Slept { thread } => write!(f, "sleep thread {thread}"),
            Fact::Woken { thread, by } => write!(f, "wake thread {thread} by cpu {by}"),
            Fact::Suspended { napi } => write!(f, "suspend napi {napi}"),
            Fact::Resumed { napi } => write!(f, "resume napi {napi}"),
            Fact::Dropped { queue } => write!(f, "drop rx-{queue}"),
            other @ (Fact::Arrived { .. }
            | Fact::Taken { .. }
            | Fact::Round { .. }
            | Fact::Spent { .. }
            | Fact::Sent { .. }
            | Fact::Answered { .. }) => write!(f, "{other:?}"),
        }
    }
}
