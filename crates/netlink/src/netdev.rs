//! The `netdev` family: queues, NAPIs, and the settings of NAPIs.
//!
//! Kernel: 6.18, `Documentation/netlink/specs/netdev.yaml`, `include/uapi/linux/netdev.h`, `net/core/netdev-genl.c`.

use model::{EmptyPolls, IfIndex, Nanoseconds, NapiId, NapiKnob, QueueIndex, Threading, since};
use sys::error::{Cause, KernelError};

use super::attr::{AttrBuf, Attrs, Malformed};
use super::genl::{self, GenlFamily};
use super::socket::{NetlinkProtocol, NetlinkSocket};

/// Commands: `NETDEV_CMD_*`.
mod command {
    pub(super) const QUEUE_GET: u8 = 10;
    pub(super) const NAPI_GET: u8 = 11;
    pub(super) const NAPI_SET: u8 = 14;
}

/// Attributes of a queue: `NETDEV_A_QUEUE_*`.
mod queue {
    pub(super) const ID: u16 = 1;
    pub(super) const IFINDEX: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    pub(super) const NAPI_ID: u16 = 4;
    pub(super) const DMABUF: u16 = 5;
    pub(super) const IO_URING: u16 = 6;
    pub(super) const XSK: u16 = 7;
    pub(super) const LEASE: u16 = 8;
}

/// Attributes of an io_uring that is a queue's memory provider: `NETDEV_A_IO_URING_PROVIDER_INFO_*`.
mod io_uring {
    pub(super) const RX_BUF_LEN: u16 = 1;
}

/// Attributes of a lease: `NETDEV_A_LEASE_*`.
mod lease {
    pub(super) const IFINDEX: u16 = 1;
    pub(super) const QUEUE: u16 = 2;
    pub(super) const NETNS_ID: u16 = 3;
}

/// Attributes of a NAPI: `NETDEV_A_NAPI_*`.
mod napi {
    pub(super) const IFINDEX: u16 = 1;
    pub(super) const ID: u16 = 2;
    pub(super) const IRQ: u16 = 3;
    pub(super) const PID: u16 = 4;
    pub(super) const DEFER_HARD_IRQS: u16 = 5;
    pub(super) const GRO_FLUSH_TIMEOUT: u16 = 6;
    pub(super) const IRQ_SUSPEND_TIMEOUT: u16 = 7;
    pub(super) const THREADED: u16 = 8;
}

/// The direction of a queue: `enum netdev_queue_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum QueueType {
    /// Receive.
    Rx = 0,
    /// Transmit.
    Tx = 1,
}

/// A queue of a virtual device that uses a leased queue of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawLease {
    /// The index of the virtual device in its own namespace.
    pub ifindex: u32,
    /// The queue's index on the virtual device.
    pub queue: u32,
    /// The id that the namespace of the netlink socket assigned to the virtual device's namespace; `None` if
    /// both are the same.
    pub netns_id: Option<i32>,
}

impl RawLease {
    fn parse(nested: Attrs<'_>) -> Result<Self, Malformed> {
        let mut raw = Self::default();
        for attr in nested {
            let attr = attr?;
            match attr.number {
                lease::IFINDEX => raw.ifindex = attr.u32()?,
                lease::NETNS_ID => raw.netns_id = Some(attr.i32()?),
                lease::QUEUE => {
                    if let Some(id) = attr.nested().find(queue::ID)? {
                        raw.queue = id.u32()?;
                    }
                }
                _ => {}
            }
        }
        Ok(raw)
    }
}

/// The holder of a queue, as `queue-get` reports it; all fields are `None` or false for an ordinary queue.
///
/// Kernel: 7.3, `net/core/netdev-genl.c` `netdev_nl_queue_fill_one()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawHolders {
    /// The id of the dmabuf binding into which the queue receives packets (since 6.12).
    pub dmabuf: Option<u32>,
    /// `Some` if the queue receives packets into an io_uring's memory (since 6.15). The inner value is the
    /// size of the io_uring's buffers in bytes, if the kernel reports the size.
    pub io_uring: Option<Option<u64>>,
    /// Whether an AF_XDP socket is bound to the queue (since 6.15).
    pub xsk: bool,
    /// The queue of a virtual device to which the NIC's queue is leased (since 7.1).
    pub lease: Option<RawLease>,
}

