//! The candidates for the best setting of a service: policies, delivery modes, candidates that the operator
//! names, and variants of the best one. `crate::measure::tuning` chooses among these candidates.

use std::fmt::Write as _;

use crate::measure::tuning::Out;
use model::host::Coalesce;
use model::{
    CoalesceParam, DeliveryMode, DeviceId, Nanoseconds, NapiKnob, NicKnob, Plan, PolicyName, Setting,
};
use session::Session;

use crate::judge::alternation::on_host;
use crate::judge::candidate::{Candidate, CandidateSettings};
use crate::live::MeasuredService;
use apply::Allow;

/// The maximum number of variants of the best candidate that are tried.
pub const VARIANTS_MAX: usize = 6;

/// The interrupt moderation to try if the device has none, in microseconds.
const RX_USECS: u32 = 16;

/// A candidate with the changes that it makes on this host.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The candidate.
    pub candidate: Candidate,
    /// The candidate's changes, or the reason why the candidate is not tried.
    pub plan: Result<Plan, Out>,
    /// The result of this candidate in an earlier search for the service, if any.
    pub earlier: Option<String>,
}

/// Returns the candidates for a running service, beginning with those of the operator. Modes that require a
/// restart of the program are not included.
fn tried(more: &[Candidate]) -> Vec<Candidate> {
    let modes = ["defer20", "defer50", "defer200", "suspend20", "suspend200"].map(str::to_owned);
    let others = [
        DeliveryMode::Interrupt,
        DeliveryMode::NapiBusy,
        DeliveryMode::EventBusy,
        DeliveryMode::Threaded,
        DeliveryMode::ThreadedBusy,
    ];
    let names = PolicyName::optimizing().map(|policy| policy.as_str().to_owned()).chain(modes);
    let names = names.chain(others.map(|mode| mode.to_string()));
    let known = names.filter_map(|name| name.parse().ok());
    let mut all: Vec<Candidate> = Vec::new();
    for candidate in more.iter().cloned().chain(known) {
        if all.iter().all(|other| other.name != candidate.name) {
            all.push(candidate);
        }
    }
    all
}

/// Returns the candidates for a service, in order. With `only`, omits the built-in candidates.
pub fn offers(more: &[Candidate], only: bool, target: &MeasuredService, session: &Session) -> Vec<Offer> {
    let candidates = if only { more.to_vec() } else { tried(more) };
    let mut offers: Vec<Offer> = Vec::new();
    for candidate in candidates {
        let plan = match on_host(&candidate, target, session, &session::Silent, Allow::default()) {
            Ok(found) => distinct(found.plan, &offers),
            Err(fault) => Err(Out::Refused { words: fault.cause.to_string() }),
        };
        offers.push(Offer { candidate, plan, earlier: None });
    }
    offers
}

/// Returns the plan if it differs from the plans of all earlier candidates; otherwise the reason not to try
/// it.
fn distinct(plan: Plan, before: &[Offer]) -> Result<Plan, Out> {
    if plan.is_empty() {
        return Err(Out::Same { candidate: Candidate::current().name });
    }
    let to = |plan: &Plan| -> Vec<Setting> { plan.changes().map(|change| change.to().clone()).collect() };
    let same = before.iter().find(|offer| offer.plan.as_ref().is_ok_and(|other| to(other) == to(&plan)));
    match same {
        Some(offer) => Err(Out::Same { candidate: offer.candidate.name.clone() }),
        None => Ok(plan),
    }
}

