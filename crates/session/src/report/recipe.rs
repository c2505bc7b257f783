//! Reports the values of a policy's recipe, by mechanism.

use crate::page::{Page, RecordSchema, Report, Style, record, to_json};
use model::recipe::{Case, Mechanism, PaysFrom, RecipeValue, Rung, When};
use model::{DeliveryMode, PolicyName, Reason, Recipes};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

/// A recipe as data: one entry per mechanism, in the order of the documentation.
#[derive(Debug, JsonSchema, Serialize)]
pub struct RecipeReport {
    policy: PolicyName,
    mechanisms: Vec<Entry>,
    /// Values that replace those in `mechanisms` under certain conditions.
    cases: Vec<CaseEntry>,
    /// Values that replace those in `mechanisms` for certain drivers.
    drivers: Vec<DriverEntry>,
    /// The modes that the daemon tries, in this order, for a service that misses its goal and requests a
    /// search.
    ladder: Vec<RungEntry>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Entry {
    mechanism: &'static str,
    value: String,
    because: Reason,
    /// The settings that the value implies, if it is a delivery mode.
    brings: Vec<String>,
    /// The drivers of the devices on which the value was measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured_on: Vec<String>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct CaseEntry {
    case: String,
    when: String,
    mechanism: &'static str,
    value: String,
    because: Reason,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured_on: Vec<String>,
    /// The minimum traffic for which the value was measured to help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pays_from: Option<PaysFrom>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct DriverEntry {
    driver: String,
    mechanism: &'static str,
    value: String,
    because: Reason,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured_on: Vec<String>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct RungEntry {
    value: String,
    when: String,
    because: Reason,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured_on: Vec<String>,
}

impl RecipeReport {
    /// Creates the report of this policy.
    pub fn of(policy: PolicyName, recipes: &Recipes) -> Self {
        let entry = |mechanism: Mechanism| {
            let found = recipes.of(policy, mechanism)?;
            let brings = match &found.value {
                RecipeValue::Delivery(mode) => brings(*mode),
                _ => Vec::new(),
            };
            let because = found.because.clone();
            Some(Entry {
                mechanism: mechanism.as_str(),
                value: found.value.to_string(),
                because,
                brings,
                measured_on: found.measured_on.clone(),
            })
        };
        let mut drivers = Vec::new();
        for (driver, by_policy) in &recipes.drivers {
            let layers = [by_policy.get(&None), by_policy.get(&Some(policy))];
            for (mechanism, found) in layers.into_iter().flatten().flat_map(|recipe| &recipe.entries) {
                drivers.push(DriverEntry {
                    driver: driver.clone(),
                    mechanism: mechanism.as_str(),
                    value: found.value.to_string(),
                    because: found.because.clone(),
                    measured_on: found.measured_on.clone(),
                });
            }
        }
        let mut cases = Vec::new();
        for (case, Case { when, policies }) in &recipes.cases {
            let layers = [policies.get(&None), policies.get(&Some(policy))];
            for (mechanism, found) in layers.into_iter().flatten().flat_map(|recipe| &recipe.entries) {
                cases.push(CaseEntry {
                    case: case.clone(),
                    when: when.to_string(),
                    mechanism: mechanism.as_str(),
                    value: found.value.to_string(),
                    because: found.because.clone(),
                    measured_on: found.measured_on.clone(),
                    pays_from: found.pays_from,
                });
            }
        }
        let rung = |rung: &Rung| RungEntry {
            value: rung.mode.to_string(),
            when: rung.when.to_string(),
            because: rung.because.clone(),
            measured_on: rung.measured_on.clone(),
        };
        let ladder = recipes.ladder(policy).iter().map(rung).collect();
        Self { policy, mechanisms: Mechanism::all().filter_map(entry).collect(), cases, drivers, ladder }
    }
}

/// Prints the drivers of the devices on which a value was measured.
fn measured(page: &mut Page, drivers: &[String]) {
    if !drivers.is_empty() {
        page.line(format!("    measured on {}", drivers.join(", ")));
    }
}

/// Returns the settings that a delivery mode implies.
fn brings(mode: DeliveryMode) -> Vec<String> {
    let params = mode.params();
    vec![
        format!("defer-hard-irqs {}", params.defer_hard_irqs),
        format!("gro-flush-timeout {}", params.gro_flush_timeout),
        format!("irq-suspend-timeout {}", params.irq_suspend_timeout),
        format!("busy_poll usecs/budget/prefer {}", params.epoll),
        format!("threaded {}", mode.threading()),
    ]
}

impl Report for RecipeReport {
    const KIND: &'static str = "recipe";

    fn page(&self, page: &mut Page) {
        page.styled(Style::Strong, format!("policy {}", self.policy));
        let (kept, set): (Vec<&Entry>, Vec<&Entry>) =
            self.mechanisms.iter().partition(|entry| entry.value == "keep");
        for entry in set {
            page.line(format!("  {} {}", entry.mechanism, page.word(Style::Good, &entry.value)));
            for brought in &entry.brings {
                page.line(format!("    brings {brought}"));
            }
            page.line(format!("    because {}", entry.because));
            measured(page, &entry.measured_on);
        }
        page.gap();
        page.styled(Style::Strong, "unchanged");
        for entry in kept {
            page.line(format!("  {}", entry.mechanism));
            page.line(format!("    because {}", entry.because));
        }
        let mut case = "";
        for entry in &self.cases {
            if case != entry.case {
                page.gap();
                case = &entry.case;
                page.styled(Style::Strong, format!("case {case}: {}", entry.when));
            }
            page.line(format!("  {} {}", entry.mechanism, page.word(Style::Good, &entry.value)));
            page.line(format!("    because {}", entry.because));
            measured(page, &entry.measured_on);
            if let Some(PaysFrom { packets_per_flush, connections }) = entry.pays_from {
                page.line(format!(
                    "    helps from {packets_per_flush} packets of a queue within gro-flush-timeout, and {connections} connections"
                ));
            }
        }
        if !self.ladder.is_empty() {
            page.gap();
            page.styled(Style::Strong, "tried for a service whose goal is missed (on_missed = \"search\")");
        }
        for entry in &self.ladder {
            let when = match entry.when == When::default().to_string() {
                true => String::new(),
                false => format!(", for {}", entry.when),
            };
            page.line(format!("  {}{when}", page.word(Style::Good, &entry.value)));
            page.line(format!("    because {}", entry.because));
            measured(page, &entry.measured_on);
        }
        let mut driver = "";
        for entry in &self.drivers {
            if driver != entry.driver {
                page.gap();
                driver = &entry.driver;
                page.styled(Style::Strong, format!("driver {driver}"));
            }
            page.line(format!("  {} {}", entry.mechanism, page.word(Style::Good, &entry.value)));
            page.line(format!("    because {}", entry.because));
            measured(page, &entry.measured_on);
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![
            record::<Entry>("mechanism", generator),
            record::<CaseEntry>("case", generator),
            record::<DriverEntry>("driver", generator),
            record::<RungEntry>("rung", generator),
        ]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        let mechanisms = self.mechanisms.iter().map(|entry| ("mechanism", to_json(entry)));
        let mechanisms = mechanisms.chain(self.cases.iter().map(|entry| ("case", to_json(entry))));
        let mechanisms = mechanisms.chain(self.drivers.iter().map(|entry| ("driver", to_json(entry))));
        mechanisms.chain(self.ladder.iter().map(|entry| ("rung", to_json(entry)))).collect()
    }
}
