//! Tests policies for running, unmodified processes: `attach`, `run`, `set task`.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::{EpollParams, Host, Pid};
use testkit::operator::{Operator, flushes, waited_for};
use testkit::{Need, test};

/// The environment variable that makes this test program create epolls on command.
const ROLE: &str = "NETPOLICY_TEST_EPOLL_MAKER";

pub(crate) const SUSPENDING: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    const MEMCACHED: &[Need] = &[Need::Root, Need::Suspension, Need::Memcached];
    vec![
        test(
            "attached/memcached_of_another_user_gets_both_halves_and_gets_rid_of_them",
            MEMCACHED,
            memcached,
        ),
        test("attached/an_epoll_that_is_made_later_gets_the_parameters_too", NEEDS, new_epoll),
        test("attached/a_child_gets_the_parameters_too", NEEDS, child),
        test("attached/the_devices_half_goes_when_the_process_ends", NEEDS, ended),
        test("attached/once_leaves_it_in_force_and_rollback_undoes_it", MEMCACHED, once),
        test("attached/set_task_is_an_attachment_without_a_follower", MEMCACHED, set_task),
        test("attached/a_second_attachment_with_another_policy_is_refused", NEEDS, second_attachment),
        test("attached/a_device_that_is_down_for_a_while_does_not_end_an_attachment", NEEDS, link_down),
        test("attached/run_names_what_its_command_leaves_running", NEEDS, left_running),
        test("attached/a_thread_of_the_kernel_is_refused", NEEDS, kernel_thread),
        test("attached/run_starts_under_the_policy_and_passes_on_signals_and_exit_codes", MEMCACHED, run),
        test("attached/run_caps_epoll_wait_for_fullbusy", MEMCACHED, run_fullbusy),
        test(
            "attached/a_server_that_forks_all_the_time_keeps_its_parameters",
            &[Need::Root, Need::Suspension],
            forking,
        ),
        test(
            "attached/eventbusy_is_refused_by_a_kernel_that_cannot_wait_for_events_only",
            &[Need::Root, Need::Suspension, Need::NoEventsOnly],
            eventbusy_refused,
        ),
        test(
            "attached/eventbusy_is_set_on_every_epoll_and_taken_back_exactly",
            &[Need::Root, Need::Memcached, Need::EventsOnly],
            eventbusy,
        ),
        test("attached/run_gives_userbusy_an_epoll_wait_that_never_sleeps", MEMCACHED, run_userbusy),
        test("attached/run_refuses_fullbusy_where_no_library_can_be_loaded", NEEDS, run_without_linker),
    ]
}

/// Acts as a process with a socket that creates an epoll for each line that it reads. A line `fork` starts
/// another such process, and `listen PORT` makes it listen.
pub(crate) fn play_role() -> Option<()> {
    use rustix::event::epoll;
    std::env::var_os(ROLE)?;
    let _socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    let mut epolls = vec![epoll::create(epoll::CreateFlags::CLOEXEC).ok()?];
    let (mut child, mut listeners) = (None, Vec::new());
    for line in std::io::stdin().lines() {
        match line.ok()?.as_str() {
            line if line.starts_with("listen ") => {
                let port = line["listen ".len()..].parse().ok()?;
                listeners.push(std::net::TcpListener::bind(("0.0.0.0", port)).ok()?);
            }
            // Start another thread, which could wait in an epoll. It ends with the process.
            "thread" => drop(std::thread::spawn(std::thread::park)),
            "fork" => child = Some(Command::new("/proc/self/exe").stdin(Stdio::piped()).spawn().ok()?),
            _ => epolls.push(epoll::create(epoll::CreateFlags::CLOEXEC).ok()?),
        }
    }
    if let Some(mut child) = child {
        drop(child.stdin.take());
        let _ = child.wait();
    }
    Some(())
}

/// A process on the lab's server that creates epolls. Dropping it kills it.
pub(crate) struct EpollMaker(Child);

impl EpollMaker {
    pub(crate) fn new(operator: &Operator) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, "1").stdin(Stdio::piped());
        let maker = Self(operator.lab.server().run(|| command.spawn())??);
        waited_for("the first epoll", || Ok((maker.epolls(operator)?.len() == 1).then_some(())))?;
        Ok(maker)
    }

    pub(crate) fn send(&mut self, line: &str) -> Result<(), Failed> {
        Ok(writeln!(self.0.stdin.as_mut().ok_or("stdin")?, "{line}")?)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    pub(crate) fn epolls(&self, operator: &Operator) -> Result<Vec<EpollParams>, Failed> {
        Ok(epolls_of(&operator.host()?, self.pid()))
    }
}

