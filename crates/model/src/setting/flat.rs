//! The format of settings in journals and evidence before 0.1.0: a flat list of knobs instead of families.
//!
//! This format is read but never written. Newer knobs have no variant here.

use serde::Deserialize;

use super::{
    DeviceNapiKnob, EpollParams, HostKnob, IrqKnob, KthreadKnob, NapiKnob, NicKnob, ProcessKnob,
    QueueCoalesceParam, RingNapi, RxQueueKnob, Setting, Threading, TxQueueKnob,
};
use crate::cpu_set::CpuSet;
use crate::ids::{DeviceId, EpollId, IrqNumber, QueueIndex, RingId, RxQueue, ThreadId, TxQueue};
use crate::nic::{ChannelKind, CoalesceParam, FlagName, Offload, PacketSize, RingKind, Sysctl};
use crate::qdisc::Qdiscs;
use crate::reuseport::{ListenerGroup, Spread};
use crate::scheduling::{Scheduling, UtilClamp};
use crate::steering::{FlowMatch, QueueSpan, SteerTo};
use crate::units::{EmptyPolls, Nanoseconds};

/// A setting in either format.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Either {
    Napi(RxQueue, NapiKnob),
    DeviceNapis(DeviceId, DeviceNapiKnob),
    Kthread(RxQueue, KthreadKnob),
    Nic(DeviceId, NicKnob),
    RxQueue(RxQueue, RxQueueKnob),
    TxQueue(TxQueue, TxQueueKnob),
    Irq(IrqNumber, IrqKnob),
    Process(ProcessKnob),
    Host(HostKnob),

    DeferHardIrqs(RxQueue, EmptyPolls),
    GroFlushTimeout(RxQueue, Nanoseconds),
    IrqSuspendTimeout(RxQueue, Nanoseconds),
    Threaded(RxQueue, Threading),
    KthreadAffinity(RxQueue, CpuSet),
    KthreadScheduling(RxQueue, Scheduling),
    KthreadUtilClamp(RxQueue, UtilClamp),
    DeviceDeferHardIrqs(DeviceId, EmptyPolls),
    DeviceGroFlushTimeout(DeviceId, Nanoseconds),
    DeviceThreaded(DeviceId, Threading),
    Epoll(EpollId, EpollParams),
    IoUringNapi(RingId, Option<RingNapi>),
    IrqAffinity(IrqNumber, CpuSet),
    IrqBan(IrqNumber, bool),
    ThreadAffinity(ThreadId, CpuSet),
    Channels(DeviceId, ChannelKind, u32),
    Ring(DeviceId, RingKind, u32),
    Coalescing(DeviceId, CoalesceParam, u32),
    QueueCoalescing(RxQueue, QueueCoalesceParam, u32),
    Offload(DeviceId, Offload, bool),
    PacketSize(DeviceId, PacketSize, u32),
    PrivateFlag(DeviceId, FlagName, bool),
    RssTable(DeviceId, Vec<u32>),
    RssKey(DeviceId, Vec<u8>),
    RssContext(DeviceId, QueueSpan, bool),
    FlowRule(DeviceId, FlowMatch, Option<SteerTo>),
    Qdiscs(DeviceId, Qdiscs),
    RpsCpus(RxQueue, CpuSet),
    RpsFlowCount(RxQueue, u32),
    XpsCpus(TxQueue, CpuSet),
    XpsRxQueues(TxQueue, Vec<QueueIndex>),
    Reuseport(ListenerGroup, Spread),
    Sysctl(Sysctl, u64),
}

