//! Measures how soon the daemon has a policy in force after an `execve`, a new listener, a new epoll, the
//! first connection to a pod's server, and a link that comes up, on a host with a thousand other processes.
//! Also measures the daemon's cost without events, and its cost for a process without a policy.
//!
//! `cargo bench -p netpolicy --bench daemon`, as root; `-- PART` runs one part. Programs after PART are other
//! builds of netpolicy, which are measured in alternation with this one.
//!
//! Everything happens in the lab's namespaces. The watched processes run this program's own image; each
//! reports when it saw the policy in force.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod role;
mod stage;

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latency::measure::statistics::paired_ratio;
use linux::Netns;
use linux::lab::SERVER_DEVICE;
use model::{IfIndex, Nanoseconds};
use netlink::Netdev;
use netlink::rtlink::RtLink;

use stage::{Stage, median};

type Done<T> = Result<T, Box<dyn Error>>;

/// The path of the netpolicy binary that this build made.
const PROGRAM: &str = env!("CARGO_BIN_EXE_netpolicy");
/// The number of other processes on the host, which have no policy.
const BESIDE: usize = 1_000;
/// The number of measurements in a block, and the number of blocks for each program.
const ROUNDS: usize = 20;
const LINK_ROUNDS: usize = 12;
const POD_ROUNDS: usize = 100;
const REACTION_BLOCKS: usize = 6;
/// How often a link comes up before the daemon is told to forget its repairs, because it repairs at most ten
/// times in ten minutes.
const LINKS_IN_A_ROW: usize = 8;
/// The number of sockets during the measurement without events.
const SOCKETS: usize = 10_000;
const DEVICES: usize = 4;
const QUEUES_EACH: u32 = 64;
/// How long the daemon is measured without events.
const IDLE: Duration = Duration::from_secs(60);
/// The number of programs that are started in a row, for each variant of a block.
const STARTED: usize = 300;
/// The number of program starts at the beginning that are not counted.
const WARM_UP: usize = 100;
const SETTLES: Duration = Duration::from_secs(1);
const BLOCKS: usize = 16;
/// `gro-flush-timeout` of defer50.
const DEFER50: u64 = 50_000;

fn main() -> Done<()> {
    if role::play()?.is_some() {
        return Ok(());
    }
    println!("Linux {}, {BESIDE} idle processes", rustix::system::uname().release().to_string_lossy());
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let part = words.next();
    let programs: Vec<String> = std::iter::once(PROGRAM.to_owned()).chain(words).collect();
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if wanted("reaction") {
        reaction(&programs)?;
    }
    if wanted("epolls") {
        epolls()?;
    }
    if wanted("pods") {
        pods()?;
    }
    if wanted("links") {
        links(&programs)?;
    }
    if wanted("cost") {
        cost_for_others()?;
    }
    if wanted("idle") {
        idle()?;
    }
    Ok(())
}

/// Measures how soon the daemon reacts to a new service: to its execve, and to its listening socket.
fn reaction(programs: &[String]) -> Done<()> {
    let mut stage = Stage::new("reaction", 2)?;
    stage.asks(&role::policy(&stage))?;
    stage.fill(BESIDE)?;
    let ways = [("execve", role::EXEC), ("a new listener", role::LISTEN)];
    let mut took: Vec<[Blocks; 2]> = programs.iter().map(|_| Default::default()).collect();
    for block in 0..REACTION_BLOCKS {
        for turn in 0..programs.len() {
            let program = (block + turn) % programs.len();
            let _daemon = stage.daemon(&programs[program])?;
            for (way, (_, role)) in ways.iter().enumerate() {
                let mut of_block = Vec::with_capacity(ROUNDS);
                for _ in 0..ROUNDS {
                    of_block.extend(stage.role(role)?.wait()?);
                    std::thread::sleep(Duration::from_millis(15));
                }
                took[program][way].push(of_block);
            }
        }
    }
    for (way, (what, _)) in ways.iter().enumerate() {
        let blocks: Vec<&Blocks> = took.iter().map(|of| &of[way]).collect();
        compare(&format!("from {what} to the policy in force"), programs, &blocks);
    }
    Ok(())
}

/// Measures the reaction to servers in another network namespace, behind a macvlan of the host's device.
fn pods() -> Done<()> {
    let mut stage = Stage::new("pods", 2)?;
    stage.asks(&role::policy(&stage))?;
    stage.fill(BESIDE)?;
    let pod = stage.pod()?;
    let settles = Duration::from_millis(50);
    {
        let _daemon = stage.daemon(PROGRAM)?;
        let tcp = || pod_server(&stage, &pod, role::SERVE, settles);
        let udp = || pod_server(&stage, &pod, role::SERVE_UDP, settles);
        println!(
            "{}",
            summary("from the connect to a pod's server to its epoll's parameters", &mut rounds(tcp)?)
        );
        println!(
            "{}",
            summary(
                "from the first datagram to a pod's UDP server to its epoll's parameters",
                &mut rounds(udp)?
            )
        );
    }
    let _daemon = stage.daemon_without_bpf(PROGRAM)?;
    let unnoticed = || pod_server(&stage, &pod, role::SERVE, Duration::ZERO);
    let what = "without BPF, from the connect to a pod's server that has just begun to listen to its epoll's parameters";
    println!("{}", summary(what, &mut rounds(unnoticed)?));
    Ok(())
}

