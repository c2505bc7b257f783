//! Handles busy-polling modes that need a limit on the application's `epoll_wait` timeout, which cannot be
//! set from outside.

use model::{DeliveryMode, Intent, Nanoseconds, Policy};

use crate::exit::Exit;
use crate::fault::Fault;

/// Returns the maximum `epoll_wait` timeout of this request; `None` for no limit.
pub fn epoll_wait_cap(intent: &Intent) -> Option<Nanoseconds> {
    intent.delivery.and_then(|mode| mode.params().epoll_wait_cap)
}

/// Describes an `epoll_wait` with this limit.
pub fn sleeps(cap: Nanoseconds) -> String {
    if cap.is_zero() { "never sleeps".to_owned() } else { format!("sleeps no longer than {cap}") }
}

/// Refuses a mode that limits the timeout of `epoll_wait` and was not requested through `netpolicy run`,
/// because such a mode cannot be applied to running applications.
///
/// # Errors
/// If the policy has such a mode. The error says why it is impossible, and names the alternatives.
pub fn refuse_from_outside(policy: &Policy) -> Result<(), Fault> {
    policy.intents.iter().try_for_each(refuse_one)
}

fn refuse_one(intent: &Intent) -> Result<(), Fault> {
    let (Some(cap), Some(mode)) = (epoll_wait_cap(intent), intent.delivery) else { return Ok(()) };
    let sleeps = sleeps(cap);
    let (target, origin) = (&intent.target, &intent.origin);
    let why = format!(
        "{target}: {mode} (requested at {origin}) cannot be set for running processes. It needs an epoll_wait that {sleeps}, but the application passes the timeout with each call: the parameters of an epoll can be set from outside, the arguments of a call cannot"
    );
    let instead = match mode {
        DeliveryMode::UserBusy => {
            "eventbusy, which does the same inside the kernel, if the kernel supports it"
        }
        _ => "suspend20, which needs no change in the application",
    };
    let hint = format!(
        "start it with netpolicy, which preloads a library that caps the timeout: netpolicy run --delivery {mode} --polling-cpus N -- CMD; or use {instead}"
    );
    Err(Fault::new(Exit::Unsupported, why).hint(hint))
}
