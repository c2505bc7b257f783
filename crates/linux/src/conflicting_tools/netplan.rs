//! netplan's offload settings and virtual functions: keys of a device in `/etc/netplan/*.yaml`.
//!
//! canonical/netplan `src/parse.c` `dhcp_overrides_handlers` and `ethernet_def_handlers` have the keys.

use std::path::Path;

use model::host::{ConflictingTool, ConflictingToolKind};

use super::{drop_ins, place};

/// Of files with the same name, that of the first directory is read; keys of later names win.
const DIRECTORIES: [&str; 3] = ["run/netplan", "etc/netplan", "lib/netplan"];

/// The keys of a device that set what netpolicy also sets.
const KEYS: [&str; 8] = [
    "receive-checksum-offload",
    "transmit-checksum-offload",
    "tcp-segmentation-offload",
    "tcp6-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "large-receive-offload",
    "virtual-function-count",
];

/// Finds the lines that set them.
pub(super) fn netplan(root: &Path) -> Vec<ConflictingTool> {
    let mut found: Vec<ConflictingTool> = Vec::new();
    for (path, text) in drop_ins(root, &DIRECTORIES, "yaml") {
        // The parent keys of a line, by their indentation.
        let mut above: Vec<(usize, &str)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let words = line.split(" #").next().unwrap_or_default().trim();
            let indent = line.len() - line.trim_start().len();
            let Some((key, value)) = words.split_once(':').filter(|_| !words.starts_with('#')) else {
                continue;
            };
            let key = key.trim().trim_matches(['"', '\'']);
            above.retain(|(of, _)| *of < indent);
            if KEYS.contains(&key) {
                let device = above.last().map(|(_, device)| (*device).to_owned());
                let line = format!("{key}: {}", value.trim());
                // For the same device, a later file wins.
                let beginning = format!("{key}: ");
                found.retain(|other| other.device != device || !other.line.starts_with(&beginning));
                let (kind, place) = (ConflictingToolKind::Netplan, place(root, &path, number));
                found.push(ConflictingTool { kind, place, line, device, sysctl: None });
            }
            above.push((indent, key));
        }
    }
    found
}
