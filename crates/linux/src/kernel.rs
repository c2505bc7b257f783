//! Reads and writes settings of the running kernel; each family of settings has its own file. No other code
//! writes settings.

mod describe;
mod irq;
mod kthread;
mod moved;
mod napi;
mod netns_handles;
mod nic;
mod process_knob;
mod queue;
mod steer;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use apply::{Knobs, ObjectCookies, device_address_name, device_cookie_name, device_of_cookie_name};
use model::host::{QueueConflict, QueueHolder};
use model::setting::KernelCall;
use model::{Change, DeviceId, HostKnob, IfIndex, NetnsId, Plan, RxQueue, Setting, TxQueue};
use sys::error::{Cause, Errno, KernelError};
use sys::netns::Netns;
use sys::sysctl;

use self::describe::{about, asked, written};
use self::moved::MovedDevices;
use self::netns_handles::NetnsHandles;
use crate::irqbalance::Irqbalance;

/// The running kernel.
///
/// Settings name permanent objects (a queue, a device, a process with its start time). Whatever may change is
/// looked up at each read or write: a queue's NAPI id, a device's name, a namespace's file. A namespace that
/// was entered is held open until the `Kernel` is dropped, which keeps the namespace alive.
#[derive(Debug, Default)]
pub struct Kernel {
    handles: BTreeMap<NetnsId, NetnsHandles>,
    /// Namespaces that the caller opened; these descriptors may be the only remaining references to them.
    held: Vec<Netns>,
    /// The recorded cookies of namespaces, which are compared on access: a namespace's number is reused once
    /// the namespace is gone.
    cookies: BTreeMap<NetnsId, u64>,
    /// The recorded sysfs numbers of devices, which are compared on access: a device's index can be reused,
    /// too. Devices that were confirmed are removed from the map.
    numbers: BTreeMap<(NetnsId, IfIndex), u64>,
    /// The attributes that identify devices after a move to another namespace, by the place where each device
    /// was recorded.
    moving: MovedDevices,
    irqbalance: Irqbalance,
}

impl Kernel {
    /// Creates an instance for the running kernel.
    pub const fn new() -> Self {
        Self {
            handles: BTreeMap::new(),
            held: Vec::new(),
            cookies: BTreeMap::new(),
            numbers: BTreeMap::new(),
            moving: MovedDevices::new(),
            irqbalance: Irqbalance::new(),
        }
    }

    /// Uses an irqbalance whose socket is in another place.
    #[must_use]
    pub fn with_irqbalance(mut self, irqbalance: Irqbalance) -> Self {
        self.irqbalance = irqbalance;
        self
    }

    /// Accesses namespaces by these descriptors, even after the namespaces' names and processes are gone.
    #[must_use]
    pub fn holding(mut self, namespaces: Vec<Netns>) -> Self {
        self.held = namespaces;
        self
    }

    /// Returns the namespaces of the devices that a plan changes.
    pub fn namespaces(plan: &Plan) -> BTreeSet<NetnsId> {
        plan.changes().filter_map(|change| Some(change.to().object().device()?.netns)).collect()
    }

