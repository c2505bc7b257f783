//! Reads and changes how connections are distributed to the listeners at one address.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use bpf::reuseport::{CLASSIC, FoundListener, ListenerScanner, Lists, ReuseportProgram};
use model::host::{Listener, SharedListeners, SpreadCounts};
use model::{DeviceId, IfIndex, Label, ListenerGroup, ProcessKnob, QueueListeners, RxQueue, Setting, Spread};
use rustix::fs::fstat;
use sys::error::{Cause, Errno, KernelError};

use super::PinnedProcess;

/// Sockets of one protocol with the same address form two groups if they belong to different users or are
/// bound to different devices.
const TWO_GROUPS: &str = "two groups of sockets have this address: of two users, or bound to two devices";

/// Reads how connections are distributed to the listeners of a group. Devices get the names that they have in
/// `like`.
///
/// # Errors
/// [`Cause::Gone`] if no socket listens at the address with `SO_REUSEPORT` any more, [`Cause::Absent`] if BPF
/// cannot read the distribution.
pub(crate) fn read_spread(group: &ListenerGroup, like: &Spread) -> Result<Spread, KernelError> {
    let names: BTreeMap<IfIndex, Label> =
        like.devices().into_iter().map(|device| (device.ifindex, device.name)).collect();
    let found = members(group)?;
    spread(group, found[0].program, |ifindex| names.get(&ifindex).copied()).map(|(spread, _)| spread)
}

/// Changes how new connections are distributed to the listeners of a group.
///
/// # Errors
/// Those of [`read_spread`]; EBUSY if a foreign program selects the listeners, because that program could not
/// be restored.
pub(crate) fn write_spread(group: &ListenerGroup, wanted: &Spread) -> Result<(), KernelError> {
    let what = || Setting::Process(ProcessKnob::Reuseport(*group, wanted.clone())).to_string();
    let found = members(group)?;
    let own = match found[0].program {
        None => None,
        Some(number) => match ReuseportProgram::attached(number)? {
            Some(program) if *wanted != Spread::Foreign => Some(program),
            _ => return Err(KernelError { what: what(), cause: foreign(number) }),
        },
    };
    match (wanted, own) {
        (Spread::Hash | Spread::Foreign, None) => Ok(()),
        (Spread::Hash | Spread::Foreign, Some(_)) => {
            let socket = copy(&found, found[0].inode)?;
            sys::reuseport::detach(socket).map_err(|errno| KernelError::errno(what(), errno))
        }
        (Spread::Queues(lists), Some(program)) => {
            program.write(&by_queue(lists), |inode| copy_if_any(&found, inode))
        }
        (Spread::Queues(lists), None) => {
            let program = ReuseportProgram::load()?;
            program.write(&by_queue(lists), |inode| copy_if_any(&found, inode))?;
            let socket = copy(&found, found[0].inode)?;
            sys::reuseport::attach(socket, program.descriptor())
                .map_err(|errno| KernelError::errno(what(), errno))
        }
    }
}

/// Lists the groups of listeners at these addresses, by address. `name` returns the names of devices.
///
/// # Errors
/// The kernel's error.
pub(crate) fn shared_listeners(
    scanner: &ListenerScanner,
    wanted: impl Fn(&ListenerGroup) -> bool,
    name: impl Fn(IfIndex) -> Option<Label>,
) -> Result<Vec<SharedListeners>, KernelError> {
    let mut groups: BTreeMap<ListenerGroup, Vec<FoundListener>> = BTreeMap::new();
    for found in scanner.all()? {
        let id = ListenerGroup { netns: found.netns, transport: found.transport, address: found.address };
        if wanted(&id) {
            groups.entry(id).or_default().push(found);
        }
    }
    let mut shared = Vec::with_capacity(groups.len());
    for (id, found) in groups {
        if found.iter().any(|other| other.group != found[0].group) {
            continue; // the address is ambiguous
        }
        let (spread, counts) = spread(&id, found[0].program, &name)?;
        let sockets = found[0].members;
        shared.push(SharedListeners { id, spread, sockets, listeners: held(found), counts });
    }
    Ok(shared)
}

