//! `set`: gives one device or process a policy, without a file.

use model::{Intent, Pid, Policy, Target};

use crate::args::{Set, SetTarget};
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::fullbusy;
use crate::staged;

/// Commits what one word asks for, and keeps it.
pub(crate) fn run(arguments: &Set, context: &Context) -> Result<Exit, Fault> {
    let mut nic = Vec::new();
    let (target, wish, netns) = match &arguments.target {
        SetTarget::Device { name, wish, settings } => {
            nic.clone_from(settings);
            (Target::Device(name.clone()), *wish, context.netns()?)
        }
        SetTarget::Task { pid, wish } => {
            linux::process::identify(Pid(*pid))?;
            (Target::Task(Pid(*pid)), *wish, context.netns_of(Pid(*pid))?)
        }
    };
    let intent = Intent { nic, ..wish.intent(target, "netpolicy set", arguments.cost) };
    fullbusy::refuse_from_outside(&intent)?;
    let words = staged::Words { nothing: "Nothing to change: it is so already.", done: "Set" };
    staged::keep(&Policy { intents: vec![intent] }, &netns, arguments.allow.into(), &words, context)
}
