//! `status`: prints the state of the daemon.

use daemon::api::Client;
use latency::live::LastMeasured;
use latency::live::text::ago;
use linux::machine::seconds_since_1970;
use model::{Change, Setting};
use serde_json::{Map, Value};
use session::{Exit, Fault};

use crate::args::StatusArgs;
use crate::render::StatusReport;
use cli::Context;

/// Reports settings that are in force although measurements showed that they make a service worse.
fn say_what_was_worse(context: &Context) {
    let known = context.session.evidence();
    if known.iter().all(|evidence| !evidence.is_against()) {
        return;
    }
    let Ok(history) = context.session.journal().and_then(|journal| Ok(journal.history()?)) else { return };
    let live: Vec<&Change> = history.transactions.iter().flat_map(|one| one.live_changes()).collect();
    let settings: Vec<&Setting> = live.iter().map(|change| change.to()).collect();
    if let Some(evidence) = plan::evidence_on(&settings, &known).filter(|evidence| evidence.is_against()) {
        context.console.say(&format!("Some settings in force were {}", evidence.sentence()));
    }
}

/// The maximum age of an estimate that is shown.
const EXPECTED_WITHIN_SECONDS: u64 = 24 * 3_600;

/// Reports how a policy would change services without a section, as estimated by `doctor` or `init`.
fn say_what_is_expected(report: &StatusReport, context: &Context) {
    let Ok(netns) = context.session.netns() else { return };
    let now = seconds_since_1970();
    for LastMeasured { service, at, by, prospect, .. } in LastMeasured::all(&context.session, netns.id()) {
        let age = now.saturating_sub(at);
        let Some(prospect) = prospect.filter(|_| age < EXPECTED_WITHIN_SECONDS) else { continue };
        if report.has(&service) {
            continue;
        }
        context.console.say(&format!("{service} has no policy; measured {} by {by}:", ago(age)));
        prospect.said().iter().for_each(|line| context.console.say(&format!("  {line}")));
    }
}

/// Queries the daemon, and prints its answer.
pub(crate) fn run(arguments: &StatusArgs, context: &Context) -> Result<Exit, Fault> {
    let socket = match &arguments.socket {
        Some(socket) => socket.clone(),
        None => context.session.trusted_api_socket()?,
    };
    let connected = Client::connect(&socket).map_err(|error| Fault::file(&socket, error))?;
    let Some(mut client) = connected else {
        return Err(Fault::failed(format!("no daemon answers at {}", socket.display()))
            .hint("`netpolicy daemon` starts one; `verify` and `history` work without it"));
    };
    let said = client.call("Status", Map::new()).map_err(Fault::from)?;
    let report = StatusReport::of(said.get("status").unwrap_or(&Value::Null))
        .map_err(|error| Fault::failed(format!("the daemon's answer is malformed: {error}")))?;
    context.console.report(&report)?;
    say_what_was_worse(context);
    say_what_is_expected(&report, context);
    Ok(if arguments.alive || report.is_in_order() { Exit::Done } else { Exit::Pending })
}
