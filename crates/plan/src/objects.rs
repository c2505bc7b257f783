//! Turns a layout into objects: queues, interrupts and CPUs that belong together.

use model::host::Device;
use model::{CpuSet, Layout, ObjectSpec, QueueIndex};

use crate::cpu_locality::NearCores;
use crate::placed::PlacedQueue;
use crate::queue_object::{Objects, QueueObject};
use crate::queues_after::QueuesAfter;
use crate::refusal::{Refusal, RefusalKind};

/// Groups a device's queues according to a layout. Equal input gives equal objects.
///
/// # Errors
/// [`RefusalKind::Usage`] if an explicit layout names queues that do not exist, [`RefusalKind::Missing`] if
/// the CPUs of an object, or all CPUs, are unusable.
pub(crate) fn objects(
    layout: &Layout,
    device: &Device,
    queues: &[&PlacedQueue],
    near: NearCores,
    allowed: &CpuSet,
) -> Result<Objects, Refusal> {
    if near.cores() == 0 {
        let message = format!("no CPU may be used for layout {layout}");
        return Err(Refusal::new(RefusalKind::Missing, device.id, message)
            .because("all online CPUs are isolated, or the request names none of them"));
    }
    let mut notes = Vec::new();
    if near.local_is_closed && *layout == Layout::LocalNuma {
        notes.push(format!(
            "no CPU of the NUMA node of {} may be used: layout local-numa uses others",
            device.id
        ));
    }
    let mut made = match layout {
        Layout::OneToOne => spread(queues, &near, near.in_turn().len()),
        Layout::LocalNuma => {
            let near = near.local();
            let cpus = near.in_turn().len();
            spread(queues, &near, cpus)
        }
        Layout::RxPerCore => {
            let cores = near.cores();
            let mut made = spread(queues, &near, cores);
            if queues.len() > cores && device.rss.is_some() {
                made.spread = u32::try_from(cores).ok();
                notes.push(format!(
                    "{} has {} receive queues for {cores} cores: packets are spread over the first {cores} queues",
                    device.id,
                    queues.len()
                ));
            }
            made
        }
        Layout::Shared(count) => shared(queues, &near, *count, &mut notes),
        Layout::Explicit(requests) => {
            check_queues(layout, device, &QueuesAfter::default())?;
            explicit(requests, device, queues, allowed)?
        }
    };
    if !matches!(layout, Layout::Explicit(_)) {
        deal_transmit_queues(&mut made.objects, device);
    }
    made.notes = notes;
    Ok(made)
}

/// Creates one object for each of the first `width` CPUs. Queue i belongs to CPU i, and every other CPU joins
/// the nearest object.
fn spread(queues: &[&PlacedQueue], near: &NearCores, width: usize) -> Objects {
    let turn = near.in_turn();
    let used = width.min(queues.len()).min(turn.len());
    let mut objects: Vec<QueueObject> = turn[..used]
        .iter()
        .map(|&cpu| QueueObject {
            irq_cpus: [cpu].into_iter().collect(),
            senders: vec![cpu],
            ..QueueObject::default()
        })
        .collect();
    if objects.is_empty() {
        return Objects::default();
    }
    for (at, placed) in queues.iter().enumerate() {
        objects[at % used].rx.push(placed.queue);
    }
    for &cpu in &turn[used..] {
        let nearest = (0..used)
            .min_by_key(|&at| (near.distance(objects[at].senders[0], cpu), objects[at].senders.len(), at));
        objects[nearest.unwrap_or(0)].senders.push(cpu);
    }
    Objects { objects, ..Objects::default() }
}

/// Creates one object with all queues, on this many CPUs.
fn shared(queues: &[&PlacedQueue], near: &NearCores, count: u32, notes: &mut Vec<String>) -> Objects {
    let turn = near.in_turn();
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    if wanted > turn.len() {
        notes.push(format!("layout shared:{count}: only {} CPUs may be used", turn.len()));
    }
    let mut objects: Vec<QueueObject> = turn
        .iter()
        .take(wanted.min(queues.len()))
        .map(|&cpu| QueueObject { irq_cpus: [cpu].into_iter().collect(), ..QueueObject::default() })
        .collect();
    let used = objects.len().max(1);
    for (at, placed) in queues.iter().enumerate() {
        objects[at % used].rx.push(placed.queue);
    }
    Objects { objects, ..Objects::default() }
}

/// Checks that an explicit layout names only queues that the device has or will have.
///
/// # Errors
/// [`RefusalKind::Usage`] for the first queue that the device lacks.
pub(crate) fn check_queues(layout: &Layout, device: &Device, after: &QueuesAfter) -> Result<(), Refusal> {
    let Layout::Explicit(requests) = layout else { return Ok(()) };
    let (rx, tx) = (after.rx(device), after.tx(device));
    let of_kind = |named: Option<QueueIndex>, count: u32, kind: &str| match named {
        Some(QueueIndex(index)) => Err(Refusal::new(
            RefusalKind::Usage,
            device.id,
            format!("layout: it has no {kind} queue {index}"),
        )
        .nearest(format!("{kind} queues 0 to {}", count.saturating_sub(1)))),
        None => Ok(()),
    };
    requests.iter().try_for_each(|request| {
        of_kind(request.rx.iter().copied().find(|queue| queue.0 >= rx), rx, "receive")?;
        of_kind(request.tx.iter().copied().find(|queue| queue.0 >= tx), tx, "transmit")
    })
}

/// Creates the objects of an explicit layout.
fn explicit(
    requests: &[ObjectSpec],
    device: &Device,
    queues: &[&PlacedQueue],
    allowed: &CpuSet,
) -> Result<Objects, Refusal> {
    let mut objects = Vec::with_capacity(requests.len());
    for request in requests {
        let mut rx = Vec::with_capacity(request.rx.len());
        for index in &request.rx {
            let serves = |placed: &&&PlacedQueue| {
                placed.queue.index == *index || placed.also.iter().any(|also| also.index == *index)
            };
            rx.extend(queues.iter().find(serves).map(|placed| placed.queue));
        }
        let cpus = request.cpus.intersection(allowed);
        if cpus.is_empty() {
            let message = format!("layout: none of the CPUs {} may be used", request.cpus);
            let refusal = Refusal::new(RefusalKind::Missing, device.id, message);
            return Err(refusal.because(format!("may be used: {allowed}")));
        }
        let senders = cpus.iter().collect();
        objects.push(QueueObject { rx, tx: request.tx.clone(), irq_cpus: cpus.clone(), cpus, senders });
    }
    Ok(Objects { objects, ..Objects::default() })
}

/// If the objects have sending CPUs, distributes transmit queues over the objects: queue j belongs to object
/// j modulo the number of objects.
fn deal_transmit_queues(objects: &mut [QueueObject], device: &Device) {
    let count = objects.len().max(1);
    for (at, object) in objects.iter_mut().enumerate() {
        if !object.senders.is_empty() {
            object.tx = device.tx_queues.iter().skip(at).step_by(count).map(|queue| queue.index).collect();
        }
        object.cpus = object.irq_cpus.iter().chain(object.senders.iter().copied()).collect();
    }
}
