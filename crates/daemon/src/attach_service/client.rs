//! The client side of the attach service. It runs without privileges.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use linux::attach::{Attach, EpollsOf};
use linux::process::{Criteria, FoundProcesses};
use linux::{Cause, Errno, KernelError, Netns, Processes};
use model::host::{Process, Unread};
use model::{EpollId, Pid, ProcessId, Setting};
use session::{Exit, Fault};

use super::{ANSWER_BYTES_MAX, Answer, CRITERIA_MAX, Request, Wanted};
use crate::api::wire::encode;
use crate::socket_file;

/// How long the client waits for a reply. The daemon's turn is blocked while it waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes this process inspect other processes through the service at this socket, unless this process has
/// `CAP_SYS_PTRACE` itself. Returns whether a service answers there.
pub fn go_through(path: &Path) -> bool {
    if !linux::attach::is_needed() {
        return false;
    }
    let connection = Connection::to(path);
    let answers = connection.connect().is_ok();
    if answers {
        linux::attach::through(Box::new(connection), path.to_owned());
    }
    answers
}

/// Like [`go_through`], but also takes effect if no service answers yet: for a process that retries until a
/// service does.
pub fn go_through_once_it_answers(path: &Path) {
    if linux::attach::is_needed() {
        linux::attach::through(Box::new(Connection::to(path)), path.to_owned());
    }
}

/// Checks that the service at this socket answers an empty request. Used for health checks.
///
/// # Errors
/// If the service does not answer within [`PATIENCE`].
pub fn check(path: &Path) -> Result<Exit, Fault> {
    let nothing = Request::Find { wanted: Vec::new(), only: Some(Pid(std::process::id())) };
    match Connection::to(path).ask(&nothing) {
        Ok(Answer::Found(_)) => Ok(Exit::Done),
        Ok(_) => Err(Fault::failed(format!("another program answers at {}", path.display()))),
        Err(error) => Err(Fault::failed(format!("no attach service answers: {error}"))
            .hint("`netpolicy attach-service` starts one")),
    }
}

/// A connection to the service. It is re-established after an error, because the service may have been
/// restarted.
#[derive(Debug)]
struct Connection {
    path: PathBuf,
    stream: Mutex<Option<UnixStream>>,
}

impl Connection {
    fn to(path: &Path) -> Self {
        Self { path: path.to_owned(), stream: Mutex::new(None) }
    }

    fn connect(&self) -> io::Result<UnixStream> {
        socket_file::connect(&self.path, PATIENCE)
    }

    fn ask(&self, request: &Request) -> Result<Answer, KernelError> {
        let failed = |error: &io::Error| KernelError::io(self.path.display().to_string(), error);
        let mut held = self.stream.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Use the open connection. If this fails, the connection broke since its last use: open another one,
        // but only once.
        if let Some(stream) = held.take()
            && let Ok(answer) = exchange(&stream, request)
        {
            *held = Some(stream);
            return Ok(answer);
        }
        let stream = self.connect().map_err(|error| failed(&error))?;
        let answer = exchange(&stream, request).map_err(|error| failed(&error))?;
        *held = Some(stream);
        Ok(answer)
    }

    fn unexpected(&self, what: &str) -> KernelError {
        KernelError { what: self.path.display().to_string(), cause: Cause::Malformed(format!("no {what}")) }
    }
}

fn exchange(mut stream: &UnixStream, request: &Request) -> io::Result<Answer> {
    stream.write_all(&encode(request))?;
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 * 1024];
    while bytes.last() != Some(&0) {
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => bytes.extend_from_slice(&part[..length]),
        }
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::from_raw_os_error(Errno::OVERFLOW.raw_os_error()));
        }
    }
    bytes.pop();
    Ok(serde_json::from_slice(&bytes)?)
}

