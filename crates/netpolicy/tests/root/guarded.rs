//! Tests `try --guard` and `apply` of a guarded service, on memcached under load in a lab.

use std::process::Stdio;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use serde_json::Value;
use testkit::operator::{
    Operator, Started, at_work, caught, delivered_by, flushes, waited_for, waited_long_for,
};
use testkit::{Need, test};

use crate::requests::{while_asked, while_asked_every};

/// A policy that makes packets wait for two milliseconds.
const WORSE: &str = "[service.memcached]\nmatch = { exe = \"memcached\" }\ndelivery = \"defer50\"\ngro_flush_timeout = \"2ms\"\n";

/// A policy with one more poll after each batch, 10 us later: visible in the settings, but not to clients.
/// With the hundred polls that the mode sets by default, the timers alone would use a whole CPU on some
/// virtual machines.
const SLIGHT: &str = "[service.memcached]\nmatch = { exe = \"memcached\" }\ndelivery = \"defer50\"\n\
                      defer_hard_irqs = 1\ngro_flush_timeout = \"10us\"\n";

/// Wide limits on every metric that can be measured at the clients' rate, so that a busy machine does not end
/// a trial that tests something else.
const WIDE: &str = "p50=+1000%,p90=+1000%,cpu=+1000%";

/// Returns a guard for a policy file: a limit on the median, and wide limits on the other metrics.
fn guard(p50: &str, within: &str) -> String {
    format!("guard = {{ p50 = \"{p50}\", p90 = \"+1000%\", cpu = \"+1000%\", within = \"{within}\" }}\n")
}

/// A policy whose setting affects none of these clients' packets.
const HARMLESS: &str =
    "[device.veth-server]\npolicy = \"none\"\nsettings = { rx-udp-gro-forwarding = true }\n";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test("guarded/what_hurts_is_put_back_before_the_time_is_over", NEEDS, worse),
        test("guarded/a_dry_run_says_what_will_be_seen_and_changes_nothing", NEEDS, foreseen),
        test("guarded/what_does_not_hurt_is_kept_with_its_verdict", NEEDS, harmless),
        test("guarded/a_service_that_stalls_gets_its_settings_back_at_once", NEEDS, stalled),
        test(
            "guarded/a_guard_that_is_killed_or_whose_terminal_hangs_up_leaves_the_host_as_it_was",
            NEEDS,
            killed,
        ),
        test("guarded/a_service_that_ends_ends_the_trial", NEEDS, ended),
        test("guarded/what_disturbs_traffic_is_judged_while_it_stays_and_is_kept_or_put_back", NEEDS, held),
        test("guarded/apply_judges_a_change_by_the_services_that_have_a_guard", NEEDS, applied),
        test("guarded/the_daemon_makes_what_was_judged_and_does_not_try_again_what_hurt", NEEDS, by_daemon),
        test(
            "guarded/a_daemon_that_is_killed_while_it_judges_leaves_the_host_as_it_was",
            NEEDS,
            daemon_killed,
        ),
        test("guarded/what_a_program_that_is_stopped_has_in_force_is_put_back", NEEDS, stopped),
        test("guarded/clients_that_leave_are_no_stall", NEEDS, left),
        test("guarded/what_cannot_be_judged_is_refused_with_what_to_do", NEEDS, refused),
    ]
}

/// How often to run a trial that cannot be judged, for example because the machine stalls.
pub(crate) const TRIALS_MAX: usize = 4;

/// Repeats a trial until it is judged, and returns its report. If other load leaves too few windows each
/// time, checks that the change was reverted and returns `None`.
pub(crate) fn judged(operator: &Operator, arguments: &[&str]) -> Result<Option<Value>, Failed> {
    for _ in 0..TRIALS_MAX {
        let output = operator.netpolicy(arguments).output()?;
        let said: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
        assert_eq!(said["kind"], "guard", "{said}");
        if said["data"]["ruling"] != "not-judged" {
            let code = if said["data"]["kept"] == true { 0 } else { 4 };
            assert_eq!(output.status.code(), Some(code), "{said}");
            return Ok(Some(said["data"].clone()));
        }
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert_eq!(said["data"]["kept"], false, "{said}");
    }
    Ok(None)
}

