//! Describes the result of one run: response times, their cost, and whether the run counts.
//!
//! Evidence comes from a measured run or from the simulator; only [`Origin`] tells which. Evidence is
//! complete: a reader can repeat the run, and recompute every percentile from the histogram.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cpu_set::CpuSet;
use crate::delivered::Delivered;
use crate::ids::Cpu;
use crate::units::Nanoseconds;
use crate::workload::{OfferedLoad, Workload};

/// One run of one workload under one label.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The name of the format, always `netpolicy/v1`.
    pub schema: FormatName,
    /// The label that the caller gave to what was measured, such as `suspend20` or `before`. Runs with the
    /// same label are comparable.
    pub label: String,
    /// Where the run took place: on a real machine or in the simulator.
    pub origin: Origin,
    /// The workload, with every option.
    pub workload: Workload,
    /// The offered load.
    pub load: OfferedLoad,
    /// The length of the measurement window.
    pub window: Nanoseconds,
    /// The number of requests, by outcome.
    pub requests: Requests,
    /// Answers per second in the window.
    pub throughput: f64,
    /// Response times, counted from the time at which each request was due. Unanswered requests are included
    /// with the time that they had waited.
    pub latency: Distribution,
    /// Response times, counted from the time at which each request was sent; `None` in simulations and in
    /// evidence of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_from_send: Option<Distribution>,
    /// How long after its due time each request was sent, for whatever reason.
    pub lateness: Distribution,
    /// The part of `lateness` that the load generator caused, counted from the time at which the request was
    /// due *and* its connection could accept it.
    pub generator_lateness: Distribution,
    /// The share of the window in which the load generator's threads were busy, 0..=1. Near 1, the generator
    /// rather than the server may have limited the throughput.
    pub generator_busy: f64,
    /// How the server's CPUs spent the window; `None` if that was not measured.
    pub cpu: Option<CpuUse>,
    /// The kernel's counters, per second; `None` if the counters were not read.
    pub counters: Option<CounterRates>,
    /// The CPU time of the whole machine per answer. It includes the client's, unless the client is on
    /// another machine ([`Self::client`]). `None` if the time was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_per_answer: Option<CpuPerAnswer>,
    /// The CPU use of the client's machine, if it is not the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<ClientSide>>,
    /// The server's CPU cycles per answer; `None` without perf counters.
    pub cycles_per_request: Option<f64>,
    /// Interrupt-driven polls of the server's NAPIs per answer; on a veth, polls in the sender's softirq.
    /// `None` if they were not counted, or cannot be distinguished from polls after a timer.
    #[serde(default)]
    pub interrupts_per_request: Option<f64>,
    /// The number of events that each `epoll_wait` of the server returned; `None` if they were not counted.
    /// Counting requires a dynamically linked server that the bench started.
    pub epoll_batch: Option<EpollBatch>,
    /// The number of packets by the context that delivered them; `None` if they were not counted.
    pub delivered: Option<Delivered>,
    /// Why the run does not count; `None` if the run counts.
    pub void: Option<String>,
}

impl Evidence {
    /// A run counts as saturated if more than this share of its due requests were still unsent when the
    /// window closed: the server did not keep up, and percentiles grow with the length of the window.
    pub const SATURATED_SHARE: f64 = 0.01;

    /// If the load generator was busy for at least this share of the window, it may have been the bottleneck.
    pub const GENERATOR_BUSY_SHARE: f64 = 0.97;

    /// The evidence of a run in which nothing was measured yet.
    pub fn new(label: impl Into<String>, origin: Origin, workload: Workload, load: OfferedLoad) -> Self {
        Self {
            schema: FormatName,
            label: label.into(),
            origin,
            window: workload.pace().window,
            workload,
            load,
            requests: Requests::default(),
            throughput: 0.0,
            latency: Distribution::default(),
            latency_from_send: None,
            lateness: Distribution::default(),
            generator_lateness: Distribution::default(),
            generator_busy: 0.0,
            cpu: None,
            counters: None,
            cpu_per_answer: None,
            client: None,
            cycles_per_request: None,
            interrupts_per_request: None,
            epoll_batch: None,
            delivered: None,
            void: None,
        }
    }

    /// Whether the server fell behind the offered load. Always false in a closed loop.
    #[expect(clippy::cast_precision_loss, reason = "a share of counts below 2^53")]
    pub fn saturated(&self) -> bool {
        let due = self.requests.due as f64;
        match self.load {
            OfferedLoad::Max => false,
            OfferedLoad::PerSecond(_) => self.requests.unsent as f64 > due * Self::SATURATED_SHARE,
        }
    }

