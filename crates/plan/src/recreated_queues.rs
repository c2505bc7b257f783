//! Finds the devices whose queues a policy recreates.

use model::host::Device;
use model::nic::NicRequest;
use model::{ChannelKind, Offload, Recipes, Target};

use crate::index::Index;
use crate::placement::PlacedRequest;
use crate::queues_after::{QueuesAfter, by_name};
use crate::recipe::of_device;

/// Returns the future numbers of queues of devices: those that requests name and, if recipes may stop a
/// queue, those of recipes.
pub(crate) fn recreated_queues(
    parts: &[PlacedRequest],
    recipes: &Recipes,
    disruptive: bool,
    index: &Index<'_>,
) -> QueuesAfter {
    let mut found = QueuesAfter::default();
    for part in parts {
        let Target::Device(name) = &part.intent.target else { continue };
        let own = index.host.device_named(name).filter(|device| !index.host.is_upper(device));
        let Some(device) = own else { continue };
        let by_recipe = |kind| {
            let count = || of_device::channels_wanted(kind, part, device, recipes, index);
            disruptive.then(count).flatten()
        };
        let (rx, tx) = device.channels.map_or((0, 0), |channels| {
            let more = |kind: ChannelKind| {
                let now = channels.of(kind).current;
                let then = by_name(kind, &part.intent.nic).or_else(|| by_recipe(kind)).unwrap_or(now);
                i64::from(then) - i64::from(now)
            };
            let combined = more(ChannelKind::Combined);
            (combined + more(ChannelKind::Rx), combined + more(ChannelKind::Tx))
        });
        let napis = gives_napis(part, device);
        if rx != 0 || tx != 0 || napis {
            let count = |there: usize, more: i64| {
                let there = i64::try_from(there).unwrap_or(i64::MAX);
                u32::try_from(there.saturating_add(more).max(0)).unwrap_or(u32::MAX)
            };
            let queues = (count(device.rx_queues.len(), rx), count(device.tx_queues.len(), tx));
            found.insert(device.id, queues, napis);
        }
    }
    found
}

/// Returns whether the request turns on GRO on a veth without NAPIs, which creates the NAPIs.
fn gives_napis(part: &PlacedRequest, device: &Device) -> bool {
    let requested =
        || part.intent.nic.iter().any(|request| matches!(request, NicRequest::Offload(Offload::Gro, true)));
    let off = device.offloads.get(&Offload::Gro) == Some(&false);
    let unrequested = device.requested_offload(Offload::Gro) == Some(false);
    device.kind == "veth" && off && unrequested && !device.xdp && requested()
}