/// Returns the verdicts of the newest transaction in `history` that has verdicts.
fn newest_verdicts(operator: &Operator) -> Result<Vec<Value>, Failed> {
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    let all = history["data"]["transactions"].as_array().cloned().unwrap_or_default();
    let verdicts = all.iter().filter_map(|one| one["verdicts"].as_array()).find(|list| !list.is_empty());
    Ok(verdicts.cloned().unwrap_or_default())
}

/// Tests `try --guard --dry-run` and `compare --dry-run`.
fn foreseen() -> Result<(), Failed> {
    let operator = Operator::new("guarded-foreseen", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(WORSE)?;
    let before = operator.host()?;
    let (guard, compare) = while_asked(&operator, || {
        let limits = ["-o", "json", "try", "--guard", "p50=+15%,cpu=+15%", "--seconds", "60", "--dry-run"];
        let guard: Value = serde_json::from_str(&operator.runs(&limits, 0)?.data)?;
        let arguments = ["-o", "json", "compare", "--port", "11211", "--b", "defer50", "--dry-run"];
        Ok((guard, serde_json::from_str::<Value>(&operator.runs(&arguments, 0)?.data)?))
    })?;
    operator.is_again(&before)?;
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    assert_eq!(history["data"]["transactions"].as_array().map(Vec::len), Some(0), "{history}");
    for (report, metric, growth) in [(&guard, "p50", 0.3), (&guard, "cpu", 0.3), (&compare, "p50", 0.1)] {
        assert_eq!(report["kind"], "foresight", "{report}");
        let figures = report["data"]["services"][0]["figures"].as_array().cloned().unwrap_or_default();
        let of = figures.iter().find(|one| one["metric"] == metric).ok_or_else(|| report.to_string())?;
        assert_eq!(of["growth"], growth, "{report}");
        assert!(of["windows"].as_u64().is_some_and(|windows| windows >= 8), "{report}");
        // Either the growth can be detected in time, or the smallest detectable growth is larger.
        let in_time = of["seen_within"].as_f64().is_some_and(|seconds| seconds <= 300.0);
        let smallest = of["smallest"].as_f64();
        assert!(in_time || smallest.is_none_or(|smallest| smallest > growth), "{report}");
    }
    Ok(())
}

fn worse() -> Result<(), Failed> {
    let operator = Operator::new("guarded-worse", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(WORSE)?;
    let before = operator.host()?;
    let report = while_asked(&operator, || {
        judged(
            &operator,
            &["-o", "json", "try", "--guard", "p50=+20%,p90=+1000%,cpu=+1000%", "--seconds", "90"],
        )
    })?;
    operator.is_again(&before)?;
    let Some(report) = report else { return Ok(()) };
    let known = (&report["kept"], &report["ruling"], &report["by"]);
    assert_eq!(known, (&false.into(), &"beyond-limit".into(), &"switchback".into()), "{report}");
    let p50 = &report["verdicts"][0]["changes"][0];
    assert!(p50["metric"] == "p50" && p50["limit"] == 0.2, "{report}");
    assert!(p50["change"].as_f64().is_some_and(|change| change > 0.2), "{report}");
    assert_eq!(newest_verdicts(&operator)?[0]["ruling"], "beyond-limit");
    let history = operator.runs(&["history"], 0)?;
    assert!(history.data.contains("reverted: beyond the guard's limit: p50 "), "{}", history.data);
    Ok(())
}

fn harmless() -> Result<(), Failed> {
    let operator = Operator::new("guarded-harmless", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(HARMLESS)?;
    let before = operator.host()?;
    let report = while_asked(&operator, || {
        let guard = ["-o", "json", "try", "--guard", WIDE, "--seconds", "25", "--on", "11211"];
        judged(&operator, &guard)
    })?;
    let Some(report) = report else { return operator.is_again(&before) };
    assert_eq!((&report["kept"], &report["ruling"]), (&true.into(), &"kept".into()), "{report}");
    assert!(report["verdicts"][0]["pairs"].as_u64().is_some_and(|pairs| pairs >= 6), "{report}");
    assert_ne!(operator.devices()?.devices, before.devices, "the change is in force");
    assert_eq!(newest_verdicts(&operator)?[0]["ruling"], "kept");
    let name = report["transactions"][0].as_str().ok_or("no transaction")?;
    let explained = operator.runs(&["explain"], 0)?;
    assert!(explained.data.contains("kept by the guard: p50 "), "{}", explained.data);
    operator.runs(&["rollback", name], 0)?;
    operator.is_again(&before)?;
    Ok(())
}

fn stalled() -> Result<(), Failed> {
    let operator = Operator::new("guarded-stalled", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(SLIGHT)?;
    let before = operator.devices()?.devices;
    let pid =
        i32::try_from(server.process().pid.0).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
    let code = while_asked(&operator, || {
        let guard = ["-o", "json", "try", "--guard", WIDE, "--seconds", "120"];
        let mut trial = operator.starts(&guard)?;
        caught("the change in force", || Ok((flushes(&operator.devices()?) == [10_000]).then_some(())))?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
        let ended = waited_for("the end of the trial", || Ok(trial.child.try_wait()?));
        rustix::process::kill_process(pid, rustix::process::Signal::CONT)?;
        Ok(ended?.code())
    })?;
    let said = operator.said()?;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("\"ruling\":\"stalled\"") || said.contains("\"ruling\": \"stalled\""), "{said}");
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

fn held() -> Result<(), Failed> {
    let operator = Operator::new("guarded-held", 2)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = delivered_by(&operator)?;
    let guard = |limit: &str| -> Vec<String> {
        let words =
            ["-o", "json", "try", "--disruptive", "--guard", limit, "--seconds", "25", "--on", "11211"];
        words.map(str::to_owned).to_vec()
    };
    let tried = |limit: &str| {
        let guard = guard(limit);
        let guard: Vec<&str> = guard.iter().map(String::as_str).collect();
        // Send requests so rarely that no 99th percentile is judged: it varies most on a busy machine.
        while_asked_every(&operator, Duration::from_millis(16), || judged(&operator, &guard))
    };
    operator.asks("[device.veth-server]\npolicy = \"none\"\nsettings = { qdisc = \"pfifo\" }\n")?;
    let said = operator.runs(&["try", "--guard", WIDE, "--on", "11211"], 7)?;
    assert!(said.words.contains("--disruptive"), "{}", said.words);
    let Some(report) = tried(WIDE)? else {
        assert_eq!(delivered_by(&operator)?, before);
        return Ok(());
    };
    let known = (&report["kept"], &report["ruling"], &report["by"]);
    assert_eq!(known, (&true.into(), &"kept".into(), &"before-after".into()), "{report}");
    assert_ne!(delivered_by(&operator)?, before, "the change is in force");
    assert_eq!(newest_verdicts(&operator)?[0]["by"], "before-after");
    let names: Vec<String> = serde_json::from_value(report["transactions"].clone())?;
    for name in names.iter().rev() {
        operator.runs(&["rollback", name], 0)?;
    }
    assert_eq!(delivered_by(&operator)?, before);
    operator.asks("[device.veth-server]\ndelivery = \"defer50\"\ngro_flush_timeout = \"2ms\"\nsettings = { qdisc = \"pfifo\" }\n")?;
    // The outcome depends on other work on this machine, because netpolicy measures before and after the
    // change, not alternately.
    let Some(report) = tried("p50=+20%,p90=+1000%,cpu=+1000%")? else {
        assert_eq!(delivered_by(&operator)?, before);
        return Ok(());
    };
    assert_eq!(report["by"], "before-after", "{report}");
    match report["kept"].as_bool().ok_or("kept")? {
        true => {
            assert_eq!(report["ruling"], "kept", "{report}");
            assert_ne!(delivered_by(&operator)?, before, "the change is in force");
            let names: Vec<String> = serde_json::from_value(report["transactions"].clone())?;
            for name in names.iter().rev() {
                operator.runs(&["rollback", name], 0)?;
            }
        }
        false => assert_eq!(report["ruling"], "beyond-limit", "{report}"),
    }
    assert_eq!(delivered_by(&operator)?, before, "the host has its former state");
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    let transactions = history["data"]["transactions"].as_array().cloned().unwrap_or_default();
    assert!(transactions.iter().all(|one| one["in_force"] == 0), "{history}");
    Ok(())
}

/// Tests kills at moments spread over switches and windows.
fn killed() -> Result<(), Failed> {
    const KILLS: u64 = 6;
    let operator = Operator::new("guarded-killed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(SLIGHT)?;
    while_asked(&operator, || {
        let before = operator.devices()?.devices;
        for kill in 0..KILLS {
            let mut command = operator.netpolicy(&["try", "--guard", WIDE, "--seconds", "60"]);
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            let mut trial = Started { child };
            caught("the change in force", || Ok((flushes(&operator.devices()?) != [0]).then_some(())))?;
            std::thread::sleep(Duration::from_millis(kill * 171));
            let pid = i32::try_from(trial.child.id()).ok().and_then(rustix::process::Pid::from_raw);
            let signal = match kill % 2 {
                0 => rustix::process::Signal::KILL,
                _ => rustix::process::Signal::HUP,
            };
            rustix::process::kill_process(pid.ok_or("pid")?, signal)?;
            trial.child.wait()?;
            waited_for("the host as it was", || Ok((operator.devices()?.devices == before).then_some(())))?;
        }
        Ok(())
    })?;
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    let transactions = history["data"]["transactions"].as_array().cloned().unwrap_or_default();
    assert!(transactions.iter().all(|one| one["in_force"] == 0), "{history}");
    Ok(())
}

fn ended() -> Result<(), Failed> {
    let operator = Operator::new("guarded-ended", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(SLIGHT)?;
    let before = operator.devices()?.devices;
    let code = while_asked(&operator, || {
        let mut trial = operator.starts(&["try", "--guard", WIDE, "--seconds", "120"])?;
        caught("the change in force", || Ok((flushes(&operator.devices()?) == [10_000]).then_some(())))?;
        // The killed server is still a zombie, because its parent has not waited for it.
        let pid = i32::try_from(server.process().pid.0).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.ok_or("pid")?, rustix::process::Signal::KILL)?;
        Ok(waited_for("the end of the trial", || Ok(trial.child.try_wait()?))?.code())
    })?;
    let said = operator.said()?;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("reverted: the service exited"), "{said}");
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

fn applied() -> Result<(), Failed> {
    let operator = Operator::new("guarded-applied", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    operator.asks(&format!("{WORSE}{}", guard("+20%", "25s")))?;
    let report = while_asked(&operator, || judged(&operator, &["-o", "json", "apply"]))?;
    // On a busy machine, the test may measure too little for a verdict, so only check that the change is not
    // kept.
    assert!(report.is_none_or(|report| report["ruling"] != "kept"));
    assert_eq!(operator.devices()?.devices, before);
    let of_service = "[service.memcached]\nmatch = { exe = \"memcached\" }\npolicy = \"none\"\n";
    operator.asks(&format!("{HARMLESS}{of_service}{}", guard("+1000%", "25s")))?;
    let report = while_asked(&operator, || judged(&operator, &["-o", "json", "apply"]))?;
    let Some(report) = report else {
        assert_eq!(operator.devices()?.devices, before);
        return Ok(());
    };
    assert_eq!(report["ruling"], "kept", "{report}");
    let after = operator.devices()?.devices;
    assert_ne!(after, before);
    operator.runs(&["rollback", report["transactions"][0].as_str().ok_or("no name")?], 0)?;
    let said = operator.runs(&["apply"], 7)?;
    assert!(
        said.words.contains("no traffic for a verdict") && said.words.contains("without the guard"),
        "{}",
        said.words
    );
    assert_eq!(operator.devices()?.devices, before);
    operator.runs(&["apply", "--no-guard"], 0)?;
    assert_eq!(operator.devices()?.devices, after);
    operator.runs(&["rollback"], 0)?;
    drop(server);
    let said = operator.runs(&["apply"], 0)?;
    assert!(said.words.contains("memcached is not running"), "{}", said.words);
    assert_eq!(operator.devices()?.devices, after);
    for (text, words) in [
        ("[device.veth-server]\ndelivery = \"defer20\"\nguard = { p50 = \"+5%\" }\n", "guard"),
        (
            "[service.a]\nmatch = { port = 1 }\npolicy = \"none\"\nguard = { within = \"30s\" }\n",
            "a duration but no limit",
        ),
        (
            "[service.a]\nmatch = { port = 1 }\npolicy = \"none\"\nguard = { p50 = \"+5%\", within = \"3s\" }\n",
            "20s to 3600s",
        ),
        ("[service.a]\nmatch = { port = 1 }\npolicy = \"none\"\nguard = { p99 = \"5\" }\n", "as in +15%"),
    ] {
        operator.asks(text)?;
        let said = operator.runs(&["apply"], 2)?;
        assert!(said.words.contains(words), "{}", said.words);
    }
    Ok(())
}

fn by_daemon() -> Result<(), Failed> {
    let operator = Operator::new("guarded-daemon", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    while_asked(&operator, || {
        let hurts = format!("{WORSE}{}", guard("+20%", "25s"));
        let daemon = at_work(&operator, &hurts)?;
        operator.waits_to_hear("judged on live traffic")?;
        // Rewriting a file with the same contents does not end a trial.
        operator.asks(&hurts)?;
        let was_judged = waited_long_for("a harmful change to be restored", || {
            let said = operator.said()?;
            let was_judged = said.contains("beyond the guard's limit");
            Ok((was_judged || said.contains("too little was measured")).then_some(was_judged))
        })?;
        assert!(!operator.said()?.contains("interrupted"), "{}", operator.said()?);
        waited_for("the host as it was", || Ok((operator.devices()?.devices == before).then_some(())))?;
        if !was_judged {
            assert_eq!(daemon.terminated()?, Some(0));
            return Ok(());
        }
        let status: Value = serde_json::from_str(&operator.runs(&["-o", "json", "status"], 3)?.data)?;
        let findings = status["data"]["findings"].as_array().cloned().unwrap_or_default();
        assert!(findings.iter().any(|finding| finding["rule"] == "guard-reverted"), "{status}");
        let verdict = &status["data"]["verdicts"][0];
        assert_eq!((&verdict["ruling"], &verdict["service"]), (&"beyond-limit".into(), &"memcached".into()));
        assert_eq!(status["data"]["counters"]["verdicts"]["beyond-limit"], 1, "{status}");
        // The changed section counts as a new request; this milder change is judged and kept.
        operator.asks(&format!("{SLIGHT}{}", guard("+1000%", "25s")))?;
        waited_long_for("a harmless change", || {
            Ok(operator.said()?.contains("kept by the guard").then_some(()))
        })
        .map_err(|failed| format!("{failed:?}: {}", operator.said().unwrap_or_default()))?;
        caught("it in force", || Ok((flushes(&operator.devices()?) == [10_000]).then_some(())))?;
        // The verdict is recorded after the change is in force.
        waited_for("its verdict", || {
            let verdicts = newest_verdicts(&operator)?;
            Ok(verdicts.first().is_some_and(|verdict| verdict["ruling"] == "kept").then_some(()))
        })?;
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn daemon_killed() -> Result<(), Failed> {
    let operator = Operator::new("guarded-daemon-killed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    while_asked(&operator, || {
        let policy = format!("{SLIGHT}{}", guard("+1000%", "300s"));
        let mut daemon = at_work(&operator, &policy)?;
        caught("the change in force", || Ok((flushes(&operator.devices()?) == [10_000]).then_some(())))?;
        daemon.child.kill()?; // SIGKILL
        daemon.child.wait()?;
        // The guard process must restore the host: other netpolicy commands would do so only half a minute
        // later.
        waited_for("the host as it was", || Ok((operator.devices()?.devices == before).then_some(())))
    })
}

fn stopped() -> Result<(), Failed> {
    use rustix::process::Signal;
    let operator = Operator::new("guarded-stopped", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(SLIGHT)?;
    let before = operator.devices()?.devices;
    let is_as_before = || Ok((operator.devices()?.devices == before).then_some(()));
    while_asked(&operator, || {
        let mut trial = operator.starts(&["try", "--guard", WIDE, "--seconds", "3600"])?;
        caught("the change in force", || {
            if is_as_before()?.is_some() {
                return Ok(None);
            }
            trial.signalled(Signal::STOP)?;
            // Stop the trial in the middle of a window, not while it writes: it would then hold the journal's
            // lock.
            let lock = std::fs::File::open(operator.state().join("journal/lock"))?;
            let writes =
                rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err();
            let is_in_force = !writes && is_as_before()?.is_none();
            if !is_in_force {
                trial.signalled(Signal::CONT)?;
            }
            Ok(is_in_force.then_some(()))
        })?;
        waited_long_for("the former state of the host, restored by the guard process", is_as_before)?;
        // The trial continues after SIGCONT, and restores the host when it ends.
        trial.signalled(Signal::CONT)?;
        waited_for("the change in force again", || Ok(is_as_before()?.is_none().then_some(())))?;
        trial.signalled(Signal::TERM)?;
        assert_eq!(trial.child.wait()?.code(), Some(4), "{}", operator.said()?);
        assert!(is_as_before()?.is_some());
        Ok(())
    })
}

fn left() -> Result<(), Failed> {
    let operator = Operator::new("guarded-left", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(SLIGHT)?;
    let before = operator.devices()?.devices;
    let mut trial = while_asked(&operator, || {
        let guard = ["-o", "json", "try", "--guard", WIDE, "--seconds", "120"];
        let trial = operator.starts(&guard)?;
        caught("the change in force", || Ok((flushes(&operator.devices()?) == [10_000]).then_some(())))?;
        Ok(trial)
    })?;
    let ended = waited_for("the end of the trial", || Ok(trial.child.try_wait()?))?;
    let said = operator.said()?;
    assert_eq!(ended.code(), Some(4), "{said}");
    assert!(said.contains("clients-left"), "{said}");
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

fn refused() -> Result<(), Failed> {
    let operator = Operator::new("guarded-refused", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let refused = |arguments: &[&str], code: i32, words: &str| -> Result<(), Failed> {
        let said = operator.runs(arguments, code)?;
        assert!(said.words.contains(words), "{arguments:?}: {}", said.words);
        Ok(())
    };
    refused(&["try", "--guard", "p98=+5%"], 2, "expected p50, p90, p99, cpu")?;
    refused(&["try", "--guard", "p99=-5%"], 2, "+1% to +1000%")?;
    refused(&["try", "--guard", "p99=+5%,p99=+9%"], 2, "p99 has two limits")?;
    refused(&["try", "--on", "memcached"], 2, "--guard")?;
    operator.asks("[device.veth-server]\ndelivery = \"defer20\"\n")?;
    refused(&["try", "--guard", "p99=+5%", "--seconds", "5"], 2, "a guard needs 20s to")?;
    refused(&["try", "--guard", "p99=+5%"], 7, "name no service")?;
    refused(&["try", "--guard", "p50=+5%", "--on", "memcached"], 7, "no traffic for a verdict")?;
    refused(&["try", "--guard", "p50=+5%", "--on", "no-such-thing"], 7, "no-such-thing")?;
    assert_eq!(flushes(&operator.devices()?), [0], "nothing was changed");
    let _daemon = at_work(&operator, "[device.veth-server]\ndelivery = \"defer20\"\n")?;
    operator.asks(SLIGHT)?;
    refused(&["try", "--guard", "p50=+5%"], 7, "manages this network namespace")?;
    Ok(())
}
