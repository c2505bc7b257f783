//! Finds the `[ethtool]` section of the connection that is active on a device, or that NetworkManager would
//! activate. nm-settings-keyfile(5); NetworkManager `src/core/nm-policy.c` `auto_activate_device()` for the
//! choice, `src/core/nm-config-data.c` and `src/core/nm-config.c` `nm_config_device_state_load()` for the
//! record of each device.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::host::{ConflictingTool, ConflictingToolKind};

use super::facts::{ConditionResult, DeviceFacts, mac, meets};
use super::files::{FILES_MAX, file_name, ini, place, text};
use super::values;

/// The directories of connection profiles; the first one takes precedence for files with the same name.
const DIRECTORIES: [&str; 3] = [
    "etc/NetworkManager/system-connections",
    "run/NetworkManager/system-connections",
    "usr/lib/NetworkManager/system-connections",
];

/// The prefixes of the `[ethtool]` keys that overlap with netpolicy's settings.
const FAMILIES: [&str; 4] = ["ring-", "coalesce-", "feature-", "channels-"];

/// A profile.
struct Profile {
    path: PathBuf,
    /// Line, section, key, value.
    lines: Vec<(usize, String, String, String)>,
}

impl Profile {
    fn get(&self, sections: &[&str], keys: &[&str]) -> Option<&str> {
        let line = self.lines.iter().rev().find(|(_, section, key, _)| {
            sections.contains(&section.as_str()) && keys.contains(&key.as_str())
        });
        line.map(|(.., value)| value.as_str())
    }

    fn connection(&self, key: &str) -> Option<&str> {
        self.get(&["connection"], &[key])
    }
}

/// Reads the profiles of all directories. In /etc, a profile's file name needs no suffix.
fn profiles(root: &Path) -> Vec<Profile> {
    let mut by_name: BTreeMap<String, PathBuf> = BTreeMap::new();
    for directory in DIRECTORIES {
        let entries = std::fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        for path in entries.take(FILES_MAX).map(|entry| entry.path()) {
            let name = file_name(&path);
            let is_profile = name.ends_with(".nmconnection") || directory == DIRECTORIES[0];
            if is_profile && !name.starts_with('.') && !name.ends_with('~') {
                by_name.entry(name).or_insert(path);
            }
        }
    }
    let read = by_name.into_values().filter_map(|path| Some((text(&path)?, path)));
    read.map(|(text, path)| {
        let lines = ini(&text).map(|(number, section, key, value)| {
            (number, section.to_owned(), key.to_owned(), value.to_owned())
        });
        Profile { path, lines: lines.collect() }
    })
    .collect()
}

/// When each profile was last active, by uuid, in seconds.
fn timestamps(root: &Path) -> BTreeMap<String, u64> {
    let text = text(&root.join("var/lib/NetworkManager/timestamps")).unwrap_or_default();
    ini(&text).filter_map(|(.., uuid, when)| Some((uuid.to_owned(), when.parse().ok()?))).collect()
}

/// Finds the settings that NetworkManager applies to each device.
pub(super) fn network_manager(root: &Path, devices: &[DeviceFacts<'_>]) -> Vec<ConflictingTool> {
    let profiles = profiles(root);
    let used = timestamps(root);
    let mut found = Vec::new();
    for facts in devices.iter().filter(|facts| facts.is_managed != Some(false)) {
        for (profile, condition) in chosen(&profiles, &used, facts) {
            for (number, section, key, value) in &profile.lines {
                if section != "ethtool" || !FAMILIES.iter().any(|family| key.starts_with(family)) {
                    continue;
                }
                found.push(ConflictingTool {
                    device: Some(facts.device.id.name.as_str().to_owned()),
                    sets: values::of_network_manager(facts.device, key, value),
                    condition: condition.clone(),
                    ..ConflictingTool::new(
                        ConflictingToolKind::NetworkManager,
                        place(root, &profile.path, *number),
                        format!("{key}={value}"),
                    )
                });
            }
        }
    }
    found
}

/// Returns the profile that is active on a device; if none is, returns the profiles that may match, followed
/// by the one that NetworkManager activates automatically.
fn chosen<'p>(
    profiles: &'p [Profile],
    used: &BTreeMap<String, u64>,
    facts: &DeviceFacts<'_>,
) -> Vec<(&'p Profile, Option<String>)> {
    if let Some(uuid) = &facts.connection {
        let active = profiles.iter().filter(|profile| profile.connection("uuid") == Some(uuid));
        return active.map(|profile| (profile, None)).collect();
    }
    let is_automatic = |profile: &&Profile| profile.connection("autoconnect") != Some("false");
    let mut automatic: Vec<(&Profile, ConditionResult)> = profiles
        .iter()
        .filter(is_automatic)
        .map(|profile| (profile, fits(profile, facts)))
        .filter(|(_, verdict)| *verdict != ConditionResult::No)
        .collect();
    let rank = |profile: &Profile| {
        let priority = profile.connection("autoconnect-priority").and_then(|text| text.parse::<i32>().ok());
        let last = profile.connection("uuid").and_then(|uuid| used.get(uuid)).copied();
        Reverse((priority.unwrap_or(0), last.unwrap_or(0)))
    };
    automatic.sort_by_key(|(profile, _)| rank(profile));
    let mut chosen = Vec::new();
    let first = automatic
        .iter()
        .find(|(_, verdict)| *verdict == ConditionResult::Yes)
        .map(|(profile, _)| rank(profile));
    // If ranks are equal, NetworkManager picks a profile by criteria that it does not expose.
    let rivals = automatic
        .iter()
        .filter(|(profile, verdict)| *verdict == ConditionResult::Yes && Some(rank(profile)) == first);
    let is_open = rivals.count() > 1;
    for (profile, verdict) in automatic {
        if first.is_some_and(|first| rank(profile) > first) {
            break;
        }
        let condition = match verdict {
            ConditionResult::Unknown(condition) => Some(condition),
            _ if is_open => Some("NetworkManager prefers it to other profiles that match".to_owned()),
            _ => None,
        };
        chosen.push((profile, condition));
    }
    chosen
}

