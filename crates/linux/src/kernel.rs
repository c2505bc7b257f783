//! The running kernel, as what settings are read from and written to: the only exhaustive `match` that writes.

mod inside;
mod kthread;
mod nic;
mod steer;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use apply::{Knobs, Landmarks, device_landmark, device_of_landmark};
use model::{
    DeviceId, EmptyPolls, IfIndex, Interface, KernelVersion, Nanoseconds, NapiId, NetnsId, Plan, RxQueue,
    Setting, Threading,
};

use self::inside::Inside;
use crate::attach;
use crate::error::{Cause, Errno, KernelError};
use crate::irqbalance::Irqbalance;
use crate::netlink::netdev::{self, NAPI_SET_SINCE, NapiChange, NapiKnob, RawNapi};
use crate::observe::device::parse_threading;
use crate::observe::irq;
use crate::process;
use crate::sysctl;

/// The running kernel.
///
/// Settings name what stays (a queue, a device, a process with its start time); what moves is resolved at the moment
/// of reading or writing: a queue's NAPI id, a device's name, a namespace's file. A namespace that was reached is
/// held open, and so kept alive, until this is dropped.
#[derive(Debug, Default)]
pub struct Kernel {
    inside: BTreeMap<NetnsId, Inside>,
    /// The cookies that namespaces must have, where they were noted: a number is given again once its namespace is gone.
    cookies: BTreeMap<NetnsId, u64>,
    /// The numbers that devices must have in sysfs, where they were noted: an index can be given again, too. Those that
    /// were seen to be the ones meant are not here any more.
    numbers: BTreeMap<(NetnsId, IfIndex), u64>,
    irqbalance: Irqbalance,
}

impl Kernel {
    /// The running kernel.
    pub const fn new() -> Self {
        Self {
            inside: BTreeMap::new(),
            cookies: BTreeMap::new(),
            numbers: BTreeMap::new(),
            irqbalance: Irqbalance::new(),
        }
    }

    /// The running kernel, with an irqbalance that is not where it is by default.
    #[must_use]
    pub fn with_irqbalance(mut self, irqbalance: Irqbalance) -> Self {
        self.irqbalance = irqbalance;
        self
    }

