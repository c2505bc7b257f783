//! Represents the operator's requests: for which traffic, with which goal, within which limits.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::delivery::DeliveryMode;
use crate::glob::Patterns;
use crate::guard::Guard;
use crate::holdback::Holdback;
use crate::ids::{Fd, Pid};
use crate::layout::Layout;
use crate::nic::NicRequest;
use crate::policy_name::PolicyName;
use crate::recipe::Recipes;
use crate::scheduling::KthreadRequest;
use crate::selector::DeviceSelector;
use crate::units::Nanoseconds;

/// All of an operator's requests, in the order of the files they came from.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The requests.
    pub intents: Vec<Intent>,
    /// The recipes that the policies resolve to. A policy without a recipe cannot be applied.
    #[serde(skip)]
    pub recipes: Arc<Recipes>,
    /// Whether changes by recipes may stop a queue or take the link down; if not, netpolicy only proposes
    /// such changes.
    #[serde(default)]
    pub disruptive: bool,
    /// Whether an interrupt may be pinned even if the driver does not report which queue it serves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
}

/// One request.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The device or application to whose traffic the request applies.
    pub target: Target,
    /// The policy, which says what the traffic should be optimized for.
    pub policy: PolicyName,
    /// The delivery mode, if the request names one instead of leaving it to the policy.
    pub delivery: Option<DeliveryMode>,
    /// Why a search chose `delivery`, if the operator did not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// Values that differ from the mode's start values.
    pub overrides: Overrides,
    /// Other requested values of a device. Only a device's request can have them.
    #[serde(default)]
    pub nic: Vec<NicRequest>,
    /// How to schedule the kernel threads of the NAPIs that serve the target.
    #[serde(default, skip_serializing_if = "KthreadRequest::is_empty")]
    pub kthread: KthreadRequest,
    /// The response time that the target should reach.
    pub goal: Goal,
    /// The limits that a change for this request must not exceed. Only a service's request can have limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// The share of the time for which the service may run without its policy, so that netpolicy can measure
    /// whether the policy helps; `None` for no such measurement. Only a service's request can have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holdback: Option<Holdback>,
    /// The reaction if that measurement shows that the policy harms.
    #[serde(default, skip_serializing_if = "OnReversed::is_report")]
    pub on_reversed: OnReversed,
    /// What the request may cost in CPUs, delay and priority.
    pub budget: Budget,
    /// The CPUs for the target's interrupts and threads; `None` leaves the choice to the recipe.
    pub cpus: Option<CpuSet>,
    /// How a device's queues are assigned to CPUs; `None` leaves the choice to the recipe. Only in a device's
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// The number of dedicated receive queues for a service on a shared device; `None` for one per waiting
    /// thread if the mode needs that. Only a service's or task's request can have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    /// The origin of the request: a file and line, or a command.
    pub origin: String,
}

impl Intent {
    /// Creates a request for a policy with default options.
    pub fn new(target: Target, policy: PolicyName, origin: impl Into<String>) -> Self {
        Self {
            target,
            policy,
            delivery: None,
            found: None,
            overrides: Overrides::default(),
            nic: Vec::new(),
            kthread: KthreadRequest::default(),
            goal: Goal::default(),
            guard: None,
            holdback: None,
            on_reversed: OnReversed::default(),
            budget: Budget::default(),
            cpus: None,
            layout: None,
            queues: None,
            origin: origin.into(),
        }
    }
}

/// The device or application whose traffic a request applies to.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A network device, by name.
    Device(String),
    /// The devices that match conditions: the section's name, and the conditions. A plan also has one request
    /// for each matching device.
    Devices(String, DeviceSelector),
    /// A service: its name, and how to find its processes.
    Service(String, Match),
    /// A process.
    Task(Pid),
    /// Some epolls of a process, by descriptor, and the sockets that they watch. Only requests that sockets
    /// make have this target, never those in a policy file.
    Epolls(Pid, Vec<Fd>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => write!(f, "device {name}"),
            Self::Devices(name, _) => write!(f, "devices {name}"),
            Self::Service(name, _) => write!(f, "service {name}"),
            Self::Task(pid) => write!(f, "task {pid}"),
            Self::Epolls(pid, epolls) => {
                let numbers: Vec<String> = epolls.iter().map(Fd::to_string).collect();
                write!(f, "epoll {} of task {pid}", numbers.join(", "))
            }
        }
    }
}

