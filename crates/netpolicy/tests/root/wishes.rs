//! What applications ask for their sockets and themselves, from `setsockopt` to the epoll and the queues.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use libtest_mimic::{Failed, Trial};
use linux::socket_policy;
use model::{EpollParams, Pid};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::operator::{Operator, Started, waited_for};
use crate::{Need, test};

/// The variable that makes this program a process that asks.
const ROLE: &str = "NETPOLICY_TEST_ASKER";

const SUSPENDING: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf];
    vec![
        test("wishes/a_sockets_epoll_gets_what_the_socket_asks_for", NEEDS, sockets_epoll),
        test("wishes/a_daemon_hears_of_them_at_once_and_lets_go_of_them", NEEDS, by_daemon),
        test("wishes/a_daemon_finds_at_its_start_who_has_asked_before", NEEDS, asked_before),
        test("wishes/a_daemon_leaves_out_what_cannot_be_had_and_keeps_the_rest", NEEDS, beyond_bounds),
        test("wishes/a_child_inherits_what_its_process_was_given", NEEDS, child_inherits),
        test("wishes/what_was_given_without_a_daemon_is_taken_back_with_one", NEEDS, given_before),
        test("wishes/a_refused_prctl_leaves_as_it_was_who_may_choose_what", NEEDS, refused_prctl),
        test("wishes/without_a_bpf_file_system_it_is_refused_with_what_is_missing", NEEDS, no_file_system),
    ]
}

/// The role: two epolls with a socket each, the first of which asks for short response times; a line `fork` starts
/// another of its kind, whose sockets ask for nothing by themselves, and `wish N` asks for policy N for the first one.
pub(crate) fn play_role() -> Option<()> {
    let role = std::env::var(ROLE).ok()?;
    if ask(&role).is_none() {
        std::process::exit(1); // whoever waits for its epolls waits in vain
    }
    Some(())
}

fn ask(role: &str) -> Option<()> {
    use rustix::event::epoll;
    // It is in its cgroup before it makes sockets: a socket belongs to the cgroup where it was made.
    let mut lines = std::io::stdin().lines();
    // Nobody may say a word to it.
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
        if let Some(number) = line.strip_prefix("wish ") {
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

/// A BPF file system and a cgroup for one test, with a process in it. Dropping it ends all of them.
struct Ground {
    mounted: Vec<PathBuf>,
    /// Where wishes are kept.
    wishes: String,
    cgroup: PathBuf,
    asker: Child,
}

impl Ground {
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
        let wishes = scratch.join("netpolicy").display().to_string();
        let ground = Self { mounted, wishes, cgroup, asker };
        std::fs::write(ground.cgroup.join("cgroup.procs"), ground.pid().to_string())?;
        Ok(ground)
    }

    fn pid(&self) -> Pid {
        Pid(self.asker.id())
    }

    fn told(&mut self, line: &str) -> Result<(), Failed> {
        Ok(writeln!(self.asker.stdin.as_mut().ok_or("stdin")?, "{line}")?)
    }

    /// Arguments that begin with where wishes are kept.
    fn with<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["--wish-dir", self.wishes.as_str()];
        all.extend(arguments);
        all
    }

    fn cgroup(&self) -> &str {
        self.cgroup.to_str().unwrap_or_default()
    }
}

