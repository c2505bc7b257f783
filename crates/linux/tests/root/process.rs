//! Tests what is observed of this host's processes, and what can be set on them.
#![expect(clippy::print_stdout, reason = "a timing is printed, not asserted")]

use std::time::Instant;

use libtest_mimic::{Failed, Trial};
use linux::process::{
    Criteria, find, identify, read_epoll, read_thread_affinity, write_epoll, write_thread_affinity,
};
use linux::{Cause, Errno, Netns, Processes};
use model::host::{Process, SocketState};
use model::{Cpu, CpuSet, EpollId, EpollParams, Fd, NetnsId, Patterns, Pid};
use testkit::scratch::Scratch;
use testkit::subject::Subject;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "process/ten_thousand_sockets_are_matched_with_their_epolls",
            &[Need::Root],
            ten_thousand_sockets,
        ),
        test("process/a_nested_epoll_is_a_member_and_a_pipe_is_not", &[Need::Root], nested_epoll),
        test("process/an_epolls_parameters_are_what_was_written", &[Need::Root], epoll_parameters),
        test(
            "process/waiting_for_events_only_is_read_back_or_known_to_be_absent",
            &[Need::Root],
            events_only,
        ),
        test("process/an_epoll_number_that_was_used_again_is_gone", &[Need::Root], number_used_again),
        test("process/a_pid_that_was_used_again_is_gone", &[Need::Root], pid_used_again),
        test("process/a_process_that_ended_is_gone", &[Need::Root], process_that_ended),
        test("process/a_process_may_end_while_it_is_looked_at", &[Need::Root], ends_while_looked_at),
        test("process/a_thread_is_observed_and_moved", &[Need::Root], thread_affinity),
        test("process/a_process_is_found_by_what_is_known_of_it", &[Need::Root], found_by_criteria),
        test(
            "process/a_path_that_a_user_mounted_something_over_is_not_the_operators",
            &[Need::Root, Need::Unshare],
            imitated_by_mounts,
        ),
        test("process/a_server_that_an_upgrade_replaced_is_found_by_its_path", &[Need::Root], upgraded),
        test(
            "process/sock_diag_and_the_sockets_themselves_agree",
            &[Need::Root, Need::Unshare, Need::Ipv6],
            two_ways,
        ),
        test("process/a_thread_is_no_process", &[Need::Root], thread_is_no_process),
        test("process/networking_processes_are_those_with_sockets", &[Need::Root], networking),
    ]
}

/// Observes one process; fails if anything about it cannot be read.
pub(crate) fn observed(pid: Pid) -> Result<Process, Failed> {
    let mut unread = Vec::new();
    let found = linux::observe::processes(&Netns::own()?, &Processes::Only(vec![pid]), &mut unread);
    match (<[Process; 1]>::try_from(found), unread.as_slice()) {
        (Ok([process]), []) => Ok(process),
        (found, unread) => Err(format!("observed {found:?}, unread {unread:?}").into()),
    }
}

/// Returns the id of an epoll of a process.
pub(crate) fn epoll_of(pid: Pid, fd: u32) -> Result<EpollId, Failed> {
    Ok(EpollId { process: identify(pid)?, fd: Fd(fd) })
}

const SUSPEND: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };

fn ten_thousand_sockets() -> Result<(), Failed> {
    const SOCKETS: usize = 10_001;
    const EPOLLS: usize = 4;
    let (subject, epolls) = Subject::in_role(&format!("sockets {SOCKETS} {EPOLLS}"))?;
    let begun = Instant::now();
    let process = observed(subject.pid())?;
    println!("first look: {:?}", begun.elapsed());
    assert_eq!(process.sockets.len(), SOCKETS);
    let established = process.sockets.iter().filter(|s| s.state == SocketState::TcpEstablished);
    assert_eq!(established.count(), SOCKETS - 1);
    assert!(process.sockets.iter().all(|s| s.local.is_some() && s.napi.is_none()), "loopback has no NAPI");
    let watched: Vec<(u32, usize, usize)> =
        process.epolls.iter().map(|e| (e.id.fd.0, e.members.len(), e.others)).collect();
    let expected: Vec<_> = epolls.iter().map(|fd| (*fd, (SOCKETS - 1) / EPOLLS, 0)).collect();
    assert_eq!(watched, expected);

    print_timing(&format!("{SOCKETS} sockets, {EPOLLS} epolls"), subject.pid())
}

