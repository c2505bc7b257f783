//! Measurements of a live service from outside: how long its requests took, and where that time went.
//!
//! A request *arrives* when the kernel's TCP receives it, is *read* when the application has read all of it,
//! and is *answered* when the application sends the first byte of the answer. Before it arrives, the request
//! has waited in the NIC's ring until the ring was polled. That wait is estimated, because no stock kernel
//! records it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{NapiId, Pid};
use crate::units::Nanoseconds;

/// The ports on which a service receives requests, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePorts {
    /// The ports of the service's TCP listeners.
    pub tcp: Vec<u16>,
    /// The ports of the service's UDP sockets that have no peer.
    pub udp: Vec<u16>,
}

impl ServicePorts {
    /// Ports below this number are reserved for services; higher ports may also be used for a program's own
    /// requests to others. Kernel: `include/net/sock.h` `PROT_SOCK`.
    const UNASSIGNED: u16 = 1024;

    /// Selects the requested port among these ports of a process or, without a request, the ports on which
    /// the process is likely to serve. Processes also have UDP sockets with arbitrary ports, for their own
    /// requests to others; such ports are selected only if there are no others.
    pub fn select(tcp: &BTreeSet<u16>, udp: &BTreeSet<u16>, asked: Option<u16>) -> Self {
        let is_asked = |port: &u16| asked.is_none_or(|asked| asked == *port);
        let tcp: Vec<u16> = tcp.iter().copied().filter(is_asked).collect();
        let of_service = |port: &u16| asked.is_some() || *port < Self::UNASSIGNED || tcp.contains(port);
        let mut found: Vec<u16> = udp.iter().copied().filter(is_asked).filter(of_service).collect();
        if tcp.is_empty() && found.is_empty() {
            found = udp.iter().copied().filter(is_asked).collect();
        }
        Self { tcp, udp: found }
    }

    /// Whether there are no ports.
    pub fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.udp.is_empty()
    }

    /// All port numbers.
    pub fn all(&self) -> Vec<u16> {
        let all: BTreeSet<u16> = self.tcp.iter().chain(&self.udp).copied().collect();
        all.into_iter().collect()
    }

    /// Keeps at most this many ports of each protocol, and returns the number of ports dropped.
    pub fn truncate(&mut self, most: usize) -> usize {
        let left_out = self.tcp.len().saturating_sub(most) + self.udp.len().saturating_sub(most);
        self.tcp.truncate(most);
        self.udp.truncate(most);
        left_out
    }
}

/// TCP ports.
impl From<Vec<u16>> for ServicePorts {
    fn from(tcp: Vec<u16>) -> Self {
        Self { tcp, udp: Vec::new() }
    }
}

/// Formats the ports as `80, 443`; with UDP ports as `53, 53/udp`.
impl fmt::Display for ServicePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tcp = self.tcp.iter().map(ToString::to_string);
        let ports: Vec<String> = tcp.chain(self.udp.iter().map(|port| format!("{port}/udp"))).collect();
        f.write_str(&ports.join(", "))
    }
}

/// A histogram of time spans: one bucket for each span of 0 to 15 ns, then sixteen buckets per power of two
/// up to 2⁴⁰ ns (18 minutes). The last bucket also counts longer spans. A bucket is at most a sixteenth as
/// wide as the spans that it counts.
///
/// Serialised as a list of pairs, bucket and count, of the non-empty buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanCounts(Vec<u64>);

impl SpanCounts {
    /// The number of buckets.
    pub const BUCKETS: usize = 592;

    /// An empty histogram.
    pub fn new() -> Self {
        Self(vec![0; Self::BUCKETS])
    }

    /// Returns the bucket that counts a span.
    pub fn bucket_of(span: Nanoseconds) -> usize {
        let span = span.0;
        if span < 16 {
            return usize::try_from(span).unwrap_or(0);
        }
        let power = usize::try_from(span.ilog2()).unwrap_or(usize::MAX);
        if power >= 40 {
            return Self::BUCKETS - 1;
        }
        let sixteenth = usize::try_from((span >> (power - 4)) & 15).unwrap_or(0);
        ((power - 3) << 4) | sixteenth
    }

