//! Applies a request's overrides to the values of a delivery mode, and checks the result. Each check is for a
//! combination that the kernel accepts silently although it has no effect, or the opposite of the intended
//! one.

use model::{DeliveryMode, DeliveryParams, EmptyPolls, Intent, Nanoseconds, NapiKnob};

use crate::refusal::{Refusal, RefusalKind};

/// Returns the values of a mode for one request, with the request's overrides.
///
/// # Errors
/// [`RefusalKind::Usage`] for contradicting values, [`RefusalKind::Safety`] if the values exceed the budget's
/// delay.
pub(crate) fn with_overrides(
    intent: &Intent,
    mode: DeliveryMode,
    mut params: DeliveryParams,
) -> Result<DeliveryParams, Refusal> {
    let overrides = intent.overrides;
    if let Some(polls) = overrides.defer_hard_irqs {
        params.defer_hard_irqs = EmptyPolls(polls);
    }
    if let Some(span) = overrides.gro_flush_timeout {
        params.gro_flush_timeout = span;
    }
    if let Some(span) = overrides.irq_suspend_timeout {
        params.irq_suspend_timeout = span;
    }
    contradiction(intent, mode, &params).map_or(Ok(()), Err)?;
    added_delay(intent, mode, &params)?;
    Ok(params)
}

fn contradiction(intent: &Intent, mode: DeliveryMode, params: &DeliveryParams) -> Option<Refusal> {
    let (defer, flush, suspend) =
        (params.defer_hard_irqs, params.gro_flush_timeout, params.irq_suspend_timeout);
    let usage = |message: String| Refusal::new(RefusalKind::Usage, &intent.origin, message);
    for knob in [
        NapiKnob::DeferHardIrqs(defer),
        NapiKnob::GroFlushTimeout(flush),
        NapiKnob::IrqSuspendTimeout(suspend),
    ] {
        if let Some(most) = knob.beyond() {
            return Some(usage(format!("{} {} is beyond {most}", knob.facts().name, knob.value())));
        }
    }
    if mode == DeliveryMode::Interrupt {
        return (params != &mode.params()).then(|| {
            usage("delivery mode interrupt defers nothing, so it accepts no timeouts".to_owned())
                .nearest("delivery = \"defer20\", or without these values")
        });
    }
    if mode == DeliveryMode::ThreadedBusy {
        return (params != &mode.params()).then(|| {
            usage("delivery mode threaded-busy polls continuously, so it accepts no timeouts".to_owned())
                .nearest("delivery = \"threaded\", or without these values")
        });
    }
    if mode == DeliveryMode::Threaded {
        let off = defer.0 == 0 && flush.is_zero();
        let on = defer.0 > 0 && !flush.is_zero();
        return (!(off || on) || !suspend.is_zero()).then(|| {
            usage(
                "delivery mode threaded needs both defer-hard-irqs and gro-flush-timeout or neither, and accepts no irq-suspend-timeout, because no application polls"
                    .to_owned(),
            )
            .nearest("delivery = \"threaded\", without these values")
        });
    }
    if DeliveryMode::EPOLL_DOCUMENT.contains(&mode) {
        return (params != &mode.params()).then(|| {
            usage(format!(
                "delivery mode {mode} polls no NAPI, so it accepts no timeouts: they would delay events"
            ))
            .nearest("delivery = \"napibusy\", or without these values")
        });
    }
    if defer.0 == 0 || flush.is_zero() {
        let knob = if defer.0 == 0 { "defer-hard-irqs 0" } else { "gro-flush-timeout 0" };
        let message = format!("{knob} turns off deferral, on which {mode} depends");
        let message = match mode {
            DeliveryMode::Suspend { .. } => {
                format!("{message}: the IRQ would be enabled again at every epoll_wait")
            }
            _ => message,
        };
        return Some(
            usage(message).nearest(format!("{mode} with its default values, or delivery = \"interrupt\"")),
        );
    }
    let suspends = matches!(mode, DeliveryMode::Suspend { .. });
    if suspends && suspend.is_zero() {
        return Some(
            usage(format!("irq-suspend-timeout 0 turns off suspension, which is the only effect of {mode}"))
                .nearest(format!("delivery = \"{}\"", DeliveryMode::Defer { gro_flush: flush })),
        );
    }
    if !suspend.is_zero() && !params.epoll.prefer_busy_poll {
        return Some(
            usage(format!(
                "irq-suspend-timeout {suspend} needs prefer_busy_poll on the application's epolls, \
                 and {mode} does not set it"
            ))
            .nearest(format!("delivery = \"{}\"", DeliveryMode::Suspend { gro_flush: flush })),
        );
    }
    if !suspend.is_zero() && suspend <= flush {
        let own = mode.params();
        let nearest = if own.irq_suspend_timeout > flush {
            format!("irq-suspend-timeout {}", own.irq_suspend_timeout)
        } else {
            "suspend20, or a longer irq_suspend_timeout in a policy file".to_owned()
        };
        return Some(
            usage(format!(
                "irq-suspend-timeout {suspend} is not longer than gro-flush-timeout {flush}: \
                 it must cover a whole iteration of the application's loop"
            ))
            .nearest(nearest),
        );
    }
    None
}

/// The maximum delay of a packet if the request has no explicit budget, so that a wrong unit in a policy file
/// cannot cut off a host. Recipes use at most 5 ms.
const ADDED_DELAY_UNASKED: Nanoseconds = Nanoseconds::from_millis(1_000);

/// Checks the delay that deferral adds: up to one `gro-flush-timeout` for a packet to an idle application.
fn added_delay(intent: &Intent, mode: DeliveryMode, params: &DeliveryParams) -> Result<(), Refusal> {
    let allowed = intent.budget.added_delay.unwrap_or(ADDED_DELAY_UNASKED);
    let flush = params.gro_flush_timeout;
    if flush <= allowed {
        return Ok(());
    }
    let nearest = match mode {
        _ if allowed.is_zero() => DeliveryMode::Interrupt.to_string(),
        DeliveryMode::Suspend { .. } => DeliveryMode::Suspend { gro_flush: allowed }.to_string(),
        DeliveryMode::Defer { .. } => DeliveryMode::Defer { gro_flush: allowed }.to_string(),
        DeliveryMode::Interrupt
        | DeliveryMode::NapiBusy
        | DeliveryMode::FullBusy
        | DeliveryMode::EventBusy
        | DeliveryMode::UserBusy
        | DeliveryMode::Threaded
        | DeliveryMode::ThreadedBusy => {
            format!("{mode} with gro-flush-timeout {allowed}")
        }
    };
    Err(Refusal::new(
        RefusalKind::Safety,
        &intent.target,
        format!(
            "{mode} may delay a packet by its gro-flush-timeout of {flush}, {} allows added_delay {allowed}",
            if intent.budget.added_delay.is_some() {
                "the budget"
            } else {
                "no budget is given, and the default"
            }
        ),
    )
    .because(format!("requested at {}", intent.origin))
    .nearest(nearest))
}
