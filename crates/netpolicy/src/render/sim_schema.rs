//! What `sim` prints with `-o json` and `-o jsonl`, as a JSON Schema.

use serde_json::Value;

use super::schema::{Document, Fields, Form, schema};

const RANGE: Fields = &[("low", Form::Amount, "the least"), ("high", Form::Amount, "the most")];

const METRIC: &str =
    "qps (answers per second), avg, p50, p90, p95, p99, p999 (microseconds), or cpu (percent of all CPUs)";

const PREDICTED: Fields = &[
    ("metric", Form::Text, METRIC),
    ("value", Form::Amount, "the median over the seeds"),
    (
        "range",
        Form::ObjectOrNull(RANGE),
        "over seeds and sets of parameters; null where there was one run only, which says nothing of it",
    ),
];

const SIMULATED: Fields = &[
    ("scenario", Form::Text, "a hash over the whole scenario, in hexadecimal"),
    ("seed", Form::Count, "the seed"),
    ("parameters", Form::TextsByName, "the model's parameters with their units, by name"),
];

const ORIGIN: Fields = &[("simulated", Form::Object(SIMULATED), "what the run was computed from")];

const MEMCACHED: Fields = &[
    ("threads", Form::Count, "threads of the generator"),
    ("connections_per_thread", Form::Count, "connections of each"),
    ("depth", Form::Count, "requests under way on a connection"),
    ("arrivals", Form::Text, "distribution of a connection's gaps"),
    ("set_share", Form::Amount, "share of requests that write, 0 to 1"),
    ("keys", Form::Count, "different keys"),
    ("key_size", Form::Text, "bytes of a key, or their distribution"),
    ("value_size", Form::Text, "bytes of a value, or their distribution"),
    ("preload", Form::Truth, "whether keys are written first"),
    ("warmup", Form::Count, "nanoseconds before anything is counted; 0 in a simulated run"),
    ("window", Form::Count, "nanoseconds that are counted"),
    ("drain", Form::Count, "nanoseconds for the last answers; 0 in a simulated run"),
    ("seed", Form::Count, "the seed"),
    ("waiting", Form::Text, "how the generator waits"),
];

const WORKLOAD: Fields =
    &[("memcached", Form::Object(MEMCACHED), "the options of a measured run that would offer the same")];

const LOAD: Fields = &[("per-second", Form::Amount, "requests per second")];

const REQUESTS: Fields = &[
    ("due", Form::Count, "due in the window"),
    ("sent", Form::Count, "of those, sent"),
    ("answered", Form::Count, "of the sent, answered"),
    ("hits", Form::Count, "of the answered, `get` that found their key"),
    ("misses", Form::Count, "of the answered, `get` that did not"),
    ("errors", Form::Count, "of the answered, those that were refused"),
    ("unsent", Form::Count, "due but not sent when the window closed"),
    ("unanswered", Form::Count, "sent but not answered"),
    ("connections_lost", Form::Count, "connections lost"),
];

const DISTRIBUTION: Fields = &[
    ("count", Form::Count, "how many spans"),
    ("avg", Form::Amount, "the mean, in nanoseconds"),
    ("min", Form::Count, "the shortest"),
    ("p50", Form::Count, "the median"),
    ("p90", Form::Count, "the 90th percentile"),
    ("p95", Form::Count, "the 95th percentile"),
    ("p99", Form::Count, "the 99th percentile"),
    ("p999", Form::Count, "the 99.9th percentile"),
    ("max", Form::Count, "the longest"),
    ("histogram", Form::Text, "an HdrHistogram in its V2 format, deflated, in base64"),
];

const CPU: Fields = &[
    ("cpus", Form::Count, "how many CPUs; the shares are of all together and add up to 1"),
    ("user", Form::Amount, "in applications"),
    ("system", Form::Amount, "in system calls and kernel threads"),
    ("softirq", Form::Amount, "in softirqs"),
    ("irq", Form::Amount, "in hard interrupts"),
    ("idle", Form::Amount, "in nothing"),
    ("steal", Form::Amount, "in another guest; 0 in a simulated run"),
];

const COUNTERS: Fields = &[
    ("irqs", Form::Amount, "hard interrupts per second"),
    ("context_switches", Form::Amount, "context switches per second"),
    ("softirqs", Form::Amounts, "softirqs per second, by kind"),
    ("busy_poll_rx_packets", Form::AmountOrNull, "packets that busy polling took, per second"),
    ("napi_polls", Form::AmountOrNull, "calls of NAPI poll functions per second"),
];

const BATCH: Fields = &[
    ("waits", Form::Count, "calls of epoll_wait that returned an event"),
    ("empty", Form::Count, "calls that returned none"),
    ("avg", Form::Amount, "events of a call that returned any"),
    ("max", Form::Count, "the most events of one call"),
    ("sizes", Form::CountsOrNull, "calls by their events: 0, 1, 2 to 3, 4 to 7, …; null in a simulated run"),
];

const EVIDENCE: Fields = &[
    ("schema", Form::Text, "the format of evidence"),
    ("label", Form::Text, "the point"),
    ("origin", Form::Object(ORIGIN), "where the run took place"),
    ("workload", Form::Object(WORKLOAD), "what was offered"),
    ("load", Form::WordOr(&["max"], LOAD), "how much of it"),
    ("window", Form::Count, "nanoseconds that were counted"),
    ("requests", Form::Object(REQUESTS), "what became of the requests"),
    ("throughput", Form::Amount, "answers per second"),
    ("latency", Form::Object(DISTRIBUTION), "response times"),
    ("lateness", Form::Object(DISTRIBUTION), "how late requests were sent; empty in a simulated run"),
    ("generator_lateness", Form::Object(DISTRIBUTION), "as far as the generator caused it; empty likewise"),
    ("generator_busy", Form::Amount, "share of the window in which the generator had work; 0 likewise"),
    ("cpu", Form::ObjectOrNull(CPU), "how the CPUs spent the window"),
    ("counters", Form::ObjectOrNull(COUNTERS), "what the kernel would have counted"),
    ("cycles_per_request", Form::AmountOrNull, "CPU cycles for an answer; null in a simulated run"),
    ("interrupts_per_request", Form::AmountOrNull, "interrupts of the NIC for an answer"),
    ("epoll_batch", Form::ObjectOrNull(BATCH), "events that epoll_wait returned"),
    ("delivered", Form::Null, "who delivered packets; null in a simulated run"),
    ("void", Form::Hint, "why the run does not count; null if it does"),
];

