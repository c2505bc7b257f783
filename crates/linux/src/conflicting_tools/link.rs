//! Determines which systemd.link(5) file udev applies to each device, and the settings of that file and its
//! drop-ins. Sources: systemd `src/udev/net/link-config-gperf.gperf` for the keys,
//! `src/udev/net/link-config.c` `link_config_get()` and `link_load_one()` for the order,
//! `src/shared/net-condition.c` `net_match_config()` for the conditions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::host::{ConflictingTool, ConflictingToolKind};

use super::facts::{ConditionResult, DeviceFacts, LinkFile, LinkLine, mac, meets};
use super::files::{drop_ins, file_name, ini, place};
use super::values;

/// The directories of `.link` files; the first one takes precedence for files with the same name.
const DIRECTORIES: [&str; 4] = [
    "etc/systemd/network",
    "run/systemd/network",
    "usr/local/lib/systemd/network",
    "usr/lib/systemd/network",
];

/// The keys of `[Link]` that overlap with netpolicy's settings: each key equals or ends with one of these.
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

/// Moderation keys with a suffix: `RxCoalesceIrqSec`, `RxMaxCoalescedFrames`, `CoalescePacketRateLow`.
const PARTS: [&str; 4] = ["CoalesceIrqSec", "CoalesceLowSec", "CoalesceHighSec", "MaxCoalesced"];

fn is_of_nic(key: &str) -> bool {
    ENDINGS.iter().any(|ending| key.ends_with(ending))
        || PARTS.iter().any(|part| key.contains(part))
        || key.starts_with("CoalescePacketRate")
}

/// Returns the `.link` files of all directories, including those that netplan writes at boot, in udev's
/// order.
fn link_files(root: &Path, of_netplan: Vec<LinkFile>) -> Vec<LinkFile> {
    let mut files: BTreeMap<String, LinkFile> = BTreeMap::new();
    for (path, text) in drop_ins(root, &DIRECTORIES, "link") {
        let mut file = LinkFile::new(path.clone());
        let name = file_name(&path);
        extend(&mut file, root, &[(path, text)]);
        files.insert(name, file);
    }
    for file in of_netplan {
        let name = file_name(&file.path);
        // A file of the same name in /etc masks the one that netplan writes to /run.
        if !root.join(DIRECTORIES[0]).join(&name).exists() {
            files.insert(name, file);
        }
    }
    for (name, file) in &mut files {
        let directories = DIRECTORIES.map(|directory| format!("{directory}/{name}.d"));
        let parts = drop_ins(root, &directories.each_ref().map(String::as_str), "conf");
        extend(file, root, &parts);
    }
    files.into_values().collect()
}

/// Merges parts into a file's configuration: the file itself, then its drop-ins.
fn extend(file: &mut LinkFile, root: &Path, parts: &[(PathBuf, String)]) {
    for (path, text) in parts {
        file.written_from.push(path.clone());
        for (number, section, key, value) in ini(text) {
            match section {
                "Match" => file.conditions.push((key.to_owned(), value.to_owned())),
                "Link" if is_of_nic(key) => {
                    file.lines.retain(|line| line.key != key);
                    // An empty value removes earlier lines of this key.
                    if !value.is_empty() {
                        file.lines.push(LinkLine {
                            key: key.to_owned(),
                            value: value.to_owned(),
                            place: place(root, path, number),
                            line: format!("{key}={value}"),
                            kind: ConflictingToolKind::LinkFile,
                        });
                    }
                }
                _ => {}
            }
        }
    }
}

