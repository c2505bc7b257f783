//! Measures the response times of services that have a goal or no policy. A separate thread measures, so that
//! the daemon never waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use latency::live::{
    Estimate, ListeningService, Measured, MeasuredOutcome, Percentiles, Prospect, Rounds, SamplingPace,
    ServiceSelection, Summary,
};
use linux::Netns;
use model::host::{Process, SocketState};
use model::live::{LivePolls, PartOfSecond, ServicePorts};
use model::{
    DeliveryMode, Finding, Goal, Guarded, Host, Intent, Nanoseconds, Pid, PolicyName, Severity, Target,
};
use session::{Exit, Fault, quoted};

use crate::bell::Bell;
use crate::event_loop::EventLoop;
use crate::event_sources::MEASURED;
use crate::placing::RequestMembers;
use crate::status::{MeasuredWindows, RequestStatus, ResponseTimes};

/// The state of a goal after the last measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoalState {
    /// The whole confidence interval of this percentile is above the goal.
    Missed(Guarded),
    /// The whole confidence interval of each percentile is within the goal.
    Met,
    /// It is not yet certain whether the goal is met.
    Open,
}

/// The number of windows after which percentiles are recomputed. Unlike counting, this takes a millisecond or
/// two.
const WINDOWS_PER_SUMMARY: u64 = 5;

/// The interval between measurements of services that have neither a goal nor a policy. It is short enough to
/// estimate what a policy would change.
const WITHOUT_GOAL_EVERY: Duration = Duration::from_secs(60);

/// The rule of the finding that a service is not measured.
const NOT_MEASURED: &str = "live-not-measured";

/// The message if response times cannot be measured on this kernel at all.
const NOT_HERE: &str = "response times cannot be measured on this kernel";

/// The measurements of services that have a goal, or no policy.
pub(crate) struct Goals {
    part: PartOfSecond,
    /// `None` while there is no service to measure.
    rounds: Option<Rounds>,
    subjects: Vec<ListeningService>,
    found: Vec<Measured>,
    /// For each service whose queues have no settings: what policies would probably change.
    prospects: BTreeMap<String, Prospect>,
    /// All rules that have been reported so far. A finding is resolved when its rule is no longer reported
    /// for the object.
    rules: BTreeSet<String>,
    /// Wakes the event loop; the measuring thread rings it when there are new results.
    new: Arc<Bell>,
}

impl Goals {
    /// Creates the state without measurements. The event loop reports new measurements as [`MEASURED`].
    pub(crate) fn watched_by(event_loop: &EventLoop) -> Result<Self, Fault> {
        let failed =
            |errno| Fault::failed(format!("cannot set up a notification in the daemon's epoll: {errno}"));
        let new = Bell::new().map_err(failed)?;
        event_loop.watch(&new, MEASURED).map_err(failed)?;
        Ok(Self {
            part: PartOfSecond::OF_DAEMON,
            rounds: None,
            subjects: Vec::new(),
            found: Vec::new(),
            prospects: BTreeMap::new(),
            rules: BTreeSet::new(),
            new: Arc::new(new),
        })
    }

    /// Sets how much of each second is measured.
    pub(crate) fn measure(&mut self, part: PartOfSecond) {
        if part != self.part {
            self.part = part;
            self.rounds = None;
            self.found.clear();
        }
    }

    /// Sets the services to measure.
    ///
    /// # Errors
    /// If the measuring thread cannot be created.
    pub(crate) fn follow(&mut self, subjects: Vec<ListeningService>, netns: &Netns) -> Result<(), Fault> {
        let Some(sample) = self.part.span().filter(|_| !subjects.is_empty()) else {
            self.rounds = None;
            self.found.clear();
            self.subjects = subjects;
            return Ok(());
        };
        if let Some(rounds) = &self.rounds {
            if subjects != self.subjects {
                rounds.measure(subjects.clone());
            }
        } else {
            let sample = Duration::from_nanos(sample.0);
            let pace = SamplingPace {
                sample,
                windows_per_summary: WINDOWS_PER_SUMMARY,
                without_goal: WITHOUT_GOAL_EVERY,
            };
            let new = Arc::clone(&self.new);
            let rounds = Rounds::start(netns.again()?, pace, move || {
                new.ring();
            })?;
            rounds.measure(subjects.clone());
            self.rounds = Some(rounds);
        }
        self.subjects = subjects;
        Ok(())
    }

    /// Takes the new measurements from the thread.
    pub(crate) fn take(&mut self, host: &Host) {
        self.new.silence();
        self.found = self.rounds.as_ref().map(Rounds::found).unwrap_or_default();
        let prospect = |measured: &Measured| {
            let MeasuredOutcome::Windows { summary, cost, .. } = &measured.outcome else { return None };
            Some((measured.name.clone(), Prospect::of(summary, *cost, host)?))
        };
        self.prospects = self.found.iter().filter_map(prospect).collect();
    }

