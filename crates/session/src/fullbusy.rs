//! Busy-polling modes that need a limit on the application's `epoll_wait` timeout, which cannot be set from
//! outside.

use model::{DeliveryMode, Intent, Nanoseconds, Policy};

use crate::exit::Exit;
use crate::fault::Fault;

/// The maximum `epoll_wait` timeout of this request; `None` for no limit.
pub fn epoll_wait_cap(intent: &Intent) -> Option<Nanoseconds> {
    intent.delivery.and_then(|mode| mode.params().epoll_wait_cap)
}

/// Describes an `epoll_wait` with this limit.
pub fn sleeps(cap: Nanoseconds) -> String {
    if cap.is_zero() { "never sleeps".to_owned() } else { format!("sleeps no longer than {cap}") }
}

/// Refuses a mode that limits the timeout of `epoll_wait`, unless requested through `netpolicy run`: it
/// cannot be applied to running applications.
///
/// # Errors
/// Why the mode is impossible, and the alternatives.
pub fn refuse_from_outside(policy: &Policy) -> Result<(), Fault> {
    policy.intents.iter().try_for_each(refuse_one)
}

fn refuse_one(intent: &Intent) -> Result<(), Fault> {
    let (Some(cap), Some(mode)) = (epoll_wait_cap(intent), intent.delivery) else { return Ok(()) };
    let sleeps = sleeps(cap);
    let (target, origin) = (&intent.target, &intent.origin);
    let why = format!(
        "{target}: {mode} (asked at {origin}) cannot be given to processes that run already. It needs an epoll_wait that {sleeps}, \
         and that timeout is an argument which the application passes with each call: the parameters of an epoll can be \
         set from outside, the arguments of a call cannot"
    );
    let instead = match mode {
        DeliveryMode::UserBusy => "eventbusy, which is the same in the kernel, where the kernel has it",
        _ => "suspend20, which needs nothing inside the application",
    };
    let hint = format!(
        "start it under netpolicy, which caps the timeout by a library: netpolicy run --delivery {mode} --polling-cpus N -- CMD; or \
         take {instead}"
    );
    Err(Fault::new(Exit::Unsupported, why).hint(hint))
}
