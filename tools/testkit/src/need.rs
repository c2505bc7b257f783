//! What tests need from the machine, which not every machine has. If a machine lacks a need of a test, the
//! test is skipped visibly: it is listed as ignored, with the reason, and counted.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use linux::{Netns, Processes, observe};
use model::KernelVersion;
use model::host::Capabilities;

use crate::asked_once::AskedOnce;
use crate::only::is_wanted;
use crate::{balancer, kernel_sources, unpacked};

/// Something that a test needs and that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// BPF programs on tracepoints: `/sys/kernel/btf/vmlinux`.
    Bpf,
    /// BPF programs at the return of kernel functions, which some kernels refuse.
    Fentry,
    /// `memcached` from the distribution.
    Memcached,
    /// A program that not every distribution has.
    Program(&'static str),
    /// `python3`.
    Python,
    /// A C compiler.
    Cc,
    /// A C compiler and a C library to link statically.
    StaticCc,
    /// `unshare` and `ip`, for processes in separate namespaces.
    Unshare,
    /// `ip` and `ethtool`, for a wire between two namespaces.
    Wire,
    /// `strace` and `tc`, to record the messages that tc sends.
    Strace,
    /// `clang`, and a `tc` that loads BPF programs, to redirect packets by eBPF.
    TcBpf,
    /// The tc of iproute2 6.1.0, whose bytes are recorded.
    Iproute61,
    /// The kernel's own tests of tc, in a source tree that `cargo xtask guest` has unpacked.
    KernelsTcTests,
    /// The source of the kernel release from which the facts on NIC drivers were read, unpacked by `cargo
    /// xtask guest`.
    FactsSource,
    /// irqbalance from the distribution, and more than one CPU: on a single CPU, irqbalance exits
    /// immediately.
    Irqbalance,
    /// Prometheus and promtool from the distribution.
    Prometheus,
    /// sshd and ssh from the distribution.
    Sshd,
    /// helm.
    Helm,
    /// ansible-core, ansible-lint and kubernetes-validate.
    Ansible,
    /// `irq-suspend-timeout`.
    Suspension,
    /// `napi-set` with `threaded`.
    ThreadPerNapi,
    /// `threaded-busy`: NAPI threads that poll continuously.
    ThreadedBusy,
    /// Epolls that wait for events only: the patches in `kernel/epoll-event-busy-loop/`.
    EventsOnly,
    /// A kernel without the patches in `kernel/epoll-event-busy-loop/`.
    NoEventsOnly,
    /// Threaded NAPIs that a workqueue polls: the patch in `kernel/test-only/`.
    WorkqueueNapis,
    /// Utilisation clamps of tasks: `CONFIG_UCLAMP_TASK`.
    UtilClamps,
    /// A kernel without utilisation clamps.
    NoUtilClamps,
    /// Scheduling slices of threads: Linux 6.12, with the scheduler's per-thread statistics in `/proc`.
    Slices,
    /// io_uring, which a host may have disabled.
    IoUring,
    /// IPv6, which a host may have disabled.
    Ipv6,
    /// Multipath TCP: `CONFIG_MPTCP`.
    Mptcp,
    /// TLS in the kernel: `CONFIG_TLS`, and `python3` to request it.
    KernelTls,
    /// `CONFIG_XDP_SOCKETS`, and a `queue-get` that reports such sockets (6.15).
    AfXdp,
    /// The unified cgroup hierarchy (cgroup v2).
    Cgroups,
    /// `/dev/cpu_dma_latency`.
    DmaLatency,
    /// tracefs with the tracepoints of system calls. `unshare` mounts it so that other processes do not see
    /// it.
    Tracefs,
    /// FUSE, and user namespaces for users without privileges.
    FuseForAll,
    /// The qdiscs fq and fq_codel, and u32 filters.
    FairQueues,
    /// The qdisc netem.
    Netem,
    /// A rule that the kernel accepts at a device's ingress.
    Rule(&'static str),
    /// A device type: `ip link add name k0` must accept these arguments; `v0` is another device.
    Link(&'static str),
    /// A network device of the machine with MSI vectors.
    Vectors,
    /// NICs that netdevsim simulates: they accept rules like hardware.
    Netdevsim,
    /// NICs simulated by netdevsim that also obey ntuple rules and RSS contexts, as in the patched guest.
    SimulatedRules,
    /// The emulated guest's connected virtio NICs.
    VirtioNics,
    /// The emulated guest's connected igb NICs.
    IgbNics,
    /// The emulated guest's igb NICs, with a driver that supports ntuple rules on them, as in the patched
    /// guest.
    IgbRules,
    /// The emulated guest's igb NICs, with a driver that supports ntuple rules only on newer chips, as in all
    /// other kernels.
    IgbWithoutRules,
    /// A machine whose clock and sysctls a test may set, that is, a guest.
    OwnMachine,
    /// A kernel that enforces AppArmor's profiles, and the program that loads them.
    AppArmor,
    /// A guest whose process 1 can be replaced by the distribution's systemd.
    GuestsInit,
}

impl Need {
    /// The flower classifier.
    pub const FLOWER: Self = Self::Rule("flower classid 1:1");
    /// The matchall classifier.
    pub const MATCHALL: Self = Self::Rule("matchall classid 1:1");
    /// The action gact: drop, pass, goto chain.
    pub const GACT: Self = Self::Rule("u32 match u32 0 0 action pass");
    /// The action tunnel_key.
    pub const TUNNEL_KEY: Self = Self::Rule("u32 match u32 0 0 action tunnel_key unset");
    /// All the kinds of classifiers and actions that a distribution's kernel has.
    pub const EVERY_RULE_KIND: Self = Self::Rule("route to 1 action nat ingress 1.1.1.1 2.2.2.2");

    fn missing(self) -> Option<String> {
        let exists = |path: &str| Path::new(path).exists();
        let is_since = |major, minor| kernel() >= Some(KernelVersion::since(major, minor));
        let (there, what) = match self {
            Self::Program(name) => return (!is_installed(name)).then(|| format!("needs {name}")),
            Self::Rule(rule) => {
                return (!accepts(rule)).then(|| format!("needs a kernel that accepts {rule}"));
            }
            Self::Link(words) => {
                return (!has_links(words)).then(|| format!("needs devices created by ip link add {words}"));
            }
            Self::Root => (rustix::process::geteuid().is_root(), "needs root"),
            Self::Bpf => (exists("/sys/kernel/btf/vmlinux"), "needs kernel BTF"),
            Self::Fentry => (
                linux::follow::Follower::new(&[], linux::follow::FollowMethod::Fentry).is_ok(),
                "needs fentry",
            ),
            Self::Memcached => (exists("/usr/bin/memcached"), "needs memcached"),
            Self::Python => (runs("python3", &["--version"]), "needs python3"),
            Self::Cc => (runs("cc", &["--version"]), "needs a C compiler"),
            Self::StaticCc => (has_static_libc(), "needs a C compiler with a static C library"),
            Self::Unshare => (runs("unshare", &["--version"]) && runs("ip", &["-V"]), "needs unshare and ip"),
            Self::Wire => (runs("ip", &["-V"]) && runs("ethtool", &["--version"]), "needs ip and ethtool"),
            Self::Strace => (runs("strace", &["-V"]) && runs("tc", &["-V"]), "needs strace and tc"),
            Self::TcBpf => (
                runs("clang", &["--version"]) && runs("tc", &["-V"]) && has_tc_bpf(),
                "needs clang, and tc's bpf classifier",
            ),
            Self::Iproute61 => (is_iproute_61(), "needs iproute2 6.1.0"),
            Self::KernelsTcTests => {
                (kernel_sources::tc_tests().is_some(), "needs the kernel's source (cargo xtask guest build)")
            }
            Self::FactsSource => (
                kernel_sources::of_driver_facts().is_some(),
                "needs the source of the kernel that the facts on NIC drivers name",
            ),
            Self::Irqbalance => (
                balancer::program().is_some()
                    && std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1),
                "needs irqbalance, and two CPUs",
            ),
            Self::Prometheus => (unpacked::prometheus().is_some(), "needs prometheus (cargo xtask setup)"),
            Self::Sshd => (
                unpacked::sshd().is_some() && is_installed("ssh") && is_installed("ssh-keygen"),
                "needs ssh and sshd (cargo xtask setup)",
            ),
            Self::Helm => (unpacked::helm().is_some(), "needs helm (cargo xtask setup)"),
            Self::Ansible => (unpacked::ansible().is_some(), "needs ansible-core (cargo xtask setup)"),
            Self::Suspension => (is_since(6, 13), "needs Linux 6.13"),
            Self::ThreadPerNapi => (is_since(6, 17), "needs Linux 6.17"),
            Self::ThreadedBusy => (
                capabilities().is_some_and(|they| they.napi_threaded_busy),
                "needs threaded busy-poll (Linux 6.19)",
            ),
            Self::EventsOnly => (waits_for_events_only(), "needs the kernel of kernel/epoll-event-busy-loop"),
            Self::NoEventsOnly => (!waits_for_events_only(), "needs a kernel without events-only epolls"),
            Self::WorkqueueNapis => {
                (exists("/sys/module/napi/parameters/workqueue"), "needs the kernel of kernel/test-only")
            }
            Self::UtilClamps => (has_util_clamps(), "needs a kernel with CONFIG_UCLAMP_TASK"),
            Self::NoUtilClamps => (!has_util_clamps(), "needs a kernel without CONFIG_UCLAMP_TASK"),
            Self::Slices => (has_slices(), "needs slices of threads (Linux 6.12) and /proc/PID/sched"),
            Self::IoUring => {
                (io_uring_is_on(), "needs io_uring, which kernel.io_uring_disabled turns off here")
            }
            Self::Ipv6 => (std::net::UdpSocket::bind("[::]:0").is_ok(), "needs IPv6"),
            Self::Mptcp => (exists("/proc/sys/net/mptcp/enabled"), "needs Multipath TCP"),
            Self::KernelTls => (has_kernel_tls(), "needs TLS in the kernel, and python3"),
            Self::AfXdp => (has_af_xdp() && is_since(6, 15), "needs Linux 6.15 with CONFIG_XDP_SOCKETS"),
            Self::Cgroups => (has_file_system("cgroup2"), "needs cgroup2"),
            Self::DmaLatency => (exists("/dev/cpu_dma_latency"), "needs /dev/cpu_dma_latency"),
            Self::Tracefs => (has_tracefs(), "needs tracefs with system calls, and unshare"),
            Self::FuseForAll => {
                (may_mount_fuse(), "needs FUSE and user namespaces for users without privileges")
            }
            Self::FairQueues => (has_fair_queues(), "needs fq and fq_codel"),
            Self::Netem => {
                (works_in_netns("tc qdisc add dev lo root netem loss 1%"), "needs the qdisc netem")
            }
            Self::Vectors => (a_device_has_vectors(), "needs a network device with MSI vectors"),
            Self::Netdevsim => (exists("/sys/bus/netdevsim/new_device"), "needs netdevsim"),
            Self::SimulatedRules => (has_symbol("nsim_steer"), "needs a netdevsim that obeys ntuple rules"),
            Self::VirtioNics => (are_devices(["virtio0", "virtio1"]), "needs a guest's virtio NICs"),
            Self::IgbNics => (are_devices(["igb0", "igb1"]), "needs a guest's igb NICs"),
            Self::IgbRules => (igb_has_rules() == Some(true), "needs a guest's igb NICs with ntuple rules"),
            Self::IgbWithoutRules => {
                (igb_has_rules() == Some(false), "needs a guest's igb NICs without ntuple rules")
            }
            Self::OwnMachine => {
                (are_devices(["virtio0", "virtio1"]), "needs a guest, whose clock and sysctls may be set")
            }
            Self::AppArmor => (
                is_installed("apparmor_parser")
                    && std::fs::read("/sys/module/apparmor/parameters/enabled")
                        .is_ok_and(|on| on.starts_with(b"Y")),
                "needs AppArmor in the kernel, and apparmor_parser",
            ),
            Self::GuestsInit => (
                exists("/run/guest/begun") && exists("/lib/systemd/systemd"),
                "needs a guest whose process 1 can be systemd",
            ),
        };
        (!there).then(|| what.to_owned())
    }
}

/// Creates a test that is skipped unless the machine meets its needs.
pub fn test(
    name: impl Into<String>,
    needs: &[Need],
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    static MISSING: AskedOnce<Need, Option<String>> = AskedOnce::new();
    let missing = || needs.iter().find_map(|need| MISSING.ask(*need, || need.missing()));
    match is_wanted(&name).then(missing).flatten() {
        Some(reason) => {
            Trial::test(name, body).with_kind(format!("SKIPPED, {reason}")).with_ignored_flag(true)
        }
        None => Trial::test(name, body),
    }
}

/// Repeats a test whose figures other work on the machine can distort. The test fails only after three failed
/// attempts.
#[expect(clippy::print_stderr, reason = "the runner prints it if the test fails")]
pub fn repeated(body: fn() -> Result<(), Failed>) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
    const ATTEMPTS: usize = 3;
    move || {
        for attempt in 1..ATTEMPTS {
            match std::panic::catch_unwind(body) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => {
                    eprintln!("attempt {attempt} of {ATTEMPTS}: {}", why.message().unwrap_or("failed"))
                }
                // The panic has already printed its message.
                Err(_) => eprintln!("attempt {attempt} of {ATTEMPTS}: panicked"),
            }
        }
        body()
    }
}

