//! Takes one reading after the other, and sees to it that looking stays cheap.

use std::time::{Duration, Instant};

use linux::bpf::delivery::Sampler;
use linux::counters::CounterSource;
use linux::{Netns, Processes, observe};
use model::Host;
use model::evidence::Counters;

use super::reading::Reading;
use crate::fault::Fault;

/// Observing a host with many sockets takes long, and its queues and epolls seldom change: it is observed again only
/// after this many times the time that it took, so that it costs at most half a per cent of a CPU.
const REST_FOR_WORK: u32 = 200;

/// Reads a host again and again.
pub(crate) struct Reader {
    netns: Netns,
    /// Or why nothing is counted.
    sampler: Result<Sampler, String>,
    /// Or why CPUs are not shown.
    counters: Result<CounterSource, String>,
    before: Option<Counters>,
    host: Option<(Host, Instant, Duration)>,
}

impl Reader {
    /// A reader that counts from now on.
    pub(crate) fn new(netns: Netns) -> Self {
        let mut sampler =
            Sampler::load().map_err(|error| format!("who delivers packets is not counted: {error}"));
        if let Ok(sampler) = &mut sampler {
            sampler.begin();
        }
        let mut counters =
            CounterSource::open(&netns).map_err(|error| format!("CPUs are not shown: {error}"));
        let before = counters.as_mut().ok().and_then(|source| source.snapshot().ok());
        Self { netns, sampler, counters, before, host: None }
    }

    /// What was counted since the reading before, on the host as it is.
    ///
    /// # Errors
    /// If the host cannot be observed at all.
    pub(crate) fn read(&mut self) -> Result<Reading, Fault> {
        let mut unread = Vec::new();
        let delivered = match &mut self.sampler {
            Ok(sampler) => {
                let ended = sampler.end();
                sampler.begin();
                ended.map_err(|error| unread.push(format!("not counted: {error}"))).ok()
            }
            Err(why) => {
                unread.push(why.clone());
                None
            }
        };
        let now = match &mut self.counters {
            Ok(source) => source.snapshot().map_err(|error| unread.push(error.to_string())).ok(),
            Err(why) => {
                unread.push(why.clone());
                None
            }
        };
        let before = std::mem::replace(&mut self.before, now);
        let cpus = before.as_ref().zip(self.before.as_ref());
        let is_due = self.host.as_ref().is_none_or(|(_, at, took)| at.elapsed() >= *took * REST_FOR_WORK);
        if is_due {
            let started = Instant::now();
            let host = observe(&self.netns, &Processes::Networking)?;
            self.host = Some((host, started, started.elapsed()));
        }
        let Some((host, ..)) = &self.host else { return Ok(Reading::default()) };
        unread.extend(host.unread.iter().map(|unread| format!("not read: {}: {}", unread.what, unread.why)));
        Ok(Reading::of(host, delivered.as_ref(), cpus, unread))
    }
}
