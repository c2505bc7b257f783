//! Tests that a transaction with an unreadable journal is reported with its undo script, and that changes of
//! its knobs are refused.

use std::path::PathBuf;

use apply::{CommitFault, JournalError, RollBackError, TransactionName};

use crate::faulty_host::FaultyHost;
use crate::history::{host_of_three, one, replaced, three};
use crate::scene::{Scene, gro, second};

#[test]
fn a_journal_that_lost_its_first_line_is_not_said_to_have_changed_nothing() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    let file = scene.journal.transaction(name).expect("reads").directory().join("journal.jsonl");
    std::fs::write(&file, b"").expect("empties it");
    let error = scene.journal.transaction(name).expect_err("cannot be read").to_string();
    assert!(error.contains("undo.sh") && !error.contains("changed nothing"), "{error}");
}

#[test]
fn a_journal_that_is_no_file_is_refused_at_once() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    let transaction = scene.journal.transaction(name).expect("reads");
    let (file, script) = (transaction.directory().join("journal.jsonl"), transaction.undo_script());
    for what in ["a pipe", "a directory", "a socket", "a device"] {
        replaced(&file, what);
        let error = scene.journal.transaction(name).expect_err("is not a file").to_string();
        assert!(error.contains("journal.jsonl") && error.contains(what), "{error}");
        assert!(error.contains(&script.display().to_string()), "the error names the undo script: {error}");
        assert_eq!(scene.journal.history().expect("reads").unreadable.len(), 1);
        assert!(matches!(
            scene.journal.roll_back(name, &mut host, second(1)),
            Err(RollBackError::Journal(JournalError::Unread { .. }))
        ));
    }
    std::fs::remove_file(&file).expect("removes");
    let error = scene.journal.transaction(name).expect_err("is gone").to_string();
    assert!(error.contains("journal.jsonl") && error.contains(&script.display().to_string()), "{error}");
    std::fs::remove_file(&script).expect("removes");
    let error = scene.journal.transaction(name).expect_err("is gone").to_string();
    assert!(error.contains("its undo.sh is missing as well"), "{error}");
}

#[test]
fn a_transaction_that_cannot_be_read_is_known_to_be_newer() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let [first, _, third] = three(&scene, &mut host);
    let journal = scene.journal.transaction(third).expect("reads").directory().join("journal.jsonl");
    std::fs::write(&journal, b"not what was written\n").expect("writes");
    let history = scene.journal.history().expect("reads");
    let newest = history.newest_live().map(apply::Transaction::name);
    assert_eq!(history.unreadable_after(newest).map(|unreadable| unreadable.name), Some(third));
    assert_eq!(history.unreadable_after(Some(third)).map(|unreadable| unreadable.name), None);
    assert_eq!(history.unreadable_after(None).map(|unreadable| unreadable.name), Some(third));
    assert!(first < third);
}

/// Keeps a transaction on one queue, and returns its name and its journal file.
fn kept(scene: &Scene, host: &mut FaultyHost) -> (TransactionName, PathBuf) {
    let name = scene.keep(one(gro(0, 0, 10)), host);
    (name, scene.journal.transaction(name).expect("reads").directory().join("journal.jsonl"))
}

#[test]
fn a_knob_of_a_transaction_that_cannot_be_read_is_not_changed_until_its_script_has_put_it_back() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let (name, file) = kept(&scene, &mut host);
    let text = std::fs::read_to_string(&file).expect("reads");
    std::fs::write(&file, text.replacen("committed", "comitted", 1)).expect("writes");
    let before = host.settings.clone();
    let error = scene.commit(one(gro(0, 10, 20)), &mut host).expect_err("refuses");
    let CommitFault::Unreadable { transaction, knob: Some(knob) } = &*error.fault else { panic!("{error}") };
    assert_eq!((transaction.name, knob.as_ref()), (name, &gro(0, 0, 10)));
    assert!(error.to_string().contains("undo.sh"), "{error}");
    assert_eq!(host.settings, before);
    // The plan is known from the first line of the journal, so knobs that are not in it are not blocked.
    scene.commit(one(gro(1, 0, 10)), &mut host).expect("commits").keep().expect("keeps");

    std::fs::write(file.with_file_name("undone"), "").expect("the script's mark");
    scene.commit(one(gro(0, 10, 20)), &mut host).expect("commits").keep().expect("keeps");
}

#[test]
fn no_knob_is_changed_over_a_transaction_that_has_lost_its_plan_and_is_of_this_boot() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let (name, file) = kept(&scene, &mut host);
    std::fs::write(&file, b"not what was written\n").expect("writes");
    let error = scene.commit(one(gro(1, 0, 10)), &mut host).expect_err("refuses");
    assert!(
        matches!(&*error.fault, CommitFault::Unreadable { transaction, knob: None } if transaction.name == name),
        "{error}"
    );
    let history = scene.journal.history().expect("reads");
    assert!(history.unreadable[0].may_be_in_force());

    // The script contains the boot id, so an unreadable transaction from an earlier boot is recognised.
    let later = scene.after_reboot();
    let history = later.history().expect("reads");
    assert!(!history.unreadable[0].may_be_in_force() && history.unreadable_after(None).is_none());
    let mut host = host_of_three();
    let allow = apply::Allow::default();
    apply::commit(one(gro(1, 0, 10)), &mut host, &later, &crate::scene::asked(), allow)
        .expect("commits")
        .keep()
        .expect("keeps");
}