/// Prints how long it takes to inspect a process. The time is not asserted, because other work on the machine
/// must not make a test fail.
pub(crate) fn print_timing(what: &str, pid: Pid) -> Result<(), Failed> {
    const RUNS: usize = 20;
    let mut times: Vec<_> = (0..RUNS)
        .map(|_| {
            let begun = Instant::now();
            observed(pid).map(|_| begun.elapsed())
        })
        .collect::<Result<_, _>>()?;
    times.sort_unstable();
    let (fastest, median, slowest) = (times[0], times[RUNS / 2], times[RUNS - 1]);
    println!("{what}: {median:?} (median of {RUNS}, {fastest:?} to {slowest:?})");
    Ok(())
}

fn nested_epoll() -> Result<(), Failed> {
    let (subject, numbers) = Subject::in_role("nested")?;
    let [outer, inner, socket] = numbers[..] else { return Err("three numbers expected".into()) };
    let process = observed(subject.pid())?;
    let epoll = |fd| process.epolls.iter().find(|e| e.id.fd == Fd(fd)).ok_or("no such epoll");
    let mut members: Vec<u32> = epoll(outer)?.members.iter().map(|member| member.fd.0).collect();
    members.sort_unstable();
    assert_eq!((members, epoll(outer)?.others), (vec![inner, socket], 1));
    assert_eq!((epoll(inner)?.members.len(), epoll(inner)?.others), (0, 0));
    assert_eq!(
        process.sockets.iter().map(|s| (s.fd.0, s.state)).collect::<Vec<_>>(),
        [(socket, SocketState::Udp)]
    );
    Ok(())
}

fn epoll_parameters() -> Result<(), Failed> {
    let (subject, numbers) = Subject::in_role("nested")?;
    let epoll = epoll_of(subject.pid(), numbers[0])?;
    let before = read_epoll(&epoll)?;
    assert_eq!(before, EpollParams::default());
    for wanted in [
        SUSPEND,
        EpollParams {
            busy_poll_usecs: 1000,
            busy_poll_budget: 65,
            prefer_busy_poll: false,
            events_only: false,
        },
    ] {
        write_epoll(&epoll, wanted)?;
        assert_eq!(read_epoll(&epoll)?, wanted);
        let process = observed(subject.pid())?;
        let seen = process.epolls.iter().find(|seen| seen.id == epoll).ok_or("the epoll is missing")?;
        assert_eq!(seen.params, Some(wanted));
    }
    let wrong =
        write_epoll(&epoll, EpollParams { busy_poll_usecs: u32::MAX, ..SUSPEND }).expect_err("out of range");
    let name = epoll.process;
    assert_eq!(
        wrong.to_string(),
        format!(
            "{name} epoll {}: busy_poll usecs/budget/prefer 4294967295us/64/1: Invalid argument (EINVAL)",
            numbers[0]
        )
    );
    Ok(())
}

fn events_only() -> Result<(), Failed> {
    let (subject, numbers) = Subject::in_role("nested")?;
    let epoll = epoll_of(subject.pid(), numbers[0])?;
    let wanted = EpollParams { busy_poll_usecs: 200, events_only: true, ..EpollParams::default() };
    let host = linux::observe(&linux::Netns::own()?, &linux::Processes::Only(Vec::new()))?;
    let written = write_epoll(&epoll, wanted);
    if host.capabilities.epoll_events_only {
        written?;
        assert_eq!(read_epoll(&epoll)?, wanted);
        write_epoll(&epoll, EpollParams { prefer_busy_poll: true, ..wanted })
            .expect_err("the epoll polls no NAPI");
        assert_eq!(read_epoll(&epoll)?, wanted, "a refusal changes nothing");
        write_epoll(&epoll, EpollParams::default())?;
    } else {
        let refused = written.expect_err("the probe was refused, too");
        assert!(matches!(refused.cause, linux::Cause::Absent { since: None, .. }), "{refused}");
    }
    assert_eq!(read_epoll(&epoll)?, EpollParams::default());
    Ok(())
}

fn number_used_again() -> Result<(), Failed> {
    let (mut subject, numbers) = Subject::in_role("reuse")?;
    let epoll = epoll_of(subject.pid(), numbers[0])?;
    read_epoll(&epoll)?;
    subject.go_on()?;
    gone(read_epoll(&epoll))?;
    gone(write_epoll(&epoll, SUSPEND))?;
    gone(read_epoll(&epoll_of(subject.pid(), 9999)?))?;
    assert!(observed(subject.pid())?.epolls.is_empty());
    Ok(())
}

