//! The report of `bench selfcheck`: how far the instruments differ.

use latency::measure::statistics::{Interval, median, median_interval, paired_difference, paired_ratio};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Cell, Page, Report, Style, Table};

use crate::bench::selfcheck_args::Shape;
use crate::bench::{Client, Sample};

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is within the goal.
    Holds,
    /// The whole interval is outside the goal.
    Misses,
    /// The interval extends across the goal, or the machine was disturbed.
    Undecided,
    /// There is no goal: the figure is for information.
    Shown,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Misses => "misses",
            Self::Undecided => "undecided",
            Self::Shown => "-",
        }
    }
}

/// CPU time that other work took during the check.
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct Disturbance {
    /// The share of the CPUs' time taken by other guests of the hypervisor, in percent.
    pub steal_percent: f64,
    /// The run time of other processes on this machine that still exist, in percent of one CPU.
    pub others_percent: f64,
    /// The share of time during which a task was waiting for a CPU, in percent; `None` without pressure stall
    /// information.
    pub waited_percent: Option<f64>,
}

impl Disturbance {
    /// Above these limits, the check reaches no verdict.
    const STEAL_PERCENT_MAX: f64 = 1.0;
    const OTHERS_PERCENT_MAX: f64 = 5.0;
    const WAITED_PERCENT_MAX: f64 = 15.0;

    /// Returns whether the disturbance prevents any verdict.
    pub(crate) fn is_too_much(self) -> bool {
        self.steal_percent > Self::STEAL_PERCENT_MAX
            || self.others_percent > Self::OTHERS_PERCENT_MAX
            || self.waited_percent.is_some_and(|waited| waited > Self::WAITED_PERCENT_MAX)
    }
}

/// A client at a rate over a number of connections: medians of its runs, spans in microseconds.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ClientRow {
    offered: f64,
    connections: u32,
    client: &'static str,
    runs: usize,
    rate: Option<f64>,
    /// p50, p90, p99 and p99.9.
    from_send_us: [Option<f64>; 4],
    from_due_us: [Option<f64>; 4],
    /// p50 and p99 of the delay between due time and send.
    late_us: [Option<f64>; 2],
    /// On the wire: p50, p90 and p99, from the transmission of a request to that of its answer.
    wire_us: [Option<f64>; 3],
    /// CPU time of the server per answer: from `/proc/stat` of its CPUs, and from its run time.
    server_us: [Option<f64>; 2],
    /// CPU time of the client per answer, by both methods.
    client_us: [Option<f64>; 2],
}

/// A figure measured by two instruments.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Comparison {
    offered: Option<f64>,
    connections: u32,
    /// The figure.
    figure: String,
    /// The instruments: the ratio is of the first to the second.
    instruments: String,
    /// The ratio, or a number of microseconds: see `unit`.
    value: Option<Interval>,
    /// The maximum deviation of the ratio from 1, in percent.
    goal_percent: Option<f64>,
    /// The maximum value of the figure, in microseconds.
    goal_us: Option<f64>,
    /// The unit of the value.
    unit: Unit,
    verdict: Verdict,
}

/// The unit of a compared value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// The ratio of the first instrument to the second.
    Ratio,
    /// A span.
    Microseconds,
}

/// A row that could not be measured.
#[derive(Debug, JsonSchema, Serialize)]
pub struct NotMade {
    /// The row.
    pub row: String,
    /// The reason.
    pub reason: String,
}

/// `bench selfcheck`'s data.
#[derive(Debug, JsonSchema, Serialize)]
pub struct SelfcheckReport {
    disturbance: Disturbance,
    disturbed: bool,
    service_time_us: f64,
    clients: Vec<ClientRow>,
    comparisons: Vec<Comparison>,
    not_made: Vec<NotMade>,
}

/// Rounds of one client with one shape.
pub(crate) type Runs = (Shape, Client, Vec<Sample>);

