//! `tc dump`: the kernel's rules as a batch file.

use linux::tc::{Devices, dump};
use rules::{Classifier, Filter, Hook, Lookup, command, number};

use crate::args::TcDump;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;

/// Prints every rule of a hook; exit code 1 if there is one that has no words.
pub(crate) fn run(arguments: &TcDump, context: &Context) -> Result<Exit, Fault> {
    let netns = context.netns()?;
    let mut devices = Devices::of(&netns);
    let device = devices.device(&arguments.dev);
    let device =
        device.ok_or_else(|| Fault::new(Exit::Usage, format!("there is no device `{}`", arguments.dev)))?;
    let parent = match arguments.parent.as_str() {
        "ingress" => command::INGRESS,
        "egress" => command::EGRESS,
        class => number::class(class).ok_or_else(|| {
            Fault::new(Exit::Usage, format!("`{class}` is no hook: write ingress, egress or 1:10"))
        })?,
    };
    let hook = Hook { device, block: 0, parent };
    let (mut text, mut wordless) = (String::new(), 0_usize);
    dump::rules(&netns, hook, |dumped| {
        let words = match dumped {
            dump::Dumped::Begin => {
                text.clear();
                wordless = 0;
                return;
            }
            // The kernel gives this number to all rules of a bucket that it has no number for: it names none of them.
            dump::Dumped::Rule(rule) if is_without_number(rule) => {
                Filter { handle: 0, ..rule.clone() }.line(&mut devices)
            }
            dump::Dumped::Rule(rule) => rule.line(&mut devices),
            dump::Dumped::Unknown => None,
        };
        match words {
            Some(words) => {
                text.push_str(&words);
                text.push('\n');
            }
            None => wordless += 1,
        }
    })?;
    if arguments.qdisc
        && let Some(qdisc) = dump::qdisc(&netns, device)?
    {
        text.insert_str(0, &format!("{}\n", qdisc.words(&mut devices)));
    }
    context.console.text(&text)?;
    if wordless > 0 {
        context.console.say(&format!("{wordless} rules have no words in a batch file, and were left out."));
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Whether a rule of u32 has the last number of a bucket. Kernel: 6.18, `net/sched/cls_u32.c` `gen_new_kid()`.
const fn is_without_number(rule: &Filter) -> bool {
    matches!(rule.classifier, Classifier::U32(_)) && rule.handle & 0xfff == 0xfff
}
