//! `tc dump`: prints the kernel's rules of one hook, a device, a block or the whole namespace as a batch
//! file.

use std::collections::BTreeSet;

use linux::Netns;
use model::IfIndex;
use session::{Exit, Fault, count};
use tc_rules::command::Qdisc;
use tc_rules::kernel::{Devices, dump};
use tc_rules::{Classifier, Filter, Hook, Lookup, command, number};

use crate::args::TcDump;
use crate::report::DumpReport;
use cli::Context;

/// The parent that denotes the root of a device (the root has no rules), and the bits of a parent that
/// identify the qdisc.
const ROOT: u32 = u32::MAX;
const MAJOR: u32 = 0xffff_0000;

/// Prints all requested rules; the exit code is 1 if a rule cannot be expressed as a batch line.
pub(crate) fn run(arguments: &TcDump, context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    let mut devices = Devices::of(&netns);
    let asked = Asked::of(arguments, &netns, &mut devices)?;
    if let Some(words) = asked.nothing {
        context.console.say(&words);
    }
    let mut lines = Lines::default();
    let mut several = dump::Several::of(&netns);
    for hook in &asked.hooks {
        lines.add(*hook, &netns, &mut several, &mut devices)?;
    }
    let lost = lines.lost;
    let mut report = DumpReport { left_out: lines.left_out, ..DumpReport::default() };
    if arguments.qdisc {
        report.lines.extend(asked.qdiscs.iter().map(|qdisc| qdisc.words(&mut devices)));
    }
    // Print chains and tables first: a rule may link to any of them, whatever its position.
    for part in [lines.chains, lines.tables, lines.rules] {
        report.lines.extend(part);
    }
    context.console.report(&report)?;
    if !lines.unmade.is_empty() && arguments.qdisc {
        let names: Vec<String> = lines.unmade.into_iter().collect();
        context
            .console
            .say(&format!("Create the queueing disciplines of these rules first: {}.", names.join(", ")));
    }
    if report.left_out > 0 {
        let rules = count(report.left_out, "rule");
        let lost = match lost {
            0 => String::new(),
            lost => format!(" ({lost} of them redirect to a device that no longer exists)"),
        };
        context.console.say(&format!("Skipped, because no batch syntax exists for them: {rules}{lost}."));
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// The request.
struct Asked {
    /// The hooks to dump: each once, even if devices share a block.
    hooks: Vec<Hook>,
    /// The clsact and ingress qdiscs of the requested device, block or namespace.
    qdiscs: Vec<Qdisc>,
    /// The reason why the requested place has no rules.
    nothing: Option<String>,
}

impl Asked {
    fn of(arguments: &TcDump, netns: &Netns, devices: &mut Devices<'_>) -> Result<Self, Fault> {
        let mut qdiscs = dump::qdiscs(netns)?;
        qdiscs.sort_by_key(|qdisc| qdisc.device);
        if let Some(block) = arguments.block {
            qdiscs.retain(|qdisc| [qdisc.ingress_block, qdisc.egress_block].contains(&Some(block)));
            let nothing = qdiscs.is_empty().then(|| format!("No clsact or ingress qdisc has block {block}."));
            return Ok(Self { hooks: vec![Hook { block, ..Hook::default() }], qdiscs, nothing });
        }
        let Some(name) = &arguments.dev else {
            let others = dump::other_parents(netns, None)?;
            return Ok(Self { hooks: hooks(&qdiscs, others), qdiscs, nothing: None });
        };
        let device = devices.device(name);
        let device =
            device.ok_or_else(|| Fault::new(Exit::Usage, format!("device `{name}` does not exist")))?;
        qdiscs.retain(|qdisc| qdisc.device == device);
        let nothing = || format!("{name} has neither clsact nor ingress, so it has no rules there.");
        let nothing = qdiscs.is_empty().then(nothing);
        let Some(parent) = &arguments.parent else {
            let others = dump::other_parents(netns, Some(device))?;
            let hooks = hooks(&qdiscs, others);
            return Ok(Self { nothing: nothing.filter(|_| hooks.is_empty()), hooks, qdiscs });
        };
        let parent = match parent.as_str() {
            "ingress" => command::INGRESS,
            "egress" => command::EGRESS,
            class => number::class(class).filter(|class| *class != ROOT).ok_or_else(|| {
                Fault::new(Exit::Usage, format!("`{class}` is not a hook: write ingress, egress or 1:10"))
            })?,
        };
        let of_hook = parent == command::INGRESS || parent == command::EGRESS;
        if !of_hook && !dump::has_qdisc(netns, device, parent)? {
            let words = format!("{name} has no queueing discipline {}", number::class_name(parent & MAJOR));
            return Err(Fault::failed(words));
        }
        let hook = qdiscs.first().map_or(Hook { device, block: 0, parent }, |qdisc| hook(qdisc, parent));
        Ok(Self { hooks: vec![hook], qdiscs, nothing: nothing.filter(|_| of_hook) })
    }
}

/// Returns the hooks of these qdiscs and of the other qdiscs that share a block with them. Hooks that share a
/// block count as one.
fn hooks(qdiscs: &[Qdisc], others: Vec<Hook>) -> Vec<Hook> {
    let mut hooks = Vec::new();
    for qdisc in qdiscs {
        let parents =
            if qdisc.clsact { &[command::INGRESS, command::EGRESS][..] } else { &[command::INGRESS] };
        hooks.extend(parents.iter().map(|parent| hook(qdisc, *parent)));
    }
    hooks.extend(others);
    let mut seen = BTreeSet::new();
    hooks.retain(|hook| seen.insert(*hook));
    hooks
}

/// Returns the hook at which a parent's rules are: the device's or, if it shares a block, the block's.
fn hook(qdisc: &Qdisc, parent: u32) -> Hook {
    let block = match parent {
        command::INGRESS => qdisc.ingress_block,
        command::EGRESS => qdisc.egress_block,
        _ => None,
    };
    match block {
        Some(block) => Hook { device: IfIndex(0), block, parent: 0 },
        None => Hook { device: qdisc.device, block: 0, parent },
    }
}

/// The lines of a dump.
#[derive(Default)]
struct Lines {
    /// Lines for chains that have a template, or no rules yet. Other chains are created by their rules.
    chains: Vec<String>,
    /// Lines that create the hash tables of u32.
    tables: Vec<String>,
    rules: Vec<String>,
    /// The number of rules and chains skipped because no batch syntax exists for them.
    left_out: usize,
    /// How many of the skipped rules redirect to a removed device.
    lost: usize,
    /// Qdiscs that have rules, but that netpolicy's batch lines cannot create.
    unmade: BTreeSet<String>,
}

impl Lines {
    /// Adds all rules, tables and chains of a hook.
    fn add(
        &mut self,
        hook: Hook,
        netns: &Netns,
        several: &mut dump::Several<'_>,
        devices: &mut Devices<'_>,
    ) -> Result<(), Fault> {
        let (mut found, mut used) = (Self::default(), BTreeSet::new());
        let dumped = several.rules(hook, |dumped| {
            let rule = match dumped {
                dump::Dumped::Begin => {
                    (found, used) = (Self::default(), BTreeSet::new());
                    return;
                }
                dump::Dumped::Rule(rule) => rule,
                dump::Dumped::Unknown => {
                    found.left_out += 1;
                    return;
                }
            };
            used.insert(rule.chain.unwrap_or(0));
            // The kernel gives this handle to every rule for which the bucket has no number left: the handle
            // identifies none of them, so omit it.
            let words = if is_without_number(rule) {
                Filter { handle: 0, ..rule.clone() }.line(devices)
            } else {
                rule.line(devices)
            };
            match words {
                Some(words) if is_table(rule) => found.tables.push(words),
                Some(words) => found.rules.push(words),
                None => {
                    found.left_out += 1;
                    found.lost += usize::from(rule.has_lost_device());
                }
            }
        });
        match dumped {
            // The qdisc or class accepts no rules, or no longer exists.
            Err(error) if error.is_absent() => return Ok(()),
            dumped => dumped?,
        }
        for chain in dump::whole_chains(netns, hook)? {
            match chain {
                Some(chain) => {
                    let made = matches!(chain.classifier, Classifier::None);
                    if !made || !used.contains(&chain.chain.unwrap_or(0)) {
                        let words = chain.line(devices);
                        found.left_out += usize::from(words.is_none());
                        found.chains.extend(words);
                    }
                }
                None => found.left_out += 1,
            }
        }
        if hook.block == 0 && hook.parent & MAJOR != command::INGRESS & MAJOR && !found.rules.is_empty() {
            let name = devices.name_of(hook.device).unwrap_or_else(|| format!("if{}", hook.device.0));
            found.unmade.insert(format!("{} of {name}", number::class_name(hook.parent & MAJOR)));
        }
        self.chains.append(&mut found.chains);
        self.tables.append(&mut found.tables);
        self.rules.append(&mut found.rules);
        self.unmade.append(&mut found.unmade);
        self.left_out += found.left_out;
        self.lost += found.lost;
        Ok(())
    }
}

/// Whether a u32 rule has the last number of a bucket, which the kernel uses again when no other is left.
/// Kernel: 6.18, `net/sched/cls_u32.c` `gen_new_kid()`.
const fn is_without_number(rule: &Filter) -> bool {
    matches!(rule.classifier, Classifier::U32(_)) && rule.handle & 0xfff == 0xfff
}

/// Whether the rule is a hash table of u32.
fn is_table(rule: &Filter) -> bool {
    matches!(&rule.classifier, Classifier::U32(table) if table.creates_table())
}
