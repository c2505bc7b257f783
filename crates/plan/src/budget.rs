//! Limits the number of CPUs that may poll without traffic to the budget of the request.

use std::collections::BTreeSet;

use model::host::{Epoll, Process, Socket, SocketState};
use model::{DeliveryMode, Intent};

use crate::refusal::{Refusal, RefusalKind};

/// Returns how many threads of a process can busy-poll at the same time: the threads that wait in its epolls.
/// Every epoll counts, even one without connections, because it may get some at any moment. An epoll that
/// [only accepts](only_accepts) does not count, and is not set either. A process without an epoll counts as
/// one thread.
pub(crate) fn pollers(process: &Process, mode: DeliveryMode) -> usize {
    let polling = process.epolls.iter().filter(|epoll| !only_accepts(process, epoll, mode)).count();
    let waits = polling + process.rings.len();
    waits.min(process.threads.len()).max(1)
}

/// Returns how many threads of a process can each poll a separate NAPI. An epoll that [only waits for new
/// connections](is_dispatcher) has no NAPI, whatever its parameters. `threads` is the number of threads of
/// the whole process, because any of them may wait in these epolls; 0 if it is unknown.
pub(crate) fn napi_pollers(process: &Process, threads: usize) -> usize {
    let polling = process.epolls.iter().filter(|epoll| !is_dispatcher(process, epoll)).count();
    let waits = polling + process.rings.len();
    waits.min(if threads == 0 { waits } else { threads }).max(1)
}

/// Returns whether `fullbusy` skips an epoll because it [only waits for new connections](is_dispatcher).
/// Other modes that keep CPUs busy need no NAPI, so in these modes such an epoll busy-waits like any other.
/// An epoll that already busy-waits is not skipped, because it may still poll.
pub(crate) fn only_accepts(process: &Process, epoll: &Epoll, mode: DeliveryMode) -> bool {
    let busy = epoll.params.is_some_and(|params| params.waits_busily());
    mode == DeliveryMode::FullBusy && !busy && is_dispatcher(process, epoll)
}

/// Returns whether an epoll only waits for new connections, which the process passes to other epolls: the
/// epoll watches a listening socket but no connection, and the process has another epoll that watches no
/// listener. Such an epoll has no NAPI. Kernel: 6.18, `fs/eventpoll.c` `ep_busy_loop()` polls the NAPI of an
/// earlier event's connection.
fn is_dispatcher(process: &Process, epoll: &Epoll) -> bool {
    let watched = |epoll: &Epoll, like: fn(&Socket) -> bool| {
        let inodes: BTreeSet<u64> = epoll.members.iter().map(|member| member.inode).collect();
        process.sockets.iter().any(|socket| like(socket) && inodes.contains(&socket.inode))
    };
    let listens = |socket: &Socket| socket.state == SocketState::TcpListen;
    watched(epoll, listens)
        && !watched(epoll, |socket| socket.state != SocketState::TcpListen)
        && process.epolls.iter().any(|other| other.id != epoll.id && !watched(other, listens))
}

/// Checks the number of CPUs that a mode keeps busy without traffic against the request's budget.
///
/// # Errors
/// [`RefusalKind::Safety`] if the number exceeds the budget.
pub(crate) fn check_polling(
    intent: &Intent,
    mode: DeliveryMode,
    processes: &[&Process],
    napis: usize,
) -> Result<(), Refusal> {
    if mode.polling_cpus_per_napi() > 0 {
        return check_kthreads(intent, mode, napis);
    }
    let each = mode.polling_cpus_per_thread();
    if each == 0 {
        return Ok(());
    }
    let threads: usize = processes.iter().map(|p| pollers(p, mode)).sum();
    let needed = u32::try_from(threads).unwrap_or(u32::MAX).max(1).saturating_mul(each);
    let allowed = intent.budget.polling_cpus.unwrap_or(0);
    if needed <= allowed {
        return Ok(());
    }
    let keeps = match mode {
        DeliveryMode::EventBusy => format!("may keep {needed} CPU(s) busy between events"),
        DeliveryMode::UserBusy => format!("keeps {needed} CPU(s) busy-waiting when idle"),
        _ => format!("keeps {needed} CPU(s) polling without traffic"),
    };
    let mut refusal = Refusal::new(
        RefusalKind::Safety,
        &intent.target,
        format!("{mode} {keeps}, the budget allows {allowed}"),
    )
    .because(format!("requested at {}", intent.origin))
    .nearest(format!(
        "`budget = {{ polling_cpus = {needed} }}` in the policy file or `--polling-cpus {needed}`; \
         or suspend20, which polls only while there is traffic"
    ));
    for process in processes {
        let accepting = process.epolls.iter().filter(|epoll| only_accepts(process, epoll, mode)).count();
        let accepting = if accepting > 0 { format!(" ({accepting} only to accept)") } else { String::new() };
        refusal = refusal.because(format!(
            "{}: {} epoll(s){accepting}, {} io_uring(s), {} thread(s) → {} polling",
            process.id,
            process.epolls.len(),
            process.rings.len(),
            process.threads.len(),
            pollers(process, mode)
        ));
    }
    Err(refusal)
}

/// Checks the number of CPUs that kernel threads keep polling, one thread for each NAPI, against the
/// request's budget.
fn check_kthreads(intent: &Intent, mode: DeliveryMode, napis: usize) -> Result<(), Refusal> {
    let needed = u32::try_from(napis).unwrap_or(u32::MAX).saturating_mul(mode.polling_cpus_per_napi());
    let allowed = intent.budget.polling_cpus.unwrap_or(0);
    if needed <= allowed {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalKind::Safety,
        &intent.target,
        format!("{mode} keeps {needed} CPU(s) polling without traffic, but the budget allows {allowed}"),
    )
    .because(format!("requested at {}", intent.origin))
    .because(format!("{napis} NAPI(s), each with a kernel thread that never sleeps"))
    .nearest(format!(
        "`budget = {{ polling_cpus = {needed} }}` in the policy file or `--polling-cpus {needed}`; \
         or threaded, whose kernel threads sleep without traffic"
    )))
}
