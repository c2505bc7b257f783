//! Tests a program that owns its transactions until it exits: what other programs can do while it runs, and
//! after it was killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use apply::{Allow, AtExit, CommitFault, RollBackError};
use libtest_mimic::{Failed, Trial};
use model::{Change, Pid, Plan, Reason, Setting, Step};

use crate::file_host::FileHost;
use crate::kill_nine::{announce, asked, journal, life, plan};
use crate::test;

/// The environment variable that passes the directory to the owner's process.
pub(crate) const OWNER: &str = "NETPOLICY_TEST_OWNS_IN";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("other_programs_are_refused_what_a_running_program_owns_until_it_ends", None, owned),
        test("a_successor_restores_what_killed_programs_left_also_if_it_is_killed_itself", None, taken_over),
    ]
}

/// The environment variable that passes the directory to a successor's process.
pub(crate) const SUCCESSOR: &str = "NETPOLICY_TEST_TAKES_OVER_IN";

const SUCCESSORS: u32 = 40;

/// Runs as a successor: in an endless loop, rolls back abandoned transactions, including its own of the
/// previous iteration, and commits a new one.
pub(crate) fn take_over_until_killed(directory: &Path) -> ! {
    let journal = journal(directory).owned_by_session(AtExit::RollBack).expect("owns");
    let mut host = FileHost::open(&directory.join("host"));
    announce();
    loop {
        for transaction in journal.abandoned().expect("reads") {
            // Another process may have rolled the transaction back first, both here and below.
            let _done_already = journal.roll_back(transaction.name(), &mut host, asked().at);
        }
        if let Ok(held) = apply::commit(plan(), &mut host, &journal, &asked(), Allow::default()) {
            held.keep().expect("keeps");
        }
    }
}

fn taken_over() -> Result<(), Failed> {
    let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("taken-over-{}", std::process::id()));
    let before: Vec<Setting> = plan().changes().map(|c| c.from().clone()).collect();
    let mut host = FileHost::new(&base.join("host"), &before)?;
    let settings_before = host.settings()?;
    let journal = journal(&base);
    let (mut found, mut changed) = (0, 0);
    for kill in 0..SUCCESSORS {
        // Two successors run at the same time; each pair finds the transactions that the previous pair left.
        let mut both = Vec::new();
        for _ in 0..2 {
            let program =
                Command::new(std::env::current_exe()?).env(SUCCESSOR, &base).stdout(Stdio::piped()).spawn();
            both.push(program?);
        }
        for program in &mut both {
            BufReader::new(program.stdout.take().ok_or("no pipe")?).read_line(&mut String::new())?;
        }
        std::thread::sleep(life(kill));
        for mut program in both {
            program.kill()?;
            program.wait()?;
        }
        let history = journal.history()?;
        assert!(history.unreadable.is_empty(), "kill {kill}: {:?}", history.unreadable);
        found += journal.abandoned()?.len();
        changed += u32::from(host.settings()? != settings_before);
        journal.forget_all_but(4)?;
    }
    for transaction in journal.abandoned()? {
        let undone = journal.roll_back(transaction.name(), &mut host, asked().at)?;
        assert_eq!(undone.left_alone().count(), 0, "{undone}");
    }
    assert_eq!(host.settings()?, settings_before);
    assert!(journal.history()?.newest_live().is_none(), "no transaction is in force any more");
    assert!(found > 20 && changed > 10, "{found} found, {changed} times changed");
    fs::remove_dir_all(&base)?;
    Ok(())
}

/// Runs as the owner: commits and keeps two transactions, the second on top of the first, and then stays
/// alive.
pub(crate) fn own_until_killed(directory: &Path) -> ! {
    let journal = journal(directory).owned_by_session(AtExit::RollBack).expect("owns");
    let mut host = FileHost::open(&directory.join("host"));
    for plan in [plan(), on_top()] {
        let held = apply::commit(plan, &mut host, &journal, &asked(), Allow::default()).expect("commits");
        held.keep().expect("keeps");
    }
    announce();
    loop {
        std::thread::park();
    }
}

/// Returns a plan that reverses the first change of `plan()`, from its new value to its old one.
fn on_top() -> Plan {
    let plan = plan();
    let change = plan.changes().next().expect("a change");
    let (from, to) = (change.to().clone(), change.from().clone());
    Plan { steps: vec![Step::new(vec![Change::new(from, to, Reason::new("another request", "test"))])] }
}

fn owned() -> Result<(), Failed> {
    let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("owned-{}", std::process::id()));
    let before: Vec<Setting> = plan().changes().map(|c| c.from().clone()).collect();
    let mut host = FileHost::new(&base.join("host"), &before)?;
    let settings_before = host.settings()?;
    let mut owner =
        Command::new(std::env::current_exe()?).env(OWNER, &base).stdout(Stdio::piped()).spawn()?;
    let by = Pid(owner.id());
    BufReader::new(owner.stdout.take().ok_or("no pipe")?).read_line(&mut String::new())?;

    let journal = journal(&base);
    let settings = host.settings()?;
    let newest = journal.history()?.newest_live().ok_or("a transaction")?.name();
    let error = apply::commit(plan(), &mut host, &journal, &asked(), Allow::default()).expect_err("refuses");
    assert!(matches!(&*error.fault, CommitFault::Owned { by: other, .. } if *other == by), "{error}");
    let error = journal.roll_back(newest, &mut host, asked().at).expect_err("refuses");
    assert!(matches!(&error, RollBackError::Owned { by: other, .. } if *other == by), "{error}");
    assert_eq!(host.settings()?, settings, "nothing was changed");
    assert!(journal.abandoned()?.is_empty(), "its program lives");

    owner.kill()?;
    owner.wait()?;
    let abandoned: Vec<_> = journal.abandoned()?.iter().map(apply::Transaction::name).collect();
    assert_eq!((abandoned.len(), abandoned.first()), (2, Some(&newest)), "the newest first");
    while let Some(transaction) = journal.history()?.newest_live() {
        journal.roll_back(transaction.name(), &mut host, asked().at)?;
    }
    assert_eq!(
        host.settings()?,
        settings_before,
        "after the owner is killed, its transactions have no owner"
    );
    assert!(journal.abandoned()?.is_empty(), "a restored transaction is not abandoned");
    assert!(
        fs::read_dir(journal.directory())?.any(|entry| is_lock_file(&entry)),
        "the kill left the lock file behind"
    );
    apply::commit(plan(), &mut host, &journal, &asked(), Allow::default())?.roll_back()?;
    assert!(
        !fs::read_dir(journal.directory())?.any(|entry| is_lock_file(&entry)),
        "the next writer removes the lock file"
    );
    let leaving = journal.owned_by_session(AtExit::Leave)?;
    apply::commit(plan(), &mut host, &leaving, &asked(), Allow::default())?.keep()?;
    assert!(leaving.abandoned()?.is_empty(), "a transaction that is kept intentionally is not abandoned");
    fs::remove_dir_all(&base)?;
    Ok(())
}

fn is_lock_file(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("attended-by-"))
}
