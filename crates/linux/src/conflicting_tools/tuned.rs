//! Reads the settings of tuned's active profile, merged with its includes: tuned.conf(5).
//!
//! redhat-performance/tuned `tuned/profiles/loader.py` `_load_profile()` reads an include before the profile
//! that names it, `merger.py` merges sections of the same name option by option, `variables.py` reads files
//! of variables, `plugins/base.py` handles `>` and `<` before a value.
//!
//! OpenShift's Node Tuning Operator runs tuned in a container, with profiles in `/var/lib/ocp-tuned` of the
//! host: openshift/cluster-node-tuning-operator `pkg/tuned/controller.go`, `Dockerfile.rhel9`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::host::{ConflictingTool, ConflictingToolKind};

use super::files::{ini, place, processes, text};
use super::of_host;
use super::sysctl::{RPS_DEFAULT_MASK, net_core, sysctl_named};

/// The directories of profiles; the first one that has a profile takes precedence. Each profile is a
/// directory with a `tuned.conf`.
const PLACES: [&str; 4] = ["etc/tuned/profiles", "etc/tuned", "usr/lib/tuned/profiles", "usr/lib/tuned"];

/// The processes of the Node Tuning Operator that start tuned, and the operator's directory on the host.
const OPERATOR: [&str; 2] = ["openshift-tuned", "cluster-node-tu"];
const OPERATOR_DIRECTORY: &str = "var/lib/ocp-tuned";

/// Maximum number of daemons whose profiles are read.
const DAEMONS_MAX: usize = 16;

/// Maximum number of profiles of a daemon that are read.
const PROFILES_MAX: usize = 16;

/// The maximum number of variables, and the maximum size of a value, in bytes, after its variables are
/// expanded.
const VARIABLES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 4096;

/// The options of tuned's `net` plugin that set what netpolicy also sets.
const NET_OPTIONS: [&str; 4] = ["channels", "coalesce", "features", "ring"];

/// A value and its place.
struct Value {
    text: String,
    place: String,
}

/// The options of all profiles, merged by section and option name.
struct Merged {
    kind: ConflictingToolKind,
    /// The root directory of tuned's files: the container's, if tuned runs in one.
    root: PathBuf,
    /// The directories of profiles.
    places: Vec<PathBuf>,
    sections: BTreeMap<String, BTreeMap<String, Value>>,
    variables: BTreeMap<String, String>,
    read: BTreeSet<PathBuf>,
}

/// Finds the settings of the active profiles of all daemons, which can run on the host and in containers; empty
/// if tuned does not run. If a file of sysctl.d also sets a setting, that file's value applies.
pub(super) fn tuned(root: &Path, of_sysctl_files: &[ConflictingTool]) -> Vec<ConflictingTool> {
    let mut roots = Vec::new();
    let mut found: Vec<ConflictingTool> = Vec::new();
    let mut daemons: Vec<(u32, PathBuf)> = processes(root, &["tuned"])
        .into_iter()
        .map(|(pid, process)| (pid, own_root(root, &process)))
        .collect();
    // Any user can name processes `tuned`: the limit must not hide the host's daemon.
    daemons.sort_by_key(|(_, own)| own != root);
    for (pid, own) in daemons {
        let same = identity(&own);
        if roots.len() >= DAEMONS_MAX || roots.contains(&same) {
            continue;
        }
        roots.push(same);
        // A container can have the host's files.
        for tool in of_daemon(root, own, pid, of_sysctl_files) {
            if !found.contains(&tool) {
                found.push(tool);
            }
        }
    }
    found
}

/// Finds the settings of one daemon, whose files are below `own`.
fn of_daemon(
    root: &Path,
    own: PathBuf,
    pid: u32,
    of_sysctl_files: &[ConflictingTool],
) -> Vec<ConflictingTool> {
    let operator = root.join(OPERATOR_DIRECTORY);
    // A host keeps this directory after it has left the cluster, so the directory is not proof.
    let is_of_operator = !processes(root, &OPERATOR).is_empty() || (own != *root && operator.is_dir());
    let kind =
        if is_of_operator { ConflictingToolKind::NodeTuningOperator } else { ConflictingToolKind::Tuned };
    let actives = [own.join("etc/tuned"), operator.clone(), root.join("etc/tuned")];
    let Some(active) = actives.iter().find_map(|directory| text(&directory.join("active_profile"))) else {
        let place = format!("tuned[{pid}]");
        let unread =
            of_host(kind, place, "the active profile cannot be read, and may set what netpolicy sets");
        return if is_of_operator { vec![unread] } else { Vec::new() };
    };
    let places = [operator.join("profiles"), operator].into_iter().filter(|_| is_of_operator);
    let places = places.chain(PLACES.map(|place| own.join(place))).collect();
    let (sections, variables, read) = Default::default();
    let mut merged = Merged { kind, root: own, places, sections, variables, read };
    for name in active.split_whitespace() {
        merged.load(root, name);
    }
    let mut found = merged.tools();
    if reapplies_sysctl(&merged.root) {
        let number = |tool: &ConflictingTool| tool.sysctl.as_ref().map(|(sysctl, _)| *sysctl);
        found.retain(|tool| {
            let own = number(tool);
            own.is_none() || !of_sysctl_files.iter().any(|file| number(file) == own)
        });
    }
    found
}

/// Returns the root directory of a process if it is not the host's, as in a container; otherwise the host's.
fn own_root(root: &Path, process: &Path) -> PathBuf {
    let own = process.join("root");
    match (identity(&own), identity(root)) {
        (Some(of_process), Some(of_host)) if of_process != of_host => own,
        _ => root.to_owned(),
    }
}