impl Attach for Connection {
    fn processes(&self, netns: &Netns, which: &Processes) -> (Vec<Process>, Vec<Unread>) {
        let only = match which {
            Processes::None => return (Vec::new(), Vec::new()),
            Processes::Only(pids) => Some(pids.clone()),
            // The client requests each of the other processes separately.
            Processes::Networking | Processes::NetworkingAnd(_) => None,
        };
        let error = match self.ask(&Request::Processes { netns: netns.id().0, only }) {
            Ok(Answer::Processes { found, unread }) => return (found, unread),
            Ok(Answer::Failed(failure)) => failure.into(),
            Ok(_) => self.unexpected("processes"),
            Err(error) => error,
        };
        (Vec::new(), vec![Unread { what: error.what, why: error.cause.to_string() }])
    }

    fn find_each(&self, all: &[Criteria], only: Option<Pid>) -> Result<Vec<FoundProcesses>, KernelError> {
        let mut each = Vec::with_capacity(all.len());
        for some in all.chunks(CRITERIA_MAX) {
            match self.ask(&Request::Find { wanted: some.iter().map(Wanted::from).collect(), only })? {
                Answer::Found(found) if found.len() == some.len() => each.extend(found),
                Answer::Failed(failure) => return Err(failure.into()),
                _ => return Err(self.unexpected("processes")),
            }
        }
        Ok(each)
    }

    fn holders_of_each(&self, inodes: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<Pid>>, KernelError> {
        match self.ask(&Request::Holders(inodes.clone()))? {
            Answer::Holders(pids) => Ok(pids),
            Answer::Failed(failure) => Err(failure.into()),
            _ => Err(self.unexpected("pids")),
        }
    }

    fn read(&self, like: &Setting) -> Result<Setting, KernelError> {
        match self.ask(&Request::Read(like.clone()))? {
            Answer::Value(value) if value.same_knob(like) => Ok(value),
            Answer::Failed(failure) => Err(failure.into()),
            _ => Err(self.unexpected("value")),
        }
    }

    fn write(&self, setting: &Setting) -> Result<(), KernelError> {
        match self.ask(&Request::Write(setting.clone()))? {
            Answer::Written => Ok(()),
            Answer::Failed(failure) => Err(failure.into()),
            _ => Err(self.unexpected("answer")),
        }
    }

    // The service does not offer the next three requests. For these, this process queries the kernel itself,
    // if it is permitted to.
    fn epolls(&self, process: &ProcessId) -> Result<EpollsOf, KernelError> {
        linux::process::epolls_of(process)
    }

    fn same_epoll(&self, a: EpollId, b: EpollId) -> bool {
        linux::process::is_same_epoll(a, b)
    }

    fn holders_of_af_xdp(&self, netns_cookie: Option<u64>) -> Result<Vec<ProcessId>, KernelError> {
        Ok(linux::process::holders_of_af_xdp_among(netns_cookie, &linux::process::pids()?))
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Answers this many requests, as a service on a host without processes does. Returns the number of
    /// criteria in each request.
    fn answer(listener: &UnixListener, requests: usize) -> Vec<usize> {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut sizes = Vec::new();
        let mut bytes = Vec::new();
        while sizes.len() < requests {
            let mut part = [0; 4096];
            let length = stream.read(&mut part).expect("a request");
            assert!(length > 0 && bytes.len() <= super::super::REQUEST_BYTES_MAX);
            bytes.extend_from_slice(&part[..length]);
            let Some(json) = bytes.strip_suffix(b"\0") else { continue };
            let Ok(Request::Find { wanted, .. }) = serde_json::from_slice(json) else { panic!("{json:?}") };
            sizes.push(wanted.len());
            let found = Answer::Found(vec![Default::default(); wanted.len()]);
            stream.write_all(&encode(&found)).expect("an answer");
            bytes.clear();
        }
        sizes
    }

    #[test]
    fn thousands_of_services_are_searched_for_by_a_few_requests() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("attach");
        let listener = UnixListener::bind(&path).expect("a socket");
        let service = std::thread::spawn(move || answer(&listener, 10));
        let all: Vec<Criteria> =
            (1..=5_000).map(|port| Criteria { port: Some(port), ..Criteria::default() }).collect();
        let found = Connection::to(&path).find_each(&all, None).expect("found");
        assert_eq!(found, vec![FoundProcesses::default(); 5_000]);
        let sizes = service.join().expect("a service");
        assert_eq!(sizes.iter().sum::<usize>(), 5_000);
    }
}
