//! Groups settings into kernel calls. A call has the settings of one object and one interface.

use super::{
    DeviceNapiKnob, HostKnob, IrqKnob, KthreadKnob, NapiKnob, NicKnob, ProcessKnob, RxQueueKnob, Setting,
    TxQueueKnob,
};
use crate::ids::{DeviceId, IrqNumber, RxQueue, TxQueue};

/// The settings of one object that share an [`super::Interface`], in their original order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelCall<'a> {
    /// Settings of one NAPI.
    Napi(RxQueue, Vec<&'a NapiKnob>),
    /// Settings of all NAPIs of a device.
    DeviceNapis(DeviceId, Vec<&'a DeviceNapiKnob>),
    /// Settings of one kernel thread.
    Kthread(RxQueue, Vec<&'a KthreadKnob>),
    /// Settings of one NIC.
    Nic(DeviceId, Vec<&'a NicKnob>),
    /// Settings of one receive queue.
    RxQueue(RxQueue, Vec<&'a RxQueueKnob>),
    /// Settings of one transmit queue.
    TxQueue(TxQueue, Vec<&'a TxQueueKnob>),
    /// Settings of one interrupt.
    Irq(IrqNumber, Vec<&'a IrqKnob>),
    /// Settings of one object that a process owns.
    Process(Vec<&'a ProcessKnob>),
    /// Settings of the host.
    Host(Vec<&'a HostKnob>),
}

impl<'a> KernelCall<'a> {
    /// Groups settings into calls; returns each call with the settings that it writes.
    pub fn of(settings: &'a [Setting]) -> Vec<(&'a [Setting], Self)> {
        let mut calls: Vec<(usize, Self)> = Vec::new();
        for (at, setting) in settings.iter().enumerate() {
            let last = calls.last_mut().filter(|_| same(&settings[at - 1], setting));
            if !last.is_some_and(|(_, call)| call.take(setting)) {
                calls.push((at, Self::begin(setting)));
            }
        }
        let ends = calls.iter().skip(1).map(|(begin, _)| *begin).chain([settings.len()]).collect::<Vec<_>>();
        calls.into_iter().zip(ends).map(|((begin, call), end)| (&settings[begin..end], call)).collect()
    }

    fn begin(setting: &'a Setting) -> Self {
        match setting {
            Setting::Napi(queue, knob) => Self::Napi(*queue, vec![knob]),
            Setting::DeviceNapis(device, knob) => Self::DeviceNapis(*device, vec![knob]),
            Setting::Kthread(queue, knob) => Self::Kthread(*queue, vec![knob]),
            Setting::Nic(device, knob) => Self::Nic(*device, vec![knob]),
            Setting::RxQueue(queue, knob) => Self::RxQueue(*queue, vec![knob]),
            Setting::TxQueue(queue, knob) => Self::TxQueue(*queue, vec![knob]),
            Setting::Irq(irq, knob) => Self::Irq(*irq, vec![knob]),
            Setting::Process(knob) => Self::Process(vec![knob]),
            Setting::Host(knob) => Self::Host(vec![knob]),
        }
    }

    /// Adds a setting of the same family; returns false if the setting belongs to another family.
    fn take(&mut self, setting: &'a Setting) -> bool {
        match (self, setting) {
            (Self::Napi(_, knobs), Setting::Napi(_, knob)) => knobs.push(knob),
            (Self::DeviceNapis(_, knobs), Setting::DeviceNapis(_, knob)) => knobs.push(knob),
            (Self::Kthread(_, knobs), Setting::Kthread(_, knob)) => knobs.push(knob),
            (Self::Nic(_, knobs), Setting::Nic(_, knob)) => knobs.push(knob),
            (Self::RxQueue(_, knobs), Setting::RxQueue(_, knob)) => knobs.push(knob),
            (Self::TxQueue(_, knobs), Setting::TxQueue(_, knob)) => knobs.push(knob),
            (Self::Irq(_, knobs), Setting::Irq(_, knob)) => knobs.push(knob),
            (Self::Process(knobs), Setting::Process(knob)) => knobs.push(knob),
            (Self::Host(knobs), Setting::Host(knob)) => knobs.push(knob),
            (
                Self::Napi(..)
                | Self::DeviceNapis(..)
                | Self::Kthread(..)
                | Self::Nic(..)
                | Self::RxQueue(..)
                | Self::TxQueue(..)
                | Self::Irq(..)
                | Self::Process(_)
                | Self::Host(_),
                _,
            ) => return false,
        }
        true
    }
}

/// Whether one call writes both settings.
fn same(a: &Setting, b: &Setting) -> bool {
    a.interface() == b.interface() && a.object() == b.object()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::ids::{IfIndex, Label, NetnsId, QueueIndex};
    use crate::nic::RingKind;
    use crate::units::{EmptyPolls, Nanoseconds};

    #[test]
    fn settings_of_one_object_and_interface_are_one_call() {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let queue = RxQueue { device, index: QueueIndex(4) };
        let defer = NapiKnob::DeferHardIrqs(EmptyPolls(100));
        let flush = NapiKnob::GroFlushTimeout(Nanoseconds(20_000));
        let ring = NicKnob::Ring(RingKind::Rx, 512);
        let settings = [
            Setting::Napi(queue, defer.clone()),
            Setting::Napi(queue, flush.clone()),
            Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(0)),
            Setting::Nic(device, ring.clone()),
            Setting::Napi(queue, flush.clone()),
        ];
        let calls = KernelCall::of(&settings);
        assert_eq!(calls.iter().map(|(of, _)| of.len()).collect::<Vec<_>>(), [2, 1, 1, 1]);
        assert_eq!(calls[0].1, KernelCall::Napi(queue, vec![&defer, &flush]));
        assert_eq!(calls[2].1, KernelCall::Nic(device, vec![&ring]));
        assert!(KernelCall::of(&[]).is_empty());
    }
}