/// Groups the sockets by the processes that hold them.
fn held(mut found: Vec<FoundListener>) -> Vec<Listener> {
    found.sort_unstable_by_key(|found| (found.pid, found.fd));
    let mut listeners: Vec<Listener> = Vec::new();
    for FoundListener { inode, pid, fd, .. } in found {
        match listeners.iter_mut().find(|listener| listener.inode == inode) {
            Some(listener) => listener.held.push((pid, fd)),
            None => listeners.push(Listener { inode, held: vec![(pid, fd)] }),
        }
    }
    listeners
}

fn spread(
    group: &ListenerGroup,
    program: Option<u32>,
    name: impl Fn(IfIndex) -> Option<Label>,
) -> Result<(Spread, Option<SpreadCounts>), KernelError> {
    let Some(number) = program else { return Ok((Spread::Hash, None)) };
    let Some(program) = ReuseportProgram::attached(number)? else { return Ok((Spread::Foreign, None)) };
    let lists = program.lists()?.into_iter().map(|((ifindex, index), listeners)| {
        let named = name(ifindex).unwrap_or_else(|| Label::new(&format!("if{ifindex}")));
        let device = DeviceId { netns: group.netns, ifindex, name: named };
        QueueListeners { queue: RxQueue { device, index }, listeners }
    });
    Ok((Spread::Queues(lists.collect()), Some(program.counts()?)))
}

/// Lists the descriptors of the group's sockets; the list is never empty.
fn members(group: &ListenerGroup) -> Result<Vec<FoundListener>, KernelError> {
    let what = || format!("{group}: reuseport");
    let mut found = ListenerScanner::load()?.all()?;
    found.retain(|found| {
        found.netns == group.netns && found.transport == group.transport && found.address == group.address
    });
    let Some(first) = found.first() else {
        return Err(KernelError::gone(what(), "no socket is bound there with SO_REUSEPORT"));
    };
    if found.iter().any(|other| other.group != first.group) {
        return Err(KernelError::malformed(what(), TWO_GROUPS));
    }
    Ok(found)
}

/// Like [`copy`]; `None` for a socket that is no longer in the group.
fn copy_if_any(found: &[FoundListener], inode: u64) -> Result<Option<OwnedFd>, KernelError> {
    match copy(found, inode) {
        Err(error) if matches!(error.cause, Cause::Gone(_)) => Ok(None),
        copied => copied.map(Some),
    }
}

/// Duplicates the descriptor of a socket of the group.
fn copy(found: &[FoundListener], inode: u64) -> Result<OwnedFd, KernelError> {
    let what = || format!("listener socket {inode}");
    let mut cause = Cause::Gone("it was closed".to_owned());
    for FoundListener { pid, fd, .. } in found.iter().filter(|found| found.inode == inode) {
        match PinnedProcess::open(*pid).and_then(|process| process.duplicate(*fd)) {
            // The descriptor may now refer to another file.
            Ok(copy) if fstat(&copy).is_ok_and(|stat| stat.st_ino == inode) => return Ok(copy),
            Ok(_) => {}
            Err(other) => cause = other,
        }
    }
    Err(KernelError { what: what(), cause })
}

fn by_queue(lists: &[QueueListeners]) -> Lists {
    lists.iter().map(|list| ((list.queue.device.ifindex, list.queue.index), list.listeners.clone())).collect()
}

fn foreign(program: u32) -> Cause {
    let which =
        if program == CLASSIC { "a classic program".to_owned() } else { format!("program {program}") };
    let message = format!(
        "{which}, which another process attached, chooses among these sockets, and could not be restored"
    );
    Cause::Extack { errno: Errno::BUSY, message }
}
