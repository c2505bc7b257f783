//! Represents one sample of a host: the packets per second that each context delivered since the previous
//! sample.

use latency::live::{Estimate, Measured, MeasuredOutcome};
use model::delivered::PollCounts;
use model::evidence::{Counters, CpuTicks};
use model::host::Napi;
use model::{Delivered, DeliveryMode, Host, NapiId, Threading};
use schemars::JsonSchema;
use serde::Serialize;

/// One sample.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub(crate) struct Reading {
    /// How long packets were counted, in seconds. This is shorter than the time since the previous sample.
    pub(crate) counted_seconds: f64,
    /// Every receive queue that has a NAPI, and every NAPI without a queue that delivered packets.
    pub(crate) queues: Vec<QueueLine>,
    /// Every process that has epolls with sockets on these NAPIs, or that polled one of the NAPIs.
    pub(crate) processes: Vec<ProcessLine>,
    /// Every measured service of the policy files.
    pub(crate) services: Vec<ServiceLine>,
    /// Every online CPU.
    pub(crate) cpus: Vec<CpuLine>,
    /// The packets per second that were delivered without a NAPI, on all CPUs and in all namespaces.
    pub(crate) backlog_packets: f64,
    /// The parts that could not be counted or read.
    pub(crate) unread: Vec<String>,
}

/// A receive queue.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct QueueLine {
    /// The device's name.
    pub(crate) device: String,
    /// The queue's index; `None` for a NAPI without a known queue.
    pub(crate) queue: Option<u32>,
    /// The NAPI's id.
    pub(crate) napi: u32,
    /// Packets per second.
    pub(crate) packets: f64,
    /// Polls per second.
    pub(crate) polls: f64,
    /// The average number of packets per non-empty poll.
    pub(crate) batch: Option<f64>,
    /// The shares of packets by polling context; `None` without packets.
    pub(crate) shares: Option<Shares>,
    /// The number of timer expirations per second.
    pub(crate) timers: f64,
    /// The name of the delivery mode that the NAPI's settings match.
    pub(crate) set: String,
    /// Whether an application's `epoll_wait` suspended the IRQ during the sample.
    pub(crate) suspended: bool,
    /// The IRQ number.
    pub(crate) irq: Option<u32>,
    /// The pid of the kernel thread that polls this NAPI.
    pub(crate) kthread: Option<u32>,
}

/// The shares of packets by polling context, 0..=1.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct Shares {
    /// The share of packets that were polled in softirq after an interrupt.
    pub(crate) interrupt: f64,
    /// The share of packets that were polled in softirq after the NAPI's timer expired.
    pub(crate) timer: f64,
    /// The share of packets that an application polled in its own system call.
    pub(crate) application: f64,
    /// The share of packets that the NAPI's kernel thread polled.
    pub(crate) kthread: f64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct ProcessLine {
    /// The name.
    pub(crate) name: String,
    /// The pid.
    pub(crate) pid: u32,
    /// The number of epolls.
    pub(crate) epolls: usize,
    /// The number of epolls that prefer busy polling.
    pub(crate) prefer: usize,
    /// The number of sockets that receive on a NAPI.
    pub(crate) sockets: usize,
    /// The packets per second that the process polled itself.
    pub(crate) packets: f64,
    /// The polls per second that the process made itself.
    pub(crate) polls: f64,
}

/// A service, with its response times in the last minutes. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct ServiceLine {
    /// The service's name in the policy files.
    pub(crate) name: String,
    /// Requests per second.
    pub(crate) rate: f64,
    /// The median response time.
    pub(crate) p50: Option<Estimate>,
    /// The 99th percentile.
    pub(crate) p99: Option<Estimate>,
    /// The median time that a request waits in the NIC's ring.
    pub(crate) ring: Option<Estimate>,
    /// The median time from a request's arrival until the service reads it.
    pub(crate) wakeup: Option<Estimate>,
    /// The median time from reading a request to answering it.
    pub(crate) service: Option<Estimate>,
    /// The number of requests that are waiting for an answer.
    pub(crate) waiting: u64,
}

/// How a CPU spent its time, as shares 0..=1.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct CpuLine {
    /// The CPU's number.
    pub(crate) cpu: u32,
    /// In applications.
    pub(crate) user: f64,
    /// The share of time in the kernel, for applications and kernel threads.
    pub(crate) system: f64,
    /// In softirqs.
    pub(crate) softirq: f64,
    /// In hard interrupts.
    pub(crate) irq: f64,
    /// Idle.
    pub(crate) idle: f64,
}

impl Reading {
    /// Creates a reading from these observations.
    pub(crate) fn of(
        host: &Host,
        delivered: Option<&Delivered>,
        cpus: Option<(&Counters, &Counters)>,
        unread: Vec<String>,
    ) -> Self {
        let seconds = delivered.map_or(0.0, |delivered| delivered.interval.as_secs_f64());
        Self {
            counted_seconds: seconds,
            queues: queues(host, delivered, seconds),
            processes: processes(host, delivered, seconds),
            services: Vec::new(),
            cpus: cpus.map(|(before, after)| cpu_lines(before, after)).unwrap_or_default(),
            backlog_packets: delivered.map_or(0.0, |d| per_second(d.backlog.packets, seconds)),
            unread,
        }
    }
}

