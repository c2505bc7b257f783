//! Checks how often the predicted range of a policy contains the measured value. Each recorded server is
//! predicted from the records of the others. `-- --nocapture` prints every prediction.
#![allow(clippy::print_stdout, reason = "the estimates are printed for a person who runs the test")]

use std::collections::BTreeSet;

use latency::measure::Interval;
use latency::measure::expectation::{Experience, HOLDS, Load, Recorded};

/// A prediction, with the record that it is for.
struct Case<'a> {
    record: &'a Recorded,
    cpu: Interval,
    p50: Interval,
}

fn holds(range: &Interval, change: f64) -> bool {
    (range.low..=range.high).contains(&change)
}

/// Returns each record with the ranges predicted from the records of other servers.
fn cases(all: &[Recorded]) -> Vec<Case<'_>> {
    let servers: BTreeSet<&str> = all.iter().map(|one| one.server.as_str()).collect();
    let mut cases = Vec::new();
    for server in servers {
        let others: Vec<Recorded> = all.iter().filter(|one| one.server != server).cloned().collect();
        let experience = Experience::of(&others);
        for record in all.iter().filter(|one| one.server == server) {
            let expected = experience.expected(&record.load);
            let expected = expected.into_iter().find(|one| one.policy == record.policy);
            cases.extend(expected.map(|one| Case { record, cpu: one.cpu, p50: one.p50 }));
        }
    }
    cases
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "a few hundred records")]
fn a_stated_range_holds_what_was_measured_on_a_server_that_it_does_not_know() {
    let all = Recorded::all();
    let cases = cases(all);
    assert!(cases.len() * 10 >= all.len() * 9, "{} of {} have a range", cases.len(), all.len());
    for Case { record, cpu, p50 } in &cases {
        println!(
            "{} {:.0}/s {} {}: cpu {:+.2} in {:+.2} to {:+.2}: {}; p50 {:+.2} in {:+.2} to {:+.2}: {}",
            record.server,
            record.load.rate,
            record.load.connections,
            record.policy,
            record.cpu,
            cpu.low,
            cpu.high,
            holds(cpu, record.cpu),
            record.p50,
            p50.low,
            p50.high,
            holds(p50, record.p50)
        );
    }
    let share = |is: &dyn Fn(&Case<'_>) -> bool, of: &[&Case<'_>]| {
        of.iter().filter(|case| is(case)).count() as f64 / of.len() as f64
    };
    let of_all: Vec<&Case<'_>> = cases.iter().collect();
    let cpu = share(&|case| holds(&case.cpu, case.record.cpu), &of_all);
    let p50 = share(&|case| holds(&case.p50, case.record.p50), &of_all);
    println!("{} cases: cpu {cpu:.3}, p50 {p50:.3}", of_all.len());
    // The records for which a saving was predicted, and the share of them that had one.
    let savings: Vec<&Case<'_>> = cases.iter().filter(|case| case.cpu.high < 0.0).collect();
    let saved = share(&|case| case.record.cpu < 0.0, &savings);
    println!("{} predict a saving, and {saved:.3} of them saved", savings.len());
    assert!(cpu >= HOLDS - 0.05 && p50 >= HOLDS - 0.05, "cpu {cpu:.3}, p50 {p50:.3}");
    assert!(savings.len() >= 5 && saved >= 0.95, "{} state a saving, {saved:.3} saved", savings.len());
}

#[test]
fn an_unsteady_service_and_a_load_far_from_all_records_have_no_saving() {
    let experience = Experience::recorded();
    let load = |rate: f64, spread: f64| Load {
        rate,
        connections: 64,
        packets_per_poll: None,
        switches: None,
        delivery_share: None,
        spread: Some(spread),
    };
    assert!(experience.expected(&load(20_000.0, 1.5)).iter().any(|one| one.cpu.high < 0.0));
    assert!(experience.expected(&load(1_000.0, 1.5)).iter().all(|one| one.cpu.high > 0.0));
    assert!(experience.expected(&load(20_000.0, 30.0)).iter().all(|one| one.cpu.high > 0.0));
    assert!(experience.expected(&load(10.0, 1.5)).is_empty());
    assert!(experience.expected(&load(5e6, 1.5)).is_empty());
}
