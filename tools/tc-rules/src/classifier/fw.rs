//! `fw`: matches the mark of a packet against the handle.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_FW_*`, `net/sched/cls_fw.c`.

use super::shape::{Shape, Takes, Value, shape};

/// The attribute for the mask of the mark.
pub(super) const MASK: u16 = 5;

pub(super) const SHAPE: Shape = shape! {
    "fw";
    "classid" = 1 Takes::Class,
    "flowid" = 1 Takes::Class,
    "police" = 2 Takes::Police,
    "action" = 4 Takes::Actions,
    "indev" whole = 3 Takes::DeviceName,
};

/// Removes the default mask, which covers all bits.
pub(super) fn canonicalize(options: &mut Vec<(u16, Value)>) {
    options.retain(|option| *option != (MASK, Value::Number(u32::MAX)));
}
