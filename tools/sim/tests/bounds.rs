//! Tests every key at both ends of its range: such machines are unusual but obey the same laws.

use model::Nanoseconds;
use sim::checker::Checker;
use sim::outcome::Length;
use sim::scenario::{KEYS, SPAN_MAX, Takes};
use sim::{Costs, Scenario};

/// Every key with each of its extreme values.
fn extremes() -> Vec<(String, String)> {
    let mut extremes = Vec::new();
    for key in KEYS {
        let ends = match key.takes {
            Takes::Whole { min, max, .. } => vec![min.to_string(), max.to_string()],
            Takes::Number { min, max, .. } => vec![min.to_string(), max.to_string()],
            Takes::Switch(_) => vec!["true".to_owned(), "false".to_owned()],
            Takes::Span(_) => {
                [Nanoseconds(0), Nanoseconds(1), SPAN_MAX].map(|span| span.to_string()).to_vec()
            }
            // Words have no extremes; the tests of the laws cover modes, loads and arrivals.
            Takes::Word(_) => Vec::new(),
        };
        extremes.extend(ends.into_iter().map(|end| (key.path.to_owned(), end)));
    }
    for parameter in Costs::PARAMETERS {
        for end in [parameter.min, parameter.max] {
            extremes.push((format!("costs.{}", parameter.name), end.to_string()));
        }
    }
    extremes
}

#[test]
fn every_key_at_both_ends_obeys_every_law_or_is_refused_with_the_reason() {
    let length = Length { warmup: 1_000_000, window: 2_000_000 };
    let (mut ran, mut refused) = (0, 0);
    for mode in ["interrupt", "suspend20", "fullbusy", "threaded-busy"] {
        for (key, value) in extremes() {
            // Setting up four million connections takes seconds in any mode.
            if key == "clients.connections" && mode != "interrupt" {
                continue;
            }
            let mut scenario = Scenario::default();
            let set = scenario.set_all([("delivery.mode", mode), (key.as_str(), value.as_str())]);
            assert_eq!(set, Ok(()), "{key} = {value}");
            match sim::run_watched(&scenario, 1, length, Checker::new()) {
                Ok((_, checker)) => {
                    ran += 1;
                    let verdict = checker.verdict(length.warmup + length.window);
                    assert_eq!(verdict, Ok(()), "{mode} with {key} = {value}");
                }
                Err(impossible) => {
                    refused += 1;
                    let named = impossible.key == key || impossible.beside.contains(&key.as_str());
                    assert!(named, "{key} = {value}: {impossible}");
                }
            }
        }
    }
    assert!(ran > 20 * refused, "{ran} ran, {refused} were refused");
}
