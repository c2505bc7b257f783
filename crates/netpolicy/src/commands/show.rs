//! `show`: the packet path of this host.

use linux::Processes;
use model::Pid;
use session::{Exit, Fault, app_requests};

use crate::args::{Show, Which};
use crate::context::Context;
use crate::render::{HostReport, svg};

/// Prints the packet path, or draws it.
pub(crate) fn run(arguments: &Show, context: &Context) -> Result<Exit, Fault> {
    let mut host = linux::observe(&context.session.netns()?, &Processes::from(&arguments.processes))?;
    app_requests::add_to(&mut host, &context.session.app_requests());
    match &arguments.svg {
        Some(path) => {
            std::fs::write(path, svg(&host)).map_err(|error| Fault::file(path, error))?;
            context.console.say(&format!("Drew the packet path into {}.", path.display()));
        }
        None => context.console.report(&HostReport(&host))?,
    }
    Ok(Exit::Done)
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
