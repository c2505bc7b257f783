//! Tests which file of udev, netplan and NetworkManager applies to a device.

use std::fs::File;
use std::time::{Duration, SystemTime};

use model::host::{Channels, Device, DeviceLink, Pair, Rings};
use model::{DeviceId, IfIndex, Label, NetnsId, NicKnob, Offload, RingKind, Setting};

use super::test::Root;
use super::values;

/// A device with the attributes that rt-link reports.
pub(super) fn nic(name: &str, index: u32, kind: &str) -> Device {
    Device {
        up: true,
        link: DeviceLink { mac: Some("00:11:22:33:44:55".to_owned()), ..DeviceLink::default() },
        mtu: 1500,
        channels: Some(Channels { combined: Pair { current: 2, max: 8 }, ..Channels::default() }),
        rings: Some(Rings { rx: Pair { current: 512, max: 4096 }, ..Rings::default() }),
        ..Device::new(DeviceId { netns: NetnsId(1), ifindex: IfIndex(index), name: Label::new(name) }, kind)
    }
}

/// Returns the lines that apply to eth0, an igb NIC with a permanent address, without the directories of
/// their files.
fn of_eth0(files: &[(&str, &str)]) -> Vec<String> {
    let sysfs = [
        ("sys/class/net/eth0/name_assign_type", "1\n"),
        ("sys/class/net/eth0/addr_assign_type", "0\n"),
        ("sys/class/net/eth0/uevent", "INTERFACE=eth0\nIFINDEX=2\n"),
        ("sys/class/net/eth0/type", "1\n"),
    ];
    let root = Root::new("device", &[&sysfs, files].concat());
    lines_of(&root, "eth0")
}

fn lines_of(root: &Root, name: &str) -> Vec<String> {
    let found = root.found_for(&[nic(name, 2, "igb")]);
    found.iter().filter_map(|line| Some(line.rsplit_once('/')?.1.to_owned())).collect()
}

const RING: &str = "[Link]\nRxBufferSize=1024\n";

#[test]
fn the_first_file_by_name_that_matches_a_device_wins_over_all_directories() {
    let wins = |first: &str| {
        let matched = format!("[Match]\n{first}\n{RING}");
        let files = [
            ("usr/lib/systemd/network/10-a.link", matched.as_str()),
            ("etc/systemd/network/20-b.link", "[Match]\nOriginalName=*\n[Link]\nRxBufferSize=2048\n"),
            ("run/systemd/network/30-c.link", "[Match]\nOriginalName=*\n[Link]\nTxBufferSize=1\n"),
        ];
        let lines = of_eth0(&files);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines[0].starts_with("10-a.link")
    };
    for matching in [
        "OriginalName=wl* eth?",
        "OriginalName=!wl*",
        "MACAddress=0011.2233.4455 00:00:00:00:00:01",
        "PermanentMACAddress=00-11-22-33-44-55",
        "Driver=ixgbe igb",
        "Driver=ixgbe\nDriver=igb",
        "Driver=ixgbe\nDriver=\nType=ether",
        "Type=!wlan",
        "Kind=!veth",
    ] {
        assert!(wins(matching), "{matching}");
    }
    for other in [
        "",
        "OriginalName=wl*",
        "OriginalName=!eth*",
        "MACAddress=00:11:22:33:44:56",
        "Driver=ixgbe",
        "Driver=igb\nType=wlan",
        "Type=wlan\nPath=pci-0000:01:00.0",
        "Kind=veth",
    ] {
        assert!(!wins(other), "{other}");
    }
}

#[test]
fn a_condition_that_cannot_be_evaluated_is_said_and_the_next_file_counts_too() {
    let files = [
        (
            "usr/lib/systemd/network/10-a.link",
            "[Match]\nDriver=igb\nPath=pci-*\nVirtualization=yes\n[Link]\nRxBufferSize=1024\n",
        ),
        ("usr/lib/systemd/network/99-default.link", "[Match]\nOriginalName=*\n[Link]\nTxBufferSize=256\n"),
    ];
    assert_eq!(
        of_eth0(&files),
        [
            "10-a.link:6 of eth0: RxBufferSize=1024, if Path=pci-* and Virtualization=yes",
            "99-default.link:4 of eth0: TxBufferSize=256",
        ]
    );
}

