//! Tests of the whole, on the running kernel: they need root. What a test needs beyond that it names, and a machine
//! that lacks it skips the test loudly: it is listed as ignored, with the reason, and counted.

mod answers;
mod api;
mod app_requests;
mod applied;
#[path = "../../../linux/tests/root/asked_once.rs"]
mod asked_once;
#[path = "../../../linux/tests/root/asked_server.rs"]
#[expect(dead_code, reason = "the tests of the room below look at it more closely")]
mod asked_server;
mod attached;
mod balanced;
#[path = "../../../linux/tests/root/balancer.rs"]
#[expect(dead_code, reason = "the tests of the room below start one that moves nothing")]
mod balancer;
mod bench;
mod compared;
mod conformance;
mod container;
mod counted;
mod daemon;
mod daemon_asked;
mod daemon_spared;
mod datagrams;
#[path = "../../../daemon/tests/desk/mod.rs"]
#[expect(dead_code, reason = "the tests without root count its turns and read its metrics")]
mod desk;
mod driver_facts;
mod engaged;
mod exchange;
#[path = "../command/fits.rs"]
mod fits;
mod goals;
mod guarded;
mod judged;
mod kthreads;
mod lacking;
#[path = "../markdown/mod.rs"]
mod markdown;
mod matrix;
mod monitored;
#[path = "../../../linux/tests/root/only.rs"]
mod only;
mod operator;
mod pages;
mod pinned;
mod pods;
mod policies;
mod recorder;
mod remedy;
mod requests;
mod rule_by_tc;
mod rule_corpus;
mod rule_dumps;
mod rule_faults;
mod rule_guard;
mod rule_kinds;
mod rule_pipes;
mod rule_signals;
mod rule_swap;
mod rule_tables;
mod rules;
mod rules_compared;
#[path = "../../../linux/tests/root/scratch.rs"]
#[expect(dead_code, reason = "the tests of the room below compile programs")]
mod scratch;
mod searched;
mod selected;
mod services;
mod spread;
mod stacks;
mod stage;
mod stepped;
#[path = "../../../linux/tests/root/subject.rs"]
#[expect(dead_code, reason = "the tests of the room below start programs of their own")]
mod subject;
mod support;
mod surface;
mod takeover;
mod tools;
#[path = "../command/tools.rs"]
mod tools_built;
mod top;
mod trial;
mod undone;
mod units;
#[path = "../../../linux/tests/root/unpacked.rs"]
mod unpacked;
mod unprivileged;
mod upgrade;
mod watched;
#[path = "../../../linux/tests/root/wire.rs"]
#[expect(dead_code, reason = "the tests of the room below have other wires")]
mod wire;

use asked_once::AskedOnce;
use libtest_mimic::{Arguments, Failed, Trial};
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
    /// `irq-suspend-timeout`.
    Suspension,
    /// `napi-set` with `threaded`.
    ThreadPerNapi,
    /// NAPI threads that poll without a pause.
    ThreadedBusy,
    /// Clamps of utilisation: `CONFIG_UCLAMP_TASK`.
    UtilClamps,
    /// A kernel without them.
    NoUtilClamps,
    /// Slices of threads: Linux 6.12, with the scheduler's accounts of threads in `/proc`.
    Slices,
    /// tracefs with the tracepoints of system calls, which `unshare` mounts invisible to other processes.
    Tracefs,
    /// `strace` and `tc`, to see what tc sends.
    Strace,
    /// The kernel's own tests of tc, in a source that `cargo xtask guest` unpacked.
    KernelsTcTests,
    /// The kernel's source of the release that the facts on NIC drivers name, likewise.
    FactsSource,
    /// The tc of iproute2 6.1.0, whose bytes are recorded.
    Iproute61,
    /// Epolls that wait for events only: the patches in `kernel/epoll-event-busy-loop/`.
    EventsOnly,
    /// A kernel without them.
    NoEventsOnly,
    /// `python3`.
    Python,
    /// Multipath TCP: `CONFIG_MPTCP`.
    Mptcp,
    /// TLS in the kernel: `CONFIG_TLS`, and `python3` to ask for it.
    KernelTls,
    /// The classifier flower.
    Flower,
    /// The classifier matchall.
    Matchall,
    /// The action gact: drop, pass, goto chain.
    Gact,
    /// The action tunnel_key.
    TunnelKey,
    /// A kernel with all classifiers and actions of rules, as a distribution's has them.
    EveryRuleKind,
    /// NICs that netdevsim simulates: they take rules as hardware does.
    Netdevsim,
    /// irqbalance from the distribution.
    Irqbalance,
    /// Prometheus and promtool from the distribution.
    Prometheus,
    /// The emulated guest's joined virtio NICs.
    VirtioNics,
    /// The emulated guest's joined igb NICs.
    IgbNics,
    /// FUSE, and user namespaces for users without privileges.
    FuseForAll,
    /// A machine whose clock may be set: a guest.
    OwnClock,
    /// A machine whose sysctls may be set: a guest.
    OwnSysctls,
    /// Devices of a kind that stand on others.
    Link(stacks::Kind),
    /// A program that not every distribution has.
    Program(&'static str),
    /// A guest whose process 1 gives way to the distribution's systemd when it is asked to.
    GuestsInit,
}