    /// Whether the load generator may have limited the throughput instead of the server.
    pub fn limited_by_generator(&self) -> bool {
        let at_its_limit = self.load == OfferedLoad::Max || self.saturated();
        at_its_limit && self.generator_busy >= Self::GENERATOR_BUSY_SHARE
    }
}

/// The name of the format in which netpolicy writes everything for other programs. Reading rejects any other
/// name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatName;

impl FormatName {
    /// The format's name.
    pub const NAME: &str = "netpolicy/v1";
}

impl Serialize for FormatName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::NAME)
    }
}

impl<'de> Deserialize<'de> for FormatName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        if found == Self::NAME {
            Ok(Self)
        } else {
            Err(serde::de::Error::custom(format_args!("schema `{found}` is not `{}`", Self::NAME)))
        }
    }
}
crate::text_schema! { FormatName: "netpolicy/v1" }

/// Where a run took place.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// On a host.
    Measured(MeasuredOn),
    /// In the simulator.
    Simulated(SimulatedFrom),
}

/// The host on which a run was measured.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredOn {
    /// The host name.
    pub host: String,
    /// `uname -r`.
    pub kernel: String,
    /// The machine in one line, beginning with the CPU model.
    pub machine: String,
    /// The server, with its version if it reports one.
    pub server: String,
    /// When the window opened, in seconds since 1970 (UTC).
    pub started: u64,
}

/// The inputs of a simulated run.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedFrom {
    /// A hash of the whole scenario, in hexadecimal.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// The model's parameters, by name.
    pub parameters: BTreeMap<String, String>,
}

/// The number of requests that were due in the window, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// The number of requests that were due in the window, whether they were sent or not.
    pub due: u64,
    /// The number of due requests that were sent.
    pub sent: u64,
    /// The number of sent requests that were answered before the run ended.
    pub answered: u64,
    /// The number of answered `get` requests that found their key.
    pub hits: u64,
    /// The number of answered `get` requests that did not find their key.
    pub misses: u64,
    /// The number of answered requests that the server rejected (`ERROR`, `CLIENT_ERROR`, `SERVER_ERROR`).
    pub errors: u64,
    /// The number of requests that were due but unsent when the window closed, because their connection was
    /// full. The load generator stops counting at a limit per connection, which is far beyond saturation.
    pub unsent: u64,
    /// The number of requests that were sent but not answered when the run ended.
    pub unanswered: u64,
    /// The number of connections that were lost during the run; each is reopened.
    pub connections_lost: u64,
}

impl std::ops::AddAssign for Requests {
    fn add_assign(&mut self, other: Self) {
        self.due += other.due;
        self.sent += other.sent;
        self.answered += other.answered;
        self.hits += other.hits;
        self.misses += other.misses;
        self.errors += other.errors;
        self.unsent += other.unsent;
        self.unanswered += other.unanswered;
        self.connections_lost += other.connections_lost;
    }
}

/// A distribution of time spans, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// The number of spans.
    pub count: u64,
    /// The mean.
    pub avg: f64,
    /// The shortest.
    pub min: Nanoseconds,
    /// The median.
    pub p50: Nanoseconds,
    /// The 90th percentile.
    pub p90: Nanoseconds,
    /// The 95th percentile.
    pub p95: Nanoseconds,
    /// The 99th percentile.
    pub p99: Nanoseconds,
    /// The 99.9th percentile.
    pub p999: Nanoseconds,
    /// The 99.99th percentile; `None` in evidence of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9999: Option<Nanoseconds>,
    /// The longest.
    pub max: Nanoseconds,
    /// The whole distribution: an HdrHistogram in V2 format, deflated, in base64; empty if there is no
    /// histogram.
    pub histogram: String,
}

/// How CPUs spent an interval, as shares of the interval, 0..=1, over all CPUs together; the shares add up to
/// 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuUse {
    /// The number of CPUs.
    pub cpus: u32,
    /// The time in applications: `user` and `nice`.
    pub user: f64,
    /// The time in system calls and kernel threads.
    pub system: f64,
    /// The time in softirqs that was not charged to a thread.
    pub softirq: f64,
    /// The time in hard interrupts.
    pub irq: f64,
    /// The idle time: `idle` and `iowait`.
    pub idle: f64,
    /// The time that the hypervisor gave to other guests.
    pub steal: f64,
}

