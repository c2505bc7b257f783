//! `route`: matches the realms of the packet's route.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_ROUTE4_*`, `net/sched/cls_route.c`.

use super::shape::{Shape, Takes, Value, shape};
use crate::number::{self, Base};

const TO: u16 = 2;
const FROM: u16 = 3;
const IIF: u16 = 4;

pub(super) const SHAPE: Shape = shape! {
    "route";
    "to" = 2 Takes::Realm,
    "from" = 3 Takes::Realm,
    "fromif" = 4 Takes::Device,
    "classid" = 1 Takes::Class,
    "flowid" whole = 1 Takes::Class,
    "police" = 5 Takes::Police,
    "action" = 6 Takes::Actions,
    "order" = 0 Takes::Order,
};

/// Parses a realm: a number, or a standard name of realm 0.
pub(super) fn realm(word: &str) -> Option<u32> {
    match word {
        "cosmos" | "unknown" => Some(0),
        _ => number::u32(word, Base::Prefix).filter(|realm| *realm <= 255),
    }
}

/// Returns the handle that iproute2 derives from the options if the line gives none. The handle contains the
/// realms.
pub(super) fn handle(options: &[(u16, Value)], order: u32) -> u32 {
    let mut handle = 0xffff_8000;
    for (number, value) in options {
        let Value::Number(value) = value else { continue };
        handle = match *number {
            TO => handle & !0x80ff | value & 0xff,
            FROM => handle & 0xffff | value << 16,
            IIF => handle & 0xffff | (0x8000 | value) << 16,
            _ => handle,
        };
    }
    if order == 0 { handle } else { handle & !0x7f00 | order << 8 & 0x7f00 }
}
