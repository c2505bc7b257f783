//! Reads and sets the busy polling of running processes' io_urings, and determines whether it can be set from
//! outside.

use std::os::fd::{AsRawFd, OwnedFd};

use model::{Fd, ProcessKnob, RingId, RingNapi, Setting, since};
use rustix::io::Errno;
use sys::error::{Cause, KernelError};

use super::descriptors::{FdKind, duplicate_if, socket_inode};
use super::pinned::PinnedProcess;

/// The maximum number of attempts to read a ring's fdinfo: the file is empty while the ring's lock is held
/// for a submission.
const FDINFO_READS_MAX: usize = 16;

/// Reads the busy-poll parameters of an io_uring of a running process; `None` if the io_uring does not
/// busy-poll.
///
/// # Errors
/// [`Cause::Gone`] if the process has exited or the descriptor is no longer an io_uring, [`Cause::Absent`] on
/// a kernel that does not report the parameters (before 6.12), [`Cause::Denied`] without permission to
/// inspect the process.
pub fn read_ring_napi(id: &RingId) -> Result<Option<RingNapi>, KernelError> {
    PinnedProcess::reopen(&id.process)
        .and_then(|process| duplicate_if(&process, id.fd, FdKind::IoUring))
        .and_then(|ring| Fdinfo::of(&ring))
        .and_then(|fdinfo| fdinfo.polling()?.dynamic())
        .map_err(|cause| KernelError { what: format!("{id}: napi busy_poll usecs/prefer"), cause })
}

/// Sets the busy-poll parameters of an io_uring of a running process, or turns busy polling off.
///
/// # Errors
/// Those of [`read_ring_napi`]; also [`Cause::Denied`] for a ring that only its own task may change.
pub fn write_ring_napi(id: &RingId, wanted: Option<RingNapi>) -> Result<(), KernelError> {
    PinnedProcess::reopen(&id.process)
        .and_then(|process| duplicate_if(&process, id.fd, FdKind::IoUring))
        .and_then(|ring| {
            Fdinfo::of(&ring)?.polling()?.dynamic()?;
            let done = match wanted {
                Some(napi) => sys::io_uring::register_napi(ring, napi.busy_poll_usecs, napi.prefer_busy_poll),
                None => return end_polling(&ring),
            };
            done.map_err(refusal)
        })
        .map_err(|cause| KernelError {
            what: Setting::Process(ProcessKnob::IoUring(*id, wanted)).to_string(),
            cause,
        })
}

/// Ends a ring's busy polling permanently.
///
/// Unregistering alone is not enough: the NAPIs that the ring has found stay in its list, and as long as the
/// list is not empty, each wait polls the NAPIs once. They expire only after 60 times `SEC_CONVERSION`
/// jiffies, which is years. Registering with static tracking, in which the application names the NAPIs,
/// empties the list and stops the ring from adding NAPIs itself. A request that was looking up its NAPI at
/// the same time may still have added it, so the list is emptied twice.
///
/// Kernel: 6.17, `io_uring/napi.c` `io_unregister_napi()`, `dynamic_tracking_do_busy_loop()`,
/// `io_napi_register_napi()`, `__io_napi_add_id()`, and `io_uring/napi.h` `io_napi()`. 7.3 empties the list
/// when it unregisters, and checks under the list's lock whether a NAPI may still be added.
fn end_polling(ring: &OwnedFd) -> Result<(), Cause> {
    if !sys::io_uring::tracks_by_name(ring).map_err(refusal)? {
        return Err(forgets_no_napi());
    }
    for _ in 0..2 {
        sys::io_uring::register_no_napi(ring).map_err(refusal)?;
    }
    sys::io_uring::unregister_napi(ring).map_err(refusal)
}

/// Returns the error for a ring that cannot be made to stop polling.
fn forgets_no_napi() -> Cause {
    Cause::Absent {
        needs: "IO_URING_NAPI_TRACKING_STATIC: without it a ring that has polled once continues to poll, even after IORING_UNREGISTER_NAPI"
            .to_owned(),
        since: Some(since::RING_NAPI_STATIC),
    }
}

