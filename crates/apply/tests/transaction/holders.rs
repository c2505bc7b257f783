//! Tests each kind of queue holder with each change that would take the queue from its holder.

use apply::{Allow, CommitFault, Fate, RollBackError, TransactionName, UndoState};
use model::host::{Confidence, HolderKind, HolderProcess, QueueHolder};
use model::steering::Transport;
use model::{
    Change, ChannelKind, CoalesceParam, FlagName, FlowMatch, IpFlow, NicKnob, Offload, Plan, QueueIndex,
    QueueSpan, RingKind, Setting, SteerTo, Step,
};

use crate::faulty_host::FaultyHost;
use crate::scene::{Scene, asked, change, process, queue, second};

/// The queue that has a holder in these tests.
const HELD: QueueIndex = QueueIndex(1);

const EVERYTHING: Allow = Allow { irreversible: true, disruptive: true };

fn holders() -> Vec<QueueHolder> {
    let kinds = [
        HolderKind::Lease { to: "if7 rx-1 of netnsid 0".to_owned() },
        HolderKind::Dmabuf { id: 3 },
        HolderKind::IoUring { rx_buf_len: Some(4096) },
        HolderKind::AfXdp { zero_copy: Some(true) },
        HolderKind::AfXdp { zero_copy: Some(false) },
        HolderKind::AfXdp { zero_copy: None },
    ];
    let held = |kind: HolderKind| QueueHolder {
        queue: HELD,
        rx: true,
        tx: !kind.is_provider(),
        processes: vec![HolderProcess { id: process(), confidence: Confidence::Stated }],
        kind,
    };
    kinds.into_iter().map(held).collect()
}

fn nic(from: NicKnob, to: NicKnob) -> Change {
    let device = queue(0).device;
    change(Setting::Nic(device, from), Setting::Nic(device, to))
}

fn flow() -> FlowMatch {
    FlowMatch::Ip4(IpFlow { destination_port: Some(11_211), ..IpFlow::all(Transport::Tcp) })
}

/// Returns every change that takes queue 1 of the device from its holder.
fn taking() -> Vec<Change> {
    let mut found = Vec::new();
    for kind in [ChannelKind::Combined, ChannelKind::Rx, ChannelKind::Tx] {
        found.push(nic(NicKnob::Channels(kind, 4), NicKnob::Channels(kind, 1)));
        found.push(nic(NicKnob::Channels(kind, 4), NicKnob::Channels(kind, 8)));
    }
    for kind in [RingKind::Rx, RingKind::Tx] {
        found.push(nic(NicKnob::Ring(kind, 512), NicKnob::Ring(kind, 1024)));
    }
    for offload in [Offload::Lro, Offload::GroHw] {
        found.push(nic(NicKnob::Offload(offload, false), NicKnob::Offload(offload, true)));
    }
    let flag = FlagName::new("legacy-rx").expect("a name");
    found.push(nic(NicKnob::PrivateFlag(flag, false), NicKnob::PrivateFlag(flag, true)));
    // Test both directions: steering the queue's packets away, and steering other packets to the queue.
    found.push(nic(NicKnob::RssTable(vec![0, 1, 2, 3]), NicKnob::RssTable(vec![0, 0, 2, 3])));
    found.push(nic(NicKnob::RssTable(vec![0, 0, 2, 3]), NicKnob::RssTable(vec![0, 1, 2, 3])));
    let span = QueueSpan { first: 1, count: 2 };
    found.push(nic(NicKnob::RssContext(span, false), NicKnob::RssContext(span, true)));
    for (from, to) in [
        (None, Some(SteerTo::Queue(HELD))),
        (Some(SteerTo::Queue(HELD)), None),
        (Some(SteerTo::Queue(HELD)), Some(SteerTo::Queue(QueueIndex(2)))),
        (None, Some(SteerTo::Context(span))),
    ] {
        found.push(nic(NicKnob::FlowRule(flow(), from), NicKnob::FlowRule(flow(), to)));
    }
    found
}

