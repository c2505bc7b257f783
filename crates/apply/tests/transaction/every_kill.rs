//! Tests that another program can restore the host if a program is killed at any byte of its journal.

use std::fs;

use apply::{Journal, JournalError, RollBackError, Standing, TransactionName};
use model::{Plan, Setting};

use crate::faulty_host::{Fault, FaultyHost, Timeline, journal_file};
use crate::scene::{Scene, gro, host_for, latency_plan, second};

/// A completed run: the whole journal, and the states of the host as the journal grew.
struct Run {
    scene: Scene,
    name: TransactionName,
    journal: Vec<u8>,
    timeline: Timeline,
}

fn run(plan: &Plan, fault: Option<Fault>, decide: impl FnOnce(&Scene, &mut FaultyHost)) -> Run {
    let (scene, before) = (Scene::new(), host_for(plan));
    let mut host = FaultyHost::new(&before);
    host.faults.extend(fault);
    host.timeline = Some(Timeline::of(scene.journal.directory().to_owned(), &before));
    decide(&scene, &mut host);
    let journal = fs::read(journal_file(scene.journal.directory()).expect("a journal")).expect("reads");
    let name = scene.journal.history().expect("reads").transactions[0].name();
    Run { scene, name, journal, timeline: host.timeline.expect("it was watched") }
}

impl Run {
    /// Truncates the journal at every byte, as a kill would, and rolls back. Returns the number of pairs of a
    /// length and a host state that were tried.
    fn kill_everywhere(&self, before: &[Setting]) -> usize {
        let first_line = self.journal.iter().position(|&b| b == b'\n').expect("a first line") + 1;
        let mut ends = 0;
        for length in 0..=self.journal.len() {
            let states = self.timeline.states_at(u64::try_from(length).expect("a length"));
            for settings in states {
                self.cut_to(length);
                let mut host = FaultyHost::new(settings);
                recover(&self.scene.journal, self.name, length < first_line, &mut host);
                assert_eq!(host.settings, before, "killed at byte {length}");
                ends += 1;
            }
        }
        ends
    }

    fn cut_to(&self, length: usize) {
        let file = journal_file(self.scene.journal.directory()).expect("a journal");
        fs::write(file, &self.journal[..length]).expect("writes");
    }

    /// Returns the offset after each line of the journal.
    fn ends_of_lines(&self) -> Vec<usize> {
        self.journal.iter().zip(1..).filter(|(byte, _)| **byte == b'\n').map(|(_, end)| end).collect()
    }
}

/// Performs a rollback as `netpolicy rollback` does after a kill.
fn recover(journal: &Journal, name: TransactionName, headless: bool, host: &mut FaultyHost) {
    let transaction = match journal.transaction(name) {
        Err(JournalError::Unread { error, .. })
            if headless && matches!(*error, JournalError::Headless { .. }) =>
        {
            return;
        }
        other => other.expect("a truncated journal is readable"),
    };
    assert!(!headless);
    if transaction.standing().is_live() {
        let undone = journal.roll_back(name, host, second(9)).expect("rolls back");
        assert!(undone.unrecorded.is_none(), "{undone}");
        assert_eq!(undone.left_alone().count(), 0, "{undone}");
    }
    let standing = journal.transaction(name).expect("reads").standing();
    assert_eq!(standing, Standing::RolledBack);
}

#[test]
fn killed_anywhere_in_a_commit_that_is_kept_the_host_is_restored() {
    let plan = latency_plan();
    let whole = run(&plan, None, |scene, host| {
        scene.keep(latency_plan(), host);
    });
    let ends = whole.kill_everywhere(&host_for(&plan));
    assert!(ends > whole.journal.len(), "every byte, and every setting written between two records");
}

#[test]
fn killed_anywhere_while_committing_and_rolling_back_the_host_goes_back() {
    let plan = latency_plan();
    let whole = run(&plan, None, |scene, host| {
        scene.commit(latency_plan(), host).expect("commits").roll_back().expect("rolls back");
    });
    whole.kill_everywhere(&host_for(&plan));
}

