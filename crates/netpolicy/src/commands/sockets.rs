//! `sockets`: enables cgroups whose applications may request a policy for their sockets, and lists the
//! requests.

use linux::KernelError;
use linux::bpf::app_requests::{Cgroup, Choice, RequestStore};
use model::PolicyName;
use session::{Exit, Fault};

use crate::render::SocketsReport;
use crate::sockets_args::{SocketPolicies, SocketsCommand, SocketsDisable, SocketsEnable};
use cli::Context;

/// Enables a cgroup, disables one, or lists them.
pub(crate) fn run(arguments: &SocketPolicies, context: &Context) -> Result<Exit, Fault> {
    let store = context.session.app_requests();
    match &arguments.command {
        SocketsCommand::Enable(arguments) => enable(arguments, &store, context),
        SocketsCommand::Disable(arguments) => disable(arguments, &store, context),
        SocketsCommand::List => list(&store, context),
    }
}

fn enable(arguments: &SocketsEnable, store: &RequestStore, context: &Context) -> Result<Exit, Fault> {
    let cgroup = Cgroup::open(&arguments.cgroup)?;
    let any_user = Choice { uid: None, numbers: numbers(&arguments.allow) };
    let users = arguments.allow_user.iter();
    let users = users.map(|user| Choice { uid: Some(user.uid), numbers: numbers(&user.policies) });
    let choices: Vec<Choice> = std::iter::once(any_user).chain(users).collect();
    let was = store.enabled()?.iter().any(|enabled| enabled.id == cgroup.id());
    // Enable prctl before changing permissions: if enabling is refused, the permissions must stay unchanged.
    if was && arguments.prctl {
        store.enable_prctl(&cgroup).map_err(|why| no_prctl(&why))?;
    }
    let without_prctl = store.enable(&cgroup, &choices)?;
    if let (Some(why), true) = (&without_prctl, arguments.prctl) {
        store.disable(cgroup.id())?;
        return Err(no_prctl(why));
    }
    let what = if without_prctl.is_some() { "setsockopt" } else { "setsockopt and prctl" };
    context.console.say(&format!("Enabled for programs in {}: {what}.", cgroup.path().display()));
    if let Some(why) = without_prctl {
        context.console.say(&format!("prctl is unavailable: {}", first_line(&why)));
    }
    Ok(Exit::Done)
}

fn no_prctl(why: &KernelError) -> Fault {
    let needs = "the kernel does not allow BPF to handle prctl (this needs fmod_ret: BTF, and no lockdown)";
    Fault::new(Exit::Unsupported, format!("{why}\n  {needs}"))
        .hint("without --prctl, only setsockopt and getsockopt work")
}

/// Returns the first line of the kernel's error, without the verifier log.
fn first_line(error: &KernelError) -> String {
    let words = error.to_string();
    words.split(" \"").next().unwrap_or(&words).to_owned()
}

fn numbers(policies: &[PolicyName]) -> u32 {
    policies.iter().fold(0, |set, policy| set | 1 << policy.number())
}

fn disable(arguments: &SocketsDisable, store: &RequestStore, context: &Context) -> Result<Exit, Fault> {
    let ids = match (&arguments.cgroup, arguments.id) {
        (Some(path), _) => vec![Cgroup::open(path)?.id()],
        (None, Some(id)) => vec![id],
        (None, None) => {
            for process in store.tasks()?.into_keys() {
                store.set_task(process, None)?;
            }
            store.enabled()?.into_iter().map(|enabled| enabled.id).collect()
        }
    };
    let mut disabled = 0_usize;
    for id in ids {
        disabled += usize::from(store.disable(id)?);
    }
    context.console.say(match disabled {
        0 => "The cgroup was not enabled.",
        _ => "Disabled: requests of its programs are no longer honoured.",
    });
    Ok(Exit::Done)
}

fn list(store: &RequestStore, context: &Context) -> Result<Exit, Fault> {
    let report = SocketsReport::of(&store.enabled()?, &store.tasks()?, &store.sockets()?);
    context.console.report(&report)?;
    if report.is_empty() {
        context.console.say("No cgroup is enabled: netpolicy sockets enable --cgroup PATH");
    }
    let lost = store.lost()?;
    if lost > 0 {
        context.console.say(&format!("{lost} children inherited no policy: the process table was full."));
    }
    Ok(Exit::Done)
}