    fn handles(&mut self, id: NetnsId) -> Result<&mut NetnsHandles, KernelError> {
        let handles = match self.handles.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let held = self.held.iter().find(|netns| netns.id() == id);
                let netns = held.map_or_else(|| Netns::with_id(id), Netns::again)?;
                unknown.insert(NetnsHandles::open(netns)?)
            }
        };
        let another =
            self.cookies.get(&id).is_some_and(|noted| handles.cookie().is_some_and(|own| own != *noted));
        if another {
            return Err(KernelError::gone(
                format!("network namespace {id}"),
                "its number now belongs to another object",
            ));
        }
        Ok(handles)
    }

    /// Returns the current name of a device that is still in its namespace.
    pub fn present_name(&mut self, device: DeviceId) -> Option<String> {
        self.handles_with(device).and_then(|handles| handles.name(device)).ok()
    }

    /// Whether the namespace has a device of this name: this device, or a recreated one.
    pub fn has_device_named_as(&mut self, device: DeviceId) -> bool {
        self.handles(device.netns).is_ok_and(|handles| handles.has_device_named(device.name.as_str()))
    }

    /// Performs an action on a device: in the namespace that the setting names or, if the device has been
    /// moved, in its new namespace. The kernel moves a device to another namespace with its settings, and may
    /// give it another index there.
    ///
    /// # Errors
    /// Those of `act`; [`Cause::Gone`] if the device is in no known namespace, [`Cause::Away`] if it is in an
    /// unreachable namespace.
    fn with_device<T>(
        &mut self,
        device: DeviceId,
        act: impl Fn(&mut NetnsHandles, DeviceId) -> Result<T, KernelError>,
    ) -> Result<T, KernelError> {
        let named = match self.moving.known(device) {
            Some(moved) => self.handles_if_there(moved),
            None => self.handles_with(device).map(|handles| (handles, device)),
        };
        let first = named.and_then(|(handles, here)| act(handles, here));
        match first.map_err(gone_with_its_device) {
            Err(error) if matches!(error.cause, Cause::Gone(_)) => {
                if let Some(there) = self.moving.find(device) {
                    return act(self.handles(there.netns)?, there);
                }
                match self.find_out_of_reach(device)? {
                    Some((id, name)) => Err(moved::out_of_reach(device, id, &name)),
                    None => Err(error),
                }
            }
            done => done,
        }
    }

    /// Finds a device that was moved to an unreachable namespace for which its former namespace has an id.
    /// Returns that id, and the device's name there.
    fn find_out_of_reach(&mut self, device: DeviceId) -> Result<Option<(i32, String)>, KernelError> {
        let Some(address) = self.moving.address(device) else { return Ok(None) };
        match self.handles(device.netns) {
            Ok(handles) => handles.elsewhere(&address),
            Err(_) => Ok(None),
        }
    }

    /// Opens the namespace in which a moved device was last found, and checks that the device is still there.
    fn handles_if_there(
        &mut self,
        (there, number): (DeviceId, u64),
    ) -> Result<(&mut NetnsHandles, DeviceId), KernelError> {
        let handles = self.handles(there.netns)?;
        if handles.number_of(there)? == number {
            Ok((handles, there))
        } else {
            Err(KernelError::gone(format!("device {there}"), "its index now belongs to another device"))
        }
    }

    /// Opens the namespace of a device, and checks that it is the expected device.
    fn handles_with(&mut self, device: DeviceId) -> Result<&mut NetnsHandles, KernelError> {
        let which = (device.netns, device.ifindex);
        if let Some(&noted) = self.numbers.get(&which) {
            match self.handles(device.netns)?.number_of(device) {
                Ok(number) if number != noted => {
                    let why = "its index now belongs to another device";
                    return Err(KernelError::gone(format!("device {device}"), why));
                }
                Err(error) if matches!(error.cause, Cause::Gone(_)) => return Err(error),
                // Without permission to read sysfs of another namespace, only the index identifies the
                // device.
                Ok(_) | Err(_) => {}
            }
            self.numbers.remove(&which);
        }
        self.handles(device.netns)
    }

    /// Reads the settings of a call with the function of their family.
    fn read_call(&mut self, call: KernelCall<'_>) -> Result<Vec<Setting>, KernelError> {
        Ok(match call {
            KernelCall::Napi(queue, like) => {
                let found = self.with_device(queue.device, |handles, device| {
                    napi::read(handles, RxQueue { device, ..queue }, &like)
                })?;
                found.into_iter().map(|knob| Setting::Napi(queue, knob)).collect()
            }
            KernelCall::DeviceNapis(device, like) => {
                let found =
                    self.with_device(device, |handles, device| napi::read_device(handles, device, &like))?;
                found.into_iter().map(|knob| Setting::DeviceNapis(device, knob)).collect()
            }
            KernelCall::Kthread(queue, like) => {
                let found = self.with_device(queue.device, |handles, device| {
                    kthread::read(handles, RxQueue { device, ..queue }, &like)
                })?;
                found.into_iter().map(|knob| Setting::Kthread(queue, knob)).collect()
            }
            KernelCall::Nic(device, like) => {
                let found = self.with_device(device, |handles, device| nic::read(handles, device, &like))?;
                found.into_iter().map(|knob| Setting::Nic(device, knob)).collect()
            }
            KernelCall::RxQueue(queue, like) => {
                let found = self.with_device(queue.device, |handles, device| {
                    queue::read_rx(handles, RxQueue { device, ..queue }, &like)
                })?;
                found.into_iter().map(|knob| Setting::RxQueue(queue, knob)).collect()
            }
            KernelCall::TxQueue(queue, like) => {
                let found = self.with_device(queue.device, |handles, device| {
                    queue::read_tx(handles, TxQueue { device, ..queue }, &like)
                })?;
                found.into_iter().map(|knob| Setting::TxQueue(queue, knob)).collect()
            }
            KernelCall::Irq(irq, like) => {
                let found = like.into_iter().map(|like| irq::read(&self.irqbalance, irq, like));
                found.map(|knob| Ok(Setting::Irq(irq, knob?))).collect::<Result<_, KernelError>>()?
            }
            KernelCall::Process(like) => {
                like.into_iter().map(process_knob::read).collect::<Result<_, _>>()?
            }
            KernelCall::Host(like) => like
                .into_iter()
                .map(|HostKnob::Sysctl(number, _)| {
                    Ok(Setting::Host(HostKnob::Sysctl(*number, sysctl::read(*number)?)))
                })
                .collect::<Result<_, KernelError>>()?,
        })
    }

    /// Writes the settings of a call with the function of their family.
    fn write_call(&mut self, call: KernelCall<'_>) -> Result<(), KernelError> {
        match call {
            KernelCall::Napi(queue, knobs) => self.with_device(queue.device, |handles, device| {
                napi::write(handles, RxQueue { device, ..queue }, &knobs)
            }),
            KernelCall::DeviceNapis(device, knobs) => {
                self.with_device(device, |handles, device| napi::write_device(handles, device, &knobs))
            }
            KernelCall::Kthread(queue, knobs) => self.with_device(queue.device, |handles, device| {
                kthread::write(handles, RxQueue { device, ..queue }, &knobs)
            }),
            KernelCall::Nic(device, knobs) => {
                self.with_device(device, |handles, device| nic::write(handles, device, &knobs))
            }
            KernelCall::RxQueue(queue, knobs) => self.with_device(queue.device, |handles, device| {
                queue::write_rx(handles, RxQueue { device, ..queue }, &knobs)
            }),
            KernelCall::TxQueue(queue, knobs) => self.with_device(queue.device, |handles, device| {
                queue::write_tx(handles, TxQueue { device, ..queue }, &knobs)
            }),
            KernelCall::Irq(irq, knobs) => {
                knobs.into_iter().try_for_each(|knob| irq::write(&self.irqbalance, irq, knob))
            }
            KernelCall::Process(knobs) => knobs.into_iter().try_for_each(process_knob::write),
            KernelCall::Host(knobs) => knobs
                .into_iter()
                .try_for_each(|HostKnob::Sysctl(number, value)| sysctl::write(*number, *value)),
        }
    }
}

