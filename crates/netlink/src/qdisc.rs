//! Reads and sets qdiscs with rtnetlink.
//!
//! A device's qdiscs can be recorded and restored only if this module knows all options of their kinds and
//! nothing is attached to them. All other configurations are [`Qdiscs::Other`].
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_sched.h`, `net/sched/sch_api.c`, `sch_fq.c`, `sch_fq_codel.c`,
//! `sch_fifo.c`.

mod options;

use std::collections::BTreeSet;

use model::IfIndex;
use model::qdisc::{Qdisc, QdiscKind, Qdiscs};
use sys::error::{Errno, KernelError};

pub use self::options::QdiscDefaults;
use self::options::{attribute, describe, options};
use super::attr::{AttrBuf, Attrs, Malformed};
use super::message::flag;
use super::socket::{NetlinkProtocol, NetlinkSocket};

/// The message types `RTM_NEWQDISC`, `RTM_DELQDISC`, `RTM_GETQDISC` and `RTM_GETTFILTER`.
mod message {
    pub(super) const NEW: u16 = 36;
    pub(super) const DELETE: u16 = 37;
    pub(super) const GET: u16 = 38;
    pub(super) const GET_FILTER: u16 = 46;
}

/// The size of `struct tcmsg`.
const HEADER_BYTES: usize = 20;

/// `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;

/// The smallest major number that the kernel itself assigns. Kernel: `net/sched/sch_api.c`
/// `qdisc_alloc_handle()`.
const CHOSEN: u16 = 0x8000;

/// A qdisc, as `RTM_NEWQDISC` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawQdisc {
    /// The device.
    pub ifindex: u32,
    /// The handle; 0 for a default qdisc.
    pub handle: u32,
    /// The parent: [`u32::MAX`] for the device itself, otherwise a class of another qdisc.
    pub parent: u32,
    /// The kind.
    pub kind: String,
    /// The options (`TCA_OPTIONS`), in the format of the qdisc's kind.
    pub options: Vec<u8>,
    /// Whether the qdisc has attributes that are not supported here: a rate estimator, a size table, a shared
    /// block.
    pub has_unsupported_attrs: bool,
}

impl RawQdisc {
    /// Parses a reply.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn parse(object: &[u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::after(HEADER_BYTES, object)?;
        let header =
            object.first_chunk::<HEADER_BYTES>().ok_or(Malformed("the fixed header is truncated"))?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut raw = Self { ifindex: word(4), handle: word(8), parent: word(12), ..Self::default() };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                attribute::KIND => raw.kind = attr.text()?.to_owned(),
                attribute::OPTIONS => raw.options = attr.payload.to_vec(),
                attribute::RATE | attribute::STAB | attribute::INGRESS_BLOCK | attribute::EGRESS_BLOCK => {
                    raw.has_unsupported_attrs = true
                }
                _ => {}
            }
        }
        Ok(raw)
    }
}

/// Combines the qdiscs of one device; `None` if the device has none, for example because it is down.
/// `filtered` returns whether filters are attached to the qdisc with this handle.
///
/// # Errors
/// If an option is malformed, or `filtered` fails.
pub fn qdiscs<E: From<Malformed>>(
    of_device: &[&RawQdisc],
    defaults: QdiscDefaults,
    mut filtered: impl FnMut(u32) -> Result<bool, E>,
) -> Result<Option<Qdiscs>, E> {
    let Some(root) = of_device.iter().find(|raw| raw.parent == ROOT) else { return Ok(None) };
    let mut children: Vec<&&RawQdisc> = of_device
        .iter()
        .filter(|raw| raw.parent >> 16 == root.handle >> 16 && raw.parent & 0xffff != 0)
        .collect();
    children.sort_by_key(|raw| raw.parent);
    let is_mq = root.kind == "mq";
    if root.handle == 0 {
        let kinds = if is_mq {
            children.iter().map(|raw| raw.kind.clone()).collect()
        } else {
            vec![root.kind.clone()]
        };
        return Ok(Some(Qdiscs::Default(kinds)));
    }
    if !is_mq {
        let whole = known(root, defaults, &mut filtered)?;
        return Ok(Some(whole.map_or_else(|| Qdiscs::Other(root.kind.clone()), Qdiscs::Whole)));
    }
    let complete = (1..).zip(&children).all(|(at, raw)| raw.parent & 0xffff == at)
        && children.len() == defaults.tx_queues;
    if root.has_unsupported_attrs || !complete {
        return Ok(Some(Qdiscs::Other("mq without all its queues".to_owned())));
    }
    let mut queues = Vec::with_capacity(children.len());
    for child in children {
        match known(child, defaults, &mut filtered)? {
            Some(qdisc) => queues.push(qdisc),
            None => return Ok(Some(Qdiscs::Other(format!("mq with {}", child.kind)))),
        }
    }
    Ok(Some(Qdiscs::PerQueue { handle: own_handle(root.handle), queues }))
}

