//! What applications ask for by themselves: heard of, read, and added to what the operator asks for.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use linux::KernelError;
use linux::bpf::app_requests::{RequestReader, RequestStore};
use linux::process::{Criteria, holders_of_sockets, meets};
use model::host::{AppRequest, Requester};
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
    if host.app_requests.is_empty() {
        return (policy, Vec::new());
    }
    let (mut requests, notes) = plan::wishes::requests(&policy, &host.app_requests, host);
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

/// What applications ask for, and whose requests are followed.
pub(crate) struct AppRequests {
    reader: RequestReader,
    /// Whether there is a new descriptor to wait for.
    has_new_descriptor: bool,
    /// Whose requests were followed at the last plan, in that order.
    followed: Vec<Asker>,
}

impl AppRequests {
    /// What is asked for in this store.
    pub(crate) fn of(store: RequestStore) -> Self {
        Self { reader: RequestReader::of(store), has_new_descriptor: false, followed: Vec::new() }
    }

    /// Who has asked for something since this was called last.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn asked(&mut self) -> Result<BTreeSet<Pid>, KernelError> {
        Ok(self.reader.asked()?.into_iter().collect())
    }

    /// All that is asked for.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn read(&mut self) -> Result<Vec<AppRequest>, KernelError> {
        self.has_new_descriptor |= self.reader.refresh()?;
        self.reader.requests()
    }

    /// A policy, and behind its own requests those of applications; and what of them is left out.
    pub(crate) fn joined(&self, policy: Policy, host: &Host) -> (Policy, Vec<String>) {
        joined(policy, host, &self.followed)
    }

    /// These are followed from now on.
    pub(crate) fn follow(&mut self, askers: Vec<Asker>) {
        self.followed = askers;
    }

    /// What tells of new requests, the first time that it is asked for.
    pub(crate) fn new_descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        std::mem::take(&mut self.has_new_descriptor).then(|| self.reader.descriptor()).flatten()
    }

    /// What they are heard with; `None` where nobody may ask.
    pub(crate) fn hearing(&self) -> Option<Hearing> {
        let told = self.reader.descriptor().is_some();
        let tick = std::time::Duration::from_nanos(crate::reconciler::TICK.0);
        self.reader.is_open().then(|| Hearing {
            what: "what applications ask for".to_owned(),
            how: if told { "BPF where they ask" } else { "looks" }.to_owned(),
            within: (!told).then_some(tick),
            refused: Vec::new(),
        })
    }
}

impl Daemon<'_> {
    /// Somebody has asked for something.
    pub(crate) fn hear_app_requests(&mut self) {
        let asked = match self.apps.asked() {
            Ok(asked) => asked,
            Err(error) => return self.telemetry.find(unread(&error)),
        };
        if asked.is_empty() {
            return;
        }
        if !self.reconciler.admit_wishes(now()) {
            return self.telemetry.find(often());
        }
        self.telemetry.mended("wishes-often", &BTreeSet::new());
        for pid in asked {
            if self.lives_here(pid) && self.add_asker(pid) {
                self.hear(&Event::Wish(Some(pid)), now());
            }
        }
    }

    /// Reads what is asked for, and notes who asks.
    pub(crate) fn read_app_requests(&mut self) {
        let wishes = match self.apps.read() {
            Ok(wishes) => {
                self.telemetry.mended("wishes-unread", &BTreeSet::new());
                wishes
            }
            Err(error) => {
                self.telemetry.find(unread(&error));
                Vec::new()
            }
        };
        for pid in tasks(&wishes) {
            if !self.requests.has_wisher(pid) && self.lives_here(pid) {
                self.add_asker(pid);
            }
        }
        self.known.note_app_requests(wishes);
    }

    /// Finds everybody anew who asks, or holds a socket that does. Takes a look at all processes if any socket asks.
    pub(crate) fn find_askers(&mut self) -> Result<(), Fault> {
        self.requests.forget_wishers();
        self.read_app_requests();
        let inodes: BTreeSet<u64> = self.known.host().app_requests.iter().filter_map(socket).collect();
        if inodes.is_empty() {
            return Ok(());
        }
        for pid in holders_of_sockets(&inodes)? {
            if self.lives_here(pid) {
                self.add_asker(pid);
            }
        }
        Ok(())
    }

    /// Looks at those who ask and are not known yet.
    pub(crate) fn look_at_askers(&mut self) {
        for pid in self.requests.wishers() {
            if !self.known.has_process(pid) {
                self.requests.ended(pid);
            }
        }
    }

    fn add_asker(&mut self, pid: Pid) -> bool {
        let added = self.requests.add_wisher(pid);
        if !added {
            self.telemetry.count(|counters| counters.evictions += 1);
        }
        added
    }

    fn lives_here(&self, pid: Pid) -> bool {
        let here = Criteria { netns: Some(self.known.netns().id()), ..Criteria::default() };
        pid.0 != std::process::id() && meets(&here, pid).is_ok_and(|process| process.is_some())
    }

    /// Tells what of the applications' requests is left out because it is none.
    pub(crate) fn tell_app_requests_left_out(&mut self, notes: &[String]) {
        if notes.is_empty() {
            return self.telemetry.mended(RULE, &BTreeSet::new());
        }
        let more = notes.len().saturating_sub(NAMED_MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        self.telemetry.find(Finding {
            rule: RULE.to_owned(),
            severity: Severity::Note,
            object: "applications".to_owned(),
            summary: "some of what they ask for is left out".to_owned(),
            evidence: notes.iter().take(NAMED_MAX).cloned().chain(more).collect(),
            remedy: None,
        });
    }
}

fn unread(error: &KernelError) -> Finding {
    Finding {
        rule: "wishes-unread".to_owned(),
        severity: Severity::Warning,
        object: "applications".to_owned(),
        summary: "what they ask for is left out of account".to_owned(),
        evidence: vec![error.to_string()],
        remedy: None,
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

fn tasks(wishes: &[AppRequest]) -> BTreeSet<Pid> {
    wishes
        .iter()
        .filter_map(|wish| if let Requester::Task(pid) = wish.of { Some(pid) } else { None })
        .collect()
}

fn socket(wish: &AppRequest) -> Option<u64> {
    if let Requester::Socket(inode) = wish.of { Some(inode) } else { None }
}
