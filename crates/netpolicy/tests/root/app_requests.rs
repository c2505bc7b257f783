//! Tests requests that applications make for their sockets and themselves, from `setsockopt` to the settings
//! of the epoll and the queues.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use libtest_mimic::{Failed, Trial};
use linux::socket_policy;
use model::{EpollParams, Pid};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use testkit::operator::{Operator, Started, waited_for};
use testkit::{Need, test};

/// The environment variable that makes this test program act as the requesting process.
const ROLE: &str = "NETPOLICY_TEST_ASKER";

const SUSPENDING: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf];
    vec![
        test("app_requests/a_sockets_epoll_gets_what_the_socket_asks_for", NEEDS, sockets_epoll),
        test("app_requests/a_daemon_applies_and_releases_them_within_seconds", NEEDS, by_daemon),
        test("app_requests/a_daemon_finds_earlier_requests_at_its_start", NEEDS, asked_before),
        test("app_requests/a_daemon_skips_an_impossible_request_and_keeps_the_rest", NEEDS, beyond_bounds),
        test("app_requests/a_child_inherits_what_its_process_was_given", NEEDS, child_inherits),
        test("app_requests/a_request_made_without_a_daemon_is_taken_back_with_one", NEEDS, given_before),
        test("app_requests/a_refused_prctl_leaves_the_allowed_policies_unchanged", NEEDS, refused_prctl),
        test(
            "app_requests/without_a_bpf_file_system_it_is_refused_with_what_is_missing",
            NEEDS,
            no_file_system,
        ),
    ]
}

/// Acts as the requesting process: creates two epolls, each of which watches a socket. The first socket
/// requests short response times. A line `fork` starts a process with the same sockets but no request;
/// `request N` requests policy N for the first socket.
pub(crate) fn play_role() -> Option<()> {
    let role = std::env::var(ROLE).ok()?;
    if ask(&role).is_none() {
        std::process::exit(1); // The parent then times out waiting for the epolls.
    }
    Some(())
}

fn ask(role: &str) -> Option<()> {
    use rustix::event::epoll;
    // Wait until this process has been moved to its cgroup, because a socket belongs to the cgroup in which
    // it was created.
    let mut lines = std::io::stdin().lines();
    // The parent may close the pipe without writing a line.
    let Some(Ok(_)) = lines.next() else { return Some(()) };
    let epolls = [(); 2].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC));
    let mut sockets = Vec::new();
    for epoll in &epolls {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        epoll::add(epoll.as_ref().ok()?, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .ok()?;
        sockets.push(socket);
    }
    if role == "asks" {
        socket_policy::set_socket(&sockets[0], 3).ok()?;
    }
    let mut child = None;
    for line in lines {
        let line = line.ok()?;
        if let Some(number) = line.strip_prefix("request ") {
            socket_policy::set_socket(&sockets[0], number.parse().ok()?).ok()?;
        }
        if line == "fork" {
            let mut command = Command::new("/proc/self/exe");
            command.env(ROLE, "silent").stdin(Stdio::piped());
            child = command.spawn().ok();
            child.as_mut()?.stdin.as_mut()?.write_all(b"go\n").ok()?;
        }
    }
    if let Some(mut child) = child {
        drop(child.stdin.take());
        let _ = child.wait();
    }
    Some(())
}

/// A BPF file system and a cgroup for one test, with a process in it. Dropping it removes them and kills the
/// process.
struct Fixture {
    mounted: Vec<PathBuf>,
    /// The directory of the requests.
    store: String,
    cgroup: PathBuf,
    asker: Child,
}

