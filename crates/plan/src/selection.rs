//! Resolves sections to the devices that they match.
//!
//! `[device."eth*"]` and `[device.uplink] match = { … }` apply to all matching devices. A request for a
//! stacked device (a bond, a VLAN) applies to its lower devices, which have the queues. If several sections
//! match a device, only the most specific one applies, as a whole. Of equally specific sections, the one
//! whose device is nearer in the stack applies.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use model::host::Device;
use model::nic::NicRequest;
use model::{
    ChannelKind, DeliveryMode, DeviceId, Host, Intent, KthreadRequest, Offload, Policy, PolicyName,
    Precedence, Target,
};

use crate::refusal::{Refusal, RefusalKind};
use crate::resolved::Resolved;

/// A policy with a request for each device that its sections match on this host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// The policy's requests in their order, followed by a request for each device that a section selects by
    /// other means than its name.
    pub policy: Policy,
    /// The devices of each request, by its index in the original policy.
    pub meets: BTreeMap<usize, Vec<DeviceId>>,
    /// Notes for the operator on each request, by index.
    pub notes: BTreeMap<usize, Vec<String>>,
    /// Conflicts, by the index of the request in [`Self::policy`]: several sections match a device, and none
    /// is the most specific.
    pub clashes: BTreeMap<usize, Refusal>,
}

impl Selection {
    /// Adds the notes of this selection to the resolved processes.
    #[must_use]
    pub fn noting(&self, resolved: Resolved) -> Resolved {
        let notes = self.notes.iter().flat_map(|(at, notes)| notes.iter().map(move |note| (*at, note)));
        notes.fold(resolved, |resolved, (at, note)| resolved.noting(at, note.clone()))
    }

    /// Refuses the whole policy if there is a conflict.
    ///
    /// # Errors
    /// If several sections match a device and none is the most specific. The refusal names the origins of two
    /// of them.
    pub fn without_clashes(self) -> Result<Self, Refusal> {
        match self.clashes.into_values().next() {
            Some(refusal) => Err(refusal),
            None => Ok(Self { clashes: BTreeMap::new(), ..self }),
        }
    }
}

/// How specifically a request matches a device. The request with the greatest claim gets the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    precedence: Precedence,
    /// How many levels this device is below the device that the section matches.
    steps_below: Reverse<usize>,
}

/// Finds the devices of each request.
pub fn select(policy: &Policy, host: &Host) -> Selection {
    let mut selection = Selection { policy: policy.clone(), ..Selection::default() };
    let (claims, left_out) = claims(policy, host);
    let passed = settle(&claims, policy, host, &mut selection);
    note(policy, host, passed, left_out, &mut selection);
    selection
}

/// The claims of all requests that match each device, each with the index of its request.
type Claims = BTreeMap<DeviceId, Vec<(Claim, usize)>>;

/// Notes for the operator, by request, on why devices are not set.
type Notes = BTreeMap<usize, Vec<String>>;

/// Finds the requests that match each device, and why requests leave out other devices.
fn claims(policy: &Policy, host: &Host) -> (Claims, Notes) {
    let mut claims: Claims = BTreeMap::new();
    let mut left_out: Notes = BTreeMap::new();
    for (at, intent) in policy.intents.iter().enumerate() {
        let Some(precedence) = precedence(&intent.target) else { continue };
        for device in host.devices.iter().filter(|device| is_meant(&intent.target, device)) {
            let mut claim = |device: &Device, steps: usize| {
                let claim = Claim { precedence, steps_below: Reverse(steps) };
                let all = claims.entry(device.id).or_default();
                match all.iter_mut().find(|(_, other)| *other == at) {
                    Some((known, _)) => *known = (*known).max(claim),
                    None => all.push((claim, at)),
                }
            };
            if host.is_upper(device) {
                for (steps, lower) in host.below(device) {
                    if host.is_upper(lower) {
                        continue;
                    }
                    match fit_to(intent, lower, host) {
                        Err(why) => left_out.entry(at).or_default().push(why),
                        Ok((_, without)) => {
                            left_out.entry(at).or_default().extend(without);
                            claim(lower, steps);
                        }
                    }
                }
            } else if matches!(intent.target, Target::Devices(..)) {
                match fit_to(intent, device, host) {
                    Err(why) => left_out.entry(at).or_default().push(why),
                    Ok((_, without)) => {
                        left_out.entry(at).or_default().extend(without);
                        claim(device, 0);
                    }
                }
            } else {
                claim(device, 0);
            }
        }
    }
    (claims, left_out)
}

