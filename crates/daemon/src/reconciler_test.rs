//! Tests the reconciler with synthetic events and an injected clock.

use std::collections::{BTreeMap, BTreeSet};

use apply::{Knob, Ledger};
use model::{
    Change, DeviceId, IfIndex, Label, Nanoseconds, NapiKnob, NetnsId, Object, Pid, Plan, QueueIndex, Reason,
    RxQueue, Setting, Step,
};
use proptest::prelude::*;

use crate::reconciler::{
    APP_REQUESTS_MAX, HostEvent, LeftAlone, PAUSE_MAX, REPAIRS_MAX, REPAIRS_WITHIN, Reconciler, Scope, TICK,
    Work, YOUNG_FOR,
};
use crate::status::EventKind;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Nanoseconds {
    Nanoseconds(ms * MS)
}

/// Returns a reconciler that has observed everything at time 0, so that nothing is due.
fn settled(sees_new_epolls: bool) -> Reconciler {
    let mut reconciler = Reconciler::begin(at(0), sees_new_epolls);
    let work = reconciler.take_due(at(0)).expect("everything is due immediately");
    assert!(work.observe.everything && work.policy);
    reconciler.done(at(0), at(0));
    reconciler
}

pub(crate) fn queue(index: u32) -> RxQueue {
    let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
    RxQueue { device, index: QueueIndex(index) }
}

pub(crate) fn change(index: u32, from: u64, to: u64) -> Change {
    let span = |us| Setting::Napi(queue(index), NapiKnob::GroFlushTimeout(Nanoseconds::from_micros(us)));
    Change::new(span(from), span(to), Reason::new("test", "test"))
}

pub(crate) fn plan(changes: Vec<Change>) -> Plan {
    Plan { steps: changes.into_iter().map(|change| Step::new(vec![change])).collect() }
}

fn held(change: &Change) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.note(change);
    ledger
}

#[test]
fn events_that_come_together_are_handled_together_and_within_a_millisecond() {
    let mut reconciler = settled(true);
    let noted = Nanoseconds(at(20).0);
    reconciler.note(&HostEvent::Link(IfIndex(2)), noted, noted);
    reconciler.note(
        &HostEvent::Link(IfIndex(2)),
        Nanoseconds(noted.0 + 100_000),
        Nanoseconds(noted.0 + 100_000),
    );
    reconciler.note(
        &HostEvent::Queues("eth0".to_owned()),
        Nanoseconds(noted.0 + 200_000),
        Nanoseconds(noted.0 + 200_000),
    );
    let due = reconciler.next_wake();
    assert_eq!(due.0 - noted.0, 500_000, "the time of the first event");
    assert_eq!(reconciler.take_due(Nanoseconds(due.0 - 1)), None);
    let work = reconciler.take_due(due).expect("due");
    assert_eq!(work.observe.devices, [IfIndex(2)].into());
    assert_eq!(work.observe.named, ["eth0".to_owned()].into());
    assert_eq!(work.first_events[&EventKind::Link], noted);
    assert_eq!(reconciler.take_due(due), None, "all events are handled together");
}

#[test]
fn an_event_that_is_noticed_late_is_not_waited_for() {
    let mut reconciler = settled(true);
    reconciler.note(&HostEvent::Exec(Pid(7)), at(20), at(30));
    assert_eq!(reconciler.next_wake(), at(30));
    assert_eq!(
        reconciler.take_due(at(30)).expect("due").first_events[&EventKind::Exec],
        at(20),
        "but the delay counts from the time of the event"
    );
}

#[test]
fn a_storm_leaves_as_much_time_to_others_as_it_takes() {
    let mut reconciler = settled(true);
    reconciler.note(&HostEvent::Exec(Pid(7)), at(20), at(20));
    let due = reconciler.next_wake();
    reconciler.take_due(due).expect("due");
    reconciler.note(&HostEvent::Exec(Pid(8)), due, due);
    reconciler.done(at(3), Nanoseconds(due.0 + 3 * MS));
    assert_eq!(reconciler.next_wake().0, due.0 + 6 * MS, "a pause as long as the work");
    reconciler.take_due(reconciler.next_wake()).expect("due");
    reconciler.done(at(4_000), at(5_000));
    reconciler.note(&HostEvent::Exec(Pid(9)), at(5_000), at(5_000));
    assert_eq!(reconciler.next_wake(), at(5_010), "but no longer than this limit");
}