    /// Returns the smallest span of a bucket; for the number after the last bucket, 2⁴⁰ ns.
    pub fn lower_edge(bucket: usize) -> Nanoseconds {
        if bucket < 16 {
            return Nanoseconds(u64::try_from(bucket).unwrap_or(0));
        }
        let (power, sixteenth) = ((bucket >> 4) + 3, u64::try_from(bucket & 15).unwrap_or(0));
        Nanoseconds((1 << power) + (sixteenth << (power - 4)))
    }

    /// Counts a span.
    pub fn add(&mut self, span: Nanoseconds) {
        self.0[Self::bucket_of(span)] += 1;
    }

    /// Counts this many spans in a bucket.
    ///
    /// # Panics
    /// If the bucket does not exist.
    pub fn add_to(&mut self, bucket: usize, count: u64) {
        self.0[bucket] += count;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.0.iter_mut().zip(&other.0) {
            *ours += theirs;
        }
    }

    /// Returns the number of spans that were counted.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Whether no span was counted.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&count| count == 0)
    }

    /// Returns the counts of all buckets.
    pub fn buckets(&self) -> &[u64] {
        &self.0
    }
}

impl Default for SpanCounts {
    fn default() -> Self {
        Self::new()
    }
}

impl Serialize for SpanCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().enumerate().filter(|(_, count)| **count > 0))
    }
}

impl<'de> Deserialize<'de> for SpanCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut counts = Self::new();
        for (bucket, count) in Vec::<(usize, u64)>::deserialize(deserializer)? {
            let place = counts
                .0
                .get_mut(bucket)
                .ok_or_else(|| serde::de::Error::custom(format!("bucket {bucket}, of {}", Self::BUCKETS)))?;
            *place += count;
        }
        Ok(counts)
    }
}

/// How much of each second is measured: [`PartOfSecond::LEAST`] to a full second, or nothing.
///
/// Written as a span, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOfSecond(Nanoseconds);

impl PartOfSecond {
    /// Nothing is measured.
    pub const OFF: Self = Self(Nanoseconds::ZERO);

    /// The daemon's default.
    pub const OF_DAEMON: Self = Self(Nanoseconds::from_millis(20));

    /// The shortest part of a second that may be measured: attaching and detaching the programs takes about
    /// as long.
    pub const LEAST: Nanoseconds = Nanoseconds::from_millis(10);

    /// The longest part.
    pub const MOST: Nanoseconds = Nanoseconds::from_millis(1_000);

    /// Returns the length of the part; `None` if nothing is measured.
    pub fn span(self) -> Option<Nanoseconds> {
        (!self.0.is_zero()).then_some(self.0)
    }
}

impl fmt::Display for PartOfSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.span() {
            Some(span) => span.fmt(f),
            None => f.pad("off"),
        }
    }
}

/// The error for text that is not a [`PartOfSecond`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAPartOfSecond(String);

impl fmt::Display for NotAPartOfSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (PartOfSecond::LEAST, PartOfSecond::MOST);
        write!(f, "`{}` is not a part of each second: expected {least} to {most}, or off", self.0)
    }
}

impl std::error::Error for NotAPartOfSecond {}

impl FromStr for PartOfSecond {
    type Err = NotAPartOfSecond;

    fn from_str(text: &str) -> Result<Self, NotAPartOfSecond> {
        if text == "off" {
            return Ok(Self::OFF);
        }
        let span: Option<Nanoseconds> = text.parse().ok();
        let span = span.filter(|span| span.is_zero() || (Self::LEAST..=Self::MOST).contains(span));
        span.map(Self).ok_or_else(|| NotAPartOfSecond(text.to_owned()))
    }
}

