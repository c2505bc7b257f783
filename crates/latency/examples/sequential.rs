//! Measures how often tests on paired windows raise a false alarm, and how soon they detect a true change.
//! The false-alarm rates are in docs/decisions/0029.
//!
//! `cargo run --release -p netpolicy-latency --example sequential [TRIALS]`

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use latency::measure::sequential::Sequence;
use model::Chance;

/// The distribution of the windows' noise, on a logarithmic scale.
#[derive(Clone, Copy)]
enum Noise {
    /// Normal and independent.
    Independent,
    /// Each window is correlated with the previous one: correlation 0.76, as measured for p50 of memcached.
    Autocorrelated,
    /// Student's t with two degrees of freedom, which has infinite variance.
    Heavy,
    /// Autocorrelated, with a level that rises by a factor of ten over the trial.
    Drifting,
    /// Normal, but one window in twenty is ten times slower than the others.
    Stalled,
}

const NOISES: [(&str, Noise); 5] = [
    ("independent", Noise::Independent),
    ("autocorrelated 0.76", Noise::Autocorrelated),
    ("heavy tails (t, 2 degrees)", Noise::Heavy),
    ("drift, factor 10", Noise::Drifting),
    ("stalls in 5 %", Noise::Stalled),
];

const PAIRS: usize = 200;
const ALPHA: f64 = 0.05;

struct Windows {
    chance: Chance,
    noise: Noise,
    level: f64,
    at: usize,
}

impl Windows {
    fn next(&mut self) -> f64 {
        self.at += 1;
        let normal = normal(&mut self.chance);
        match self.noise {
            Noise::Independent => normal,
            Noise::Autocorrelated => self.follow(normal),
            Noise::Heavy => normal / (-self.chance.unit().ln()).sqrt(),
            Noise::Drifting => self.follow(normal) + 23.0 * count(self.at) / count(2 * PAIRS),
            Noise::Stalled => normal + if self.chance.unit() < 0.05 { 23.0 } else { 0.0 },
        }
    }

    fn follow(&mut self, normal: f64) -> f64 {
        const CORRELATION: f64 = 0.76;
        self.level = CORRELATION * self.level + (1.0 - CORRELATION * CORRELATION).sqrt() * normal;
        self.level
    }

    /// Returns the difference of a pair of windows in random order, with this true difference and this
    /// standard deviation of the noise.
    fn pair(&mut self, truth: f64, sd: f64) -> f64 {
        let (first, second) = (sd * self.next(), sd * self.next());
        truth + if self.chance.below(2) == 0 { first - second } else { second - first }
    }

    fn new(noise: Noise, seed: u64) -> Self {
        let mut chance = Chance::stream(seed, &[7]);
        let level = normal(&mut chance);
        Self { chance, noise, level, at: 0 }
    }
}

type Test = fn(&[f64], &Sequence) -> bool;

const TESTS: [(&str, Test); 4] = [
    ("bets of tanh (chosen)", by_bets),
    ("signs", by_signs),
    ("asymptotic", by_asymptotics),
    ("t-test each pair", by_t),
];

fn by_bets(_: &[f64], sequence: &Sequence) -> bool {
    let refused = (2.0 / ALPHA).ln();
    sequence.against_at_most(0.0) >= refused || sequence.against_at_least(0.0) >= refused
}

/// Decides as for one of two deciding metrics of `compare`.
fn by_bets_of_two(_: &[f64], sequence: &Sequence) -> bool {
    let refused = (2.0 / (ALPHA / 2.0)).ln();
    sequence.against_at_most(0.0) >= refused || sequence.against_at_least(0.0) >= refused
}

/// Tests only the signs of the differences, with a uniform mixture over the probability of a plus.
fn by_signs(differences: &[f64], _: &Sequence) -> bool {
    let plus = differences.iter().filter(|difference| **difference > 0.0).count();
    let grid = (1..50).map(|step| f64::from(step) / 50.0);
    let wealth = |p: f64| (2.0 * p).powi(power(plus)) * (2.0 - 2.0 * p).powi(power(differences.len() - plus));
    grid.map(wealth).sum::<f64>() / 49.0 >= 1.0 / ALPHA
}

