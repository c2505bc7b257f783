//! Measures all mechanisms of a device together: on a NIC in memory, where settings take no kernel time, and
//! on a veth with the mechanisms that it supports.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Instant;

use apply::{Allow, Journal, Knobs};
use linux::lab::{Lab, LabOptions, SERVER_DEVICE};
use linux::{Kernel, Processes};
use model::host::{Coalesce, Pair, Rings};
use model::nic::{NicRequest, Rss};
use model::{
    CoalesceParam, CpuSet, DeliveryMode, FlagName, Host, Intent, Nanoseconds, Offload, Plan, Policy,
    PolicyName, QdiscKind, QueueSpan, RingKind, Setting, Target,
};

use super::{Done, ROUNDS, Times, asked, scratch};

/// The times that the operator's four steps take on a device.
#[derive(Default)]
struct Phases {
    show: Vec<std::time::Duration>,
    verify: Vec<std::time::Duration>,
    apply: Vec<std::time::Duration>,
    roll_back: Vec<std::time::Duration>,
}

impl Phases {
    fn say(self, what: &str) {
        println!("{what}:");
        for (phase, times) in [
            ("show -o json", self.show),
            ("verify", self.verify),
            ("apply", self.apply),
            ("rollback", self.roll_back),
        ] {
            println!("  {phase}: {}", Times(times));
        }
    }
}

/// Repeats the four steps on a host: `observe` reads the host, `knobs` writes its settings, and `check`
/// checks the findings of verify.
fn rounds<K: Knobs>(
    policy: &Policy,
    knobs: &mut K,
    mut observe: impl FnMut(&mut K) -> Done<Host>,
    check: impl Fn(&Plan) -> Done<()>,
) -> Done<(Phases, usize)> {
    let scratch = scratch()?;
    let journal = Journal::new(scratch.path().to_owned(), "bench".to_owned());
    let allow = Allow { disruptive: true, irreversible: false };
    let (mut phases, mut settings) = (Phases::default(), 0);
    for round in 0..=ROUNDS {
        let began = Instant::now();
        let mut shown = String::new();
        write!(shown, "{}", serde_json::to_string(&observe(knobs)?)?)?;
        let show = began.elapsed();

        let began = Instant::now();
        let plan = planned(policy, &observe(knobs)?)?;
        settings = plan.changes().count();
        let held = apply::commit(plan, knobs, &journal, &asked(), allow)?;
        let name = held.transaction().ok_or("nothing to apply")?;
        held.keep()?;
        let apply = began.elapsed();

        let began = Instant::now();
        let left = planned(policy, &observe(knobs)?)?;
        let verify = began.elapsed();
        check(&left)?;

        let began = Instant::now();
        let undone = journal.roll_back(name, knobs, asked().at)?;
        let roll_back = began.elapsed();
        if undone.stuck().next().is_some() {
            return Err("not every setting was restored".into());
        }
        // The first round fills caches, so it is not counted.
        if round > 0 {
            phases.show.push(show);
            phases.apply.push(apply);
            phases.verify.push(verify);
            phases.roll_back.push(roll_back);
        }
    }
    Ok((phases, settings))
}

fn planned(policy: &Policy, host: &Host) -> Done<Plan> {
    let placement = plan::place(policy, host, &plan::Resolved::default()).map_err(|r| r.to_string())?;
    let desired = plan::desired(&placement, host).map_err(|r| r.to_string())?;
    Ok(plan::diff(&desired, host).map_err(|r| r.to_string())?)
}

fn policy(nic: Vec<NicRequest>) -> Policy {
    let target = Target::Device(SERVER_DEVICE.to_owned());
    let delivery = Some(DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(20) });
    let intent = Intent { delivery, nic, ..Intent::new(target, PolicyName::Latency, "bench") };
    Policy { intents: vec![intent], ..Policy::default() }
}

/// Returns the settings that every veth of the lab supports.
fn of_a_veth() -> Done<Vec<NicRequest>> {
    Ok(vec![
        NicRequest::Offload(Offload::Gso, false),
        NicRequest::RpsCpus("0".parse::<CpuSet>()?),
        NicRequest::RpsFlowCount(4096),
        NicRequest::Xps(true),
        NicRequest::Qdisc(QdiscKind::Pfifo),
    ])
}

/// Measures the lab's device with all its settings, through the kernel.
pub(super) fn on_a_veth(queues: u32) -> Done<()> {
    let lab = Lab::new(&LabOptions::with_queues(queues))?;
    let observe = |_: &mut Kernel| Ok(linux::observe(lab.server(), &Processes::None)?);
    let in_force = |left: &Plan| match left.changes().next() {
        Some(change) => Err(format!("not in force: {change}").into()),
        None => Ok(()),
    };
    let (phases, settings) = rounds(&policy(of_a_veth()?), &mut Kernel::new(), observe, in_force)?;
    phases.say(&format!(
        "a veth of {queues} queues, with all its settings ({settings} settings), with the kernel"
    ));
    Ok(())
}

