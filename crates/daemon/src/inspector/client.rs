//! The client of the workers: sends them requests, limits their time, and remembers the processes that did
//! not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use linux::attach::{self, Attach, EpollsOf};
use linux::process::{self, Criteria, FoundProcesses};
use linux::{Cause, Errno, KernelError, Netns, Processes};
use model::host::{Process, Unread};
use model::{EpollId, Pid, ProcessId, ProcessKnob, Setting};

use super::{
    ALL_TOGETHER, ANSWER_BYTES_MAX, ASK_AGAIN_AFTER, Answer, Group, LONGEST_TICKS, PATIENCE, Request,
    SIDE_BY_SIDE, STALLS_MAX, START_PATIENCE, WAITING_MAX, WORKER,
};
use crate::api::wire::encode;

/// Makes this process inspect other processes in worker processes, unless it uses the attach service. The
/// program must call [`super::serve`] if its only argument is [`WORKER`].
pub fn install() {
    attach::by_workers(Box::new(Workers::default()));
}

/// A worker process that waits for requests.
#[derive(Debug)]
struct Worker {
    child: Child,
    stream: UnixStream,
}

impl Worker {
    fn start() -> io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORKER).current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn()?;
        Ok(Self { child, stream })
    }
}

/// Why a request to a worker got no answer.
enum Failure {
    /// The worker is blocked while it inspects this process.
    Stalled(Option<Pid>),
    /// The worker could not be started, or has exited.
    Broken(io::Error),
}

/// A process that did not answer, or a worker that was abandoned before it inspected a process.
#[derive(Debug)]
struct Stalled {
    since: Instant,
    /// When the process started, because its pid may have been reused since.
    started: Option<u64>,
    group: Option<Group>,
    /// The worker that is blocked on the process, unless that worker has exited.
    waits: Option<Child>,
}

/// The workers, which are started on demand.
#[derive(Debug, Default)]
struct Workers {
    idle: Mutex<Vec<Worker>>,
    stalled: Mutex<BTreeMap<Pid, Stalled>>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key for a worker that blocked before it inspected a process.
const NO_PROCESS: Pid = Pid(u32::MAX);

/// Returns the message about a process that did not answer.
fn did_not_answer() -> String {
    format!(
        "not readable: no answer within {} ms, because the process holds a lock in a system call",
        PATIENCE.as_millis()
    )
}

impl Workers {
    /// Sends a request to a worker. If the worker blocks, abandons it.
    fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        // Only using an idle worker shows whether it has exited since its last answer.
        let idle = held(&self.idle).pop();
        if let Some(mut worker) = idle {
            match exchange(&mut worker, request) {
                Err(Failure::Broken(_)) => drop(worker.child.wait()),
                answered => return self.put_away(worker, answered),
            }
        }
        let mut worker = Worker::start().map_err(Failure::Broken)?;
        let answered = exchange(&mut worker, request);
        self.put_away(worker, answered)
    }

    /// Keeps a worker for the next request, or abandons it if it did not answer.
    fn put_away(&self, mut worker: Worker, answered: Result<Answer, Failure>) -> Result<Answer, Failure> {
        match &answered {
            Ok(_) => {
                let mut idle = held(&self.idle);
                if idle.is_empty() {
                    idle.push(worker);
                } else {
                    drop(idle);
                    // A worker exits when its input is closed.
                    let Worker { mut child, stream } = worker;
                    drop(stream);
                    let _ = child.wait();
                }
            }
            Err(failure) => {
                let _ = worker.child.kill();
                match failure {
                    Failure::Stalled(at) => self.note(at.unwrap_or(NO_PROCESS), worker.child),
                    Failure::Broken(_) => drop(worker.child.wait()),
                }
            }
        }
        answered
    }

    fn note(&self, at: Pid, waits: Child) {
        let started = process::identify(at).ok().map(|id| id.started);
        let stalled =
            Stalled { since: Instant::now(), started, group: process::owner(at), waits: Some(waits) };
        held(&self.stalled).insert(at, stalled);
    }

    /// Whether a process has recently failed to answer, or is blocking a worker.
    fn is_stalled(&self, pid: Pid) -> bool {
        let mut stalled = held(&self.stalled);
        let Some(known) = stalled.get_mut(&pid) else { return false };
        if let Some(child) = &mut known.waits
            && !matches!(child.try_wait(), Ok(None))
        {
            known.waits = None;
        }
        let is_same = process::identify(pid).ok().map(|id| id.started) == known.started;
        let again = known.waits.is_none() && (known.since.elapsed() >= ASK_AGAIN_AFTER || !is_same);
        if again {
            stalled.remove(&pid);
        }
        !again
    }

