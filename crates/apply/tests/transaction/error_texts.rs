//! The error messages that an operator sees.

use apply::{Journal, JournalError, RollBackError};
use insta::assert_snapshot;
use model::{IrqKnob, IrqNumber, Plan, Setting, Step};

use crate::faulty_host::{Fault, FaultyHost, nudged};
use crate::scene::{Scene, change, cpus, gro, host_for, latency_plan, second};

/// Returns the error message of a commit on a host with these faults. Directories and pids are replaced
/// by fixed ones, because they differ between runs.
fn says(plan: Plan, faults: impl IntoIterator<Item = Fault>) -> String {
    let scene = Scene::new();
    let mut host = FaultyHost::new(&host_for(&plan));
    host.faults.extend(faults);
    let error = scene.commit(plan, &mut host).expect_err("refuses");
    same_each_run(&scene.journal, &error.to_string())
}

fn same_each_run(journal: &Journal, text: &str) -> String {
    let text = text.replace(&journal.directory().display().to_string(), "/var/lib/netpolicy/journal");
    let tag = format!("Z-{:04x}", std::process::id() & 0xffff);
    text.replace(&tag, "Z-1a2b").replace(&format!("pid {}", std::process::id()), "pid 4242")
}

#[test]
fn a_refused_write() {
    assert_snapshot!(says(latency_plan(), [Fault::RefuseWrite(2)]));
}

#[test]
fn a_refused_write_that_cannot_be_undone() {
    let fault = [Fault::RefuseWritesFrom(3)];
    assert_snapshot!(says(latency_plan(), fault));
}

#[test]
fn a_value_that_the_kernel_rounds() {
    assert_snapshot!(says(latency_plan(), [Fault::Round(1)]));
}

#[test]
fn a_first_step_that_cannot_be_read() {
    assert_snapshot!(says(latency_plan(), [Fault::RefuseRead(0)]));
}

#[test]
fn a_value_set_by_another_program_before_and_during() {
    let plan = latency_plan();
    let early = Fault::ForeignBeforeRead(0, nudged(plan.steps[1].changes()[1].to()));
    assert_snapshot!("a_value_set_by_another_program_before", says(plan.clone(), [early]));
    // Read 7 precedes the second step, and read 9 the third.
    let late = Fault::ForeignBeforeRead(9, nudged(plan.steps[1].changes()[1].to()));
    assert_snapshot!("a_value_set_by_another_program_during", says(plan, [late, Fault::RefuseWrite(3)]));
}

#[test]
fn a_change_that_cannot_be_undone() {
    let affinity = |cpus| Setting::Irq(IrqNumber(30), IrqKnob::Affinity(cpus));
    let step = Step::new(vec![change(affinity(cpus([])), affinity(cpus([1])))]);
    assert_snapshot!(says(Plan { steps: vec![step] }, []));
}

#[test]
fn a_journal_that_another_process_has() {
    let scene = Scene::new();
    let plan = Plan { steps: vec![Step::new(vec![gro(0, 0, 10)])] };
    let mut host = FaultyHost::new(&host_for(&plan));
    let held = scene.commit(plan.clone(), &mut host).expect("commits");
    let mut other = FaultyHost::new(&host_for(&plan));
    let error = scene.commit(plan, &mut other).expect_err("refuses");
    assert_snapshot!(same_each_run(&scene.journal, &error.to_string()));
    held.keep().expect("keeps");
}

#[test]
fn a_transaction_that_another_one_was_built_upon() {
    let scene = Scene::new();
    let [first, upon_it] = [gro(0, 0, 10), gro(0, 10, 20)].map(|c| Plan { steps: vec![Step::new(vec![c])] });
    let mut host = FaultyHost::new(&host_for(&first));
    let name = scene.keep(first, &mut host);
    scene.keep(upon_it, &mut host);
    let error = scene.journal.roll_back(name, &mut host, second(1)).expect_err("refuses");
    assert_snapshot!(same_each_run(&scene.journal, &error.to_string()));
}

#[test]
fn a_knob_on_trial() {
    let scene = Scene::new();
    let [first, upon_it] = [gro(0, 0, 10), gro(0, 10, 20)].map(|c| Plan { steps: vec![Step::new(vec![c])] });
    let mut host = FaultyHost::new(&host_for(&first));
    let held = scene.commit(first, &mut host).expect("commits");
    let name = held.transaction().expect("a transaction");
    held.hold_until(second(60).since_boot).expect("holds");
    let error = scene.commit(upon_it, &mut host).expect_err("refuses");
    assert_snapshot!("a_knob_on_trial", same_each_run(&scene.journal, &error.to_string()));
    let error = scene.journal.confirm(name, second(63)).expect_err("is too late");
    assert_snapshot!("a_confirmation_that_is_too_late", same_each_run(&scene.journal, &error.to_string()));
}

#[test]
fn a_roll_back_with_something_stuck_and_something_left_alone() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let mut host = FaultyHost::new(&host_for(&plan));
    let name = scene.keep(plan.clone(), &mut host);
    host.set(&nudged(plan.steps[4].changes()[0].to()));
    let mut host = host.healed().with(Fault::RefuseWritesFrom(1));
    let error = scene.journal.roll_back(name, &mut host, second(1)).expect_err("is stuck");
    assert!(matches!(error, RollBackError::Incomplete { .. }));
    assert_snapshot!(same_each_run(&scene.journal, &error.to_string()));
}

#[test]
fn a_journal_that_was_damaged() {
    let (scene, plan) = (Scene::new(), latency_plan());
    let name = scene.keep(plan.clone(), &mut FaultyHost::new(&host_for(&plan)));
    let file = scene.journal.transaction(name).expect("reads").directory().join("journal.jsonl");
    let text = std::fs::read_to_string(&file).expect("reads");
    std::fs::write(&file, text.replacen("{\"tried\":{\"step\":1}}", "{\"tried\":{\"step\":2}}", 1))
        .expect("writes");
    let error: JournalError = scene.journal.transaction(name).expect_err("is damaged");
    assert_snapshot!(same_each_run(&scene.journal, &error.to_string()));
}
