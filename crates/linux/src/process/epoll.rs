//! Reads and sets the busy-poll parameters of running processes' epolls, and reads what the epolls watch.

use std::os::fd::OwnedFd;

use model::host::Membership;
use model::{EpollId, EpollParams, Fd, ProcessId, ProcessKnob, Setting, since};
use rustix::io::Errno;
use sys::error::{Cause, KernelError};

use crate::attach::EpollsOf;

use super::descriptors::{FdKind, descriptors, duplicate_if};
use super::pinned::PinnedProcess;

/// The largest budget that needs no privilege. Kernel: 6.18, `include/linux/netdevice.h` `NAPI_POLL_WEIGHT`.
const BUDGET_WITHOUT_CAPABILITY_MAX: u16 = 64;

/// Reads the busy-poll parameters of an epoll of a running process.
///
/// # Errors
/// [`Cause::Gone`] if the process has exited or the descriptor is no longer an epoll, [`Cause::Absent`] on a
/// kernel before 6.9, [`Cause::Denied`] without permission to inspect the process.
pub fn read_epoll(id: &EpollId) -> Result<EpollParams, KernelError> {
    PinnedProcess::reopen(&id.process)
        .and_then(|process| duplicate_if(&process, id.fd, FdKind::Epoll))
        .and_then(params)
        .map_err(|cause| KernelError { what: format!("{id}: busy_poll usecs/budget/prefer"), cause })
}

/// Sets the busy-poll parameters of an epoll of a running process. They take effect at the next `epoll_wait`
/// on the epoll.
///
/// # Errors
/// Those of [`read_epoll`]; also [`Cause::Denied`] for a budget above 64 without CAP_NET_ADMIN.
pub fn write_epoll(id: &EpollId, wanted: EpollParams) -> Result<(), KernelError> {
    PinnedProcess::reopen(&id.process)
        .and_then(|process| duplicate_if(&process, id.fd, FdKind::Epoll))
        .and_then(|epoll| set_params(epoll, wanted))
        .map_err(|cause| KernelError {
            what: Setting::Process(ProcessKnob::Epoll(*id, wanted)).to_string(),
            cause,
        })
}

/// Reads the busy-poll parameters of an epoll, for observers; `None` on a kernel without such parameters.
pub(crate) fn params_if_any(process: &PinnedProcess, fd: Fd) -> Result<Option<EpollParams>, Cause> {
    match duplicate_if(process, fd, FdKind::Epoll).and_then(params) {
        Ok(params) => Ok(Some(params)),
        Err(Cause::Absent { .. }) => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// Lists the epolls of a process without the attach service or a worker: this process duplicates the
/// descriptor of each epoll.
///
/// # Errors
/// [`Cause::Gone`] if the process has exited; EACCES without permission to inspect it.
pub fn epolls_of(id: &ProcessId) -> Result<EpollsOf, KernelError> {
    let read = || {
        let process = PinnedProcess::reopen(id)?;
        let epolls = descriptors(&process)?.into_iter().filter(|(_, link)| *link == FdKind::Epoll);
        // The parameters are missing if the epoll was closed in the meantime, or if reading them is not
        // permitted.
        let read = |(fd, _)| (fd, params_if_any(&process, fd).unwrap_or(None));
        Ok(epolls.take(EPOLLS_MAX).map(read).collect())
    };
    read().map_err(|cause| KernelError { what: format!("{id}: its epolls"), cause })
}

/// Like [`epolls_of`], but through the attach service or a worker if there is one.
pub(crate) fn inspected_epolls(id: &ProcessId) -> Result<EpollsOf, Cause> {
    match crate::attach::inspector() {
        Some(inspector) => inspector.epolls(id),
        None => epolls_of(id),
    }
    .map_err(|error| error.cause)
}

/// The maximum number of managed epolls of one process: those with the smallest descriptors are managed.
/// Servers have one epoll per thread.
pub(crate) const EPOLLS_MAX: usize = 512;

fn params(epoll: OwnedFd) -> Result<EpollParams, Cause> {
    let raw = sys::epoll::params(epoll).map_err(absent_or)?;
    Ok(EpollParams {
        busy_poll_usecs: raw.busy_poll_usecs,
        busy_poll_budget: raw.busy_poll_budget,
        prefer_busy_poll: raw.prefer_busy_poll != 0,
        events_only: raw.flags & sys::epoll::EVENTS_ONLY != 0,
    })
}

fn set_params(epoll: OwnedFd, wanted: EpollParams) -> Result<(), Cause> {
    let raw = sys::epoll::RawParams {
        busy_poll_usecs: wanted.busy_poll_usecs,
        busy_poll_budget: wanted.busy_poll_budget,
        prefer_busy_poll: u8::from(wanted.prefer_busy_poll),
        flags: if wanted.events_only { sys::epoll::EVENTS_ONLY } else { 0 },
    };
    sys::epoll::set_params(epoll, raw).map_err(|errno| match errno {
        Errno::INVAL if goes_together(wanted) => Cause::Absent { needs: EVENTS_ONLY_NEEDS.to_owned(), since: None },
        Errno::PERM if wanted.busy_poll_budget > BUDGET_WITHOUT_CAPABILITY_MAX => Cause::Denied {
            errno,
            needs: format!(
                "CAP_NET_ADMIN in the initial user namespace for a budget above {BUDGET_WITHOUT_CAPABILITY_MAX}"
            ),
        },
        other => absent_or(other),
    })
}

/// The name of the feature that a kernel lacks if it refuses to wait for events only.
const EVENTS_ONLY_NEEDS: &str = "EPOLL_PARAMS_F_EVENTS_ONLY";

/// Whether a kernel that can wait for events only would accept this combination of parameters.
fn goes_together(wanted: EpollParams) -> bool {
    let EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, events_only } = wanted;
    events_only
        && (1..=i32::MAX.unsigned_abs()).contains(&busy_poll_usecs)
        && busy_poll_budget == 0
        && !prefer_busy_poll
}

/// Converts an error of the ioctl on a file that is known to be an epoll.
///
/// Kernel: 6.9, `fs/eventpoll.c` `ep_eventpoll_ioctl()`, `ep_eventpoll_bp_ioctl()`; on earlier kernels epolls
/// had no ioctl.
fn absent_or(errno: Errno) -> Cause {
    match errno {
        Errno::NOTTY => Cause::Absent { needs: "EPIOCSPARAMS".to_owned(), since: Some(since::EPOLL_PARAMS) },
        Errno::OPNOTSUPP => Cause::Absent { needs: "CONFIG_NET_RX_BUSY_POLL".to_owned(), since: None },
        other => Cause::Errno(other),
    }
}

/// The files that an epoll watches, from the epoll's fdinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchedFiles {
    /// The epoll's own inode number, which is the same for all epolls. Kernel: 5.14.
    pub(crate) inode: Option<u64>,
    /// The descriptors that the epoll watches.
    pub(crate) members: Vec<Membership>,
    /// The number of lines of the fdinfo that could not be parsed.
    pub(crate) unreadable: usize,
}

