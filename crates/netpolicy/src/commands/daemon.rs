//! `daemon`: keeps the policy true for as long as it runs.

use crate::args::Daemon;
use crate::context::Context;
use crate::daemon::{House, Keeper, Options, Shared};
use crate::exit::Exit;
use crate::fault::Fault;

/// Runs until it is asked to end.
pub(crate) fn run(arguments: &Daemon, context: &Context) -> Result<Exit, Fault> {
    let options = Options::of(arguments)?;
    // What is wrong with the files at the start is wrong with the command.
    context.policy()?;
    let mut house =
        House::new().map_err(|errno| Fault::failed(format!("an epoll for the daemon: {errno}")))?;
    let shared = Shared::new();
    let mut keeper = Keeper::begin(context, options, shared, &house)?;
    context.console.say("netpolicy daemon: at work. SIGHUP reads the policy files again, SIGTERM ends it.");
    keeper.run(&mut house)?;
    keeper.end()?;
    Ok(Exit::Done)
}