fn pid_used_again() -> Result<(), Failed> {
    let (subject, numbers) = Subject::in_role("nested")?;
    let mut epoll = epoll_of(subject.pid(), numbers[0])?;
    epoll.process.started -= 1; // Observed as if from an earlier process with this pid.
    gone(write_epoll(&epoll, SUSPEND))?;
    epoll.process.started += 1;
    assert_eq!(read_epoll(&epoll)?, EpollParams::default(), "nothing was written");
    Ok(())
}

fn process_that_ended() -> Result<(), Failed> {
    let (mut subject, numbers) = Subject::in_role("waiter")?;
    let epoll = epoll_of(subject.pid(), numbers[0])?;
    let thread = observed(subject.pid())?.threads[0].id;
    subject.kill();
    gone(read_epoll(&epoll))?;
    gone(write_epoll(&epoll, SUSPEND))?;
    gone(read_thread_affinity(&thread))?;
    gone(write_thread_affinity(&thread, &CpuSet::from_iter([Cpu(0)])))?;
    gone(identify(subject.pid()))?;
    let mut unread = Vec::new();
    let asked_for = Processes::Only(vec![subject.pid()]);
    assert!(linux::observe::processes(&Netns::own()?, &asked_for, &mut unread).is_empty());
    assert_eq!(unread.len(), 1, "a requested process that has exited is reported: {unread:?}");
    Ok(())
}

fn ends_while_looked_at() -> Result<(), Failed> {
    let netns = Netns::own()?;
    for after_us in [0, 200, 500, 1000, 2000, 4000] {
        let (mut subject, _) = Subject::in_role("sockets 501 2")?;
        let pid = subject.pid();
        let mut unread = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_micros(after_us));
                subject.kill();
            });
            let mut looks = 0;
            while !linux::observe::processes(&netns, &Processes::Only(vec![pid]), &mut unread).is_empty() {
                looks += 1;
                assert!(looks < 100_000, "still observed long after it was killed");
            }
        });
        let why: Vec<&str> = unread.iter().map(|part| part.why.as_str()).collect();
        assert!(why.iter().all(|why| why.starts_with("gone: ")), "{why:?}");
    }
    Ok(())
}

fn thread_affinity() -> Result<(), Failed> {
    let (mut subject, numbers) = Subject::in_role("waiter")?;
    let waiting = testkit::subject::eventually("the thread waits", || {
        let process = observed(subject.pid()).ok()?;
        process.threads.into_iter().find(|thread| thread.waits_on == Some(Fd(numbers[0])))
    })?;
    assert_eq!(waiting.id.comm.as_str(), "waits (a b)");
    let all = read_thread_affinity(&waiting.id)?;
    assert_eq!(all, waiting.affinity);
    let first: CpuSet = all.iter().take(1).collect();
    write_thread_affinity(&waiting.id, &first)?;
    assert_eq!(read_thread_affinity(&waiting.id)?, first);
    write_thread_affinity(&waiting.id, &all)?;
    assert_eq!(read_thread_affinity(&waiting.id)?, all);

    let nowhere = write_thread_affinity(&waiting.id, &CpuSet::from_iter([Cpu(CpuSet::CPUS_MAX - 1)]));
    assert_eq!(nowhere.expect_err("the machine has no such CPU").number(), Some(Errno::INVAL));
    subject.go_on()?;
    gone(read_thread_affinity(&waiting.id))?;
    gone(write_thread_affinity(&waiting.id, &first))?;
    Ok(())
}

