//! What of `ethtool` has no netlink on all kernels: the receive hash and its contexts, rules for single flows, and the
//! interrupt moderation of single queues.
//!
//! Contexts have a netlink too, since 6.17; the ioctl makes and removes them on every kernel that has any.
//!
//! An ioctl takes a device by name, so a caller with an index looks up the name immediately before the call.

mod rule;

use std::os::fd::OwnedFd;

use model::host::{Coalesce, PlacedRule, RssContext};
use model::nic::Rss;
use model::{FlowMatch, QueueCoalesceParam, QueueSpan, SteerTo};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sys::error::{Errno, KernelError};

/// The highest id of a context that is looked for. Ids are the lowest that are free, or of the driver's choice.
/// Kernel: 6.18, the drivers with most contexts have 64 (`drivers/net/ethernet/sfc/`).
const CONTEXTS_MAX: u32 = 64;

/// How many rules of one device are read; each is a call. Kernel: the largest tables have some thousands of places.
const RULES_MAX: u32 = 8192;

/// How often rules are listed again because there were more of them meanwhile.
const RETRIES_MAX: usize = 4;

/// In the size of a table of rules: the driver can choose the place itself. Kernel: `RX_CLS_LOC_SPECIAL`.
const CHOOSES_PLACE: u32 = 1 << 31;

/// The place of a rule whose driver shall choose it. Kernel: `RX_CLS_LOC_ANY`.
const ANY_PLACE: u32 = u32::MAX;

/// A socket of one namespace, for ioctls about its devices.
#[derive(Debug)]
pub(crate) struct EthtoolIoctl {
    socket: OwnedFd,
}

impl EthtoolIoctl {
    /// In the calling thread's namespace. It is a socket of AF_UNIX, which answers ethtool as any other and sends no packet.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn open_here() -> Result<Self, KernelError> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|errno| KernelError::errno("socket for ethtool ioctls", errno))?;
        Ok(Self { socket })
    }

    /// How a device spreads packets by their hash; `None` where its driver does not say.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn rss(&self, device: &str) -> Result<Option<Rss>, KernelError> {
        match sys::ethtool::rss(&self.socket, device, 0) {
            Ok(raw) if raw.table.is_empty() && raw.key.is_empty() => Ok(None),
            Ok(raw) => Ok(Some(Rss { table: raw.table, key: raw.key })),
            Err(Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(failed(device, "ioctl ETHTOOL_GRSSH", errno)),
        }
    }

    /// Changes the indirection table, the key, or both, in one call. A table that is what the kernel itself would make
    /// is requested as such: written out, it would count as the user's, and bind the number of queues.
    ///
    /// Kernel: 6.18, `net/ethtool/ioctl.c` `ethtool_rxfh_indir_default()`, `netif_is_rxfh_configured()`.
    ///
    /// # Errors
    /// The kernel's refusal; EINVAL if a length is not that of the device's own.
    pub(crate) fn set_rss(
        &self,
        device: &str,
        table: Option<&[u32]>,
        key: Option<&[u8]>,
    ) -> Result<(), KernelError> {
        use sys::ethtool::Table;
        let set = || {
            let table = match table {
                None => Table::Keep,
                Some(table) if is_default(table, sys::ethtool::rx_rings(&self.socket, device)) => {
                    Table::Reset
                }
                Some(table) => Table::Set(table),
            };
            sys::ethtool::set_rss(&self.socket, device, table, key)
        };
        set().map_err(|errno| failed(device, "ioctl ETHTOOL_SRSSH", errno).needing("CAP_NET_ADMIN"))
    }

    /// The contexts of the receive hash beside the device's own, by id; `None` where the driver has none.
    ///
    /// # Errors
    /// The kernel's refusal.
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
                // Before 6.11 drivers themselves say which contexts there are, and in one of these two words.
                Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(failed(device, "ioctl ETHTOOL_GRSSH of a context", errno)),
            }
        }
        Ok(Some(contexts))
    }

    /// Makes a context that spreads packets evenly over these queues.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn create_rss_context(&self, device: &str, queues: QueueSpan) -> Result<(), KernelError> {
        const WHAT: &str = "ioctl ETHTOOL_SRSSH of a new context";
        let refused = |errno| failed(device, WHAT, errno).needing("CAP_NET_ADMIN");
        let own = sys::ethtool::rss(&self.socket, device, 0).map_err(refused)?;
        let table = queues.table(own.table.len());
        let id = sys::ethtool::create_rss_context(&self.socket, device, &table).map_err(refused)?;
        // What is not found again by its queues could not be removed later.
        let made = sys::ethtool::rss(&self.socket, device, id).map_err(refused)?;
        let why = if id > CONTEXTS_MAX {
            format!("it would be context {id}, and none above {CONTEXTS_MAX} is found again")
        } else if made.table != table {
            "the driver created a context with another table than requested".to_owned()
        } else {
            return Ok(());
        };
        sys::ethtool::delete_rss_context(&self.socket, device, id).map_err(refused)?;
        Err(KernelError::malformed(WHAT, format!("{why}; it was removed")))
    }

    /// Removes a context.
    ///
    /// # Errors
    /// The kernel's refusal; EBUSY while a rule leads to it.
    pub(crate) fn delete_rss_context(&self, device: &str, id: u32) -> Result<(), KernelError> {
        sys::ethtool::delete_rss_context(&self.socket, device, id).map_err(|errno| {
            failed(device, "ioctl ETHTOOL_SRSSH to remove a context", errno).needing("CAP_NET_ADMIN")
        })
    }

    /// The rules of a device for single flows, by place; `None` where its driver has none. Contexts are needed to say
    /// which queues a rule leads to.
    ///
    /// # Errors
    /// The kernel's refusal; [`sys::Cause::Malformed`] if there are more than can be read.
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
                // Many drivers answer what they do not know with EINVAL.
                Err(Errno::OPNOTSUPP | Errno::INVAL) => return Ok(None),
                Err(errno) => return Err(refused(errno)),
            };
            if count > RULES_MAX {
                let why = format!("{count} rules, and no more than {RULES_MAX} are read");
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
                // It went away meanwhile.
                Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(refused(errno)),
            }
        }
        rules.sort_by_key(|rule| rule.location);
        Ok(Some(rules))
    }

    /// Makes, changes or removes (`None`) the rule for a flow.
    ///
    /// # Errors
    /// The kernel's refusal; [`sys::Cause::Malformed`] where it cannot be said which rule or context is meant.
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
                    let why =
                        format!("rules {many:?} are for that flow, and which of them is meant is not known");
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
            // Some drivers take no rule for a flow that has one, even in its place (igb_add_ethtool_nfc_entry()).
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

    /// Where a new rule goes: where the driver likes, else the last free place, as `ethtool` does.
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

/// Whether a table is what the kernel makes by itself for a device with so many queues.
fn is_default(table: &[u32], rings: Result<u32, Errno>) -> bool {
    rings.is_ok_and(|rings| rings > 0 && QueueSpan { first: 0, count: rings }.table(table.len()) == table)
}

fn failed(device: &str, what: &str, errno: Errno) -> KernelError {
    match errno {
        Errno::NODEV => KernelError::gone(device, "no device has this name any more"),
        errno => KernelError::errno(what, errno),
    }
}

/// Where a value is in `struct ethtool_coalesce`, in words of 32 bits.
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