/// Assigns each device to the request with the greatest claim; two equal claims are a conflict. Returns why
/// the other requests do not get the device.
fn settle(claims: &Claims, policy: &Policy, host: &Host, selection: &mut Selection) -> Notes {
    let mut passed: Notes = BTreeMap::new();
    for device in &host.devices {
        let Some(of_device) = claims.get(&device.id) else { continue };
        let Some((best, at)) = of_device.iter().max_by_key(|(claim, at)| (*claim, Reverse(*at))).copied()
        else {
            continue;
        };
        let intent = &policy.intents[at];
        let equal = of_device.iter().find(|(claim, other)| *claim == best && *other != at);
        // Several requests that name one device come from different callers, which resolve the conflict
        // themselves.
        let own_name = |intent: &Intent| matches!(&intent.target, Target::Device(name) if name == device.id.name.as_str());
        if let Some((_, other)) = equal.filter(|_| !own_name(intent)) {
            selection
                .clashes
                .insert(selection.policy.intents.len(), clash(device, best, intent, &policy.intents[*other]));
            selection.policy.intents.push(for_device(intent, device, host));
            continue;
        }
        for (_, other) in
            of_device.iter().filter(|(_, other)| *other != at && !own_name(&policy.intents[*other]))
        {
            let Intent { target, origin, .. } = intent;
            let words = format!("{} is covered by the more specific {target} at {origin}", device.id);
            passed.entry(*other).or_default().push(words);
        }
        selection.meets.entry(at).or_default().push(device.id);
        if !own_name(intent) {
            selection.policy.intents.push(for_device(intent, device, host));
        }
    }
    passed
}

/// Adds notes on the devices to which each selector and each request for a stacked device resolves on this
/// host.
fn note(policy: &Policy, host: &Host, mut passed: Notes, mut left_out: Notes, selection: &mut Selection) {
    for (at, intent) in policy.intents.iter().enumerate() {
        let of_selector = matches!(intent.target, Target::Devices(..));
        let of_upper = matches!(&intent.target, Target::Device(name)
            if host.device_named(name).is_some_and(|device| host.is_upper(device)));
        if !of_selector && !of_upper {
            continue;
        }
        let meets = selection.meets.get(&at).map_or(&[][..], Vec::as_slice);
        let names: Vec<&str> = meets.iter().map(|id| id.name.as_str()).collect();
        let (passed, left_out) = (passed.remove(&at), left_out.remove(&at));
        let notes = selection.notes.entry(at).or_default();
        notes.push(match (&intent.target, names.is_empty()) {
            (Target::Devices(_, selector), true)
                if passed.is_none() && left_out.as_ref().is_none_or(Vec::is_empty) =>
            {
                format!("matches no device ({selector}): nothing is set until one does")
            }
            (Target::Devices(_, selector), true) => format!("sets no device here ({selector})"),
            (Target::Devices(_, selector), false) => format!("means {} here ({selector})", listed(&names)),
            (target, true) => format!("{target} is stacked on other devices, none of which this sets"),
            (target, false) => {
                format!("{target} is stacked on {}, whose queues are set", listed(&names))
            }
        });
        notes.extend(first_of(passed.unwrap_or_default()));
        notes.extend(first_of(left_out.unwrap_or_default()));
    }
}

/// The maximum number of devices to name in a note.
const NAMED_MAX: usize = 16;

fn listed(names: &[&str]) -> String {
    match names.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        Some(more) => format!("{} and {more} more", names[..NAMED_MAX].join(", ")),
        None => names.join(", "),
    }
}

fn first_of(mut notes: Vec<String>) -> Vec<String> {
    notes.sort();
    notes.dedup();
    if let Some(more) = notes.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        notes.truncate(NAMED_MAX);
        notes.push(format!("and {more} more likewise"));
    }
    notes
}

fn precedence(target: &Target) -> Option<Precedence> {
    match target {
        Target::Device(_) => Some(Precedence::Name),
        Target::Devices(_, selector) => Some(selector.precedence()),
        Target::Service(..) | Target::Task(_) | Target::Epolls(..) => None,
    }
}

fn is_meant(target: &Target, device: &Device) -> bool {
    match target {
        Target::Device(name) => name == device.id.name.as_str(),
        Target::Devices(_, selector) => selector.selects(device),
        Target::Service(..) | Target::Task(_) | Target::Epolls(..) => false,
    }
}

