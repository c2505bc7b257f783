//! Replays searches for the best setting on recorded windows. The candidates of the simulated services have
//! known effects. The noise is that of consecutive windows on a real machine.
//!
//! `RECORDS=3 cargo test -p netpolicy-latency --test tunings -- --nocapture` prints the table of
//! docs/measurements/judge.md.

#![expect(clippy::print_stdout, reason = "it prints a table")]

use latency::measure::live::series::requests_for;
use latency::measure::switchback::{Figures, Metric, Rule, Switchback};
use latency::measure::tuning::{Aim, FINALISTS, Tuner, TunerStep};
use model::Chance;

/// Consecutive windows without any change, by the load of the machine.
const RECORDS: [(&str, &str); 3] = [
    ("idle", include_str!("recorded/idle.txt")),
    ("a compiler", include_str!("recorded/compiler.txt")),
    ("overcommitted", include_str!("recorded/overcommitted.txt")),
];

/// The number of searches for each kind of service, record and goal, unless `REPLAYS` says otherwise.
const REPLAYS: u32 = 20;

/// The margin and the limits of `tune`, and the number of windows that fit into its ten minutes.
const MARGIN: f64 = 0.05;
const LIMITS: &str = "p50=+15%,p90=+15%,p99=+15%,cpu=+25%";
const WINDOWS: usize = 545;

/// The number of candidates of `tune`, of those with timeouts, and of variants of each of the latter.
const CANDIDATES: usize = 11;
const WITH_TIMEOUTS: usize = 7;
const VARIANTS: usize = 4;

/// The pause before each window, as a share of an ordinary window.
const PAUSE: f64 = 0.1;

/// How often the winner is measured again, and for how many pairs.
const REPETITIONS: usize = 5;
const REPETITION_PAIRS: usize = 8;

/// The factors by which a candidate changes each figure.
#[derive(Clone, Copy, Debug)]
struct Effect {
    p50: f64,
    p90: f64,
    p99: f64,
    cpu: f64,
}

const NONE: Effect = Effect { p50: 1.0, p90: 1.0, p99: 1.0, cpu: 1.0 };

impl Effect {
    fn of(self, metric: Metric) -> f64 {
        match metric {
            Metric::P50 => self.p50,
            Metric::P90 => self.p90,
            Metric::P99 => self.p99,
            _ => self.cpu,
        }
    }

    fn is_within(self, limits: &model::Limits) -> bool {
        limits.iter().all(|(guarded, most)| {
            self.of(latency::measure::tuning::metric_of(guarded)) <= 1.0 + most.share()
        })
    }
}

/// A kind of service: the effects of its candidates and of their variants.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One candidate is far better than the others, some of which are better and some worse than the current
    /// settings.
    OneHelps,
    /// Several candidates improve the goal, by 6 to 14 %.
    ManyAreClose,
    /// Another timeout of the best candidate is better still.
    AVariantIsBest,
    /// The best candidate by the goal exceeds the limit of another figure.
    TheBestIsBeyondALimit,
    /// One candidate improves the goal by 10 %, and no other does.
    ALittleHelps,
    /// No candidate improves anything.
    NothingHelps,
}

const KINDS: [Kind; 6] = [
    Kind::OneHelps,
    Kind::ManyAreClose,
    Kind::AVariantIsBest,
    Kind::TheBestIsBeyondALimit,
    Kind::ALittleHelps,
    Kind::NothingHelps,
];

struct Service {
    effects: Vec<Effect>,
    metric: Metric,
}