impl CpuUse {
    /// Returns the busy share: everything but idle and stolen time.
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.softirq + self.irq
    }

    /// Returns how the CPUs in `which` spent the time between two snapshots. `None` if one of the CPUs is
    /// missing in either snapshot, or no tick passed.
    #[expect(clippy::cast_precision_loss, reason = "ticks of one run, far below 2^53")]
    pub fn between(before: &Counters, after: &Counters, which: &CpuSet) -> Option<Self> {
        let mut ticks = CpuTicks::default();
        for cpu in which.iter() {
            ticks += after.cpu(cpu)?.ticks.since(&before.cpu(cpu)?.ticks);
        }
        let all = ticks.total() as f64;
        (all > 0.0).then(|| Self {
            cpus: u32::try_from(which.len()).unwrap_or(u32::MAX),
            user: (ticks.user + ticks.nice) as f64 / all,
            system: ticks.system as f64 / all,
            softirq: ticks.softirq as f64 / all,
            irq: ticks.irq as f64 / all,
            idle: (ticks.idle + ticks.iowait) as f64 / all,
            steal: ticks.steal as f64 / all,
        })
    }
}

/// The CPU use of a run on the client's machine.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientSide {
    /// The host name.
    pub host: String,
    /// How the client machine's CPUs spent the window; `None` if that was not measured.
    pub cpu: Option<CpuUse>,
    /// The kernel's counters on the client's machine, per second; `None` if the counters were not read.
    pub counters: Option<CounterRates>,
    /// The CPU time of the client's machine per answer.
    pub cpu_per_answer: Option<CpuPerAnswer>,
}

/// The CPU time of a machine per answer, measured by two methods. If server and client are both on the
/// machine, the time includes both.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuPerAnswer {
    /// Time that is neither idle nor stolen on any CPU, in microseconds. Includes other programs, interrupts
    /// and idle-exit latency. `None` if no tick passed. See [`Counters::busy_on`].
    pub machine_us: Option<f64>,
    /// Run time of server and client, plus the time of the softirqs that poll the server's NAPIs during other
    /// tasks, in microseconds. Excludes other programs. `None` if it could not be counted.
    pub tasks_us: Option<f64>,
}

/// The kernel's counters, per second.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CounterRates {
    /// Hard interrupts of the host.
    pub irqs: f64,
    /// Context switches of the host.
    pub context_switches: f64,
    /// Softirqs of the server's CPUs by kind, in the kernel's spelling: `NET_RX`.
    pub softirqs: BTreeMap<String, f64>,
    /// Packets that busy polling took from a NAPI in the server's namespace; `None` if they were not counted.
    pub busy_poll_rx_packets: Option<f64>,
    /// Calls of NAPI poll functions, in any context; `None` if they were not counted.
    pub napi_polls: Option<f64>,
}

impl CounterRates {
    /// Returns the rates between two snapshots; only softirqs on the CPUs in `which` count. `None` if no time
    /// passed.
    #[expect(clippy::cast_precision_loss, reason = "counts of one run, far below 2^53")]
    pub fn between(before: &Counters, after: &Counters, which: &CpuSet) -> Option<Self> {
        let seconds = Nanoseconds(after.at.0.checked_sub(before.at.0)?).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let mut softirqs = BTreeMap::new();
        for cpu in which.iter() {
            let (Some(before), Some(after)) = (before.cpu(cpu), after.cpu(cpu)) else { continue };
            for (kind, &count) in &after.softirqs {
                let earlier = before.softirqs.get(kind).copied().unwrap_or(count);
                *softirqs.entry(kind.clone()).or_insert(0.0) += rate(earlier, count);
            }
        }
        Some(Self {
            irqs: rate(before.irqs, after.irqs),
            context_switches: rate(before.context_switches, after.context_switches),
            softirqs,
            busy_poll_rx_packets: before
                .busy_poll_rx_packets
                .zip(after.busy_poll_rx_packets)
                .map(|(b, a)| rate(b, a)),
            napi_polls: None,
        })
    }
}

/// How many events `epoll_wait` returned per call.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpollBatch {
    /// The number of calls that returned at least one event.
    pub waits: u64,
    /// The number of calls that returned no event.
    pub empty: u64,
    /// The average number of events in calls that returned at least one.
    pub avg: f64,
    /// The maximum number of events that one call returned.
    pub max: u32,
    /// The number of calls by how many events they returned: 0, 1, 2–3, 4–7, … 512–1023, 1024 and more;
    /// `None` if only the average is known.
    #[serde(default)]
    pub sizes: Option<[u64; EpollBatch::SIZES]>,
}

