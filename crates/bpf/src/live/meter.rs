//! Loads the measuring programs and attaches them for one window at a time.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use libbpf_rs::OpenObject;
use libbpf_rs::btf::{Btf, types};
use model::live::{
    LiveCounts, LivePart, LivePolls, LiveProtocols, LiveSpans, LiveWaiting, LiveWindow, ServicePorts,
    SpanCounts,
};
use model::{Nanoseconds, NapiId, NetnsId, Pid, since};
use sys::clock::monotonic;
use sys::error::{Errno, KernelError};

use super::layout::{
    BUCKETS, Config, Counts, EXCHANGES_MAX, Exchange, Gate, Key, NAPIS_MAX, NOT_YET, PART_BUCKETS, PARTS_MAX,
    PORTS_MAX, Part, PeerState, Spans, Turnarounds, WHOLE, Waiting,
};
use crate::cost::{RunTime, Statistics, run_times};
use crate::in_initial_pid_namespace;
use crate::iterated;
use crate::loaded::Loaded;
use crate::mirrored::Mirrored as _;

pub(super) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/live.bpf.o"));

/// The key of a map that has only one entry.
const ONLY: [u8; 4] = [0; 4];

/// The iterator that reports unanswered requests. Reading its output runs it.
const ITERATOR: &str = "live_waits";

/// The programs that trace the network stack; one runs at every softirq, the other at every transmitted
/// packet.
const OF_STACK: [&str; 2] = ["live_softirq", "live_transmits"];

/// The programs that observe datagrams; they are loaded only if there are UDP ports.
const OF_DATAGRAMS: [&str; 6] = [
    "live_datagram",
    "live_datagram_queued",
    "live_datagram_read",
    "live_drops",
    "live_discards",
    "live_datagram_sent",
];

/// The program that observes wake-ups of NAPI threads; it runs at every wake-up on the host.
const OF_THREADS: &str = "live_wakes";

/// The sockets to measure: those of any process on these local ports in a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTarget {
    /// The network namespace.
    pub netns: NetnsId,
    /// The ports: at least one, and up to [`LiveTarget::PORTS_MAX`] of each protocol.
    pub ports: ServicePorts,
    /// The maximum number of connections that are measured, at most [`LiveMeter::SOCKETS_MAX`].
    pub sockets_max: u32,
}

impl LiveTarget {
    /// The maximum number of ports of each protocol.
    pub const PORTS_MAX: usize = PORTS_MAX;

    /// Creates a target with these ports in a namespace, and with the maximum number of connections.
    pub fn of(netns: NetnsId, ports: impl Into<ServicePorts>) -> Self {
        Self { netns, ports: ports.into(), sockets_max: LiveMeter::SOCKETS_MAX }
    }
}

/// The tracepoint at which an answer is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerHook {
    /// The answer's bytes are recorded before they are passed to TCP. Kernel: 6.16, `net/ipv4/tcp.c`
    /// `trace_tcp_sendmsg_locked`.
    BeforeSend,
    /// The answer is recorded after its bytes were passed to TCP, and often after they were transmitted: 10
    /// to 25 µs later than [`Self::BeforeSend`]. Kernel: 6.3, `net/socket.c` `trace_sock_send_length`.
    AfterSend,
}

impl AnswerHook {
    /// Returns the earliest hook that the running kernel has.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without any hook, or without kernel BTF.
    pub fn of_this_kernel() -> Result<Self, KernelError> {
        let what = "measure response times";
        let btf = Btf::from_vmlinux().map_err(|_| {
            KernelError::absent(what, "kernel type information (CONFIG_DEBUG_INFO_BTF)", None)
        })?;
        [Self::BeforeSend, Self::AfterSend]
            .into_iter()
            .find(|hook| {
                let name = format!("btf_trace_{}", hook.tracepoint());
                btf.type_by_name::<types::Typedef<'_>>(&name).is_some()
            })
            .ok_or_else(|| {
                KernelError::absent(what, "the tracepoint sock_send_length", Some(since::RESPONSE_TIMES))
            })
    }

