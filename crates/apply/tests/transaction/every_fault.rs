//! Tests that the host is restored, whichever step of a commit fails and however it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use apply::{CommitFault, HostOperation, RollBackError, Standing, UndoState};
use model::{Change, IrqKnob, Plan, Setting, Step};

use crate::faulty_host::{Fault, FaultyHost, nudged};
use crate::scene::{Scene, asked, gro, host_after, host_for, latency_plan, second};

/// Returns the number of reads and of writes in a fault-free commit.
fn reads_and_writes(plan: &Plan) -> (usize, usize) {
    let mut host = FaultyHost::new(&host_for(plan));
    Scene::new().keep(plan.clone(), &mut host);
    (host.reads, host.writes)
}

/// Returns the settings in `before` that have a different value in `after`.
fn differing(before: &[Setting], after: &[Setting]) -> Vec<Setting> {
    before.iter().filter(|&was| !after.contains(was)).cloned().collect()
}

#[test]
fn a_commit_writes_each_object_once_and_reads_it_four_times() {
    let plan = latency_plan();
    let steps = plan.steps.len();
    assert_eq!(reads_and_writes(&plan), (4 * steps, steps));
}

#[test]
fn a_commit_on_a_device_that_is_reset_on_the_way_is_in_force_or_fails() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let (reads, _) = reads_and_writes(&plan);
    let mut failed = 0;
    for (n, step) in (0..reads).flat_map(|n| plan.steps.iter().map(move |step| (n, step))) {
        let scene = Scene::new();
        let reset = Fault::ForeignBeforeRead(n, step.from()[0].clone());
        let mut host = FaultyHost::new(&before).with(reset);
        let outcome = scene.commit(plan.clone(), &mut host).map(|held| held.keep().expect("keeps"));
        match outcome {
            // A reset during the final check may follow the read of the affected object; the commit then does
            // not notice it.
            Ok(()) if n < reads - plan.steps.len() => {
                assert_eq!(host.settings, host_after(&plan, &before), "read {n}, {}", step.object());
            }
            Ok(()) => {}
            Err(error) => {
                failed += 1;
                assert_eq!(host.settings, before, "read {n}, {}: {error}", step.object());
            }
        }
    }
    assert!(failed > 0, "the test requires that some of them lose what was written");
}

#[test]
fn a_commit_that_is_kept_is_in_force_and_can_be_rolled_back_later() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before);
    let name = scene.keep(plan.clone(), &mut host);
    assert_eq!(host.settings, host_after(&plan, &before));
    assert_eq!(scene.journal.transaction(name).expect("reads").standing(), Standing::Kept);
    let undone = scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    assert_eq!(undone.host(), UndoState::Restored);
    assert_eq!(host.settings, before);
}

#[test]
fn a_commit_failing_at_any_step_in_any_way_leaves_the_host_as_it_was() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let (reads, writes) = reads_and_writes(&plan);
    let reading = (0..reads).map(Fault::RefuseRead);
    let writing = (0..writes)
        .flat_map(|n| [Fault::RefuseWrite(n), Fault::LoseAck(n), Fault::WriteFirstOnly(n), Fault::Round(n)]);
    for fault in reading.chain(writing) {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before).with(fault.clone());
        let error = scene.commit(plan.clone(), &mut host).expect_err("fails");
        assert_eq!(host.settings, before, "{fault:?}");
        // A rejected write changes no setting. The transaction's standing in the journal must match the
        // result of the undo.
        let wrote = host.writes > 0 && !matches!(fault, Fault::RefuseWrite(0));
        let expected = if wrote { UndoState::Restored } else { UndoState::Unchanged };
        assert_eq!(error.host, expected, "{fault:?}");
        for transaction in scene.journal.history().expect("reads").transactions {
            assert_eq!(transaction.standing(), Standing::RolledBack, "{fault:?}");
        }
    }
}

#[test]
fn a_commit_whose_host_panics_leaves_the_host_as_it_was() {
    let plan = latency_plan();
    let before = host_for(&plan);
    for n in 0..plan.steps.len() {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before).with(Fault::PanicInWrite(n));
        let outcome = catch_unwind(AssertUnwindSafe(|| scene.commit(plan.clone(), &mut host).map(drop)));
        assert!(outcome.is_err(), "write {n}");
        assert_eq!(host.settings, before, "write {n}");
    }
}