impl Knobs for Kernel {
    type Error = KernelError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, KernelError> {
        let mut found = Vec::with_capacity(like.len());
        for (like, call) in calls(like) {
            found.extend(self.read_call(call).map_err(|error| about(&asked(like), error))?);
        }
        Ok(found)
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), KernelError> {
        for (settings, call) in calls(settings) {
            self.write_call(call).map_err(|error| about(&written(settings), error))?;
        }
        Ok(())
    }

    fn object_cookies(&mut self, plan: &Plan) -> ObjectCookies {
        let mut object_cookies = ObjectCookies::new();
        for id in Self::namespaces(plan) {
            let cookie = self.handles(id).ok().and_then(|handles| handles.cookie());
            object_cookies.extend(cookie.map(|cookie| (format!("{NETNS_COOKIE}{id}"), cookie.to_string())));
        }
        let devices: BTreeSet<DeviceId> =
            plan.changes().filter_map(|change| change.to().object().device()).collect();
        for device in devices {
            let number = self.handles(device.netns).and_then(|handles| handles.number_of(device));
            // Without access to sysfs of another namespace, only the index identifies the device.
            object_cookies.extend(number.ok().map(|number| (device_cookie_name(device), number.to_string())));
            let address = self.handles(device.netns).and_then(|handles| handles.address(device));
            let address = address.ok().flatten();
            object_cookies.extend(address.map(|address| (device_address_name(device), address)));
        }
        self.moving.note(&object_cookies);
        object_cookies
    }

    fn recall(&mut self, object_cookies: &ObjectCookies) {
        self.cookies.clear();
        self.numbers.clear();
        self.moving = MovedDevices::new();
        self.moving.note(object_cookies);
        for (what, number) in object_cookies {
            let id = what.strip_prefix(NETNS_COOKIE).and_then(|id| id.parse().ok()).map(NetnsId);
            self.cookies.extend(id.zip(number.parse().ok()));
            self.numbers.extend(device_of_cookie_name(what).zip(number.parse().ok()));
        }
    }