/// Returns the measured services, and the reasons why others are not measured.
pub(crate) fn services(measured: Vec<Measured>) -> (Vec<ServiceLine>, Vec<String>) {
    let (mut lines, mut refused) = (Vec::new(), Vec::new());
    for Measured { name, outcome } in measured {
        match outcome {
            MeasuredOutcome::Windows { summary, .. } => lines.push(ServiceLine {
                name,
                rate: summary.rate,
                p50: summary.response.p50,
                p99: summary.response.p99,
                ring: summary.ring.p50,
                wakeup: summary.wakeup.p50,
                service: summary.service_time.p50,
                waiting: summary.waiting,
            }),
            MeasuredOutcome::Refused { why, .. } => refused.push(format!("{name} is not measured: {why}")),
        }
    }
    (lines, refused)
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { as_f64(count) / seconds } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a second, far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

fn queues(host: &Host, delivered: Option<&Delivered>, seconds: f64) -> Vec<QueueLine> {
    let mut lines = Vec::new();
    for device in &host.devices {
        for napi in &device.napis {
            let queues: Vec<u32> = host.queues_of(napi.id).map(|queue| queue.index.0).collect();
            let mut line = line_of(device.id.name.as_str(), napi.id, delivered, seconds);
            line.queue = queues.first().copied();
            line.set = set_mode(napi);
            line.irq = napi.irq.map(|edge| edge.irq.0);
            line.kthread = napi.kthread.map(|pid| pid.0);
            lines.push(line);
        }
    }
    lines
}

fn line_of(device: &str, napi: NapiId, delivered: Option<&Delivered>, seconds: f64) -> QueueLine {
    let counted = delivered.and_then(|delivered| delivered.napi(napi));
    let total = counted.map(model::NapiDelivered::total).unwrap_or_default();
    let share = |part: PollCounts| as_f64(part.packets) / as_f64(total.packets);
    let fruitful = total.polls.saturating_sub(total.empty);
    QueueLine {
        device: device.to_owned(),
        queue: None,
        napi: napi.0,
        packets: per_second(total.packets, seconds),
        polls: per_second(total.polls, seconds),
        batch: (fruitful > 0).then(|| as_f64(total.packets) / as_f64(fruitful)),
        shares: counted.filter(|_| total.packets > 0).map(|counted| Shares {
            interrupt: share(counted.interrupt),
            timer: share(counted.timer),
            application: share(counted.application),
            kthread: share(counted.kthread),
        }),
        timers: counted.map_or(0.0, |counted| per_second(counted.timer_expired, seconds)),
        set: String::new(),
        suspended: counted.is_some_and(|counted| counted.suspended > 0),
        irq: None,
        kthread: None,
    }
}

/// Returns the delivery mode that the NAPI's values match. The part of a mode that is set on epolls is in the
/// line of their process.
fn set_mode(napi: &Napi) -> String {
    let flush = napi.gro_flush_timeout.unwrap_or_default();
    let defers = napi.defer_hard_irqs.is_some_and(|polls| polls.0 > 0) && !flush.is_zero();
    let suspends = napi.irq_suspend_timeout.is_some_and(|span| !span.is_zero());
    match (napi.threaded.unwrap_or_default(), defers, suspends) {
        (Threading::On, ..) => DeliveryMode::Threaded.to_string(),
        (Threading::BusyPoll, ..) => DeliveryMode::ThreadedBusy.to_string(),
        (Threading::Off, true, true) => {
            format!("{} {flush}", DeliveryMode::Suspend { gro_flush: flush }.name())
        }
        (Threading::Off, true, false) => {
            format!("{} {flush}", DeliveryMode::Defer { gro_flush: flush }.name())
        }
        (Threading::Off, false, _) => DeliveryMode::Interrupt.to_string(),
    }
}

fn processes(host: &Host, delivered: Option<&Delivered>, seconds: f64) -> Vec<ProcessLine> {
    let mut lines = Vec::new();
    for process in &host.processes {
        let mut polled = PollCounts::default();
        for napi in delivered.iter().flat_map(|delivered| &delivered.napis) {
            for (_, counts) in napi.by_process.iter().filter(|(pid, _)| *pid == process.id.pid) {
                polled += *counts;
            }
        }
        let sockets = process.sockets.iter().filter(|socket| socket.napi.is_some()).count();
        if sockets == 0 && polled.polls == 0 {
            continue;
        }
        let prefers =
            |epoll: &&model::host::Epoll| epoll.params.is_some_and(|params| params.prefer_busy_poll);
        lines.push(ProcessLine {
            name: process.id.comm.to_string(),
            pid: process.id.pid.0,
            epolls: process.epolls.len(),
            prefer: process.epolls.iter().filter(prefers).count(),
            sockets,
            packets: per_second(polled.packets, seconds),
            polls: per_second(polled.polls, seconds),
        });
    }
    lines
}

fn cpu_lines(before: &Counters, after: &Counters) -> Vec<CpuLine> {
    let mut lines = Vec::new();
    for now in &after.cpus {
        let Some(then) = before.cpus.iter().find(|then| then.cpu == now.cpu) else { continue };
        let ticks: CpuTicks = now.ticks.since(&then.ticks);
        let all = as_f64(ticks.total().max(1));
        lines.push(CpuLine {
            cpu: now.cpu.0,
            user: as_f64(ticks.user + ticks.nice) / all,
            system: as_f64(ticks.system) / all,
            softirq: as_f64(ticks.softirq) / all,
            irq: as_f64(ticks.irq) / all,
            idle: as_f64(ticks.idle + ticks.iowait) / all,
        });
    }
    lines
}
