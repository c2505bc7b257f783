//! Finds netplan's offloads and virtual functions, which are keys of a device in `/etc/netplan/*.yaml`.
//! Source: canonical/netplan `src/parse.c` `ethernet_def_handlers` and `match_handlers` for the keys.
//! `src/networkd.c` `write_link_file()` writes a `.link` file for a NIC with every renderer, so udev's order
//! decides whether it applies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::host::{ConflictingTool, ConflictingToolKind};

use super::facts::{DeviceFacts, LinkFile, LinkLine};
use super::files::{drop_ins, place};

/// For files with the same name, the first directory is read; keys in files with later names take precedence.
const DIRECTORIES: [&str; 3] = ["run/netplan", "etc/netplan", "lib/netplan"];

/// The keys of a NIC that overlap with netpolicy's settings, and the systemd.link(5) keys that netplan writes
/// for them.
const OFFLOADS: [(&str, &str); 7] = [
    ("receive-checksum-offload", "ReceiveChecksumOffload"),
    ("transmit-checksum-offload", "TransmitChecksumOffload"),
    ("tcp-segmentation-offload", "TCPSegmentationOffload"),
    ("tcp6-segmentation-offload", "TCP6SegmentationOffload"),
    ("generic-segmentation-offload", "GenericSegmentationOffload"),
    ("generic-receive-offload", "GenericReceiveOffload"),
    ("large-receive-offload", "LargeReceiveOffload"),
];

/// Keys for which netplan writes a `.link` file although netpolicy does not set them: a device that matches
/// this file gets no later one.
const OTHERS: [&str; 3] = ["set-name", "wakeonlan", "mtu"];

const VIRTUAL_FUNCTIONS: &str = "virtual-function-count";

/// The kinds of devices for which netplan writes a `.link` file.
const NICS: [&str; 2] = ["ethernets", "wifis"];

/// The value of a key, and its place.
struct LocatedValue {
    value: String,
    path: PathBuf,
    place: String,
}

/// A device in netplan: its own keys, and the conditions in `match`.
#[derive(Default)]
struct Definition {
    keys: BTreeMap<String, LocatedValue>,
    matched: BTreeMap<String, Vec<String>>,
    has_match: bool,
}

/// Reads the devices of all netplan files, merged by id.
fn definitions(root: &Path) -> BTreeMap<String, Definition> {
    let mut found: BTreeMap<String, Definition> = BTreeMap::new();
    for (path, text) in drop_ins(root, &DIRECTORIES, "yaml") {
        // Without `match`, the id names the device; a later file may add a `match`.
        for (id, definition) in found.iter_mut().filter(|(_, definition)| !definition.has_match) {
            definition.matched.insert("name".to_owned(), vec![id.clone()]);
        }
        // The enclosing keys of a line, with their indentation.
        let mut above: Vec<(usize, String)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let words = line.split(" #").next().unwrap_or_default().trim();
            let indent = line.len() - line.trim_start().len();
            if words.starts_with('#') {
                continue;
            }
            if let Some(item) = words.strip_prefix("- ") {
                let keys: Vec<&str> = above.iter().map(|(_, key)| key.as_str()).collect();
                if let ["network", kind, id, "match", key] = keys.as_slice()
                    && NICS.contains(kind)
                {
                    let definition = found.entry((*id).to_owned()).or_default();
                    definition.matched.entry((*key).to_owned()).or_default().push(plain(item));
                }
                continue;
            }
            let Some((key, value)) = words.split_once(':') else { continue };
            let (key, value) = (plain(key), value.trim());
            above.retain(|(of, _)| *of < indent);
            let keys: Vec<&str> = above.iter().map(|(_, key)| key.as_str()).collect();
            match keys.as_slice() {
                ["network", kind, id] if NICS.contains(kind) => {
                    let definition = found.entry((*id).to_owned()).or_default();
                    if key == "match" {
                        definition.has_match = true;
                        // `match` conditions of earlier files remain in effect.
                        definition.matched.extend(flow_map(value));
                    }
                    let place = place(root, &path, number);
                    let said = LocatedValue { value: plain(value), path: path.clone(), place };
                    definition.keys.insert(key.clone(), said);
                }
                ["network", kind, id, "match"] if NICS.contains(kind) => {
                    let definition = found.entry((*id).to_owned()).or_default();
                    definition.matched.insert(key.clone(), flow_list(value));
                }
                _ => {}
            }
            above.push((indent, key));
        }
    }
    found
}