/// Event counts of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveCounts {
    /// The number of segments with data that arrived, not counting retransmissions.
    pub segments: u64,
    /// The number of connections with at least one event in the window.
    #[serde(default)]
    pub connections: u64,
    /// The number of exchanges that began. An exchange is everything that a client sends until the server
    /// answers, no matter how it was segmented. If the protocol is known, a request that arrives before the
    /// previous answer is a separate exchange.
    pub arrivals: u64,
    /// The number of segments that continued an exchange.
    #[serde(default)]
    pub joined: u64,
    /// The number of exchanges that were answered in the window.
    pub answered: u64,
    /// The number of answered exchanges that got no separate answer, because one write answered several
    /// exchanges.
    pub batched: u64,
    /// The number of answered exchanges that began before the window.
    #[serde(default)]
    pub carried: u64,
    /// The number of answered exchanges whose start is not known precisely enough: these exchanges are
    /// counted here, but not in the spans.
    #[serde(default)]
    pub untimed: u64,
    /// The number of requests in the answered exchanges, if the protocol shows them; otherwise the number of
    /// exchanges. Before 0.2 this counted arrivals by their bytes.
    pub requests: u64,
    /// Requests by protocol.
    #[serde(default)]
    pub protocols: LiveProtocols,
    /// The number of system calls that sent data.
    pub sends: u64,
    /// The number of sending calls that continued an answer.
    pub continued: u64,
    /// The number of sending calls without an outstanding request.
    pub unsolicited: u64,
    /// The number of requests on connections that already had the maximum number of tracked requests; each
    /// was merged into the last tracked request.
    pub overflown: u64,
    /// The number of exchanges on connections that sent data without being observed.
    #[serde(default)]
    pub answers_unseen: u64,
    /// The number of segments on connections beyond the maximum that can be measured.
    pub unmeasured: u64,
    /// The number of segments of MPTCP, whose answers cannot be observed.
    #[serde(default)]
    pub mptcp: u64,
    /// The number of answered exchanges that no NAPI delivered, so that their time in a ring is unknown.
    pub without_napi: u64,
    /// The number of answered exchanges whose poll record was overwritten, so that their time in a ring is
    /// unknown.
    pub without_poll: u64,
    /// The number of answered exchanges of a NAPI's first poll in the window: it is unknown when the ring was
    /// last empty, so the exchanges' time in the ring is unknown, too.
    #[serde(default)]
    pub at_opening: u64,
    /// The number of segments that TCP processed on another CPU than the one that polled their NAPI.
    pub steered: u64,
    /// The number of answered exchanges whose poll began while the NAPI's interrupt was masked.
    pub masked: u64,
    /// The number of answered exchanges whose poll began while the NAPI's interrupt was enabled.
    pub unmasked: u64,
    /// The number of answered exchanges whose time in the ring was estimated from turnarounds.
    pub conditioned: u64,
    /// The number of answered exchanges of a NAPI with a kernel thread.
    pub threaded: u64,
    /// The number of answered exchanges that ksoftirqd polled, so that it is unknown how long the softirq had
    /// been pending.
    #[serde(default)]
    pub by_ksoftirqd: u64,
    /// The number of exchanges in `threaded` whose poll began when the thread was seen to wake up.
    #[serde(default)]
    pub woken: u64,
    /// The number of answered exchanges whose client uses microsecond TCP timestamps.
    #[serde(default)]
    pub stamped: u64,
    /// The number of answered exchanges that were first noticed when they were read, because no BPF program
    /// saw them arrive. Their arrival time comes from TCP's own timestamps; their time in a ring is unknown.
    #[serde(default)]
    pub unseen: u64,
    /// The number of new connections, on which the service had sent nothing before the window.
    #[serde(default)]
    pub opened: u64,
    /// How often a read found the service's receive window closed, because the service reads more slowly than
    /// its clients send.
    #[serde(default)]
    pub zero_windows: u64,
    /// The number of segments with data that the service sent, including retransmissions. This count and the
    /// next five are TCP's own counts, for connections that existed when the window ended.
    #[serde(default)]
    pub segments_out: u64,
    /// The number of data segments that were retransmitted because they were lost or not acknowledged in
    /// time.
    #[serde(default)]
    pub retransmitted: u64,
    /// The number of segments that clients reported as duplicates (DSACK), so that their retransmission was
    /// unnecessary.
    #[serde(default)]
    pub needless: u64,
    /// The number of segments with data that arrived, including retransmitted ones.
    #[serde(default)]
    pub segments_in: u64,
    /// The number of data segments that arrived out of order, because an earlier segment was lost or
    /// overtaken.
    #[serde(default)]
    pub out_of_order: u64,
    /// The number of connections on which data waited because the client's receive window was full.
    #[serde(default)]
    pub clients_full: u64,
    /// Datagrams that arrived.
    #[serde(default)]
    pub datagrams: u64,
    /// The number of datagrams with an id that the answer repeats: DNS, memcached.
    #[serde(default)]
    pub identified: u64,
    /// The number of datagrams that are not paired with answers, because they are QUIC or because the service
    /// does not answer each datagram.
    #[serde(default)]
    pub unpaired: u64,
    /// The number of unpaired datagrams on ports that have received QUIC.
    #[serde(default)]
    pub quic: u64,
    /// The number of datagrams that did not fit into the socket's buffer, which are requests that stay
    /// unanswered.
    #[serde(default)]
    pub dropped: u64,
    /// The number of datagrams that were sent to a peer without a waiting request, or while pairing was off.
    #[serde(default)]
    pub strays: u64,
    /// The number of datagrams without an id that the kernel dropped after they arrived, so that no answer is
    /// paired with them.
    #[serde(default)]
    pub discarded: u64,
    /// The number of datagrams that had waited for an answer for at least 10 ms when the window ended.
    #[serde(default)]
    pub unanswered: u64,
    /// The number of events for which no BPF program ran, because they occurred while the program was running
    /// on the same CPU. No other count includes them. Kernel: 5.12, `bpf_prog_info` `recursion_misses`; 0 on
    /// earlier kernels.
    #[serde(default)]
    pub missed: u64,
}

