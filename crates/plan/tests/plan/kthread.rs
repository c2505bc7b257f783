//! Tests how kernel threads that poll NAPIs are planned, bounded, placed and ended, and what `doctor` finds.

use insta::assert_snapshot;
use model::{
    Budget, DeliveryMode, Finding, Host, Intent, KthreadRequest, NapiKnob, PolicyName, PollCounts,
    RtThrottling, Scheduling, Setting, Severity, Slice, Step, Threading, UtilClamp,
};
use plan::{Refusal, RefusalKind, Resolved, doctor};

use crate::made::{
    Counted, delivered, device, host, named, on_device, policy, suspend, with_irqs, with_kernel, write,
};
use crate::read_aloud::{self, planned};

/// eth0 with two queues, whose interrupts go to CPUs 0 and 1. CPUs 0 and 2 are one core, 1 and 3 another.
fn nic() -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300, 301]));
    let mut host = with_irqs(host, 30);
    for (irq, cpu) in host.irqs.iter_mut().zip(["0", "1"]) {
        irq.effective_affinity = cpu.parse().expect("a CPU");
    }
    for cpu in &mut host.topology.cpus {
        cpu.siblings = if cpu.cpu.0 % 2 == 0 { "0,2" } else { "1,3" }.parse().expect("CPUs");
        cpu.llc = cpu.siblings.clone();
    }
    host
}

fn threaded(cpus: &str, class: Option<&str>) -> Intent {
    let kthread = KthreadRequest {
        cpus: Some(cpus.parse().expect("a place")),
        scheduling: class.map(|class| class.parse().expect("a class")),
        util_clamp: None,
        slice: None,
    };
    Intent { kthread, ..named(DeliveryMode::Threaded, on_device(2, "eth0", PolicyName::None)) }
}

fn refused(intent: &Intent, host: &Host) -> Refusal {
    planned(&policy([intent.clone()]), host, &Resolved::default()).expect_err("this must be refused")
}

fn applied(intent: &Intent, mut host: Host) -> Host {
    let plan = planned(&policy([intent.clone()]), &host, &Resolved::default()).expect("planned");
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    host
}

/// Returns the CPUs that a placement assigns to the two threads.
fn cpus_of(cpus: &str, host: &Host) -> Vec<String> {
    let host = applied(&threaded(cpus, None), host.clone());
    host.devices[0].rx_queues.iter().map(|q| q.kthread.as_ref().expect("a thread").cpus.to_string()).collect()
}

#[test]
fn the_thread_comes_first_then_its_cpus_then_its_class() {
    let intent = Intent { cpus: Some("2-3".parse().expect("CPUs")), ..threaded("irq", Some("fifo:50")) };
    let plan = planned(&policy([intent]), &nic(), &Resolved::default()).expect("planned");
    assert_snapshot!(read_aloud::plan(&plan));
}

#[test]
fn a_thread_runs_where_its_interrupt_goes_or_beside_it_or_on_cpus_of_its_own() {
    let host = nic();
    assert_eq!(cpus_of("irq", &host), ["0", "1"]);
    assert_eq!(cpus_of("sibling", &host), ["2", "3"]);
    assert_eq!(cpus_of("2-3", &host), ["2-3", "2-3"]);
    assert_eq!(cpus_of("any", &host), ["0-3", "0-3"]);
    let mut pinned = applied(&threaded("2", None), host);
    assert_eq!(cpus_of("any", &pinned), ["0-3", "0-3"], "given back to the scheduler");
    pinned.irqs.clear();
    pinned.devices[0].napis.iter_mut().for_each(|napi| napi.irq = None);
    let refusal = refused(&threaded("irq", None), &pinned);
    assert_eq!(refusal.kind, RefusalKind::Unsupported, "{refusal}");
}

#[test]
fn a_core_with_one_thread_has_no_sibling() {
    let mut host = nic();
    for cpu in &mut host.topology.cpus {
        cpu.siblings = [cpu.cpu].into_iter().collect();
    }
    let refusal = refused(&threaded("sibling", None), &host);
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert_eq!(refusal.nearest.as_deref(), Some("kthread = { cpus = \"irq\" }"));
}

#[test]
fn what_is_in_force_already_is_not_changed_again() {
    let intent = threaded("irq", Some("fifo:50"));
    let host = applied(&intent, nic());
    assert!(planned(&policy([intent]), &host, &Resolved::default()).expect("planned").is_empty());
}