/// Tests with Robbins' normal mixture and an estimated variance. Differences are clipped at three times their
/// spread.
fn by_asymptotics(differences: &[f64], _: &Sequence) -> bool {
    const RHO: f64 = 10.0;
    if differences.len() < 5 {
        return false;
    }
    let mut sorted: Vec<f64> = differences.iter().map(|difference| difference.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let cut = 3.0 * 1.4826 * sorted[sorted.len() / 2];
    let cut: Vec<f64> = differences.iter().map(|difference| difference.clamp(-cut, cut)).collect();
    let n = count(cut.len());
    let mean = cut.iter().sum::<f64>() / n;
    let variance = cut.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let reach = ((n + RHO) / (n * n) * ((n + RHO) / (RHO * ALPHA * ALPHA)).ln()).sqrt();
    mean.abs() > variance.sqrt() * reach
}

fn by_t(differences: &[f64], _: &Sequence) -> bool {
    let n = count(differences.len());
    if differences.len() < 5 {
        return false;
    }
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    mean.abs() > 2.1 * (variance / n).sqrt()
}

/// Returns the number of pairs after which a test decides, or `None` if it does not decide.
fn first(test: Test, noise: Noise, truth: f64, sd: f64, seed: u64) -> Option<usize> {
    let mut windows = Windows::new(noise, seed);
    let (mut sequence, mut differences) = (Sequence::new(), Vec::new());
    (1..=PAIRS).find(|_| {
        let difference = windows.pair(truth, sd);
        sequence.add(difference);
        differences.push(difference);
        test(&differences, &sequence)
    })
}

fn main() {
    let trials = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000);
    println!("false alarms, % of {trials} trials of {PAIRS} pairs, tested after each pair; noise 0.1");
    for (name, noise) in NOISES {
        let rates = TESTS.map(|(test_name, test)| {
            let alarms = (0..trials).filter(|seed| first(test, noise, 0.0, 0.1, *seed).is_some()).count();
            format!(
                "{test_name} {:.1}",
                100.0 * count(alarms) / f64::from(u32::try_from(trials).unwrap_or(1))
            )
        });
        println!("  {name}: {}", rates.join(", "));
    }
    println!("pairs until a true change is detected, median / nine of ten ({PAIRS}+ if not), autocorrelated");
    for sd in [0.05, 0.15, 0.4] {
        for change in [0.05_f64, 0.10, 0.20, 0.30, 1.0] {
            let truth = change.ln_1p();
            let of_two: [(&str, Test); 1] = [("bets for two metrics", by_bets_of_two)];
            let found = of_two.iter().chain(&TESTS[..3]).map(|(test_name, test)| {
                let mut pairs: Vec<usize> = (0..trials / 5)
                    .map(|seed| first(*test, Noise::Autocorrelated, truth, sd, seed).unwrap_or(PAIRS + 1))
                    .collect();
                pairs.sort_unstable();
                format!("{test_name} {}/{}", pairs[pairs.len() / 2], pairs[pairs.len() * 9 / 10])
            });
            println!(
                "  noise {sd} of a window, +{:.0} %: {}",
                change * 100.0,
                found.collect::<Vec<_>>().join(", ")
            );
        }
    }
    let mut missed = 0;
    for seed in 0..trials {
        let mut windows = Windows::new(Noise::Autocorrelated, seed);
        let mut sequence = Sequence::new();
        let truth = 0.2_f64.ln_1p();
        missed += usize::from((0..PAIRS).any(|_| {
            sequence.add(windows.pair(truth, 0.15));
            sequence.against_at_most(truth) >= (2.0 / ALPHA).ln()
                || sequence.against_at_least(truth) >= (2.0 / ALPHA).ln()
        }));
    }
    println!(
        "intervals that ever missed +20 %: {:.1} %",
        100.0 * count(missed) / f64::from(u32::try_from(trials).unwrap_or(1))
    );
}

fn normal(chance: &mut Chance) -> f64 {
    (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos()
}

#[expect(clippy::cast_precision_loss, reason = "counts of pairs")]
const fn count(number: usize) -> f64 {
    number as f64
}

fn power(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
