//! Tests measured verdicts on a transaction, which are stored next to its journal and do not affect its undo.

use std::fs;

use apply::{Journal, Standing, VERDICTS_MAX};
use model::{JudgedBy, Judgement, Ruling};

use crate::history::{host_of_three, one};
use crate::scene::{Scene, asked, gro, second};

fn judgement(service: &str) -> Judgement {
    Judgement {
        unix_micros: 1,
        service: service.to_owned(),
        with: "current".to_owned(),
        ruling: Ruling::Better,
        by: JudgedBy::Switchback,
        pairs: 40,
        void: 2,
        seconds: 90.5,
        changes: Vec::new(),
    }
}

fn services(journal: &Journal, name: apply::TransactionName) -> Vec<String> {
    let transaction = journal.transaction(name).expect("reads");
    assert_eq!(transaction.unread_judgements(), None);
    transaction.judgements().iter().map(|judgement| judgement.service.clone()).collect()
}

#[test]
fn a_verdict_stays_with_its_transaction_through_confirm_and_rollback() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    assert!(services(&scene.journal, name).is_empty());
    scene.journal.note_judgement(name, &judgement("memcached")).expect("noted");
    assert_eq!(services(&scene.journal, name), ["memcached"]);
    scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    assert_eq!(services(&scene.journal, name), ["memcached"]);
    scene.journal.forget_all_but(0).expect("forgets");
    assert!(scene.journal.transaction(name).is_err(), "the verdict's file was removed with it");
}

#[test]
fn the_newest_verdicts_are_kept_and_no_more_than_there_is_room_for() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    for number in 0..VERDICTS_MAX + 3 {
        scene.journal.note_judgement(name, &judgement(&number.to_string())).expect("noted");
    }
    let kept = services(&scene.journal, name);
    assert_eq!((kept.len(), kept[0].as_str()), (VERDICTS_MAX, "3"));
}

#[test]
fn a_damaged_file_of_verdicts_costs_the_verdicts_and_not_the_undo() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let before = host.settings.clone();
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    scene.journal.note_judgement(name, &judgement("memcached")).expect("noted");
    let file = scene.journal.directory().join(name.to_string()).join("verdicts.json");
    for damaged in ["", "{", "{\"schema\":1,\"verdicts\":7}", "\u{fffd}"] {
        fs::write(&file, damaged).expect("damages it");
        let transaction = scene.journal.transaction(name).expect("reads");
        assert!(transaction.judgements().is_empty() && transaction.unread_judgements().is_some());
    }
    scene.journal.roll_back(name, &mut host, second(1)).expect("rolls back");
    assert_eq!(host.settings, before);
    assert_eq!(scene.journal.transaction(name).expect("reads").standing(), Standing::RolledBack);
}

#[test]
fn what_a_later_version_adds_to_a_verdict_is_ignored() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let name = scene.keep(one(gro(0, 0, 10)), &mut host);
    scene.journal.note_judgement(name, &judgement("memcached")).expect("noted");
    let file = scene.journal.directory().join(name.to_string()).join("verdicts.json");
    let text = fs::read_to_string(&file).expect("reads");
    fs::write(&file, text.replace("\"pairs\"", "\"novelty\":[1],\"pairs\"")).expect("writes");
    assert_eq!(services(&scene.journal, name), ["memcached"]);
}

#[test]
fn a_daemons_verdicts_are_those_of_the_transaction_that_replaces_its_own() {
    let (scene, mut host) = (Scene::new(), host_of_three());
    let daemon = scene.journal.clone().kept_by_this_daemon().expect("a daemon");
    let [first, _, third] = [gro(0, 0, 10), gro(0, 10, 20), gro(1, 0, 30)].map(|change| {
        let held = apply::commit(one(change), &mut host, &daemon, &asked(), apply::Allow::default());
        let held = held.expect("commits");
        let name = held.transaction().expect("a transaction");
        held.keep().expect("keeps");
        name
    });
    // Read the journal once, so that the daemon has it in its cache.
    assert_eq!(daemon.kept_by_daemon().expect("reads").len(), 3);
    daemon.note_judgement(first, &judgement("memcached")).expect("noted");
    daemon.note_judgement(third, &judgement("nginx")).expect("noted");
    let folded = daemon.fold(&asked(), |_| false).expect("folds").expect("one");
    assert_eq!(services(&daemon, folded), ["memcached", "nginx"]);
}
