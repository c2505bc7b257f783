//! Holds the complete state of a run: hosts, costs and counts.

use model::KernelVersion;

use super::clients::{ClientHost, Clients};
use super::parts::{Cpu, CpusByState, Napi, Occasion, Packet, Queue, Running, Task, Thread, Topology, Use};
use crate::calendar::Calendar;
use crate::chance::{Draws, Stream};
use crate::histogram::Histogram;
use crate::ids::{CpuId, NapiId, QueueId, TaskId, ThreadId};
use crate::index_vec::IndexVec;
use crate::math::exp;
use crate::scenario::{Processing, Scenario, Waits, nanos};
use crate::slots::Slots;

/// The complete state of a run.
#[derive(Debug)]
pub(crate) struct World<W> {
    pub(crate) now: u64,
    pub(crate) calendar: Calendar,
    pub(crate) chance: Stream,
    pub(crate) slots: Slots,
    pub(crate) topology: Topology,
    pub(crate) standing: CpusByState,
    pub(crate) kernel: KernelVersion,
    pub(crate) list_length: u32,
    pub(crate) costs: Spans,
    pub(crate) cpus: IndexVec<CpuId, Cpu>,
    /// The CPUs' recent utilisation, for the balancing between groups.
    pub(crate) uses: IndexVec<CpuId, Use>,
    pub(crate) queues: IndexVec<QueueId, Queue>,
    pub(crate) napis: IndexVec<NapiId, Napi>,
    /// All tasks, in the order of [`Slots`].
    pub(crate) tasks: IndexVec<TaskId, Task>,
    pub(crate) threads: IndexVec<ThreadId, Thread>,
    pub(crate) fresh_workers: IndexVec<NapiId, bool>,
    /// The CPUs where idle workers of the workqueue last ran; the worker that went idle last is at the end.
    pub(crate) idle_workers: Vec<CpuId>,
    /// Application threads that leave their CPU at the end of their step.
    pub(crate) leaving: IndexVec<ThreadId, Option<Occasion>>,
    pub(crate) clients: Clients,
    pub(crate) client_host: ClientHost,
    pub(crate) processing: Processing,
    pub(crate) waits: Waits,
    pub(crate) defer_hard_irqs: u32,
    pub(crate) gro_flush: u64,
    pub(crate) irq_suspend: u64,
    pub(crate) busy_polls: bool,
    pub(crate) prefer_busy_poll: bool,
    pub(crate) busy_poll_span: u64,
    pub(crate) busy_poll_budget: u32,
    pub(crate) epoll_returns_empty: bool,
    pub(crate) max_events_limit: u32,
    /// Number of frames per request, as a poll's budget counts them.
    pub(crate) request_frames: u32,
    /// The current factor on remote costs, in thousandths.
    pub(crate) contention_permille: u64,
    /// The current share of answers that clients read late.
    pub(crate) slow_share: f64,
    pub(super) slow_base: f64,
    pub(super) slow_load: f64,
    pub(super) contention: f64,
    pub(super) tick_busy: u64,
    pub(super) tick_answered: u64,
    /// Whether response times are recorded.
    pub(crate) recording: bool,
    pub(crate) tally: Tally,
    pub(crate) watch: W,
}

