//! The last plan for all requests on this host.

use std::collections::{BTreeMap, BTreeSet};

use apply::{Knob, Ledger};
use model::{Change, DeviceId, Host, Intent, Label, Object, Plan, Policy, Setting, Target};
use plan::{PlacedProcess, PlacedRequest, Refusal, Selection, ServiceState};
use session::wake::HeldWake;

use crate::app_requests::{self, Asker};
use crate::guard_groups::GuardedService;
use crate::held::knob_of;
use crate::placing::{self, Placed, RequestMembers};
use crate::request_status::{self, is_of};
use crate::status::{Polling, RequestStatus};

/// The last plan for all requests, with the state that is derived from it.
#[derive(Default)]
pub(crate) struct CurrentPlan {
    /// All requests: those of the operator, followed by those of applications.
    policy: Policy,
    placed: Placed,
    /// Returns the status of each request.
    statuses: Vec<RequestStatus>,
    /// For each of the operator's requests, by target: the settings that it had when the daemon last followed
    /// it. They stay in force if the request is refused.
    previous: BTreeMap<String, BTreeSet<Knob>>,
    /// Returns the number of held settings that only a refused request wants.
    kept_for_refused: usize,
    /// The CPU wake-up latency limit that the daemon holds for the policy.
    wake: HeldWake,
}

impl CurrentPlan {
    /// Plans these requests, of which the first `own` are the operator's.
    pub(crate) fn place(&mut self, selection: Selection, own: usize, host: &Host, members: &RequestMembers) {
        self.placed = placing::place(&selection, own, host, members);
        let policy = selection.policy;
        self.previous = previous(&policy, &self.placed, std::mem::take(&mut self.previous));
        self.statuses = request_status::requests(&policy, &self.placed);
        self.policy = policy;
    }

    /// Returns the applications' requests that are followed, in the order of the plan.
    pub(crate) fn followed_apps(&self) -> Vec<Asker> {
        let places = self.placed.followed.iter().filter(|place| **place >= self.placed.own);
        places.filter_map(|place| app_requests::asker(self.policy.intents.get(*place)?)).collect()
    }

    /// Returns the running services that have a guard, by target. A change cannot affect a service that is
    /// not running.
    pub(crate) fn guarded(&self) -> BTreeMap<String, GuardedService> {
        let mut guarded = BTreeMap::new();
        let parts = self.placed.placement.iter().flat_map(|placement| &placement.parts);
        for part in parts.filter(|part| part.runs != ServiceState::No) {
            let (Target::Service(name, _), Some(guard)) = (&part.intent.target, part.intent.guard) else {
                continue;
            };
            let none = || GuardedService { name: name.clone(), guard, objects: BTreeSet::new() };
            let of_service = guarded.entry(part.intent.target.to_string()).or_insert_with(none);
            of_service.objects.append(&mut part.all_objects());
        }
        guarded
    }

    /// Returns the request for a target, with its objects, or `None` if the daemon does not follow it.
    pub(crate) fn part(&self, target: &Target) -> Option<&PlacedRequest> {
        let parts = self.placed.placement.iter().flat_map(|placement| &placement.parts);
        parts.into_iter().find(|part| part.intent.target == *target)
    }

    /// Returns the status of each request.
    pub(crate) fn statuses(&self) -> &[RequestStatus] {
        &self.statuses
    }

    /// Returns which CPUs poll even without traffic.
    pub(crate) fn polling(&self, host: &Host) -> Polling {
        request_status::polling(&self.placed, host)
    }

    /// Returns the objects and the status of the request for a target, or `None` if the daemon does not
    /// follow it.
    pub(crate) fn request(&self, target: &Target) -> Option<(BTreeSet<Object>, &RequestStatus)> {
        request_status::of(target, &self.policy, &self.placed, &self.statuses)
    }

    /// Returns why the request for a target is refused, or `None` if it is not.
    pub(crate) fn refusal(&self, target: &Target) -> Option<&Refusal> {
        let place = self.policy.intents.iter().position(|intent| intent.target == *target)?;
        self.placed.refused.get(&place)
    }

    /// Returns the refused requests by target, each with the reason and whether it is the operator's.
    pub(crate) fn refused(&self) -> BTreeMap<String, (&Refusal, bool)> {
        let target = |place: &usize| Some(self.policy.intents.get(*place)?.target.to_string());
        let refused = self.placed.refused.iter();
        refused.filter_map(|(at, why)| Some((target(at)?, (why, *at < self.placed.own)))).collect()
    }

    /// Returns the notes for the operator about the request for a target.
    pub(crate) fn notes(&self, target: &Target) -> Vec<String> {
        let Some((objects, request)) = self.request(target) else { return Vec::new() };
        let names: Vec<String> = objects.iter().map(|object| format!("{object}:")).collect();
        let own = |note: &&String| names.iter().any(|name| note.starts_with(name));
        let placed = self.placed.desired.notes.iter().filter(own).cloned();
        request.notes.iter().map(|note| format!("{target}: {note}")).chain(placed).collect()
    }