#[test]
fn what_failed_is_tried_again_later_and_later_with_what_is_new() {
    let mut reconciler = settled(true);
    reconciler.note(&HostEvent::Link(IfIndex(2)), at(20), at(20));
    let work = reconciler.take_due(at(21)).expect("due");
    reconciler.failed(work, at(0), at(21));
    assert_eq!(reconciler.next_wake(), at(26));
    reconciler.note(&HostEvent::Link(IfIndex(3)), at(22), at(22));
    let other = reconciler.take_due(at(23)).expect("the new process does not wait for the others");
    assert_eq!(other.observe.devices, [IfIndex(3)].into());
    reconciler.done(at(0), at(23));
    let again = reconciler.take_due(at(26)).expect("again");
    assert_eq!(again.observe.devices, [IfIndex(2)].into());
    reconciler.failed(again, at(0), at(26));
    assert_eq!(reconciler.next_wake(), at(36));
    let mut now = at(36);
    for _ in 0..20 {
        let again = reconciler.take_due(now).expect("and again");
        reconciler.failed(again, at(0), now);
        let pause = reconciler.next_wake().0 - now.0;
        assert!(pause <= TICK.0);
        now = reconciler.next_wake();
    }
    reconciler.take_due(now).expect("once more");
    reconciler.done(at(0), now);
    assert_eq!(reconciler.next_wake().0 % MS, 0);
    assert!(reconciler.take_due(Nanoseconds(now.0 + 1)).is_none(), "done is done");
}

#[test]
fn the_epolls_of_a_young_process_are_looked_for_where_bpf_does_not_report_them() {
    let mut reconciler = settled(false);
    reconciler.note(&HostEvent::Exec(Pid(7)), at(20), at(20));
    let mut looks = Vec::new();
    loop {
        let now = reconciler.next_wake();
        if now.0 > at(20).0 + 2 * YOUNG_FOR.0 {
            break;
        }
        if let Some(work) = reconciler.take_due(now)
            && work.observe.processes.get(&Pid(7)) == Some(&Scope::Epolls)
        {
            looks.push(now.0 / MS - 20);
        }
        reconciler.done(at(0), now);
    }
    assert_eq!(looks[..4], [5, 15, 35, 75]);
    assert!(looks.windows(2).all(|pair| pair[1] - pair[0] <= 1_000), "{looks:?}");
    assert!(looks.len() < 25 && *looks.last().expect("some") <= 11_000, "{looks:?}");

    let mut reconciler = settled(true);
    reconciler.note(&HostEvent::Exec(Pid(7)), at(20), at(20));
    reconciler.take_due(at(21)).expect("due");
    reconciler.done(at(0), at(21));
    assert_eq!(reconciler.next_wake(), at(10_000), "BPF reports epolls");
}

#[test]
fn a_requesting_process_is_looked_at_immediately_and_then_often_for_no_event_reports_what_its_socket_does() {
    let mut reconciler = settled(true);
    reconciler.note(&HostEvent::AppRequest(Some(Pid(7))), at(20), at(20));
    let work = reconciler.take_due(at(21)).expect("due");
    assert!(work.app_requests && work.observe.processes == [(Pid(7), Scope::Whole)].into());
    reconciler.done(at(0), at(21));
    assert_eq!(reconciler.next_wake(), at(25));
    assert_eq!(
        reconciler.take_due(at(25)).expect("again").observe.processes,
        [(Pid(7), Scope::Whole)].into()
    );
    reconciler.note(&HostEvent::AppRequest(None), at(30), at(30));
    let work = reconciler.take_due(at(31)).expect("due");
    assert!(
        work.app_requests && work.observe.processes.is_empty(),
        "the registry changed, but the requesting process is unknown"
    );
}

