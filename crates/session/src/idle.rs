//! Measures the effect of policy `power`: the residency of CPUs in each idle state, before and after the
//! change.

use std::time::{Duration, Instant};

use linux::IdleTimes;
use model::{Policy, PolicyName};

use crate::operator::Operator;

/// How long to measure idle states before and after the change.
const WATCHED: Duration = Duration::from_secs(2);

/// The residency in idle states before a change, for policies that are judged by it.
pub(crate) struct IdleComparison {
    before: Option<String>,
}

impl IdleComparison {
    /// Measures for a while if any request is for `power`. If the machine has no idle states, reports that.
    pub(crate) fn before(policy: &Policy, operator: &dyn Operator) -> Self {
        let asked = policy.intents.iter().any(|intent| intent.policy == PolicyName::Power);
        let before = if asked { watched(operator) } else { None };
        Self { before }
    }

    /// Measures again, and reports both measurements.
    pub(crate) fn after(self, operator: &dyn Operator) {
        if let Some(before) = self.before
            && let Some(after) = watched(operator)
        {
            operator.say(&format!("Idle states before: {before}; after: {after}."));
        }
    }
}

/// Measures the residency in idle states, and returns it as text.
fn watched(operator: &dyn Operator) -> Option<String> {
    let first = match IdleTimes::now() {
        Ok(Some(first)) => first,
        Ok(None) => {
            operator.say(
                "This machine has no idle states that Linux controls (no cpuidle driver): residency cannot be reported.",
            );
            return None;
        }
        Err(error) => {
            operator.say(&format!("Idle states cannot be read: {error}"));
            return None;
        }
    };
    let begun = Instant::now();
    std::thread::sleep(WATCHED);
    let span = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    let second = IdleTimes::now().ok().flatten()?;
    let shares = second.shares_since(&first, span);
    let words: Vec<String> = shares.iter().map(|(state, share)| format!("{state} {share} %")).collect();
    Some(words.join(", "))
}