fn own_handle(handle: u32) -> Option<u16> {
    Some(major(handle)).filter(|major| (1..CHOSEN).contains(major))
}

const fn major(handle: u32) -> u16 {
    let [a, b, ..] = handle.to_be_bytes();
    u16::from_be_bytes([a, b])
}

/// Converts a qdisc; `None` if its kind is unknown, or if it has options or attributes that are not
/// supported.
fn known<E: From<Malformed>>(
    raw: &RawQdisc,
    defaults: QdiscDefaults,
    filtered: &mut impl FnMut(u32) -> Result<bool, E>,
) -> Result<Option<Qdisc>, E> {
    let Some(kind) = QdiscKind::named(&raw.kind).filter(|_| !raw.has_unsupported_attrs) else {
        return Ok(None);
    };
    // fq_codel is the only known kind that accepts filters, and it needs a handle for them.
    if kind == QdiscKind::FqCodel && raw.handle != 0 && filtered(raw.handle)? {
        return Ok(None);
    }
    let Some(options) = options(kind, &raw.options, defaults)? else { return Ok(None) };
    Ok(Some(Qdisc { kind, handle: own_handle(raw.handle), options }))
}

/// A socket for the qdiscs of one namespace.
#[derive(Debug)]
pub struct Disciplines {
    socket: NetlinkSocket,
}

impl Disciplines {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn open_here() -> Result<Self, KernelError> {
        Ok(Self { socket: NetlinkSocket::open_here(NetlinkProtocol::Route)? })
    }

    /// Lists all qdiscs of all devices.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn all(&mut self) -> Result<Vec<RawQdisc>, KernelError> {
        let body = AttrBuf::after(&header(0, 0, 0));
        self.socket
            .dump("rtnetlink getqdisc", message::GET, &body, |object| RawQdisc::parse(object).map(Some))
    }

    /// Whether filters are attached to a qdisc.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn filtered(&mut self, device: IfIndex, handle: u32) -> Result<bool, KernelError> {
        let body = AttrBuf::after(&header(device.0, 0, handle));
        let filters =
            self.socket.dump("rtnetlink gettfilter", message::GET_FILTER, &body, |_| Ok(Some(())))?;
        Ok(!filters.is_empty())
    }

    /// Returns the combined qdiscs of one device; `None` if the device has none, for example because it is
    /// down.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(
        &mut self,
        device: IfIndex,
        defaults: QdiscDefaults,
        all: &[RawQdisc],
    ) -> Result<Option<Qdiscs>, KernelError> {
        let of_device: Vec<&RawQdisc> = all.iter().filter(|raw| raw.ifindex == device.0).collect();
        qdiscs(&of_device, defaults, |handle| self.filtered(device, handle).map_err(Failed::Kernel)).map_err(
            |failed| match failed {
                Failed::Kernel(error) => error,
                Failed::Malformed(malformed) => {
                    KernelError::malformed("rtnetlink getqdisc", malformed.to_string())
                }
            },
        )
    }

    /// Replaces the qdiscs of a device.
    ///
    /// # Errors
    /// The kernel's error. When it occurs, some qdiscs may already have been replaced.
    pub fn replace(
        &mut self,
        device: IfIndex,
        defaults: QdiscDefaults,
        to: &Qdiscs,
    ) -> Result<(), KernelError> {
        let all = self.all()?;
        let now = self.of(device, defaults, &all)?;
        if now.as_ref() == Some(to) {
            return Ok(());
        }
        match to {
            Qdiscs::Default(_) => match now {
                Some(Qdiscs::Default(_)) | None => Ok(()),
                Some(_) => self.change(message::DELETE, 0, &AttrBuf::after(&header(device.0, 0, ROOT))),
            },
            Qdiscs::Whole(qdisc) => {
                Handles::of(&all, device).put(self, device, ROOT, qdisc.handle, &|body| {
                    describe(body, qdisc, defaults);
                })
            }
            Qdiscs::PerQueue { handle, queues } => {
                let mut handles = Handles::of(&all, device);
                let kept = matches!(now, Some(Qdiscs::PerQueue { handle: now, .. }) if now == *handle);
                if !kept {
                    handles.put(self, device, ROOT, *handle, &|body| {
                        body.text(attribute::KIND, "mq");
                    })?;
                }
                let root = self.all()?.into_iter().find(|raw| raw.ifindex == device.0 && raw.parent == ROOT);
                let root = root.ok_or_else(|| {
                    KernelError::malformed("rtnetlink newqdisc", "mq was acknowledged, but does not exist")
                })?;
                // A qdisc that already has the requested options is not replaced, so that it keeps its queued
                // packets.
                let there = match &now {
                    Some(Qdiscs::PerQueue { queues, .. }) if kept => queues.as_slice(),
                    _ => &[],
                };
                (0..).zip(queues).filter(|(at, qdisc)| there.get(*at) != Some(*qdisc)).try_for_each(
                    |(at, qdisc)| {
                        let class = u32::try_from(at + 1).unwrap_or(u32::MAX) & 0xffff;
                        handles.put(
                            self,
                            device,
                            (root.handle & 0xffff_0000) | class,
                            qdisc.handle,
                            &|body| {
                                describe(body, qdisc, defaults);
                            },
                        )
                    },
                )
            }
            Qdiscs::Other(what) => {
                Err(KernelError::malformed("rtnetlink newqdisc", format!("{what} cannot be written")))
            }
        }
    }

    fn change(&mut self, kind: u16, flags: u16, body: &AttrBuf) -> Result<(), KernelError> {
        let what = if kind == message::DELETE { "rtnetlink delqdisc" } else { "rtnetlink newqdisc" };
        let done = self.socket.request(what, kind, flags, body);
        done.map_err(|error| error.needing("CAP_NET_ADMIN in the device's namespace"))
    }
}

