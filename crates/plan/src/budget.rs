//! How many CPUs may poll without traffic. Never more than the request allows.

use model::host::Process;
use model::{DeliveryMode, Intent};

use crate::refusal::{Refusal, RefusalKind};

/// How many threads of a process can busy-poll at once: an epoll polls in a thread that waits on it.
///
/// Every epoll counts, whether it has connections yet or not: it may get some at any moment. A process that has
/// no epoll yet counts once.
pub(crate) fn pollers(process: &Process) -> usize {
    let waits = process.epolls.len() + process.rings.len();
    waits.min(process.threads.len()).max(1)
}

/// Checks the CPUs that a mode keeps busy without traffic against the request's budget.
///
/// # Errors
/// [`RefusalKind::Safety`] beyond it.
pub(crate) fn check_polling(
    intent: &Intent,
    mode: DeliveryMode,
    processes: &[&Process],
) -> Result<(), Refusal> {
    let each = mode.polling_cpus_per_thread();
    if each == 0 {
        return Ok(());
    }
    let threads: usize = processes.iter().map(|p| pollers(p)).sum();
    let needed = u32::try_from(threads).unwrap_or(u32::MAX).max(1).saturating_mul(each);
    let allowed = intent.budget.polling_cpus.unwrap_or(0);
    if needed <= allowed {
        return Ok(());
    }
    let keeps = match mode {
        DeliveryMode::EventBusy => format!("may keep {needed} CPU(s) busy between events"),
        DeliveryMode::UserBusy => format!("keeps {needed} CPU(s) asking for events without traffic"),
        _ => format!("keeps {needed} CPU(s) polling without traffic"),
    };
    let mut refusal = Refusal::new(
        RefusalKind::Safety,
        &intent.target,
        format!("{mode} {keeps}, the budget allows {allowed}"),
    )
    .because(format!("asked at {}", intent.origin))
    .nearest(format!(
        "`budget = {{ polling_cpus = {needed} }}` in the policy file or `--polling-cpus {needed}`; \
         or suspend20, which polls only while there is traffic"
    ));
    for process in processes {
        refusal = refusal.because(format!(
            "{}: {} epoll(s), {} io_uring(s), {} thread(s) → {} polling",
            process.id,
            process.epolls.len(),
            process.rings.len(),
            process.threads.len(),
            pollers(process)
        ));
    }
    Err(refusal)
}