/// Returns changes of the same device that do not affect the held queue.
fn leaving() -> Vec<Change> {
    let other = QueueSpan { first: 2, count: 2 };
    vec![
        nic(NicKnob::Coalescing(CoalesceParam::RxUsecs, 8), NicKnob::Coalescing(CoalesceParam::RxUsecs, 50)),
        nic(NicKnob::RssTable(vec![0, 2, 2, 3]), NicKnob::RssTable(vec![0, 2, 3, 3])),
        nic(NicKnob::RssTable(vec![0, 1, 2, 3]), NicKnob::RssTable(vec![1, 1, 2, 3])),
        nic(NicKnob::RssContext(other, false), NicKnob::RssContext(other, true)),
        nic(NicKnob::FlowRule(flow(), None), NicKnob::FlowRule(flow(), Some(SteerTo::Queue(QueueIndex(3))))),
        nic(NicKnob::Offload(Offload::Gro, true), NicKnob::Offload(Offload::Gro, false)),
    ]
}

fn plan(change: &Change) -> Plan {
    Plan { steps: vec![Step::new(vec![change.clone()])] }
}

#[test]
fn no_change_takes_a_queue_from_what_holds_it_and_nothing_is_tried() {
    let (mut cells, mut refused, mut attempts) = (0, 0, 0);
    for holder in holders() {
        for change in taking() {
            let scene = Scene::new();
            let mut host = FaultyHost::new(&[change.from().clone()]);
            host.holders = vec![holder.clone()];
            let before = host.settings.clone();
            cells += 1;
            let error = apply::commit(plan(&change), &mut host, &scene.journal, &asked(), EVERYTHING)
                .expect_err(&format!("{} holds the queue, and {change} took it", holder.sentence()));
            assert!(matches!(&*error.fault, CommitFault::QueueConflict(_)), "{holder:?}: {error}");
            assert_eq!((error.host, error.transaction), (UndoState::Unchanged, None));
            assert!(error.fault.to_string().contains("memcached[812]"), "{}", error.fault);
            assert_eq!(host.settings, before);
            refused += 1;
            attempts += host.writes;
        }
    }
    assert_eq!((cells, refused, attempts), (6 * 18, 6 * 18, 0));
}

#[test]
fn what_leaves_a_held_queue_as_it_is_goes_on() {
    for holder in holders() {
        for change in leaving() {
            let scene = Scene::new();
            let mut host = FaultyHost::new(&[change.from().clone()]);
            host.holders = vec![holder.clone()];
            let held = apply::commit(plan(&change), &mut host, &scene.journal, &asked(), EVERYTHING);
            held.expect("commits").keep().expect("keeps");
            assert_eq!(host.settings, [change.to().clone()], "{holder:?}");
        }
    }
}

#[test]
fn one_held_queue_refuses_the_whole_plan_before_its_first_step() {
    let scene = Scene::new();
    let (free, taking) = (leaving().remove(0), taking().remove(0));
    let mut host = FaultyHost::new(&[free.from().clone(), taking.from().clone()]);
    host.holders = holders();
    let steps = [&free, &taking].map(|change| Step::new(vec![change.clone()])).to_vec();
    let error = apply::commit(Plan { steps }, &mut host, &scene.journal, &asked(), EVERYTHING)
        .expect_err("the second step takes a queue away");
    assert!(matches!(&*error.fault, CommitFault::QueueConflict(_)), "{error}");
    assert_eq!(host.writes, 0);
}

#[test]
fn an_undo_waits_for_the_holder_that_came_meanwhile_and_is_done_when_it_has_gone() {
    for holder in holders() {
        let scene = Scene::new();
        let change = nic(NicKnob::Ring(RingKind::Rx, 512), NicKnob::Ring(RingKind::Rx, 1024));
        let mut host = FaultyHost::new(&[change.from().clone()]);
        let name: TransactionName = {
            let held = apply::commit(plan(&change), &mut host, &scene.journal, &asked(), EVERYTHING);
            let held = held.expect("no queue is held yet");
            let name = held.transaction().expect("a transaction");
            held.keep().expect("keeps");
            name
        };
        host.holders = vec![holder.clone()];
        let writes = host.writes;
        let error = scene.journal.roll_back(name, &mut host, second(1)).expect_err("it is held");
        let RollBackError::Incomplete { undone, .. } = error else { panic!("{error}") };
        let [stuck] = &undone.changes[..] else { panic!("{undone:?}") };
        assert!(
            matches!(&stuck.fate, Fate::Stuck { cause, .. } if cause.contains("memcached[812]")),
            "{stuck:?}"
        );
        assert_eq!((host.writes, &host.settings[..]), (writes, &[change.to().clone()][..]));
        host.holders.clear();
        scene.journal.roll_back(name, &mut host, second(2)).expect("the holder no longer exists");
        assert_eq!(host.settings, [change.from().clone()]);
    }
}