#[test]
fn a_reset_that_took_the_thread_is_seen_and_all_of_it_asserted_again() {
    let intent = threaded("irq", Some("fifo:50"));
    let before = applied(&intent, nic());
    let mut host = before.clone();
    let queue = host.devices[0].rx_queues[1].id;
    write(&mut host, &Setting::Napi(queue, NapiKnob::Threaded(Threading::Off)));
    host.devices[0].napis[1].id.0 += 100;
    host.devices[0].rx_queues[1].napi.as_mut().expect("an edge").napi.0 += 100;
    let plan = planned(&policy([intent.clone()]), &host, &Resolved::default()).expect("planned");
    let drift: Vec<String> = plan.changes().map(ToString::to_string).collect();
    assert_eq!(
        drift,
        [
            "eth0 rx-1: threaded off → on",
            "eth0 rx-1: kthread cpus_allowed 0-3 → 1",
            "eth0 rx-1: kthread policy other → fifo:50"
        ]
    );
}

#[test]
fn a_thread_that_is_given_up_is_first_as_it_began() {
    let host = applied(&threaded("irq", Some("rr:5")), nic());
    let back = named(suspend(20), on_device(2, "eth0", PolicyName::None));
    let plan = planned(&policy([back]), &host, &Resolved::default()).expect("planned");
    let of_first: Vec<String> =
        plan.changes().map(ToString::to_string).filter(|change| change.contains("rx-0")).take(3).collect();
    assert_eq!(
        of_first,
        [
            "eth0 rx-0: kthread policy rr:5 → other",
            "eth0 rx-0: kthread cpus_allowed 0 → 0-3",
            "eth0 rx-0: threaded on → off"
        ]
    );
    // The undo runs the change backwards, so it sets nothing on a thread that does not exist.
    let mut undone = applied(&named(suspend(20), on_device(2, "eth0", PolicyName::None)), host.clone());
    for change in plan.inverse().changes() {
        write(&mut undone, change.to());
    }
    assert_eq!(undone, host);
}

#[test]
fn older_kernels_thread_the_whole_device() {
    let host = with_kernel(nic(), "6.12.1");
    let plan = planned(&policy([threaded("irq", None)]), &host, &Resolved::default()).expect("planned");
    let first = plan.changes().next().expect("a change");
    assert_eq!(first.to_string(), "eth0: threaded off → on");
    assert!(first.because().to_string().contains("only for all of eth0"), "{}", first.because());
    let mut older = host;
    older.devices[0].threaded = None;
    let refusal = refused(&threaded("irq", None), &older);
    assert_eq!(refusal.kind, RefusalKind::Unsupported, "{refusal}");
}

#[test]
fn threads_that_never_sleep_need_a_kernel_that_has_them_and_a_budget() {
    let busy = named(DeliveryMode::ThreadedBusy, on_device(2, "eth0", PolicyName::None));
    let mut host = nic();
    let mut intent = busy.clone();
    // The missing kernel feature is refused before the exceeded budget, because no budget could provide the
    // feature.
    let lacking = refused(&intent, &host);
    host.capabilities.napi_threaded_busy = true;
    let over = refused(&intent, &host);
    intent.budget.polling_cpus = Some(2);
    assert_eq!((over.kind, lacking.kind), (RefusalKind::Safety, RefusalKind::Unsupported));
    assert_snapshot!(read_aloud::refusal(&over) + &read_aloud::refusal(&lacking));
    let plan = planned(&policy([intent]), &host, &Resolved::default()).expect("planned");
    assert_eq!(
        plan.changes()
            .filter(|c| matches!(c.to(), Setting::Napi(_, NapiKnob::Threaded(Threading::BusyPoll))))
            .count(),
        2
    );
    let one_short = Intent { budget: Budget { polling_cpus: Some(1), ..Budget::default() }, ..busy };
    assert_eq!(refused(&one_short, &host).kind, RefusalKind::Safety);
}

