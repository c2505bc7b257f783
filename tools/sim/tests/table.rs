//! Prints the table of predicted p99 by delivery mode and load: its diff shows the effect of a change to the
//! model.

use std::fmt::Write;

use model::DeliveryMode;
use sim::outcome::Length;
use sim::{Scenario, run};

const LENGTH: Length = Length { warmup: 40_000_000, window: 100_000_000 };
const LOADS: [&str; 6] = ["200K", "400K", "600K", "800K", "1000K", "max"];

#[test]
fn p99_by_mode_and_load() {
    let mut table = format!("p99 in us{:>8}", "");
    for load in LOADS {
        let _ = write!(table, "{load:>8}");
    }
    table.push('\n');
    for mode in DeliveryMode::DOCUMENT {
        let _ = write!(table, "{:17}", mode.to_string());
        for load in LOADS {
            let mut scenario = Scenario::default();
            scenario.deliver(mode);
            scenario.clients.load = load.parse().expect("a load");
            let outcome = run(&scenario, 1, LENGTH).expect("can be");
            let mark = if outcome.falls_behind() { "*" } else { "" };
            let _ = write!(table, "{:>8}", format!("{}{mark}", outcome.latency.per_mille(990) / 1000));
        }
        table.push('\n');
    }
    table.push_str("* no steady state: the backlog grows\n");
    insta::assert_snapshot!(table);
}
