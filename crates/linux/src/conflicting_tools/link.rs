//! systemd.link(5), with the drop-ins of each file.
//!
//! systemd `src/udev/net/link-config-gperf.gperf` has the keys, `src/udev/net/link-config.c` `link_load_one()` the drop-ins.

use std::collections::BTreeMap;
use std::path::Path;

use model::host::{ConflictingTool, ConflictingToolKind};

use super::{drop_ins, file_name, ini, place};

/// Where the files are. If directories have a file of the same name, the first of them wins.
const DIRECTORIES: [&str; 4] = [
    "etc/systemd/network",
    "run/systemd/network",
    "usr/local/lib/systemd/network",
    "usr/lib/systemd/network",
];

/// The conditions of `[Match]` that name devices, the simplest first.
const CONDITIONS: [&str; 8] =
    ["OriginalName", "PermanentMACAddress", "MACAddress", "Driver", "Path", "Type", "Kind", "Property"];

/// The keys of `[Link]` that set what netpolicy also sets: each equals one of these, or ends with it.
const ENDINGS: [&str; 15] = [
    "Channels",
    "BufferSize",
    "ChecksumOffload",
    "SegmentationOffload",
    "ReceiveOffload",
    "GenericReceiveOffloadHardware",
    "NTupleFilter",
    "ReceiveQueues",
    "TransmitQueues",
    "CoalesceSec",
    "AdaptiveRxCoalesce",
    "AdaptiveTxCoalesce",
    "ReceivePacketSteeringCPUMask",
    "GenericSegmentOffloadMaxBytes",
    "GenericSegmentOffloadMaxSegments",
];

/// Parts of the keys of interrupt moderation: `RxCoalesceIrqSec`, `RxMaxCoalescedFrames`,
/// `CoalescePacketRateLow`.
const PARTS: [&str; 4] = ["CoalesceIrqSec", "CoalesceLowSec", "CoalesceHighSec", "MaxCoalesced"];

fn is_of_nic(key: &str) -> bool {
    ENDINGS.iter().any(|ending| key.ends_with(ending))
        || PARTS.iter().any(|part| key.contains(part))
        || key.starts_with("CoalescePacketRate")
}

/// Finds what the files set: of each file and its drop-ins, the last line for a key, if its value is not
/// empty.
pub(super) fn link_files(root: &Path) -> Vec<ConflictingTool> {
    let mut found = Vec::new();
    for (path, text) in drop_ins(root, &DIRECTORIES, "link") {
        let directories = DIRECTORIES.map(|directory| format!("{directory}/{}.d", file_name(&path)));
        let mut parts = vec![(path, text)];
        parts.extend(drop_ins(root, &directories.each_ref().map(String::as_str), "conf"));
        let (mut conditions, mut set) = (BTreeMap::new(), BTreeMap::new());
        for (path, text) in &parts {
            for (number, section, key, value) in ini(text) {
                match section {
                    "Match" if CONDITIONS.contains(&key) => {
                        _ = conditions.insert(key.to_owned(), value.to_owned())
                    }
                    // An empty value cancels the earlier ones.
                    "Link" if value.is_empty() => _ = set.remove(key),
                    "Link" if is_of_nic(key) => {
                        let line = format!("{key}={value}");
                        set.insert(key.to_owned(), (place(root, path, number), line, number));
                    }
                    _ => {}
                }
            }
        }
        let named = CONDITIONS.iter().find_map(|condition| conditions.get(*condition));
        let device = named.filter(|text| !text.is_empty() && *text != "*").cloned();
        let mut lines: Vec<_> = set.into_values().collect();
        lines.sort_by(|a, b| (&a.0.len(), a.2).cmp(&(&b.0.len(), b.2)));
        found.extend(lines.into_iter().map(|(place, line, _)| ConflictingTool {
            kind: ConflictingToolKind::LinkFile,
            place,
            line,
            device: device.clone(),
            sysctl: None,
        }));
    }
    found
}