fn rounds(one: impl Fn() -> Done<Vec<Duration>>) -> Done<Vec<Duration>> {
    let mut took = Vec::with_capacity(POD_ROUNDS);
    for _ in 0..POD_ROUNDS {
        took.extend(one()?);
    }
    Ok(took)
}

/// Measures the time from the first packet of a pod's server until the parameters of the server's epoll are
/// set. The packet is sent `settles` after the server begins to listen.
fn pod_server(stage: &Stage, pod: &Netns, role: &str, settles: Duration) -> Done<Vec<Duration>> {
    let server = stage.role_in(pod, role)?;
    std::thread::sleep(settles);
    let begun = clock();
    let client = if role == role::SERVE { Some(stage.connects()?) } else { None };
    if client.is_none() {
        stage.sends()?;
    }
    let in_force = server.wait()?;
    Ok(in_force.iter().map(|at| at.saturating_sub(Duration::from_nanos(begun.0))).collect())
}

/// Measures the reaction to new epolls that no event reports.
fn epolls() -> Done<()> {
    let mut stage = Stage::new("epolls", 2)?;
    stage.asks(&role::policy(&stage))?;
    stage.fill(BESIDE)?;
    let daemon = stage.daemon(PROGRAM)?;
    let makers = (0..4).map(|_| stage.role(role::EPOLLS)).collect::<Done<Vec<_>>>()?;
    let (mut young, mut settled) = (Vec::new(), Vec::new());
    for maker in makers {
        let took = maker.wait()?;
        let (early, late) = took.split_at(role::YOUNG_EPOLLS.min(took.len()));
        young.extend(early);
        settled.extend(late);
    }
    println!("{}", summary("from a new epoll of a young process to its parameters", &mut young));
    println!("{}", summary("from a new epoll of a settled process to its parameters", &mut settled));
    println!("  the daemon took {:?} of CPU for all of this", daemon.cpu()?);
    Ok(())
}

/// Measures the reaction to a device whose link comes up, and which therefore has new NAPIs.
fn links(programs: &[String]) -> Done<()> {
    let mut stage = Stage::new("links", 2)?;
    stage.asks(&format!("[device.{SERVER_DEVICE}]\npolicy = \"bulk\"\ndelivery = \"defer50\"\n"))?;
    stage.fill(BESIDE)?;
    let index = stage.device()?;
    let mut took: Vec<Blocks> = programs.iter().map(|_| Blocks::new()).collect();
    for block in 0..REACTION_BLOCKS {
        for turn in 0..programs.len() {
            let program = (block + turn) % programs.len();
            let daemon = stage.daemon(&programs[program])?;
            let mut of_block = Vec::with_capacity(LINK_ROUNDS);
            for round in 0..LINK_ROUNDS {
                if round % LINKS_IN_A_ROW == 0 {
                    daemon.hang_up()?;
                    std::thread::sleep(Duration::from_millis(200));
                }
                stage.inside(|| -> Done<()> {
                    let status = Command::new("ip").args(["link", "set", SERVER_DEVICE, "down"]).status()?;
                    status.success().then_some(()).ok_or("ip link set down")?;
                    Ok(())
                })?;
                std::thread::sleep(Duration::from_millis(30));
                of_block.push(stage.inside(|| comes_up(index))?);
                std::thread::sleep(Duration::from_millis(15));
            }
            took[program].push(of_block);
        }
    }
    let what = "from a link that is switched on to the policy in force on its new queues";
    compare(what, programs, &took.iter().collect::<Vec<_>>());
    Ok(())
}

/// The measurements of one program, in blocks.
type Blocks = Vec<Vec<Duration>>;

/// Prints each program's figures, and the ratio of each other program to the first, from the medians of their
/// blocks.
fn compare(what: &str, programs: &[String], took: &[&Blocks]) {
    let medians = |blocks: &Blocks| -> Vec<f64> {
        blocks.iter().map(|block| median(&mut block.clone()).as_secs_f64()).collect()
    };
    for (program, blocks) in programs.iter().zip(took) {
        println!("{}", summary(what, &mut blocks.concat()));
        if programs.len() > 1 {
            println!("  with {program}");
        }
    }
    let [first, others @ ..] = took else { return };
    for (program, other) in programs[1..].iter().zip(others) {
        println!("  this build / {program}: {}", as_ratio(&medians(other), &medians(first)));
    }
}

/// Formats the ratio of paired blocks with its interval.
fn as_ratio(before: &[f64], after: &[f64]) -> String {
    paired_ratio(before, after).map_or_else(
        || "too few blocks".to_owned(),
        |found| {
            format!("{:.3} [{:.3}, {:.3}], {} blocks", found.estimate, found.low, found.high, before.len())
        },
    )
}

