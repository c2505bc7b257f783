//! Finds the value of a knob on the observed host; one file per family of settings.

mod irq;
mod kthread;
mod napi;
mod nic;
mod process;
mod queue;

pub(crate) use kthread::thread as kthread;

use model::host::{Device, RxQueueState, TxQueueState};
use model::setting::Absent;
use model::{DeviceId, HostKnob, Object, RxQueue, Setting, TxQueue};

use crate::index::Index;
use crate::refusal::{Refusal, RefusalKind};

/// Returns the same knob of the same object with the value in force.
///
/// # Errors
/// [`RefusalKind::Missing`] if the host does not have the object, or if the value could not be read. An
/// unknown value could not be restored, so netpolicy never changes it.
pub(crate) fn value(wanted: &Setting, index: &Index<'_>) -> Result<Setting, Refusal> {
    let found = match wanted {
        Setting::Napi(queue, knob) => napi::value(queue, knob, index).map(|knob| Setting::Napi(*queue, knob)),
        Setting::DeviceNapis(id, knob) => device(id, index)
            .and_then(|device| napi::of_device(device, knob))
            .map(|knob| Setting::DeviceNapis(*id, knob)),
        Setting::Kthread(queue, knob) => kthread(queue, index)
            .and_then(|thread| kthread::value(thread, knob))
            .map(|knob| Setting::Kthread(*queue, knob)),
        Setting::Nic(id, knob) => {
            device(id, index).and_then(|device| nic::value(device, knob)).map(|knob| Setting::Nic(*id, knob))
        }
        Setting::RxQueue(id, knob) => rx_queue(id, index)
            .and_then(|queue| queue::rx(queue, knob))
            .map(|knob| Setting::RxQueue(*id, knob)),
        Setting::TxQueue(id, knob) => {
            tx_queue(id, index).map(|queue| Setting::TxQueue(*id, queue::tx(queue, knob)))
        }
        Setting::Irq(number, knob) => {
            irq::value(*number, knob, index).map(|knob| Setting::Irq(*number, knob))
        }
        Setting::Process(knob) => process::value(knob, index).map(Setting::Process),
        Setting::Host(HostKnob::Sysctl(sysctl, _)) => {
            let value = index.host.sysctls.get(sysctl);
            value.map(|value| Setting::Host(HostKnob::Sysctl(*sysctl, *value)))
        }
    };
    found.ok_or_else(|| unknown(wanted, index))
}

fn rx_queue<'a>(queue: &RxQueue, index: &'a Index<'_>) -> Option<&'a RxQueueState> {
    index.rx.get(queue).copied()
}

fn tx_queue<'a>(queue: &TxQueue, index: &'a Index<'_>) -> Option<&'a TxQueueState> {
    index.tx.get(queue).copied()
}

fn device<'a>(id: &DeviceId, index: &'a Index<'_>) -> Option<&'a Device> {
    index.devices.get(id).copied()
}

/// Creates the refusal that says why the value is unknown: the object no longer exists, or something could
/// not be read.
fn unknown(wanted: &Setting, index: &Index<'_>) -> Refusal {
    let there = match wanted.object() {
        Object::Queue(queue) => rx_queue(&queue, index).is_some(),
        Object::Device(id)
        | Object::PrivateFlag(id, _)
        | Object::RssContext(id, _)
        | Object::FlowRule(id, _) => index.devices.contains_key(&id),
        Object::TxQueue(queue) => tx_queue(&queue, index).is_some(),
        Object::Host => true,
        Object::Epoll(id) => index.epolls.contains_key(&id),
        Object::Ring(id) => index.rings.contains_key(&id),
        Object::Socket(id) => index.sockets.contains_key(&id),
        Object::Listeners(id) => index.host.listeners.iter().any(|group| group.id == id),
        Object::Irq(number) => index.irqs.contains_key(&number),
        Object::Thread(id) => index.threads.contains_key(&id),
    };
    let lacking = match wanted.facts().absent {
        Absent::Unread => None,
        Absent::Driver => Some(format!("its driver has no {}", wanted.knob())),
        Absent::DriverPart(part) => Some(format!("its driver has no {part}")),
        Absent::Kernel => Some(format!(
            "this kernel has no {}, or did not report it: since {}",
            wanted.knob(),
            wanted.since()
        )),
        Absent::InitialNetns => Some(format!(
            "{} affects the whole machine, and is visible only in the initial network namespace",
            wanted.knob()
        )),
    };
    if let Some(message) = lacking.filter(|_| there) {
        return Refusal::new(RefusalKind::Unsupported, wanted.object(), message);
    }
    let message = if there {
        format!("the value of {} could not be read, so it could not be undone", wanted.knob())
    } else {
        format!("it no longer exists, so {} cannot be set", wanted.knob())
    };
    let mut refusal = Refusal::new(RefusalKind::Missing, wanted.object(), message);
    for unread in &index.host.unread {
        refusal = refusal.because(format!("{}: {}", unread.what, unread.why));
    }
    refusal
}
