//! The configurations that the evaluation of policies compares: no tuning, the usual manual tuning, each
//! policy, and delivery modes.

use std::fmt;
use std::str::FromStr;

use model::{
    Change, Cpu, CpuSet, DeliveryMode, Host, Intent, IrqKnob, Plan, PolicyName, ProcessId, ProcessKnob,
    QueueIndex, Reason, RxQueueKnob, Setting, Step, Target, TxQueue, TxQueueKnob,
};

/// A way to set up the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// The usual manual tuning: no irqbalance, each queue on its own CPU, each server thread on its own CPU.
    Manual,
    /// A policy; `none` is the baseline.
    Policy(PolicyName),
    /// Only a delivery mode.
    Delivery(DeliveryMode),
}

impl Tuning {
    /// All tunings, the baseline first.
    pub const ALL: [Self; 7] = [
        Self::Policy(PolicyName::None),
        Self::Manual,
        Self::Policy(PolicyName::Latency),
        Self::Policy(PolicyName::Bulk),
        Self::Policy(PolicyName::Cpu),
        Self::Policy(PolicyName::Mix),
        Self::Policy(PolicyName::Power),
    ];

    /// The tunings with which the others are compared over all variants.
    pub const REFERENCES: [Self; 2] = [Self::Policy(PolicyName::None), Self::Manual];
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manual => f.pad("manual"),
            Self::Policy(policy) => f.pad(policy.as_str()),
            Self::Delivery(mode) => f.pad(&format!("{DELIVERY}{mode}")),
        }
    }
}

/// The prefix of a delivery mode, so that no mode is mistaken for a policy.
const DELIVERY: &str = "delivery ";

/// The error for a text that is not a tuning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; here also manual")]
pub struct NotATuning(model::policy_name::NotAPolicy);

impl FromStr for Tuning {
    type Err = NotATuning;

    fn from_str(text: &str) -> Result<Self, NotATuning> {
        if text == "manual" {
            return Ok(Self::Manual);
        }
        if let Some(Ok(mode)) = text.strip_prefix(DELIVERY).map(str::parse) {
            return Ok(Self::Delivery(mode));
        }
        text.parse().map(Self::Policy).map_err(NotATuning)
    }
}

/// The origin that the requests name.
const ORIGIN: &str = "netpolicy bench policies";

/// Returns the requests of a policy for a device and its servers, each of which has the policy that suits its
/// workload. Under `mix`, the device is shared and each server has its own request; under any other policy,
/// all have the same request.
///
/// A delivery mode, which can be combined with any policy but `mix`, applies to device and servers.
pub(crate) fn requests(
    policy: PolicyName,
    delivery: Option<DeliveryMode>,
    device: &str,
    servers: &[(ProcessId, PolicyName)],
) -> Vec<Intent> {
    let of_server = |own: PolicyName| if policy == PolicyName::Mix { own } else { policy };
    let servers = servers.iter().map(|(server, own)| (Target::Task(server.pid), of_server(*own)));
    let device = (Target::Device(device.to_owned()), policy);
    let targets = std::iter::once(device).chain(servers);
    let intent = |(target, policy)| Intent { delivery, ..Intent::new(target, policy, ORIGIN) };
    targets.map(intent).collect()
}

