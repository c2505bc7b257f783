//! The output about a change that was tried under guard.

use apply::TransactionName;
use model::{Finding, JudgedBy, Judgement, Ruling};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Page, Report, Style};

use crate::judge::trial::{ServiceForesight, TrialOutcome};
use crate::reports::found;

/// The outcome of a change that was tried under guard.
#[derive(Debug, JsonSchema, Serialize)]
pub struct GuardReport {
    /// Whether the change was kept.
    kept: bool,
    ruling: Ruling,
    by: JudgedBy,
    /// For how long the change was judged, in seconds.
    seconds: f64,
    /// The number of switches in which something was written.
    switches: usize,
    /// The longest duration of a switch between settings, in milliseconds.
    longest_switch_ms: f64,
    /// The verdict of each service, with its measurements.
    verdicts: Vec<Judgement>,
    /// Predictions of what the guard can detect, given the noise before the change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    foresight: Vec<ServiceForesight>,
    /// The transactions with which the verdict is recorded: those in force, or otherwise the last ones, which
    /// were rolled back.
    transactions: Vec<TransactionName>,
    /// Why the journal does not contain the verdict; `None` if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    unnoted: Option<String>,
    /// Conditions that limit how far the measurements are valid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<Finding>,
}

impl GuardReport {
    /// Creates the report on a trial. `kept` contains the transactions that stay in force, if any.
    pub fn of(outcome: &TrialOutcome, by: JudgedBy, kept: Option<Vec<TransactionName>>) -> Self {
        let longest = outcome.switches.iter().max().map_or(0.0, |took| took.as_secs_f64() * 1e3);
        Self {
            kept: kept.is_some(),
            ruling: outcome.ruling,
            by,
            seconds: outcome.took.as_secs_f64(),
            switches: outcome.switches.len(),
            longest_switch_ms: longest,
            verdicts: outcome.judgements.clone(),
            foresight: outcome.foresight.clone(),
            transactions: kept.unwrap_or_else(|| outcome.transactions.clone()),
            unnoted: outcome.unnoted.clone(),
            findings: outcome.findings.clone(),
        }
    }
}

impl Report for GuardReport {
    const KIND: &'static str = "guard";

    fn page(&self, page: &mut Page) {
        let style = if self.kept { Style::Good } else { Style::Bad };
        page.styled(style, format!("{} after {:.1} s", self.ruling, self.seconds));
        for verdict in &self.verdicts {
            page.line(verdict.to_string());
        }
        for verdict in self.verdicts.iter().filter(|_| self.kept) {
            let worse: Vec<String> = verdict.worse().map(ToString::to_string).collect();
            if !worse.is_empty() {
                let words = format!("{} is worse, within the limits: {}", verdict.service, worse.join(", "));
                page.styled(Style::Bad, words);
            }
        }
        self.findings.iter().for_each(|finding| found(page, finding));
        if let Some(why) = &self.unnoted {
            page.styled(Style::Bad, format!("The verdict is not in the journal: {why}"));
        }
    }
}

/// Predictions of what a guard or a comparison can detect, given the noise of the windows before it: the data
/// of `--dry-run`.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ForesightReport {
    by: JudgedBy,
    /// The predictions for each service; empty if the change does not alternate, or if there were too few
    /// windows.
    services: Vec<ServiceForesight>,
}

impl ForesightReport {
    /// Creates the report from the predictions for services.
    pub const fn new(by: JudgedBy, services: Vec<ServiceForesight>) -> Self {
        Self { by, services }
    }
}

impl Report for ForesightReport {
    const KIND: &'static str = "foresight";

    fn page(&self, page: &mut Page) {
        if self.services.is_empty() {
            page.line("how soon a change is seen cannot be predicted: nothing alternates, or too few windows had enough requests");
        }
        self.services.iter().for_each(|one| page.line(one.to_string()));
    }
}
