//! Tests irqbalance's bans with the distribution's irqbalance, and with a fake one that misbehaves.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apply::{Allow, Journal, Knobs, Standing};
use libtest_mimic::{Failed, Trial};
use linux::irqbalance::Irqbalance;
use linux::{Cause, Errno, Kernel};
use model::{Change, IrqKnob, IrqNumber, Plan, Reason, Setting, Step};
use testkit::balancer::Balancer;
use testkit::scratch::Scratch;
use testkit::subject::{Subject, role_command};
use testkit::{Need, test};

use super::transaction::asked;

/// The interrupts that the tests ban. The machine's own interrupts are not moved: see [`Balancer`].
const FOREIGN: IrqNumber = IrqNumber(24);
const OURS: [IrqNumber; 2] = [IrqNumber(38), IrqNumber(39)];

/// The environment variables that tell a role the directories of irqbalance and the journal.
const SOCKETS: &str = "NETPOLICY_TEST_IRQBALANCE";
const JOURNAL: &str = "NETPOLICY_TEST_JOURNAL";

pub(crate) fn tests() -> Vec<Trial> {
    const REAL: &[Need] = &[Need::Root, Need::Unshare, Need::Irqbalance];
    const STAND_IN: &[Need] = &[Need::Root];
    vec![
        test("irqbalance/a_ban_joins_those_that_are_there_and_goes_alone", REAL, joins_and_goes_alone),
        test("irqbalance/a_commit_that_was_killed_is_rolled_back_to_the_foreign_bans", REAL, killed),
        test("irqbalance/a_rollback_leaves_the_bans_alone_that_came_since", REAL, bans_since),
        test("irqbalance/its_bans_are_gone_with_it", REAL, gone_with_it),
        test("irqbalance/more_bans_than_it_reads_are_refused_before_any_is_lost", REAL, too_many),
        test("irqbalance/without_one_a_ban_is_gone", STAND_IN, none_runs),
        test("irqbalance/one_that_says_nonsense_is_not_believed", STAND_IN, nonsense),
        test("irqbalance/one_that_says_nothing_is_not_waited_for_for_ever", STAND_IN, silent),
    ]
}

fn irqs(numbers: impl IntoIterator<Item = IrqNumber>) -> BTreeSet<IrqNumber> {
    numbers.into_iter().collect()
}

fn bans(at: &Irqbalance) -> Result<BTreeSet<IrqNumber>, Failed> {
    Ok(at.running()?.ok_or("no irqbalance")?.bans().clone())
}

fn of(balancer: &Balancer) -> Irqbalance {
    Irqbalance::new().in_directory(&balancer.directory())
}

fn plan() -> Plan {
    let because = || Reason::new("irqbalance would move the interrupt", "test");
    let ban = |irq| {
        Change::new(Setting::Irq(irq, IrqKnob::Ban(false)), Setting::Irq(irq, IrqKnob::Ban(true)), because())
    };
    Plan { steps: OURS.map(|irq| Step::new(vec![ban(irq)])).to_vec() }
}

fn joins_and_goes_alone() -> Result<(), Failed> {
    let balancer = Balancer::that_moves_nothing("--banirq=24")?;
    let at = of(&balancer);
    assert_eq!(at.running()?.map(|running| running.pid().0), Some(balancer.pid()));
    assert_eq!(bans(&at)?, irqs([FOREIGN]));
    let mut kernel = Kernel::new().with_irqbalance(at.clone());
    let both = [Setting::Irq(OURS[0], IrqKnob::Ban(true))];
    kernel.write(&both)?;
    assert_eq!(kernel.read(&both)?, both);
    assert_eq!(bans(&at)?, irqs([FOREIGN, OURS[0]]));
    kernel.write(&[Setting::Irq(OURS[0], IrqKnob::Ban(false))])?;
    assert_eq!(bans(&at)?, irqs([FOREIGN]));
    kernel.write(&[Setting::Irq(FOREIGN, IrqKnob::Ban(false))])?;
    assert_eq!(bans(&at)?, irqs([]), "the last transaction leaves no ban");
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let (balancer, scratch) =
        (Balancer::that_moves_nothing("--banirq=24")?, Scratch::new("irqbalance-killed")?);
    let mut victim = role_command("bans-and-dies");
    let mut victim =
        Subject::start(victim.env(SOCKETS, balancer.directory()).env(JOURNAL, scratch.directory()))?;
    assert_eq!(victim.lines()?, ["committed"]);
    let at = of(&balancer);
    assert_eq!(bans(&at)?, irqs([FOREIGN, OURS[0], OURS[1]]));
    let journal = Journal::new(scratch.directory().to_owned(), "this-boot");
    let left = journal.history()?.transactions.pop().ok_or("no transaction")?;
    assert_eq!(left.standing(), Standing::Unfinished);
    let mut kernel = Kernel::new().with_irqbalance(at.clone());
    let undone = journal.roll_back(left.name(), &mut kernel, asked().at)?;
    assert!(undone.is_complete(), "{undone}");
    assert_eq!(bans(&at)?, irqs([FOREIGN]));
    Ok(())
}