/// Plans the manual tuning. For each queue i: its interrupt goes to the i-th CPU, or if it has no interrupt,
/// its packets are steered to that CPU (RPS). Only that CPU transmits on the queue (XPS), and only the
/// server's i-th thread runs on that CPU.
pub(crate) fn by_hand(host: &Host, device: &str, servers: &[ProcessId], cpus: &CpuSet) -> Plan {
    let cpus: Vec<Cpu> = cpus.iter().collect();
    let one = |index: usize| -> CpuSet {
        index.checked_rem(cpus.len()).and_then(|turn| cpus.get(turn)).copied().into_iter().collect()
    };
    let place = |index: QueueIndex| one(usize::try_from(index.0).unwrap_or(usize::MAX));
    let mut settings = Vec::new();
    if let Some(device) = host.device_named(device) {
        for queue in &device.rx_queues {
            let interrupt = host.napi_of(queue.id).and_then(|napi| host.irq(napi.irq?.irq));
            if let Some(irq) = interrupt {
                let of = |cpus| Setting::Irq(irq.number, IrqKnob::Affinity(cpus));
                settings.push((of(irq.affinity.clone()), of(place(queue.id.index))));
                continue;
            }
            let steered = Setting::RxQueue(queue.id, RxQueueKnob::RpsCpus(place(queue.id.index)));
            settings
                .push((Setting::RxQueue(queue.id, RxQueueKnob::RpsCpus(queue.rps_cpus.clone())), steered));
        }
        // A device with one queue has no XPS setting, and no file for it.
        for queue in device.tx_queues.iter().filter(|_| device.tx_queues.len() > 1) {
            let id = TxQueue { device: device.id, index: queue.index };
            let now = Setting::TxQueue(id, TxQueueKnob::XpsCpus(queue.xps_cpus.clone()));
            settings.push((now, Setting::TxQueue(id, TxQueueKnob::XpsCpus(place(queue.index)))));
        }
    }
    for process in host.processes.iter().filter(|process| servers.contains(&process.id)) {
        for (index, thread) in process.threads.iter().enumerate() {
            let now = Setting::Process(ProcessKnob::ThreadAffinity(thread.id, thread.affinity.clone()));
            settings.push((now, Setting::Process(ProcessKnob::ThreadAffinity(thread.id, one(index)))));
        }
    }
    let because = || Reason::new("one queue, one CPU, one thread", "netpolicy bench policies: manual");
    let steps = settings.into_iter().filter(|(from, to)| from != to);
    Plan { steps: steps.map(|(from, to)| Step::new(vec![Change::new(from, to, because())])).collect() }
}

#[cfg(test)]
mod test {
    use model::{Label, Pid};

    use super::*;

    #[test]
    fn every_tuning_survives_its_name_and_the_baseline_is_first() {
        let mode = Tuning::Delivery("defer50".parse().expect("a mode"));
        for tuning in Tuning::ALL.into_iter().chain([mode]) {
            assert_eq!(tuning.to_string().parse(), Ok(tuning));
        }
        assert_eq!(Tuning::ALL[0].to_string(), "none");
        let policies = Tuning::ALL.iter().filter(|tuning| matches!(tuning, Tuning::Policy(_))).count();
        assert_eq!(policies, PolicyName::ALL.len(), "every policy is measured");
        let error = "fast".parse::<Tuning>().expect_err("is none").to_string();
        assert!(error.contains("latency") && error.ends_with("also manual"), "{error}");
    }

    #[test]
    fn by_hand_an_interrupt_goes_to_its_cpu_and_a_queue_without_one_is_steered() {
        let host: Host = serde_json::from_str(include_str!(
            "../../../../crates/netpolicy/tests/hosts/qemu-virtio-igb.json"
        ))
        .expect("a recorded host");
        let cpus: CpuSet = [Cpu(1)].into_iter().collect();
        let knobs = |host: &Host, device: &str| {
            let plan = by_hand(host, device, &[], &cpus);
            plan.changes().map(|change| change.to().knob().to_string()).collect::<Vec<_>>()
        };
        let with_interrupts = knobs(&host, "virtio0");
        assert!(with_interrupts.iter().any(|knob| knob.contains("affinity")), "{with_interrupts:?}");
        assert!(!with_interrupts.iter().any(|knob| knob == "rps_cpus"), "{with_interrupts:?}");
        let none = Host { irqs: Vec::new(), ..host.clone() };
        let steered = knobs(&none, "virtio0");
        assert!(steered.iter().any(|knob| knob == "rps_cpus"), "{steered:?}");
    }

    #[test]
    fn under_mix_each_server_asks_for_itself_and_else_all_ask_for_the_same() {
        let server = |pid| ProcessId { pid: Pid(pid), started: 1, comm: Label::new("server") };
        let servers = [(server(1), PolicyName::Bulk), (server(2), PolicyName::Latency)];
        let asked = |policy| {
            let requests = requests(policy, None, "veth0", &servers);
            let words = requests.iter().map(|intent| format!("{}: {}", intent.target, intent.policy));
            words.collect::<Vec<_>>()
        };
        assert_eq!(asked(PolicyName::Mix), ["device veth0: mix", "task 1: bulk", "task 2: latency"]);
        assert_eq!(asked(PolicyName::Cpu), ["device veth0: cpu", "task 1: cpu", "task 2: cpu"]);
    }
}