/// Returns variants of a candidate: with half and twice each of its timeouts, and with other interrupt
/// moderation if the driver supports that.
pub fn variants(
    candidate: &Candidate,
    plan: &Plan,
    coalesce_of: impl Fn(DeviceId) -> Option<Coalesce>,
) -> Vec<Candidate> {
    if !matches!(candidate.wanted(), CandidateSettings::Settings(Some(_), given) if given.is_empty()) {
        return Vec::new();
    }
    let timeout = |of: fn(&NapiKnob) -> Option<Nanoseconds>| {
        let knobs = plan.changes().filter_map(|change| match change.to() {
            Setting::Napi(_, knob) => of(knob),
            _ => None,
        });
        knobs.max().filter(|timeout| timeout.0 > 0)
    };
    let gro = timeout(|knob| match knob {
        NapiKnob::GroFlushTimeout(timeout) => Some(*timeout),
        _ => None,
    });
    let suspend = timeout(|knob| match knob {
        NapiKnob::IrqSuspendTimeout(timeout) => Some(*timeout),
        _ => None,
    });
    let mut variants = Vec::new();
    for (key, timeout) in [("gro_flush_timeout", gro), ("irq_suspend_timeout", suspend)] {
        let Some(Nanoseconds(timeout)) = timeout else { continue };
        for variant in [timeout / 2, timeout.saturating_mul(2)] {
            variants.push(format!("{},{key}={}", candidate.name, Nanoseconds(variant)));
        }
    }
    variants.extend(
        moderations(plan, coalesce_of).into_iter().map(|variant| format!("{},{variant}", candidate.name)),
    );
    variants.iter().take(VARIANTS_MAX).filter_map(|variant| variant.parse().ok()).collect()
}

/// Returns half and twice the delay of receive interrupts under this plan, provided that it sets the NAPIs of
/// only one device.
fn moderations(plan: &Plan, coalesce_of: impl Fn(DeviceId) -> Option<Coalesce>) -> Vec<String> {
    let of_napis = plan.changes().filter_map(|change| match change.to() {
        Setting::Napi(queue, _) => Some(queue.device),
        Setting::DeviceNapis(device, _) => Some(*device),
        _ => None,
    });
    let mut devices: Vec<DeviceId> = of_napis.collect();
    devices.sort_unstable();
    devices.dedup();
    let [id] = devices.as_slice() else { return Vec::new() };
    let Some(coalesce) = coalesce_of(*id) else { return Vec::new() };
    let of_plan = |param: CoalesceParam| {
        plan.changes().find_map(|change| match change.to() {
            Setting::Nic(of, NicKnob::Coalescing(known, value)) if of == id && *known == param => {
                Some(*value)
            }
            _ => None,
        })
    };
    let value = |param: CoalesceParam| of_plan(param).or_else(|| coalesce.of(param));
    let Some(usecs) = value(CoalesceParam::RxUsecs) else { return Vec::new() };
    // A driver with adaptive moderation changes the delay itself, unless the adaptation is turned off.
    let fixed = match value(CoalesceParam::AdaptiveRx) {
        Some(1) => format!("{}:adaptive-rx=off,", id.name),
        _ => String::new(),
    };
    let values = if usecs == 0 { vec![RX_USECS] } else { vec![usecs / 2, usecs.saturating_mul(2)] };
    values.into_iter().map(|usecs| format!("{fixed}{}:rx-usecs={usecs}", id.name)).collect()
}