/// Only udev knows the name of a virtual device's driver, but this device has a driver, so `*` matches.
#[test]
fn any_driver_will_do_where_the_file_says_so() {
    for (driver, expected) in [("*", "RxBufferSize=1024"), ("veth", "RxBufferSize=1024, if Driver=veth")] {
        let file = format!("[Match]\nDriver={driver}\n{RING}");
        let root = Root::new("driver", &[("usr/lib/systemd/network/10-a.link", &file)]);
        let found = root.found_for(&[nic("veth0", 2, "veth")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with(expected), "{found:?}");
    }
}

#[test]
fn udevs_record_decides_what_else_is_unknown_until_the_file_is_changed() {
    let files = [
        ("usr/lib/systemd/network/10-a.link", "[Match]\nVirtualization=yes\n[Link]\nRxBufferSize=1024\n"),
        ("usr/lib/systemd/network/50-b.link", "[Match]\nOriginalName=e*0\n[Link]\nRxBufferSize=2048\n"),
        (
            "usr/lib/systemd/network/60-c.link",
            "[Match]\nProperty=ID_BUS=pci \"ID_PATH=pci-*\"\n[Link]\nRxBufferSize=4096\n",
        ),
        ("sys/class/net/lan0/name_assign_type", "4\n"),
        (
            "run/udev/data/n2",
            "I:1\nE:ID_BUS=pci\nE:ID_PATH=pci-0000:01:00.0\nE:ID_NET_LINK_FILE=/usr/lib/systemd/network/50-b.link\n",
        ),
    ];
    let root = Root::new("record", &files);
    assert_eq!(lines_of(&root, "lan0"), ["50-b.link:4 of lan0: RxBufferSize=2048"]);
    // udev's record is older than the first file, so whether the file matches now is unknown.
    let later = SystemTime::now() + Duration::from_secs(60);
    let first = File::options().write(true).open(root.0.path().join(files[0].0)).expect("opened");
    first.set_modified(later).expect("a time");
    assert_eq!(
        lines_of(&root, "lan0"),
        [
            "10-a.link:4 of lan0: RxBufferSize=1024, if Virtualization=yes",
            "50-b.link:4 of lan0: RxBufferSize=2048",
        ]
    );
    // Without the second file, the device's properties decide.
    std::fs::remove_file(root.0.path().join(files[1].0)).expect("removed");
    assert_eq!(
        lines_of(&root, "lan0"),
        [
            "10-a.link:4 of lan0: RxBufferSize=1024, if Virtualization=yes",
            "60-c.link:4 of lan0: RxBufferSize=4096",
        ]
    );
}

#[test]
fn a_link_file_is_read_with_its_drop_ins_and_all_keys_of_a_nic() {
    let files = [
        (
            "usr/lib/systemd/network/20-nic.link",
            "[Match]\nPermanentMACAddress=00:11:22:33:44:55\n[Link]\nNTupleFilter=yes\nGenericReceiveOffloadHardware=no\nMTUBytes=9000\n\
             GenericSegmentOffloadMaxBytes=65536\nReceiveQueues=4\nTransmitQueues=4\nRxCoalesceIrqSec=5us\nRxMaxCoalescedFrames=8\nCombinedChannels=8\n",
        ),
        ("etc/systemd/network/20-nic.link.d/10-own.conf", "[Link]\nCombinedChannels=\nReceiveQueues=2\n"),
        ("run/systemd/network/20-nic.link.d/10-own.conf", "[Link]\nTxChannels=9\n"),
    ];
    let mut lines: Vec<String> =
        of_eth0(&files).iter().filter_map(|line| line.rsplit(' ').next().map(str::to_owned)).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "GenericReceiveOffloadHardware=no",
            "GenericSegmentOffloadMaxBytes=65536",
            "NTupleFilter=yes",
            "ReceiveQueues=2",
            "RxCoalesceIrqSec=5us",
            "RxMaxCoalescedFrames=8",
            "TransmitQueues=4",
        ]
    );
    // A drop-in may change the conditions, and a file in /etc masks the file of the same name.
    let dropped = ("etc/systemd/network/20-nic.link.d/10-own.conf", "[Match]\nDriver=ixgbe\n");
    assert!(of_eth0(&[files[0], dropped]).is_empty());
    assert!(of_eth0(&[files[0], ("etc/systemd/network/20-nic.link", "")]).is_empty());
}