/// Costs in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    pub(crate) client_rtt: u64,
    pub(crate) client_jitter: Varying,
    /// Mean delay of a late answer. In microseconds, because a random draw scales it.
    pub(crate) client_slow: f64,
    pub(crate) client_request: Varying,
    pub(crate) client_slow_spread: f64,
    pub(crate) client_slow_again: f64,
    pub(crate) ack_delay: u64,
    pub(crate) irq: u64,
    pub(crate) timer: u64,
    pub(crate) poll: u64,
    pub(crate) packet: u64,
    pub(super) before_socket_permille: u64,
    pub(crate) packet_first: u64,
    pub(super) ack: u64,
    pub(crate) packet_remote: u64,
    pub(super) in_thread_permille: u64,
    pub(crate) request: Varying,
    pub(crate) request_remote: u64,
    /// Extra work in the application, by batch size, and in the softirq, by the number of requests since the
    /// connection's last answer.
    pub(super) locality: Vec<u32>,
    pub(super) cold: Vec<u32>,
    pub(crate) connections_cool: bool,
    pub(crate) preempted: u64,
    pub(crate) preempted_packet: u64,
    pub(crate) epoll: u64,
    pub(crate) epoll_rescan: u64,
    pub(crate) sleep: u64,
    pub(crate) switch_in: u64,
    pub(crate) wake: u64,
    pub(crate) ipi: u64,
    pub(crate) idle_exit: u64,
    pub(crate) busy_poll: u64,
    pub(crate) resume: u64,
    pub(crate) transmit: u64,
    pub(crate) workqueue_wake: u64,
    pub(crate) workqueue_requeue: f64,
    pub(crate) request_copy: u64,
    pub(crate) response_copy: u64,
    /// The additional work at the clients' host: softirq work for an answer, and copies of a request.
    pub(crate) response_in: u64,
    pub(crate) request_out: u64,
    pub(crate) smt_permille: u64,
    pub(crate) wake_pull: f64,
    pub(crate) remote_llc_permille: u64,
    // Rates, per millisecond.
    pub(crate) group_moves: f64,
    pub(crate) thread_moves: f64,
    pub(crate) active_balance: f64,
    pub(crate) housekeeping: f64,
    pub(crate) housekeeping_span: u64,
    pub(crate) slice: u64,
}

/// A span with an exponentially distributed part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Varying {
    pub(super) fixed: u64,
    /// Mean of the exponentially distributed part, in microseconds.
    pub(super) mean: f64,
}

impl Varying {
    #[inline]
    pub(crate) fn drawn(&self, chance: &mut Stream) -> u64 {
        if self.mean > 0.0 { self.fixed + nanos(self.mean * chance.exponential()) } else { self.fixed }
    }
}

/// Number of bytes up to which a packet costs nothing extra.
const FREE_BYTES: u32 = 1024;

impl Spans {
    pub(super) fn of(scenario: &Scenario) -> Self {
        let costs = &scenario.costs;
        let permille = |factor: f64| nanos(factor);
        let kilobytes = |bytes: u32| f64::from(bytes.saturating_sub(FREE_BYTES)) / 1024.0;
        let varying =
            |mean: f64, spread: f64| Varying { fixed: nanos(mean * (1.0 - spread)), mean: mean * spread };
        Self {
            client_rtt: nanos(costs.client_rtt),
            client_jitter: varying(costs.client_jitter, 1.0),
            client_slow: costs.client_slow,
            client_request: varying(costs.client_request, costs.request_spread),
            client_slow_spread: costs.client_slow_spread,
            client_slow_again: costs.client_slow_again,
            ack_delay: nanos(costs.ack_delay),
            irq: nanos(costs.irq),
            timer: nanos(costs.timer),
            poll: nanos(costs.poll),
            packet: nanos(costs.packet),
            before_socket_permille: permille(costs.before_socket),
            packet_first: nanos(costs.packet_first),
            ack: nanos(costs.ack),
            packet_remote: nanos(costs.packet_remote),
            in_thread_permille: permille(costs.packet_in_thread),
            request: varying(costs.request, costs.request_spread),
            request_remote: nanos(costs.request_remote),
            locality: forgotten(costs.locality, costs.locality_batch),
            cold: forgotten(costs.packet_cold, costs.locality_batch),
            connections_cool: costs.packet_cold > 0.0,
            preempted: nanos(costs.preempted),
            preempted_packet: nanos(costs.preempted_packet),
            epoll: nanos(costs.epoll).max(1),
            epoll_rescan: nanos(costs.epoll_rescan),
            sleep: nanos(costs.sleep),
            switch_in: nanos(costs.switch_in),
            wake: nanos(costs.wake),
            ipi: nanos(costs.ipi),
            idle_exit: nanos(costs.idle_exit),
            busy_poll: nanos(costs.busy_poll).max(1),
            resume: nanos(costs.resume),
            transmit: nanos(costs.transmit),
            workqueue_wake: nanos(costs.workqueue_wake),
            workqueue_requeue: costs.workqueue_requeue,
            request_copy: nanos(costs.copy_in * kilobytes(scenario.application.request_bytes)),
            response_copy: nanos(costs.copy_out * kilobytes(scenario.application.response_bytes)),
            response_in: nanos(costs.copy_in * kilobytes(scenario.application.response_bytes)),
            request_out: nanos(costs.copy_out * kilobytes(scenario.application.request_bytes)),
            smt_permille: permille(costs.smt_slowdown),
            wake_pull: costs.wake_pull,
            remote_llc_permille: permille(costs.remote_llc),
            group_moves: costs.group_moves / 1000.0,
            thread_moves: costs.thread_moves / 1000.0,
            active_balance: costs.active_balance / 1000.0,
            housekeeping: costs.housekeeping / 1000.0,
            housekeeping_span: nanos(costs.housekeeping_span),
            slice: nanos(costs.slice),
        }
    }

