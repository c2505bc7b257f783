//! Merges several [`PolicyFile`]s into one [`Policy`]. A later file replaces earlier ones key by key.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use model::live::PartOfSecond;
use model::policy::Match;
use model::{
    DeviceSelector, EmptyPolls, Glob, Intent, OnMissed, Policy, PolicyName, Recipes, Searches, Target,
};

use crate::key::SectionKind;
use crate::mistake::{Mistake, Mistakes};
use crate::parse::{KeyValue, PolicyFile, Section};
use crate::value::Value;

/// The merged files. Every value has its origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The sections, in the order of their first appearance.
    pub sections: Vec<MergedSection>,
    /// The recipes. Policy files contain none, so the caller must read the recipe files and set this field.
    pub recipes: Arc<Recipes>,
}

/// A section, merged from any number of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedSection {
    /// The section's kind.
    pub kind: SectionKind,
    /// The section's name; empty for `[daemon]`.
    pub name: String,
    /// The values with their origins: `file:line`.
    pub asks: Vec<(Value, String)>,
}

/// Merges files. Later files take precedence. Also checks for mistakes that no single file shows.
///
/// A section with a `policy` also discards the values that earlier files set to adjust their policies:
/// `delivery`, the three timeouts and `kthread`. All other values are replaced key by key.
///
/// # Errors
/// If sections request nothing, services match nothing, or values contradict each other.
pub fn merge(files: &[PolicyFile]) -> Result<Merged, Mistakes> {
    let mut merging: Vec<Merging<'_>> = Vec::new();
    let mut known: BTreeMap<(SectionKind, &str), usize> = BTreeMap::new();
    for file in files {
        for section in &file.sections {
            let index = *known.entry((section.kind, &section.name)).or_insert_with(|| {
                merging.push(Merging {
                    kind: section.kind,
                    name: &section.name,
                    at: Vec::new(),
                    asks: Vec::new(),
                });
                merging.len() - 1
            });
            merging[index].add(file, section);
        }
    }
    let mistakes: Vec<Mistake> = merging.iter().flat_map(Merging::mistakes).collect();
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes));
    }
    let sections = merging.iter().map(Merging::finished).collect();
    Ok(Merged { sections, recipes: Arc::default() })
}

impl Merged {
    /// Returns the requests, one for each section that is about traffic.
    pub fn policy(&self) -> Policy {
        let of_traffic = self.sections.iter().filter(|section| section.kind != SectionKind::Daemon);
        let intents = of_traffic.map(MergedSection::intent).collect();
        Policy { intents, recipes: Arc::clone(&self.recipes), disruptive: false, inferred: false }
    }

    /// Returns how much of each second the daemon measures for each service with a goal.
    pub fn sample(&self) -> PartOfSecond {
        let asks = self.sections.iter().flat_map(|section| &section.asks);
        let mut given = asks.filter_map(|(value, _)| match value {
            Value::Sample(part) => Some(*part),
            _ => None,
        });
        given.next_back().unwrap_or(PartOfSecond::OF_DAEMON)
    }

    /// Returns the maximum number of tries per day for each service that misses its goal.
    pub fn searches(&self) -> u32 {
        let asks = self.sections.iter().flat_map(|section| &section.asks);
        let mut given = asks.filter_map(|(value, _)| match value {
            Value::Searches(tries) => Some(*tries),
            _ => None,
        });
        given.next_back().unwrap_or(Searches::A_DAY)
    }
}

