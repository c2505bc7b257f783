//! Options of a load that change its rules: per-CPU counters, shared action instances and cookies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use linux::Netns;
use session::Fault;
use tc_rules::kernel::instances;
use tc_rules::{Action, Command, Marker, NoPercpu, Sharing, Verb, percpu};

use crate::args::{Percpu, TcLoad};

/// Returns the kind of counters that the command line requests.
pub(super) const fn percpu(wanted: Option<Percpu>) -> NoPercpu {
    match wanted {
        None => NoPercpu::AsWritten,
        Some(Percpu::Auto) => NoPercpu::Auto,
        Some(Percpu::Always) => NoPercpu::Always,
        Some(Percpu::Never) => NoPercpu::Never,
    }
}

/// The options that apply to every rule of a load.
#[derive(Debug)]
pub(super) struct RuleOptions<'n> {
    netns: &'n Netns,
    percpu: NoPercpu,
    /// Whether rules get cookies.
    cookies: bool,
    /// The shared actions, used by all encoding threads.
    sharing: Option<Mutex<Shares>>,
}

/// The action instances that the rules of a load share.
#[derive(Debug)]
struct Shares {
    sharing: Sharing,
    /// The kinds of actions whose instances were dumped.
    looked_at: BTreeSet<&'static str>,
}

impl<'n> RuleOptions<'n> {
    /// Creates the options that the command line requests.
    pub(super) fn of(arguments: &TcLoad, netns: &'n Netns) -> Self {
        let percpu = percpu(arguments.no_percpu);
        let shares = || Mutex::new(Shares { sharing: Sharing::from(0), looked_at: BTreeSet::new() });
        let sharing = arguments.share_actions.then(shares);
        Self { netns, percpu, cookies: arguments.cookies, sharing }
    }

    /// How many different actions are shared.
    pub(super) fn shared_actions(&self) -> usize {
        self.sharing
            .as_ref()
            .map_or(0, |shares| shares.lock().unwrap_or_else(PoisonError::into_inner).sharing.len())
    }
}

/// Applies the options to the rules of one thread.
#[derive(Debug)]
pub(super) struct Fitter<'w> {
    options: &'w RuleOptions<'w>,
    /// The actions of the previous rule, before and after sharing: the next rule usually has the same
    /// actions.
    plain: Vec<Action>,
    shared: Vec<Action>,
    marker: Marker,
    notes: LoadNotes,
}

/// Notes of a load on its rules, in addition to their results.
#[derive(Debug, Default)]
pub(super) struct LoadNotes {
    /// By kind, the number of actions that request one counter for all CPUs although their kind ignores the
    /// flag.
    pub(super) ignored_flags: BTreeMap<&'static str, u64>,
    /// The number of rules with a cookie.
    pub(super) cookies: u64,
    /// The number of police actions whose burst is too large for the kernel's field, and is sent as the
    /// maximum.
    pub(super) bursts_cut: u64,
}

impl LoadNotes {
    /// Adds the counts of more rules.
    pub(super) fn append(&mut self, more: Self) {
        for (kind, count) in more.ignored_flags {
            *self.ignored_flags.entry(kind).or_default() += count;
        }
        self.cookies += more.cookies;
        self.bursts_cut += more.bursts_cut;
    }
}

impl<'w> Fitter<'w> {
    /// Applies these options.
    pub(super) fn new(options: &'w RuleOptions<'w>) -> Self {
        let (marker, notes) = (Marker::default(), LoadNotes::default());
        Self { options, plain: Vec::new(), shared: Vec::new(), marker, notes }
    }

    /// Sets the counters, instances and cookie of a rule according to the options.
    pub(super) fn fit(&mut self, command: &mut Command) -> Result<(), Fault> {
        self.notes.bursts_cut += command.bursts_cut();
        let Command::Filter(rule) = command else { return Ok(()) };
        if self.options.percpu.apply(rule) > 0 {
            let ignored_flags = |action: &&Action| action.no_percpu && !percpu::obeys(&action.kind);
            for action in rule.actions.iter().filter(ignored_flags) {
                *self.notes.ignored_flags.entry(action.kind.name()).or_default() += 1;
            }
        }
        if self.options.cookies && rule.verb != Verb::Delete {
            self.notes.cookies += u64::from(self.marker.mark(rule));
        }
        let Some(shares) = self.options.sharing.as_ref().filter(|_| !rule.actions.is_empty()) else {
            return Ok(());
        };
        if rule.actions == self.plain {
            rule.actions.clone_from(&self.shared);
            return Ok(());
        }
        self.plain.clone_from(&rule.actions);
        let mut shares = shares.lock().unwrap_or_else(PoisonError::into_inner);
        for action in &rule.actions {
            let kind = action.kind.name();
            if shares.looked_at.insert(kind) {
                let free = instances::first_free(self.options.netns, [kind])?;
                shares.sharing.not_below(free);
            }
        }
        shares.sharing.apply(rule);
        self.shared.clone_from(&rule.actions);
        Ok(())
    }

    /// Returns the notes on the rules of this thread.
    pub(super) fn notes(self) -> LoadNotes {
        self.notes
    }
}
