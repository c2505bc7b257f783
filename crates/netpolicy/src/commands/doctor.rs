//! `doctor`: finds problems of packet delivery, and their causes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::init::HostServices;
use apply::Standing;
use latency::judge::Tuned;
use latency::live::{ListeningService, Measured, MeasuredOutcome, Rounds, SamplingPace};
use linux::bpf::batches::BatchMeter;
use linux::bpf::delivery::DeliverySampler;
use linux::pressure::PressureSource;
use linux::process::CpuWaits;
use linux::{Netns, Processes};
use model::{Delivered, DeviceId, Finding, Host, Nanoseconds, Pid, Severity};
use plan::RefusalKind;
use plan::doctor::{HeldObject, HostContext, PendingChanges, VethPeer};
use session::recording::DoctorFacts;
use session::source::HostSource;
use session::{Exit, Fault, app_requests, cycle, quoted, services};

use crate::args::Doctor;
use crate::commands::prospects::Prospects;
use crate::render::{FindingsReport, count as counted, count_shown};
use cli::Context;

/// Progress is shown if packet delivery is to be counted for longer than this.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

/// The findings of `doctor` on this host.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) host: Host,
    pub(crate) findings: Vec<Finding>,
    /// The counts and measurements.
    pub(crate) facts: DoctorFacts,
    /// The facts that could not be determined on this host.
    pub(crate) not_known: Vec<String>,
    /// The number of requests of the policy files.
    pub(crate) requests: usize,
    /// The number of changes that `netpolicy apply` would make.
    pub(crate) pending: usize,
    /// Why the policy files are refused; `None` if they are not.
    pub(crate) refused: Option<Fault>,
}

/// Checks the host's settings and counts, and prints the findings.
pub(crate) fn run(arguments: &Doctor, context: &Context) -> Result<Exit, Fault> {
    let examined = examine(&Processes::from(&arguments.processes), arguments.seconds, context)?;
    let Examined { findings, facts, not_known, refused, .. } = examined;
    context.console.report(&FindingsReport::of(
        &findings,
        facts.delivered.as_ref(),
        &not_known,
        arguments.all,
    ))?;
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let problems = count(Severity::Problem);
    let shown = |severity| count_shown(&findings, severity);
    context.console.say(&format!(
        "{}, {}.",
        counted(shown(Severity::Problem), "problem"),
        counted(shown(Severity::Warning), "warning")
    ));
    Ok(match refused {
        Some(fault) => fault.exit,
        None if problems > 0 => Exit::Pending,
        None => Exit::Done,
    })
}

/// Observes the host, counts for some seconds, and evaluates the rules.
///
/// # Errors
/// If the host cannot be read. Refused policy files are part of the result.
pub(crate) fn examine(processes: &Processes, seconds: u64, context: &Context) -> Result<Examined, Fault> {
    let (host, facts) = match &context.session.recording {
        Some(recording) => {
            recording.doctor.said.iter().for_each(|line| context.console.say(line));
            (context.session.source()?.observe(processes)?, recording.doctor.clone())
        }
        None => gather(processes, seconds, context)?,
    };
    judge(host, facts, context)
}

