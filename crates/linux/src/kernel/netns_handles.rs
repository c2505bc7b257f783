//! The sockets and files for reading and writing settings of one network namespace. Names and ids are looked
//! up at each use.

use std::collections::{BTreeMap, BTreeSet};

use model::host::QueueHolder;
use model::{DeviceId, IfIndex, NapiId, RxQueue};
use netlink::netdev::{NapiChange, NapiRefused, QueueType, RawNapi, RawQueue};
use netlink::qdisc::{Disciplines, QdiscDefaults};
use netlink::xdp_diag::XdpSockets;
use netlink::{Ethtool, Links, Netdev};
use sys::error::{Cause, Errno, KernelError};
use sys::netns::Netns;
use sys::sysfs::{DeviceDir, SysFs};

use crate::ioctl::EthtoolIoctl;
use crate::observe::device::napis_by_order;
use crate::observe::holders::holders;

/// The open sockets and files of one namespace, for reading and writing.
#[derive(Debug)]
pub(super) struct NetnsHandles {
    netns: Netns,
    links: Links,
    /// `Err` contains the reason why the netdev family is unavailable: kernels before 6.3 have only
    /// device-wide settings.
    netdev: Result<Netdev, KernelError>,
    /// Opened when a device-wide setting first needs it.
    sysfs: Option<SysFs>,
    /// Opened when a setting of a NIC or its driver first needs it.
    ethtool: Option<Ethtool>,
    ioctl: Option<EthtoolIoctl>,
    disciplines: Option<Disciplines>,
    /// The NAPIs of devices whose driver does not report the NAPI of each queue, in the order of the queues,
    /// as of the last lookup. Ids are never reused, so an id that still belongs to the device belongs to the
    /// same queue.
    by_order: BTreeMap<IfIndex, Vec<NapiId>>,
}

/// The maximum number of devices whose NAPIs are cached.
const BY_ORDER_MAX: usize = 256;

impl NetnsHandles {
    /// # Errors
    /// Those of [`Netns::enter`].
    pub(super) fn open(netns: Netns) -> Result<Self, KernelError> {
        let (links, netdev) =
            netns.run(|| Ok::<_, KernelError>((Links::open_here()?, Netdev::open_here())))??;
        let (sysfs, ethtool, ioctl, disciplines) = (None, None, None, None);
        Ok(Self { netns, links, netdev, sysfs, ethtool, ioctl, disciplines, by_order: BTreeMap::new() })
    }

    /// The namespace's cookie, unique within this boot; `None` on kernels before 5.14.
    pub(super) fn cookie(&self) -> Option<u64> {
        self.links.netns_cookie()
    }

    /// Changes settings of a NAPI.
    pub(super) fn set_napi(&mut self, id: NapiId, change: &NapiChange) -> Result<(), NapiRefused> {
        let netdev = self.netdev().map_err(|error| NapiRefused { knob: None, cause: error.cause })?;
        netdev.set_napi(id, change)
    }

    fn netdev(&mut self) -> Result<&mut Netdev, KernelError> {
        self.netdev.as_mut().map_err(|error| error.clone())
    }

    /// The namespace's rt-link socket.
    pub(super) fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    /// The namespace's socket for the `ethtool` family.
    pub(super) fn ethtool(&mut self) -> Result<&mut Ethtool, KernelError> {
        match &mut self.ethtool {
            Some(ethtool) => Ok(ethtool),
            closed @ None => Ok(closed.insert(self.netns.run(Ethtool::open_here)??)),
        }
    }

    /// The namespace's socket for ethtool's ioctls.
    pub(super) fn ioctl(&mut self) -> Result<&EthtoolIoctl, KernelError> {
        match &mut self.ioctl {
            Some(ioctl) => Ok(ioctl),
            closed @ None => Ok(closed.insert(self.netns.run(EthtoolIoctl::open_here)??)),
        }
    }

    /// The namespace's qdiscs.
    pub(super) fn disciplines(&mut self) -> Result<&mut Disciplines, KernelError> {
        match &mut self.disciplines {
            Some(disciplines) => Ok(disciplines),
            closed @ None => Ok(closed.insert(self.netns.run(Disciplines::open_here)??)),
        }
    }

