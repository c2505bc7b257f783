//! The features of `ethtool` that have no netlink interface on all kernels: the receive hash and its
//! contexts, ntuple rules, and the interrupt moderation of individual queues.
//!
//! Contexts also have a netlink interface since 6.17; the ioctl creates and removes contexts on every kernel
//! that supports them.
//!
//! An ioctl identifies a device by name, so a caller that has an index looks up the name immediately before
//! the call.

mod rule;

use std::os::fd::OwnedFd;

use model::host::{Coalesce, PlacedRule, RssContext};
use model::nic::Rss;
use model::{DriverInfo, FlowMatch, QueueCoalesceParam, QueueSpan, SteerTo};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sys::error::{Errno, KernelError};

/// The highest context id that is tried. A new context gets the lowest free id, or one that the driver
/// chooses. Kernel: 6.18, no driver has more than 64 contexts (`drivers/net/ethernet/sfc/`).
const CONTEXTS_MAX: u32 = 64;

/// The maximum number of rules of a device that are read; each rule takes a call. Kernel: the largest tables
/// have a few thousand locations.
const RULES_MAX: u32 = 8192;

/// The maximum number of attempts to list the rules if other programs add rules in the meantime.
const RETRIES_MAX: usize = 4;

/// This bit is set in the rule table's size if the driver can choose a location itself. Kernel:
/// `RX_CLS_LOC_SPECIAL`.
const CHOOSES_PLACE: u32 = 1 << 31;

/// The special location that asks the driver to choose one. Kernel: `RX_CLS_LOC_ANY`.
const ANY_PLACE: u32 = u32::MAX;

/// A socket in one namespace, for ioctls about its devices.
#[derive(Debug)]
pub(crate) struct EthtoolIoctl {
    socket: OwnedFd,
}

