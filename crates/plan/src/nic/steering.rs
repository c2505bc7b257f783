//! Plans RSS contexts, ntuple rules and qdiscs.

use model::host::Device;
use model::nic::NicRequest;
use model::qdisc::{Qdisc, QdiscKind, Qdiscs};
use model::{FlowMatch, FlowRule, NicKnob, Offload, QueueSpan, Setting, SteerTo};

use crate::placement::PlacedRequest;
use crate::queues_after::QueuesAfter;
use crate::refusal::{Refusal, RefusalKind};

fn refused(part: &PlacedRequest, device: &Device, message: String) -> Refusal {
    Refusal::new(RefusalKind::Usage, device.id, message)
        .because(format!("requested at {}", part.intent.origin))
}

/// Returns the desired RSS contexts, each over existing receive queues.
pub(super) fn contexts(
    spans: &[QueueSpan],
    part: &PlacedRequest,
    device: &Device,
    after: &QueuesAfter,
) -> Result<Vec<Setting>, Refusal> {
    for span in spans {
        if span.last() >= after.rx(device) {
            let message = format!("a context over the receive queues {span}: {}", after.sentence(device));
            return Err(refused(part, device, message));
        }
    }
    Ok(spans.iter().map(|span| Setting::Nic(device.id, NicKnob::RssContext(*span, true))).collect())
}

/// Returns the desired rules. Each leads to an existing queue, or to a context that exists or is desired.
pub(super) fn rules(
    rules: &[FlowRule],
    part: &PlacedRequest,
    device: &Device,
    after: &QueuesAfter,
) -> Result<Vec<Setting>, Refusal> {
    if rules.len() > FlowRule::OF_A_DEVICE_MAX {
        let message =
            format!("{} rules: netpolicy adds at most {} per device", rules.len(), FlowRule::OF_A_DEVICE_MAX);
        return Err(refused(part, device, message));
    }
    let requested = |offload: Offload| {
        part.intent
            .nic
            .iter()
            .any(|request| matches!(request, NicRequest::Offload(of, true) if *of == offload))
    };
    if device.offloads.get(&Offload::Ntuple) == Some(&false) && !requested(Offload::Ntuple) {
        let message = "ntuple rules need rx-ntuple-filter, which is off".to_owned();
        return Err(refused(part, device, message).nearest("also rx-ntuple-filter = true"));
    }
    for FlowRule { flow, to } in rules {
        match to {
            SteerTo::Queue(queue) if queue.0 >= after.rx(device) => {
                let message =
                    format!("{flow} cannot go to receive queue {queue}: {}", after.sentence(device));
                return Err(refused(part, device, message));
            }
            SteerTo::Context(span) => check_context(*span, flow, part, device)?,
            SteerTo::Queue(_) | SteerTo::Drop | SteerTo::Other => {}
        }
    }
    Ok(rules
        .iter()
        .map(|rule| Setting::Nic(device.id, NicKnob::FlowRule(rule.flow, Some(rule.to))))
        .collect())
}

fn check_context(
    span: QueueSpan,
    flow: &FlowMatch,
    part: &PlacedRequest,
    device: &Device,
) -> Result<(), Refusal> {
    let there = device.rss_contexts.iter().flatten().any(|context| context.queues == Some(span));
    let requested = part
        .intent
        .nic
        .iter()
        .any(|request| matches!(request, NicRequest::RssContexts(spans) if spans.contains(&span)));
    if there || requested {
        return Ok(());
    }
    let message = format!("{flow} cannot go to a context over the receive queues {span}: there is none");
    Err(refused(part, device, message).nearest(format!("also rss-contexts = \"{span}\"")))
}

/// Returns one qdisc of this kind for each transmit queue, or a single one for the device if the device has
/// one queue or the kind does not work per queue. If the kernel's default already has this kind, it is kept.
pub(super) fn qdiscs(kind: QdiscKind, device: &Device) -> Qdiscs {
    if let Some(Qdiscs::Default(kinds)) = &device.qdiscs
        && !kinds.is_empty()
        && kinds.iter().all(|own| own == kind.as_str())
    {
        return Qdiscs::Default(kinds.clone());
    }
    match device.tx_queues.len() {
        0 | 1 => Qdiscs::Whole(Qdisc::of(kind)),
        _ if kind == QdiscKind::Noqueue => Qdiscs::Whole(Qdisc::of(kind)),
        many => Qdiscs::PerQueue { handle: None, queues: vec![Qdisc::of(kind); many] },
    }
}