    fn inside(&mut self, id: NetnsId) -> Result<&mut Inside, KernelError> {
        let inside = match self.inside.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(Inside::open(id)?),
        };
        let another =
            self.cookies.get(&id).is_some_and(|noted| inside.cookie().is_some_and(|own| own != *noted));
        if another {
            return Err(KernelError::gone(
                format!("network namespace {id}"),
                "another one has its number now",
            ));
        }
        Ok(inside)
    }

    /// Whether the namespace has a device of this name now: this one, or one that was made anew under its name.
    pub fn has_device_named_as(&mut self, device: DeviceId) -> bool {
        self.inside(device.netns).is_ok_and(|inside| inside.has_device_named(device.name.as_str()))
    }

    /// The namespace of a device that is the one meant.
    fn inside_with(&mut self, device: DeviceId) -> Result<&mut Inside, KernelError> {
        let which = (device.netns, device.ifindex);
        if let Some(&noted) = self.numbers.get(&which) {
            match self.inside(device.netns)?.number_of(device) {
                Ok(number) if number != noted => {
                    let why = "another one has its index now";
                    return Err(KernelError::gone(format!("device {device}"), why));
                }
                Err(error) if matches!(error.cause, Cause::Gone(_)) => return Err(error),
                // Who may not look at sysfs of another namespace goes by the index alone.
                Ok(_) | Err(_) => {}
            }
            self.numbers.remove(&which);
        }
        self.inside(device.netns)
    }

    /// All of one queue, by one look at its NAPI.
    fn read_queue(&mut self, queue: RxQueue, like: &[Setting]) -> Result<Vec<Setting>, KernelError> {
        let napi = self.inside_with(queue.device)?.napi_of(queue)?;
        like.iter().map(|setting| self.read_one(setting, Some(&napi))).collect()
    }

    /// One setting; those of a queue out of its NAPI's answer.
    fn read_one(&mut self, like: &Setting, napi: Option<&RawNapi>) -> Result<Setting, KernelError> {
        if let Some(way) = attach::way().filter(|_| attach::is_inside_a_process(like)) {
            return way.read(like);
        }
        Ok(match like {
            Setting::DeferHardIrqs(queue, _) => Setting::DeferHardIrqs(
                *queue,
                EmptyPolls(stated(napi, |n| n.defer_hard_irqs, NAPI_SET_SINCE)?),
            ),
            Setting::GroFlushTimeout(queue, _) => Setting::GroFlushTimeout(
                *queue,
                Nanoseconds(stated(napi, |n| n.gro_flush_timeout, NAPI_SET_SINCE)?),
            ),
            Setting::IrqSuspendTimeout(queue, _) => {
                let span = stated(napi, |n| n.irq_suspend_timeout, NAPI_SET_SINCE)?;
                Setting::IrqSuspendTimeout(*queue, Nanoseconds(span))
            }
            Setting::Threaded(queue, _) => {
                let threading = stated(napi, |n| n.threaded.and_then(netdev::threading), like.since())?;
                Setting::Threaded(*queue, threading)
            }
            Setting::DeviceDeferHardIrqs(device, _) => {
                let polls = self.read_device(*device, like.knob(), |text| text.parse().ok())?;
                Setting::DeviceDeferHardIrqs(*device, EmptyPolls(polls))
            }
            Setting::DeviceGroFlushTimeout(device, _) => {
                let span = self.read_device(*device, like.knob(), |text| text.parse().ok())?;
                Setting::DeviceGroFlushTimeout(*device, Nanoseconds(span))
            }
            Setting::DeviceThreaded(device, _) => {
                Setting::DeviceThreaded(*device, self.read_device(*device, like.knob(), parse_threading)?)
            }
            Setting::Epoll(epoll, _) => Setting::Epoll(*epoll, process::read_epoll(epoll)?),
            Setting::IoUringNapi(ring, _) => Setting::IoUringNapi(*ring, process::read_ring_napi(ring)?),
            Setting::IrqAffinity(irq, _) => Setting::IrqAffinity(*irq, irq::affinity(*irq)?),
            Setting::IrqBan(irq, _) => Setting::IrqBan(*irq, self.irqbalance.is_banned(*irq)?),
            Setting::ThreadAffinity(thread, _) => {
                Setting::ThreadAffinity(*thread, process::read_thread_affinity(thread)?)
            }
            Setting::KthreadAffinity(queue, _)
            | Setting::KthreadScheduling(queue, _)
            | Setting::KthreadUtilClamp(queue, _) => kthread::read(self.inside_with(queue.device)?, like)?,
            Setting::Reuseport(group, like) => Setting::Reuseport(*group, process::read_spread(group, like)?),
            Setting::Sysctl(number, _) => Setting::Sysctl(*number, sysctl::read(*number)?),
            Setting::Channels(..)
            | Setting::Ring(..)
            | Setting::Coalescing(..)
            | Setting::QueueCoalescing(..)
            | Setting::Offload(..)
            | Setting::PacketSize(..)
            | Setting::PrivateFlag(..)
            | Setting::RssTable(..)
            | Setting::RssKey(..)
            | Setting::RssContext(..)
            | Setting::FlowRule(..)
            | Setting::Qdiscs(..)
            | Setting::RpsCpus(..)
            | Setting::RpsFlowCount(..)
            | Setting::XpsCpus(..)
            | Setting::XpsRxQueues(..) => unreachable!("{like} is read with its device"),
        })
    }

    /// A file of a device in sysfs. Its name is the knob's.
    fn read_device<T>(
        &mut self,
        device: DeviceId,
        file: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, KernelError> {
        let text = self.inside_with(device)?.directory(device)?.read(file)?;
        parse(&text).ok_or_else(|| KernelError::malformed(file, format!("`{text}`")))
    }

    fn write_device(&mut self, device: DeviceId, file: &str, text: &str) -> Result<(), KernelError> {
        let written = self.inside_with(device)?.directory(device)?.write(file, text);
        written.map_err(|error| error.needing("CAP_NET_ADMIN"))
    }

    /// All of one queue, by one `napi-set`.
    fn write_queue(&mut self, queue: RxQueue, settings: &[Setting]) -> Result<(), KernelError> {
        let mut change = NapiChange::default();
        for setting in settings {
            match setting {
                Setting::DeferHardIrqs(_, polls) => change.defer_hard_irqs = Some(*polls),
                Setting::GroFlushTimeout(_, span) => change.gro_flush_timeout = Some(*span),
                Setting::IrqSuspendTimeout(_, span) => change.irq_suspend_timeout = Some(*span),
                Setting::Threaded(_, threading) => change.threaded = Some(*threading),
                Setting::DeviceDeferHardIrqs(..)
                | Setting::DeviceGroFlushTimeout(..)
                | Setting::DeviceThreaded(..)
                | Setting::Epoll(..)
                | Setting::IoUringNapi(..)
                | Setting::IrqAffinity(..)
                | Setting::IrqBan(..)
                | Setting::ThreadAffinity(..)
                | Setting::KthreadAffinity(..)
                | Setting::KthreadScheduling(..)
                | Setting::KthreadUtilClamp(..)
                | Setting::Reuseport(..)
                | Setting::Sysctl(..)
                | Setting::Channels(..)
                | Setting::Ring(..)
                | Setting::Coalescing(..)
                | Setting::QueueCoalescing(..)
                | Setting::Offload(..)
                | Setting::PacketSize(..)
                | Setting::PrivateFlag(..)
                | Setting::RssTable(..)
                | Setting::RssKey(..)
                | Setting::RssContext(..)
                | Setting::FlowRule(..)
                | Setting::Qdiscs(..)
                | Setting::RpsCpus(..)
                | Setting::RpsFlowCount(..)
                | Setting::XpsCpus(..)
                | Setting::XpsRxQueues(..) => unreachable!("{setting} is no setting of {queue}"),
            }
        }
        let inside = self.inside_with(queue.device).map_err(|error| about(&written(settings), error))?;
        let napi = inside.napi_of(queue).map_err(|error| about(&written(settings), error))?;
        inside.set_napi(NapiId(napi.id), &change).map_err(|refused| {
            let culprit =
                settings.iter().find(|setting| refused.knob.is_some_and(|knob| is_about(setting, knob)));
            let what = written(culprit.map_or(settings, std::slice::from_ref));
            let refused = KernelError { what, cause: refused.cause };
            // Before 7.0 the attribute's range ends at "enabled". Kernel: `Documentation/netlink/specs/netdev.yaml`.
            if let (Some(Setting::Threaded(_, Threading::BusyPoll)), Some(Errno::RANGE)) =
                (culprit, refused.number())
            {
                let needs = "napi-set with threaded busy-poll";
                return KernelError::absent(refused.what, needs, Some(KernelVersion::since(7, 0)));
            }
            refused.needing("CAP_NET_ADMIN in the initial user namespace")
        })
    }

    fn write_one(&mut self, setting: &Setting) -> Result<(), KernelError> {
        if let Some(way) = attach::way().filter(|_| attach::is_inside_a_process(setting)) {
            return way.write(setting);
        }
        match setting {
            Setting::DeferHardIrqs(queue, _)
            | Setting::GroFlushTimeout(queue, _)
            | Setting::IrqSuspendTimeout(queue, _)
            | Setting::Threaded(queue, _) => self.write_queue(*queue, std::slice::from_ref(setting)),
            Setting::DeviceDeferHardIrqs(device, EmptyPolls(polls)) => {
                self.write_device(*device, setting.knob(), &polls.to_string())
            }
            Setting::DeviceGroFlushTimeout(device, Nanoseconds(span)) => {
                self.write_device(*device, setting.knob(), &span.to_string())
            }
            Setting::DeviceThreaded(device, threading) => {
                self.write_device(*device, setting.knob(), &netdev::raw_threading(*threading).to_string())
            }
            Setting::Epoll(epoll, params) => process::write_epoll(epoll, *params),
            Setting::IoUringNapi(ring, napi) => process::write_ring_napi(ring, *napi),
            Setting::IrqAffinity(irq, cpus) => irq::set_affinity(*irq, cpus),
            Setting::IrqBan(irq, banned) => self.irqbalance.ban(*irq, *banned),
            Setting::ThreadAffinity(thread, cpus) => process::write_thread_affinity(thread, cpus),
            Setting::KthreadAffinity(queue, _)
            | Setting::KthreadScheduling(queue, _)
            | Setting::KthreadUtilClamp(queue, _) => kthread::write(self.inside_with(queue.device)?, setting),
            Setting::Reuseport(group, spread) => process::write_spread(group, spread),
            Setting::Sysctl(number, value) => sysctl::write(*number, *value),
            Setting::Channels(..)
            | Setting::Ring(..)
            | Setting::Coalescing(..)
            | Setting::QueueCoalescing(..)
            | Setting::Offload(..)
            | Setting::PacketSize(..)
            | Setting::PrivateFlag(..)
            | Setting::RssTable(..)
            | Setting::RssKey(..)
            | Setting::RssContext(..)
            | Setting::FlowRule(..)
            | Setting::Qdiscs(..)
            | Setting::RpsCpus(..)
            | Setting::RpsFlowCount(..)
            | Setting::XpsCpus(..)
            | Setting::XpsRxQueues(..) => unreachable!("{setting} is written with its device"),
        }
    }
}