    /// Returns every setting that the requests want.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &Setting> {
        self.placed.desired.wanted.iter().map(|wanted| &wanted.setting)
    }

    /// Whether any request wants this setting.
    pub(crate) fn wants(&self, setting: &Setting) -> bool {
        self.wanted().any(|wanted| wanted == setting)
    }

    /// Returns the processes for whose epolls the plan sets parameters.
    pub(crate) fn processes_with_epolls(&self) -> BTreeSet<model::Pid> {
        let parts = self.placed.placement.iter().flat_map(|placement| &placement.parts);
        let parts = parts.filter(|part| part.params.epoll != model::EpollParams::default());
        parts.flat_map(|part| part.processes.iter().map(|process| process.id.pid)).collect()
    }

    /// Returns the processes that wait without an epoll. Options must be set on each of their new sockets.
    pub(crate) fn processes_without_epolls(&self) -> BTreeSet<model::Pid> {
        let parts = self.placed.placement.iter().flat_map(|placement| &placement.parts);
        let processes =
            parts.filter(|part| part.params.epoll.prefer_busy_poll).flat_map(|part| &part.processes);
        let waits = |process: &&PlacedProcess| process.epolls.is_empty() && process.rings.is_empty();
        processes.filter(waits).map(|process| process.id.pid).collect()
    }

    /// Whether rules direct the packets of single connections, so that the sockets of requesting processes
    /// matter. This is so if a device's request is `mix`, or if its queues are already divided.
    pub(crate) fn follows_connections(&self) -> bool {
        self.placed.placement.iter().any(|placement| {
            let is_mix = |part: &plan::PlacedRequest| part.intent.policy == model::PolicyName::Mix;
            !placement.divisions.is_empty() || placement.parts.iter().any(is_mix)
        })
    }

    /// Returns the processes for whose connections rules are made: processes with a task request, and
    /// processes whose sockets have requests.
    pub(crate) fn processes_with_connections(&self) -> BTreeSet<model::Pid> {
        let parts = self.placed.placement.iter().flat_map(|placement| &placement.parts);
        let own = parts.filter(|part| matches!(part.intent.target, Target::Task(_) | Target::Epolls(..)));
        own.flat_map(|part| part.processes.iter().map(|process| process.id.pid)).collect()
    }

    /// Returns the settings whose current values differ from the plan.
    pub(crate) fn differing(&self) -> BTreeSet<Knob> {
        self.placed.plan.changes().map(|change| knob_of(change.to())).collect()
    }

    /// Removes the changes from the plan, and returns them.
    pub(crate) fn take_plan(&mut self) -> Plan {
        std::mem::take(&mut self.placed.plan)
    }

    /// Whether the plan only creates queues. The settings of these queues are planned afterwards.
    pub(crate) fn is_first_stage(&self) -> bool {
        self.placed.desired.first_stage
    }

    /// Holds the wake-up latency limit that the plan wants. If this fails, returns the reason, but only once
    /// for the same limit.
    pub(crate) fn hold_wake(&mut self) -> Option<String> {
        let wanted = self.placed.desired.wake_latency.as_ref().map(|(micros, _)| *micros);
        self.wake.hold(wanted)
    }

    /// Releases the wake-up latency limit.
    pub(crate) fn release_wake(&mut self) {
        self.wake.hold(None);
    }

    /// Returns the number of held settings that only a refused request wants.
    pub(crate) fn kept_for_refused(&self) -> usize {
        self.kept_for_refused
    }

    /// Returns the held settings that are no longer wanted, or `None` if it is not time to check or the
    /// requests could not be planned. The settings of a refused request stay, unless its device has been
    /// renamed, because the request then no longer applies to the device.
    pub(crate) fn unwanted(&mut self, ledger: &Ledger, is_time: bool, host: &Host) -> Option<BTreeSet<Knob>> {
        self.kept_for_refused = 0;
        if self.placed.placement.is_none() || !is_time {
            return None;
        }
        let wanted: BTreeSet<Knob> = self.wanted().map(knob_of).collect();
        let refused = self.placed.refused.keys().filter(|place| **place < self.placed.own);
        let refused: Vec<&Intent> = refused.filter_map(|place| self.policy.intents.get(*place)).collect();
        let name_of =
            |id: DeviceId| host.devices.iter().find(|device| device.id == id).map(|device| device.id.name);
        let kept = kept_for(&refused, &self.previous, ledger, &name_of);
        let unwanted = ledger.iter().map(|(knob, _)| *knob).filter(|knob| !wanted.contains(knob));
        let (kept, unwanted): (BTreeSet<Knob>, BTreeSet<Knob>) =
            unwanted.partition(|knob| kept.contains(knob));
        self.kept_for_refused = kept.len();
        Some(unwanted)
    }
}

