//! Tests what netpolicy does after killed processes, damaged journals and removed devices: settings are
//! restored, or a command refuses or reports the problem.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use testkit::operator::{Operator, Started, flushes, waited_for};
use testkit::{Need, test};

use crate::attached::{EpollMaker, SUSPENDING};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    const ROOT: &[Need] = &[Need::Root];
    vec![
        test("takeover/attach_puts_back_what_a_killed_one_left_and_then_its_own", NEEDS, killed),
        test("takeover/a_second_process_on_the_queues_of_a_killed_attach_does_so_too", NEEDS, neighbour),
        test("takeover/what_was_left_in_force_on_purpose_is_not_taken_over", NEEDS, left_on_purpose),
        test("takeover/two_at_once_onto_the_same_killed_one_leave_nothing_behind", NEEDS, two_at_once),
        test(
            "takeover/killed_at_any_moment_of_a_takeover_the_next_one_restores_the_host",
            NEEDS,
            killed_again,
        ),
        test("takeover/a_device_that_was_recreated_without_its_settings_has_drifted", ROOT, recreated),
        test("takeover/nothing_is_set_over_a_damaged_transaction_until_its_script_ran", ROOT, damaged),
        test("takeover/a_journal_that_others_can_write_to_is_refused", ROOT, not_ours),
    ]
}

