//! Lists what an observation of a host cannot show.

use model::host::Confidence;
use model::{Delivered, Host};

use super::HostContext;

/// Lists what remains unknown, each with a way to find out. The most important comes first.
pub fn not_known(host: &Host, delivered: Option<&Delivered>, context: &HostContext) -> Vec<String> {
    let mut lines = Vec::new();
    if !host.capabilities.ptrace {
        lines.push("how processes of other users wait (run it as root)".to_owned());
    }
    match delivered {
        None => lines.push("which context delivers the packets (nothing was counted)".to_owned()),
        Some(_) if context.watched.is_zero() => {}
        Some(_) => {
            let seconds = context.watched.0.saturating_add(500_000_000) / 1_000_000_000;
            lines.push(format!("other loads than during these {seconds} s (--seconds N observes longer)"));
        }
    }
    let inferred = host.devices.iter().filter(|device| {
        let stated = |confidence| confidence == Confidence::Stated;
        device.napis.iter().any(|napi| napi.irq.is_some_and(|edge| !stated(edge.confidence)))
    });
    let inferred: Vec<String> =
        inferred.map(|device| device.id.name.to_string()).take(DEVICES_NAMED_MAX).collect();
    if !inferred.is_empty() {
        lines.push(format!(
            "the interrupts of the queues of {} (inferred, not reported)",
            inferred.join(", ")
        ));
    }
    if !context.timed {
        lines.push("how long requests take (`netpolicy watch`, or a goal in a policy file)".to_owned());
    }
    lines
}

/// The maximum number of devices to name.
const DEVICES_NAMED_MAX: usize = 3;
