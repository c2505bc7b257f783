//! Limits the log lines per user. A user whose calls are refused repeatedly must neither fill the log nor
//! displace lines about other users.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The length of a budget window.
const WINDOW: Duration = Duration::from_secs(60);

/// The maximum number of lines per unprivileged user in a window.
const USER_LINES_MAX: u32 = 10;

/// The maximum number of lines in a window about all unprivileged users together. One user can have many
/// uids, from `/etc/subuid`.
const ALL_USERS_LINES_MAX: u32 = 60;

/// The maximum number of lines per trusted user in a window. Trusted users are root and the members of the
/// `--api-group`. Each may request 100 changes per second; the journal also records who requested each
/// change.
const TRUSTED_LINES_MAX: u32 = 1200;

/// The budget to which a line is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    /// The budget for lines about the daemon's own work.
    Daemon,
    /// The budget for lines about a user who may change everything, by uid.
    Trusted(u32),
    /// The budget for lines about any other user, by uid.
    User(u32),
}

impl Whose {
    const fn lines_max(self) -> u32 {
        match self {
            Self::Daemon | Self::User(_) => USER_LINES_MAX,
            Self::Trusted(_) => TRUSTED_LINES_MAX,
        }
    }
}

/// The numbers of lines in the current window.
#[derive(Debug)]
pub(super) struct LogBudget {
    begun: Instant,
    lines: BTreeMap<Whose, u32>,
    /// The number of lines about unprivileged users that were logged.
    of_users: u32,
    /// The number of omitted lines about users who are not in `lines`.
    unnamed: u32,
}

impl LogBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { begun: now, lines: BTreeMap::new(), of_users: 0, unnamed: 0 }
    }

    /// Whether a line may be logged now.
    pub(super) fn admits(&mut self, whose: Whose) -> bool {
        let is_user = matches!(whose, Whose::User(_));
        if is_user && self.of_users >= ALL_USERS_LINES_MAX && !self.lines.contains_key(&whose) {
            self.unnamed = self.unnamed.saturating_add(1);
            return false;
        }
        let lines = self.lines.entry(whose).or_insert(0);
        *lines = lines.saturating_add(1);
        let admitted = *lines <= whose.lines_max() && !(is_user && self.of_users >= ALL_USERS_LINES_MAX);
        self.of_users += u32::from(is_user && admitted);
        admitted
    }

    /// Begins a new window if the last one is over. Returns lines that state how many lines were omitted,
    /// and whose.
    pub(super) fn summarize(&mut self, now: Instant) -> Vec<String> {
        if now.duration_since(self.begun) <= WINDOW {
            return Vec::new();
        }
        let last = std::mem::replace(self, Self::new(now));
        let mut said: Vec<String> = Vec::new();
        for (whose, lines) in &last.lines {
            let left_out = lines.saturating_sub(whose.lines_max());
            let of = match whose {
                Whose::Daemon => "the daemon".to_owned(),
                Whose::Trusted(uid) | Whose::User(uid) => format!("uid {uid}"),
            };
            if left_out > 0 {
                said.push(format!("api: {left_out} more lines of {of} were omitted"));
            }
        }
        if last.unnamed > 0 {
            said.push(format!("api: {} more lines of other users were omitted", last.unnamed));
        }
        said
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_user_who_is_refused_keeps_no_line_of_others_out() {
        let now = Instant::now();
        let mut budget = LogBudget::new(now);
        let nobody = Whose::User(65_534);
        let admitted = (0..10_000).filter(|_| budget.admits(nobody)).count();
        assert_eq!(admitted, USER_LINES_MAX as usize);
        for whose in [Whose::Trusted(0), Whose::Trusted(1000), Whose::User(1001), Whose::Daemon] {
            assert!(budget.admits(whose), "{whose:?}");
        }
        assert_eq!(budget.summarize(now + WINDOW), [""; 0]);
        let later = now + WINDOW + Duration::from_secs(1);
        assert_eq!(budget.summarize(later), ["api: 9990 more lines of uid 65534 were omitted"]);
        assert!(budget.admits(nobody), "a new window");
    }

    #[test]
    fn many_users_together_leave_room_for_those_who_are_trusted() {
        let now = Instant::now();
        let mut budget = LogBudget::new(now);
        let admitted = (100_000..165_536).filter(|uid| budget.admits(Whose::User(*uid))).count();
        assert_eq!(admitted, ALL_USERS_LINES_MAX as usize);
        assert!(budget.lines.len() <= ALL_USERS_LINES_MAX as usize + 1, "memory is bounded");
        assert!(budget.admits(Whose::Trusted(0)));
        let later = now + WINDOW + Duration::from_secs(1);
        assert_eq!(budget.summarize(later), ["api: 65476 more lines of other users were omitted"]);
    }
}
