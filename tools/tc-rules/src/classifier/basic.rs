//! `basic`: matches packets with an expression of ematches.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_BASIC_*`, `net/sched/cls_basic.c`.

use super::shape::{Shape, Takes, shape};

pub(super) const SHAPE: Shape = shape! {
    "basic";
    "match" = 2 Takes::Matches,
    "classid" = 1 Takes::Class,
    "flowid" whole = 1 Takes::Class,
    "action" = 3 Takes::Actions,
    "police" = 4 Takes::Police,
};