impl Service {
    /// Creates candidates in random order; the variants of all candidates follow them.
    fn new(kind: Kind, metric: Metric, chance: &mut Chance) -> Self {
        let between = |low: f64, high: f64, chance: &mut Chance| low + (high - low) * chance.unit();
        // Candidates that do not help. Some do much harm, as long timeouts do; two exceed a limit; others
        // cost a little.
        let mut all: Vec<Effect> = (0..CANDIDATES)
            .map(|at| match at {
                3..=6 => {
                    let p50 = between(1.5, 6.0, chance);
                    Effect {
                        p50,
                        p90: p50 * 0.9,
                        p99: between(1.1, 2.0, chance),
                        cpu: between(0.98, 1.2, chance),
                    }
                }
                7 => Effect { p50: 1.25, p90: 1.25, ..NONE },
                8 => Effect { cpu: 1.5, ..NONE },
                _ => {
                    let p50 = between(0.99, 1.1, chance);
                    Effect { p50, p90: p50, p99: p50, cpu: between(0.99, 1.15, chance) }
                }
            })
            .collect();
        let gains = |share: f64| match metric {
            Metric::P50 => Effect { p50: 1.0 - share, p90: 1.0 - share / 2.0, ..NONE },
            _ => Effect { cpu: 1.0 - share, ..NONE },
        };
        match kind {
            Kind::OneHelps => all[0] = gains(between(0.2, 0.45, chance)),
            Kind::ManyAreClose => (0..5).for_each(|at| all[at] = gains(between(0.06, 0.14, chance))),
            Kind::AVariantIsBest => all[0] = gains(between(0.12, 0.2, chance)),
            Kind::TheBestIsBeyondALimit => {
                all[3] = Effect { p99: between(1.4, 2.5, chance), p90: 1.3, ..gains(0.45) };
                all[0] = gains(between(0.15, 0.3, chance));
            }
            Kind::ALittleHelps => all[0] = gains(0.1),
            Kind::NothingHelps => {}
        }
        chance.shuffle(&mut all);
        let mut effects = vec![NONE];
        effects.extend(&all);
        // The effects of variants are close to the candidate's; the last variant of a good candidate may be
        // better.
        for of in &all {
            for at in 0..VARIANTS {
                let by = |effect: f64, chance: &mut Chance| effect * between(0.97, 1.1, chance);
                let mut variant = Effect {
                    p50: by(of.p50, chance),
                    p90: by(of.p90, chance),
                    p99: of.p99,
                    cpu: by(of.cpu, chance),
                };
                if at == 2 && matches!(kind, Kind::AVariantIsBest) && of.of(metric) < 0.9 {
                    variant = Effect {
                        p50: of.p50.powf(1.8),
                        p90: of.p90.powf(1.8),
                        p99: of.p99,
                        cpu: of.cpu.powf(1.8),
                    };
                }
                effects.push(variant);
            }
        }
        Self { effects, metric }
    }

    /// Returns the numbers of a candidate's variants. Only candidates with timeouts have any.
    fn variants(candidate: usize) -> Vec<usize> {
        if candidate > WITH_TIMEOUTS {
            return Vec::new();
        }
        let first = 1 + CANDIDATES + (candidate - 1) * VARIANTS;
        (first..first + VARIANTS).collect()
    }

    fn grid() -> usize {
        CANDIDATES + WITH_TIMEOUTS * VARIANTS
    }
}

/// A recorded machine, on which a service is measured window after window.
struct Machine {
    windows: Vec<Figures>,
    /// How much adjacent windows of p50, p90 and CPU differ, as standard deviations of logarithms.
    white: [f64; 3],
    /// The current time, in windows.
    at: f64,
}

impl Machine {
    fn new(record: &str, start: u32) -> Self {
        const TO_NORMAL: f64 = 1.4826;
        let windows: Vec<Figures> = record.lines().skip(1).map(read).collect();
        let white = [Metric::P50, Metric::P90, Metric::Cpu].map(|metric| {
            let pairs = windows
                .windows(2)
                .filter_map(|two| Some((metric.of(&two[0])? / metric.of(&two[1])?).ln().abs()));
            TO_NORMAL * latency::measure::statistics::median(&pairs.collect::<Vec<_>>()).expect("pairs")
                / 2_f64.sqrt()
        });
        Self { windows, white, at: f64::from(start) }
    }

