//! The qdiscs of a device.
//!
//! Kernel: `include/uapi/linux/pkt_sched.h`, `net/sched/sch_generic.c`, `net/sched/sch_mq.c`.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// A kind of qdisc. netpolicy knows all options of these kinds, so it can restore such a qdisc.
    QdiscKind {
        /// No queue: packets go to the driver immediately. Possible only for a whole device.
        Noqueue = "noqueue",
        /// One queue.
        Pfifo = "pfifo",
        /// Three queues, by the packets' priority.
        PfifoFast = "pfifo_fast",
        /// A queue for each flow, with pacing.
        Fq = "fq",
        /// A queue for each flow, with early drops to keep the queues short.
        FqCodel = "fq_codel",
    }
}

words! {
    /// A qdisc option, by its name in `tc`, in the kernel's unit.
    QdiscOption {
        /// The maximum number of queued packets.
        Limit = "limit",
        /// The maximum number of queued packets per flow (fq).
        FlowLimit = "flow_limit",
        /// The number of bytes that a flow sends per turn.
        Quantum = "quantum",
        /// The number of bytes that a flow sends in its first turn (fq).
        InitialQuantum = "initial_quantum",
        /// Whether flows are paced: 0 or 1 (fq).
        Pacing = "pacing",
        /// The maximum rate of a flow, in bytes per second (fq).
        Maxrate = "maxrate",
        /// The binary logarithm of the number of buckets (fq).
        BucketsLog = "buckets",
        /// How long a flow must be idle to be refilled, in microseconds (fq).
        RefillDelay = "refill_delay",
        /// The mask of the hash for packets without a socket (fq).
        OrphanMask = "orphan_mask",
        /// The rate below which each packet is delayed individually, in bytes per second (fq).
        LowRateThreshold = "low_rate_threshold",
        /// The queueing delay above which packets are CE-marked, in microseconds (fq, fq_codel).
        CeThreshold = "ce_threshold",
        /// The slack of the timer, in nanoseconds (fq).
        TimerSlack = "timer_slack",
        /// How far in the future departure times may be, in microseconds (fq).
        Horizon = "horizon",
        /// Whether packets beyond the horizon are dropped: 0 or 1 (fq).
        HorizonDrop = "horizon_drop",
        /// How far in the future departure times may be for a NIC that paces by itself, in microseconds (fq).
        /// Kernel: 6.13.
        OffloadHorizon = "offload_horizon",
        /// The acceptable queueing delay, in microseconds (fq_codel).
        Target = "target",
        /// How long the delay may exceed the target, in microseconds (fq_codel).
        Interval = "interval",
        /// Whether packets are ECN-marked instead of dropped: 0 or 1 (fq_codel).
        Ecn = "ecn",
        /// The number of flow queues (fq_codel). Fixed when the qdisc is created.
        Flows = "flows",
        /// The number of packets that are dropped in one batch (fq_codel).
        DropBatch = "drop_batch",
        /// The maximum number of queued bytes (fq_codel).
        MemoryLimit = "memory_limit",
    }
}

/// A qdisc.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qdisc {
    /// The kind.
    pub kind: QdiscKind,
    /// The major number of the qdisc's handle, if it was set explicitly; `None` if the kernel chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u16>,
    /// The options that differ from the kernel's defaults for this kind on this device.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<QdiscOption, u32>,
}

impl Qdisc {
    /// Creates a qdisc of a kind with the kernel's defaults.
    pub const fn of(kind: QdiscKind) -> Self {
        Self { kind, handle: None, options: BTreeMap::new() }
    }
}

impl fmt::Display for Qdisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.kind.to_string();
        if let Some(handle) = self.handle {
            text.push_str(&format!(" {handle:x}:"));
        }
        for (option, value) in &self.options {
            text.push_str(&format!(" {option} {value}"));
        }
        f.pad(&text)
    }
}

/// All qdiscs of a device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Qdiscs {
    /// The kernel's defaults: the kinds in the order of the transmit queues, or one kind for all transmit
    /// queues.
    Default(Vec<String>),
    /// One qdisc for the whole device.
    Whole(Qdisc),
    /// One qdisc for each transmit queue, below `mq`.
    PerQueue {
        /// The major number of the handle of `mq`, as in [`Qdisc::handle`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handle: Option<u16>,
        /// The qdiscs, by queue index.
        queues: Vec<Qdisc>,
    },
    /// A configuration that cannot be recorded completely, described in a few words. netpolicy can read it
    /// but never writes it.
    Other(String),
}

impl Qdiscs {
    /// Names the kinds as in `tc`: `default` or the kind of the root, and the kinds of the queues.
    pub fn kinds(&self) -> String {
        match self {
            Self::Default(kinds) => format!("default {}", kinds.join(" ")),
            Self::Whole(qdisc) => qdisc.kind.to_string(),
            Self::PerQueue { queues, .. } => {
                let kinds: Vec<&str> = queues.iter().map(|qdisc| qdisc.kind.as_str()).collect();
                format!("mq {}", kinds.join(" "))
            }
            Self::Other(what) => what.clone(),
        }
    }
}

impl fmt::Display for Qdiscs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Default(kinds) => format!("default ({})", runs(kinds)),
            Self::Whole(qdisc) => qdisc.to_string(),
            Self::PerQueue { handle, queues } => {
                let mq = handle.map_or_else(|| "mq".to_owned(), |handle| format!("mq {handle:x}:"));
                format!("{mq} of {}", runs(queues))
            }
            Self::Other(what) => format!("{what} (cannot be recorded as a whole)"),
        };
        f.pad(&text)
    }
}

/// Formats a list and counts repetitions, such as `4 × fq, pfifo`.
fn runs<T: PartialEq + fmt::Display>(all: &[T]) -> String {
    let runs = all.chunk_by(PartialEq::eq).filter_map(|run| Some((run.first()?, run.len())));
    let text: Vec<String> = runs
        .map(|(one, count)| if count == 1 { one.to_string() } else { format!("{count} × {one}") })
        .collect();
    text.join(", ")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn disciplines_read_as_a_few_words() {
        let per_queue = |queues| Qdiscs::PerQueue { handle: None, queues };
        let mut short = Qdisc::of(QdiscKind::Fq);
        short.options.insert(QdiscOption::Limit, 100);
        short.handle = Some(0x10);
        let fq = Qdisc::of(QdiscKind::Fq);
        assert_eq!(per_queue(vec![fq.clone(), fq, short]).to_string(), "mq of 2 × fq, fq 10: limit 100");
        let default = Qdiscs::Default(vec!["pfifo_fast".to_owned(); 3]);
        assert_eq!(default.to_string(), "default (3 × pfifo_fast)");
    }
}