impl RawHolders {
    /// Whether the queue has no holder.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The reply to `queue-get` for one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawQueue {
    /// The device.
    pub ifindex: u32,
    /// The queue's index.
    pub id: u32,
    /// The direction of the queue; `None` if it is unknown.
    pub kind: Option<QueueType>,
    /// The NAPI that serves the queue, if the driver reports one.
    pub napi_id: Option<u32>,
    /// The holder of the queue.
    pub holders: RawHolders,
}

impl RawQueue {
    /// Parses a reply; `None` for the empty reply about a device that is down.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn parse(object: &[u8]) -> Result<Option<Self>, Malformed> {
        let (mut ifindex, mut id, mut kind, mut napi_id) = (None, None, None, None);
        let mut holders = RawHolders::default();
        for attr in genl::attrs(object)? {
            let attr = attr?;
            match attr.number {
                queue::ID => id = Some(attr.u32()?),
                queue::IFINDEX => ifindex = Some(attr.u32()?),
                queue::TYPE => {
                    let number = attr.u32()?;
                    kind = [QueueType::Rx, QueueType::Tx].into_iter().find(|kind| *kind as u32 == number);
                }
                queue::NAPI_ID => napi_id = Some(attr.u32()?),
                queue::DMABUF => holders.dmabuf = Some(attr.u32()?),
                queue::IO_URING => {
                    let bytes = attr.nested().find(io_uring::RX_BUF_LEN)?;
                    holders.io_uring = Some(bytes.map(|bytes| bytes.uint()).transpose()?);
                }
                queue::XSK => holders.xsk = true,
                queue::LEASE => holders.lease = Some(RawLease::parse(attr.nested())?),
                _ => {}
            }
        }
        Ok(ifindex.zip(id).map(|(ifindex, id)| Self { ifindex, id, kind, napi_id, holders }))
    }
}

/// The reply to `napi-get` for one NAPI; a field is `None` if the kernel or the driver does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawNapi {
    /// The device.
    pub ifindex: u32,
    /// The NAPI's id.
    pub id: u32,
    /// The NAPI's interrupt.
    pub irq: Option<u32>,
    /// The pid of the kernel thread that polls the NAPI.
    pub pid: Option<u32>,
    /// The number of empty polls before the NAPI's interrupt is re-armed (since 6.13).
    pub defer_hard_irqs: Option<u32>,
    /// See [`NapiKnob::GroFlushTimeout`]; in nanoseconds (since 6.13).
    pub gro_flush_timeout: Option<u64>,
    /// See [`NapiKnob::IrqSuspendTimeout`]; in nanoseconds (since 6.13).
    pub irq_suspend_timeout: Option<u64>,
    /// `enum netdev_napi_threaded`: 0 off, 1 on, 2 busy-poll (since 6.17).
    pub threaded: Option<u32>,
}

impl RawNapi {
    /// Parses a reply.
    ///
    /// # Errors
    /// If an attribute is malformed, or the NAPI has no id or no device.
    pub fn parse(object: &[u8]) -> Result<Self, Malformed> {
        let mut raw = Self::default();
        for attr in genl::attrs(object)? {
            let attr = attr?;
            match attr.number {
                napi::IFINDEX => raw.ifindex = attr.u32()?,
                napi::ID => raw.id = attr.u32()?,
                napi::IRQ => raw.irq = Some(attr.u32()?),
                napi::PID => raw.pid = Some(attr.u32()?),
                napi::DEFER_HARD_IRQS => raw.defer_hard_irqs = Some(attr.u32()?),
                napi::GRO_FLUSH_TIMEOUT => raw.gro_flush_timeout = Some(attr.uint()?),
                napi::IRQ_SUSPEND_TIMEOUT => raw.irq_suspend_timeout = Some(attr.uint()?),
                napi::THREADED => raw.threaded = Some(attr.u32()?),
                _ => {}
            }
        }
        if raw.ifindex == 0 || raw.id == 0 {
            return Err(Malformed("a NAPI without an id or without a device"));
        }
        Ok(raw)
    }
}