impl Drop for EpollMaker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn epolls_of(host: &Host, pid: Pid) -> Vec<EpollParams> {
    let epolls = host.process(pid).into_iter().flat_map(|process| &process.epolls);
    epolls.filter_map(|epoll| epoll.params).collect()
}

fn memcached() -> Result<(), Failed> {
    let operator = Operator::new("memcached", 2)?;
    let server =
        operator.lab.start_memcached(&MemcachedOptions { threads: 2, ..MemcachedOptions::default() })?;
    let pid = server.process().pid;
    let before = operator.host()?;
    let attach = operator.starts(&["attach", &pid.to_string(), "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    let attached = operator.host()?;
    assert_eq!(
        epolls_of(&attached, pid),
        [SUSPENDING; 3],
        "the epolls of the main thread and of two workers"
    );
    assert!(flushes(&attached).contains(&20_000));
    assert_eq!(attach.terminated()?, Some(0));
    operator.waits_to_hear("Restored")?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn new_epoll() -> Result<(), Failed> {
    let operator = Operator::new("new-epoll", 1)?;
    let mut maker = EpollMaker::new(&operator)?;
    let before = operator.host()?;
    let attach = operator.starts(&["attach", &maker.pid().to_string(), "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    assert_eq!(maker.epolls(&operator)?, [SUSPENDING]);
    maker.send("another")?;
    waited_for("the second epoll's parameters", || {
        Ok((maker.epolls(&operator)? == [SUSPENDING; 2]).then_some(()))
    })?;
    assert_eq!(attach.terminated()?, Some(0));
    assert_eq!(maker.epolls(&operator)?, [EpollParams::default(); 2]);
    assert_eq!(flushes(&operator.devices()?), flushes(&before));
    Ok(())
}

fn child() -> Result<(), Failed> {
    let operator = Operator::new("child", 1)?;
    let mut maker = EpollMaker::new(&operator)?;
    let attach = operator.starts(&["attach", &maker.pid().to_string(), "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    maker.send("fork")?;
    waited_for("the child's parameters", || {
        let host = operator.host()?;
        let others = host.processes.iter().filter(|process| process.id.pid != maker.pid());
        Ok(others
            .flat_map(|process| &process.epolls)
            .any(|epoll| epoll.params == Some(SUSPENDING))
            .then_some(()))
    })?;
    assert_eq!(attach.terminated()?, Some(0));
    let left = operator
        .host()?
        .processes
        .iter()
        .flat_map(|p| &p.epolls)
        .filter(|e| e.params == Some(SUSPENDING))
        .count();
    assert_eq!(left, 0, "all of the parameters were restored");
    Ok(())
}

fn ended() -> Result<(), Failed> {
    let operator = Operator::new("ended", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let mut attach = operator.starts(&["attach", &maker.pid().to_string(), "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    assert_eq!(flushes(&operator.devices()?), [20_000]);
    drop(maker);
    assert_eq!(attach.child.wait()?.code(), Some(0), "the attachment ends with its process");
    assert_eq!(flushes(&operator.devices()?), [0]);
    Ok(())
}

fn once() -> Result<(), Failed> {
    let operator = Operator::new("once", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    // Without --netns, the command uses the process's own namespace.
    let mut attach = operator.netpolicy_here(&["attach", &server.process().pid.to_string()]);
    let attached = attach.args(["--delivery", "suspend20", "--once"]).output()?;
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    assert_eq!(epolls_of(&operator.host()?, server.process().pid), [SUSPENDING; 2]);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn second_attachment() -> Result<(), Failed> {
    let operator = Operator::new("second", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let (pid, before) = (maker.pid().to_string(), operator.host()?);
    let first = operator.starts(&["attach", &pid, "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    let attached = operator.host()?;
    let holder = format!("process {}", first.child.id());
    for other in
        [&["attach", &pid, "--delivery", "defer50"][..], &["set", "task", &pid, "defer50"], &["rollback"]]
    {
        let refused = operator.runs(other, 7)?;
        assert!(refused.words.contains(&holder), "{}", refused.words);
    }
    assert_eq!(operator.host()?, attached);
    assert_eq!(first.terminated()?, Some(0));
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn link_down() -> Result<(), Failed> {
    let operator = Operator::new("link-down", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let attach = operator.starts(&["attach", &maker.pid().to_string(), "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    operator.sets_link("down")?;
    operator.waits_to_hear("nothing can be set yet")?;
    operator.sets_link("up")?;
    waited_for("the queue's settings", || Ok((flushes(&operator.devices()?) == [20_000]).then_some(())))?;
    assert_eq!(attach.terminated()?, Some(0));
    assert_eq!(flushes(&operator.devices()?), [0]);
    Ok(())
}

fn left_running() -> Result<(), Failed> {
    let operator = Operator::new("left-running", 1)?;
    let before = operator.host()?;
    let left = operator.file("left", b"")?;
    // On a busy machine, inspecting the processes that the command started takes seconds.
    let script = format!("sleep 60 >/dev/null 2>&1 & echo $! > {left}; sleep 10; exit 4");
    let said = operator.runs(&["run", "--delivery", "suspend20", "--", "sh", "-c", &script], 4)?;
    let left = std::fs::read_to_string(left)?.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(
        left.ok_or("the pid of the process that was left running")?,
        rustix::process::Signal::KILL,
    )?;
    assert!(said.words.contains("sleep[") && said.words.contains("is still running"), "{}", said.words);
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn kernel_thread() -> Result<(), Failed> {
    /// The pid of kthreadd, the parent of all kernel threads, in the initial pid namespace.
    const KTHREADD: &str = "2";
    if !std::fs::read_to_string("/proc/2/stat").is_ok_and(|stat| stat.contains("(kthreadd)")) {
        return Ok(());
    }
    let operator = Operator::new("kernel-thread", 1)?;
    for command in [
        &["attach", KTHREADD, "--delivery", "suspend20", "--once"][..],
        &["set", "task", KTHREADD, "suspend20"],
    ] {
        let refused = operator.runs(command, 6)?;
        assert!(refused.words.contains("a kernel thread"), "{}", refused.words);
    }
    Ok(())
}

fn set_task() -> Result<(), Failed> {
    let operator = Operator::new("set-task", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let pid = server.process().pid.to_string();
    operator.runs(&["set", "task", &pid, "suspend20"], 0)?;
    assert_eq!(epolls_of(&operator.host()?, server.process().pid), [SUSPENDING; 2]);
    let again = operator.runs(&["set", "task", &pid, "suspend20"], 0)?;
    assert!(again.words.contains("Nothing to change"), "{}", again.words);
    Ok(())
}

/// Waits until the child of a running `netpolicy run` has called exec, and returns the child.
fn started(operator: &Operator, comm: &str) -> Result<Pid, Failed> {
    waited_for(comm, || {
        let host = operator.host()?;
        let found = host.processes.iter().find(|process| process.id.comm.as_str() == comm);
        Ok(found.map(|process| process.id.pid))
    })
}

const SERVER: [&str; 5] = ["memcached", "-u", "nobody", "-t", "1"];

fn run() -> Result<(), Failed> {
    let operator = Operator::new("run", 1)?;
    let before = operator.host()?;
    let arguments: Vec<&str> = ["run", "--delivery", "suspend20", "--"].into_iter().chain(SERVER).collect();
    let running = operator.starts(&arguments)?;
    let pid = started(&operator, "memcached")?;
    waited_for("its parameters", || {
        let epolls = epolls_of(&operator.host()?, pid);
        Ok((epolls.len() == 2 && epolls.iter().all(|params| *params == SUSPENDING)).then_some(()))
    })?;
    // memcached exits with 0 on SIGTERM.
    assert_eq!(running.terminated()?, Some(0));
    assert_eq!(operator.host()?, before);
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137), ("sleep 0.3; exit 3", 3)] {
        let said = operator.runs(&["run", "--delivery", "suspend20", "--", "sh", "-c", script], code)?;
        assert!(said.words.contains("Nothing was set for the command"), "{}", said.words);
    }
    let failed = operator.runs(&["run", "--delivery", "suspend20", "--", "/nonexistent/command"], 1)?;
    assert!(failed.words.contains("/nonexistent/command"), "{}", failed.words);
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn run_fullbusy() -> Result<(), Failed> {
    let operator = Operator::new("fullbusy", 1)?;
    let before = operator.host()?;
    let beyond: Vec<&str> = ["run", "--delivery", "fullbusy", "--"].into_iter().chain(SERVER).collect();
    let refused = operator.runs(&beyond, 7)?;
    assert!(refused.words.contains("--polling-cpus"), "{}", refused.words);
    let arguments: Vec<&str> =
        ["run", "--delivery", "fullbusy", "--polling-cpus", "8", "--"].into_iter().chain(SERVER).collect();
    let running = operator.starts(&arguments)?;
    let pid = started(&operator, "memcached")?;
    let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("NETPOLICY_EPOLL_WAIT_CAP_US=1000"), "{environment}");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    assert!(maps.contains("netpolicy-epoll-cap"), "the library is loaded");
    assert_eq!(running.terminated()?, Some(0));
    assert_eq!(operator.host()?, before);
    Ok(())
}

/// The child inherits its parent's epoll under the same descriptor, and has no other epoll.
const FORKS: &str = "
import os, select, socket, time
listening = socket.create_server(('0.0.0.0', 9))
epoll = select.epoll()
epoll.register(listening, select.EPOLLIN)
while True:
    child = os.fork()
    if child == 0:
        time.sleep(0.3)
        os._exit(0)
    time.sleep(0.05)
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass
";

fn forking() -> Result<(), Failed> {
    let operator = Operator::new("forking", 1)?;
    let mut command = Command::new("python3");
    command.args(["-c", FORKS]);
    let server = EpollMaker(operator.lab.server().run(|| command.spawn())??);
    waited_for("the server's epoll", || Ok((server.epolls(&operator)?.len() == 1).then_some(())))?;
    let before = server.epolls(&operator)?;
    let attach = operator.starts(&["attach", &server.pid().to_string(), "--delivery", "suspend20"])?;
    operator.waits_to_hear("Attached.")?;
    std::thread::sleep(Duration::from_secs(2));
    let attached = server.epolls(&operator)?;
    assert!(attached[0].prefer_busy_poll, "the process is still attached: {attached:?}");
    assert_eq!(attach.terminated()?, Some(0));
    assert_eq!(server.epolls(&operator)?, before);
    Ok(())
}

fn eventbusy_refused() -> Result<(), Failed> {
    let operator = Operator::new("no-eventbusy", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let before = operator.host()?;
    let pid = maker.pid().to_string();
    for arguments in [["attach", &pid, "--delivery", "eventbusy"], ["set", "task", &pid, "eventbusy"]] {
        // netpolicy reports a missing kernel feature before a missing budget, because a larger budget would
        // not help.
        let refused = operator.runs(&arguments, 6)?;
        for why in ["EPIOCSPARAMS refuses EPOLL_PARAMS_F_EVENTS_ONLY", "userbusy", "Nothing was changed."] {
            assert!(refused.words.contains(why), "{why}: {}", refused.words);
        }
    }
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn eventbusy() -> Result<(), Failed> {
    let operator = Operator::new("eventbusy", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let pid = server.process().pid;
    let before = operator.host()?;
    let arguments = ["attach", &pid.to_string(), "--delivery", "eventbusy", "--polling-cpus", "8"];
    let attach = operator.starts(&arguments)?;
    operator.waits_to_hear("Attached.")?;
    let attached = operator.host()?;
    let waits = EpollParams { busy_poll_usecs: 200, events_only: true, ..EpollParams::default() };
    assert_eq!(epolls_of(&attached, pid), [waits; 2], "the epolls of the main thread and of the worker");
    assert_eq!(flushes(&attached), flushes(&before), "softirqs deliver as before");
    assert_eq!(attach.terminated()?, Some(0));
    operator.waits_to_hear("Restored")?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn run_userbusy() -> Result<(), Failed> {
    let operator = Operator::new("userbusy", 1)?;
    let before = operator.host()?;
    let beyond: Vec<&str> = ["run", "--delivery", "userbusy", "--"].into_iter().chain(SERVER).collect();
    let refused = operator.runs(&beyond, 7)?;
    assert!(refused.words.contains("busy-waiting when idle"), "{}", refused.words);
    let arguments: Vec<&str> =
        ["run", "--delivery", "userbusy", "--polling-cpus", "8", "--"].into_iter().chain(SERVER).collect();
    let running = operator.starts(&arguments)?;
    let pid = started(&operator, "memcached")?;
    let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
    assert!(String::from_utf8_lossy(&environment).contains("NETPOLICY_EPOLL_WAIT_CAP_US=0\0"));
    // The server keeps calling epoll_wait, which never sleeps.
    let ticks = || -> Result<u64, Failed> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after = stat.rsplit_once(')').ok_or("comm")?.1;
        let used = after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
        Ok(used.sum())
    };
    let begin = ticks()?;
    waited_for("CPU time without a connection", || Ok((ticks()? > begin + 5).then_some(())))?;
    assert_eq!(
        epolls_of(&operator.host()?, pid),
        [EpollParams::default(); 2],
        "no setting of the kernel was changed"
    );
    let attach = operator.runs(&["attach", &pid.to_string(), "--delivery", "userbusy"], 6)?;
    assert!(attach.words.contains("epoll_wait that never sleeps"), "{}", attach.words);
    assert_eq!(running.terminated()?, Some(0));
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn run_without_linker() -> Result<(), Failed> {
    let operator = Operator::new("script", 1)?;
    // The file is only an ELF header: no dynamic linker could load the library into it.
    let program = operator.file("static", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0")?;
    let refused =
        operator.runs(&["run", "--delivery", "fullbusy", "--polling-cpus", "8", "--", &program], 6)?;
    assert!(refused.words.contains("Nothing was changed."), "{}", refused.words);
    Ok(())
}