impl WatchedFiles {
    /// Parses the text of an epoll's fdinfo.
    ///
    /// Kernel: 6.18, `fs/proc/fd.c` `seq_show()` (`ino:`), `fs/eventpoll.c` `ep_show_fdinfo()` (`tfd: N
    /// events: HEX data: HEX  pos:N ino:HEX sdev:HEX`, written under the epoll's lock).
    pub(crate) fn parse(text: &[u8]) -> Self {
        let mut watched = Self { inode: None, members: Vec::new(), unreadable: 0 };
        for line in text.split(|&b| b == b'\n') {
            if let Some(line) = line.strip_prefix(b"tfd:") {
                match membership(line) {
                    Some(member) => watched.members.push(member),
                    None => watched.unreadable += 1,
                }
            } else if let Some(inode) = line.strip_prefix(b"ino:") {
                watched.inode = std::str::from_utf8(inode).ok().and_then(|text| text.trim().parse().ok());
            }
        }
        watched
    }
}

/// Parses the rest of a line after `tfd:`. The descriptor is decimal, the inode hexadecimal.
fn membership(line: &[u8]) -> Option<Membership> {
    let text = std::str::from_utf8(line).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let fd = Fd(fields.next()?.parse().ok()?);
    let inode = fields.find_map(|field| field.strip_prefix("ino:"))?;
    Some(Membership { fd, inode: u64::from_str_radix(inode, 16).ok()? })
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_an_epoll_watches_is_read_with_its_inode() {
        let fdinfo = b"pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t1038\n\
            tfd:        4 events:       1f data:                4  pos:0 ino:8c05 sdev:9\n\
            tfd:       12 events:       19 data: ffffffffffffffff  pos:0 ino:40e sdev:10\n";
        let member = |fd, inode| Membership { fd: Fd(fd), inode };
        let members = vec![member(4, 0x8c05), member(12, 1038)];
        assert_eq!(WatchedFiles::parse(fdinfo), WatchedFiles { inode: Some(1038), members, unreadable: 0 });
    }

    #[test]
    fn an_epoll_of_a_kernel_before_6_9_has_no_parameters() {
        let Cause::Absent { since, .. } = absent_or(Errno::NOTTY) else { panic!("it has no such ioctl") };
        assert_eq!(since, Some(since::EPOLL_PARAMS));
        assert!(matches!(absent_or(Errno::OPNOTSUPP), Cause::Absent { since: None, .. }));
    }

    #[test]
    fn a_line_of_another_kernel_is_counted_and_not_guessed() {
        let watched = WatchedFiles::parse(b"tfd:        4 events:       1f data:                4\ntfd:\n");
        assert_eq!(watched, WatchedFiles { inode: None, members: vec![], unreadable: 2 });
    }

    proptest! {
        #[test]
        fn no_bytes_upset_the_reader(lines in proptest::collection::vec("((tfd|ino):)?[ 0-9a-z:\n]{0,60}", 0..20)) {
            let text = lines.concat();
            let watched = WatchedFiles::parse(text.as_bytes());
            prop_assert!(watched.members.len() + watched.unreadable <= text.matches("tfd:").count());
        }
    }
}