    /// Returns the next window, with the effect of the candidate in force. Windows of a part of a second
    /// share the figures of that second. They have more of the noise by which adjacent windows differ,
    /// because they have fewer requests.
    fn window(&mut self, effect: Effect, part: u32, chance: &mut Chance) -> Figures {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position in a record")]
        let window = self.windows[self.at as usize % self.windows.len()];
        self.at += 1.0 / f64::from(part);
        let requests = window.requests / u64::from(part);
        let mut figure = |value: Option<f64>, white: f64, factor: f64, share: f64| {
            let normal = (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos();
            let noise = white * f64::from(part - 1).sqrt() * normal;
            value.filter(|_| requests >= requests_for(share)).map(|value| value * noise.exp() * factor)
        };
        Figures {
            requests,
            seconds: window.seconds / f64::from(part),
            p50: figure(window.p50, self.white[0], effect.p50, 0.5),
            p90: figure(window.p90, self.white[1], effect.p90, 0.9),
            p99: figure(window.p99, self.white[1], effect.p99, 0.99),
            cpu_service: figure(window.cpu_service, self.white[2], effect.cpu, 0.0),
            cpu_delivery: figure(window.cpu_delivery, self.white[2], effect.cpu, 0.0),
            ..window
        }
    }
}

fn read(line: &str) -> Figures {
    let values: Vec<Option<f64>> = line.split(' ').map(|value| value.parse().ok()).collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a recorded count")]
    let requests = values[0].expect("a count of requests") as u64;
    Figures {
        p50: values[1],
        p90: values[2],
        p99: values[3],
        cpu_service: values[4],
        cpu_delivery: values[5],
        ..Figures::of_requests(1.0, requests)
    }
}

/// The result of a search.
struct Found {
    /// The winner, and by which share it improves the goal according to its proof.
    winner: Option<(usize, f64)>,
    /// The number of windows; a short window counts as a part of one.
    windows: f64,
    /// The number of windows in which a candidate exceeded a limit.
    beyond: f64,
}

fn search(service: &Service, machine: &mut Machine, chance: &mut Chance) -> Found {
    let aim = Aim { metric: service.metric, limits: LIMITS.parse().expect("limits") };
    let names: Vec<String> = (0..=CANDIDATES).map(|candidate| candidate.to_string()).collect();
    let mut tuner = Tuner::new(names, aim.clone(), MARGIN, true, WINDOWS);
    // The index of each candidate's effect.
    let mut known: Vec<usize> = (0..=CANDIDATES).collect();
    let (mut windows, mut beyond) = (0.0, 0.0);
    loop {
        match tuner.step() {
            TunerStep::Round { part, candidates, .. } => {
                let takes = (1.0 / f64::from(part) + PAUSE) / (1.0 + PAUSE);
                let mut order: Vec<usize> = (0..candidates.len()).collect();
                chance.shuffle(&mut order);
                let mut figures = vec![None; candidates.len()];
                for at in order {
                    let effect = service.effects[known[candidates[at]]];
                    figures[at] = Some(machine.window(effect, part, chance));
                    windows += takes;
                    if !effect.is_within(&aim.limits) {
                        beyond += takes;
                    }
                }
                let figures: Vec<Figures> = figures.into_iter().flatten().collect();
                tuner.add(&figures, None);
            }
            TunerStep::Variants(candidate) => {
                let variants = Service::variants(known[candidate]);
                tuner
                    .add_variants(variants.iter().map(|variant| format!("{candidate}, {variant}")).collect());
                known.extend(variants);
            }
            TunerStep::Done => break,
        }
    }
    if std::env::var_os("SHOW").is_some() {
        for heat in tuner.stages() {
            println!("  {} {} rounds", heat.stage, heat.switchback.rounds());
            for standing in heat.standings(service.metric) {
                let name = &heat.switchback.names()[standing.candidate];
                println!("    {name}: {:+.3} {:?}", -standing.gain, standing.out);
            }
        }
    }
    let winner = tuner.winner().map(|winner| {
        let at = tuner.winner_in_proof().expect("the candidate was in the proof");
        let said = tuner.rounds().change(at, service.metric).change.expect("measured").estimate;
        (known[winner], 1.0 + said)
    });
    Found { winner, windows, beyond }
}

/// Returns the number of pairs after which the same rule shows that a candidate without effect has none.
fn pairs_of_grid(record: &str, metric: Metric) -> f64 {
    const STARTS: u32 = 8;
    const PAIRS_MAX: u32 = 1_000;
    let rule = Rule {
        deciding: vec![metric],
        margin: MARGIN,
        alpha: Rule::ALPHA / f64::from(u32::try_from(FINALISTS).expect("two")),
    };
    let pairs = (0..STARTS).map(|start| {
        let mut machine = Machine::new(record, start * 11);
        let mut switchback = Switchback::new(vec!["current".to_owned(), "same".to_owned()], rule.clone());
        let mut chance = Chance::stream(u64::from(start), &[]);
        let mut next = 8;
        for pairs in 1..=PAIRS_MAX {
            let mut windows = [machine.window(NONE, 1, &mut chance), machine.window(NONE, 1, &mut chance)];
            if chance.below(2) == 0 {
                windows.swap(0, 1);
            }
            switchback.add(&windows, None);
            if pairs == next {
                next += next / 8;
                if switchback.is_decided() {
                    return f64::from(pairs);
                }
            }
        }
        f64::from(PAIRS_MAX)
    });
    pairs.sum::<f64>() / f64::from(STARTS)
}

/// The number of records to replay: all with `RECORDS=3`, which takes minutes.
fn records() -> usize {
    std::env::var("RECORDS").ok().and_then(|number| number.parse().ok()).unwrap_or(1)
}

fn replays() -> u32 {
    std::env::var("REPLAYS").ok().and_then(|number| number.parse().ok()).unwrap_or(REPLAYS)
}

#[derive(Default, Debug)]
struct Row {
    runs: usize,
    near: usize,
    kept: usize,
    wrongly_kept: usize,
    windows: f64,
    beyond: f64,
    worse: usize,
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.near += other.near;
        self.kept += other.kept;
        self.wrongly_kept += other.wrongly_kept;
        self.windows += other.windows;
        self.beyond += other.beyond;
        self.worse += other.worse;
    }
}

