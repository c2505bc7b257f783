//! The desired settings of a host: each knob with its value and its reason.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use model::{CpuSet, Host, HostKnob, IrqKnob, IrqNumber, Object, Reason, Setting, Sysctl};

use crate::in_force;
use crate::index::Index;
use crate::refusal::{Refusal, RefusalKind};

/// A knob with its desired value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredSetting {
    /// The knob and its value.
    pub setting: Setting,
    /// The reason and its rule.
    pub because: Reason,
}

/// The desired settings of a placement. Each knob occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The knobs, in the order of parts; within a part, in this order: queues, epolls, io_urings, affinity.
    pub wanted: Vec<DesiredSetting>,
    /// Whether this is only the first stage, which recreates queues. The settings of the new queues can be
    /// planned only once the queues exist: observe and plan again for the second stage.
    pub first_stage: bool,
    /// Notes on requests that cannot be met on this host, with the values that are set instead.
    pub notes: Vec<String>,
    /// Settings of recipes that are only proposed, because they would stop a queue or take down the link,
    /// which no policy file allows.
    pub proposed: Vec<DesiredSetting>,
    /// Mechanisms of recipes that the host lacks.
    pub left_out: Vec<String>,
    /// The limit on the CPUs' wake-up latency, in microseconds, with its reason. The limit is in force only
    /// while a process holds it.
    pub wake_latency: Option<(u32, Reason)>,
}

/// A knob with its current and desired value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The value in force; `None` if it could not be read.
    pub in_force: Option<Setting>,
    /// The desired value.
    pub wanted: Setting,
    /// The reason and its rule.
    pub because: Reason,
}

impl Desired {
    /// Lists each knob with the value in force, in the order of [`Desired::wanted`].
    pub fn explain(&self, host: &Host) -> Vec<Explained> {
        let index = Index::new(host);
        let explain = |wanted: &DesiredSetting| Explained {
            in_force: in_force::value(&wanted.setting, &index).ok(),
            wanted: wanted.setting.clone(),
            because: wanted.because.clone(),
        };
        self.wanted.iter().map(explain).collect()
    }
}

/// The settings collected so far, by knob.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) desired: Desired,
    by_knob: BTreeMap<(Object, &'static str), usize>,
}

impl Collected {
    /// Returns the desired CPUs of an interrupt.
    pub(crate) fn wanted_of_irq(&self, irq: IrqNumber) -> Option<&CpuSet> {
        let like = Setting::Irq(irq, IrqKnob::Affinity(CpuSet::new()));
        match &self.desired.wanted[*self.by_knob.get(&(like.object(), like.knob()))?].setting {
            Setting::Irq(_, IrqKnob::Affinity(cpus)) => Some(cpus),
            _ => None,
        }
    }

    /// Returns the interrupts with desired CPUs, each with the origin of its request.
    pub(crate) fn wanted_irqs(&self) -> Vec<(IrqNumber, String)> {
        let irqs = self.desired.wanted.iter().filter_map(|wanted| match &wanted.setting {
            Setting::Irq(number, IrqKnob::Affinity(_)) => Some((*number, wanted.because.source.clone())),
            _ => None,
        });
        irqs.collect()
    }

    /// Returns the future value of a sysctl; `None` if no request sets it and it cannot be read.
    pub(crate) fn sysctl(&self, sysctl: Sysctl, host: &Host) -> Option<u64> {
        let like = HostKnob::Sysctl(sysctl, 0);
        let wanted = self.by_knob.get(&(Object::Host, like.facts().name));
        match wanted.map(|&at| &self.desired.wanted[at].setting) {
            Some(&Setting::Host(HostKnob::Sysctl(_, value))) => Some(value),
            _ => host.sysctls.get(&sysctl).copied(),
        }
    }

    /// Adds a note for the operator.
    pub(crate) fn note(&mut self, note: String) {
        self.desired.notes.push(note);
    }

    /// Adds a recipe's value, unless the knob already has a value: explicit values and other requests take
    /// precedence.
    pub(crate) fn want_unless_wanted(&mut self, setting: Setting, because: Reason) {
        let knob = (setting.object(), setting.knob());
        if let Entry::Vacant(free) = self.by_knob.entry(knob) {
            free.insert(self.desired.wanted.len());
            self.desired.wanted.push(DesiredSetting { setting, because });
        }
    }

    /// Adds a value.
    ///
    /// # Errors
    /// [`RefusalKind::Conflict`] if the knob already has a different value.
    pub(crate) fn want(&mut self, setting: Setting, because: Reason) -> Result<(), Refusal> {
        let knob = (setting.object(), setting.knob());
        let Some(&earlier) = self.by_knob.get(&knob) else {
            self.by_knob.insert(knob, self.desired.wanted.len());
            self.desired.wanted.push(DesiredSetting { setting, because });
            return Ok(());
        };
        let earlier = &self.desired.wanted[earlier];
        if earlier.setting == setting {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalKind::Conflict,
            setting.object(),
            format!(
                "two requests want different values of {}: {} and {}",
                setting.knob(),
                earlier.setting.value(),
                setting.value()
            ),
        )
        .because(earlier.because.to_string())
        .because(because.to_string())
        .nearest("the same value in both requests"))
    }
}
