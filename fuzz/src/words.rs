//! Fuzzes short texts that operators type: time spans, delivery modes, kernel releases.

use model::{DeliveryMode, KernelVersion, Nanoseconds};

use crate::text_of;

pub(crate) fn run(bytes: &[u8]) {
    let text = text_of(bytes);
    if let Ok(span) = text.parse::<Nanoseconds>() {
        assert_eq!(span.to_string().parse::<Nanoseconds>(), Ok(span));
    }
    if let Ok(mode) = text.parse::<DeliveryMode>() {
        assert_eq!(mode.to_string().parse::<DeliveryMode>(), Ok(mode));
    }
    let _ = KernelVersion::parse(text);
}