impl LiveCounts {
    /// Whether nearly every datagram of an unknown protocol was answered; otherwise it is unknown which
    /// datagram an answer belongs to. If datagrams were not paired with answers, only the numbers of received
    /// and sent datagrams are compared. `None` if there were too few datagrams.
    pub fn are_answers_clear(&self, paired: bool) -> Option<bool> {
        /// The minimum number of datagrams from which to draw a conclusion.
        const FEW: u64 = 50;
        /// The tolerance: one in this many datagrams may lack an answer, and one in this many sent datagrams
        /// may not be an answer.
        const ONE_OF: u64 = 10;
        let received = self.datagrams.saturating_sub(self.identified).saturating_sub(self.quic);
        let sent = self.protocols.udp + self.strays;
        let most = received.max(sent);
        let is_even = received.abs_diff(sent) * ONE_OF <= most;
        (most >= FEW).then_some(is_even && (!paired || self.strays * ONE_OF <= sent))
    }

    /// Returns the number of segments that were lost: retransmitted segments, except those that clients had
    /// already received.
    pub const fn lost(&self) -> u64 {
        self.retransmitted.saturating_sub(self.needless)
    }
}

impl std::ops::AddAssign for LiveCounts {
    fn add_assign(&mut self, other: Self) {
        self.segments += other.segments;
        self.connections += other.connections;
        self.arrivals += other.arrivals;
        self.joined += other.joined;
        self.answered += other.answered;
        self.batched += other.batched;
        self.carried += other.carried;
        self.untimed += other.untimed;
        self.requests += other.requests;
        self.protocols += other.protocols;
        self.sends += other.sends;
        self.continued += other.continued;
        self.unsolicited += other.unsolicited;
        self.overflown += other.overflown;
        self.answers_unseen += other.answers_unseen;
        self.unmeasured += other.unmeasured;
        self.mptcp += other.mptcp;
        self.without_napi += other.without_napi;
        self.without_poll += other.without_poll;
        self.at_opening += other.at_opening;
        self.steered += other.steered;
        self.masked += other.masked;
        self.unmasked += other.unmasked;
        self.conditioned += other.conditioned;
        self.threaded += other.threaded;
        self.by_ksoftirqd += other.by_ksoftirqd;
        self.woken += other.woken;
        self.stamped += other.stamped;
        self.unseen += other.unseen;
        self.opened += other.opened;
        self.zero_windows += other.zero_windows;
        self.segments_out += other.segments_out;
        self.retransmitted += other.retransmitted;
        self.needless += other.needless;
        self.segments_in += other.segments_in;
        self.out_of_order += other.out_of_order;
        self.clients_full += other.clients_full;
        self.datagrams += other.datagrams;
        self.identified += other.identified;
        self.unpaired += other.unpaired;
        self.quic += other.quic;
        self.dropped += other.dropped;
        self.strays += other.strays;
        self.discarded += other.discarded;
        self.unanswered += other.unanswered;
        self.missed += other.missed;
    }
}