/// Whether a profile matches a device.
fn fits(profile: &Profile, facts: &DeviceFacts<'_>) -> ConditionResult {
    let name = facts.device.id.name.as_str();
    let mut verdict = match profile.connection("type") {
        Some("ethernet" | "802-3-ethernet") => {
            let is_virtual = facts.device.has_own_interrupts() == Some(false) && facts.device.kind != "veth";
            ConditionResult::of(name != "lo" && !is_virtual)
        }
        Some("infiniband") => ConditionResult::of(facts.devtype.as_deref() == Some("infiniband")),
        // Profiles of virtual devices name their device.
        Some(_) => ConditionResult::of(profile.connection("interface-name").is_some()),
        None => ConditionResult::No,
    };
    if let Some(wanted) = profile.connection("interface-name") {
        verdict = verdict.and(ConditionResult::of(wanted == name));
    }
    for (section, key, value) in profile.lines.iter().map(|(_, section, key, value)| (section, key, value)) {
        let list = || value.split([';', ',']).map(str::trim).filter(|word| !word.is_empty());
        let unknown = || ConditionResult::Unknown(format!("{key}={value}"));
        let own = facts.permanent_mac.as_ref().map(|own| match (own.is_empty(), &facts.device.link.mac) {
            (true, Some(now)) => now.clone(),
            _ => own.clone(),
        });
        let one = match (section.as_str(), key.as_str()) {
            ("match", "interface-name") => {
                words_meet(list(), Some(name)).map_or_else(unknown, ConditionResult::of)
            }
            ("match", "driver") if facts.driver().is_some() => {
                words_meet(list(), facts.driver()).map_or_else(unknown, ConditionResult::of)
            }
            ("match", "path") if facts.property("ID_PATH").is_some() => {
                words_meet(list(), facts.property("ID_PATH")).map_or_else(unknown, ConditionResult::of)
            }
            ("match", _) => unknown(),
            ("ethernet" | "802-3-ethernet", "mac-address") => match &own {
                Some(own) => ConditionResult::of(mac(value).is_some_and(|wanted| wanted == *own)),
                None => unknown(),
            },
            ("ethernet" | "802-3-ethernet", "mac-address-blacklist" | "mac-address-denylist") => match &own {
                Some(own) => ConditionResult::of(!list().filter_map(mac).any(|denied| denied == *own)),
                None => unknown(),
            },
            _ => continue,
        };
        verdict = verdict.and(one);
    }
    verdict
}

/// Whether a name matches a `match` list of nm-settings(5): it must match one of the words that are plain or
/// begin with `|`, if there are any, every word that begins with `&`, and no word that begins with `!`.
/// `None` if the name is unknown, or a pattern cannot be parsed.
fn words_meet<'w>(words: impl Iterator<Item = &'w str>, name: Option<&str>) -> Option<bool> {
    let name = name?;
    let (mut optional, mut met) = (false, false);
    for word in words {
        let (must, word) = word.strip_prefix('&').map_or((false, word), |word| (true, word));
        let word = word.strip_prefix('|').unwrap_or(word);
        let (inverted, word) = word.strip_prefix('!').map_or((false, word), |word| (true, word));
        let holds = meets(word, name)? != inverted;
        if must || inverted {
            if !holds {
                return Some(false);
            }
        } else {
            optional = true;
            met |= holds;
        }
    }
    Some(!optional || met)
}
