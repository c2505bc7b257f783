//! A setting is the value of one knob of one object. Changes are data, and undo is computed from them.
//!
//! Settings are grouped into families, one for each kind of object and interface. A family is a closed enum,
//! has one file in each place that handles settings (in this crate, and where settings are read, written, and
//! undone by script), and describes its knobs in one table ([`Facts`]). A match on all settings has one arm
//! per family. Code that reads, writes, orders or undoes knobs has no `_` arm, neither for families nor
//! within a family.

mod call;
mod family;
mod host;
mod irq;
mod kthread;
mod napi;
mod nic;
mod object;
mod params;
mod process;
mod queue;

pub use call::KernelCall;
pub use host::HostKnob;
pub use irq::IrqKnob;
pub use kthread::KthreadKnob;
pub use napi::{DeviceNapiKnob, NapiKnob};
pub use nic::NicKnob;
pub use object::Object;
pub use params::{EpollParams, RingNapi, SocketPolling, Threading};
pub use process::ProcessKnob;
pub use queue::{QueueCoalesceParam, RxQueueKnob, TxQueueKnob};

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::facts::{Absent, Disruption, Facts, Interface, KnobUnit, WritePhase};
use crate::ids::{DeviceId, IrqNumber, RxQueue, TxQueue};
use crate::units::KernelVersion;

/// The value of one knob of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// A setting of the NAPI that polls a receive queue.
    Napi(RxQueue, NapiKnob),
    /// A setting of all NAPIs of a device.
    DeviceNapis(DeviceId, DeviceNapiKnob),
    /// A setting of the kernel thread that polls a queue's NAPI.
    Kthread(RxQueue, KthreadKnob),
    /// A setting of a NIC and its driver.
    Nic(DeviceId, NicKnob),
    /// A setting of a receive queue.
    RxQueue(RxQueue, RxQueueKnob),
    /// A setting of a transmit queue.
    TxQueue(TxQueue, TxQueueKnob),
    /// A setting of an interrupt.
    Irq(IrqNumber, IrqKnob),
    /// A setting of an object that a process owns: an epoll, an io_uring, a thread, listeners.
    Process(ProcessKnob),
    /// A setting of the whole host.
    Host(HostKnob),
}

impl Setting {
    /// Returns the object to which the setting belongs.
    pub fn object(&self) -> Object {
        match self {
            Self::Napi(queue, _) | Self::Kthread(queue, _) | Self::RxQueue(queue, _) => Object::Queue(*queue),
            Self::DeviceNapis(device, _) => Object::Device(*device),
            Self::Nic(device, knob) => knob.object(*device),
            Self::TxQueue(queue, _) => Object::TxQueue(*queue),
            Self::Irq(irq, _) => Object::Irq(*irq),
            Self::Process(knob) => knob.object(),
            Self::Host(_) => Object::Host,
        }
    }

    /// The knob's facts.
    pub fn facts(&self) -> &'static Facts {
        match self {
            Self::Napi(_, knob) => knob.facts(),
            Self::DeviceNapis(_, knob) => knob.facts(),
            Self::Kthread(_, knob) => knob.facts(),
            Self::Nic(_, knob) => knob.facts(),
            Self::RxQueue(_, knob) => knob.facts(),
            Self::TxQueue(_, knob) => knob.facts(),
            Self::Irq(_, knob) => knob.facts(),
            Self::Process(knob) => knob.facts(),
            Self::Host(knob) => knob.facts(),
        }
    }

    /// Returns the facts about every knob, by family.
    pub fn table() -> Vec<&'static Facts> {
        [
            NapiKnob::table(),
            DeviceNapiKnob::table(),
            KthreadKnob::table(),
            NicKnob::table(),
            RxQueueKnob::table(),
            TxQueueKnob::table(),
            IrqKnob::table(),
            ProcessKnob::table(),
            HostKnob::table(),
        ]
        .concat()
    }

    /// Returns the facts about the knob that a policy-file key sets.
    pub fn facts_of_key(key: &str) -> Option<&'static Facts> {
        Self::table().into_iter().find(|facts| facts.key == Some(key))
    }

    /// Returns the knob's name, in the kernel's spelling.
    pub fn knob(&self) -> &'static str {
        self.facts().name
    }

    /// Returns the kernel interface that writes the knob.
    pub fn interface(&self) -> Interface {
        self.facts().interface
    }

    /// Returns how writing the knob disrupts traffic.
    pub fn disruption(&self) -> Disruption {
        self.facts().disruption
    }

    /// Returns the first kernel version that has the knob.
    pub fn since(&self) -> KernelVersion {
        self.facts().since
    }

    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::Napi(_, knob) => knob.value(),
            Self::DeviceNapis(_, knob) => knob.value(),
            Self::Kthread(_, knob) => knob.value(),
            Self::Nic(_, knob) => knob.value(),
            Self::RxQueue(_, knob) => knob.value(),
            Self::TxQueue(_, knob) => knob.value(),
            Self::Irq(_, knob) => knob.value(),
            Self::Process(knob) => knob.value(),
            Self::Host(knob) => knob.value(),
        }
    }

    /// Whether the kernel accepts this value: false for values that can be read but not written, such as an
    /// empty set of CPUs. A change away from such a value cannot be undone.
    pub fn restorable(&self) -> bool {
        match self {
            Self::Napi(_, knob) => knob.restorable(),
            Self::DeviceNapis(_, knob) => knob.restorable(),
            Self::Kthread(_, knob) => knob.restorable(),
            Self::Nic(_, knob) => knob.restorable(),
            Self::RxQueue(_, knob) => knob.restorable(),
            Self::TxQueue(_, knob) => knob.restorable(),
            Self::Irq(_, knob) => knob.restorable(),
            Self::Process(knob) => knob.restorable(),
            Self::Host(knob) => knob.restorable(),
        }
    }

    /// Whether this value means that the knob's object does not exist.
    pub fn removes(&self) -> bool {
        match self {
            Self::Napi(_, knob) => knob.removes(),
            Self::DeviceNapis(_, knob) => knob.removes(),
            Self::Kthread(_, knob) => knob.removes(),
            Self::Nic(_, knob) => knob.removes(),
            Self::RxQueue(_, knob) => knob.removes(),
            Self::TxQueue(_, knob) => knob.removes(),
            Self::Irq(_, knob) => knob.removes(),
            Self::Process(knob) => knob.removes(),
            Self::Host(knob) => knob.removes(),
        }
    }

    /// Returns the value's weight. All values of a knob have the same weight if their order does not matter.
    pub fn weight(&self) -> Weight {
        match self {
            Self::Napi(_, knob) => knob.weight(),
            Self::DeviceNapis(_, knob) => knob.weight(),
            Self::Kthread(_, knob) => knob.weight(),
            Self::Nic(_, knob) => knob.weight(),
            Self::RxQueue(_, knob) => knob.weight(),
            Self::TxQueue(_, knob) => knob.weight(),
            Self::Irq(_, knob) => knob.weight(),
            Self::Process(knob) => knob.weight(),
            Self::Host(knob) => knob.weight(),
        }
    }

    /// Formats the value as the kernel's files and common tools do: `80000` for 80us, a mask for CPUs.
    pub fn for_tools(&self) -> String {
        match self {
            Self::Napi(_, knob) => knob.for_tools(),
            Self::DeviceNapis(_, knob) => knob.for_tools(),
            Self::Kthread(_, knob) => knob.for_tools(),
            Self::Nic(_, knob) => knob.for_tools(),
            Self::RxQueue(_, knob) => knob.for_tools(),
            Self::TxQueue(_, knob) => knob.for_tools(),
            Self::Irq(_, knob) => knob.for_tools(),
            Self::Process(knob) => knob.for_tools(),
            Self::Host(knob) => knob.for_tools(),
        }
    }

    /// Whether both settings are of the same knob of the same object.
    pub fn same_knob(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Identifies the knob and its object, without the value.
    pub fn identity(&self) -> (Interface, &'static str, Object) {
        (self.interface(), self.knob(), self.object())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.object(), self.knob(), self.value())
    }
}

