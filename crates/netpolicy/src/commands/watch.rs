//! `watch`: measures the response times of a running service.

use std::time::{Duration, Instant};

use latency::live::{LastMeasured, MeasuredService, Percentiles, WatchEvent, WatchRecord, Watcher};
use latency::reports::{WatchReport, WatchRow, WatchWindowReport};
use linux::Signals;
use linux::machine::seconds_since_1970;
use session::{Exit, Fault};

use crate::args::WatchArgs;
use cli::Context;

/// Measures until the time limit, a signal, or the exit of the service; then prints a summary.
pub(crate) fn run(arguments: &WatchArgs, context: &Context) -> Result<Exit, Fault> {
    let target = MeasuredService::of(&arguments.service.selection(), &context.session, &context.console)?;
    let sample = Duration::from_nanos(arguments.sample.0);
    let mut watcher = Watcher::load(&target, sample)?;
    let mut record =
        arguments.record.as_deref().map(|path| WatchRecord::create(path, &target)).transpose()?;
    let mut signals = Signals::catch()?;
    let ports = format!("port {}", target.ports);
    let measured = if ports == target.name { ports } else { format!("{}, {ports}", target.name) };
    context.console.say(&format!(
        "{measured}: {} of each second is measured{}",
        arguments.sample,
        if arguments.seconds.is_some() { "" } else { "; press Ctrl-C to stop" }
    ));
    let began = Instant::now();
    let until = arguments.seconds.map(|seconds| began + Duration::from_secs(seconds));
    let mut row = WatchRow::default();
    let (mut due, mut unrecorded) = (began, None);
    let ended = loop {
        match watcher.turn(due, &mut signals)? {
            WatchEvent::Window(shown) => {
                if let Some(kept) = &mut record
                    && let Err(fault) = kept.add(&shown.window, &target)
                {
                    // Continue without the record, because the measurements are still reported.
                    context.console.say(&format!("Recording stopped here: {}", fault.cause));
                    (record, unrecorded) = (None, Some(fault));
                }
                show(
                    context,
                    &mut row,
                    &WatchWindowReport::of(&target, watcher.thread_names(), &shown, began.elapsed()),
                )?;
                if record.is_none() && !context.console.is_read() {
                    break false;
                }
            }
            WatchEvent::Ended => break true,
            WatchEvent::Interrupted => break false,
        }
        due = Watcher::next(due);
        if until.is_some_and(|until| due + sample > until) {
            break false;
        }
    };
    let summary = watcher.summary(&target);
    keep(&target, "watch", Some(summary.response), context);
    let names = watcher.thread_names();
    context.console.report(&WatchReport::of(&target, names, &summary, watcher.cost(), began.elapsed()))?;
    if ended {
        return Err(Fault::failed(format!("{} exited while it was watched", target.name)));
    }
    unrecorded.map_or(Ok(Exit::Done), Err)
}

/// Saves the result and its time, for `show`.
pub(super) fn keep(target: &MeasuredService, by: &str, response: Option<Percentiles>, context: &Context) {
    let (service, netns, at) = (target.name.clone(), target.netns.id(), seconds_since_1970());
    let kept = LastMeasured { service, netns, at, by: by.to_owned(), response, prospect: None }
        .keep(&context.session);
    if let Err(fault) = kept {
        context.console.detail(&format!("The time of the measurement was not saved: {}", fault.cause));
    }
}

/// Prints a row with table output, or a line with JSON-lines output. With JSON output, only the final
/// document is printed.
fn show(context: &Context, row: &mut WatchRow, window: &WatchWindowReport<'_>) -> Result<(), Fault> {
    if context.globals.output == crate::args::Output::Table {
        context.console.text(&row.text(window))
    } else if context.globals.output == crate::args::Output::Jsonl {
        context.console.report(window)
    } else {
        Ok(())
    }
}
