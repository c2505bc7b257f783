//! Tests a daemon's journal: only one daemon at a time, many small transactions, and the transaction that
//! replaces them.

use std::fs;

use apply::{
    CommitFault, Fate, Journal, JournalError, RollBackError, Standing, Transaction, TransactionName,
};
use model::{Plan, Setting, Step};
use proptest::prelude::*;

use crate::faulty_host::FaultyHost;
use crate::scene::{Scene, asked, gro, host_for, second};

fn one(change: model::Change) -> Plan {
    Plan { steps: vec![Step::new(vec![change])] }
}

fn host_of(queues: u32) -> FaultyHost {
    let steps = (0..queues).map(|index| Step::new(vec![gro(index, 0, 1)])).collect();
    FaultyHost::new(&host_for(&Plan { steps }))
}

/// Commits a plan in this journal, and keeps it.
fn keep(journal: &Journal, plan: Plan, host: &mut FaultyHost) -> TransactionName {
    let held = apply::commit(plan, host, journal, &asked(), apply::Allow::default()).expect("commits");
    let name = held.transaction().expect("a transaction");
    held.keep().expect("keeps");
    name
}

fn names(journal: &Journal) -> Vec<TransactionName> {
    journal.history().expect("reads").transactions.iter().map(Transaction::name).collect()
}

#[test]
fn a_second_daemon_is_refused_with_the_number_of_the_first() {
    let scene = Scene::new();
    assert_eq!(scene.journal.daemon(), None);
    let first = scene.journal.clone().kept_by_this_daemon().expect("the first");
    assert_eq!(first.daemon().map(|pid| pid.0), Some(std::process::id()));
    match scene.journal.clone().kept_by_this_daemon() {
        Err(JournalError::Kept { by: Some(by), .. }) => assert_eq!(by.0, std::process::id()),
        other => panic!("{other:?}"),
    }
    drop(first);
    scene.journal.clone().kept_by_this_daemon().expect("the next one");
}

#[test]
fn what_a_daemon_set_is_found_by_the_next_one_and_what_others_set_is_not() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    let ours = keep(&daemon, one(gro(0, 0, 10)), &mut host);
    scene.keep(one(gro(1, 0, 30)), &mut host);
    drop(daemon);
    let next = scene.journal.clone().kept_by_this_daemon().expect("the next one");
    let found: Vec<_> = next.kept_by_daemon().expect("reads").iter().map(Transaction::name).collect();
    assert_eq!(found, [ours]);
}

#[test]
fn many_transactions_become_one_that_puts_back_what_was_there_before_the_first() {
    let (scene, mut host) = (Scene::new(), host_of(3));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    let before = host.settings.clone();
    for plan in [gro(0, 0, 10), gro(1, 0, 30), gro(0, 10, 20), gro(2, 0, 7), gro(2, 7, 0)] {
        keep(&daemon, one(plan), &mut host);
    }
    let after = host.settings.clone();
    let folded = daemon.fold(&asked(), |_| false).expect("folds").expect("one transaction");
    assert_eq!(names(&scene.journal), [folded]);
    let read = scene.journal.transaction(folded).expect("reads");
    assert_eq!(read.standing(), Standing::Kept);
    let changes: Vec<String> = read.live_changes().map(ToString::to_string).collect();
    assert_eq!(changes, ["eth0 rx-0: gro-flush-timeout 0 → 20us", "eth0 rx-1: gro-flush-timeout 0 → 30us"]);
    assert_eq!(host.settings, after, "folding changes nothing");
    scene.journal.roll_back(folded, &mut host, second(9)).expect("rolls back");
    assert_eq!(host.settings, before);
}

#[test]
fn what_is_gone_is_not_folded_in_and_of_nothing_nothing_is_left() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    keep(&daemon, one(gro(0, 0, 10)), &mut host);
    keep(&daemon, one(gro(1, 0, 10)), &mut host);
    assert_eq!(daemon.fold(&asked(), |_| true).expect("folds"), None);
    assert_eq!(names(&scene.journal), []);
}

