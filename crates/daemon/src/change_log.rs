//! Decides which settings get a line in the log. A process can create objects faster than anyone can read, so
//! lines about its objects are combined per commit, and limited per process and per user.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::{Change, Object, Pid, ProcessId};
use session::count;

/// The length of a budget window.
const WINDOW: Duration = Duration::from_secs(60);

/// The maximum number of objects of a process with separate lines, if a commit sets all of them to the same
/// values. The other objects share one line.
const ALIKE_MAX: usize = 4;

/// The maximum number of lines about one process in a window.
const PROCESS_LINES_MAX: u32 = 12;

/// The maximum number of lines about the processes of one user other than root in a window.
const USER_LINES_MAX: u32 = 120;

/// The maximum number of processes whose lines are counted in a window.
const PROCESSES_MAX: usize = 1024;

/// A line of the log about a setting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) object: Object,
    pub(crate) words: String,
}

/// The number of lines about a process in this window.
#[derive(Debug)]
struct Lines {
    of: ProcessId,
    logged: u32,
    left_out: usize,
}

/// The numbers of lines in this window.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    begun: Instant,
    processes: BTreeMap<Pid, Lines>,
    users: BTreeMap<u32, u32>,
    /// The number of settings without a line whose processes are not counted separately.
    others: usize,
}

impl ChangeLog {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { begun: now, processes: BTreeMap::new(), users: BTreeMap::new(), others: 0 }
    }

    /// Returns the lines about the changes of one commit. `user` returns the user of a process; a process
    /// without a known user counts as root's.
    pub(crate) fn fold(&mut self, changes: &[Change], user: impl Fn(Pid) -> Option<u32>) -> Vec<LogLine> {
        let line = |change: &Change, more: &str| LogLine {
            object: change.to().object(),
            words: format!("{change}{more} ({})", change.because().source),
        };
        let mut lines = Vec::new();
        let mut alike: BTreeMap<_, Vec<&Change>> = BTreeMap::new();
        for change in changes {
            match change.to().object().process() {
                None => lines.push(line(change, "")),
                Some(process) => {
                    let values = (change.from().value(), change.to().value());
                    alike.entry((process.pid, change.to().knob(), values)).or_default().push(change);
                }
            }
        }
        for ((pid, ..), changes) in alike {
            let uid = user(pid).unwrap_or(0);
            let one_line = [changes[0]];
            let (own, more) = match changes.len() {
                0..=ALIKE_MAX => (&changes[..], String::new()),
                all => (&one_line[..], format!(", and {} more like this one for this process", all - 1)),
            };
            for change in own {
                let stands_for = if more.is_empty() { 1 } else { changes.len() };
                if self.admits(change, stands_for, uid) {
                    lines.push(line(change, &more));
                }
            }
        }
        lines
    }

    /// Whether to log a line about a process's object. The line stands for `settings` settings.
    fn admits(&mut self, change: &Change, settings: usize, uid: u32) -> bool {
        let Some(of) = change.to().object().process() else { return true };
        let of_user = self.users.entry(uid).or_insert(0);
        let has_room = uid == 0 || *of_user < USER_LINES_MAX;
        // Do not count another process of a user whose lines are used up.
        if !self.processes.contains_key(&of.pid) && (!has_room || self.processes.len() >= PROCESSES_MAX) {
            self.others += settings;
            return false;
        }
        let lines = self.processes.entry(of.pid).or_insert(Lines { of, logged: 0, left_out: 0 });
        let admitted = has_room && lines.logged < PROCESS_LINES_MAX;
        if admitted {
            lines.logged += 1;
            *of_user += 1;
        } else {
            lines.left_out += settings;
        }
        admitted
    }

    /// Begins a new window if the last one is over. Returns lines that report how many settings had no line.
    pub(crate) fn summarize(&mut self, now: Instant) -> Vec<String> {
        if now.duration_since(self.begun) <= WINDOW {
            return Vec::new();
        }
        let last = std::mem::replace(self, Self::new(now));
        let mut left_out: Vec<Lines> =
            last.processes.into_values().filter(|lines| lines.left_out > 0).collect();
        left_out.sort_unstable_by_key(|lines| std::cmp::Reverse(lines.left_out));
        let rest: usize =
            last.others + left_out.iter().skip(ALIKE_MAX).map(|lines| lines.left_out).sum::<usize>();
        let named = left_out.iter().take(ALIKE_MAX);
        let mut said: Vec<String> = named
            .map(|lines| {
                format!(
                    "{}: {} more set, not logged individually",
                    lines.of,
                    count(lines.left_out, "setting")
                )
            })
            .collect();
        if rest > 0 {
            said.push(format!(
                "other processes: {} more set, not logged individually",
                count(rest, "setting")
            ));
        }
        said
    }
}