impl EpollBatch {
    /// The number of size classes in [`Self::sizes`].
    pub const SIZES: usize = 12;

    /// Returns the share of calls that returned no event, 0..=1; `None` without calls.
    #[expect(clippy::cast_precision_loss, reason = "calls of one run, far below 2^53")]
    pub fn empty_share(&self) -> Option<f64> {
        let calls = self.waits + self.empty;
        (calls > 0).then(|| self.empty as f64 / calls as f64)
    }
}

/// The host's counters at one moment. The counters never decrease while the host runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// When the counters were read, by the host's monotonic clock.
    pub at: Nanoseconds,
    /// The online CPUs.
    pub cpus: Vec<CpuCounters>,
    /// Hard interrupts since boot. Kernel: `fs/proc/stat.c`, the first number of the line `intr`.
    pub irqs: u64,
    /// Context switches since boot. Kernel: `fs/proc/stat.c`, the line `ctxt`.
    pub context_switches: u64,
    /// The value of `TcpExt: BusyPollRxPackets` in `/proc/PID/net/netstat`, for one network namespace; `None`
    /// if it was not read.
    pub busy_poll_rx_packets: Option<u64>,
}

impl Counters {
    /// Returns how long all CPUs together were busy since an earlier snapshot. `None` if no tick passed.
    pub fn busy_since(&self, earlier: &Self) -> Option<Nanoseconds> {
        self.busy_on(earlier, &self.cpus.iter().map(|cpu| cpu.cpu).collect())
    }

    /// Returns how long these CPUs together were busy since an earlier snapshot: elapsed time minus idle and
    /// stolen time.
    ///
    /// The kernel measures idle time with its clock (`NO_HZ`) but samples busy time at ticks. Sampling misses
    /// or overcounts work that recurs at a fraction of a tick, and interrupts that wake an idle CPU.
    /// Therefore busy time is computed from idle time. Kernel: `fs/proc/stat.c` `get_idle_time()`,
    /// `kernel/sched/cputime.c` `account_process_tick()`.
    pub fn busy_on(&self, earlier: &Self, which: &CpuSet) -> Option<Nanoseconds> {
        let (mut rest, mut all, mut cpus) = (0, 0, 0);
        for cpu in which.iter() {
            let ticks = self.cpu(cpu)?.ticks.since(&earlier.cpu(cpu)?.ticks);
            (rest, all, cpus) =
                (rest + ticks.idle + ticks.iowait + ticks.steal, all + ticks.total(), cpus + 1);
        }
        let elapsed = self.at.0.checked_sub(earlier.at.0)?;
        (all > 0).then(|| Nanoseconds((elapsed * cpus).saturating_sub(rest * CpuTicks::NANOSECONDS)))
    }

    /// Returns the counters of a CPU.
    pub fn cpu(&self, cpu: Cpu) -> Option<&CpuCounters> {
        self.cpus.iter().find(|c| c.cpu == cpu)
    }
}

/// One CPU's counters.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuCounters {
    /// The CPU.
    pub cpu: Cpu,
    /// How the CPU spent its time.
    pub ticks: CpuTicks,
    /// The number of softirqs by kind, in the kernel's spelling. Kernel: `fs/proc/softirqs.c`.
    pub softirqs: BTreeMap<String, u64>,
}

/// How a CPU spent its time since boot, in ticks of `USER_HZ`: the line `cpuN` of `/proc/stat`, field by
/// field.
///
/// `guest` and `guest_nice` are omitted: `user` and `nice` include them.
///
/// Kernel: 6.18, `fs/proc/stat.c` `show_stat()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuTicks {
    /// The time in applications.
    pub user: u64,
    /// The time in applications with a positive nice value.
    pub nice: u64,
    /// The time in the kernel.
    pub system: u64,
    /// The idle time.
    pub idle: u64,
    /// The idle time while a block request was outstanding. It may decrease by a tick on some kernels.
    pub iowait: u64,
    /// The time in hard interrupts.
    pub irq: u64,
    /// The time in softirqs.
    pub softirq: u64,
    /// The time that the hypervisor gave to other guests.
    pub steal: u64,
}

impl CpuTicks {
    /// The length of a tick. Kernel: `USER_HZ` is 100 on every architecture that netpolicy is built for.
    pub const NANOSECONDS: u64 = 10_000_000;

    /// All ticks.
    pub fn total(&self) -> u64 {
        self.user + self.nice + self.system + self.idle + self.iowait + self.irq + self.softirq + self.steal
    }

