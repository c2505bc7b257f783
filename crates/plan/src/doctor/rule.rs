//! A rule of `doctor`, its findings, and the causes that earlier rules found.

use std::collections::BTreeMap;

use model::{Finding, NapiId, Severity};

use super::case::Case;

/// A kind of finding.
#[derive(Clone, Copy, Debug)]
pub struct DoctorRule {
    /// The rule's name in [`Finding::rule`]. It never changes, so that scripts can rely on it.
    pub id: &'static str,
    /// The rule's meaning, in one line.
    pub doc: &'static str,
    pub(super) find: fn(&Case<'_>, &Causes) -> Vec<Found>,
}

/// The findings of earlier rules that prevent a NAPI's suspension.
#[derive(Debug, Default)]
pub(super) struct Causes {
    by_napi: BTreeMap<NapiId, CausesOfNapi>,
}

/// The maximum number of causes of a NAPI to name: each of a thousand processes may be a cause for each NAPI.
const NAMED_MAX: usize = 8;

/// What prevents the suspension of one NAPI.
#[derive(Debug, Default)]
pub(super) struct CausesOfNapi {
    /// The rules and objects of the first [`NAMED_MAX`] causes.
    pub(super) named: Vec<(String, String)>,
    /// The number of other causes.
    pub(super) more: usize,
    /// Whether one of the causes is a problem.
    pub(super) has_problem: bool,
    /// The first remedy.
    pub(super) remedy: Option<String>,
}

impl Causes {
    /// Returns the causes of a NAPI; `None` if there are none.
    pub(super) fn of(&self, napi: NapiId) -> Option<&CausesOfNapi> {
        self.by_napi.get(&napi)
    }

    /// Adds a finding as a cause for the NAPIs whose suspension it prevents.
    pub(super) fn add(&mut self, found: &Found) {
        let finding = &found.finding;
        for &napi in &found.hinders {
            let causes = self.by_napi.entry(napi).or_default();
            match causes.named.len() {
                NAMED_MAX => causes.more += 1,
                _ => causes.named.push((finding.rule.clone(), finding.object.clone())),
            }
            causes.has_problem |= finding.severity == Severity::Problem;
            if causes.remedy.is_none() {
                causes.remedy.clone_from(&finding.remedy);
            }
        }
    }
}

/// A finding, and the NAPIs whose suspension it prevents.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) finding: Finding,
    pub(super) hinders: Vec<NapiId>,
}

impl Found {
    pub(super) fn new(severity: Severity, object: impl ToString, summary: impl Into<String>) -> Self {
        let (rule, object, summary) = (String::new(), object.to_string(), summary.into());
        let finding = Finding { rule, severity, object, summary, evidence: Vec::new(), remedy: None };
        Self { finding, hinders: Vec::new() }
    }

    pub(super) fn evidence(mut self, line: impl Into<String>) -> Self {
        self.finding.evidence.push(line.into());
        self
    }

    pub(super) fn remedy(mut self, command: impl Into<String>) -> Self {
        self.finding.remedy = Some(command.into());
        self
    }

    pub(super) fn hinders(mut self, napis: impl IntoIterator<Item = NapiId>) -> Self {
        self.hinders.extend(napis);
        self
    }

    pub(super) fn by(mut self, rule: &DoctorRule) -> Self {
        rule.id.clone_into(&mut self.finding.rule);
        self
    }
}
