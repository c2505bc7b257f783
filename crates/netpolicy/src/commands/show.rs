//! `show`: prints or draws the packet path of this host.

use daemon::running_daemon;
use latency::live::LastMeasured;
use linux::Processes;
use linux::machine::seconds_since_1970;
use model::Pid;
use session::{Exit, Fault, app_requests};

use crate::args::{Show, Which};
use crate::render::{HostReport, StatusReport, svg};
use cli::Context;

/// Prints or draws the packet path.
pub(crate) fn run(arguments: &Show, context: &Context) -> Result<Exit, Fault> {
    let source = context.session.source()?;
    let mut host = source.observe(&Processes::from(&arguments.processes))?;
    app_requests::add_to(&mut host, &*source, &context.session.app_requests());
    match &arguments.svg {
        Some(path) => {
            std::fs::write(path, svg(&host)).map_err(|error| Fault::file(path, error))?;
            context.console.say(&format!("Wrote the packet path to {}.", path.display()));
        }
        None => {
            context.console.report(&HostReport(&host))?;
            for line in last_measured(context) {
                context.console.say(&line);
            }
        }
    }
    Ok(Exit::Done)
}

/// Returns the last measurement of each service, made by the daemon or a command. These measurements are
/// stored apart from the host's state.
pub(super) fn last_measured(context: &Context) -> Vec<String> {
    if let Some(recording) = &context.session.recording {
        return recording.last_measured.clone();
    }
    let Ok(netns) = context.session.netns() else { return Vec::new() };
    let mut client = running_daemon::connect(&context.session, netns.id()).ok().flatten();
    let said = client.as_mut().and_then(|client| client.call("Status", serde_json::Map::new()).ok());
    let report = said.as_ref().and_then(|said| StatusReport::of(said.get("status")?).ok());
    let by_command = LastMeasured::of_each_service(&context.session, netns.id()).into_iter();
    let by_command = by_command.map(|measured| measured.text(seconds_since_1970()));
    report.map(|report| report.last_measured()).into_iter().flatten().chain(by_command).collect()
}

impl From<&Which> for Processes {
    fn from(which: &Which) -> Self {
        match which {
            Which::All => Self::Networking,
            Which::None => Self::None,
            Which::Pids(pids) => Self::Only(pids.iter().copied().map(Pid).collect()),
        }
    }
}