    /// The tracepoint's name.
    pub const fn tracepoint(self) -> &'static str {
        match self {
            Self::BeforeSend => "tcp_sendmsg_locked",
            Self::AfterSend => "sock_send_length",
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::BeforeSend => "live_sends",
            Self::AfterSend => "live_has_sent",
        }
    }
}

/// Measures how long requests to some ports take, one window at a time.
///
/// Between [`LiveMeter::begin`] and [`LiveMeter::end`], four programs are attached. They cost each request of
/// the service about half a microsecond, and each packet and poll of other services about 50 ns. Otherwise
/// nothing runs, unless the programs [stay attached](LiveMeter::stay_attached). The attachments are
/// descriptors of this process and disappear with it. Several processes can measure in parallel. Needs
/// CAP_BPF and CAP_PERFMON.
#[derive(Debug)]
pub struct LiveMeter {
    loaded: Loaded,
    hook: AnswerHook,
    pids_known: bool,
    window: u64,
    polled_by_threads: bool,
    /// Whether the programs stay attached between windows.
    stays_attached: bool,
    /// Whether the programs may have counted since `before` was read.
    counts_between: bool,
    begun: Option<Nanoseconds>,
    sockets: u64,
    has_udp: bool,
    /// Whether datagrams without an id are not paired with answers.
    pairs_ids_only: bool,
    /// The counts since the last decision about `pairs_ids_only`.
    since_judged: LiveCounts,
    /// The handle that keeps the kernel's run-time statistics enabled, and the programs' run time at the start
    /// of the window; `None` if run time is not measured.
    weighed: Option<(Statistics, Nanoseconds)>,
    before: Totals,
}

/// Totals since the programs were loaded.
#[derive(Clone, Debug)]
struct Totals {
    counts: LiveCounts,
    /// Sums of 32-bit counters over all CPUs; they wrap.
    spans: Spans,
    parts: BTreeMap<u32, Part>,
}

impl LiveMeter {
    /// The maximum number of new connections that are measured in a window. Each has a state of 640 bytes in
    /// the kernel until the connection is closed or the meter is dropped. Further connections are not
    /// measured; see [`LiveCounts::unmeasured`].
    pub const SOCKETS_MAX: u32 = 65_536;

    /// The delay between attaching the programs and the start of a window. Attaching patches the kernel's
    /// text and repeatedly stops all CPUs for a moment, which delays other work.
    pub const GUARD: Nanoseconds = Nanoseconds::from_millis(2);

    /// The time since a connection's last unanswered arrival from which the connection counts as stalled: see
    /// [`LiveWaiting::stalled`].
    pub const STALLED: Nanoseconds = Nanoseconds::from_millis(1_000);

    /// The time after which a datagram counts as unanswered: see [`LiveCounts::unanswered`].
    pub const UNANSWERED: Nanoseconds = Nanoseconds::from_millis(10);

    /// The maximum output of the iterator, which only counts and writes nothing.
    const WRITTEN_BYTES_MAX: u64 = 0;

    /// Loads the programs without attaching them.
    ///
    /// # Errors
    /// As for [`AnswerHook::of_this_kernel`]; [`sys::Cause::Absent`] on PREEMPT_RT, where softirqs have no
    /// separate stack and thus cannot be recognised; EINVAL if the target has no port or too many; otherwise
    /// the kernel's error with the verifier's message.
    pub fn load(target: &LiveTarget) -> Result<Self, KernelError> {
        Self::load_with(target, AnswerHook::of_this_kernel()?)
    }