/// The number of answered requests by protocol, which is detected from the first bytes of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveProtocols {
    /// The number of exchanges of an unknown protocol.
    pub other: u64,
    /// The number of TLS exchanges: records are encrypted, so how many requests they hold is unknown.
    pub tls: u64,
    /// Requests of HTTP/1.
    pub http1: u64,
    /// The number of requests of unencrypted HTTP/2.
    pub http2: u64,
    /// The number of commands of RESP, the protocol of Redis.
    pub resp: u64,
    /// The number of commands of memcached's text protocol.
    pub memcached: u64,
    /// The number of PostgreSQL queries: `Query`, `Sync` and function calls.
    pub postgresql: u64,
    /// The number of DNS queries over UDP.
    #[serde(default)]
    pub dns: u64,
    /// The number of datagrams of other protocols, each with an answer to its sender.
    #[serde(default)]
    pub udp: u64,
}

impl LiveProtocols {
    /// Sums up the requests of the protocols that show them.
    pub const fn requests(&self) -> u64 {
        self.http1 + self.http2 + self.resp + self.memcached + self.postgresql + self.dns + self.udp
    }

    /// Sums up the exchanges of all other protocols.
    pub const fn exchanges(&self) -> u64 {
        self.other + self.tls
    }

    /// Returns the name and the count of each protocol that has a request, in descending order of counts.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let mut named = vec![
            ("HTTP/1", self.http1),
            ("HTTP/2", self.http2),
            ("RESP", self.resp),
            ("memcached", self.memcached),
            ("PostgreSQL", self.postgresql),
            ("DNS", self.dns),
            ("an unknown protocol over UDP", self.udp),
            ("TLS", self.tls),
            ("an unknown protocol", self.other),
        ];
        named.retain(|(_, count)| *count > 0);
        named.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        named
    }
}

impl std::ops::AddAssign for LiveProtocols {
    fn add_assign(&mut self, other: Self) {
        self.other += other.other;
        self.tls += other.tls;
        self.http1 += other.http1;
        self.http2 += other.http2;
        self.resp += other.resp;
        self.memcached += other.memcached;
        self.postgresql += other.postgresql;
        self.dns += other.dns;
        self.udp += other.udp;
    }
}

/// How long answered requests spent in each stage. Each span is counted once for each request of its
/// exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveSpans {
    /// The time from the first arrival to the answer, measured rather than estimated.
    pub residence: SpanCounts,
    /// The time from the last arrival to the answer, which excludes the time that the client took to send.
    #[serde(default)]
    pub since_last: SpanCounts,
    /// The age that exchanges had when the window opened, for those that began before it, whether or not they
    /// were answered in the window. Such exchanges take at least this long, so they say nothing about shorter
    /// response times.
    #[serde(default)]
    pub entered: SpanCounts,
    /// The time from arrival to read.
    pub wakeup: SpanCounts,
    /// The time from read to answer.
    pub service: SpanCounts,
    /// The time from entering the ring to arrival, by the best estimate.
    pub ring: SpanCounts,
    /// The time from entering the ring to the answer, by estimate U: the packets of a poll arrived uniformly
    /// over the time since the ring was empty.
    pub uniform: SpanCounts,
    /// The time from entering the ring to the answer, by estimate C if possible, otherwise by U. C assumes
    /// that the time from an answer to the client's next request has the distribution that was measured while
    /// interrupts were enabled.
    pub conditional: SpanCounts,
    /// The time from entering the ring to the answer, by estimate T: the client's TCP timestamps show how
    /// much longer a request was in transit than the fastest request of its connection. T needs clients with
    /// microsecond timestamps.
    #[serde(default)]
    pub stamped: SpanCounts,
    /// The time from an answer to the next arrival on the same connection while interrupts were enabled.
    pub turnaround: SpanCounts,
    /// The bytes of answered exchanges. Unlike the other fields, this is a histogram of sizes, not of spans.
    pub bytes: SpanCounts,
    /// The time from the softirq to TCP, for the first packets of polls; only in windows that traced the
    /// stack.
    #[serde(default)]
    pub receive: SpanCounts,
    /// The time from the answer to the device; only in windows that traced the stack.
    #[serde(default)]
    pub transmit: SpanCounts,
    /// The smoothed round-trip time of each connection with an event, at the end of the window. It includes
    /// the time that the client's acknowledgement waited in the ring.
    #[serde(default)]
    pub rtt: SpanCounts,
}

