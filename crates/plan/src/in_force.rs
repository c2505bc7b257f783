//! The value that a knob has on the observed host.

use model::host::{Device, RxQueueState, TxQueueState};
use model::{
    DeviceId, EmptyPolls, Interface, KthreadState, Nanoseconds, Object, RxQueue, Setting, Threading, TxQueue,
};

use crate::index::{Index, IndexedNapi};
use crate::refusal::{Refusal, RefusalKind};

/// The same knob of the same object, with the value in force.
///
/// # Errors
/// [`RefusalKind::Missing`] if the object is not on the host, or the value could not be read: what is not known
/// cannot be put back, so it is not changed.
pub(crate) fn value(wanted: &Setting, index: &Index<'_>) -> Result<Setting, Refusal> {
    let found = match wanted {
        Setting::DeferHardIrqs(queue, _) => {
            defer(queue, index).map(|polls| Setting::DeferHardIrqs(*queue, polls))
        }
        Setting::GroFlushTimeout(queue, _) => {
            flush(queue, index).map(|span| Setting::GroFlushTimeout(*queue, span))
        }
        Setting::IrqSuspendTimeout(queue, _) => {
            suspend(queue, index).map(|span| Setting::IrqSuspendTimeout(*queue, span))
        }
        Setting::Threaded(queue, _) => {
            threaded(queue, index).map(|threading| Setting::Threaded(*queue, threading))
        }
        Setting::DeviceDeferHardIrqs(id, _) => {
            device(id, index).and_then(|d| d.defer_hard_irqs).map(|v| Setting::DeviceDeferHardIrqs(*id, v))
        }
        Setting::DeviceGroFlushTimeout(id, _) => device(id, index)
            .and_then(|d| d.gro_flush_timeout)
            .map(|v| Setting::DeviceGroFlushTimeout(*id, v)),
        Setting::DeviceThreaded(id, _) => {
            device(id, index).and_then(|d| d.threaded).map(|v| Setting::DeviceThreaded(*id, v))
        }
        Setting::Epoll(id, _) => {
            index.epolls.get(id).and_then(|e| e.params).map(|params| Setting::Epoll(*id, params))
        }
        Setting::IoUringNapi(id, _) => index.rings.get(id).map(|ring| Setting::IoUringNapi(*id, ring.napi)),
        Setting::Reuseport(id, _) => {
            let group = index.host.listeners.iter().find(|group| group.id == *id);
            group.map(|group| Setting::Reuseport(*id, group.spread.clone()))
        }
        Setting::IrqAffinity(number, _) => {
            index.irqs.get(number).map(|irq| Setting::IrqAffinity(*number, irq.affinity.clone()))
        }
        Setting::IrqBan(number, _) => {
            let bans = index.host.irqbalance.as_ref().and_then(|running| running.banned.as_ref());
            bans.map(|bans| Setting::IrqBan(*number, bans.contains(number)))
        }
        Setting::ThreadAffinity(id, _) => {
            index.threads.get(id).map(|thread| Setting::ThreadAffinity(*id, thread.affinity.clone()))
        }
        Setting::KthreadAffinity(queue, _) => {
            kthread(queue, index).map(|thread| Setting::KthreadAffinity(*queue, thread.cpus.clone()))
        }
        Setting::KthreadScheduling(queue, _) => kthread(queue, index)
            .and_then(|thread| thread.scheduling)
            .map(|class| Setting::KthreadScheduling(*queue, class)),
        Setting::KthreadUtilClamp(queue, _) => kthread(queue, index)
            .and_then(|thread| thread.util_clamp)
            .map(|clamp| Setting::KthreadUtilClamp(*queue, clamp)),
        Setting::Channels(id, kind, _) => device(id, index)
            .and_then(|d| d.channels)
            .map(|channels| Setting::Channels(*id, *kind, channels.of(*kind).current)),
        Setting::Ring(id, kind, _) => device(id, index)
            .and_then(|d| d.rings)
            .map(|rings| Setting::Ring(*id, *kind, rings.of(*kind).current)),
        Setting::Coalescing(id, param, _) => device(id, index)
            .and_then(|d| d.coalesce?.of(*param))
            .map(|value| Setting::Coalescing(*id, *param, value)),
        Setting::Offload(id, offload, _) => device(id, index)
            .and_then(|d| d.offloads.get(offload))
            .map(|on| Setting::Offload(*id, *offload, *on)),
        Setting::PacketSize(id, size, _) => device(id, index)
            .and_then(|d| d.packet_sizes.of(*size))
            .map(|bytes| Setting::PacketSize(*id, *size, bytes)),
        Setting::PrivateFlag(id, flag, _) => device(id, index)
            .and_then(|d| d.private_flags.get(flag))
            .map(|on| Setting::PrivateFlag(*id, *flag, *on)),
        Setting::RssTable(id, _) => device(id, index)
            .and_then(|d| d.rss.as_ref())
            .map(|rss| Setting::RssTable(*id, rss.table.clone())),
        Setting::RssKey(id, _) => {
            device(id, index).and_then(|d| d.rss.as_ref()).map(|rss| Setting::RssKey(*id, rss.key.clone()))
        }
        Setting::RssContext(id, queues, _) => {
            device(id, index).and_then(|d| d.rss_contexts.as_ref()).map(|contexts| {
                let there = contexts.iter().any(|context| context.queues == Some(*queues));
                Setting::RssContext(*id, *queues, there)
            })
        }
        Setting::FlowRule(id, flow, _) => {
            device(id, index).and_then(|d| d.flow_rules.as_ref()).map(|rules| {
                let to = rules.iter().find(|rule| rule.flow == Some(*flow)).map(|rule| rule.to);
                Setting::FlowRule(*id, *flow, to)
            })
        }
        Setting::Qdiscs(id, _) => {
            device(id, index).and_then(|d| d.qdiscs.clone()).map(|qdiscs| Setting::Qdiscs(*id, qdiscs))
        }
        Setting::QueueCoalescing(queue, param, _) => rx_queue(queue, index)
            .and_then(|q| q.coalesce?.of(*param))
            .map(|value| Setting::QueueCoalescing(*queue, *param, value)),
        Setting::RpsCpus(queue, _) => {
            rx_queue(queue, index).map(|q| Setting::RpsCpus(*queue, q.rps_cpus.clone()))
        }
        Setting::RpsFlowCount(queue, _) => {
            rx_queue(queue, index).and_then(|q| q.rps_flow_cnt).map(|n| Setting::RpsFlowCount(*queue, n))
        }
        Setting::XpsCpus(queue, _) => {
            tx_queue(queue, index).map(|q| Setting::XpsCpus(*queue, q.xps_cpus.clone()))
        }
        Setting::XpsRxQueues(queue, _) => {
            tx_queue(queue, index).map(|q| Setting::XpsRxQueues(*queue, q.xps_rxqs.clone()))
        }
        Setting::Sysctl(sysctl, _) => {
            index.host.sysctls.get(sysctl).map(|value| Setting::Sysctl(*sysctl, *value))
        }
    };
    found.ok_or_else(|| unknown(wanted, index))
}