fn knob(attribute: u16) -> Option<&'static str> {
    match attribute {
        napi::DEFER_HARD_IRQS => Some("defer-hard-irqs"),
        napi::GRO_FLUSH_TIMEOUT => Some("gro-flush-timeout"),
        napi::IRQ_SUSPEND_TIMEOUT => Some("irq-suspend-timeout"),
        napi::THREADED => Some("threaded"),
        _ => None,
    }
}

/// A failed `napi-set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NapiRefused {
    /// The setting that the kernel rejected; `None` if the kernel does not report which.
    pub knob: Option<&'static str>,
    /// The cause.
    pub cause: Cause,
}

/// The settings of one NAPI that one `napi-set` changes; `None` keeps a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiChange {
    /// See [`model::NapiKnob::DeferHardIrqs`].
    pub defer_hard_irqs: Option<EmptyPolls>,
    /// See [`model::NapiKnob::GroFlushTimeout`].
    pub gro_flush_timeout: Option<Nanoseconds>,
    /// See [`model::NapiKnob::IrqSuspendTimeout`].
    pub irq_suspend_timeout: Option<Nanoseconds>,
    /// See [`model::NapiKnob::Threaded`].
    pub threaded: Option<Threading>,
}

impl NapiChange {
    /// Adds the value of this knob to the change.
    pub const fn set(&mut self, knob: &NapiKnob) {
        match knob {
            NapiKnob::DeferHardIrqs(polls) => self.defer_hard_irqs = Some(*polls),
            NapiKnob::GroFlushTimeout(span) => self.gro_flush_timeout = Some(*span),
            NapiKnob::IrqSuspendTimeout(span) => self.irq_suspend_timeout = Some(*span),
            NapiKnob::Threaded(threading) => self.threaded = Some(*threading),
        }
    }

    fn write(&self, id: NapiId, body: &mut AttrBuf) {
        body.u32(napi::ID, id.0);
        if let Some(EmptyPolls(polls)) = self.defer_hard_irqs {
            body.u32(napi::DEFER_HARD_IRQS, polls);
        }
        if let Some(Nanoseconds(span)) = self.gro_flush_timeout {
            body.uint(napi::GRO_FLUSH_TIMEOUT, span);
        }
        if let Some(Nanoseconds(span)) = self.irq_suspend_timeout {
            body.uint(napi::IRQ_SUSPEND_TIMEOUT, span);
        }
        if let Some(threading) = self.threaded {
            body.u32(napi::THREADED, threading.number());
        }
    }
}

/// The attributes that the running kernel's `napi-set` accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiSetTakes {
    /// Whether `napi-set` accepts `irq-suspend-timeout`.
    pub irq_suspend: bool,
    /// Whether `napi-set` accepts `threaded`.
    pub threaded: bool,
    /// Whether `napi-set` accepts the value `busy-poll` for `threaded`.
    pub threaded_busy: bool,
}

/// A socket for the `netdev` family in one namespace.
#[derive(Debug)]
pub struct Netdev {
    socket: NetlinkSocket,
    family: GenlFamily,
}

