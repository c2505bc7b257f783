//! Parses and judges gates: bounds on the ratio of one configuration to another.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::variant::{Ratios, Row, Variant};
use latency::measure::statistics::Interval;

/// Bounds for ratios between configurations, parsed from a file with one line each: `FLOWS CONFIGURATION
/// AGAINST QUANTITY >=|<= NUMBER`.
///
/// `#` starts a comment. FLOWS are numbers of connections, such as `15,30,60`, or `*` for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gates(Vec<Gate>);

/// One bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// The numbers of connections that the gate applies to; empty for all.
    flows: Vec<u32>,
    /// The configuration that the gate judges.
    label: String,
    /// The configuration that `label` is compared with.
    against: String,
    quantity: Quantity,
    bound: Bound,
}

/// The quantity whose ratio a gate bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// Answers per second.
    Rate,
    /// A response time, by its index in [`Row::QUANTILES`].
    Latency(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// The result of a gate in one experiment.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// The experiment and the load that were judged.
    pub place: String,
    /// The gate, as written in the file.
    pub gate: String,
    /// Whether the ratio is within the bound; `None` with fewer than two pairs of runs that count.
    pub met: Option<bool>,
    /// The ratio over pairs of runs.
    pub ratio: Option<Interval>,
    /// Pairs of runs that count.
    pub pairs: usize,
    /// Whether the ratio's interval excludes the bound.
    pub sure: bool,
}

/// The error for a line that is not a gate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: `{text}` is not a gate: FLOWS CONFIGURATION AGAINST qps|50%|90%|95%|99%|99.9%|99.99% >=|<= NUMBER"
)]
pub struct NotAGate {
    /// The line number, from 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
}

impl FromStr for Gates {
    type Err = NotAGate;

    fn from_str(text: &str) -> Result<Self, NotAGate> {
        let mut gates = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let said = line.split('#').next().unwrap_or("").trim();
            if !said.is_empty() {
                let wrong = || NotAGate { line: number + 1, text: said.to_owned() };
                gates.push(Gate::parse(said).ok_or_else(wrong)?);
            }
        }
        Ok(Self(gates))
    }
}

impl Gate {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [flows, label, against, quantity, side, number] = words[..] else { return None };
        let flows = match flows {
            "*" => Vec::new(),
            flows => flows.split(',').map(|flow| flow.parse().ok()).collect::<Option<_>>()?,
        };
        let number: f64 = number.parse().ok().filter(|number| *number > 0.0 && f64::is_finite(*number))?;
        let bound = match side {
            ">=" => Bound::AtLeast(number),
            "<=" => Bound::AtMost(number),
            _ => return None,
        };
        let (label, against, quantity) = (label.to_owned(), against.to_owned(), quantity.parse().ok()?);
        Some(Self { flows, label, against, quantity, bound })
    }
}

impl FromStr for Quantity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "qps" {
            return Ok(Self::Rate);
        }
        let percent: f64 = text.strip_suffix('%').and_then(|number| number.parse().ok()).ok_or(())?;
        let is = |quantile: &f64| (quantile * 100.0 - percent).abs() < 1e-6;
        Row::QUANTILES.iter().position(is).map(Self::Latency).ok_or(())
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ", self.label, self.against)?;
        match self.quantity {
            Quantity::Rate => f.write_str("qps")?,
            Quantity::Latency(at) => write!(f, "{}%", (Row::QUANTILES[at] * 1e6).round() / 1e4)?,
        }
        match self.bound {
            Bound::AtLeast(number) => write!(f, " >= {number}"),
            Bound::AtMost(number) => write!(f, " <= {number}"),
        }
    }
}

impl Bound {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(number) => ratio >= number,
            Self::AtMost(number) => ratio <= number,
        }
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, gate, met, ratio, pairs, sure } = self;
        write!(f, "gate: {place}: {gate}: ")?;
        let verdict = match met {
            None => "not measured",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        f.write_str(verdict)?;
        if let Some(Interval { estimate, low, high }) = ratio {
            write!(f, ", {estimate:.2} ({low:.2}-{high:.2}) over {pairs} pairs")?;
            if !sure {
                f.write_str(", but the interval contains the bound")?;
            }
        }
        Ok(())
    }
}

