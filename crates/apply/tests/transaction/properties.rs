//! Property tests: any plan, on any host, with any faults.

use apply::{Allow, CommitFault, UndoState};
use model::setting::Threading;
use model::{
    Change, DeviceId, DeviceNapiKnob, EmptyPolls, EpollParams, Fd, IfIndex, IrqKnob, IrqNumber, KthreadKnob,
    Label, Nanoseconds, NapiKnob, NetnsId, Object, Plan, ProcessKnob, RingId, RingNapi, Scheduling, Setting,
    Step, UtilClamp,
};
use proptest::prelude::*;

use crate::faulty_host::{Fault, FaultyHost};
use crate::scene::{Scene, asked, change, cpus, epoll, host_after, process, queue, second, thread};

/// Returns settings of every kind of knob, on a few objects each, with values derived from these numbers. The
/// knobs and their order are always the same.
fn settings(numbers: &[u32; 19]) -> Vec<Setting> {
    let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(3), name: Label::new("eth1") };
    let ring = RingId { process: process(), fd: Fd(9) };
    let threading = |n: u32| [Threading::Off, Threading::On, Threading::BusyPoll][n as usize % 3];
    let span = |n: u32| Nanoseconds(u64::from(n) * 1_000);
    let params = |n: u32| EpollParams {
        busy_poll_usecs: n,
        busy_poll_budget: 8,
        prefer_busy_poll: n % 2 == 1,
        events_only: false,
    };
    let small = |n: u32| u16::try_from(n).expect("a small number");
    let class = |n: u32| {
        [Scheduling::Other(0), Scheduling::Batch(-3), Scheduling::Fifo(50), Scheduling::RoundRobin(9)]
            [n as usize % 4]
    };
    let napi = |n: u32| (n > 0).then_some(RingNapi { busy_poll_usecs: n, prefer_busy_poll: true });
    let n = numbers;
    vec![
        Setting::Napi(queue(0), NapiKnob::DeferHardIrqs(EmptyPolls(n[0]))),
        Setting::Napi(queue(0), NapiKnob::GroFlushTimeout(span(n[1]))),
        Setting::Napi(queue(0), NapiKnob::IrqSuspendTimeout(span(n[2]))),
        Setting::Napi(queue(0), NapiKnob::Threaded(threading(n[3]))),
        Setting::Napi(queue(1), NapiKnob::DeferHardIrqs(EmptyPolls(n[4]))),
        Setting::Napi(queue(1), NapiKnob::GroFlushTimeout(span(n[5]))),
        Setting::DeviceNapis(device, DeviceNapiKnob::DeferHardIrqs(EmptyPolls(n[6]))),
        Setting::DeviceNapis(device, DeviceNapiKnob::GroFlushTimeout(span(n[7]))),
        Setting::DeviceNapis(device, DeviceNapiKnob::Threaded(threading(n[8]))),
        Setting::Process(ProcessKnob::Epoll(epoll(7), params(n[9]))),
        Setting::Process(ProcessKnob::Epoll(epoll(8), params(n[10]))),
        Setting::Process(ProcessKnob::IoUring(ring, napi(n[11]))),
        Setting::Irq(IrqNumber(30), IrqKnob::Affinity(cpus([n[12]]))),
        Setting::Irq(IrqNumber(31), IrqKnob::Affinity(cpus([n[13], n[13] + 2]))),
        Setting::Process(ProcessKnob::ThreadAffinity(thread(), cpus([n[14]]))),
        Setting::Napi(queue(1), NapiKnob::IrqSuspendTimeout(span(n[15]))),
        Setting::Kthread(queue(0), KthreadKnob::Affinity(cpus([n[16]]))),
        Setting::Kthread(queue(0), KthreadKnob::Scheduling(class(n[17]))),
        Setting::Kthread(queue(0), KthreadKnob::UtilClamp(UtilClamp { min: small(n[18]), max: 1024 })),
    ]
}

