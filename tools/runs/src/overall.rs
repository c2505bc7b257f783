//! Combines several variants of a grid: compares one configuration with another over the pairs of runs of all
//! variants, like the summary of the NET-policy document ("on average ~1.26X than baseline").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::variant::{Ratios, Variant};

/// Variants that are compared as one group.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overall {
    /// The common attributes of the experiments.
    pub name: String,
    /// The names of the variants.
    pub variants: Vec<String>,
    /// The configurations that the others are compared with, each in its own table.
    pub against: Vec<String>,
}

impl Overall {
    /// Returns the ratios of every configuration that was measured together with `against`: the geometric
    /// mean over all pairs of runs. Variants that were not measured are left out.
    pub fn ratios(&self, variants: &[Variant], against: &str) -> Vec<Ratios> {
        let mine: Vec<&Variant> =
            variants.iter().filter(|variant| self.variants.contains(&variant.name)).collect();
        let Some(first) = mine.first() else { return Vec::new() };
        let experiment = &first.results.experiment;
        if !experiment.labels.iter().any(|label| label == against) {
            return Vec::new();
        }
        let others = experiment.labels.iter().filter(|label| *label != against);
        let cells = others.flat_map(|label| experiment.loads.iter().map(move |&load| (label, load)));
        let over = |label: &String, load| {
            Ratios::over(mine.iter().map(|variant| &variant.results), label, against, load)
        };
        cells.map(|(label, load)| over(label, load)).collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::grid::{Grid, test::grid};

    /// Two variants of six rounds each; in the second, `threaded` is as fast as `softirq`.
    fn two() -> Grid {
        let mut two = Grid::joined(vec![grid(), grid()]);
        two.variants[1].name = "1 B/1 B, 128 flows".to_owned();
        let results = &mut two.variants[1].results;
        let base: Vec<_> = results.evidence.iter().filter(|run| run.label == "softirq").cloned().collect();
        for run in results.evidence.iter_mut().filter(|run| run.label == "threaded") {
            let same = base.iter().find(|base| base.workload.seed() == run.workload.seed());
            run.latency = same.expect("every round has both configurations").latency.clone();
        }
        let variants = two.variants.iter().map(|variant| variant.name.clone()).collect();
        two.overall = vec![Overall { name: "all".to_owned(), variants, against: vec!["softirq".to_owned()] }];
        two
    }

    #[test]
    fn the_mean_over_variants_is_geometric_and_over_all_pairs() {
        let two = two();
        let ratios = two.overall[0].ratios(&two.variants, "softirq");
        assert_eq!((ratios.len(), ratios[0].label.as_str(), ratios[0].pairs), (1, "threaded", 12));
        let p50 = ratios[0].latency[0].expect("twelve pairs");
        assert!((p50.estimate - 2.0_f64.sqrt()).abs() < 0.01, "2.0 and 1.0: {p50:?}");
        let cpu = ratios[0].cpu_points.expect("twelve pairs");
        assert!(cpu.estimate.abs() < 1e-9, "both use a quarter: {cpu:?}");
    }

    #[test]
    fn both_reports_show_it_and_what_was_not_measured_is_left_out() {
        let mut two = two();
        let title = "all, over all of these variants, relative to softirq";
        assert!(two.render().contains(title), "{}", two.render());
        assert!(crate::html::html_of_grid(&two).contains(title));
        two.overall[0].against = vec!["manual".to_owned()];
        assert!(!two.render().contains("all, over all"));
        two.overall[0].variants = vec!["another".to_owned()];
        assert!(two.overall[0].ratios(&two.variants, "softirq").is_empty());
    }
}
