//! The CPU time that a service's requests cost.

use linux::usage::Usage;
use model::live::LiveWindow;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::live::sampler::Sample;

/// The cost of a request, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Cost {
    /// The CPU time of the service's processes; `None` if there were no requests, or if the processes are
    /// unknown.
    pub service: Option<f64>,
    /// The CPU time of softirqs in other tasks and of polling kernel threads; `None` if it was not counted.
    pub delivery: Option<f64>,
    /// The number of context switches per request.
    pub switches: Option<f64>,
    /// The number of datagrams received per context switch; `None` if there were no datagrams or no switches.
    pub datagrams_per_switch: Option<f64>,
}

impl Cost {
    /// Returns the cost of a request in one window.
    pub fn of(sample: &Sample) -> Self {
        let mut spent = Spent::default();
        spent.add(&sample.window, sample.usage.as_ref());
        spent.cost()
    }
}

/// The total cost of those windows in which both the cost and the requests are known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    requests: u64,
    service: u64,
    switches: u64,
    datagrams: u64,
    delivery: u64,
    /// The number of requests in those of the windows in which softirqs were counted, too.
    delivered: u64,
}

impl Spent {
    pub(crate) fn add(&mut self, window: &LiveWindow, usage: Option<&Usage>) {
        let Some(usage) = usage else { return };
        self.requests += window.counts.requests;
        self.service += usage.service.0;
        self.switches += usage.switches;
        self.datagrams += window.counts.datagrams;
        if let Some(softirq) = usage.softirq {
            self.delivered += window.counts.requests;
            self.delivery += softirq.0 + usage.kthreads.0;
        }
    }

    pub(crate) fn cost(&self) -> Cost {
        let each = |sum: u64, of: u64| (of > 0).then(|| count(sum) / count(of));
        Cost {
            service: each(self.service, self.requests),
            delivery: each(self.delivery, self.delivered),
            switches: each(self.switches, self.requests),
            datagrams_per_switch: each(self.datagrams, self.switches).filter(|each| *each > 0.0),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and spans of one watch, below 2^53")]
const fn count(number: u64) -> f64 {
    number as f64
}