fn kernel() -> Option<KernelVersion> {
    KernelVersion::parse(&rustix::system::uname().release().to_string_lossy())
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// Returns the capabilities that `observe` reports; `None` without permission to observe.
fn capabilities() -> Option<&'static Capabilities> {
    static ANSWER: OnceLock<Option<Capabilities>> = OnceLock::new();
    let look = || observe(&Netns::own()?, &Processes::Only(Vec::new()));
    ANSWER.get_or_init(|| look().ok().map(|host| host.capabilities)).as_ref()
}

/// Whether epolls can wait for events only: `observe` tries this on an epoll.
fn waits_for_events_only() -> bool {
    capabilities().is_some_and(|they| they.epoll_events_only)
}

/// Whether the kernel accepts a rule in a temporary namespace.
fn accepts(rule: &str) -> bool {
    let tc = |line: &str| runs("tc", &line.split(' ').collect::<Vec<_>>());
    let tried = || {
        tc("qdisc add dev lo clsact") && tc(&format!("filter add dev lo ingress protocol ip prio 1 {rule}"))
    };
    rustix::process::geteuid().is_root()
        && Netns::create().and_then(|netns| netns.run(tried)).is_ok_and(|accepted| accepted)
}

/// Whether a script succeeds in a temporary network namespace.
fn works_in_netns(script: &str) -> bool {
    runs("unshare", &["--net", "sh", "-c", script])
}

