//! What `watch` prints with `-o json` and `-o jsonl`, as a JSON Schema.

use serde_json::Value;

use super::schema::{Document, Fields, Form, schema};

const ESTIMATE: Fields = &[
    ("estimate", Form::Amount, "the percentile, in nanoseconds"),
    ("low", Form::Amount, "the lower end of the interval that holds the true one in 95 of 100 cases"),
    ("high", Form::Amount, "its upper end"),
    ("at_least", Form::Truth, "whether so many requests wait that the estimate is a lower bound"),
    ("open_end", Form::Truth, "whether the interval has no upper end"),
];

const PERCENTILES: Fields = &[
    ("p50", Form::ObjectOrNull(ESTIMATE), "what half of the requests do not exceed; null with too few"),
    ("p90", Form::ObjectOrNull(ESTIMATE), "likewise nine of ten"),
    ("p99", Form::ObjectOrNull(ESTIMATE), "likewise 99 of 100"),
];

const BY_POLLER: Fields = &[
    ("interrupt", Form::Count, "after an interrupt"),
    ("timer", Form::Count, "in softirq while the interrupt was masked"),
    ("application", Form::Count, "by an application in its own system call"),
    ("kthread", Form::Count, "by the NAPI's kernel thread"),
];

const PART: Fields = &[
    ("id", Form::AmountOrNull, "the NAPI id, or the thread's pid; null for all other threads"),
    ("requests", Form::Count, "requests that were answered"),
    ("p50", Form::AmountOrNull, "the median response time in nanoseconds; null with too few"),
    ("p99", Form::AmountOrNull, "likewise what 99 of 100 do not exceed"),
    ("ring", Form::Amount, "the mean wait in the ring, in nanoseconds"),
    ("wakeup", Form::Amount, "the mean wait to be read"),
    ("service", Form::Amount, "the mean time from the read to the answer"),
    ("polls", Form::Object(BY_POLLER), "polls of the NAPI; zeros for a thread"),
    ("packets", Form::Object(BY_POLLER), "the packets of these polls"),
];

const NAMED_PART: Fields = &[
    ("name", Form::Text, "the queue, or the thread"),
    PART[0],
    PART[1],
    PART[2],
    PART[3],
    PART[4],
    PART[5],
    PART[6],
    PART[7],
    PART[8],
];

const COUNTS: Fields = &[
    ("segments", Form::Count, "segments with data that arrived"),
    ("arrivals", Form::Count, "requests as they arrived"),
    ("answered", Form::Count, "arrivals that were answered"),
    ("batched", Form::Count, "of these, those that one write answered with others"),
    ("requests", Form::Count, "requests in them, as far as their bytes tell"),
    ("sends", Form::Count, "calls that sent"),
    ("continued", Form::Count, "of these, those that went on with an answer"),
    ("unsolicited", Form::Count, "of these, those that no request was waiting for"),
    ("overflown", Form::Count, "arrivals beyond those that a connection is remembered with"),
    ("unmeasured", Form::Count, "segments on connections beyond those that are measured"),
    ("without_napi", Form::Count, "answered arrivals that name no NAPI"),
    ("without_poll", Form::Count, "answered arrivals whose poll was forgotten"),
    ("steered", Form::Count, "arrivals on another CPU than that polled"),
    ("masked", Form::Count, "answered arrivals whose poll began with the interrupt masked"),
    ("unmasked", Form::Count, "the same with it enabled"),
    ("conditioned", Form::Count, "answered arrivals that estimator C could tell"),
    ("threaded", Form::Count, "answered arrivals of a NAPI that has a kernel thread"),
];

const COST: Fields = &[
    ("service", Form::AmountOrNull, "CPU time of the service for each request, in nanoseconds"),
    ("delivery", Form::AmountOrNull, "likewise of softirqs and NAPI threads on the time of others"),
    ("switches", Form::AmountOrNull, "context switches for each request"),
];

const FINDING: Fields = &[
    ("rule", Form::Text, "the rule, in kebab case"),
    ("severity", Form::Text, "problem, warning, note or ok"),
    ("object", Form::Text, "what it is about"),
    ("summary", Form::Text, "one sentence"),
    ("evidence", Form::Texts, "what shows it"),
    ("remedy", Form::Hint, "what helps"),
];

const WATCH: Fields = &[
    ("service", Form::Text, "what was watched"),
    ("ports", Form::Lines, "its TCP ports"),
    ("seconds", Form::Amount, "how long it was watched"),
    ("windows", Form::Count, "how many windows were measured"),
    ("measured_seconds", Form::Amount, "how long they were together"),
    ("requests", Form::Count, "requests that were answered in them"),
    ("rate", Form::Amount, "the same in a second"),
    ("estimator", Form::Text, "by what `response` was estimated: residence, uniform, conditional or larger"),
    ("response", Form::Object(PERCENTILES), "from the NIC's ring to the answer"),
    ("residence", Form::Object(PERCENTILES), "from TCP to the answer: nothing is estimated"),
    ("uniform", Form::Object(PERCENTILES), "from the ring, by estimator U"),
    ("conditional", Form::Object(PERCENTILES), "from the ring, by estimator C"),
    ("ring", Form::Object(PERCENTILES), "in the ring"),
    ("wakeup", Form::Object(PERCENTILES), "from TCP to the read"),
    ("service_time", Form::Object(PERCENTILES), "from the read to the answer"),
    ("stack", Form::Amount, "what the stack takes of `response` in the usual case, in nanoseconds"),
    ("masked_share", Form::AmountOrNull, "the share of requests that came while the interrupt was masked"),
    ("waiting", Form::Count, "requests without an answer at the end"),
    ("oldest", Form::AmountOrNull, "how long the oldest of them has waited, in nanoseconds"),
    ("connections", Form::Count, "connections that were measured"),
    ("napis", Form::List(PART), "by NAPI"),
    ("workers", Form::List(PART), "by thread"),
    ("counts", Form::Object(COUNTS), "all events"),
    ("findings", Form::List(FINDING), "what is not to be believed of it"),
    ("cost", Form::Object(COST), "what a request costs"),
    ("by_queue", Form::List(NAMED_PART), "by NAPI, with the queue's name"),
    ("by_worker", Form::List(NAMED_PART), "by thread, with its name"),
];

const DOCUMENTS: &[Document] = &[
    ("watch", "what all windows together say", WATCH),
    ("watch-window", "what one window says by itself, in lines", WATCH),
];

/// The schema that every document of `watch` meets.
pub(crate) fn watch_json_schema() -> Value {
    schema("watch", "netpolicy watch, with -o json, and each line with -o jsonl", DOCUMENTS)
}