/// Returns why a ring's busy polling cannot be set and restored from outside; `None` if it can.
fn why_closed(ring: &OwnedFd, napi: Option<RingNapi>) -> Option<Cause> {
    if let Err(errno) = sys::io_uring::probe(ring) {
        return Some(refusal(errno));
    }
    match sys::io_uring::tracks_by_name(ring) {
        Ok(true) => None,
        // netpolicy later restores the values of a ring that already polls, so that ring never has to stop
        // polling.
        Ok(false) => napi.is_none().then(forgets_no_napi),
        Err(errno) => Some(refusal(errno)),
    }
}

/// The attributes of an io_uring that can be read without changing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    /// The busy-poll parameters.
    pub(crate) napi: Option<RingNapi>,
    /// The number of the io_uring's registered files that are sockets.
    pub(crate) registered_sockets: usize,
    /// Why the io_uring's busy polling cannot be set from outside; `None` if it can.
    pub(crate) closed: Option<String>,
}

/// Observes an io_uring of a process.
pub(crate) fn observed(process: &PinnedProcess, fd: Fd) -> Result<Observed, Cause> {
    let ring = duplicate_if(process, fd, FdKind::IoUring)?;
    let fdinfo = Fdinfo::of(&ring)?;
    let (napi, closed) = match fdinfo.polling().and_then(Polling::dynamic) {
        Ok(napi) => (napi, why_closed(&ring, napi)),
        Err(cause) => (None, Some(cause)),
    };
    let closed = closed.map(|cause| cause.to_string());
    Ok(Observed { napi, registered_sockets: fdinfo.registered_sockets(), closed })
}

/// Converts a ring's error.
///
/// Kernel: 6.18, `io_uring/register.c` `__io_uring_register()`, `io_uring/napi.c` `io_register_napi()`.
fn refusal(errno: Errno) -> Cause {
    let needs = match errno {
        Errno::EXIST => {
            "a ring without IORING_SETUP_SINGLE_ISSUER: only the task that created this ring may change it"
        }
        Errno::ACCESS => "a ring whose restrictions allow it",
        Errno::INVAL => {
            return Cause::Absent {
                needs: "IORING_REGISTER_NAPI, and a ring without IORING_SETUP_IOPOLL".to_owned(),
                since: Some(since::RING_NAPI),
            };
        }
        Errno::OPNOTSUPP => {
            return Cause::Absent { needs: "CONFIG_NET_RX_BUSY_POLL".to_owned(), since: None };
        }
        other => return Cause::Errno(other),
    };
    Cause::Denied { errno, needs: needs.to_owned() }
}

/// The text of an io_uring's fdinfo.
///
/// Kernel: 6.18, `io_uring/fdinfo.c` `__io_uring_show_fdinfo()`.
struct Fdinfo(String);

/// How a ring finds the NAPIs that it polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polling {
    /// The ring does not poll.
    Off,
    /// The ring polls the NAPIs from which its sockets receive.
    Dynamic(RingNapi),
    /// The ring polls the NAPIs that its application names. Kernel: 6.13, `IO_URING_NAPI_TRACKING_STATIC`.
    Static,
}

impl Fdinfo {
    /// Reads the fdinfo of one of our own descriptors.
    fn of(ring: &OwnedFd) -> Result<Self, Cause> {
        let path = format!("/proc/self/fdinfo/{}", ring.as_raw_fd());
        for _ in 0..FDINFO_READS_MAX {
            let text = std::fs::read(&path).map_err(|error| KernelError::io(path.as_str(), &error).cause)?;
            let fdinfo = Self(String::from_utf8_lossy(&text).into_owned());
            if fdinfo.value("SqMask").is_some() {
                return Ok(fdinfo);
            }
            std::thread::yield_now();
        }
        Err(Cause::Errno(Errno::BUSY))
    }