/// Observes the host, and counts and measures for some seconds.
///
/// # Errors
/// If the host cannot be read.
pub(crate) fn gather(
    processes: &Processes,
    seconds: u64,
    context: &Context,
) -> Result<(Host, DoctorFacts), Fault> {
    let netns = context.session.netns()?;
    let idle = linux::idle_depth().unwrap_or_else(|error| {
        context.console.detail(&format!("The idle states of CPUs are ignored: {error}"));
        None
    });
    let bpf_programs = linux::bpf::loaded_programs()
        .map_err(|error| context.console.detail(&format!("Loaded BPF programs are not counted: {error}")))
        .ok();
    let mut facts = DoctorFacts { idle, bpf_programs, ..DoctorFacts::default() };
    let watched = match seconds {
        0 => None,
        _ => begin(&netns).map_err(|error| context.console.say(&format!("{error}"))).ok(),
    };
    let response_times = (seconds > 0).then(|| measure(context, &netns)).flatten();
    let prospects = (seconds > 0).then(|| prospects(context, &netns)).flatten();
    if seconds > 0 {
        let observed = linux::observe(&netns, processes)?;
        let waits = CpuWaits::of(&observed);
        let mut napis = observed.devices.iter().flat_map(|device| &device.napis);
        let suspends = napis.any(|napi| napi.irq_suspend_timeout.is_some_and(|span| !span.is_zero()));
        let batches = BatchMeter::load(suspends)
            .map_err(|error| context.console.detail(&format!("Batches of events are not measured: {error}")))
            .ok();
        let begun = Instant::now();
        facts.delivered = count(Duration::from_secs(seconds), context);
        facts.watched = Nanoseconds(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        facts.cpu_waits = waits.since();
        let batches = batches.map(|meter| meter.read()).transpose()?.unwrap_or_default();
        facts.batches = batches.into_iter().map(|((pid, of), counts)| (pid, of, counts)).collect();
    }
    let host = linux::observe(&netns, processes)?;
    facts.others = linux::conflicting_tools(&netns, &host.devices);
    facts.pressure = watched
        .and_then(|source| source.end(&host).map_err(|error| context.console.say(&format!("{error}"))).ok());
    if let Some(rounds) = response_times {
        let found = rounds.found();
        facts.timed = found.iter().any(|one| matches!(one.outcome, MeasuredOutcome::Windows { .. }));
        facts.measured.extend(of_response_times(found, context));
    }
    if let Some(prospects) = prospects {
        let earlier = Tuned::all(&context.session);
        for one in prospects.found(&host, context) {
            facts.measured.extend(one.finding(&earlier));
            one.keep("doctor", &netns, context);
        }
    }
    Ok((host, facts))
}

/// Evaluates the rules for a host and its counts. Looks for the peers of veths if a finding needs them.
///
/// # Errors
/// If the network namespace cannot be opened. Refused policy files are part of the result.
pub(crate) fn judge(mut host: Host, mut facts: DoctorFacts, context: &Context) -> Result<Examined, Fault> {
    let source = context.session.source()?;
    let (held, pending) = held(context);
    // An error in a site's recipes becomes the first finding, like an error in a policy file. Continue with
    // the shipped recipes.
    let recipes = context.session.recipes().or_else(|_| policy_file::recipes(&[])).unwrap_or_default();
    let mut host_context = HostContext {
        recipes,
        command_prefix: context.session.command_prefix(),
        idle: facts.idle.clone(),
        bpf_programs: facts.bpf_programs,
        watched: facts.watched,
        cpu_waits: facts.cpu_waits.clone(),
        batches: facts.batches.iter().map(|(pid, of, counts)| ((*pid, *of), *counts)).collect(),
        others: facts.others.clone(),
        peers: facts.peers.iter().cloned().map(Into::into).collect(),
        held,
        pending,
        proposes: true,
        ..HostContext::default()
    };
    host.pressure.clone_from(&facts.pressure);
    let (asked, refused) = match asked(context, &*source, &mut host, &mut host_context) {
        Ok(asked) => (asked, None),
        Err(fault) => (Vec::new(), Some(fault)),
    };
    host_context.pending.refused = refused.as_ref().map(|fault| fault.cause.to_string());
    let delivered = facts.delivered.clone();
    let mut findings = plan::doctor_with(&host, delivered.as_ref(), &asked, &host_context);
    // Look for the peers of veths only for findings that need them, because that scans every namespace.
    if context.session.recording.is_none()
        && findings
            .iter()
            .any(|found| NEEDS_PEER.contains(&found.rule.as_str()) && found.severity > Severity::Note)
    {
        host_context.peers = peers(&context.session.netns()?, &host, context);
        facts.peers = host_context.peers.iter().map(Into::into).collect();
        findings = plan::doctor_with(&host, delivered.as_ref(), &asked, &host_context);
    }
    host_context.timed = facts.timed;
    findings.extend(facts.measured.iter().cloned());
    let not_known = plan::doctor::not_known(&host, delivered.as_ref(), &host_context);
    let (requests, pending) = (asked.len(), host_context.pending.plan.changes().count());
    Ok(Examined { host, findings, facts, not_known, requests, pending, refused })
}

/// How long services are measured in each second: longer than for a continuously watched service.
const SAMPLE: Duration = Duration::from_millis(400);

/// Starts measuring the services of the policy files, if there are any.
fn measure(context: &Context, netns: &Netns) -> Option<Rounds> {
    // Ignore errors in policy files, which are reported elsewhere.
    let subjects = ListeningService::of_policy(&context.policy().ok()?.policy(), netns);
    if subjects.is_empty() {
        return None;
    }
    let begun = netns.again().map_err(Fault::from).and_then(|netns| {
        let pace = SamplingPace { sample: SAMPLE, windows_per_summary: 1, without_goal: Duration::ZERO };
        let rounds = Rounds::start(netns, pace, || {})?;
        rounds.measure(subjects);
        Ok(rounds)
    });
    begun
        .map_err(|fault| context.console.say(&format!("Response times are not measured: {}", fault.cause)))
        .ok()
}

/// Starts measuring services that have no policy.
fn prospects(context: &Context, netns: &Netns) -> Option<Prospects> {
    let found = HostServices::here(netns, Pid(std::process::id()));
    let found = found
        .map_err(|error| context.console.detail(&format!("No expected gain can be estimated: {error}")))
        .ok()?;
    Prospects::begin(&found, netns, context)
}

/// The findings that mean only that a service was quiet, or was measured briefly.
const OF_A_MOMENT: [&str; 3] = ["live-nothing-arrived", "live-few-requests", "live-uniform-alone"];

/// Returns the findings on the response times of services.
fn of_response_times(measured: Vec<Measured>, context: &Context) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Measured { name, outcome } in measured {
        match outcome {
            MeasuredOutcome::Windows { summary, .. } => {
                let found = summary.findings.iter();
                findings.extend(
                    found.filter(|found| !OF_A_MOMENT.contains(&found.rule.as_str())).cloned().map(|found| {
                        Finding {
                            remedy: found.remedy.map(|remedy| remedy.replace("SERVICE", &quoted(&name))),
                            ..found
                        }
                    }),
                );
            }
            MeasuredOutcome::Refused { why, .. } => {
                context.console.say(&format!("Response times of {name} are not measured: {why}"));
            }
        }
    }
    findings
}

