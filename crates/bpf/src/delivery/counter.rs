//! The counting programs in the kernel.

use std::time::{Duration, Instant};

use libbpf_rs::OpenObject;
use sys::error::KernelError;

use super::snapshot::Snapshot;
use crate::cost::{RunTime, run_times};
use crate::in_initial_pid_namespace;
use crate::loaded::Loaded;
use crate::mirrored::{Mirrored as _, mirrored};

pub(super) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/delivery.bpf.o"));

/// The only key of a map with one entry, and the first index of an array.
const ONLY: [u8; 4] = [0; 4];

/// Counts, from its loading until it is dropped, who polled which NAPI of this host, in all network namespaces.
///
/// Any number of processes may count at the same time, each for itself. Needs CAP_BPF and CAP_PERFMON.
///
/// A poll takes about 50 ns longer while it is counted, nearly all of it the kernel's way to any program on a
/// tracepoint. A server of tiny requests that takes a poll for each loses 2 to 5 % of its throughput (`cargo bench
/// --bench delivery_cost`). So who watches for long takes samples, as [`super::Sampler`] does: after
/// [`DeliveryCounter::pause`] it costs nothing.
#[derive(Debug)]
pub struct DeliveryCounter {
    loaded: Loaded,
    timers_hidden: bool,
    pids_known: bool,
    /// Since when it counts; `None` while it pauses.
    since: Option<Instant>,
    /// How long it had counted before that.
    counted: Duration,
    /// How many snapshots were taken; the programs keep the longest timer of each interval between them.
    interval: u64,
}

impl DeliveryCounter {
    /// Loads the programs and begins to count.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF and on PREEMPT_RT, where softirqs have no stack of their own to
    /// identify them by; else the kernel's refusal with the verifier's words.
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

    /// Stops counting until [`DeliveryCounter::resume`]; what was counted stays.
    pub fn pause(&mut self) {
        self.loaded.detach();
        self.counted = self.counted();
        self.since = None;
    }

    /// Goes on counting.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn resume(&mut self) -> Result<(), KernelError> {
        if self.since.is_none() {
            self.loaded.attach()?;
            self.since = Some(Instant::now());
        }
        Ok(())
    }

    /// How long it has counted, without its pauses.
    fn counted(&self) -> Duration {
        self.counted + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether the NAPI timers cannot be watched, see [`model::Delivered::timers_hidden`].
    pub fn timers_hidden(&self) -> bool {
        self.timers_hidden
    }

    /// Reads what was counted so far, and begins a new interval.
    ///
    /// The tables are read while the kernel goes on counting: a poll of that moment may be in one count of the
    /// snapshot and not yet in another.
    ///
    /// # Errors
    /// The kernel's, which means that the tables are gone.
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

    /// What the programs cost so far, where [`crate::Statistics`] are on.
    ///
    /// # Errors
    /// The kernel's.
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

/// The address of a function of the kernel; `None` where it has none with this name or hides all addresses.
///
/// Kernel: 6.18, `kernel/kallsyms.c` `s_show()`: `ffffffff81e609e0 t napi_watchdog`, zeros where hidden.
fn address_of(function: &str) -> Option<u64> {
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
