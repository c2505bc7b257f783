//! Estimates, from a short sample of their traffic, how a policy would change services that have none. Used
//! by `doctor` and `init`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::init::{HostServices, Server, servers};
use latency::judge::Tuned;
use latency::live::{LastMeasured, ListeningService, MeasuredOutcome, Prospect, Rounds, SamplingPace};
use linux::Netns;
use linux::machine::seconds_since_1970;
use model::{Finding, Goal, Host, Pid, PolicyName, Target};
use session::Fault;

use cli::Context;

/// The maximum number of services to measure. Those with the most connections are measured.
const SERVICES_MAX: usize = 4;

/// The length of each measurement window.
const SAMPLE: Duration = Duration::from_millis(200);

/// The maximum time that `init` waits until every service has been measured.
const INIT_WAITS: Duration = Duration::from_secs(4);

/// The interval between two checks for a window.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// Services without a policy, and the ongoing measurement of their traffic.
pub(super) struct Prospects {
    services: Vec<Server>,
    rounds: Rounds,
}

/// A service, and the effects that a policy is expected to have on it.
pub(super) struct OfService {
    service: Server,
    prospect: Prospect,
}

impl Prospects {
    /// Begins to measure the services without a policy; `None` if there are none, or none can be measured.
    pub(super) fn begin(found: &HostServices, netns: &Netns, context: &Context) -> Option<Self> {
        let has_policy = processes_with_policy(context, netns);
        let mut services = servers(found);
        services.retain(|service| service.processes.iter().all(|process| !has_policy.contains(&process.pid)));
        services.truncate(SERVICES_MAX);
        if services.is_empty() {
            return None;
        }
        let subjects = services.iter().map(subject).collect();
        let pace = SamplingPace { sample: SAMPLE, windows_per_summary: 1, without_goal: Duration::ZERO };
        let begun = netns.again().map_err(Fault::from).and_then(|netns| Rounds::start(netns, pace, || {}));
        let rounds = begun
            .map_err(|fault| {
                context.console.detail(&format!("No expected gain can be estimated: {}", fault.cause))
            })
            .ok()?;
        rounds.measure(subjects);
        Some(Self { services, rounds })
    }

    /// Waits until each service has been measured once, or has turned out to be unmeasurable.
    pub(super) fn wait(&self) {
        let until = Instant::now() + INIT_WAITS;
        while self.rounds.found().len() < self.services.len() && Instant::now() < until {
            std::thread::sleep(LOOKS_EVERY);
        }
    }

    /// Ends the measurement; returns the services with their estimates on this host.
    pub(super) fn found(self, host: &Host, context: &Context) -> Vec<OfService> {
        let measured = self.rounds.found();
        let mut found = Vec::new();
        for service in self.services {
            let name = subject(&service).name;
            match measured.iter().find(|one| one.name == name).map(|one| &one.outcome) {
                Some(MeasuredOutcome::Windows { summary, cost, .. }) => {
                    if let Some(prospect) = Prospect::of(summary, *cost, host) {
                        found.push(OfService { service, prospect });
                    }
                }
                Some(MeasuredOutcome::Refused { why, .. }) => {
                    context
                        .console
                        .detail(&format!("No expected gain can be estimated for {}: {why}", service.name));
                }
                None => {}
            }
        }
        found
    }
}

impl OfService {
    /// Returns the first process of the service.
    pub(super) fn first(&self) -> Option<Pid> {
        self.service.processes.first().map(|process| process.pid)
    }

    /// Formats the expected effects as the lines of a comment.
    pub(super) fn lines(&self) -> Vec<String> {
        std::iter::once(self.prospect.load_words()).chain(self.prospect.said()).collect()
    }

    /// Formats the expected effects as a finding; `None` if no effects are known.
    pub(super) fn finding(&self, earlier: &[Tuned]) -> Option<Finding> {
        let Server { name, ports, .. } = &self.service;
        let selected = format!("--port {}", ports.first()?);
        self.prospect.finding(name, &selected, earlier, seconds_since_1970())
    }

    /// Saves the expected effects, for `status`.
    pub(super) fn keep(self, by: &str, netns: &Netns, context: &Context) {
        let Self { service: Server { name, .. }, prospect } = self;
        let (netns, at, by) = (netns.id(), seconds_since_1970(), by.to_owned());
        let last = LastMeasured { service: name, netns, at, by, response: None, prospect: Some(prospect) };
        if let Err(fault) = last.keep(&context.session) {
            context
                .console
                .detail(&format!("The expected gains of policies could not be saved: {}", fault.cause));
        }
    }
}

/// Converts a service to a subject of measurement. Services with the same name are distinguished by their
/// ports.
fn subject(service: &Server) -> ListeningService {
    let Server { name, processes, ports } = service.clone();
    let name = format!("{name} {ports:?}");
    ListeningService { name, processes, ports: ports.into(), goal: Goal::default() }
}

/// Returns the processes of services for which a section requests a policy.
fn processes_with_policy(context: &Context, netns: &Netns) -> BTreeSet<Pid> {
    let Ok(merged) = context.policy() else { return BTreeSet::new() };
    let mut policy = merged.policy();
    policy.intents.retain(|intent| {
        matches!(intent.target, Target::Service(..))
            && (intent.policy != PolicyName::None || intent.delivery.is_some())
    });
    let subjects = ListeningService::of_policy(&policy, netns);
    subjects.into_iter().flat_map(|subject| subject.processes).map(|process| process.pid).collect()
}