impl EthtoolIoctl {
    /// Opens the socket in the calling thread's namespace. It is an AF_UNIX socket, which accepts ethtool's
    /// ioctls like any other and sends no packet.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn open_here() -> Result<Self, KernelError> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|errno| KernelError::errno("socket for ethtool ioctls", errno))?;
        Ok(Self { socket })
    }

    /// Reads what a device's driver reports about itself.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn driver(&self, device: &str) -> Result<DriverInfo, KernelError> {
        let read = sys::ethtool::driver_info(&self.socket, device);
        let [driver, version, firmware, bus] =
            read.map_err(|errno| KernelError::errno(format!("{device}: its driver"), errno))?;
        Ok(DriverInfo { driver, version, firmware, bus })
    }

    /// Reads how a device distributes packets by their hash; `None` if its driver does not report it.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn rss(&self, device: &str) -> Result<Option<Rss>, KernelError> {
        match sys::ethtool::rss(&self.socket, device, 0) {
            Ok(raw) if raw.table.is_empty() && raw.key.is_empty() => Ok(None),
            Ok(raw) => Ok(Some(Rss { table: raw.table, key: raw.key })),
            Err(Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(failed(device, "ioctl ETHTOOL_GRSSH", errno)),
        }
    }

    /// Changes the indirection table, the key, or both, in one call. The kernel's default table is requested
    /// by a special form: written out, it would count as the user's table, and would fix the number of
    /// queues.
    ///
    /// Kernel: 6.18, `net/ethtool/ioctl.c` `ethtool_rxfh_indir_default()`, `netif_is_rxfh_configured()`.
    ///
    /// # Errors
    /// The kernel's error; EINVAL if a length differs from the device's own.
    pub(crate) fn set_rss(
        &self,
        device: &str,
        table: Option<&[u32]>,
        key: Option<&[u8]>,
    ) -> Result<(), KernelError> {
        use sys::ethtool::RssTableChange;
        let set = || {
            let table = match table {
                None => RssTableChange::Keep,
                Some(table) if is_default(table, sys::ethtool::rx_rings(&self.socket, device)) => {
                    RssTableChange::Reset
                }
                Some(table) => RssTableChange::Set(table),
            };
            sys::ethtool::set_rss(&self.socket, device, table, key)
        };
        set().map_err(|errno| failed(device, "ioctl ETHTOOL_SRSSH", errno).needing("CAP_NET_ADMIN"))
    }

    /// Lists the RSS contexts other than the device's default context, by id; `None` if the driver does not
    /// support them.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn rss_contexts(&self, device: &str) -> Result<Option<Vec<RssContext>>, KernelError> {
        let mut contexts = Vec::new();
        for id in 1..=CONTEXTS_MAX {
            match sys::ethtool::rss(&self.socket, device, id) {
                Ok(raw) => contexts.push(RssContext {
                    id,
                    queues: QueueSpan::of_table(&raw.table),
                    table: raw.table,
                }),
                Err(Errno::OPNOTSUPP) => return Ok(None),
                // Before 6.11 the driver returns one of these two errors if a context does not exist.
                Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(failed(device, "ioctl ETHTOOL_GRSSH of a context", errno)),
            }
        }
        Ok(Some(contexts))
    }

    /// Creates a context that distributes packets evenly over these queues.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn create_rss_context(&self, device: &str, queues: QueueSpan) -> Result<(), KernelError> {
        const WHAT: &str = "ioctl ETHTOOL_SRSSH of a new context";
        let refused = |errno| failed(device, WHAT, errno).needing("CAP_NET_ADMIN");
        let own = sys::ethtool::rss(&self.socket, device, 0).map_err(refused)?;
        let table = queues.table(own.table.len());
        let id = sys::ethtool::create_rss_context(&self.socket, device, &table).map_err(refused)?;
        // Remove a context that cannot be found again by its queues: it could not be removed later.
        let made = sys::ethtool::rss(&self.socket, device, id).map_err(refused)?;
        let why = if id > CONTEXTS_MAX {
            format!("it is context {id}, and contexts above {CONTEXTS_MAX} cannot be found again")
        } else if made.table != table {
            "the driver created a context with a table other than the requested one".to_owned()
        } else {
            return Ok(());
        };
        sys::ethtool::delete_rss_context(&self.socket, device, id).map_err(refused)?;
        Err(KernelError::malformed(WHAT, format!("{why}; it was removed")))
    }

    /// Removes a context.
    ///
    /// # Errors
    /// The kernel's error; EBUSY while a rule refers to it.
    pub(crate) fn delete_rss_context(&self, device: &str, id: u32) -> Result<(), KernelError> {
        sys::ethtool::delete_rss_context(&self.socket, device, id).map_err(|errno| {
            failed(device, "ioctl ETHTOOL_SRSSH to remove a context", errno).needing("CAP_NET_ADMIN")
        })
    }

    /// Lists the ntuple rules of a device, by location; `None` if its driver does not support them.
    /// `contexts` supplies the queues of rules that lead to a context.
    ///
    /// # Errors
    /// The kernel's error; [`sys::Cause::Malformed`] if there are more than can be read.
    pub(crate) fn flow_rules(
        &self,
        device: &str,
        contexts: &[RssContext],
    ) -> Result<Option<Vec<PlacedRule>>, KernelError> {
        let refused = |errno| failed(device, "ioctl ETHTOOL_GRXCLSRLALL", errno);
        let mut retries = 0;
        let locations = loop {
            let count = match sys::ethtool::rules_count(&self.socket, device) {
                Ok((0, _)) => return Ok(Some(Vec::new())),
                Ok((count, _)) => count,
                // Many drivers answer an unknown command with EINVAL.
                Err(Errno::OPNOTSUPP | Errno::INVAL) => return Ok(None),
                Err(errno) => return Err(refused(errno)),
            };
            if count > RULES_MAX {
                let why = format!("{count} rules; at most {RULES_MAX} can be read");
                return Err(KernelError::malformed("ioctl ETHTOOL_GRXCLSRLCNT", why));
            }
            match sys::ethtool::rule_locations(&self.socket, device, count) {
                Ok((locations, _)) => break locations,
                Err(Errno::MSGSIZE) if retries < RETRIES_MAX => retries += 1,
                Err(errno) => return Err(refused(errno)),
            }
        };
        let mut rules = Vec::with_capacity(locations.len());
        for location in locations {
            match sys::ethtool::rule(&self.socket, device, location) {
                Ok(raw) => rules.push(rule::read(location, &raw, contexts)),
                // The rule was removed in the meantime.
                Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(refused(errno)),
            }
        }
        rules.sort_by_key(|rule| rule.location);
        Ok(Some(rules))
    }

    /// Creates or changes the rule for a flow, or removes it if `to` is `None`.
    ///
    /// # Errors
    /// The kernel's error; [`sys::Cause::Malformed`] if the rule or context cannot be determined.
    pub(crate) fn set_flow_rule(
        &self,
        device: &str,
        flow: FlowMatch,
        to: Option<SteerTo>,
    ) -> Result<(), KernelError> {
        const WHAT: &str = "ioctl ETHTOOL_SRXCLSRLINS";
        let contexts = self.rss_contexts(device)?.unwrap_or_default();
        let rules =
            self.flow_rules(device, &contexts)?.ok_or_else(|| failed(device, WHAT, Errno::OPNOTSUPP))?;
        let own: Vec<u32> =
            rules.iter().filter(|rule| rule.flow == Some(flow)).map(|rule| rule.location).collect();
        let Some(to) = to else {
            return match own.as_slice() {
                [] => Ok(()),
                [location] => self.delete_rule(device, *location),
                many => {
                    let why = format!("several rules are for that flow: {many:?}");
                    Err(KernelError::malformed("ioctl ETHTOOL_SRXCLSRLDEL", why))
                }
            };
        };
        let place = match own.first() {
            Some(location) => *location,
            None => self.free_place(device, &rules)?,
        };
        let words =
            rule::write(flow, to, place, &contexts).map_err(|why| KernelError::malformed(WHAT, why))?;
        let insert = || sys::ethtool::insert_rule(&self.socket, device, &words);
        let inserted = match insert() {
            // Some drivers accept no second rule for a flow, even to replace the first one
            // (igb_add_ethtool_nfc_entry()).
            Err(Errno::EXIST) if !own.is_empty() => {
                self.delete_rule(device, place)?;
                insert()
            }
            inserted => inserted,
        };
        inserted.map(|_| ()).map_err(|errno| failed(device, WHAT, errno).needing("CAP_NET_ADMIN"))
    }

    fn delete_rule(&self, device: &str, location: u32) -> Result<(), KernelError> {
        sys::ethtool::delete_rule(&self.socket, device, location)
            .map_err(|errno| failed(device, "ioctl ETHTOOL_SRXCLSRLDEL", errno).needing("CAP_NET_ADMIN"))
    }

    /// Returns the location for a new rule: one that the driver chooses or, if the driver cannot choose, the
    /// last free location, as in `ethtool`.
    fn free_place(&self, device: &str, rules: &[PlacedRule]) -> Result<u32, KernelError> {
        let refused = |errno| failed(device, "ioctl ETHTOOL_GRXCLSRLALL", errno);
        let (count, flags) = sys::ethtool::rules_count(&self.socket, device).map_err(refused)?;
        if flags & CHOOSES_PLACE != 0 {
            return Ok(ANY_PLACE);
        }
        let (_, size) = sys::ethtool::rule_locations(&self.socket, device, count).map_err(refused)?;
        let free =
            (0..size.min(RULES_MAX)).rev().find(|place| rules.iter().all(|rule| rule.location != *place));
        free.ok_or_else(|| refused(Errno::NOSPC))
    }

    /// Reads the interrupt moderation of a device's first queues; `None` if its driver has no moderation per
    /// queue.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn queue_coalesce(
        &self,
        device: &str,
        queues: usize,
    ) -> Result<Option<Vec<Coalesce>>, KernelError> {
        let queues = queues.min(sys::ethtool::QUEUES_MAX);
        match sys::ethtool::queue_coalesce(&self.socket, device, queues) {
            Ok(raw) => Ok(Some(raw.iter().map(coalesce).collect())),
            // Drivers that know fewer queues than requested reject the whole request with EINVAL.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(None),
            Err(errno) => Err(failed(device, "ioctl ETHTOOL_PERQUEUE", errno)),
        }
    }

    /// Changes values of one queue's interrupt moderation, in one call.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn set_queue_coalesce(
        &self,
        device: &str,
        queue: usize,
        to: &[(QueueCoalesceParam, u32)],
    ) -> Result<(), KernelError> {
        let set = || {
            let mut now = sys::ethtool::queue_coalesce(&self.socket, device, queue + 1)?;
            let mut words = now.pop().ok_or(Errno::INVAL)?;
            for &(param, value) in to {
                words[word(param)] = value;
            }
            sys::ethtool::set_queue_coalesce(&self.socket, device, queue, &words)
        };
        set().map_err(|errno| failed(device, "ioctl ETHTOOL_PERQUEUE", errno).needing("CAP_NET_ADMIN"))
    }
}

