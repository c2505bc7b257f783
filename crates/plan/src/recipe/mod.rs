//! Which delivery mode serves a policy, argued from what the IRQ-suspension document measured.

mod measured;

use model::{DeliveryMode, Intent, Nanoseconds, PolicyName, Reason, Threading};

use crate::refusal::{Refusal, RefusalKind};

/// The document whose measurements the recipes argue from, and whose parameters are the start values.
const DOCUMENT: &str = "IRQ-suspension document";

const SUSPEND20: DeliveryMode = DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(20) };
const SUSPEND200: DeliveryMode = DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(200) };
const DEFER200: DeliveryMode = DeliveryMode::Defer { gro_flush: Nanoseconds::from_micros(200) };

/// The delivery mode that a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The mode.
    pub mode: DeliveryMode,
    /// Why this one.
    pub because: Reason,
}

/// The delivery mode that a request gets: the one that an expert named, else the policy's.
///
/// # Errors
/// [`RefusalKind::Unsupported`] for policies without a recipe.
pub(crate) fn choose(intent: &Intent) -> Result<Chosen, Refusal> {
    if let Some(mode) = intent.delivery {
        let source = match mode {
            DeliveryMode::Interrupt => intent.origin.clone(),
            _ if mode.threading() != Threading::Off => {
                format!("{}: {mode}, threaded NAPI document", intent.origin)
            }
            _ => format!("{}: {mode}, {DOCUMENT}", intent.origin),
        };
        return Ok(Chosen { mode, because: Reason::new(format!("{mode} was asked for by name"), source) });
    }
    let (mode, why) = match intent.policy {
        PolicyName::Latency => (SUSPEND20, measured::latency()),
        PolicyName::Cpu => (SUSPEND200, measured::cpu()),
        PolicyName::Bulk => (DEFER200, measured::bulk()),
        PolicyName::None => {
            (DeliveryMode::Interrupt, "policy none is the kernel's own way, without any setting".to_owned())
        }
        PolicyName::Mix => {
            let why = "policy mix is not supported yet: it needs the device's queues divided between policies \
                       (RSS contexts, ntuple rules or SO_REUSEPORT steering)";
            let nearest =
                "one policy for the device, or a policy for each service that has queues of its own";
            return Err(unsupported(intent, why).nearest(nearest));
        }
        PolicyName::Power => {
            let why = "policy power is not supported yet: it needs the idle states and frequencies of CPUs, \
                       which no delivery mode sets";
            let nearest =
                format!("policy cpu ({SUSPEND200}), which serves each request with the fewest cycles");
            return Err(unsupported(intent, why).nearest(nearest));
        }
    };
    let source = match intent.policy {
        PolicyName::None => intent.origin.clone(),
        _ => format!("{}: policy {} → {mode}, {DOCUMENT}", intent.origin, intent.policy),
    };
    Ok(Chosen { mode, because: Reason::new(why, source) })
}

fn unsupported(intent: &Intent, why: &str) -> Refusal {
    Refusal::new(RefusalKind::Unsupported, &intent.target, why).because(format!("asked at {}", intent.origin))
}