#[test]
fn netplan_counts_where_its_match_fits_and_udev_has_no_file_before_its_own() {
    let gro = "generic-receive-offload: false\n";
    let nic =
        |rest: &str| format!("network:\n  version: 2\n  ethernets:\n    up: # the uplink\n{rest}      {gro}");
    let counts = |rest: &str, more: &[(&str, &str)]| {
        let text = nic(rest);
        let lines = of_eth0(&[&[("etc/netplan/01.yaml", text.as_str())], more].concat());
        lines.iter().any(|line| line.ends_with("of eth0: generic-receive-offload: false"))
    };
    for fits in [
        "      match: {driver: [ixgbe, igb]}\n",
        "      match:\n        driver:\n          - ixgbe\n          - igb\n",
        "      match:\n        macaddress: \"00:11:22:33:44:55\"\n      set-name: lan0\n",
        "      match:\n        name: \"eth*\"\n",
    ] {
        assert!(counts(fits, &[]), "{fits}");
    }
    // The device is matched by its id, but not by another address or another driver.
    for other in
        ["", "      match: {macaddress: '00:11:22:33:44:56'}\n", "      match:\n        driver: ixgbe\n"]
    {
        assert!(!counts(other, &[]), "{other}");
    }
    let all = "      match: {name: eth0}\n";
    let file = "[Match]\nOriginalName=*\n[Link]\nMTUBytes=9000\n";
    assert!(!counts(all, &[("etc/systemd/network/01-first.link", file)]));
    assert!(counts(all, &[("etc/systemd/network/20-later.link", file)]));
    // A later file adds its match conditions to those of earlier files, even if the earlier files match only
    // by name.
    for (first, later, fits) in [
        ("      match: {name: eth0}\n", "      match: {driver: ixgbe}\n", false),
        ("      match: {driver: ixgbe}\n", "      match: {driver: igb}\n", true),
        ("", "      match: {driver: igb}\n", false),
        ("", "      match: {name: 'eth*'}\n", true),
    ] {
        let later = format!("network:\n  ethernets:\n    up:\n{later}");
        assert_eq!(counts(first, &[("etc/netplan/90.yaml", later.as_str())]), fits, "{first}{later}");
    }
    // netplan's generated file is attributed to netplan; a file of the same name in /etc masks it.
    let written = "[Match]\nOriginalName=eth0\n[Link]\nGenericReceiveOffload=false\n";
    assert!(counts(all, &[("run/systemd/network/10-netplan-up.link", written)]));
    assert!(!counts(all, &[("etc/systemd/network/10-netplan-up.link", file)]));
}

#[test]
fn a_later_file_of_netplan_wins_and_the_device_of_virtual_functions_is_there() {
    let files = [
        (
            "etc/netplan/01.yaml",
            "network:\n  ethernets:\n    \"eth0\":\n      generic-receive-offload: false\n      virtual-function-count: 2\n    eth9:\n      virtual-function-count: 4\n",
        ),
        ("etc/netplan/90.yaml", "network:\n  ethernets:\n    eth0:\n      generic-receive-offload: true\n"),
    ];
    assert_eq!(
        of_eth0(&files),
        ["90.yaml:4 of eth0: generic-receive-offload: true", "01.yaml:5 of eth0: virtual-function-count: 2"]
    );
}

fn profile(uuid: &str, more: &str) -> String {
    format!("[connection]\nuuid={uuid}\ntype=ethernet\n{more}\n[ethtool]\nring-rx=1024\npause-rx=true\n")
}