fn found_by_criteria() -> Result<(), Failed> {
    let (subject, numbers) = Subject::in_role("waiter")?;
    let expected = identify(subject.pid())?;
    let exe = std::env::current_exe()?;
    let exe = exe.to_str().ok_or("a path in UTF-8")?;
    let port = u16::try_from(numbers[1])?;
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", subject.pid()))?;
    let unified = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned();

    let mut unread = Vec::new();
    let mut found = |criteria: Criteria| find(&criteria, &mut unread);
    let by_port = Criteria { port: Some(port), ..Criteria::default() };
    assert_eq!(found(by_port.clone())?, [expected]);
    assert!(
        found(Criteria { exe: Some(Patterns::exactly(exe)), ..Criteria::default() })?.contains(&expected)
    );
    // Create a link to a link, each with an absolute path, as `update-alternatives` does.
    let links = Scratch::new("links")?;
    std::os::unix::fs::symlink(exe, links.path("first"))?;
    std::os::unix::fs::symlink(links.path("first"), links.path("second"))?;
    let by_link = |name: &str| Criteria {
        exe: Some(Patterns::exactly(&links.path(name).display().to_string())),
        port: Some(port),
        ..Criteria::default()
    };
    assert_eq!((found(by_link("second"))?, found(by_link("third"))?), (vec![expected], vec![]));
    let file_name = exe.rsplit('/').next().map(str::to_owned);
    let all = Criteria {
        exe: file_name.as_deref().map(Patterns::exactly),
        uid: Some(0),
        cgroup: Some(Patterns::exactly(&unified)),
        unit: None,
        port: Some(port),
        netns: Some(Netns::own()?.id()),
        pod: None,
        container: None,
    };
    assert_eq!(found(all.clone())?, [expected]);
    for other in [
        Criteria { uid: Some(65_534), ..all.clone() },
        Criteria { exe: Some(Patterns::exactly("/another/one")), ..all.clone() },
        Criteria { cgroup: Some(Patterns::exactly("/no.slice/such.service")), ..all.clone() },
        Criteria { unit: Some(Patterns::exactly("no-such")), ..all.clone() },
        Criteria { netns: Some(NetnsId(1)), ..all.clone() },
        Criteria { port: Some(1), ..all },
    ] {
        assert_eq!(found(other.clone())?, [], "{other:?}");
    }
    assert!(
        find(&Criteria::default(), &mut Vec::new()).is_err(),
        "all processes of the host are not a service"
    );
    Ok(())
}

/// Returns the pids of processes that run an executable that matches one of these patterns.
fn running(exe: &str) -> Result<Vec<Pid>, Failed> {
    let criteria = Criteria { exe: Some(exe.parse()?), ..Criteria::default() };
    Ok(find(&criteria, &mut Vec::new())?.into_iter().map(|process| process.pid).collect())
}

/// Installs a program that sleeps at a path that belongs to root, and returns the path.
fn sleeper_at(scratch: &Scratch) -> Result<String, Failed> {
    let path = scratch.path("sbin");
    std::fs::create_dir(&path)?;
    std::os::unix::fs::chown(&path, Some(0), Some(0))?;
    let path = path.join("np-served");
    std::fs::copy("/bin/sleep", &path)?;
    Ok(path.display().to_string())
}

fn imitated_by_mounts() -> Result<(), Failed> {
    let scratch = Scratch::new("imitated")?;
    let path = sleeper_at(&scratch)?;
    let real = Started(std::process::Command::new(&path).arg("60").spawn()?);
    // The imitation of the program is in another file system, in another directory of the same file system,
    // and then in a directory that is removed.
    let mount = ["mount -t tmpfs tmpfs", "mount --bind THEIRS", "mount --bind THEIRS"];
    let then = ["", "", "; rm PATH"];
    let mut imitations = Vec::new();
    for (number, (mount, then)) in mount.into_iter().zip(then).enumerate() {
        let theirs = scratch.path(&format!("theirs-{number}"));
        std::fs::create_dir(&theirs)?;
        std::os::unix::fs::chown(&theirs, Some(65_534), Some(65_534))?;
        let script = format!(
            "set -e; {mount} DIR; cp /bin/sleep PATH; PATH 60 & PID=$!; \
             for _ in 1 2 3 4 5 6 7 8 9; do [ \"$(readlink /proc/$PID/exe)\" = PATH ] || sleep 0.1; done\
             {then}; echo ready $PID; wait",
        );
        let (directory, _) = path.rsplit_once('/').ok_or("a path")?;
        let script = script
            .replace("DIR", directory)
            .replace("PATH", &path)
            .replace("THEIRS", &theirs.display().to_string());
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
        command.args(["unshare", "-Urm", "sh", "-c", &script]);
        let (shell, numbers) = Subject::ready(&mut command)?;
        let pid = Pid(numbers[0]);
        let link = std::fs::read_link(format!("/proc/{pid}/exe"))?;
        assert!(
            link.to_string_lossy().starts_with(&path),
            "{link:?}: the executable is seen under the operator's path"
        );
        imitations.push((shell, pid));
    }
    let pattern = path.replace("np-served", "np-ser*");
    for exe in [&path, &pattern] {
        assert_eq!(running(exe)?, [Pid(real.0.id())], "{exe}");
    }
    // A bare name matches the program of any user.
    let by_name = running("np-served")?;
    for (_, pid) in &imitations {
        assert!(by_name.contains(pid), "{by_name:?}");
        // The shell waits for the process that it started.
        let number = rustix::process::Pid::from_raw(i32::try_from(pid.0)?).ok_or("a pid")?;
        rustix::process::kill_process(number, rustix::process::Signal::KILL)?;
    }
    Ok(())
}

