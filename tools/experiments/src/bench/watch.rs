//! Counters of a run, and the placement of its threads.
//!
//! Only the server knows how many events each `epoll_wait` returned. A library preloaded into it counts them,
//! because a tracepoint on system calls would slow every call of the machine and so the run itself. A
//! statically linked server is not counted, and the evidence omits the figure.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use linux::Netns;
use linux::bpf::delivery::Sampler;
use linux::counters::CounterSource;
use linux::cycles::Cycles;
use linux::process::preload::{EpollCalls, EpollCounts};
use linux::process::{identify, write_epoll};
use linux::work::WorkTime;
use load::{Edge, Environment};
use model::evidence::Counters;
use model::{
    CounterRates, CpuPerAnswer, CpuSet, CpuUse, Delivered, EpollId, EpollParams, Evidence, Fd, Nanoseconds,
    NapiId, Pid,
};

use super::layout::Layout;

/// The client's place, and the counters of the server's host.
pub(super) struct Watch<'a> {
    netns: &'a Netns,
    layout: &'a Layout,
    client_epolls: Option<EpollParams>,
    read: Mutex<Read<'a>>,
}

/// The counters, and their values at the edges of the window.
struct Read<'a> {
    source: &'a mut CounterSource,
    delivery: Option<&'a mut Sampler>,
    cycles: Option<&'a mut Cycles>,
    epolls: Option<&'a EpollCounts>,
    work: Option<WorkTime>,
    costs: bool,
    edges: Vec<AtEdge>,
}

/// The values at one edge, and the samples up to it. A value that could not be read is missing, not zero.
struct AtEdge {
    counters: Option<Counters>,
    delivery: Option<Delivered>,
    cycles: Option<u64>,
    epolls: Option<EpollCalls>,
    work: Option<Nanoseconds>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        netns: &'a Netns,
        layout: &'a Layout,
        source: &'a mut CounterSource,
        delivery: Option<&'a mut Sampler>,
        cycles: Option<&'a mut Cycles>,
        epolls: Option<&'a EpollCounts>,
    ) -> Self {
        Self {
            netns,
            layout,
            client_epolls: None,
            read: Mutex::new(Read {
                source,
                delivery,
                cycles,
                epolls,
                work: None,
                costs: false,
                edges: Vec::with_capacity(2),
            }),
        }
    }

    /// Sets the parameters of the client threads' epolls.
    #[must_use]
    pub(super) const fn with_client_epolls(mut self, params: Option<EpollParams>) -> Self {
        self.client_epolls = params;
        self
    }

    /// Also computes the machine's CPU cost per answer: from the time of all CPUs and, if available, from the
    /// run time of the tasks involved.
    #[must_use]
    pub(super) fn with_costs(self, work: Option<WorkTime>) -> Self {
        {
            let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            (read.work, read.costs) = (work, true);
        }
        self
    }

    /// Adds the counts to the evidence of the run. Polls are counted for the whole machine; only those of
    /// `napis` belong to the server.
    pub(super) fn add_to(self, evidence: &mut Evidence, napis: &BTreeSet<NapiId>) {
        let Read { edges, costs, .. } = self.read.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Ok([before, after]) = <[AtEdge; 2]>::try_from(edges) else { return };
        let server: &CpuSet = &self.layout.server;
        if let (Some(before), Some(after)) = (&before.counters, &after.counters) {
            evidence.cpu = CpuUse::between(before, after, server);
            evidence.counters = CounterRates::between(before, after, server);
        }
        if let Some(mut delivered) = after.delivery {
            delivered.napis.retain(|napi| napis.contains(&napi.napi));
            if let Some(rates) = &mut evidence.counters {
                rates.napi_polls = per_second(delivered.total().polls, &delivered);
            }
            let interrupts: u64 = delivered.napis.iter().map(|napi| napi.interrupt.polls).sum();
            let counted = !delivered.timers_hidden && evidence.throughput > 0.0;
            let interrupts = per_second(interrupts, &delivered).filter(|_| counted);
            evidence.interrupts_per_request = interrupts.map(|rate| rate / evidence.throughput);
            evidence.delivered = Some(delivered);
        }
        if let (Some(before), Some(after)) = (&before.epolls, &after.epolls) {
            evidence.epoll_batch = after.batch_since(before);
        }
        let answers = evidence.throughput * evidence.window.as_secs_f64();
        if costs && answers > 0.0 {
            let micros = |span: Nanoseconds| span.as_secs_f64() * 1e6 / answers;
            let busy = before.counters.as_ref().zip(after.counters.as_ref());
            let worked = before.work.zip(after.work);
            evidence.cpu_per_answer = Some(CpuPerAnswer {
                machine_us: busy.and_then(|(before, after)| after.busy_since(before)).map(micros),
                tasks_us: worked.map(|(before, after)| micros(Nanoseconds(after.0.saturating_sub(before.0)))),
            });
        }
        if let (Some(before), Some(after)) = (before.cycles, after.cycles)
            && answers > 0.0
        {
            #[expect(clippy::cast_precision_loss, reason = "cycles of one run, below 2^53")]
            let spent = after.saturating_sub(before) as f64;
            evidence.cycles_per_request = Some(spent / answers);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "polls of one run, far below 2^53")]
fn per_second(polls: u64, delivered: &Delivered) -> Option<f64> {
    let seconds = delivered.interval.as_secs_f64();
    (seconds > 0.0).then(|| polls as f64 / seconds)
}

impl Environment for Watch<'_> {
    fn on_thread_start(&self, thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.netns.enter()?;
        if let Some(cpus) = self.layout.client_cpus(thread) {
            linux::process::pin_this_thread(&cpus)?;
        }
        Ok(())
    }

    fn on_thread_ready(
        &self,
        _thread: u32,
        epoll: BorrowedFd<'_>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if let Some(params) = self.client_epolls {
            let process = identify(Pid(std::process::id()))?;
            write_epoll(&EpollId { process, fd: Fd(epoll.as_raw_fd().unsigned_abs()) }, params)?;
        }
        Ok(())
    }

    fn at_edge(&self, edge: Edge) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let delivery = read.delivery.as_mut().and_then(|sampler| match edge {
            Edge::Opens => {
                sampler.begin();
                None
            }
            Edge::Closes => sampler.end().ok(),
        });
        let epolls = read.epolls.and_then(|counts| {
            if edge == Edge::Opens {
                counts.forget_most().ok()?;
            }
            counts.read().ok()
        });
        let edge = AtEdge {
            counters: read.source.snapshot().ok(),
            delivery,
            cycles: read.cycles.as_mut().and_then(|cycles| cycles.read().ok()),
            epolls,
            work: read.work.as_ref().and_then(|work| work.read().ok()),
        };
        read.edges.push(edge);
    }
}
