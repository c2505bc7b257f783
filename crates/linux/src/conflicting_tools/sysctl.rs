//! Determines the value of each `net.core` setting after all files of sysctl.d(5) have been read.

use std::collections::BTreeMap;
use std::path::Path;

use model::host::{ConflictingTool, ConflictingToolKind};
use model::{Glob, Sysctl};

use super::files::{drop_ins, place, text};

/// The directories; the first one takes precedence for files with the same name.
const DIRECTORIES: [&str; 4] = ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d"];

/// The RPS mask of new devices' queues. netpolicy does not set this sysctl, but the kernel copies its value
/// to `rps_cpus`, which netpolicy sets.
pub(super) const RPS_DEFAULT_MASK: &str = "rps_default_mask";

/// A line of a file: the key, its value, and the text to show.
struct Assigned {
    /// The setting's path below `/proc/sys`, or a pattern of paths.
    key: String,
    /// `None` for `-KEY`: earlier lines and patterns then do not set the key.
    value: Option<String>,
    place: String,
    line: String,
}

/// Finds the effective lines. If several lines set one key, the last one in the order of file names applies;
/// the directories do not matter. A pattern applies only to keys that no line names. systemd
/// `src/sysctl/sysctl.c` `parse_file()` and `apply_all()`.
pub(super) fn sysctl_files(root: &Path) -> Vec<ConflictingTool> {
    let mut files = drop_ins(root, &DIRECTORIES, "conf");
    let old = root.join("etc/sysctl.conf");
    // systemd reads this file only if a file in sysctl.d is a link to it; procps always reads it, last.
    if let Some(text) = text(&old)
        && !files.iter().any(|(path, _)| std::fs::canonicalize(path).ok() == std::fs::canonicalize(&old).ok())
    {
        files.push((old, text));
    }
    let mut all: Vec<Assigned> = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            let Some((key, value)) = assignment(line) else { continue };
            if !names().any(|name| covers(&key, name)) {
                continue;
            }
            all.retain(|before| before.key != key);
            let value = value.map(str::to_owned);
            all.push(Assigned {
                key,
                value,
                place: place(root, &path, number),
                line: line.trim().to_owned(),
            });
        }
    }
    let mut last: BTreeMap<&str, &Assigned> = BTreeMap::new();
    for name in names() {
        let named = all.iter().find(|assigned| assigned.key == path_of(name));
        let by_pattern = || all.iter().rfind(|assigned| covers(&assigned.key, name));
        last.extend(named.or_else(by_pattern).map(|assigned| (name, assigned)));
    }
    let tools = last.into_iter().filter_map(|(name, assigned)| {
        let value = assigned.value.as_ref()?;
        Some(ConflictingTool {
            sysctl: sysctl_named(name).map(|sysctl| (sysctl, value.clone())),
            ..ConflictingTool::new(
                ConflictingToolKind::SysctlFile,
                assigned.place.clone(),
                assigned.line.clone(),
            )
        })
    });
    tools.collect()
}

/// Returns the names of netpolicy's settings in `net.core`, and `rps_default_mask`.
fn names() -> impl Iterator<Item = &'static str> {
    Sysctl::ALL.iter().map(|sysctl| sysctl.as_str()).chain([RPS_DEFAULT_MASK])
}

fn path_of(name: &str) -> String {
    format!("net/core/{name}")
}

/// Whether a key is this setting of `net.core`, or a pattern that matches it.
fn covers(key: &str, name: &str) -> bool {
    key == path_of(name)
        || Glob::is_pattern(key) && key.parse::<Glob>().is_ok_and(|glob| glob.meets(&path_of(name)))
}

/// The key and the value of a line: `net.core.netdev_budget = 600`, `-net/core/netdev_budget=600`,
/// `-net.core.busy_poll`.
fn assignment(line: &str) -> Option<(String, Option<&str>)> {
    let line = line.trim();
    if line.starts_with(['#', ';']) {
        return None;
    }
    let unsigned = line.strip_prefix('-');
    let (key, value) = match unsigned.unwrap_or(line).split_once('=') {
        Some((key, value)) => (key, Some(value.trim())),
        None => (unsigned?, None),
    };
    let key = key.trim();
    // The first separator determines the notation; the other character then belongs to names.
    let swapped = key.find(['.', '/']).is_some_and(|at| key.as_bytes()[at] == b'.');
    let swap = |c: char| match c {
        '.' if swapped => '/',
        '/' if swapped => '.',
        c => c,
    };
    Some((key.chars().map(swap).collect(), value))
}

/// The setting of `net.core` with this name.
pub(super) fn sysctl_named(name: &str) -> Option<Sysctl> {
    Sysctl::ALL.iter().copied().find(|sysctl| sysctl.as_str() == name)
}

/// Parses the name and the value of a line about `net.core`: `net.core.netdev_budget = 600`,
/// `-net/core/netdev_budget=600`.
pub(super) fn net_core(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if line.starts_with(['#', ';']) {
        return None;
    }
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let key = key.strip_prefix('-').unwrap_or(key);
    let name = key.strip_prefix("net.core.").or_else(|| key.strip_prefix("net/core/"))?;
    Some((name, value.trim()))
}