    /// Reads the values that determine the default options that the kernel gives a device's qdiscs.
    pub(super) fn defaults(&mut self, device: DeviceId) -> Result<QdiscDefaults, KernelError> {
        let directory = self.directory(device)?;
        let number = |file: &str| {
            let text = directory.read(file)?;
            text.parse().map_err(|_| KernelError::malformed(file, format!("`{text}` is not a number")))
        };
        let (mtu, tx_queue_len) = (number("mtu")?, number("tx_queue_len")?);
        let name = self.name(device)?;
        let queues = self.sysfs()?.list(&format!("class/net/{name}/queues"))?;
        let tx_queues = queues.iter().filter(|queue| queue.starts_with("tx-")).count();
        Ok(QdiscDefaults { mtu, tx_queue_len, tx_queues })
    }

    /// Returns the current name of a device.
    ///
    /// # Errors
    /// [`sys::Cause::Gone`] if the device no longer exists.
    pub(super) fn name(&mut self, device: DeviceId) -> Result<String, KernelError> {
        self.links.name(device.ifindex).map_err(|error| match error.number() {
            Some(Errno::NODEV) => KernelError::gone("rt-link getlink", "no device has its index any longer"),
            _ => error,
        })
    }

    /// Reads the NAPI that currently serves a receive queue, and its settings.
    ///
    /// # Errors
    /// [`sys::Cause::Gone`] if the device no longer exists, [`sys::Cause::Away`] if it has fewer queues now;
    /// [`sys::Cause::Absent`] if the queue has no NAPI, as when the device is down.
    pub(super) fn napi_of(&mut self, queue: RxQueue) -> Result<RawNapi, KernelError> {
        let ifindex = queue.device.ifindex;
        let Some(RawQueue { napi_id: Some(id), .. }) = self.queue(queue)? else {
            return self.napi_by_order(queue);
        };
        let napi = self.netdev()?.napi(NapiId(id))?;
        if napi.ifindex == ifindex.0 {
            Ok(napi)
        } else {
            Err(KernelError::malformed("netdev napi-get", format!("NAPI {id} is of device {}", napi.ifindex)))
        }
    }

    /// Reads what the kernel reports about a receive queue; `None` while its device is down.
    fn queue(&mut self, queue: RxQueue) -> Result<Option<RawQueue>, KernelError> {
        let gone = |why: &str| Err(KernelError::gone("netdev queue-get", why));
        // A removed queue may regain its settings when it is added again: with some drivers the kernel keeps
        // the settings, and other drivers do not recreate the NAPI. Kernel: 6.13, `net/core/dev.c`
        // `napi_restore_config()`, `netif_napi_add_weight_locked()`.
        let fewer = || {
            let why = "the device has fewer queues now; if the queue returns, it may get its settings back";
            Err(KernelError::away("netdev queue-get", why))
        };
        let ifindex = queue.device.ifindex;
        match self.netdev()?.queue(ifindex, QueueType::Rx, queue.index) {
            Err(error) => match error.number() {
                Some(Errno::NODEV) => gone("no device has its index any longer"),
                // In a well-formed request, only the queue's index can be invalid.
                Some(Errno::INVAL) => fewer(),
                Some(Errno::NOENT) if self.links.is_up(ifindex)? => fewer(),
                Some(Errno::NOENT) => Ok(None),
                _ => Err(error),
            },
            found => found,
        }
    }

    /// Lists the current holders of a device's queues. Processes that cannot be identified are omitted.
    ///
    /// # Errors
    /// The kernel's error on listing the device's queues.
    pub(super) fn holders(&mut self, device: DeviceId) -> Result<Vec<QueueHolder>, KernelError> {
        let queues = match self.netdev().and_then(|netdev| netdev.queues(Some(device.ifindex))) {
            // Before 6.8 the kernel lists no queues, but AF_XDP sockets can be listed.
            Err(error) if matches!(error.cause, Cause::Absent { .. }) => Vec::new(),
            listed => listed?,
        };
        let mut sockets = self.netns.run(XdpSockets::open_here)?;
        let netns = self.netns.id();
        let mut unread = Vec::new();
        let sockets = sockets.as_mut().map_err(|error| error.clone());
        let mut found = holders(netns, &queues, sockets, &BTreeMap::new(), &mut unread);
        Ok(found.remove(&device.ifindex.0).unwrap_or_default())
    }

