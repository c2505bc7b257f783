//! `cgroup`: assigns packets the class of their process's cgroup (`net_cls.classid`).
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_CGROUP_*`, `net/sched/cls_cgroup.c`.

use super::shape::{Shape, Takes, shape};

pub(super) const SHAPE: Shape = shape! {
    "cgroup" always;
    "match" = 3 Takes::Matches,
    "action" = 1 Takes::Actions,
    "police" = 2 Takes::Police,
};