impl Knobs for Kernel {
    type Error = KernelError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, KernelError> {
        let mut found = Vec::with_capacity(like.len());
        for like in like.chunk_by(same_call) {
            let read = match door(&like[0]) {
                Door::Queue(queue) => self.read_queue(queue, like),
                Door::Nic(device) => self
                    .inside_with(device)
                    .and_then(|inside| nic::read(inside, device, like))
                    .map_err(gone_with_its_device),
                Door::Each => like
                    .iter()
                    .map(|one| {
                        let read = self.read_one(one, None);
                        read.map_err(|error| about(&asked(std::slice::from_ref(one)), error))
                    })
                    .collect(),
            };
            found.extend(read.map_err(|error| about(&asked(like), error))?);
        }
        Ok(found)
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), KernelError> {
        for settings in settings.chunk_by(same_call) {
            match door(&settings[0]) {
                Door::Queue(queue) => self.write_queue(queue, settings)?,
                Door::Nic(device) => self
                    .inside_with(device)
                    .and_then(|inside| nic::write(inside, device, settings))
                    .map_err(gone_with_its_device)
                    .map_err(|error| about(&written(settings), error))?,
                Door::Each => settings.iter().try_for_each(|one| {
                    self.write_one(one).map_err(|error| about(&one.to_string(), error))
                })?,
            }
        }
        Ok(())
    }

