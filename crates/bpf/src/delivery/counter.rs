//! Loads the counting programs and reads their maps.

use std::time::{Duration, Instant};

use libbpf_rs::OpenObject;
use sys::error::KernelError;

use super::snapshot::Snapshot;
use crate::cost::{RunTime, run_times};
use crate::in_initial_pid_namespace;
use crate::loaded::Loaded;
use crate::mirrored::{Mirrored as _, mirrored};

pub(super) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/delivery.bpf.o"));

/// The key of a map that has only one entry.
const ONLY: [u8; 4] = [0; 4];

/// Counts who polled which NAPI of this host, in all network namespaces, from load until drop.
///
/// Several processes can count at the same time, independently. Needs CAP_BPF and CAP_PERFMON.
///
/// A counted poll takes about 50 ns longer, nearly all of it the overhead of calling any program on a
/// tracepoint. A server of tiny requests with one poll each loses 2 to 5 % of its throughput (`cargo bench
/// --bench delivery_cost`). Long observations should therefore sample, as [`super::DeliverySampler`] does: a
/// paused counter costs nothing.
#[derive(Debug)]
pub struct DeliveryCounter {
    loaded: Loaded,
    timers_hidden: bool,
    pids_known: bool,
    /// When the counter last started or resumed; `None` while it is paused.
    since: Option<Instant>,
    /// The time that was counted before `since`.
    counted: Duration,
    /// The number of snapshots so far. For each interval between two snapshots, the programs record the
    /// longest timer span.
    interval: u64,
}

impl DeliveryCounter {
    /// Loads the programs and starts to count.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF, and on PREEMPT_RT, where softirqs have no separate stack
    /// and thus cannot be identified; otherwise the kernel's error with the verifier's message.
    pub fn load() -> Result<Self, KernelError> {
        if rustix::system::uname().version().to_bytes().windows(10).any(|w| w == b"PREEMPT_RT") {
            let needs = "a kernel whose softirqs run on their own stack (not PREEMPT_RT)";
            return Err(KernelError::absent("count deliveries", needs, None));
        }
        let napi_watchdog = address_of("napi_watchdog");
        let mut loaded = Loaded::load("delivery", OBJECT, |open| configure(open, napi_watchdog))?;
        loaded.attach()?;
        Ok(Self {
            loaded,
            timers_hidden: napi_watchdog.is_none(),
            pids_known: in_initial_pid_namespace(),
            since: Some(Instant::now()),
            counted: Duration::ZERO,
            interval: 0,
        })
    }

    /// Stops counting until [`DeliveryCounter::resume`]; the counts are kept.
    pub fn pause(&mut self) {
        self.loaded.detach();
        self.counted = self.counted();
        self.since = None;
    }

    /// Resumes counting.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn resume(&mut self) -> Result<(), KernelError> {
        if self.since.is_none() {
            self.loaded.attach()?;
            self.since = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns the total time during which the counter was not paused.
    fn counted(&self) -> Duration {
        self.counted + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether the NAPI timers cannot be traced, see [`model::Delivered::timers_hidden`].
    pub fn timers_hidden(&self) -> bool {
        self.timers_hidden
    }

    /// Reads the counts so far, and starts a new interval.
    ///
    /// The kernel continues to count while the maps are read: one count of a snapshot may include a poll that
    /// another count does not include yet.
    ///
    /// # Errors
    /// The kernel's error, which means that the maps are gone.
    pub fn snapshot(&mut self) -> Result<Snapshot, KernelError> {
        let ended = self.interval;
        self.interval += 1;
        self.loaded.map(".data.interval")?.set(&ONLY, &self.interval.to_ne_bytes())?;
        let mut snapshot = Snapshot::empty(self.counted(), ended, self.timers_hidden);

        snapshot.add_host(&self.loaded.map("host")?.get_per_cpu(&ONLY)?);
        let napis = self.loaded.map("napis")?;
        for key in napis.keys() {
            snapshot.add_napi(&key, &napis.get_per_cpu(&key)?);
        }
        let pollers = self.loaded.map("pollers")?;
        for key in pollers.keys() {
            snapshot.add_poller(&key, &pollers.get_per_cpu(&key)?, self.pids_known);
        }
        let missed: u64 = self.run_times()?.iter().map(|program| program.missed).sum();
        snapshot.add_lost(missed);
        Ok(snapshot)
    }

    /// Returns the run times of the programs so far, measured while [`crate::Statistics`] are enabled.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn run_times(&self) -> Result<Vec<RunTime>, KernelError> {
        run_times(&self.loaded)
    }
}

mirrored! {
    /// `struct delivery_config`.
    struct Config = "delivery_config" {
        napi_watchdog: u64,
    }
}

fn configure(open: &mut OpenObject, napi_watchdog: Option<u64>) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut().filter(|map| map.name() == ".rodata.config") {
        map.set_initial_value(&Config { napi_watchdog: napi_watchdog.unwrap_or(0) }.to_bytes())?;
    }
    Ok(())
}

/// Returns the address of a kernel function, or `None` if no function has this name or the kernel hides
/// addresses.
///
/// Kernel: 6.18, `kernel/kallsyms.c` `s_show()`: `ffffffff81e609e0 t napi_watchdog`, or zeros if the address
/// is hidden.
pub(crate) fn address_of(function: &str) -> Option<u64> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").ok()?;
    let line = symbols.lines().find(|line| line.split_ascii_whitespace().nth(2) == Some(function))?;
    let address = u64::from_str_radix(line.split_ascii_whitespace().next()?, 16).ok()?;
    (address != 0).then_some(address)
}

#[cfg(test)]
mod layout {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, Config);
}
