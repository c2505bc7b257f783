//! Compares what the BPF iterator finds among a process's files with `/proc`.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use bpf::EpollScanner;
use libtest_mimic::{Failed, Trial};
use linux::process;
use model::{EpollId, EpollParams, Fd, NapiId, Pid};
use rustix::event::epoll;
use testkit::asked_server::AskedServer;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const BPF: &[Need] = &[Need::Root, Need::Bpf];
    const ASKED: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Wire];
    vec![
        test("epolls/a_scan_finds_the_epolls_and_sockets_that_proc_shows", BPF, as_proc_shows),
        test("epolls/two_descriptors_may_lead_to_one_epoll", BPF, one_epoll_behind_two_descriptors),
        test("epolls/a_scan_reads_the_parameters_that_were_set", BPF, parameters_as_set),
        test("epolls/a_scan_reports_the_napi_of_a_sockets_packets", ASKED, napis_of_sockets),
        test("epolls/a_process_that_has_ended_has_no_epolls", BPF, ended),
    ]
}

fn myself() -> Pid {
    Pid(std::process::id())
}

fn new_epoll() -> Result<OwnedFd, Failed> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

fn number(fd: &impl AsRawFd) -> Result<Fd, Failed> {
    Ok(Fd(u32::try_from(fd.as_raw_fd())?))
}

/// Lists this process's descriptors whose link begins with `link`.
fn shown_by_proc(link: &str) -> Result<BTreeSet<Fd>, Failed> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The list includes the directory's own descriptor, which is already closed when its entry is read.
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with(link) {
            found.insert(Fd(entry.file_name().to_string_lossy().parse()?));
        }
    }
    Ok(found)
}

fn as_proc_shows() -> Result<(), Failed> {
    let scanner = EpollScanner::load()?;
    let epolls: Result<Vec<_>, _> = (0..300).map(|_| new_epoll()).collect();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sockets: Result<Vec<_>, _> = (0..2000).map(|_| std::net::UdpSocket::bind("127.0.0.1:0")).collect();
    let (epolls, sockets) = (epolls?, sockets?);
    let connection = TcpStream::connect(address)?;

    let scanned: BTreeSet<Fd> = scanner.epolls(myself())?.iter().map(|epoll| epoll.fd).collect();
    assert_eq!(scanned, shown_by_proc("anon_inode:[eventpoll]")?);
    assert!(scanned.len() >= epolls.len());

    let scanned = scanner.sockets(myself())?;
    let fds: BTreeSet<Fd> = scanned.iter().map(|socket| socket.fd).collect();
    assert_eq!(fds, shown_by_proc("socket:[")?, "this process has only internet sockets");
    assert!(fds.len() >= sockets.len() + 2);
    let link = std::fs::read_link(format!("/proc/self/fd/{}", connection.as_raw_fd()))?;
    let ours = number(&connection)?;
    let inode = scanned.iter().find(|socket| socket.fd == ours).map(|socket| socket.inode);
    assert_eq!(link.to_string_lossy(), format!("socket:[{}]", inode.ok_or("not scanned")?));
    Ok(())
}

fn one_epoll_behind_two_descriptors() -> Result<(), Failed> {
    let (one, other) = (new_epoll()?, new_epoll()?);
    let copy = one.try_clone()?;
    let scanned = EpollScanner::load()?.epolls(myself())?;
    let file = |fd: &OwnedFd| -> Result<_, Failed> {
        let fd = number(fd)?;
        Ok(scanned.iter().find(|epoll| epoll.fd == fd).ok_or("not scanned")?.file)
    };
    assert_eq!(file(&one)?, file(&copy)?);
    assert_ne!(file(&one)?, file(&other)?);
    Ok(())
}

fn parameters_as_set() -> Result<(), Failed> {
    let epoll = new_epoll()?;
    let id = EpollId { process: process::identify(myself())?, fd: number(&epoll)? };
    let scanner = EpollScanner::load()?;
    for (busy_poll_usecs, busy_poll_budget, prefer_busy_poll) in [(0, 64, true), (200, 8, false)] {
        let params = EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, events_only: false };
        process::write_epoll(&id, params)?;
        let scanned = scanner.epolls(myself())?;
        let ours = scanned.iter().find(|scanned| scanned.fd == id.fd).ok_or("not scanned")?;
        assert_eq!((ours.params, ours.napi), (Some(params), None), "no descriptor was added");
    }
    Ok(())
}

fn napis_of_sockets() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    let napis = server.napis()?;
    let memcached = server.process()?.pid;
    let scanner = EpollScanner::load()?;
    // Scan while requests are sent, because the connections are open only then.
    let scanned = std::thread::scope(|scope| -> Result<Vec<_>, Failed> {
        let asking = scope.spawn(|| server.ask(Duration::from_millis(500)));
        std::thread::sleep(Duration::from_millis(250));
        let scanned = scanner.sockets(memcached);
        asking.join().map_err(|_| "the client panicked")??;
        Ok(scanned?)
    })?;
    let on_napis: Vec<NapiId> = scanned.iter().filter_map(|socket| socket.napi).collect();
    assert!(on_napis.len() >= 20, "twenty connections: {scanned:?}");
    assert!(on_napis.iter().all(|napi| napis.contains(napi)), "{on_napis:?} of {napis:?}");
    Ok(())
}

fn ended() -> Result<(), Failed> {
    let mut child = std::process::Command::new("true").spawn()?;
    let pid = Pid(child.id());
    child.wait()?;
    let scanner = EpollScanner::load()?;
    assert_eq!((scanner.epolls(pid)?, scanner.sockets(pid)?), (vec![], vec![]));
    Ok(())
}
