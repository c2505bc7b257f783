//! Finds what is wrong with packet delivery on a host, and why. A mechanism that is *set* may still not be
//! *engaged*.
//!
//! [`doctor`] evaluates every rule of [`RULES`]. A rule reads a case, which joins the host, the counts and
//! the requests by NAPI, epoll and process, and returns findings with evidence and remedy. The families are
//! evaluated in the order of [`RULES`], because `engagement` names findings of the others as causes: `policy`
//! (refused policy files), `known` (faults of this kernel and its drivers), `settings` (contradicting
//! values), `traffic` (packets that take another path), `application` (processes that wait in an unsuitable
//! way), `listeners` (how one of several listeners is chosen), `device` (interrupts, rings, moderation and
//! steering of the whole device), `holders` (held queues), `kthread` (kernel threads of NAPIs), `sleep` (CPUs
//! that wake too late), `waiting` (threads that busy-wait only for events), `others` (programs and files that
//! write the same settings), `batch` (a suspension timeout that does not match the application's batches),
//! `timer` (a timer that is too short for the application), `untried` (policies that may help), `engagement`
//! (what the counts show).

mod application;
mod batches;
mod case;
mod conflicting_tools;
mod context;
mod device;
mod engagement;
mod holders;
mod known_bad;
mod kthread;
mod listeners;
mod not_known;
mod policy;
mod remedy;
mod rule;
mod settings;
mod sleep;
mod timer;
mod traffic;
mod untried;
mod waiting;

use model::{Delivered, Finding, Host};

use case::Case;
use rule::Causes;

pub use case::RequestFacts;
pub use context::{CommandPrefix, HeldObject, HostContext, PendingChanges, VethPeer};
pub use not_known::not_known;
pub use rule::DoctorRule;

pub use engagement::{EMPTY_PERCENT_MIN, ENGAGED_PERCENT_MIN, NOT_ENGAGED_PERCENT_MAX};

/// All rules by family, in the order of evaluation.
pub const RULES: [(&str, &[DoctorRule]); 16] = [
    ("policy", policy::RULES),
    ("known", known_bad::RULES),
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

/// Returns the findings on a host; those on the engagement of each NAPI come last. An empty list means that
/// no mechanism is set whose engagement could be judged, and that no problem was found. `delivered` has the
/// counts over some seconds of the usual traffic; without it, there are no findings about engagement. `asked`
/// has the requests that should be in force; without any, the rules use the settings in force.
pub fn doctor(host: &Host, delivered: Option<&Delivered>, asked: &[RequestFacts]) -> Vec<Finding> {
    doctor_with(host, delivered, asked, &HostContext::default())
}

/// Like [`doctor`], with facts that are not part of the observed host.
pub fn doctor_with(
    host: &Host,
    delivered: Option<&Delivered>,
    asked: &[RequestFacts],
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
            causes.add(&found);
            findings.push(found.finding);
        }
    }
    let held = context.held_by_owner(host.netns);
    findings.iter_mut().for_each(|finding| held.ends_first(finding));
    for remedy in findings.iter_mut().filter_map(|finding| finding.remedy.as_mut()) {
        *remedy = context.command_prefix.typed(remedy);
    }
    findings
}
