//! Converts the options of qdiscs to and from attributes, and defines the kernel's defaults of the options.

use std::collections::BTreeMap;

use model::qdisc::{Qdisc, QdiscKind, QdiscOption};

use crate::attr::{AttrBuf, Attrs, Malformed};

/// `TCA_*`.
pub(super) mod attribute {
    pub(in crate::qdisc) const KIND: u16 = 1;
    pub(in crate::qdisc) const OPTIONS: u16 = 2;
    pub(in crate::qdisc) const RATE: u16 = 5;
    pub(in crate::qdisc) const STAB: u16 = 8;
    pub(in crate::qdisc) const INGRESS_BLOCK: u16 = 13;
    pub(in crate::qdisc) const EGRESS_BLOCK: u16 = 14;
}

/// The properties of a device that determine the default options of its qdiscs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QdiscDefaults {
    /// The device's MTU, in bytes.
    pub mtu: u32,
    /// The default queue length in packets (`tx_queue_len`).
    pub tx_queue_len: u32,
    /// The number of the device's transmit queues.
    pub tx_queues: usize,
}

/// `ETH_HLEN`: the Ethernet header, which the kernel adds to the MTU for the size of a frame.
const FRAME_HEADER_BYTES: u32 = 14;

/// The range from which the kernel chooses the default quantum.
const QUANTUM_BYTES: std::ops::RangeInclusive<u32> = 256..=1 << 20;

/// The format of an option's attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A `u32`.
    Word,
    /// A `u8`.
    Byte,
    /// A `u32` of microseconds. The kernel stores the time in units of 1024 ns, so it reports slightly less
    /// than was set.
    CodelTime,
}

/// An option of a kind: its attribute, its format, and the kernel's default.
struct OptionSpec {
    option: QdiscOption,
    number: u16,
    form: Form,
    default: Option<u32>,
}

fn attributes(kind: QdiscKind, defaults: QdiscDefaults) -> Vec<OptionSpec> {
    use Form::{Byte, CodelTime, Word};
    use QdiscOption as O;
    let frame = defaults.mtu.saturating_add(FRAME_HEADER_BYTES);
    let share =
        |frames: u32| frame.saturating_mul(frames).clamp(*QUANTUM_BYTES.start(), *QUANTUM_BYTES.end());
    let all: Vec<(O, u16, Form, Option<u32>)> = match kind {
        QdiscKind::Noqueue | QdiscKind::Pfifo | QdiscKind::PfifoFast => Vec::new(),
        QdiscKind::Fq => vec![
            (O::Limit, 1, Word, Some(10_000)),
            (O::FlowLimit, 2, Word, Some(100)),
            (O::Quantum, 3, Word, Some(share(2))),
            (O::InitialQuantum, 4, Word, Some(frame.saturating_mul(10).min(*QUANTUM_BYTES.end()))),
            (O::Pacing, 5, Word, Some(1)),
            (O::Maxrate, 7, Word, Some(u32::MAX)),
            (O::BucketsLog, 8, Word, Some(10)),
            (O::RefillDelay, 9, Word, Some(40_000)),
            (O::OrphanMask, 10, Word, Some(1023)),
            (O::LowRateThreshold, 11, Word, Some(550_000 / 8)),
            (O::CeThreshold, 12, Word, Some(u32::MAX)),
            (O::TimerSlack, 13, Word, Some(10_000)),
            (O::Horizon, 14, Word, Some(10_000_000)),
            (O::HorizonDrop, 15, Byte, Some(1)),
            (O::OffloadHorizon, 18, Word, Some(0)),
        ],
        QdiscKind::FqCodel => vec![
            (O::Target, 1, CodelTime, Some(4_999)),
            (O::Limit, 2, Word, Some(10_240)),
            (O::Interval, 3, CodelTime, Some(99_999)),
            (O::Ecn, 4, Word, Some(1)),
            (O::Flows, 5, Word, Some(1024)),
            (O::Quantum, 6, Word, Some(share(1))),
            (O::CeThreshold, 7, CodelTime, None),
            (O::DropBatch, 8, Word, Some(64)),
            (O::MemoryLimit, 9, Word, Some(32 << 20)),
        ],
    };
    all.into_iter()
        .map(|(option, number, form, default)| OptionSpec { option, number, form, default })
        .collect()
}