#[test]
fn a_process_is_looked_at_whole_until_its_first_connection_is_accepted() {
    let mut reconciler = settled(true);
    reconciler.note(&HostEvent::Listener(Pid(7)), at(10), at(10));
    reconciler.take_due(at(11)).expect("due");
    reconciler.done(at(0), at(11));
    reconciler.note(&HostEvent::Connection(Pid(7)), at(20), at(20));
    assert_eq!(reconciler.next_wake(), at(21));
    assert_eq!(reconciler.take_due(at(21)).expect("due").observe.processes, [(Pid(7), Scope::Whole)].into());
    reconciler.done(at(0), at(21));
    assert_eq!(reconciler.next_wake(), at(25));
    assert_eq!(
        reconciler.take_due(at(25)).expect("again").observe.processes,
        [(Pid(7), Scope::Whole)].into()
    );

    // If the process's epolls are already observed frequently, the schedule starts over, and from now on the
    // whole process is observed.
    let mut reconciler = settled(false);
    reconciler.note(&HostEvent::Listener(Pid(7)), at(10), at(10));
    reconciler.take_due(at(11)).expect("due");
    reconciler.note(&HostEvent::Connection(Pid(7)), at(20), at(20));
    assert_eq!(reconciler.take_due(at(25)).expect("due").observe.processes, [(Pid(7), Scope::Whole)].into());
}

#[test]
fn repeated_requests_are_followed_immediately_only_so_often() {
    let mut reconciler = settled(true);
    let mut turns = 0;
    for tenth in 0..600 {
        turns += usize::from(reconciler.admit_app_requests(at(20 + 100 * tenth)));
    }
    assert_eq!(turns, 6 * APP_REQUESTS_MAX, "of 600 in a minute");
    assert!(reconciler.admit_app_requests(at(90_000)), "and immediately again after a pause");
}

#[test]
fn a_write_to_the_journal_is_work_of_its_own_unless_something_failed_before() {
    let mut reconciler = settled(true);
    reconciler.note(&HostEvent::Journal, at(20), at(20));
    let work = reconciler.take_due(at(20)).expect("work");
    assert!(
        work.is_of_the_journal_alone(),
        "nothing need be planned if it concerns no request here: {work:?}"
    );
    reconciler.failed(work, Nanoseconds::ZERO, at(20));
    let again = reconciler.take_due(at(40)).expect("the same again");
    assert!(!again.is_of_the_journal_alone(), "failed work is planned again");
    reconciler.done(Nanoseconds::ZERO, at(40));
    reconciler.note(&HostEvent::Journal, at(60), at(60));
    reconciler.note(&HostEvent::Link(IfIndex(2)), at(60), at(60));
    assert!(!reconciler.take_due(at(70)).expect("work").is_of_the_journal_alone());
}

#[test]
fn a_request_that_is_refused_leaves_what_was_left_alone_as_it_was() {
    let mut reconciler = settled(true);
    let knob = (Object::Queue(queue(0)), "gro-flush-timeout");
    reconciler.release([knob]);
    let before = reconciler.left_alone();
    reconciler.take_up_of(&BTreeSet::from([knob.0]));
    assert!(!reconciler.is_released(&knob), "a request clears the left-alone state");
    reconciler.leave_alone_as(before);
    assert!(reconciler.is_released(&knob));
}

#[test]
fn a_cpu_that_goes_or_comes_is_planned_with_once_however_many_events_report_it() {
    let mut reconciler = settled(true);
    for noted in [at(20), at(20), Nanoseconds(at(20).0 + 300_000)] {
        reconciler.note(&HostEvent::Cpu, noted, noted);
    }
    let due = reconciler.next_wake();
    assert_eq!(due.0 - at(20).0, 500_000);
    let work = reconciler.take_due(due).expect("due");
    assert!(work.observe.cpus && !work.observe.everything, "the processes are unchanged");
    reconciler.done(at(0), due);
    assert_eq!(reconciler.take_due(Nanoseconds(due.0 + MS)), None, "all events are handled together");
}