/// Returns the settings of the operator's requests, by target: for a followed request, the settings that it
/// wants now; for a refused request, the settings that it wanted before.
fn previous(
    policy: &Policy,
    placed: &Placed,
    mut before: BTreeMap<String, BTreeSet<Knob>>,
) -> BTreeMap<String, BTreeSet<Knob>> {
    let mut previous = BTreeMap::new();
    for (place, intent) in policy.intents.iter().enumerate().take(placed.own) {
        let target = intent.target.to_string();
        if placed.followed.contains(&place) {
            let wanted = placed.desired.wanted.iter();
            let its_own = wanted.filter(|wanted| is_of(&wanted.because.source, &intent.origin));
            let knobs = its_own.map(|wanted| (wanted.setting.object(), wanted.setting.knob()));
            previous.insert(target, knobs.collect());
        } else if let Some(knobs) = before.remove(&target) {
            previous.insert(target, knobs);
        }
    }
    previous
}

/// Returns the held settings that stay in force for refused requests: the settings that those requests had,
/// whichever request wrote them. If this daemon never followed a request, all held settings of an object stay
/// if the request wrote any of them, because a delivery mode is kept as a whole.
fn kept_for(
    refused: &[&Intent],
    previous: &BTreeMap<String, BTreeSet<Knob>>,
    ledger: &Ledger,
    name_of: &dyn Fn(DeviceId) -> Option<Label>,
) -> BTreeSet<Knob> {
    let mut kept: BTreeSet<Knob> = BTreeSet::new();
    for intent in refused {
        let is_elsewhere_named = |(object, _): &Knob| {
            let Target::Device(name) = &intent.target else { return false };
            object.device().and_then(name_of).is_some_and(|now| now.as_str() != name)
        };
        if let Some(knobs) = previous.get(&intent.target.to_string()) {
            kept.extend(knobs.iter().copied().filter(|knob| !is_elsewhere_named(knob)));
        } else {
            let wrote = |change: &Change| is_of(&change.because().source, &intent.origin);
            let objects: BTreeSet<Object> =
                ledger.iter().filter(|(_, change)| wrote(change)).map(|(knob, _)| knob.0).collect();
            let knobs = ledger.iter().map(|(knob, _)| *knob);
            let knobs = knobs.filter(|(object, _)| objects.contains(object));
            kept.extend(knobs.filter(|knob| !is_elsewhere_named(knob)));
        }
    }
    kept
}

#[cfg(test)]
mod test {
    use model::{
        EmptyPolls, IfIndex, Nanoseconds, NapiKnob, NetnsId, PolicyName, QueueIndex, Reason, RxQueue, Target,
    };

    use super::*;

    #[test]
    fn a_setting_is_of_the_request_that_its_reason_names_and_of_no_other_line() {
        let origin = "/etc/netpolicy/policy.d/10.toml:2";
        assert!(is_of(origin, origin));
        assert!(is_of(&format!("{origin}: policy bulk → defer200, IRQ-suspension document"), origin));
        assert!(!is_of(&format!("{origin}5: policy bulk"), origin));
        assert!(!is_of("io.netpolicy by uid 0 (pid 12)", origin));
    }

    #[test]
    fn a_request_that_becomes_refused_keeps_what_it_had_also_where_an_earlier_one_wrote_it() {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let queue = |number| RxQueue { device, index: QueueIndex(number) };
        let change = |to: Setting, from: Setting, source: &str| {
            Change::new(from, to, Reason::new("asked", source.to_owned()))
        };
        let defers = |number, source| {
            let queue = queue(number);
            change(
                Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100))),
                Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(0))),
                source,
            )
        };
        let flushes = |number, source| {
            let (queue, span) = (queue(number), Nanoseconds::from_micros);
            change(
                Setting::Napi(queue, NapiKnob::GroFlushTimeout(span(50))),
                Setting::Napi(queue, NapiKnob::GroFlushTimeout(span(0))),
                source,
            )
        };
        // Both requests' modes have the same deferral, so the second request did not write it again.
        let mut ledger = Ledger::default();
        let changes = [defers(0, "a:1"), flushes(0, "a:2"), defers(1, "a:1"), flushes(1, "a:1")];
        changes.iter().for_each(|change| ledger.note(change));
        let knobs = |changes: &[Change]| -> BTreeSet<Knob> {
            changes.iter().map(|change| (change.to().object(), change.to().knob())).collect()
        };
        let refused = Intent::new(Target::Device("eth0".to_owned()), PolicyName::None, "a:2");
        let mut previous = BTreeMap::from([("device eth0".to_owned(), knobs(&changes))]);
        let away = |_| None;
        let kept = kept_for(&[&refused], &previous, &ledger, &away);
        assert_eq!(kept, knobs(&changes), "whichever program wrote it");
        assert_eq!(
            kept_for(&[], &previous, &ledger, &away),
            BTreeSet::new(),
            "no request needs it any longer"
        );
        let renamed = |_| Some(Label::new("lan0"));
        let kept = kept_for(&[&refused], &previous, &ledger, &renamed);
        assert_eq!(kept, BTreeSet::new(), "the device has another name here");
        previous.clear();
        assert_eq!(
            kept_for(&[&refused], &previous, &ledger, &away),
            knobs(&changes[..2]),
            "after a restart, no mode is kept in part"
        );
    }
}
