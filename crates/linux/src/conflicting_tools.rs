//! Other tools that set what netpolicy sets, found by reading their files, and by whether they run. They are neither
//! contacted nor changed.
//!
//! sysctl.d(5), systemd.link(5), nm-settings-keyfile(5), interfaces(5) and ethtool's hooks for it, tuned.conf(5), udev(7);
//! GoogleCloudPlatform/guest-agent `instance_configs.cfg`, GoogleCloudPlatform/guest-configs `google_set_multiqueue`;
//! scylladb/seastar `scripts/perftune.py`; cloud-init's `cloud.cfg`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use model::Sysctl;
use model::host::{ConflictingTool, ConflictingToolKind};

/// How many files of a directory are read, and how much of each.
const FILES_MAX: usize = 512;
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// How many lines are reported.
const LINES_MAX: usize = 256;

/// The configuration lines of other tools. `root` is `/`, or that of a recorded host.
pub fn conflicting_tools(root: &Path) -> Vec<ConflictingTool> {
    let mut found = sysctl_files(root);
    found.extend(link_files(root));
    found.extend(network_manager(root));
    found.extend(ifupdown(root));
    found.extend(tuned(root));
    found.extend(google(root));
    found.extend(cloud_init(root));
    found.extend(perftune(root));
    found.extend(commands_at_boot(root));
    found.extend(udev_rules(root));
    found.truncate(LINES_MAX);
    found
}

/// The files that count: of one name, that of the first directory. A file that is empty, or a link to nothing, masks the
/// others of its name.
fn drop_ins(root: &Path, directories: &[&str], ending: &str) -> Vec<(PathBuf, String)> {
    let mut by_name: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
    for directory in directories {
        let entries = std::fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        for entry in entries.take(FILES_MAX) {
            if entry.path().extension().is_some_and(|found| found == ending) {
                by_name.entry(entry.file_name()).or_insert_with(|| entry.path());
            }
        }
    }
    by_name.into_values().filter_map(|path| text(&path).map(|text| (path, text))).collect()
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A place as the host itself calls it.
fn place(root: &Path, path: &Path, line: usize) -> String {
    let inside = path.strip_prefix(root).unwrap_or(path);
    format!("/{}:{}", inside.display(), line + 1)
}

fn sysctl_files(root: &Path) -> Vec<ConflictingTool> {
    const DIRECTORIES: [&str; 4] =
        ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d"];
    let mut files = drop_ins(root, &DIRECTORIES, "conf");
    let old = root.join("etc/sysctl.conf");
    // systemd reads it only where something in sysctl.d is a link to it; procps always.
    if let Some(text) = text(&old)
        && !files.iter().any(|(path, _)| std::fs::canonicalize(path).ok() == std::fs::canonicalize(&old).ok())
    {
        files.push((old, text));
    }
    let mut found = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            if let Some((sysctl, value)) = net_core(line) {
                found.push(ConflictingTool {
                    kind: ConflictingToolKind::SysctlFile,
                    place: place(root, &path, number),
                    line: line.trim().to_owned(),
                    device: None,
                    sysctl: Some((sysctl, value)),
                });
            }
        }
    }
    found
}

/// `net.core.netdev_budget = 600`, also with slashes and a minus before it.
fn net_core(line: &str) -> Option<(Sysctl, String)> {
    let (key, value) = line.trim().split_once('=')?;
    let key = key.trim().trim_start_matches('-').replace('/', ".");
    let name = key.strip_prefix("net.core.")?;
    let sysctl = Sysctl::ALL.iter().copied().find(|sysctl| sysctl.as_str() == name)?;
    Some((sysctl, value.trim().to_owned()))
}

/// The sections and keys of an INI file: line, section, key, value.
fn ini(text: &str) -> impl Iterator<Item = (usize, &str, &str, &str)> {
    let mut section = "";
    text.lines().enumerate().filter_map(move |(number, line)| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
            return None;
        }
        let (key, value) = line.split_once('=').filter(|_| !line.starts_with(['#', ';']))?;
        Some((number, section, key.trim(), value.trim()))
    })
}

/// The lines of an INI file that set something of a device, which another line of it names.
fn of_device(
    kind: ConflictingToolKind,
    (root, path, text): (&Path, &Path, &str),
    names: &[(&str, &str)],
    sets: impl Fn(&str, &str) -> bool,
) -> Vec<ConflictingTool> {
    let device = ini(text)
        .find(|(_, section, key, _)| names.contains(&(*section, *key)))
        .map(|(_, _, _, value)| value.to_owned());
    ini(text)
        .filter(|(_, section, key, _)| sets(section, key))
        .map(|(number, _, key, value)| ConflictingTool {
            kind,
            place: place(root, path, number),
            line: format!("{key}={value}"),
            device: device.clone(),
            sysctl: None,
        })
        .collect()
}