impl MergedSection {
    fn intent(&self) -> Intent {
        let mut intent = Intent::new(Target::Device(self.name.clone()), PolicyName::None, String::new());
        let (mut matches, mut selector) = (Match::default(), DeviceSelector::default());
        for (value, origin) in &self.asks {
            match value.clone() {
                Value::Policy(policy) => intent.policy = policy,
                Value::Delivery(mode) => intent.delivery = Some(mode),
                Value::DeferHardIrqs(polls) => intent.overrides.defer_hard_irqs = Some(polls),
                Value::GroFlushTimeout(span) => intent.overrides.gro_flush_timeout = Some(span),
                Value::IrqSuspendTimeout(span) => intent.overrides.irq_suspend_timeout = Some(span),
                Value::Cpus(cpus) => intent.cpus = Some(cpus),
                Value::GoalP50(span) => intent.goal.p50 = Some(span),
                Value::GoalP99(span) => intent.goal.p99 = Some(span),
                Value::GoalFor(span) => intent.goal.missed_for = Some(span),
                Value::GoalOnMissed(what) => intent.goal.on_missed = what,
                Value::Guard(guarded, growth) => {
                    intent.guard.get_or_insert_default().limits.set(guarded, growth);
                }
                Value::GuardWithin(within) => intent.guard.get_or_insert_default().within = within,
                Value::Holdback(share) => intent.holdback = Some(share),
                Value::OnReversed(what) => intent.on_reversed = what,
                Value::PollingCpus(cpus) => intent.budget.polling_cpus = Some(cpus),
                Value::AddedDelay(span) => intent.budget.added_delay = Some(span),
                Value::RtPriority(priority) => intent.budget.rt_priority = Some(priority),
                Value::Kthread(value) => intent.kthread.set(value),
                Value::MatchUnit(unit) => matches.unit = Some(unit),
                Value::MatchCgroup(cgroup) => matches.cgroup = Some(cgroup),
                Value::MatchExe(exe) => matches.exe = Some(exe),
                Value::MatchPod(pod) => matches.pod = Some(pod),
                Value::MatchContainer(container) => matches.container = Some(container),
                Value::MatchDevice(condition) => selector.meets.push(condition),
                Value::MatchNotDevice(condition) => selector.not.push(condition),
                Value::MatchPort(port) => matches.port = u16::try_from(port).ok(),
                Value::MatchUid(uid) => matches.uid = Some(uid),
                Value::Layout(layout) => intent.layout = Some(layout),
                Value::Queues(queues) => intent.queues = Some(queues),
                Value::Nic(request) => intent.nic.push(request),
                // Only the daemon's section may have these values, which are no part of a request.
                Value::Sample(_) | Value::Searches(_) => {}
            }
            let decides = matches!(value, Value::Policy(_) | Value::Delivery(_));
            if intent.origin.is_empty() || decides {
                intent.origin.clone_from(origin);
            }
        }
        let name = self.name.clone();
        match self.kind {
            // This section is not about traffic: see [`Merged::policy`].
            SectionKind::Daemon => {}
            SectionKind::Service => intent.target = Target::Service(name, matches),
            SectionKind::Device if selector != DeviceSelector::default() => {
                intent.target = Target::Devices(name, selector);
            }
            SectionKind::Device => {
                if let Ok(glob) = self.name.parse::<Glob>()
                    && Glob::is_pattern(&self.name)
                {
                    intent.target = Target::Devices(name, DeviceSelector::by_name(glob));
                }
            }
        }
        intent
    }
}

/// A section during merging.
struct Merging<'a> {
    kind: SectionKind,
    name: &'a str,
    /// The places in files that name the section.
    at: Vec<SectionSpan<'a>>,
    asks: Vec<(&'a KeyValue, &'a PolicyFile)>,
}

type SectionSpan<'a> = (&'a PolicyFile, Range<usize>);

impl<'a> Merging<'a> {
    fn add(&mut self, file: &'a PolicyFile, section: &'a Section) {
        self.at.push((file, section.at.clone()));
        if section.asks.iter().any(|asked| matches!(asked.value, Value::Policy(_))) {
            self.asks.retain(|(asked, _)| !details_a_policy(&asked.value));
        }
        for asked in &section.asks {
            self.asks.retain(|(earlier, _)| earlier.value.path() != asked.value.path());
            self.asks.push((asked, file));
        }
    }

