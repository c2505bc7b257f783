//! Takes rules away again.

use rules::{Filter, Group, Verb};

use super::loader::{Loader, Options};
use crate::error::KernelError;
use crate::netns::Netns;

/// Removes whole priorities, each with one message. One that is not there is gone already.
///
/// Gives the refusals of those that could not be removed.
///
/// # Errors
/// If nothing could be sent.
pub fn groups(netns: &Netns, groups: &[Group]) -> Result<Vec<super::Refused>, KernelError> {
    let mut loader = Loader::open(netns, Options { stop_at_refusal: false, ..Options::default() })?;
    for (group, line) in groups.iter().zip(1..) {
        let rule = Filter {
            verb: Verb::Delete,
            hook: group.hook,
            priority: group.priority,
            chain: Some(group.chain).filter(|chain| *chain != 0),
            ..Filter::default()
        };
        loader.push(line, &rules::Command::Filter(rule))?;
    }
    let gone = |refused: &super::Refused| {
        matches!(
            refused.refusal.errno,
            rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::INVAL
        )
    };
    let account = loader.finish()?;
    Ok(account.refused.into_iter().filter(|refused| !gone(refused)).collect())
}