impl LiveSpans {
    /// Adds the counts of another window.
    pub fn merge(&mut self, other: &Self) {
        self.residence.merge(&other.residence);
        self.since_last.merge(&other.since_last);
        self.entered.merge(&other.entered);
        self.wakeup.merge(&other.wakeup);
        self.service.merge(&other.service);
        self.ring.merge(&other.ring);
        self.uniform.merge(&other.uniform);
        self.conditional.merge(&other.conditional);
        self.stamped.merge(&other.stamped);
        self.turnaround.merge(&other.turnaround);
        self.bytes.merge(&other.bytes);
        self.receive.merge(&other.receive);
        self.transmit.merge(&other.transmit);
        self.rtt.merge(&other.rtt);
    }
}

/// The number of polls of a NAPI, or of packets in these polls, by polling context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LivePolls {
    /// The number of polls after an interrupt.
    pub interrupt: u64,
    /// The number of polls in softirq while the interrupt was masked.
    pub timer: u64,
    /// The number of polls by an application in its own system call.
    pub application: u64,
    /// The number of polls by the NAPI's kernel thread.
    pub kthread: u64,
}

impl LivePolls {
    /// The sum.
    pub const fn total(&self) -> u64 {
        self.interrupt + self.timer + self.application + self.kthread
    }
}

impl std::ops::AddAssign for LivePolls {
    fn add_assign(&mut self, other: Self) {
        self.interrupt += other.interrupt;
        self.timer += other.timer;
        self.application += other.application;
        self.kthread += other.kthread;
    }
}

/// The requests that arrived through one NAPI, or that one thread answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LivePart {
    /// The number of answered requests.
    pub requests: u64,
    /// The requests' total time in the ring.
    pub ring: Nanoseconds,
    /// The requests' total time from arrival to read.
    pub wakeup: Nanoseconds,
    /// The requests' total time from read to answer.
    pub service: Nanoseconds,
    /// The times from entering the ring to the answer by the best estimate, with eight buckets per power of
    /// two.
    pub total: SpanCounts,
    /// The number of polls, if this part is a NAPI.
    pub polls: LivePolls,
    /// The number of packets in these polls, if this part is a NAPI, including packets of other services.
    pub packets: LivePolls,
}

impl LivePart {
    /// Adds the counts of another part.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.ring.0 += other.ring.0;
        self.wakeup.0 += other.wakeup.0;
        self.service.0 += other.service.0;
        self.total.merge(&other.total);
        self.polls += other.polls;
        self.packets += other.packets;
    }
}

/// The requests that are unanswered at the end of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveWaiting {
    /// The number of measured connections.
    pub sockets: u64,
    /// The number of unanswered exchanges, including those of earlier windows.
    pub requests: u64,
    /// The longest time that an exchange has waited since its last arrival.
    pub oldest: Option<Nanoseconds>,
    /// The number of connections that have waited for at least a second.
    #[serde(default)]
    pub stalled: u64,
    /// The number of connections that have waited for the whole window.
    #[serde(default)]
    pub throughout: u64,
    /// The number of requests that the client has sent only in part, if the protocol shows that. These
    /// requests wait for the client and are in no other count of this struct.
    #[serde(default)]
    pub incomplete: u64,
    /// The ages of all unanswered exchanges, since their first arrival.
    pub ages: SpanCounts,
}