/// Rounds of a closed loop: requests per second by the other program, and by the generator.
pub(crate) type ClosedLoop = (&'static str, u32, Vec<(f64, f64)>);

impl SelfcheckReport {
    /// Creates the report of these runs.
    pub(crate) fn new(
        service_time_us: f64,
        disturbance: Disturbance,
        runs: &[Runs],
        closed: &[ClosedLoop],
        not_made: Vec<NotMade>,
    ) -> Self {
        let clients = runs.iter().map(|(shape, client, samples)| row(*shape, *client, samples)).collect();
        let disturbed = disturbance.is_too_much();
        let mut comparisons = Vec::new();
        for (shape, client, samples) in runs {
            comparisons.extend(of_client(*shape, *client, samples, disturbed));
            if *client == Client::Sleeping
                && let Some((.., theirs)) =
                    runs.iter().find(|(at, other, _)| at == shape && *other == Client::Independent)
            {
                comparisons.extend(of_pair(*shape, samples, theirs, disturbed));
            }
        }
        for (tool, connections, rounds) in closed {
            let (theirs, ours): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
            comparisons.push(Comparison {
                offered: None,
                connections: *connections,
                figure: "rate".to_owned(),
                instruments: format!("{} / {tool}", Client::Sleeping.name()),
                value: paired_ratio(&theirs, &ours),
                goal_percent: None,
                goal_us: None,
                unit: Unit::Ratio,
                verdict: Verdict::Shown,
            });
        }
        Self { disturbance, disturbed, service_time_us, clients, comparisons, not_made }
    }

    /// Returns whether any comparison has this verdict.
    pub(crate) fn has(&self, verdict: Verdict) -> bool {
        self.comparisons.iter().any(|comparison| comparison.verdict == verdict)
    }

    /// Returns whether any row could not be measured.
    pub(crate) fn is_incomplete(&self) -> bool {
        !self.not_made.is_empty()
    }
}

fn row(shape: Shape, client: Client, samples: &[Sample]) -> ClientRow {
    let over =
        |of: &dyn Fn(&Sample) -> Option<f64>| median(&samples.iter().filter_map(of).collect::<Vec<_>>());
    ClientRow {
        offered: shape.rate,
        connections: shape.connections,
        client: client.name(),
        runs: samples.len(),
        rate: over(&|run| Some(run.rate)),
        from_send_us: std::array::from_fn(|at| over(&|run| Some(run.from_send[at]))),
        from_due_us: std::array::from_fn(|at| over(&|run| Some(run.from_due[at]))),
        late_us: std::array::from_fn(|at| over(&|run| Some(run.late[at]))),
        wire_us: std::array::from_fn(|at| over(&|run| run.wire?.1[at])),
        server_us: std::array::from_fn(|at| over(&|run| run.server_us[at])),
        client_us: std::array::from_fn(|at| over(&|run| run.client_us[at])),
    }
}

/// Compares a client with the wire, and its lateness with the goal.
fn of_client(shape: Shape, client: Client, samples: &[Sample], disturbed: bool) -> Vec<Comparison> {
    /// The time that a client's path through its kernel may add to the wire, at p50 and p90: from `send` to
    /// the transmission of the request, and from the transmission of the answer to the return of `recv`.
    const OWN_WAY_US: f64 = 15.0;
    /// Maximum difference of p99 from send to the wire, in percent.
    const P99_GOAL: f64 = 10.0;
    const RATE_GOAL: f64 = 0.5;
    const LATE_GOAL_US: f64 = 60.0;
    let instruments = format!("{} / wire", client.name());
    let against_wire = |figure: String, goal_percent, of: &dyn Fn(&Sample) -> Option<(f64, f64)>| {
        let pairs: Option<Vec<(f64, f64)>> = samples.iter().map(of).collect();
        let (wire, ours): (Vec<f64>, Vec<f64>) = pairs.unwrap_or_default().into_iter().unzip();
        ratio(shape, figure, instruments.clone(), paired_ratio(&wire, &ours), goal_percent, disturbed)
    };
    let mut found =
        vec![against_wire("rate".to_owned(), Some(RATE_GOAL), &|run| Some((run.wire?.0, run.rate)))];
    // A sleeping client wakes after its answer was on the wire: only a polling client can be compared with
    // the wire.
    let is_measured = client == Client::Spinning;
    for (at, name) in ["p50", "p90", "p99"].into_iter().enumerate() {
        let goal = (is_measured && name == "p99").then_some(P99_GOAL);
        let both = |run: &Sample| Some((run.wire?.1[at]?, run.from_send[at]));
        found.push(against_wire(format!("{name} from send"), goal, &both));
        let pairs: Option<Vec<(f64, f64)>> = samples.iter().map(both).collect();
        let (wire, ours): (Vec<f64>, Vec<f64>) = pairs.unwrap_or_default().into_iter().unzip();
        if name != "p99" {
            let goal_us = is_measured.then_some(OWN_WAY_US);
            let value = paired_difference(&wire, &ours);
            found.push(Comparison {
                offered: Some(shape.rate),
                connections: shape.connections,
                figure: format!("{name} from send, minus the wire"),
                instruments: client.name().to_owned(),
                value,
                goal_percent: None,
                goal_us,
                unit: Unit::Microseconds,
                verdict: goal_us.map_or(Verdict::Shown, |goal| judge_between(value, 0.0, goal, disturbed)),
            });
        }
    }
    if client != Client::Spinning {
        let value = median_interval(&samples.iter().map(|run| run.late[0]).collect::<Vec<_>>());
        let goal_us = (client == Client::Sleeping).then_some(LATE_GOAL_US);
        found.push(Comparison {
            offered: Some(shape.rate),
            connections: shape.connections,
            figure: "p50 of send after due".to_owned(),
            instruments: client.name().to_owned(),
            verdict: goal_us.map_or(Verdict::Shown, |goal| judge_between(value, 0.0, goal, disturbed)),
            unit: Unit::Microseconds,
            value,
            goal_percent: None,
            goal_us,
        });
    }
    found
}

/// Compares the sleeping generator with the independent client, which also sleeps.
fn of_pair(shape: Shape, ours: &[Sample], theirs: &[Sample], disturbed: bool) -> Vec<Comparison> {
    const SERVER_GOAL: f64 = 3.0;
    let instruments = format!("{} / {}", Client::Sleeping.name(), Client::Independent.name());
    let against = |figure: &str, goal_percent, of: &dyn Fn(&Sample) -> Option<f64>| {
        let all =
            |samples: &[Sample]| samples.iter().map(of).collect::<Option<Vec<f64>>>().unwrap_or_default();
        let value = paired_ratio(&all(theirs), &all(ours));
        ratio(shape, figure.to_owned(), instruments.clone(), value, goal_percent, disturbed)
    };
    vec![
        against("server CPU per answer (run time)", Some(SERVER_GOAL), &|run| run.server_us[1]),
        against("server CPU per answer (/proc/stat)", None, &|run| run.server_us[0]),
        against("client CPU per answer (run time)", None, &|run| run.client_us[1]),
        against("client CPU per answer (/proc/stat)", None, &|run| run.client_us[0]),
        against("p50 from due", None, &|run| Some(run.from_due[0])),
        against("p90 from due", None, &|run| Some(run.from_due[1])),
        against("p99 from due", None, &|run| Some(run.from_due[2])),
        against("p99.9 from due", None, &|run| Some(run.from_due[3])),
    ]
}

fn ratio(
    shape: Shape,
    figure: String,
    instruments: String,
    value: Option<Interval>,
    goal_percent: Option<f64>,
    disturbed: bool,
) -> Comparison {
    let verdict = goal_percent.map_or(Verdict::Shown, |goal| judge(value, goal, disturbed));
    let (offered, connections, unit) = (Some(shape.rate), shape.connections, Unit::Ratio);
    Comparison {
        offered,
        connections,
        figure,
        instruments,
        value,
        goal_percent,
        goal_us: None,
        unit,
        verdict,
    }
}

/// Judges the interval of a ratio against a goal in percent.
fn judge(value: Option<Interval>, goal: f64, disturbed: bool) -> Verdict {
    judge_between(value, 1.0 - goal / 100.0, 1.0 + goal / 100.0, disturbed)
}

/// Judges an interval against a goal, given as its lowest and highest value.
fn judge_between(value: Option<Interval>, least: f64, most: f64, disturbed: bool) -> Verdict {
    let Some(Interval { low, high, .. }) = value.filter(|_| !disturbed) else { return Verdict::Undecided };
    if low >= least && high <= most {
        Verdict::Holds
    } else if high < least || low > most {
        Verdict::Misses
    } else {
        Verdict::Undecided
    }
}

fn numbers(values: &[Option<f64>], digits: usize) -> String {
    let one = |value: &Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"));
    values.iter().map(one).collect::<Vec<_>>().join(" / ")
}

fn thousands(rate: f64) -> String {
    model::OfferedLoad::PerSecond(rate).to_string()
}

impl Report for SelfcheckReport {
    const KIND: &'static str = "bench-selfcheck";

    fn page(&self, page: &mut Page) {
        let Disturbance { steal_percent, others_percent, waited_percent } = self.disturbance;
        let waited = waited_percent
            .map(|waited| format!(", and tasks waited for a CPU in {waited:.0} % of the time"))
            .unwrap_or_default();
        let words = format!(
            "Other guests took {steal_percent:.1} % of the CPUs, other processes ran for {others_percent:.1} % of a CPU{waited}"
        );
        match self.disturbed {
            true => page.styled(
                Style::Warning,
                format!("{words}: too much for a verdict. Repeat the check on a quiet machine."),
            ),
            false => page.line(format!("{words}.")),
        }
        page.line(format!("The server takes {:.1} us of CPU time for each request.", self.service_time_us));
        page.gap();
        page.styled(Style::Strong, "medians of runs, us; percentiles p50 / p90 / p99 / p99.9");
        let mut table = Table::new(&[
            "RATE",
            "CONN",
            "CLIENT",
            "ANSWERS/S",
            "WIRE",
            "FROM SEND",
            "FROM DUE",
            "LATE p50 / p99",
            "SERVER (1) / (2)",
            "CLIENT (1) / (2)",
        ]);
        for row in &self.clients {
            table.row([
                Cell::number(thousands(row.offered)),
                Cell::number(row.connections),
                Cell::new(row.client),
                Cell::number(numbers(&[row.rate], 0)),
                Cell::number(numbers(&row.wire_us, 0)),
                Cell::number(numbers(&row.from_send_us, 0)),
                Cell::number(numbers(&row.from_due_us, 0)),
                Cell::number(numbers(&row.late_us, 0)),
                Cell::number(numbers(&row.server_us, 1)),
                Cell::number(numbers(&row.client_us, 1)),
            ]);
        }
        page.table(&table);
        page.line("SERVER, CLIENT: CPU time per answer, (1) from /proc/stat of its CPUs, (2) its run time.");
        page.gap();
        let mut table = Table::new(&["RATE", "CONN", "FIGURE", "INSTRUMENTS", "VALUE", "GOAL", "VERDICT"]);
        for found in &self.comparisons {
            let value = found.value.map_or_else(
                || "-".to_owned(),
                |Interval { estimate, low, high }| match found.unit {
                    Unit::Microseconds => format!("{estimate:.1} us ({low:.1}-{high:.1})"),
                    Unit::Ratio => format!("{estimate:.3} ({low:.3}-{high:.3})"),
                },
            );
            let goal = match (found.goal_percent, found.goal_us) {
                (Some(percent), _) => format!("±{percent} %"),
                (None, Some(us)) => format!("< {us} us"),
                (None, None) => "-".to_owned(),
            };
            table.row([
                Cell::number(found.offered.map_or_else(|| "MAX".to_owned(), thousands)),
                Cell::number(found.connections),
                Cell::new(found.figure.clone()),
                Cell::new(found.instruments.clone()),
                Cell::number(value),
                Cell::number(goal),
                Cell::new(found.verdict.word()),
            ]);
        }
        page.table(&table);
        for NotMade { row, reason } in &self.not_made {
            page.line(format!("not made: {row}: {reason}"));
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const SHAPE: Shape = Shape { rate: 20_000.0, connections: 16 };

    fn sample(p50: f64, wire: f64) -> Sample {
        Sample {
            rate: 20_000.0,
            from_send: [p50, p50 * 2.0, p50 * 4.0, p50 * 8.0],
            from_due: [p50; 4],
            late: [20.0, 40.0],
            server_us: [Some(10.0), Some(8.0)],
            client_us: [Some(12.0), Some(9.0)],
            wire: Some((20_000.0, [wire, wire * 2.0, wire * 4.0].map(Some))),
        }
    }

    fn report(samples: Vec<Sample>, disturbance: Disturbance) -> SelfcheckReport {
        let runs = [
            (SHAPE, Client::Spinning, samples.clone()),
            (SHAPE, Client::Sleeping, samples.clone()),
            (SHAPE, Client::Independent, samples),
        ];
        SelfcheckReport::new(5.0, disturbance, &runs, &[], Vec::new())
    }

    #[test]
    fn what_agrees_holds_what_does_not_misses_and_nothing_passes_on_a_disturbed_machine() {
        let right = report(
            (0..5).map(|n| sample(102.0 + f64::from(n), 101.0 + f64::from(n))).collect(),
            Disturbance::default(),
        );
        assert!(right.has(Verdict::Holds) && !right.has(Verdict::Misses) && !right.has(Verdict::Undecided));
        let wrong = report(
            (0..5).map(|n| sample(120.0 + f64::from(n), 100.0 + f64::from(n))).collect(),
            Disturbance::default(),
        );
        assert!(wrong.has(Verdict::Misses));
        for disturbance in [
            Disturbance { steal_percent: 3.0, ..Disturbance::default() },
            Disturbance { others_percent: 80.0, ..Disturbance::default() },
            Disturbance { waited_percent: Some(70.0), ..Disturbance::default() },
        ] {
            let disturbed = report((0..5).map(|_| sample(101.0, 100.0)).collect(), disturbance);
            assert!(!disturbed.has(Verdict::Holds) && disturbed.has(Verdict::Undecided), "{disturbance:?}");
        }
    }

    #[test]
    fn an_interval_that_reaches_over_the_goal_decides_nothing() {
        let interval = |low, high| Some(Interval { estimate: f64::midpoint(low, high), low, high });
        assert_eq!(judge(interval(0.97, 1.04), 5.0, false), Verdict::Holds);
        assert_eq!(judge(interval(0.97, 1.06), 5.0, false), Verdict::Undecided);
        assert_eq!(judge(interval(1.06, 1.09), 5.0, false), Verdict::Misses);
        assert_eq!(judge(interval(0.90, 0.94), 5.0, false), Verdict::Misses);
        assert_eq!(judge(None, 5.0, false), Verdict::Undecided);
    }
}
