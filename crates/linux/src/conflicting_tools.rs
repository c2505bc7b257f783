//! Other tools that set what netpolicy sets, found by reading their files, and by whether they run. They are neither
//! contacted nor changed.
//!
//! sysctl.d(5), systemd.link(5), nm-settings-keyfile(5), interfaces(5) and ethtool's hooks for it, tuned.conf(5).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use model::Sysctl;
use model::host::{Other, OtherKind};

/// How many files of a directory are read, and how much of each.
const FILES_MAX: usize = 512;
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// How many lines are reported.
const LINES_MAX: usize = 256;

/// The configuration lines of other tools. `root` is `/`, or that of a recorded host.
pub fn conflicting_tools(root: &Path) -> Vec<Other> {
    let mut found = sysctl_files(root);
    found.extend(link_files(root));
    found.extend(network_manager(root));
    found.extend(ifupdown(root));
    found.extend(tuned(root));
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

fn sysctl_files(root: &Path) -> Vec<Other> {
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
                found.push(Other {
                    kind: OtherKind::SysctlFile,
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
    kind: OtherKind,
    (root, path, text): (&Path, &Path, &str),
    names: &[(&str, &str)],
    sets: impl Fn(&str, &str) -> bool,
) -> Vec<Other> {
    let device = ini(text)
        .find(|(_, section, key, _)| names.contains(&(*section, *key)))
        .map(|(_, _, _, value)| value.to_owned());
    ini(text)
        .filter(|(_, section, key, _)| sets(section, key))
        .map(|(number, _, key, value)| Other {
            kind,
            place: place(root, path, number),
            line: format!("{key}={value}"),
            device: device.clone(),
            sysctl: None,
        })
        .collect()
}

fn link_files(root: &Path) -> Vec<Other> {
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
        .flat_map(|(path, text)| of_device(OtherKind::LinkFile, (root, path, text), NAMES, sets))
        .collect()
}

fn network_manager(root: &Path) -> Vec<Other> {
    const DIRECTORIES: [&str; 3] = [
        "etc/NetworkManager/system-connections",
        "run/NetworkManager/system-connections",
        "usr/lib/NetworkManager/system-connections",
    ];
    let files = drop_ins(root, &DIRECTORIES, "nmconnection");
    let of = |(path, text): &(PathBuf, String)| {
        let sets = |section: &str, _: &str| section == "ethtool";
        of_device(OtherKind::NetworkManager, (root, path, text), &[("connection", "interface-name")], sets)
    };
    files.iter().flat_map(of).collect()
}

fn ifupdown(root: &Path) -> Vec<Other> {
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
                [key, ..] if sets_nic(key, line) => found.push(Other {
                    kind: OtherKind::Ifupdown,
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
fn tuned(root: &Path) -> Vec<Other> {
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
            let other = |sysctl| Other {
                kind: OtherKind::Tuned,
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
    use super::*;

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                Self(std::env::temp_dir().join(format!("netpolicy-others-{name}-{}", std::process::id())));
            for (path, text) in files {
                let path = root.0.join(path);
                std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
                std::fs::write(path, text).expect("written");
            }
            root
        }

        fn found(&self) -> Vec<String> {
            let shown = |other: Other| {
                let device = other.device.map(|device| format!(" of {device}")).unwrap_or_default();
                format!("{} {}{device}: {}", other.kind, other.place, other.line)
            };
            conflicting_tools(&self.0).into_iter().map(shown).collect()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
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