fn upgraded() -> Result<(), Failed> {
    let scratch = Scratch::new("upgraded")?;
    let path = sleeper_at(&scratch)?;
    let old = Started(std::process::Command::new(&path).arg("60").spawn()?);
    let new = format!("{path}.new");
    std::fs::copy("/bin/sleep", &new)?;
    std::fs::rename(&new, &path)?;
    let pids = [Pid(old.0.id())];
    assert_eq!(running(&path)?, pids);
    assert_eq!(running(&path.replace("np-served", "np-ser*"))?, pids);
    Ok(())
}

/// A child that is killed when the test ends.
struct Started(std::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tests both ways to look up sockets: by sock-diag in the process's namespace, and by a query of the socket
/// itself. sock-diag does not list sockets that a process brought from another namespace.
fn two_ways() -> Result<(), Failed> {
    use SocketState::{TcpEstablished, TcpListen, TcpOther, Udp};
    let kinds = |role: &str| {
        let (subject, fds) = Subject::in_role(role)?;
        let sockets = observed(subject.pid())?.sockets;
        // The ports differ from run to run, so compare which sockets are connected to each other.
        let port = |address: Option<std::net::SocketAddr>| {
            let owner = |address| sockets.iter().position(|socket| socket.local == Some(address));
            address.map(|address| (address.ip(), owner(address)))
        };
        let kinds: Vec<_> = sockets.iter().map(|s| (s.fd, s.state, port(s.local), port(s.remote))).collect();
        let internet = &fds[..fds.len() - 1]; // The last descriptor is a unix socket.
        assert!(sockets.iter().map(|s| s.fd.0).eq(internet.iter().copied()), "{sockets:#?}");
        Ok::<_, Failed>(kinds)
    };
    let (elsewhere, _) = Subject::ready(
        std::process::Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\""])
            .arg(std::env::current_exe()?)
            .env(testkit::subject::ROLE, "waiter"),
    )?;
    let by_diag = kinds("kinds")?;
    let states: Vec<SocketState> = by_diag.iter().map(|(_, state, _, _)| *state).collect();
    let connected = TcpEstablished;
    assert_eq!(
        states,
        [TcpListen, connected, connected, Udp, Udp, TcpOther, TcpListen, connected, connected]
    );
    assert!(by_diag.last().is_some_and(|(_, _, local, _)| local.is_some_and(|(ip, _)| ip.is_ipv4())));
    assert_eq!(kinds(&format!("kinds {}", elsewhere.pid()))?, by_diag);
    Ok(())
}

fn thread_is_no_process() -> Result<(), Failed> {
    let (subject, _) = Subject::in_role("waiter")?;
    let thread = observed(subject.pid())?.threads.last().ok_or("a thread is expected")?.id;
    assert_ne!(thread.tid, subject.pid());
    let error = identify(thread.tid).expect_err("a thread");
    assert!(error.to_string().ends_with("is a thread, not a process"), "{error}");
    Ok(())
}

fn networking() -> Result<(), Failed> {
    let (with, _) = Subject::in_role("nested")?;
    let (without, _) = Subject::in_role("reuse")?;
    let found = linux::observe::processes(&Netns::own()?, &Processes::Networking, &mut Vec::new());
    let is_found = |pid| found.iter().any(|process| process.id.pid == pid);
    assert!(is_found(with.pid()));
    assert!(!is_found(without.pid()), "an epoll alone does not make a process a network server");
    Ok(())
}

/// Checks that the result is the error that the object is gone.
pub(crate) fn gone<T: std::fmt::Debug>(result: Result<T, linux::KernelError>) -> Result<(), Failed> {
    match result {
        Err(error) if matches!(error.cause, Cause::Gone(_)) => Ok(()),
        other => Err(format!("expected the error that the object is gone, got {other:?}").into()),
    }
}
