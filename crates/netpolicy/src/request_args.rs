//! Arguments of `set`, `attach` and `run`: a policy or a delivery mode, its budget, and the scheduling of
//! kernel threads.

use clap::Args;
use clap_complete::ArgValueCandidates;
use model::{
    Budget, DeliveryMode, KthreadCpus, KthreadRequest, KthreadValue, PolicyName, Scheduling, Slice, UtilClamp,
};
pub use policy_file::{PolicyWord, word};

use crate::completing;

/// Parses `--policy`.
fn policy(text: &str) -> Result<PolicyName, String> {
    match word(text)? {
        PolicyWord::Policy(policy) => Ok(policy),
        PolicyWord::Delivery(mode) => Err(format!("`{mode}` is a delivery mode: write --delivery {mode}")),
    }
}

/// Parses `--delivery`.
fn delivery(text: &str) -> Result<DeliveryMode, String> {
    match word(text)? {
        PolicyWord::Delivery(mode) => Ok(mode),
        PolicyWord::Policy(policy) => Err(format!("`{policy}` is a policy: write --policy {policy}")),
    }
}

/// The policy or delivery mode of `attach` and `run`.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct DeliveryChoice {
    /// The goal for the traffic, as in latency: netpolicy derives the delivery mode and everything else
    /// (CPUs, interrupts, rings).
    #[arg(long, value_name = "POLICY", value_parser = policy, add = ArgValueCandidates::new(completing::policies))]
    pub policy: Option<PolicyName>,
    /// The delivery mode, as in suspend20: only this mechanism is set.
    #[arg(long, value_name = "MODE", value_parser = delivery, add = ArgValueCandidates::new(completing::modes))]
    pub delivery: Option<DeliveryMode>,
}

/// The budget of a request that is made without a policy file.
#[derive(Clone, Copy, Debug, Args)]
pub struct BudgetArgs {
    /// The maximum number of CPUs that may poll without traffic. fullbusy, eventbusy and userbusy need one
    /// CPU per thread that waits in epoll_wait, threaded-busy needs one per NAPI.
    #[arg(long, global = true, value_name = "N")]
    pub polling_cpus: Option<u32>,
    /// The maximum real-time priority of kernel threads.
    #[arg(
        long,
        global = true,
        value_name = "PRIORITY",
        value_parser = clap::value_parser!(u32).range(1..=99),
        help = format!("The maximum real-time priority of kernel threads [default: {}]", Budget::RT_PRIORITY_UNASKED),
    )]
    pub rt_priority: Option<u32>,
}

/// How the kernel threads of threaded and threaded-busy are scheduled.
#[derive(Clone, Debug, Args)]
pub struct Kthread {
    /// The CPUs on which the kernel threads run: irq (with their interrupts), sibling (next to them), any, or
    /// a list of CPUs.
    #[arg(long, global = true, value_name = "CPUS")]
    pub kthread_cpus: Option<KthreadCpus>,
    /// The scheduling class of the kernel threads, with its nice value or priority: other:-5, batch, fifo:50,
    /// rr:10.
    #[arg(long, global = true, value_name = "CLASS", allow_hyphen_values = true)]
    pub kthread_class: Option<Scheduling>,
    /// The utilisation clamp of the kernel threads, MIN-MAX in 1024ths of a CPU: 512-1024.
    #[arg(long, global = true, value_name = "MIN-MAX")]
    pub kthread_util_clamp: Option<UtilClamp>,
    /// How long the kernel threads run before another thread of their CPU may run. Only for classes other and
    /// batch.
    #[arg(
        long,
        global = true,
        value_name = "SPAN",
        help = format!(
            "How long they run before another thread on their CPU may run, {} to {}, or default. Only for classes other and batch",
            Slice::LEAST,
            Slice::MOST
        ),
    )]
    pub kthread_slice: Option<Slice>,
}

impl Kthread {
    /// Returns the given values as part of a policy.
    pub fn request(&self) -> KthreadRequest {
        let values = [
            self.kthread_cpus.clone().map(KthreadValue::Cpus),
            self.kthread_class.map(KthreadValue::Class),
            self.kthread_util_clamp.map(KthreadValue::UtilClamp),
            self.kthread_slice.map(KthreadValue::Slice),
        ];
        values.into_iter().flatten().collect()
    }
}

impl BudgetArgs {
    /// Returns the given limits as part of a policy.
    pub const fn budget(self) -> model::Budget {
        model::Budget { polling_cpus: self.polling_cpus, added_delay: None, rt_priority: self.rt_priority }
    }
}

impl DeliveryChoice {
    /// Returns the policy or delivery mode that was given.
    pub fn word(&self) -> PolicyWord {
        // clap's argument group guarantees that exactly one of `policy` and `delivery` is given.
        let policy = self.policy.unwrap_or(PolicyName::None);
        self.delivery.map_or(PolicyWord::Policy(policy), PolicyWord::Delivery)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_mode_is_no_policy_and_a_policy_is_no_mode() {
        assert_eq!(policy("latency"), Ok(PolicyName::Latency));
        assert!(policy("suspend20").expect_err("a mode").contains("write --delivery suspend20"));
        assert!(delivery("latency").expect_err("a policy").contains("write --policy latency"));
    }
}
