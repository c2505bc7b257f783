//! What is known beside the host that was observed: of other namespaces, of the time that passed, of the operator's shell.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::evidence::Evidence;
use model::host::{ConflictingTool, IdleDepth};
use model::{CpuWait, DeviceId, Finding, Label, Nanoseconds, NetnsId, Object, Pid, Plan, Recipes};

/// What the rules may know beside the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostContext {
    /// The other ends of veths, where they are in another namespace and could be found.
    pub peers: BTreeMap<DeviceId, Peer>,
    /// How long was watched for [`HostContext::cpu_waits`]. Longer than what was counted, which are samples of it.
    pub watched: Nanoseconds,
    /// For how much of that time a thread of the process that waits in epolls was ready to run and had no
    /// CPU; of several threads the longest.
    pub cpu_waits: BTreeMap<Pid, CpuWait>,
    /// What other tools are configured to set that netpolicy sets, too.
    pub others: Vec<ConflictingTool>,
    /// How deep CPUs may sleep; `None` where the kernel chooses no idle states, or that could not be read.
    pub idle: Option<IdleDepth>,
    /// What policies come to, and what is known of the drivers of NICs from the kernel's source.
    pub recipes: Arc<Recipes>,
    /// What netpolicy's transactions have in force, the newest first.
    pub held: Vec<Held>,
    /// What the policy files ask for, and is not in force.
    pub pending: Pending,
    /// Whether to say what could be tried where nothing is asked for and nothing in force.
    pub proposes: bool,
    /// Whether response times of a service were measured.
    pub timed: bool,
    /// How the commands of remedies have to be typed.
    pub command_prefix: CommandPrefix,
}

/// What the policy files ask for, and is not in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// What `netpolicy apply` would change.
    pub plan: Plan,
    /// Why the policy files are refused, if they are.
    pub refused: Option<String>,
    /// The newest transaction, if that was rolled back.
    pub rolled_back: Option<String>,
    /// What was measured of settings, the newest first.
    pub evidence: Vec<Evidence>,
    /// The daemon that keeps these files true, where one runs.
    pub daemon: Option<Pid>,
}

/// Something of which a transaction in force has set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What it is.
    pub object: Object,
    /// Whose it is, in words.
    pub by: String,
    /// The commands that restore it, as [`super::remedy`] writes them.
    pub end: String,
    /// Whether no other command may change it until then.
    pub has_owner: bool,
}

/// The other end of a veth, in another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name there.
    pub name: Label,
    /// A file that stands for the namespace.
    pub netns: String,
    /// Whether it segments TCP itself; `None` where that could not be read.
    pub tso: Option<bool>,
}

/// How commands are typed so that they reach the namespace that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandPrefix {
    /// What `netpolicy` needs before a command, as in `--netns web`; empty for nothing.
    pub options: String,
    /// A file that stands for the namespace; `None` for the operator's own.
    pub netns: Option<String>,
}

/// What stands between the commands of a remedy.
pub(super) const THEN: &str = "; ";

impl CommandPrefix {
    /// A remedy as it has to be typed from where the operator is. What is not a command stays as it is.
    pub(super) fn typed(&self, remedy: &str) -> String {
        remedy.split(THEN).map(|command| self.command(command)).collect::<Vec<_>>().join(THEN)
    }

    fn command(&self, command: &str) -> String {
        match (command.split_once(' '), &self.netns) {
            (Some(("netpolicy", rest)), _) if !self.options.is_empty() => {
                format!("netpolicy {} {rest}", self.options)
            }
            (Some(("ethtool", _)), Some(netns)) => inside(netns, command),
            // sysfs shows the devices of the namespace in which it was mounted.
            (Some(("echo", _)), Some(netns)) => {
                let mounted = format!("unshare --mount sh -c 'mount -t sysfs sysfs /sys && {command}'");
                inside(netns, &mounted)
            }
            _ => command.to_owned(),
        }
    }
}

impl HostContext {
    /// Puts what has to end first before a finding's remedy, and says so first: a queue that goes away takes with it what is
    /// set on it, which then cannot be restored, and what a running command has set no other may change.
    pub(super) fn ends_first(&self, netns: NetnsId, finding: &mut Finding) {
        let Some(remedy) = &finding.remedy else { return };
        let mut ends: Vec<&str> = Vec::new();
        for held in &self.held {
            if !remedy.split(THEN).any(|command| held.is_hit_by(command, netns)) {
                continue;
            }
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
}

impl Held {
    fn is_hit_by(&self, command: &str, netns: NetnsId) -> bool {
        let device = self.object.device().filter(|device| device.netns == netns);
        let is = |name: &str| device.is_some_and(|device| device.name.as_str() == name);
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["ethtool", "-L", name, _, queues] => {
                let queues: u32 = queues.parse().unwrap_or(u32::MAX);
                let index = match self.object {
                    Object::Queue(queue) => queue.index.0,
                    Object::TxQueue(queue) => queue.index.0,
                    _ => return false,
                };
                is(name) && index >= queues
            }
            ["netpolicy", "set", "device", name, ..] => self.has_owner && is(name),
            ["netpolicy", "set", "task", pid, ..] => {
                let process = self.object.process().map(|process| process.pid.to_string());
                self.has_owner && process.as_deref() == Some(pid)
            }
            _ => false,
        }
    }
}

/// A command that is typed here and works there.
pub(super) fn inside(netns: &str, command: &str) -> String {
    format!("nsenter --net={netns} {command}")
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{IfIndex, QueueIndex, RxQueue, Severity};

    fn held(index: u32, has_owner: bool) -> Held {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let object = Object::Queue(RxQueue { device, index: QueueIndex(index) });
        let (by, end) = ("netpolicy attach".to_owned(), "kill 7; tail --pid=7 -f /dev/null".to_owned());
        Held { object, by, end, has_owner }
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
            context.ends_first(NetnsId(1), &mut finding);
            let expected = if ends { format!("{first}{remedy}") } else { remedy.to_owned() };
            assert_eq!(finding.remedy, Some(expected));
            assert_eq!(finding.evidence[0].starts_with("in force on eth0"), ends, "{remedy}");
            finding.remedy = Some(remedy.to_owned());
            context.ends_first(NetnsId(2), &mut finding);
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
            assert_eq!(CommandPrefix::default().typed(remedy), remedy, "at home nothing has to be added");
        }
    }
}
