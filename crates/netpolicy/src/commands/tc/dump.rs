//! `tc dump`: the kernel's rules as a batch file.

use linux::tc::{Devices, dump};
use rules::{Classifier, Filter, Hook, Lookup, command, number};

use crate::args::TcDump;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::{DumpReport, count};

/// The parent that is the root of a device, where no rules hang, and the half of a parent that names the queueing discipline.
const ROOT: u32 = u32::MAX;
const MAJOR: u32 = 0xffff_0000;

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
        class => number::class(class).filter(|class| *class != ROOT).ok_or_else(|| {
            Fault::new(Exit::Usage, format!("`{class}` is no hook: write ingress, egress or 1:10"))
        })?,
    };
    let hook = Hook { device, block: 0, parent };
    if !dump::has_qdisc(&netns, device, parent)? {
        let name = &arguments.dev;
        if parent != command::INGRESS && parent != command::EGRESS {
            let words = format!("{name} has no queueing discipline {}", number::class_name(parent & MAJOR));
            return Err(Fault::failed(words));
        }
        context.console.say(&format!("{name} has neither clsact nor ingress, and so no rules there."));
    }
    let mut report = DumpReport::default();
    dump::rules(&netns, hook, |dumped| {
        let words = match dumped {
            dump::Dumped::Begin => {
                report = DumpReport::default();
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
            Some(words) => report.lines.push(words),
            None => report.left_out += 1,
        }
    })?;
    if arguments.qdisc
        && let Some(qdisc) = dump::qdisc(&netns, device)?
    {
        report.lines.insert(0, qdisc.words(&mut devices));
    }
    context.console.report(&report)?;
    if report.left_out > 0 {
        let rules = count(report.left_out, "rule");
        context.console.say(&format!("Left out for want of words in a batch file: {rules}."));
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Whether a rule of u32 has the last number of a bucket. Kernel: 6.18, `net/sched/cls_u32.c` `gen_new_kid()`.
const fn is_without_number(rule: &Filter) -> bool {
    matches!(rule.classifier, Classifier::U32(_)) && rule.handle & 0xfff == 0xfff
}
