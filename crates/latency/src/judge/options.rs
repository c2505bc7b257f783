//! The options of a comparison.

use std::time::Duration;

use crate::measure::switchback::{Limit, Metric, Rule};

use crate::judge::candidate::Candidate;

/// The options of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonOptions {
    /// The candidates, all of which are compared with the first one.
    pub candidates: Vec<Candidate>,
    /// The deciding metrics.
    pub deciding: Vec<Metric>,
    /// Limits that the winner must not exceed.
    pub limits: Vec<Limit>,
    /// The share below which a relative change counts as no difference.
    pub margin: f64,
    /// The length of a window.
    pub window: Duration,
    /// The pause between a switch and the following window.
    pub guard: Duration,
    /// The maximum duration.
    pub most: Duration,
    /// The seed for the random order of candidates.
    pub seed: u64,
    /// Whether a candidate may stop a queue or take the link down. Such a candidate does not alternate:
    /// windows before, with and after it are compared.
    pub disruptive: bool,
}

impl ComparisonOptions {
    /// Returns the decision rule: metrics, margin and error rate.
    pub fn rule(&self) -> Rule {
        let mut deciding = self.deciding.clone();
        // A request that stalls has no response time, so the number of stalls must decide, too.
        deciding.push(Metric::Stalls);
        Rule { deciding, margin: self.margin, alpha: Rule::ALPHA }
    }
}