    /// Like [`LiveMeter::load`], but uses this hook instead of the earliest one. An older kernel, for
    /// example, has only a later hook.
    ///
    /// # Errors
    /// As for [`LiveMeter::load`].
    pub fn load_with(target: &LiveTarget, hook: AnswerHook) -> Result<Self, KernelError> {
        if rustix::system::uname().version().to_bytes().windows(10).any(|w| w == b"PREEMPT_RT") {
            let needs = "a kernel whose softirqs run on their own stack (not PREEMPT_RT)";
            return Err(KernelError::absent("measure response times", needs, None));
        }
        let ServicePorts { tcp, udp } = &target.ports;
        if tcp.is_empty() && udp.is_empty() || tcp.len() > PORTS_MAX || udp.len() > PORTS_MAX {
            let what = format!("measure {} TCP and {} UDP ports (1 to {PORTS_MAX})", tcp.len(), udp.len());
            return Err(KernelError::errno(what, Errno::INVAL));
        }
        let has_udp = !udp.is_empty();
        let mut config = Config {
            netns: target.netns.0,
            ports_count: u32::try_from(tcp.len()).unwrap_or(0),
            sockets_max: target.sockets_max.min(Self::SOCKETS_MAX),
            ports: [0; PORTS_MAX],
            tick_ns: u32::try_from(sys::clock::tick().0).unwrap_or(u32::MAX),
            answers_late: u32::from(hook == AnswerHook::AfterSend),
            udp_ports_count: u32::try_from(udp.len()).unwrap_or(0),
            udp_ports: [0; PORTS_MAX],
            pad: 0,
        };
        config.ports[..tcp.len()].copy_from_slice(tcp);
        config.udp_ports[..udp.len()].copy_from_slice(udp);
        let loaded = Loaded::load("live", OBJECT, |open| configure(open, &config, hook, has_udp))?;
        Ok(Self {
            loaded,
            hook,
            pids_known: in_initial_pid_namespace(),
            window: 0,
            polled_by_threads: false,
            stays_attached: false,
            counts_between: false,
            begun: None,
            sockets: 0,
            has_udp,
            pairs_ids_only: false,
            since_judged: LiveCounts::default(),
            weighed: None,
            before: Totals::none(),
        })
    }

    /// Returns the size of the kernel memory that a meter uses on this host, in bytes, without the states of
    /// connections. Most of the memory is allocated per possible CPU.
    pub fn memory() -> usize {
        let for_each_cpu = PARTS_MAX as usize * size_of::<Part>() + size_of::<Spans>() + size_of::<Counts>();
        for_each_cpu * libbpf_rs::num_possible_cpus().unwrap_or(1).max(1)
    }

    /// Returns the hook that records answers.
    pub const fn hook(&self) -> AnswerHook {
        self.hook
    }

    /// Sets whether kernel threads poll for the service, from the next window on. If so, their wake-ups are
    /// traced, which makes each wake-up on the host about 50 ns slower. At the end of a window, the observed
    /// state replaces this setting.
    pub const fn set_polled_by_threads(&mut self, by_threads: bool) {
        self.polled_by_threads = by_threads;
    }

    /// Keeps the programs attached between windows of the same kind, or detaches them. For windows in quick
    /// succession: to attach a program to a tracepoint that was left a moment ago, the kernel waits for an RCU
    /// grace period, which takes 5 to 70 ms on an overcommitted machine. Programs that observe datagrams are
    /// detached nevertheless. Returns whether the programs stay attached.
    ///
    /// Kernel: 6.18, `kernel/tracepoint.c` `tracepoint_add_func()`, `tp_rcu_cond_sync()`.
    pub fn stay_attached(&mut self, stays: bool) -> bool {
        self.stays_attached = stays && !self.has_udp;
        if !self.stays_attached && self.begun.is_none() {
            self.loaded.detach();
        }
        self.stays_attached
    }

    /// Abandons the window, if one is open, and detaches the programs until the next window.
    pub fn detach(&mut self) {
        self.loaded.detach();
        self.begun = None;
        self.weighed = None;
    }

    /// Sets the distribution of turnarounds that estimator C uses from now on. Without a distribution, C
    /// gives the same estimates as U.
    ///
    /// # Errors
    /// The kernel's error, which means that the map is gone.
    pub fn set_turnarounds(&mut self, turnarounds: &SpanCounts) -> Result<(), KernelError> {
        let all = u128::from(turnarounds.total());
        let mut known = Turnarounds { valid: u32::from(all > 0), below: [0; BUCKETS + 1] };
        let mut sum = 0_u128;
        for (below, count) in known.below[1..].iter_mut().zip(turnarounds.buckets()) {
            sum += u128::from(*count);
            *below = u32::try_from(sum * u128::from(WHOLE) / all.max(1)).unwrap_or(u32::MAX);
        }
        self.loaded.map("turnarounds")?.set(&ONLY, &known.to_bytes())
    }

