//! Tests that a running irqbalance gets bans for pinned interrupts.

use std::collections::BTreeSet;

use model::host::RunningIrqbalance;
use model::{CpuSet, Host, Intent, IrqKnob, IrqNumber, Pid, PolicyName, Setting};
use plan::{Desired, Resolved, desired, diff, place};

use crate::made::{device, host, on_device, policy, with_irqs, write};

fn with_nic(irqbalance: Option<RunningIrqbalance>) -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300, 301]));
    Host { irqbalance, ..with_irqs(host, 30) }
}

fn running(banned: Option<&[u32]>) -> Option<RunningIrqbalance> {
    let banned = banned.map(|irqs| irqs.iter().copied().map(IrqNumber).collect::<BTreeSet<_>>());
    Some(RunningIrqbalance { pid: Pid(77), banned })
}

fn wanted(host: &Host, cpus: Option<&str>) -> Desired {
    let cpus: Option<CpuSet> = cpus.map(|cpus| cpus.parse().expect("CPUs"));
    let intent = Intent { cpus, ..on_device(2, "eth0", PolicyName::Latency) };
    let placement = place(&policy(vec![intent]), host, &Resolved::default()).expect("a placement");
    desired(&placement, host).expect("what is wanted")
}

fn bans(host: &Host, desired: &Desired) -> Vec<String> {
    let plan = diff(desired, host).expect("a plan");
    let bans = plan.changes().filter(|change| matches!(change.to(), Setting::Irq(_, IrqKnob::Ban(..))));
    bans.map(ToString::to_string).collect()
}

#[test]
fn what_is_placed_is_banned_before_it_is_moved_and_what_is_banned_stays() {
    let mut host = with_nic(running(Some(&[30, 99])));
    let desired = wanted(&host, Some("1"));
    assert_eq!(bans(&host, &desired), ["irq 31: irqbalance-ban off → on"]);
    let plan = diff(&desired, &host).expect("a plan");
    let at = |like: fn(&Setting) -> bool| plan.changes().position(|change| like(change.to())).expect("one");
    assert!(
        at(|s| matches!(s, Setting::Irq(_, IrqKnob::Ban(..))))
            < at(|s| matches!(s, Setting::Irq(_, IrqKnob::Affinity(..))))
    );
    for change in plan.clone().changes() {
        write(&mut host, change.to());
    }
    assert!(diff(&desired, &host).expect("a plan").is_empty());
    let left = plan.inverse();
    for change in left.changes() {
        write(&mut host, change.to());
    }
    assert_eq!(host.irqbalance, running(Some(&[30, 99])));
}

#[test]
fn without_an_irqbalance_or_without_a_place_nothing_is_banned() {
    let host = with_nic(None);
    assert!(bans(&host, &wanted(&host, Some("1"))).is_empty());
    let host = with_nic(running(Some(&[])));
    assert!(bans(&host, &wanted(&host, None)).is_empty());
}

#[test]
fn one_that_does_not_answer_is_reported_and_the_rest_is_planned() {
    let host = with_nic(running(None));
    let desired = wanted(&host, Some("1"));
    assert!(bans(&host, &desired).is_empty() && !diff(&desired, &host).expect("a plan").is_empty());
    assert!(
        desired.notes.iter().any(|note| note.contains("irqbalance[77] did not answer")),
        "{:?}",
        desired.notes
    );
}
