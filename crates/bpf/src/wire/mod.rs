//! Measures the time between a request and its answer on the wire, if client and server are on one machine.
//! The measured times are the reference for estimates.

use libbpf_rs::OpenObject;
use model::{Nanoseconds, NetnsId, SpanCounts};
use sys::clock::monotonic;
use sys::error::KernelError;

use super::loaded::Loaded;
use super::mirrored::{Mirrored as _, mirrored};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wire.bpf.o"));

/// The key of a map that has only one entry.
const ONLY: [u8; 4] = [0; 4];

const BUCKETS: usize = SpanCounts::BUCKETS;

mirrored! {
    /// `struct wire_config`.
    struct Config = "wire_config" {
        port: u64,
        server: u64,
        client: u64,
    }

    /// `struct wire_gate`.
    struct Gate = "wire_gate" {
        opens: u64,
        closes: u64,
    }

    /// `struct wire_seen`.
    struct RawWireCounts = "wire_seen" {
        requests: u64,
        answered: u64,
        lost: u64,
        spans: [u32; BUCKETS],
    }
}

/// Observes, from load until drop, the packets that two network namespaces on this machine send to each
/// other.
#[derive(Debug)]
pub struct WireMeter {
    loaded: Loaded,
    before: WireCounts,
}

/// The counts of a [`WireMeter`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// The number of requests that were transmitted.
    pub requests: u64,
    /// The number of requests that were answered.
    pub answered: u64,
    /// The number of requests that were not tracked because too many were outstanding on a connection.
    pub lost: u64,
    /// Times from the transmission of a request to the transmission of its answer.
    pub spans: SpanCounts,
}

impl WireMeter {
    /// Loads the program for a server's port and the network namespaces of server and client. It observes
    /// nothing until [`WireMeter::begin`].
    ///
    /// # Errors
    /// As for [`super::live::LiveMeter::load`].
    pub fn load(port: u16, server: NetnsId, client: NetnsId) -> Result<Self, KernelError> {
        let config = Config { port: port.into(), server: server.0, client: client.0 };
        let loaded = Loaded::load("wire", OBJECT, |open| configure(open, &config))?;
        Ok(Self { loaded, before: WireCounts::default() })
    }

    /// Starts to observe. Requests count immediately.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn begin(&mut self) -> Result<(), KernelError> {
        self.begin_closed()?;
        self.opens_at(Nanoseconds::ZERO)
    }

    /// Like [`WireMeter::begin`], but requests count only from the time set by [`WireMeter::opens_at`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn begin_closed(&mut self) -> Result<(), KernelError> {
        self.loaded.detach();
        self.before = self.seen()?;
        self.gate(u64::MAX, u64::MAX)?;
        self.loaded.attach()
    }

    /// Sets the time from which transmitted requests count, by the monotonic clock.
    ///
    /// # Errors
    /// The kernel's error, which means that the program is gone.
    pub fn opens_at(&mut self, moment: Nanoseconds) -> Result<(), KernelError> {
        self.gate(moment.0, u64::MAX)
    }

    /// Stops counting requests that are transmitted from now on. Answers to earlier requests still count.
    ///
    /// # Errors
    /// As for [`WireMeter::opens_at`].
    pub fn closes(&mut self) -> Result<(), KernelError> {
        self.gate(0, monotonic().0)
    }

    fn gate(&self, opens: u64, closes: u64) -> Result<(), KernelError> {
        self.loaded.map(".data.gate")?.set(&ONLY, &Gate { opens, closes }.to_bytes())
    }

    /// Stops observing, and returns the counts since [`WireMeter::begin`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn end(&mut self) -> Result<WireCounts, KernelError> {
        self.loaded.detach();
        let connections = self.loaded.map("connections")?;
        let under_way: Vec<Vec<u8>> = connections.keys().collect();
        for connection in under_way {
            connections.remove(&connection)?;
        }
        let now = self.seen()?;
        let before = std::mem::replace(&mut self.before, now);
        let mut spans = SpanCounts::new();
        for (bucket, (now, before)) in
            self.before.spans.buckets().iter().zip(before.spans.buckets()).enumerate()
        {
            spans.add_to(bucket, now - before);
        }
        Ok(WireCounts {
            requests: self.before.requests - before.requests,
            answered: self.before.answered - before.answered,
            lost: self.before.lost - before.lost,
            spans,
        })
    }

    fn seen(&self) -> Result<WireCounts, KernelError> {
        let mut sum = WireCounts::default();
        for bytes in self.loaded.map("seen")?.get_per_cpu(&ONLY)? {
            let there = RawWireCounts::of(&bytes);
            sum.requests += there.requests;
            sum.answered += there.answered;
            sum.lost += there.lost;
            for (bucket, count) in there.spans.iter().enumerate() {
                sum.spans.add_to(bucket, (*count).into());
            }
        }
        Ok(sum)
    }
}

fn configure(open: &mut OpenObject, config: &Config) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut().filter(|map| map.name() == ".rodata.config") {
        map.set_initial_value(&config.to_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, Config, Gate, RawWireCounts);
}
