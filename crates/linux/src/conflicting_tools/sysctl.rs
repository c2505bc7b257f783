//! sysctl.d(5): the value of each setting of `net.core` after all files were read.

use std::collections::BTreeMap;
use std::path::Path;

use model::Sysctl;
use model::host::{ConflictingTool, ConflictingToolKind};

use super::{drop_ins, place, text};

/// The directories. If they have a file of the same name, the first of them wins.
const DIRECTORIES: [&str; 4] = ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d"];

/// The mask of the queues of new devices. It is no setting of netpolicy, but it sets `rps_cpus`, which is
/// one.
pub(super) const RPS_DEFAULT_MASK: &str = "rps_default_mask";

/// Finds the lines in effect: of several for one setting, the last in the order of file names, whatever their
/// directories.
pub(super) fn sysctl_files(root: &Path) -> Vec<ConflictingTool> {
    let mut files = drop_ins(root, &DIRECTORIES, "conf");
    let old = root.join("etc/sysctl.conf");
    // systemd reads it only if a file in sysctl.d is a link to it; procps always, and last.
    if let Some(text) = text(&old)
        && !files.iter().any(|(path, _)| std::fs::canonicalize(path).ok() == std::fs::canonicalize(&old).ok())
    {
        files.push((old, text));
    }
    let mut last: BTreeMap<String, ConflictingTool> = BTreeMap::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            let Some((name, value)) = net_core(line) else { continue };
            let sysctl = sysctl_named(name).map(|sysctl| (sysctl, value.to_owned()));
            if sysctl.is_none() && name != RPS_DEFAULT_MASK {
                continue;
            }
            let (place, line) = (place(root, &path, number), line.trim().to_owned());
            let kind = ConflictingToolKind::SysctlFile;
            last.insert(
                name.to_owned(),
                ConflictingTool {
                    kind,
                    place,
                    line,
                    device: None,
                    sysctl,
                    sets: Vec::new(),
                    condition: None,
                },
            );
        }
    }
    last.into_values().collect()
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
