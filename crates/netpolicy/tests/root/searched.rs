//! Tests services with a goal: in a lab, the daemon tries the modes of the ladder on a real memcached that
//! misses its goal.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use rustix::process::Signal;
use serde_json::Value;
use testkit::operator::{Operator, Started, at_work, caught, flushes, waited_for, waited_long_for};
use testkit::{Need, test};

use crate::{requests, trial};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test(
            "searched/a_ladder_on_which_nothing_helps_is_exhausted_and_the_host_is_as_before",
            NEEDS,
            exhausted,
        ),
        test("searched/what_is_better_is_kept_by_all_daemons_until_the_policy_is_another", NEEDS, found),
        test("searched/nothing_is_tried_where_a_goal_is_only_reported_or_no_try_is_left", NEEDS, reported),
        test(
            "searched/a_try_that_is_cut_short_by_a_signal_is_put_back_counts_and_is_made_again_by_the_next_daemon",
            NEEDS,
            cut_short,
        ),
    ]
}

/// Recipes with a ladder of two modes: a harmful one, and one that exceeds the budget on any kernel.
const HURTS: &str = "[[ladder.latency]]\nvalue = \"defer:400us\"\nwhy = \"a test\"\n\
                     [[ladder.latency]]\nvalue = \"threaded-busy\"\nwhy = \"a test\"\n";

/// Recipes whose mode makes packets wait for two milliseconds, with a ladder of one mode that does not.
const HELPS: &str = "[driver.veth.latency.delivery]\nvalue = \"defer:2ms\"\n\
                     [[ladder.latency]]\nvalue = \"interrupt\"\nwhy = \"no timer delays a response\"\n";

/// Returns a policy file for a service on memcached's port with this goal.
fn policy(goal: &str) -> String {
    format!(
        "[daemon]\nsample = \"900ms\"\n[service.cache]\nmatch = {{ port = 11211 }}\npolicy = \"latency\"\n\
         goal = {{ {goal} }}\n"
    )
}

/// Returns the same policy file with a separate guard.
fn guarded(goal: &str) -> String {
    policy(goal) + "guard = { cpu = \"+1000%\", within = \"40s\" }\n"
}

/// Installs the operator's own recipes.
fn recipes(operator: &Operator, text: &str) -> Result<(), Failed> {
    let path = operator.file("10-own.toml", text.as_bytes())?;
    let directory = std::path::Path::new(&path).with_file_name("recipe.d");
    std::fs::create_dir_all(&directory)?;
    Ok(std::fs::rename(path, directory.join("10-own.toml"))?)
}

/// The daemon's status.
pub(crate) fn status(operator: &Operator) -> Result<Value, Failed> {
    let output = operator.netpolicy(&["-o", "json", "status"]).output()?;
    let said: Value = serde_json::from_slice(&output.stdout)?;
    Ok(said["data"].clone())
}

/// Returns the daemon's status of the service.
fn service(operator: &Operator) -> Result<Value, Failed> {
    let said = status(operator)?;
    let all = said["requests"].as_array().cloned().unwrap_or_default();
    let of_service = all.into_iter().find(|request| request["target"] == "service cache");
    of_service.ok_or_else(|| format!("no service: {said}").into())
}

/// Returns the finding of a rule in the daemon's status.
pub(crate) fn finding(operator: &Operator, rule: &str) -> Result<Option<Value>, Failed> {
    let said = status(operator)?;
    let findings = said["findings"].as_array().cloned().unwrap_or_default();
    Ok(findings.into_iter().find(|finding| finding["rule"] == rule))
}

/// Returns the number of transactions.
fn transactions(operator: &Operator) -> Result<usize, Failed> {
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    Ok(history["data"]["transactions"].as_array().map_or(0, Vec::len))
}

