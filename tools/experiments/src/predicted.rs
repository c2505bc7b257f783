//! The prediction for a point and its comparison with measurements. Simulations make predictions; reports
//! show them.

use model::Evidence;
use schemars::JsonSchema;
use serde::Serialize;

use crate::scenario_file::{MeasuredRow, Metric};

/// A point with its predictions.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct Prediction {
    /// The name.
    pub(crate) name: String,
    /// The offered load.
    pub(crate) load: String,
    /// Whether the parameters were fitted to the scenario's own host; if not, they come from another host.
    pub(crate) calibrated: bool,
    /// The number of threads that idle because they have no queue.
    pub(crate) idle_threads: u32,
    /// One value per metric.
    pub(crate) values: Vec<Predicted>,
    /// The growth of the backlog in requests per second, if the server does not keep up. In that case, there
    /// is no steady state, and response times reflect how long was simulated, not how long requests take.
    pub(crate) backlog_growth: Option<f64>,
    /// Whether runs with different seeds disagree: the point has two modes, and no average describes it.
    pub(crate) bistable: bool,
    /// Whether slightly more load would change the result drastically.
    pub(crate) knee: bool,
    /// Packets lost to full rings, per second.
    pub(crate) drops: f64,
    /// The evidence of the run with the first seed.
    pub(crate) evidence: Evidence,
}

/// A predicted value.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct Predicted {
    /// The metric.
    #[serde(serialize_with = "word")]
    #[schemars(with = "String")]
    pub(crate) metric: Metric,
    /// The predicted value, in the metric's unit.
    pub(crate) value: f64,
    /// The range over seeds and parameter sets; `None` if there was only a single run.
    pub(crate) range: Option<Range>,
}

fn word<S: serde::Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(metric.word())
}

/// A range of values.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct Range {
    /// The lowest value.
    pub(crate) low: f64,
    /// The highest value.
    pub(crate) high: f64,
}

impl Range {
    /// Returns whether a value is within the range.
    pub(crate) fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl Prediction {
    pub(crate) fn of(&self, metric: Metric) -> Option<&Predicted> {
        self.values.iter().find(|predicted| predicted.metric == metric)
    }
}

/// A measured row with its prediction.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) row: MeasuredRow,
    pub(crate) fitted: bool,
    pub(crate) prediction: Prediction,
}

/// The errors over the rows of one class.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct SummaryLine {
    pub(crate) class: &'static str,
    pub(crate) fitted: bool,
    pub(crate) metric: &'static str,
    /// `%`, or `points` for shares of CPU time.
    pub(crate) unit: &'static str,
    pub(crate) rows: usize,
    pub(crate) median: f64,
    pub(crate) p90: f64,
    pub(crate) worst: f64,
    /// The number of values with a 90 % interval.
    pub(crate) intervals: usize,
    /// The number of values that lie within their 90 % interval.
    pub(crate) inside: usize,
}

/// How many clear orderings were predicted correctly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub(crate) struct Orderings {
    pub(crate) clear: usize,
    pub(crate) right: usize,
}

/// How many held-out values lie within their intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub(crate) struct Coverage {
    pub(crate) values: usize,
    pub(crate) inside: usize,
}

/// Returns the error of a prediction: in percent, or in percentage points for shares of CPU time.
pub(crate) fn error(metric: Metric, measured: f64, predicted: f64) -> f64 {
    match metric {
        Metric::Cpu => predicted - measured,
        Metric::Qps
        | Metric::Avg
        | Metric::P50
        | Metric::P90
        | Metric::P95
        | Metric::P99
        | Metric::P999
        | Metric::P9999 => (predicted / measured - 1.0) * 100.0,
    }
}
