//! The facts by which udev, netplan and NetworkManager select configuration for a device, as far as they can
//! be read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use model::Glob;
use model::host::Device;

use super::files::{file_name, ini, text};

/// `NET_NAME_RENAMED`. Kernel: `include/uapi/linux/netdevice.h`.
const RENAMED: &str = "4";

/// Whether a condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConditionResult {
    Yes,
    No,
    /// netpolicy cannot tell whether the condition holds; the text is the condition as written.
    Unknown(String),
}

impl ConditionResult {
    pub(super) const fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    /// Three-valued AND: no if either is no; otherwise unknown if either is unknown.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Unknown(one), Self::Unknown(other)) => Self::Unknown(format!("{one} and {other}")),
            (Self::Unknown(one), Self::Yes) | (Self::Yes, Self::Unknown(one)) => Self::Unknown(one),
            (Self::Yes, Self::Yes) => Self::Yes,
        }
    }
}

/// A device and its facts.
pub(super) struct DeviceFacts<'h> {
    pub(super) device: &'h Device,
    /// The name that the kernel gave the device; `None` after a rename, because the kernel does not keep that
    /// name.
    pub(super) original_name: Option<&'h str>,
    /// The address that the device had when it was added; `None` if another one has been set since.
    pub(super) mac: Option<String>,
    /// The permanent address, empty if the device has none; `None` if unknown.
    pub(super) permanent_mac: Option<String>,
    /// The type in the terms of systemd.link(5).
    pub(super) devtype: Option<String>,
    /// The properties in udev's database; `None` without a record.
    pub(super) properties: Option<BTreeMap<String, String>>,
    /// When udev wrote the device's record in its database.
    recorded: Option<SystemTime>,
    /// The uuid of the connection that NetworkManager has activated on the device.
    pub(super) connection: Option<String>,
    /// Whether NetworkManager manages the device; `None` without a record.
    pub(super) is_managed: Option<bool>,
}

impl<'h> DeviceFacts<'h> {
    /// Reads the facts. `sysfs` reads a file below `/sys` in the device's namespace.
    pub(super) fn read(root: &Path, device: &'h Device, sysfs: &dyn Fn(&str) -> Option<String>) -> Self {
        let name = device.id.name.as_str();
        let attribute =
            |file: &str| sysfs(&format!("class/net/{name}/{file}")).map(|text| text.trim().to_owned());
        let index = device.id.ifindex.0;
        let udev = has_tools_of_boot(root).then(|| root.join(format!("run/udev/data/n{index}")));
        let properties = udev.as_ref().and_then(|path| text(path)).map(|text| {
            let pairs = text.lines().filter_map(|line| line.strip_prefix("E:")?.split_once('='));
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
        });
        let recorded = udev.and_then(|path| modified(&path));
        let assigned = attribute("addr_assign_type");
        let by_name = properties.as_ref().and_then(|known| known.get("ID_NET_NAME_MAC"));
        let by_name = by_name.and_then(|name| mac(name.strip_prefix("enx")?));
        let now = device.link.mac.clone();
        // The values of `addr_assign_type`: 0 is permanent; 1 is random; 2 is taken from another device; 3 is
        // set. `include/uapi/linux/netdevice.h` NET_ADDR_*.
        let (at_add, permanent_mac) = match assigned.as_deref() {
            Some("0") => (now.clone(), now),
            Some("1") => (now, Some(String::new())),
            _ => (by_name.clone(), by_name),
        };
        let uevent = attribute("uevent");
        let devtype = uevent.and_then(|uevent| {
            let stated = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=").map(str::to_owned));
            // The values of `type` in `include/uapi/linux/if_arp.h`: ARPHRD_ETHER, ARPHRD_INFINIBAND,
            // ARPHRD_LOOPBACK.
            stated.or_else(|| match attribute("type")?.as_str() {
                "1" => Some("ether".to_owned()),
                "32" => Some("infiniband".to_owned()),
                "772" => Some("loopback".to_owned()),
                _ => None,
            })
        });
        let state = has_tools_of_boot(root).then(|| root.join(format!("run/NetworkManager/devices/{index}")));
        let state = state.and_then(|path| text(&path));
        let of_state = |key: &str| {
            let found =
                ini(state.as_deref()?).find(|(_, section, name, _)| *section == "device" && *name == key);
            found.map(|(.., value)| value.to_owned())
        };
        Self {
            device,
            original_name: attribute("name_assign_type").filter(|kind| kind != RENAMED).map(|_| name),
            mac: at_add,
            permanent_mac,
            devtype,
            properties,
            recorded,
            connection: of_state("connection-uuid"),
            is_managed: of_state("managed").map(|managed| managed == "true"),
        }
    }

