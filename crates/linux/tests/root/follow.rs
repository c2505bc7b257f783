//! Tests following this process and its children, by every method that this kernel allows.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use linux::follow::{FollowEvent, FollowMethod, Follower};
use linux::process;
use model::{EpollId, EpollParams, Fd, Pid, ProcessId};
use rustix::event::epoll;
use testkit::{Need, test};

/// The maximum time to wait for an event on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The scan interval of the methods that scan.
const SCAN: Option<Duration> = Some(Duration::from_millis(20));

pub(crate) fn tests() -> Vec<Trial> {
    const ROOT: &[Need] = &[Need::Root];
    const BPF: &[Need] = &[Need::Root, Need::Bpf];
    const PARENT: &[Need] = &[Need::Root, Need::Memcached];
    const BPF_PARENT: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    const FENTRY: &[Need] = &[Need::Root, Need::Fentry];
    const FENTRY_PARENT: &[Need] = &[Need::Root, Need::Fentry, Need::Memcached];
    const RESCAN: FollowMethod = FollowMethod::Rescan { interval: SCAN };
    const PROC: FollowMethod = FollowMethod::Proc { interval: SCAN };
    vec![
        test("follow/a_new_epoll_is_reported_once", BPF, || new_epoll_is_reported_once(FollowMethod::Auto)),
        test("follow/by_scan_a_new_epoll_is_reported_once", BPF, || new_epoll_is_reported_once(RESCAN)),
        test("follow/by_proc_a_new_epoll_is_reported_once", ROOT, || new_epoll_is_reported_once(PROC)),
        test("follow/by_scan_an_epoll_in_place_of_a_closed_one_is_reported", BPF, || replaced(RESCAN)),
        test("follow/by_proc_an_epoll_in_place_of_a_closed_one_is_reported", ROOT, || replaced(PROC)),
        test("follow/a_child_its_image_and_its_end_are_reported", BPF, || {
            child_lives_and_dies(FollowMethod::Auto)
        }),
        test("follow/by_proc_a_child_and_its_end_are_reported", ROOT, || child_lives_and_dies(PROC)),
        test("follow/a_child_that_was_there_before_is_followed_too", BPF, || {
            child_before(FollowMethod::Auto)
        }),
        test("follow/by_proc_a_child_that_was_there_before_is_followed_too", ROOT, || child_before(PROC)),
        test("follow/a_childs_epolls_are_reported", BPF_PARENT, || childs_epolls(FollowMethod::Auto)),
        test("follow/by_proc_a_childs_epolls_are_reported", PARENT, || childs_epolls(PROC)),
        test("follow/by_fentry_a_new_epoll_is_reported_once", FENTRY, || {
            new_epoll_is_reported_once(FollowMethod::Fentry)
        }),
        test("follow/by_fentry_an_epoll_in_place_of_a_closed_one_is_reported", FENTRY, || {
            replaced(FollowMethod::Fentry)
        }),
        test("follow/by_fentry_a_childs_epolls_are_reported", FENTRY_PARENT, || {
            childs_epolls(FollowMethod::Fentry)
        }),
        test("follow/fentry_is_used_where_the_kernel_allows_it", FENTRY, says_how),
        test("follow/a_follower_reports_its_method_and_why_better_ones_are_unavailable", BPF, says_how),
    ]
}

fn myself() -> Result<ProcessId, Failed> {
    Ok(process::identify(Pid(std::process::id()))?)
}

fn new_epoll() -> Result<OwnedFd, Failed> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

fn number(fd: &impl AsRawFd) -> Result<Fd, Failed> {
    Ok(Fd(u32::try_from(fd.as_raw_fd())?))
}

/// Reads events until none arrives for longer than a scan takes.
fn settle(follower: &mut Follower) -> Result<Vec<FollowEvent>, Failed> {
    let mut events = Vec::new();
    while let Some(event) = follower.next(Duration::from_millis(200))? {
        events.push(event);
        assert!(
            events.len() < 1_000,
            "events never stopped; the last ones are {:?}",
            events.last_chunk::<10>()
        );
    }
    Ok(events)
}

/// Reads events up to the expected one; returns those before it.
fn until(
    follower: &mut Follower,
    expected: impl Fn(&FollowEvent) -> bool,
) -> Result<Vec<FollowEvent>, Failed> {
    let since = Instant::now();
    let mut before = Vec::new();
    while since.elapsed() < PATIENCE {
        match follower.next(Duration::from_millis(100))? {
            Some(event) if expected(&event) => return Ok(before),
            Some(event) => before.push(event),
            None => {}
        }
    }
    Err(format!("not reported within {PATIENCE:?}; only {before:?} were").into())
}

/// Tests that following a process includes a child that the process already has.
fn child_before(how: FollowMethod) -> Result<(), Failed> {
    let mut parent = Command::new("sh").args(["-c", "sleep 60 & wait"]).stdout(Stdio::null()).spawn()?;
    let result = child_of(&parent, how);
    parent.kill()?;
    parent.wait()?;
    result
}

