//! Measures the run time of `netpolicy show`; the calls and the time for applying and rolling back a device
//! policy, and for all mechanisms of a device together; and the time for reading a device, compared with
//! `ethtool`, `ip` and `ynl`. `cargo bench -p netpolicy --bench paths`, as root; `-- PART` runs one part,
//! such as `observe`. `-- against OTHER [PROGRAM]` compares another build with this one, or with PROGRAM.
//! Everything happens in the lab's namespaces.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use apply::{Allow, Journal, Knobs, Moment, TransactionOrigin};
use linux::lab::{Lab, LabOptions, MemcachedOptions};
use linux::{Kernel, KernelError, Netns, Processes};
use model::{DeliveryMode, Intent, Nanoseconds, Policy, PolicyName, Setting, Target};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

#[path = "paths/against.rs"]
mod against;
#[path = "paths/beside_the_tools.rs"]
mod beside_the_tools;
#[path = "paths/every_mechanism.rs"]
mod every_mechanism;

type Done<T> = Result<T, Box<dyn Error>>;

/// The variable in the environment of the process that holds sockets.
const HOLD: &str = "NETPOLICY_BENCH_HOLD";
const SOCKETS: usize = 10_000;
const EPOLLS: usize = 4;
const CONNECTIONS: usize = 50;
const ROUNDS: usize = 50;
const QUEUES: [u32; 2] = [4, 64];

fn main() -> Done<()> {
    if std::env::var_os(HOLD).is_some() {
        return hold_sockets();
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|asked| asked == part);
    println!("Linux {}, {ROUNDS} rounds each", rustix::system::uname().release().to_string_lossy());
    if let [first, other, program @ ..] = asked.as_slice()
        && first == "against"
    {
        return against::compare(
            program.first().map_or(env!("CARGO_BIN_EXE_netpolicy"), String::as_str),
            other,
        );
    }
    if wanted("show") {
        show_the_lab()?;
        show_many_sockets()?;
    }
    for queues in QUEUES {
        if wanted("apply") {
            apply_a_device_policy(queues)?;
        }
    }
    for queues in QUEUES {
        if wanted("mechanisms") {
            every_mechanism::in_memory(queues)?;
            every_mechanism::on_a_veth(queues)?;
        }
    }
    for queues in QUEUES {
        if wanted("observe") {
            beside_the_tools::observe(queues)?;
        }
    }
    Ok(())
}

/// Measures `show` on the lab with memcached and its connections.
fn show_the_lab() -> Done<()> {
    let lab = Lab::new(&LabOptions::with_queues(4))?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let address = server.address();
    let connections = lab.client().run(|| {
        (0..CONNECTIONS)
            .map(|_| TcpStream::connect(address))
            .collect::<Result<Vec<TcpStream>, std::io::Error>>()
    })??;
    let what = format!("show, the lab: 4 queues, memcached, {} connections", connections.len());
    println!("{what}: {}", time_show(&lab)?);
    Ok(())
}

/// Measures `show` on the lab with a process that has many sockets.
fn show_many_sockets() -> Done<()> {
    let lab = Lab::new(&LabOptions::with_queues(4))?;
    let holder = Holder::start(lab.server())?;
    println!("show, {SOCKETS} sockets in {EPOLLS} epolls of one process: {}", time_show(&lab)?);
    drop(holder);
    Ok(())
}

fn time_show(lab: &Lab) -> Done<Times> {
    let netns = format!("pid:{}", lab.server_pid());
    Times::of(|| {
        let mut show = Command::new(env!("CARGO_BIN_EXE_netpolicy"));
        let status = show.args(["--netns", &netns, "show"]).stdout(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(format!("show ended with {status}").into()) }
    })
}