    /// Returns the work for a packet until its list is delivered to the sockets: driver, GRO and IP.
    pub(crate) fn before_socket(&self, packet: Packet, running: Running) -> u64 {
        let all = if packet == Packet::ACK { self.ack } else { self.packet };
        self.in_context(all * self.before_socket_permille / 1000, running)
    }

    /// Returns the work for a packet after its list's delivery, without the part that depends on the packet's
    /// connection.
    pub(crate) fn socket_part(&self, packet: Packet) -> u64 {
        let all = if packet == Packet::ACK { self.ack } else { self.packet };
        all - all * self.before_socket_permille / 1000
    }

    /// Returns the cost of packet work, scaled if it runs in a NAPI's thread.
    pub(crate) const fn in_context(&self, cost: u64, running: Running) -> u64 {
        if matches!(running, Running::Kthread) { cost * self.in_thread_permille / 1000 } else { cost }
    }

    /// Extra work per request in a batch of this size.
    pub(crate) fn locality_of(&self, batch: u32) -> u64 {
        u64::from(self.locality[(batch as usize).min(FORGOTTEN_AFTER)])
    }

    /// Extra work for a packet of a connection whose thread has answered this many requests since its last
    /// answer.
    #[inline]
    pub(crate) fn cold_after(&self, requests: u32) -> u64 {
        u64::from(self.cold[(requests as usize).min(FORGOTTEN_AFTER)])
    }
}

/// After this many requests, a connection is completely cold.
const FORGOTTEN_AFTER: usize = 4096;

/// Returns `most (1 - e^(-n / scale))` for every number of requests `n`.
fn forgotten(most: f64, scale: f64) -> Vec<u32> {
    let numbers = 0..=u32::try_from(FORGOTTEN_AFTER).unwrap_or(u32::MAX);
    let of = |n| u32::try_from(nanos(most * (1.0 - exp(-f64::from(n) / scale)))).unwrap_or(u32::MAX);
    numbers.map(of).collect()
}

/// The counts since the window opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) latency: Histogram,
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
    pub(crate) retransmitted: u64,
    pub(crate) irqs: u64,
    pub(crate) timers: u64,
    pub(crate) polls: u64,
    pub(crate) wakeups: u64,
    pub(crate) switches: u64,
    pub(crate) migrations: u64,
    pub(crate) ksoftirqd: u64,
    pub(crate) epoll_waits: u64,
    pub(crate) epoll_events: u64,
    pub(crate) epoll_sleeps: u64,
    pub(crate) epoll_batch_max: u32,
    pub(crate) suspended: u64,
    pub(crate) resumed: u64,
    pub(crate) events: u64,
}