    /// Returns the text after `name` and a colon in the fdinfo.
    fn value(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    /// Returns how the ring finds the NAPIs that it polls.
    fn polling(&self) -> Result<Polling, Cause> {
        let malformed = |name: &str| Cause::Malformed(format!("{name} in an io_uring's fdinfo"));
        match (self.value("NAPI"), self.value("napi tracking")) {
            (None, _) => Err(Cause::Absent {
                needs: "the NAPI lines of an io_uring's fdinfo".to_owned(),
                since: Some(since::RING_NAPI_SHOWN),
            }),
            (Some("disabled"), _) => Ok(Polling::Off),
            (Some("enabled"), Some("static")) => Ok(Polling::Static),
            (Some("enabled"), _) => {
                let nanoseconds = self.value("napi_busy_poll_dt").and_then(|value| value.parse::<u64>().ok());
                let busy_poll_usecs = nanoseconds.and_then(|ns| u32::try_from(ns / 1_000).ok());
                Ok(Polling::Dynamic(RingNapi {
                    busy_poll_usecs: busy_poll_usecs.ok_or_else(|| malformed("napi_busy_poll_dt"))?,
                    prefer_busy_poll: self.value("napi_prefer_busy_poll") == Some("true"),
                }))
            }
            (Some(_), _) => Err(malformed("NAPI")),
        }
    }

    /// Returns the number of registered files that are sockets: the lines `INDEX: socket:[INODE]` below
    /// `UserFiles`.
    fn registered_sockets(&self) -> usize {
        let below = self.0.lines().skip_while(|line| !line.starts_with("UserFiles:")).skip(1);
        let files = below.take_while(|line| line.starts_with(' '));
        let links = files.filter_map(|line| line.split_once(": "));
        links.filter(|(_, link)| socket_inode(link.trim().as_bytes()).is_some()).count()
    }
}

impl Polling {
    /// Returns those busy-poll parameters that can be set, and restored, from outside.
    fn dynamic(self) -> Result<Option<RingNapi>, Cause> {
        match self {
            Self::Off => Ok(None),
            Self::Dynamic(napi) => Ok(Some(napi)),
            Self::Static => Err(Cause::Absent {
                needs: "a ring that finds its NAPIs itself: the application names the NAPIs of this ring"
                    .to_owned(),
                since: None,
            }),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn fdinfo(napi: &str) -> Fdinfo {
        Fdinfo(format!(
            "pos:\t0\nSqMask:\t0x7\nSQEs:\t0\nUserFiles:\t3\n    0: socket:[35845]\n    1: /srv/a b\n    2: <none>\n\
             UserBufs:\t1\n    0: 0x1/1\nPollList:\nCqOverflowList:\n{napi}"
        ))
    }

    #[test]
    fn a_rings_busy_polling_is_read_in_microseconds() {
        let napi = "NAPI:\tenabled\nnapi tracking:\tdynamic\nnapi_busy_poll_dt:\t64000\nnapi_prefer_busy_poll:\ttrue\n";
        let expected = RingNapi { busy_poll_usecs: 64, prefer_busy_poll: true };
        assert_eq!(fdinfo(napi).polling(), Ok(Polling::Dynamic(expected)));
        let before_tracking = "NAPI:\tenabled\nnapi_busy_poll_dt:\t64000\nnapi_prefer_busy_poll:\tfalse\n";
        let expected = RingNapi { busy_poll_usecs: 64, prefer_busy_poll: false };
        assert_eq!(fdinfo(before_tracking).polling(), Ok(Polling::Dynamic(expected)));
        assert_eq!(fdinfo("NAPI:\tdisabled\n").polling(), Ok(Polling::Off));
    }

    #[test]
    fn a_ring_whose_polling_could_not_be_put_back_is_closed() {
        let named = "NAPI:\tenabled\nnapi tracking:\tstatic\nnapi_busy_poll_dt:\t1\n";
        assert!(fdinfo(named).polling().and_then(Polling::dynamic).is_err());
        assert!(matches!(fdinfo("").polling(), Err(Cause::Absent { .. })));
    }

    #[test]
    fn registered_sockets_are_counted_among_the_registered_files() {
        assert_eq!(fdinfo("").registered_sockets(), 1);
    }
}