/// Starts an attachment, and kills it once all its settings are in force.
fn attached_and_killed(operator: &Operator, pid: &str, mode: &str) -> Result<(), Failed> {
    let mut attach = operator.starts(&["attach", pid, "--delivery", mode])?;
    operator.waits_to_hear("Attached.")?;
    attach.child.kill()?;
    attach.child.wait()?;
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let operator = Operator::new("killed", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let (pid, before) = (maker.pid().to_string(), operator.host()?);
    for (left, mode) in [("suspend20", "suspend20"), ("suspend20", "defer50")] {
        attached_and_killed(&operator, &pid, left)?;
        assert_eq!(maker.epolls(&operator)?, [SUSPENDING], "the kill leaves it in force");
        assert!(operator.runs(&["history"], 0)?.data.contains("abandoned"));
        let attach = operator.starts(&["attach", &pid, "--delivery", mode])?;
        operator.waits_to_hear("Attached.")?;
        operator.waits_to_hear("Restored first: ")?;
        let history = operator.runs(&["history"], 0)?.data;
        assert!(history.contains("owned") && !history.contains("abandoned"), "{history}");
        assert_eq!(attach.terminated()?, Some(0));
        assert_eq!(operator.host()?, before, "{left}, then {mode}");
    }
    Ok(())
}

fn neighbour() -> Result<(), Failed> {
    let operator = Operator::new("neighbour", 1)?;
    let (one, other) = (EpollMaker::new(&operator)?, EpollMaker::new(&operator)?);
    let before = operator.host()?;
    attached_and_killed(&operator, &one.pid().to_string(), "suspend20")?;
    let attach = operator.starts(&["attach", &other.pid().to_string(), "--delivery", "suspend20"])?;
    operator.waits_to_hear("Restored first: ")?;
    operator.waits_to_hear("Attached.")?;
    assert_eq!(other.epolls(&operator)?, [SUSPENDING]);
    assert!(!one.epolls(&operator)?.contains(&SUSPENDING), "no attachment holds it any more");
    assert_eq!(attach.terminated()?, Some(0));
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn left_on_purpose() -> Result<(), Failed> {
    let operator = Operator::new("on-purpose", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let pid = maker.pid().to_string();
    operator.runs(&["attach", &pid, "--delivery", "suspend20", "--once"], 0)?;
    assert!(operator.runs(&["history"], 0)?.data.contains("kept"));
    let attach = operator.starts(&["attach", &pid, "--delivery", "suspend20"])?;
    operator.waits_to_hear("Nothing to set: ")?;
    assert_eq!(attach.terminated()?, Some(0));
    assert_eq!(maker.epolls(&operator)?, [SUSPENDING], "the epoll keeps the parameters that were left");
    Ok(())
}

/// Starts an attachment whose output is discarded.
fn quiet(operator: &Operator, pid: &str) -> Result<Started, Failed> {
    let mut command = operator.netpolicy(&["attach", pid, "--delivery", "suspend20"]);
    Ok(Started { child: command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()? })
}

fn two_at_once() -> Result<(), Failed> {
    let operator = Operator::new("two-at-once", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let (pid, before) = (maker.pid().to_string(), operator.host()?);
    for _ in 0..4 {
        attached_and_killed(&operator, &pid, "suspend20")?;
        let both = [quiet(&operator, &pid)?, quiet(&operator, &pid)?];
        // The history shows a transaction before its settings are written, so wait for the settings, too.
        waited_for("one that attends, with everything set", || {
            let owned = operator.runs(&["history"], 0)?.data.contains("owned");
            Ok((owned && flushes(&operator.devices()?) == [20_000]).then_some(()))
        })?;
        for attach in both {
            // The second attachment may have exited: the host changed while it planned, or the first one owns
            // the settings.
            let code = attach.terminated()?;
            assert!(matches!(code, Some(0 | 1 | 7)), "{code:?}");
        }
        assert_eq!(operator.host()?, before);
    }
    Ok(())
}

fn killed_again() -> Result<(), Failed> {
    const KILLS: u64 = 12;
    const STEP_MICROS: u64 = 4_000;
    let operator = Operator::new("killed-again", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let (pid, before) = (maker.pid().to_string(), operator.host()?);
    attached_and_killed(&operator, &pid, "suspend20")?;
    for kill in 1..=KILLS {
        let mut attach = quiet(&operator, &pid)?;
        std::thread::sleep(std::time::Duration::from_micros(kill * STEP_MICROS));
        attach.child.kill()?;
        attach.child.wait()?;
    }
    let attach = operator.starts(&["attach", &pid, "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    assert_eq!(maker.epolls(&operator)?, [SUSPENDING]);
    assert_eq!(attach.terminated()?, Some(0));
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn recreated() -> Result<(), Failed> {
    let operator = Operator::new("recreated", 1)?;
    let make = "ip link add np0 type veth peer name np1";
    operator.inside(make)?;
    operator.runs(&["set", "device", "np0", "none", "--setting", "rps_cpus=0"], 0)?;
    operator.runs(&["verify"], 0)?;
    operator.inside("ip link del np0")?;
    let gone = operator.runs(&["verify"], 0)?;
    assert!(gone.data.contains("gone"), "{}", gone.data);
    operator.inside(make)?;
    let drift = operator.runs(&["verify"], 3)?;
    assert!(drift.data.contains("recreated") && drift.data.contains("rps_cpus"), "{}", drift.data);
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["verify"], 0)?;
    Ok(())
}

/// Returns the directory of the only transaction.
fn transaction(operator: &Operator) -> Result<PathBuf, Failed> {
    let entries = std::fs::read_dir(operator.state().join("journal"))?.filter_map(Result::ok);
    let mut transactions = entries.map(|entry| entry.path()).filter(|path| path.join("undo.sh").exists());
    transactions.next().ok_or_else(|| "no transaction".into())
}

fn damaged() -> Result<(), Failed> {
    let operator = Operator::new("damaged", 1)?;
    let before = operator.host()?;
    let set = ["set", "device", "veth-server", "none", "--setting", "rps_cpus=0"];
    operator.runs(&set, 0)?;
    let directory = transaction(&operator)?;
    let (journal, script) = (directory.join("journal.jsonl"), directory.join("undo.sh"));
    std::fs::write(&journal, "not what was written\n")?;
    let more = ["set", "device", "veth-server", "none", "--setting", "rps_flow_cnt=64"];
    for other in [&more[..], &["set", "device", "veth-server", "defer50"]] {
        let refused = operator.runs(other, 7)?;
        assert!(refused.words.contains(&script.display().to_string()), "{}", refused.words);
    }
    let history = operator.runs(&["history"], 0)?;
    assert!(history.data.contains("unreadable") && !history.words.contains("No transaction yet"));
    assert!(history.words.contains("the transaction may be in force"), "{}", history.words);
    operator.runs(&["verify"], 1)?;

    let undone = Command::new("sh").arg(&script).arg("--by-hand").output()?;
    assert!(undone.status.success(), "{}", String::from_utf8_lossy(&undone.stderr));
    assert_eq!(operator.host()?, before);
    assert!(operator.runs(&["history"], 0)?.words.contains("the transaction is not in force"));
    operator.runs(&["verify"], 0)?;
    operator.runs(&["set", "device", "veth-server", "defer50"], 0)?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn not_ours() -> Result<(), Failed> {
    const NOBODY: u32 = 65_534;
    let operator = Operator::new("not-ours", 1)?;
    let before = operator.host()?;
    let set = ["set", "device", "veth-server", "defer50"];
    let refused = |directory: &Path, why: &str| {
        for command in [&set[..], &["rollback"], &["history"], &["status"]] {
            let said = operator.runs(command, 7)?;
            assert!(
                said.words.contains(why) && said.words.contains(&directory.display().to_string()),
                "{}",
                said.words
            );
        }
        Ok::<_, Failed>(())
    };
    let state = operator.state();
    std::fs::create_dir_all(&state)?;
    chown(&state, Some(NOBODY), None)?;
    refused(&state, "it belongs to another user (uid 65534)")?;
    chown(&state, Some(0), None)?;
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o777))?;
    refused(&state, "every user can write to it (mode 777)")?;
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755))?;
    let journal = state.join("journal");
    std::fs::create_dir_all(&journal)?;
    chown(&journal, Some(NOBODY), None)?;
    refused(&journal, "it belongs to another user (uid 65534)")?;
    assert_eq!(operator.host()?, before);
    chown(&journal, Some(0), None)?;
    operator.runs(&set, 0)?;
    operator.runs(&["rollback"], 0)?;
    Ok(())
}