fn comes_up(index: IfIndex) -> Done<Duration> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let (mut links, mut netdev) = (RtLink::open_here()?, Netdev::open_here()?);
    let begun = Instant::now();
    links.set_up(index)?;
    while begun.elapsed() < PATIENCE {
        let napis = netdev.napis(Some(index))?;
        if !napis.is_empty() && napis.iter().all(|napi| napi.gro_flush_timeout == Some(DEFER50)) {
            return Ok(begun.elapsed());
        }
        std::thread::sleep(Duration::from_micros(30));
    }
    Err("the link came up without its policy".into())
}

/// Measures how long programs take to start, with and without a daemon that waits for other programs.
fn cost_for_others() -> Done<()> {
    let mut stage = Stage::new("cost", 1)?;
    stage.fill(BESIDE)?;
    let by_name = "[service.cache]\nmatch = { exe = \"never-started\" }\npolicy = \"latency\"\n";
    let by_unit = "[service.cache]\nmatch = { unit = \"never-started\" }\npolicy = \"latency\"\n";
    let mut times: [Vec<Duration>; 3] = Default::default();
    for block in 0..BLOCKS {
        // The variants alternate, so that drift affects all of them alike.
        for turn in 0..3 {
            let way = (block + turn) % 3;
            let daemon = match way {
                0 => {
                    // Wait as long as a daemon takes to start, because an idle machine runs more slowly at
                    // first.
                    std::thread::sleep(SETTLES);
                    None
                }
                _ => {
                    stage.asks(if way == 1 { by_name } else { by_unit })?;
                    Some(stage.daemon(PROGRAM)?)
                }
            };
            stage.inside(|| starts(WARM_UP))?;
            times[way].push(stage.inside(|| starts(STARTED))?);
            drop(daemon);
        }
    }
    let [without, name, unit] = &times;
    let seconds = |times: &[Duration]| times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
    let middle = |times: &[Duration]| median(&mut times.to_vec());
    let ratio = |with: &[Duration]| as_ratio(&seconds(without), &seconds(with));
    println!(
        "fork, execve and end of /bin/true, {BLOCKS} blocks of {STARTED}, median of a block: {:.1?}",
        middle(without)
    );
    println!(
        "  with a daemon that waits for another executable: {:.1?}, ratio {}",
        middle(name),
        ratio(name)
    );
    println!(
        "  with a daemon that must inspect each program (it matches a unit, not an executable): {:.1?}, ratio {}",
        middle(unit),
        ratio(unit)
    );
    Ok(())
}

fn starts(count: usize) -> Done<Duration> {
    let begun = Instant::now();
    for _ in 0..count {
        let mut command = Command::new("/bin/true");
        command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    }
    Ok(begun.elapsed() / u32::try_from(count)?)
}

/// Measures the cost of a daemon without events, with many objects under a policy.
fn idle() -> Done<()> {
    let stage = Stage::new("idle", QUEUES_EACH)?;
    let mut policy = role::policy(&stage);
    policy += &format!("[device.{SERVER_DEVICE}]\npolicy = \"bulk\"\ndelivery = \"defer50\"\n");
    for more in 1..DEVICES {
        let name = format!("bench{more}");
        stage.adds_device(&name, QUEUES_EACH)?;
        policy += &format!("[device.{name}]\npolicy = \"bulk\"\ndelivery = \"defer50\"\n");
    }
    stage.asks(&policy)?;
    let holder = stage.role(role::HOLD)?;
    let daemon = stage.daemon(PROGRAM)?;
    std::thread::sleep(Duration::from_secs(12));
    let napis = stage.inside(|| -> Done<usize> {
        let napis = Netdev::open_here()?.napis(None)?;
        Ok(napis.iter().filter(|napi| napi.gro_flush_timeout.is_some_and(|span| span > 0)).count())
    })?;
    let (cpu, begun) = (daemon.cpu()?, Instant::now());
    std::thread::sleep(IDLE);
    let share = (daemon.cpu()? - cpu).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    println!(
        "idle with {napis} queues and {SOCKETS} sockets under policy, over {IDLE:?}: {share:.3} % of one CPU"
    );
    println!("  resident: {}", daemon.memory()?);
    drop(holder);
    Ok(())
}

/// Formats the median, the 99th percentile and the longest time.
fn summary(what: &str, took: &mut [Duration]) -> String {
    took.sort_unstable();
    let at = |share: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a position in a short list"
        )]
        let place = ((took.len() as f64 * share).ceil() as usize).clamp(1, took.len()) - 1;
        took[place]
    };
    if took.is_empty() {
        return format!("{what}: nothing was seen");
    }
    let within = took.iter().filter(|took| **took < Duration::from_millis(10)).count();
    format!(
        "{what}: median {:.2?}, 99 % {:.2?}, longest {:.2?} ({} of {} below 10 ms)",
        at(0.5),
        at(0.99),
        at(1.0),
        within,
        took.len()
    )
}

/// Reads CLOCK_MONOTONIC, which all processes share.
fn clock() -> Nanoseconds {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Nanoseconds(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
}