#[test]
fn killed_anywhere_while_a_failed_commit_is_undone_the_host_goes_back() {
    let plan = latency_plan();
    for fault in [Fault::WriteFirstOnly(2), Fault::LoseAck(3), Fault::Round(1), Fault::RefuseRead(12)] {
        let whole = run(&plan, Some(fault), |scene, host| {
            assert!(scene.commit(latency_plan(), host).is_err());
        });
        whole.kill_everywhere(&host_for(&plan));
    }
}

#[test]
fn killed_anywhere_while_a_knob_is_changed_twice_the_host_goes_back() {
    let step = |change| model::Step::new(vec![change]);
    let plan = Plan { steps: vec![step(gro(0, 0, 10)), step(gro(1, 0, 10)), step(gro(0, 10, 20))] };
    let whole = run(&plan, None, |scene, host| {
        scene.commit(plan.clone(), host).expect("commits").roll_back().expect("rolls back");
    });
    whole.kill_everywhere(&host_for(&plan));
}

#[test]
fn killed_again_anywhere_while_rolling_back_after_a_kill_the_host_goes_back() {
    // The plan has one step with a single setting and one with several, which covers all places at which a
    // kill can happen.
    let plan = Plan { steps: vec![latency_plan().steps[0].clone(), latency_plan().steps[1].clone()] };
    let before = host_for(&plan);
    let first = run(&plan, None, |scene, host| {
        scene.keep(plan.clone(), host);
    });
    for end in first.ends_of_lines() {
        let states = first.timeline.states_at(u64::try_from(end).expect("a length"));
        for settings in states {
            first.cut_to(end);
            let mut host = FaultyHost::new(settings);
            host.timeline = Some(Timeline::of(first.scene.journal.directory().to_owned(), settings));
            first.scene.journal.roll_back(first.name, &mut host, second(9)).expect("rolls back");
            let file = journal_file(first.scene.journal.directory()).expect("a journal");
            let journal = fs::read(&file).expect("reads");
            let timeline = host.timeline.expect("it was watched");
            for length in end..=journal.len() {
                for settings in timeline.states_at(u64::try_from(length).expect("a length")) {
                    fs::write(&file, &journal[..length]).expect("writes");
                    let mut host = FaultyHost::new(settings);
                    recover(&first.scene.journal, first.name, false, &mut host);
                    assert_eq!(host.settings, before, "killed at {end}, then at {length}");
                }
            }
        }
    }
}

#[test]
fn a_torn_last_line_is_reported_and_cut_off_before_the_next_is_written() {
    let plan = latency_plan();
    let whole = run(&plan, None, |scene, host| {
        scene.keep(latency_plan(), host);
    });
    let torn = whole.journal.len() - 3;
    whole.cut_to(torn);
    let transaction = whole.scene.journal.transaction(whole.name).expect("reads");
    assert_eq!(transaction.standing(), Standing::Unfinished, "a truncated record did not take place");
    let last_line = whole.ends_of_lines().into_iter().rev().nth(1).expect("a line before the last one");
    assert_eq!(transaction.torn_bytes(), u64::try_from(torn - last_line).expect("a length"));

    let mut host = FaultyHost::new(&crate::scene::host_after(&plan, &host_for(&plan)));
    whole.scene.journal.roll_back(whole.name, &mut host, second(9)).expect("rolls back");
    let transaction = whole.scene.journal.transaction(whole.name).expect("reads");
    assert_eq!((transaction.standing(), transaction.torn_bytes()), (Standing::RolledBack, 0));
}

