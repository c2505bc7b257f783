//! `bench live`: compares the estimates of `watch` with the truth on the wire.

use std::time::Instant;

use linux::Signals;
use model::OfferedLoad;
use session::{Exit, Fault};

use super::running::{layout, of_signal};
use crate::Context;
use crate::bench::live_args::{Live, LiveLoad};
use crate::bench::{BenchError, LiveStage, pace};
use crate::reports::{LiveBenchReport, LiveCostReport};

/// Performs every run, and reports the errors of the estimates.
pub(super) fn run(arguments: &Live, context: &Context<'_>) -> Result<Exit, Fault> {
    if let Some(path) = &arguments.json {
        super::running::writable(path)?;
    }
    let layout = layout(context)?;
    if layout.is_shared() {
        context.console.say("There is only one CPU: server and client compete for it.");
    }
    let mut signals = Signals::catch()?;
    let mut stage = LiveStage::new(context, &mut signals, layout, arguments)?;
    if arguments.cost {
        return costs(&mut stage, arguments, context);
    }
    let (modes, loads) = (arguments.modes(), arguments.loads());
    let all = modes.len() * loads.len() * usize::try_from(arguments.repeats).unwrap_or(usize::MAX);
    let (mut trials, began) = (Vec::new(), Instant::now());
    let mut stopped = None;
    // Iterate by load, because the clients' turnaround times that are learned under the kernel's default mode
    // are valid for one load only.
    'runs: for load in &loads {
        for round in 0..arguments.repeats {
            for mode in &modes {
                context.console.progress(&format!("{}: {mode} at {load}", pace(trials.len(), all, began)));
                match stage.trial(*mode, *load, round) {
                    Ok(trial) => trials.push(trial),
                    Err(error) => {
                        stopped = Some(error);
                        break 'runs;
                    }
                }
            }
        }
    }
    context.console.progress("");
    context.console.report(&LiveBenchReport::of(&trials))?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string(&trials).map_err(Fault::failed)?;
        std::fs::write(path, text).map_err(|error| Fault::file(path, error))?;
    }
    ended(stopped)
}

fn costs(stage: &mut LiveStage<'_>, arguments: &Live, context: &Context<'_>) -> Result<Exit, Fault> {
    let connections = arguments.closed.iter().copied().max().unwrap_or(arguments.connections);
    let load = LiveLoad { offered: OfferedLoad::Max, connections };
    let rounds = arguments.repeats;
    let began = Instant::now();
    let found = stage.costs(load, rounds, |round| {
        let at = usize::try_from(round).unwrap_or(0);
        let all = usize::try_from(rounds).unwrap_or(0);
        context.console.progress(&pace(at, all, began));
    });
    context.console.progress("");
    match found {
        Ok((rounds, profile)) => {
            context.console.report(&LiveCostReport::of(load, &rounds, profile))?;
            Ok(Exit::Done)
        }
        Err(error) => ended(Some(error)),
    }
}

fn ended(stopped: Option<BenchError>) -> Result<Exit, Fault> {
    match stopped {
        None => Ok(Exit::Done),
        Some(BenchError::Interrupted(signal)) => Ok(Exit::Command(of_signal(signal))),
        Some(BenchError::Failed(fault)) => Err(fault),
        Some(error @ BenchError::TimeUp) => Err(Fault::failed(error.to_string())),
    }
}