#[test]
fn a_fold_stops_at_a_transaction_of_another_program() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    let first = keep(&daemon, one(gro(0, 0, 10)), &mut host);
    let foreign = scene.keep(one(gro(0, 10, 15)), &mut host);
    let rest = [gro(0, 15, 20), gro(1, 0, 3)].map(|change| keep(&daemon, one(change), &mut host));
    let folded = daemon.fold(&asked(), |_| false).expect("folds").expect("one");
    assert_eq!(names(&scene.journal), [first, foreign, folded]);
    assert!(rest.iter().all(|name| !names(&scene.journal).contains(name)));
    match scene.journal.roll_back(foreign, &mut host, second(1)) {
        Err(RollBackError::Overlaid { newer, .. }) => assert_eq!(newer, folded),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_commit_is_refused_when_what_it_relies_on_was_rolled_back() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    let name = keep(&daemon, one(gro(0, 0, 10)), &mut host);
    daemon.rely_on([name]);
    keep(&daemon, one(gro(1, 0, 10)), &mut host);
    scene.journal.roll_back(name, &mut host, second(1)).expect("an operator may");
    let error = apply::commit(one(gro(0, 0, 10)), &mut host, &daemon, &asked(), apply::Allow::default())
        .expect_err("refused");
    assert!(
        matches!(&*error.fault, CommitFault::RolledBackMeanwhile { name: which } if *which == name),
        "{error}"
    );
    daemon.rely_on([]);
    keep(&daemon, one(gro(0, 0, 10)), &mut host);
}

/// If the daemon is killed between the rename and the last removal, old transactions remain next to the new
/// one.
#[test]
fn old_ones_that_a_kill_left_beside_the_new_one_count_no_more_and_are_swept() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    let before = host.settings.clone();
    let old = [gro(0, 0, 10), gro(0, 10, 20)].map(|change| keep(&daemon, one(change), &mut host));
    let saved = scene.journal.directory().join("saved");
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        fs::create_dir_all(to).expect("made");
        for entry in fs::read_dir(from).expect("listed") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    };
    for name in old {
        copy(&scene.journal.directory().join(name.to_string()), &saved.join(name.to_string()));
    }
    let folded = daemon.fold(&asked(), |_| false).expect("folds").expect("one");
    drop(daemon);
    for name in old {
        copy(&saved.join(name.to_string()), &scene.journal.directory().join(name.to_string()));
    }
    assert_eq!(names(&scene.journal), [folded], "they no longer count");
    scene.journal.roll_back(folded, &mut host, second(2)).expect("is not overlaid");
    assert_eq!(host.settings, before);
    assert_eq!(names(&scene.journal), [folded]);
    let _next = scene.journal.clone().kept_by_this_daemon().expect("the next daemon");
    assert!(old.iter().all(|name| !scene.journal.directory().join(name.to_string()).exists()), "swept");
}

#[test]
fn a_fold_that_is_rolled_back_leaves_what_others_set_alone() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    keep(&daemon, one(gro(0, 0, 10)), &mut host);
    keep(&daemon, one(gro(1, 0, 10)), &mut host);
    let folded = daemon.fold(&asked(), |_| false).expect("folds").expect("one");
    host.set(gro(0, 10, 99).to());
    let undone = scene.journal.roll_back(folded, &mut host, second(1)).expect("rolls back");
    assert_eq!(undone.count(|fate| matches!(fate, Fate::LeftAlone { .. })), 1);
    assert!(host.settings.contains(gro(0, 0, 99).to()) && host.settings.contains(gro(1, 0, 10).from()));
}

#[test]
fn after_a_repair_all_goes_back_to_what_was_there_before_the_daemon() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let before = host.settings.clone();
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    keep(&daemon, one(gro(0, 0, 200)), &mut host);
    keep(&daemon, one(gro(1, 0, 200)), &mut host);
    host.set(gro(0, 200, 50).to());
    keep(&daemon, one(gro(0, 50, 200)), &mut host);
    let (undone, failed) = scene.journal.roll_back_daemons(&mut host, &asked());
    assert!(failed.is_none(), "{failed:?}");
    let fates: Vec<&Fate> =
        undone.iter().flat_map(|(_, undone)| &undone.changes).map(|change| &change.fate).collect();
    assert_eq!(fates, [&Fate::Restored; 2], "as one change, without intermediate values");
    assert_eq!(host.settings, before);
    let (again, failed) = scene.journal.roll_back_daemons(&mut host, &asked());
    assert!(again.is_empty() && failed.is_none());
}