/// Returns the settings that transactions have in force, newest first, and the state of the newest
/// transaction. An unreadable journal is not an error in this function.
fn held(context: &Context) -> (Vec<HeldObject>, PendingChanges) {
    let read = context.session.journal().and_then(|journal| Ok((journal.history()?, journal)));
    let (history, journal) = match read {
        Ok(read) => read,
        Err(fault) => {
            context
                .console
                .detail(&format!("The settings that netpolicy holds are unknown: {}", fault.cause));
            return Default::default();
        }
    };
    let newest = history.transactions.last().filter(|newest| newest.standing() == Standing::RolledBack);
    let pending = PendingChanges {
        rolled_back: newest.map(|newest| newest.name().to_string()),
        evidence: context.session.evidence(),
        daemon: journal.daemon(),
        ..PendingChanges::default()
    };
    let mut held = Vec::new();
    for transaction in
        history.transactions.iter().rev().filter(|transaction| transaction.standing().is_live())
    {
        let name = transaction.name();
        let (by, end, has_owner) = match journal.owner(transaction) {
            Some(pid) => (
                format!("process {pid} ({})", transaction.begin().asked.command),
                format!("kill {pid}; tail --pid={pid} -f /dev/null"),
                true,
            ),
            None => (format!("the transaction {name}"), format!("netpolicy rollback {name}"), false),
        };
        held.extend(transaction.live_changes().map(|change| HeldObject {
            object: change.to().object(),
            by: by.clone(),
            end: end.clone(),
            has_owner,
        }));
    }
    (held, pending)
}

