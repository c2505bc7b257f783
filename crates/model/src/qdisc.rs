//! The queueing disciplines of a device: what packets wait in before they leave.
//!
//! Kernel: `include/uapi/linux/pkt_sched.h`, `net/sched/sch_generic.c`, `net/sched/sch_mq.c`.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// A kind of queueing discipline whose options are all known here, so that it can be put back as it was.
    QdiscKind {
        /// None: packets go to the driver immediately. For a whole device only.
        Noqueue = "noqueue",
        /// One queue.
        Pfifo = "pfifo",
        /// Three queues by priority.
        PfifoFast = "pfifo_fast",
        /// A queue for each flow, and pacing.
        Fq = "fq",
        /// A queue for each flow, and drops before it grows long.
        FqCodel = "fq_codel",
    }
}

words! {
    /// An option of a queueing discipline, by `tc`'s word for it, in the kernel's unit.
    QdiscOption {
        /// How many packets wait at most.
        Limit = "limit",
        /// How many of one flow (fq).
        FlowLimit = "flow_limit",
        /// How many bytes a flow sends in its turn.
        Quantum = "quantum",
        /// The same in its first turn (fq).
        InitialQuantum = "initial_quantum",
        /// Whether flows are paced: 0 or 1 (fq).
        Pacing = "pacing",
        /// The fastest that a flow is sent, in bytes a second (fq).
        Maxrate = "maxrate",
        /// The binary logarithm of the number of buckets (fq).
        BucketsLog = "buckets",
        /// How long a flow must be idle to be refilled, in microseconds (fq).
        RefillDelay = "refill_delay",
        /// The mask of the hash for packets without a socket (fq).
        OrphanMask = "orphan_mask",
        /// The rate below which each packet is delayed on its own, in bytes a second (fq).
        LowRateThreshold = "low_rate_threshold",
        /// The wait from which packets are marked, in microseconds (fq, fq_codel).
        CeThreshold = "ce_threshold",
        /// The slack of the timer, in nanoseconds (fq).
        TimerSlack = "timer_slack",
        /// How far ahead packets may be timed, in microseconds (fq).
        Horizon = "horizon",
        /// Whether packets beyond the horizon are dropped: 0 or 1 (fq).
        HorizonDrop = "horizon_drop",
        /// How far ahead packets go to a NIC that times them itself, in microseconds (fq). Kernel: 6.13.
        OffloadHorizon = "offload_horizon",
        /// How long packets may wait for good, in microseconds (fq_codel).
        Target = "target",
        /// For how long they may wait longer, in microseconds (fq_codel).
        Interval = "interval",
        /// Whether packets are marked instead of dropped: 0 or 1 (fq_codel).
        Ecn = "ecn",
        /// How many flow queues there are (fq_codel). Fixed when the discipline is created.
        Flows = "flows",
        /// How many packets are dropped in one batch (fq_codel).
        DropBatch = "drop_batch",
        /// How many bytes wait at most (fq_codel).
        MemoryLimit = "memory_limit",
    }
}

/// One queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qdisc {
    /// Its kind.
    pub kind: QdiscKind,
    /// The major number of its handle, if it was given one; `None` where the kernel chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u16>,
    /// The options that differ from what the kernel gives this kind on this device.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<QdiscOption, u32>,
}

impl Qdisc {
    /// One of a kind, as the kernel makes it.
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

/// All queueing disciplines of a device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Qdiscs {
    /// What the kernel gave the device: these, in the order of its transmit queues, or one for all of them.
    Default(Vec<String>),
    /// One for the whole device.
    Whole(Qdisc),
    /// One for each transmit queue, below `mq`.
    PerQueue {
        /// The major number of `mq`'s handle, as [`Qdisc::handle`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handle: Option<u16>,
        /// By the index of the queue.
        queues: Vec<Qdisc>,
    },
    /// Something that cannot be recorded as a whole, in a few words: it is read, and never written.
    Other(String),
}

impl Qdiscs {
    /// The kinds in the words of `tc`: `default` or the root's, and those of the queues.
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

/// `4 × fq, pfifo`: what follows itself is counted.
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