/// Whether a table is the kernel's default for a device with this many queues.
fn is_default(table: &[u32], rings: Result<u32, Errno>) -> bool {
    rings.is_ok_and(|rings| rings > 0 && QueueSpan { first: 0, count: rings }.table(table.len()) == table)
}

fn failed(device: &str, what: &str, errno: Errno) -> KernelError {
    match errno {
        Errno::NODEV => KernelError::gone(device, "no device has this name any more"),
        errno => KernelError::errno(what, errno),
    }
}

/// Returns the index of a parameter in `struct ethtool_coalesce`, in words of 32 bits.
const fn word(param: QueueCoalesceParam) -> usize {
    match param {
        QueueCoalesceParam::RxUsecs => 1,
        QueueCoalesceParam::RxMaxFrames => 2,
        QueueCoalesceParam::TxUsecs => 5,
        QueueCoalesceParam::TxMaxFrames => 6,
        QueueCoalesceParam::AdaptiveRx => 10,
        QueueCoalesceParam::AdaptiveTx => 11,
    }
}

fn coalesce(words: &[u32; sys::ethtool::COALESCE_WORDS]) -> Coalesce {
    let of = |param| words[word(param)];
    Coalesce {
        rx_usecs: Some(of(QueueCoalesceParam::RxUsecs)),
        rx_max_frames: Some(of(QueueCoalesceParam::RxMaxFrames)),
        tx_usecs: Some(of(QueueCoalesceParam::TxUsecs)),
        tx_max_frames: Some(of(QueueCoalesceParam::TxMaxFrames)),
        adaptive_rx: Some(of(QueueCoalesceParam::AdaptiveRx) != 0),
        adaptive_tx: Some(of(QueueCoalesceParam::AdaptiveTx) != 0),
        cqe_mode_rx: None,
        cqe_mode_tx: None,
    }
}
