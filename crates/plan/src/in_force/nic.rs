//! Finds the values of a NIC and its driver.

use model::NicKnob;
use model::host::Device;

pub(super) fn value(device: &Device, like: &NicKnob) -> Option<NicKnob> {
    match like {
        NicKnob::Channels(kind, _) => {
            device.channels.map(|channels| NicKnob::Channels(*kind, channels.of(*kind).current))
        }
        NicKnob::Ring(kind, _) => device.rings.map(|rings| NicKnob::Ring(*kind, rings.of(*kind).current)),
        NicKnob::Coalescing(param, _) => {
            device.coalesce?.of(*param).map(|value| NicKnob::Coalescing(*param, value))
        }
        NicKnob::Offload(offload, _) => {
            device.requested_offload(*offload).map(|on| NicKnob::Offload(*offload, on))
        }
        NicKnob::PacketSize(size, _) => {
            device.packet_sizes.of(*size).map(|bytes| NicKnob::PacketSize(*size, bytes))
        }
        NicKnob::PrivateFlag(flag, _) => {
            device.private_flags.get(flag).map(|on| NicKnob::PrivateFlag(*flag, *on))
        }
        NicKnob::RssTable(_) => device.rss.as_ref().map(|rss| NicKnob::RssTable(rss.table.clone())),
        NicKnob::RssKey(_) => device.rss.as_ref().map(|rss| NicKnob::RssKey(rss.key.clone())),
        NicKnob::RssContext(queues, _) => device.rss_contexts.as_ref().map(|contexts| {
            let there = contexts.iter().any(|context| context.queues == Some(*queues));
            NicKnob::RssContext(*queues, there)
        }),
        NicKnob::FlowRule(flow, _) => device.flow_rules.as_ref().map(|rules| {
            let to = rules.iter().find(|rule| rule.flow == Some(*flow)).map(|rule| rule.to);
            NicKnob::FlowRule(*flow, to)
        }),
        NicKnob::Qdiscs(_) => device.qdiscs.clone().map(NicKnob::Qdiscs),
    }
}
