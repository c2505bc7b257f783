//! The part of the daemon for requests of applications: handles their events, reads them, and finds their
//! processes.

use std::collections::BTreeSet;

use linux::KernelError;
use linux::process::{Criteria, holders_of_sockets, meets};
use model::host::{AppRequest, Requester};
use model::{Finding, Pid, Severity};
use session::Fault;

use super::{Daemon, now};
use crate::reconciler::HostEvent;

/// The rule of the findings about applications' requests.
const RULE: &str = "app-requests";

/// The maximum number of omitted requests that a finding lists.
const NAMED_MAX: usize = 16;

impl Daemon<'_> {
    /// Handles the events that report new requests.
    pub(crate) fn take_app_requests(&mut self) {
        let asked = match self.requests.asked_by_apps() {
            Ok(asked) => asked,
            Err(error) => return self.telemetry.find(unread(&error)),
        };
        if asked.is_empty() {
            return;
        }
        if !self.reconciler.admit_app_requests(now()) {
            return self.telemetry.find(often());
        }
        self.telemetry.mended("app-requests-often", &BTreeSet::new());
        for pid in asked {
            if self.lives_here(pid) && self.add_asker(pid) {
                self.note(&HostEvent::AppRequest(Some(pid)), now());
            }
        }
    }

    /// Reads the requests of applications, and records their processes.
    pub(crate) fn read_app_requests(&mut self) {
        let requests = match self.requests.read_apps() {
            Ok(requests) => {
                self.telemetry.mended("app-requests-unread", &BTreeSet::new());
                requests
            }
            Err(error) => {
                self.telemetry.find(unread(&error));
                Vec::new()
            }
        };
        for pid in tasks(&requests) {
            if !self.requests.has_requester(pid) && self.lives_here(pid) {
                self.add_asker(pid);
            }
        }
        self.known.note_app_requests(requests);
    }

    /// Finds all processes that make a request or hold a socket with a request. If any socket has a request,
    /// reads all processes.
    pub(crate) fn find_askers(&mut self) -> Result<(), Fault> {
        self.requests.forget_requesters();
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

    /// Forgets processes that made a request and have exited.
    pub(crate) fn look_at_askers(&mut self) {
        for pid in self.requests.requesters() {
            if !self.known.has_process(pid) {
                self.requests.ended(pid);
            }
        }
    }

    fn add_asker(&mut self, pid: Pid) -> bool {
        let added = self.requests.add_requester(pid);
        if !added {
            self.telemetry.count(|counters| counters.evictions += 1);
        }
        added
    }

    fn lives_here(&self, pid: Pid) -> bool {
        let here = Criteria { netns: Some(self.known.netns().id()), ..Criteria::default() };
        pid.0 != std::process::id() && meets(&here, pid) == Some(true)
    }

    /// Reports the requests of applications that are omitted because they are invalid.
    pub(crate) fn report_app_requests_left_out(&mut self, notes: &[String]) {
        if notes.is_empty() {
            return self.telemetry.mended(RULE, &BTreeSet::new());
        }
        let more = notes.len().saturating_sub(NAMED_MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        self.telemetry.find(Finding {
            rule: RULE.to_owned(),
            severity: Severity::Note,
            object: "applications".to_owned(),
            summary: "some application requests are ignored".to_owned(),
            evidence: notes.iter().take(NAMED_MAX).cloned().chain(more).collect(),
            remedy: None,
        });
    }
}

fn unread(error: &KernelError) -> Finding {
    Finding {
        rule: "app-requests-unread".to_owned(),
        severity: Severity::Warning,
        object: "applications".to_owned(),
        summary: "the request is ignored".to_owned(),
        evidence: vec![error.to_string()],
        remedy: None,
    }
}

fn often() -> Finding {
    let (times, seconds) =
        (crate::reconciler::APP_REQUESTS_MAX, crate::reconciler::APP_REQUESTS_WITHIN.0 / 1_000_000_000);
    Finding {
        rule: "app-requests-often".to_owned(),
        severity: Severity::Warning,
        object: "applications".to_owned(),
        summary: format!("more than {times} requests within {seconds} s: the rest wait for the next scan"),
        evidence: Vec::new(),
        remedy: Some("netpolicy sockets list".to_owned()),
    }
}

fn tasks(requests: &[AppRequest]) -> BTreeSet<Pid> {
    requests
        .iter()
        .filter_map(|request| if let Requester::Task(pid) = request.of { Some(pid) } else { None })
        .collect()
}

fn socket(request: &AppRequest) -> Option<u64> {
    if let Requester::Socket(inode) = request.of { Some(inode) } else { None }
}
