//! Keys of policy files that set a knob, where the knob's own word does not say it. Each stands in the table of knobs, which
//! has its meaning and its bounds ([`Facts::of_key`](super::Facts::of_key)).

/// Sets [`NapiKnob::DeferHardIrqs`](super::NapiKnob::DeferHardIrqs).
pub const DEFER_HARD_IRQS: &str = "defer_hard_irqs";
/// Sets [`NapiKnob::GroFlushTimeout`](super::NapiKnob::GroFlushTimeout).
pub const GRO_FLUSH_TIMEOUT: &str = "gro_flush_timeout";
/// Sets [`NapiKnob::IrqSuspendTimeout`](super::NapiKnob::IrqSuspendTimeout).
pub const IRQ_SUSPEND_TIMEOUT: &str = "irq_suspend_timeout";
/// Sets [`KthreadKnob::Affinity`](super::KthreadKnob::Affinity).
pub const KTHREAD_CPUS: &str = "kthread.cpus";
/// Sets [`KthreadKnob::Scheduling`](super::KthreadKnob::Scheduling).
pub const KTHREAD_CLASS: &str = "kthread.class";
/// Sets [`KthreadKnob::UtilClamp`](super::KthreadKnob::UtilClamp).
pub const KTHREAD_UTIL_CLAMP: &str = "kthread.util-clamp";
/// Sets [`KthreadKnob::Slice`](super::KthreadKnob::Slice).
pub const KTHREAD_SLICE: &str = "kthread.slice";
/// Sets [`NicKnob::PrivateFlag`](super::NicKnob::PrivateFlag).
pub const PRIVATE_FLAGS: &str = "settings.private-flags";
/// Sets [`NicKnob::RssTable`](super::NicKnob::RssTable).
pub const RSS_QUEUES: &str = "settings.rss-queues";
/// Sets [`NicKnob::RssContext`](super::NicKnob::RssContext).
pub const RSS_CONTEXTS: &str = "settings.rss-contexts";
/// Sets [`NicKnob::FlowRule`](super::NicKnob::FlowRule).
pub const FLOW_RULES: &str = "settings.ntuple";
/// Sets [`NicKnob::Qdiscs`](super::NicKnob::Qdiscs).
pub const QDISC: &str = "settings.qdisc";
/// Sets [`RxQueueKnob::RpsCpus`](super::RxQueueKnob::RpsCpus).
pub const RPS_CPUS: &str = "settings.rps_cpus";
/// Sets [`RxQueueKnob::RpsFlowCount`](super::RxQueueKnob::RpsFlowCount).
pub const RPS_FLOW_COUNT: &str = "settings.rps_flow_cnt";
/// Sets [`TxQueueKnob::XpsCpus`](super::TxQueueKnob::XpsCpus).
pub const XPS: &str = "settings.xps";

/// Those that give one request another value than its delivery mode has.
pub const OF_DELIVERY: [&str; 3] = [DEFER_HARD_IRQS, GRO_FLUSH_TIMEOUT, IRQ_SUSPEND_TIMEOUT];
