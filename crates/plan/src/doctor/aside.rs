//! What is known beside the host that was observed: of other namespaces, of the time that passed, of the operator's shell.

use std::collections::BTreeMap;

use model::host::{IdleDepth, Other};
use model::{DeviceId, Label, Nanoseconds, Pid};

/// What the rules may know beside the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aside {
    /// The other ends of veths, where they are in another namespace and could be found.
    pub peers: BTreeMap<DeviceId, Peer>,
    /// How long was watched for [`Aside::cpu_waits`]. Longer than what was counted, which are samples of it.
    pub watched: Nanoseconds,
    /// For how much of that time a thread of the process that waits in epolls was ready to run and had no
    /// CPU; of several threads the longest.
    pub cpu_waits: BTreeMap<Pid, Nanoseconds>,
    /// What others were told to set that netpolicy sets, too.
    pub others: Vec<Other>,
    /// How deep CPUs may sleep; `None` where the kernel chooses no idle states, or that could not be read.
    pub idle: Option<IdleDepth>,
    /// How the commands that mend have to be typed.
    pub way: Way,
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
pub struct Way {
    /// What `netpolicy` needs before a command, as in `--netns web`; empty for nothing.
    pub ours: String,
    /// A file that stands for the namespace; `None` for the operator's own.
    pub netns: Option<String>,
}

/// What stands between the commands of a remedy.
pub(super) const THEN: &str = "; ";

impl Way {
    /// A remedy as it has to be typed from where the operator is. What is no command stays as it is.
    pub(super) fn typed(&self, remedy: &str) -> String {
        remedy.split(THEN).map(|command| self.command(command)).collect::<Vec<_>>().join(THEN)
    }

    fn command(&self, command: &str) -> String {
        match (command.split_once(' '), &self.netns) {
            (Some(("netpolicy", rest)), _) if !self.ours.is_empty() => {
                format!("netpolicy {} {rest}", self.ours)
            }
            (Some(("ethtool", _)), Some(netns)) => inside(netns, command),
            // The files of sysfs are those of the namespace in which it was mounted.
            (Some(("echo", _)), Some(netns)) => {
                let mounted = format!("unshare --mount sh -c 'mount -t sysfs sysfs /sys && {command}'");
                inside(netns, &mounted)
            }
            _ => command.to_owned(),
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

    #[test]
    fn a_remedy_for_another_namespace_is_typed_from_here() {
        let way = Way { ours: "--netns web".to_owned(), netns: Some("/run/netns/web".to_owned()) };
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
            assert_eq!(way.typed(remedy), typed);
            assert_eq!(Way::default().typed(remedy), remedy, "at home nothing has to be added");
        }
    }
}
