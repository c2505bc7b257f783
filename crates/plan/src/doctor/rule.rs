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
    pub(super) by_napi: BTreeMap<NapiId, Vec<Finding>>,
}

impl Causes {
    pub(super) fn of(&self, napi: NapiId) -> &[Finding] {
        self.by_napi.get(&napi).map_or(&[], Vec::as_slice)
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