/// The kernel thread of a queue's NAPI; where there is none yet, what it will begin with.
pub(crate) fn kthread<'a>(queue: &RxQueue, index: &'a Index<'_>) -> Option<&'a KthreadState> {
    let state = rx_queue(queue, index)?;
    let of_napi = index.napi_of(*queue).and_then(|napi| napi.threaded);
    let threading = of_napi.or_else(|| device(&queue.device, index)?.threaded);
    match &state.kthread {
        Some(thread) => Some(thread),
        None if threading == Some(Threading::Off) => index.host.kthread_begins.as_ref(),
        None => None,
    }
}

fn rx_queue<'a>(queue: &RxQueue, index: &'a Index<'_>) -> Option<&'a RxQueueState> {
    index.rx.get(queue).copied()
}

fn tx_queue<'a>(queue: &TxQueue, index: &'a Index<'_>) -> Option<&'a TxQueueState> {
    index.tx.get(queue).copied()
}

fn napi<'a>(queue: &RxQueue, index: &'a Index<'_>) -> Option<&'a IndexedNapi<'a>> {
    let id = (*index.queues.get(queue)?)?;
    index.napis.get(&id)
}

fn device<'a>(id: &DeviceId, index: &'a Index<'_>) -> Option<&'a Device> {
    index.devices.get(id).copied()
}

fn defer(queue: &RxQueue, index: &Index<'_>) -> Option<EmptyPolls> {
    napi(queue, index)?.napi.defer_hard_irqs
}

fn flush(queue: &RxQueue, index: &Index<'_>) -> Option<Nanoseconds> {
    napi(queue, index)?.napi.gro_flush_timeout
}

fn suspend(queue: &RxQueue, index: &Index<'_>) -> Option<Nanoseconds> {
    napi(queue, index)?.napi.irq_suspend_timeout
}

fn threaded(queue: &RxQueue, index: &Index<'_>) -> Option<Threading> {
    napi(queue, index)?.napi.threaded
}

/// Why the value is not known: the object is gone, or something could not be read.
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
        Object::Listeners(id) => index.host.listeners.iter().any(|group| group.id == id),
        Object::Irq(number) => index.irqs.contains_key(&number),
        Object::Thread(id) => index.threads.contains_key(&id),
    };
    let of_driver = matches!(
        wanted.interface(),
        Interface::Channels
            | Interface::Rings
            | Interface::Coalescing
            | Interface::QueueCoalescing
            | Interface::Offloads
            | Interface::PrivateFlags
            | Interface::Rss
            | Interface::RssContexts
            | Interface::FlowRules
    );
    if there && of_driver {
        let what = if let Setting::RssContext(..) = wanted {
            "contexts of the receive hash"
        } else if let Setting::FlowRule(..) = wanted {
            "rules for single flows"
        } else {
            wanted.knob()
        };
        let message = format!("its driver has no {what}");
        return Refusal::new(RefusalKind::Unsupported, wanted.object(), message);
    }
    if there && matches!(wanted, Setting::PacketSize(..)) {
        let message =
            format!("this kernel has no {}, or did not say it: since {}", wanted.knob(), wanted.since());
        return Refusal::new(RefusalKind::Unsupported, wanted.object(), message);
    }
    if matches!(wanted, Setting::Sysctl(..)) {
        let message = format!(
            "{} is of the whole machine, and is shown in the initial network namespace only",
            wanted.knob()
        );
        return Refusal::new(RefusalKind::Unsupported, wanted.object(), message);
    }
    let message = if there {
        format!("the value of {} could not be read, so it could not be put back", wanted.knob())
    } else {
        format!("it is no longer there to set {} on", wanted.knob())
    };
    let mut refusal = Refusal::new(RefusalKind::Missing, wanted.object(), message);
    for unread in &index.host.unread {
        refusal = refusal.because(format!("{}: {}", unread.what, unread.why));
    }
    refusal
}
