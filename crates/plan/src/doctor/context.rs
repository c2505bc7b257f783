//! Facts that are not part of the observed host: other namespaces, measurements over an interval, the
//! operator's shell.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::evidence::JournalVerdict;
use model::host::{ConflictingTool, IdleDepth};
use model::{
    BatchesOf, CpuWait, DeviceId, EventBatches, Finding, Label, Nanoseconds, NetnsId, Object, Pid, Plan,
    Recipes,
};

/// The facts that the rules need in addition to the observed host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostContext {
    /// The peers of veths in other namespaces, if they were found.
    pub peers: BTreeMap<DeviceId, VethPeer>,
    /// The length of the observation for [`HostContext::cpu_waits`], which is longer than that of the packet
    /// counts.
    pub watched: Nanoseconds,
    /// How long a thread of each process was runnable without a CPU, in total: the maximum over the process's
    /// threads. Only processes that use epoll are listed.
    pub cpu_waits: BTreeMap<Pid, CpuWait>,
    /// The batches of events that each process handled during that observation; empty if they were not
    /// measured.
    pub batches: BTreeMap<(Pid, BatchesOf), EventBatches>,
    /// The files and programs of other tools that set what netpolicy also sets.
    pub others: Vec<ConflictingTool>,
    /// The idle states of CPUs; `None` if the kernel selects no idle states, or they could not be read.
    pub idle: Option<IdleDepth>,
    /// The recipes, and facts about NIC drivers from the kernel's source.
    pub recipes: Arc<Recipes>,
    /// The settings that transactions have in force, newest first.
    pub held: Vec<HeldObject>,
    /// The parts of the policy files that are not in force.
    pub pending: PendingChanges,
    /// Whether to propose a policy on a host where none is requested or in force.
    pub proposes: bool,
    /// The number of loaded BPF programs; `None` if they were not counted.
    pub bpf_programs: Option<u32>,
    /// Whether this run measured the response times of a service.
    pub timed: bool,
    /// How to type the commands of remedies.
    pub command_prefix: CommandPrefix,
}

/// The parts of the policy files that are not in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingChanges {
    /// The changes that `netpolicy apply` would make.
    pub plan: Plan,
    /// Why the policy files are refused; `None` if they are not.
    pub refused: Option<String>,
    /// The newest transaction, if the operator rolled it back.
    pub rolled_back: Option<String>,
    /// Measured verdicts on settings, newest first.
    pub evidence: Vec<JournalVerdict>,
    /// The daemon that keeps these files in force, if one is running.
    pub daemon: Option<Pid>,
}

/// An object with a value that a transaction in force has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldObject {
    /// The object.
    pub object: Object,
    /// Describes the owner of the value, for the output.
    pub by: String,
    /// The commands that restore the old value, as [`super::remedy`] writes them.
    pub end: String,
    /// Whether other commands may change the object only after the commands in `end` have run.
    pub has_owner: bool,
}

/// The peer of a veth, in another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VethPeer {
    /// The peer's name in that namespace.
    pub name: Label,
    /// A file that refers to the namespace.
    pub netns: String,
    /// Whether the peer's TSO is on; `None` if that could not be read.
    pub tso: Option<bool>,
}

/// How to type commands for the observed namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandPrefix {
    /// The options that netpolicy needs, for example `--netns web`; may be empty.
    pub options: String,
    /// A file that refers to the namespace; `None` for the operator's own namespace.
    pub netns: Option<String>,
}

/// The separator between the commands of a remedy.
pub(super) const THEN: &str = "; ";

impl CommandPrefix {
    /// Formats the commands of a remedy as the operator must type them. Prose is left unchanged.
    pub(super) fn typed(&self, remedy: &str) -> String {
        remedy.split(THEN).map(|command| self.command(command)).collect::<Vec<_>>().join(THEN)
    }

    fn command(&self, command: &str) -> String {
        match (command.split_once(' '), &self.netns) {
            (Some(("netpolicy", rest)), _) if !self.options.is_empty() => {
                format!("netpolicy {} {rest}", self.options)
            }
            (Some(("ethtool", _)), Some(netns)) => inside(netns, command),
            // sysfs shows the devices of the namespace in which it was mounted, so mount it again.
            (Some(("echo", _)), Some(netns)) => {
                let mounted = format!("unshare --mount sh -c 'mount -t sysfs sysfs /sys && {command}'");
                inside(netns, &mounted)
            }
            _ => command.to_owned(),
        }
    }
}

impl HostContext {
    /// Returns the held objects of this namespace's devices and of processes, by device name and by pid.
    pub(super) fn held_by_owner(&self, netns: NetnsId) -> HeldByOwner<'_> {
        let mut held = HeldByOwner::default();
        for one in &self.held {
            if let Some(device) = one.object.device().filter(|device| device.netns == netns) {
                held.by_device.entry(device.name.to_string()).or_default().push(one);
            }
            if let Some(process) = one.object.process() {
                held.by_process.entry(process.pid.to_string()).or_default().push(one);
            }
        }
        held
    }
}

/// The objects whose values transactions in force have set, by the name or pid that commands use.
#[derive(Debug, Default)]
pub(super) struct HeldByOwner<'c> {
    by_device: BTreeMap<String, Vec<&'c HeldObject>>,
    by_process: BTreeMap<String, Vec<&'c HeldObject>>,
}