/// The device and inode of a directory; `None` if it cannot be read.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// Whether tuned lets the files of sysctl.d override its profiles, as it does by default: `reapply_sysctl`.
fn reapplies_sysctl(root: &Path) -> bool {
    let main = text(&root.join("etc/tuned/tuned-main.conf")).unwrap_or_default();
    let mut said = main
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(key, _)| key.trim() == "reapply_sysctl");
    said.next_back().is_none_or(|(_, value)| {
        !matches!(value.trim().to_lowercase().as_str(), "0" | "false" | "no" | "off")
    })
}

impl Merged {
    /// Merges a profile into the profiles that were read before, its includes first.
    fn load(&mut self, root: &Path, name: &str) {
        let name = name.trim();
        // Ignores a name that would leave the directory. An include whose name comes from a tuned function
        // cannot be resolved here.
        let is_safe = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if name.is_empty() || !name.chars().all(is_safe) || self.read.len() >= PROFILES_MAX {
            return;
        }
        let paths: Vec<PathBuf> =
            self.places.iter().map(|place| place.join(name).join("tuned.conf")).collect();
        let mut unread = paths.into_iter().filter(|path| !self.read.contains(path));
        let Some((path, text)) = unread.find_map(|path| text(&path).map(|text| (path, text))) else { return };
        self.read.insert(path.clone());
        let of_main = ini(&text).filter(|(_, section, key, _)| *section == "main" && *key == "include");
        if let Some((.., include)) = of_main.last() {
            let include = self.expand(without_comment(include));
            include.split([',', ';']).for_each(|name| self.load(root, name));
        }
        let mut replaced = BTreeSet::new();
        for (_, section, key, value) in ini(&text) {
            let on = matches!(without_comment(value).to_lowercase().as_str(), "1" | "true" | "yes" | "on");
            if key == "replace" && on && replaced.insert(section) {
                self.sections.remove(section);
            }
        }
        for (number, section, key, value) in ini(&text) {
            let value = without_comment(value);
            if section == "variables" && key == "include" {
                self.load_variables(value);
            } else if section == "variables" {
                self.set_variable(key, value);
            } else if section != "main" {
                let value = Value { text: value.to_owned(), place: place(root, &path, number) };
                self.sections.entry(section.to_owned()).or_default().insert(key.to_owned(), value);
            }
        }
    }

    /// Reads a file of variables, which the section `variables` names by an absolute path.
    fn load_variables(&mut self, file: &str) {
        let relative = file.trim_start_matches('/');
        let is_below = relative.split('/').all(|part| part != "..");
        let Some(text) = is_below.then(|| text(&self.root.join(relative))).flatten() else { return };
        for (.., key, value) in ini(&text) {
            self.set_variable(key, without_comment(value));
        }
    }

    fn set_variable(&mut self, name: &str, value: &str) {
        let value = self.expand(value);
        if self.variables.len() < VARIABLES_MAX {
            self.variables.insert(name.to_owned(), value);
        }
    }

    /// Expands the known variables in a text. Functions (`${f:…}`) are not expanded, and neither is a text
    /// that would become too long.
    fn expand(&self, text: &str) -> String {
        let mut expanded = text.to_owned();
        for (name, value) in &self.variables {
            let variable = format!("${{{name}}}");
            let places = expanded.matches(&variable).count();
            if places > 0 && expanded.len() + places * value.len() > VALUE_BYTES_MAX {
                return text.to_owned();
            }
            expanded = expanded.replace(&variable, value);
        }
        expanded
    }

    /// Returns the lines that write the same settings as netpolicy.
    fn tools(&self) -> Vec<ConflictingTool> {
        let mut found = Vec::new();
        for (section, options) in &self.sections {
            let option = |key: &str| options.get(key).map(|value| self.expand(&value.text));
            // `[net_1]` with `type=net` is a section of the plugin `net`.
            let plugin = option("type").unwrap_or_else(|| section.clone());
            let device = option("devices").filter(|devices| devices != "*");
            for (key, Value { text, place }) in options {
                let text = self.expand(text);
                let line = format!("{key}={text}");
                let sysctl = net_core(&line).and_then(|(name, _)| sysctl_named(name));
                let is_ours = match plugin.as_str() {
                    "net" => NET_OPTIONS.contains(&key.as_str()),
                    "irq" | "irqbalance" => {
                        !matches!(key.as_str(), "type" | "devices" | "enabled" | "replace")
                    }
                    "sysctl" => {
                        sysctl.is_some() || net_core(&line).is_some_and(|(name, _)| name == RPS_DEFAULT_MASK)
                    }
                    _ => false,
                };
                if !is_ours || options.get("enabled").is_some_and(|value| is_off(&value.text)) {
                    continue;
                }
                found.push(ConflictingTool {
                    device: device.clone().filter(|_| plugin == "net"),
                    sysctl: sysctl.map(|sysctl| (sysctl, text.clone())),
                    ..ConflictingTool::new(self.kind, place.clone(), format!("[{section}] {line}"))
                });
            }
        }
        found
    }
}

fn is_off(text: &str) -> bool {
    matches!(text.to_lowercase().as_str(), "0" | "false" | "no" | "off")
}

/// Returns a value without its comment, which starts at a `#` after a space.
fn without_comment(value: &str) -> &str {
    value.split_once(" #").map_or(value, |(value, _)| value).trim()
}