    fn landmarks(&mut self, plan: &Plan) -> Landmarks {
        let namespaces: BTreeSet<NetnsId> =
            plan.changes().filter_map(|change| Some(change.to().object().device()?.netns)).collect();
        let mut landmarks = Landmarks::new();
        for id in namespaces {
            let cookie = self.inside(id).ok().and_then(|inside| inside.cookie());
            landmarks.extend(cookie.map(|cookie| (format!("{NETNS_LANDMARK}{id}"), cookie.to_string())));
        }
        let devices: BTreeSet<DeviceId> =
            plan.changes().filter_map(|change| change.to().object().device()).collect();
        for device in devices {
            let number = self.inside(device.netns).and_then(|inside| inside.number_of(device));
            // Who may not look at sysfs of another namespace goes by the index alone.
            landmarks.extend(number.ok().map(|number| (device_landmark(device), number.to_string())));
        }
        landmarks
    }

    fn recall(&mut self, landmarks: &Landmarks) {
        self.cookies.clear();
        self.numbers.clear();
        for (what, number) in landmarks {
            let id = what.strip_prefix(NETNS_LANDMARK).and_then(|id| id.parse().ok()).map(NetnsId);
            self.cookies.extend(id.zip(number.parse().ok()));
            self.numbers.extend(device_of_landmark(what).zip(number.parse().ok()));
        }
    }

    fn is_gone(error: &KernelError) -> bool {
        matches!(error.cause, Cause::Gone(_))
    }
}

/// How the journal names what a namespace is told by.
const NETNS_LANDMARK: &str = "cookie of network namespace ";

/// ethtool says ENODEV of a device that is not there any more; what was set on it went with it.
fn gone_with_its_device(error: KernelError) -> KernelError {
    match error.number() {
        Some(Errno::NODEV) => KernelError::gone(error.what, "no device has its index any more"),
        _ => error,
    }
}

/// Whether two settings go to the kernel together: of one object, through one door.
fn same_call(a: &Setting, b: &Setting) -> bool {
    a.interface() == b.interface() && a.object() == b.object()
}

/// How the settings of one interface are read and written.
enum Door {
    /// All together, by the NAPI of this queue.
    Queue(RxQueue),
    /// All together, by what this device's driver can be told.
    Nic(DeviceId),
    /// One by one.
    Each,
}

