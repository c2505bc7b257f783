//! What a measurement must say about the machine it was made on.

use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// `uname -r`.
    pub kernel: String,
    /// The model of its CPUs; empty where `/proc/cpuinfo` has none.
    pub cpu_model: String,
}

impl Machine {
    /// The machine that this runs on.
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

/// The first line `model name` of `/proc/cpuinfo`. Kernel: 6.18, `arch/x86/kernel/cpu/proc.c` `show_cpuinfo()`.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let (_, model) = cpuinfo.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(model.trim())
}

/// Seconds since 1970 (UTC); 0 on a machine whose clock is before that.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_cpus_are_called_as_the_kernel_calls_them() {
        let text = "processor\t: 0\nvendor_id\t: X\nmodel name\t: EPYC 7662 64-Core: X\n\nprocessor\t: 1\n";
        assert_eq!(cpu_model(text), Some("EPYC 7662 64-Core: X"));
        assert_eq!(cpu_model("CPU implementer\t: 0x41\n"), None);
    }
}