    /// Attaches the programs and starts a window. If a window is open, discards it.
    ///
    /// # Errors
    /// The kernel's error; nothing is attached then.
    pub fn begin(&mut self) -> Result<(), KernelError> {
        self.open(false)
    }

    /// Like [`LiveMeter::begin`], but also measures the cost of measuring ([`LiveWindow::weight`]), the time
    /// of packets between ring and TCP, and the time of answers between TCP and the device. This adds a cost
    /// to each softirq and each transmitted packet. These times vary little, so measuring them in an
    /// occasional window is enough.
    ///
    /// # Errors
    /// As for [`LiveMeter::begin`].
    pub fn begin_with_stack(&mut self) -> Result<(), KernelError> {
        self.open(true)
    }

    fn open(&mut self, stack: bool) -> Result<(), KernelError> {
        let opened = self.try_open(stack);
        self.begun = opened.as_ref().ok().copied();
        if opened.is_err() {
            self.loaded.detach();
        }
        opened.map(drop)
    }

    fn try_open(&mut self, stack: bool) -> Result<Nanoseconds, KernelError> {
        let by_threads = self.polled_by_threads;
        let is_attached = self.stays_attached
            && !stack
            && self.loaded.is_attached("live_polls")
            && self.loaded.is_attached(OF_THREADS) == by_threads
            && !self.loaded.is_attached(OF_STACK[0]);
        if !is_attached {
            self.loaded.detach();
        }
        self.window += 1;
        self.gate(NOT_YET, NOT_YET, stack)?;
        if self.begun.is_some() || self.counts_between {
            self.before = self.totals()?;
        }
        self.counts_between = true;
        // Without CAP_SYS_ADMIN, the kernel does not measure run time, and the cost of measuring is unknown.
        self.weighed = match stack {
            true => Statistics::enable().ok().zip(self.run_time().ok()),
            false => None,
        };
        let wanted = |name: &str| match name {
            ITERATOR => false,
            OF_THREADS => by_threads,
            name => stack || !OF_STACK.contains(&name),
        };
        if !is_attached {
            self.loaded.attach_if(wanted)?;
        }
        self.note_tcp_counters()?;
        // The end of the window counts connections again that were seen during attaching.
        let opens = Nanoseconds(monotonic().0 + Self::GUARD.0);
        self.gate(opens.0, opens.0, stack)?;
        Ok(opens)
    }

    /// Sets the time from which exchanges count. If `opens` is 0, ends the window that opened at `opened`.
    fn gate(&self, opens: u64, opened: u64, stack: bool) -> Result<(), KernelError> {
        let gate = Gate {
            window: self.window,
            opens,
            opened,
            sockets: self.sockets,
            looks_at_stack: stack.into(),
            pairs_ids_only: self.pairs_ids_only.into(),
        };
        self.loaded.map(".data.gate")?.set(&ONLY, &gate.to_bytes())
    }

    /// Returns when the current window opened, or `None` if no window is open.
    pub const fn opened(&self) -> Option<Nanoseconds> {
        self.begun
    }

    /// Ends the window, and detaches the programs unless they [stay attached](Self::stay_attached). Returns the
    /// measurements of the window.
    ///
    /// # Errors
    /// The kernel's error. The programs are detached nevertheless.
    ///
    /// # Panics
    /// If no window was started: a bug in the caller.
    pub fn end(&mut self) -> Result<LiveWindow, KernelError> {
        let begun = self.begun.take().expect("a window was started");
        let window = self.close(begun);
        if window.is_err() {
            self.loaded.detach();
        }
        window
    }

