//! Checks which mechanisms several kinds of hosts have, and that the table of mechanisms agrees with the
//! table of settings.

#[path = "../../plan/tests/plan/made.rs"]
#[expect(dead_code, reason = "other tests make other hosts of it")]
mod made;

use std::collections::BTreeSet;

use made::{device, host, veth, with_kernel};
use model::{Host, KernelVersion, Prerequisites, Setting};
use netpolicy::support::{MECHANISMS, SupportMatrix, Supported};
use session::page::Report;

const EVERYTHING: Prerequisites = Prerequisites {
    btf: true,
    cap_bpf: true,
    cap_perfmon: true,
    cap_sys_admin: true,
    cap_sys_nice: true,
    preempt_rt: false,
    bpf_fs: true,
    cgroup2: true,
};

fn server() -> Host {
    let mut host = host();
    host.devices = vec![device(2, "eth0", &[300, 301]), veth(3, "veth0", &[302])];
    host
}

fn row<'m>(matrix: &'m SupportMatrix, name: &str) -> &'m Supported {
    matrix.mechanisms.iter().find(|row| row.name == name).expect("a mechanism")
}

#[test]
fn a_server_with_a_recent_kernel_can_use_most_of_it() {
    insta::assert_snapshot!(SupportMatrix::of(&server(), &EVERYTHING).as_text(false));
}

#[test]
fn an_older_kernel_is_named_with_the_first_that_has_a_mechanism() {
    let matrix = SupportMatrix::of(&with_kernel(server(), "6.8.0"), &EVERYTHING);
    for (name, lacks) in [
        ("suspend", "Linux 6.13: this is 6.8"),
        ("defer-queue", "Linux 6.13: this is 6.8"),
        ("threads-queue", "Linux 6.17: this is 6.8"),
        ("thread-slice", "Linux 6.12: this is 6.8"),
    ] {
        let row = row(&matrix, name);
        assert!(!row.usable && row.lacks[0] == lacks, "{row:?}");
    }
    assert!(row(&matrix, "defer-device").usable);
    assert_eq!(row(&matrix, "defer-device").devices, ["eth0", "veth0"]);
}

#[test]
fn what_is_configured_out_is_not_blamed_on_the_version() {
    let mut host = server();
    host.capabilities.epoll_params = false;
    let matrix = SupportMatrix::of(&host, &EVERYTHING);
    assert_eq!(row(&matrix, "epoll-busy-poll").lacks, ["EPIOCSPARAMS, which this kernel lacks"]);
    let without = Prerequisites { btf: false, preempt_rt: true, ..EVERYTHING };
    let matrix = SupportMatrix::of(&server(), &without);
    assert_eq!(row(&matrix, "counting").lacks, ["kernel BTF", "a kernel without PREEMPT_RT"]);
}

#[test]
fn in_a_container_a_kernel_is_not_blamed_for_threads_that_cannot_be_seen() {
    let mut host = server();
    host.kthread_begins = None;
    let matrix = SupportMatrix::of(&host, &EVERYTHING);
    for name in ["thread-class", "thread-slice", "thread-util-clamp"] {
        let lacks = &row(&matrix, name).lacks;
        assert!(lacks.len() == 1 && lacks[0].contains("PID namespace"), "{name}: {lacks:?}");
    }
    let matrix = SupportMatrix::of(&with_kernel(host, "6.8.0"), &EVERYTHING);
    assert_eq!(row(&matrix, "thread-slice").lacks, ["Linux 6.12: this is 6.8"]);
}

#[test]
fn without_privileges_each_missing_right_is_named() {
    let mut host = server();
    (host.capabilities.net_admin, host.capabilities.ptrace) = (false, false);
    let matrix = SupportMatrix::of(&host, &Prerequisites { btf: true, ..Prerequisites::default() });
    assert_eq!(row(&matrix, "suspend").lacks, ["CAP_NET_ADMIN", "CAP_SYS_PTRACE"]);
    assert_eq!(row(&matrix, "counting").lacks, ["CAP_BPF", "CAP_PERFMON"]);
    let nothing_but_looking = matrix.mechanisms.iter().filter(|row| row.usable).map(|row| row.name.as_str());
    assert_eq!(nothing_but_looking.collect::<Vec<_>>(), ["thread-slice", "thread-util-clamp"]);
}

#[test]
fn every_mechanism_has_a_name_of_its_own_and_says_what_it_is_for() {
    let names: BTreeSet<&str> = MECHANISMS.iter().map(|mechanism| mechanism.name).collect();
    assert_eq!(names.len(), MECHANISMS.len());
    for mechanism in MECHANISMS {
        assert!(!mechanism.meaning.is_empty() && !mechanism.meaning.ends_with('.'), "{}", mechanism.name);
        assert!(mechanism.since.is_some() || mechanism.name == "eventbusy", "{}", mechanism.name);
    }
}

/// A mechanism and the setting that it uses first must have the same first kernel release.
#[test]
fn the_first_kernel_is_that_of_the_setting() {
    let pairs = [
        ("defer-device", "napi_defer_hard_irqs"),
        ("defer-queue", "defer-hard-irqs"),
        ("suspend", "irq-suspend-timeout"),
        ("epoll-busy-poll", "busy_poll usecs/budget/prefer"),
        ("thread-class", "kthread policy"),
        ("thread-slice", "kthread slice"),
        ("thread-util-clamp", "kthread util-clamp"),
        ("irq-affinity", "smp_affinity"),
        ("channels", "combined-channels"),
        ("rings", "rx-ring"),
        ("rss", "rss-table"),
        ("reuseport", "reuseport"),
    ];
    for (mechanism, setting) in pairs {
        let since = |name: &str| -> Option<KernelVersion> {
            MECHANISMS.iter().find(|mechanism| mechanism.name == name).and_then(|mechanism| mechanism.since)
        };
        let facts = Setting::table().into_iter().find(|facts| facts.name == setting);
        assert_eq!(since(mechanism), facts.map(|facts| facts.since), "{mechanism}");
    }
}
