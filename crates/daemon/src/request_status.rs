//! Determines the status of each request, as reported in the daemon's status.

use std::collections::{BTreeMap, BTreeSet};

use model::{Host, Intent, Object, Pid, Policy, Target, Threading};
use plan::PlacedRequest;

use crate::placing::Placed;
use crate::status::{Polling, RequestExtent, RequestStatus};

/// Returns the status of each request of a policy.
pub(crate) fn requests(policy: &Policy, placed: &Placed) -> Vec<RequestStatus> {
    let parts = placed.placement.iter().flat_map(|placement| &placement.parts);
    let by_place: BTreeMap<usize, &PlacedRequest> = placed.followed.iter().copied().zip(parts).collect();
    let mut wanted: BTreeMap<Object, usize> = BTreeMap::new();
    for knob in &placed.desired.wanted {
        *wanted.entry(knob.setting.object()).or_default() += 1;
    }
    let mut differing: BTreeMap<Object, usize> = BTreeMap::new();
    for change in placed.plan.changes() {
        *differing.entry(change.to().object()).or_default() += 1;
    }
    let each = policy.intents.iter().enumerate();
    each.map(|(place, intent)| match by_place.get(&place) {
        Some(part) => followed(intent, part, &objects_of(part, placed), &wanted, &differing),
        None => waiting(intent, place, placed),
    })
    .collect()
}

fn followed(
    intent: &Intent,
    part: &PlacedRequest,
    objects: &BTreeSet<Object>,
    wanted: &BTreeMap<Object, usize>,
    differing: &BTreeMap<Object, usize>,
) -> RequestStatus {
    let sum =
        |of: &BTreeMap<Object, usize>| objects.iter().filter_map(|object| of.get(object)).sum::<usize>();
    let epolls = part.processes.iter().map(|process| process.epolls.len() + process.rings.len()).sum();
    let all = sum(wanted);
    RequestStatus {
        target: intent.target.to_string(),
        policy: intent.policy.to_string(),
        delivery: part.delivery.mode.to_string(),
        origin: intent.origin.clone(),
        extent: RequestExtent {
            queues: part.queues.len(),
            processes: part.processes.len(),
            epolls,
            wanted: all,
            set: all.saturating_sub(sum(differing)),
        },
        engaged: None,
        goal: intent.goal,
        measured: None,
        search: None,
        proof: None,
        expected: None,
        notes: part.notes.clone(),
    }
}

/// Returns the objects of a request. They include devices on which the request has no queues: devices without
/// NAPIs, and lower devices.
fn objects_of(part: &PlacedRequest, placed: &Placed) -> BTreeSet<Object> {
    let wanted = placed.desired.wanted.iter();
    let own = wanted.filter(|wanted| is_of(&wanted.because.source, &part.intent.origin));
    own.map(|wanted| wanted.setting.object()).chain(part.all_objects()).collect()
}

/// Whether a setting's source is this request or a rule of it. The name of a rule begins with the request's
/// origin.
pub(crate) fn is_of(source: &str, origin: &str) -> bool {
    source.strip_prefix(origin).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn waiting(intent: &Intent, place: usize, placed: &Placed) -> RequestStatus {
    let why = match placed.refused.get(&place) {
        Some(refusal) => format!("refused: {refusal}"),
        None => "waits until it exists".to_owned(),
    };
    without_place(intent, why)
}

/// Returns the status of a request that is not followed, with the reason.
pub(crate) fn without_place(intent: &Intent, why: String) -> RequestStatus {
    RequestStatus {
        target: intent.target.to_string(),
        policy: intent.policy.to_string(),
        delivery: String::new(),
        origin: intent.origin.clone(),
        extent: RequestExtent::default(),
        engaged: None,
        goal: intent.goal,
        measured: None,
        search: None,
        proof: None,
        expected: None,
        notes: vec![why],
    }
}

/// Returns the objects and the status of the request for a target, or `None` if the daemon does not follow
/// it.
pub(crate) fn of<'r>(
    target: &Target,
    policy: &Policy,
    placed: &Placed,
    requests: &'r [RequestStatus],
) -> Option<(BTreeSet<Object>, &'r RequestStatus)> {
    let place = policy.intents.iter().position(|intent| intent.target == *target)?;
    let parts = &placed.placement.as_ref()?.parts;
    let part = parts.get(placed.followed.iter().position(|followed| *followed == place)?)?;
    Some((objects_of(part, placed), requests.get(place)?))
}

/// Returns the number of CPUs that poll without traffic, as observed on the host, and the maximum. A NAPI's
/// kernel thread counts if it busy-polls. An application's thread counts if it busy-waits in an epoll or ring
/// with the parameters of the mode. Each thread counts once, even if several requests match it.
pub(crate) fn polling(placed: &Placed, host: &Host) -> Polling {
    let mut napis = BTreeSet::new();
    let mut waits: BTreeMap<Pid, BTreeSet<Object>> = BTreeMap::new();
    let mut allowed = 0_u32;
    for part in placed.placement.iter().flat_map(|placement| &placement.parts) {
        allowed = allowed.saturating_add(part.intent.budget.polling_cpus.unwrap_or(0));
        let mode = part.delivery.mode;
        if mode.polling_cpus_per_napi() > 0 {
            let served = part.queues.iter().filter_map(|placed| host.napi_of(placed.queue));
            napis
                .extend(served.filter(|napi| napi.threaded == Some(Threading::BusyPoll)).map(|napi| napi.id));
        }
        if mode.polling_cpus_per_thread() > 0 {
            for placed in &part.processes {
                let Some(process) = host.process(placed.id.pid) else { continue };
                let in_force = |params: Option<_>| params == Some(part.params.epoll);
                let epolls =
                    process.epolls.iter().filter(|epoll| in_force(epoll.params)).map(|epoll| epoll.id);
                let epolls = epolls.filter(|id| placed.epolls.contains(id)).map(Object::Epoll);
                let rings = process.rings.iter().filter(|ring| ring.napi.is_some()).map(|ring| ring.id);
                let rings = rings.filter(|id| placed.rings.contains(id)).map(Object::Ring);
                waits.entry(placed.id.pid).or_default().extend(epolls.chain(rings));
            }
        }
    }
    let by_threads = waits.iter().map(|(pid, waits)| {
        // To wait in an epoll or a ring, a process needs one thread for each.
        let threads = host.process(*pid).map_or(0, |process| process.threads.len());
        waits.len().min(threads.max(1))
    });
    let used = napis.len().saturating_add(by_threads.sum());
    Polling { used: u32::try_from(used).unwrap_or(u32::MAX), allowed }
}
