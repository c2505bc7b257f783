//! Predicts, before the first stage, what the second stage will find: the settings of objects that already
//! exist.

use model::host::Device;
use model::{Change, ChannelKind, Host, NicKnob, Plan, RingKind, Setting};

/// Returns the host after the first stage, as far as it can be predicted: with the new numbers of queues, and
/// without removed queues. Queues that the driver will create are missing.
pub fn after_first_stage(host: &Host, first: &Plan) -> Host {
    let mut host = host.clone();
    for change in first.changes().map(Change::to) {
        let Setting::Nic(id, knob) = change else { continue };
        for device in host.devices.iter_mut().filter(|device| device.id == *id) {
            set(device, knob);
        }
    }
    host
}

fn set(device: &mut Device, knob: &NicKnob) {
    match knob {
        NicKnob::Channels(kind, count) => {
            let Some(channels) = &mut device.channels else { return };
            match kind {
                ChannelKind::Rx => channels.rx.current = *count,
                ChannelKind::Tx => channels.tx.current = *count,
                ChannelKind::Combined => channels.combined.current = *count,
            }
            let rx = channels.rx.current.saturating_add(channels.combined.current);
            let tx = channels.tx.current.saturating_add(channels.combined.current);
            device.rx_queues.retain(|queue| queue.id.index.0 < rx);
            device.tx_queues.retain(|queue| queue.index.0 < tx);
        }
        NicKnob::Ring(kind, size) => {
            let Some(rings) = &mut device.rings else { return };
            match kind {
                RingKind::Rx => rings.rx.current = *size,
                RingKind::Tx => rings.tx.current = *size,
            }
        }
        NicKnob::Offload(offload, on) => {
            device.offloads.insert(*offload, *on);
            device.offloads_requested.remove(offload);
        }
        NicKnob::PrivateFlag(flag, on) => {
            device.private_flags.insert(*flag, *on);
        }
        // The following settings do not recreate queues.
        NicKnob::Coalescing(..)
        | NicKnob::PacketSize(..)
        | NicKnob::RssTable(_)
        | NicKnob::RssKey(_)
        | NicKnob::RssContext(..)
        | NicKnob::FlowRule(..)
        | NicKnob::Qdiscs(_) => {}
    }
}
