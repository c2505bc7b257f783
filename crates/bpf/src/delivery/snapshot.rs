//! A snapshot of the counts, and the difference of two snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Delivered, Nanoseconds, NapiDelivered, NapiId, Pid, PollCounts};

use crate::mirrored::{Field, Mirrored as _, mirrored, name};

/// The counts of a [`super::DeliveryCounter`] since load.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The time counted.
    counted: Duration,
    /// The number of the interval that ended with this snapshot.
    interval: u64,
    timers_hidden: bool,
    napis: BTreeMap<NapiId, NapiCounts>,
    /// Polls in task context, by NAPI and process; the process is `None` if it is outside our pid namespace.
    pollers: BTreeMap<(NapiId, Option<Pid>), PollCounts>,
    backlog: PollCounts,
    lost: u64,
}

/// `struct napi_counts`, summed over all CPUs.
#[derive(Clone, Debug, Default)]
struct NapiCounts {
    device: String,
    interrupt: PollCounts,
    timer: PollCounts,
    kthread: PollCounts,
    timer_armed: u64,
    timer_expired: u64,
    suspended: u64,
    /// The longest timer span in the interval that ended with this snapshot.
    longest: Nanoseconds,
}

impl Snapshot {
    pub(super) fn empty(counted: Duration, interval: u64, timers_hidden: bool) -> Self {
        let (napis, pollers) = (BTreeMap::new(), BTreeMap::new());
        Self { counted, interval, timers_hidden, napis, pollers, backlog: PollCounts::default(), lost: 0 }
    }

    /// Adds the `struct host_counts` of each CPU.
    pub(super) fn add_host(&mut self, cpus: &[Vec<u8>]) {
        for bytes in cpus {
            let host = HostCounts::of(bytes);
            self.backlog += polls(&host.backlog);
            self.lost += host.lost;
        }
    }

    /// Adds an entry of the map `napis`, which holds a `struct napi_counts` for each CPU.
    pub(super) fn add_napi(&mut self, key: &[u8], cpus: &[Vec<u8>]) {
        let counts = self.napis.entry(NapiId(u32::take(key))).or_default();
        for bytes in cpus {
            let raw = RawCounts::of(bytes);
            counts.interrupt += polls(&raw.interrupt);
            counts.timer += polls(&raw.timer);
            counts.kthread += polls(&raw.kthread);
            counts.timer_armed += raw.timer_armed;
            counts.timer_expired += raw.timer_expired;
            counts.suspended += raw.suspended;
            for LongestSpan { ns, interval } in raw.longest {
                if interval == self.interval {
                    counts.longest = counts.longest.max(Nanoseconds(ns));
                }
            }
            let device = name(&raw.device);
            if counts.device.is_empty() {
                counts.device = device;
            }
        }
    }

    /// Adds an entry of the map `pollers`, which holds a `struct polls` for each CPU.
    pub(super) fn add_poller(&mut self, key: &[u8], cpus: &[Vec<u8>], pids_known: bool) {
        let key = Poller::of(key);
        let (napi, pid) = (NapiId(key.napi_id), Pid(key.tgid));
        let counts = self.pollers.entry((napi, pids_known.then_some(pid))).or_default();
        for bytes in cpus {
            *counts += polls(&Polls::of(bytes));
        }
    }

    pub(super) fn add_lost(&mut self, lost: u64) {
        self.lost += lost;
    }
}

fn polls(raw: &Polls) -> PollCounts {
    PollCounts { polls: raw.polls, packets: raw.packets, empty: raw.empty }
}

mirrored! {
    /// `struct polls`.
    struct Polls = "polls" {
        polls: u64,
        packets: u64,
        empty: u64,
    }

    /// `struct longest_span`.
    struct LongestSpan = "longest_span" {
        ns: u64,
        interval: u64,
    }

    /// `struct napi_counts`.
    struct RawCounts = "napi_counts" {
        interrupt: Polls,
        timer: Polls,
        kthread: Polls,
        timer_armed: u64,
        timer_expired: u64,
        suspended: u64,
        longest: [LongestSpan; 2],
        timer_due: u64,
        last_poller: u64,
        device: [u8; 16],
    }

    /// `struct poller`.
    struct Poller = "poller" {
        napi_id: u32,
        tgid: u32,
    }

    /// `struct host_counts`.
    struct HostCounts = "host_counts" {
        backlog: Polls,
        lost: u64,
    }
}