/// Plays the role `bans-and-dies`: commits, and is killed before it confirms.
pub(crate) fn ban_and_die() -> Result<(), Failed> {
    let directory = |name| std::env::var_os(name).map(PathBuf::from).ok_or("a role without its directories");
    let journal = Journal::new(directory(JOURNAL)?, "this-boot");
    let at = Irqbalance::new().in_directory(&directory(SOCKETS)?);
    let mut kernel = Kernel::new().with_irqbalance(at);
    let _held = apply::commit(plan(), &mut kernel, &journal, &asked(), Allow::default())?;
    let mut out = std::io::stdout().lock();
    out.write_all(b"committed\n")?;
    out.flush()?;
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Ok(())
}

fn bans_since() -> Result<(), Failed> {
    let (balancer, scratch) =
        (Balancer::that_moves_nothing("--banirq=24")?, Scratch::new("irqbalance-since")?);
    let at = of(&balancer);
    let journal = Journal::new(scratch.directory().to_owned(), "this-boot");
    let mut kernel = Kernel::new().with_irqbalance(at.clone());
    let held = apply::commit(plan(), &mut kernel, &journal, &asked(), Allow::default())?;
    let name = held.transaction().ok_or("nothing was committed")?;
    held.keep()?;
    let later = IrqNumber(40);
    at.ban(later, true)?;
    at.ban(OURS[1], false)?;
    let undone = journal.roll_back(name, &mut kernel, asked().at)?;
    assert!(undone.is_complete(), "{undone}");
    assert_eq!(bans(&at)?, irqs([FOREIGN, later]));
    Ok(())
}

fn gone_with_it() -> Result<(), Failed> {
    let mut balancer = Balancer::that_moves_nothing("")?;
    let at = of(&balancer);
    at.ban(OURS[0], true)?;
    balancer.kill();
    let error = at.is_banned(OURS[0]).expect_err("it is gone");
    assert!(Kernel::is_gone(&error), "{error}");
    Ok(())
}

/// Tests that a long command is not sent: up to version 1.9.4, irqbalance reads at most 500 bytes, so a
/// longer command would replace the present bans with only a part of them.
fn too_many() -> Result<(), Failed> {
    let numbers: Vec<String> = (1000..1096).map(|irq| format!("--banirq={irq}")).collect();
    let balancer = Balancer::that_moves_nothing(&numbers.join(" "))?;
    let at = of(&balancer);
    let before = bans(&at)?;
    assert_eq!(before.len(), 96);
    at.ban(IrqNumber(1), true)?; // 18 + 2 + 96 * 5 - 1 bytes: the longest command that fits.
    let full = bans(&at)?;
    assert_eq!(full.len(), 97);
    match at.ban(IrqNumber(2000), true) {
        Ok(()) => assert_eq!(bans(&at)?.len(), 98, "this version reads more"),
        Err(error) => {
            assert!(matches!(error.cause, Cause::Absent { .. }), "{error}");
            assert_eq!(bans(&at)?, full);
        }
    }
    Ok(())
}

fn none_runs() -> Result<(), Failed> {
    let scratch = Scratch::new("irqbalance-none")?;
    let at = Irqbalance::new().in_directory(scratch.directory());
    assert!(at.running()?.is_none());
    // This is the socket file that a killed irqbalance leaves behind.
    drop(UnixListener::bind(scratch.directory().join("irqbalance1.sock"))?);
    assert!(at.running()?.is_none());
    assert!(Kernel::is_gone(&at.ban(OURS[0], true).expect_err("none runs")));
    Ok(())
}

/// Answers every connection with this text.
fn answering(directory: &Path, answer: &'static [u8]) -> Result<(), Failed> {
    let listener = UnixListener::bind(directory.join("irqbalance1.sock"))?;
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let mut asked = [0; 4096];
            if connection.read(&mut asked).is_ok_and(|length| length > 0) {
                let _ = connection.write_all(answer);
            }
        }
    });
    Ok(())
}

fn nonsense() -> Result<(), Failed> {
    static LONG: [u8; 1 << 20] = [b'9'; 1 << 20];
    for (name, answer) in [
        ("words", &b"hello world"[..]),
        ("cut", b"SLEEP 10 IRQ 24 LOAD"),
        ("bytes", b"SLEEP 10 IRQ \xff\xfe BANNED 0"),
        ("long", &LONG),
    ] {
        let scratch = Scratch::new(&format!("irqbalance-{name}"))?;
        answering(scratch.directory(), answer)?;
        let at = Irqbalance::new().in_directory(scratch.directory());
        let error = at.ban(OURS[0], true).expect_err(name);
        assert!(matches!(error.cause, Cause::Malformed(_)), "{name}: {error}");
        assert!(error.to_string().starts_with("irqbalance["), "{error}");
    }
    // irqbalance answers only root; other users get an empty reply.
    let scratch = Scratch::new("irqbalance-denied")?;
    answering(scratch.directory(), b"")?;
    let error = Irqbalance::new().in_directory(scratch.directory()).is_banned(OURS[0]).expect_err("denied");
    assert_eq!(error.number(), Some(Errno::PERM));
    Ok(())
}

fn silent() -> Result<(), Failed> {
    let scratch = Scratch::new("irqbalance-silent")?;
    let _listener = UnixListener::bind(scratch.directory().join("irqbalance1.sock"))?;
    let at = Irqbalance::new().in_directory(scratch.directory()).with_patience(Duration::from_millis(200));
    let begun = std::time::Instant::now();
    let error = at.is_banned(OURS[0]).expect_err("it never answers");
    assert_eq!(error.number(), Some(Errno::TIMEDOUT), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    Ok(())
}