impl Drop for Ground {
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
    let operator = Operator::new("wishes", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut ground = Ground::new(&operator, "wishes", "asks")?;
    operator.runs(&ground.with(&["sockets", "enable", "--cgroup", ground.cgroup(), "--allow", "bulk"]), 0)?;
    ground.told("go")?;
    let pid = ground.pid();
    waited_for("two epolls", || Ok((epolls_of(&operator, pid)?.len() == 2).then_some(())))?;
    let before = operator.host()?;
    let listed = operator.runs(&ground.with(&["sockets", "list"]), 0)?;
    assert!(listed.data.contains("1 socket: latency, their own choice"), "{}", listed.data);
    assert!(listed.data.contains("anybody may ask for bulk"), "{}", listed.data);
    // No file asks for anything: what the socket asks for is all there is.
    let planned = operator.runs(&ground.with(&["plan"]), 3)?;
    assert!(planned.data.contains("SO_NETPOLICY of the sockets"), "{}", planned.data);
    operator.runs(&ground.with(&["apply"]), 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [SUSPENDING, EpollParams::default()]);
    operator.runs(&ground.with(&["plan"]), 0)?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    operator.runs(&ground.with(&["sockets", "disable", "--all"]), 0)?;
    assert!(!std::path::Path::new(&ground.wishes).exists(), "nothing stays pinned");
    let nothing = operator.runs(&ground.with(&["plan"]), 2)?;
    assert!(nothing.words.contains("there is no policy"), "{}", nothing.words);
    Ok(())
}

/// A daemon that reads the wishes of this ground.
fn daemon(operator: &Operator, ground: &Ground) -> Result<Started, Failed> {
    let daemon = operator.starts(&ground.with(&["daemon"]))?;
    operator.waits_to_hear("at work")?;
    Ok(daemon)
}

fn has(operator: &Operator, pid: Pid, wanted: &[EpollParams]) -> Result<(), Failed> {
    waited_for(&format!("epolls with {wanted:?}"), || Ok((epolls_of(operator, pid)? == wanted).then_some(())))
}

fn by_daemon() -> Result<(), Failed> {
    let operator = Operator::new("wishes-daemon", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut ground = Ground::new(&operator, "wishes-daemon", "silent")?;
    let pid = ground.pid();
    let enable = ground.with(&["sockets", "enable", "--cgroup", ground.cgroup(), "--allow", "latency"]);
    let enable: Vec<String> = enable.into_iter().map(str::to_owned).collect();
    let enable: Vec<&str> = enable.iter().map(String::as_str).collect();
    operator.runs(&enable, 0)?;
    let daemon = daemon(&operator, &ground)?;
    ground.told("go")?;
    has(&operator, pid, &[EpollParams::default(); 2])?;
    // It does not wait for a tick: one of these comes before the next.
    for _ in 0..3 {
        let asked = std::time::Instant::now();
        ground.told("wish 3")?;
        has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
        ground.told("wish 0")?;
        has(&operator, pid, &[EpollParams::default(); 2])?;
        assert!(asked.elapsed() < std::time::Duration::from_secs(8), "{:?}", asked.elapsed());
    }
    ground.told("wish 3")?;
    has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
    let status = operator.runs(&["status"], 0)?.data;
    assert!(status.contains(&format!("of task {pid}")) && status.contains("SO_NETPOLICY"), "{status}");
    let shown = operator.runs(&ground.with(&["show"]), 0)?.data;
    let line = shown.lines().find(|line| line.contains("1 socket of epoll")).unwrap_or_default();
    assert!(line.contains("latency"), "{shown}");
    // Nobody may ask any more: nobody asks. Who may ask again is heard of at once, too.
    for _ in 0..3 {
        operator.runs(&ground.with(&["sockets", "disable", "--all"]), 0)?;
        has(&operator, pid, &[EpollParams::default(); 2])?;
        let asked = std::time::Instant::now();
        operator.runs(&enable, 0)?;
        ground.told("wish 3")?;
        has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
        assert!(asked.elapsed() < std::time::Duration::from_secs(8), "{:?}", asked.elapsed());
    }
    operator.runs(&ground.with(&["sockets", "disable", "--all"]), 0)?;
    has(&operator, pid, &[EpollParams::default(); 2])?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    Ok(())
}

fn asked_before() -> Result<(), Failed> {
    let operator = Operator::new("wishes-before", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut ground = Ground::new(&operator, "wishes-before", "asks")?;
    let pid = ground.pid();
    operator
        .runs(&ground.with(&["sockets", "enable", "--cgroup", ground.cgroup(), "--allow", "latency"]), 0)?;
    ground.told("go")?;
    has(&operator, pid, &[EpollParams::default(); 2])?;
    let first = daemon(&operator, &ground)?;
    has(&operator, pid, &[SUSPENDING, EpollParams::default()])?;
    // The next one finds it so, and changes nothing.
    assert_eq!(first.terminated()?, Some(0));
    let before = operator.runs(&["-o", "json", "history"], 0)?.data;
    let next = daemon(&operator, &ground)?;
    operator.waits_to_hear("goes on")?;
    assert_eq!(next.terminated()?, Some(0));
    assert_eq!(operator.runs(&["-o", "json", "history"], 0)?.data, before);
    assert_eq!(epolls_of(&operator, pid)?, [SUSPENDING, EpollParams::default()]);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [EpollParams::default(); 2]);
    operator.runs(&ground.with(&["sockets", "disable", "--all"]), 0)?;
    Ok(())
}

fn beyond_bounds() -> Result<(), Failed> {
    let operator = Operator::new("wishes-bounds", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut ground = Ground::new(&operator, "wishes-bounds", "silent")?;
    let pid = ground.pid();
    operator.asks(&format!("[device.{}]\ndelivery = \"defer50\"\n", linux::lab::SERVER_DEVICE))?;
    let enable = ["sockets", "enable", "--cgroup", ground.cgroup(), "--allow", "latency"];
    operator.runs(&ground.with(&enable), 0)?;
    let daemon = daemon(&operator, &ground)?;
    ground.told("go")?;
    ground.told("wish 3")?;
    // Whatever comes of the wish beside the device's policy: the operator's request is in force, and nothing is a problem.
    waited_for("the wish in the status", || {
        let output = operator.netpolicy(&["status"]).output()?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((told.contains(&format!("of task {pid}")) && output.status.code() == Some(0)).then_some(()))
    })?;
    // What the operator asks for a process by its number goes before its own requestes.
    operator.runs(&["set", "task", &pid.to_string(), "none"], 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [EpollParams::default(); 2]);
    let status = operator.runs(&["status"], 0)?.data;
    assert!(!status.contains("SO_NETPOLICY"), "{status}");
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    operator.runs(&ground.with(&["sockets", "disable", "--all"]), 0)?;
    Ok(())
}

fn given_before() -> Result<(), Failed> {
    let operator = Operator::new("wishes-given", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut ground = Ground::new(&operator, "wishes-given", "silent")?;
    ground.told("go")?;
    let pid = ground.pid();
    waited_for("two epolls", || Ok((epolls_of(&operator, pid)?.len() == 2).then_some(())))?;
    let number = pid.to_string();
    operator.runs(&ground.with(&["set", "task", &number, "latency"]), 0)?;
    operator.runs(&["rollback"], 0)?;
    operator.asks("# nothing\n")?;
    let daemon = operator.starts(&ground.with(&["daemon"]))?;
    waited_for("what it was given", || Ok((epolls_of(&operator, pid)? == [SUSPENDING; 2]).then_some(())))?;
    let said = operator.runs(&ground.with(&["unset", "task", &number]), 0)?;
    assert!(said.words.contains("it is unset"), "{}", said.words);
    assert_eq!(epolls_of(&operator, pid)?, [EpollParams::default(); 2]);
    let listed = operator.runs(&ground.with(&["sockets", "list"]), 0)?;
    assert!(!listed.data.contains(&format!("task {pid} ")), "{}", listed.data);
    operator.runs(&ground.with(&["unset", "task", &number]), 1)?;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

fn child_inherits() -> Result<(), Failed> {
    let operator = Operator::new("wishes-child", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let mut ground = Ground::new(&operator, "wishes-child", "silent")?;
    ground.told("go")?;
    let pid = ground.pid();
    waited_for("two epolls", || Ok((epolls_of(&operator, pid)?.len() == 2).then_some(())))?;
    let number = pid.to_string();
    operator.runs(&ground.with(&["set", "task", &number, "latency"]), 0)?;
    assert_eq!(epolls_of(&operator, pid)?, [SUSPENDING; 2]);
    ground.told("fork")?;
    let child = waited_for("a child with two epolls", || {
        let host = operator.host()?;
        let child = host.processes.iter().find(|process| process.id.pid != pid && process.epolls.len() == 2);
        Ok(child.map(|child| child.id.pid))
    })?;
    let listed = operator.runs(&ground.with(&["sockets", "list"]), 0)?;
    assert!(
        listed.data.contains(&format!("task {child} and its children to come: latency")),
        "{}",
        listed.data
    );
    operator.runs(&ground.with(&["apply"]), 0)?;
    assert_eq!(epolls_of(&operator, child)?, [SUSPENDING; 2]);
    // What was given is taken back by the same words.
    operator.runs(&ground.with(&["set", "task", &number, "none"]), 0)?;
    let listed = operator.runs(&ground.with(&["sockets", "list"]), 0)?;
    assert!(!listed.data.contains(&format!("task {pid} ")), "{}", listed.data);
    operator.runs(&ground.with(&["sockets", "disable", "--all"]), 0)?;
    assert!(!std::path::Path::new(&ground.wishes).exists(), "nothing stays pinned");
    Ok(())
}

fn no_file_system() -> Result<(), Failed> {
    let operator = Operator::new("wishes-nowhere", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let ground = Ground::new(&operator, "wishes-nowhere", "silent")?;
    let elsewhere = operator.state().with_file_name("elsewhere");
    let place = elsewhere.to_str().unwrap_or_default();
    let said = operator.runs(&["--wish-dir", place, "sockets", "enable", "--cgroup", ground.cgroup()], 6)?;
    assert!(said.words.contains("mount -t bpf"), "{}", said.words);
    assert!(!elsewhere.exists());
    Ok(())
}

fn refused_prctl() -> Result<(), Failed> {
    let operator = Operator::new("wish-bounds", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let ground = Ground::new(&operator, "wish-bounds", "silent")?;
    let enable = ["sockets", "enable", "--cgroup", ground.cgroup()];
    let narrow = [&enable[..], &["--allow", "bulk", "--allow-user", "5:cpu"]].concat();
    operator.runs(&ground.with(&narrow), 0)?;
    let bounds = || Ok::<_, Failed>(operator.runs(&ground.with(&["-o", "json", "sockets", "list"]), 0)?.data);
    let before = bounds()?;
    assert!(before.contains("bulk") && before.contains("cpu") && !before.contains("latency"), "{before}");
    let wide = [&enable[..], &["--prctl", "--allow", "latency"]].concat();
    let answer = operator.netpolicy(&ground.with(&wide)).output()?;
    // A kernel that lets a program answer prctl does as it was asked; one that does not changes nothing.
    match answer.status.code() {
        Some(6) => assert_eq!(bounds()?, before),
        Some(0) => assert!(bounds()?.contains("latency")),
        _ => return Err(String::from_utf8_lossy(&answer.stderr).into()),
    }
    operator.runs(&ground.with(&["sockets", "disable", "--all"]), 0)?;
    Ok(())
}
