//! The requests of applications: detects and reads them, and appends them to the operator's requests.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use linux::KernelError;
use linux::bpf::app_requests::{RequestReader, RequestStore};
use model::host::AppRequest;
use model::{Host, Intent, Pid, Policy, PolicyName, Target};

use crate::status::EventSource;

/// Identifies an application's request by its process and policy. Its epolls are not included, because they
/// may change.
pub(crate) type Asker = (Pid, PolicyName);

/// Appends the requests of applications to a policy. Requests that were followed before come first, so that a
/// new request cannot take their queues. The others are sorted by the age of their processes.
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

/// Returns the process and the policy of an application's request, or `None` for any other request.
pub(crate) fn asker(request: &Intent) -> Option<Asker> {
    match request.target {
        Target::Task(pid) | Target::Epolls(pid, _) => Some((pid, request.policy)),
        Target::Device(_) | Target::Devices(..) | Target::Service(..) => None,
    }
}

/// The requests of applications, and those of them that the daemon follows.
pub(crate) struct AppRequests {
    reader: RequestReader,
    /// Whether the reader has a new descriptor that must be added to the event loop.
    has_new_descriptor: bool,
    /// The requests that were followed in the last plan, in the plan's order.
    followed: Vec<Asker>,
}

impl AppRequests {
    /// Creates the state for the requests in this store.
    pub(crate) fn of(store: RequestStore) -> Self {
        Self { reader: RequestReader::of(store), has_new_descriptor: false, followed: Vec::new() }
    }

    /// Returns the processes that have made a request since the last call.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn asked(&mut self) -> Result<BTreeSet<Pid>, KernelError> {
        Ok(self.reader.asked()?.into_iter().collect())
    }

    /// Reads all requests of applications.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn read(&mut self) -> Result<Vec<AppRequest>, KernelError> {
        self.has_new_descriptor |= self.reader.refresh()?;
        self.reader.requests()
    }

    /// Appends the requests of applications to a policy. Also returns notes about requests that are left out.
    pub(crate) fn joined(&self, policy: Policy, host: &Host) -> (Policy, Vec<String>) {
        joined(policy, host, &self.followed)
    }

    /// Sets the requests that are followed from now on.
    pub(crate) fn follow(&mut self, askers: Vec<Asker>) {
        self.followed = askers;
    }

    /// Returns the reader's descriptor if it is new since the last call. It becomes readable when a process
    /// makes a request.
    pub(crate) fn new_descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        std::mem::take(&mut self.has_new_descriptor).then(|| self.reader.descriptor()).flatten()
    }

    /// Describes how requests of applications are detected, or returns `None` if applications cannot make
    /// requests.
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