fn has_links(words: &str) -> bool {
    works_in_netns(&format!("ip link add v0 type veth peer name v1 && ip link add name k0 {words}"))
}

fn has_tc_bpf() -> bool {
    works_in_netns(
        "ip link set lo up && tc qdisc add dev lo clsact && tc filter add dev lo ingress bpf bytecode '1,6 0 0 0'",
    )
}

fn has_fair_queues() -> bool {
    works_in_netns(
        "ip link set lo up && tc qdisc add dev lo root handle 1: fq_codel && tc filter add dev lo parent 1: \
         protocol ip u32 match u32 0 0 flowid 1:1 && tc qdisc del dev lo root && tc qdisc add dev lo root fq",
    )
}

fn has_tracefs() -> bool {
    const LOOK: &str =
        "mount -t tracefs none /sys/kernel/tracing; test -d /sys/kernel/tracing/events/syscalls";
    runs("unshare", &["--mount", "sh", "-c", LOOK])
}

fn is_iproute_61() -> bool {
    let output = Command::new("tc").arg("-V").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("iproute2-6.1.0"))
}

fn has_file_system(name: &str) -> bool {
    std::fs::read_to_string("/proc/filesystems").is_ok_and(|known| known.contains(&format!("\t{name}\n")))
}

/// Whether an unprivileged user can mount a file system whose server never answers, as most distributions
/// allow.
fn may_mount_fuse() -> bool {
    const NOBODY: u32 = 65_534;
    let mut command = Command::new("unshare");
    command.args(["-Urm", "true"]).uid(NOBODY).gid(NOBODY);
    let allowed = command.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    allowed && has_file_system("fuse")
}