/// The handles that a device's qdiscs use.
///
/// The kernel creates a qdisc only under an unused handle. If the request has no handle or a used one, the
/// kernel changes the given options of an existing qdisc of the same kind and keeps that qdisc's other
/// options. So each qdisc gets a handle: by default, the highest free one in the range from which the kernel
/// itself assigns handles.
///
/// Kernel: 6.18, `net/sched/sch_api.c` `__tc_modify_qdisc()`, `qdisc_alloc_handle()`.
struct Handles(BTreeSet<u16>);

impl Handles {
    fn of(all: &[RawQdisc], device: IfIndex) -> Self {
        let own = all.iter().filter(|raw| raw.ifindex == device.0);
        Self(own.map(|raw| major(raw.handle)).collect())
    }

    /// Attaches a qdisc to a class or to the device, under `handle`, or under a free handle if that is
    /// `None`.
    fn put(
        &mut self,
        disciplines: &mut Disciplines,
        device: IfIndex,
        parent: u32,
        handle: Option<u16>,
        describe: &dyn Fn(&mut AttrBuf),
    ) -> Result<(), KernelError> {
        /// `NLM_F_REPLACE`.
        const REPLACE: u16 = 0x100;
        /// The highest handle below `TC_H_INGRESS`.
        const HIGHEST: u16 = 0xfffe;
        let taken = handle.is_some_and(|handle| self.0.contains(&handle));
        let any = (CHOSEN..=HIGHEST).rev().find(|handle| !self.0.contains(handle));
        let any = any.ok_or_else(|| KernelError::errno("rtnetlink newqdisc", Errno::NOSPC))?;
        // If a qdisc already uses the requested handle, it is first replaced under another handle.
        for own in if taken { [Some(any), handle] } else { [Some(handle.unwrap_or(any)), None] }
            .into_iter()
            .flatten()
        {
            let mut body = AttrBuf::after(&header(device.0, u32::from(own) << 16, parent));
            describe(&mut body);
            disciplines.change(message::NEW, flag::CREATE | REPLACE, &body)?;
            self.0.insert(own);
        }
        Ok(())
    }
}