#[test]
fn a_real_time_thread_is_bounded_or_refused() {
    let host = nic();
    let above = refused(&threaded("irq", Some("fifo:51")), &host);
    let mut lower = threaded("irq", Some("fifo:20"));
    lower.budget.rt_priority = Some(10);
    let above_budget = refused(&lower, &host);
    let with = |runtime_us| {
        let rt_throttling = Some(RtThrottling { runtime_us, period_us: 1_000_000 });
        refused(&threaded("irq", Some("rr:1")), &Host { rt_throttling, ..nic() })
    };
    let mut busy = Intent { delivery: Some(DeliveryMode::ThreadedBusy), ..threaded("irq", Some("fifo:1")) };
    busy.budget.polling_cpus = Some(2);
    let mut newer = nic();
    newer.capabilities.napi_threaded_busy = true;
    let text: String = [above, above_budget, with(-1), with(0), refused(&busy, &newer)]
        .iter()
        .map(|refusal| {
            assert_eq!(refusal.kind, RefusalKind::Safety, "{refusal}");
            read_aloud::refusal(refusal)
        })
        .collect();
    assert_snapshot!(text);
    let mut higher = threaded("irq", Some("fifo:60"));
    higher.budget.rt_priority = Some(60);
    assert!(planned(&policy([higher]), &host, &Resolved::default()).is_ok());
}

#[test]
fn kthread_values_without_a_kernel_thread_are_a_mistake() {
    let intent = Intent { delivery: Some(suspend(20)), ..threaded("irq", None) };
    let refusal = refused(&intent, &nic());
    assert_eq!(refusal.kind, RefusalKind::Usage, "{refusal}");
}

#[test]
fn a_clamp_is_refused_where_the_kernel_has_none() {
    let mut intent = threaded("irq", None);
    intent.kthread.util_clamp = Some(UtilClamp { min: 512, max: 1024 });
    assert!(planned(&policy([intent.clone()]), &nic(), &Resolved::default()).is_ok());
    let mut without = nic();
    without.kthread_begins.as_mut().expect("threads").util_clamp = None;
    let refusal = refused(&intent, &without);
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert!(refusal.message.contains("CONFIG_UCLAMP_TASK"), "{refusal}");
}

#[test]
fn a_slice_is_planned_after_the_class_and_refused_where_there_is_none() {
    let mut intent = threaded("irq", Some("other:-5"));
    intent.kthread.slice = Some(Slice::Own(Slice::LEAST));
    let plan = planned(&policy([intent.clone()]), &nic(), &Resolved::default()).expect("a plan");
    let knobs: Vec<&str> = plan
        .steps
        .iter()
        .flat_map(Step::changes)
        .filter(|change| matches!(change.to(), Setting::Kthread(..)))
        .map(|change| change.to().knob())
        .collect();
    let place = |name| knobs.iter().position(|knob| *knob == name).expect("planned");
    assert!(place("kthread policy") < place("kthread slice"), "{knobs:?}");

    let mut without = nic();
    without.kthread_begins.as_mut().expect("threads").slice = None;
    let refusal = refused(&intent, &without);
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert!(refusal.message.contains("needs Linux 6.12"), "{refusal}");
    let mut real_time = threaded("irq", Some("fifo:50"));
    real_time.kthread.slice = intent.kthread.slice;
    assert_eq!(refused(&real_time, &nic()).kind, RefusalKind::Usage);
}

#[test]
fn a_slice_is_refused_to_a_thread_that_is_real_time_already_unless_its_class_changes_with_it() {
    let host = applied(&threaded("irq", Some("fifo:50")), nic());
    let mut intent = threaded("irq", None);
    intent.kthread.slice = Some(Slice::Own(Slice::LEAST));
    let refusal = refused(&intent, &host);
    assert_eq!((refusal.kind, refusal.object.as_str()), (RefusalKind::Conflict, "eth0 rx-0"), "{refusal}");
    for words in ["kthread slice 100us cannot be set", "has class fifo:50 now"] {
        assert!(refusal.message.contains(words), "{refusal}");
    }
    assert!(refusal.nearest.is_some_and(|what| what.contains("--kthread-class other")));
    let is_planned =
        |intent: &Intent| planned(&policy([intent.clone()]), &host, &Resolved::default()).is_ok();
    intent.kthread.scheduling = Some(Scheduling::Other(0));
    assert!(is_planned(&intent), "the class changes before the slice");
    intent.kthread = KthreadRequest { slice: Some(Slice::Default), scheduling: None, ..intent.kthread };
    assert!(is_planned(&intent), "the thread already has no slice of its own");
}

fn found<'f>(findings: &'f [Finding], rule: &str) -> Option<&'f Finding> {
    findings.iter().find(|finding| finding.rule == rule)
}