impl Netdev {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] if the kernel has no `netdev` family.
    pub fn open_here() -> Result<Self, KernelError> {
        let mut socket = NetlinkSocket::open_here(NetlinkProtocol::Generic)?;
        let family = GenlFamily::resolve(&mut socket, "netdev", since::NETDEV)?;
        Ok(Self { socket, family })
    }

    /// Whether the kernel has `napi-set`, which writes settings of a single NAPI.
    pub fn has_napi_set(&self) -> bool {
        self.family.has(command::NAPI_SET)
    }

    /// Returns the attributes that `napi-set` accepts in addition to those of its first version.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub fn napi_set_takes(&mut self) -> Result<NapiSetTakes, KernelError> {
        let accepted = self.family.accepted(&mut self.socket, command::NAPI_SET)?;
        let busy_poll = u64::from(Threading::BusyPoll.number());
        Ok(NapiSetTakes {
            irq_suspend: accepted.contains_key(&napi::IRQ_SUSPEND_TIMEOUT),
            threaded: accepted.contains_key(&napi::THREADED),
            threaded_busy: accepted
                .get(&napi::THREADED)
                .is_some_and(|largest| largest.is_some_and(|largest| largest >= busy_poll)),
        })
    }

    /// Lists the queues of one device, or of all devices that are up.
    ///
    /// # Errors
    /// The kernel's error; ENODEV if the device does not exist.
    pub fn queues(&mut self, of: Option<IfIndex>) -> Result<Vec<RawQueue>, KernelError> {
        self.family.demand(command::QUEUE_GET, "queue-get", since::NAPI_GET)?;
        let mut body = self.family.body(command::QUEUE_GET);
        if let Some(ifindex) = of {
            body.u32(queue::IFINDEX, ifindex.0);
        }
        self.socket.dump("netdev queue-get", self.family.id(), &body, RawQueue::parse)
    }

    /// Gets one queue; `None` if its device is down.
    ///
    /// # Errors
    /// The kernel's error; ENODEV if the device does not exist, ENOENT if it has no such queue.
    pub fn queue(
        &mut self,
        ifindex: IfIndex,
        kind: QueueType,
        index: QueueIndex,
    ) -> Result<Option<RawQueue>, KernelError> {
        self.family.demand(command::QUEUE_GET, "queue-get", since::NAPI_GET)?;
        let mut body = self.family.body(command::QUEUE_GET);
        body.u32(queue::ID, index.0).u32(queue::TYPE, kind as u32).u32(queue::IFINDEX, ifindex.0);
        self.socket.get("netdev queue-get", self.family.id(), &body, RawQueue::parse)
    }

    /// Lists the NAPIs of one device, or of all devices that are up. The NAPIs of each device are in
    /// ascending order of their ids.
    ///
    /// # Errors
    /// The kernel's error; ENODEV if the device does not exist.
    pub fn napis(&mut self, of: Option<IfIndex>) -> Result<Vec<RawNapi>, KernelError> {
        self.family.demand(command::NAPI_GET, "napi-get", since::NAPI_GET)?;
        let mut body = self.family.body(command::NAPI_GET);
        if let Some(ifindex) = of {
            body.u32(napi::IFINDEX, ifindex.0);
        }
        let read = |object: &[u8]| RawNapi::parse(object).map(Some);
        let mut napis = self.socket.dump("netdev napi-get", self.family.id(), &body, read)?;
        napis.sort_by_key(|napi| (napi.ifindex, napi.id));
        Ok(napis)
    }

    /// Gets one NAPI.
    ///
    /// # Errors
    /// The kernel's error; ENOENT if there is no NAPI with this id.
    pub fn napi(&mut self, id: NapiId) -> Result<RawNapi, KernelError> {
        self.family.demand(command::NAPI_GET, "napi-get", since::NAPI_GET)?;
        let mut body = self.family.body(command::NAPI_GET);
        body.u32(napi::ID, id.0);
        self.socket.get("netdev napi-get", self.family.id(), &body, RawNapi::parse)
    }

    /// Changes settings of one NAPI in one message.
    ///
    /// # Errors
    /// The kernel's error, with the rejected setting; [`Cause::Absent`] on kernels without `napi-set`.
    pub fn set_napi(&mut self, id: NapiId, change: &NapiChange) -> Result<(), NapiRefused> {
        if !self.has_napi_set() {
            let needs = "netdev netlink `napi-set`".to_owned();
            return Err(NapiRefused {
                knob: None,
                cause: Cause::Absent { needs, since: Some(since::NAPI_SET) },
            });
        }
        let mut body = self.family.body(command::NAPI_SET);
        change.write(id, &mut body);
        self.socket
            .attempt(self.family.id(), 0, &body)
            .map_err(|failure| NapiRefused { knob: failure.attribute.and_then(knob), cause: failure.cause })
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_makes_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (RawNapi::parse(&bytes), RawQueue::parse(&bytes));
        }
    }

    /// The body of a `napi-get` reply for a veth, recorded on Linux 6.18, x86-64.
    const VETH: [u8; 52] = [
        0x0b, 1, 0, 0, 8, 0, 2, 0, 0xac, 1, 0, 0, 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 8, 0, 0, 0, 0, 0, //
        8, 0, 5, 0, 0, 0, 0, 0, 8, 0, 7, 0, 0, 0, 0, 0, 8, 0, 6, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_napi_is_read_as_the_kernel_writes_it() {
        let expected = RawNapi {
            ifindex: 3,
            id: 428,
            irq: None,
            pid: None,
            defer_hard_irqs: Some(0),
            gro_flush_timeout: Some(0),
            irq_suspend_timeout: Some(0),
            threaded: Some(0),
        };
        assert_eq!(RawNapi::parse(&VETH), Ok(expected));
    }

    /// Parses a reply for a receive queue that has the additional attributes, and returns the holders.
    fn queue_with(more: impl FnOnce(&mut AttrBuf)) -> RawHolders {
        let mut object = AttrBuf::after(&[command::QUEUE_GET, 1, 0, 0]);
        object.u32(queue::ID, 1).u32(queue::TYPE, 0).u32(queue::IFINDEX, 3);
        more(&mut object);
        RawQueue::parse(object.as_bytes()).expect("well-formed").expect("a queue").holders
    }

    #[test]
    fn what_keeps_a_queue_is_read_as_the_kernel_nests_it() {
        assert!(queue_with(|_| {}).is_none());
        assert!(queue_with(|object| _ = object.nested(queue::XSK, |_| {})).xsk);
        assert_eq!(queue_with(|object| _ = object.u32(queue::DMABUF, 7)).dmabuf, Some(7));
        // Kernel 6.15 nests no attribute in `IO_URING`; later kernels nest the size of the buffers.
        assert_eq!(queue_with(|object| _ = object.nested(queue::IO_URING, |_| {})).io_uring, Some(None));
        let sized = queue_with(|object| {
            object.nested(queue::IO_URING, |nest| _ = nest.uint(io_uring::RX_BUF_LEN, 4096));
        });
        assert_eq!(sized.io_uring, Some(Some(4096)));
        let leased = queue_with(|object| {
            object.nested(queue::LEASE, |nest| {
                nest.nested(lease::QUEUE, |inner| _ = inner.u32(queue::ID, 2).u32(queue::TYPE, 0));
                nest.u32(lease::IFINDEX, 9).u32(lease::NETNS_ID, 4);
            });
        });
        assert_eq!(leased.lease, Some(RawLease { ifindex: 9, queue: 2, netns_id: Some(4) }));
    }

    #[test]
    fn a_timeout_is_read_in_either_size() {
        let mut object = AttrBuf::after(&[11, 1, 0, 0]);
        object.u32(napi::ID, 327).u32(napi::IFINDEX, 3);
        object.u64(napi::IRQ_SUSPEND_TIMEOUT, 5_000_000_000).u32(napi::GRO_FLUSH_TIMEOUT, 20_000);
        let raw = RawNapi::parse(object.as_bytes()).expect("well-formed");
        assert_eq!((raw.irq_suspend_timeout, raw.gro_flush_timeout), (Some(5_000_000_000), Some(20_000)));
    }

    #[test]
    fn a_suspend_timeout_beyond_32_bits_is_written_whole() {
        let change =
            NapiChange { irq_suspend_timeout: Some(Nanoseconds(5_000_000_000)), ..NapiChange::default() };
        let mut body = AttrBuf::after(&[command::NAPI_SET, 1, 0, 0]);
        change.write(NapiId(327), &mut body);
        let attrs = genl::attrs(body.as_bytes()).expect("header");
        let attr = attrs.find(napi::IRQ_SUSPEND_TIMEOUT).expect("well-formed").expect("there");
        assert_eq!((attr.payload.len(), attr.uint()), (8, Ok(5_000_000_000)));
        assert_eq!(
            attrs.map(|a| a.expect("well-formed").number).collect::<Vec<_>>(),
            [2, 7],
            "only what changes"
        );
    }

    #[test]
    fn a_napi_without_an_id_is_malformed() {
        let mut object = AttrBuf::after(&[11, 1, 0, 0]);
        object.u32(napi::IFINDEX, 3);
        assert!(RawNapi::parse(object.as_bytes()).is_err());
    }
}
