//! The idle states that CPUs may enter, and the time that the CPUs spent in each state.
//!
//! Kernel: Documentation/admin-guide/pm/cpuidle.rst, `/sys/devices/system/cpu/cpuN/cpuidle/stateM/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use model::Cpu;
use model::host::{CpuIdle, IdleDepth, IdleState};
use sys::error::KernelError;

use crate::latency;

/// The directory of the CPUs.
const CPUS: &str = "/sys/devices/system/cpu";

/// The maximum number of idle states of one CPU. Kernel: `include/linux/cpuidle.h` `CPUIDLE_STATE_MAX`.
const STATES_MAX: u32 = 10;

/// The time that all CPUs together have spent in each idle state since boot, in microseconds, with the
/// state's name, the shallowest state first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleTimes {
    cpus: usize,
    states: Vec<(String, u64)>,
}

impl IdleTimes {
    /// Reads the current times; `None` if the kernel does not choose idle states, as with `idle=poll` or in a
    /// guest whose host chooses them.
    ///
    /// # Errors
    /// If the list of CPUs cannot be read, or a state's time is not a number.
    pub fn now() -> Result<Option<Self>, KernelError> {
        Self::under(Path::new(CPUS))
    }

    fn under(root: &Path) -> Result<Option<Self>, KernelError> {
        let failed = |error: std::io::Error| KernelError::io(root.display().to_string(), &error);
        let mut found: BTreeMap<u32, (String, u64)> = BTreeMap::new();
        let mut cpus = 0;
        for entry in fs::read_dir(root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu")).map(str::parse::<u32>);
            if !matches!(number, Some(Ok(_))) {
                continue;
            }
            let mut counted = 0;
            for state in 0..STATES_MAX {
                let directory = entry.path().join(format!("cpuidle/state{state}"));
                // A CPU may have fewer states than others, or be offline.
                let Ok(time) = fs::read_to_string(directory.join("time")) else { break };
                let Ok(name) = fs::read_to_string(directory.join("name")) else { break };
                let micros: u64 = time.trim().parse().map_err(|_| {
                    let path = directory.join("time").display().to_string();
                    KernelError::malformed(path, format!("`{}` is not a number", time.trim()))
                })?;
                found.entry(state).or_insert_with(|| (name.trim().to_owned(), 0)).1 += micros;
                counted = 1;
            }
            cpus += counted;
        }
        let states: Vec<(String, u64)> = found.into_values().collect();
        Ok((!states.is_empty()).then_some(Self { cpus, states }))
    }

    /// The share of CPU time that was spent in each state since an earlier reading, in per cent of all CPUs;
    /// `span` is the time in between, in microseconds.
    pub fn shares_since(&self, earlier: &Self, span: u64) -> Vec<(String, u64)> {
        let whole = span.saturating_mul(u64::try_from(self.cpus).unwrap_or(u64::MAX)).max(1);
        let before =
            |name: &str| earlier.states.iter().find(|(other, _)| other == name).map_or(0, |(_, time)| *time);
        let share = |(name, time): &(String, u64)| {
            let spent = time.saturating_sub(before(name)).saturating_mul(100) / whole;
            (name.clone(), spent.min(100))
        };
        self.states.iter().map(share).collect()
    }
}

/// Reads how deep CPUs may sleep; `None` if the kernel does not choose idle states.
///
/// # Errors
/// If the list of CPUs or `/dev/cpu_dma_latency` cannot be read; the latter requires root.
pub fn idle_depth() -> Result<Option<IdleDepth>, KernelError> {
    let cpus = cpus_under(Path::new(CPUS))?;
    Ok(match cpus.is_empty() {
        true => None,
        false => Some(IdleDepth { bound: latency::in_force()?, cpus }),
    })
}