    fn finished(&self) -> MergedSection {
        let asks = self.asks.iter().map(|(asked, file)| (asked.value.clone(), origin(file, asked.at.start)));
        MergedSection { kind: self.kind, name: self.name.to_owned(), asks: asks.collect() }
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        let mut wrong = |at: SectionSpan<'_>, message: String, help: &str| {
            let help = (!help.is_empty()).then(|| help.to_owned());
            mistakes.push(at.0.lines.mistake(&at.0.name, &at.0.text, at.1, message, help));
        };
        let named = self.at[0].clone();
        let find = |is: fn(&Value) -> bool| self.asks.iter().find(|(asked, _)| is(&asked.value));
        if self.kind == SectionKind::Daemon {
            return mistakes;
        }
        if find(|value| matches!(value, Value::Policy(_) | Value::Delivery(_))).is_none() {
            let message = format!("{} {} requests nothing", self.kind.word(), self.name);
            wrong(named.clone(), message, "give it a `policy` or a `delivery`");
        }
        let selected = |value: &Value| matches!(value, Value::MatchDevice(_) | Value::MatchNotDevice(_));
        if self.kind == SectionKind::Device && find(selected).is_some() {
            if Glob::is_pattern(self.name) {
                let message = format!("device {} has both a pattern as its name and a `match`", self.name);
                wrong(named.clone(), message, "write the pattern as match.name, and any word as the name");
            } else if find(|value| matches!(value, Value::MatchDevice(_))).is_none() {
                let message = format!("device {} only excludes devices", self.name);
                wrong(
                    named.clone(),
                    message,
                    "give its `match` a condition in addition to `not`, as in name = \"*\"",
                );
            }
        }
        if self.kind == SectionKind::Service {
            if find(|value| value.path().starts_with("match.")).is_none() {
                let message = format!("service {}: `match` selects no process", self.name);
                wrong(named, message, "give it a `match`, as in match = { unit = \"memcached.service\" }");
            }
            if let Some((asked, file)) = find(|value| *value == Value::Policy(PolicyName::Mix)) {
                let message = "`mix` is for devices that several policies share".to_owned();
                wrong((file, asked.at.clone()), message, "give the service one of them");
            }
            if find(|value| matches!(value, Value::Guard(..))).is_none()
                && let Some((asked, file)) = find(|value| matches!(value, Value::GuardWithin(_)))
            {
                let message = "`guard` has a duration but no limit".to_owned();
                wrong((file, asked.at.clone()), message, "give it a limit, as in guard = { p99 = \"+15%\" }");
            }
            if let Some((at, message, help)) = self.goal_that_contradicts() {
                wrong(at, message, help);
            }
        }
        if let Some((at, message)) = self.contradiction() {
            wrong(at, message, "");
        }
        mistakes
    }

    /// Finds options about a missed goal without a goal or without anything to search, and a reaction to a
    /// proof without a `holdback`.
    fn goal_that_contradicts(&self) -> Option<(SectionSpan<'a>, String, &'static str)> {
        let find = |is: fn(&Value) -> bool| self.asks.iter().find(|(asked, _)| is(&asked.value));
        let place = |(asked, file): &(&'a KeyValue, &'a PolicyFile)| (*file, asked.at.clone());
        if let Some(reaction) = find(|value| matches!(value, Value::OnReversed(_)))
            && find(|value| matches!(value, Value::Holdback(_))).is_none()
        {
            let message = "`on_reversed` without a `holdback` has nothing to react to".to_owned();
            return Some((place(reaction), message, "add a share of the time, as in holdback = \"1%\""));
        }
        let searches = find(|value| *value == Value::GoalOnMissed(OnMissed::Search));
        if find(|value| matches!(value, Value::GoalP50(_) | Value::GoalP99(_))).is_none() {
            let said = find(|value| matches!(value, Value::GoalFor(_) | Value::GoalOnMissed(_)))?;
            let message = "`goal` has a reaction but no bound".to_owned();
            return Some((place(said), message, "give it a bound, as in goal = { p99 = \"500us\" }"));
        }
        let searches = searches?;
        if let Some(named) = find(|value| matches!(value, Value::Delivery(_))) {
            let message =
                "`delivery` names a mode, but `on_missed = \"search\"` looks for another".to_owned();
            return Some((place(named), message, "remove one of them"));
        }
        let is_none = find(|value| *value == Value::Policy(PolicyName::None)).is_some();
        is_none.then(|| {
            let message = "`none` keeps the kernel's default delivery: there is nothing to search".to_owned();
            (place(searches), message, "give the service another policy, as in policy = \"latency\"")
        })
    }

    /// Finds timeouts that contradict each other on any host.
    fn contradiction(&self) -> Option<(SectionSpan<'a>, String)> {
        let (mut defer, mut flush, mut suspend) = (None, None, None);
        for (asked, _) in &self.asks {
            if let Value::Delivery(mode) = asked.value {
                let params = mode.params();
                defer = Some(params.defer_hard_irqs);
                flush = Some(params.gro_flush_timeout);
                suspend = Some(params.irq_suspend_timeout);
            }
        }
        let mut last = None;
        for (asked, file) in &self.asks {
            match asked.value {
                Value::DeferHardIrqs(polls) => defer = Some(EmptyPolls(polls)),
                Value::GroFlushTimeout(span) => flush = Some(span),
                Value::IrqSuspendTimeout(span) => suspend = Some(span),
                _ => continue,
            }
            last = Some((*file, asked.at.clone()));
        }
        let (at, suspend) = (last?, suspend.filter(|span| !span.is_zero())?);
        let message = if defer == Some(EmptyPolls(0)) {
            "IRQs are not suspended while `defer_hard_irqs` is 0".to_owned()
        } else if flush.is_some_and(|span| span.is_zero()) {
            "IRQs are not suspended while `gro_flush_timeout` is 0".to_owned()
        } else if let Some(flush) = flush.filter(|flush| *flush >= suspend) {
            format!("`irq_suspend_timeout` ({suspend}) must be longer than `gro_flush_timeout` ({flush})")
        } else {
            return None;
        };
        Some((at, message))
    }
}

/// Returns whether a key adjusts its section's policy.
fn details_a_policy(value: &Value) -> bool {
    matches!(
        value,
        Value::Delivery(_)
            | Value::DeferHardIrqs(_)
            | Value::GroFlushTimeout(_)
            | Value::IrqSuspendTimeout(_)
            | Value::Kthread(_)
    )
}

fn origin(file: &PolicyFile, at: usize) -> String {
    format!("{}:{}", file.name, file.lines.number(at))
}

impl MergedSection {
    /// Returns the section's header in a policy file, without brackets: `device.eth0`.
    pub fn header(&self) -> String {
        if self.kind == SectionKind::Daemon {
            return self.kind.word().to_owned();
        }
        format!("{}.{}", self.kind.word(), crate::spelling::key(&self.name))
    }
}
