//! An atomic replacement: rules are loaded into an unused chain, and then one rule is switched over to it.
//! That rule is managed by netpolicy: in chain 0, with a priority named by the operator, it matches every
//! packet and goes to the chain. The kernel inserts the new rule before it removes the old one. Kernel: 6.18,
//! `net/sched/cls_flower.c` `fl_change()`. matchall cannot be replaced with other actions.

use std::collections::{BTreeMap, BTreeSet};

use linux::Netns;
use model::IfIndex;
use session::{Exit, Fault};
use tc_rules::action::Control;
use tc_rules::kernel::{Devices, Loader, Options, Refused, dump, undo};
use tc_rules::{Batch, Command, Filter, Group, Hook, Table, Verb};

use super::file::BatchFile;
use super::place::UnremovedRules;
use super::survey::Survey;

/// The chains into which rules are put, by hook. At other hooks, rules stay in the chains that the file
/// names.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(BTreeMap<Hook, u32>);

impl Places {
    /// Returns the chains that are in force at the hooks of the file's rules.
    pub(super) fn in_force(
        netns: &Netns,
        priority: u16,
        file: &BatchFile,
        devices: &mut Devices<'_>,
    ) -> Result<Self, Fault> {
        let mut hooks = BTreeSet::new();
        file.each(
            devices,
            |_, command, _| {
                hooks.extend(command.rule().map(|rule| rule.hook));
                Ok(true)
            },
            |_| Ok(()),
        )?;
        let mut places = BTreeMap::new();
        for hook in hooks {
            let chain = Swap::in_force(netns, hook, priority)?.ok_or_else(|| {
                Fault::new(
                    Exit::Refused,
                    format!("no rule of priority {priority} leads to a chain: no rules were loaded with --swap {priority}"),
                )
            })?;
            places.insert(hook, chain);
        }
        Ok(Self(places))
    }

    /// Puts a rule into the chain for its hook, if there is one.
    pub(super) fn put(&self, command: &mut Command) {
        if let Command::Filter(rule) = command
            && let Some(chain) = self.0.get(&rule.hook)
        {
            rule.chain = Some(*chain);
        }
    }
}

/// A load into unused chains.
#[derive(Debug)]
pub(super) struct Swap {
    priority: u16,
    turns: Vec<HookLoad>,
}

/// The part of the load for one hook.
#[derive(Debug)]
struct HookLoad {
    hook: Hook,
    /// The chain that is in force before the switch, if any.
    old: Option<u32>,
    new: u32,
}

impl Swap {
    /// Finds unused chains.
    pub(super) fn prepare(
        netns: &Netns,
        priority: u16,
        file: &BatchFile,
        survey: &Survey,
    ) -> Result<Self, Fault> {
        let refused = |words: String| Fault::new(Exit::Refused, words);
        if let Some(line) = survey.irreversible {
            return Err(refused(format!(
                "{}:{line}: --swap only supports `filter add`, but this line is another command",
                file.name()
            )));
        }
        if let Some(group) = survey.groups.iter().find(|group| group.chain != 0) {
            return Err(refused(format!(
                "{} has rules in chain {}, but --swap chooses the chain",
                file.name(),
                group.chain
            )));
        }
        let mut turns = Vec::new();
        for hook in survey.hooks() {
            let look = Look::at(netns, hook, priority)?;
            if look.unmanaged {
                return Err(refused(format!(
                    "priority {priority} has rules that --swap did not create: choose a free priority; no rule was sent"
                )));
            }
            let highest = look.used.last().copied().unwrap_or(0);
            if highest == Control::CHAIN_MAX {
                return Err(refused("the chain with the highest number is in use".to_owned()));
            }
            turns.push(HookLoad { hook, old: look.leads_to, new: highest + 1 });
        }
        Ok(Self { priority, turns })
    }

    /// Returns the chain to which the rule of a priority leads.
    pub(super) fn in_force(netns: &Netns, hook: Hook, priority: u16) -> Result<Option<u32>, Fault> {
        Ok(Look::at(netns, hook, priority)?.leads_to)
    }

    /// The target chains.
    pub(super) fn places(&self) -> Places {
        Places(self.turns.iter().map(|turn| (turn.hook, turn.new)).collect())
    }

