//! Tests inspection of processes that were not prepared for it (of another user, statically linked, in other
//! namespaces), and inspection by unprivileged callers.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::process::{read_epoll, write_epoll};
use model::host::{Process, SocketState};
use model::{EpollParams, Fd, Pid};
use testkit::scratch::Scratch;
use testkit::subject::{ROLE, Subject, eventually, memcached, role_command};
use testkit::{Need, test};

use super::process::{epoll_of, observed, print_timing};

pub(crate) fn tests() -> Vec<Trial> {
    const CLIENT: &[Need] = &[Need::Root, Need::Memcached, Need::Unshare];
    vec![
        test("foreign/memcached_of_another_user_in_another_namespace", CLIENT, memcached_of_another_user),
        test("foreign/a_statically_linked_server", &[Need::Root, Need::StaticCc], statically_linked),
        test(
            "foreign/a_process_in_its_own_user_and_network_namespace",
            &[Need::Root, Need::Unshare],
            own_user_namespace,
        ),
        test("foreign/a_process_in_its_own_pid_namespace", &[Need::Root, Need::Unshare], own_pid_namespace),
        test(
            "foreign/an_unprivileged_callers_error_names_the_missing_capability",
            &[Need::Root],
            without_rights,
        ),
        test(
            "foreign/a_containers_profile_that_denies_root_is_named",
            &[Need::Root, Need::OwnMachine, Need::AppArmor],
            in_a_containers_profile,
        ),
    ]
}

const SUSPEND: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };

/// Sets the parameters of every epoll of a process, reads them back, and restores them.
fn every_epoll_can_be_set(process: &Process) -> Result<(), Failed> {
    assert!(!process.epolls.is_empty());
    for epoll in &process.epolls {
        let before = read_epoll(&epoll.id)?;
        assert_eq!(epoll.params, Some(before));
        write_epoll(&epoll.id, SUSPEND)?;
        assert_eq!(read_epoll(&epoll.id)?, SUSPEND);
        write_epoll(&epoll.id, before)?;
    }
    Ok(())
}

fn memcached_of_another_user() -> Result<(), Failed> {
    const WORKERS: usize = 4;
    let server = memcached(&[])?;
    let netns = linux::Netns::of_process(server.pid())?;
    let connections = netns.run(|| {
        (0..8).map(|_| std::net::TcpStream::connect("127.0.0.1:11211")).collect::<Result<Vec<_>, _>>()
    })??;
    let process = eventually("memcached accepts", || {
        let process = observed(server.pid()).ok()?;
        let of_state = |state| process.sockets.iter().filter(|socket| socket.state == state).count();
        let accepted = of_state(SocketState::TcpEstablished) == connections.len();
        // The thread that accepts a connection notifies a worker through a pipe.
        let watched: usize = process.epolls.iter().map(|epoll| epoll.members.len()).sum();
        let all = accepted && watched > connections.len();
        (all && of_state(SocketState::TcpListen) == 1).then_some(process)
    })?;
    assert_ne!(process.uid, 0);
    assert!(process.exe.ends_with("/memcached"), "{}", process.exe);
    assert_eq!(process.netns, Some(netns.id()));

    // The main thread's epoll watches the process's listener; the connections are distributed over the epolls
    // of the workers.
    let watching: Vec<usize> =
        process.epolls.iter().map(|epoll| epoll.members.len()).filter(|n| *n > 0).collect();
    assert_eq!(watching.iter().sum::<usize>(), 1 + connections.len());
    assert_eq!(watching.len(), 1 + WORKERS, "round robin over {WORKERS} workers: {watching:?}");
    let local: Vec<_> = connections.iter().map(std::net::TcpStream::local_addr).collect::<Result<_, _>>()?;
    let peers = process.sockets.iter().filter_map(|socket| socket.remote);
    assert_eq!(peers.filter(|peer| local.contains(peer)).count(), connections.len());
    let waiting = process.threads.iter().filter(|thread| thread.waits_on.is_some()).count();
    assert!(waiting >= WORKERS, "idle workers wait on their epolls: {:?}", process.threads);
    print_timing("memcached -t 4 with 8 connections", server.pid())?;
    every_epoll_can_be_set(&process)
}

fn statically_linked() -> Result<(), Failed> {
    let scratch = Scratch::new("static")?;
    let program = scratch.compile("waiter", &["-static"])?;
    let (server, numbers) = Subject::ready(&mut Command::new(&program))?;
    watches_its_listener(&server.pid(), &numbers)?;
    let refusal = linux::process::preload::refusal(&program)?.ok_or("can the program be preloaded?")?;
    assert!(refusal.contains("statically linked"), "{refusal}");
    every_epoll_can_be_set(&observed(server.pid())?)
}

fn own_user_namespace() -> Result<(), Failed> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$0\""]);
    command.arg(std::env::current_exe()?).env(ROLE, "waiter");
    let (server, numbers) = Subject::ready(&mut command)?;
    let process = observed(server.pid())?;
    assert_ne!(process.netns, Some(linux::Netns::own()?.id()));
    assert_eq!(process.sockets.len(), 1, "sock-diag of its own namespace reports the socket");
    assert_eq!(process.sockets[0].local.map(|local| u32::from(local.port())), Some(numbers[1]));
    every_epoll_can_be_set(&process)
}