    /// Discards the measurements of a service, because its settings have changed.
    pub(crate) fn begin_again(&mut self, name: &str) {
        self.found.retain(|measured| measured.name != name);
        if let Some(rounds) = &self.rounds {
            rounds.begin_again(name);
        }
    }

    /// Returns the last measurements of each service.
    pub(crate) fn found(&self) -> &[Measured] {
        &self.found
    }

    /// Returns the state of each service's goal after the last measurement.
    pub(crate) fn standings(&self) -> BTreeMap<String, GoalState> {
        let of = |measured: &Measured| {
            let subject = self.subjects.iter().find(|subject| subject.name == measured.name)?;
            let MeasuredOutcome::Windows { summary, .. } = &measured.outcome else { return None };
            Some((measured.name.clone(), standing(&subject.goal, &summary.response)))
        };
        self.found.iter().filter_map(of).collect()
    }

    /// Returns the rules whose findings may have to be resolved.
    pub(crate) fn rules(&self) -> Vec<String> {
        self.rules.iter().cloned().collect()
    }

    /// Returns findings about the services' problems, and about services that are not measured.
    pub(crate) fn findings(&mut self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut refused_all = None;
        for Measured { name, outcome } in &self.found {
            let has_goal = |subject: &ListeningService| subject.name == *name && subject.goal.is_set();
            if !self.subjects.iter().any(has_goal) {
                continue;
            }
            match outcome {
                MeasuredOutcome::Windows { summary, .. } => {
                    let wrong = summary.findings.iter().filter(|found| found.severity >= Severity::Warning);
                    findings.extend(wrong.cloned());
                }
                // The kernel lacks a feature. This affects every service, so report it only once.
                MeasuredOutcome::Refused { exit: Exit::Unsupported, why, hint } => {
                    refused_all = Some(not_measured("daemon", NOT_HERE, why, hint.as_deref()));
                }
                MeasuredOutcome::Refused { why, hint, .. } => {
                    let summary = "its response times cannot be measured";
                    findings.push(not_measured(name, summary, why, hint.as_deref()));
                }
            }
        }
        findings.extend(refused_all);
        let with_goal = self.subjects.iter().filter(|subject| subject.goal.is_set()).count();
        let more = with_goal.saturating_sub(Rounds::services_max());
        if more > 0 {
            let measured = Rounds::services_max();
            let first = self.subjects.get(measured).map(|subject| subject.name.as_str());
            findings.push(Finding {
                rule: NOT_MEASURED.to_owned(),
                severity: Severity::Note,
                object: "policy files".to_owned(),
                summary: format!("{more} services with a goal are not measured"),
                evidence: vec![format!("maximum on this machine: {measured}")],
                remedy: first.map(|name| format!("netpolicy watch {}", quoted(name))),
            });
        }
        self.rules.extend(findings.iter().map(|finding| finding.rule.clone()));
        findings
    }

    /// Adds the measurements to the status of requests.
    pub(crate) fn filled(&self, mut requests: Vec<RequestStatus>) -> Vec<RequestStatus> {
        for request in &mut requests {
            if request.policy == PolicyName::None.as_str() && !is_delivered_by_settings(request) {
                request.expected = self.prospects.get(&request.target).cloned();
            }
            let Some(measured) = self.found.iter().find(|measured| measured.name == request.target) else {
                continue;
            };
            let MeasuredOutcome::Windows { unix_micros, summary, cost, .. } = &measured.outcome else {
                continue;
            };
            let mode: Option<DeliveryMode> = request.delivery.parse().ok();
            request.engaged = mode.and_then(|mode| plan::engaged_share(mode, &packets(summary)));
            let Summary { windows, measured_seconds, unit, requests, rate, estimator, .. } = **summary;
            request.measured = Some(ResponseTimes {
                windows: MeasuredWindows {
                    at_unix_micros: *unix_micros,
                    windows,
                    measured_seconds,
                    unit,
                    requests,
                    rate,
                },
                estimator,
                response: summary.response,
                ring: summary.ring,
                wakeup: summary.wakeup,
                service_time: summary.service_time,
                rtt: summary.rtt,
                cost: *cost,
                waiting: summary.waiting,
                oldest: summary.oldest,
                found: summary.findings.iter().map(|finding| finding.rule.clone()).collect(),
            });
        }
        requests
    }
}