#[test]
fn what_was_repaired_too_often_is_left_alone_until_some_of_it_is_long_ago() {
    let mut reconciler = settled(true);
    let taken_away = change(0, 0, 20);
    let ledger = held(&taken_away);
    for round in 0..REPAIRS_MAX {
        let now = at(1_000 * u64::try_from(round).expect("small"));
        let judged = reconciler.judge(plan(vec![taken_away.clone()]), &ledger, now);
        assert_eq!(judged.repairs, [Object::Queue(queue(0))].into());
        reconciler.repaired(&judged.repairs, now);
    }
    let other = change(1, 0, 20);
    let judged = reconciler.judge(plan(vec![taken_away.clone(), other.clone()]), &ledger, at(11_000));
    assert_eq!(judged.left_alone, [(taken_away.clone(), LeftAlone::Flapping)]);
    assert_eq!(judged.plan, plan(vec![other]), "the other work continues");
    let wanted_again = change(0, 20, 50);
    assert_eq!(
        reconciler.judge(plan(vec![wanted_again.clone()]), &ledger, at(11_000)).plan,
        plan(vec![wanted_again])
    );
    let later = Nanoseconds(REPAIRS_WITHIN.0);
    assert_eq!(reconciler.judge(plan(vec![taken_away.clone()]), &ledger, later).left_alone, []);
    reconciler.take_up();
    assert_eq!(reconciler.judge(plan(vec![taken_away]), &ledger, at(11_000)).left_alone, []);
}

#[test]
fn what_an_operator_rolled_back_is_left_alone_until_the_daemon_is_asked_again() {
    let mut reconciler = settled(true);
    let rolled_back = change(0, 0, 20);
    let knob: Knob = (rolled_back.to().object(), rolled_back.to().knob());
    reconciler.release([knob]);
    let judged =
        reconciler.judge(plan(vec![rolled_back.clone(), change(1, 0, 20)]), &Ledger::default(), at(1));
    assert_eq!(judged.left_alone, [(rolled_back.clone(), LeftAlone::RolledBack)]);
    assert_eq!(judged.plan, plan(vec![change(1, 0, 20)]));
    reconciler.take_up();
    assert_eq!(reconciler.judge(plan(vec![rolled_back]), &Ledger::default(), at(1)).left_alone, []);
}

fn any_event() -> impl Strategy<Value = HostEvent> {
    prop_oneof![
        (1_u32..4).prop_map(|index| HostEvent::Link(IfIndex(index))),
        (1_u32..4).prop_map(|index| HostEvent::Ethtool(IfIndex(index))),
        "eth[0-2]".prop_map(HostEvent::Queues),
        Just(HostEvent::Cpu),
        (1_u32..5).prop_map(|pid| HostEvent::Exec(Pid(pid))),
        (1_u32..5).prop_map(|pid| HostEvent::Fork(Pid(pid))),
        (1_u32..5).prop_map(|pid| HostEvent::Exit(Pid(pid))),
        (1_u32..5).prop_map(|pid| HostEvent::Listener(Pid(pid))),
        (1_u32..5).prop_map(|pid| HostEvent::Connection(Pid(pid))),
        (1_u32..5).prop_map(|pid| HostEvent::Epoll(Pid(pid))),
        proptest::option::of((1_u32..5).prop_map(Pid)).prop_map(HostEvent::AppRequest),
        Just(HostEvent::Policy),
        Just(HostEvent::Asked),
        Just(HostEvent::Journal),
        Just(HostEvent::Lost),
    ]
}