impl<'c> HeldByOwner<'c> {
    /// Prepends to a remedy the commands that must run first: settings of a removed queue could not be
    /// restored, and a running command must exit before its settings are changed.
    pub(super) fn ends_first(&self, finding: &mut Finding) {
        let Some(remedy) = &finding.remedy else { return };
        let mut ends: Vec<&str> = Vec::new();
        for held in remedy.split(THEN).flat_map(|command| self.hit_by(command)) {
            if ends.is_empty() {
                let line = format!("in force on {} through {}, which must exit first", held.object, held.by);
                finding.evidence.insert(0, line);
            }
            if !ends.contains(&held.end.as_str()) {
                ends.push(&held.end);
            }
        }
        if !ends.is_empty() {
            finding.remedy = Some(format!("{}{THEN}{remedy}", ends.join(THEN)));
        }
    }

    /// Returns the held objects that a command of a remedy would change or remove.
    fn hit_by(&self, command: &str) -> Vec<&'c HeldObject> {
        let words: Vec<&str> = command.split(' ').collect();
        let has_owner = |held: &&HeldObject| held.has_owner;
        let of = |held: Option<&Vec<&'c HeldObject>>| held.cloned().unwrap_or_default();
        match words[..] {
            ["ethtool", "-L", name, _, queues] => {
                let queues: u32 = queues.parse().unwrap_or(u32::MAX);
                let is_removed = |held: &&HeldObject| match held.object {
                    Object::Queue(queue) => queue.index.0 >= queues,
                    Object::TxQueue(queue) => queue.index.0 >= queues,
                    _ => false,
                };
                of(self.by_device.get(name)).into_iter().filter(is_removed).collect()
            }
            ["netpolicy", "set", "device", name, ..] => {
                of(self.by_device.get(name)).into_iter().filter(has_owner).collect()
            }
            ["netpolicy", "set", "task", pid, ..] => {
                of(self.by_process.get(pid)).into_iter().filter(has_owner).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Formats a command to be typed in the operator's shell, but to run in the namespace.
pub(super) fn inside(netns: &str, command: &str) -> String {
    format!("nsenter --net={netns} {command}")
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{IfIndex, QueueIndex, RxQueue, Severity};

    fn held(index: u32, has_owner: bool) -> HeldObject {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let object = Object::Queue(RxQueue { device, index: QueueIndex(index) });
        let (by, end) = ("netpolicy attach".to_owned(), "kill 7; tail --pid=7 -f /dev/null".to_owned());
        HeldObject { object, by, end, has_owner }
    }

    #[test]
    fn what_a_remedy_would_take_away_has_to_end_first() {
        let first = "kill 7; tail --pid=7 -f /dev/null; ";
        for (remedy, index, has_owner, ends) in [
            ("ethtool -L eth0 rx 1", 1, true, true),
            ("ethtool -L eth0 combined 1", 3, false, true),
            ("ethtool -L eth0 rx 2", 1, true, false),
            ("ethtool -L eth1 rx 1", 1, true, false),
            ("netpolicy set device eth0 suspend20", 0, true, true),
            ("netpolicy set device eth0 suspend20", 0, false, false),
            ("ethtool -K eth0 gro on", 0, true, false),
        ] {
            let (rule, object, summary) = Default::default();
            let mut finding = Finding {
                rule,
                severity: Severity::Warning,
                object,
                summary,
                evidence: vec!["seen".to_owned()],
                remedy: Some(remedy.to_owned()),
            };
            let context = HostContext {
                held: vec![held(index, has_owner), held(index, has_owner)],
                ..HostContext::default()
            };
            context.held_by_owner(NetnsId(1)).ends_first(&mut finding);
            let expected = if ends { format!("{first}{remedy}") } else { remedy.to_owned() };
            assert_eq!(finding.remedy, Some(expected));
            assert_eq!(finding.evidence[0].starts_with("in force on eth0"), ends, "{remedy}");
            finding.remedy = Some(remedy.to_owned());
            context.held_by_owner(NetnsId(2)).ends_first(&mut finding);
            assert_eq!(finding.remedy.as_deref(), Some(remedy), "another namespace has an eth0, too");
        }
    }

    #[test]
    fn a_remedy_for_another_namespace_is_typed_from_here() {
        let command_prefix =
            CommandPrefix { options: "--netns web".to_owned(), netns: Some("/run/netns/web".to_owned()) };
        for (remedy, typed) in [
            ("netpolicy set device eth0 defer20", "netpolicy --netns web set device eth0 defer20"),
            (
                "ethtool -K veth0 gro on; nsenter --net=/run/netns/peer ethtool -K veth1 tso off",
                "nsenter --net=/run/netns/web ethtool -K veth0 gro on; nsenter --net=/run/netns/peer ethtool -K veth1 \
                 tso off",
            ),
            (
                "echo 0 > /sys/class/net/eth0/queues/rx-0/rps_cpus",
                "nsenter --net=/run/netns/web unshare --mount sh -c 'mount -t sysfs sysfs /sys && echo 0 > \
                 /sys/class/net/eth0/queues/rx-0/rps_cpus'",
            ),
            ("taskset -acp 0,1 812", "taskset -acp 0,1 812"),
            ("as many workers as CPUs, 2 (memcached: -t 2)", "as many workers as CPUs, 2 (memcached: -t 2)"),
        ] {
            assert_eq!(command_prefix.typed(remedy), typed);
            assert_eq!(
                CommandPrefix::default().typed(remedy),
                remedy,
                "in the operator's own namespace nothing has to be added"
            );
        }
    }
}