/// Applies `suspend20` to every queue of a device, commits it with its journal, and rolls it back.
fn apply_a_device_policy(queues: u32) -> Done<()> {
    let lab = Lab::new(&LabOptions::with_queues(queues))?;
    let scratch = scratch()?;
    let mut counting = Counting { kernel: Kernel::new(), reads: 0, writes: 0 };
    let mut undo = Vec::new();
    let mut settings = 0;
    let apply = Times::of(|| {
        let plan = device_plan(lab.server())?;
        settings = plan.changes().count();
        let journal = Journal::new(scratch.path().to_owned(), "bench".to_owned());
        let held = apply::commit(plan, &mut counting, &journal, &asked(), Allow::default())?;
        let began = Instant::now();
        held.roll_back()?;
        undo.push(began.elapsed());
        Ok(())
    })?;
    let rounds = u64::try_from(ROUNDS + 1)?; // The first round is counted, but not timed.
    println!(
        "apply, suspend20 on a device of {queues} queues ({settings} settings): observe, plan, commit and roll back \
         {apply}; the roll back alone {}; {} writes and {} reads of queues a round, both ways together",
        Times(undo),
        counting.writes / rounds,
        counting.reads / rounds,
    );
    Ok(())
}

fn device_plan(netns: &Netns) -> Done<model::Plan> {
    let host = linux::observe(netns, &Processes::None)?;
    let target = Target::Device(linux::lab::SERVER_DEVICE.to_owned());
    let delivery = Some(DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(20) });
    let intent = Intent { delivery, ..Intent::new(target, PolicyName::Latency, "bench") };
    let policy = Policy { intents: vec![intent], ..Policy::default() };
    let placement = plan::place(&policy, &host, &plan::Resolved::default()).map_err(|r| r.message)?;
    let desired = plan::desired(&placement, &host).map_err(|r| r.message)?;
    Ok(plan::diff(&desired, &host).map_err(|r| r.message)?)
}

fn asked() -> TransactionOrigin {
    TransactionOrigin {
        at: Moment { unix_micros: 0, since_boot: Nanoseconds(0) },
        command: "bench".to_owned(),
        kernel_release: String::new(),
        netpolicy: String::new(),
        deadline: None,
    }
}

/// A wrapper of the kernel that counts the calls to it.
struct Counting {
    kernel: Kernel,
    reads: u64,
    writes: u64,
}

impl Knobs for Counting {
    type Error = KernelError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, KernelError> {
        self.reads += 1;
        self.kernel.read(like)
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), KernelError> {
        self.writes += 1;
        self.kernel.write(settings)
    }

    fn is_gone(error: &KernelError) -> bool {
        Kernel::is_gone(error)
    }
}

/// Creates a temporary directory that is removed when the benchmark ends.
fn scratch() -> Done<TempDir> {
    Ok(TempDir::with_prefix("netpolicy-bench-")?)
}

/// A second process of this program that holds sockets in a namespace.
struct Holder(Child);

impl Holder {
    fn start(netns: &Netns) -> Done<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(HOLD, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = netns.run(|| command.spawn())??;
        let ready = child.stdout.take().ok_or("no output of the holder")?;
        let holder = Self(child);
        let mut line = String::new();
        BufReader::new(ready).read_line(&mut line)?;
        if line.trim() == "ready" { Ok(holder) } else { Err(format!("the holder said `{line}`").into()) }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hold_sockets() -> Done<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let mut sockets = Vec::with_capacity(SOCKETS);
    while sockets.len() < SOCKETS {
        sockets.push(TcpStream::connect(address)?);
        sockets.push(listener.accept()?.0);
    }
    let mut epolls: Vec<OwnedFd> = Vec::new();
    for _ in 0..EPOLLS {
        epolls.push(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    }
    for (index, socket) in sockets.iter().enumerate() {
        let data = epoll::EventData::new_u64(u64::try_from(index)?);
        epoll::add(&epolls[index % EPOLLS], socket, data, epoll::EventFlags::IN)?;
    }
    println!("ready");
    // Wait until the benchmark closes the other end of standard input, or kills this process.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Measured times, printed as their median and spread.
struct Times(Vec<Duration>);

impl Times {
    fn median(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted[(sorted.len() - 1) / 2]
    }

    fn of(mut body: impl FnMut() -> Done<()>) -> Done<Self> {
        body()?; // The first run fills caches, and is not counted.
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            body()?;
            times.push(began.elapsed());
        }
        Ok(Self(times))
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |percent: usize| sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1e3;
        write!(f, "median {:.2} ms (5 % {:.2}, 95 % {:.2})", at(50), at(5), at(95))
    }
}