/// How to find the processes of a service. A process must match every condition that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// A systemd unit, such as `memcached.service`.
    pub unit: Option<Patterns>,
    /// A cgroup path below the cgroup root.
    pub cgroup: Option<Patterns>,
    /// An executable: a path, or a bare file name.
    pub exe: Option<Patterns>,
    /// A Kubernetes pod: its name, namespace and name (`shop/cart-*`), or uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Patterns>,
    /// A container: its name, or the beginning of its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Patterns>,
    /// A port that the process listens on.
    pub port: Option<u16>,
    /// A user id.
    pub uid: Option<u32>,
}

impl fmt::Display for Match {
    /// Formats the conditions, such as `unit memcached.service, port 11211`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.unit.as_ref().map(|unit| format!("unit {unit}")),
            self.cgroup.as_ref().map(|cgroup| format!("cgroup {cgroup}")),
            self.exe.as_ref().map(|exe| format!("exe {exe}")),
            self.pod.as_ref().map(|pod| format!("pod {pod}")),
            self.container.as_ref().map(|container| format!("container {container}")),
            self.port.map(|port| format!("port {port}")),
            self.uid.map(|uid| format!("uid {uid}")),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Values that differ from a delivery mode's start values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrides {
    /// Instead of [`crate::DeliveryParams::defer_hard_irqs`].
    pub defer_hard_irqs: Option<u32>,
    /// Instead of [`crate::DeliveryParams::gro_flush_timeout`].
    pub gro_flush_timeout: Option<Nanoseconds>,
    /// Instead of [`crate::DeliveryParams::irq_suspend_timeout`].
    pub irq_suspend_timeout: Option<Nanoseconds>,
}

/// The response time to reach. Without a bound, a change only has to be an improvement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// The maximum median response time.
    pub p50: Option<Nanoseconds>,
    /// The maximum 99th percentile of the response time.
    pub p99: Option<Nanoseconds>,
    /// How long the goal must be missed before netpolicy reacts: 10 s to 24 h; `None` for 5 minutes.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub missed_for: Option<Nanoseconds>,
    /// The reaction to a missed goal. Only a service's request can have one.
    #[serde(default, skip_serializing_if = "OnMissed::is_report")]
    pub on_missed: OnMissed,
}

impl Goal {
    /// The default time for which a goal must be missed before netpolicy reacts.
    pub const FOR: Nanoseconds = Nanoseconds::from_millis(300_000);

    /// The minimum of [`Goal::missed_for`]: a shorter time does not suffice to measure a percentile.
    pub const FOR_LEAST: Nanoseconds = Nanoseconds::from_millis(10_000);

    /// The maximum of [`Goal::missed_for`]: a day.
    pub const FOR_MOST: Nanoseconds = Nanoseconds::from_millis(86_400_000);

    /// Whether any percentile has a bound.
    pub const fn is_set(&self) -> bool {
        self.p50.is_some() || self.p99.is_some()
    }
}

/// The reaction to a goal that is missed for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnMissed {
    /// A finding reports the missed goal.
    #[default]
    Report,
    /// The daemon tries the delivery modes on the policy's ladder (its list of candidates), under guard, and
    /// keeps one that is better.
    Search,
}

impl OnMissed {
    /// All reactions.
    pub const ALL: [Self; 2] = [Self::Report, Self::Search];

    /// Returns the word for the reaction in policy files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Search => "search",
        }
    }

    /// Whether a missed goal is only reported.
    pub const fn is_report(&self) -> bool {
        matches!(self, Self::Report)
    }
}

/// The reaction if a measurement shows that a policy harms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnReversed {
    /// A finding reports the harm.
    #[default]
    Report,
    /// The daemon rolls the policy back, until the request changes or the daemon is told to reload.
    Rollback,
}

impl OnReversed {
    /// All reactions.
    pub const ALL: [Self; 2] = [Self::Report, Self::Rollback];

    /// Returns the word for the reaction in policy files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Rollback => "rollback",
        }
    }

    /// Whether the harm is only reported.
    pub const fn is_report(&self) -> bool {
        matches!(self, Self::Report)
    }
}

/// What a request may cost in CPUs, delay and priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The maximum number of CPUs that may busy-poll without traffic. `None` allows none.
    pub polling_cpus: Option<u32>,
    /// The maximum delay that deferral may add to a packet of an idle application.
    pub added_delay: Option<Nanoseconds>,
    /// The maximum real-time priority of a kernel thread. `None` allows [`Self::RT_PRIORITY_UNASKED`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rt_priority: Option<u32>,
}

impl Budget {
    /// The real-time priority that is allowed by default: it equals that of the kernel's interrupt threads,
    /// and is below that of its watchdogs and migration threads.
    ///
    /// Kernel: 6.18, `kernel/sched/syscalls.c` `sched_set_fifo()`.
    pub const RT_PRIORITY_UNASKED: u32 = 50;
}
