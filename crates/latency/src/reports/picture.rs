//! Draws the results of `compare`, `tune` and standing proofs, as self-contained HTML pages.

use crate::measure::switchback::{Metric, MetricChange, Switchback};
use crate::measure::tuning::Tuner;
use linux::machine::Machine;
use model::proof::Proof;
use session::page::picture::{Moment, PlottedSetting, Role, course, html, scatter};

use crate::judge::pairs;

/// The labels of the axes in the first figure.
const CPU: &str = "CPU time per request, µs";
const P99: &str = "99th percentile, µs";

/// Returns the candidates of a comparison as points of p99 and CPU time per request. Omits candidates without
/// pairs of both.
pub fn places(switchback: &Switchback, winner: Option<usize>) -> Vec<PlottedSetting> {
    let names = switchback.names();
    let mut places = Vec::new();
    for (candidate, name) in names.iter().enumerate().skip(1) {
        let [cpu, p99] = [Metric::Cpu, Metric::P99].map(|metric| switchback.change(candidate, metric));
        if places.is_empty() {
            places.extend(place(&names[0], cpu.before, p99.before, Role::Current));
        }
        let role = if winner == Some(candidate) { Role::Winner } else { Role::Candidate };
        places.extend(place(name, cpu.after, p99.after, role));
    }
    places
}

/// Creates a point. The coordinates are converted from nanoseconds.
fn place(name: &str, cpu: Option<f64>, p99: Option<f64>, role: Role) -> Option<PlottedSetting> {
    Some(PlottedSetting { name: name.to_owned(), x: cpu? / 1e3, y: p99? / 1e3, role })
}

/// Returns the HTML page of a comparison.
pub fn html_of_comparison(service: &str, switchback: &Switchback, winner: Option<usize>) -> String {
    let names = switchback.names();
    let mut sentences = Vec::new();
    for (candidate, name) in names.iter().enumerate().skip(1) {
        let verdict = switchback.verdict(candidate);
        let rounds = pairs(switchback.rounds());
        sentences.push(format!("{name} compared with {}: {verdict}, {rounds}", names[0]));
        let metrics = [Metric::P50, Metric::P90, Metric::P99, Metric::Cpu];
        sentences.extend(words(name, &metrics.map(|metric| switchback.change(candidate, metric))));
    }
    let figure = scatter(CPU, P99, &places(switchback, winner));
    html(&format!("Settings of {service} compared"), &measured_on(), &sentences, &[figure])
}

/// Returns the HTML page of a search. The position of each candidate is its change in the last stage that
/// tried it, applied to the current setting's values in the final stage.
pub fn html_of_search(service: &str, goal: Metric, tuner: &Tuner, winner: Option<&str>) -> String {
    let stages: Vec<_> = tuner.stages().collect();
    let current =
        |metric: Metric| stages.iter().rev().find_map(|heat| heat.switchback.change(1, metric).before);
    let (mut places, mut sentences) = (Vec::new(), Vec::new());
    let names = stages.first().map_or(&[][..], |heat| heat.switchback.names());
    if let Some(name) = names.first() {
        places.extend(place(name, current(Metric::Cpu), current(Metric::P99), Role::Current));
    }
    let mut drawn: Vec<String> = Vec::new();
    for heat in stages.iter().rev() {
        for (candidate, name) in heat.switchback.names().iter().enumerate().skip(1) {
            if drawn.contains(name) {
                continue;
            }
            drawn.push(name.clone());
            let value = |metric: Metric| {
                let change = heat.switchback.change(candidate, metric).change?;
                Some(current(metric)? * (1.0 + change.estimate))
            };
            let role = if winner == Some(name) { Role::Winner } else { Role::Candidate };
            places.extend(place(name, value(Metric::Cpu), value(Metric::P99), role));
            let metrics = [goal, Metric::P99, Metric::Cpu];
            let changes = metrics.map(|metric| heat.switchback.change(candidate, metric));
            sentences.extend(words(&format!("{name} ({})", heat.stage), &changes));
        }
    }
    let result = match winner {
        Some(winner) => format!("{winner} is best for {goal}."),
        None => format!("Nothing was shown to improve {goal}."),
    };
    sentences.insert(0, result);
    let figure = scatter(CPU, P99, &places);
    html(&format!("Settings of {service} tried"), &measured_on(), &sentences, &[figure])
}

/// Formats the changes of a candidate: `cpu: p50 +170 % (+150 to +190), …`; `None` if nothing was measured.
fn words(name: &str, changes: &[MetricChange]) -> Option<String> {
    let mut seen = Vec::new();
    let known = changes.iter().filter(|change| {
        let is_new = change.change.is_some() && !seen.contains(&change.metric);
        seen.push(change.metric);
        is_new
    });
    let words: Vec<String> = known.map(|change| format!("{} {change}", change.metric)).collect();
    (!words.is_empty()).then(|| format!("{name}: {}", words.join(", ")))
}

/// Returns the HTML page of services' standing proofs: each effect over time. `None` if no proof has results.
pub fn html_of_proofs<'p>(proofs: impl IntoIterator<Item = (&'p String, &'p Proof)>) -> Option<String> {
    let (mut figures, mut sentences) = (Vec::new(), Vec::new());
    for (service, proof) in proofs {
        sentences.push(proof.sentence(service));
        for effect in &proof.effects {
            let begun = proof.since_unix_micros;
            let of = proof.course.iter().filter(|step| step.quantity == effect.quantity);
            let moments: Vec<Moment> = of
                .map(|step| Moment {
                    days: days(step.unix_micros.saturating_sub(begun)),
                    estimate: step.change.estimate * 100.0,
                    low: step.change.low.map(|share| share * 100.0),
                    high: step.change.high.map(|share| share * 100.0),
                })
                .collect();
            let title = format!("{} of {service} with its policy", effect.quantity.as_str());
            figures.push(course(&title, &effect.change.to_string(), &moments));
        }
    }
    let is_drawn = figures.iter().any(|figure| !figure.is_empty());
    is_drawn.then(|| html("Standing proofs", &measured_on(), &sentences, &figures))
}

fn measured_on() -> String {
    let machine = Machine::this();
    format!("Measured on {}, Linux {}, on live traffic.", machine.host, machine.kernel)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a proof, below 2^53")]
fn days(micros: u64) -> f64 {
    micros as f64 / 86_400e6
}