/// Returns why a device that the request does not name is left out although the request matches it; `None` if
/// it is not left out. A request that names the device is refused instead.
fn why_left_out(device: &Device, intent: &Intent, host: &Host) -> Option<String> {
    let gives_napis =
        || intent.nic.contains(&NicRequest::Offload(Offload::Gro, true)) && device.kind == "veth";
    if !device.napis.is_empty() || !host.capabilities.napi_set || gives_napis() {
        return None;
    }
    match device.has_own_interrupts() {
        Some(false) => Some(format!("{} has no NAPI: left out", device.id)),
        _ if !device.up => Some(format!("{} is down and has no NAPI: left out until it is up", device.id)),
        _ => None,
    }
}

/// Creates the request for one device that a section matches.
fn for_device(intent: &Intent, device: &Device, host: &Host) -> Intent {
    let name = device.id.name.to_string();
    let origin = format!("{} ({name})", intent.origin);
    let fitted = fit_to(intent, device, host).map_or_else(|_| intent.clone(), |(fitted, _)| fitted);
    Intent { target: Target::Device(name), origin, ..fitted }
}

/// Reduces a section to what a matched device supports, with notes on what is skipped.
///
/// # Errors
/// If the whole device is skipped; the error is the reason.
fn fit_to(intent: &Intent, device: &Device, host: &Host) -> Result<(Intent, Vec<String>), String> {
    let (mut fitted, mut notes) = (intent.clone(), Vec::new());
    if let Some(why) = why_left_out(device, intent, host) {
        fitted.nic.retain(needs_no_napi);
        if fitted.nic.is_empty() {
            return Err(why);
        }
        let keys: Vec<&str> =
            fitted.nic.iter().map(|request| request.key().trim_start_matches("settings.")).collect();
        if fitted.nic.len() < intent.nic.len() || !is_for_nic_only(intent) {
            notes.push(format!(
                "{} has no NAPI: only {} of the section is set there",
                device.id,
                keys.join(", ")
            ));
        }
        (fitted.policy, fitted.delivery, fitted.found) = (PolicyName::None, None, None);
        (fitted.overrides, fitted.kthread) = (model::policy::Overrides::default(), KthreadRequest::default());
    }
    let before = fitted.nic.len();
    fitted.nic.retain(|request| !lacks_queues_for(request, &intent.nic, device));
    if fitted.nic.len() < before {
        notes.push(format!("{} has one transmit queue: `xps` is left out", device.id));
        if fitted.nic.is_empty() && is_for_nic_only(&fitted) {
            return Err(format!("{} has one transmit queue, and `xps` needs several: left out", device.id));
        }
    }
    Ok((fitted, notes))
}

/// Returns whether a request sets nothing on NAPIs, interrupts or threads.
fn is_for_nic_only(intent: &Intent) -> bool {
    intent.policy == PolicyName::None
        && intent.delivery.is_none_or(|mode| mode == DeliveryMode::Interrupt)
        && intent.overrides == model::policy::Overrides::default()
        && intent.kthread.is_empty()
}

/// Returns whether a setting belongs to the network stack above the driver, and therefore exists on every
/// device.
const fn needs_no_napi(request: &NicRequest) -> bool {
    matches!(request, NicRequest::RpsCpus(_) | NicRequest::RpsFlowCount(_) | NicRequest::Xps(_))
}

/// Returns whether the device has too few transmit queues for a setting, and none of these requests adds
/// queues. Kernel: 6.18, `net/core/net-sysfs.c` `xps_cpus_show()` returns ENOENT for a device that is not
/// `netif_is_multiqueue()`.
pub(crate) fn lacks_queues_for(request: &NicRequest, all: &[NicRequest], device: &Device) -> bool {
    let gives_queues = || {
        all.iter().any(|request| {
            matches!(request, NicRequest::Channels(ChannelKind::Tx | ChannelKind::Combined, 2..))
        })
    };
    matches!(request, NicRequest::Xps(true)) && device.tx_queues.len() == 1 && !gives_queues()
        || matches!(request, NicRequest::Xps(false)) && device.tx_queues.len() == 1
}

fn clash(device: &Device, claim: Claim, one: &Intent, other: &Intent) -> Refusal {
    let by = match claim.steps_below.0 {
        0 => format!("both are {}", claim.precedence),
        steps => format!("both match a device {steps} level(s) above it"),
    };
    let [first, second] = [one, other].map(|intent| format!("{} at {}", intent.target, intent.origin));
    Refusal::new(
        RefusalKind::Conflict,
        format!("device {}", device.id),
        format!("two sections match it, and neither is more specific: {by}"),
    )
    .because(first)
    .because(second)
    .nearest(format!("add a section [device.{}], or `not` in one of the two", device.id))
}
