//! Other tools that set what netpolicy sets, found by reading their files and by checking whether they run.
//! They are neither contacted nor changed.
//!
//! Sources: sysctl.d(5), systemd.link(5), nm-settings-keyfile(5), interfaces(5) and ethtool's hooks for it,
//! tuned.conf(5), udev(7); GoogleCloudPlatform/guest-agent `instance_configs.cfg`,
//! GoogleCloudPlatform/guest-configs `google_set_multiqueue`; scylladb/seastar `scripts/perftune.py`;
//! cloud-init's `cloud.cfg`; for agents of Kubernetes, see `cluster`.

mod cluster;
mod commands;
mod facts;
mod files;
mod link;
mod netplan;
mod network_manager;
mod sysctl;
mod tuned;
mod values;

use std::path::{Path, PathBuf};

use model::host::{ConflictingTool, ConflictingToolKind, Device};
use sys::netns::Netns;
use sys::sysfs::SysFs;

use commands::{of_udev_rule, runs_ethtool, sets_by_command};
use facts::DeviceFacts;
use files::{FILES_MAX, drop_ins, file_name, ini, place, text};

/// The maximum number of reported lines.
const LINES_MAX: usize = 256;

/// Finds the configuration lines of other tools that take effect in a network namespace or on its devices.
pub fn conflicting_tools(netns: &Netns, devices: &[Device]) -> Vec<ConflictingTool> {
    let sysfs = SysFs::open(netns).ok();
    conflicting_tools_below(Path::new("/"), devices, &|path| sysfs.as_ref()?.read_if_any(path).ok()?)
}

/// Like [`conflicting_tools`], for the files below `root`. `sysfs` reads a file below `/sys` in the devices'
/// namespace.
pub fn conflicting_tools_below(
    root: &Path,
    devices: &[Device],
    sysfs: &dyn Fn(&str) -> Option<String>,
) -> Vec<ConflictingTool> {
    let devices: Vec<_> = devices.iter().map(|device| DeviceFacts::read(root, device, sysfs)).collect();
    let mut found = sysctl::sysctl_files(root);
    let profile = tuned::tuned(root, &found);
    found.extend(link::link_lines(root, &devices, netplan::written_links(root)));
    found.extend(network_manager::network_manager(root, &devices));
    found.extend(netplan::virtual_functions(root, &devices));
    found.extend(ifupdown(root));
    found.extend(ifcfg(root));
    found.extend(profile);
    found.extend(cluster::agents(root));
    found.extend(google(root));
    found.extend(cloud_init(root));
    found.extend(perftune(root));
    found.extend(commands_at_boot(root));
    found.extend(udev_rules(root));
    found.truncate(LINES_MAX);
    found
}

fn ifupdown(root: &Path) -> Vec<ConflictingTool> {
    let mut files: Vec<PathBuf> = vec![root.join("etc/network/interfaces")];
    let more = std::fs::read_dir(root.join("etc/network/interfaces.d")).into_iter().flatten().flatten();
    files.extend(more.take(FILES_MAX).map(|entry| entry.path()));
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let Some(text) = text(&path) else { continue };
        let mut device = None;
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["iface", name, ..] => device = Some((*name).to_owned()),
                [key, ..] if sets_nic(key, line) => found.push(ConflictingTool {
                    device: device.clone(),
                    ..ConflictingTool::new(
                        ConflictingToolKind::Ifupdown,
                        place(root, &path, number),
                        line.trim().to_owned(),
                    )
                }),
                _ => {}
            }
        }
    }
    found
}

/// Finds `ETHTOOL_OPTS` in the network scripts of Red Hat's distributions.
fn ifcfg(root: &Path) -> Vec<ConflictingTool> {
    let directory = root.join("etc/sysconfig/network-scripts");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .take(FILES_MAX)
        .map(|entry| entry.path())
        .filter(|path| file_name(path).starts_with("ifcfg-"))
        .collect();
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let Some(text) = text(&path) else { continue };
        let value = |line: &str, key: &str| {
            let value = line.trim().strip_prefix(key)?.strip_prefix('=')?;
            Some(value.trim_matches(['"', '\'']).to_owned())
        };
        let device = text.lines().find_map(|line| value(line, "DEVICE"));
        let device = device.or_else(|| file_name(&path).strip_prefix("ifcfg-").map(str::to_owned));
        for (number, line) in text.lines().enumerate() {
            // Without an option, the value contains arguments of `ethtool -s`, which sets speed and duplex.
            let Some(options) = value(line, "ETHTOOL_OPTS") else { continue };
            if options.split(';').any(|one| runs_ethtool(&format!("ethtool {one}"))) {
                found.push(ConflictingTool {
                    device: device.clone(),
                    ..ConflictingTool::new(
                        ConflictingToolKind::Ifcfg,
                        place(root, &path, number),
                        line.trim().to_owned(),
                    )
                });
            }
        }
    }
    found
}