fn link_files(root: &Path) -> Vec<ConflictingTool> {
    const DIRECTORIES: [&str; 4] = [
        "etc/systemd/network",
        "run/systemd/network",
        "usr/local/lib/systemd/network",
        "usr/lib/systemd/network",
    ];
    const NAMES: &[(&str, &str)] = &[("Match", "OriginalName"), ("Match", "MACAddress"), ("Match", "Driver")];
    let sets = |section: &str, key: &str| {
        section == "Link"
            && (["Channels", "BufferSize", "Offload"].iter().any(|ending| key.ends_with(ending))
                || ["Coalesce", "IRQAffinity", "ReceivePacketSteering", "SR-IOV"]
                    .iter()
                    .any(|word| key.contains(word)))
    };
    let files = drop_ins(root, &DIRECTORIES, "link");
    files
        .iter()
        .flat_map(|(path, text)| of_device(ConflictingToolKind::LinkFile, (root, path, text), NAMES, sets))
        .collect()
}

fn network_manager(root: &Path) -> Vec<ConflictingTool> {
    const DIRECTORIES: [&str; 3] = [
        "etc/NetworkManager/system-connections",
        "run/NetworkManager/system-connections",
        "usr/lib/NetworkManager/system-connections",
    ];
    let files = drop_ins(root, &DIRECTORIES, "nmconnection");
    let of = |(path, text): &(PathBuf, String)| {
        let sets = |section: &str, _: &str| section == "ethtool";
        of_device(
            ConflictingToolKind::NetworkManager,
            (root, path, text),
            &[("connection", "interface-name")],
            sets,
        )
    };
    files.iter().flat_map(of).collect()
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
                    kind: ConflictingToolKind::Ifupdown,
                    place: place(root, &path, number),
                    line: line.trim().to_owned(),
                    device: device.clone(),
                    sysctl: None,
                }),
                _ => {}
            }
        }
    }
    found
}

/// The words of ethtool's hooks (`/etc/network/if-up.d/ethtool`), and commands that run it.
fn sets_nic(key: &str, line: &str) -> bool {
    let hook = ["offload-", "hardware-dma-ring-", "hardware-irq-coalesce-", "ethernet-"];
    let command = ["up", "pre-up", "post-up"].contains(&key) && line.contains("ethtool -");
    command || hook.iter().any(|beginning| key.starts_with(beginning) && *beginning != "ethernet-")
}

/// What the profile that is active sets, and the profiles that it includes; nothing where tuned does not run.
fn tuned(root: &Path) -> Vec<ConflictingTool> {
    const INCLUDES_MAX: usize = 8;
    if !runs(root, "tuned") {
        return Vec::new();
    }
    let Some(active) = text(&root.join("etc/tuned/active_profile")) else { return Vec::new() };
    let mut names: Vec<String> = active.split_whitespace().map(str::to_owned).collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(name) = names.get(at).filter(|_| at < INCLUDES_MAX).cloned() {
        at += 1;
        // A name that leads elsewhere is none.
        if name.contains('/') {
            continue;
        }
        let places = ["etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles"];
        let paths = places.map(|place| root.join(place).join(&name).join("tuned.conf"));
        let Some((path, text)) = paths.into_iter().find_map(|path| text(&path).map(|text| (path, text)))
        else {
            continue;
        };
        for (number, section, key, value) in ini(&text) {
            let other = |sysctl| ConflictingTool {
                kind: ConflictingToolKind::Tuned,
                place: place(root, &path, number),
                line: format!("[{section}] {key}={value}"),
                device: None,
                sysctl,
            };
            match section {
                "main" if key == "include" => names.extend(value.split([',', ' ']).map(str::to_owned)),
                "net" | "irq" | "irqbalance" => found.push(other(None)),
                "sysctl" => found.extend(net_core(&format!("{key}={value}")).map(|set| other(Some(set)))),
                _ => {}
            }
        }
    }
    found
}

/// A line of another tool that sets something of the whole host.
fn of_host(kind: ConflictingToolKind, place: String, line: &str) -> ConflictingTool {
    let line = line.trim().chars().take(LINE_CHARS_MAX).collect();
    ConflictingTool { kind, place, line, device: None, sysctl: None }
}

/// The most characters of a line that are shown.
const LINE_CHARS_MAX: usize = 160;

/// Google's guest agent sets queues unless its configuration says no: `[InstanceSetup] set_multiqueue = false`.
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

/// Lines of cloud-init's own configuration that run what sets a NIC, and whether it writes the network's.
fn cloud_init(root: &Path) -> Vec<ConflictingTool> {
    let mut files = vec![root.join("etc/cloud/cloud.cfg")];
    files.extend(drop_ins(root, &["etc/cloud/cloud.cfg.d"], "cfg").into_iter().map(|(path, _)| path));
    files.push(root.join("var/lib/cloud/instance/user-data.txt"));
    lines_of(root, ConflictingToolKind::CloudInit, &files, |line| sets_by_command(line).is_some())
}

/// What starts `perftune.py`, where it is installed and switched on.
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