    /// Returns the users with processes that recently did not answer, each with the number of workers that
    /// are blocked on these processes.
    fn blamed(&self) -> BTreeMap<Group, usize> {
        let mut stalled = held(&self.stalled);
        stalled.retain(|_, known| {
            if let Some(child) = &mut known.waits
                && !matches!(child.try_wait(), Ok(None))
            {
                known.waits = None;
            }
            known.waits.is_some() || known.since.elapsed() < ASK_AGAIN_AFTER
        });
        let mut blamed = BTreeMap::new();
        for known in stalled.values() {
            if let Some(group) = known.group {
                *blamed.entry(group).or_insert(0) += usize::from(known.waits.is_some());
            }
        }
        blamed
    }

    /// Sends requests about many processes; `request` creates a request for some of the pids. Returns the
    /// answers, and the processes that did not answer.
    fn ask_about(
        &self,
        pids: Vec<Pid>,
        request: &(dyn Fn(Vec<Pid>) -> Request + Sync),
    ) -> (Vec<Answer>, Vec<Unread>) {
        let blamed = self.blamed();
        let mut unread = Vec::new();
        let mut apart: BTreeMap<Group, Vec<Pid>> = BTreeMap::new();
        let mut together = Vec::new();
        for pid in pids {
            if self.is_stalled(pid) {
                unread.push(missing(pid, did_not_answer()));
                continue;
            }
            let owner = if blamed.is_empty() { None } else { process::owner(pid) };
            match owner.filter(|owner| blamed.contains_key(owner)) {
                Some(owner) => apart.entry(owner).or_default().push(pid),
                None => together.push(pid),
            }
        }
        apart.retain(|group, pids| {
            let waiting = blamed.get(group).copied().unwrap_or(0);
            if waiting >= WAITING_MAX {
                let (what, why) = (format!("processes of {group}"), not_looked_at(pids.len(), *group));
                unread.push(Unread { what, why });
            }
            waiting < WAITING_MAX
        });
        let begun = Instant::now();
        let mut answers = Vec::new();
        if !together.is_empty() {
            match self.ask(&request(together.clone())) {
                Ok(answer) => answers.push(answer),
                Err(Failure::Broken(error)) => {
                    unread.push(Unread { what: "processes".to_owned(), why: error.to_string() });
                }
                Err(Failure::Stalled(at)) => {
                    unread.extend(at.map(|at| missing(at, did_not_answer())));
                    for pid in together.into_iter().filter(|pid| Some(*pid) != at) {
                        // Omit processes without an owner, because they have exited.
                        if let Some(owner) = process::owner(pid) {
                            apart.entry(owner).or_default().push(pid);
                        }
                    }
                }
            }
        }
        let until = begun.max(Instant::now()) + ALL_TOGETHER;
        let mut groups: Vec<(Group, Vec<Pid>)> = apart.into_iter().collect();
        // Inspect root's processes first, and those of users whose processes have blocked a worker last.
        groups.sort_by_key(|(group, _)| (blamed.contains_key(group), *group));
        let queue = Mutex::new(groups.into_iter());
        let found = Mutex::new((answers, unread));
        std::thread::scope(|scope| {
            let work = || {
                loop {
                    let Some((group, pids)) = held(&queue).next() else { break };
                    let (more, missed) = self.ask_about_group(group, pids, request, until);
                    let mut found = held(&found);
                    found.0.extend(more);
                    found.1.extend(missed);
                }
            };
            for _ in 1..SIDE_BY_SIDE {
                // If no thread can be started, this thread does all the work.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask_about_group(
        &self,
        group: Group,
        mut pids: Vec<Pid>,
        request: &(dyn Fn(Vec<Pid>) -> Request + Sync),
        until: Instant,
    ) -> (Vec<Answer>, Vec<Unread>) {
        let mut unread = Vec::new();
        for _ in 0..STALLS_MAX {
            if Instant::now() >= until {
                break;
            }
            match self.ask(&request(pids.clone())) {
                Ok(answer) => return (vec![answer], unread),
                Err(Failure::Broken(error)) => {
                    unread.push(Unread { what: group.to_string(), why: error.to_string() });
                    return (Vec::new(), unread);
                }
                Err(Failure::Stalled(at)) => {
                    unread.extend(at.map(|at| missing(at, did_not_answer())));
                    pids.retain(|pid| Some(*pid) != at);
                }
            }
            if pids.is_empty() {
                return (Vec::new(), unread);
            }
        }
        let why = not_looked_at(pids.len(), group);
        unread.push(Unread { what: format!("processes of {group}"), why });
        (Vec::new(), unread)
    }

    /// Sends a request about a single process.
    fn ask_about_one(
        &self,
        pid: Pid,
        what: impl Fn() -> String,
        request: &Request,
    ) -> Result<Answer, KernelError> {
        let timed_out =
            |message| KernelError { what: what(), cause: Cause::Extack { errno: Errno::TIMEDOUT, message } };
        let stalled = || timed_out(did_not_answer());
        if pid != NO_PROCESS && self.is_stalled(pid) {
            return Err(stalled());
        }
        let blamed = self.blamed();
        let owner = if blamed.is_empty() { None } else { process::owner(pid) };
        if let Some(owner) = owner
            && blamed.get(&owner).is_some_and(|waiting| *waiting >= WAITING_MAX)
        {
            return Err(timed_out(not_looked_at(1, owner)));
        }
        match self.ask(request) {
            Ok(Answer::Failed(failure)) => Err(failure.into()),
            Ok(answer) => Ok(answer),
            Err(Failure::Broken(error)) => Err(KernelError::io(what(), &error)),
            Err(Failure::Stalled(_)) => Err(stalled()),
        }
    }
}

/// Formats the message about processes that are skipped because other processes of their user did not answer.
fn not_looked_at(count: usize, group: Group) -> String {
    let processes = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
    format!(
        "not readable: {processes} of {group} skipped, because other processes of this user did not answer"
    )
}

fn missing(pid: Pid, why: String) -> Unread {
    Unread { what: format!("process {pid}"), why }
}

fn unexpected(what: String) -> KernelError {
    KernelError { what, cause: Cause::Malformed("a worker sent an answer of the wrong kind".to_owned()) }
}

/// Sends a request, and waits for the answer as long as the worker is running or proceeds to another process.
fn exchange(worker: &mut Worker, request: &Request) -> Result<Answer, Failure> {
    let broken = Failure::Broken;
    worker.stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
    worker.stream.write_all(&encode(request)).map_err(broken)?;
    let mut bytes: Vec<u8> = Vec::new();
    let mut seen = 0;
    let mut part = vec![0; 64 * 1024];
    let id = Pid(worker.child.id());
    let (mut at, begun, mut ran) = (None, Instant::now(), process::cpu_ticks(id));
    let mut ran_before = ran;
    loop {
        while let Some(end) = bytes[seen..].iter().position(|&byte| byte == 0).map(|end| seen + end) {
            let answer = serde_json::from_slice(&bytes[..end]).map_err(|error| broken(error.into()))?;
            bytes.drain(..=end);
            seen = 0;
            match answer {
                Answer::At(pid) => (at, ran_before) = (Some(pid), process::cpu_ticks(id)),
                answer => return Ok(answer),
            }
        }
        seen = bytes.len();
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(broken(io::ErrorKind::FileTooLarge.into()));
        }
        match worker.stream.read(&mut part) {
            Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A worker that runs or waits for a CPU is only slow, because the machine is busy or the
                // process is large.
                let now = process::cpu_ticks(id);
                let is_waiting = now == ran && !process::is_runnable(id);
                let is_long = now.unwrap_or(0) > ran_before.unwrap_or(0) + LONGEST_TICKS;
                // Before a worker inspects a process, no process can block it; its program may be on a slow
                // disk.
                let has_begun = at.is_some() || begun.elapsed() > START_PATIENCE;
                if has_begun && (is_waiting || is_long) {
                    return Err(Failure::Stalled(at));
                }
                ran = now;
            }
            Err(error) => return Err(broken(error)),
        }
    }
}

/// Returns the process to which a setting belongs, if any.
const fn process_of(setting: &Setting) -> Option<Pid> {
    match setting {
        Setting::Process(ProcessKnob::Epoll(epoll, _)) => Some(epoll.process.pid),
        Setting::Process(ProcessKnob::IoUring(ring, _)) => Some(ring.process.pid),
        Setting::Process(ProcessKnob::Socket(socket, _)) => Some(socket.process.pid),
        _ => None,
    }
}

impl Attach for Workers {
    fn processes(&self, netns: &Netns, which: &Processes) -> (Vec<Process>, Vec<Unread>) {
        let (pids, networking) = match which {
            Processes::None => return (Vec::new(), Vec::new()),
            Processes::Only(pids) => (pids.clone(), false),
            // The client requests each of the other processes separately.
            Processes::Networking | Processes::NetworkingAnd(_) => match process::pids() {
                Ok(pids) => (pids, true),
                Err(error) => {
                    return (Vec::new(), vec![Unread { what: error.what, why: error.cause.to_string() }]);
                }
            },
        };
        let file = netns.path_for_others().display().to_string();
        let request = |pids| Request::Processes { netns: file.clone(), pids, networking };
        let (answers, mut unread) = self.ask_about(pids, &request);
        let mut processes = Vec::new();
        for answer in answers {
            match answer {
                Answer::Processes { found, unread: missed } => {
                    processes.extend(found);
                    unread.extend(missed);
                }
                Answer::Failed(failure) => {
                    let error = KernelError::from(failure);
                    unread.push(Unread { what: error.what, why: error.cause.to_string() });
                }
                _ => unread.push(Unread {
                    what: "processes".to_owned(),
                    why: unexpected(String::new()).cause.to_string(),
                }),
            }
        }
        processes.sort_unstable_by_key(|process| process.id.pid);
        (processes, unread)
    }