fn row(kind: Kind, metric: Metric, record: &str) -> Row {
    let mut row = Row::default();
    for replay in 0..replays() {
        let mut chance = Chance::stream(39, &[u64::from(replay)]);
        let service = Service::new(kind, metric, &mut chance);
        let mut machine = Machine::new(record, chance.below(1 << 16));
        let found = search(&service, &mut machine, &mut chance);
        row.runs += 1;
        row.windows += found.windows;
        row.beyond += found.beyond;
        let limits = LIMITS.parse().expect("limits");
        let reachable = (0..=CANDIDATES).chain((1..=CANDIDATES).flat_map(Service::variants));
        let allowed = reachable.map(|at| service.effects[at]).filter(|effect| effect.is_within(&limits));
        let best = allowed.map(|effect| effect.of(metric)).fold(1.0, f64::min);
        let own = found.winner.map_or(NONE, |(winner, _)| service.effects[winner]);
        row.near += usize::from(own.is_within(&limits) && own.of(metric) <= best * 1.05);
        row.kept += usize::from(found.winner.is_some());
        row.wrongly_kept += usize::from(found.winner.is_some() && matches!(kind, Kind::NothingHelps));
        if std::env::var_os("SHOW").is_some() {
            println!("{kind:?} {replay}: winner {:?} is {:.3}, best {best:.3}", found.winner, own.of(metric));
        }
        if let Some((winner, said)) = found.winner {
            let again = (0..REPETITIONS).map(|_| {
                machine.at = f64::from(u16::try_from(chance.below(1 << 16)).expect("small"));
                let mut pairs = Vec::new();
                for _ in 0..REPETITION_PAIRS {
                    let (before, after) = (
                        machine.window(NONE, 1, &mut chance),
                        machine.window(service.effects[winner], 1, &mut chance),
                    );
                    let ratio = metric
                        .of(&after)
                        .zip(metric.of(&before))
                        .map(|(after, before)| (after / before).ln());
                    pairs.extend(ratio);
                }
                latency::measure::sequential::hodges_lehmann(&pairs).expect("pairs").exp()
            });
            row.worse += usize::from(again.into_iter().any(|ratio| ratio >= 1.3 * said));
        }
    }
    row
}

#[test]
fn winners_are_near_the_best_and_nothing_is_kept_where_nothing_helps() {
    println!(
        "record, goal, kind: near the best, kept, windows (of a grid), limit exceeded, worse in a repetition"
    );
    for (name, record) in RECORDS.into_iter().take(records()) {
        for metric in [Metric::P50, Metric::Cpu] {
            #[expect(clippy::cast_precision_loss, reason = "few")]
            let grid = pairs_of_grid(record, metric) * (Service::grid() + 1) as f64;
            let mut all = Row::default();
            for kind in KINDS {
                let row = row(kind, metric, record);
                show(name, metric, &format!("{kind:?}"), &row, grid);
                all.add(&row);
            }
            show(name, metric, "all", &all, grid);
            if name == "idle" {
                assert_eq!(all.wrongly_kept, 0, "kept a candidate although none helps");
                assert!(all.near * 100 >= all.runs * 75, "near the best: {all:?}");
                #[expect(clippy::cast_precision_loss, reason = "few")]
                let windows = all.windows / all.runs as f64;
                assert!(windows <= 0.2 * grid, "{windows} windows, of {grid}");
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "few")]
fn show(name: &str, metric: Metric, kind: &str, row: &Row, grid: f64) {
    let runs = row.runs as f64;
    println!(
        "{name}, {metric}, {kind}: {:.1} %, {}, {:.0} ({:.1} %), {:.2} %, {}",
        100.0 * row.near as f64 / runs,
        row.kept,
        row.windows / runs,
        100.0 * row.windows / runs / grid,
        100.0 * row.beyond / row.windows,
        row.worse
    );
}
