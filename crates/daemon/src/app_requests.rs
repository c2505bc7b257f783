//! Requests of applications: detects them, reads them, and adds them to the operator's requests.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use linux::KernelError;
use linux::bpf::app_requests::{RequestReader, RequestStore};
use model::host::AppRequest;
use model::{Host, Intent, Pid, Policy, PolicyName, Target};

use crate::status::EventSource;

/// The process and the policy of a request, which identify it while its epolls change.
pub(crate) type Asker = (Pid, PolicyName);

/// Appends the requests of applications to a policy: first those that were followed before, so that a later
/// request takes no queues from an earlier one, then the others by the age of their processes.
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

/// The process and the policy of an application's request; `None` for other requests.
pub(crate) fn asker(request: &Intent) -> Option<Asker> {
    match request.target {
        Target::Task(pid) | Target::Epolls(pid, _) => Some((pid, request.policy)),
        Target::Device(_) | Target::Devices(..) | Target::Service(..) => None,
    }
}

/// The requests of applications, and which of them are followed.
pub(crate) struct AppRequests {
    reader: RequestReader,
    /// Whether there is a new descriptor to watch.
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
    /// The kernel's errors.
    pub(crate) fn asked(&mut self) -> Result<BTreeSet<Pid>, KernelError> {
        Ok(self.reader.asked()?.into_iter().collect())
    }

    /// All requests.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn read(&mut self) -> Result<Vec<AppRequest>, KernelError> {
        self.has_new_descriptor |= self.reader.refresh()?;
        self.reader.requests()
    }

    /// Appends the requests of applications to a policy, and returns notes about those that are left out.
    pub(crate) fn joined(&self, policy: Policy, host: &Host) -> (Policy, Vec<String>) {
        joined(policy, host, &self.followed)
    }

    /// Sets the requests that are followed from now on.
    pub(crate) fn follow(&mut self, askers: Vec<Asker>) {
        self.followed = askers;
    }

    /// The descriptor that reports new requests, returned once.
    pub(crate) fn new_descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        std::mem::take(&mut self.has_new_descriptor).then(|| self.reader.descriptor()).flatten()
    }

    /// How requests of applications are detected; `None` if applications cannot make requests.
    pub(crate) fn event_source(&self) -> Option<EventSource> {
        let immediate = self.reader.descriptor().is_some();
        let tick = std::time::Duration::from_nanos(crate::reconciler::TICK.0);
        self.reader.is_open().then(|| EventSource {
            what: "requests of applications".to_owned(),
            how: if immediate { "BPF programs for setsockopt and prctl" } else { "looks" }.to_owned(),
            within: (!immediate).then_some(tick),
            refused: Vec::new(),
        })
    }
}