/// The weight of a value: first whether it is on, then how long it lasts, then how much it allows. A step
/// that raises the weight raises the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(pub u8, pub u64, pub u64);

impl Weight {
    /// The weight of values that have no order.
    pub const NONE: Self = Self(0, 0, 0);

    /// Returns the weight of a number of which 0 means "off".
    const fn of(number: u64) -> Self {
        Self((number > 0) as u8, number, 0)
    }
}

fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_knob_says_what_it_means_since_when_and_where_the_kernel_implements_it() {
        for facts in Setting::table() {
            assert!(!facts.name.is_empty(), "{facts:?}");
            let meaning = facts.meaning();
            assert!(meaning.len() > 10 && !meaning.contains('['), "{}: {meaning}", facts.name);
            assert!(facts.source().is_some_and(|source| source.len() > 5), "{}: no source", facts.name);
            if let Some((least, most)) = facts.range {
                assert!(least <= most, "{facts:?}");
            }
        }
    }

    #[test]
    fn the_first_version_of_a_source_in_the_kernel_is_the_one_that_brought_the_knob() {
        let mut compared = 0;
        for facts in Setting::table() {
            let cited = facts.cited().unwrap_or_default();
            let Some(named) = cited.strip_prefix("Kernel: ").and_then(KernelVersion::parse) else { continue };
            // Versions that are older than every kernel on which netpolicy runs count as one version.
            let oldest = crate::since::ALWAYS;
            let came = (named.major, named.minor).max((oldest.major, oldest.minor));
            assert_eq!((facts.since.major, facts.since.minor), came, "{}: {cited}", facts.name);
            compared += 1;
        }
        assert!(compared > 20, "{compared} knobs name a version");
    }

    #[test]
    fn a_knob_is_known_by_its_interface_and_its_name() {
        let mut known = BTreeSet::new();
        for facts in Setting::table() {
            assert!(known.insert((facts.interface, facts.name)), "{} occurs twice in the table", facts.name);
        }
    }

    #[test]
    fn a_key_sets_one_knob() {
        let mut known = BTreeSet::new();
        for facts in Setting::table() {
            assert!(facts.key.is_none_or(|key| known.insert(key)), "{:?} sets two knobs", facts.key);
        }
        assert!(known.len() > 20, "{known:?}");
    }

    #[test]
    fn a_knob_that_falls_is_written_later_or_earlier_and_never_both() {
        let both_ways: Vec<_> = Setting::table()
            .into_iter()
            .filter(|facts| facts.phase != facts.phase_down)
            .map(|f| f.name)
            .collect();
        let kthread = ["kthread cpus_allowed", "kthread policy", "kthread util-clamp", "kthread slice"];
        let rest = ["present", "busy_poll usecs/budget/prefer", "napi busy_poll usecs/prefer"];
        let rest = [&rest[..], &["so_busy_poll usecs/budget/prefer"]].concat();
        assert_eq!(both_ways, [&kthread[..], &rest].concat());
    }

    #[test]
    fn a_knob_that_stops_queues_takes_them_from_their_holders() {
        let exempt = Setting::table()
            .into_iter()
            .filter(|facts| facts.disruption != Disruption::None && !facts.takes_queues);
        // The qdisc is exempt, because AF_XDP does not transmit through qdiscs.
        assert_eq!(exempt.map(|facts| facts.name).collect::<Vec<_>>(), ["qdisc"]);
    }
}
