//! Plays the roles of this binary: a test starts it as a process to observe. A role prints a line when it is
//! ready, and exits at the end of standard input or when its parent exits.
#![expect(clippy::print_stdout, reason = "a role speaks to its test by standard output")]

use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use linux::{Netns, Processes};
use model::{EpollId, EpollParams, Fd, Pid};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

type Played = Result<(), Box<dyn std::error::Error>>;

/// Plays the role in `line`, which has the role's name and arguments.
pub(crate) fn play(line: &str) -> Played {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["sockets", count, epolls] => sockets(count.parse()?, epolls.parse()?),
        ["nested"] => nested(),
        ["reuse"] => reuse(),
        ["waiter"] => waiter(),
        ["kinds"] => kinds(None),
        ["kinds", pid] => kinds(Some(Pid(pid.parse()?))),
        ["counter"] => counter(),
        ["meter"] => super::live::play(),
        ["app-requests", what @ ..] => super::app_requests::play(what),
        ["lab"] => super::lab::hold(),
        ["bans-and-dies"] => Ok(super::irqbalance::ban_and_die().map_err(|failed| format!("{failed:?}"))?),
        ["outsider", pid, fd] => outsider(Pid(pid.parse()?), Fd(fd.parse()?)),
        _ => Err(format!("role {line:?} does not exist").into()),
    }
}

/// Holds a listener and pairs of connections to it, `count` sockets in total, which some epolls watch.
fn sockets(count: usize, epolls: usize) -> Played {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut connections: Vec<TcpStream> = Vec::new();
    while connections.len() + 2 < count {
        let client = TcpStream::connect(address)?;
        // Close the connection with a reset, so that none stays in TIME-WAIT.
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO))?;
        connections.extend([client, listener.accept()?.0]);
    }
    let epolls = (0..epolls).map(|_| new_epoll()).collect::<Result<Vec<_>, _>>()?;
    for (index, connection) in connections.iter().enumerate() {
        watch(&epolls[index % epolls.len()], connection)?;
    }
    ready(&epolls)
}

/// Holds an epoll that another epoll watches; the outer epoll also watches a UDP socket and a pipe.
fn nested() -> Played {
    let (inner, outer) = (new_epoll()?, new_epoll()?);
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let (pipe, _writer) = std::io::pipe()?;
    watch(&outer, &inner)?;
    watch(&outer, &socket)?;
    watch(&outer, &pipe)?;
    ready(&[outer.as_fd(), inner.as_fd(), socket.as_fd()])
}

/// Holds an epoll; on a byte of input, closes the epoll and reuses its descriptor for a pipe.
fn reuse() -> Played {
    let mut epoll = new_epoll()?;
    let (pipe, _writer) = std::io::pipe()?;
    println!("ready {}", epoll.as_raw_fd());
    std::io::stdin().read_exact(&mut [0])?;
    rustix::io::dup2(&pipe, &mut epoll)?;
    println!("done");
    until_stdin_closes();
    Ok(())
}

/// Plays a server whose second thread waits on an epoll forever; on a byte of input, the thread exits.
#[expect(clippy::disallowed_methods, reason = "a role waits without a limit")]
fn waiter() -> Played {
    let epoll = new_epoll()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    watch(&epoll, &listener)?;
    let port = listener.local_addr()?.port();
    std::thread::scope(|scope| -> Played {
        let waiting =
            std::thread::Builder::new().name("waits (a b)".to_owned()).spawn_scoped(scope, || {
                let mut events = Vec::with_capacity(1);
                epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None).is_ok()
            })?;
        println!("ready {} {port}", epoll.as_raw_fd());
        std::io::stdin().read_exact(&mut [0])?;
        TcpStream::connect(("127.0.0.1", port))?;
        let woken = waiting.join().unwrap_or(false);
        println!("{}", if woken { "done" } else { "not woken" });
        Ok(())
    })?;
    until_stdin_closes();
    Ok(())
}

/// Counts deliveries.
fn counter() -> Played {
    let _counter = bpf::DeliveryCounter::load()?;
    println!("ready");
    until_stdin_closes();
    Ok(())
}

/// Holds sockets of many kinds. If another process is given, the role then enters that process's network
/// namespace and keeps the sockets.
fn kinds(into: Option<Pid>) -> Played {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    let (udp, peer) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    peer.connect(udp.local_addr()?)?;
    let unbound =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
    let local = std::os::unix::net::UnixDatagram::unbound()?;
    let dual = TcpListener::bind("[::]:0")?;
    let mapped = TcpStream::connect(("127.0.0.1", dual.local_addr()?.port()))?;
    let (answered, _) = dual.accept()?;
    if let Some(pid) = into {
        Netns::of_process(pid)?.enter()?;
    }
    let sockets =
        [listener.as_fd(), client.as_fd(), server.as_fd(), udp.as_fd(), peer.as_fd(), unbound.as_fd()];
    let more = [dual.as_fd(), mapped.as_fd(), answered.as_fd(), local.as_fd()];
    ready(&[&sockets[..], &more[..]].concat())
}

/// As an unprivileged user, tries every operation on another process and prints the errors.
fn outsider(pid: Pid, fd: Fd) -> Played {
    let params =
        EpollParams { busy_poll_usecs: 0, busy_poll_budget: 65, prefer_busy_poll: true, events_only: false };
    let said = |result: Result<(), linux::KernelError>| match result {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.to_string(),
    };
    let epoll = EpollId { process: linux::process::identify(pid)?, fd };
    println!("{}", said(linux::process::write_epoll(&epoll, params)));

    let own = new_epoll()?;
    let own_fd = Fd(u32::try_from(own.as_raw_fd())?);
    let own = EpollId { process: linux::process::identify(Pid(std::process::id()))?, fd: own_fd };
    println!("{}", said(linux::process::write_epoll(&own, params)));

    let mut unread = Vec::new();
    let found = linux::observe::processes(&Netns::own()?, &Processes::Only(vec![pid]), &mut unread);
    for process in found {
        println!("observed {} with {} threads, exe {:?}", process.id, process.threads.len(), process.exe);
    }
    for part in unread {
        println!("unread {}: {}", part.what, part.why);
    }
    Ok(())
}

fn new_epoll() -> rustix::io::Result<OwnedFd> {
    epoll::create(epoll::CreateFlags::CLOEXEC)
}

fn watch(epoll: &OwnedFd, file: impl AsFd) -> rustix::io::Result<()> {
    epoll::add(epoll, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

fn ready(files: &[impl AsFd]) -> Played {
    let numbers: Vec<String> = files.iter().map(|file| file.as_fd().as_raw_fd().to_string()).collect();
    println!("ready {}", numbers.join(" "));
    until_stdin_closes();
    Ok(())
}

/// Prints a line for the test.
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// Waits for the end of standard input.
pub(crate) fn until_stdin_closes() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
