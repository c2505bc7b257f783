//! What `set`, `attach` and `run` are asked for: a policy or a delivery mode, what it may cost, and how its kernel threads
//! run.

use clap::Args;
use model::{KthreadCpus, KthreadWish, PolicyName, Scheduling, UtilClamp};
pub use policy_file::{Wish, wish};

/// Which policy or delivery mode, for `attach` and `run`.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Asked {
    /// What the traffic shall be good at, as in latency: a goal, of which netpolicy makes the delivery mode and all the
    /// rest (CPUs, interrupts, rings). A delivery mode is taken too.
    #[arg(long, value_name = "POLICY", value_parser = wish)]
    pub policy: Option<Wish>,
    /// How packets shall be delivered, as in suspend20: that one mechanism, and nothing else. A policy is taken too.
    #[arg(long, value_name = "MODE", value_parser = wish)]
    pub delivery: Option<Wish>,
}

/// What it may cost, for requests without a file.
#[derive(Clone, Copy, Debug, Args)]
pub struct Cost {
    /// How many CPUs may poll without traffic, at most; fullbusy, eventbusy and userbusy need one per thread that waits in
    /// epoll_wait, and threaded-busy one per NAPI.
    #[arg(long, global = true, value_name = "N")]
    pub polling_cpus: Option<u32>,
    /// The real-time priority of kernel threads, at most [default: 50].
    #[arg(long, global = true, value_name = "PRIORITY", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rt_priority: Option<u32>,
}

/// How the scheduler shall treat the kernel threads of threaded and threaded-busy.
#[derive(Clone, Debug, Args)]
pub struct Kthread {
    /// Where they run: irq (with their interrupts), sibling (beside them), any, or a list of CPUs.
    #[arg(long, global = true, value_name = "CPUS")]
    pub kthread_cpus: Option<KthreadCpus>,
    /// Their class, with nice value or priority: other:-5, batch, fifo:50, rr:10.
    #[arg(long, global = true, value_name = "CLASS", allow_hyphen_values = true)]
    pub kthread_class: Option<Scheduling>,
    /// How much of a CPU they count for at least and at most, in 1024ths: 512-1024.
    #[arg(long, global = true, value_name = "MIN-MAX")]
    pub kthread_util_clamp: Option<UtilClamp>,
}

impl Kthread {
    /// The same as a policy has it.
    pub fn wish(&self) -> KthreadWish {
        let (cpus, scheduling, util_clamp) =
            (self.kthread_cpus.clone(), self.kthread_class, self.kthread_util_clamp);
        KthreadWish { cpus, scheduling, util_clamp }
    }
}

impl Cost {
    /// The same as a policy has it.
    pub const fn budget(self) -> model::Budget {
        model::Budget { polling_cpus: self.polling_cpus, added_delay: None, rt_priority: self.rt_priority }
    }
}

impl Asked {
    /// The one that was given.
    pub fn wish(&self) -> Wish {
        // The group of arguments admits exactly one.
        self.policy.or(self.delivery).unwrap_or(Wish::Policy(PolicyName::None))
    }
}