    fn close(&mut self, begun: Nanoseconds) -> Result<LiveWindow, KernelError> {
        // Detaching briefly stops all CPUs, so arrivals during it belong to no window. Answers are recorded
        // until the programs are detached, or else until the totals are read. Whether a request still waits
        // is determined from the data that its socket has sent so far.
        let closed = self.gate(0, begun.0, false);
        let ended = monotonic();
        let waiting = closed.and_then(|()| self.waiting(begun, ended));
        if !self.stays_attached {
            self.loaded.detach();
        }
        let weighed = self.weighed.take();
        let Ended { mut waiting, entered, rtt, tcp } = waiting?;
        let unanswered = if self.has_udp { self.unanswered(ended, &mut waiting)? } else { 0 };
        let totals = self.totals()?;
        self.counts_between = self.stays_attached;
        let before = std::mem::replace(&mut self.before, totals);
        let (napis, workers) = self.parts_since(&before)?;
        let span = Nanoseconds(ended.0.saturating_sub(begun.0));
        let mut counts = difference(&before.counts, &self.before.counts);
        counts += tcp;
        let mut spans = spans_between(&before.spans, &self.before.spans);
        spans.entered.merge(&entered);
        spans.rtt = rtt;
        counts.unanswered = unanswered;
        let paired = !self.pairs_ids_only;
        self.judge_pairs(counts);
        if !paired {
            counts.unpaired = counts.datagrams.saturating_sub(counts.identified);
        } else if self.pairs_ids_only {
            forget_pairs(&mut counts, &mut spans, &mut waiting);
        }
        if counts.answered > 0 {
            self.polled_by_threads = counts.threaded > 0;
        }
        let weight = match weighed {
            Some((_, before)) => Some(Nanoseconds(self.run_time()?.0.saturating_sub(before.0))),
            None => None,
        };
        Ok(LiveWindow { span, counts, spans, napis, workers, waiting, weight, run_delay: None })
    }

    /// Decides, from the windows since the last decision, whether the next windows pair datagrams without an
    /// id with answers.
    fn judge_pairs(&mut self, counts: LiveCounts) {
        self.since_judged += counts;
        if let Some(are_clear) = self.since_judged.are_answers_clear(!self.pairs_ids_only) {
            self.pairs_ids_only = !are_clear;
            self.since_judged = LiveCounts::default();
        }
    }

