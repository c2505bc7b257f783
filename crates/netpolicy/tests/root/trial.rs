//! Tests trials: a trial is kept if confirmed and rolled back otherwise, whichever process is killed
//! meanwhile.

use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use model::Host;
use testkit::operator::{Operator, flushes, waited_for};
use testkit::{Need, test};

const SUSPEND20: &str = "[device.veth-server]\ndelivery = \"suspend20\"\n";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    vec![
        test("trial/a_trial_ends_although_its_command_and_its_terminal_were_killed", NEEDS, killed),
        test("trial/a_guard_that_is_asked_to_end_puts_its_trial_back_first", NEEDS, asked_to_end),
        test("trial/a_trial_that_is_confirmed_stays", NEEDS, confirmed),
        test("trial/a_trial_whose_guard_was_killed_ends_with_the_next_command", NEEDS, unguarded),
        test(
            "trial/a_trial_ends_if_the_journal_was_named_from_the_directory_of_the_command",
            NEEDS,
            relative,
        ),
        test("trial/a_trial_ends_although_the_journal_was_taken_at_its_deadline", NEEDS, taken),
        test("trial/a_trial_of_nothing_leaves_no_guard", NEEDS, nothing),
        test("trial/a_guard_ends_soon_after_its_trial_was_confirmed_or_rolled_back", NEEDS, settled),
        test("trial/a_guard_outlives_a_journal_that_is_moved_and_not_one_that_is_deleted", NEEDS, deleted),
        test("trial/a_trial_ends_although_no_process_leads_to_its_namespace_any_more", NEEDS, unreachable),
        test("trial/what_holds_in_a_namespace_that_is_only_held_open_is_rolled_back", NEEDS, held_open),
        test("trial/an_apply_of_what_is_on_trial_says_how_to_confirm_it", NEEDS, asked_meanwhile),
    ]
}

