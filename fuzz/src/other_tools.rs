//! Fuzzes files of other tools that set devices: sysctl.d, tuned, `.link`, netplan, NetworkManager, ifupdown,
//! ifcfg, scripts, udev rules.
//!
//! - Each line that is found names its place: an existing file, and a line in it.
//! - The number of lines and the length of each are bounded.

use std::fs;
use std::path::Path;

use model::host::{Channels, Device, DeviceLink, Pair, Rings};
use model::{DeviceId, IfIndex, Label, NetnsId};
use tempfile::TempDir;

use crate::text_of;

/// The files that an input may have.
const FILES: [&str; 36] = [
    "etc/sysctl.conf",
    "etc/sysctl.d/50-a.conf",
    "usr/lib/sysctl.d/60-b.conf",
    "etc/tuned/active_profile",
    "etc/tuned/tuned-main.conf",
    "etc/tuned/profiles/a/tuned.conf",
    "etc/tuned/b/tuned.conf",
    "usr/lib/tuned/profiles/c/tuned.conf",
    "usr/lib/tuned/a/tuned.conf",
    "etc/systemd/network/10-a.link",
    "etc/systemd/network/10-a.link.d/b.conf",
    "usr/lib/systemd/network/20-b.link",
    "run/systemd/network/10-netplan-eth0.link",
    "etc/netplan/01.yaml",
    "run/netplan/02.yaml",
    "etc/NetworkManager/system-connections/a",
    "usr/lib/NetworkManager/system-connections/b.nmconnection",
    "run/NetworkManager/devices/2",
    "var/lib/NetworkManager/timestamps",
    "run/udev/data/n2",
    "etc/network/interfaces",
    "etc/network/interfaces.d/a",
    "etc/network/if-up.d/a",
    "etc/sysconfig/network-scripts/ifcfg-eth0",
    "etc/networkd-dispatcher/routable.d/a",
    "etc/NetworkManager/dispatcher.d/a",
    "etc/udev/rules.d/70-a.rules",
    "usr/lib/udev/rules.d/60-b.rules",
    "etc/rc.local",
    "etc/systemd/system/a.service",
    "etc/default/instance_configs.cfg",
    "usr/bin/google_set_multiqueue",
    "etc/cloud/cloud.cfg",
    "etc/cloud/cloud.cfg.d/a.cfg",
    "etc/scylla.d/perftune.yaml",
    "etc/default/scylla-server",
];

/// The maximum number of lines to find.
const LINES_MAX: usize = 256;
/// The maximum length of a found line, in bytes.
const LINE_BYTES_MAX: usize = 66_000;

/// Files are separated by zeros; the first byte of each selects its path.
pub(crate) fn run(bytes: &[u8]) {
    let root = TempDir::with_prefix("netpolicy-fuzz-").expect("a directory");
    write(root.path(), "proc/9/comm", "tuned\n");
    for file in bytes.split(|byte| *byte == 0) {
        let Some((which, text)) = file.split_first() else { continue };
        write(root.path(), FILES[usize::from(*which) % FILES.len()], text_of(text));
    }
    let sysfs = |path: &str| {
        let text = match path.strip_prefix("class/net/eth0/")? {
            "name_assign_type" | "type" => "1",
            "addr_assign_type" => "0",
            "uevent" => "INTERFACE=eth0\nIFINDEX=2",
            _ => return None,
        };
        Some(text.to_owned())
    };
    let devices = [eth0()];
    let found = linux::conflicting_tools_below(root.path(), &devices, &sysfs);
    assert!(found.len() <= LINES_MAX);
    for one in found {
        assert!(one.line.len() <= LINE_BYTES_MAX, "{} bytes of {}", one.line.len(), one.place);
        let (file, line) = match one.place.rsplit_once(':') {
            Some((file, line)) => (file, line.parse().expect("a number")),
            None => (one.place.as_str(), 1),
        };
        let text = fs::read_to_string(root.path().join(file.trim_start_matches('/'))).expect("a file");
        assert!(line <= text.lines().count().max(1), "{}", one.place);
    }
}

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
    fs::write(path, text).expect("a file");
}

fn eth0() -> Device {
    Device {
        up: true,
        link: DeviceLink { mac: Some("00:11:22:33:44:55".to_owned()), ..DeviceLink::default() },
        mtu: 1500,
        channels: Some(Channels { combined: Pair { current: 2, max: 8 }, ..Channels::default() }),
        rings: Some(Rings { rx: Pair { current: 512, max: 4096 }, ..Rings::default() }),
        ..Device::new(DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") }, "igb")
    }
}
