//! Tests several transactions on one host: which transaction owns a knob, and which process may write.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use apply::{
    CommitFault, Fate, Journal, JournalError, ObjectCookies, RollBackError, Standing, TransactionName,
};
use model::{Pid, Plan, Setting, Step};
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, SealFlags, fcntl_add_seals, memfd_create, mknodat};

use crate::faulty_host::{FaultyHost, nudged};
use crate::scene::{Scene, asked, gro, host_for, latency_plan, second};

pub(crate) fn one(change: model::Change) -> Plan {
    Plan { steps: vec![Step::new(vec![change])] }
}

fn standings(journal: &Journal) -> Vec<Standing> {
    journal.history().expect("reads").transactions.iter().map(apply::Transaction::standing).collect()
}

/// Commits three transactions: the second one continues from the first one's value, and the third one changes
/// another queue.
pub(crate) fn three(scene: &Scene, host: &mut FaultyHost) -> [TransactionName; 3] {
    [one(gro(0, 0, 10)), one(gro(0, 10, 20)), one(gro(1, 0, 30))].map(|plan| scene.keep(plan, host))
}

pub(crate) fn host_of_three() -> FaultyHost {
    FaultyHost::new(&host_for(&Plan {
        steps: vec![Step::new(vec![gro(0, 0, 1)]), Step::new(vec![gro(1, 0, 1)])],
    }))
}

#[test]
fn names_sort_in_the_order_of_the_transactions_even_at_one_moment() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let names = three(&scene, &mut host);
    assert!(names.is_sorted());
    let history = scene.journal.history().expect("reads");
    assert_eq!(history.transactions.iter().map(apply::Transaction::name).collect::<Vec<_>>(), names);
    assert_eq!(history.newest_live().map(apply::Transaction::name), Some(names[2]));
}

#[test]
fn an_older_transaction_is_not_rolled_back_from_under_a_newer_one() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let [first, second_name, third] = three(&scene, &mut host);
    let before = host.settings.clone();
    match scene.journal.roll_back(first, &mut host, second(1)) {
        Err(RollBackError::Overlaid { name, newer, knob }) => {
            assert_eq!((name, newer), (first, second_name));
            assert_eq!(*knob, gro(0, 10, 20));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(host.settings, before);

    // A transaction can be rolled back if no later one has changed the same knob.
    scene.journal.roll_back(second_name, &mut host, second(1)).expect("rolls back");
    assert!(host.settings.contains(gro(0, 10, 20).from()));
    scene.journal.roll_back(first, &mut host, second(1)).expect("rolls back");
    assert!(host.settings.contains(gro(0, 0, 10).from()));
    assert_eq!(standings(&scene.journal), [Standing::RolledBack, Standing::RolledBack, Standing::Kept]);
    assert!(matches!(
        scene.journal.roll_back(first, &mut host, second(2)),
        Err(RollBackError::NothingToUndo { standing: Standing::RolledBack, .. })
    ));
    scene.journal.roll_back(third, &mut host, second(3)).expect("rolls back");
    assert_eq!(host.settings, host_of_three().settings);
}

#[test]
fn a_value_that_another_program_set_since_is_left_alone_and_reported() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let before = host_for(&plan);
    let mut host = FaultyHost::new(&before);
    let name = scene.keep(plan.clone(), &mut host);
    let theirs = nudged(plan.steps[1].changes()[1].to());
    host.set(&theirs);
    let undone = scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    let left: Vec<&Setting> = undone.left_alone().map(|(_, found)| found).collect();
    assert_eq!(left, [&theirs]);
    let mut expected = FaultyHost::new(&before);
    expected.set(&theirs);
    assert_eq!(host.settings, expected.settings);
    assert_eq!(standings(&scene.journal), [Standing::RolledBack]);
}

#[test]
fn after_a_reboot_there_is_nothing_to_undo() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let mut host = FaultyHost::new(&host_for(&plan));
    let name = scene.keep(plan.clone(), &mut host);
    // Since the reboot, another program has set the same values again, so they do not belong to netpolicy.
    let (journal, settings) = (scene.after_reboot(), host.settings.clone());
    assert_eq!(standings(&journal), [Standing::Rebooted]);
    assert!(matches!(
        journal.roll_back(name, &mut host, second(1)),
        Err(RollBackError::NothingToUndo { standing: Standing::Rebooted, .. })
    ));
    assert_eq!(host.settings, settings);
    assert!(journal.history().expect("reads").newest_live().is_none());
}

#[test]
fn while_a_plan_is_held_no_other_is_written_and_the_holder_is_named() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    assert_eq!(scene.journal.writer(), None);
    let held = scene.commit(one(gro(0, 0, 10)), &mut host).expect("commits");
    let myself = Some(Pid(std::process::id()));
    assert_eq!(scene.journal.writer(), myself);

    let mut other = host_of_three();
    let started = Instant::now();
    let error = scene.commit(one(gro(1, 0, 10)), &mut other).expect_err("refuses");
    let CommitFault::Journal(JournalError::Busy { holder, waited }) = &*error.fault else {
        panic!("{error}")
    };
    assert_eq!((*holder, *waited, other.writes), (myself, Duration::from_millis(60), 0));
    assert!(started.elapsed() >= *waited);

    held.keep().expect("keeps");
    assert_eq!(scene.journal.writer(), None);
    scene.commit(one(gro(1, 0, 10)), &mut host).expect("commits").keep().expect("keeps");
}

