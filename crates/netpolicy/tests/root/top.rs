//! Tests `top` in a lab under load.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::{MemcachedOptions, SERVER_ADDRESS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use testkit::operator::{Operator, Started, waited_for};
use testkit::{Need, test};

use crate::watched::is_loaded;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Memcached, Need::Bpf];
    vec![
        test("top/one_reading_says_what_is_set_and_who_delivered", NEEDS, one_reading),
        test(
            "top/a_terminal_that_hangs_up_ends_it_and_its_sampler",
            &[Need::Root, Need::Bpf],
            a_terminal_that_hangs_up,
        ),
        test(
            "top/a_terminal_whose_owner_is_killed_ends_it_and_its_sampler",
            &[Need::Root, Need::Bpf, Need::Program("script")],
            a_killed_terminal,
        ),
        test("top/without_a_terminal_it_says_what_to_call_instead", &[Need::Root], without_a_terminal),
    ]
}

fn one_reading() -> Result<(), Failed> {
    let operator = Operator::new("top", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.runs(&["set", "device", "veth-server", "defer200"], 0)?;
    let traffic = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&operator));
        let read = operator.runs(&["-o", "json", "top", "--once", "--interval", "2"], 0);
        sending.join().map_err(|_| "the sender panicked")??;
        read
    })?;
    let read: serde_json::Value = serde_json::from_str(&traffic.data)?;
    let queue = &read["data"]["queues"][0];
    assert_eq!((queue["device"].as_str(), queue["set"].as_str()), (Some("veth-server"), Some("defer 200us")));
    let packets = queue["packets"].as_f64().unwrap_or(0.0);
    assert!(packets > 10.0, "500 datagrams a second came by it: {read}");
    let shares = &queue["shares"];
    let sum: f64 =
        ["interrupt", "timer", "application", "kthread"].iter().filter_map(|s| shares[*s].as_f64()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{shares}");
    let cpus = read["data"]["cpus"].as_array().map_or(0, Vec::len);
    assert_eq!(cpus, std::thread::available_parallelism()?.get());
    drop(server);
    Ok(())
}

/// Sends datagrams for three seconds from the client's host to a port on which nothing listens.
fn send(operator: &Operator) -> Result<(), Failed> {
    let socket = operator.lab.client().run(|| UdpSocket::bind("0.0.0.0:0"))??;
    for _ in 0..1_500 {
        // `send_to` may return the ICMP error of an earlier datagram.
        let _ = socket.send_to(b"x", (SERVER_ADDRESS, 9));
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// How long to wait for a screen.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Opens a pseudoterminal; returns the controlling end and the terminal. The controlling end reads the
/// output; closing it hangs up the terminal.
fn terminal() -> Result<(File, OwnedFd), Failed> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let path = ptsname(&ours, Vec::new())?;
    let theirs = File::options().read(true).write(true).open(path.to_str()?)?;
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&theirs, size)?;
    Ok((File::from(ours), theirs.into()))
}

/// Runs `top` on a separate terminal. The terminal is not the controlling terminal of any process, so no
/// signal reports that it is closed.
fn on_a_terminal(operator: &Operator) -> Result<(Started, File), Failed> {
    let (ours, theirs) = terminal()?;
    let mut command = operator.netpolicy(&["top"]);
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    Ok((Started { child: command.spawn()? }, ours))
}

/// Reads the terminal's output until it contains this word. Words are separated by cursor movements.
fn shows(terminal: &mut (impl Read + AsFd), text: &str) -> Result<(), Failed> {
    /// Far more output than a test needs.
    const SCREENS_BYTES_MAX: usize = 1 << 20;
    let (mut seen, mut part) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&seen).contains(text) {
        let mut polled = [PollFd::new(terminal, PollFlags::IN)];
        let read = match poll(&mut polled, Some(&PATIENCE))? {
            0 => 0,
            _ => terminal.read(&mut part)?,
        };
        if read == 0 || seen.len() > SCREENS_BYTES_MAX {
            return Err(format!("no `{text}` in:\n{}", String::from_utf8_lossy(&seen)).into());
        }
        seen.extend_from_slice(&part[..read]);
    }
    Ok(())
}

/// Returns the ids of the BPF programs that a process holds.
fn programs(pid: u32) -> Result<BTreeSet<u32>, Failed> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let Ok(text) = std::fs::read_to_string(entry?.path()) else { continue };
        let ids = text.lines().filter_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok());
        found.extend(ids);
    }
    Ok(found)
}

/// Waits until the process has exited and none of its BPF programs is loaded.
fn has_ended_with(pid: u32, programs: &BTreeSet<u32>) -> Result<(), Failed> {
    assert!(!programs.is_empty(), "it samples");
    waited_for("the end of top", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        Ok(stat.map_or(true, |stat| stat.contains(") Z ")).then_some(()))
    })?;
    waited_for("the end of its BPF programs", || Ok((!is_loaded(programs)).then_some(())))
}

fn a_terminal_that_hangs_up() -> Result<(), Failed> {
    let operator = Operator::new("top-hang", 1)?;
    let (mut top, mut terminal) = on_a_terminal(&operator)?;
    shows(&mut terminal, "quit")?;
    let (pid, programs) = (top.child.id(), programs(top.child.id())?);
    drop(terminal);
    has_ended_with(pid, &programs)?;
    let status = top.child.wait()?;
    assert_eq!(status.code(), Some(0), "{status}");
    Ok(())
}

fn a_killed_terminal() -> Result<(), Failed> {
    let operator = Operator::new("top-killed", 1)?;
    let top = operator.netpolicy(&["top"]);
    let words: Vec<String> = std::iter::once(top.get_program())
        .chain(top.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let mut script = Command::new("script");
    script.args(["-qfc", &format!("stty rows 24 cols 80; exec {}", words.join(" ")), "/dev/null"]);
    let owner = script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut owner = Started { child: owner };
    shows(owner.child.stdout.as_mut().ok_or("output")?, "quit")?;
    let children = format!("/proc/{0}/task/{0}/children", owner.child.id());
    let pid: u32 = std::fs::read_to_string(children)?.trim().parse()?;
    let programs = programs(pid)?;
    owner.child.kill()?; // SIGKILL: the terminal closes without a signal
    owner.child.wait()?;
    has_ended_with(pid, &programs)
}

fn without_a_terminal() -> Result<(), Failed> {
    let operator = Operator::new("top-none", 1)?;
    let refused = operator.runs(&["top"], 2)?;
    assert!(refused.words.contains("top --once"), "{}", refused.words);
    Ok(())
}