/// Whether this work includes observing the subject of the event.
fn handles(work: &Work, event: &HostEvent) -> bool {
    match event {
        HostEvent::Link(index) | HostEvent::Ethtool(index) => work.observe.devices.contains(index),
        HostEvent::Queues(name) => work.observe.named.contains(name),
        HostEvent::Cpu => work.observe.cpus,
        HostEvent::Exec(pid)
        | HostEvent::Fork(pid)
        | HostEvent::Exit(pid)
        | HostEvent::Listener(pid)
        | HostEvent::Connection(pid) => work.observe.processes.get(pid) == Some(&Scope::Whole),
        HostEvent::Epoll(pid) => work.observe.processes.contains_key(pid),
        HostEvent::AppRequest(pid) => {
            work.app_requests && pid.is_none_or(|pid| work.observe.processes.contains_key(&pid))
        }
        HostEvent::Policy => work.policy,
        HostEvent::Asked => work.asked,
        HostEvent::Journal => work.journal,
        HostEvent::Lost => work.observe.everything,
    }
}

proptest! {
    /// In any order of events and failures, every event is handled within its delay plus the pauses, and the
    /// daemon neither spins nor sleeps past a tick.
    #[test]
    fn every_event_is_handled_in_time_and_nothing_spins(
        sees_new_epolls in any::<bool>(),
        script in proptest::collection::vec((any_event(), 0_u64..4_000_000, 0_u64..3_000_000, any::<bool>()), 1..60),
    ) {
        let mut reconciler = settled(sees_new_epolls);
        let mut now = at(1);
        let mut waiting: Vec<(HostEvent, Nanoseconds)> = Vec::new();
        let mut turns = 0_u32;
        let mut script = script.into_iter().peekable();
        let mut failed_ever = false;
        while script.peek().is_some() || !waiting.is_empty() {
            turns += 1;
            prop_assert!(turns < 2_000, "spins at {now:?} with {waiting:?}");
            let wake = reconciler.next_wake();
            prop_assert!(wake.0 <= now.0 + TICK.0);
            let step = script.next();
            let next = step.as_ref().map_or(wake, |(_, gap, ..)| Nanoseconds(now.0 + gap).min(wake.max(now)));
            now = next.max(now);
            let (mut took, mut fails) = (1_000, false);
            if let Some((event, _, cost, failing)) = step {
                reconciler.note(&event, now, now);
                waiting.push((event, now));
                (took, fails) = (cost.max(1), failing);
            }
            let Some(work) = reconciler.take_due(now) else { continue };
            let done = Nanoseconds(now.0 + took);
            if fails {
                failed_ever = true;
                reconciler.failed(work, Nanoseconds(took), done);
            } else {
                for (event, noted) in waiting.iter().filter(|(event, _)| handles(&work, event)) {
                    // The limit is the sum of the longest delay, the longest pause, the work in progress, and
                    // further pieces of work that take a nanosecond each.
                    let late = now.0 - noted.0 > MS + PAUSE_MAX.0 + 3 * MS + 1_000;
                    prop_assert!(failed_ever || !late, "{event:?} of {noted:?} at {now:?}");
                }
                waiting.retain(|(event, _)| !handles(&work, event));
                reconciler.done(Nanoseconds(took), done);
            }
            now = done;
        }
    }

    /// However often another program changes settings, the daemon repairs an object within ten minutes at
    /// most as often as the limit permits.
    #[test]
    fn no_object_is_repaired_more_often_than_the_limit(
        drifts in proptest::collection::vec((0_u32..3, 0_u64..60_000), 1..200),
    ) {
        let mut reconciler = settled(true);
        let mut ledger = Ledger::default();
        (0..3).for_each(|index| ledger.note(&change(index, 0, 20)));
        let mut now = at(0);
        let mut repaired: BTreeMap<Object, Vec<Nanoseconds>> = BTreeMap::new();
        for (index, gap) in drifts {
            now = Nanoseconds(now.0 + gap * MS);
            let judged = reconciler.judge(plan(vec![change(index, 0, 20)]), &ledger, now);
            prop_assert_eq!(judged.plan.is_empty(), !judged.left_alone.is_empty());
            reconciler.repaired(&judged.repairs, now);
            for object in judged.repairs {
                let times = repaired.entry(object).or_default();
                times.push(now);
                let within = times.iter().filter(|at| at.0 + REPAIRS_WITHIN.0 > now.0).count();
                prop_assert!(within <= REPAIRS_MAX);
            }
        }
    }
}