    /// Returns the busy ticks: all but idle and stolen ones.
    pub fn busy(&self) -> u64 {
        self.user + self.nice + self.system + self.irq + self.softirq
    }

    /// Returns the ticks since `earlier`; a field that went backwards counts as zero.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            nice: self.nice.saturating_sub(earlier.nice),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

impl std::ops::AddAssign for CpuTicks {
    fn add_assign(&mut self, other: Self) {
        self.user += other.user;
        self.nice += other.nice;
        self.system += other.system;
        self.idle += other.idle;
        self.iowait += other.iowait;
        self.irq += other.irq;
        self.softirq += other.softirq;
        self.steal += other.steal;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn snapshot(at_ms: u64, ticks: CpuTicks, net_rx: u64) -> Counters {
        Counters {
            at: Nanoseconds::from_millis(at_ms),
            cpus: vec![
                CpuCounters { cpu: Cpu(0), ticks: CpuTicks::default(), softirqs: BTreeMap::new() },
                CpuCounters { cpu: Cpu(1), ticks, softirqs: BTreeMap::from([("NET_RX".to_owned(), net_rx)]) },
            ],
            irqs: net_rx / 2,
            context_switches: 7,
            busy_poll_rx_packets: Some(net_rx * 3),
        }
    }

    #[test]
    fn cpu_time_is_shared_out_over_the_servers_cpus_alone() {
        let before = snapshot(0, CpuTicks { idle: 100, iowait: 5, ..CpuTicks::default() }, 0);
        let later = CpuTicks {
            user: 20,
            nice: 5,
            system: 25,
            idle: 140,
            iowait: 4,
            softirq: 10,
            ..CpuTicks::default()
        };
        let after = snapshot(1000, later, 0);
        let server = CpuSet::from_iter([Cpu(1)]);
        let used = CpuUse::between(&before, &after, &server).expect("time passed");
        assert_eq!((used.cpus, used.user, used.system, used.softirq, used.idle), (1, 0.25, 0.25, 0.1, 0.4));
        assert!((used.busy() - 0.6).abs() < 1e-12);
        assert_eq!(CpuUse::between(&before, &before, &server), None, "no tick passed");
        assert_eq!(CpuUse::between(&before, &after, &CpuSet::from_iter([Cpu(7)])), None, "no such CPU");
    }

    #[test]
    fn the_machines_work_is_that_of_all_cpus_without_what_was_idle_or_stolen() {
        let before = snapshot(0, CpuTicks::default(), 0);
        let ticks =
            CpuTicks { user: 3, nice: 1, system: 2, irq: 1, softirq: 3, idle: 50, iowait: 9, steal: 7 };
        let after = snapshot(1000, ticks, 0);
        // The snapshots are of two CPUs, a second apart. The ticks of `user` and `system` do not matter.
        assert_eq!(after.busy_since(&before), Some(Nanoseconds::from_millis(2_000 - 660)));
        let of = |cpus: &str| after.busy_on(&before, &cpus.parse().expect("CPUs"));
        assert_eq!(of("1"), Some(Nanoseconds::from_millis(1_000 - 660)));
        assert_eq!(of("7"), None, "no such CPU");
        assert_eq!(before.busy_since(&before), None, "no tick passed");
    }

    #[test]
    fn counters_become_rates_over_the_time_between_their_snapshots() {
        let (before, after) =
            (snapshot(500, CpuTicks::default(), 100), snapshot(1000, CpuTicks::default(), 1100));
        let rates = CounterRates::between(&before, &after, &CpuSet::from_iter([Cpu(0), Cpu(1)]))
            .expect("time passed");
        assert_eq!(rates.softirqs, BTreeMap::from([("NET_RX".to_owned(), 2000.0)]));
        assert_eq!((rates.irqs, rates.context_switches), (1000.0, 0.0));
        assert_eq!(rates.busy_poll_rx_packets, Some(6000.0));
        assert_eq!(
            CounterRates::between(&after, &before, &CpuSet::new()),
            None,
            "time does not run backwards"
        );
    }

    #[test]
    fn evidence_of_another_schema_is_refused() {
        assert_eq!(serde_json::to_string(&FormatName).expect("serialises"), "\"netpolicy/v1\"");
        let error = serde_json::from_str::<FormatName>("\"netpolicy/v2\"").expect_err("another schema");
        assert!(error.to_string().contains("netpolicy/v2"), "{error}");
    }
}
