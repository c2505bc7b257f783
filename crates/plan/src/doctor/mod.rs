//! Finds what is wrong with packet delivery on a host, and why: *set* is not the same as *engaged*.
//!
//! [`doctor`] evaluates every rule of [`RULES`]. A rule reads a case, which joins the host, the counts and
//! the requests by NAPI, epoll and process, and returns findings with evidence and remedy. The families are
//! evaluated in this order, because the last one names findings of the others as causes: `settings`
//! (contradicting values), `traffic` (packets that take another path), `application` (processes that wait in
//! an unsuitable way), `listeners` (who chooses among those of one address), `device` (interrupts, rings,
//! moderation and steering of the whole device), `holders` (held queues), `kthread` (kernel threads of
//! NAPIs), `sleep` (CPUs that wake too late), `waiting` (threads that busy-wait for events only), `others`
//! (programs and files that set the same things), `batch` (a suspension that does not match the application's
//! batches), `timer` (a timer too short for the application),
//! `engagement` (the counts).

mod application;
mod batches;
mod case;
mod conflicting_tools;
mod context;
mod device;
mod engagement;
mod holders;
mod kthread;
mod listeners;
mod not_known;
mod policy;
mod remedy;
mod settings;
mod sleep;
mod timer;
mod traffic;
mod untried;
mod waiting;

use std::collections::BTreeMap;

use model::{
    Delivered, DeliveryMode, Finding, Host, Mechanism, Nanoseconds, NapiId, ProcessId, RecipeValue, Recipes,
    RxQueue, Severity,
};

use crate::placement::{Part, Placement};
use case::Case;

pub use context::{CommandPrefix, Held, HostContext, Peer, Pending};
pub use not_known::not_known;

pub use engagement::{EMPTY_PERCENT_MIN, ENGAGED_PERCENT_MIN, NOT_ENGAGED_PERCENT_MAX};

/// A request, as far as the rules need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its origin.
    pub origin: String,
    /// Its delivery mode.
    pub mode: DeliveryMode,
    /// Its queues.
    pub queues: Vec<RxQueue>,
    /// Its processes.
    pub processes: Vec<ProcessId>,
    /// The smallest response time in its goal.
    pub goal: Option<Nanoseconds>,
    /// The maximum wake-up latency of its policy.
    pub wake_within: Option<Nanoseconds>,
}

impl Placement {
    /// The requests, as far as [`doctor()`] needs them.
    pub fn asked(&self) -> Vec<Asked> {
        self.parts.iter().map(|part| Asked::of(part, &self.recipes)).collect()
    }
}

impl Asked {
    /// From a placed request.
    pub fn of(part: &Part, recipes: &Recipes) -> Self {
        let named = recipes.agreed(part.intent.policy, Mechanism::WakeLatency, &part.circumstances);
        let wakes = named.entry.map(|named| &named.value);
        let wakes = wakes.filter(|_| part.intent.delivery.is_none());
        let goal = part.intent.goal;
        Self {
            goal: goal.p50.into_iter().chain(goal.p99).min(),
            wake_within: match wakes {
                Some(RecipeValue::Number(micros)) => Some(Nanoseconds(u64::from(*micros) * 1_000)),
                _ => None,
            },
            origin: part.intent.origin.clone(),
            mode: part.delivery.mode,
            queues: part.queues.iter().flat_map(|q| [q.queue].into_iter().chain(q.also.clone())).collect(),
            processes: part.processes.iter().map(|p| p.id).collect(),
        }
    }
}

/// A kind of finding.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name in [`Finding::rule`]; stable, for scripts.
    pub id: &'static str,
    /// Its meaning, in one line.
    pub doc: &'static str,
    find: fn(&Case<'_>, &Causes) -> Vec<Found>,
}

/// All rules by family, in the order of evaluation.
pub const RULES: [(&str, &[Rule]); 15] = [
    ("policy", policy::RULES),
    ("settings", settings::RULES),
    ("traffic", traffic::RULES),
    ("application", application::RULES),
    ("listeners", listeners::RULES),
    ("device", device::RULES),
    ("holders", holders::RULES),
    ("kthread", kthread::RULES),
    ("sleep", sleep::RULES),
    ("waiting", waiting::RULES),
    ("others", conflicting_tools::RULES),
    ("batch", batches::RULES),
    ("timer", timer::RULES),
    ("untried", untried::RULES),
    ("engagement", engagement::RULES),
];

/// Returns the findings on a host, engagement of each NAPI last. An empty list means that nothing is set that
/// could engage, and nothing prevents it. `delivered` has the counts over some seconds of the usual traffic;
/// without it there are no findings about engagement. `asked` are the requests that should be in force;
/// without it the rules use the settings in force.
pub fn doctor(host: &Host, delivered: Option<&Delivered>, asked: &[Asked]) -> Vec<Finding> {
    doctor_with(host, delivered, asked, &HostContext::default())
}

/// Like [`doctor`], with facts that are not part of the observed host.
pub fn doctor_with(
    host: &Host,
    delivered: Option<&Delivered>,
    asked: &[Asked],
    context: &HostContext,
) -> Vec<Finding> {
    let case = Case::new(host, delivered, asked, context);
    let mut causes = Causes::default();
    let mut findings = Vec::new();
    for (_, rules) in RULES {
        let mut family = Vec::new();
        for rule in rules {
            family.extend((rule.find)(&case, &causes).into_iter().map(|found| found.by(rule)));
        }
        for found in family {
            for &napi in &found.hinders {
                causes.by_napi.entry(napi).or_default().push(found.finding.clone());
            }
            findings.push(found.finding);
        }
    }
    findings.iter_mut().for_each(|finding| context.ends_first(host.netns, finding));
    for remedy in findings.iter_mut().filter_map(|finding| finding.remedy.as_mut()) {
        *remedy = context.command_prefix.typed(remedy);
    }
    findings
}

/// The findings of earlier families that prevent a NAPI's suspension.
#[derive(Debug, Default)]
struct Causes {
    by_napi: BTreeMap<NapiId, Vec<Finding>>,
}

impl Causes {
    fn of(&self, napi: NapiId) -> &[Finding] {
        self.by_napi.get(&napi).map_or(&[], Vec::as_slice)
    }
}

/// A finding, and the NAPIs whose suspension it prevents.
#[derive(Debug)]
struct Found {
    finding: Finding,
    hinders: Vec<NapiId>,
}

impl Found {
    fn new(severity: Severity, object: impl ToString, summary: impl Into<String>) -> Self {
        let (rule, object, summary) = (String::new(), object.to_string(), summary.into());
        let finding = Finding { rule, severity, object, summary, evidence: Vec::new(), remedy: None };
        Self { finding, hinders: Vec::new() }
    }

    fn evidence(mut self, line: impl Into<String>) -> Self {
        self.finding.evidence.push(line.into());
        self
    }

    fn remedy(mut self, command: impl Into<String>) -> Self {
        self.finding.remedy = Some(command.into());
        self
    }

    fn hinders(mut self, napis: impl IntoIterator<Item = NapiId>) -> Self {
        self.hinders.extend(napis);
        self
    }

    fn by(mut self, rule: &Rule) -> Self {
        rule.id.clone_into(&mut self.finding.rule);
        self
    }
}