#[test]
fn a_value_that_another_program_set_since_the_last_repair_stays_and_is_reported() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    keep(&daemon, one(gro(0, 0, 200)), &mut host);
    host.set(gro(0, 200, 50).to());
    keep(&daemon, one(gro(0, 50, 200)), &mut host);
    host.set(gro(0, 200, 7).to());
    let (undone, _) = scene.journal.roll_back_daemons(&mut host, &asked());
    let left: Vec<_> = undone.iter().flat_map(|(_, undone)| undone.left_alone()).collect();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].0.from(), left[0].1), (gro(0, 0, 7).from(), gro(0, 0, 7).to()));
}

#[test]
fn what_another_command_has_built_upon_a_daemons_is_not_undone_beneath_it() {
    let (scene, mut host) = (Scene::new(), host_of(2));
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    keep(&daemon, one(gro(0, 0, 10)), &mut host);
    let foreign = scene.keep(one(gro(0, 10, 15)), &mut host);
    let newest = keep(&daemon, one(gro(0, 15, 20)), &mut host);
    let (undone, failed) = scene.journal.roll_back_daemons(&mut host, &asked());
    assert_eq!(undone.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [newest]);
    match failed {
        Some(RollBackError::Overlaid { newer, .. }) => assert_eq!(newer, foreign),
        other => panic!("{other:?}"),
    }
    assert!(host.settings.contains(gro(0, 0, 15).to()), "the value that the other command has set");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// After any sequence of commits, folds and foreign writes, rolling back everything restores the original
    /// host, provided that the last value is the daemon's.
    #[test]
    fn whatever_was_repaired_one_rollback_leads_back_to_the_first_value(
        acts in proptest::collection::vec((0_u32..3, 0_u64..4, proptest::option::of(4_u64..9), any::<bool>()), 1..24),
    ) {
        let (scene, mut host) = (Scene::new(), host_of(3));
        let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
        let mut values = [0_u64; 3];
        let before = host.settings.clone();
        for (queue, to, drift, fold) in acts {
            let value = &mut values[queue as usize];
            // The daemon repairs only settings that it has changed.
            if let Some(drift) = drift.filter(|_| *value != 0) {
                host.set(gro(queue, *value, drift).to());
                *value = drift;
            }
            if *value != to {
                keep(&daemon, one(gro(queue, *value, to)), &mut host);
                *value = to;
            }
            if fold {
                daemon.fold(&asked(), |_| false).expect("folds");
            }
        }
        let (_, failed) = scene.journal.roll_back_daemons(&mut host, &asked());
        prop_assert!(failed.is_none());
        let sorted = |settings: &[Setting]| {
            let mut lines: Vec<String> = settings.iter().map(ToString::to_string).collect();
            lines.sort();
            lines
        };
        prop_assert_eq!(sorted(&host.settings), sorted(&before));
    }

    /// After any sequence of commits and folds, rolling back everything that is left restores the original
    /// host. At any time, the number of transactions is at most one plus the number of commits since the last
    /// fold.
    #[test]
    fn folding_at_any_time_does_not_change_the_result_of_a_rollback(
        acts in proptest::collection::vec((0_u32..3, 0_u64..4, any::<bool>()), 1..24),
    ) {
        let (scene, mut host) = (Scene::new(), host_of(3));
        let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
        let before = host.settings.clone();
        let mut values = [0_u64; 3];
        let mut since = 0;
        for (queue, to, fold) in acts {
            let value = &mut values[queue as usize];
            if *value != to {
                keep(&daemon, one(gro(queue, *value, to)), &mut host);
                *value = to;
                since += 1;
            }
            if fold {
                daemon.fold(&asked(), |_| false).expect("folds");
                since = 0;
            }
            prop_assert!(names(&scene.journal).len() <= since + 2);
        }
        for name in names(&scene.journal).into_iter().rev() {
            scene.journal.roll_back(name, &mut host, second(3)).expect("rolls back");
        }
        let sorted = |settings: &[Setting]| {
            let mut lines: Vec<String> = settings.iter().map(ToString::to_string).collect();
            lines.sort();
            lines
        };
        prop_assert_eq!(sorted(&host.settings), sorted(&before));
    }
}
