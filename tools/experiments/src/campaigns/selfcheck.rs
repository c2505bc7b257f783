//! `bench selfcheck`: compares the load generator with independent instruments.

use std::time::Instant;

use linux::Signals;
use linux::machine::cpu_pressure;
use linux::work::RunTimes;
use model::{Nanoseconds, Pid};
use session::{Exit, Fault};

use super::running::{layout, of_signal};
use crate::Context;
use crate::bench::selfcheck_args::Selfcheck;
use crate::bench::{BenchError, Client, SelfcheckStage, Tool, pace};
use crate::reports::{ClosedLoop, Disturbance, NotMade, Runs, SelfcheckReport, Verdict};

/// Performs every run, and reports how far the instruments differ.
pub(super) fn run(arguments: &Selfcheck, context: &Context<'_>) -> Result<Exit, Fault> {
    let layout = layout(context)?;
    if layout.is_shared() {
        context.console.say("There is only one CPU: server and client compete for it.");
    }
    let mut signals = Signals::catch()?;
    let mut stage = SelfcheckStage::new(&mut signals, layout, arguments)?;
    match check(&mut stage, arguments, context) {
        Ok(report) => {
            context.console.progress("");
            context.console.report(&report)?;
            Ok(if report.has(Verdict::Misses) {
                Exit::Failed
            } else if report.is_incomplete() {
                Exit::Unsupported
            } else if report.has(Verdict::Undecided) {
                Exit::Pending
            } else {
                Exit::Done
            })
        }
        Err(BenchError::Interrupted(signal)) => Ok(Exit::Command(of_signal(signal))),
        Err(BenchError::Failed(fault)) => Err(fault),
        Err(error @ BenchError::TimeUp) => Err(Fault::failed(error.to_string())),
    }
}

fn check(
    stage: &mut SelfcheckStage<'_>,
    arguments: &Selfcheck,
    context: &Context<'_>,
) -> Result<SelfcheckReport, BenchError> {
    let (shapes, rounds) = (arguments.shapes(), arguments.rounds());
    let mut not_made = Vec::new();
    let clients: Vec<Client> = match &stage.open_loop {
        Ok(_) => Client::ALL.to_vec(),
        Err(reason) => {
            let row = format!("the client \"{}\"", Client::Independent.name());
            not_made.push(NotMade { row, reason: reason.clone() });
            vec![Client::Spinning, Client::Sleeping]
        }
    };
    let all = rounds as usize * (shapes.len() * clients.len() + Tool::ALL.len());
    let (mut done, mut said, began) = (0, Instant::now(), Instant::now());
    let mut progress = |words: &str| {
        let words = match done {
            0 => format!("run 1 of {all}: {words}"),
            _ => format!("{}: {words}", pace(done, all, began)),
        };
        if context.console.has_watcher() {
            context.console.progress(&words);
        } else if done == 0 || said.elapsed().as_secs() >= 30 {
            said = Instant::now();
            context.console.say(&words);
        }
        done += 1;
    };
    let (before, others, pressure) = (stage.counters()?, RunTimes::now(), cpu_pressure());
    let server = stage.start()?;
    let mut runs: Vec<Runs> = Vec::new();
    for &shape in &shapes {
        let first = runs.len();
        runs.extend(clients.iter().map(|&client| (shape, client, Vec::new())));
        for round in 0..rounds {
            for (place, &client) in clients.iter().enumerate() {
                progress(&format!("{} at {}/s over {}", client.name(), shape.rate, shape.connections));
                let sample = stage.run(&server, shape, client, round)?;
                runs[first + place].2.push(sample);
            }
        }
    }
    let disturbance = {
        let after = stage.counters()?;
        let ours = [server.process().pid, Pid(std::process::id())];
        let waited =
            pressure.zip(cpu_pressure()).map(|(before, after)| Nanoseconds(after.0.saturating_sub(before.0)));
        disturbance(&before, &after, others.others_since(&ours), waited)
    };
    drop(server);
    let mut closed: Vec<ClosedLoop> = Vec::new();
    for tool in Tool::ALL {
        let mut found = Vec::new();
        for round in 0..rounds {
            progress(tool.name());
            match stage.closed_loop(tool, round)? {
                Ok(rates) => found.push(rates),
                Err(reason) => {
                    not_made.push(NotMade { row: format!("the closed loop of {}", tool.name()), reason });
                    break;
                }
            }
        }
        if !found.is_empty() {
            closed.push((tool.name(), Tool::CONNECTIONS, found));
        }
    }
    let service_time_us = arguments.service_time.as_secs_f64() * 1e6;
    Ok(SelfcheckReport::new(service_time_us, disturbance, &runs, &closed, not_made))
}

/// Describes the CPU time that other work took during the check.
#[expect(clippy::cast_precision_loss, reason = "ticks and spans of minutes, below 2^53")]
fn disturbance(
    before: &model::Counters,
    after: &model::Counters,
    others: Nanoseconds,
    waited: Option<Nanoseconds>,
) -> Disturbance {
    let seconds = Nanoseconds(after.at.0.saturating_sub(before.at.0)).as_secs_f64().max(1e-9);
    let (mut steal, mut all) = (0, 0);
    for cpu in &after.cpus {
        if let Some(earlier) = before.cpu(cpu.cpu) {
            let ticks = cpu.ticks.since(&earlier.ticks);
            (steal, all) = (steal + ticks.steal, all + ticks.total());
        }
    }
    Disturbance {
        steal_percent: steal as f64 * 100.0 / (all as f64).max(1.0),
        others_percent: others.as_secs_f64() * 100.0 / seconds,
        waited_percent: waited.map(|waited| waited.as_secs_f64() * 100.0 / seconds),
    }
}