#[test]
fn an_undo_that_cannot_finish_names_every_setting_left_wrong() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let (reads, writes) = reads_and_writes(&plan);
    let lasting = (0..reads).map(Fault::RefuseReadsFrom).chain((0..writes).map(Fault::RefuseWritesFrom));
    for fault in lasting {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before).with(fault.clone());
        let error = scene.commit(plan.clone(), &mut host).expect_err("fails");
        let wrong = differing(&before, &host.settings);
        let named: Vec<Setting> = error.undone.stuck().map(|s| s.change.from().clone()).collect();
        for setting in &wrong {
            assert!(named.contains(setting), "{fault:?}: {setting} is wrong, but the error does not name it");
        }
        assert_eq!(matches!(error.host, UndoState::NotRestored(_)), !named.is_empty(), "{fault:?}");

        // Once the host works again, the journal restores the rest.
        let mut host = host.healed();
        for transaction in scene.journal.history().expect("reads").transactions {
            let expected = if named.is_empty() { Standing::RolledBack } else { Standing::RollbackIncomplete };
            assert_eq!(transaction.standing(), expected, "{fault:?}");
            if transaction.standing().is_live() {
                scene.journal.roll_back(transaction.name(), &mut host, second(1)).expect("rolls back");
            }
        }
        assert_eq!(host.settings, before, "{fault:?}");
    }
}

#[test]
fn a_second_fault_during_the_undo_of_the_first_leaves_nothing_unnamed() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let (reads, writes) = reads_and_writes(&plan);
    for first in 0..writes {
        for first in [Fault::RefuseWrite(first), Fault::LoseAck(first), Fault::Round(first)] {
            let later = (0..2 * reads).map(Fault::RefuseRead).chain((0..4 * writes).flat_map(|n| {
                [Fault::RefuseWrite(n), Fault::WriteFirstOnly(n), Fault::LoseAck(n), Fault::Round(n)]
            }));
            for second_fault in later {
                let scene = Scene::new();
                let mut host = FaultyHost::new(&before).with(first.clone()).with(second_fault.clone());
                let error = scene.commit(plan.clone(), &mut host).expect_err("fails");
                let named: Vec<Setting> = error.undone.stuck().map(|s| s.change.from().clone()).collect();
                for setting in differing(&before, &host.settings) {
                    assert!(named.contains(&setting), "{first:?} {second_fault:?}: {setting}");
                }
                let mut host = host.healed();
                if !named.is_empty() {
                    let name = error.transaction.expect("begun");
                    scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
                }
                assert_eq!(host.settings, before, "{first:?} {second_fault:?}");
            }
        }
    }
}

#[test]
fn an_object_that_goes_away_takes_its_settings_with_it_and_fails_no_undo() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let (reads, writes) = reads_and_writes(&plan);
    let last_look = reads - plan.steps.len();
    let vanishing =
        (0..last_look).map(Fault::VanishBeforeRead).chain((0..writes).map(Fault::VanishBeforeWrite));
    for fault in vanishing {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before).with(fault.clone());
        let error = scene.commit(plan.clone(), &mut host).expect_err("fails");
        assert!(error.undone.is_complete(), "{fault:?}: {}", error.undone);
        assert!(!before.iter().all(|s| host.settings.contains(s)), "{fault:?}: something went away");
        assert!(host.settings.iter().all(|s| before.contains(s)), "{fault:?}: {:?}", host.settings);
    }
}

#[test]
fn an_object_that_goes_away_when_all_is_written_is_no_fault_of_the_plan() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let (reads, _) = reads_and_writes(&plan);
    for n in reads - plan.steps.len()..reads {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before).with(Fault::VanishBeforeRead(n));
        let undone = scene.commit(plan.clone(), &mut host).expect("holds").roll_back().expect("rolls back");
        assert!(undone.is_complete(), "read {n}: {undone}");
        assert!(host.settings.len() < before.len(), "read {n}: an object disappeared");
        assert!(host.settings.iter().all(|s| before.contains(s)), "read {n}: {:?}", host.settings);
    }
}

