//! Runs a daemon from start to end.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::io::Errno;
use session::{Exit, Fault, Operator, Session};

use crate::api;
use crate::attach_service;
use crate::daemon::Daemon;
use crate::event_loop::EventLoop;
use crate::notify::{Herald, Notifier};
use crate::options::DaemonOptions;
use crate::query;
use crate::sessions::{SessionProgram, Sessions};
use crate::status::Shared;

/// The paths of the sockets and files that a daemon serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// The path of the Varlink socket; `None` for the default path, which depends on the journal.
    pub api: Option<PathBuf>,
    /// The gid of the group whose members may request changes like root.
    pub api_group: Option<u32>,
    /// The path of the socket that serves OpenMetrics over HTTP. `None` for the default path, which depends
    /// on the journal; an empty path for no socket.
    pub metrics: Option<PathBuf>,
    /// A file to which the daemon also writes OpenMetrics. Its name ends in `.prom`.
    pub metrics_file: Option<PathBuf>,
    /// A loopback address that also serves OpenMetrics over HTTP.
    pub metrics_address: Option<SocketAddr>,
    /// The path of the attach service's socket.
    pub attach: PathBuf,
}

/// A function that receives log lines about the sockets.
pub type LogSink = Box<dyn Fn(&str) + Send>;

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// If options are invalid, policy files have mistakes, another daemon is running, or event sources cannot be
/// opened.
pub fn run(
    session: &Session,
    operator: &dyn Operator,
    options: DaemonOptions,
    sockets: Sockets,
    log: LogSink,
) -> Result<Exit, Fault> {
    if let Some(path) = &sockets.metrics_file
        && path.extension() != Some(OsStr::new("prom"))
    {
        let words = format!("--metrics-file {}: its name does not end in .prom", path.display());
        return Err(
            Fault::new(Exit::Usage, words).hint("textfile collectors read only files that end in .prom")
        );
    }
    if let Some(address) = sockets.metrics_address.filter(|address| !address.ip().is_loopback()) {
        let words = format!("--metrics-listen {}", api::OpenError::NotLoopback(address));
        return Err(Fault::new(Exit::Usage, words));
    }
    // When the daemon starts, mistakes in policy files are an error; later, they only cause a finding.
    session.policy(operator)?;
    let mut event_loop = EventLoop::new()
        .map_err(|errno| Fault::failed(format!("cannot create the daemon's epoll: {errno}")))?;
    let shared = Shared::new()
        .map_err(|errno| Fault::failed(format!("cannot set up the daemon's status: {errno}")))?;
    // Do this before the first inspection: this process may lack the permission to inspect other processes.
    if attach_service::go_through(&sockets.attach) {
        operator.say(&format!("Processes are inspected through {}.", sockets.attach.display()));
    }
    let mut daemon = Daemon::begin(session, operator, options, shared.clone(), &mut event_loop)?;
    let sessions = Sessions::new(SessionProgram::of_daemon(session, &options), shared.clone());
    let serving = admit(sockets, session, log, sessions.clone(), &shared, &mut event_loop)?;
    let ran = daemon.run(&mut event_loop);
    // Restore the settings that sessions have changed before those of the daemon.
    sessions.close();
    ran?;
    daemon.end()?;
    drop(serving);
    Ok(Exit::Done)
}

/// Serves the sockets, and notifies systemd if it started the daemon.
fn admit(
    sockets: Sockets,
    session: &Session,
    log: LogSink,
    sessions: Sessions,
    shared: &Shared,
    event_loop: &mut EventLoop,
) -> Result<api::Serving, Fault> {
    let options = api::ApiOptions {
        socket: sockets.api.unwrap_or_else(|| session.api_socket()),
        group: sockets.api_group,
        metrics_socket: match sockets.metrics {
            Some(path) => Some(path).filter(|path| !path.as_os_str().is_empty()),
            None => Some(session.metrics_socket()),
        },
        metrics_file: sockets.metrics_file,
        metrics_address: sockets.metrics_address,
        log,
        answer_query: query::handler(session.clone()),
        sessions,
    };
    let serving = api::Serving::begin(shared, options).map_err(|error| match error {
        api::OpenError::NoPlace(error) => Fault::from(error),
        other => not_opened(other),
    })?;
    let notifier = Notifier::of_environment().map_err(|error| Fault::file("NOTIFY_SOCKET", error))?;
    if let Some(notifier) = notifier {
        let herald = Box::new(Herald::new(notifier, shared.clone()));
        event_loop.admit(herald).map_err(|errno| {
            Fault::failed(format!("cannot add systemd's notify socket to the event loop: {errno}"))
        })?;
    }
    Ok(serving)
}

/// Creates the fault for a socket that could not be opened. The shipped systemd unit does not permit the
/// daemon to use network sockets.
fn not_opened(error: api::OpenError) -> Fault {
    let confined = matches!(&error, api::OpenError::Refused { error, .. }
        if Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT));
    let fault = Fault::failed(error);
    if confined { fault.hint(NO_NETWORK_SOCKET) } else { fault }
}

/// The hint on how to permit network sockets in the systemd unit.
const NO_NETWORK_SOCKET: &str = "netpolicy.service allows no network socket: its drop-in needs RestrictAddressFamilies=AF_INET (or AF_INET6) \
     and IPAddressAllow=localhost, too";

#[cfg(test)]
mod test {
    use session::Silent;

    use super::*;
    use crate::options::OnStop;

    #[test]
    fn options_that_cannot_be_are_a_mistake_of_the_command_line() {
        let usual = Sockets {
            api: None,
            api_group: None,
            metrics: None,
            metrics_file: None,
            metrics_address: None,
            attach: PathBuf::new(),
        };
        let far = Sockets { metrics_address: "192.0.2.1:9100".parse().ok(), ..usual.clone() };
        let odd = Sockets { metrics_file: Some("/m.txt".into()), ..usual };
        for (sockets, said) in [(far, "--metrics-listen 192.0.2.1:9100"), (odd, "--metrics-file /m.txt")] {
            let nowhere = Session { state_dir: "/proc/none".into(), ..Session::default() };
            let options =
                DaemonOptions { on_stop: OnStop::Keep, allow: apply::Allow::default(), inferred: false };
            let ended = run(&nowhere, &Silent, options, sockets, Box::new(|_| ()));
            let fault = ended.expect_err("refused");
            assert_eq!(fault.exit, Exit::Usage);
            assert!(fault.cause.to_string().starts_with(said), "{}", fault.cause);
        }
    }

    #[test]
    fn a_socket_that_the_unit_forbids_is_refused_with_what_would_allow_it() {
        let refused = |errno: Errno| {
            not_opened(api::OpenError::Refused { path: "127.0.0.1:9989".to_owned(), error: errno.into() })
        };
        let forbidden = refused(Errno::AFNOSUPPORT);
        assert!(forbidden.cause.to_string().starts_with("127.0.0.1:9989: "), "{}", forbidden.cause);
        assert!(forbidden.hint.is_some_and(|hint| hint.contains("RestrictAddressFamilies=AF_INET")));
        assert_eq!(refused(Errno::ADDRINUSE).hint, None);
    }
}