fn own_pid_namespace() -> Result<(), Failed> {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe()?).env(ROLE, "waiter");
    let (outer, numbers) = Subject::ready(&mut command)?;
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", outer.pid()))?;
    let inner = Pid(children.trim().parse()?);
    let process = observed(inner)?;
    assert!(process.epolls.iter().any(|epoll| epoll.id.fd == Fd(numbers[0])));
    every_epoll_can_be_set(&process)
}

fn without_rights() -> Result<(), Failed> {
    const NOBODY: u32 = 65_534;
    let (server, numbers) = Subject::in_role("waiter")?;
    let mut command = role_command(&format!("outsider {} {}", server.pid(), numbers[0]));
    std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
    std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
    let said = Subject::start(&mut command)?.lines()?;
    let epoll = epoll_of(server.pid(), numbers[0])?;
    let [foreign, own, observed, unread] = &said[..] else {
        return Err(format!("four lines expected: {said:#?}").into());
    };
    let yama = std::path::Path::new("/proc/sys/kernel/yama/ptrace_scope").exists();
    let needs = "Operation not permitted (EPERM), needs CAP_SYS_PTRACE in the process's user namespace";
    assert!(
        foreign.starts_with(&format!("{epoll}: busy_poll usecs/budget/prefer 0us/65/1: {needs}")),
        "{foreign}"
    );
    assert_eq!(foreign.contains("ptrace_scope"), yama, "{foreign}");
    assert!(
        own.ends_with("(EPERM), needs CAP_NET_ADMIN in the initial user namespace for a budget above 64"),
        "{own}"
    );
    assert_eq!(*observed, format!("observed {} with 2 threads, exe \"\"", epoll.process));
    assert!(
        unread.starts_with(&format!("unread {}: its epolls, sockets and io_urings: ", epoll.process)),
        "{unread}"
    );
    assert!(unread.contains("CAP_SYS_PTRACE"), "{unread}");
    assert_eq!(read_epoll(&epoll)?, EpollParams::default(), "nothing was written");
    Ok(())
}

/// The relevant part of the profile that containerd and Docker generate for containers. It denies inspecting
/// other processes unless they have the same profile.
const CONTAINER_PROFILE: &str = "\
profile netpolicy-container flags=(attach_disconnected,mediate_deleted) {
  network,
  capability,
  file,
  umount,
  unix,
  signal,
  dbus,
  deny /proc/sys/[^k]** w,
  deny /sys/[^f]*/** wklx,
  ptrace (trace,read,tracedby,readby) peer=netpolicy-container,
}
";

fn in_a_containers_profile() -> Result<(), Failed> {
    const SECURITYFS: &str = "/sys/kernel/security";
    if !std::path::Path::new(SECURITYFS).join("apparmor").exists() {
        let mounted = Command::new("mount").args(["-t", "securityfs", "securityfs", SECURITYFS]).status()?;
        assert!(mounted.success(), "securityfs cannot be mounted");
    }
    let scratch = Scratch::new("profile")?;
    let profile = scratch.path("container");
    std::fs::write(&profile, CONTAINER_PROFILE)?;
    let loaded = Command::new("apparmor_parser")
        .args(["--skip-cache", "--replace", "--base", "/etc/apparmor.d"])
        .arg(&profile)
        .output()?;
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    let (server, numbers) = Subject::in_role("waiter")?;
    let mut confined = Command::new("aa-exec");
    confined.args(["--profile", "netpolicy-container", "--"]).arg(std::env::current_exe()?);
    confined.env(ROLE, format!("outsider {} {}", server.pid(), numbers[0]));
    let said = Subject::start(&mut confined)?.lines()?;
    let removed = Command::new("apparmor_parser").arg("--remove").arg(&profile).status()?;
    assert!(removed.success());
    let [foreign, own, .., unread] = &said[..] else {
        return Err(format!("three lines at least expected: {said:#?}").into());
    };
    let by = "permission by the AppArmor profile netpolicy-container, which confines this process";
    assert!(foreign.contains(", needs CAP_SYS_PTRACE") && foreign.ends_with(by), "{said:#?}");
    assert_eq!(own, "ok", "root has CAP_NET_ADMIN there");
    assert!(unread.starts_with("unread ") && unread.ends_with(by), "{said:#?}");
    let epoll = epoll_of(server.pid(), numbers[0])?;
    assert_eq!(read_epoll(&epoll)?, EpollParams::default(), "nothing was written");
    Ok(())
}

/// Checks that the process's epoll has its listener as its only member.
fn watches_its_listener(pid: &Pid, numbers: &[u32]) -> Result<(), Failed> {
    let process = observed(*pid)?;
    let epoll =
        process.epolls.iter().find(|epoll| epoll.id.fd == Fd(numbers[0])).ok_or("the epoll is missing")?;
    let members: Vec<u32> = epoll.members.iter().map(|member| member.fd.0).collect();
    assert_eq!((members, epoll.others), (vec![numbers[1]], 0));
    assert_eq!(process.sockets.first().map(|socket| socket.state), Some(SocketState::TcpListen));
    Ok(())
}