fn killed() -> Result<(), Failed> {
    let operator = Operator::new("killed", 2)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    // As in a shell, the command leads its process group, so kill the whole group.
    let mut command = operator.starts(&["try", "--seconds", "2"])?;
    waited_for("the trial", || Ok((flushes(&operator.devices()?) == [20_000, 20_000]).then_some(())))?;
    let group =
        i32::try_from(command.child.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
    // The command may already have exited; in either case, the guard process must survive.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    command.child.wait()?;
    assert_eq!(flushes(&operator.devices()?), [20_000, 20_000], "the trial goes on");
    let restored = waited_for("the end of the trial", || when_restored(&operator, &before))?;
    assert_eq!(restored, before);
    assert!(operator.runs(&["history"], 0)?.data.contains("rolled back"));
    Ok(())
}

fn when_restored(operator: &Operator, before: &Host) -> Result<Option<Host>, Failed> {
    let host = operator.host()?;
    Ok((host == *before).then_some(host))
}

fn asked_meanwhile() -> Result<(), Failed> {
    let operator = Operator::new("asked", 1)?;
    operator.asks(SUSPEND20)?;
    operator.runs(&["try", "--seconds", "30"], 0)?;
    let applied = operator.runs(&["apply"], 0)?;
    // The printed command names the journal's directory, so it can be pasted.
    let keeps = format!("`netpolicy --state-dir {} confirm`", operator.state().display());
    assert!(applied.words.contains("on trial") && applied.words.contains(&keeps), "{}", applied.words);
    operator.runs(&["rollback"], 0)?;
    Ok(())
}

fn confirmed() -> Result<(), Failed> {
    let operator = Operator::new("confirmed", 1)?;
    operator.asks(SUSPEND20)?;
    let begun = Instant::now();
    operator.runs(&["try", "--seconds", "3"], 0)?;
    assert!(operator.runs(&["history"], 0)?.data.contains("held"));
    operator.runs(&["confirm"], 0)?;
    std::thread::sleep(Duration::from_secs(4).saturating_sub(begun.elapsed()));
    assert_eq!(flushes(&operator.devices()?), [20_000], "the deadline has passed, and it stays");
    assert!(operator.runs(&["history"], 0)?.data.contains("confirmed"));
    let again = operator.runs(&["confirm"], 1)?;
    assert!(again.words.contains("nothing to confirm"), "{}", again.words);
    Ok(())
}

fn settled() -> Result<(), Failed> {
    let operator = Operator::new("settled", 1)?;
    operator.asks(SUSPEND20)?;
    for ends in ["confirm", "rollback"] {
        operator.runs(&["try", "--seconds", "600"], 0)?;
        assert_eq!(guards(&operator)?.len(), 1, "while it is on trial");
        operator.runs(&[ends], 0)?;
        waited_for("the end of the guard", || Ok(guards(&operator)?.is_empty().then_some(())))?;
        let flush = if ends == "confirm" { 20_000 } else { 0 };
        assert_eq!(flushes(&operator.devices()?), [flush], "{ends}");
        if ends == "confirm" {
            operator.runs(&["rollback"], 0)?;
        }
    }
    Ok(())
}

/// Tests a journal that is deleted during a trial. The guard process reads the journal once per second, so it
/// may or may not have seen the trial before.
fn deleted() -> Result<(), Failed> {
    let operator = Operator::new("deleted", 1)?;
    operator.asks(SUSPEND20)?;
    operator.runs(&["try", "--seconds", "600"], 0)?;
    let away = operator.state().with_extension("away");
    std::fs::rename(operator.state(), &away)?;
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(guards(&operator)?.len(), 1, "the journal can come back before the deadline");
    std::fs::remove_dir_all(&away)?;
    waited_for("the end of the guard", || Ok(guards(&operator)?.is_empty().then_some(())))?;
    Ok(())
}

fn unguarded() -> Result<(), Failed> {
    let operator = Operator::new("unguarded", 1)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    operator.runs(&["try", "--seconds", "2"], 0)?;
    let guards = guards(&operator)?;
    assert_eq!(guards.len(), 1, "one guard");
    for guard in guards {
        rustix::process::kill_process(guard, rustix::process::Signal::KILL)?;
    }
    std::thread::sleep(Duration::from_millis(2_200));
    assert_eq!(flushes(&operator.devices()?), [20_000], "the guard could not see the deadline");
    let show = operator.runs(&["show", "--processes", "none"], 0)?;
    assert!(show.words.contains("was not confirmed in time: rolled back"), "{}", show.words);
    operator.is_again(&before)?;
    Ok(())
}

fn asked_to_end() -> Result<(), Failed> {
    let operator = Operator::new("asked-to-end", 1)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    operator.runs(&["try", "--seconds", "600"], 0)?;
    let guard = guards(&operator)?[0];
    rustix::process::kill_process(guard, rustix::process::Signal::HUP)?;
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(guards(&operator)?, [guard], "a hang-up is for the daemon, and not for it");
    assert_eq!(flushes(&operator.devices()?), [20_000], "the trial goes on");
    rustix::process::kill_process(guard, rustix::process::Signal::TERM)?;
    waited_for("the end of the trial", || when_restored(&operator, &before))?;
    waited_for("the end of the guard", || Ok(guards(&operator)?.is_empty().then_some(())))?;
    assert!(operator.runs(&["history"], 0)?.data.contains("rolled back"));
    let log = std::fs::read_to_string(operator.state().join("guard.log"))?;
    assert!(log.contains("was asked to end: rolled back"), "{log}");
    Ok(())
}

fn relative() -> Result<(), Failed> {
    let operator = Operator::new("relative", 1)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpolicy"));
    command.arg(format!("--netns=pid:{}", operator.lab.server_pid()));
    command.args(["--state-dir", "state", "--policy-dir", "policy.d", "try", "--seconds", "1"]);
    let output = command.current_dir(operator.state().parent().ok_or("a parent")?).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(flushes(&operator.devices()?), [20_000]);
    waited_for("the end of the trial", || when_restored(&operator, &before))?;
    Ok(())
}

fn taken() -> Result<(), Failed> {
    let operator = Operator::new("taken", 1)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    operator.runs(&["try", "--seconds", "1"], 0)?;
    let lock = std::fs::File::open(operator.state().join("journal/lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    // Wait until the guard process has given up waiting for the lock.
    let log = operator.state().join("guard.log");
    waited_for("the guard's complaint", || {
        Ok(std::fs::read_to_string(&log)?
            .contains("another netpolicy process holds the journal lock")
            .then_some(()))
    })?;
    assert_eq!(flushes(&operator.devices()?), [20_000]);
    drop(lock);
    waited_for("the end of the trial", || when_restored(&operator, &before))?;
    Ok(())
}

fn nothing() -> Result<(), Failed> {
    let operator = Operator::new("nothing", 1)?;
    operator.asks("[device.veth-server]\ndelivery = \"interrupt\"\n")?;
    let said = operator.runs(&["try", "--seconds", "60"], 0)?;
    assert!(said.words.contains("Nothing to try"), "{}", said.words);
    assert!(guards(&operator)?.is_empty());
    Ok(())
}

/// Kills the process whose pid names the namespace for the operator; a descriptor of the test keeps the
/// namespace alive.
fn unnamed(operator: &Operator) -> Result<(), Failed> {
    let pid = i32::try_from(operator.lab.server_pid().0).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.ok_or("a pid")?, rustix::process::Signal::KILL)?;
    let netns = format!("/proc/{}/ns/net", operator.lab.server_pid());
    waited_for("the process to be gone", || Ok(std::fs::metadata(&netns).is_err().then_some(())))
}

fn unreachable() -> Result<(), Failed> {
    let operator = Operator::new("unreachable", 1)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    operator.runs(&["try", "--seconds", "2"], 0)?;
    let guards = guards(&operator)?;
    assert_eq!(guards.len(), 1, "one guard");
    // The guard process keeps the namespace open, whatever other processes do.
    let netns = format!("net:[{}]", operator.lab.server().id());
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", guards[0].as_raw_nonzero()))?;
    let mut links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    assert!(links.any(|link| link.to_str() == Some(&netns)), "the guard holds {netns}");
    unnamed(&operator)?;
    assert_eq!(flushes(&operator.devices()?), [20_000], "the trial goes on");
    let restored = waited_for("the end of the trial", || when_restored(&operator, &before))?;
    assert_eq!(restored, before);
    Ok(())
}

fn held_open() -> Result<(), Failed> {
    let operator = Operator::new("held-open", 1)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    operator.runs(&["apply"], 0)?;
    unnamed(&operator)?;
    assert_eq!(flushes(&operator.devices()?), [20_000]);
    // Without netpolicy, the undo script must also be able to find the namespace.
    let finds = concat!(env!("CARGO_MANIFEST_DIR"), "/../apply/src/undo_script/netns.sh");
    let number = operator.lab.server().id();
    let script = format!(
        "if [ \"$1\" = --call ]; then shift 2; \"$@\"; exit; fi\n. {finds}\nin_netns {number} ip -o link show veth-server\n"
    );
    let script = operator.file("finds.sh", script.as_bytes())?;
    let output = Command::new("sh").arg(script).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("veth-server@"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let output = operator.netpolicy_here(&["rollback"]).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    operator.is_again(&before)?;
    Ok(())
}

/// Returns the guard processes of this operator's trials, identified by the journal in their command line.
pub(crate) fn guards(operator: &Operator) -> Result<Vec<rustix::process::Pid>, Failed> {
    let state = operator.state().display().to_string();
    let mut guards = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(words) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let words: Vec<&str> =
            words.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()).collect();
        if words.contains(&"guard") && words.contains(&state.as_str()) {
            guards.extend(rustix::process::Pid::from_raw(pid));
        }
    }
    Ok(guards)
}