    /// Returns the run times of the programs so far, measured while [`crate::Statistics`] are enabled.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn run_times(&self) -> Result<Vec<RunTime>, KernelError> {
        run_times(&self.loaded)
    }

    /// Returns the total run time of all programs; meaningful only while [`crate::Statistics`] are enabled.
    fn run_time(&self) -> Result<Nanoseconds, KernelError> {
        let programs = self.run_times()?;
        Ok(Nanoseconds(programs.iter().map(|program| program.time.0).sum()))
    }

    /// Runs the iterator over every connection that has a state.
    fn iterate(&self, request: &Waiting) -> Result<Waiting, KernelError> {
        self.loaded.map("waiting")?.set(&ONLY, &request.to_bytes())?;
        let program = self.loaded.program(ITERATOR)?;
        let sockets = self.loaded.map("sockets")?;
        let reader = sys::bpf::iterate_sockets_in(program.as_fd(), sockets.map().as_fd())
            .map_err(|errno| KernelError::errno("BPF iterator live_waits", errno))?;
        iterated::bytes(reader, Self::WRITTEN_BYTES_MAX)?;
        Ok(Waiting::of(&self.loaded.map("waiting")?.get(&ONLY)?.unwrap_or_default()))
    }

    /// Records the TCP counters of every connection that has a state, as the baseline of the window. Any
    /// other connection gets its baseline at its first event.
    fn note_tcp_counters(&self) -> Result<(), KernelError> {
        if self.sockets == 0 {
            return Ok(());
        }
        self.iterate(&Waiting { begins: 1, ..Waiting::of(&[]) }).map(drop)
    }

    /// Examines every connection that has a state when a window ends.
    fn waiting(&mut self, opened: Nanoseconds, now: Nanoseconds) -> Result<Ended, KernelError> {
        let empty = Waiting { now: now.0, opens: opened.0, stalled_ns: Self::STALLED.0, ..Waiting::of(&[]) };
        let found = self.iterate(&empty)?;
        self.sockets = found.sockets;
        let waiting = LiveWaiting {
            sockets: found.sockets,
            requests: found.requests,
            oldest: (found.oldest > 0).then(|| Nanoseconds(now.0.saturating_sub(found.oldest))),
            stalled: found.stalled,
            throughout: found.throughout,
            incomplete: found.incomplete,
            ages: counted(&[0; BUCKETS], &found.ages),
        };
        let tcp = LiveCounts {
            segments_out: found.segments_out,
            retransmitted: found.retransmitted,
            needless: found.needless,
            segments_in: found.segments_in,
            out_of_order: found.out_of_order,
            clients_full: found.clients_full,
            ..LiveCounts::default()
        };
        let entered = counted(&[0; BUCKETS], &found.entered);
        Ok(Ended { waiting, entered, rtt: counted(&[0; BUCKETS], &found.rtt), tcp })
    }

    /// Removes all unanswered requests from the maps of datagrams. Returns how many of them had waited for at
    /// least [`Self::UNANSWERED`].
    fn unanswered(&self, ended: Nanoseconds, waiting: &mut LiveWaiting) -> Result<u64, KernelError> {
        let mut unanswered = 0;
        let mut add = |exchange: &Exchange| {
            let age = Nanoseconds(ended.0.saturating_sub(exchange.probed));
            if exchange.untimed > 0 || exchange.incomplete > 0 || exchange.probed > ended.0 {
                return;
            }
            waiting.ages.add(age);
            waiting.requests += 1;
            waiting.oldest = waiting.oldest.max(Some(age));
            unanswered += u64::from(age >= Self::UNANSWERED);
        };
        for exchange in self.loaded.map("queries")?.drain()? {
            add(&Exchange::of(&exchange));
        }
        for peer in self.loaded.map("peers")?.drain()? {
            let PeerState { mut head, tail, exchanges, .. } = PeerState::of(&peer);
            for _ in 0..EXCHANGES_MAX {
                if head != tail {
                    add(&exchanges[head as usize % EXCHANGES_MAX]);
                    head = head.wrapping_add(1);
                }
            }
        }
        Ok(unanswered)
    }

    fn totals(&self) -> Result<Totals, KernelError> {
        let mut totals = Totals::none();
        for bytes in self.loaded.map("counts")?.get_per_cpu(&ONLY)? {
            totals.counts += counts_of(&Counts::of(&bytes));
        }
        totals.counts.missed = self.run_times()?.iter().map(|program| program.missed).sum();
        for bytes in self.loaded.map("spans")?.get_per_cpu(&ONLY)? {
            add_spans(&mut totals.spans, &Spans::of(&bytes));
        }
        let parts = self.loaded.map("parts")?;
        for slot in self.slots()?.into_keys() {
            let mut sum: Option<Part> = None;
            for bytes in parts.get_per_cpu(&slot.to_ne_bytes())? {
                let part = Part::of(&bytes);
                match &mut sum {
                    Some(sum) => add_part(sum, &part),
                    None => sum = Some(part),
                }
            }
            totals.parts.extend(sum.map(|sum| (slot, sum)));
        }
        Ok(totals)
    }

    /// Returns the NAPI or thread of each entry in the map `parts`.
    fn slots(&self) -> Result<BTreeMap<u32, Owner>, KernelError> {
        let slots = self.loaded.map("slots")?;
        let mut found = BTreeMap::from([(NAPIS_MAX, Owner::Worker(None))]);
        for key in slots.keys() {
            let Some(slot) = slots.get(&key)?.and_then(|slot| slot.try_into().ok()).map(u32::from_ne_bytes)
            else {
                continue;
            };
            let key = Key::of(&key);
            if key.is_worker == 0 {
                found.insert(slot, Owner::Napi(NapiId(key.id)));
            } else {
                found.insert(NAPIS_MAX + slot, Owner::Worker(self.pids_known.then_some(Pid(key.id))));
            }
        }
        Ok(found)
    }

    #[expect(clippy::type_complexity, reason = "two lists of a window")]
    fn parts_since(
        &self,
        before: &Totals,
    ) -> Result<(Vec<(NapiId, LivePart)>, Vec<(Option<Pid>, LivePart)>), KernelError> {
        let (mut napis, mut workers) = (Vec::new(), Vec::new());
        for (slot, owner) in self.slots()? {
            let Some(now) = self.before.parts.get(&slot) else { continue };
            let part = part_between(before.parts.get(&slot), now);
            match owner {
                // A NAPI slot without polls is unused.
                Owner::Napi(napi) if part.polls.total() > 0 => napis.push((napi, part)),
                Owner::Worker(worker) if part.requests > 0 => workers.push((worker, part)),
                Owner::Napi(_) | Owner::Worker(_) => {}
            }
        }
        Ok((napis, workers))
    }
}

