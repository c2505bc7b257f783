//! Formats the progress of a comparison.

use std::time::Duration;

use crate::measure::switchback::{Metric, Switchback};

/// Formats the progress of a comparison in one line.
pub fn progress_words(so_far: &Switchback, elapsed: Duration, most: Duration) -> String {
    let mut parts = vec![format!(
        "{:.0} of at most {} s, {}",
        elapsed.as_secs_f64(),
        most.as_secs(),
        pairs(so_far.rounds())
    )];
    let voided: usize = so_far.voided().iter().map(|(_, rounds)| rounds).sum();
    // State only the most frequent reason why rounds are not valid.
    if let Some((why, _)) = so_far.voided().iter().max_by_key(|(_, rounds)| *rounds) {
        parts[0] += &format!(", {voided} void ({why})");
    }
    for (candidate, name) in so_far.names().iter().enumerate().skip(1) {
        let deciding = so_far.rule().deciding.iter().filter(|metric| **metric != Metric::Stalls);
        let changes = deciding.map(|metric| (metric, so_far.change(candidate, *metric)));
        let known = changes.filter(|(_, change)| change.change.is_some());
        let words: Vec<String> = known.map(|(metric, change)| format!("{metric} {change}")).collect();
        if !words.is_empty() {
            parts.push(format!("{name}: {}", words.join(", ")));
        }
    }
    parts.join("; ")
}

/// Formats a number of pairs: `1 pair`, `2 pairs`.
pub fn pairs(number: usize) -> String {
    format!("{number} {}", if number == 1 { "pair" } else { "pairs" })
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::measure::switchback::{Rule, Unfair};

    #[test]
    fn progress_names_why_rounds_are_void_and_no_candidate_of_which_nothing_is_known() {
        let rule = Rule { deciding: vec![Metric::P50], margin: 0.05, alpha: Rule::ALPHA };
        let names = ["current", "cpu", "power"].map(str::to_owned).to_vec();
        let mut so_far = Switchback::new(names, rule);
        let words =
            |so_far: &Switchback| progress_words(so_far, Duration::from_secs(5), Duration::from_secs(60));
        assert_eq!(words(&so_far), "5 of at most 60 s, 0 pairs");
        so_far.void(Unfair::Rates);
        so_far.void(Unfair::Rates);
        so_far.void(Unfair::Machine);
        assert_eq!(
            words(&so_far),
            "5 of at most 60 s, 0 pairs, 3 void (request rates differed by more than 10 %)"
        );
        assert_eq!([pairs(1), pairs(2)], ["1 pair", "2 pairs"]);
    }
}