    // The requests in the next two blocks do not depend on other processes, so this process handles them.
    fn find_each(&self, all: &[Criteria], only: Option<Pid>) -> Result<Vec<FoundProcesses>, KernelError> {
        process::find_each(all, only)
    }

    fn holders_of_each(&self, inodes: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<Pid>>, KernelError> {
        process::holders_of_each(inodes)
    }

    fn read(&self, like: &Setting) -> Result<Setting, KernelError> {
        let what = || like.to_string();
        let pid = process_of(like).unwrap_or(NO_PROCESS);
        match self.ask_about_one(pid, what, &Request::Read(like.clone()))? {
            Answer::Value(value) if value.same_knob(like) => Ok(value),
            _ => Err(unexpected(what())),
        }
    }

    fn write(&self, setting: &Setting) -> Result<(), KernelError> {
        let what = || setting.to_string();
        let pid = process_of(setting).unwrap_or(NO_PROCESS);
        match self.ask_about_one(pid, what, &Request::Write(setting.clone()))? {
            Answer::Written => Ok(()),
            _ => Err(unexpected(what())),
        }
    }

    fn epolls(&self, id: &ProcessId) -> Result<EpollsOf, KernelError> {
        let what = || format!("{id}: its epolls");
        match self.ask_about_one(id.pid, what, &Request::Epolls(*id))? {
            Answer::Epolls(found) => Ok(found),
            _ => Err(unexpected(what())),
        }
    }

    fn same_epoll(&self, a: EpollId, b: EpollId) -> bool {
        let asked = self.ask_about_one(a.process.pid, String::new, &Request::Same(a, b));
        matches!(asked, Ok(Answer::Same(true)))
    }

    fn holders_of_af_xdp(&self, cookie: Option<u64>) -> Result<Vec<ProcessId>, KernelError> {
        let request = |pids| Request::AfXdp { cookie, pids };
        // This search is a heuristic for kernels that do not report holders, so omit processes that did not
        // answer.
        let (answers, _) = self.ask_about(process::pids()?, &request);
        let found = answers.into_iter().filter_map(|answer| match answer {
            Answer::Holders(found) => Some(found),
            _ => None,
        });
        Ok(found.flatten().collect())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn sleeping() -> Child {
        Command::new("sleep").arg("60").spawn().expect("coreutils are there")
    }

    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Self {
            Self(sleeping())
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn so_many_workers_wait_for_one_user_and_no_more() {
        let workers = Workers::default();
        let processes: Vec<Sleeper> = (0..=WAITING_MAX).map(|_| Sleeper::new()).collect();
        let next = processes[WAITING_MAX].pid();
        // For each process, a child that does not exit plays the worker that is blocked on it.
        for process in &processes[..WAITING_MAX] {
            assert!(workers.blamed().values().all(|waiting| *waiting < WAITING_MAX));
            workers.note(process.pid(), sleeping());
        }
        let asked = |_| -> Request { panic!("the user already has the maximum number of blocked workers") };
        let (answers, unread) = workers.ask_about(vec![processes[0].pid(), next], &asked);
        assert!(answers.is_empty());
        let why: Vec<&str> = unread.iter().map(|unread| unread.why.as_str()).collect();
        assert_eq!(why.len(), 2, "{why:?}");
        assert!(why[0].contains("no answer within 400 ms"), "{why:?}");
        assert!(why[1].starts_with("not readable: 1 process of uid "), "{why:?}");
        let like = Setting::Process(ProcessKnob::Epoll(
            EpollId { process: process::identify(next).expect("it runs"), fd: model::Fd(3) },
            model::EpollParams::default(),
        ));
        let error = workers.read(&like).expect_err("nobody is asked");
        assert!(error.to_string().contains("other processes of this user did not answer"), "{error}");
        // Once the workers have exited, the user's processes are inspected again.
        for known in held(&workers.stalled).values_mut() {
            let waits = known.waits.as_mut().expect("it waits");
            waits.kill().and_then(|()| waits.wait()).expect("it ends");
        }
        assert!(workers.blamed().values().all(|waiting| *waiting == 0));
    }
}
