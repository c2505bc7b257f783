//! What a host shall be set to: each knob with its value and the reason.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use model::{CpuSet, Host, HostKnob, IrqKnob, IrqNumber, Object, Reason, Setting, Sysctl};

use crate::in_force;
use crate::index::Index;
use crate::refusal::{Refusal, RefusalKind};

/// A knob with the value it shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The knob and its value.
    pub setting: Setting,
    /// Why, and by which rule.
    pub because: Reason,
}

/// All that a placement wants of a host. Each knob is in it once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The knobs, by part and within it queues, epolls, io_urings, affinity.
    pub wanted: Vec<Wanted>,
    /// Whether this is only the first stage: it recreates queues, and their settings can be planned when they are
    /// there. Observing and planning once more gives the rest.
    pub first_stage: bool,
    /// What could not be wanted here although it was asked for, and what is wanted instead.
    pub notes: Vec<String>,
    /// What recipes would set and is not wanted, because it stops a queue or takes the link down, and no policy file
    /// allowed that.
    pub proposed: Vec<Wanted>,
    /// Of what recipes name, what the host does not have.
    pub left_out: Vec<String>,
    /// The longest that a CPU may take to wake, in microseconds, for as long as a process holds that: no file keeps it.
    pub wake_latency: Option<(u32, Reason)>,
}

/// A knob as it is and as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The value in force; `None` where it could not be read.
    pub in_force: Option<Setting>,
    /// The value it shall have.
    pub wanted: Setting,
    /// Why, and by which rule.
    pub because: Reason,
}

impl Desired {
    /// Each knob with the value in force, in the order of [`Desired::wanted`].
    pub fn explain(&self, host: &Host) -> Vec<Explained> {
        let index = Index::new(host);
        let explain = |wanted: &Wanted| Explained {
            in_force: in_force::value(&wanted.setting, &index).ok(),
            wanted: wanted.setting.clone(),
            because: wanted.because.clone(),
        };
        self.wanted.iter().map(explain).collect()
    }
}

/// What was wanted so far, by knob.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) desired: Desired,
    by_knob: BTreeMap<(Object, &'static str), usize>,
}

impl Collected {
    /// The CPUs that are wanted for an interrupt.
    pub(crate) fn wanted_of_irq(&self, irq: IrqNumber) -> Option<&CpuSet> {
        let like = Setting::Irq(irq, IrqKnob::Affinity(CpuSet::new()));
        match &self.desired.wanted[*self.by_knob.get(&(like.object(), like.knob()))?].setting {
            Setting::Irq(_, IrqKnob::Affinity(cpus)) => Some(cpus),
            _ => None,
        }
    }

    /// The interrupts whose CPUs are wanted, with the source of each request.
    pub(crate) fn wanted_irqs(&self) -> Vec<(IrqNumber, String)> {
        let irqs = self.desired.wanted.iter().filter_map(|wanted| match &wanted.setting {
            Setting::Irq(number, IrqKnob::Affinity(_)) => Some((*number, wanted.because.source.clone())),
            _ => None,
        });
        irqs.collect()
    }

    /// A number of the host as it will be; `None` where it is not wanted and cannot be read.
    pub(crate) fn sysctl(&self, sysctl: Sysctl, host: &Host) -> Option<u64> {
        let like = HostKnob::Sysctl(sysctl, 0);
        let wanted = self.by_knob.get(&(Object::Host, like.facts().name));
        match wanted.map(|&at| &self.desired.wanted[at].setting) {
            Some(&Setting::Host(HostKnob::Sysctl(_, value))) => Some(value),
            _ => host.sysctls.get(&sysctl).copied(),
        }
    }

    /// Notes what the operator should know.
    pub(crate) fn note(&mut self, note: String) {
        self.desired.notes.push(note);
    }

    /// Wants a recipe's value, if no request wants another one of that knob: an expert's word or another request's goes
    /// first.
    pub(crate) fn want_unless_wanted(&mut self, setting: Setting, because: Reason) {
        let knob = (setting.object(), setting.knob());
        if let Entry::Vacant(free) = self.by_knob.entry(knob) {
            free.insert(self.desired.wanted.len());
            self.desired.wanted.push(Wanted { setting, because });
        }
    }

    /// Wants a value.
    ///
    /// # Errors
    /// [`RefusalKind::Conflict`] if another one of that knob is wanted already.
    pub(crate) fn want(&mut self, setting: Setting, because: Reason) -> Result<(), Refusal> {
        let knob = (setting.object(), setting.knob());
        let Some(&earlier) = self.by_knob.get(&knob) else {
            self.by_knob.insert(knob, self.desired.wanted.len());
            self.desired.wanted.push(Wanted { setting, because });
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
