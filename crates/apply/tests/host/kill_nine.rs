//! Kills a program with SIGKILL at any time, and tests that another program can restore the host.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use apply::{Allow, Journal, Moment, Standing, TransactionOrigin};
use libtest_mimic::{Failed, Trial};
use model::{
    Change, DeviceId, EmptyPolls, IfIndex, IrqKnob, IrqNumber, Label, Nanoseconds, NapiKnob, NetnsId, Plan,
    QueueIndex, Reason, RxQueue, Setting, Step,
};

use crate::file_host::FileHost;
use crate::test;

/// The environment variable that passes the directory to the program that is to be killed.
pub(crate) const VICTIM: &str = "NETPOLICY_TEST_COMMITS_IN";

const KILLS: u32 = 60;
/// The maximum lifetime of a program that is to be killed: about two iterations of its loop.
const LIFE_MICROS_MAX: u64 = 40_000;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("a_program_killed_at_any_time_leaves_a_host_that_goes_back", None, kill_many)]
}

pub(crate) fn plan() -> Plan {
    let reason = || Reason::new("short response times", "test");
    let queue = |index| RxQueue {
        device: DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") },
        index: QueueIndex(index),
    };
    let defer = |index, polls| Setting::Napi(queue(index), NapiKnob::DeferHardIrqs(EmptyPolls(polls)));
    let gro = |index, span| Setting::Napi(queue(index), NapiKnob::GroFlushTimeout(Nanoseconds(span)));
    let irq = |cpus: &str| Setting::Irq(IrqNumber(30), IrqKnob::Affinity(cpus.parse().expect("a cpulist")));
    let of_queue = |index| {
        Step::new(vec![
            Change::new(defer(index, 0), defer(index, 100), reason()),
            Change::new(gro(index, 0), gro(index, 20_000), reason()),
        ])
    };
    let affinity = Step::new(vec![Change::new(irq("0-3"), irq("1"), reason())]);
    Plan { steps: vec![affinity, of_queue(0), of_queue(1), of_queue(2)] }
}

pub(crate) fn asked() -> TransactionOrigin {
    let at = Moment { unix_micros: 1_795_233_900_000_000, since_boot: Nanoseconds(1) };
    let text = |text: &str| text.to_owned();
    TransactionOrigin {
        at,
        command: text("test"),
        kernel_release: text("test"),
        netpolicy: text("test"),
        deadline: None,
    }
}

pub(crate) fn journal(directory: &Path) -> Journal {
    Journal::new(directory.join("journal"), "this-boot")
}

/// Runs as the program that is to be killed: in an endless loop, commits, keeps and rolls back a transaction,
/// then commits and drops another.
pub(crate) fn commit_until_killed(directory: &Path) -> ! {
    let (journal, mut host) = (journal(directory), FileHost::open(&directory.join("host")));
    announce();
    loop {
        let held = apply::commit(plan(), &mut host, &journal, &asked(), Allow::default()).expect("commits");
        let name = held.transaction().expect("a transaction");
        held.keep().expect("keeps");
        journal.roll_back(name, &mut host, asked().at).expect("rolls back");
        drop(apply::commit(plan(), &mut host, &journal, &asked(), Allow::default()).expect("commits"));
        journal.forget_all_but(4).expect("forgets");
    }
}

#[expect(clippy::print_stdout, reason = "the line that the killer waits for")]
pub(crate) fn announce() {
    println!("at work");
}

fn kill_many() -> Result<(), Failed> {
    let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kill-nine-{}", std::process::id()));
    let mut found_unfinished = 0;
    let mut found_changed = 0;
    for kill in 0..KILLS {
        let directory = base.join(kill.to_string());
        let before: Vec<Setting> = plan().changes().map(|c| c.from().clone()).collect();
        let mut host = FileHost::new(&directory.join("host"), &before)?;
        let settings_before = host.settings()?;

        live_and_die(&directory, life(kill))?;

        let journal = journal(&directory);
        assert_eq!(journal.writer(), None, "the lock is released with the process");
        found_changed += u32::from(host.settings()? != settings_before);
        let history = journal.history()?;
        assert!(history.unreadable.is_empty(), "{:?}", history.unreadable);
        found_unfinished += history.unfinished().count();
        for transaction in history.transactions.iter().rev().filter(|t| t.standing().is_live()) {
            let undone = journal.roll_back(transaction.name(), &mut host, asked().at)?;
            assert_eq!(undone.left_alone().count(), 0, "kill {kill}: {undone}");
        }
        assert_eq!(host.settings()?, settings_before, "kill {kill}");
        let standing: Vec<Standing> = journal.history()?.transactions.iter().map(|t| t.standing()).collect();
        assert!(standing.iter().all(|&s| s == Standing::RolledBack), "kill {kill}: {standing:?}");
    }
    fs::remove_dir_all(&base)?;
    // If no kill hit a transaction in progress, the test would prove nothing.
    assert!(
        found_unfinished > 10 && found_changed > 10,
        "{found_unfinished} unfinished, {found_changed} changed"
    );
    Ok(())
}

/// Returns the lifetime of a victim. The lifetimes are spread over the whole range and are the same in every
/// test run (Knuth's multiplicative hash).
pub(crate) fn life(kill: u32) -> Duration {
    Duration::from_micros((u64::from(kill.wrapping_mul(2_654_435_769)) * LIFE_MICROS_MAX) >> 32)
}

fn live_and_die(directory: &Path, life: Duration) -> Result<(), Failed> {
    let mut victim = Command::new(std::env::current_exe()?);
    let mut victim = victim.env(VICTIM, directory).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(victim.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
    assert_eq!(line, "at work\n");
    thread::sleep(life);
    victim.kill()?;
    let status = victim.wait()?;
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "the process ended before it was killed"
    );
    Ok(())
}
