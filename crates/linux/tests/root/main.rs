//! Tests of the kernel crate on the running kernel. They need root; each test names its further needs, and a
//! machine that lacks one skips the test visibly: it is listed as ignored, with the reason, and counted.

mod app_requests;
mod asked_once;
mod asked_server;
#[expect(dead_code, reason = "the tests of the whole start one that moves interrupts")]
mod balancer;
mod delivery;
mod device;
mod epolls;
mod events_only;
#[path = "../../examples/socket_policy.rs"]
mod example;
mod follow;
mod foreign;
mod guest_nics;
mod guest_steering;
mod holders;
mod interrupts;
mod irqbalance;
mod knobs;
mod kthread;
mod lab;
mod live;
mod netdevsim;
mod netns;
mod nic;
mod only;
mod paths;
mod preload;
mod process;
mod role;
mod scratch;
mod subject;
mod transaction;
mod unpacked;
mod uring;
mod wire;

use asked_once::AskedOnce;
use libtest_mimic::{Arguments, Failed, Trial};
use linux::follow::How;
use model::KernelVersion;

/// Something that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// BPF programs on tracepoints: `/sys/kernel/btf/vmlinux`.
    Bpf,
    /// `memcached` from the distribution.
    Memcached,
    /// A C compiler.
    Cc,
    /// A C compiler and a C library to link statically.
    StaticCc,
    /// io_uring, which a host may have turned off.
    IoUring,
    /// IPv6, which a host may have turned off.
    Ipv6,
    /// `unshare` and `ip`, for processes in namespaces of their own.
    Unshare,
    /// `ip` and `ethtool`, for a wire between two namespaces.
    Wire,
    /// `napi-set` with `threaded`.
    ThreadPerNapi,
    /// A network device of the machine with MSI vectors.
    Vectors,
    /// BPF programs at the return of kernel functions, which some kernels refuse.
    Fentry,
    /// NAPI threads that poll without a pause.
    BusyPollThreads,
    /// `/dev/cpu_dma_latency`.
    DmaLatency,
    /// The emulated guest's connected virtio NICs.
    VirtioNics,
    /// The emulated guest's connected igb NICs.
    IgbNics,
    /// The same, with a driver that accepts rules for single flows, as in the patched guest.
    IgbRules,
    /// The same, with a driver that accepts such rules only on newer chips, as in all other kernels.
    IgbWithoutRules,
    /// `CONFIG_UCLAMP_TASK`.
    UtilClamps,
    /// A kernel without it.
    NoUtilClamps,
    /// NICs that netdevsim simulates.
    Netdevsim,
    /// irqbalance from the distribution, on more than one CPU: on one it exits immediately.
    Irqbalance,
    /// Epolls that wait for events only: the patches in `kernel/epoll-event-busy-loop/`.
    EventsOnly,
    /// The qdiscs fq and fq_codel, and u32 filters.
    FairQueues,
    /// The unified hierarchy of cgroups.
    Cgroups,
    /// `clang` and a `tc` that loads its programs, for a redirect by eBPF.
    TcBpf,
    /// Macvlans.
    Macvlan,
    /// `CONFIG_XDP_SOCKETS`, and a `queue-get` that reports such sockets (6.15).
    AfXdp,
}

impl Need {
    fn missing(self) -> Option<&'static str> {
        let (there, what) = match self {
            Self::Root => (rustix::process::geteuid().is_root(), "needs root"),
            Self::Bpf => (std::path::Path::new("/sys/kernel/btf/vmlinux").exists(), "needs kernel BTF"),
            Self::Memcached => (std::path::Path::new("/usr/bin/memcached").exists(), "needs memcached"),
            Self::Cc => (runs("cc", &["--version"]), "needs a C compiler"),
            Self::StaticCc => (has_static_libc(), "needs a C compiler with a static C library"),
            Self::IoUring => {
                (io_uring_is_on(), "needs io_uring, which kernel.io_uring_disabled turns off here")
            }
            Self::Ipv6 => (std::net::UdpSocket::bind("[::]:0").is_ok(), "needs IPv6"),
            Self::Unshare => (runs("unshare", &["--version"]) && runs("ip", &["-V"]), "needs unshare and ip"),
            Self::Wire => (runs("ip", &["-V"]) && runs("ethtool", &["--version"]), "needs ip and ethtool"),
            Self::ThreadPerNapi => (kernel() >= Some(KernelVersion::since(6, 17)), "needs Linux 6.17"),
            Self::Vectors => (a_device_has_vectors(), "needs a network device with MSI vectors"),
            Self::Fentry => (linux::follow::Follower::new(&[], How::Fentry).is_ok(), "needs fentry"),
            Self::BusyPollThreads => (kernel() >= Some(KernelVersion::since(6, 19)), "needs Linux 6.19"),
            Self::DmaLatency => {
                (std::path::Path::new("/dev/cpu_dma_latency").exists(), "needs /dev/cpu_dma_latency")
            }
            Self::VirtioNics => (are_devices(["virtio0", "virtio1"]), "needs a guest's virtio NICs"),
            Self::Netdevsim => {
                (std::path::Path::new("/sys/bus/netdevsim/new_device").exists(), "needs netdevsim")
            }
            Self::Irqbalance => (
                balancer::program().is_some()
                    && std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1),
                "needs irqbalance, and two CPUs",
            ),
            Self::EventsOnly => (waits_for_events_only(), "needs the kernel of kernel/epoll-event-busy-loop"),
            Self::FairQueues => (has_fair_queues(), "needs fq and fq_codel"),
            Self::Cgroups => (app_requests::cgroups_are_there(), "needs cgroup2"),
            Self::TcBpf => (
                runs("clang", &["--version"]) && runs("tc", &["-V"]) && has_tc_bpf(),
                "needs clang, and tc's bpf classifier",
            ),
            Self::Macvlan => (
                runs(
                    "unshare",
                    &[
                        "--net",
                        "sh",
                        "-c",
                        "ip link add v0 type veth peer name v1 && ip link add link v0 name m0 type macvlan",
                    ],
                ),
                "needs macvlan",
            ),
            Self::AfXdp => (
                has_af_xdp() && kernel() >= Some(KernelVersion::since(6, 15)),
                "needs Linux 6.15 with CONFIG_XDP_SOCKETS",
            ),
            Self::IgbNics => (are_devices(["igb0", "igb1"]), "needs a guest's igb NICs"),
            Self::IgbRules => {
                (igb_has_rules() == Some(true), "needs a guest's igb NICs with rules for flows")
            }
            Self::IgbWithoutRules => {
                (igb_has_rules() == Some(false), "needs a guest's igb NICs without rules for flows")
            }
            Self::UtilClamps => (has_util_clamps(), "needs a kernel with CONFIG_UCLAMP_TASK"),
            Self::NoUtilClamps => (!has_util_clamps(), "needs a kernel without CONFIG_UCLAMP_TASK"),
        };
        (!there).then_some(what)
    }
}

