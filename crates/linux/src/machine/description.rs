//! Describes a machine that takes part in a measurement across machines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use model::host::Unread;
use model::{CpuSet, DeepestIdle, IfIndex, MachineDescription, Side};
use sys::error::KernelError;
use sys::netns::Netns;

use super::Machine;
use crate::idle::idle_depth;
use crate::ioctl::EthtoolIoctl;
use crate::observe::{Processes, observe};

const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";

/// The maximum size of a file that holds one line.
const LINE_BYTES_MAX: usize = 1_000;

/// Describes this machine, the CPUs that the bench uses, and the device that leads to the other machine.
///
/// # Errors
/// If the host cannot be observed. Parts that cannot be read are listed in the description.
pub fn describe(
    netns: &Netns,
    device: IfIndex,
    side: Side,
    cpus: CpuSet,
) -> Result<MachineDescription, KernelError> {
    let observed = observe(netns, &Processes::None)?;
    let mut unread = observed.unread;
    let device = observed.devices.into_iter().find(|one| one.id.ifindex == device);
    let napis = device.iter().flat_map(|device| &device.napis);
    let numbers: BTreeSet<_> = napis.filter_map(|napi| napi.irq).map(|edge| edge.irq).collect();
    let mut irqs = observed.irqs;
    irqs.retain(|irq| numbers.contains(&irq.number));
    let mut note = |what: &str, error: KernelError| {
        unread.push(Unread { what: what.to_owned(), why: error.to_string() });
    };
    let driver = device.as_ref().and_then(|device| {
        let name = device.id.name.as_str();
        let read = netns.run(|| EthtoolIoctl::open_here()?.driver(name)).and_then(|read| read);
        read.map_err(|error| note("the driver's version", error)).ok()
    });
    let deepest_idle = match idle_depth() {
        Ok(depth) => depth.and_then(|depth| {
            let deepest = cpus.iter().filter_map(|cpu| depth.deepest(cpu)).max_by_key(|state| state.exit);
            deepest.map(|state| DeepestIdle { name: state.name.clone(), exit_us: state.exit })
        }),
        Err(error) => {
            note("the idle states of CPUs", error);
            None
        }
    };
    let Machine { host, kernel, cpu_model } = Machine::this();
    Ok(MachineDescription {
        side,
        host,
        kernel,
        netpolicy: env!("CARGO_PKG_VERSION").to_owned(),
        cpu_model,
        guest: is_guest(),
        mitigations: mitigations(),
        deepest_idle,
        governors: governors(&cpus),
        irqbalance: observed.irqbalance.is_some(),
        cpus,
        topology: observed.topology,
        device,
        driver,
        irqs,
        unread,
    })
}

/// Whether this machine is a virtual machine. Kernel: 6.18, `arch/x86/include/asm/cpufeatures.h`
/// `X86_FEATURE_HYPERVISOR`.
fn is_guest() -> bool {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// Kernel: Documentation/ABI/testing/sysfs-devices-system-cpu.
fn mitigations() -> BTreeMap<String, String> {
    let files = std::fs::read_dir(VULNERABILITIES).into_iter().flatten().flatten();
    let of =
        |entry: std::fs::DirEntry| Some((entry.file_name().into_string().ok()?, line_of(&entry.path())?));
    files.filter_map(of).collect()
}

/// Kernel: Documentation/admin-guide/pm/cpufreq.rst.
fn governors(cpus: &CpuSet) -> Vec<String> {
    let path = |cpu| format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
    let found: BTreeSet<String> = cpus.iter().filter_map(|cpu| line_of(Path::new(&path(cpu)))).collect();
    found.into_iter().collect()
}

fn line_of(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    (text.len() <= LINE_BYTES_MAX).then(|| text.trim().to_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn this_machine_is_described_with_its_own_address() {
        let netns = Netns::own().expect("own");
        let loopback = crate::machine::device_with_address(&netns, [127, 0, 0, 1].into());
        let loopback = loopback.expect("is asked").expect("loopback has it");
        let cpus: CpuSet = "0".parse().expect("a list");
        let found = describe(&netns, loopback, Side::Server, cpus).expect("observed");
        assert_eq!(found.device.as_ref().map(|device| device.id.name.as_str()), Some("lo"));
        assert!(found.in_words().starts_with("server "), "{}", found.in_words());
        let nobody = crate::machine::device_with_address(&netns, [192, 0, 2, 77].into());
        assert_eq!(nobody.expect("is asked"), None);
    }
}
