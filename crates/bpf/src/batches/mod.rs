//! Measures how long applications take to handle the events of one `epoll_wait`.

use std::collections::BTreeMap;

use libbpf_rs::OpenObject;
use model::{BatchesOf, EventBatches, Fd, Nanoseconds, NapiId, Pid};
use sys::clock::monotonic;
use sys::error::KernelError;

use crate::delivery::address_of;
use crate::in_initial_pid_namespace;
use crate::loaded::Loaded;
use crate::mirrored::{Mirrored as _, mirrored};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/batches.bpf.o"));

/// The programs that measure the batches of all epolls.
const AT_EPOLL_WAIT: [&str; 2] = ["epoll_waits", "epoll_returns"];

/// The programs that measure the batches of applications that suspend IRQs.
const AT_NAPIS: [&str; 3] = ["timer_armed", "timer_expired", "polled"];

/// Measures batches on the whole host from load until drop. Needs CAP_BPF and CAP_PERFMON.
///
/// If the kernel allows fentry and fexit programs, the meter measures all epolls, with two programs for each
/// `epoll_wait`. Otherwise it measures only applications that suspend IRQs, from the NAPI's timer and polls.
/// The meter never pauses, because sampling would miss the longest batch; it costs as much as a
/// [`crate::DeliveryCounter`] that is never paused.
#[derive(Debug)]
pub struct BatchMeter {
    loaded: Loaded,
    by_epoll: bool,
}

impl BatchMeter {
    /// Loads the programs and starts to measure. If `suspends` is false, no IRQ on the host can be suspended,
    /// so only the programs for all epolls are useful.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] in these cases: no kernel BTF; this process is outside the initial pid
    /// namespace, so that its pids differ from the kernel's; or the kernel allows no fentry programs and
    /// hides the addresses of its functions. Otherwise the kernel's error.
    pub fn load(suspends: bool) -> Result<Self, KernelError> {
        if !in_initial_pid_namespace() {
            return Err(KernelError::absent("measure batches of events", "the initial pid namespace", None));
        }
        Self::at_epoll_wait().or_else(|refused| if suspends { Self::at_napis() } else { Err(refused) })
    }

    /// Measures all epolls.
    ///
    /// # Errors
    /// The kernel's error, such as EPERM where fentry programs are not allowed.
    pub fn at_epoll_wait() -> Result<Self, KernelError> {
        Self::with(&AT_EPOLL_WAIT, 0, true)
    }

    /// Measures only applications that suspend IRQs, which works without fentry programs.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] if the kernel hides the addresses of its functions; otherwise the kernel's error.
    pub fn at_napis() -> Result<Self, KernelError> {
        let Some(napi_watchdog) = address_of("napi_watchdog") else {
            let needs = "the addresses of kernel functions (kernel.kptr_restrict)";
            return Err(KernelError::absent("measure batches of events", needs, None));
        };
        Self::with(&AT_NAPIS, napi_watchdog, false)
    }

    fn with(programs: &[&str], napi_watchdog: u64, by_epoll: bool) -> Result<Self, KernelError> {
        let mut loaded = Loaded::load("batches", OBJECT, |open| prepare(open, programs, napi_watchdog))?;
        loaded.attach()?;
        Ok(Self { loaded, by_epoll })
    }

    /// Returns the batches since load, by process and epoll or NAPI. If a descriptor was closed and reused in
    /// the meantime, both epolls count as one.
    ///
    /// # Errors
    /// The kernel's error, which means that the map is gone.
    pub fn read(&self) -> Result<BTreeMap<(Pid, BatchesOf), EventBatches>, KernelError> {
        let map = self.loaded.map("batches")?;
        let mut found = BTreeMap::new();
        for key in map.keys() {
            let Some(value) = map.get(&key)? else { continue };
            let key = RawBatchesOf::of(&key);
            let of =
                if self.by_epoll { BatchesOf::Epoll(Fd(key.id)) } else { BatchesOf::Napi(NapiId(key.id)) };
            found.insert((Pid(key.tgid), of), batches(&RawBatches::of(&value), monotonic()));
        }
        Ok(found)
    }

    /// Returns the number of batches that were not measured because there were too many epolls.
    ///
    /// # Errors
    /// The kernel's error, which means that the map is gone.
    pub fn lost(&self) -> Result<u64, KernelError> {
        let bytes = self.loaded.map(".data.lost")?.get(&[0; 4])?.unwrap_or_default();
        Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
    }
}

fn prepare(open: &mut OpenObject, programs: &[&str], napi_watchdog: u64) -> libbpf_rs::Result<()> {
    for mut program in open.progs_mut() {
        let wanted = programs.iter().any(|name| program.name() == *name);
        program.set_autoload(wanted);
    }
    for mut map in open.maps_mut().filter(|map| map.name() == ".rodata.config") {
        map.set_initial_value(&Config { napi_watchdog }.to_bytes())?;
    }
    Ok(())
}

fn batches(raw: &RawBatches, now: Nanoseconds) -> EventBatches {
    EventBatches {
        count: raw.count,
        events: raw.events,
        total: Nanoseconds(raw.ns),
        longest: Nanoseconds(raw.longest_ns),
        longest_events: raw.longest_events,
        maxevents: raw.maxevents,
        outlasted: raw.outlasted,
        unfinished: (raw.since > 0).then(|| Nanoseconds(now.0.saturating_sub(raw.since))),
    }
}

mirrored! {
    /// `struct batches_config`.
    struct Config = "batches_config" {
        napi_watchdog: u64,
    }

    /// `struct batches_of`.
    struct RawBatchesOf = "batches_of" {
        tgid: u32,
        id: u32,
    }

    /// `struct batches`.
    struct RawBatches = "batches" {
        since: u64,
        returned: u64,
        thread: u64,
        slept: u64,
        interrupted: u64,
        count: u64,
        events: u64,
        ns: u64,
        longest_ns: u64,
        longest_events: u64,
        maxevents: u64,
        outlasted: u64,
    }
}

#[cfg(test)]
mod layout {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, Config, RawBatchesOf, RawBatches);

    #[test]
    fn a_batch_that_has_not_ended_lasts_until_now() {
        let numbers = [1_000, 3, 77, 5, 0, 2, 5, 700, 400, 4, 32, 1];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number: &u64| number.to_ne_bytes()).collect();
        let raw = RawBatches::of(&bytes);
        let open = batches(&raw, Nanoseconds(9_000));
        assert_eq!(open.unfinished, Some(Nanoseconds(8_000)));
        assert_eq!((open.count, open.events, open.longest), (2, 5, Nanoseconds(400)));
        assert_eq!((open.longest_events, open.maxevents, open.outlasted), (4, 32, 1));
        assert_eq!(batches(&RawBatches { since: 0, ..raw }, Nanoseconds(9_000)).unfinished, None);
    }
}