/// Whether a line has an option for ethtool's hook (`/etc/network/if-up.d/ethtool`), or a command that runs
/// ethtool.
fn sets_nic(key: &str, line: &str) -> bool {
    let hook = ["offload-", "hardware-dma-ring-", "hardware-irq-coalesce-", "ethernet-"];
    let command = ["up", "pre-up", "post-up"].contains(&key) && runs_ethtool(line);
    command || hook.iter().any(|beginning| key.starts_with(beginning) && *beginning != "ethernet-")
}

/// Creates a finding for a line of another tool that writes a host-wide setting.
fn of_host(kind: ConflictingToolKind, place: String, line: &str) -> ConflictingTool {
    let line: String = line.trim().chars().take(LINE_CHARS_MAX).collect();
    ConflictingTool::new(kind, place, line)
}

/// The maximum number of characters of a line that are shown.
const LINE_CHARS_MAX: usize = 160;

/// Finds Google's guest agent. It sets queues unless its configuration disables that: `[InstanceSetup]
/// set_multiqueue = false`.
fn google(root: &Path) -> Vec<ConflictingTool> {
    const PROGRAMS: [&str; 2] = ["usr/bin/google_set_multiqueue", "usr/sbin/google_set_multiqueue"];
    let Some(program) = PROGRAMS.iter().find(|program| root.join(program).exists()) else {
        return Vec::new();
    };
    for file in ["etc/default/instance_configs.cfg", "etc/default/instance_configs.cfg.template"] {
        let path = root.join(file);
        let Some(text) = text(&path) else { continue };
        let said =
            ini(&text).find(|(_, section, key, _)| *section == "InstanceSetup" && *key == "set_multiqueue");
        if let Some((number, _, key, value)) = said {
            if value.eq_ignore_ascii_case("false") {
                return Vec::new();
            }
            let line = format!("{key} = {value}");
            return vec![of_host(ConflictingToolKind::GoogleGuestAgent, place(root, &path, number), &line)];
        }
    }
    vec![of_host(
        ConflictingToolKind::GoogleGuestAgent,
        format!("/{program}"),
        "set_multiqueue, which is on by default",
    )]
}

/// Finds lines of cloud-init's own configuration that run a command which sets a NIC.
fn cloud_init(root: &Path) -> Vec<ConflictingTool> {
    let mut files = vec![root.join("etc/cloud/cloud.cfg")];
    files.extend(drop_ins(root, &["etc/cloud/cloud.cfg.d"], "cfg").into_iter().map(|(path, _)| path));
    files.push(root.join("var/lib/cloud/instance/user-data.txt"));
    lines_of(root, ConflictingToolKind::CloudInit, &files, |line| sets_by_command(line).is_some())
}

/// Finds the files that start `perftune.py`, if it is installed and enabled.
fn perftune(root: &Path) -> Vec<ConflictingTool> {
    let units = ["etc/systemd/system/multi-user.target.wants/perftune.service", "etc/scylla.d/perftune.yaml"];
    let files: Vec<PathBuf> = units.iter().map(|file| root.join(file)).collect();
    let says =
        |line: &str| line.contains("perftune") || line.starts_with("mode:") || line.starts_with("nic:");
    let mut found = lines_of(root, ConflictingToolKind::Perftune, &files, says);
    let sysconfig = ["etc/default/scylla-server", "etc/sysconfig/scylla-server"].map(|file| root.join(file));
    found.extend(lines_of(root, ConflictingToolKind::Perftune, &sysconfig, |line| {
        line.trim().trim_matches('"').eq_ignore_ascii_case("SET_NIC_AND_DISKS=yes")
            || line.trim().eq_ignore_ascii_case("SET_NIC=yes")
    }));
    found
}