#[cfg(test)]
mod test {
    use model::{EpollId, EpollParams, Fd, Label, ProcessKnob, Reason, Setting};

    use super::*;

    fn epolls(pid: u32, fds: std::ops::Range<u32>) -> Vec<Change> {
        let process = ProcessId { pid: Pid(pid), started: 1, comm: Label::new("server") };
        let of = |fd, busy_poll_usecs| {
            let params = EpollParams { busy_poll_usecs, ..EpollParams::default() };
            Setting::Process(ProcessKnob::Epoll(EpollId { process, fd: Fd(fd) }, params))
        };
        fds.map(|fd| Change::new(of(fd, 0), of(fd, 20), Reason::new("it polls", "a recipe"))).collect()
    }

    #[test]
    fn epolls_that_a_process_recreates_again_and_again_have_a_handful_of_lines() {
        let begun = Instant::now();
        let mut log = ChangeLog::new(begun);
        let user = |pid: Pid| Some(if pid.0 == 900 { 0 } else { 65_534 });
        // 2000 epolls are set ten times, in commits of 512 settings and in commits of one setting.
        let mut lines = 0;
        for round in 0..10 {
            for first in (0..2000).step_by(512) {
                lines += log.fold(&epolls(812, first..first + 512), user).len();
            }
            lines += (0..100).map(|fd| log.fold(&epolls(812, fd..fd + 1), user).len()).sum::<usize>();
            assert!(
                log.fold(&epolls(900, round..round + 1), user).len() == 1,
                "a service of root has its own lines"
            );
        }
        assert_eq!(lines, PROCESS_LINES_MAX as usize);
        assert_eq!(log.summarize(begun + WINDOW), [""; 0]);
        let said = log.summarize(begun + WINDOW + Duration::from_secs(1));
        assert_eq!(said, ["server[812]: 19424 settings more set, not logged individually"]);
        assert_eq!(log.fold(&epolls(812, 0..1), user).len(), 1, "a new window");
    }

    #[test]
    fn objects_that_are_set_alike_share_a_line_that_says_how_many() {
        let mut log = ChangeLog::new(Instant::now());
        let words = |lines: Vec<LogLine>| lines.into_iter().map(|line| line.words).collect::<Vec<_>>();
        assert_eq!(words(log.fold(&epolls(812, 3..7), |_| None)).len(), 4);
        let folded = words(log.fold(&epolls(813, 3..515), |_| None));
        assert_eq!(
            folded,
            [
                "server[813] epoll 3: busy_poll usecs/budget/prefer 0us/0/0 → 20us/0/0, and 511 more like this one for this process (a recipe)"
            ]
        );
    }

    #[test]
    fn many_processes_of_a_user_keep_no_line_of_others_out_and_memory_is_bounded() {
        let mut log = ChangeLog::new(Instant::now());
        let user = |pid: Pid| Some(if pid.0 < 100_000 { 65_534 } else { 1000 });
        let lines: usize = (1..5000).map(|pid| log.fold(&epolls(pid, 3..4), user).len()).sum();
        assert_eq!(lines, USER_LINES_MAX as usize);
        assert!(log.processes.len() <= PROCESSES_MAX);
        assert_eq!(log.fold(&epolls(100_001, 3..4), user).len(), 1, "another user's");
    }
}
