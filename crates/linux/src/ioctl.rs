//! What of `ethtool` has no netlink on all kernels: the receive hash and the interrupt moderation of single queues.
//!
//! An ioctl names its device by name, so the name is asked for at the moment of use by whoever holds an index.

use std::os::fd::OwnedFd;

use model::CoalesceParam;
use model::host::Coalesce;
use model::nic::Rss;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{Errno, KernelError};
use crate::sys;

/// A socket of one namespace, for ioctls about its devices.
#[derive(Debug)]
pub(crate) struct EthtoolIoctl {
    socket: OwnedFd,
}

impl EthtoolIoctl {
    /// In the calling thread's namespace.
    ///
    /// # Errors
    /// On kernels without IPv4.
    pub(crate) fn open_here() -> Result<Self, KernelError> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|errno| KernelError::errno("socket for ethtool ioctls", errno))?;
        Ok(Self { socket })
    }

    /// How a device spreads packets by their hash; `None` where its driver does not say.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn rss(&self, device: &str) -> Result<Option<Rss>, KernelError> {
        match sys::ethtool::rss(&self.socket, device) {
            Ok(raw) if raw.table.is_empty() && raw.key.is_empty() => Ok(None),
            Ok(raw) => Ok(Some(Rss { table: raw.table, key: raw.key })),
            Err(Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(failed(device, "ioctl ETHTOOL_GRSSH", errno)),
        }
    }

    /// Changes the indirection table, the key, or both, in one call.
    ///
    /// # Errors
    /// The kernel's refusal; EINVAL if a length is not that of the device's own.
    pub(crate) fn set_rss(
        &self,
        device: &str,
        table: Option<&[u32]>,
        key: Option<&[u8]>,
    ) -> Result<(), KernelError> {
        sys::ethtool::set_rss(&self.socket, device, table, key)
            .map_err(|errno| failed(device, "ioctl ETHTOOL_SRSSH", errno).needing("CAP_NET_ADMIN"))
    }

    /// The interrupt moderation of a device's first queues; `None` where its driver has none for single queues.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn queue_coalesce(
        &self,
        device: &str,
        queues: usize,
    ) -> Result<Option<Vec<Coalesce>>, KernelError> {
        let queues = queues.min(sys::ethtool::QUEUES_MAX);
        match sys::ethtool::queue_coalesce(&self.socket, device, queues) {
            Ok(raw) => Ok(Some(raw.iter().map(coalesce).collect())),
            // Drivers that know fewer queues than there are refuse the whole question with EINVAL.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(None),
            Err(errno) => Err(failed(device, "ioctl ETHTOOL_PERQUEUE", errno)),
        }
    }

    /// Changes values of one queue's interrupt moderation, in one call.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn set_queue_coalesce(
        &self,
        device: &str,
        queue: usize,
        to: &[(CoalesceParam, u32)],
    ) -> Result<(), KernelError> {
        let tell = || {
            let mut now = sys::ethtool::queue_coalesce(&self.socket, device, queue + 1)?;
            let mut words = now.pop().ok_or(Errno::INVAL)?;
            for &(param, value) in to {
                words[word(param).ok_or(Errno::OPNOTSUPP)?] = value;
            }
            sys::ethtool::set_queue_coalesce(&self.socket, device, queue, &words)
        };
        tell().map_err(|errno| failed(device, "ioctl ETHTOOL_PERQUEUE", errno).needing("CAP_NET_ADMIN"))
    }
}

fn failed(device: &str, what: &str, errno: Errno) -> KernelError {
    match errno {
        Errno::NODEV => KernelError::gone(device, "no device has this name any more"),
        errno => KernelError::errno(what, errno),
    }
}

/// Where a value is in `struct ethtool_coalesce`; the modes of the timers are netlink only.
const fn word(param: CoalesceParam) -> Option<usize> {
    match param {
        CoalesceParam::RxUsecs => Some(1),
        CoalesceParam::RxMaxFrames => Some(2),
        CoalesceParam::TxUsecs => Some(5),
        CoalesceParam::TxMaxFrames => Some(6),
        CoalesceParam::AdaptiveRx => Some(10),
        CoalesceParam::AdaptiveTx => Some(11),
        CoalesceParam::CqeModeRx | CoalesceParam::CqeModeTx => None,
    }
}

fn coalesce(words: &[u32; sys::ethtool::COALESCE_WORDS]) -> Coalesce {
    let of = |param| word(param).map(|at| words[at]);
    Coalesce {
        rx_usecs: of(CoalesceParam::RxUsecs),
        rx_max_frames: of(CoalesceParam::RxMaxFrames),
        tx_usecs: of(CoalesceParam::TxUsecs),
        tx_max_frames: of(CoalesceParam::TxMaxFrames),
        adaptive_rx: of(CoalesceParam::AdaptiveRx).map(|value| value != 0),
        adaptive_tx: of(CoalesceParam::AdaptiveTx).map(|value| value != 0),
        cqe_mode_rx: None,
        cqe_mode_tx: None,
    }
}