    fn queue_conflict(&mut self, changes: &[&Change]) -> Result<Option<QueueConflict>, KernelError> {
        let mut known: BTreeMap<DeviceId, Vec<QueueHolder>> = BTreeMap::new();
        for change in changes.iter().filter(|change| QueueConflict::could_be_by(change.to())) {
            let Some(device) = change.to().object().device() else { continue };
            if let Entry::Vacant(unknown) = known.entry(device) {
                unknown.insert(self.with_device(device, |handles, device| handles.holders(device))?);
            }
            if let Some(taken) = known.get(&device).and_then(|holders| QueueConflict::by(change, holders)) {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    fn is_gone(error: &KernelError) -> bool {
        matches!(error.cause, Cause::Gone(_))
    }
}

/// The name of a namespace's cookie in the journal.
const NETNS_COOKIE: &str = "cookie of network namespace ";

/// Converts ENODEV, ethtool's error for a device that no longer exists, to [`Cause::Gone`].
fn gone_with_its_device(error: KernelError) -> KernelError {
    match error.number() {
        Some(Errno::NODEV) => KernelError::gone(error.what, "no device has its index any longer"),
        _ => error,
    }
}

/// Groups settings into calls: settings that share a message or an answer form one call. Every other setting
/// gets a separate call, so that an error names only that setting.
fn calls(settings: &[Setting]) -> impl Iterator<Item = (&[Setting], KernelCall<'_>)> {
    KernelCall::of(settings).into_iter().flat_map(|(settings, call)| match call {
        KernelCall::Napi(..) | KernelCall::Nic(..) | KernelCall::RxQueue(..) | KernelCall::TxQueue(..) => {
            vec![(settings, call)]
        }
        KernelCall::DeviceNapis(..)
        | KernelCall::Kthread(..)
        | KernelCall::Irq(..)
        | KernelCall::Process(_)
        | KernelCall::Host(_) => settings.chunks(1).flat_map(KernelCall::of).collect(),
    })
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{DeviceNapiKnob, EmptyPolls, IrqKnob, IrqNumber, Label, Nanoseconds, NapiKnob, QueueIndex};

    fn queue() -> RxQueue {
        let netns = sys::Netns::own().expect("own namespace").id();
        let device = DeviceId { netns, ifindex: IfIndex(0x7fff_fff0), name: Label::new("eth0") };
        RxQueue { device, index: QueueIndex(4) }
    }

    #[test]
    fn a_device_that_is_not_there_is_gone_and_the_error_names_object_and_setting() {
        let mut kernel = Kernel::new();
        let settings = [Setting::Napi(queue(), NapiKnob::DeferHardIrqs(EmptyPolls(100)))];
        let error = kernel.read(&settings).expect_err("gone");
        assert!(Kernel::is_gone(&error), "{error}");
        assert!(error.to_string().starts_with("eth0 rx-4: defer-hard-irqs: "), "{error}");
        let error = kernel
            .write(&[Setting::DeviceNapis(queue().device, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(5)))])
            .expect_err("gone");
        assert!(Kernel::is_gone(&error), "{error}");
        assert!(error.to_string().starts_with("eth0: gro_flush_timeout 5ns: "), "{error}");
    }

    #[test]
    fn an_interrupt_that_is_not_there_is_gone() {
        let settings = [Setting::Irq(IrqNumber(999_999), IrqKnob::Affinity("0".parse().expect("a list")))];
        let error = Kernel::new().write(&settings).expect_err("gone");
        assert!(Kernel::is_gone(&error), "{error}");
    }

    #[test]
    fn settings_of_one_queue_are_named_together() {
        let settings = [
            Setting::Napi(queue(), NapiKnob::DeferHardIrqs(EmptyPolls(100))),
            Setting::Napi(queue(), NapiKnob::IrqSuspendTimeout(Nanoseconds::from_millis(20))),
        ];
        assert_eq!(written(&settings), "eth0 rx-4: defer-hard-irqs 100, irq-suspend-timeout 20ms");
        assert_eq!(asked(&settings), "eth0 rx-4: defer-hard-irqs, irq-suspend-timeout");
    }
}