fn child_of(parent: &Child, how: FollowMethod) -> Result<(), Failed> {
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let since = Instant::now();
    let child = loop {
        match std::fs::read_to_string(&children)?.trim().parse() {
            Ok(pid) => break Pid(pid),
            Err(_) if since.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.into()),
        }
    };
    let mut follower = Follower::new(&[process::identify(Pid(parent.id()))?], how)?;
    until(&mut follower, |event| matches!(event, FollowEvent::Child(process) if process.pid == child))?;
    let number = i32::try_from(child.0).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
    rustix::process::kill_process(number, rustix::process::Signal::KILL)?;
    until(&mut follower, |event| matches!(event, FollowEvent::Exit(process) if process.pid == child))?;
    Ok(())
}

fn new_epoll_is_reported_once(how: FollowMethod) -> Result<(), Failed> {
    let process = myself()?;
    let old = new_epoll()?;
    let mut follower = Follower::new(&[process], how)?;
    let known = settle(&mut follower)?;
    let old = FollowEvent::NewEpoll(EpollId { process, fd: number(&old)? });
    assert_eq!(
        known.iter().filter(|event| **event == old).count(),
        1,
        "the epolls that existed before: {known:?}"
    );

    for _ in 0..3 {
        let new = new_epoll()?;
        let event = FollowEvent::NewEpoll(EpollId { process, fd: number(&new)? });
        until(&mut follower, |reported| *reported == event)?;
        assert!(!settle(&mut follower)?.contains(&event));
        // A second descriptor is not a second epoll, if epolls are identified by file.
        let copy = new.try_clone()?;
        if !matches!(follower.how(), FollowMethod::Proc { .. }) {
            assert_eq!(settle(&mut follower)?, []);
        }
        drop((new, copy));
        settle(&mut follower)?;
    }
    Ok(())
}

fn replaced(how: FollowMethod) -> Result<(), Failed> {
    let process = myself()?;
    let mut follower = Follower::new(&[process], how)?;
    settle(&mut follower)?;
    let first = new_epoll()?;
    let id = EpollId { process, fd: number(&first)? };
    until(&mut follower, |reported| *reported == FollowEvent::NewEpoll(id))?;
    let params =
        EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };
    process::write_epoll(&id, params)?;
    assert_eq!(settle(&mut follower)?, [], "only its parameters were set: it is the same epoll");
    drop(first);
    let second = new_epoll()?;
    assert_eq!(number(&second)?, id.fd, "a new descriptor takes the lowest number");
    until(&mut follower, |reported| *reported == FollowEvent::NewEpoll(id))?;
    Ok(())
}

/// A child process that is killed when the test ends.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn child_lives_and_dies(how: FollowMethod) -> Result<(), Failed> {
    let mut follower = Follower::new(&[myself()?], how)?;
    settle(&mut follower)?;
    let mut sleeper = Sleeper(Command::new("sleep").arg("60").spawn()?);
    let pid = Pid(sleeper.0.id());
    until(&mut follower, |event| matches!(event, FollowEvent::Child(child) if child.pid == pid))?;
    if !matches!(follower.how(), FollowMethod::Proc { .. }) {
        until(
            &mut follower,
            |event| matches!(event, FollowEvent::Exec(child) if child.comm.as_str() == "sleep"),
        )?;
        let child = follower.followed().find(|process| process.pid == pid).ok_or("not followed")?;
        assert_eq!(child, process::identify(pid)?, "the kernel's start time is that of /proc");
    }
    settle(&mut follower)?;
    sleeper.0.kill()?;
    // A zombie counts as exited, even if its parent has not waited for it.
    until(&mut follower, |event| matches!(event, FollowEvent::Exit(child) if child.pid == pid))?;
    let more = settle(&mut follower)?;
    let again = more.iter().any(|event| matches!(event, FollowEvent::Child(child) if child.pid == pid));
    assert!(!again, "a zombie is not a new child: {more:?}");
    assert!(follower.followed().all(|process| process.pid != pid));
    Ok(())
}

fn childs_epolls(how: FollowMethod) -> Result<(), Failed> {
    let process = myself()?;
    let inherited = new_epoll()?;
    let mut follower = Follower::new(&[process], how)?;
    settle(&mut follower)?;
    let arguments = ["-u", "root", "-t", "2", "-U", "0", "-l", "127.0.0.1", "-p", "0"];
    let memcached = Sleeper(Command::new("memcached").args(arguments).stderr(Stdio::null()).spawn()?);
    let pid = Pid(memcached.0.id());
    let is_its =
        |event: &FollowEvent| matches!(event, FollowEvent::NewEpoll(epoll) if epoll.process.pid == pid);
    for _thread in ["that accepts", "first worker", "second worker"] {
        until(&mut follower, is_its)?;
    }
    drop(inherited);
    let more = settle(&mut follower)?;
    assert!(!more.iter().any(is_its), "inherited epolls belong to the parent: {more:?}");
    Ok(())
}

fn says_how() -> Result<(), Failed> {
    let follower = Follower::new(&[myself()?], FollowMethod::Auto)?;
    match follower.how() {
        FollowMethod::Fentry => assert_eq!(follower.refused(), []),
        FollowMethod::Rescan { interval: None } => {
            let [why] = follower.refused() else { panic!("{:?}", follower.refused()) };
            assert!(why.to_string().contains("do_epoll_create"), "{why}");
        }
        other => panic!("this machine has BPF, but follows by {other}"),
    }
    Ok(())
}
