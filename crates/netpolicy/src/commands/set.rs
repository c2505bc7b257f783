//! `set`: gives one device, service or process a policy, without a file.

use daemon::running_daemon;
use latency::live::ServiceSelection;
use model::{Intent, Pid, PolicyName, Target};
use session::{Exit, Fault, fullbusy, staged};

use super::attach::another_process;
use super::by_daemon;
use crate::args::{Set, SetTarget};
use crate::request_args::PolicyWord;
use cli::Context;

/// Commits the request, and keeps it in force.
pub(crate) fn run(arguments: &Set, context: &Context) -> Result<Exit, Fault> {
    let (mut nic, mut typed) = (Vec::new(), Vec::new());
    let (target, request, netns) = match &arguments.target {
        SetTarget::Device { name, request, settings } => {
            nic.extend(settings.iter().map(|setting| setting.request.clone()));
            typed.extend(settings.iter().map(|setting| setting.text.clone()));
            (Target::Device(name.clone()), *request, context.session.netns()?)
        }
        SetTarget::Service { name, request } => {
            let (matching, _) = ServiceSelection::conditions(name, &context.session, &context.console)?;
            (Target::Service(name.clone(), matching), *request, context.session.netns()?)
        }
        SetTarget::Task { pid, request } => {
            another_process(Pid(*pid))?;
            (Target::Task(Pid(*pid)), *request, context.session.netns_of(Pid(*pid))?)
        }
    };
    let intent = Intent {
        nic,
        kthread: arguments.kthread.request(),
        ..request.intent(target, "netpolicy set", arguments.cost.budget())
    };
    let policy = context.session.policy_of(
        vec![intent],
        arguments.allow.disruptive,
        arguments.allow.allow_inferred,
    )?;
    fullbusy::refuse_from_outside(&policy)?;
    // Pass the request to a running daemon, which would revert a change by another process.
    if let Some(mut daemon) = running_daemon::connect(&context.session, netns.id())? {
        return by_daemon::set(&mut daemon, &policy.intents[0], &typed, &netns, context);
    }
    running_daemon::refuse_beside_another(&context.session, &netns)?;
    let words = staged::OutcomeWords { nothing: Some("the request is already in force"), done: "Set" };
    let done =
        staged::keep(&policy, &netns, arguments.allow.into(), &words, &context.session, &context.console)?;
    if let SetTarget::Task { pid, request: PolicyWord::Policy(policy) } = &arguments.target {
        bequeath(Pid(*pid), *policy, context);
    }
    Ok(done)
}

/// Whether a daemon is running that would make this change.
pub(crate) fn has_daemon(context: &Context) -> bool {
    let netns = context.session.netns();
    netns
        .and_then(|netns| running_daemon::connect(&context.session, netns.id()))
        .is_ok_and(|daemon| daemon.is_some())
}

/// Stores the request in the kernel, so that the process's future children and their sockets inherit the
/// policy.
fn bequeath(pid: Pid, policy: PolicyName, context: &Context) {
    let number = (policy != PolicyName::None).then(|| policy.number());
    if let Err(error) = context.session.app_requests().set_task(pid, number) {
        context.console.detail(&format!("Future children will not inherit the policy: {error}"));
    }
}
