//! The connection limits, counters, and log lines of the API.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use linux::process::ProcessOwner;

use super::log_budget::{LogBudget, Whose};

/// The maximum number of connections.
pub const CLIENTS_MAX: usize = 64;

/// The maximum number of connections per user other than root. All users of other user namespaces count as
/// one user.
pub const CLIENTS_PER_USER_MAX: usize = 8;
/// The maximum total number of connections of users without permissions. The remaining ones are reserved for
/// root and the members of the `--api-group`.
pub const CLIENTS_OF_OTHERS_MAX: usize = 48;
/// The maximum total number of connections of users other than root. The remaining ones are reserved for
/// root.
const CLIENTS_BUT_ROOT_MAX: usize = 56;

/// Counts of connections and calls since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Accepted connections.
    pub accepted: u64,
    /// Connections that were rejected because a limit was reached.
    pub rejected: u64,
    /// Calls that were answered, including refused ones.
    pub calls: u64,
    /// Denied calls.
    pub denied: u64,
    /// Connections that were closed because of a protocol error, a timeout or too much data.
    pub dropped: u64,
}

/// The user of a connection, and whether this user may see and change everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entrant {
    pub(super) owner: ProcessOwner,
    pub(super) is_trusted: bool,
}

/// The open connections, their counters, and the log.
pub struct ConnectionStats {
    tally: Cell<Tally>,
    clients: RefCell<BTreeMap<Entrant, usize>>,
    log: Box<dyn Fn(&str)>,
    budget: RefCell<LogBudget>,
}

impl fmt::Debug for ConnectionStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionStats").field("tally", &self.tally).field("clients", &self.clients).finish()
    }
}

impl ConnectionStats {
    /// Creates the statistics with all counters at zero. `log` receives log lines.
    pub fn new(log: impl Fn(&str) + 'static) -> Rc<Self> {
        let budget = RefCell::new(LogBudget::new(Instant::now()));
        Rc::new(Self { tally: Cell::default(), clients: RefCell::default(), log: Box::new(log), budget })
    }

    /// The counters.
    pub fn tally(&self) -> Tally {
        self.tally.get()
    }

    /// Updates the counters.
    pub(super) fn count(&self, count: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        count(&mut tally);
        self.tally.set(tally);
    }

    /// Logs a line, unless the log budget of this user or that of all unprivileged users is used up.
    pub(super) fn log(&self, whose: Whose, line: &str) {
        let mut budget = self.budget.borrow_mut();
        for summary in budget.summarize(Instant::now()) {
            (self.log)(&summary);
        }
        if budget.admits(whose) {
            (self.log)(line);
        }
    }

    /// Counts a new connection of a user, if the limits allow it.
    pub(super) fn enter(self: &Rc<Self>, client: Entrant, whose: Whose) -> Option<ConnectionSlot> {
        let mut clients = self.clients.borrow_mut();
        let all: usize = clients.values().sum();
        let count = |is: &dyn Fn(&Entrant) -> bool| -> usize {
            clients.iter().filter(|(client, _)| is(client)).map(|(_, count)| count).sum()
        };
        let own = count(&|other| other.owner == client.owner);
        let but_root = count(&|other| other.owner != ProcessOwner::User(0));
        let untrusted = count(&|other| !other.is_trusted);
        let room = match client {
            Entrant { owner: ProcessOwner::User(0), .. } => true,
            Entrant { is_trusted, .. } => {
                own < CLIENTS_PER_USER_MAX
                    && but_root < CLIENTS_BUT_ROOT_MAX
                    && (is_trusted || untrusted < CLIENTS_OF_OTHERS_MAX)
            }
        };
        if !room || all >= CLIENTS_MAX {
            drop(clients);
            self.count(|tally| tally.rejected += 1);
            let owner = client.owner;
            self.log(
                whose,
                &format!("api: a connection of {owner} was rejected: connection limit reached ({all})"),
            );
            return None;
        }
        *clients.entry(client).or_insert(0) += 1;
        self.count(|tally| tally.accepted += 1);
        Some(ConnectionSlot { stats: Rc::clone(self), client })
    }
}

/// A counted connection. Dropping this value makes room for another connection.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    stats: Rc<ConnectionStats>,
    client: Entrant,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut clients = self.stats.clients.borrow_mut();
        if let Some(count) = clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn enter(stats: &Rc<ConnectionStats>, owner: ProcessOwner, is_trusted: bool) -> Option<ConnectionSlot> {
        let is_trusted = is_trusted || owner == ProcessOwner::User(0);
        stats.enter(Entrant { owner, is_trusted }, Whose::User(1000))
    }

    #[test]
    fn users_share_the_room_and_leave_root_some() {
        let stats = ConnectionStats::new(|_| {});
        let mut places: Vec<ConnectionSlot> = Vec::new();
        for uid in 1000..1010 {
            places.extend((0..20).filter_map(|_| enter(&stats, ProcessOwner::User(uid), false)));
        }
        assert_eq!(places.len(), CLIENTS_OF_OTHERS_MAX);
        let members: Vec<ConnectionSlot> =
            (2000..2010).filter_map(|uid| enter(&stats, ProcessOwner::User(uid), true)).collect();
        assert_eq!(members.len(), CLIENTS_BUT_ROOT_MAX - CLIENTS_OF_OTHERS_MAX, "members of the group");
        let roots: Vec<ConnectionSlot> =
            (0..100).filter_map(|_| enter(&stats, ProcessOwner::User(0), true)).collect();
        assert_eq!(roots.len(), CLIENTS_MAX - CLIENTS_BUT_ROOT_MAX);
        drop(places);
        assert!(enter(&stats, ProcessOwner::User(1000), false).is_some());
        assert_eq!(stats.tally().rejected, 200 - 48 + 10 - 8 + 100 - 8);
    }

    #[test]
    fn users_of_other_user_namespaces_leave_the_others_room() {
        let stats = ConnectionStats::new(|_| {});
        let others: Vec<ConnectionSlot> =
            (0..65_536).filter_map(|_| enter(&stats, ProcessOwner::OfOtherUserNamespaces, false)).collect();
        assert_eq!(others.len(), CLIENTS_PER_USER_MAX);
        assert!(enter(&stats, ProcessOwner::User(1000), false).is_some());
    }

    #[test]
    fn denied_calls_of_one_user_leave_the_lines_of_root_in_the_log() {
        let logged: Rc<RefCell<Vec<String>>> = Rc::default();
        let seen = Rc::clone(&logged);
        let stats = ConnectionStats::new(move |line| seen.borrow_mut().push(line.to_owned()));
        (0..1000).for_each(|_| stats.log(Whose::User(65_534), "refused"));
        stats.log(Whose::Trusted(0), "uid 0 calls Set");
        stats.log(Whose::Trusted(1000), "uid 1000 calls Unset");
        assert!(logged.borrow().len() < 30);
        assert_eq!(logged.borrow()[logged.borrow().len() - 2..], ["uid 0 calls Set", "uid 1000 calls Unset"]);
    }
}
