//! What the operator asks for: for which traffic, what it shall be good at, within which bounds.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::delivery::DeliveryMode;
use crate::glob::Patterns;
use crate::guard::Guard;
use crate::ids::{Fd, Pid};
use crate::layout::Layout;
use crate::nic::NicRequest;
use crate::policy_name::PolicyName;
use crate::recipe::Recipes;
use crate::scheduling::KthreadRequest;
use crate::selector::DeviceSelector;
use crate::units::Nanoseconds;

/// All that an operator asked for, in the order of the files it came from.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The requests.
    pub intents: Vec<Intent>,
    /// What the policies that they name come to. A policy that has no recipe here cannot be placed.
    #[serde(skip)]
    pub recipes: Arc<Recipes>,
    /// Whether recipes may want what stops a queue or takes the link down; else that is only proposed.
    #[serde(default)]
    pub disruptive: bool,
    /// Whether interrupts may be pinned whose queue the driver does not say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
}

/// One request.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// Whose traffic.
    pub target: Target,
    /// What it shall be good at.
    pub policy: PolicyName,
    /// The delivery mode, where an expert named one instead of leaving it to the policy.
    pub delivery: Option<DeliveryMode>,
    /// Why `delivery` is what a search found, where the operator did not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// Values that differ from the mode's start values.
    pub overrides: Overrides,
    /// Other requested values of the device. Of a device's request alone.
    #[serde(default)]
    pub nic: Vec<NicRequest>,
    /// How the scheduler shall treat the kernel threads of its NAPIs.
    #[serde(default, skip_serializing_if = "KthreadRequest::is_empty")]
    pub kthread: KthreadRequest,
    /// When it counts as reached.
    pub goal: Goal,
    /// What a change made for it must not hurt. Of a service's request alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// What it may cost.
    pub budget: Budget,
    /// The CPUs that its interrupts and threads shall run on; `None` leaves that to the recipe.
    pub cpus: Option<CpuSet>,
    /// How a device's queues and CPUs are put together; `None` leaves that to the recipe. Of a device's request alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// How many receive queues a service shall have for itself where a device is divided; `None` for one for each
    /// thread that waits, if its mode needs that. Of a service's or a task's request alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    /// Where it was asked: a file and line, or a command.
    pub origin: String,
}

impl Intent {
    /// A request for a policy, with nothing else said.
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
            budget: Budget::default(),
            cpus: None,
            layout: None,
            queues: None,
            origin: origin.into(),
        }
    }
}

/// Whose traffic a request is about.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A network device, by name.
    Device(String),
    /// Devices by what they are like: the name of the section, and which it is for. A plan has a request for each of them
    /// beside it.
    Devices(String, DeviceSelector),
    /// A service: its name, and how its processes are found.
    Service(String, Match),
    /// A process.
    Task(Pid),
    /// Some epolls of a process, by descriptor, with the sockets that they watch. No file asks for it: the sockets do.
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

/// How the processes of a service are found. A process must meet every condition that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// A systemd unit, as in `memcached.service`.
    pub unit: Option<Patterns>,
    /// A cgroup path below the cgroup root.
    pub cgroup: Option<Patterns>,
    /// An executable: a path, or a bare file name.
    pub exe: Option<Patterns>,
    /// A pod of Kubernetes: its name, its namespace and name (`shop/cart-*`), or its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Patterns>,
    /// A container: its name, or its id from the first character on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Patterns>,
    /// A port that the process listens on.
    pub port: Option<u16>,
    /// A user, by number.
    pub uid: Option<u32>,
}

impl fmt::Display for Match {
    /// `unit memcached.service, port 11211`
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

/// When a request counts as reached. Without any, "better than before" decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// The median response time, at most.
    pub p50: Option<Nanoseconds>,
    /// The 99th percentile, at most.
    pub p99: Option<Nanoseconds>,
    /// For how long it is missed before anything is done about it: [`Goal::FOR_LEAST`] to [`Goal::FOR_MOST`]; `None` for
    /// [`Goal::FOR`].
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub missed_for: Option<Nanoseconds>,
    /// What is done then. Of a service's request alone.
    #[serde(default, skip_serializing_if = "OnMissed::is_report")]
    pub on_missed: OnMissed,
}

impl Goal {
    /// For how long a goal is missed, unless something else is asked for, before anything is done about it.
    pub const FOR: Nanoseconds = Nanoseconds::from_millis(300_000);

    /// The shortest such time: what was measured for less says nothing of a percentile.
    pub const FOR_LEAST: Nanoseconds = Nanoseconds::from_millis(10_000);

    /// The longest: a day.
    pub const FOR_MOST: Nanoseconds = Nanoseconds::from_millis(86_400_000);

    /// Whether any percentile has a bound.
    pub const fn is_set(&self) -> bool {
        self.p50.is_some() || self.p99.is_some()
    }
}

/// What is done about a goal that is missed for longer than it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnMissed {
    /// A finding says so.
    #[default]
    Report,
    /// The daemon tries the candidates of the policy's ladder, under guard, and keeps what is better.
    Search,
}

impl OnMissed {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Report, Self::Search];

    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Search => "search",
        }
    }

    /// Whether it is reported, and nothing else.
    pub const fn is_report(&self) -> bool {
        matches!(self, Self::Report)
    }
}

/// What a request may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// How many CPUs may poll without traffic, at most. `None` allows none.
    pub polling_cpus: Option<u32>,
    /// By how much deferral may delay a packet on an idle application, at most.
    pub added_delay: Option<Nanoseconds>,
    /// The real-time priority of a kernel thread, at most. `None` allows [`Self::RT_PRIORITY_UNASKED`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rt_priority: Option<u32>,
}

impl Budget {
    /// The real-time priority that is allowed by default: that of the kernel's own interrupt threads, and below its
    /// watchdogs and migration threads.
    ///
    /// Kernel: 6.18, `kernel/sched/syscalls.c` `sched_set_fifo()`.
    pub const RT_PRIORITY_UNASKED: u32 = 50;
}