fn cpus_under(root: &Path) -> Result<BTreeMap<Cpu, CpuIdle>, KernelError> {
    let failed = |error: std::io::Error| KernelError::io(root.display().to_string(), &error);
    let mut cpus = BTreeMap::new();
    for entry in fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        let Some(number) = number else { continue };
        let word = |file: String| {
            fs::read_to_string(entry.path().join(file)).ok().map(|text| text.trim().to_owned())
        };
        let mut idle = CpuIdle {
            bound: own_bound(word("power/pm_qos_resume_latency_us".to_owned())),
            states: Vec::new(),
        };
        for state in 0..STATES_MAX {
            let of_state = |file: &str| word(format!("cpuidle/state{state}/{file}"));
            let exit = of_state("latency").and_then(|exit| exit.parse().ok());
            let Some((name, exit)) = of_state("name").zip(exit) else { break };
            if of_state("disable").is_none_or(|disabled| disabled == "0") {
                idle.states.push(IdleState { name, exit });
            }
        }
        if !idle.states.is_empty() {
            cpus.insert(Cpu(number), idle);
        }
    }
    Ok(cpus)
}

/// Parses a CPU's own bound on its resume latency. Kernel: `drivers/base/power/sysfs.c`
/// `pm_qos_resume_latency_us_show()`: 0 means no bound, and `n/a` means a bound of 0.
fn own_bound(text: Option<String>) -> Option<u32> {
    match text?.as_str() {
        "0" => None,
        "n/a" => Some(0),
        micros => micros.parse().ok(),
    }
}

#[cfg(test)]
mod test {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_shares_of_two_readings_are_of_all_cpus_that_have_idle_states() {
        let root = TempDir::with_prefix("netpolicy-idle-").expect("a directory");
        let root = root.path();
        let write = |cpu: u32, state: u32, name: &str, time: u64| {
            let directory = root.join(format!("cpu{cpu}/cpuidle/state{state}"));
            fs::create_dir_all(&directory).expect("directories");
            fs::write(directory.join("name"), format!("{name}\n")).expect("file");
            fs::write(directory.join("time"), format!("{time}\n")).expect("file");
        };
        fs::create_dir_all(root.join("cpu2")).expect("an offline CPU");
        fs::create_dir_all(root.join("cpufreq")).expect("no CPU");
        assert_eq!(IdleTimes::under(root).expect("read"), None, "no idle states");
        for cpu in [0, 1] {
            write(cpu, 0, "C1", 1_000);
            write(cpu, 1, "C6", 5_000);
        }
        let before = IdleTimes::under(root).expect("read").expect("states");
        write(0, 0, "C1", 2_000);
        write(1, 1, "C6", 10_000);
        let after = IdleTimes::under(root).expect("read").expect("states");
        assert_eq!(after.shares_since(&before, 10_000), [("C1".to_owned(), 5), ("C6".to_owned(), 25)]);
    }

    #[test]
    fn the_deepest_idle_state_is_the_one_that_is_neither_disabled_nor_beyond_a_bound() {
        let root = TempDir::with_prefix("netpolicy-depth-").expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
            fs::write(path, format!("{text}\n")).expect("file");
        };
        for (cpu, own, c6_is_off) in [(0, "0", "0"), (1, "n/a", "0"), (2, "0", "1"), (3, "50", "0")] {
            for (state, name, exit) in [(0, "POLL", "0"), (1, "C1", "2"), (2, "C6", "133")] {
                write(&format!("cpu{cpu}/cpuidle/state{state}/name"), name);
                write(&format!("cpu{cpu}/cpuidle/state{state}/latency"), exit);
                write(
                    &format!("cpu{cpu}/cpuidle/state{state}/disable"),
                    if state == 2 { c6_is_off } else { "0" },
                );
            }
            write(&format!("cpu{cpu}/power/pm_qos_resume_latency_us"), own);
        }
        write("cpu4/power/pm_qos_resume_latency_us", "0");
        write("cpufreq/boost", "1");
        let cpus = cpus_under(root.path()).expect("read");
        let deepest = |bound: u32| {
            let depth = IdleDepth { bound, cpus: cpus.clone() };
            [0, 1, 2, 3, 4].map(|cpu| depth.deepest(Cpu(cpu)).map(|state| state.name.clone()))
        };
        let names = |names: [&str; 4]| names.map(|name| Some(name.to_owned()));
        assert_eq!(deepest(2_000_000_000)[..4], names(["C6", "POLL", "C1", "C1"]));
        assert_eq!(deepest(100)[..4], names(["C1", "POLL", "C1", "C1"]));
        assert_eq!(deepest(100)[4], None, "a CPU without idle states");
    }
}