#[test]
fn what_another_program_sets_meanwhile_is_never_overwritten_unless_the_step_was_under_way() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let (reads, _) = reads_and_writes(&plan);
    for (index, step) in plan.steps.iter().enumerate() {
        for change in step.changes() {
            let foreign = nudged(change.to());
            for n in 0..reads {
                let scene = Scene::new();
                let fault = Fault::ForeignBeforeRead(n, foreign.clone());
                let mut host = FaultyHost::new(&before).with(fault);
                let left_alone: Vec<(Change, Setting)> = match scene.commit(plan.clone(), &mut host) {
                    Ok(held) => {
                        let undone = held.roll_back().expect("rolls back");
                        undone.left_alone().map(|(c, found)| (c.clone(), found.clone())).collect()
                    }
                    Err(error) => {
                        assert!(error.undone.is_complete(), "read {n}: {error}");
                        error.undone.left_alone().map(|(c, found)| (c.clone(), found.clone())).collect()
                    }
                };
                // The order of reads: first one per step, then one before and one after the write of each
                // step.
                let under_way = n == plan.steps.len() + 2 * index + 1;
                let mut expected = FaultyHost::new(&before);
                if !under_way {
                    expected.set(&foreign);
                }
                assert_eq!(host.settings, expected.settings, "read {n}: {foreign}");
                let after_its_write = n > plan.steps.len() + 2 * index + 1;
                let reported = after_its_write.then(|| (change.clone(), foreign.clone()));
                assert_eq!(left_alone, reported.into_iter().collect::<Vec<_>>(), "read {n}: {foreign}");
            }
        }
    }
}

#[test]
fn a_host_that_drifted_is_refused_before_anything_is_touched() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let mut drifted = FaultyHost::new(&host_for(&plan));
    let foreign: Vec<Setting> = plan.steps[1].from().iter().map(nudged).collect();
    foreign.iter().for_each(|f| drifted.set(f));
    let before = drifted.settings.clone();
    let error = scene.commit(plan.clone(), &mut drifted).expect_err("refuses");
    let CommitFault::Drifted(drifts) = &*error.fault else { panic!("{error}") };
    assert_eq!(drifts.iter().map(|d| d.found.clone()).collect::<Vec<_>>(), foreign);
    assert_eq!((drifted.settings, drifted.writes), (before, 0));
    assert!(scene.journal.history().expect("reads").transactions.is_empty());
}

#[test]
fn a_kernel_that_rounds_is_heard() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let mut host = FaultyHost::new(&host_for(&plan)).with(Fault::Round(2));
    let error = scene.commit(plan.clone(), &mut host).expect_err("refuses");
    let CommitFault::ReadBack { step: 2, wrote, found, .. } = &*error.fault else { panic!("{error}") };
    assert_eq!(**wrote, plan.steps[2].to()[0]);
    assert_eq!(**found, nudged(wrote));
}

#[test]
fn a_refusal_carries_the_hosts_own_error() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let mut host = FaultyHost::new(&host_for(&plan)).with(Fault::RefuseWrite(3));
    let error = scene.commit(plan, &mut host).expect_err("refuses");
    let CommitFault::Host { step: 3, of: 5, doing: HostOperation::Writing, cause } = &*error.fault else {
        panic!("{error}")
    };
    assert_eq!(
        cause.to_string(),
        "memcached[812] epoll 7: busy_poll usecs/budget/prefer 0us/64/1: Operation not permitted (EPERM)"
    );
}

#[test]
fn a_held_plan_that_is_dropped_is_rolled_back() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before);
    drop(scene.commit(plan, &mut host).expect("commits"));
    assert_eq!(host.settings, before);
    let history = scene.journal.history().expect("reads");
    assert_eq!(history.transactions[0].standing(), Standing::RolledBack);
    assert_eq!(history.transactions[0].why_undone(), Some(&apply::Why::Dropped));
}

#[test]
fn a_knob_that_a_plan_changes_twice_goes_back_all_the_way() {
    let scene = Scene::new();
    let plan = Plan {
        steps: vec![
            Step::new(vec![gro(0, 0, 10)]),
            Step::new(vec![gro(1, 0, 10)]),
            Step::new(vec![gro(0, 10, 20)]),
        ],
    };
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before);
    let name = scene.keep(plan, &mut host);
    assert!(host.settings.contains(gro(0, 10, 20).to()));
    scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    assert_eq!(host.settings, before);
}

