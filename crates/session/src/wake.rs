//! Limits the wake-up latency of CPUs. The limit is in force while this process holds `/dev/cpu_dma_latency`
//! open.

use linux::WakeLatency;
use model::{Intent, Mechanism, RecipeValue};

use crate::fault::Fault;
use crate::operator::Operator;
use crate::session::Session;

/// Holds the given limit or, without one, that of the policy's recipe.
///
/// # Errors
/// If the kernel refuses the given limit. A refusal of the recipe's limit is only reported.
pub fn hold(
    given: Option<u32>,
    intent: &Intent,
    session: &Session,
    operator: &dyn Operator,
) -> Result<Option<WakeLatency>, Fault> {
    if given.is_some() {
        return Ok(given.map(WakeLatency::hold).transpose()?);
    }
    let recipes = session.recipes()?;
    let of_recipe = recipes.of(intent.policy, Mechanism::WakeLatency).filter(|_| intent.delivery.is_none());
    let Some(RecipeValue::Number(micros)) = of_recipe.map(|entry| &entry.value) else { return Ok(None) };
    let mut wake = HeldWake::default();
    if let Some(why) = wake.hold(Some(*micros)) {
        operator.detail(&why);
    }
    Ok(wake.held.map(|(_, held)| held))
}

/// A limit on the wake-up latency that can change over time.
#[derive(Debug, Default)]
pub struct HeldWake {
    held: Option<(u32, WakeLatency)>,
    /// The limit that could not be held, so that it is not tried again.
    refused: Option<u32>,
}

impl HeldWake {
    /// Replaces the limit by this one, in microseconds. If that fails, returns the reason, but only once for
    /// the same limit.
    pub fn hold(&mut self, wanted: Option<u32>) -> Option<String> {
        let held = self.held.as_ref().map(|(micros, _)| *micros);
        if wanted == held || wanted.is_some() && wanted == self.refused {
            return None;
        }
        // Hold the new limit before releasing the old one.
        let taken = wanted.map(|micros| WakeLatency::hold(micros).map(|wake| (micros, wake))).transpose();
        self.refused = if taken.is_err() { wanted } else { None };
        match taken {
            Ok(taken) => {
                self.held = taken;
                None
            }
            Err(error) => {
                self.held = None;
                Some(format!("cpu_dma_latency cannot be held: {error}"))
            }
        }
    }
}
