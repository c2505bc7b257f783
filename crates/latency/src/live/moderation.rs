//! Finds differences in the NIC's interrupt moderation, whose delays response times do not include.

use model::{CoalesceParam, Finding, NicKnob, Plan, RxQueueKnob, Setting, Severity};

/// Returns a finding if the compared plans differ in the NIC's delay of receive interrupts. Estimates start
/// with a poll or an interrupt and exclude the wait before the interrupt, so a longer delay appears better
/// than it is.
pub fn moderation_differs<'p>(service: &str, plans: impl IntoIterator<Item = &'p Plan>) -> Option<Finding> {
    let plans: Vec<Vec<String>> = plans.into_iter().map(moderation).collect();
    if plans.windows(2).all(|two| two[0] == two[1]) {
        return None;
    }
    Some(Finding {
        rule: "live-moderation-differs".to_owned(),
        severity: Severity::Warning,
        object: service.to_owned(),
        summary: "the interrupt delay of the NIC differs between candidates, and response times here do not include it: a longer delay appears better than it is"
            .to_owned(),
        evidence: plans.into_iter().flatten().collect(),
        remedy: Some(
            "enable microsecond TCP timestamps on the clients (ip route change … features tcp_usec_ts), or measure on a client"
                .to_owned(),
        ),
    })
}

/// Returns the changes that a plan makes to the NIC's moderation of receive interrupts.
fn moderation(plan: &Plan) -> Vec<String> {
    let is_of_receiving = |setting: &Setting| {
        use CoalesceParam::{AdaptiveRx, CqeModeRx, RxMaxFrames, RxUsecs};
        let param = match setting {
            Setting::Nic(_, NicKnob::Coalescing(param, _)) => *param,
            Setting::RxQueue(_, RxQueueKnob::Coalescing(param, _)) => param.of_device(),
            _ => return false,
        };
        matches!(param, RxUsecs | RxMaxFrames | AdaptiveRx | CqeModeRx)
    };
    let changes = plan.changes().filter(|change| is_of_receiving(change.to()));
    changes.map(ToString::to_string).collect()
}

#[cfg(test)]
mod test {
    use model::{Change, DeviceId, IfIndex, Label, NetnsId, Reason, Step};

    use super::*;

    fn setting(param: CoalesceParam, value: u32) -> Plan {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let of = |value| Setting::Nic(device, NicKnob::Coalescing(param, value));
        Plan { steps: vec![Step::new(vec![Change::new(of(50), of(value), Reason::new("test", "test"))])] }
    }

    #[test]
    fn candidates_whose_interrupts_are_delayed_differently_are_named_and_no_others() {
        let (current, slower) = (Plan::default(), setting(CoalesceParam::RxUsecs, 100));
        let found = moderation_differs("cache", [&current, &slower]).expect("a finding");
        assert_eq!(found.rule, "live-moderation-differs");
        assert!(found.evidence[0].contains("eth0: rx-usecs 50 → 100"), "{:?}", found.evidence);
        assert_eq!(moderation_differs("cache", [&slower, &slower]), None, "both delay alike");
        assert_eq!(moderation_differs("cache", [&current, &setting(CoalesceParam::TxUsecs, 100)]), None);
    }
}