impl Fixture {
    fn new(operator: &Operator, name: &str, role: &str) -> Result<Self, Failed> {
        let scratch = operator.state().with_file_name("bpf");
        std::fs::create_dir_all(&scratch)?;
        mount("bpf", &scratch, "bpf", MountFlags::empty(), None::<&std::ffi::CStr>)?;
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let root = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
        let mut mounted = vec![scratch.clone()];
        let root = match root.and_then(|line| line.split(' ').nth(1)) {
            Some(root) => PathBuf::from(root),
            None => {
                let root = operator.state().with_file_name("cgroup");
                std::fs::create_dir_all(&root)?;
                mount("cgroup2", &root, "cgroup2", MountFlags::empty(), None::<&std::ffi::CStr>)?;
                mounted.push(root.clone());
                root
            }
        };
        let cgroup = root.join(format!("netpolicy-root-{name}-{}", std::process::id()));
        std::fs::create_dir(&cgroup)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, role).stdin(Stdio::piped());
        let asker = operator.lab.server().run(|| command.spawn())??;
        let store = scratch.join("netpolicy").display().to_string();
        let fixture = Self { mounted, store, cgroup, asker };
        std::fs::write(fixture.cgroup.join("cgroup.procs"), fixture.pid().to_string())?;
        Ok(fixture)
    }

    fn pid(&self) -> Pid {
        Pid(self.asker.id())
    }

    fn send(&mut self, line: &str) -> Result<(), Failed> {
        Ok(writeln!(self.asker.stdin.as_mut().ok_or("stdin")?, "{line}")?)
    }

    /// Adds the option that selects the directory of the requests before these arguments.
    fn with<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["--app-request-dir", self.store.as_str()];
        all.extend(arguments);
        all
    }

    fn cgroup(&self) -> &str {
        self.cgroup.to_str().unwrap_or_default()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.asker.stdin.take());
        let _ = self.asker.wait();
        let _ = waited_for("the cgroup is empty", || Ok(std::fs::remove_dir(&self.cgroup).ok()));
        for path in self.mounted.iter().rev() {
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

fn epolls_of(operator: &Operator, pid: Pid) -> Result<Vec<EpollParams>, Failed> {
    let host = operator.host()?;
    let epolls = host.process(pid).into_iter().flat_map(|process| &process.epolls);
    Ok(epolls.filter_map(|epoll| epoll.params).collect())
}

fn sockets_epoll() -> Result<(), Failed> {
    let operator = Operator::new("app-requests", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut fixture = Fixture::new(&operator, "app-requests", "asks")?;
    operator
        .runs(&fixture.with(&["sockets", "enable", "--cgroup", fixture.cgroup(), "--allow", "bulk"]), 0)?;
    fixture.send("go")?;
    let pid = fixture.pid();
    waited_for("two epolls", || Ok((epolls_of(&operator, pid)?.len() == 2).then_some(())))?;
    let before = operator.host()?;
    let listed = operator.runs(&fixture.with(&["sockets", "list"]), 0)?;
    assert!(listed.data.contains("1 socket: latency, set by the process itself"), "{}", listed.data);
    assert!(listed.data.contains("any user may request bulk"), "{}", listed.data);
    // No policy file requests anything, so the socket's request is the only one.
    let planned = operator.runs(&fixture.with(&["plan"]), 3)?;
    assert!(planned.data.contains("SO_NETPOLICY of the sockets"), "{}", planned.data);
    operator.runs(&fixture.with(&["apply"]), 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [SUSPENDING, EpollParams::default()]);
    operator.runs(&fixture.with(&["plan"]), 0)?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    operator.runs(&fixture.with(&["sockets", "disable", "--all"]), 0)?;
    assert!(!std::path::Path::new(&fixture.store).exists(), "nothing stays pinned");
    let nothing = operator.runs(&fixture.with(&["plan"]), 2)?;
    assert!(nothing.words.contains("there is no policy"), "{}", nothing.words);
    Ok(())
}

/// Starts a daemon that reads the requests of this fixture.
fn daemon(operator: &Operator, fixture: &Fixture) -> Result<Started, Failed> {
    let daemon = operator.starts(&fixture.with(&["daemon"]))?;
    operator.waits_to_hear("at work")?;
    Ok(daemon)
}

fn has(operator: &Operator, pid: Pid, wanted: &[EpollParams]) -> Result<(), Failed> {
    waited_for(&format!("epolls with {wanted:?}"), || Ok((epolls_of(operator, pid)? == wanted).then_some(())))
}

fn by_daemon() -> Result<(), Failed> {
    let operator = Operator::new("app-requests-daemon", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut fixture = Fixture::new(&operator, "app-requests-daemon", "silent")?;
    let pid = fixture.pid();
    let enable = fixture.with(&["sockets", "enable", "--cgroup", fixture.cgroup(), "--allow", "latency"]);
    let enable: Vec<String> = enable.into_iter().map(str::to_owned).collect();
    let enable: Vec<&str> = enable.iter().map(String::as_str).collect();
    operator.runs(&enable, 0)?;
    let daemon = daemon(&operator, &fixture)?;
    fixture.send("go")?;
    has(&operator, pid, &[EpollParams::default(); 2])?;
    // The daemon reacts immediately: at least one of these attempts must succeed before its next tick.
    for _ in 0..3 {
        let asked = std::time::Instant::now();
        fixture.send("request 3")?;
        has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
        fixture.send("request 0")?;
        has(&operator, pid, &[EpollParams::default(); 2])?;
        assert!(asked.elapsed() < std::time::Duration::from_secs(8), "{:?}", asked.elapsed());
    }
    fixture.send("request 3")?;
    has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
    let status = operator.runs(&["status"], 0)?.data;
    assert!(status.contains(&format!("of task {pid}")) && status.contains("SO_NETPOLICY"), "{status}");
    let shown = operator.runs(&fixture.with(&["show"]), 0)?.data;
    let line = shown.lines().find(|line| line.contains("1 socket of epoll")).unwrap_or_default();
    assert!(line.contains("latency"), "{shown}");
    // `disable` ends all requests. Once requests are enabled again, the daemon sees new ones.
    for _ in 0..3 {
        operator.runs(&fixture.with(&["sockets", "disable", "--all"]), 0)?;
        has(&operator, pid, &[EpollParams::default(); 2])?;
        let asked = std::time::Instant::now();
        operator.runs(&enable, 0)?;
        fixture.send("request 3")?;
        has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
        assert!(asked.elapsed() < std::time::Duration::from_secs(8), "{:?}", asked.elapsed());
    }
    operator.runs(&fixture.with(&["sockets", "disable", "--all"]), 0)?;
    has(&operator, pid, &[EpollParams::default(); 2])?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    Ok(())
}

fn asked_before() -> Result<(), Failed> {
    let operator = Operator::new("app-requests-before", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut fixture = Fixture::new(&operator, "app-requests-before", "asks")?;
    let pid = fixture.pid();
    operator
        .runs(&fixture.with(&["sockets", "enable", "--cgroup", fixture.cgroup(), "--allow", "latency"]), 0)?;
    fixture.send("go")?;
    has(&operator, pid, &[EpollParams::default(); 2])?;
    let first = daemon(&operator, &fixture)?;
    has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
    // The next daemon finds the settings already in force, and changes nothing.
    assert_eq!(first.terminated()?, Some(0));
    let before = operator.runs(&["-o", "json", "history"], 0)?.data;
    let next = daemon(&operator, &fixture)?;
    operator.waits_to_hear("Resuming: ")?;
    assert_eq!(next.terminated()?, Some(0));
    assert_eq!(operator.runs(&["-o", "json", "history"], 0)?.data, before);
    assert_eq!(epolls_of(&operator, pid)?, [SUSPENDING, EpollParams::default()]);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [EpollParams::default(); 2]);
    operator.runs(&fixture.with(&["sockets", "disable", "--all"]), 0)?;
    Ok(())
}

fn beyond_bounds() -> Result<(), Failed> {
    let operator = Operator::new("app-requests-bounds", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut fixture = Fixture::new(&operator, "app-requests-bounds", "silent")?;
    let pid = fixture.pid();
    operator.asks(&format!("[device.{}]\ndelivery = \"defer50\"\n", linux::lab::SERVER_DEVICE))?;
    let enable = ["sockets", "enable", "--cgroup", fixture.cgroup(), "--allow", "latency"];
    operator.runs(&fixture.with(&enable), 0)?;
    let daemon = daemon(&operator, &fixture)?;
    fixture.send("go")?;
    fixture.send("request 3")?;
    // The operator's request is in force. The status mentions the application's request, but not as a
    // problem.
    waited_for("the request in the status", || {
        let output = operator.netpolicy(&["status"]).output()?;
        let status = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((status.contains(&format!("of task {pid}")) && output.status.code() == Some(0)).then_some(()))
    })?;
    // An operator's request for a pid takes precedence over the process's own request.
    operator.runs(&["set", "task", &pid.to_string(), "none"], 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [EpollParams::default(); 2]);
    let status = operator.runs(&["status"], 0)?.data;
    assert!(!status.contains("SO_NETPOLICY"), "{status}");
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    operator.runs(&fixture.with(&["sockets", "disable", "--all"]), 0)?;
    Ok(())
}

fn given_before() -> Result<(), Failed> {
    let operator = Operator::new("app-requests-given", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut fixture = Fixture::new(&operator, "app-requests-given", "silent")?;
    fixture.send("go")?;
    let pid = fixture.pid();
    waited_for("two epolls", || Ok((epolls_of(&operator, pid)?.len() == 2).then_some(())))?;
    let number = pid.to_string();
    operator.runs(&fixture.with(&["set", "task", &number, "latency"]), 0)?;
    operator.runs(&["rollback"], 0)?;
    operator.asks("# nothing\n")?;
    let daemon = operator.starts(&fixture.with(&["daemon"]))?;
    waited_for("the policy that was requested", || {
        Ok((epolls_of(&operator, pid)? == [SUSPENDING; 2]).then_some(()))
    })?;
    let said = operator.runs(&fixture.with(&["unset", "task", &number]), 0)?;
    assert!(said.words.contains("the request is withdrawn"), "{}", said.words);
    assert_eq!(epolls_of(&operator, pid)?, [EpollParams::default(); 2]);
    let listed = operator.runs(&fixture.with(&["sockets", "list"]), 0)?;
    assert!(!listed.data.contains(&format!("task {pid} ")), "{}", listed.data);
    operator.runs(&fixture.with(&["unset", "task", &number]), 1)?;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

fn child_inherits() -> Result<(), Failed> {
    let operator = Operator::new("app-requests-child", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut fixture = Fixture::new(&operator, "app-requests-child", "silent")?;
    fixture.send("go")?;
    let pid = fixture.pid();
    waited_for("two epolls", || Ok((epolls_of(&operator, pid)?.len() == 2).then_some(())))?;
    let number = pid.to_string();
    operator.runs(&fixture.with(&["set", "task", &number, "latency"]), 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [SUSPENDING; 2]);
    fixture.send("fork")?;
    let child = waited_for("a child process with two epolls", || {
        let host = operator.host()?;
        let child = host.processes.iter().find(|process| process.id.pid != pid && process.epolls.len() == 2);
        Ok(child.map(|child| child.id.pid))
    })?;
    let listed = operator.runs(&fixture.with(&["sockets", "list"]), 0)?;
    assert!(
        listed.data.contains(&format!("task {child} and its future children: latency")),
        "{}",
        listed.data
    );
    operator.runs(&fixture.with(&["apply"]), 0)?;
    assert_eq!(epolls_of(&operator, child)?, [SUSPENDING; 2]);
    // `none` withdraws the policy that `set task` has set.
    operator.runs(&fixture.with(&["set", "task", &number, "none"]), 0)?;
    let listed = operator.runs(&fixture.with(&["sockets", "list"]), 0)?;
    assert!(!listed.data.contains(&format!("task {pid} ")), "{}", listed.data);
    operator.runs(&fixture.with(&["sockets", "disable", "--all"]), 0)?;
    assert!(!std::path::Path::new(&fixture.store).exists(), "nothing stays pinned");
    Ok(())
}

fn no_file_system() -> Result<(), Failed> {
    let operator = Operator::new("app-requests-nowhere", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let fixture = Fixture::new(&operator, "app-requests-nowhere", "silent")?;
    let elsewhere = operator.state().with_file_name("elsewhere");
    let place = elsewhere.to_str().unwrap_or_default();
    let said =
        operator.runs(&["--app-request-dir", place, "sockets", "enable", "--cgroup", fixture.cgroup()], 6)?;
    assert!(said.words.contains("mount -t bpf"), "{}", said.words);
    assert!(!elsewhere.exists());
    Ok(())
}

fn refused_prctl() -> Result<(), Failed> {
    let operator = Operator::new("app-requests-prctl", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let fixture = Fixture::new(&operator, "app-requests-prctl", "silent")?;
    let enable = ["sockets", "enable", "--cgroup", fixture.cgroup()];
    let narrow = [&enable[..], &["--allow", "bulk", "--allow-user", "5:cpu"]].concat();
    operator.runs(&fixture.with(&narrow), 0)?;
    let bounds =
        || Ok::<_, Failed>(operator.runs(&fixture.with(&["-o", "json", "sockets", "list"]), 0)?.data);
    let before = bounds()?;
    assert!(before.contains("bulk") && before.contains("cpu") && !before.contains("latency"), "{before}");
    let wide = [&enable[..], &["--prctl", "--allow", "latency"]].concat();
    let answer = operator.netpolicy(&fixture.with(&wide)).output()?;
    // A kernel whose BPF does not support prctl refuses the command and changes nothing; any other kernel
    // applies it.
    match answer.status.code() {
        Some(6) => assert_eq!(bounds()?, before),
        Some(0) => assert!(bounds()?.contains("latency")),
        _ => return Err(String::from_utf8_lossy(&answer.stderr).into()),
    }
    operator.runs(&fixture.with(&["sockets", "disable", "--all"]), 0)?;
    Ok(())
}