fn kernel() -> Option<KernelVersion> {
    KernelVersion::parse(&rustix::system::uname().release().to_string_lossy())
}

fn a_device_has_vectors() -> bool {
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    devices
        .flat_map(|device| ["device/msi_irqs", "device/../msi_irqs"].map(|below| device.path().join(below)))
        .any(|vectors| vectors.is_dir())
}

fn are_devices(names: [&str; 2]) -> bool {
    names.iter().all(|name| std::path::Path::new("/sys/class/net").join(name).exists())
}

/// Whether the driver of a guest's igb NICs accepts rules for single flows; `None` without such NICs.
fn igb_has_rules() -> Option<bool> {
    if !are_devices(["igb0", "igb1"]) {
        return None;
    }
    let features = std::process::Command::new("ethtool").args(["-k", "igb1"]).output().ok()?;
    let features = String::from_utf8_lossy(&features.stdout).into_owned();
    let line = features.lines().find(|line| line.trim_start().starts_with("ntuple-filters:"))?;
    Some(!line.ends_with("[fixed]"))
}

/// Kernel: 6.18, `kernel/sched/core.c` `sched_core_sysctls`.
fn has_util_clamps() -> bool {
    std::path::Path::new("/proc/sys/kernel/sched_util_clamp_min").exists()
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let output = std::process::Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// Tries it in a temporary namespace.
fn has_tc_bpf() -> bool {
    let tried = "ip link set lo up && tc qdisc add dev lo clsact && tc filter add dev lo ingress bpf bytecode '1,6 0 0 0'";
    runs("unshare", &["--net", "sh", "-c", tried])
}

fn has_af_xdp() -> bool {
    rustix::net::socket(rustix::net::AddressFamily::from_raw(44), rustix::net::SocketType::RAW, None).is_ok()
}

fn has_fair_queues() -> bool {
    let tried = "ip link set lo up && tc qdisc add dev lo root handle 1: fq_codel && tc filter add dev lo parent 1: \
                 protocol ip u32 match u32 0 0 flowid 1:1 && tc qdisc del dev lo root && tc qdisc add dev lo root fq";
    runs("unshare", &["--net", "sh", "-c", tried])
}

/// The result of `observe`, which tries it on an epoll of its own.
fn waits_for_events_only() -> bool {
    let look = || linux::observe(&linux::Netns::own()?, &linux::Processes::None);
    look().is_ok_and(|host| host.capabilities.epoll_events_only)
}

fn has_static_libc() -> bool {
    let output = std::process::Command::new("cc").arg("-print-file-name=libc.a").output();
    // A compiler without such a file answers with the bare name.
    output.is_ok_and(|output| output.stdout.starts_with(b"/"))
}

fn io_uring_is_on() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|disabled| disabled.trim() == "0")
}

/// Creates a test with its needs.
pub fn test(
    name: &'static str,
    needs: &[Need],
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    static MISSING: AskedOnce<Need, Option<&'static str>> = AskedOnce::new();
    let missing = || needs.iter().find_map(|need| MISSING.ask(*need, || need.missing()));
    match only::is_wanted(name).then(missing).flatten() {
        Some(reason) => {
            Trial::test(name, body).with_kind(format!("SKIPPED, {reason}")).with_ignored_flag(true)
        }
        None => Trial::test(name, body),
    }
}

fn main() {
    if let Ok(role) = std::env::var(subject::ROLE) {
        return role::play(&role).expect("a role is played to its end");
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // they count polls and packets of the same CPUs
    let trials = [
        netns::tests(),
        device::tests(),
        knobs::tests(),
        kthread::tests(),
        nic::tests(),
        process::tests(),
        foreign::tests(),
        uring::tests(),
        preload::tests(),
        delivery::tests(),
        epolls::tests(),
        events_only::tests(),
        follow::tests(),
        lab::tests(),
        live::tests(),
        guest_nics::tests(),
        guest_steering::tests(),
        holders::tests(),
        paths::tests(),
        interrupts::tests(),
        irqbalance::tests(),
        netdevsim::tests(),
        app_requests::tests(),
    ];
    let trials = only::only(trials.into_iter().flatten().collect());
    libtest_mimic::run(&arguments, trials).exit();
}