/// Starts counting the congestion of the receive path.
fn begin(netns: &Netns) -> Result<PressureSource, linux::KernelError> {
    PressureSource::begin(netns, &linux::observe(netns, &Processes::None)?)
}

/// The rules whose remedy must be applied to a veth's peer.
const NEEDS_PEER: [&str; 2] = ["packets-on-no-napi", "veth-without-napi"];

/// The maximum number of veths whose peers are looked for.
const PEERS_MAX: usize = 64;

/// Returns the peers of veths that are in another namespace that can be found.
fn peers(netns: &Netns, host: &Host, context: &Context) -> BTreeMap<DeviceId, VethPeer> {
    let veths = host.devices.iter().filter(|device| device.kind == "veth" && device.up).take(PEERS_MAX);
    let found = veths.filter_map(|device| match linux::observe::peer_end(netns, device.id) {
        Ok(end) => {
            let end = end?;
            let netns = quoted(&end.netns.to_string_lossy());
            Some((device.id, VethPeer { name: end.name, netns, tso: end.tso }))
        }
        Err(error) => {
            context.console.detail(&format!("the other end of {} was not found: {error}", device.id));
            None
        }
    });
    found.collect()
}

/// Returns the requests of the policy files on this host, and the requests that are not in force. `doctor`
/// continues if the files are refused.
///
/// # Errors
/// If the files are refused; the error is the reason.
fn asked(
    context: &Context,
    source: &dyn HostSource,
    host: &mut Host,
    host_context: &mut HostContext,
) -> Result<Vec<plan::RequestFacts>, Fault> {
    let placed = context.session.requested(&context.console).and_then(|(policy, rolled_back)| {
        // A request that was rolled back still counts as a policy of this host.
        host_context.proposes &= rolled_back.is_empty();
        rolled_back.iter().for_each(|request| context.console.say(&request.to_string()));
        let policy = app_requests::joined(policy, source, &context.session.app_requests(), &context.console)?;
        let (resolved, processes) = services::resolve_on(&policy, source)?;
        services::add_elsewhere(host, source, &processes);
        cycle::place(&policy, host, resolved)
    });
    let placement = placed?;
    match cycle::plan_placed(&placement, host) {
        Ok((_, plan)) => host_context.pending.plan = plan,
        // The user may lack permission to read a value. That does not mean that the files are wrong.
        Err(refusal) if refusal.kind == RefusalKind::Missing => {
            context.console.detail(&format!("The pending changes are unknown: {refusal}"));
        }
        Err(refusal) => return Err(Fault::refused(refusal, host)),
    }
    Ok(placement.asked())
}

/// Counts packet delivery; if BPF is unavailable, prints a message and returns `None`.
fn count(span: Duration, context: &Context) -> Option<Delivered> {
    match delivered(span, context) {
        Ok(delivered) => Some(delivered),
        Err(error) => {
            context.console.say(&format!(
                "Packet delivery could not be counted, so only the settings are checked: {error}"
            ));
            None
        }
    }
}

fn delivered(span: Duration, context: &Context) -> Result<Delivered, linux::KernelError> {
    let mut sampler = DeliverySampler::load()?;
    sampler.begin();
    watch(span, context);
    sampler.end()
}

/// Waits, and shows the remaining time if it is long.
fn watch(span: Duration, context: &Context) {
    const TICK: Duration = Duration::from_millis(200);
    let end = Instant::now() + span;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if span > PROGRESS_AFTER {
            context.console.progress(&format!("counting packet delivery, {} s left", left.as_secs() + 1));
        }
        std::thread::sleep(left.min(TICK));
    }
    context.console.progress("");
}