#[test]
fn a_lock_that_is_released_in_time_is_waited_for() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let journal = scene.journal.clone().waiting(Duration::from_secs(20));
    let held = scene.commit(one(gro(0, 0, 10)), &mut host).expect("commits");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut other = host_of_three();
            let allow = apply::Allow::default();
            apply::commit(one(gro(1, 0, 10)), &mut other, &journal, &asked(), allow).expect("commits").keep()
        });
        std::thread::sleep(Duration::from_millis(30));
        held.keep().expect("keeps");
        waiting.join().expect("no panic").expect("keeps");
    });
    assert_eq!(standings(&scene.journal), [Standing::Kept; 2]);
}

#[test]
fn a_knob_of_a_transaction_that_was_killed_half_way_is_not_changed_until_that_is_decided() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    let file = scene.journal.transaction(name).expect("reads").directory().join("journal.jsonl");
    let journal = std::fs::read(&file).expect("reads");
    std::fs::write(&file, &journal[..journal.len() - 1]).expect("writes");

    let error = scene.commit(one(gro(0, 10, 20)), &mut host).expect_err("refuses");
    assert!(
        matches!(&*error.fault, CommitFault::Undecided { name: n, standing: Standing::Unfinished, .. } if *n == name),
        "{error}"
    );
    // An unfinished transaction does not block other knobs.
    scene.commit(one(gro(1, 0, 10)), &mut host).expect("commits").keep().expect("keeps");
    scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    scene.commit(one(gro(0, 0, 20)), &mut host).expect("commits").keep().expect("keeps");
}

#[test]
fn old_transactions_are_forgotten_but_never_those_in_force() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let kept = scene.keep(one(gro(1, 0, 30)), &mut host);
    for _ in 0..5 {
        drop(scene.commit(one(gro(0, 0, 10)), &mut host).expect("commits"));
    }
    assert_eq!(scene.journal.forget_all_but(2).expect("forgets"), 3);
    assert_eq!(standings(&scene.journal), [Standing::Kept, Standing::RolledBack, Standing::RolledBack]);
    assert_eq!(scene.journal.forget_all_but(0).expect("forgets"), 2);
    let left: Vec<_> = scene.journal.history().expect("reads").transactions;
    assert_eq!(left.iter().map(apply::Transaction::name).collect::<Vec<_>>(), [kept]);
}

#[test]
fn a_transaction_that_there_is_not_is_named_in_the_error() {
    let scene = Scene::new();
    let name = "20261121T040500.123456Z-1a2b".parse().expect("a name");
    assert!(matches!(scene.journal.transaction(name), Err(JournalError::NoSuchTransaction { .. })));
    assert!(scene.journal.history().expect("reads").transactions.is_empty());
}

#[test]
fn only_its_owner_may_look_into_the_journal() {
    use std::os::unix::fs::PermissionsExt;
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    let transaction = scene.journal.transaction(name).expect("reads");
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).expect("is there").permissions().mode() & 0o777;
    assert_eq!(mode(scene.journal.directory()) & 0o077, 0);
    assert_eq!(mode(transaction.directory()) & 0o077, 0);
    assert_eq!(mode(&transaction.directory().join("journal.jsonl")) & 0o077, 0);
    assert_eq!(mode(&transaction.undo_script()) & 0o177, 0o100);
}

#[test]
fn a_lock_file_that_cannot_be_written_is_a_lock_all_the_same() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    // Every write to this lock file fails, as on a full disk.
    let sealed = memfd_create("lock", MemfdFlags::ALLOW_SEALING).expect("a file in memory");
    fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK).expect("seals");
    let lock = scene.journal.directory().join("lock");
    std::fs::remove_file(&lock).expect("removes");
    std::os::unix::fs::symlink(format!("/proc/self/fd/{}", sealed.as_raw_fd()), &lock).expect("links");
    scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
}

/// Replaces a file by an object of the given kind.
pub(crate) fn replaced(file: &Path, by: &str) {
    let _not_there = std::fs::remove_file(file).or_else(|_| std::fs::remove_dir(file));
    match by {
        "a pipe" => {
            mknodat(CWD, file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        }
        "a directory" => std::fs::create_dir(file).expect("a directory"),
        "a socket" => drop(UnixListener::bind(file).expect("a socket")),
        _ => std::os::unix::fs::symlink("/dev/zero", file).expect("a device"),
    }
}

#[test]
fn a_lock_that_is_no_file_is_refused_at_once() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    let lock = scene.journal.directory().join("lock");
    for what in ["a pipe", "a directory", "a socket", "a device"] {
        replaced(&lock, what);
        let error =
            scene.journal.roll_back(name, &mut host, second(1)).expect_err("is not a file").to_string();
        assert!(error.contains("lock"), "{error}");
        assert_eq!(scene.journal.writer(), None);
    }
}

#[test]
fn what_only_has_the_number_of_what_was_changed_is_left_alone() {
    let cookie = |cookie: &str| -> ObjectCookies { [("the namespace".to_owned(), cookie.to_owned())].into() };
    let (scene, mut host) = (Scene::new(), host_of_three());
    host.object_cookies = cookie("7");
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    assert_eq!(scene.journal.transaction(name).expect("reads").begin().object_cookies, cookie("7"));

    host.object_cookies = cookie("8");
    let before = (host.settings.clone(), host.writes);
    let undone = scene.journal.roll_back(name, &mut host, second(1)).expect("no setting is left to undo");
    assert_eq!(undone.changes[0].fate, Fate::Gone);
    assert_eq!((host.settings, host.writes), before, "a queue of another host has the number now");
}

#[test]
fn a_journal_that_knows_no_object_cookies_is_rolled_back_all_the_same() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    let file = scene.journal.transaction(name).expect("reads").directory().join("journal.jsonl");
    assert!(
        !std::fs::read_to_string(file).expect("reads").contains("landmarks"),
        "as older versions wrote the record"
    );
    host.object_cookies = [("the namespace".to_owned(), "8".to_owned())].into();
    let undone = scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    assert_eq!(undone.changes[0].fate, Fate::Restored);
}