/// Builds a `struct tcmsg`: family, padding, index, handle, parent, info.
fn header(ifindex: u32, handle: u32, parent: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

/// Why qdiscs could not be read.
enum Failed {
    Kernel(KernelError),
    Malformed(Malformed),
}

impl From<Malformed> for Failed {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use model::qdisc::QdiscOption;
    use proptest::prelude::*;

    const ETHERNET: QdiscDefaults = QdiscDefaults { mtu: 1500, tx_queue_len: 1000, tx_queues: 2 };

    proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = RawQdisc::parse(&bytes);
            for &kind in QdiscKind::ALL {
                let _ = options(kind, &bytes, ETHERNET);
            }
        }
    }

    fn raw(handle: u32, parent: u32, qdisc: &Qdisc) -> RawQdisc {
        let mut body = AttrBuf::after(&header(7, handle, parent));
        describe(&mut body, qdisc, ETHERNET);
        RawQdisc::parse(body.as_bytes()).expect("well-formed")
    }

    fn mq(handle: u32) -> RawQdisc {
        RawQdisc { ifindex: 7, handle, parent: ROOT, kind: "mq".to_owned(), ..RawQdisc::default() }
    }

    fn read(all: &[RawQdisc], filtered: bool) -> Option<Qdiscs> {
        let all: Vec<&RawQdisc> = all.iter().collect();
        qdiscs::<Malformed>(&all, ETHERNET, |_| Ok(filtered)).expect("well-formed")
    }

    fn with(kind: QdiscKind, option: QdiscOption, value: u32) -> Qdisc {
        let mut qdisc = Qdisc::of(kind);
        qdisc.options.insert(option, value);
        qdisc
    }

    #[test]
    fn chosen_options_are_recorded_and_the_kernels_defaults_are_not() {
        let fq = with(QdiscKind::Fq, QdiscOption::Quantum, 4_711);
        assert_eq!(read(&[raw(0x8001_0000, ROOT, &fq)], false), Some(Qdiscs::Whole(fq)));
        let usual = with(QdiscKind::Fq, QdiscOption::Quantum, 3_028);
        assert_eq!(
            read(&[raw(0x8001_0000, ROOT, &usual)], false),
            Some(Qdiscs::Whole(Qdisc::of(QdiscKind::Fq)))
        );
    }

    #[test]
    fn the_kernels_default_disciplines_are_distinguished_from_chosen_ones() {
        let fast = Qdisc::of(QdiscKind::PfifoFast);
        let by_itself = [mq(0), raw(0, 2, &fast), raw(0, 1, &fast)];
        assert_eq!(read(&by_itself, false), Some(Qdiscs::Default(vec!["pfifo_fast".to_owned(); 2])));
        let chosen = [mq(0x1_0000), raw(0x10_0000, 0x1_0001, &fast), raw(0, 0x1_0002, &fast)];
        let named = Qdisc { handle: Some(0x10), ..fast.clone() };
        let expected = Qdiscs::PerQueue { handle: Some(1), queues: vec![named, fast] };
        assert_eq!(read(&chosen, false), Some(expected));
        assert_eq!(read(&[], false), None);
    }

    #[test]
    fn what_cannot_be_recorded_as_a_whole_is_named_as_such() {
        let other = |all: &[RawQdisc], filtered| matches!(read(all, filtered), Some(Qdiscs::Other(_)));
        let codel = raw(0x8001_0000, ROOT, &Qdisc::of(QdiscKind::FqCodel));
        assert!(!other(std::slice::from_ref(&codel), false));
        assert!(other(std::slice::from_ref(&codel), true), "filters are attached to it");
        let stab = RawQdisc { has_unsupported_attrs: true, ..codel.clone() };
        assert!(other(&[stab], false), "it has a size table");
        let htb = RawQdisc { kind: "htb".to_owned(), ..codel.clone() };
        assert!(other(&[htb], false), "its classes cannot be read");
        let one = raw(0, 0x1_0001, &Qdisc::of(QdiscKind::Pfifo));
        assert!(other(&[mq(0x1_0000), one], false), "a queue is missing");
        let mut bands = AttrBuf::new();
        bands.bytes(16, &[0; 20]);
        let fq = raw(0x8001_0000, ROOT, &Qdisc::of(QdiscKind::Fq));
        assert!(
            other(&[RawQdisc { options: bands.as_bytes().to_vec(), ..fq }], false),
            "its bands are configured"
        );
    }
}