fn door(setting: &Setting) -> Door {
    match (setting.interface(), setting.object()) {
        (Interface::Napi, model::Object::Queue(queue)) => Door::Queue(queue),
        (
            Interface::Napi
            | Interface::DeviceNapis
            | Interface::Epoll
            | Interface::IoUring
            | Interface::IrqAffinity
            | Interface::Irqbalance
            | Interface::ThreadAffinity
            | Interface::Kthread
            | Interface::Reuseport
            | Interface::Sysctl,
            _,
        ) => Door::Each,
        (
            Interface::Channels
            | Interface::Rings
            | Interface::Coalescing
            | Interface::Offloads
            | Interface::PacketSizes
            | Interface::PrivateFlags
            | Interface::Rss
            | Interface::RssContexts
            | Interface::FlowRules
            | Interface::Qdiscs
            | Interface::QueueCoalescing
            | Interface::Steering,
            object,
        ) => object.device().map_or(Door::Each, Door::Nic),
    }
}

fn is_about(setting: &Setting, knob: NapiKnob) -> bool {
    match knob {
        NapiKnob::DeferHardIrqs => matches!(setting, Setting::DeferHardIrqs(..)),
        NapiKnob::GroFlushTimeout => matches!(setting, Setting::GroFlushTimeout(..)),
        NapiKnob::IrqSuspendTimeout => matches!(setting, Setting::IrqSuspendTimeout(..)),
        NapiKnob::Threaded => matches!(setting, Setting::Threaded(..)),
    }
}

/// What a NAPI's answer says, if this kernel says it.
fn stated<T>(
    napi: Option<&RawNapi>,
    field: impl Fn(&RawNapi) -> Option<T>,
    since: KernelVersion,
) -> Result<T, KernelError> {
    let needs = "it among the answers of netdev netlink `napi-get`";
    napi.and_then(field).ok_or_else(|| KernelError::absent("netdev napi-get", needs, Some(since)))
}

/// `eth0 rx-4: defer-hard-irqs 100, gro-flush-timeout 20us`
fn written(settings: &[Setting]) -> String {
    let values: Vec<_> = settings.iter().map(|s| format!("{} {}", s.knob(), s.value())).collect();
    settings.first().map_or_else(String::new, |first| format!("{}: {}", first.object(), values.join(", ")))
}

/// `eth0 rx-4: defer-hard-irqs, gro-flush-timeout`
fn asked(settings: &[Setting]) -> String {
    let knobs: Vec<_> = settings.iter().map(Setting::knob).collect();
    settings.first().map_or_else(String::new, |first| format!("{}: {}", first.object(), knobs.join(", ")))
}

/// Puts the object and the setting before what failed on the way to it, where the error does not name them itself.
fn about(what: &str, error: KernelError) -> KernelError {
    let object = what.split(": ").next().unwrap_or(what);
    if error.what.starts_with(object) {
        return error;
    }
    KernelError { what: format!("{what}: {}", error.what), cause: error.cause }
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{IrqNumber, Label, QueueIndex};

    fn queue() -> RxQueue {
        let netns = crate::Netns::own().expect("own namespace").id();
        let device = DeviceId { netns, ifindex: IfIndex(0x7fff_fff0), name: Label::new("eth0") };
        RxQueue { device, index: QueueIndex(4) }
    }

    #[test]
    fn a_device_that_is_not_there_is_gone_and_the_error_names_object_and_setting() {
        let mut kernel = Kernel::new();
        let settings = [Setting::DeferHardIrqs(queue(), EmptyPolls(100))];
        let error = kernel.read(&settings).expect_err("gone");
        assert!(Kernel::is_gone(&error), "{error}");
        assert!(error.to_string().starts_with("eth0 rx-4: defer-hard-irqs: "), "{error}");
        let error = kernel
            .write(&[Setting::DeviceGroFlushTimeout(queue().device, Nanoseconds(5))])
            .expect_err("gone");
        assert!(Kernel::is_gone(&error), "{error}");
        assert!(error.to_string().starts_with("eth0: gro_flush_timeout 5ns: "), "{error}");
    }

    #[test]
    fn an_interrupt_that_is_not_there_is_gone() {
        let settings = [Setting::IrqAffinity(IrqNumber(999_999), "0".parse().expect("a list"))];
        let error = Kernel::new().write(&settings).expect_err("gone");
        assert!(Kernel::is_gone(&error), "{error}");
    }

    #[test]
    fn settings_of_one_queue_are_named_together() {
        let settings = [
            Setting::DeferHardIrqs(queue(), EmptyPolls(100)),
            Setting::IrqSuspendTimeout(queue(), Nanoseconds::from_millis(20)),
        ];
        assert_eq!(written(&settings), "eth0 rx-4: defer-hard-irqs 100, irq-suspend-timeout 20ms");
        assert_eq!(asked(&settings), "eth0 rx-4: defer-hard-irqs, irq-suspend-timeout");
    }
}
