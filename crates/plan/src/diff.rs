//! What has to change: only what differs, in the order of writing.

use std::collections::BTreeMap;

use model::setting::Interface;
use model::{Change, Host, Object, Plan, Step};

use crate::holders;
use crate::in_force;
use crate::index::Index;
use crate::order;
use crate::refusal::Refusal;
use crate::wanted::Desired;

/// The changes that bring a host to what is desired; an empty plan if it is so already. The changes of one object
/// that use one kernel interface are one step, so that a NAPI costs one call.
///
/// # Errors
/// [`crate::RefusalKind::Missing`] if an object is gone, or the value in force could not be read: what is not
/// known cannot be restored. [`crate::RefusalKind::Safety`] if a change would take a queue from what holds it.
pub fn diff(desired: &Desired, host: &Host) -> Result<Plan, Refusal> {
    let index = Index::new(host);
    let mut changes: BTreeMap<(Object, Interface), Vec<Change>> = BTreeMap::new();
    for wanted in &desired.wanted {
        let from = in_force::value(&wanted.setting, &index)?;
        if from != wanted.setting {
            let change = Change::new(from, wanted.setting.clone(), wanted.because.clone());
            let step = (wanted.setting.object(), wanted.setting.interface());
            changes.entry(step).or_default().push(change);
        }
    }
    let ending = order::EndingThreads::of(changes.values().flatten());
    let mut steps: Vec<Step> =
        changes.into_values().map(|c| Step::new(order::within_step(c, &ending))).collect();
    steps.sort_by_key(|step| order::phase(step, &ending));
    let plan = Plan { steps };
    holders::check(&plan, host)?;
    Ok(plan)
}