/// Returns the attributes that are not recorded, with their default values. A qdisc with other values cannot
/// be recorded.
fn constants(kind: QdiscKind) -> Vec<(u16, Vec<u8>)> {
    match kind {
        QdiscKind::Noqueue | QdiscKind::Pfifo | QdiscKind::PfifoFast => Vec::new(),
        QdiscKind::Fq => {
            // The default `struct tc_prio_qopt`: the number of bands, and the band of each priority
            // (`sch_default_prio2band`).
            let mut bands = 3_u32.to_ne_bytes().to_vec();
            bands.extend_from_slice(&[1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
            let weights = [9_u32 << 16, 3 << 16, 1 << 16];
            vec![(16, bands), (17, weights.iter().flat_map(|weight| weight.to_ne_bytes()).collect())]
        }
        // `TCA_FQ_CODEL_CE_THRESHOLD_SELECTOR` and `_MASK`: by default, they select all packets.
        QdiscKind::FqCodel => vec![(10, vec![0]), (11, vec![0])],
    }
}

/// Parses the options that differ from the kernel's defaults; `None` if one of the options is unknown here.
///
/// # Errors
/// If an attribute is malformed.
pub(super) fn options(
    kind: QdiscKind,
    bytes: &[u8],
    defaults: QdiscDefaults,
) -> Result<Option<BTreeMap<QdiscOption, u32>>, Malformed> {
    let mut options = BTreeMap::new();
    match kind {
        // The options of `pfifo_fast` cannot be changed.
        QdiscKind::Noqueue | QdiscKind::PfifoFast => {}
        QdiscKind::Pfifo => {
            let limit = bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            let limit = limit.ok_or(Malformed("the options of a pfifo are truncated"))?;
            if limit != defaults.tx_queue_len.max(1) {
                options.insert(QdiscOption::Limit, limit);
            }
        }
        QdiscKind::Fq | QdiscKind::FqCodel => {
            let known = attributes(kind, defaults);
            let constants = constants(kind);
            for attr in Attrs::new(bytes) {
                let attr = attr?;
                if constants.iter().any(|(number, usual)| *number == attr.number && usual == attr.payload) {
                    continue;
                }
                let Some(known) = known.iter().find(|known| known.number == attr.number) else {
                    return Ok(None);
                };
                let value = match known.form {
                    Form::Byte => u32::from(attr.u8()?),
                    Form::Word | Form::CodelTime => attr.u32()?,
                };
                if Some(value) != known.default {
                    options.insert(known.option, value);
                }
            }
        }
    }
    Ok(Some(options))
}

/// Writes a qdisc's kind and options after the header of a request.
pub(super) fn describe(body: &mut AttrBuf, qdisc: &Qdisc, defaults: QdiscDefaults) {
    body.text(attribute::KIND, qdisc.kind.as_str());
    match qdisc.kind {
        QdiscKind::Noqueue | QdiscKind::PfifoFast => {}
        QdiscKind::Pfifo => {
            if let Some(limit) = qdisc.options.get(&QdiscOption::Limit) {
                body.bytes(attribute::OPTIONS, &limit.to_ne_bytes());
            }
        }
        QdiscKind::Fq | QdiscKind::FqCodel => {
            let known = attributes(qdisc.kind, defaults);
            body.nested(attribute::OPTIONS, |nest| {
                for OptionSpec { option, number, form, .. } in known {
                    let Some(&value) = qdisc.options.get(&option) else { continue };
                    match form {
                        Form::Word => nest.u32(number, value),
                        // The value of this option is 0 or 1.
                        Form::Byte => nest.u8(number, u8::from(value != 0)),
                        // The kernel truncates the value to units of 1024 ns and reports whole microseconds.
                        // With one microsecond more, it stores the same number of units as before, and so
                        // reports the same value.
                        Form::CodelTime => nest.u32(number, value.saturating_add(1)),
                    };
                }
            });
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const ETHERNET: QdiscDefaults = QdiscDefaults { mtu: 1500, tx_queue_len: 1000, tx_queues: 2 };

    /// Returns the value that the kernel reports after `value` microseconds were set:
    /// `codel_time_to_us(codel_usecs(value))`.
    fn codel_shows(value: u32) -> u64 {
        (((u64::from(value) * 1000) >> 10) << 10) / 1000
    }

    #[test]
    fn a_time_of_codel_is_written_so_that_the_kernel_shows_the_same_again() {
        for value in (0..200_000).step_by(7).chain([5_000, 100_000]) {
            let shown = u32::try_from(codel_shows(value)).expect("shown");
            assert_eq!(codel_shows(shown + 1), u64::from(shown), "set {value}");
        }
        let mut codel = Qdisc::of(QdiscKind::FqCodel);
        codel.options.insert(QdiscOption::Target, 4_998);
        let mut body = AttrBuf::new();
        describe(&mut body, &codel, ETHERNET);
        let options =
            Attrs::new(body.as_bytes()).find(attribute::OPTIONS).expect("well-formed").expect("some");
        assert_eq!(options.nested().find(1).expect("well-formed").expect("a target").u32(), Ok(4_999));
    }
}