impl From<Either> for Setting {
    fn from(either: Either) -> Self {
        use Either as E;
        match either {
            E::Napi(queue, knob) => Self::Napi(queue, knob),
            E::DeviceNapis(device, knob) => Self::DeviceNapis(device, knob),
            E::Kthread(queue, knob) => Self::Kthread(queue, knob),
            E::Nic(device, knob) => Self::Nic(device, knob),
            E::RxQueue(queue, knob) => Self::RxQueue(queue, knob),
            E::TxQueue(queue, knob) => Self::TxQueue(queue, knob),
            E::Irq(irq, knob) => Self::Irq(irq, knob),
            E::Process(knob) => Self::Process(knob),
            E::Host(knob) => Self::Host(knob),
            E::DeferHardIrqs(of, value) => Self::Napi(of, NapiKnob::DeferHardIrqs(value)),
            E::GroFlushTimeout(of, value) => Self::Napi(of, NapiKnob::GroFlushTimeout(value)),
            E::IrqSuspendTimeout(of, value) => Self::Napi(of, NapiKnob::IrqSuspendTimeout(value)),
            E::Threaded(of, value) => Self::Napi(of, NapiKnob::Threaded(value)),
            E::KthreadAffinity(of, value) => Self::Kthread(of, KthreadKnob::Affinity(value)),
            E::KthreadScheduling(of, value) => Self::Kthread(of, KthreadKnob::Scheduling(value)),
            E::KthreadUtilClamp(of, value) => Self::Kthread(of, KthreadKnob::UtilClamp(value)),
            E::DeviceDeferHardIrqs(of, value) => Self::DeviceNapis(of, DeviceNapiKnob::DeferHardIrqs(value)),
            E::DeviceGroFlushTimeout(of, value) => {
                Self::DeviceNapis(of, DeviceNapiKnob::GroFlushTimeout(value))
            }
            E::DeviceThreaded(of, value) => Self::DeviceNapis(of, DeviceNapiKnob::Threaded(value)),
            E::Epoll(of, value) => Self::Process(ProcessKnob::Epoll(of, value)),
            E::IoUringNapi(of, value) => Self::Process(ProcessKnob::IoUring(of, value)),
            E::IrqAffinity(of, value) => Self::Irq(of, IrqKnob::Affinity(value)),
            E::IrqBan(of, value) => Self::Irq(of, IrqKnob::Ban(value)),
            E::ThreadAffinity(of, value) => Self::Process(ProcessKnob::ThreadAffinity(of, value)),
            E::Channels(of, what, value) => Self::Nic(of, NicKnob::Channels(what, value)),
            E::Ring(of, what, value) => Self::Nic(of, NicKnob::Ring(what, value)),
            E::Coalescing(of, what, value) => Self::Nic(of, NicKnob::Coalescing(what, value)),
            E::QueueCoalescing(of, what, value) => Self::RxQueue(of, RxQueueKnob::Coalescing(what, value)),
            E::Offload(of, what, value) => Self::Nic(of, NicKnob::Offload(what, value)),
            E::PacketSize(of, what, value) => Self::Nic(of, NicKnob::PacketSize(what, value)),
            E::PrivateFlag(of, what, value) => Self::Nic(of, NicKnob::PrivateFlag(what, value)),
            E::RssTable(of, value) => Self::Nic(of, NicKnob::RssTable(value)),
            E::RssKey(of, value) => Self::Nic(of, NicKnob::RssKey(value)),
            E::RssContext(of, what, value) => Self::Nic(of, NicKnob::RssContext(what, value)),
            E::FlowRule(of, what, value) => Self::Nic(of, NicKnob::FlowRule(what, value)),
            E::Qdiscs(of, value) => Self::Nic(of, NicKnob::Qdiscs(value)),
            E::RpsCpus(of, value) => Self::RxQueue(of, RxQueueKnob::RpsCpus(value)),
            E::RpsFlowCount(of, value) => Self::RxQueue(of, RxQueueKnob::RpsFlowCount(value)),
            E::XpsCpus(of, value) => Self::TxQueue(of, TxQueueKnob::XpsCpus(value)),
            E::XpsRxQueues(of, value) => Self::TxQueue(of, TxQueueKnob::XpsRxQueues(value)),
            E::Reuseport(of, value) => Self::Process(ProcessKnob::Reuseport(of, value)),
            E::Sysctl(of, value) => Self::Host(HostKnob::Sysctl(of, value)),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_journal_of_before_families_reads_as_the_same_settings() {
        let device = r#"{"netns":1,"ifindex":2,"name":"eth0"}"#;
        let both = [
            (
                format!(r#"{{"gro-flush-timeout":[{{"device":{device},"index":4}},20000]}}"#),
                format!(r#"{{"napi":[{{"device":{device},"index":4}},{{"gro-flush-timeout":20000}}]}}"#),
            ),
            (
                format!(r#"{{"ring":[{device},"rx-ring",512]}}"#),
                format!(r#"{{"nic":[{device},{{"ring":["rx-ring",512]}}]}}"#),
            ),
            (r#"{"irq-affinity":[3,"0-1"]}"#.to_owned(), r#"{"irq":[3,{"affinity":"0-1"}]}"#.to_owned()),
            (
                r#"{"sysctl":["netdev_budget",300]}"#.to_owned(),
                r#"{"host":{"sysctl":["netdev_budget",300]}}"#.to_owned(),
            ),
        ];
        for (before, now) in both {
            let read: Setting =
                serde_json::from_str(&before).unwrap_or_else(|error| panic!("{before}: {error}"));
            assert_eq!(serde_json::to_string(&read).expect("serialises"), now);
            assert_eq!(serde_json::from_str::<Setting>(&now).expect("parses"), read);
        }
        assert!(serde_json::from_str::<Setting>(r#"{"irq-affinity":[3]}"#).is_err());
    }
}