/// Measures a NIC in memory that has every mechanism: the measured time is only that of this program and of
/// the journal on disk.
pub(super) fn in_memory(queues: u32) -> Done<()> {
    let lab = Lab::new(&LabOptions::with_queues(queues))?;
    let host = with_everything(linux::observe(lab.server(), &Processes::None)?)?;
    let mut requests = of_a_veth()?;
    let rules: Vec<model::FlowRule> = (0..queues.min(64))
        .map(|queue| format!("tcp4 dst-port {} queue {queue}", 11_000 + queue).parse())
        .collect::<Result<_, _>>()?;
    let flag = FlagName::new("rx_striding_rq").ok_or("a name")?;
    requests.extend([
        NicRequest::Coalescing(CoalesceParam::RxUsecs, 8),
        NicRequest::Coalescing(CoalesceParam::TxUsecs, 8),
        NicRequest::Coalescing(CoalesceParam::AdaptiveRx, 0),
        NicRequest::RssQueues(queues / 2),
        NicRequest::RssContexts(vec![QueueSpan { first: queues / 2, count: queues / 2 }]),
        NicRequest::FlowRules(rules),
    ]);
    // The observed host does not change, so verification finds every setting missing, which is the worst
    // case.
    let timed = |policy: &Policy| {
        let mut nic = InMemory::before(&planned(policy, &host)?);
        rounds(policy, &mut nic, |_| Ok(host.clone()), |_| Ok(()))
    };
    let (phases, settings) = timed(&policy(requests))?;
    phases.say(&format!(
        "a NIC of {queues} queues in memory, all mechanisms ({settings} settings), without the kernel"
    ));
    // Settings that recreate queues form a separate transaction.
    let first = vec![
        NicRequest::Ring(RingKind::Rx, 1024),
        NicRequest::Ring(RingKind::Tx, 1024),
        NicRequest::Offload(Offload::Lro, false),
        NicRequest::PrivateFlags(vec![(flag, true)]),
    ];
    let mut remaking = policy(first);
    remaking.intents[0].delivery = Some(DeliveryMode::Interrupt);
    let (phases, settings) = timed(&remaking)?;
    phases.say(&format!(
        "the same NIC, settings that recreate its queues ({settings} settings), without the kernel"
    ));
    Ok(())
}

/// Gives the observed host a device with the features that a veth lacks.
fn with_everything(mut host: Host) -> Done<Host> {
    let at = host.devices.iter().position(|device| device.id.name.as_str() == SERVER_DEVICE);
    let device = &mut host.devices[at.ok_or("the device was not observed")?];
    let queues = u32::try_from(device.rx_queues.len())?;
    device.kind = "in-memory".to_owned();
    device.rings = Some(Rings { rx: Pair { current: 512, max: 4096 }, tx: Pair { current: 512, max: 4096 } });
    let moderation = Coalesce {
        rx_usecs: Some(50),
        tx_usecs: Some(50),
        adaptive_rx: Some(true),
        adaptive_tx: Some(true),
        ..Coalesce::default()
    };
    device.coalesce = Some(moderation);
    for queue in &mut device.rx_queues {
        queue.coalesce = Some(moderation);
    }
    device.rss = Some(Rss { table: QueueSpan { first: 0, count: queues }.table(256), key: vec![7; 40] });
    (device.rss_contexts, device.flow_rules) = (Some(Vec::new()), Some(Vec::new()));
    device.offloads.extend([(Offload::Ntuple, true), (Offload::Lro, true)]);
    device.private_flags.insert(FlagName::new("rx_striding_rq").ok_or("a name")?, false);
    Ok(host)
}

/// Settings that are kept in memory, initialised with the values in a plan.
struct InMemory(BTreeMap<(model::Object, &'static str), Setting>);

impl InMemory {
    fn before(plan: &Plan) -> Self {
        let found = plan.changes().map(|change| change.from().clone());
        Self(found.map(|setting| ((setting.object(), setting.knob()), setting)).collect())
    }
}

impl Knobs for InMemory {
    type Error = Infallible;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, Infallible> {
        let known = |one: &Setting| self.0.get(&(one.object(), one.knob())).unwrap_or(one).clone();
        Ok(like.iter().map(known).collect())
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), Infallible> {
        let written = settings.iter().map(|setting| ((setting.object(), setting.knob()), setting.clone()));
        self.0.extend(written);
        Ok(())
    }

    fn is_gone(_: &Infallible) -> bool {
        false
    }
}
