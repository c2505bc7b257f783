//! Assigns a CPU to each interrupt and thread of a request.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Cpu, CpuSet, DeviceId, Host, IrqKnob, Mechanism, ProcessKnob, Reason, RecipeEntry, RecipeValue, Recipes,
    RxQueue, Setting,
};

use crate::cpu_locality;
use crate::index::Index;
use crate::placement::PlacedRequest;
use crate::queue_object::Objects;
use crate::refusal::Refusal;
use crate::wanted::Collected;

/// Assigns the request's online CPUs in a cycle. The n-th interrupt and the n-th thread get the same CPU:
/// with one worker per queue, a packet is then processed and read on CPUs that share a cache. The order
/// depends only on identities, so the result for a host is always the same.
#[derive(Clone, Debug)]
pub(crate) struct Deal {
    cpus: Vec<Cpu>,
    next: usize,
}

impl Deal {
    /// Creates a cycle of the CPUs that are both requested and online; `None` if there are none.
    pub(crate) fn new(asked: &CpuSet, host: &Host) -> Option<Self> {
        let cpus: Vec<Cpu> = asked.intersection(&host.topology.online).iter().collect();
        (!cpus.is_empty()).then_some(Self { cpus, next: 0 })
    }

    /// Returns the next CPU of the cycle, as a set.
    pub(crate) fn next(&mut self) -> CpuSet {
        let cpu = self.cpus[self.next % self.cpus.len()];
        self.next += 1;
        [cpu].into_iter().collect()
    }
}

/// Selects the CPUs of one part of a placement: those of its interrupts and threads, and those whose wake-up
/// latency is limited.
pub(crate) struct PartCpus<'a> {
    pub(crate) part: &'a PlacedRequest,
    pub(crate) index: &'a Index<'a>,
    pub(crate) recipes: &'a Recipes,
    /// Whether to pin interrupts whose queue the driver does not report.
    pub(crate) inferred: bool,
}

/// A queue whose interrupt is not pinned, because the driver does not report the interrupt and netpolicy
/// inferred it.
struct InferredIrqs {
    device: DeviceId,
    evidence: String,
}

/// Adds one note per device with such queues, with one queue as evidence.
fn note_unsure(left: &[InferredIrqs], collected: &mut Collected) {
    let mut by_device: BTreeMap<DeviceId, (usize, &str)> = BTreeMap::new();
    for InferredIrqs { device, evidence } in left {
        by_device.entry(*device).or_insert((0, evidence)).0 += 1;
    }
    for (device, (queues, evidence)) in by_device {
        collected.note(format!(
            "{device}: {queues} interrupt(s) are not pinned: the driver does not report their queues, which were found by {evidence}; --allow-inferred pins them"
        ));
    }
}

