//! Tests transactions that stay in force only if they are confirmed in time.

use std::sync::Barrier;
use std::time::Duration;

use apply::{Allow, CommitFault, ConfirmError, Expiry, Standing, TransactionName, TransactionOrigin};
use model::{Nanoseconds, Plan, Setting, Step};

use crate::faulty_host::FaultyHost;
use crate::scene::{Scene, asked, gro, host_after, host_for, latency_plan, second};

fn held_until(scene: &Scene, host: &mut FaultyHost, deadline: Nanoseconds) -> TransactionName {
    let held = scene.commit(latency_plan(), host).expect("commits");
    let name = held.transaction().expect("a transaction");
    held.hold_until(deadline).expect("holds");
    name
}

fn before_and_after() -> (Vec<Setting>, Vec<Setting>) {
    let before = host_for(&latency_plan());
    let after = host_after(&latency_plan(), &before);
    (before, after)
}

#[test]
fn a_plan_that_is_not_confirmed_in_time_is_rolled_back() {
    let (scene, (before, after)) = (Scene::new(), before_and_after());
    let mut host = FaultyHost::new(&before);
    let deadline = second(60).since_boot;
    let name = held_until(&scene, &mut host, deadline);
    assert_eq!(host.settings, after, "kept plans are in force");
    let transaction = scene.journal.transaction(name).expect("reads");
    assert_eq!(transaction.standing(), Standing::HeldUntil(deadline));
    assert!(!transaction.expired(second(59)) && transaction.expired(second(60)));

    match scene.journal.roll_back_if_unconfirmed(name, &mut host, second(59)) {
        Ok(Expiry::NotYet { remaining }) => assert_eq!(remaining, Nanoseconds(1_000_000_000)),
        other => panic!("{other:?}"),
    }
    assert_eq!(host.settings, after);
    let expiry = scene.journal.roll_back_if_unconfirmed(name, &mut host, second(60)).expect("rolls back");
    assert!(matches!(expiry, Expiry::RolledBack(_)), "{expiry:?}");
    assert_eq!(host.settings, before);
    let too_late = scene.journal.confirm(name, second(61));
    assert!(matches!(too_late, Err(ConfirmError::NotHeld { standing: Standing::RolledBack, .. })));
}

#[test]
fn a_plan_that_is_confirmed_in_time_stays() {
    let (scene, (before, after)) = (Scene::new(), before_and_after());
    let mut host = FaultyHost::new(&before);
    let name = held_until(&scene, &mut host, second(60).since_boot);
    scene.journal.confirm(name, second(59)).expect("confirms");
    scene.journal.confirm(name, second(70)).expect("confirming twice is not an error");
    let expiry = scene.journal.roll_back_if_unconfirmed(name, &mut host, second(60)).expect("looks");
    assert!(matches!(expiry, Expiry::Settled(Standing::Confirmed)), "{expiry:?}");
    assert_eq!(host.settings, after);
    scene.journal.roll_back(name, &mut host, second(80)).expect("a confirmed plan can be rolled back");
    assert_eq!(host.settings, before);
}

#[test]
fn a_confirmation_after_the_deadline_is_refused_even_if_the_guard_is_late() {
    let (scene, (before, _)) = (Scene::new(), before_and_after());
    let mut host = FaultyHost::new(&before);
    let name = held_until(&scene, &mut host, second(60).since_boot);
    match scene.journal.confirm(name, second(62)) {
        Err(ConfirmError::Expired { late, .. }) => assert_eq!(late, Nanoseconds(2_000_000_000)),
        other => panic!("{other:?}"),
    }
    let expiry = scene.journal.roll_back_if_unconfirmed(name, &mut host, second(63)).expect("rolls back");
    assert!(matches!(expiry, Expiry::RolledBack(_)));
    assert_eq!(host.settings, before);
}

#[test]
fn of_a_confirmation_and_a_guard_at_the_same_time_exactly_one_decides() {
    let (before, after) = before_and_after();
    for round in 0..100 {
        let scene = Scene::new();
        let journal = scene.journal.clone().waiting(Duration::from_secs(20));
        let mut host = FaultyHost::new(&before);
        let deadline = second(60).since_boot;
        let name = held_until(&scene, &mut host, deadline);
        let barrier = Barrier::new(2);
        let (confirmed, expiry) = std::thread::scope(|scope| {
            let confirming = scope.spawn(|| {
                barrier.wait();
                // The operator's clock was read just before the deadline, and the guard's just after it.
                journal.confirm(name, second(59))
            });
            barrier.wait();
            let expiry = journal.roll_back_if_unconfirmed(name, &mut host, second(60)).expect("looks");
            (confirming.join().expect("no panic"), expiry)
        });
        let standing = journal.transaction(name).expect("reads").standing();
        match (&confirmed, &expiry) {
            (Ok(()), Expiry::Settled(Standing::Confirmed)) => {
                assert_eq!((standing, &host.settings), (Standing::Confirmed, &after), "round {round}");
            }
            (Err(ConfirmError::NotHeld { standing: Standing::RolledBack, .. }), Expiry::RolledBack(_)) => {
                assert_eq!((standing, &host.settings), (Standing::RolledBack, &before), "round {round}");
            }
            other => panic!("round {round}: {other:?}"),
        }
    }
}

#[test]
fn a_trial_whose_program_is_killed_half_way_expires_too() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before);
    let asked = TransactionOrigin { deadline: Some(second(60).since_boot), ..asked() };
    let held = apply::commit(plan, &mut host, &scene.journal, &asked, Allow::default()).expect("commits");
    let name = held.transaction().expect("a transaction");
    held.keep().expect("keeps");
    // Truncate the journal to what a program leaves that was killed before it recorded its decision.
    let file = scene.journal.transaction(name).expect("reads").directory().join("journal.jsonl");
    let journal = std::fs::read(&file).expect("reads");
    std::fs::write(&file, &journal[..journal.len() - 1]).expect("writes");

    let unfinished = scene.journal.roll_back_if_unconfirmed(name, &mut host, second(59)).expect("looks");
    assert!(matches!(unfinished, Expiry::NotYet { .. }), "{unfinished:?}");
    let expiry = scene.journal.roll_back_if_unconfirmed(name, &mut host, second(60)).expect("rolls back");
    assert!(matches!(expiry, Expiry::RolledBack(_)), "{expiry:?}");
    assert_eq!(host.settings, before);
}

#[test]
fn a_knob_on_trial_is_not_changed_until_the_trial_is_decided() {
    let (scene, (before, _)) = (Scene::new(), before_and_after());
    let mut host = FaultyHost::new(&before);
    let name = held_until(&scene, &mut host, second(60).since_boot);
    let upon_it = Plan { steps: vec![Step::new(vec![gro(0, 20, 50)])] };
    let error = scene.commit(upon_it.clone(), &mut host).expect_err("refuses");
    assert!(
        matches!(&*error.fault, CommitFault::Undecided { standing: Standing::HeldUntil(_), .. }),
        "{error}"
    );
    scene.journal.confirm(name, second(1)).expect("confirms");
    scene.keep(upon_it, &mut host);
}