/// Directories of scripts and units that run at boot, or when a device comes up.
const SCRIPTS: [&str; 26] = [
    "etc/systemd/system",
    "etc/cron.d",
    "etc/NetworkManager/dispatcher.d",
    "etc/NetworkManager/dispatcher.d/pre-up.d",
    "etc/NetworkManager/dispatcher.d/no-wait.d",
    "usr/lib/NetworkManager/dispatcher.d",
    "usr/lib/NetworkManager/dispatcher.d/pre-up.d",
    "usr/lib/NetworkManager/dispatcher.d/no-wait.d",
    "etc/network/if-pre-up.d",
    "etc/network/if-up.d",
    "etc/networkd-dispatcher/carrier.d",
    "etc/networkd-dispatcher/configured.d",
    "etc/networkd-dispatcher/configuring.d",
    "etc/networkd-dispatcher/degraded.d",
    "etc/networkd-dispatcher/dormant.d",
    "etc/networkd-dispatcher/enslaved.d",
    "etc/networkd-dispatcher/initialized.d",
    "etc/networkd-dispatcher/no-carrier.d",
    "etc/networkd-dispatcher/off.d",
    "etc/networkd-dispatcher/routable.d",
    "usr/lib/networkd-dispatcher/carrier.d",
    "usr/lib/networkd-dispatcher/configured.d",
    "usr/lib/networkd-dispatcher/degraded.d",
    "usr/lib/networkd-dispatcher/no-carrier.d",
    "usr/lib/networkd-dispatcher/off.d",
    "usr/lib/networkd-dispatcher/routable.d",
];

/// ethtool's own hooks apply the settings in `/etc/network/interfaces`, which is parsed separately.
const HOOKS_OF_ETHTOOL: [&str; 2] = ["etc/network/if-pre-up.d/ethtool", "etc/network/if-up.d/ethtool"];

/// Finds lines of rc.local, crontabs and units that pin interrupts or set a NIC by a command.
fn commands_at_boot(root: &Path) -> Vec<ConflictingTool> {
    let mut files: Vec<PathBuf> =
        ["etc/rc.local", "etc/rc.d/rc.local", "etc/crontab"].iter().map(|file| root.join(file)).collect();
    for directory in SCRIPTS {
        let entries = std::fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        let mut more: Vec<PathBuf> =
            entries.take(FILES_MAX).map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        more.retain(|path| !HOOKS_OF_ETHTOOL.iter().any(|hook| *path == root.join(hook)));
        more.sort();
        files.extend(more);
    }
    let mut found = Vec::new();
    for kind in [ConflictingToolKind::IrqAffinityScript, ConflictingToolKind::Perftune] {
        found.extend(lines_of(root, kind, &files, |line| sets_by_command(line) == Some(kind)));
    }
    found
}

/// Finds udev rules that set a NIC, or run a program that does.
fn udev_rules(root: &Path) -> Vec<ConflictingTool> {
    const DIRECTORIES: [&str; 4] =
        ["etc/udev/rules.d", "run/udev/rules.d", "usr/local/lib/udev/rules.d", "usr/lib/udev/rules.d"];
    let mut found = Vec::new();
    for (path, text) in drop_ins(root, &DIRECTORIES, "rules") {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'))
        {
            let Some(kind) = of_udev_rule(line) else { continue };
            found.push(of_host(kind, place(root, &path, number), line));
        }
    }
    found
}