/// Whether the kernel supports TLS: requests it for a connection with `TCP_ULP`. Kernel: 4.13,
/// `net/tls/tls_main.c` `tls_init()`.
fn has_kernel_tls() -> bool {
    const ASK: &str = r"
import socket
listener = socket.create_server(('127.0.0.1', 0))
connection = socket.create_connection(listener.getsockname())
connection.setsockopt(socket.IPPROTO_TCP, 31, b'tls')
";
    runs("python3", &["-c", ASK])
}

fn has_static_libc() -> bool {
    let output = Command::new("cc").arg("-print-file-name=libc.a").output();
    // If there is no such file, the compiler prints only its name, without a path.
    output.is_ok_and(|output| output.stdout.starts_with(b"/"))
}

fn io_uring_is_on() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|disabled| disabled.trim() == "0")
}

/// Kernel: 6.18, `include/linux/socket.h` `AF_XDP`.
fn has_af_xdp() -> bool {
    rustix::net::socket(rustix::net::AddressFamily::from_raw(44), rustix::net::SocketType::RAW, None).is_ok()
}

/// The sysctl exists only with utilisation clamps. Kernel: 6.18, `kernel/sched/core.c` `sched_core_sysctls`.
fn has_util_clamps() -> bool {
    Path::new("/proc/sys/kernel/sched_util_clamp_min").exists()
}

