//! What applications ask for by themselves: heard of, read, and added to what the operator asks for.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use linux::KernelError;
use linux::bpf::wishes::WishReader;
use linux::process::{Criteria, holders_of_sockets, meets};
use model::host::{Wish, Wisher};
use model::{Finding, Host, Intent, Pid, Policy, PolicyName, Severity, Target};
use session::Fault;

use crate::daemon::{Daemon, now};
use crate::reconciler::Event;
use crate::status::Hearing;

/// The rule of what is found about wishes.
const RULE: &str = "wishes";

/// How many of the wishes that are left out are named.
const NAMED_MAX: usize = 16;

/// Who asked for what: what stays of a request while its epolls come and go.
pub(crate) type Asker = (Pid, PolicyName);

/// A policy, and behind its own requests those of applications: first those that were followed before, so that nobody takes
/// another's queues by asking later, then the others by how long their processes run.
pub(crate) fn joined(mut policy: Policy, host: &Host, followed: &[Asker]) -> (Policy, Vec<String>) {
    if host.wishes.is_empty() {
        return (policy, Vec::new());
    }
    let (mut requests, notes) = plan::wishes::requests(&policy, &host.wishes, host);
    requests.sort_by_cached_key(|request| {
        let asker = asker(request);
        let before = asker.and_then(|asker| followed.iter().position(|known| *known == asker));
        let since = asker.and_then(|(pid, _)| host.process(pid)).map(|process| process.id.started);
        (before.unwrap_or(usize::MAX), since)
    });
    policy.intents.extend(requests);
    (policy, notes)
}

/// Whose request it is, if an application's.
pub(crate) fn asker(request: &Intent) -> Option<Asker> {
    match request.target {
        Target::Task(pid) | Target::Epolls(pid, _) => Some((pid, request.policy)),
        Target::Device(_) | Target::Service(..) => None,
    }
}

impl Daemon<'_> {
    /// Somebody has asked for something.
    pub(crate) fn hear_wishes(&mut self) {
        let asked = match self.wishes.asked() {
            Ok(asked) => asked,
            Err(error) => return self.tell_unread_wishes(&error),
        };
        if asked.is_empty() {
            return;
        }
        if !self.reconciler.admit_wishes(now()) {
            return self.find(often());
        }
        self.mended("wishes-often", &BTreeSet::new());
        for pid in asked.into_iter().collect::<BTreeSet<Pid>>() {
            if self.lives_here(pid) && self.add_wisher(pid) {
                self.hear(&Event::Wish(Some(pid)), now());
            }
        }
    }

    /// Reads what is asked for. Says whether who asks has changed.
    pub(crate) fn read_wishes(&mut self) -> bool {
        let read = self.wishes.refresh().and_then(|new| {
            self.new_wishes |= new;
            self.wishes.wishes()
        });
        let wishes = match read {
            Ok(wishes) => {
                self.mended("wishes-unread", &BTreeSet::new());
                wishes
            }
            Err(error) => {
                self.tell_unread_wishes(&error);
                Vec::new()
            }
        };
        let mut any_new = false;
        for pid in tasks(&wishes) {
            if !self.requests.has_wisher(pid) && self.lives_here(pid) {
                any_new |= self.add_wisher(pid);
            }
        }
        self.host.wishes = wishes;
        any_new
    }

    /// Finds everybody anew who asks, or holds a socket that does. Takes a look at all processes if any socket asks.
    pub(crate) fn find_wishers(&mut self) -> Result<(), Fault> {
        self.requests.forget_wishers();
        self.read_wishes();
        let wishes = self.host.wishes.iter();
        let inodes: BTreeSet<u64> = wishes.filter_map(socket).collect();
        if inodes.is_empty() {
            return Ok(());
        }
        for pid in holders_of_sockets(&inodes)? {
            if self.lives_here(pid) {
                self.add_wisher(pid);
            }
        }
        Ok(())
    }

    /// Looks at those who ask and are not known yet.
    pub(crate) fn look_at_wishers(&mut self) {
        for pid in self.requests.wishers() {
            if self.host.process(pid).is_none() && !self.observer.process(&mut self.host, pid) {
                self.requests.ended(pid);
            }
        }
    }

    fn add_wisher(&mut self, pid: Pid) -> bool {
        let added = self.requests.add_wisher(pid);
        if !added {
            self.counters.evictions += 1;
        }
        added
    }

    fn lives_here(&self, pid: Pid) -> bool {
        let here = Criteria { netns: Some(self.observer.netns().id()), ..Criteria::default() };
        pid.0 != std::process::id() && meets(&here, pid).is_ok_and(|process| process.is_some())
    }

    fn tell_unread_wishes(&mut self, error: &KernelError) {
        self.find(Finding {
            rule: "wishes-unread".to_owned(),
            severity: Severity::Warning,
            object: "applications".to_owned(),
            summary: "what they ask for is left out of account".to_owned(),
            evidence: vec![error.to_string()],
            remedy: None,
        });
    }

    /// Tells what of the wishes is left out because it is no request.
    pub(crate) fn tell_wishes_left_out(&mut self, notes: &[String]) {
        if notes.is_empty() {
            return self.mended(RULE, &BTreeSet::new());
        }
        let more = notes.len().saturating_sub(NAMED_MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        self.find(Finding {
            rule: RULE.to_owned(),
            severity: Severity::Note,
            object: "applications".to_owned(),
            summary: "some of what they ask for is left out".to_owned(),
            evidence: notes.iter().take(NAMED_MAX).cloned().chain(more).collect(),
            remedy: None,
        });
    }

    /// What tells of wishes, the first time that it is asked for.
    pub(crate) fn new_wishes(&mut self) -> Option<BorrowedFd<'_>> {
        std::mem::take(&mut self.new_wishes).then(|| self.wishes.descriptor()).flatten()
    }
}

fn often() -> Finding {
    let (times, seconds) =
        (crate::reconciler::WISHES_MAX, crate::reconciler::WISHES_WITHIN.0 / 1_000_000_000);
    Finding {
        rule: "wishes-often".to_owned(),
        severity: Severity::Warning,
        object: "applications".to_owned(),
        summary: format!(
            "they ask for something more often than {times} times within {seconds} s: what comes beyond waits for the next look"
        ),
        evidence: Vec::new(),
        remedy: Some("netpolicy sockets list".to_owned()),
    }
}

/// What wishes are heard with; `None` where nobody may ask.
pub(crate) fn hearing(wishes: &WishReader) -> Option<Hearing> {
    let told = wishes.descriptor().is_some();
    let tick = std::time::Duration::from_nanos(crate::reconciler::TICK.0);
    wishes.is_open().then(|| Hearing {
        what: "what applications ask for".to_owned(),
        how: if told { "BPF where they ask" } else { "looks" }.to_owned(),
        within: (!told).then_some(tick),
        refused: Vec::new(),
    })
}

fn tasks(wishes: &[Wish]) -> BTreeSet<Pid> {
    wishes.iter().filter_map(|wish| if let Wisher::Task(pid) = wish.of { Some(pid) } else { None }).collect()
}

fn socket(wish: &Wish) -> Option<u64> {
    if let Wisher::Socket(inode) = wish.of { Some(inode) } else { None }
}
