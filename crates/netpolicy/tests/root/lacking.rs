//! Tests guards on a host that lacks disk space, and guards that may not inspect processes.

use std::process::{Command, Output, Stdio};

use daemon::inspector::WORKER;
use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::EpollParams;
use rustix::process::Signal;
use testkit::operator::{Operator, Started, caught, flushes, waited_for};
use testkit::{Need, test};

use crate::guarded::TRIALS_MAX;
use crate::requests::while_asked;
use crate::trial;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    const SUSPENDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Suspension];
    vec![
        test("lacking/a_change_is_kept_although_its_verdict_does_not_fit_on_the_disk", NEEDS, verdict),
        test("lacking/a_daemon_whose_trials_fail_gathers_no_processes", NEEDS, processes),
        test(
            "lacking/a_daemon_that_may_not_inspect_processes_judges_and_its_guard_puts_back",
            SUSPENDS,
            right,
        ),
    ]
}

/// A policy whose setting affects none of these clients' packets.
const HARMLESS: &str =
    "[device.veth-server]\npolicy = \"none\"\nsettings = { rx-udp-gro-forwarding = true }\n";

/// A policy with a mode that sets queues and epolls, and a guard whose limits are never exceeded.
const GUARDED: &str = "[service.memcached]\nmatch = { exe = \"memcached\" }\ndelivery = \"suspend20\"\n\
                       guard = { p50 = \"+1000%\", p90 = \"+1000%\", cpu = \"+1000%\", within = \"3600s\" }\n";

fn verdict() -> Result<(), Failed> {
    // The limits on the number of files to try. A change creates a directory with two files. Before the
    // verdict is written, a file of a window is removed.
    const FILES: std::ops::Range<u32> = 9..24;
    let operator = Operator::new("lacking-verdict", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks(HARMLESS)?;
    let state = operator.state();
    std::fs::create_dir_all(&state)?;
    let before = operator.devices()?.devices;
    let guard = ["try", "--guard", "p50=+1000%,p90=+1000%,cpu=+1000%", "--seconds", "20", "--on", "11211"];
    while_asked(&operator, || {
        for files in FILES {
            let output = judged(|| operator.netpolicy_with_few_files(&state, files, &guard))?;
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            let is_kept = operator.devices()?.devices != before;
            assert_eq!(is_kept, output.status.code() == Some(0), "{files} files: {said}");
            if is_kept {
                // `files` is the smallest limit with which the change is kept. Here, the verdict itself could
                // not be written.
                assert!(said.contains("The verdict is not in the journal: "), "{files} files: {said}");
                assert!(said.contains("Kept. To undo it: "), "{said}");
                return Ok(());
            }
            assert!(said.contains("No space left"), "{files} files: {said}");
        }
        Err("the change was never kept".into())
    })
}

/// Runs a guarded trial. Repeats it if too little was measured, for example because the machine stalled.
fn judged(trial: impl Fn() -> Command) -> Result<Output, Failed> {
    for _ in 0..TRIALS_MAX {
        let output = trial().output()?;
        let said = [output.stdout.as_slice(), &output.stderr].concat();
        if !String::from_utf8_lossy(&said).contains("too little was measured") {
            return Ok(output);
        }
    }
    Err(format!("{TRIALS_MAX} times in a row, too little was measured").into())
}

fn processes() -> Result<(), Failed> {
    let operator = Operator::new("lacking-processes", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks("# nothing yet\n")?;
    let state = operator.state();
    std::fs::create_dir_all(&state)?;
    let daemon = operator.starts_command(operator.netpolicy_with_little_space(&state, 256, &["daemon"]))?;
    operator.waits_to_hear("at work")?;
    let there = format!("--mount=/proc/{}/ns/mnt", daemon.child.id());
    // Create the comparison's lock first, then fill the disk until ENOSPC.
    let fills = ["sh", "-c", "echo > \"$0/comparing-$1\"; cat /dev/zero > \"$0/full\""];
    let netns = operator.lab.server().id().to_string();
    Command::new("nsenter").arg(&there).args(fills).arg(&state).arg(netns).stderr(Stdio::null()).status()?;
    while_asked(&operator, || {
        operator.asks(GUARDED)?;
        operator.waits_to_hear("a change waits for its guard: cannot write")?;
        waited_for("the end of the guard process", || Ok(children(&daemon)?.is_empty().then_some(())))
    })
}

/// Returns the daemon's child processes, including zombies, but without the worker that inspects processes.
fn children(daemon: &Started) -> Result<Vec<String>, Failed> {
    let own = daemon.child.id().to_string();
    let (mut children, mut workers) = (Vec::new(), 0);
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let Ok(stat) = std::fs::read_to_string(path.join("stat")) else { continue };
        // A program's name may contain spaces and parentheses, so skip to the last parenthesis.
        let Some((_, fields)) = stat.rsplit_once(')') else { continue };
        if fields.split_whitespace().nth(1) != Some(own.as_str()) {
            continue;
        }
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        if workers == 0 && command.split(|&byte| byte == 0).nth(1) == Some(WORKER.as_bytes()) {
            workers = 1;
        } else {
            children.push(stat);
        }
    }
    Ok(children)
}

fn right() -> Result<(), Failed> {
    let operator = Operator::new("lacking-right", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    std::fs::create_dir_all(operator.state())?;
    let socket = operator.state().join("attach").to_string_lossy().into_owned();
    let there = format!("--net=/proc/{}/ns/net", operator.lab.server_pid());
    let inside = |without: &[&str], arguments: &[&str]| {
        let ours = operator.netpolicy_here(arguments);
        let mut command = Command::new("nsenter");
        command.arg(&there).args(without).arg(ours.get_program()).args(ours.get_args()).stdin(Stdio::null());
        command
    };
    let mut attach = inside(&[], &["attach-service", "--socket", &socket]);
    let _attach = Started { child: attach.stdout(Stdio::null()).stderr(Stdio::null()).spawn()? };
    waited_for("the attach service", || Ok(std::fs::exists(&socket)?.then_some(())))?;
    let epolls = || -> Result<Vec<Option<EpollParams>>, Failed> {
        let host = operator.host()?;
        let process = host.process(server.process().pid).ok_or("the server")?;
        Ok(process.epolls.iter().map(|epoll| epoll.params).collect())
    };
    let before = (operator.devices()?.devices, epolls()?);
    let is_as_before = || Ok(((operator.devices()?.devices, epolls()?) == before).then_some(()));
    while_asked(&operator, || {
        operator.asks(GUARDED)?;
        let without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--"];
        let daemon = inside(&without, &["daemon", "--attach-socket", &socket]);
        let mut daemon = operator.starts_command(daemon)?;
        caught("a change in force", || {
            if flushes(&operator.devices()?) != [20_000] {
                return Ok(None);
            }
            daemon.signalled(Signal::STOP)?;
            let is_in_force = flushes(&operator.devices()?) == [20_000] && epolls()? != before.1;
            if !is_in_force {
                daemon.signalled(Signal::CONT)?;
            }
            Ok(is_in_force.then_some(()))
        })
        .map_err(|failed| format!("{failed:?}: {}", operator.said().unwrap_or_default()))?;
        daemon.child.kill()?; // SIGKILL
        daemon.child.wait()?;
        waited_for("the former state, restored by the guard process", is_as_before)?;
        waited_for("its end", || Ok(trial::guards(&operator)?.is_empty().then_some(())))
    })
}