impl Judged {
    /// Judges a gate in the variant called `name`.
    fn of(gate: &Gate, name: &str, ratios: &Ratios) -> Self {
        let ratio = match gate.quantity {
            Quantity::Rate => ratios.rate,
            Quantity::Latency(at) => ratios.latency[at],
        };
        let met = ratio.map(|ratio| gate.bound.holds(ratio.estimate));
        let sure = ratio.is_some_and(|r| gate.bound.holds(r.low) == gate.bound.holds(r.high));
        let place = format!("{name} at {}", ratios.load);
        Self { place, gate: gate.to_string(), met, ratio, pairs: ratios.pairs, sure }
    }
}

impl Gates {
    /// Judges the gates in these variants, in the order of the gates. Gates for numbers of connections that
    /// were not measured are left out.
    pub(crate) fn judge(&self, variants: &[Variant]) -> Vec<Judged> {
        let mut judged = Vec::new();
        for gate in &self.0 {
            for variant in variants {
                let flows = variant.results.evidence.first().map(|run| run.workload.pace().flows);
                if !gate.flows.is_empty() && !flows.is_some_and(|flows| gate.flows.contains(&flows)) {
                    continue;
                }
                for &load in &variant.results.experiment.loads {
                    let ratios = Ratios::of(&variant.results, &gate.label, &gate.against, load);
                    judged.push(Judged::of(gate, &variant.name, &ratios));
                }
            }
        }
        judged
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::experiment::{Experiment, Results};
    use crate::grid::Grid;
    use crate::test_evidence;
    use model::{Evidence, OfferedLoad};

    /// Six rounds in which the throughput of `fast` is `times` that of `slow`, within 5 %.
    fn grid(times: f64) -> Grid {
        let evidence = test_evidence();
        let run = |label: &str, seed: u64, throughput: f64| Evidence {
            label: label.to_owned(),
            load: OfferedLoad::Max,
            workload: evidence.workload.with_seed(seed),
            throughput,
            ..evidence.clone()
        };
        let wobble = [0.95, 1.0, 1.05, 0.96, 1.04, 1.0];
        let rounds = (0_u64..).zip(wobble);
        let runs =
            rounds.flat_map(|(seed, w)| [run("slow", seed, 1000.0), run("fast", seed, 1000.0 * times * w)]);
        let experiment = Experiment {
            labels: vec!["slow".to_owned(), "fast".to_owned()],
            loads: vec![OfferedLoad::Max],
            rounds: 6,
            seed: 1,
        };
        let results = Results::new(experiment, runs.collect());
        let variants = vec![Variant { name: "1 B".to_owned(), borne: None, results }];
        Grid { variants, ..Grid::default() }
    }

    fn verdicts(times: f64, gates: &str) -> Vec<(Option<bool>, bool)> {
        let gates: Gates = gates.parse().expect("gates");
        grid(times).judge(&gates).iter().map(|judged| (judged.met, judged.sure)).collect()
    }

    #[test]
    fn a_gate_is_met_by_the_ratio_and_sure_by_its_interval() {
        let gates = "# who must reach what\n\n*  fast  slow  qps  >= 4  # four times\n* fast slow qps <= 4.1";
        assert_eq!(verdicts(5.0, gates), [(Some(true), true), (Some(false), true)]);
        assert_eq!(verdicts(3.0, gates), [(Some(false), true), (Some(true), true)]);
        assert_eq!(
            verdicts(4.05, gates)[0],
            (Some(true), false),
            "met, but the interval reaches below the bound"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_met_and_other_flows_are_not_judged() {
        assert_eq!(verdicts(5.0, "* absent slow qps >= 1"), [(None, false)]);
        assert_eq!(verdicts(5.0, "* fast slow 99.99% <= 1"), [(None, false)], "too few answers");
        assert_eq!(verdicts(5.0, "4000000,4000001 fast slow qps >= 1"), []);
    }

    #[test]
    fn an_unknown_gate_is_named() {
        let parse = |text: &str| text.parse::<Gates>().expect_err("is wrong").to_string();
        for wrong in
            ["* fast slow qps > 4", "* fast slow 98% <= 1", "x fast slow qps >= 1", "* fast slow qps >= 0"]
        {
            assert!(parse(&format!("# one\n{wrong}")).starts_with(&format!("line 2: `{wrong}`")), "{wrong}");
        }
    }

    #[test]
    fn a_verdict_says_ratio_interval_and_pairs() {
        let gates: Gates = "* fast slow qps >= 4".parse().expect("a gate");
        let line = grid(5.0).judge(&gates)[0].to_string();
        assert_eq!(line, "gate: 1 B at MAX: fast/slow qps >= 4: met, 5.00 (4.79-5.21) over 6 pairs");
    }
}
