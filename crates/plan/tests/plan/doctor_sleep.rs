//! Tests findings of `doctor` on deep idle states of CPUs.

use model::host::{CpuIdle, IdleDepth, IdleState};
use model::{Cpu, Finding, Host, Nanoseconds, Severity};
use plan::doctor::HostContext;
use plan::{RequestFacts, doctor_with};

use crate::made::{device, host, with_irqs};

fn nic() -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300, 301]));
    let mut host = with_irqs(host, 30);
    for (irq, cpu) in host.irqs.iter_mut().zip(["1", "2"]) {
        irq.effective_affinity = cpu.parse().expect("a CPU");
    }
    host
}

fn depth(bound: u32) -> IdleDepth {
    let state = |name: &str, exit| IdleState { name: name.to_owned(), exit };
    let states = vec![state("POLL", 0), state("C1", 2), state("C6", 133)];
    let cpus = (0..4).map(|cpu| (Cpu(cpu), CpuIdle { bound: None, states: states.clone() }));
    IdleDepth { bound, cpus: cpus.collect() }
}

fn found(goal: Option<u64>, wake_within: Option<u64>, idle: Option<IdleDepth>) -> Option<Finding> {
    let host = nic();
    let micros = |micros| Nanoseconds(micros * 1_000);
    let asked = RequestFacts {
        origin: "policy.toml:3".to_owned(),
        mode: "defer50".parse().expect("a mode"),
        queues: host.devices[0].rx_queues.iter().map(|queue| queue.id).collect(),
        processes: Vec::new(),
        goal: goal.map(micros),
        wake_within: wake_within.map(micros),
    };
    let context = HostContext { idle, ..HostContext::default() };
    let findings = doctor_with(&host, None, &[asked], &context);
    findings.into_iter().find(|finding| finding.rule == "idle-states-too-deep")
}

const UNBOUNDED: u32 = 2_000_000_000;

#[test]
fn an_idle_state_that_takes_longer_to_leave_than_the_goal_is_a_problem() {
    let finding = found(Some(60), Some(100), Some(depth(UNBOUNDED))).expect("found");
    assert_eq!(finding.severity, Severity::Problem);
    assert_eq!(
        finding.summary,
        "CPUs 1-2 may enter idle state C6, which takes 133 us to leave: longer than the goal of 60us"
    );
    assert_eq!(
        finding.evidence,
        [
            "CPUs 1-2: C6, 133 us",
            "requested at policy.toml:3; /dev/cpu_dma_latency limits it to 2000000000 us"
        ]
    );
    assert_eq!(
        finding.remedy.as_deref(),
        Some(
            "for cpu in 1 2; do echo 60 > /sys/devices/system/cpu/cpu$cpu/power/pm_qos_resume_latency_us; done"
        )
    );
}

#[test]
fn one_that_only_the_policys_own_bound_forbids_is_a_warning() {
    let finding = found(Some(500), Some(100), Some(depth(UNBOUNDED))).expect("found");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.summary.ends_with("longer than the 100us that its policy allows"), "{}", finding.summary);
    assert!(
        found(None, Some(100), Some(depth(UNBOUNDED))).is_some(),
        "a policy without a goal has its own bound"
    );
}

#[test]
fn nothing_is_reported_where_a_bound_holds_or_no_request_has_one() {
    assert_eq!(found(Some(60), Some(100), Some(depth(60))), None, "a process holds the device");
    assert_eq!(
        found(Some(133), None, Some(depth(UNBOUNDED))),
        None,
        "leaving the state takes as long as the goal"
    );
    assert_eq!(found(None, None, Some(depth(UNBOUNDED))), None, "no request has a goal");
    assert_eq!(found(Some(60), Some(100), None), None, "the kernel chooses no idle states");
}