    pub(super) fn chains(&self) -> Vec<u32> {
        self.turns.iter().map(|turn| turn.new).collect()
    }

    /// Returns the new chains, each with the priority of the rule that leads to it.
    pub(super) fn groups(&self) -> Vec<Group> {
        let group = |turn: &HookLoad| Group { hook: turn.hook, chain: turn.new, priority: self.priority };
        self.turns.iter().map(group).collect()
    }

    /// Switches one hook after the other. If the kernel refuses one, switches the previous ones back and
    /// returns the refusal.
    pub(super) fn switch(&self, netns: &Netns) -> Result<Option<Refused>, Fault> {
        for (done, turn) in self.turns.iter().enumerate() {
            let Some(refused) = send(netns, leading(turn.hook, self.priority, turn.new))? else { continue };
            for turn in &self.turns[..done] {
                let back = match turn.old {
                    Some(old) => leading(turn.hook, self.priority, old),
                    None => Filter {
                        verb: Verb::Delete,
                        hook: turn.hook,
                        priority: self.priority,
                        ..Filter::default()
                    },
                };
                send(netns, back)?;
            }
            return Ok(Some(refused));
        }
        Ok(None)
    }

    /// Removes the previous chains. Returns what could not be removed.
    pub(super) fn remove_old(&self, netns: &Netns) -> Result<Vec<UnremovedRules>, Fault> {
        let old = |turn: &HookLoad| turn.old.map(|chain| Group { hook: turn.hook, chain, priority: 0 });
        let groups: Vec<Group> = self.turns.iter().filter_map(old).collect();
        let (stuck, mut devices) = (undo::groups(netns, &groups)?, Devices::of(netns));
        Ok(stuck
            .into_iter()
            .map(|(group, cause)| UnremovedRules::group(&group, cause, &mut devices))
            .collect())
    }
}

/// The contents of a hook.
#[derive(Debug, Default)]
struct Look {
    /// The chains that have rules, or that a rule goes to.
    used: BTreeSet<u32>,
    leads_to: Option<u32>,
    /// Whether the priority has rules that netpolicy does not manage.
    unmanaged: bool,
}

impl Look {
    fn at(netns: &Netns, hook: Hook, priority: u16) -> Result<Self, Fault> {
        let chains = dump::chains(netns, hook)?;
        let ours = Group { hook, chain: 0, priority };
        let mut look = Self::default();
        let dumped = dump::rules(netns, hook, |dumped| match dumped {
            dump::Dumped::Begin => look = Self::default(),
            dump::Dumped::Rule(rule) => {
                let goals =
                    || rule.actions.iter().filter_map(|action| action.kind.instance().control.chain());
                look.used.extend(goals());
                if rule.group() == ours {
                    match goals()
                        .next()
                        .filter(|chain| rule.canonical() == leading(hook, priority, *chain).canonical())
                    {
                        Some(chain) => look.leads_to = Some(chain),
                        None => look.unmanaged = true,
                    }
                }
            }
            dump::Dumped::Unknown => {}
        });
        look.used.extend(chains);
        match dumped {
            Err(error) if !error.is_absent() => Err(error.into()),
            _ => Ok(look),
        }
    }
}

/// Creates the rule that leads to a chain.
fn leading(hook: Hook, priority: u16, chain: u32) -> Filter {
    let line = format!(
        "filter replace dev d protocol all prio {priority} handle 1 flower action goto chain {chain}"
    );
    let mut table = Table::of([("d".to_owned(), IfIndex(1))]);
    match Batch::new(line.as_bytes()).next_command(&mut table) {
        Ok(Some((_, Command::Filter(rule)))) => Filter { hook, ..rule.clone() },
        read => panic!("a line of netpolicy's own is parsed: {read:?}"),
    }
}

/// Sends one rule; returns the refusal, if any.
fn send(netns: &Netns, rule: Filter) -> Result<Option<Refused>, Fault> {
    let mut loader = Loader::open(netns, Options::default())?;
    loader.push(1, &Command::Filter(rule))?;
    Ok(loader.finish()?.refused.into_iter().next())
}
