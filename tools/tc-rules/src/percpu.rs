//! Action counters: one per CPU, or one for all CPUs.
//!
//! The flag `TCA_ACT_FLAGS_NO_PERCPU_STATS` (Linux 5.5) gives an action no per-CPU counters. That saves
//! memory and time at creation, and costs a shared cache line when packets match.

use crate::action::Kind;

use crate::command::Filter;

/// When actions get one counter for all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoPercpu {
    /// Honours the file's flags, and adds the flag if packets are expected to match rarely.
    Auto,
    /// Always.
    Always,
    /// Never, even if the file requests it.
    Never,
    /// Only if the file requests it: the message is exactly the one of tc.
    #[default]
    AsWritten,
}

/// The kinds of actions, whether they honour the flag, and the place in the kernel source.
///
/// Kernel: 6.18. `tcf_idr_create_from_flags()` (`net/sched/act_api.c`) passes the flag on; `tcf_idr_create()`
/// takes it from its caller. A dump shows `no_percpu` even for kinds that ignore it: it shows what was
/// requested.
pub const KINDS: &[(&str, bool, &str)] = &[
    ("gact", true, "net/sched/act_gact.c tcf_gact_init()"),
    ("mirred", true, "net/sched/act_mirred.c tcf_mirred_init()"),
    ("tunnel_key", true, "net/sched/act_tunnel_key.c tunnel_key_init(); its dst_cache stays per CPU"),
    ("csum", true, "net/sched/act_csum.c tcf_csum_init()"),
    ("ct", true, "net/sched/act_ct.c tcf_ct_init()"),
    ("ctinfo", true, "net/sched/act_ctinfo.c tcf_ctinfo_init()"),
    ("connmark", true, "net/sched/act_connmark.c tcf_connmark_init()"),
    ("gate", true, "net/sched/act_gate.c tcf_gate_init()"),
    ("nat", true, "net/sched/act_nat.c tcf_nat_init()"),
    ("pedit", true, "net/sched/act_pedit.c tcf_pedit_init()"),
    ("vlan", true, "net/sched/act_vlan.c tcf_vlan_init()"),
    ("bpf", false, "net/sched/act_bpf.c tcf_bpf_init()"),
    ("ife", false, "net/sched/act_ife.c tcf_ife_init()"),
    ("mpls", false, "net/sched/act_mpls.c tcf_mpls_init()"),
    ("police", false, "net/sched/act_police.c tcf_police_init()"),
    ("sample", false, "net/sched/act_sample.c tcf_sample_init()"),
    ("skbedit", false, "net/sched/act_skbedit.c tcf_skbedit_init()"),
    ("skbmod", false, "net/sched/act_skbmod.c tcf_skbmod_init()"),
];

/// Whether actions of a kind honour the flag.
pub fn obeys(kind: &Kind) -> bool {
    KINDS.iter().any(|(name, obeys, _)| *name == kind.name() && *obeys)
}

impl NoPercpu {
    /// Sets the flag of a rule's actions. Returns how many have the flag but ignore it.
    ///
    /// Packets are expected to match rarely if the rule is only in hardware, or if it matches few packets: it
    /// requires a specific address, port or tunnel id.
    pub fn apply(self, rule: &mut Filter) -> usize {
        let seldom = match self {
            Self::Auto => {
                rule.classifier.is_narrow()
                    || rule.classifier.offload().is_some_and(|offload| offload.skip_sw)
            }
            Self::Always => true,
            Self::Never | Self::AsWritten => false,
        };
        let mut ignored = 0;
        for action in &mut rule.actions {
            match self {
                Self::Never => action.no_percpu = false,
                Self::Auto | Self::Always => action.no_percpu |= seldom && obeys(&action.kind),
                Self::AsWritten => {}
            }
            ignored += usize::from(action.no_percpu && !obeys(&action.kind));
        }
        ignored
    }
}
