//! How a comparison is made.

use std::time::Duration;

use measure::switchback::{Limit, Metric, Rule};

use crate::judge::candidate::Candidate;

/// How a comparison is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The candidates: each is compared with the first.
    pub candidates: Vec<Candidate>,
    /// The metrics that decide.
    pub deciding: Vec<Metric>,
    /// What the winner must not exceed.
    pub limits: Vec<Limit>,
    /// Changes smaller than this share make no difference.
    pub margin: f64,
    /// How long a window is.
    pub window: Duration,
    /// How long to wait after each switch until a window begins.
    pub guard: Duration,
    /// The longest time in all.
    pub most: Duration,
    /// The seed of the order of candidates.
    pub seed: u64,
    /// Whether a candidate may stop a queue or take the link down. It is not alternated then: windows before, with and after it are compared.
    pub disruptive: bool,
}

impl Options {
    /// The rule that decides: metrics, margin and error rate.
    pub fn rule(&self) -> Rule {
        let mut deciding = self.deciding.clone();
        // Stalled requests have no response times, so stalls decide as well.
        deciding.push(Metric::Stalls);
        Rule { deciding, margin: self.margin, alpha: Rule::ALPHA }
    }
}