/// Kernel: 6.12; 6.18, `kernel/sched/debug.c` `proc_sched_show_task()`, which shows a thread's slice.
fn has_slices() -> bool {
    let account = std::fs::read_to_string("/proc/self/sched").unwrap_or_default();
    account.contains("se.slice") && kernel().is_some_and(|kernel| kernel >= KernelVersion::since(6, 12))
}

fn a_device_has_vectors() -> bool {
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    devices
        .flat_map(|device| ["device/msi_irqs", "device/../msi_irqs"].map(|below| device.path().join(below)))
        .any(|vectors| vectors.is_dir())
}

fn are_devices(names: [&str; 2]) -> bool {
    names.iter().all(|name| Path::new("/sys/class/net").join(name).exists())
}

/// Whether the running kernel or a loaded module has this symbol.
fn has_symbol(name: &str) -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(name))
}

/// Whether the driver of a guest's igb NICs supports ntuple rules; `None` without such NICs.
fn igb_has_rules() -> Option<bool> {
    if !are_devices(["igb0", "igb1"]) {
        return None;
    }
    let features = Command::new("ethtool").args(["-k", "igb1"]).output().ok()?;
    let features = String::from_utf8_lossy(&features.stdout).into_owned();
    let line = features.lines().find(|line| line.trim_start().starts_with("ntuple-filters:"))?;
    Some(!line.ends_with("[fixed]"))
}
