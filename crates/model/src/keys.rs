//! Policy-file keys of knobs whose key cannot be derived from the knob's name. The table of knobs has the
//! meaning and range of each key ([`Setting::facts_of_key`](crate::Setting::facts_of_key)).

/// Sets [`NapiKnob::DeferHardIrqs`](crate::NapiKnob::DeferHardIrqs).
pub const DEFER_HARD_IRQS: &str = "defer_hard_irqs";
/// Sets [`NapiKnob::GroFlushTimeout`](crate::NapiKnob::GroFlushTimeout).
pub const GRO_FLUSH_TIMEOUT: &str = "gro_flush_timeout";
/// Sets [`NapiKnob::IrqSuspendTimeout`](crate::NapiKnob::IrqSuspendTimeout).
pub const IRQ_SUSPEND_TIMEOUT: &str = "irq_suspend_timeout";
/// Sets [`NicKnob::PrivateFlag`](crate::NicKnob::PrivateFlag).
pub const PRIVATE_FLAGS: &str = "settings.private-flags";
/// Sets [`NicKnob::RssTable`](crate::NicKnob::RssTable).
pub const RSS_QUEUES: &str = "settings.rss-queues";
/// Sets [`NicKnob::RssContext`](crate::NicKnob::RssContext).
pub const RSS_CONTEXTS: &str = "settings.rss-contexts";
/// Sets [`NicKnob::FlowRule`](crate::NicKnob::FlowRule).
pub const FLOW_RULES: &str = "settings.ntuple";
/// Sets [`NicKnob::Qdiscs`](crate::NicKnob::Qdiscs).
pub const QDISC: &str = "settings.qdisc";
/// Sets [`RxQueueKnob::RpsCpus`](crate::RxQueueKnob::RpsCpus).
pub const RPS_CPUS: &str = "settings.rps_cpus";
/// Sets [`RxQueueKnob::RpsFlowCount`](crate::RxQueueKnob::RpsFlowCount).
pub const RPS_FLOW_COUNT: &str = "settings.rps_flow_cnt";
/// Sets [`TxQueueKnob::XpsCpus`](crate::TxQueueKnob::XpsCpus).
pub const XPS: &str = "settings.xps";

/// The keys that override a value of the requested delivery mode.
pub const OF_DELIVERY: [&str; 3] = [DEFER_HARD_IRQS, GRO_FLUSH_TIMEOUT, IRQ_SUSPEND_TIMEOUT];