/// Returns a scalar without its quotes.
fn plain(text: &str) -> String {
    text.trim().trim_matches(['"', '\'']).to_owned()
}

/// Parses a list such as `[a, b]`, or one word; returns an empty list if the value is a block on the
/// following lines.
fn flow_list(value: &str) -> Vec<String> {
    let inner = value.trim().trim_start_matches('[').trim_end_matches(']');
    inner.split(',').map(plain).filter(|word| !word.is_empty()).collect()
}

/// Parses a flow mapping such as `{macaddress: "…", driver: [a, b]}`.
fn flow_map(value: &str) -> BTreeMap<String, Vec<String>> {
    let inner = value.trim().trim_start_matches('{').trim_end_matches('}');
    let mut map: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut depth, mut start) = (0_i32, 0);
    let ends = inner.char_indices().chain([(inner.len(), ',')]);
    for (at, c) in ends {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                if let Some((key, value)) = inner[start..at].split_once(':') {
                    map.insert(plain(key), flow_list(value));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    map
}

/// Returns the `.link` files that netplan writes to `/run/systemd/network`.
pub(super) fn written_links(root: &Path) -> Vec<LinkFile> {
    let mut files = Vec::new();
    for (id, definition) in definitions(root) {
        let is_written = |key: &str| OFFLOADS.iter().any(|(name, _)| *name == key) || OTHERS.contains(&key);
        if !definition.keys.keys().any(|key| is_written(key)) {
            continue;
        }
        let lines = OFFLOADS.iter().filter_map(|(key, of_link)| {
            let said = definition.keys.get(*key)?;
            Some(LinkLine {
                key: (*of_link).to_owned(),
                value: said.value.clone(),
                place: said.place.clone(),
                line: format!("{key}: {}", said.value),
                kind: ConflictingToolKind::Netplan,
            })
        });
        files.push(LinkFile {
            path: root.join(format!("run/systemd/network/10-netplan-{id}.link")),
            conditions: conditions(&id, &definition),
            lines: lines.collect(),
            written_from: definition.keys.values().map(|said| said.path.clone()).collect(),
        });
    }
    files
}

/// Returns the `[Match]` section of a device's `.link` file. Without `match`, the id is the device's name.
fn conditions(id: &str, definition: &Definition) -> Vec<(String, String)> {
    if !definition.has_match {
        return vec![("OriginalName".to_owned(), id.to_owned())];
    }
    let keys = [("driver", "Driver"), ("macaddress", "PermanentMACAddress"), ("name", "OriginalName")];
    let of_key = keys.iter().filter_map(|(key, of_link)| {
        let values = definition.matched.get(*key).filter(|values| !values.is_empty())?;
        Some(((*of_link).to_owned(), values.join(" ")))
    });
    of_key.collect()
}

/// Finds the keys that make `netplan apply` and netplan's unit at boot create virtual functions on a device.
pub(super) fn virtual_functions(root: &Path, devices: &[DeviceFacts<'_>]) -> Vec<ConflictingTool> {
    let mut found = Vec::new();
    for (id, definition) in definitions(root) {
        let Some(said) = definition.keys.get(VIRTUAL_FUNCTIONS) else { continue };
        let name = definition.keys.get("set-name").map_or(id.as_str(), |said| said.value.as_str());
        // With `match` and without `set-name`, the id is not a device name.
        let is_named = !definition.has_match || definition.keys.contains_key("set-name");
        if is_named && !devices.iter().any(|facts| facts.device.id.name.as_str() == name) {
            continue;
        }
        found.push(ConflictingTool {
            device: Some(name.to_owned()),
            ..ConflictingTool::new(
                ConflictingToolKind::Netplan,
                said.place.clone(),
                format!("{VIRTUAL_FUNCTIONS}: {}", said.value),
            )
        });
    }
    found
}
