//! What is known about a setting before it is written: whether it can be put back, what it does to traffic, and which
//! kernels have it.

use super::{Disruption, Setting};
use crate::nic::{Offload, PacketSize};
use crate::qdisc::Qdiscs;
use crate::reuseport::Spread;
use crate::steering::SteerTo;
use crate::units::KernelVersion;

impl Setting {
    /// Whether the kernel takes this value when it is written: false for values that can be read but not
    /// written, such as an empty set of CPUs. A change away from such a value cannot be undone.
    ///
    /// Kernel: 6.18, `kernel/irq/proc.c` `write_irq_affinity()`, `kernel/sched/syscalls.c` `sched_setaffinity()`:
    /// EINVAL without a CPU that is online.
    pub fn restorable(&self) -> bool {
        match self {
            Self::IrqAffinity(_, cpus) | Self::ThreadAffinity(_, cpus) | Self::KthreadAffinity(_, cpus) => {
                !cpus.is_empty()
            }
            // An empty table would mean "the driver's own" (`ETHTOOL_SRSSH`), which is not what was read.
            Self::RssTable(_, table) => !table.is_empty(),
            Self::RssKey(_, key) => !key.is_empty(),
            // Made anew, it would have another id and another key.
            Self::RssContext(_, _, there) => !*there,
            Self::FlowRule(_, _, to) => *to != Some(SteerTo::Other),
            Self::Reuseport(_, spread) => *spread != Spread::Foreign,
            Self::Qdiscs(_, qdiscs) => !matches!(qdiscs, Qdiscs::Other(_)),
            Self::DeferHardIrqs(..)
            | Self::GroFlushTimeout(..)
            | Self::IrqSuspendTimeout(..)
            | Self::Threaded(..)
            | Self::KthreadScheduling(..)
            | Self::KthreadUtilClamp(..)
            | Self::DeviceDeferHardIrqs(..)
            | Self::DeviceGroFlushTimeout(..)
            | Self::DeviceThreaded(..)
            | Self::Epoll(..)
            | Self::IoUringNapi(..)
            | Self::IrqBan(..)
            | Self::Channels(..)
            | Self::Ring(..)
            | Self::Coalescing(..)
            | Self::QueueCoalescing(..)
            | Self::Offload(..)
            | Self::PacketSize(..)
            | Self::PrivateFlag(..)
            | Self::RpsCpus(..)
            | Self::RpsFlowCount(..)
            | Self::XpsCpus(..)
            | Self::XpsRxQueues(..)
            | Self::Sysctl(..) => true,
        }
    }

    /// What writing it does to traffic.
    pub fn disruption(&self) -> Disruption {
        match self {
            Self::DeferHardIrqs(..)
            | Self::GroFlushTimeout(..)
            | Self::IrqSuspendTimeout(..)
            | Self::Threaded(..)
            | Self::KthreadAffinity(..)
            | Self::KthreadScheduling(..)
            | Self::KthreadUtilClamp(..)
            | Self::DeviceDeferHardIrqs(..)
            | Self::DeviceGroFlushTimeout(..)
            | Self::DeviceThreaded(..)
            | Self::Epoll(..)
            | Self::IoUringNapi(..)
            | Self::IrqAffinity(..)
            | Self::IrqBan(..)
            | Self::ThreadAffinity(..)
            | Self::Coalescing(..)
            | Self::QueueCoalescing(..)
            | Self::PacketSize(..)
            | Self::RssTable(..)
            | Self::RssKey(..)
            | Self::RssContext(..)
            | Self::FlowRule(..)
            | Self::RpsCpus(..)
            | Self::RpsFlowCount(..)
            | Self::XpsCpus(..)
            | Self::XpsRxQueues(..)
            | Self::Reuseport(..)
            | Self::Sysctl(..) => Disruption::None,
            // The device is taken off its disciplines for it, and what waits in them is dropped (dev_deactivate()).
            Self::Qdiscs(..) => Disruption::QueueReset,
            Self::Offload(_, offload, _) => match offload {
                // Drivers make their receive rings anew for these (`ndo_set_features`).
                Offload::Lro | Offload::GroHw => Disruption::QueueReset,
                Offload::Gro
                | Offload::GroList
                | Offload::GroUdpForwarding
                | Offload::Gso
                | Offload::Tso
                | Offload::Tso6
                | Offload::TsoEcn
                | Offload::TsoMangleId
                | Offload::Ntuple
                | Offload::RxHash
                | Offload::TcOffload => Disruption::None,
            },
            // Many drivers close and open the device for these (igb_reinit_queues(), ixgbe_set_ringparam()); what a
            // private flag does is known to its driver alone.
            Self::Channels(..) | Self::Ring(..) | Self::PrivateFlag(..) => Disruption::LinkDown,
        }
    }

    /// The first kernel that has the knob.
    pub fn since(&self) -> KernelVersion {
        match self {
            Self::DeferHardIrqs(..) | Self::GroFlushTimeout(..) | Self::IrqSuspendTimeout(..) => {
                KernelVersion::since(6, 13)
            }
            Self::Threaded(..) => KernelVersion::since(6, 17),
            Self::DeviceDeferHardIrqs(..) => KernelVersion::since(5, 8),
            Self::DeviceGroFlushTimeout(..) => KernelVersion::since(3, 19),
            Self::DeviceThreaded(..) => KernelVersion::since(5, 12),
            Self::Epoll(..) | Self::IoUringNapi(..) => KernelVersion::since(6, 9),
            Self::IrqAffinity(..)
            | Self::IrqBan(..)
            | Self::ThreadAffinity(..)
            | Self::RpsCpus(..)
            | Self::RpsFlowCount(..)
            | Self::XpsCpus(..)
            | Self::Sysctl(..) => KernelVersion::since(2, 6),
            Self::KthreadAffinity(..) | Self::KthreadScheduling(..) | Self::KthreadUtilClamp(..) => {
                KernelVersion::since(5, 12)
            }
            Self::Reuseport(..) => KernelVersion::since(6, 2),
            Self::XpsRxQueues(..) => KernelVersion::since(4, 19),
            Self::RssTable(..) => KernelVersion::since(3, 0),
            Self::RssKey(..) => KernelVersion::since(3, 16),
            Self::RssContext(..) => KernelVersion::since(4, 16),
            Self::FlowRule(..) | Self::Qdiscs(..) => KernelVersion::since(2, 6),
            Self::QueueCoalescing(..) => KernelVersion::since(4, 6),
            Self::PacketSize(_, PacketSize::Gso, _) => KernelVersion::since(4, 16),
            Self::PacketSize(_, PacketSize::Gro, _) => KernelVersion::since(5, 17),
            Self::PacketSize(_, PacketSize::GsoIpv4 | PacketSize::GroIpv4, _) => KernelVersion::since(6, 3),
            Self::Channels(..)
            | Self::Ring(..)
            | Self::Coalescing(..)
            | Self::Offload(..)
            | Self::PrivateFlag(..) => KernelVersion::since(5, 6),
        }
    }
}