impl PartCpus<'_> {
    /// Collects the CPUs of interrupts and threads: those of the request, or else those of the layout.
    pub(crate) fn affinity(&self, collected: &mut Collected) -> Result<(), Refusal> {
        if let Some(objects) = &self.part.objects {
            self.affinity_of_objects(objects, collected)?;
        }
        let Some(asked) = &self.part.intent.cpus else { return self.threads_beside(collected) };
        let Some(mut irqs) = Deal::new(asked, self.index.host) else { return Ok(()) };
        let origin = &self.part.intent.origin;
        let (mut dealt, mut left) = (BTreeMap::<_, CpuSet>::new(), Vec::new());
        for placed in self.part.queues.iter().filter(|_| self.part.objects.is_none()) {
            let Some(irq) = placed.irq else { continue };
            if let Some(inferred_irqs) = self.inferred_irqs(placed.queue) {
                left.push(inferred_irqs);
                continue;
            }
            let cpus = dealt.entry(irq).or_insert_with(|| irqs.next()).clone();
            let why =
                format!("interrupts of {} are spread over the requested CPUs {asked}", placed.queue.device);
            collected.want(Setting::Irq(irq, IrqKnob::Affinity(cpus)), Reason::new(why, origin.clone()))?;
        }
        note_unsure(&left, collected);
        // Processes with the same allowed CPUs share one cycle.
        let mut deals: BTreeMap<CpuSet, Option<Deal>> = BTreeMap::new();
        for process in &self.part.processes {
            let cpuset = self.index.processes.get(&process.id.pid).and_then(|p| p.cpuset.as_ref());
            let within = cpuset.map_or_else(|| asked.clone(), |cpuset| asked.intersection(cpuset));
            let deal = deals.entry(within.clone()).or_insert_with(|| Deal::new(&within, self.index.host));
            let Some(threads) = deal else {
                collected.desired.notes.push(format!(
                    "none of the requested CPUs {asked} is in the cpuset of {}: its threads are not moved",
                    process.id
                ));
                continue;
            };
            for &thread in &process.threads {
                let why = format!("threads of {} are spread over CPUs {within}", process.id);
                collected.want(
                    Setting::Process(ProcessKnob::ThreadAffinity(thread, threads.next())),
                    Reason::new(why, origin.clone()),
                )?;
            }
        }
        Ok(())
    }

    /// Collects the CPUs of the interrupts of a layout's objects.
    fn affinity_of_objects(&self, objects: &Objects, collected: &mut Collected) -> Result<(), Refusal> {
        let intent = &self.part.intent;
        let because = match (&intent.layout, self.entry(Mechanism::Layout)) {
            (Some(layout), _) => {
                Reason::new(format!("layout {layout} is set explicitly"), intent.origin.clone())
            }
            (None, Some(because)) => because,
            (None, None) => return Ok(()),
        };
        let (mut dealt, mut left) = (BTreeSet::new(), Vec::new());
        for object in &objects.objects {
            for &queue in &object.rx {
                let irq = self.index.napi_of(queue).and_then(|napi| napi.irq).map(|edge| edge.irq);
                if let Some(inferred_irqs) = self.inferred_irqs(queue).filter(|_| irq.is_some()) {
                    left.push(inferred_irqs);
                    continue;
                }
                if let Some(irq) = irq.filter(|irq| dealt.insert(*irq) && self.index.irqs.contains_key(irq)) {
                    collected.want(
                        Setting::Irq(irq, IrqKnob::Affinity(object.irq_cpus.clone())),
                        because.clone(),
                    )?;
                }
            }
        }
        note_unsure(&left, collected);
        Ok(())
    }

    /// Returns why a queue's interrupt is not pinned: the driver does not report the interrupt. Returns
    /// `None` if the driver reports it, or if the operator allows inferred interrupts.
    fn inferred_irqs(&self, queue: RxQueue) -> Option<InferredIrqs> {
        let device = self.index.devices.get(&queue.device)?;
        let edge = self.index.napi_of(queue)?.irq?;
        let irq = self.index.irqs.get(&edge.irq).copied();
        let certainty = self.recipes.nics.irq_certainty(device, queue, edge, irq);
        let name = irq.map_or_else(String::new, |irq| format!(" `{}`", irq.name));
        let evidence = format!("{queue} → irq {}{name}, {}", edge.irq, certainty.words());
        (!self.inferred && !certainty.is_of_driver())
            .then_some(InferredIrqs { device: queue.device, evidence })
    }

    /// Puts threads on the CPUs of their queues' interrupts, if the recipe requests that.
    fn threads_beside(&self, collected: &mut Collected) -> Result<(), Refusal> {
        let Some(RecipeValue::Switch(true)) = self.value(Mechanism::Threads) else { return Ok(()) };
        let Some(because) = self.entry(Mechanism::Threads) else { return Ok(()) };
        let irqs = self.part.queues.iter().filter_map(|placed| placed.irq);
        let of_irq = |irq| match collected.wanted_of_irq(irq) {
            Some(cpus) => cpus.clone(),
            None => self.index.irqs.get(&irq).map(|irq| irq.affinity.clone()).unwrap_or_default(),
        };
        let near: CpuSet = irqs.flat_map(|irq| of_irq(irq).iter().collect::<Vec<_>>()).collect();
        let near = near.intersection(&cpu_locality::allowed(&self.part.intent, self.index.host));
        for process in self.part.processes.iter().filter_map(|p| self.index.processes.get(&p.id.pid)) {
            let cpus = process.cpuset.as_ref().map_or_else(|| near.clone(), |own| near.intersection(own));
            for thread in process.threads.iter().filter(|_| !cpus.is_empty()) {
                collected.want(
                    Setting::Process(ProcessKnob::ThreadAffinity(thread.id, cpus.clone())),
                    because.clone(),
                )?;
            }
        }
        Ok(())
    }

    /// Returns the value of a mechanism in the part's recipe.
    fn value(&self, mechanism: Mechanism) -> Option<&RecipeValue> {
        self.found(mechanism).map(|found| &found.value)
    }

    fn found(&self, mechanism: Mechanism) -> Option<&RecipeEntry> {
        self.recipes.agreed(self.part.intent.policy, mechanism, &self.part.circumstances).entry
    }

    /// Returns the reason that the part's recipe gives for a mechanism.
    fn entry(&self, mechanism: Mechanism) -> Option<Reason> {
        let intent = &self.part.intent;
        let found = self.found(mechanism)?;
        let source = format!("{}: policy {}, {}", intent.origin, intent.policy, found.because.source);
        Some(Reason::new(found.because.why.clone(), source))
    }

    /// Collects the limit on the CPUs' wake-up latency. Of several requests' limits, the lowest applies.
    pub(crate) fn wake_latency(&self, collected: &mut Collected) {
        if self.part.queues.is_empty() && self.part.processes.is_empty() {
            return;
        }
        let Some(RecipeValue::Number(micros)) = self.value(Mechanism::WakeLatency) else { return };
        let Some(because) = self.entry(Mechanism::WakeLatency) else { return };
        if collected.desired.wake_latency.as_ref().is_none_or(|(least, _)| micros < least) {
            collected.desired.wake_latency = Some((*micros, because));
        }
    }
}