/// Returns the sections of a policy file that apply a candidate to a service that listens on this port.
/// `None` for candidates that are a file, or that set a device without naming it.
pub fn section(candidate: &Candidate, service: &str, port: u16) -> Option<String> {
    let CandidateSettings::Settings(Some(word), settings) = candidate.wanted() else { return None };
    let name: String =
        service.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    let mut text = format!("[service.{name}]\nmatch = {{ port = {port} }}\n");
    let _ = match word {
        policy_file::PolicyWord::Policy(policy) => writeln!(text, "policy = \"{policy}\""),
        policy_file::PolicyWord::Delivery(mode) => writeln!(text, "policy = \"none\"\ndelivery = \"{mode}\""),
    };
    let assignment = |key: &str, value: &str| match value {
        "on" => format!("{key} = true"),
        "off" => format!("{key} = false"),
        value if value.bytes().all(|byte| byte.is_ascii_digit()) => format!("{key} = {value}"),
        value => format!("{key} = \"{value}\""),
    };
    let (of_service, of_device): (Vec<_>, Vec<_>) =
        settings.iter().partition(|(key, _)| model::keys::OF_DELIVERY.contains(&key.as_str()));
    for (key, value) in of_service {
        let _ = writeln!(text, "{}", assignment(key, value));
    }
    let mut devices: Vec<(&str, &str, &str)> = Vec::new();
    for (key, value) in of_device {
        let (device, key) = key.split_once(':')?;
        devices.push((device, key, value));
    }
    devices.sort_by_key(|(device, ..)| *device);
    for of_one in devices.chunk_by(|one, other| one.0 == other.0) {
        let settings: Vec<String> = of_one.iter().map(|(_, key, value)| assignment(key, value)).collect();
        let _ = writeln!(
            text,
            "\n[device.{}]\npolicy = \"none\"\nsettings = {{ {} }}",
            of_one[0].0,
            settings.join(", ")
        );
    }
    Some(text)
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{Change, IfIndex, Label, NetnsId, QueueIndex, Reason, RxQueue, Step};

    #[test]
    fn of_candidates_of_one_section_the_file_says_what_was_tried() {
        let section = |words: &str, port: u16| {
            section(&words.parse().expect("a candidate"), "redis server", port).expect("a section")
        };
        assert_eq!(
            section("defer50,gro_flush_timeout=25us", 6379),
            "[service.redis_server]\nmatch = { port = 6379 }\npolicy = \"none\"\ndelivery = \"defer50\"\ngro_flush_timeout = \"25us\"\n"
        );
        let moderated = section("defer50,eth0:adaptive-rx=off,eth0:rx-usecs=8", 80);
        assert!(
            moderated.ends_with(
                "\n[device.eth0]\npolicy = \"none\"\nsettings = { adaptive-rx = false, rx-usecs = 8 }\n"
            ),
            "{moderated}"
        );
        for text in [section("latency", 80), section("suspend20,defer_hard_irqs=7", 80), moderated] {
            let file = policy_file::parse("tuned.toml", &text).expect("the candidate is a policy file");
            policy_file::merge(&[file]).expect("it is complete");
        }
    }

    #[test]
    fn the_best_candidate_is_tried_with_half_and_twice_its_timeouts_and_moderation() {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let queue = RxQueue { device, index: QueueIndex(0) };
        let change = |knob: fn(Nanoseconds) -> NapiKnob, us: u64| {
            let setting = |us| Setting::Napi(queue, knob(Nanoseconds::from_micros(us)));
            Change::new(setting(0), setting(us), Reason::new("test", "test"))
        };
        let changes =
            vec![change(NapiKnob::GroFlushTimeout, 20), change(NapiKnob::IrqSuspendTimeout, 20_000)];
        let plan = Plan { steps: vec![Step::new(changes)] };
        let names = |candidate: &str, coalesce: Option<Coalesce>| -> Vec<String> {
            let candidate = candidate.parse().expect("a candidate");
            let all = variants(&candidate, &plan, |id| coalesce.filter(|_| id == device));
            all.into_iter().map(|candidate| candidate.name).collect()
        };
        let timeouts = [
            "suspend20,gro_flush_timeout=10us",
            "suspend20,gro_flush_timeout=40us",
            "suspend20,irq_suspend_timeout=10ms",
            "suspend20,irq_suspend_timeout=40ms",
        ];
        assert_eq!(names("suspend20", None), timeouts);
        let of_nic = Coalesce { rx_usecs: Some(8), adaptive_rx: Some(false), ..Coalesce::default() };
        let moderated = ["suspend20,eth0:rx-usecs=4", "suspend20,eth0:rx-usecs=16"];
        assert_eq!(names("suspend20", Some(of_nic)), [&timeouts[..], &moderated].concat());
        let adaptive = Coalesce { rx_usecs: Some(0), adaptive_rx: Some(true), ..Coalesce::default() };
        assert_eq!(
            names("suspend20", Some(adaptive)).last().map(String::as_str),
            Some("suspend20,eth0:adaptive-rx=off,eth0:rx-usecs=16")
        );
        assert_eq!(names("suspend20", Some(Coalesce::default())), timeouts, "a driver without moderation");
        assert!(
            names("suspend20,defer_hard_irqs=7", None).is_empty(),
            "the operator chose the candidate's values"
        );
        assert!(names("rx-usecs=8", None).is_empty(), "the candidate has no timeouts");
    }
}
