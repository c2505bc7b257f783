//! The running daemon of a network namespace, as commands use it: they connect to the daemon, and refuse
//! changes that it would revert.

use linux::Netns;
use model::{NetnsId, Pid};
use serde_json::{Map, Value};
use session::{Exit, Fault, Session};

use crate::api::Client;
use crate::instance_lock::RunningDaemon;

/// Connects to the daemon of this namespace and journal. Returns `None` if no such daemon is running.
///
/// # Errors
/// If there is a socket but connecting to it fails, or the daemon does not answer.
pub fn connect(session: &Session, netns: NetnsId) -> Result<Option<Client>, Fault> {
    let socket = session.trusted_api_socket()?;
    let connected = Client::connect(&socket).map_err(|error| Fault::file(&socket, error))?;
    let Some(mut client) = connected else { return Ok(None) };
    let said = client.call("Status", Map::new())?;
    let theirs = said.get("status").and_then(|status| status.get("netns")).and_then(Value::as_u64);
    // A client that may see only part of the status does not get `netns`; the daemon itself refuses its
    // calls.
    Ok((theirs.is_none() || theirs == Some(netns.0)).then_some(client))
}

/// Refuses changes if a daemon with another state directory is running, because it would revert them as
/// drift.
///
/// # Errors
/// [`Exit::Refused`], naming the daemon's process.
pub fn refuse_beside_another(session: &Session, netns: &Netns) -> Result<(), Fault> {
    let Some(daemon) = RunningDaemon::of(netns) else { return Ok(()) };
    if session.journal()?.daemon() == Some(daemon.pid) || connect(session, netns.id())?.is_some() {
        return Ok(());
    }
    let words = format!(
        "{} is the daemon of this network namespace, with another state directory: it would revert these changes",
        daemon.process()
    );
    let stop = daemon.stop();
    Err(Fault::new(Exit::Refused, words)
        .hint(format!("use the daemon's --state-dir, or stop the daemon meanwhile: {stop}")))
}

/// Whether the daemon has started this process for a session of its API. The daemon then changes no settings.
fn is_our_parent(daemon: Pid) -> bool {
    rustix::process::getppid()
        .is_some_and(|parent| u32::try_from(parent.as_raw_nonzero().get()) == Ok(daemon.0))
}

/// Refuses to alternate settings if a daemon is running, because the daemon would repair the settings in the
/// middle of a window. Permits it in a session of the daemon's own API.
///
/// # Errors
/// [`Exit::Refused`], naming the daemon's process.
pub fn refuse_beside_any(session: &Session, netns: &Netns) -> Result<(), Fault> {
    const WORDS: &str = "manages this network namespace, and would revert the measured settings";
    let refused = |words| Fault::new(Exit::Refused, words);
    let daemon = RunningDaemon::of(netns);
    if daemon.as_ref().is_some_and(|daemon| is_our_parent(daemon.pid)) {
        return Ok(());
    }
    if let Some(daemon) = daemon {
        return Err(refused(format!("the daemon, {}, {WORDS}", daemon.process()))
            .hint(format!("stop it meanwhile: {}", daemon.stop())));
    }
    match connect(session, netns.id())? {
        Some(_) => Err(refused(format!("a daemon {WORDS}"))),
        None => Ok(()),
    }
}