/// Determines the state of a goal. Like the finding `live-goal-missed`, this considers the whole confidence
/// interval of each percentile.
fn standing(goal: &Goal, response: &Percentiles) -> GoalState {
    let nanoseconds = |span: Nanoseconds| Duration::from_nanos(span.0).as_secs_f64() * 1e9;
    let wanted = [(Guarded::P99, goal.p99, response.p99), (Guarded::P50, goal.p50, response.p50)];
    let wanted: Vec<_> =
        wanted.into_iter().filter_map(|(what, goal, found)| Some((what, goal?, found))).collect();
    let missed = wanted
        .iter()
        .find(|(_, goal, found)| found.is_some_and(|found| found.interval.low > nanoseconds(*goal)));
    let is_met = |(_, goal, found): &(Guarded, Nanoseconds, Option<Estimate>)| {
        found.is_some_and(|found| !found.open_end && found.interval.high <= nanoseconds(*goal))
    };
    match missed {
        Some((what, ..)) => GoalState::Missed(*what),
        None if wanted.iter().all(is_met) => GoalState::Met,
        None => GoalState::Open,
    }
}

fn not_measured(object: &str, summary: &str, why: &str, hint: Option<&str>) -> Finding {
    Finding {
        rule: NOT_MEASURED.to_owned(),
        severity: Severity::Note,
        object: object.to_owned(),
        summary: summary.to_owned(),
        evidence: vec![why.to_owned()],
        remedy: hint.map(str::to_owned),
    }
}

/// Returns how many packets a service's NAPIs delivered, by polling context.
fn packets(summary: &Summary) -> LivePolls {
    let mut sum = LivePolls::default();
    summary.napis.iter().for_each(|napi| sum += napi.packets);
    sum
}

/// Whether the request has a delivery mode other than interrupts, either requested or found by a search.
fn is_delivered_by_settings(request: &RequestStatus) -> bool {
    request.delivery.parse().is_ok_and(|mode: DeliveryMode| mode != DeliveryMode::Interrupt)
}

/// Whether a request asks for no settings.
fn is_without_policy(intent: &Intent) -> bool {
    intent.policy == PolicyName::None && intent.delivery.is_none()
}

/// Returns the running services that listen: first those with a goal, then those without a policy.
pub(crate) fn subjects(intents: &[Intent], members: &RequestMembers, host: &Host) -> Vec<ListeningService> {
    let all = || intents.iter().enumerate();
    let with_goal = all().filter(|(_, intent)| intent.goal.is_set());
    let without_policy = all().filter(|(_, intent)| !intent.goal.is_set() && is_without_policy(intent));
    let mut subjects: Vec<ListeningService> = Vec::new();
    for (place, intent) in with_goal.chain(without_policy) {
        let name = intent.target.to_string();
        if !matches!(intent.target, Target::Service(..)) || subjects.iter().any(|known| known.name == name) {
            continue;
        }
        let pids = members.get(&place).into_iter().flatten();
        subjects.extend(subject(name, pids, intent.goal, host));
    }
    subjects
}

/// Returns a service with those of its processes that are in the host's network namespace, or `None` if none
/// of these listens. Ports in other namespaces are unrelated.
fn subject<'p>(
    name: String,
    pids: impl Iterator<Item = &'p Pid>,
    goal: Goal,
    host: &Host,
) -> Option<ListeningService> {
    let is_here = |process: &&Process| process.netns.is_none_or(|netns| netns == host.netns);
    let processes: Vec<_> = pids.filter_map(|pid| host.process(*pid)).filter(is_here).collect();
    let sockets = processes.iter().flat_map(|process| &process.sockets);
    let (mut tcp, mut udp) = (BTreeSet::new(), BTreeSet::new());
    for socket in sockets {
        match (socket.state, socket.local) {
            (SocketState::TcpListen, Some(local)) => drop(tcp.insert(local.port())),
            (SocketState::Udp, Some(local)) if socket.remote.is_none() => drop(udp.insert(local.port())),
            _ => {}
        }
    }
    let ports = ServicePorts::select(&tcp, &udp, None);
    let processes = processes.iter().map(|process| process.id).collect();
    (!ports.is_empty()).then_some(ListeningService { name, processes, ports, goal })
}

/// Selects a service of the policy by name, from the daemon's knowledge of the host: a command that the
/// daemon runs may lack the permission to inspect processes.
pub(crate) fn selection(
    name: &str,
    intents: &[Intent],
    members: &RequestMembers,
    host: &Host,
) -> ServiceSelection {
    let is_it = |intent: &Intent| matches!(&intent.target, Target::Service(other, _) if other == name);
    let places = (0..intents.len()).filter(|place| is_it(&intents[*place]));
    let pids = places.filter_map(|place| members.get(&place)).flatten();
    let known = subject(name.to_owned(), pids, Goal::default(), host);
    known.map_or_else(|| ServiceSelection::Service(name.to_owned()), ServiceSelection::Known)
}
