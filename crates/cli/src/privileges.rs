//! The privileges that changing a host requires.

use rustix::process::geteuid;
use session::{Exit, Fault};

use crate::Context;

/// Returns a message for an unprivileged user, or `None` if the user is privileged.
#[must_use]
pub fn missing_privileges() -> Option<&'static str> {
    (!geteuid().is_root() && !linux::observe::may_administer()).then_some(
        "Run netpolicy as root, or with CAP_NET_ADMIN and CAP_SYS_PTRACE; otherwise it can change nothing and cannot inspect other users' processes.",
    )
}

/// Prints this message, if any, before the error of a command that was denied permission.
pub fn say_if_denied(words: Option<&str>, ended: &Result<Exit, Fault>, context: &Context) {
    if let Some(words) = words.filter(|_| ended.as_ref().is_err_and(Fault::is_denied)) {
        context.console.say(words);
    }
}