fn exhausted() -> Result<(), Failed> {
    let operator = Operator::new("searched-exhausted", 1)?;
    recipes(&operator, HURTS)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    requests::while_asked_in_turn(&operator, || {
        let daemon = at_work(&operator, &guarded("p99 = \"1us\", for = \"10s\", on_missed = \"search\""))?;
        let found = waited_long_for("the end of the ladder", || finding(&operator, "search-exhausted"))?;
        let said = found.to_string();
        assert!(said.contains("defer400 instead of interrupt: "), "{found}");
        assert!(said.contains("threaded-busy is not tried: "), "{found}");
        assert_eq!(operator.devices()?.devices, before, "the tried modes are undone");
        let search = service(&operator)?["search"].clone();
        let tries = search["tries_today"].as_u64().ok_or("tries")?;
        // On a busy machine, a try may be undecided; the daemon then repeats it, within the daily limit.
        assert!((1..=6).contains(&tries) && search["tries_a_day"] == 6, "{search}");
        assert_eq!(search["found"], Value::Null, "{search}");
        let tried = search["tried"].as_array().ok_or("tried")?;
        assert!(tried.len() == 1 && tried[0]["ruling"] != "better", "{search}");
        let log = operator.said()?;
        assert!(log.contains("defer400 is tried in place of interrupt, 1 of 6 tries a day"), "{log}");
        assert_eq!(daemon.terminated()?, Some(0));
        assert_eq!(operator.devices()?.devices, before);
        // The next daemon counts the tries of earlier daemons, and does not try again the modes that they
        // rolled back.
        let count = transactions(&operator)?;
        let daemon = at_work(&operator, &guarded("p99 = \"1us\", for = \"10s\", on_missed = \"search\""))?;
        waited_long_for("the same again", || finding(&operator, "search-exhausted"))?;
        assert_eq!(service(&operator)?["search"]["tries_today"], tries);
        assert_eq!(transactions(&operator)?, count, "nothing was tried");
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn found() -> Result<(), Failed> {
    const TWO_MS: [u64; 1] = [2_000_000];
    let operator = Operator::new("searched-found", 1)?;
    recipes(&operator, HELPS)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let missed = policy("p50 = \"1us\", for = \"10s\", on_missed = \"search\"");
    requests::while_asked(&operator, || {
        let daemon = at_work(&operator, &missed)?;
        waited_for("the policy's own mode", || Ok((flushes(&operator.devices()?) == TWO_MS).then_some(())))?;
        // If the machine stalls during a try, there is no verdict; the operator can request another try with
        // SIGHUP.
        let hang_up = || -> Result<(), Failed> {
            let pid = i32::try_from(daemon.child.id()).ok().and_then(rustix::process::Pid::from_raw);
            Ok(rustix::process::kill_process(pid.ok_or("pid")?, rustix::process::Signal::HUP)?)
        };
        let found = waited_long_for("what is better", || {
            if finding(&operator, "search-exhausted")?.is_some()
                && finding(&operator, "search-found")?.is_none()
            {
                hang_up()?;
                std::thread::sleep(Duration::from_secs(1));
            }
            finding(&operator, "search-found")
        })?;
        assert!(found.to_string().contains("interrupt instead of defer2000: better: p50 "), "{found}");
        waited_for("it in force", || Ok((flushes(&operator.devices()?) == [0]).then_some(())))?;
        let said = service(&operator)?;
        assert!(said["delivery"] == "interrupt" && said["search"]["found"] == "interrupt", "{said}");
        let verdicts = operator.runs(&["history"], 0)?;
        assert!(verdicts.data.contains("better: p50 "), "{}", verdicts.data);
        // All commands plan with the mode that the search found, and give the reason.
        let planned = operator.runs(&["plan"], 0)?;
        assert!(planned.words.contains("a search found it better than defer2000: p50 "), "{}", planned.words);
        let explained = operator.runs(&["explain", "cache"], 0)?;
        let text = format!("{}{}", explained.data, explained.words);
        assert!(text.contains("a search found it better than defer2000: p50 "), "{text}");
        assert_eq!(daemon.terminated()?, Some(0));
        assert_eq!(
            flushes(&operator.devices()?),
            [0],
            "a daemon that ends leaves the settings that it holds in force"
        );
        let daemon = at_work(&operator, &missed)?;
        waited_for("the first message of the next daemon", || finding(&operator, "search-found"))?;
        assert_eq!(flushes(&operator.devices()?), [0], "the next daemon holds the settings, too");
        operator.asks(&policy("p50 = \"5s\", for = \"10s\", on_missed = \"search\""))?;
        waited_for("the policy's own mode again", || {
            Ok((flushes(&operator.devices()?) == TWO_MS).then_some(()))
        })?;
        waited_for("no finding", || Ok(finding(&operator, "search-found")?.is_none().then_some(())))?;
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn reported() -> Result<(), Failed> {
    /// More windows than fit into the time after which a goal counts as missed.
    const WINDOWS: u64 = 15;
    let operator = Operator::new("searched-reported", 1)?;
    recipes(&operator, HURTS)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    let windows =
        || -> Result<u64, Failed> { Ok(service(&operator)?["measured"]["windows"].as_u64().unwrap_or(0)) };
    requests::while_asked_in_turn(&operator, || {
        let daemon = at_work(&operator, &policy("p99 = \"1us\", for = \"10s\""))?;
        waited_for("the finding", || finding(&operator, "live-goal-missed"))?;
        let begun = std::time::Instant::now();
        waited_long_for("more windows", || {
            Ok((begun.elapsed() > Duration::from_secs(WINDOWS) && windows()? >= WINDOWS).then_some(()))
        })?;
        let said = service(&operator)?;
        assert!(said["search"].is_null(), "{said}");
        assert!(!operator.state().join("searches.json").exists(), "no note is written if no mode is tried");
        let none = policy("p99 = \"1us\", for = \"10s\", on_missed = \"search\"");
        operator.asks(&none.replacen("[daemon]", "[daemon]\nsearches = 0", 1))?;
        let waits =
            waited_long_for("the reason why no mode is tried", || finding(&operator, "search-waits"))?;
        assert!(waits["summary"].as_str().is_some_and(|words| words.contains("limit of 0 tries")), "{waits}");
        assert_eq!(transactions(&operator)?, 0, "nothing was written");
        assert_eq!(operator.devices()?.devices, before);
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

/// Stops the daemon (SIGSTOP) while the candidate is in force, so that the candidate stays in force.
fn stopped_in_the_middle(operator: &Operator, daemon: &Started) -> Result<(), Failed> {
    const TRIED: [u64; 1] = [400_000];
    // While the modes alternate, the candidate is in force for only a few hundred milliseconds at a time.
    caught("the tried mode in force", || {
        if flushes(&operator.devices()?) != TRIED {
            return Ok(None);
        }
        daemon.signalled(Signal::STOP)?;
        let is_in_force = flushes(&operator.devices()?) == TRIED;
        if !is_in_force {
            daemon.signalled(Signal::CONT)?;
        }
        Ok(is_in_force.then_some(()))
    })
    .map_err(|failed| format!("{failed:?}: {}", operator.said().unwrap_or_default()).into())
}

/// Returns the number of tries recorded next to the journal.
fn tries_noted(operator: &Operator) -> Result<usize, Failed> {
    let noted: Value = serde_json::from_slice(&std::fs::read(operator.state().join("searches.json"))?)?;
    Ok(noted["services"]["service cache"]["begun"].as_array().map_or(0, Vec::len))
}

fn cut_short() -> Result<(), Failed> {
    let operator = Operator::new("searched-cut-short", 1)?;
    recipes(&operator, HURTS)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    let policy = guarded("p50 = \"1us\", for = \"10s\", on_missed = \"search\"");
    let policy = policy.replacen("[daemon]", "[daemon]\nsearches = 3", 1);
    let is_as_before = || Ok((operator.devices()?.devices == before).then_some(()));
    // Checks that no candidate is in force, and that the whole journal is readable.
    let is_whole = || -> Result<(), Failed> {
        let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
        let history = &history["data"];
        assert_eq!(history["unreadable"].as_array().map_or(0, Vec::len), 0, "{history}");
        let all = history["transactions"].as_array().ok_or("transactions")?;
        assert!(all.iter().all(|one| one["standing"] == "rolled-back"), "{history}");
        Ok(())
    };
    requests::while_asked(&operator, || {
        // The guard process restores the host without the help of another netpolicy process.
        let mut daemon = at_work(&operator, &policy)?;
        stopped_in_the_middle(&operator, &daemon)?;
        assert_eq!(tries_noted(&operator)?, 1, "noted before the change is made");
        // The guard process must ignore SIGTERM and SIGHUP: systemd terminates the rest of a unit whose main
        // process was killed, and `kill -HUP $(pidof netpolicy)` reaches all netpolicy processes.
        for guard in trial::guards(&operator)? {
            rustix::process::kill_process(guard, Signal::TERM)?;
            rustix::process::kill_process(guard, Signal::HUP)?;
        }
        daemon.signalled(Signal::KILL)?;
        daemon.child.wait()?;
        waited_for("the host as it was, by the guard process", is_as_before)?;
        waited_for("the end of the guard process", || {
            Ok(trial::guards(&operator)?.is_empty().then_some(()))
        })?;
        is_whole()?;
        // If the daemon and its guard process are both killed, the next daemon restores the host when it
        // starts, before it measures.
        let mut daemon = at_work(&operator, &policy)?;
        stopped_in_the_middle(&operator, &daemon)?;
        let guards = trial::guards(&operator)?;
        assert_eq!(guards.len(), 1, "one guard process");
        rustix::process::kill_process(guards[0], Signal::KILL)?;
        daemon.signalled(Signal::KILL)?;
        daemon.child.wait()?;
        assert!(is_as_before()?.is_none(), "no process is left that could restore the host");
        let daemon = at_work(&operator, &policy)?;
        waited_for("the former state of the host, restored by the next daemon", is_as_before)?;
        is_whole()?;
        // The daemon continues with the day's remaining tries. On SIGTERM, it restores the host before it
        // exits.
        waited_long_for("the last try", || Ok((tries_noted(&operator)? == 3).then_some(())))?;
        caught("it in force", || Ok((flushes(&operator.devices()?) == [400_000]).then_some(())))?;
        assert_eq!(daemon.terminated()?, Some(0), "{}", operator.said()?);
        assert!(is_as_before()?.is_some(), "restored before the daemon ends");
        assert!(trial::guards(&operator)?.is_empty(), "no guard process is left");
        is_whole()?;
        let daemon = at_work(&operator, &policy)?;
        let waits = waited_long_for("the end of the day's tries", || finding(&operator, "search-waits"))?;
        assert!(waits["summary"].as_str().is_some_and(|words| words.contains("limit of 3 tries")), "{waits}");
        assert_eq!(service(&operator)?["search"]["tries_today"], 3);
        assert!(is_as_before()?.is_some());
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}
