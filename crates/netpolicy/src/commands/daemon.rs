//! `daemon`: keeps the policy true for as long as it runs.

use std::ffi::OsStr;
use std::path::PathBuf;

use session::{Exit, Fault};

use super::oracle;
use crate::api;
use crate::args::Daemon;
use crate::attach_service;
use crate::context::Context;
use crate::daemon::{House, Keeper, Options, Shared};
use crate::notify::{Herald, Notifier};

/// Runs until it is asked to end.
pub(crate) fn run(arguments: &Daemon, context: &Context) -> Result<Exit, Fault> {
    let options = Options::of(arguments)?;
    if let Some(path) = &arguments.sockets.metrics_file
        && path.extension() != Some(OsStr::new("prom"))
    {
        let words = format!("--metrics-file {}: its name does not end in .prom", path.display());
        return Err(Fault::new(Exit::Usage, words).hint("collectors of text files read no others"));
    }
    // What is wrong with the files at the start is wrong with the command.
    context.policy()?;
    let mut house =
        House::new().map_err(|errno| Fault::failed(format!("an epoll for the daemon: {errno}")))?;
    let shared = Shared::new();
    // Before anything is looked at: what this process may not look into, another may for it.
    let attach = &arguments.sockets.attach_socket;
    if linux::attach::is_needed() && attach_service::go_through(attach) {
        context.console.say(&format!("Processes are looked into through {}.", attach.display()));
    }
    let mut keeper = Keeper::begin(context, options, shared.clone(), &house)?;
    admit(arguments, context, &shared, &mut house)?;
    context.console.say("netpolicy daemon: at work. SIGHUP reads the policy files again, SIGTERM ends it.");
    keeper.run(&mut house)?;
    keeper.end()?;
    Ok(Exit::Done)
}

/// Opens the sockets, and tells systemd, where that is who started it.
fn admit(arguments: &Daemon, context: &Context, shared: &Shared, house: &mut House) -> Result<(), Fault> {
    let sockets = &arguments.sockets;
    let log = context.console.clone();
    let named = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
    let options = api::Options {
        socket: sockets.socket.clone().unwrap_or_else(|| context.session.api_socket()),
        group: sockets.api_group,
        metrics_socket: match &sockets.metrics_socket {
            Some(path) => named(path),
            None => Some(context.session.metrics_socket()),
        },
        metrics_file: sockets.metrics_file.clone(),
        metrics_address: sockets.metrics_listen,
        log: Box::new(move |line| log.say(line)),
        oracle: oracle::of(&context.globals),
    };
    let mut guests = api::open(shared, options).map_err(|error| match error {
        api::OpenError::NoPlace(error) => Fault::from(error),
        other => Fault::failed(other),
    })?;
    let notifier = Notifier::of_environment().map_err(|error| Fault::file("NOTIFY_SOCKET", error))?;
    if let Some(notifier) = notifier {
        guests.push(Box::new(Herald::new(notifier, shared.clone())));
    }
    for guest in guests {
        house.admit(guest).map_err(|errno| Fault::failed(format!("the daemon's sockets: {errno}")))?;
    }
    Ok(())
}
