//! Resolves a policy's recipe. This file resolves it to a delivery mode and the mode's values, [`of_device`]
//! to settings of a device.

pub(crate) mod circumstances;
pub(crate) mod of_device;

use model::recipe::{Mechanism, RecipeValue};
use model::{
    Circumstances, DeliveryMode, EmptyPolls, Intent, PolicyName, Reason, Recipes, Target, Threading,
};

use crate::chosen::Chosen;
use crate::refusal::{Refusal, RefusalKind};

/// Returns the delivery mode of a request: the one that it names, or else the mode that the policy's recipe
/// has for its circumstances.
///
/// # Errors
/// [`RefusalKind::Missing`] for a policy without a recipe, [`RefusalKind::Usage`] for `mix` on anything but a
/// device.
pub(crate) fn choose(
    intent: &Intent,
    recipes: &Recipes,
    places: &[Circumstances],
) -> Result<Chosen, Refusal> {
    if intent.policy == PolicyName::Mix && !matches!(intent.target, Target::Device(_) | Target::Devices(..)) {
        return Err(Refusal::new(
            RefusalKind::Usage,
            &intent.target,
            "mix is for devices that several policies share",
        )
        .because(format!("requested at {}", intent.origin))
        .nearest("use a policy for one workload, such as latency or bulk"));
    }
    if let (Some(mode), Some(why)) = (intent.delivery, &intent.found) {
        let source = format!("{}: policy {} → {mode}, on_missed", intent.origin, intent.policy);
        return Ok(Chosen { mode, because: Reason::new(why.clone(), source) });
    }
    if let Some(mode) = intent.delivery {
        let source = match mode {
            DeliveryMode::Interrupt => intent.origin.clone(),
            _ if mode.threading() != Threading::Off => {
                format!("{}: {mode}, threaded NAPI document", intent.origin)
            }
            _ => format!("{}: {mode}, IRQ-suspension document", intent.origin),
        };
        return Ok(Chosen {
            mode,
            because: Reason::new(format!("delivery mode {mode} is set explicitly"), source),
        });
    }
    let named = recipes.agreed(intent.policy, Mechanism::Delivery, places);
    match named.entry.map(|entry| (&entry.value, &entry.because)) {
        Some((RecipeValue::Delivery(mode), because)) => {
            let source = format!("{}: policy {} → {mode}, {}", intent.origin, intent.policy, because.source);
            Ok(Chosen { mode: *mode, because: Reason::new(because.why.clone(), source) })
        }
        Some(_) | None if intent.policy == PolicyName::None => Ok(Chosen {
            mode: DeliveryMode::Interrupt,
            because: Reason::new(
                "policy none is the kernel's default, without any setting",
                intent.origin.clone(),
            ),
        }),
        Some(_) | None => Err(Refusal::new(
            RefusalKind::Missing,
            &intent.target,
            format!("policy {} has no recipe that names a delivery mode", intent.policy),
        )
        .because(format!("requested at {}", intent.origin))
        .nearest("name a delivery mode, such as suspend20")),
    }
}

/// Returns the values of a mode, with overrides from the policy's recipe. A mode that the request names gets
/// no overrides.
pub(crate) fn params(
    intent: &Intent,
    mode: DeliveryMode,
    recipes: &Recipes,
    places: &[Circumstances],
) -> model::DeliveryParams {
    let mut params = mode.params();
    if intent.delivery.is_some() {
        return params;
    }
    let value = |mechanism| recipes.agreed(intent.policy, mechanism, places).entry.map(|entry| &entry.value);
    if let Some(RecipeValue::Number(polls)) = value(Mechanism::DeferHardIrqs) {
        params.defer_hard_irqs = EmptyPolls(*polls);
    }
    if let Some(RecipeValue::Span(span)) = value(Mechanism::GroFlushTimeout) {
        params.gro_flush_timeout = *span;
    }
    if let Some(RecipeValue::Span(span)) = value(Mechanism::IrqSuspendTimeout) {
        params.irq_suspend_timeout = *span;
    }
    params
}

/// Returns notes on a mode that the recipe chose: that the request's devices would need different modes, or
/// that the mode was not measured on such a device.
pub(crate) fn notes(
    intent: &Intent,
    chosen: &Chosen,
    recipes: &Recipes,
    places: &[Circumstances],
) -> Vec<String> {
    if let (Some(mode), Some(why)) = (intent.delivery, &intent.found) {
        return vec![format!("policy {}: {mode}: {why}", intent.policy)];
    }
    if intent.delivery.is_some() {
        return Vec::new();
    }
    let (policy, mode) = (intent.policy, chosen.mode);
    let found = recipes.agreed(policy, Mechanism::Delivery, places);
    let kinds = |all: &mut dyn Iterator<Item = &Circumstances>| {
        let mut kinds: Vec<&str> = all.map(|place| place.driver.as_str()).collect();
        kinds.dedup();
        kinds.join(", ")
    };
    if found.differ {
        return vec![format!(
            "policy {policy} resolves to different modes on the devices that receive its packets ({}): {mode} is the default; `delivery` overrides it",
            kinds(&mut places.iter())
        )];
    }
    if chosen.is_default_despite(intent) {
        return vec![format!(
            "policy {policy} resolves to the kernel's default delivery here ({}), and changes nothing: {}",
            kinds(&mut places.iter()),
            chosen.because.why
        )];
    }
    let unmeasured = |place: &&Circumstances| {
        mode != DeliveryMode::Interrupt
            && found.entry.is_some_and(|entry| entry.is_unmeasured_on(&place.driver))
    };
    let unmeasured = kinds(&mut places.iter().filter(unmeasured));
    if unmeasured.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "policy {policy}: {mode} was not measured on such a device ({unmeasured}); `netpolicy bench policies` measures what \
         the policies gain and cost on this machine, in a lab"
    )]
}