/// Finds the settings that udev applies to each device: the lines of the first file that matches it, and of
/// earlier files that may match.
pub(super) fn link_lines(
    root: &Path,
    devices: &[DeviceFacts<'_>],
    of_netplan: Vec<LinkFile>,
) -> Vec<ConflictingTool> {
    let files = link_files(root, of_netplan);
    let mut found = Vec::new();
    // udev skips the loopback device.
    for facts in devices.iter().filter(|facts| facts.device.id.name.as_str() != "lo") {
        for file in &files {
            let verdict = facts.resolve(file, matches(&file.conditions, facts));
            let condition = match verdict {
                ConditionResult::No => continue,
                ConditionResult::Yes => None,
                ConditionResult::Unknown(condition) => Some(condition),
            };
            found.extend(file.lines.iter().map(|line| ConflictingTool {
                device: Some(facts.device.id.name.as_str().to_owned()),
                sets: values::of_link(facts.device, &line.key, &line.value),
                condition: condition.clone(),
                ..ConflictingTool::new(line.kind, line.place.clone(), line.line.clone())
            }));
            if condition.is_none() {
                break;
            }
        }
    }
    found
}

/// Whether `[Match]` matches a device. Without a condition it matches no device: systemd ignores such a file.
fn matches(conditions: &[(String, String)], facts: &DeviceFacts<'_>) -> ConditionResult {
    let mut by_key: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (key, value) in conditions {
        let values = by_key.entry(key).or_default();
        // A further line appends to the list; an empty value clears the list.
        if value.is_empty() { values.clear() } else { values.push(value) }
    }
    by_key.retain(|_, values| !values.is_empty());
    if by_key.is_empty() {
        return ConditionResult::No;
    }
    by_key
        .iter()
        .fold(ConditionResult::Yes, |so_far, (key, values)| so_far.and(condition(key, values, facts)))
}

fn condition(key: &str, values: &[&str], facts: &DeviceFacts<'_>) -> ConditionResult {
    let unknown = || ConditionResult::Unknown(format!("{key}={}", values.join(" ")));
    let address = |own: Option<&String>| {
        let Some(own) = own else { return unknown() };
        let listed = values.iter().flat_map(|value| value.split_whitespace()).filter_map(mac);
        ConditionResult::of(!own.is_empty() && listed.into_iter().any(|listed| listed == *own))
    };
    let patterns = |known: bool, own: Option<&str>| {
        if !known {
            return if *values == ["*"] { ConditionResult::Yes } else { unknown() };
        }
        list_meets(values, own).map_or_else(unknown, ConditionResult::of)
    };
    let recorded = facts.properties.is_some();
    match key {
        "MACAddress" => address(facts.mac.as_ref()),
        "PermanentMACAddress" => address(facts.permanent_mac.as_ref()),
        "OriginalName" => patterns(
            facts.original_name.is_some(),
            facts.original_name.or(Some(facts.device.id.name.as_str())),
        ),
        "Driver" => patterns(facts.driver().is_some() || recorded, facts.driver()),
        "Type" => patterns(facts.devtype.is_some(), facts.devtype.as_deref()),
        // `Kind` is the rtnetlink kind of a virtual device; a NIC has none.
        "Kind" => {
            let is_virtual = facts.device.has_own_interrupts() == Some(false);
            patterns(true, is_virtual.then_some(facts.device.kind.as_str()))
        }
        "Path" => patterns(recorded, facts.property("ID_PATH")),
        "Property" if recorded => {
            let words = values.iter().flat_map(|value| property_words(value));
            let all = words.map(|(inverted, key, pattern)| {
                let own = facts.property(key);
                let met = own.map_or(Some(false), |own| meets(pattern, own))?;
                Some(met != inverted)
            });
            let all: Option<Vec<bool>> = all.collect();
            all.map_or_else(unknown, |all| ConditionResult::of(all.into_iter().all(|one| one)))
        }
        // Host, Virtualization, KernelCommandLine and others are conditions on the machine, which netpolicy
        // does not examine.
        _ => unknown(),
    }
}

/// Whether a name matches a list of patterns. A line that begins with `!` inverts its patterns: none of them
/// may match. If all lines are inverted, every other name matches. `None` if a pattern cannot be parsed.
fn list_meets(lines: &[&str], name: Option<&str>) -> Option<bool> {
    let (mut positive, mut met) = (false, false);
    for line in lines {
        let inverted = line.starts_with('!');
        positive |= !inverted;
        for word in line.trim_start_matches('!').split_whitespace() {
            let Some(name) = name else { continue };
            if meets(word.trim_matches(['"', '\'']), name)? {
                if inverted {
                    return Some(false);
                }
                met = true;
            }
        }
    }
    Some(!positive || met)
}

/// The conditions in a `Property=` line: `!` inverts all of them.
fn property_words(line: &str) -> impl Iterator<Item = (bool, &str, &str)> {
    let inverted = line.starts_with('!');
    line.trim_start_matches('!').split_whitespace().filter_map(move |word| {
        let (key, value) = word.trim_matches(['"', '\'']).split_once('=')?;
        Some((inverted, key, value))
    })
}