/// Lines of rc.local, of cron's tables and of units that pin interrupts or set a NIC by a command.
fn commands_at_boot(root: &Path) -> Vec<ConflictingTool> {
    let mut files: Vec<PathBuf> =
        ["etc/rc.local", "etc/rc.d/rc.local", "etc/crontab"].iter().map(|file| root.join(file)).collect();
    for directory in
        ["etc/systemd/system", "etc/cron.d", "etc/NetworkManager/dispatcher.d", "etc/network/if-up.d"]
    {
        let entries = std::fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        let mut more: Vec<PathBuf> =
            entries.take(FILES_MAX).map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        more.sort();
        files.extend(more);
    }
    let mut found = Vec::new();
    for kind in [ConflictingToolKind::IrqAffinityScript, ConflictingToolKind::Perftune] {
        found.extend(lines_of(root, kind, &files, |line| sets_by_command(line) == Some(kind)));
    }
    found
}

/// Rules of udev that set a NIC of Amazon's or Azure's, or run a program that does.
fn udev_rules(root: &Path) -> Vec<ConflictingTool> {
    const DIRECTORIES: [&str; 4] =
        ["etc/udev/rules.d", "run/udev/rules.d", "usr/local/lib/udev/rules.d", "usr/lib/udev/rules.d"];
    let mut found = Vec::new();
    for (path, text) in drop_ins(root, &DIRECTORIES, "rules") {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'))
        {
            let sets =
                ["queues/", "ATTR{napi", "ATTR{gro", "ATTR{threaded", "ethtool", "irq", "smp_affinity"];
            if !sets.iter().any(|word| line.contains(word)) || !line.contains("net") {
                continue;
            }
            let kind = if line.contains("ena") && !line.contains("rename") {
                ConflictingToolKind::Ena
            } else if line.contains("hv_netvsc") || line.contains("mana") || line.contains("azure") {
                ConflictingToolKind::Azure
            } else {
                continue;
            };
            found.push(of_host(kind, place(root, &path, number), line));
        }
    }
    found
}

/// The lines of files that say something, comments left out.
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

/// The tool behind a line with a command that pins interrupts or sets a NIC; `None` for any other line.
fn sets_by_command(line: &str) -> Option<ConflictingToolKind> {
    let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
    if has(&["perftune.py", "perftune "]) {
        return Some(ConflictingToolKind::Perftune);
    }
    let pins = has(&["set_irq_affinity", "mlnx_tune", "smp_affinity", "irqbalance --oneshot"]);
    let sets = has(&["ethtool -C", "ethtool -G", "ethtool -L", "ethtool -X", "ethtool -K", "ethtool --set"]);
    (pins || sets || has(&["rps_cpus", "xps_cpus", "napi_defer_hard_irqs", "gro_flush_timeout"]))
        .then_some(ConflictingToolKind::IrqAffinityScript)
}

/// Whether a process of this name runs.
fn runs(root: &Path, name: &str) -> bool {
    let processes = std::fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .any(|entry| {
            std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        })
}

#[cfg(test)]
mod test {
    use tempfile::TempDir;

    use super::*;

    struct Root(TempDir);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = Self(TempDir::with_prefix(format!("netpolicy-others-{name}-")).expect("a directory"));
            for (path, text) in files {
                let path = root.0.path().join(path);
                std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
                std::fs::write(path, text).expect("written");
            }
            root
        }

        fn found(&self) -> Vec<String> {
            let shown = |other: ConflictingTool| {
                let device = other.device.map(|device| format!(" of {device}")).unwrap_or_default();
                format!("{} {}{device}: {}", other.kind, other.place, other.line)
            };
            conflicting_tools(self.0.path()).into_iter().map(shown).collect()
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
                    "[connection]\nid=lan\ninterface-name=eth1\n[ethtool]\ncoalesce-rx-usecs=8\n",
                ),
                (
                    "etc/network/interfaces",
                    "auto eth2\niface eth2 inet dhcp\n  offload-tso off\n  post-up ethtool -C eth2 rx-usecs 4\n  mtu 9000\n",
                ),
                ("etc/tuned/active_profile", "network-latency\n"),
                ("usr/lib/tuned/network-latency/tuned.conf", "[main]\ninclude=base\n[sysctl]\nvm.x=1\n"),
                ("usr/lib/tuned/base/tuned.conf", "[net]\ncoalesce=adaptive-rx off\n"),
                ("proc/812/comm", "tuned\n"),
            ],
        );
        assert_eq!(
            root.found(),
            [
                "sysctl.d /usr/lib/sysctl.d/50-x.conf:1: -net/core/netdev_budget_usecs=8000",
                "sysctl.d /etc/sysctl.d/90-net.conf:2: net.core.netdev_budget = 600",
                "systemd .link /etc/systemd/network/10-eth.link:5 of eth*: CombinedChannels=4",
                "systemd .link /etc/systemd/network/10-eth.link:6 of eth*: RxBufferSize=max",
                "NetworkManager /etc/NetworkManager/system-connections/lan.nmconnection:5 of eth1: coalesce-rx-usecs=8",
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
        assert!(root.found().is_empty(), "{:?}", root.found());
    }
}