impl Need {
    fn missing(self) -> Option<String> {
        let (there, what) = match self {
            Self::Program(name) => return (!is_installed(name)).then(|| format!("needs {name}")),
            Self::Root => (rustix::process::geteuid().is_root(), "needs root"),
            Self::Bpf => (std::path::Path::new("/sys/kernel/btf/vmlinux").exists(), "needs kernel BTF"),
            Self::Memcached => (std::path::Path::new("/usr/bin/memcached").exists(), "needs memcached"),
            Self::Suspension => (kernel() >= Some(KernelVersion::since(6, 13)), "needs Linux 6.13"),
            Self::ThreadPerNapi => (kernel() >= Some(KernelVersion::since(6, 17)), "needs Linux 6.17"),
            Self::ThreadedBusy => (
                capabilities().is_some_and(|they| they.napi_threaded_busy),
                "needs threaded busy-poll (Linux 6.19)",
            ),
            Self::UtilClamps => (has_util_clamps(), "needs a kernel with CONFIG_UCLAMP_TASK"),
            Self::NoUtilClamps => (!has_util_clamps(), "needs a kernel without CONFIG_UCLAMP_TASK"),
            Self::Slices => (has_slices(), "needs slices of threads (Linux 6.12) and /proc/PID/sched"),
            Self::EventsOnly => (waits_for_events_only(), "needs the kernel of kernel/epoll-event-busy-loop"),
            Self::NoEventsOnly => (!waits_for_events_only(), "needs a kernel without events-only epolls"),
            Self::Python => (runs("python3", "--version"), "needs python3"),
            Self::Mptcp => {
                (std::path::Path::new("/proc/sys/net/mptcp/enabled").exists(), "needs Multipath TCP")
            }
            Self::KernelTls => (watched::has_kernel_tls(), "needs TLS in the kernel, and python3"),
            Self::Flower => (rule_kinds::kernel_takes("flower classid 1:1"), "needs flower"),
            Self::Matchall => (rule_kinds::kernel_takes("matchall classid 1:1"), "needs matchall"),
            Self::Gact => (rule_kinds::kernel_takes("u32 match u32 0 0 action pass"), "needs gact"),
            Self::EveryRuleKind => (
                rule_kinds::kernel_takes("route to 1 action nat ingress 1.1.1.1 2.2.2.2"),
                "needs the classifier route and the action nat",
            ),
            Self::TunnelKey => {
                (rule_kinds::kernel_takes("u32 match u32 0 0 action tunnel_key unset"), "needs tunnel_key")
            }
            Self::Netdevsim => {
                (std::path::Path::new("/sys/bus/netdevsim/new_device").exists(), "needs netdevsim")
            }
            Self::Irqbalance => (balancer::program().is_some(), "needs irqbalance"),
            Self::Prometheus => (monitored::prometheus().is_some(), "needs prometheus (cargo xtask setup)"),
            Self::VirtioNics => {
                (std::path::Path::new("/sys/class/net/virtio0").exists(), "needs a guest's virtio NICs")
            }
            Self::IgbNics => {
                (std::path::Path::new("/sys/class/net/igb1").exists(), "needs a guest's igb NICs")
            }
            Self::OwnSysctls => (
                std::path::Path::new("/sys/class/net/virtio0").exists(),
                "needs a guest, whose sysctls may be set",
            ),
            Self::FuseForAll => (
                unprivileged::may_mount_fuse(),
                "needs FUSE and user namespaces for users without privileges",
            ),
            Self::OwnClock => (
                std::path::Path::new("/sys/class/net/virtio0").exists(),
                "needs a guest, whose clock may be set",
            ),
            Self::GuestsInit => (units::can_be_booted(), "needs a guest whose process 1 can be systemd"),
            Self::Link(kind) => (
                kind.is_there(),
                match kind {
                    stacks::Kind::Bond => "needs bonds",
                    stacks::Kind::Bridge => "needs bridges",
                    stacks::Kind::Geneve => "needs Geneve tunnels",
                    stacks::Kind::Ipvlan => "needs ipvlans",
                    stacks::Kind::Macvlan => "needs macvlans",
                    stacks::Kind::Team => "needs teams",
                    stacks::Kind::Vlan => "needs VLANs",
                    stacks::Kind::Vrf => "needs VRFs",
                    stacks::Kind::Vxlan => "needs VXLAN tunnels",
                },
            ),
            Self::Tracefs => (has_tracefs(), "needs tracefs with system calls, and unshare"),
            Self::KernelsTcTests => {
                (rule_corpus::directory().is_some(), "needs the kernel's source (cargo xtask guest build)")
            }
            Self::FactsSource => (
                driver_facts::source().is_some(),
                "needs the source of the kernel that the facts on NIC drivers name",
            ),
            Self::Iproute61 => (rule_corpus::is_iproute_61(), "needs iproute2 6.1.0"),
            Self::Strace => (runs("strace", "-V") && runs("tc", "-V"), "needs strace and tc"),
        };
        (!there).then(|| what.to_owned())
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn runs(program: &str, argument: &str) -> bool {
    let output = std::process::Command::new(program).arg(argument).output();
    output.is_ok_and(|output| output.status.success())
}

fn has_tracefs() -> bool {
    const LOOK: &str =
        "mount -t tracefs none /sys/kernel/tracing; test -d /sys/kernel/tracing/events/syscalls";
    let output = std::process::Command::new("unshare").args(["--mount", "sh", "-c", LOOK]).output();
    output.is_ok_and(|output| output.status.success())
}

/// What `observe` says, which asks an epoll of its own.
fn waits_for_events_only() -> bool {
    capabilities().is_some_and(|they| they.epoll_events_only)
}

/// What this kernel can, as `observe` says; `None` where it may not ask.
fn capabilities() -> Option<&'static model::host::Capabilities> {
    static ANSWER: std::sync::OnceLock<Option<model::host::Capabilities>> = std::sync::OnceLock::new();
    let look = || linux::observe(&linux::Netns::own()?, &linux::Processes::Only(Vec::new()));
    ANSWER.get_or_init(|| look().ok().map(|host| host.capabilities)).as_ref()
}

/// Kernel: 6.18, `kernel/sched/core.c` `sched_core_sysctls`.
fn has_util_clamps() -> bool {
    std::path::Path::new("/proc/sys/kernel/sched_util_clamp_min").exists()
}

/// Kernel: 6.12; 6.18, `kernel/sched/debug.c` `proc_sched_show_task()`, which shows a thread's slice.
fn has_slices() -> bool {
    let account = std::fs::read_to_string("/proc/self/sched").unwrap_or_default();
    account.contains("se.slice") && kernel().is_some_and(|kernel| kernel >= KernelVersion::since(6, 12))
}

fn kernel() -> Option<KernelVersion> {
    KernelVersion::parse(&rustix::system::uname().release().to_string_lossy())
}

/// A test with what it needs.
pub fn test(
    name: impl Into<String>,
    needs: &[Need],
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    static MISSING: AskedOnce<Need, Option<String>> = AskedOnce::new();
    let missing = || needs.iter().find_map(|need| MISSING.ask(*need, || need.missing()));
    match only::is_wanted(&name).then(missing).flatten() {
        Some(reason) => {
            Trial::test(name, body).with_kind(format!("SKIPPED, {reason}")).with_ignored_flag(true)
        }
        None => Trial::test(name, body),
    }
}

fn main() {
    if attached::play_role().is_some() || app_requests::play_role().is_some() || spread::play_role().is_some()
    {
        return;
    }
    tools_built::are_built();
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // they count polls and packets of the same CPUs
    let trials = [
        answers::tests(),
        api::tests(),
        applied::tests(),
        top::tests(),
        tools::tests(),
        trial::tests(),
        attached::tests(),
        takeover::tests(),
        balanced::tests(),
        bench::tests(),
        conformance::tests(),
        container::tests(),
        daemon::tests(),
        daemon_asked::tests(),
        daemon_spared::tests(),
        datagrams::tests(),
        driver_facts::tests(),
        engaged::tests(),
        exchange::tests(),
        goals::tests(),
        judged::tests(),
        kthreads::tests(),
        lacking::tests(),
        matrix::tests(),
        monitored::tests(),
        remedy::tests(),
        searched::tests(),
        selected::tests(),
        services::tests(),
        support::tests(),
        stacks::tests(),
        surface::tests(),
        undone::tests(),
        unprivileged::tests(),
        rules::tests(),
        rule_corpus::tests(),
        rule_by_tc::tests(),
        rule_dumps::tests(),
        rule_faults::tests(),
        rule_guard::tests(),
        rule_signals::tests(),
        rule_tables::tests(),
        rule_kinds::tests(),
        rule_pipes::tests(),
        rule_swap::tests(),
        rules_compared::tests(),
        pages::tests(),
        pinned::tests(),
        pods::tests(),
        policies::tests(),
        spread::tests(),
        app_requests::tests(),
        upgrade::tests(),
        stepped::tests(),
        watched::tests(),
        counted::tests(),
        compared::tests(),
        guarded::tests(),
        // Last: what comes after has another process 1.
        units::tests(),
    ];
    libtest_mimic::run(&arguments, only::only(trials.into_iter().flatten().collect())).exit();
}