/// Returns the difference of two snapshots of the same counter. Omits NAPIs that were not polled and whose
/// timer was not armed. The interval is the time counted, without pauses, so that counts divided by it are
/// rates.
///
/// `timer_armed_max` covers only the interval that ended with `later` and began with the snapshot before
/// `later`.
pub fn between(earlier: &Snapshot, later: &Snapshot) -> Delivered {
    let interval = later.counted.saturating_sub(earlier.counted);
    let none = NapiCounts::default();
    let napis = later.napis.iter().map(|(&napi, now)| {
        let then = earlier.napis.get(&napi).unwrap_or(&none);
        let mut by_process = Vec::new();
        let mut application = PollCounts::default();
        for (&(_, pid), now) in later.pollers.range((napi, None)..=(napi, Some(Pid(u32::MAX)))) {
            let then = earlier.pollers.get(&(napi, pid)).copied().unwrap_or_default();
            let polled = difference(then, *now);
            application += polled;
            by_process.extend(pid.filter(|_| polled.polls > 0).map(|pid| (pid, polled)));
        }
        by_process.sort_by_key(|(pid, polled)| (std::cmp::Reverse(polled.polls), *pid));
        NapiDelivered {
            napi,
            device: now.device.clone(),
            interrupt: difference(then.interrupt, now.interrupt),
            timer: difference(then.timer, now.timer),
            application,
            kthread: difference(then.kthread, now.kthread),
            by_process,
            timer_armed: now.timer_armed.saturating_sub(then.timer_armed),
            timer_expired: now.timer_expired.saturating_sub(then.timer_expired),
            timer_armed_max: now.longest,
            suspended: now.suspended.saturating_sub(then.suspended),
        }
    });
    let moved =
        |napi: &NapiDelivered| napi.total().polls > 0 || napi.timer_armed > 0 || napi.timer_expired > 0;
    Delivered {
        interval: Nanoseconds(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)),
        napis: napis.filter(moved).collect(),
        backlog: difference(earlier.backlog, later.backlog),
        lost: later.lost.saturating_sub(earlier.lost),
        timers_hidden: later.timers_hidden,
    }
}

fn difference(earlier: PollCounts, later: PollCounts) -> PollCounts {
    PollCounts {
        polls: later.polls.saturating_sub(earlier.polls),
        packets: later.packets.saturating_sub(earlier.packets),
        empty: later.empty.saturating_sub(earlier.empty),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(super::super::counter::OBJECT, Polls, LongestSpan, RawCounts, Poller, HostCounts);

    /// Encodes a value in the BPF program's format: numbers, followed by a name.
    fn value(numbers: &[u64], name: &str) -> Vec<u8> {
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let mut field = [0; 16];
        field[..name.len()].copy_from_slice(name.as_bytes());
        bytes.extend(field);
        bytes
    }

    fn key(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[rustfmt::skip]
    fn napi(interrupt: [u64; 3], timer: [u64; 3], armed: u64, longest: [u64; 4], name: &str) -> Vec<u8> {
        let mut numbers = Vec::new();
        numbers.extend(interrupt);
        numbers.extend(timer);
        numbers.extend([0, 0, 0]);
        numbers.extend([armed, 0, 0]);
        numbers.extend(longest);
        numbers.extend([1, 1]);
        let bytes = value(&numbers, name);
        assert_eq!(bytes.len(), 160, "sizeof(struct napi_counts)");
        bytes
    }

    #[test]
    fn the_counts_of_all_cpus_are_added_and_the_longest_timer_is_of_the_interval_that_ended() {
        let mut earlier = Snapshot::empty(Duration::from_secs(1), 0, false);
        earlier.add_napi(&key(&[300]), &[napi([10, 20, 1], [5, 5, 0], 7, [99_000, 0, 0, 0], "eth0")]);
        let mut later = Snapshot::empty(Duration::from_secs(3), 1, false);
        let cpus = [
            napi([12, 25, 1], [9, 8, 3], 9, [99_000, 0, 19_999, 1], "eth0"),
            napi([1, 64, 0], [0, 0, 0], 1, [0, 0, 15_000, 1], ""),
        ];
        later.add_napi(&key(&[300]), &cpus);
        later.add_napi(&key(&[301]), &[napi([0; 3], [0; 3], 0, [0; 4], "eth0")]);
        later.add_poller(&key(&[300, 812]), &[value(&[3, 96, 0], ""), value(&[1, 0, 1], "")], true);

        let delivered = between(&earlier, &later);
        let [eth0] = &delivered.napis[..] else { panic!("the idle NAPI is left out: {delivered:?}") };
        assert_eq!(delivered.interval, Nanoseconds(2_000_000_000));
        assert_eq!(eth0.device, "eth0");
        assert_eq!(eth0.interrupt, PollCounts { polls: 3, packets: 69, empty: 0 });
        assert_eq!(eth0.timer, PollCounts { polls: 4, packets: 3, empty: 3 });
        assert_eq!(eth0.application, PollCounts { polls: 4, packets: 96, empty: 1 });
        assert_eq!(eth0.by_process, [(Pid(812), eth0.application)]);
        assert_eq!((eth0.timer_armed, eth0.timer_armed_max), (3, Nanoseconds(19_999)));
    }

    #[test]
    fn an_application_of_another_pid_namespace_is_counted_and_not_named() {
        let empty = Snapshot::empty(Duration::from_secs(1), 0, false);
        let mut later = Snapshot::empty(Duration::from_secs(3), 1, false);
        later.add_napi(&key(&[300]), &[napi([0; 3], [0; 3], 0, [0; 4], "eth0")]);
        later.add_poller(&key(&[300, 812]), &[value(&[3, 96, 0], "")], false);
        later.add_poller(&key(&[300, 813]), &[value(&[1, 4, 0], "")], false);
        let delivered = between(&empty, &later);
        assert_eq!(delivered.napis[0].application.packets, 100);
        assert!(delivered.napis[0].by_process.is_empty());
    }
}