#[test]
fn a_thread_that_shares_no_cache_with_its_interrupt_is_reported() {
    let host = applied(&threaded("1", None), nic());
    let findings = doctor(&host, None, &[]);
    let far: Vec<&Finding> = findings.iter().filter(|f| f.rule == "kthread-far-from-irq").collect();
    assert_eq!(far.len(), 1, "the second queue's interrupt goes to CPU 1, too");
    assert_snapshot!(read_aloud::findings(&[far[0].clone()]));
    for near in ["irq", "sibling", "any"] {
        let host = applied(&threaded(near, None), nic());
        assert!(found(&doctor(&host, None, &[]), "kthread-far-from-irq").is_none(), "{near}");
    }
}

#[test]
fn throttling_that_stops_a_thread_is_reported_and_so_is_none_at_all() {
    let mut host = applied(&threaded("irq", Some("fifo:50")), nic());
    assert!(
        found(&doctor(&host, None, &[]), "kthread-rt-throttled").is_none(),
        "the thread sleeps between packets"
    );
    for napi in &mut host.devices[0].napis {
        napi.threaded = Some(Threading::BusyPoll);
    }
    let busy = doctor(&host, None, &[]);
    host.rt_throttling = Some(RtThrottling { runtime_us: 0, period_us: 1_000_000 });
    let stopped = doctor(&host, None, &[]);
    host.rt_throttling = Some(RtThrottling { runtime_us: -1, period_us: 1_000_000 });
    let unbounded = doctor(&host, None, &[]);
    let said = [
        found(&busy, "kthread-rt-throttled"),
        found(&stopped, "kthread-rt-throttled"),
        found(&unbounded, "kthread-rt-unbounded"),
    ];
    assert_snapshot!(read_aloud::findings(&said.map(|finding| finding.expect("found").clone())));
    for queue in &mut host.devices[0].rx_queues {
        queue.kthread.as_mut().expect("a thread").scheduling = Some(Scheduling::Other(0));
    }
    assert!(found(&doctor(&host, None, &[]), "kthread-rt-unbounded").is_none());
}

fn nothing_counted() -> Counted {
    Counted {
        packets: 0,
        share: 0,
        interrupt_polls: 0,
        timer_polls: 0,
        timer_empty: 0,
        application_polls: 0,
        armed: 0,
        suspended: 0,
    }
}

#[test]
fn whether_the_thread_polls_is_judged_by_who_delivered() {
    let intent = threaded("irq", None);
    let host = applied(&intent, nic());
    let placement = plan::place(&policy([intent]), &host, &Resolved::default()).expect("placed");
    let by = |kthread: u64, softirq: u64| {
        let mut counted = nothing_counted().on(300);
        counted.kthread = PollCounts { polls: kthread, packets: kthread, empty: 0 };
        counted.interrupt = PollCounts { polls: softirq, packets: softirq, empty: 0 };
        doctor(&host, Some(&delivered([counted])), &placement.asked())
    };
    let polls = by(1000, 0);
    assert_eq!(
        found(&polls, "kthread-polls").expect("found").summary,
        "the kernel thread polls: it delivers 100 % of the packets"
    );
    let softirq = by(100, 900);
    let finding = found(&softirq, "kthread-does-not-poll").expect("found");
    assert!(finding.summary.contains("set but not engaged: it delivers 10 %"), "{}", finding.summary);
    let unset = doctor(&nic(), Some(&delivered([])), &placement.asked());
    assert!(found(&unset, "kthread-does-not-poll").expect("found").summary.contains("not set"));
}

#[test]
fn a_bpf_scheduler_is_reported_and_threads_that_it_places_are_named() {
    let mut host = nic();
    assert!(found(&doctor(&host, None, &[]), "sched-ext").is_none());
    host.topology.sched_ext = Some("lavd_1.0".to_owned());
    let finding = found(&doctor(&host, None, &[]), "sched-ext").expect("found").clone();
    assert_eq!(finding.severity, Severity::Note);
    assert!(finding.summary.contains("the BPF scheduler lavd_1.0 schedules threads"), "{}", finding.summary);
    for (class, severity) in [(Some("fifo:50"), Severity::Note), (None, Severity::Warning)] {
        let mut host = applied(&threaded("irq", class), nic());
        host.topology.sched_ext = Some("lavd_1.0".to_owned());
        let findings = doctor(&host, None, &[]);
        assert_eq!(found(&findings, "sched-ext").expect("found").severity, severity, "{class:?}");
    }
}
