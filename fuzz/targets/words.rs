//! The short texts that operators type: spans of time, delivery modes, kernel releases.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{DeliveryMode, KernelVersion, Nanoseconds};

fuzz_target!(|text: &str| {
    if let Ok(span) = text.parse::<Nanoseconds>() {
        assert_eq!(span.to_string().parse::<Nanoseconds>(), Ok(span));
    }
    if let Ok(mode) = text.parse::<DeliveryMode>() {
        assert_eq!(mode.to_string().parse::<DeliveryMode>(), Ok(mode));
    }
    let _ = KernelVersion::parse(text);
});
