//! Removes rules.

use crate::{Filter, Group, Verb};
use sys::error::{Cause, KernelError};
use sys::netns::Netns;

use super::loader::{Loader, Options};

/// Removes whole priorities, with one message each. A priority that does not exist counts as removed.
///
/// Returns the groups that could not be removed, with the reason.
///
/// # Errors
/// If nothing could be sent.
pub fn groups(netns: &Netns, groups: &[Group]) -> Result<Vec<(Group, Cause)>, KernelError> {
    let mut loader = Loader::open(netns, Options { stop_at_refusal: false, ..Options::default() })?;
    for (group, number) in groups.iter().zip(0..) {
        let rule = Filter {
            verb: Verb::Delete,
            hook: group.hook,
            priority: group.priority,
            chain: Some(group.chain).filter(|chain| *chain != 0),
            ..Filter::default()
        };
        loader.push(number, &crate::Command::Filter(rule))?;
    }
    let gone = |refused: &super::Refused| {
        matches!(
            refused.refusal.errno,
            rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::INVAL
        )
    };
    let account = loader.finish()?;
    let stuck = account.refused.iter().filter(|refused| !gone(refused));
    let of = |number: u32| usize::try_from(number).ok().and_then(|number| groups.get(number)).copied();
    Ok(stuck.filter_map(|refused| Some((of(refused.line)?, refused.cause()))).collect())
}