    /// Returns the name of the device's driver; `None` if unknown.
    pub(super) fn driver(&self) -> Option<&str> {
        if self.device.has_own_interrupts() != Some(false) && !self.device.kind.is_empty() {
            return Some(&self.device.kind);
        }
        self.property("ID_NET_DRIVER")
    }

    /// A property from udev; `None` if it is missing or unknown.
    pub(super) fn property(&self, key: &str) -> Option<&str> {
        self.properties.as_ref()?.get(key).map(String::as_str)
    }

    /// Resolves an unknown verdict by the file that udev has recorded for the device: that file matched, and
    /// earlier files did not. A file that was changed after udev wrote the record may match now.
    pub(super) fn resolve(&self, file: &LinkFile, verdict: ConditionResult) -> ConditionResult {
        let ConditionResult::Unknown(_) = &verdict else { return verdict };
        let Some(applied) = self.property("ID_NET_LINK_FILE") else { return verdict };
        let is_older = file
            .written_from
            .iter()
            .all(|path| modified(path).zip(self.recorded).is_some_and(|(file, record)| file <= record));
        match file_name(Path::new(applied)).cmp(&file_name(&file.path)) {
            _ if !is_older => verdict,
            std::cmp::Ordering::Equal => ConditionResult::Yes,
            std::cmp::Ordering::Greater => ConditionResult::No,
            std::cmp::Ordering::Less => verdict,
        }
    }
}

/// Whether the udev and NetworkManager of this root directory manage the devices of this namespace: they
/// manage only devices in PID 1's namespace.
fn has_tools_of_boot(root: &Path) -> bool {
    let namespace = |pid: &str| std::fs::read_link(root.join(format!("proc/{pid}/ns/net")));
    match (namespace("thread-self"), namespace("1")) {
        (Ok(own), Ok(first)) => own == first,
        (own, _) => own.is_err(),
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// Normalises a hardware address to lower case with colons, from any form that systemd, netplan and
/// NetworkManager accept.
pub(super) fn mac(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| !matches!(c, ':' | '-' | '.')).collect();
    let is_mac = digits.len() == 12 && digits.chars().all(|c| c.is_ascii_hexdigit());
    let pairs: Vec<&str> =
        is_mac.then(|| digits.as_bytes().chunks(2))?.filter_map(|pair| str::from_utf8(pair).ok()).collect();
    Some(pairs.join(":").to_lowercase())
}

/// Whether a name matches a pattern of fnmatch(3); `None` if the pattern is invalid.
pub(super) fn meets(pattern: &str, name: &str) -> Option<bool> {
    // With fnmatch(3) and no flags, `*` matches `/` too.
    let deep = pattern.replace('*', "**");
    deep.parse::<Glob>().ok().map(|glob| glob.meets(name))
}

/// A `.link` file.
pub(super) struct LinkFile {
    pub(super) path: PathBuf,
    /// `[Match]` including drop-ins: keys and values in reading order.
    pub(super) conditions: Vec<(String, String)>,
    /// The settings, by key.
    pub(super) lines: Vec<LinkLine>,
    /// The files from which the configuration was generated or read; their modification times show its age.
    pub(super) written_from: Vec<PathBuf>,
}

impl LinkFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, conditions: Vec::new(), lines: Vec::new(), written_from: Vec::new() }
    }
}

/// An effective line of `[Link]`.
pub(super) struct LinkLine {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: String,
    /// The line as it appears in the tool's own file.
    pub(super) line: String,
    pub(super) kind: model::host::ConflictingToolKind,
}
