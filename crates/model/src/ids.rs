//! Identities of objects, and how long each identity is valid.
//!
//! Plans name objects by stable identities; identities that change are looked up when they are needed: an
//! [`RxQueue`] is stable, while a [`NapiId`] may change at every reset. A process is identified by its pid
//! *and* its start time, because pids are reused.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A logical CPU, as in `/sys/devices/system/cpu/cpuN`.
    Cpu(u32)
}
number! {
    /// A NUMA node, as in `/sys/devices/system/node/nodeN`.
    NumaNode(u32)
}
number! {
    /// The index of a network device within its namespace.
    IfIndex(u32)
}
number! {
    /// A queue of a device, counted from 0; receive and transmit queues are counted separately.
    QueueIndex(u32)
}
number! {
    /// A NAPI instance. The id is unique on the host while the NAPI exists. A reset may replace the NAPI; the
    /// id persists only if the driver uses `netif_napi_add_config`.
    ///
    /// Kernel: 6.18, `include/net/busy_poll.h` `MIN_NAPI_ID`: numbers smaller than `nr_cpu_ids + 1` are CPUs,
    /// not NAPIs.
    NapiId(u32)
}
number! {
    /// A Linux interrupt number, as in `/proc/irq/N`.
    IrqNumber(u32)
}
number! {
    /// A process, by its pid in the observer's pid namespace.
    Pid(u32)
}
number! {
    /// A file descriptor of a process.
    Fd(u32)
}
number! {
    /// A network namespace, by the inode of its nsfs file (`stat -Lc %i /proc/PID/ns/net`).
    NetnsId(u64)
}

/// The name that an object had when it was observed: an interface name or a thread's `comm`.
///
/// A label is only for display and is not part of the identity: all labels compare equal, so that a renamed
/// device is still the same device. In the kernel, both kinds of names have at most 15 bytes (`IFNAMSIZ`,
/// `TASK_COMM_LEN`); longer text is cut.
#[derive(Clone, Copy, Default)]
pub struct Label {
    bytes: [u8; Self::BYTES_MAX],
    length: u8,
}

impl Label {
    /// The maximum length of a label, in bytes. Kernel: `include/uapi/linux/if.h` `IFNAMSIZ`, without the
    /// terminating NUL.
    pub const BYTES_MAX: usize = 15;

    /// Creates a label with this text, cut at a character boundary if the text is too long.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(Self::BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; Self::BYTES_MAX];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self { bytes, length: u8::try_from(end).unwrap_or(0) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("")
    }

    /// Returns the text with control characters replaced: a process can choose any `comm`, including one with
    /// a line feed.
    fn in_one_line(&self) -> String {
        self.as_str().replace(crate::is_misleading, "\u{fffd}")
    }
}

impl PartialEq for Label {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Label {}
impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Label {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}
impl std::hash::Hash for Label {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}
impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self::new(&text))
    }
}
crate::text_schema! { Label: "a name" }

/// A network device, identified by namespace and index, and displayed by name. A renamed device keeps its
/// identity.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceId {
    /// The namespace that contains the device.
    pub netns: NetnsId,
    /// The device's index in the namespace.
    pub ifindex: IfIndex,
    /// The device's name when it was observed.
    pub name: Label,
}

impl PartialEq for DeviceId {
    fn eq(&self, other: &Self) -> bool {
        (self.netns, self.ifindex) == (other.netns, other.ifindex)
    }
}

impl Eq for DeviceId {}

impl PartialOrd for DeviceId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DeviceId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.netns, self.ifindex).cmp(&(other.netns, other.ifindex))
    }
}

impl std::hash::Hash for DeviceId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.netns, self.ifindex).hash(state);
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// A receive queue. Plans name queues rather than the kernel's NAPI ids, which change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RxQueue {
    /// The device.
    pub device: DeviceId,
    /// The queue's index, as in `/sys/class/net/DEV/queues/rx-N`.
    pub index: QueueIndex,
}

impl fmt::Display for RxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} rx-{}", self.device.name, self.index))
    }
}

/// A transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TxQueue {
    /// The device.
    pub device: DeviceId,
    /// The queue's index, as in `/sys/class/net/DEV/queues/tx-N`.
    pub index: QueueIndex,
}

impl fmt::Display for TxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} tx-{}", self.device.name, self.index))
    }
}

/// A process. Its start time distinguishes it from a later process with the same pid. Displayed as
/// `memcached[812]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessId {
    /// The pid.
    pub pid: Pid,
    /// When the process started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub started: u64,
    /// The process's `comm` when it was observed.
    pub comm: Label,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}[{}]", self.comm.in_one_line(), self.pid))
    }
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadId {
    /// The process.
    pub process: ProcessId,
    /// The thread's id, as in `/proc/PID/task/TID`.
    pub tid: Pid,
    /// When the thread started, in clock ticks since boot, as [`ProcessId::started`].
    pub started: u64,
    /// The thread's `comm` when it was observed.
    pub comm: Label,
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} thread {} ({})", self.process, self.tid, self.comm.in_one_line()))
    }
}

/// An epoll instance, identified by a descriptor of a process that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpollId {
    /// The process.
    pub process: ProcessId,
    /// The descriptor in that process.
    pub fd: Fd,
}

impl fmt::Display for EpollId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} epoll {}", self.process, self.fd))
    }
}

/// An io_uring instance, identified by a descriptor of a process that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingId {
    /// The process.
    pub process: ProcessId,
    /// The descriptor in that process.
    pub fd: Fd,
}

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} io_uring {}", self.process, self.fd))
    }
}

/// An internet socket, identified by a descriptor of a process that holds it. The inode distinguishes the
/// socket from a later socket with the same descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketId {
    /// The process.
    pub process: ProcessId,
    /// The descriptor in that process.
    pub fd: Fd,
    /// The socket's inode.
    pub inode: u64,
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} socket {}", self.process, self.fd))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_renamed_device_is_the_same_device() {
        let named = |name| DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new(name) };
        assert_eq!(named("eth0"), named("wan0"));
        assert_eq!(named("wan0").to_string(), "wan0");
    }

    #[test]
    fn a_label_is_cut_between_characters() {
        assert_eq!(Label::new("äöüäöüäöü").as_str(), "äöüäöüä");
        assert_eq!(Label::new("").as_str(), "");
    }

    #[test]
    fn a_process_cannot_name_itself_into_another_line() {
        let named = |comm| ProcessId { pid: Pid(7), started: 1, comm: Label::new(comm) };
        assert_eq!(named("a\u{1b}[31m\n[1]").to_string(), "a\u{fffd}[31m\u{fffd}[1][7]");
        let thread = ThreadId { process: named("a"), tid: Pid(8), started: 1, comm: Label::new("b\r") };
        assert_eq!(thread.to_string(), "a[7] thread 8 (b\u{fffd})");
    }

    #[test]
    fn an_identity_survives_json() {
        let queue = RxQueue {
            device: DeviceId { netns: NetnsId(7), ifindex: IfIndex(3), name: Label::new("eth0") },
            index: QueueIndex(4),
        };
        let text = serde_json::to_string(&queue).expect("serialises");
        let back: RxQueue = serde_json::from_str(&text).expect("parses");
        assert_eq!((back, back.to_string()), (queue, "eth0 rx-4".to_owned()));
    }
}