/// Finds the lines of files that match a condition, without comments.
fn lines_of(
    root: &Path,
    kind: ConflictingToolKind,
    files: &[PathBuf],
    says: impl Fn(&str) -> bool,
) -> Vec<ConflictingTool> {
    let mut found = Vec::new();
    for path in files {
        let Some(text) = text(path) else { continue };
        for (number, line) in text.lines().enumerate() {
            if !line.trim_start().starts_with('#') && says(line) {
                found.push(of_host(kind, place(root, path, number), line));
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "conflicting_tools/device_test.rs"]
mod device_test;

#[cfg(test)]
mod test {
    use tempfile::TempDir;

    use super::device_test::nic;
    use super::*;

    pub(super) struct Root(pub(super) TempDir);

    impl Root {
        pub(super) fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = Self(TempDir::with_prefix(format!("netpolicy-others-{name}-")).expect("a directory"));
            for (path, text) in files {
                let path = root.0.path().join(path);
                std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
                std::fs::write(path, text).expect("written");
            }
            root
        }

        fn found(&self) -> Vec<String> {
            self.found_for(&["eth0", "eth1"].map(|name| nic(name, 2, "igb")))
        }

        /// Shows the findings for devices. Files of sysfs are read below the directory `sys`.
        pub(super) fn found_for(&self, devices: &[Device]) -> Vec<String> {
            let shown = |other: ConflictingTool| {
                let device = other.device.map(|device| format!(" of {device}")).unwrap_or_default();
                let condition = other.condition.map(|text| format!(", if {text}")).unwrap_or_default();
                format!("{} {}{device}: {}{condition}", other.kind, other.place, other.line)
            };
            let root = self.0.path();
            let found = conflicting_tools_below(root, devices, &|path| text(&root.join("sys").join(path)));
            found.into_iter().map(shown).collect()
        }
    }

    #[test]
    fn every_writer_is_found_by_the_line_that_sets_something_of_ours() {
        let root = Root::new(
            "all",
            &[
                (
                    "etc/sysctl.d/90-net.conf",
                    "# a comment\nnet.core.netdev_budget = 600\nnet.ipv4.ip_forward=1\n",
                ),
                ("usr/lib/sysctl.d/50-x.conf", "-net/core/netdev_budget_usecs=8000\n"),
                (
                    "etc/systemd/network/10-eth.link",
                    "[Match]\nOriginalName=eth*\n[Link]\nName=lan0\nCombinedChannels=4\nRxBufferSize=max\n",
                ),
                (
                    "etc/NetworkManager/system-connections/lan.nmconnection",
                    "[connection]\nid=lan\ntype=ethernet\ninterface-name=eth1\n[ethtool]\ncoalesce-rx-usecs=8\n",
                ),
                (
                    "etc/network/interfaces",
                    "auto eth2\niface eth2 inet dhcp\n  offload-tso off\n  post-up ethtool -C eth2 rx-usecs 4\n  mtu 9000\n",
                ),
                ("etc/tuned/active_profile", "network-latency\n"),
                ("usr/lib/tuned/network-latency/tuned.conf", "[main]\ninclude=base\n[sysctl]\nvm.x=1\n"),
                ("usr/lib/tuned/base/tuned.conf", "[net]\ncoalesce=adaptive-rx off\n"),
                ("proc/812/comm", "tuned\n"),
                ("sys/class/net/eth0/name_assign_type", "1\n"),
                ("sys/class/net/eth1/name_assign_type", "4\n"),
            ],
        );
        assert_eq!(
            root.found(),
            [
                "sysctl.d /etc/sysctl.d/90-net.conf:2: net.core.netdev_budget = 600",
                "sysctl.d /usr/lib/sysctl.d/50-x.conf:1: -net/core/netdev_budget_usecs=8000",
                "systemd .link /etc/systemd/network/10-eth.link:5 of eth0: CombinedChannels=4",
                "systemd .link /etc/systemd/network/10-eth.link:6 of eth0: RxBufferSize=max",
                "systemd .link /etc/systemd/network/10-eth.link:5 of eth1: CombinedChannels=4, if OriginalName=eth*",
                "systemd .link /etc/systemd/network/10-eth.link:6 of eth1: RxBufferSize=max, if OriginalName=eth*",
                "NetworkManager /etc/NetworkManager/system-connections/lan.nmconnection:6 of eth1: coalesce-rx-usecs=8",
                "ifupdown /etc/network/interfaces:3 of eth2: offload-tso off",
                "ifupdown /etc/network/interfaces:4 of eth2: post-up ethtool -C eth2 rx-usecs 4",
                "tuned /usr/lib/tuned/base/tuned.conf:2: [net] coalesce=adaptive-rx off",
            ]
        );
    }

    #[test]
    fn what_clouds_and_databases_bring_along_is_found_too() {
        let root = Root::new(
            "clouds",
            &[
                ("usr/bin/google_set_multiqueue", "#!/bin/bash\n"),
                ("etc/default/instance_configs.cfg", "[InstanceSetup]\nset_multiqueue = true\n"),
                (
                    "etc/cloud/cloud.cfg.d/99-nic.cfg",
                    "runcmd:\n # ethtool -L eth0 combined 1\n - ethtool -L eth0 combined 4\n",
                ),
                ("etc/default/scylla-server", "SET_NIC_AND_DISKS=yes\n"),
                ("etc/scylla.d/perftune.yaml", "mode: sq_split\nnic: [eth0]\n"),
                ("etc/rc.local", "/usr/sbin/set_irq_affinity.sh eth1\n"),
                ("etc/cron.d/tune", "@reboot root echo 1 > /proc/irq/38/smp_affinity\n"),
                (
                    "usr/lib/udev/rules.d/60-ena.rules",
                    "# queues\nSUBSYSTEM==\"net\", DRIVERS==\"ena\", ACTION==\"add\", ATTR{queues/rx-0/rps_cpus}=\"3\"\n",
                ),
                (
                    "etc/udev/rules.d/68-azure.rules",
                    "SUBSYSTEM==\"net\", DRIVERS==\"hv_netvsc\", RUN+=\"/usr/sbin/ethtool -L $name combined 8\"\n",
                ),
            ],
        );
        let kinds: Vec<String> =
            root.found().iter().map(|line| line.split(": ").next().unwrap_or("").to_owned()).collect();
        assert_eq!(
            kinds,
            [
                "google-guest-agent /etc/default/instance_configs.cfg:2",
                "cloud-init /etc/cloud/cloud.cfg.d/99-nic.cfg:3",
                "perftune /etc/scylla.d/perftune.yaml:1",
                "perftune /etc/scylla.d/perftune.yaml:2",
                "perftune /etc/default/scylla-server:1",
                "set_irq_affinity /etc/rc.local:1",
                "set_irq_affinity /etc/cron.d/tune:1",
                "ENA helpers /usr/lib/udev/rules.d/60-ena.rules:2",
                "Azure's agent /etc/udev/rules.d/68-azure.rules:1",
            ]
        );
    }

    #[test]
    fn agents_of_kubernetes_are_found_by_their_processes_and_files() {
        let container = |file: &str| ["proc/812/root", file].join("/");
        let active = container("etc/tuned/active_profile");
        let included = container("usr/lib/tuned/openshift/tuned.conf");
        let root = Root::new(
            "cluster",
            &[
                ("proc/812/comm", "tuned\n"),
                (&active, "openshift-node-performance\n"),
                (&included, "[sysctl]\nnet.core.busy_poll=50\n[main]\ninclude=-provider-${f:exec:cat:/x}\n"),
                (
                    "var/lib/ocp-tuned/profiles/openshift-node-performance/tuned.conf",
                    "[main]\ninclude=openshift\n[net]\nchannels=combined 4\n[irqbalance]\nbanned_cpus=2-5\n",
                ),
                ("proc/90/comm", "katalyst-agent\n"),
                ("proc/90/cmdline", "/usr/bin/katalyst-agent\0--enable-irq-tuner=true\0"),
                ("proc/91/comm", "nri-resource-po\n"),
                ("proc/91/cmdline", "/bin/nri-resource-policy-balloons\0--v\0"),
                ("proc/92/comm", "nri-resource-po\n"),
                ("proc/92/cmdline", "/bin/nri-resource-policy-template\0"),
                ("opt/nri/plugins/10-nri-resource-policy-balloons", "ELF"),
                ("proc/93/comm", "crio\n"),
                (
                    "etc/crio/crio.conf.d/99-runtimes.conf",
                    "# irq-load-balancing.crio.io\nallowed_annotations = [\"irq-load-balancing.crio.io\"]\n",
                ),
            ],
        );
        assert_eq!(
            root.found(),
            [
                "Node Tuning Operator /var/lib/ocp-tuned/profiles/openshift-node-performance/tuned.conf:6: [irqbalance] banned_cpus=2-5",
                "Node Tuning Operator /var/lib/ocp-tuned/profiles/openshift-node-performance/tuned.conf:4: [net] channels=combined 4",
                &format!("Node Tuning Operator /{included}:2: [sysctl] net.core.busy_poll=50"),
                "katalyst katalyst-agent[90]: --enable-irq-tuner: interrupts on exclusive CPUs, RPS, XPS",
                "NRI plugin nri-resource-policy-balloons[91]: the affinity of interrupts, if its configuration claims any (irqClaim)",
                "CRI-O /etc/crio/crio.conf.d/99-runtimes.conf:2: allowed_annotations = [\"irq-load-balancing.crio.io\"]",
            ]
        );
        let quiet = Root::new(
            "cluster-quiet",
            &[
                ("proc/90/comm", "katalyst-agent\n"),
                ("proc/90/cmdline", "katalyst-agent\0--enable-irq-tuner=false\0"),
                ("proc/92/comm", "katalyst-agent\n"),
                ("proc/92/cmdline", "katalyst-agent\0--v=3\0"),
                ("proc/91/comm", "containerd\n"),
                ("run/nri/nri.sock", ""),
                ("opt/nri/plugins/10-logger", "ELF"),
                ("etc/crio/crio.conf", "allowed_annotations = [\"irq-load-balancing.crio.io\"]\n"),
            ],
        );
        assert!(quiet.found().is_empty(), "{:?}", quiet.found());
        let started = Root::new(
            "cluster-started",
            &[
                ("opt/nri/plugins/10-nri-resource-policy-topology-aware", "ELF"),
                ("proc/5/comm", "katalyst-agent\n"),
                ("proc/6/comm", "tuned\n"),
                ("proc/7/comm", "openshift-tuned\n"),
            ],
        );
        assert_eq!(
            started.found(),
            [
                "Node Tuning Operator tuned[6]: the active profile cannot be read, and may set what netpolicy sets",
                "katalyst katalyst-agent[5]: its irq tuner, if that is on: interrupts on exclusive CPUs, RPS, XPS",
                "NRI plugin /opt/nri/plugins/10-nri-resource-policy-topology-aware: the container runtime starts it if NRI is on; the affinity of interrupts, if it claims any (irqClaim)",
            ]
        );
    }

    #[test]
    fn the_profile_of_each_tuned_on_the_host_and_in_containers_is_read_once() {
        let root = Root::new(
            "tuned-several",
            &[
                ("proc/7/comm", "tuned\n"),
                ("proc/7/root/etc/tuned/active_profile", "inner\n"),
                ("proc/7/root/usr/lib/tuned/inner/tuned.conf", "[net]\nring=rx 512\n"),
                ("proc/8/comm", "tuned\n"),
                ("proc/8/root/empty", ""),
                ("proc/812/comm", "tuned\n"),
                ("proc/813/comm", "tuned\n"),
                ("etc/tuned/active_profile", "outer\n"),
                ("usr/lib/tuned/outer/tuned.conf", "[net]\ncoalesce=adaptive-rx off\n"),
            ],
        );
        assert_eq!(
            root.found(),
            [
                "tuned /usr/lib/tuned/outer/tuned.conf:2: [net] coalesce=adaptive-rx off",
                "tuned /proc/7/root/usr/lib/tuned/inner/tuned.conf:2: [net] ring=rx 512",
            ]
        );
    }

    #[test]
    fn an_agent_that_is_asked_not_to_set_queues_is_no_finding() {
        let root = Root::new(
            "google-off",
            &[
                ("usr/bin/google_set_multiqueue", "#!/bin/bash\n"),
                ("etc/default/instance_configs.cfg", "[InstanceSetup]\nset_multiqueue = false\n"),
            ],
        );
        assert!(root.found().is_empty(), "{:?}", root.found());
    }

    #[test]
    fn a_file_is_masked_by_one_of_its_name_and_a_tuned_that_does_not_run_sets_nothing() {
        let root = Root::new(
            "masked",
            &[
                ("etc/sysctl.d/50-x.conf", ""),
                ("usr/lib/sysctl.d/50-x.conf", "net.core.netdev_budget=600\n"),
                ("etc/tuned/active_profile", "x ../../../secret"),
                ("usr/lib/tuned/x/tuned.conf", "[net]\ncoalesce=adaptive-rx off\n"),
                ("proc/812/comm", "bash\n"),
            ],
        );
        // Opening a pipe without a writer would block forever.
        let pipe = root.0.path().join("etc/sysctl.d/60-pipe.conf");
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().is_ok_and(|made| made.success()));
        assert!(root.found().is_empty(), "{:?}", root.found());
    }

    #[test]
    fn variables_of_tuned_that_grow_without_end_stay_unexpanded() {
        let doubled = (1..100).map(|n| format!("v{n}=${{v{}}}${{v{}}}\n", n - 1, n - 1)).collect::<String>();
        let profile =
            format!("[variables]\nv0=1\n{doubled}[net]\nring=rx ${{v3}}\nchannels=combined ${{v99}}\n");
        let root = Root::new(
            "doubled",
            &[
                ("proc/9/comm", "tuned\n"),
                ("etc/tuned/active_profile", "a\n"),
                ("usr/lib/tuned/a/tuned.conf", &profile),
            ],
        );
        let found = root.found();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("${v") && found[0].len() < 4 * 4096, "{}", found[0]);
        assert!(found[1].ends_with("ring=rx 11111111"), "{}", found[1]);
    }

    #[test]
    fn of_several_files_for_a_number_the_last_name_wins_over_all_directories() {
        let root = Root::new(
            "sysctl",
            &[
                ("usr/lib/sysctl.d/99-z.conf", "net.core.netdev_budget = 0x12c\n"),
                ("etc/sysctl.d/10-a.conf", "net.core.netdev_budget = 600\nnet.core.busy_poll=50\n"),
                (
                    "run/sysctl.d/20-b.conf",
                    "; net.core.busy_poll=1\nnet/core/busy_poll = 0\nnet.core.rps_default_mask=3\n",
                ),
                ("etc/sysctl.conf", "net.core.busy_poll = 25\n"),
            ],
        );
        assert_eq!(
            root.found(),
            [
                "sysctl.d /etc/sysctl.conf:1: net.core.busy_poll = 25",
                "sysctl.d /usr/lib/sysctl.d/99-z.conf:1: net.core.netdev_budget = 0x12c",
                "sysctl.d /run/sysctl.d/20-b.conf:3: net.core.rps_default_mask=3",
            ]
        );
        // A pattern applies to keys that no line names; `-KEY` excludes a key from patterns and earlier
        // lines.
        let root = Root::new(
            "sysctl-patterns",
            &[
                (
                    "etc/sysctl.d/10-a.conf",
                    "net.core.netdev_budget=600\nnet.core.busy_poll = 50\nnet/core.busy_poll=1\n",
                ),
                (
                    "etc/sysctl.d/20-b.conf",
                    "net.core.netdev_*=7\n-net.core.netdev_max_backlog\n-net.core.busy_poll\nnet.core.busy_poll\n",
                ),
            ],
        );
        assert_eq!(
            root.found(),
            [
                "sysctl.d /etc/sysctl.d/10-a.conf:1: net.core.netdev_budget=600",
                "sysctl.d /etc/sysctl.d/20-b.conf:1: net.core.netdev_*=7",
            ]
        );
        // Debian has a link to sysctl.conf in sysctl.d. It is read in the order of its own name, not of its
        // target's.
        let root = Root::new(
            "sysctl-link",
            &[
                ("etc/sysctl.conf", "net.core.busy_poll = 25\n"),
                ("etc/sysctl.d/99-z.conf", "net.core.busy_poll=7\n"),
            ],
        );
        std::os::unix::fs::symlink("../sysctl.conf", root.0.path().join("etc/sysctl.d/50-sysctl.conf"))
            .expect("a link");
        assert_eq!(root.found(), ["sysctl.d /etc/sysctl.d/99-z.conf:1: net.core.busy_poll=7"]);
    }

    #[test]
    fn a_profile_of_tuned_is_what_its_includes_and_its_own_sections_merge_to() {
        let profile = |name: &str| format!("usr/lib/tuned/profiles/{name}/tuned.conf");
        let (base, middle, top, odd) = (profile("base"), profile("middle"), profile("top"), profile("odd"));
        let root = Root::new(
            "tuned",
            &[
                ("proc/9/comm", "tuned\n"),
                ("etc/tuned/active_profile", "top odd\n"),
                (
                    &base,
                    "[sysctl]\nnet.core.busy_poll=50\nnet.core.netdev_budget=>600\nkernel.x=1\n[net]\nfeatures=tso off\n",
                ),
                (&middle, "[main]\ninclude=base, absent\n[sysctl]\nnet.core.busy_poll=25 # a comment\n"),
                (
                    &top,
                    "[main]\ninclude=${below};\n[variables]\nbelow=nothing\n[net_1]\ntype=net\ndevices=eth0\nchannels=combined ${queues}\nwake_on_lan=d\n",
                ),
                (
                    &odd,
                    "[main]\ninclude=middle;base\n[variables]\ninclude=/etc/tuned/odd-variables.conf\n[net]\nreplace=1\nring=rx 4096\n[irqbalance]\nenabled=false\nbanned_cpus=1\n",
                ),
                ("etc/tuned/odd-variables.conf", "# a comment\nqueues=4\n"),
            ],
        );
        assert_eq!(
            root.found(),
            [
                "tuned /usr/lib/tuned/profiles/odd/tuned.conf:7: [net] ring=rx 4096",
                "tuned /usr/lib/tuned/profiles/top/tuned.conf:8 of eth0: [net_1] channels=combined 4",
                "tuned /usr/lib/tuned/profiles/middle/tuned.conf:4: [sysctl] net.core.busy_poll=25",
                "tuned /usr/lib/tuned/profiles/base/tuned.conf:3: [sysctl] net.core.netdev_budget=>600",
            ]
        );
        // tuned applies the files of sysctl.d again after its own profile.
        let file = root.0.path().join("etc/sysctl.d/z.conf");
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        std::fs::write(&file, "net.core.busy_poll=0\n").expect("written");
        let of_busy_poll =
            |root: &Root| root.found().into_iter().filter(|line| line.contains("busy_poll")).count();
        assert_eq!(of_busy_poll(&root), 1);
        std::fs::write(root.0.path().join("etc/tuned/tuned-main.conf"), "reapply_sysctl = 0\n")
            .expect("written");
        assert_eq!(of_busy_poll(&root), 2);
    }

    #[test]
    fn a_script_that_sets_a_nic_is_found_wherever_it_runs_and_one_that_reads_is_not() {
        let root = Root::new(
            "scripts",
            &[
                (
                    "etc/networkd-dispatcher/routable.d/50-nic",
                    "#!/bin/sh\nethtool -S $IFACE\n/usr/sbin/ethtool  --set-ring \"$IFACE\" rx 4096\n",
                ),
                ("etc/network/if-up.d/nic", "$ETHTOOL -K $IFACE gro off\n"),
                (
                    "etc/network/if-up.d/ethtool",
                    "[ -z \"$SETTINGS\" ] || $ETHTOOL --offload \"$IFACE\" $SETTINGS\n",
                ),
                (
                    "etc/NetworkManager/dispatcher.d/pre-up.d/nic",
                    "echo 3 > /sys/class/net/$1/queues/rx-0/rps_cpus\ncat /sys/class/net/$1/queues/rx-0/rps_cpus\n",
                ),
                (
                    "etc/sysconfig/network-scripts/ifcfg-lan",
                    "DEVICE=\"eth7\"\nETHTOOL_OPTS=\"speed 100 duplex full; -G ${DEVICE} rx 4096\"\n",
                ),
                ("etc/sysconfig/network-scripts/ifcfg-eth8", "ETHTOOL_OPTS=\"autoneg off\"\n"),
                (
                    "etc/udev/rules.d/70-nic.rules",
                    "SUBSYSTEM==\"net\", ACTION==\"add\", RUN+=\"/sbin/ethtool -K $name tso off\"\n\
                     SUBSYSTEM==\"net\", ENV{enabled}==\"1\", ATTR{gro_flush_timeout}=\"20000\"\n\
                     SUBSYSTEM==\"net\", ATTR{queues/rx-0/rps_cpus}==\"0\", NAME=\"x\"\n\
                     SUBSYSTEM==\"net\", DRIVERS==\"ena\", ATTR{queues/rx-0/rps_cpus}=\"3\"\n",
                ),
            ],
        );
        let kinds: Vec<String> =
            root.found().iter().filter_map(|line| line.split(": ").next().map(str::to_owned)).collect();
        assert_eq!(
            kinds,
            [
                "ifcfg /etc/sysconfig/network-scripts/ifcfg-lan:2 of eth7",
                "set_irq_affinity /etc/NetworkManager/dispatcher.d/pre-up.d/nic:1",
                "set_irq_affinity /etc/network/if-up.d/nic:1",
                "set_irq_affinity /etc/networkd-dispatcher/routable.d/50-nic:3",
                "udev rule /etc/udev/rules.d/70-nic.rules:1",
                "udev rule /etc/udev/rules.d/70-nic.rules:2",
                "ENA helpers /etc/udev/rules.d/70-nic.rules:4",
            ]
        );
    }
}
