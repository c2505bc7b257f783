//! Observes one device of a machine with its lower devices. A bench observes and changes no other device.

use std::collections::BTreeSet;

use linux::{Netns, Processes};
use model::{Host, IfIndex, Plan, Policy};
use session::{Exit, Fault, cycle, services};

/// Observes the device, its lower devices, and these processes.
pub(super) fn observe(netns: &Netns, device: IfIndex, processes: &Processes) -> Result<Host, Fault> {
    let mut host = linux::observe(netns, processes)?;
    let own = host.devices.iter().find(|one| one.id.ifindex == device);
    let below = own.map(|own| host.below(own)).unwrap_or_default();
    let kept: BTreeSet<IfIndex> = below.iter().map(|(_, below)| below.id.ifindex).chain([device]).collect();
    host.devices.retain(|device| kept.contains(&device.id.ifindex));
    Ok(host)
}

/// Plans a policy for the device.
///
/// # Errors
/// [`Exit::Unsupported`] for a policy that needs NAPIs, if the device has none.
pub(super) fn planned(netns: &Netns, device: IfIndex, policy: &Policy) -> Result<Plan, Fault> {
    let (resolved, processes) = services::resolve(policy)?;
    let host = observe(netns, device, &processes)?;
    let plan = cycle::place(policy, &host, resolved).and_then(|placement| {
        let planned = cycle::plan_placed(&placement, &host);
        planned.map(|(_, plan)| plan).map_err(|refusal| Fault::refused(refusal, &host))
    });
    plan.map_err(|fault| match host.devices.iter().find(|one| one.id.ifindex == device) {
        Some(own) if host.devices.iter().all(|one| one.napis.is_empty()) => {
            let why = format!("{} has no NAPI to configure: {}", own.id, plan::why_no_napi(own));
            Fault::new(Exit::Unsupported, why)
        }
        _ => fault,
    })
}