#[test]
fn a_change_that_cannot_be_undone_is_refused_unless_allowed() {
    let scene = Scene::new();
    let affinity = |cpus| Setting::Irq(model::IrqNumber(30), IrqKnob::Affinity(cpus));
    let to = affinity(crate::scene::cpus([1]));
    let irreversible = crate::scene::change(affinity(crate::scene::cpus([])), to.clone());
    let plan = Plan { steps: vec![Step::new(vec![irreversible])] };
    let mut host = FaultyHost::new(&host_for(&plan));
    let error = scene.commit(plan.clone(), &mut host).expect_err("refuses");
    assert!(matches!(&*error.fault, CommitFault::Irreversible(changes) if changes.len() == 1), "{error}");
    assert_eq!((error.host, host.reads, host.writes), (UndoState::Unchanged, 0, 0));

    let allow = apply::Allow { irreversible: true, disruptive: false };
    let held = apply::commit(plan, &mut host, &scene.journal, &asked(), allow).expect("commits");
    held.keep().expect("keeps");
    assert!(host.settings.contains(&to));
}

#[test]
fn an_empty_plan_touches_neither_host_nor_journal() {
    let scene = Scene::new();
    let mut host = FaultyHost::new(&[]);
    let held = scene.commit(Plan::default(), &mut host).expect("commits");
    assert_eq!(held.transaction(), None);
    held.keep().expect("keeps");
    assert_eq!((host.reads, host.writes), (0, 0));
    assert!(!scene.journal.directory().exists());
}

#[test]
fn a_plan_that_cannot_be_journalled_changes_nothing() {
    let (scene, plan) = (Scene::new(), latency_plan());
    // Create a file where the journal's directory should be.
    std::fs::create_dir_all(scene.journal.directory().parent().expect("a parent")).expect("creates");
    std::fs::write(scene.journal.directory(), "").expect("writes");
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before);
    let error = scene.commit(plan, &mut host).expect_err("refuses");
    assert!(matches!(&*error.fault, CommitFault::Journal(_)), "{error}");
    assert_eq!((error.host, host.settings, host.writes), (UndoState::Unchanged, before, 0));
}

#[test]
fn a_step_that_the_kernel_takes_only_in_parts_goes_back_in_parts() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before);
    let name = scene.keep(plan, &mut host);
    // The undo's second write is the first one to the queues; it writes three settings in one call.
    let mut host = host.healed().with(Fault::RefuseWrite(2));
    scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    assert_eq!(host.settings, before);
}

#[test]
fn a_setting_that_an_undo_left_with_a_third_value_is_put_back_by_the_next() {
    let plan = latency_plan();
    let before = host_for(&plan);
    // The host rounds the value that the undo writes; afterwards the rounded value is read back, or cannot be
    // read.
    for unseen in [None, Some(Fault::RefuseRead(1))] {
        let scene = Scene::new();
        let mut host = FaultyHost::new(&before);
        let name = scene.keep(plan.clone(), &mut host);
        let mut host = host.healed().with(Fault::Round(0));
        host.faults.extend(unseen);
        assert!(scene.journal.roll_back(name, &mut host, second(1)).is_err());
        // A second undo, which cannot read any setting, must leave the journal complete.
        let mut host = host.healed().with(Fault::RefuseReadsFrom(0));
        assert!(scene.journal.roll_back(name, &mut host, second(2)).is_err());
        let mut host = host.healed();
        scene.journal.roll_back(name, &mut host, second(3)).expect("rolls back");
        assert_eq!(host.settings, before);
    }
}

#[test]
fn an_incomplete_roll_back_of_a_held_plan_is_an_error_that_lists_what_is_stuck() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before).with(Fault::RefuseWritesFrom(plan.steps.len()));
    let held = scene.commit(plan.clone(), &mut host).expect("commits");
    let script = held.undo_script().expect("a script");
    match held.roll_back() {
        Err(RollBackError::Incomplete { undone, undo_script, .. }) => {
            assert_eq!(undone.stuck().count(), plan.changes().count());
            assert_eq!(undo_script, script);
            assert!(script.exists());
        }
        other => panic!("{other:?}"),
    }
}
