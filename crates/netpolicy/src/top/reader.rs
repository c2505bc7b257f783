//! Samples the host repeatedly, at a bounded cost.

use std::time::{Duration, Instant};

use latency::live::{ListeningService, Rounds, SamplingPace};
use linux::bpf::delivery::DeliverySampler;
use linux::counters::CounterSource;
use linux::observe::Observer;
use linux::{Netns, Processes};
use model::evidence::Counters;
use model::{Host, Policy};
use session::Fault;

use super::reading::{Reading, services};

/// How long to rest after observing the host, as a multiple of the observation's duration, which limits the
/// cost to half a per cent of a CPU. Observing many sockets is slow, and queues, processes and sockets change
/// rarely.
const REST_FOR_WORK: u32 = 200;

/// The maximum rest, unless the cost would then exceed the limit that [`WORK_MAX`] sets.
const REST_MAX: Duration = Duration::from_secs(10);

/// The minimum rest as a multiple of an observation's duration, even if it exceeds [`REST_MAX`]. This limits
/// the cost to a twentieth of a CPU.
const WORK_MAX: u32 = 20;

/// The pace of measuring: a tenth of each second, as in `watch`.
const PACE: SamplingPace =
    SamplingPace { sample: Duration::from_millis(100), windows_per_summary: 1, without_goal: Duration::ZERO };

/// Returns how long to rest after work that took this long.
fn rest(took: Duration) -> Duration {
    took.saturating_mul(REST_FOR_WORK).min(REST_MAX.max(took.saturating_mul(WORK_MAX)))
}

/// A rest, and the time at which it is over.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    until: Option<Instant>,
}

impl Rest {
    fn is_over(self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn since(started: Instant) -> Self {
        Self { until: started.checked_add(rest(started.elapsed())) }
    }
}

/// Samples a host repeatedly.
pub(crate) struct Reader {
    observer: Observer,
    /// Counts packets; the error is the reason why packets are not counted.
    sampler: Result<DeliverySampler, String>,
    /// The CPU counters; the error is the reason why CPUs are not shown.
    counters: Result<CounterSource, String>,
    before: Option<Counters>,
    host: Option<Host>,
    /// The rest until the whole host is observed again.
    whole: Rest,
    /// The requests of the policy files. The response times of their services are measured.
    policy: Policy,
    rounds: Option<Rounds>,
    /// The rest until the values of known NAPIs and epolls are read again. This is much cheaper than
    /// observing the whole host, and therefore more frequent.
    values: Rest,
}

impl Reader {
    /// Creates a reader, and starts counting.
    ///
    /// # Errors
    /// If the namespace cannot be observed.
    pub(crate) fn new(netns: Netns, policy: Policy) -> Result<Self, Fault> {
        let mut sampler =
            DeliverySampler::load().map_err(|error| format!("packet delivery is not counted: {error}"));
        if let Ok(sampler) = &mut sampler {
            sampler.begin();
        }
        let mut counters =
            CounterSource::open(&netns).map_err(|error| format!("CPUs are not shown: {error}"));
        let before = counters.as_mut().ok().and_then(|source| source.snapshot().ok());
        let observer = Observer::open(netns)?;
        let (whole, values) = (Rest::default(), Rest::default());
        let mut reader =
            Self { observer, sampler, counters, before, host: None, whole, policy, rounds: None, values };
        reader.measure()?;
        Ok(reader)
    }

    /// Starts measuring those services of the policy files that are running.
    fn measure(&mut self) -> Result<(), Fault> {
        let netns = self.observer.netns();
        let subjects = ListeningService::of_policy(&self.policy, netns);
        if self.rounds.is_none() && !subjects.is_empty() {
            self.rounds = Some(Rounds::start(netns.again()?, PACE, || {})?);
        }
        if let Some(rounds) = &self.rounds {
            rounds.measure(subjects);
        }
        Ok(())
    }

    /// Returns the counts since the previous sample, together with the current host.
    ///
    /// # Errors
    /// If the host cannot be observed.
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
        let cpus = before.zip(self.before.clone());
        let host = self.observed()?;
        unread.extend(host.unread.iter().map(|unread| format!("not read: {}: {}", unread.what, unread.why)));
        let cpus = cpus.as_ref().map(|(before, now)| (before, now));
        let mut reading = Reading::of(host, delivered.as_ref(), cpus, unread);
        let (services, refused) = services(self.rounds.as_ref().map(Rounds::found).unwrap_or_default());
        reading.services = services;
        reading.unread.extend(refused);
        Ok(reading)
    }

    /// Returns the host with the current values of its NAPIs and epolls.
    fn observed(&mut self) -> Result<&Host, Fault> {
        let started = Instant::now();
        if self.whole.is_over() {
            self.measure()?;
        }
        match &mut self.host {
            Some(host) if !self.whole.is_over() => {
                if self.values.is_over() {
                    for index in host.devices.iter().map(|device| device.id.ifindex).collect::<Vec<_>>() {
                        self.observer.napis(host, index)?;
                    }
                    for pid in host.processes.iter().map(|process| process.id.pid).collect::<Vec<_>>() {
                        self.observer.epolls(host, pid);
                    }
                    self.values = Rest::since(started);
                }
            }
            host => {
                *host = Some(self.observer.whole(&Processes::Networking)?);
                (self.whole, self.values) = (Rest::since(started), Rest::default());
            }
        }
        self.host.as_ref().ok_or_else(|| Fault::failed("nothing was observed".to_owned()))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_reading_is_never_far_behind_and_looking_never_takes_a_cpu() {
        let millis = Duration::from_millis;
        assert_eq!(rest(millis(5)), millis(1_000), "half a per cent of a CPU");
        assert_eq!(rest(millis(140)), REST_MAX, "after 28 seconds, the values would be outdated");
        assert_eq!(rest(millis(3_000)), millis(60_000), "a twentieth of a CPU at most");
    }
}