#[test]
fn networkmanagers_active_profile_counts_else_the_one_that_it_would_activate() {
    let place = |name: &str| format!("etc/NetworkManager/system-connections/{name}");
    let of = |profiles: &[(&str, &str)], more: &[(&str, &str)]| {
        let texts: Vec<(String, String)> =
            profiles.iter().map(|(name, more)| (place(name), profile(name, more))).collect();
        let files: Vec<(&str, &str)> = texts
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .chain(more.iter().copied())
            .collect();
        let lines = of_eth0(&files);
        lines
            .iter()
            .filter_map(|line| line.split_once(':').map(|(name, _)| name.to_owned()))
            .collect::<Vec<_>>()
    };
    let two = [("a", ""), ("b.nmconnection", "autoconnect-priority=5")];
    assert_eq!(of(&two, &[]), ["b.nmconnection"]);
    let active = [("run/NetworkManager/devices/2", "[device]\nmanaged=true\nconnection-uuid=a\n")];
    assert_eq!(of(&two, &active), ["a"]);
    assert!(of(&two, &[("run/NetworkManager/devices/2", "[device]\nmanaged=false\n")]).is_empty());
    // If priorities are equal, NetworkManager chooses the profile that was used last.
    let same = [("a", ""), ("b", "")];
    assert_eq!(of(&same, &[("var/lib/NetworkManager/timestamps", "[timestamps]\na=5\nb=9\n")]), ["b"]);
    assert_eq!(of(&same, &[]), ["a", "b"]);
    for fits in [
        "interface-name=eth0",
        "\n[match]\ninterface-name=wl*;eth*;",
        "\n[match]\ndriver=igb",
        "\n[match]\ninterface-name=!wl*",
        "\n[ethernet]\nmac-address=00:11:22:33:44:55",
    ] {
        assert_eq!(of(&[("a", fits)], &[]), ["a"], "{fits}");
    }
    for other in [
        "interface-name=eth1",
        "autoconnect=false",
        "\n[match]\ninterface-name=!eth*",
        "\n[match]\ninterface-name=eth*;&wl*",
        "\n[match]\ndriver=ixgbe",
        "\n[802-3-ethernet]\nmac-address=00:11:22:33:44:56",
        "\n[ethernet]\nmac-address-blacklist=00:11:22:33:44:55;",
    ] {
        assert!(of(&[("a", other)], &[]).is_empty(), "{other}");
    }
    let doubtful = of_eth0(&[(&place("a"), &profile("a", "\n[match]\nkernel-command-line=pxe"))]);
    assert_eq!(doubtful, ["a:8 of eth0: ring-rx=1024, if kernel-command-line=pxe"]);
}

#[test]
fn keys_of_other_tools_become_settings_as_the_tool_computes_them() {
    let device = nic("eth0", 2, "igb");
    let link = |key: &str, value: &str| {
        let values = values::of_link(&device, key, value);
        values.iter().map(Setting::value).collect::<Vec<_>>().join(" ")
    };
    for (key, value, set) in [
        ("RxBufferSize", "max", "4096"),
        ("RxBufferSize", "9000", "4096"),
        ("RxBufferSize", "1024", "1024"),
        ("CombinedChannels", "0", ""),
        ("RxCoalesceSec", "5us", "5"),
        ("RxCoalesceSec", "1ms 500us", "1500"),
        ("RxCoalesceSec", "0.00002", "20"),
        ("UseAdaptiveRxCoalesce", "yes", "on"),
        ("GenericSegmentOffloadMaxBytes", "64K", "65536"),
        ("LargeReceiveOffload", "off", "off"),
        ("RxChannels", "4", ""),
        ("ReceiveChecksumOffload", "off", ""),
    ] {
        assert_eq!(link(key, value), set, "{key}={value}");
    }
    let manager = |key: &str, value: &str| values::of_network_manager(&device, key, value);
    assert_eq!(manager("ring-rx", "1024"), [Setting::Nic(device.id, NicKnob::Ring(RingKind::Rx, 1024))]);
    assert_eq!(manager("feature-tso", "false").len(), 4);
    let hash = Setting::Nic(device.id, NicKnob::Offload(Offload::RxHash, true));
    assert_eq!(manager("feature-rx-hashing", "true"), std::slice::from_ref(&hash));
    assert_eq!(manager("feature-rxhash", "true"), [hash]);
    assert!(manager("pause-rx", "true").is_empty());
}