/// The state of all connections at the end of a window.
struct Ended {
    waiting: LiveWaiting,
    /// The ages of unanswered requests when the window opened.
    entered: SpanCounts,
    /// The smoothed round-trip times.
    rtt: SpanCounts,
    /// The increase of TCP's own counters since the window began; fields that TCP does not count are zero.
    tcp: LiveCounts,
}

/// The NAPI or thread of an entry in the map `parts`.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Napi(NapiId),
    Worker(Option<Pid>),
}

impl Totals {
    fn none() -> Self {
        Self { counts: LiveCounts::default(), spans: Spans::of(&[]), parts: BTreeMap::new() }
    }
}

fn configure(
    open: &mut OpenObject,
    config: &Config,
    hook: AnswerHook,
    has_udp: bool,
) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut().filter(|map| map.name() == ".rodata.config") {
        map.set_initial_value(&config.to_bytes())?;
    }
    for mut map in
        open.maps_mut().filter(|map| !has_udp && (map.name() == "queries" || map.name() == "peers"))
    {
        map.set_max_entries(1)?;
    }
    for mut program in open.progs_mut() {
        let name = program.name();
        if name == hook.program() || has_udp && OF_DATAGRAMS.iter().any(|of| name == *of) {
            program.set_autoload(true);
        }
    }
    Ok(())
}

/// Passes the names of all counters of `struct live_counts`, except the array by protocol, to a macro.
macro_rules! counters {
    ($apply:ident) => {
        $apply! {
            segments, connections, arrivals, joined, answered, batched, carried, untimed, requests,
            sends, continued, unsolicited, overflown, answers_unseen, unmeasured, mptcp,
            without_napi, without_poll, at_opening, steered, masked, unmasked, conditioned,
            threaded, by_ksoftirqd, woken, stamped, unseen, opened, zero_windows, datagrams,
            identified, unpaired, quic, dropped, strays, discarded,
        }
    };
}

fn counts_of(counts: &Counts) -> LiveCounts {
    macro_rules! copy {
        ($($counter:ident,)*) => { LiveCounts { $($counter: counts.$counter,)* ..LiveCounts::default() } };
    }
    let [other, tls, http1, http2, resp, memcached, postgresql, dns, udp] = counts.protocols;
    let protocols = LiveProtocols { other, tls, http1, http2, resp, memcached, postgresql, dns, udp };
    LiveCounts { protocols, ..counters!(copy) }
}

/// Returns the increase of all counters.
fn difference(before: &LiveCounts, now: &LiveCounts) -> LiveCounts {
    macro_rules! subtract {
        ($($counter:ident,)*) => {
            LiveCounts { $($counter: now.$counter - before.$counter,)* ..LiveCounts::default() }
        };
    }
    macro_rules! by_protocol {
        ($($protocol:ident),*) => {
            LiveProtocols { $($protocol: now.protocols.$protocol - before.protocols.$protocol),* }
        };
    }
    let protocols = by_protocol!(other, tls, http1, http2, resp, memcached, postgresql, dns, udp);
    LiveCounts { protocols, missed: now.missed - before.missed, ..counters!(subtract) }
}

