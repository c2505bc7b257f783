//! The finding on refused policy files: none of their sections is in force.

use model::Severity;

use super::case::Case;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[DoctorRule {
    id: "policy-refused",
    doc: "The policy files are refused, so nothing in them is applied; `plan` exits with the same code.",
    find: refused,
}];

fn refused(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(why) = &case.context.pending.refused else { return Vec::new() };
    let mut lines = why.lines();
    let first = lines.next().unwrap_or_default();
    let mut found =
        Found::new(Severity::Problem, "policy files", format!("the policy files are refused: {first}"));
    for line in lines.filter(|line| !line.trim().is_empty()) {
        found = found.evidence(line);
    }
    vec![found.remedy("netpolicy plan")]
}
