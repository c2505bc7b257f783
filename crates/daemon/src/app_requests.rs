//! What applications request: noticed, read, and added to the operator's requests.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use linux::KernelError;
use linux::bpf::app_requests::{RequestReader, RequestStore};
use model::host::AppRequest;
use model::{Host, Intent, Pid, Policy, PolicyName, Target};

use crate::status::EventSource;

/// The process and the policy of a request: its identity while its epolls come and go.
pub(crate) type Asker = (Pid, PolicyName);

/// A policy, and behind its own requests those of applications: first those that were followed before, so that a later
/// request takes no queues of an earlier one, then the others by how long their processes run.
pub(crate) fn joined(mut policy: Policy, host: &Host, followed: &[Asker]) -> (Policy, Vec<String>) {
    if host.app_requests.is_empty() {
        return (policy, Vec::new());
    }
    let (mut requests, notes) = plan::app_requests::requests(&policy, &host.app_requests, host);
    requests.sort_by_cached_key(|request| {
        let asker = asker(request);
        let before = asker.and_then(|asker| followed.iter().position(|known| *known == asker));
        let since = asker.and_then(|(pid, _)| host.process(pid)).map(|process| process.id.started);
        (before.unwrap_or(usize::MAX), since)
    });
    policy.intents.extend(requests);
    (policy, notes)
}

/// The process and the policy of an application's request; `None` for another's.
pub(crate) fn asker(request: &Intent) -> Option<Asker> {
    match request.target {
        Target::Task(pid) | Target::Epolls(pid, _) => Some((pid, request.policy)),
        Target::Device(_) | Target::Devices(..) | Target::Service(..) => None,
    }
}

/// The requests of applications, and which of them are followed.
pub(crate) struct AppRequests {
    reader: RequestReader,
    /// Whether there is a new descriptor to wait for.
    has_new_descriptor: bool,
    /// The requests that were followed at the last plan, in that order.
    followed: Vec<Asker>,
}

impl AppRequests {
    /// The requests in this store.
    pub(crate) fn of(store: RequestStore) -> Self {
        Self { reader: RequestReader::of(store), has_new_descriptor: false, followed: Vec::new() }
    }

    /// The processes that made a request since the last call.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn asked(&mut self) -> Result<BTreeSet<Pid>, KernelError> {
        Ok(self.reader.asked()?.into_iter().collect())
    }

    /// All requests.
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

    /// The descriptor that reports new requests, once.
    pub(crate) fn new_descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        std::mem::take(&mut self.has_new_descriptor).then(|| self.reader.descriptor()).flatten()
    }

    /// How requests of applications are detected; `None` where applications cannot make requests.
    pub(crate) fn event_source(&self) -> Option<EventSource> {
        let immediate = self.reader.descriptor().is_some();
        let tick = std::time::Duration::from_nanos(crate::reconciler::TICK.0);
        self.reader.is_open().then(|| EventSource {
            what: "what applications ask for".to_owned(),
            how: if immediate { "BPF in setsockopt and prctl" } else { "looks" }.to_owned(),
            within: (!immediate).then_some(tick),
            refused: Vec::new(),
        })
    }
}
