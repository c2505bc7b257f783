//! `set`: gives one device or process a policy, without a file.

use model::{Intent, Pid, Target};

use super::attach::another_process;
use super::by_daemon;
use crate::args::{Set, SetTarget};
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::fullbusy;
use crate::staged;

/// Commits what one word asks for, and keeps it.
pub(crate) fn run(arguments: &Set, context: &Context) -> Result<Exit, Fault> {
    let (mut nic, mut typed) = (Vec::new(), Vec::new());
    let (target, wish, netns) = match &arguments.target {
        SetTarget::Device { name, wish, settings } => {
            nic.extend(settings.iter().map(|setting| setting.wish.clone()));
            typed.extend(settings.iter().map(|setting| setting.text.clone()));
            (Target::Device(name.clone()), *wish, context.netns()?)
        }
        SetTarget::Task { pid, wish } => {
            another_process(Pid(*pid))?;
            (Target::Task(Pid(*pid)), *wish, context.netns_of(Pid(*pid))?)
        }
    };
    let intent = Intent {
        nic,
        kthread: arguments.kthread.wish(),
        ..wish.intent(target, "netpolicy set", arguments.cost)
    };
    let policy = context.policy_of(vec![intent], arguments.allow)?;
    fullbusy::refuse_from_outside(&policy)?;
    // What a daemon does not know of, it would take for drift.
    if let Some(mut daemon) = by_daemon::running(netns.id(), context)? {
        return by_daemon::set(&mut daemon, &policy.intents[0], &typed, context);
    }
    let words = staged::Words { nothing: "Nothing to change: it is so already.", done: "Set" };
    staged::keep(&policy, &netns, arguments.allow.into(), &words, context)
}