/// Clears the measurements that depend on pairing, for a service that does not answer every datagram. Only
/// the time in the socket's queue remains.
fn forget_pairs(counts: &mut LiveCounts, spans: &mut LiveSpans, waiting: &mut LiveWaiting) {
    let pairs = counts.protocols.udp;
    counts.unpaired = counts.datagrams.saturating_sub(counts.identified);
    counts.answered = counts.answered.saturating_sub(pairs);
    counts.requests = counts.requests.saturating_sub(pairs);
    counts.untimed = counts.untimed.min(counts.answered);
    counts.protocols.udp = 0;
    counts.unanswered = 0;
    *waiting = LiveWaiting { sockets: waiting.sockets, ..LiveWaiting::default() };
    let wakeup = std::mem::take(&mut spans.wakeup);
    *spans = LiveSpans {
        wakeup,
        receive: spans.receive.clone(),
        transmit: spans.transmit.clone(),
        ..LiveSpans::default()
    };
}

fn add_wrapping<const N: usize>(sum: &mut [u32; N], more: &[u32; N]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.wrapping_add(*more);
    }
}

fn add_spans(sum: &mut Spans, more: &Spans) {
    macro_rules! add {
        ($($span:ident),*) => { $(add_wrapping(&mut sum.$span, &more.$span);)* };
    }
    add!(
        residence,
        since_last,
        entered,
        wakeup,
        service,
        ring,
        uniform,
        conditional,
        stamped,
        turnaround,
        bytes,
        receive,
        transmit
    );
}

/// Returns the increase of all buckets.
fn counted(before: &[u32; BUCKETS], now: &[u32; BUCKETS]) -> SpanCounts {
    let mut counts = SpanCounts::new();
    for (bucket, (before, now)) in before.iter().zip(now).enumerate() {
        counts.add_to(bucket, now.wrapping_sub(*before).into());
    }
    counts
}

fn spans_between(before: &Spans, now: &Spans) -> LiveSpans {
    LiveSpans {
        residence: counted(&before.residence, &now.residence),
        since_last: counted(&before.since_last, &now.since_last),
        entered: counted(&before.entered, &now.entered),
        wakeup: counted(&before.wakeup, &now.wakeup),
        service: counted(&before.service, &now.service),
        ring: counted(&before.ring, &now.ring),
        uniform: counted(&before.uniform, &now.uniform),
        conditional: counted(&before.conditional, &now.conditional),
        stamped: counted(&before.stamped, &now.stamped),
        turnaround: counted(&before.turnaround, &now.turnaround),
        bytes: counted(&before.bytes, &now.bytes),
        receive: counted(&before.receive, &now.receive),
        transmit: counted(&before.transmit, &now.transmit),
        rtt: SpanCounts::new(),
    }
}

fn add_part(sum: &mut Part, more: &Part) {
    sum.requests += more.requests;
    sum.ring_ns += more.ring_ns;
    sum.wakeup_ns += more.wakeup_ns;
    sum.service_ns += more.service_ns;
    for (sum, more) in
        sum.polls.iter_mut().chain(&mut sum.packets).zip(more.polls.iter().chain(&more.packets))
    {
        *sum += more;
    }
    add_wrapping(&mut sum.total, &more.total);
}

fn part_between(before: Option<&Part>, now: &Part) -> LivePart {
    let none = Part::of(&[]);
    let before = before.unwrap_or(&none);
    let mut total = SpanCounts::new();
    for eighth in 0..PART_BUCKETS {
        // With eight buckets per power of two, each bucket covers two of those with sixteen; split its count
        // between both.
        let count = u64::from(now.total[eighth].wrapping_sub(before.total[eighth]));
        total.add_to(2 * eighth, count / 2);
        total.add_to(2 * eighth + 1, count - count / 2);
    }
    let polls = |before: &[u64; 4], now: &[u64; 4]| LivePolls {
        interrupt: now[0] - before[0],
        timer: now[1] - before[1],
        application: now[2] - before[2],
        kthread: now[3] - before[3],
    };
    LivePart {
        requests: now.requests - before.requests,
        ring: Nanoseconds(now.ring_ns - before.ring_ns),
        wakeup: Nanoseconds(now.wakeup_ns - before.wakeup_ns),
        service: Nanoseconds(now.service_ns - before.service_ns),
        total,
        polls: polls(&before.polls, &now.polls),
        packets: polls(&before.packets, &now.packets),
    }
}
