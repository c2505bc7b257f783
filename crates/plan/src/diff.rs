//! Determines the necessary changes, in the order of writing.

use std::collections::BTreeMap;

use model::setting::Interface;
use model::{Change, Host, Object, Plan, Step};

use crate::holders;
use crate::in_force;
use crate::index::Index;
use crate::order;
use crate::refusal::Refusal;
use crate::wanted::Desired;

/// Returns the changes that turn a host into the desired state; an empty plan if there are none. Changes to
/// one object through one kernel interface form one step, so that all settings of a NAPI take one call.
///
/// # Errors
/// [`crate::RefusalKind::Missing`] if an object no longer exists, or if its value could not be read, because
/// an unknown value could not be restored. [`crate::RefusalKind::Safety`] if a change would take a queue from
/// its holder.
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
