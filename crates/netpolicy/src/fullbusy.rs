//! What busy polling all the time asks of an application, and why it cannot be had from outside.

use model::{Intent, Nanoseconds};

use crate::exit::Exit;
use crate::fault::Fault;

/// The longest that the application's `epoll_wait` may sleep under this request; `None` if it may as long as it likes.
pub(crate) fn epoll_wait_cap(intent: &Intent) -> Option<Nanoseconds> {
    intent.delivery.and_then(|mode| mode.params().epoll_wait_cap)
}

/// Refuses a mode that caps the timeout of `epoll_wait`, for an application that runs already.
///
/// # Errors
/// Why that cannot be, and what can.
pub(crate) fn refuse_from_outside(intent: &Intent) -> Result<(), Fault> {
    let (Some(cap), Some(mode)) = (epoll_wait_cap(intent), intent.delivery) else { return Ok(()) };
    let why = format!(
        "{mode} cannot be given to a process that runs already. It needs an epoll_wait that sleeps no longer than {cap}, \
         and that timeout is an argument which the application passes with each call: the parameters of an epoll can be \
         set from outside, the arguments of a call cannot"
    );
    let hint = format!(
        "start it under netpolicy, which caps the timeout by a library: netpolicy run --delivery {mode} --polling-cpus N -- CMD; or \
         take suspend20, which needs nothing inside the application"
    );
    Err(Fault::new(Exit::Unsupported, why).hint(hint))
}
