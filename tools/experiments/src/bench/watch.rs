//! Reads the counters of a run, and places its threads.
//!
//! Only the server knows how many events each `epoll_wait` returned. A library preloaded into the server
//! counts them, because a tracepoint on system calls would slow every call of the machine and so the run
//! itself. With a statically linked server, the events are not counted, and the evidence omits the figure.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use linux::Netns;
use linux::bpf::delivery::DeliverySampler;
use linux::counters::CounterSource;
use linux::cycles::Cycles;
use linux::observe::count_interrupts;
use linux::process::preload::{EpollCalls, EpollCounts};
use linux::process::{identify, write_epoll};
use linux::work::WorkTime;
use load::{Edge, Environment};
use model::evidence::Counters;
use model::{
    CounterRates, CpuSet, CpuUse, Delivered, EpollId, EpollParams, Evidence, Fd, IrqNumber, Nanoseconds,
    NapiId, Pid,
};

use super::layout::Layout;
use crate::machines::message::{Cost, Counted};

/// Where the client runs, and the counters of the server's host.
pub(super) struct Watch<'a> {
    netns: &'a Netns,
    layout: &'a Layout,
    client_epolls: Option<EpollParams>,
    read: Mutex<Read<'a>>,
}

/// The counters, and their values at the edges of the window.
struct Read<'a> {
    meters: Meters<'a>,
    edges: Vec<AtEdge>,
}

/// The counters of a machine.
pub(crate) struct Meters<'a> {
    pub(crate) source: &'a mut CounterSource,
    pub(crate) delivery: Option<&'a mut DeliverySampler>,
    pub(crate) cycles: Option<&'a mut Cycles>,
    pub(crate) epolls: Option<&'a EpollCounts>,
    pub(crate) work: Option<&'a mut WorkTime>,
    /// The interrupts of the server's NAPIs; empty if they have none.
    pub(crate) irqs: Option<&'a BTreeSet<IrqNumber>>,
}

/// The values at one edge, and the samples up to it. A value that could not be read is missing, not zero.
pub(crate) struct AtEdge {
    counters: Option<Counters>,
    delivery: Option<Delivered>,
    cycles: Option<u64>,
    epolls: Option<EpollCalls>,
    work: Option<Nanoseconds>,
    interrupts: Option<u64>,
}

impl<'a> Meters<'a> {
    /// Creates meters that read the kernel's counters, and the polls by context.
    pub(crate) const fn of(source: &'a mut CounterSource, delivery: Option<&'a mut DeliverySampler>) -> Self {
        Self { source, delivery, cycles: None, epolls: None, work: None, irqs: None }
    }

    /// Reads all counters.
    pub(crate) fn read(&mut self, edge: Edge) -> AtEdge {
        let delivery = self.delivery.as_mut().and_then(|sampler| match edge {
            Edge::Opens => {
                sampler.begin();
                None
            }
            Edge::Closes => sampler.end().ok(),
        });
        let epolls = self.epolls.and_then(|counts| {
            if edge == Edge::Opens {
                counts.forget_most().ok()?;
            }
            counts.read().ok()
        });
        AtEdge {
            counters: self.source.snapshot().ok(),
            delivery,
            cycles: self.cycles.as_mut().and_then(|cycles| cycles.read().ok()),
            epolls,
            work: self.work.as_ref().and_then(|work| work.read().ok()),
            interrupts: self.irqs.and_then(|irqs| count_interrupts(irqs).ok()),
        }
    }
}

impl AtEdge {
    /// Returns the counts from an earlier edge to this one. Polls are counted for the whole machine; only
    /// those of `napis` belong to the server.
    pub(crate) fn since(self, before: &Self, cpus: &CpuSet, napis: &BTreeSet<NapiId>) -> Counted {
        let counters = before.counters.as_ref().zip(self.counters.as_ref());
        let mut delivered = self.delivery;
        if let Some(delivered) = &mut delivered {
            delivered.napis.retain(|napi| napis.contains(&napi.napi));
        }
        let epolls = before.epolls.as_ref().zip(self.epolls.as_ref());
        let tasks = before.work.zip(self.work);
        let interrupts = before.interrupts.zip(self.interrupts);
        Counted {
            cpu: counters.and_then(|(before, after)| CpuUse::between(before, after, cpus)),
            counters: counters.and_then(|(before, after)| CounterRates::between(before, after, cpus)),
            delivered,
            interrupts: interrupts.map(|(before, after)| after.saturating_sub(before)),
            epolls: epolls.and_then(|(before, after)| after.batch_since(before)),
            cycles: before.cycles.zip(self.cycles).map(|(before, after)| after.saturating_sub(before)),
            cost: Some(Cost {
                machine: counters.and_then(|(before, after)| after.busy_since(before)),
                tasks: tasks.map(|(before, after)| Nanoseconds(after.0.saturating_sub(before.0))),
            }),
        }
    }
}

impl<'a> Watch<'a> {
    pub(super) fn new(netns: &'a Netns, layout: &'a Layout, meters: Meters<'a>) -> Self {
        let read = Read { meters, edges: Vec::with_capacity(2) };
        Self { netns, layout, client_epolls: None, read: Mutex::new(read) }
    }

    /// Sets the parameters of the client threads' epolls.
    #[must_use]
    pub(super) const fn with_client_epolls(mut self, params: Option<EpollParams>) -> Self {
        self.client_epolls = params;
        self
    }

    /// Adds the counts to the evidence of the run, with the CPU time per answer if `costs` is set.
    pub(super) fn add_to(self, evidence: &mut Evidence, napis: &BTreeSet<NapiId>, costs: bool) {
        let Read { edges, .. } = self.read.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Ok([before, after]) = <[AtEdge; 2]>::try_from(edges) else { return };
        let mut counted = after.since(&before, &self.layout.server, napis);
        if !costs {
            counted.cost = None;
        }
        counted.add_to(evidence);
    }
}

/// Sets the parameters of an epoll of this process.
pub(crate) fn set_own_epoll(
    epoll: BorrowedFd<'_>,
    params: EpollParams,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let process = identify(Pid(std::process::id()))?;
    Ok(write_epoll(&EpollId { process, fd: Fd(epoll.as_raw_fd().unsigned_abs()) }, params)?)
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
        self.client_epolls.map_or(Ok(()), |params| set_own_epoll(epoll, params))
    }

    fn at_edge(&self, edge: Edge) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let values = read.meters.read(edge);
        read.edges.push(values);
    }
}
