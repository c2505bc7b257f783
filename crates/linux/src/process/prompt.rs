//! Lets the calling thread run as soon as it has something to do.

use std::marker::PhantomData;

use rustix::io::Errno;
use sys::scheduling::{RawAttr, attributes, set_attributes};

use super::kthread::{default_slice, flag, policy};

/// The calling thread, by number.
const THIS: libc::pid_t = 0;

/// The lowest real-time priority: above all tasks without one, and below all real-time tasks of others.
const PRIORITY: u32 = 1;

/// The maximum number of processes that a thread with this priority may check repeatedly: about a
/// millisecond of work.
const PROCESSES_MAX: usize = 64;

/// The calling thread is in the class `SCHED_RR` while this exists, so that it does not wait for a CPU on a
/// busy host. For threads that mostly sleep. Threads and processes that it starts are not affected.
#[derive(Debug)]
pub struct PromptThread {
    before: Option<RawAttr>,
    /// The drop must happen on the same thread.
    _not_send: PhantomData<*const ()>,
}

impl PromptThread {
    /// Changes the class of the calling thread while it measures a service with this many processes. Nothing
    /// changes if the thread already has a real-time priority or has no permission (CAP_SYS_NICE), or if
    /// checking so many processes would take too long at this priority.
    pub fn begin(processes: usize) -> Self {
        let before = if processes <= PROCESSES_MAX { raise().ok().flatten() } else { None };
        Self { before, _not_send: PhantomData }
    }
}

fn raise() -> Result<Option<RawAttr>, Errno> {
    let before = attributes(THIS)?;
    if ![policy::OTHER, policy::BATCH].contains(&before.policy) {
        return Ok(None);
    }
    let flags = flag::RESET_ON_FORK;
    set_attributes(THIS, RawAttr { policy: policy::RR, flags, priority: PRIORITY, ..RawAttr::default() })?;
    // Keep a slice that was set on the thread.
    let runtime = if before.runtime == default_slice() { 0 } else { before.runtime };
    let RawAttr { policy, nice, .. } = before;
    let flags = before.flags & flag::RESET_ON_FORK;
    Ok(Some(RawAttr { policy, flags, nice, runtime, ..RawAttr::default() }))
}

impl Drop for PromptThread {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let flags = before.flags | flag::RESET_ON_FORK;
            // With RLIMIT_RTPRIO and without CAP_SYS_NICE, the class may be changed, but the flag not cleared.
            // Kernel: 6.12, `kernel/sched/syscalls.c` `user_check_sched_setscheduler()`.
            let _best_effort =
                set_attributes(THIS, before).or_else(|_| set_attributes(THIS, RawAttr { flags, ..before }));
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_has_its_class_again_afterwards_and_what_it_starts_never_had_another() {
        let now = || attributes(THIS).map(|attr| (attr.policy, attr.nice, attr.flags)).expect("attributes");
        let before = now();
        assert!(PromptThread::begin(PROCESSES_MAX + 1).before.is_none(), "too many processes");
        let prompt = PromptThread::begin(1);
        if prompt.before.is_some() {
            assert_eq!(now().0, policy::RR);
            let of_child = std::thread::spawn(move || now().0).join().expect("it ends");
            assert_eq!(of_child, policy::OTHER);
            assert!(PromptThread::begin(1).before.is_none(), "it is one already");
        }
        drop(prompt);
        assert_eq!(now(), before);
    }
}