/// The measurements of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveWindow {
    /// How long the BPF programs were attached.
    pub span: Nanoseconds,
    /// Events.
    pub counts: LiveCounts,
    /// The time spans of the answered requests.
    pub spans: LiveSpans,
    /// The requests and polls of each NAPI. NAPIs without requests and polls are omitted.
    pub napis: Vec<(NapiId, LivePart)>,
    /// The requests of each thread that answered them; `None` combines the threads beyond the maximum.
    pub workers: Vec<(Option<Pid>, LivePart)>,
    /// Unanswered requests at the end of the window.
    pub waiting: LiveWaiting,
    /// The run time of the measuring BPF programs, in windows in which the kernel recorded it. The overhead
    /// of calling the programs is not included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Nanoseconds>,
    /// How long the service's threads were runnable but waited for a CPU, summed over the threads; `None` if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_delay: Option<Nanoseconds>,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_span_is_in_the_bucket_whose_edges_hold_it() {
        for power in 0..40 {
            for near in [0_u64, 1, 3, 17, 255] {
                let span = Nanoseconds((1_u64 << power) + near);
                let bucket = SpanCounts::bucket_of(span);
                assert!(SpanCounts::lower_edge(bucket) <= span, "{span:?}");
                if bucket + 1 < SpanCounts::BUCKETS {
                    assert!(span < SpanCounts::lower_edge(bucket + 1), "{span:?}");
                }
            }
        }
        assert_eq!(SpanCounts::lower_edge(SpanCounts::BUCKETS), Nanoseconds(1 << 40));
    }

    #[test]
    fn a_resolvers_own_requests_have_no_port_of_the_service() {
        let (none, tcp) = (BTreeSet::new(), BTreeSet::from([53, 8053]));
        let udp = BTreeSet::from([53, 853, 8053, 33_333]);
        assert_eq!(ServicePorts::select(&tcp, &udp, None).to_string(), "53, 8053, 53/udp, 853/udp, 8053/udp");
        assert_eq!(ServicePorts::select(&tcp, &udp, Some(53)).to_string(), "53, 53/udp");
        assert_eq!(ServicePorts::select(&none, &udp, None).udp, [53, 853]);
        assert_eq!(ServicePorts::select(&none, &BTreeSet::from([33_333]), None).udp, [33_333]);
        assert_eq!(ServicePorts::select(&none, &udp, Some(33_333)).udp, [33_333]);
        assert!(ServicePorts::select(&tcp, &udp, Some(80)).is_empty());
    }

    #[test]
    fn a_service_that_answers_each_datagram_is_told_from_one_that_does_not() {
        let counts = |datagrams, udp, strays| {
            let protocols = LiveProtocols { udp, ..LiveProtocols::default() };
            LiveCounts { datagrams, strays, protocols, ..LiveCounts::default() }
        };
        assert_eq!(counts(1_000, 990, 0).are_answers_clear(true), Some(true));
        assert_eq!(counts(40, 0, 0).are_answers_clear(true), None, "too few to know");
        assert_eq!(counts(1_000, 300, 0).are_answers_clear(true), Some(false), "most are not answered");
        assert_eq!(counts(1_000, 1_000, 500).are_answers_clear(true), Some(false), "several answers each");
        assert_eq!(
            counts(1_000, 500, 500).are_answers_clear(true),
            Some(false),
            "half of them are no answers"
        );
        assert_eq!(counts(1_000, 0, 990).are_answers_clear(false), Some(true), "they may be paired again");
        assert_eq!(counts(1_000, 0, 300).are_answers_clear(false), Some(false));
        let dns = LiveCounts { identified: 1_000, ..counts(1_000, 0, 0) };
        assert_eq!(dns.are_answers_clear(true), None, "ids tell");
        let quic = LiveCounts { unpaired: 1_000, quic: 1_000, ..counts(1_000, 0, 0) };
        assert_eq!(quic.are_answers_clear(true), None);
    }

    #[test]
    fn a_part_of_each_second_is_off_or_long_enough_to_be_worth_attaching() {
        for (text, shown) in
            [("20ms", "20ms"), ("1s", "1s"), ("0", "off"), ("off", "off"), ("10000us", "10ms")]
        {
            assert_eq!(text.parse::<PartOfSecond>().map(|part| part.to_string()), Ok(shown.to_owned()));
        }
        for text in ["9ms", "2s", "", "on", "20"] {
            let wrong = text.parse::<PartOfSecond>().expect_err(text).to_string();
            assert_eq!(wrong, format!("`{text}` is not a part of each second: expected 10ms to 1s, or off"));
        }
    }

    #[test]
    fn counts_survive_being_written_and_read_and_a_bucket_that_is_none_is_refused() {
        let mut counts = SpanCounts::new();
        for span in [3, 3, 70_000, 1 << 40] {
            counts.add(Nanoseconds(span));
        }
        let text = serde_json::to_string(&counts).expect("written");
        assert_eq!(text, "[[3,2],[209,1],[591,1]]");
        assert_eq!(serde_json::from_str::<SpanCounts>(&text).expect("read"), counts);
        assert!(serde_json::from_str::<SpanCounts>("[[592,1]]").is_err());
    }
}