const POINT: Fields = &[
    ("name", Form::Text, "the swept values, joined by @, or the scenario"),
    ("load", Form::Text, "the offered load"),
    (
        "calibrated",
        Form::Truth,
        "whether costs and clients were fitted to the scenario's own host; if not, they are those of another one",
    ),
    ("idle_threads", Form::Count, "threads that no queue belongs to, so that they idle"),
    ("values", Form::List(PREDICTED), "what is predicted"),
    (
        "backlog_growth",
        Form::AmountOrNull,
        "requests per second by which the backlog grows: then there is no steady state; null where the server keeps up",
    ),
    ("bistable", Form::Truth, "whether seeds disagree, so that no average describes the point"),
    ("knee", Form::Truth, "whether an eighth more load would change everything"),
    ("drops", Form::Amount, "packets lost to full rings, per second"),
    ("evidence", Form::Object(EVIDENCE), "the run of the first seed, as a bench writes its runs"),
];

const PREDICTION: Fields = &[
    ("title", Form::Text, "the scenario's title"),
    ("over", Form::Text, "what the ranges are over"),
    ("points", Form::List(POINT), "each point"),
];

const COMPARED: Fields = &[
    ("metric", Form::Text, METRIC),
    ("measured", Form::Amount, "what was measured"),
    ("predicted", Form::Amount, "what is predicted"),
    ("error", Form::Figure, "predicted against measured, in percent; of cpu in points"),
    ("low", Form::AmountOrNull, "the lower end of the 90 % interval; null without one"),
    ("high", Form::AmountOrNull, "its upper end"),
];

const ROW: Fields = &[
    ("name", Form::Text, "the row"),
    ("calibrated", Form::Truth, "whether costs and clients were fitted to the scenario's own host"),
    ("class", Form::Text, "stable, knee, overload or max"),
    ("fitted", Form::Truth, "whether parameters were fitted to it; false for what was held out"),
    ("flags", Form::Text, "what must be known of the prediction; empty where there is nothing"),
    ("values", Form::List(COMPARED), "each metric that was measured"),
];

const ERRORS: Fields = &[
    ("class", Form::Text, "stable, knee, overload or max"),
    ("fitted", Form::Truth, "whether parameters were fitted to these rows"),
    ("metric", Form::Text, METRIC),
    ("unit", Form::Text, "of the errors: % or points"),
    ("rows", Form::Count, "how many rows"),
    ("median", Form::Amount, "the median of the errors"),
    ("p90", Form::Amount, "what nine tenths of them do not exceed"),
    ("worst", Form::Amount, "the worst"),
    ("intervals", Form::Count, "how many predictions have a 90 % interval"),
    ("inside", Form::Count, "how many of these have the measured value within it"),
];

const ORDERINGS: Fields = &[
    ("clear", Form::Count, "pairs of rows that differ clearly in what was measured"),
    ("right", Form::Count, "pairs of them that are predicted in this order"),
];

const COVERAGE: Fields = &[
    ("values", Form::Count, "values of held-out rows whose prediction has a 90 % interval"),
    ("inside", Form::Count, "values of them that lie within it"),
];

const VALIDATION: Fields = &[
    ("title", Form::Text, "the scenario's title"),
    ("calibrated", Form::Truth, "whether costs and clients were fitted to the scenario's own host"),
    ("rows", Form::List(ROW), "each row"),
    ("summary", Form::List(ERRORS), "errors by class and metric"),
    ("orderings", Form::Object(ORDERINGS), "whether what was measured as more is predicted as more"),
    ("held_out", Form::Object(COVERAGE), "whether intervals hold what was measured"),
];

const FITTED: Fields = &[
    ("name", Form::Text, "the parameter"),
    ("unit", Form::Text, "its unit"),
    ("meaning", Form::Text, "what it stands for"),
    ("value", Form::Amount, "the best value"),
    (
        "least",
        Form::AmountOrNull,
        "the lower end of its 90 % interval; null where the fit was too short for one",
    ),
    ("most", Form::AmountOrNull, "its upper end"),
    ("determined", Form::Truth, "whether the rows determine it"),
];

const CALIBRATION: Fields = &[
    ("loss", Form::Amount, "what the rows still miss"),
    ("rows", Form::Texts, "the rows that were fitted"),
    ("parameters", Form::List(FITTED), "the parameters that were fitted"),
];

/// Each kind of document, and its fields. In lines (`-o jsonl`), each point and each row is a document.
const DOCUMENTS: &[Document] = &[
    ("prediction", "of sim run", PREDICTION),
    ("prediction", "of sim run, in lines: a point", POINT),
    ("validation", "of sim validate", VALIDATION),
    ("validation-row", "of sim validate, in lines: a row", ROW),
    ("calibration", "of sim calibrate", CALIBRATION),
];

/// The schema that every document of `sim` meets.
pub(crate) fn sim_json_schema() -> Value {
    schema("sim", "netpolicy sim, with -o json, and each line with -o jsonl", DOCUMENTS)
}
