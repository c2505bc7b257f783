//! Computes the CPU time of the whole machine (server and client) per answer, for each configuration, by two
//! methods.

use model::{CpuPerAnswer, Evidence, OfferedLoad};

use crate::table::number;
use crate::variant::{Variant, pairs, ratio};
use latency::measure::statistics::{Interval, median_interval, paired_ratio};

/// The CPU cost of an answer in one configuration at one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// The configuration.
    pub label: String,
    /// The load.
    pub load: OfferedLoad,
    /// The number of runs that count and have CPU figures.
    pub runs: usize,
    /// See [`CpuPerAnswer::machine_us`].
    pub machine_us: Option<Interval>,
    /// See [`CpuPerAnswer::tasks_us`].
    pub tasks_us: Option<Interval>,
    /// Ratio of `machine_us` to that of the first configuration, over pairs of runs of one round; `None` for
    /// the first itself.
    pub machine_ratio: Option<Interval>,
    /// Ratio of [`Cost::tasks_us`] to that of the first configuration.
    pub tasks_ratio: Option<Interval>,
}

type Method = fn(&CpuPerAnswer) -> Option<f64>;

const MACHINE: Method = |cost| cost.machine_us;
const TASKS: Method = |cost| cost.tasks_us;

impl Variant {
    /// Returns the cost of an answer in each configuration at each load; empty if no run has CPU figures.
    pub fn costs(&self) -> Vec<Cost> {
        let results = &self.results;
        if results.evidence.iter().all(|run| run.cpu_per_answer.is_none()) {
            return Vec::new();
        }
        let experiment = &results.experiment;
        let cells = experiment
            .labels
            .iter()
            .flat_map(|label| experiment.loads.iter().map(move |&load| (label, load)));
        let cost = |(label, load): (&String, OfferedLoad)| {
            let all = results.cell(label, load);
            let runs: Vec<&Evidence> = all.into_iter().filter(|run| run.void.is_none()).collect();
            let over = |method: Method| median_interval(&each(&runs, method)?);
            let against = |method: Method| {
                let first = experiment.labels.first().filter(|first| *first != label)?;
                let (before, after): (Vec<_>, Vec<_>) =
                    pairs(results, label, first, load).into_iter().unzip();
                paired_ratio(&each(&before, method)?, &each(&after, method)?)
            };
            Cost {
                label: label.clone(),
                load,
                runs: runs.len(),
                machine_us: over(MACHINE),
                tasks_us: over(TASKS),
                machine_ratio: against(MACHINE),
                tasks_ratio: against(TASKS),
            }
        };
        cells.map(cost).collect()
    }

    /// Returns the heading of the table. If the client has its own machine, its CPU time is not included.
    pub(crate) fn cost_title(&self) -> &'static str {
        if self.results.evidence.iter().any(|run| run.client.is_some()) {
            "CPU of the server's machine per answer, in us: (1) from /proc/stat, with everything else that runs; (2) run time of the server and the softirqs that work for it"
        } else {
            "CPU of the whole machine per answer, including the client, in us: (1) from /proc/stat, with everything else that runs; (2) run time of server, client and the softirqs that work for them"
        }
    }
}

/// Returns one method's figure for each run; `None` if any run lacks the figure.
fn each(runs: &[&Evidence], method: Method) -> Option<Vec<f64>> {
    runs.iter().map(|run| method(run.cpu_per_answer.as_ref()?)).collect()
}

/// The column names.
pub(crate) const COST_COLUMNS: [&str; 7] =
    ["mode", "load", "runs", "us (1)", "us (2)", "ratio (1)", "ratio (2)"];

/// The cells of a row.
pub(crate) fn cost_cells(cost: &Cost) -> [String; COST_COLUMNS.len()] {
    let micros = |value: &Option<Interval>| number(value.as_ref(), cost.runs);
    [
        cost.label.clone(),
        cost.load.to_string(),
        cost.runs.to_string(),
        micros(&cost.machine_us),
        micros(&cost.tasks_us),
        ratio(&cost.machine_ratio),
        ratio(&cost.tasks_ratio),
    ]
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::grid::test::grid;
    use model::ClientSide;

    #[test]
    fn what_an_answer_costs_is_shown_by_both_methods_and_against_the_first_configuration() {
        let mut grid = grid();
        assert!(
            grid.variants[0].costs().is_empty() && !grid.render().contains(grid.variants[0].cost_title())
        );
        for run in &mut grid.variants[0].results.evidence {
            let tasks_us = Some(if run.label == "softirq" { 40.0 } else { 20.0 });
            run.cpu_per_answer = Some(CpuPerAnswer { machine_us: Some(50.0), tasks_us });
        }
        let costs = grid.variants[0].costs();
        assert_eq!(
            (costs.len(), costs[0].tasks_ratio),
            (2, None),
            "the first configuration is compared with no other"
        );
        let ratio = costs[1].tasks_ratio.expect("six pairs").estimate;
        assert!((ratio - 0.5).abs() < 1e-9, "{ratio}");
        let same = costs[1].machine_ratio.expect("six pairs").estimate;
        assert!((same - 1.0).abs() < 1e-9, "{same}");
        assert!(grid.render().contains("of the whole machine per answer, including the client"));
        assert!(crate::html::html_of_grid(&grid).contains("ratio (2)"));
        // A run without figures removes the figure of its own cell, not those of its neighbours.
        grid.variants[0].results.evidence[1].cpu_per_answer = None;
        let costs = grid.variants[0].costs();
        assert!(costs[1].tasks_us.is_none() && costs[0].tasks_us.is_some());
        // On two machines, the figures are those of the server's machine.
        let client =
            ClientSide { host: "client".to_owned(), cpu: None, counters: None, cpu_per_answer: None };
        grid.variants[0].results.evidence[0].client = Some(Box::new(client));
        let text = grid.render();
        assert!(
            text.contains("CPU of the server's machine per answer") && !text.contains("including the client")
        );
    }
}
