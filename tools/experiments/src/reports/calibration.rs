//! The report of a calibration.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;
use session::count;
use session::page::{Cell, Page, Report, Style, Table};
use sim::{Costs, Parameter};

/// `sim calibrate`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub struct CalibrationReport {
    loss: f64,
    rows: Vec<String>,
    parameters: Vec<Fitted>,
    #[serde(skip)]
    samples: Vec<Costs>,
}

/// A fitted parameter.
#[derive(Debug, JsonSchema, Serialize)]
struct Fitted {
    name: &'static str,
    unit: &'static str,
    meaning: &'static str,
    value: f64,
    /// Both ends of the parameter's 90 % interval; `None` before anything was probed.
    least: Option<f64>,
    most: Option<f64>,
    determined: bool,
}

/// If the ends of a parameter's 90 % interval differ by more than this ratio, the rows do not determine the
/// parameter.
const DETERMINED_RATIO: f64 = 1.5;

impl CalibrationReport {
    /// Creates the report of a fit: the best values, and sets drawn from its covariance, of which `kept` are
    /// kept.
    pub(crate) fn of(
        loss: f64,
        rows: &[String],
        names: &[&str],
        costs: &Costs,
        draws: &[Costs],
        kept: usize,
    ) -> Self {
        let fitted = |parameter: &'static Parameter| {
            let value = costs.get(parameter.name).unwrap_or_default();
            let mut others: Vec<f64> = draws.iter().filter_map(|draw| draw.get(parameter.name)).collect();
            others.sort_by(f64::total_cmp);
            // The middle 90 % of the draws.
            let tail = others.len() / 20;
            let least = others.get(tail).map(|low| low.min(value));
            let most = others.len().checked_sub(tail + 1).map(|i| others[i].max(value));
            Fitted {
                name: parameter.name,
                unit: parameter.unit,
                meaning: parameter.meaning.trim(),
                value,
                least,
                most,
                determined: least.zip(most).is_some_and(|(least, most)| most <= DETERMINED_RATIO * least),
            }
        };
        let named = Costs::PARAMETERS.iter().filter(|parameter| names.contains(&parameter.name));
        Self {
            loss,
            rows: rows.to_vec(),
            parameters: named.map(fitted).collect(),
            samples: draws.iter().take(kept).cloned().collect(),
        }
    }

    /// Returns the sections `[calibration]`, `[costs]` and `[samples]` of a scenario file, including the
    /// given parameters that the fit held constant.
    pub(crate) fn toml(&self, given: &[(&str, f64)]) -> String {
        let quoted = |names: Vec<&str>| {
            format!("[{}]", names.into_iter().map(toml_text).collect::<Vec<_>>().join(", "))
        };
        let mut text = format!(
            "[calibration]\nrows = {}\nparameters = {}\n\n[costs]\n",
            quoted(self.rows.iter().map(String::as_str).collect()),
            quoted(self.parameters.iter().map(|fitted| fitted.name).collect()),
        );
        for fitted in &self.parameters {
            let _ = writeln!(text, "{} = {:.4}", fitted.name, fitted.value);
        }
        for (name, value) in given {
            let _ = writeln!(text, "{name} = {value}");
        }
        text.push_str("\n[samples]\n");
        for fitted in &self.parameters {
            let values: Vec<String> =
                self.samples.iter().filter_map(|s| s.get(fitted.name)).map(|v| format!("{v:.4}")).collect();
            let _ = writeln!(text, "{} = [{}]", fitted.name, values.join(", "));
        }
        text
    }
}

/// Formats a text as a TOML string.
fn toml_text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

impl Report for CalibrationReport {
    const KIND: &'static str = "calibration";

    fn page(&self, page: &mut Page) {
        page.line(format!(
            "Fitted to {}: {}; loss {:.2}.",
            count(self.rows.len(), "row"),
            self.rows.join(", "),
            self.loss
        ));
        page.gap();
        let mut table = Table::new(&["parameter", "value", "unit", "90 % interval", "", "meaning"]);
        for fitted in &self.parameters {
            let open = match (fitted.determined, fitted.least) {
                (true, _) => "",
                (false, Some(_)) => "not determined by these rows",
                (false, None) => "too few evaluations",
            };
            table.row([
                Cell::new(fitted.name),
                Cell::number(format!("{:.3}", fitted.value)),
                Cell::new(fitted.unit),
                Cell::new(match fitted.least.zip(fitted.most) {
                    Some((least, most)) => format!("{least:.3}–{most:.3}"),
                    None => "-".to_owned(),
                }),
                Cell::new(open).style(Style::Warning),
                Cell::new(fitted.meaning).style(Style::Faint),
            ]);
        }
        page.table(&table);
    }
}