#[test]
fn a_change_in_force_that_a_cut_journal_does_not_record_is_reported_and_left() {
    let plan = latency_plan();
    let before = host_for(&plan);
    let whole = run(&plan, None, |scene, host| {
        scene.keep(latency_plan(), host);
    });
    let after = crate::scene::host_after(&plan, &before);
    whole.cut_to(whole.ends_of_lines()[0]);
    let mut host = FaultyHost::new(&after);
    let Err(RollBackError::Incomplete { undone, undo_script, .. }) =
        whole.scene.journal.roll_back(whole.name, &mut host, second(9))
    else {
        panic!("a rollback of nothing must not look like one")
    };
    let changed = plan.changes().filter(|change| change.from() != change.to()).count();
    assert_eq!((undone.stuck().count(), host.writes), (changed, 0), "{undone}");
    assert!(undone.to_string().contains("the journal does not record this write"), "{undone}");
    assert!(undo_script.is_file());

    // If the script has already restored the host, there is nothing left to report.
    let mut host = FaultyHost::new(&before);
    let undone = whole.scene.journal.roll_back(whole.name, &mut host, second(10)).expect("rolls back");
    assert_eq!((undone.changes.len(), host.writes), (0, 0));
    assert_eq!(whole.scene.journal.transaction(whole.name).expect("reads").standing(), Standing::RolledBack);
}

#[test]
fn what_a_newer_transaction_did_is_not_doubted_for_an_older_one_that_never_came_to_it() {
    let plan = latency_plan();
    let whole = run(&plan, None, |scene, host| {
        scene.keep(latency_plan(), host);
    });
    whole.cut_to(whole.ends_of_lines()[0]);
    let mut host = FaultyHost::new(&host_for(&plan));
    let newer = whole.scene.keep(plan, &mut host);
    let set = host.settings.clone();
    whole
        .scene
        .journal
        .roll_back(whole.name, &mut host, second(9))
        .expect("no trace of the transaction is left");
    assert_eq!(host.settings, set);
    assert!(whole.scene.journal.transaction(newer).expect("reads").standing().is_live());
}

#[test]
fn a_damaged_line_in_the_middle_is_an_error_that_names_file_and_line() {
    let plan = latency_plan();
    let whole = run(&plan, None, |scene, host| {
        scene.keep(latency_plan(), host);
    });
    let file = journal_file(whole.scene.journal.directory()).expect("a journal");
    let ends = whole.ends_of_lines();
    for (line, (&start, &end)) in ends.iter().zip(&ends[1..]).enumerate() {
        let mut damaged = whole.journal.clone();
        damaged[start + (end - start) / 2] ^= 4;
        fs::write(&file, &damaged).expect("writes");
        match whole.scene.journal.transaction(whole.name) {
            Err(JournalError::Unread { error, .. }) => match *error {
                JournalError::Corrupt { file: named, line: number, .. } => {
                    assert_eq!((named, number), (file.clone(), line + 2));
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
        // A missing line must count as damage, too.
        let missing = [&whole.journal[..start], &whole.journal[end..]].concat();
        fs::write(&file, &missing).expect("writes");
        let read = whole.scene.journal.transaction(whole.name);
        let last = end == whole.journal.len();
        assert_eq!(matches!(read, Err(JournalError::Unread { .. })), !last, "line {}", line + 2);
    }
    // A damaged journal does not hide the other transactions.
    let history = whole.scene.journal.history().expect("reads");
    assert_eq!(history.transactions.len() + history.unreadable.len(), 1);
}

#[test]
fn a_writer_killed_before_its_transaction_had_begun_leaves_nothing_behind() {
    let scene = Scene::new();
    let unborn = scene.journal.directory().join(".new-20261121T040500.123456Z-1a2b");
    fs::create_dir_all(&unborn).expect("creates");
    fs::write(unborn.join("undo.sh"), "#!/bin/").expect("writes");
    assert!(scene.journal.history().expect("reads").transactions.is_empty());
    let plan = latency_plan();
    scene.keep(plan.clone(), &mut FaultyHost::new(&host_for(&plan)));
    assert!(!unborn.exists());
    assert_eq!(scene.journal.history().expect("reads").transactions.len(), 1);
}
