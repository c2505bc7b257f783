//! `try --guard`, and `apply` of services that have a guard: judges a change on live traffic.

use std::time::Duration;

use daemon::running_daemon;
use latency::judge::{ForesightReport, GuardReport, GuardedTrial, JudgedService, PolicyGuards, Proposal};
use latency::live::ServiceSelection;
use linux::{Netns, Signals};
use model::{Guard, Limits, Nanoseconds, Policy};
use session::cycle::Planned;
use session::guard_process::Guardian;
use session::{Exit, Fault, clock};

use crate::args::{AllowArgs, Output};
use crate::render::PlanReport;
use cli::Context;

/// How much longer than the trial the guard process may run.
const GUARD_STAYS: Duration = Duration::from_secs(60);

/// The options of `try --guard`.
pub(crate) struct GuardRequest<'a> {
    pub(crate) limits: Limits,
    /// The services on whose traffic the change is judged; empty for all services of the policy files.
    pub(crate) on: &'a [String],
    /// The time for judging the change, in seconds.
    pub(crate) seconds: u64,
}

/// Parses and checks the guards that this command line requests.
///
/// # Errors
/// Exit code 2 if the time is too short for a decision; exit code 7 if no service is named.
pub(crate) fn asked(
    asked: &GuardRequest<'_>,
    policy: &Policy,
    planned: &Planned,
) -> Result<PolicyGuards, Fault> {
    let within = Nanoseconds(asked.seconds.saturating_mul(1_000_000_000));
    if !(Guard::WITHIN_LEAST..=Guard::WITHIN_MOST).contains(&within) {
        return Err(Fault::new(
            Exit::Usage,
            format!(
                "a guard needs {} to {}: --seconds {}",
                Guard::WITHIN_LEAST,
                Guard::WITHIN_MOST,
                asked.seconds
            ),
        ));
    }
    let mut guards = latency::judge::guards(policy, &planned.placement, Some(asked.limits));
    if !asked.on.is_empty() {
        let named = asked.on.iter().map(|name| JudgedService {
            selection: ServiceSelection::named(name),
            limits: asked.limits,
            gain: None,
        });
        guards = PolicyGuards { watched: named.collect(), ..PolicyGuards::default() };
    }
    if guards.watched.is_empty() {
        let absent = guards.absent.join(", ");
        let words = match absent.as_str() {
            "" => {
                "the policy files name no service, and a guard judges a change by the requests of a service"
                    .to_owned()
            }
            absent => format!(
                "{absent}: not running, and a guard judges a change by the requests of a running service"
            ),
        };
        return Err(Fault::new(Exit::Refused, words).hint(
            "name a running service: --on memcached, or --on 11211 for the process that listens on this port",
        ));
    }
    Ok(PolicyGuards { within: Some(within), ..guards })
}

/// Tries the change, and keeps it unless it harms a service. With `dry_run`, reports which growth the guard
/// would detect, and writes nothing.
pub(crate) fn run(
    policy: &Policy,
    netns: Netns,
    allow: AllowArgs,
    guards: PolicyGuards,
    dry_run: bool,
    context: &Context,
) -> Result<Exit, Fault> {
    if !dry_run {
        running_daemon::refuse_beside_any(&context.session, &netns)?;
    }
    let within = Duration::from_nanos(guards.within.unwrap_or(Guard::WITHIN).0);
    let proposal = Proposal {
        policy,
        changes: None,
        netns,
        allow: allow.into(),
        watched: guards.watched,
        within,
        seed: clock::now().unix_micros,
    };
    let Some(mut trial) = GuardedTrial::prepare(proposal, &context.session, &context.console)? else {
        context.console.report_done(&PlanReport::of(&model::Plan::default()))?;
        context.console.say("Nothing to change: the host already matches the policy.");
        return Ok(Exit::Done);
    };
    // With JSON output, print only the outcome, so that it is the only document.
    if context.globals.output != Output::Json {
        context.console.report_done(&PlanReport::of(trial.plan()))?;
    }
    let by = trial.by();
    if !dry_run {
        context.console.say(&format!(
            "Judging the change on {} for {} s, {by}. Press Ctrl-C to restore everything.",
            trial.services().join(", "),
            within.as_secs()
        ));
    }
    let mut signals = Signals::catch()?;
    let mut stop = || signals.take().is_some();
    trial.measure_before(&mut stop)?;
    let foresight = trial.foresight();
    if dry_run {
        context.console.report(&ForesightReport::new(by, foresight))?;
        context.console.say("Nothing was changed (--dry-run).");
        return Ok(Exit::Done);
    }
    foresight.iter().for_each(|one| context.console.say(&one.to_string()));
    let stays = u64::try_from((trial.takes() + GUARD_STAYS).as_nanos()).unwrap_or(u64::MAX);
    let deadline = Nanoseconds(clock::now().since_boot.0.saturating_add(stays));
    let guard = Guardian::start(&context.session, deadline, &trial.namespaces()?)?;
    let mut outcome = trial.run(deadline, &mut stop, &mut |words| context.console.progress(words));
    context.console.progress("");
    let kept = match &mut outcome {
        Ok(outcome) if outcome.is_kept() => trial.keep(outcome).map(Some),
        Ok(_) | Err(_) => Ok(None),
    };
    // After a failure, the guard process restores the remaining settings.
    if outcome.is_ok() && kept.is_ok() {
        guard.dismiss();
    }
    let (outcome, kept) = (outcome?, kept?);
    context.console.report(&GuardReport::of(&outcome, by, kept.clone()))?;
    match kept {
        Some(names) => {
            let names: Vec<String> =
                names.iter().rev().map(|name| format!("`netpolicy rollback {name}`")).collect();
            context.console.say(&format!("Kept. To undo it: {}.", names.join(", then ")));
            Ok(Exit::Done)
        }
        None => {
            context.console.say("Reverted: the host was restored.");
            Ok(Exit::RolledBack)
        }
    }
}
