//! Measures the operator's own server without changing anything.

use std::net::SocketAddr;

use linux::Netns;
use linux::machine::{Machine, seconds_since_1970};
use load::Environment;
use model::{Evidence, MeasuredOn, MemcachedWorkload, Origin};
use runs::{Cell, Stage};

use super::error::BenchError;
use super::layout::Layout;

/// A server at any address. Nothing on its host is set or counted.
pub(crate) struct PlainStage {
    /// The server's address.
    pub(crate) address: SocketAddr,
    /// The namespace of the clients.
    pub(crate) netns: Netns,
    /// The workload of a run.
    pub(crate) workload: MemcachedWorkload,
}

struct InNamespace<'a>(&'a Netns);

impl Environment for InNamespace<'_> {
    fn on_thread_start(&self, _thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if Netns::is_current(self.0.id()) { Ok(()) } else { Ok(self.0.enter()?) }
    }
}

impl Stage for PlainStage {
    type Error = BenchError;

    fn apply(&mut self, _label: &str) -> Result<(), BenchError> {
        Ok(())
    }

    fn measure(&mut self, cell: Cell<'_>) -> Result<Evidence, BenchError> {
        let workload = MemcachedWorkload { seed: cell.seed, ..self.workload.clone() };
        let started = seconds_since_1970();
        let run = load::memcached(self.address, &workload, cell.load, &InNamespace(&self.netns))?;
        let Machine { host, kernel, cpu_model } = Machine::this();
        let origin = Origin::Measured(MeasuredOn {
            host,
            kernel,
            machine: cpu_model,
            server: self.address.to_string(),
            started,
        });
        Ok(run.into_evidence(cell.label, origin))
    }

    fn restore(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
}

impl PlainStage {
    /// Returns the number of client threads: one per CPU of the lower half.
    pub(crate) fn threads(layout: &Layout) -> u32 {
        u32::try_from(layout.client.len()).unwrap_or(1)
    }
}