/// Returns the plan that leads from one host state to another, as a planner would make it: the differences,
/// grouped by object.
fn diff(from: &[Setting], to: &[Setting]) -> Plan {
    let mut steps: Vec<(Object, Vec<Change>)> = Vec::new();
    for (from, to) in from.iter().zip(to).filter(|(from, to)| from != to) {
        let change = change(from.clone(), to.clone());
        match steps.iter_mut().find(|(object, _)| *object == to.object()) {
            Some((_, changes)) => changes.push(change),
            None => steps.push((to.object(), vec![change])),
        }
    }
    Plan { steps: steps.into_iter().map(|(_, changes)| Step::new(changes)).collect() }
}

fn hosts() -> impl Strategy<Value = (Vec<Setting>, Plan)> {
    let numbers = || proptest::array::uniform19(0_u32..4);
    (numbers(), numbers(), any::<proptest::sample::Index>()).prop_map(|(was, wanted, rotation)| {
        let was = settings(&was);
        let mut plan = diff(&was, &settings(&wanted));
        if !plan.is_empty() {
            let by = rotation.index(plan.steps.len());
            plan.steps.rotate_left(by);
        }
        (was, plan)
    })
}

/// Generates a fault after which everything can still be restored.
fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0_usize..24).prop_map(Fault::RefuseWrite),
        (0_usize..24).prop_map(Fault::LoseAck),
        (0_usize..24).prop_map(Fault::WriteFirstOnly),
        (0_usize..24).prop_map(Fault::Round),
        (0_usize..48).prop_map(Fault::RefuseRead),
    ]
}

proptest! {
    #[test]
    fn a_plan_and_its_inverse_cancel_out((before, plan) in hosts()) {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before);
        for (plan, expected) in [(plan.clone(), host_after(&plan, &before)), (plan.inverse(), before.clone())] {
            scene.commit(plan, &mut host).expect("commits").keep().expect("keeps");
            prop_assert_eq!(&host.settings, &expected);
        }
    }

    #[test]
    fn a_commit_and_its_roll_back_cancel_out_whichever_steps_fail(
        (before, plan) in hosts(),
        faults in proptest::collection::vec(fault(), 0..6),
        later_faults in proptest::collection::vec(fault(), 0..6),
    ) {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before);
        host.faults.clone_from(&faults);
        // Faults that do not occur during the commit occur during the rollback.
        let outcome = match scene.commit(plan.clone(), &mut host) {
            Ok(held) => held.roll_back().map_or_else(|_| "incomplete", |_| "restored"),
            Err(error) => if matches!(error.host, UndoState::NotRestored(_)) { "incomplete" } else { "restored" },
        };
        prop_assert!(outcome == "incomplete" || host.settings == before);
        // Roll back the rest on a host with other faults, and then on a host without faults.
        for faults in [later_faults, Vec::new()] {
            host = host.healed();
            host.faults = faults;
            for transaction in scene.journal.history().expect("reads").transactions {
                if transaction.standing().is_live() {
                    let outcome = scene.journal.roll_back(transaction.name(), &mut host, second(1));
                    prop_assert!(outcome.is_ok() || host.settings != before || !host.faults.is_empty());
                }
            }
        }
        prop_assert_eq!(host.settings, before);
    }

    #[test]
    fn applying_twice_changes_nothing_the_second_time((before, plan) in hosts()) {
        prop_assume!(!plan.is_empty());
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before);
        scene.keep(plan.clone(), &mut host);
        let (after, writes) = (host.settings.clone(), host.writes);
        // A plan computed from the current state is empty; the old plan is refused.
        let held = scene.commit(diff(&after, &host_after(&plan, &before)), &mut host).expect("commits");
        prop_assert_eq!(held.transaction(), None);
        held.keep().expect("keeps");
        let again = apply::commit(plan, &mut host, &scene.journal, &asked(), Allow::default()).expect_err("refuses");
        prop_assert!(matches!(&*again.fault, CommitFault::Drifted(_)), "{}", again);
        prop_assert_eq!((host.settings, host.writes), (after, writes));
    }
}
