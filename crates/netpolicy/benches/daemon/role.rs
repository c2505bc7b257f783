//! Plays the roles of the watched processes. They have no policy until they exec a matching program or listen
//! on a matching port.

use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use linux::process::{identify, read_epoll};
use model::{EpollId, Fd, Nanoseconds, Pid, ProcessId};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::stage::{Stage, becomes};
use crate::{Done, SOCKETS, clock};

pub(crate) const ROLE: &str = "NETPOLICY_BENCH_ROLE";
pub(crate) const NEXT: &str = "NETPOLICY_BENCH_NEXT";
/// The names of the two executables: the first has no policy, the second has one.
pub(crate) const UNMATCHED: &str = "np-unmatched";
pub(crate) const MEANT: &str = "np-meant";

/// The role that execs a matching program, and then keeps a socket and an epoll.
pub(crate) const EXEC: &str = "exec";
const AFTER_EXEC: &str = "after-exec";
/// The role that listens on a matching port.
pub(crate) const LISTEN: &str = "listen";
/// The role that serves one connection on that port, and reports when its epoll has the policy's parameters.
pub(crate) const SERVE: &str = "serve";
/// The role that serves a UDP socket on that port, with or without receiving a datagram.
pub(crate) const SERVE_UDP: &str = "serve-udp";
/// The role that execs a matching program, and then creates epolls.
pub(crate) const EPOLLS: &str = "epolls";
const MAKES_EPOLLS: &str = "makes-epolls";
/// The role that execs a matching program, and then holds many sockets.
pub(crate) const HOLD: &str = "hold";
const HOLDS: &str = "holds";

pub(crate) const PORT: u16 = 11_999;
/// How many epolls a process creates in its first nine seconds, and how many later.
pub(crate) const YOUNG_EPOLLS: usize = 8;
const SETTLED_EPOLLS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the policy file for these processes.
pub(crate) fn policy(stage: &Stage) -> String {
    let exe = stage.image(MEANT);
    format!(
        "[service.meant]\nmatch = {{ exe = \"{}\" }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n\
         [service.listener]\nmatch = {{ port = {PORT} }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n",
        exe.display()
    )
}

/// Plays the role that the environment names, if it names one.
pub(crate) fn play() -> Done<Option<()>> {
    let Ok(role) = std::env::var(ROLE) else { return Ok(None) };
    let next = std::env::var(NEXT).unwrap_or_default();
    match role.as_str() {
        EXEC => {
            let _socket = kept(UdpSocket::bind("0.0.0.0:0")?)?;
            let epoll = epoll::create(epoll::CreateFlags::empty())?;
            say(".")?;
            std::thread::sleep(Duration::from_millis(20));
            let words = [clock().0.to_string(), epoll.as_raw_fd().to_string()];
            return Err(becomes(&next, AFTER_EXEC, words).into());
        }
        AFTER_EXEC => {
            let words: Vec<String> = std::env::args().skip(1).collect();
            let [begun, fd] = words.as_slice() else { return Err("two words".into()) };
            say(&format!(
                "{}\n",
                in_force(own()?, Fd(fd.parse()?), Nanoseconds(begun.parse()?))?.as_nanos()
            ))?;
        }
        LISTEN => {
            let _socket = UdpSocket::bind("0.0.0.0:0")?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let own = own()?;
            say(".")?;
            std::thread::sleep(Duration::from_millis(20));
            let begun = clock();
            let _listener = TcpListener::bind(("0.0.0.0", PORT))?;
            say(&format!("{}\n", in_force(own, fd_of(&epoll)?, begun)?.as_nanos()))?;
        }
        SERVE => {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let own = own()?;
            let listener = TcpListener::bind(("0.0.0.0", PORT))?;
            say(".")?;
            let (connection, _) = listener.accept()?;
            epoll::add(&epoll, &connection, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            in_force(own, fd_of(&epoll)?, clock())?;
            say(&format!("{}\n", clock().0))?;
        }
        SERVE_UDP => {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
            epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            say(".")?;
            in_force(own()?, fd_of(&epoll)?, clock())?;
            say(&format!("{}\n", clock().0))?;
        }
        EPOLLS | HOLD => {
            let then = if role == EPOLLS { MAKES_EPOLLS } else { HOLDS };
            return Err(becomes(&next, then, [String::new(), String::new()]).into());
        }
        MAKES_EPOLLS => makes_epolls()?,
        HOLDS => holds()?,
        other => return Err(format!("no role {other}").into()),
    }
    Ok(Some(()))
}

fn makes_epolls() -> Done<()> {
    let begun = Instant::now();
    let _socket = UdpSocket::bind("0.0.0.0:0")?;
    let own = own()?;
    let mut epolls = vec![epoll::create(epoll::CreateFlags::CLOEXEC)?];
    in_force(own, fd_of(&epolls[0])?, clock())?;
    say(".")?;
    // Create the epolls at random times that do not depend on the daemon's intervals.
    let mut chance = model::Chance::new(u64::from(std::process::id()));
    let one = |epolls: &mut Vec<OwnedFd>| -> Done<()> {
        epolls.push(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let last = epolls.last().ok_or("one")?;
        say(&format!("{}\n", in_force(own, fd_of(last)?, clock())?.as_nanos()))
    };
    for _ in 0..YOUNG_EPOLLS {
        std::thread::sleep(Duration::from_micros(u64::from(chance.below(600_000))));
        one(&mut epolls)?;
    }
    std::thread::sleep(Duration::from_secs(12).saturating_sub(begun.elapsed()));
    for _ in 0..SETTLED_EPOLLS {
        std::thread::sleep(Duration::from_micros(u64::from(chance.below(2_000_000))));
        one(&mut epolls)?;
    }
    Ok(())
}

fn holds() -> Done<()> {
    const EPOLLS: usize = 4;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let epolls =
        (0..EPOLLS).map(|_| epoll::create(epoll::CreateFlags::CLOEXEC)).collect::<Result<Vec<_>, _>>()?;
    let mut sockets = Vec::with_capacity(SOCKETS);
    for place in 0..SOCKETS {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epolls[place % EPOLLS], &socket, data, epoll::EventFlags::IN)?;
        sockets.push(socket);
    }
    say(".")?;
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Waits until an epoll has the parameters of the policy, and returns the time since `begun`.
fn in_force(process: ProcessId, fd: Fd, begun: Nanoseconds) -> Done<Duration> {
    let patience = Instant::now() + PATIENCE;
    while Instant::now() < patience {
        if read_epoll(&EpollId { process, fd })?.prefer_busy_poll {
            return Ok(Duration::from_nanos(clock().0 - begun.0));
        }
        std::thread::sleep(Duration::from_micros(30));
    }
    Err("the policy did not come into force".into())
}

fn own() -> Done<ProcessId> {
    Ok(identify(Pid(std::process::id()))?)
}

fn fd_of(epoll: &OwnedFd) -> Done<Fd> {
    Ok(Fd(u32::try_from(epoll.as_raw_fd())?))
}

/// Makes a socket survive `execve`.
fn kept(socket: UdpSocket) -> Done<UdpSocket> {
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty())?;
    Ok(socket)
}

fn say(words: &str) -> Done<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(words.as_bytes())?;
    Ok(out.flush()?)
}
