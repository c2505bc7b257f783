//! How settings read.

use std::fmt;

use super::Setting;

impl Setting {
    /// The knob's name, in the kernel's spelling.
    pub fn knob(&self) -> &'static str {
        match self {
            Self::DeferHardIrqs(..) => "defer-hard-irqs",
            Self::GroFlushTimeout(..) => "gro-flush-timeout",
            Self::IrqSuspendTimeout(..) => "irq-suspend-timeout",
            Self::Threaded(..) | Self::DeviceThreaded(..) => "threaded",
            Self::DeviceDeferHardIrqs(..) => "napi_defer_hard_irqs",
            Self::DeviceGroFlushTimeout(..) => "gro_flush_timeout",
            Self::Epoll(..) => "busy_poll usecs/budget/prefer",
            Self::IoUringNapi(..) => "napi busy_poll usecs/prefer",
            Self::IrqAffinity(..) => "smp_affinity",
            Self::IrqBan(..) => "irqbalance-ban",
            Self::ThreadAffinity(..) => "cpus_allowed",
            Self::KthreadAffinity(..) => "kthread cpus_allowed",
            Self::KthreadScheduling(..) => "kthread policy",
            Self::KthreadUtilClamp(..) => "kthread util-clamp",
            Self::Channels(_, kind, _) => kind.as_str(),
            Self::Ring(_, kind, _) => kind.as_str(),
            Self::Coalescing(_, param, _) | Self::QueueCoalescing(_, param, _) => param.as_str(),
            Self::Offload(_, offload, _) => offload.as_str(),
            Self::PacketSize(_, size, _) => size.as_str(),
            Self::PrivateFlag(..) => "set",
            Self::RssTable(..) => "rss-table",
            Self::RssKey(..) => "rss-key",
            Self::RssContext(..) => "there",
            Self::FlowRule(..) => "to",
            Self::Qdiscs(..) => "qdisc",
            Self::RpsCpus(..) => "rps_cpus",
            Self::RpsFlowCount(..) => "rps_flow_cnt",
            Self::XpsCpus(..) => "xps_cpus",
            Self::XpsRxQueues(..) => "xps_rxqs",
            Self::Reuseport(..) => "reuseport",
            Self::Sysctl(sysctl, _) => sysctl.as_str(),
        }
    }

    /// The value, as people write it.
    pub fn value(&self) -> String {
        match self {
            Self::DeferHardIrqs(_, polls) | Self::DeviceDeferHardIrqs(_, polls) => polls.to_string(),
            Self::GroFlushTimeout(_, span)
            | Self::IrqSuspendTimeout(_, span)
            | Self::DeviceGroFlushTimeout(_, span) => span.to_string(),
            Self::Threaded(_, threading) | Self::DeviceThreaded(_, threading) => threading.to_string(),
            Self::Epoll(_, params) => params.to_string(),
            Self::IoUringNapi(_, Some(napi)) => napi.to_string(),
            Self::IoUringNapi(_, None) => "off".to_owned(),
            Self::IrqAffinity(_, cpus) | Self::ThreadAffinity(_, cpus) | Self::KthreadAffinity(_, cpus) => {
                cpus.to_string()
            }
            Self::KthreadScheduling(_, scheduling) => scheduling.to_string(),
            Self::KthreadUtilClamp(_, clamp) => clamp.to_string(),
            Self::RpsCpus(_, cpus) | Self::XpsCpus(_, cpus) if cpus.is_empty() => "none".to_owned(),
            Self::RpsCpus(_, cpus) | Self::XpsCpus(_, cpus) => cpus.to_string(),
            Self::Coalescing(_, param, value) | Self::QueueCoalescing(_, param, value) => {
                if param.is_switch() { on_off(*value != 0) } else { value.to_string() }
            }
            Self::Channels(_, _, count)
            | Self::Ring(_, _, count)
            | Self::PacketSize(_, _, count)
            | Self::RpsFlowCount(_, count) => count.to_string(),
            Self::Offload(_, _, on) | Self::PrivateFlag(_, _, on) | Self::IrqBan(_, on) => on_off(*on),
            Self::RssTable(_, table) => runs(table),
            Self::RssKey(_, key) => {
                let bytes: Vec<String> = key.iter().map(|byte| format!("{byte:02x}")).collect();
                bytes.join(":")
            }
            Self::RssContext(_, _, there) => if *there { "yes" } else { "no" }.to_owned(),
            Self::FlowRule(_, _, Some(to)) => to.to_string(),
            Self::FlowRule(_, _, None) => "none".to_owned(),
            Self::Qdiscs(_, qdiscs) => qdiscs.to_string(),
            Self::XpsRxQueues(_, queues) if queues.is_empty() => "none".to_owned(),
            Self::XpsRxQueues(_, queues) => {
                let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
                queues.join(",")
            }
            Self::Reuseport(_, spread) => spread.to_string(),
            Self::Sysctl(_, value) => value.to_string(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.object(), self.knob(), self.value())
    }
}

fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// A table of queues as people can read it: `0x64 1x64` for 64 entries of queue 0 and then 64 of queue 1; tables that
/// change their queue often are cut.
fn runs(table: &[u32]) -> String {
    /// How many runs are written out.
    const RUNS_MAX: usize = 16;
    let mut runs: Vec<(u32, usize)> = Vec::new();
    for &queue in table {
        match runs.last_mut() {
            Some((last, length)) if *last == queue => *length += 1,
            _ => runs.push((queue, 1)),
        }
    }
    let mut text: Vec<String> =
        runs.iter().take(RUNS_MAX).map(|(queue, length)| format!("{queue}x{length}")).collect();
    if runs.len() > RUNS_MAX {
        text.push(format!("… ({} entries)", table.len()));
    }
    text.join(" ")
}
