//! Observes a host: converts the kernel's data to a [`model::Host`].
//!
//! The views of [`netlink`] and the parsers below decode the kernel's data; this module interprets it. A part
//! that cannot be read is listed in [`model::Host::unread`] with the kernel's error, and the rest is observed
//! nevertheless.

mod again;
mod capabilities;
pub(crate) mod device;
pub(crate) mod holders;
pub(crate) mod irq;
mod listeners;
mod peer;
mod prerequisites;
mod process;
mod received;
mod sources;
pub(crate) mod topology;

pub use again::Observer;
pub use irq::count_interrupts;
pub use listeners::shared_addresses;
pub use peer::{PeerEnd, peer_end};
pub use prerequisites::{may_administer, prerequisites};
pub use process::{processes, processes_among};
pub use received::received;

use std::collections::BTreeMap;

use model::host::{PortRange, Unread};
use model::{CpuSet, Host, KernelVersion, KthreadState, Sysctl};
use sys::error::{Cause, KernelError};
use sys::netns::Netns;
use sys::sysctl;

use self::sources::{Sources, UnreadExt};
use crate::irqbalance::Irqbalance;
use crate::process::kthread;
pub use crate::selection::Processes;

/// Observes the host from this namespace.
///
/// # Errors
/// If the namespace cannot be entered or its devices cannot be listed. Everything else that cannot be read is
/// listed in [`Host::unread`].
pub fn observe(netns: &Netns, processes: &Processes) -> Result<Host, KernelError> {
    // Enter the namespace only once and read everything there, because each visit needs a thread that enters
    // it.
    let (sources, sysctls) = netns.run(|| (Sources::open_here(), Sysctls::read_here()))?;
    let mut host = whole(netns, &mut sources?, sysctls, processes)?;
    let mut unread = Vec::new();
    listeners::observe(&mut host, &mut None, &mut unread);
    host.unread.extend(unread);
    Ok(host)
}

fn whole(
    netns: &Netns,
    sources: &mut Sources,
    sysctls: Sysctls,
    processes: &Processes,
) -> Result<Host, KernelError> {
    if let Ok(sysfs) = &sources.sysfs {
        sysfs.keep_with(netns);
    }
    let Sysctls { values: sysctls, rps_default_mask, local_ports, reserved_ports, mut unread } = sysctls;
    let mut devices = device::devices(netns.id(), sources, None, &mut unread)?;
    let vectors = device::vectors(&devices);
    let (mut irqs, mut irqbalance) = (Vec::new(), None);
    if !vectors.is_empty() {
        let interrupts = irq::Interrupts::read(&mut unread);
        device::name_interrupts(&mut devices, &interrupts);
        irqs = irq::irqs(&vectors, &interrupts, &mut unread);
        irqbalance = Irqbalance::new().unless_busy().or_unread(&mut unread);
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut processes = process::processes(netns, processes, &mut unread);
    process::bound_users(&mut processes, &mut unread);
    Ok(Host {
        kernel: KernelVersion::parse(&release).unwrap_or(KernelVersion::UNKNOWN),
        release,
        capabilities: capabilities::capabilities(sources, &mut unread),
        topology: topology::topology(&sources.sysfs, &mut unread),
        netns: netns.id(),
        devices: devices.into_iter().map(|seen| seen.device).collect(),
        sysctls,
        rps_default_mask,
        local_ports,
        reserved_ports,
        irqs,
        processes,
        app_requests: Vec::new(),
        listeners: Vec::new(),
        kthread_begins: kthread_begins(&mut unread),
        rt_throttling: kthread::rt_throttling().map(Some).or_unread(&mut unread),
        irqbalance,
        pressure: None,
        unread,
    })
}

/// The sysctls of the calling thread's namespace.
#[derive(Debug, Default)]
struct Sysctls {
    values: BTreeMap<Sysctl, u64>,
    rps_default_mask: CpuSet,
    local_ports: PortRange,
    reserved_ports: Vec<PortRange>,
    unread: Vec<Unread>,
}

impl Sysctls {
    fn read_here() -> Self {
        let mut unread = Vec::new();
        let (values, rps_default_mask) = (sysctl::all(&mut unread), sysctl::rps_default_mask(&mut unread));
        let local_ports = sysctl::local_ports(&mut unread);
        let reserved_ports = sysctl::reserved_ports(&mut unread);
        Self { values, rps_default_mask, local_ports, reserved_ports, unread }
    }
}

/// Kernel threads are visible only in the initial pid namespace; elsewhere, that is not reported as unread.
fn kthread_begins(unread: &mut Vec<Unread>) -> Option<KthreadState> {
    match kthread::begins() {
        Err(error) if matches!(error.cause, Cause::Absent { .. } | Cause::Gone(_)) => None,
        begins => begins.map(Some).or_unread(unread),
    }
}
