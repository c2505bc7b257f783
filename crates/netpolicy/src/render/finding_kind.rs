//! Describes the meaning of a finding, for `explain CODE`.

use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Page, Report, Style};

/// An explanation of a finding of `doctor`, `watch` or the daemon.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct FindingKindReport {
    /// The code in the output of `doctor`.
    finding: &'static str,
    /// The meaning.
    meaning: &'static str,
    /// The family to which the finding belongs in docs/reference/findings.md.
    family: &'static str,
}

impl FindingKindReport {
    /// Iterates over every finding that netpolicy can print.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let doctor = plan::doctor::RULES
            .iter()
            .flat_map(|(family, rules)| rules.iter().map(|rule| (*family, rule.id, rule.doc)));
        let live =
            latency::live::RULES.iter().map(|(finding, meaning)| ("response times", *finding, *meaning));
        let search =
            daemon::SEARCH_RULES.iter().map(|(finding, meaning)| ("goals that are met", *finding, *meaning));
        let proof =
            daemon::PROOF_RULES.iter().map(|(finding, meaning)| ("standing proofs", *finding, *meaning));
        doctor.chain(live).chain(search).chain(proof).map(|(family, finding, meaning)| Self {
            finding,
            meaning,
            family,
        })
    }

    /// Returns the finding with this code.
    pub(crate) fn named(code: &str) -> Option<Self> {
        Self::all().find(|kind| kind.finding == code)
    }

    /// Its family.
    pub(crate) const fn family(&self) -> &'static str {
        self.family
    }

    /// Its code.
    pub(crate) const fn code(&self) -> &'static str {
        self.finding
    }
}

impl Report for FindingKindReport {
    const KIND: &'static str = "finding-kind";

    fn page(&self, page: &mut Page) {
        page.styled(Style::Strong, self.finding);
        page.line(format!("  {}", self.meaning));
        page.line(format!("  family   {}", self.family));
        page.line("  now      if the finding applies, netpolicy doctor --all prints it with its evidence");
    }
}
