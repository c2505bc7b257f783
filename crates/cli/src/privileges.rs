//! The privileges that changing a host requires.

use rustix::process::geteuid;
use session::{Exit, Fault};

use crate::Context;

/// The message that an unprivileged user gets before anything else; `None` for a privileged one.
#[must_use]
pub fn missing_privileges() -> Option<&'static str> {
    (!geteuid().is_root() && !linux::observe::may_administer()).then_some(
        "Run netpolicy as root, or with CAP_NET_ADMIN and CAP_SYS_PTRACE; otherwise it can change nothing and cannot inspect other users' processes.",
    )
}

/// Prints this message before the error of a command that lacked privileges.
pub fn say_if_denied(words: Option<&str>, ended: &Result<Exit, Fault>, context: &Context) {
    if let Some(words) = words.filter(|_| ended.as_ref().is_err_and(Fault::is_denied)) {
        context.console.say(words);
    }
}
