//! Describes machines: every measurement records the description of its machine.

mod description;
mod towards;

pub use description::describe;
pub use towards::{device_towards, device_with_address};

use std::time::{SystemTime, UNIX_EPOCH};

use model::Nanoseconds;

use crate::KernelError;

/// A description of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The name.
    pub host: String,
    /// `uname -r`.
    pub kernel: String,
    /// The model of the machine's CPUs; empty if `/proc/cpuinfo` does not name a model.
    pub cpu_model: String,
}

impl Machine {
    /// Describes the machine that runs this process.
    pub fn this() -> Self {
        let uname = rustix::system::uname();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            host: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            cpu_model: cpu_model(&cpuinfo).unwrap_or_default().to_owned(),
        }
    }
}

/// Finds the value of the first line `model name` in `/proc/cpuinfo`. Kernel: 6.18,
/// `arch/x86/kernel/cpu/proc.c` `show_cpuinfo()`.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let (_, model) = cpuinfo.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(model.trim())
}

/// Reads the kernel's identifier of this boot, including the line break at its end.
///
/// # Errors
/// If the kernel does not report it.
pub fn boot_id() -> Result<String, KernelError> {
    text_of("/proc/sys/kernel/random/boot_id")
}

/// Whether this process is in a user namespace that does not map every user of the host. Files of the host's
/// root then belong to the overflow user (`kernel.overflowuid`).
pub fn has_unmapped_users() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !maps_all_users(&map))
}

/// Whether a uid map covers all users. Kernel: 6.18, `kernel/user_namespace.c` `uid_m_show()`.
fn maps_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the total time since boot during which at least one task waited for a CPU; `None` on a kernel
/// without pressure stall information (`CONFIG_PSI`, or `psi=0`). Kernel: 6.18, `kernel/sched/psi.c`
/// `psi_show()`.
pub fn cpu_pressure() -> Option<Nanoseconds> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    let total = text.lines().find(|line| line.starts_with("some "))?.split_once("total=")?.1;
    Some(Nanoseconds::from_micros(total.trim().parse().ok()?))
}

/// Returns the number of CPUs for which the kernel reserves memory, including absent CPUs.
///
/// # Errors
/// If the kernel does not report it.
pub fn possible_cpus() -> Result<u32, KernelError> {
    const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
    let text = text_of(POSSIBLE)?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u32>().ok());
    last.and_then(|last| last.checked_add(1))
        .ok_or_else(|| KernelError::malformed(POSSIBLE, format!("`{}` is not a list of CPUs", text.trim())))
}

/// Memory that the kernel uses itself, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMemory {
    /// Memory for objects that exist once per CPU: `Percpu` in `/proc/meminfo`.
    pub per_cpu: u64,
    /// Memory for objects of the slab allocator: `Slab` in `/proc/meminfo`.
    pub slab: u64,
}

/// Reads how much memory the kernel uses.
///
/// # Errors
/// If the kernel does not report it.
pub fn kernel_memory() -> Result<KernelMemory, KernelError> {
    const MEMINFO: &str = "/proc/meminfo";
    let text = text_of(MEMINFO)?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        value.ok_or_else(|| KernelError::malformed(MEMINFO, format!("no number after {name}")))
    };
    Ok(KernelMemory { per_cpu: value("Percpu:")?, slab: value("Slab:")? })
}

fn text_of(path: &str) -> Result<String, KernelError> {
    std::fs::read_to_string(path).map_err(|error| KernelError::io(path, &error))
}

/// Returns the seconds since 1970 (UTC); 0 on a machine whose clock shows an earlier time.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_kernel_names_its_boot_its_cpus_and_its_memory() {
        assert_eq!(boot_id().expect("a boot").trim().len(), "8c0f0f8a-7d3b-4a5e-9d57-0f6d6f3a2b1c".len());
        assert!(possible_cpus().expect("a list") >= 1);
        assert!(kernel_memory().expect("meminfo").slab > 0);
    }

    #[test]
    fn a_user_namespace_with_few_users_has_unmapped_ones() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(!maps_all_users("         0       1000          1\n"));
        assert!(!maps_all_users("         0          0      65536\n"));
    }

    #[test]
    fn the_cpus_are_called_as_the_kernel_calls_them() {
        let text = "processor\t: 0\nvendor_id\t: X\nmodel name\t: EPYC 7662 64-Core: X\n\nprocessor\t: 1\n";
        assert_eq!(cpu_model(text), Some("EPYC 7662 64-Core: X"));
        assert_eq!(cpu_model("CPU implementer\t: 0x41\n"), None);
    }
}