    /// Finds the NAPI of a queue by its position, as [`mod@crate::observe`] does, for drivers that do not
    /// report a queue's NAPI.
    fn napi_by_order(&mut self, queue: RxQueue) -> Result<RawNapi, KernelError> {
        let ifindex = queue.device.ifindex;
        let position = usize::try_from(queue.index.0).unwrap_or(usize::MAX);
        // The NAPIs are cached, because listing all queues for each queue would take quadratic time.
        if let Some(&id) = self.by_order.get(&ifindex).and_then(|ids| ids.get(position)) {
            match self.netdev()?.napi(id) {
                Ok(napi) if napi.ifindex == ifindex.0 => return Ok(napi),
                Ok(_) | Err(_) => self.by_order.remove(&ifindex),
            };
        }
        let queues = self.netdev()?.queues(Some(ifindex))?;
        let rx: Vec<_> = queues.iter().filter(|queue| queue.kind == Some(QueueType::Rx)).collect();
        let any_stated = rx.iter().any(|queue| queue.napi_id.is_some());
        let napis = self.netdev()?.napis(Some(ifindex))?;
        let ids: Vec<NapiId> = napis.iter().map(|napi| NapiId(napi.id)).collect();
        let ordered = napis_by_order(rx.len(), any_stated, &ids);
        let napi = ordered.as_ref().and_then(|_| napis.get(position).copied());
        if ordered.is_some() && self.by_order.len() < BY_ORDER_MAX {
            self.by_order.insert(ifindex, ids.clone());
        }
        napi.ok_or_else(|| {
            let needs = match (rx.len(), ids.len()) {
                (_, 0) => {
                    "a NAPI for the queue; the device has none at present, for example because it is down"
                        .to_owned()
                }
                (queues, napis) => {
                    format!("a NAPI for the queue (the device has {queues} queues and {napis} NAPIs)")
                }
            };
            KernelError::absent("netdev napi-get", needs, None)
        })
    }

    /// Returns the number of receive queues of a device, from sysfs.
    pub(super) fn rx_queues(&mut self, device: DeviceId) -> Result<usize, KernelError> {
        let name = self.name(device)?;
        let queues = self.sysfs()?.list(&format!("class/net/{name}/queues"))?;
        Ok(queues.iter().filter(|queue| queue.starts_with("rx-")).count())
    }

    /// Whether the namespace has a device of this name.
    pub(super) fn has_device_named(&mut self, name: &str) -> bool {
        let devices = self.sysfs().and_then(|sysfs| sysfs.list("class/net"));
        devices.is_ok_and(|devices| devices.iter().any(|device| device == name))
    }

    fn sysfs(&mut self) -> Result<&SysFs, KernelError> {
        match &mut self.sysfs {
            Some(sysfs) => Ok(sysfs),
            closed @ None => Ok(closed.insert(SysFs::open(&self.netns)?)),
        }
    }

    /// Returns the inode number of the device's directory in sysfs, which is unique within this boot. The
    /// number stays the same when the device is renamed or moved. Kernel: 5.5, `fs/kernfs/dir.c`
    /// `__kernfs_new_node()`: 64 bits, never reused.
    ///
    /// # Errors
    /// Those of [`NetnsHandles::directory`].
    pub(super) fn number_of(&mut self, device: DeviceId) -> Result<u64, KernelError> {
        self.directory(device)?.number()
    }

    /// Returns a device's link-layer address, and the kind of a virtual device: together they identify the
    /// device in another namespace. `None` for a device without an address.
    ///
    /// # Errors
    /// Those of [`NetnsHandles::name`].
    pub(super) fn address(&mut self, device: DeviceId) -> Result<Option<String>, KernelError> {
        self.links.identity(device.ifindex)
    }

    /// Finds the device with this [address](NetnsHandles::address) in a namespace that has an id in this
    /// namespace, but to which no file refers. Returns that id, and the device's name in the other namespace.
    ///
    /// # Errors
    /// The kernel's error on listing the ids.
    pub(super) fn elsewhere(&mut self, address: &str) -> Result<Option<(i32, String)>, KernelError> {
        let reachable: BTreeSet<i32> =
            Netns::all().filter_map(|netns| self.links.id_of(&netns).ok()).collect();
        for id in self.links.ids()?.into_iter().filter(|id| !reachable.contains(id)) {
            // A namespace may disappear in the meantime, or deny access.
            let Ok(links) = self.links.identities_in(id) else { continue };
            if let Some((name, _)) = links.into_iter().find(|(_, other)| other.as_deref() == Some(address)) {
                return Ok(Some((id, name)));
            }
        }
        Ok(None)
    }

    /// Opens a device's directory in sysfs, by its current name.
    ///
    /// # Errors
    /// [`sys::Cause::Gone`] if the device no longer exists.
    pub(super) fn directory(&mut self, device: DeviceId) -> Result<DeviceDir, KernelError> {
        let name = self.name(device)?;
        self.sysfs()?.device(&name, device.ifindex)
    }
}
