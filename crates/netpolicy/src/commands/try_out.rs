//! `try`: applies the policy files, and rolls back at a deadline unless `confirm` is called.

use daemon::running_daemon;
use linux::{Kernel, Netns};
use model::Nanoseconds;
use session::{Exit, Fault, clock, cycle, fullbusy, guard_process};

use super::guarded;
use crate::args::Try;
use crate::render::PlanReport;
use cli::Context;

/// Commits the plan as a trial. The guard process is already running before the first write.
pub(crate) fn run(arguments: &Try, context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    let mut policy = context.whole_policy(&netns)?;
    fullbusy::refuse_from_outside(&policy)?;
    if let Some(limits) = arguments.guard {
        policy.disruptive = arguments.allow.disruptive;
        policy.inferred = arguments.allow.allow_inferred;
        let asked = guarded::GuardRequest { limits, on: &arguments.on, seconds: arguments.seconds };
        let guards = guarded::asked(&asked, &policy, &cycle::plan(&policy, &netns)?)?;
        return guarded::run(&policy, netns, arguments.allow, guards, arguments.dry_run, context);
    }
    running_daemon::refuse_beside_another(&context.session, &netns)?;
    let planned = cycle::plan(&policy, &netns)?;
    if planned.desired.first_stage && !planned.plan.is_empty() {
        return Err(Fault::new(
            Exit::Unsupported,
            "`try` cannot recreate queues and configure them in a single transaction".to_owned(),
        )
        .hint("apply it, and roll it back if it does not help: netpolicy apply --disruptive"));
    }
    context.report(&planned);
    context.console.report_done(&PlanReport::of(&planned.plan))?;
    if planned.plan.is_empty() {
        context.console.say(&format!("Nothing to try: {}.", planned.as_asked()?));
        context.session.report_trials(&context.console);
        return Ok(Exit::Done);
    }
    let deadline =
        Nanoseconds(clock::now().since_boot.0.saturating_add(arguments.seconds * NANOSECONDS_PER_SECOND));
    let namespaces = Kernel::namespaces(&planned.plan).into_iter().map(|id| match id == netns.id() {
        true => netns.again(),
        false => Netns::with_id(id),
    });
    let namespaces = namespaces.collect::<Result<Vec<_>, _>>()?;
    let mut guard = guard_process::start(&context.session, deadline, &namespaces, None)?;
    let held = cycle::hold(
        planned.plan,
        &context.session.journal()?,
        &context.session.asked(Some(deadline)),
        arguments.allow.into(),
        deadline,
    );
    match held {
        Ok(Some(transaction)) => {
            context.console.say(&format!(
                "On trial for {} s as {transaction}. `netpolicy confirm` keeps it; otherwise it is rolled back, \
                 whatever happens to this terminal.",
                arguments.seconds
            ));
            Ok(Exit::Done)
        }
        nothing_to_guard => {
            let _ = guard.kill();
            let _ = guard.wait();
            nothing_to_guard.map(|_| Exit::Done)
        }
    }
}

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
