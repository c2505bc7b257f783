//! How long CPUs were in which idle state.
//!
//! Kernel: Documentation/admin-guide/pm/cpuidle.rst, `/sys/devices/system/cpu/cpuN/cpuidle/stateM/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::error::KernelError;

/// Where CPUs are listed.
const CPUS: &str = "/sys/devices/system/cpu";

/// The most idle states of one CPU. Kernel: `include/linux/cpuidle.h` `CPUIDLE_STATE_MAX`.
const STATES_MAX: u32 = 10;

/// How long all CPUs together have been in each idle state since they run, in microseconds, by the state's name, the
/// shallowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleTimes {
    cpus: usize,
    states: Vec<(String, u64)>,
}

impl IdleTimes {
    /// As of now; `None` where the kernel chooses no idle states (a guest whose host does, or `idle=poll`).
    ///
    /// # Errors
    /// If the list of CPUs cannot be read, or a state's time is no number.
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
                    KernelError::malformed(path, format!("`{}` is no number", time.trim()))
                })?;
                found.entry(state).or_insert_with(|| (name.trim().to_owned(), 0)).1 += micros;
                counted = 1;
            }
            cpus += counted;
        }
        let states: Vec<(String, u64)> = found.into_values().collect();
        Ok((!states.is_empty()).then_some(Self { cpus, states }))
    }

    /// The share of CPU time that was spent in each state since an earlier reading, in per cent of all CPUs; `span` is
    /// the time in between, in microseconds.
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_shares_of_two_readings_are_of_all_cpus_that_have_idle_states() {
        let root = std::env::temp_dir().join(format!("netpolicy-idle-{}", std::process::id()));
        let write = |cpu: u32, state: u32, name: &str, time: u64| {
            let directory = root.join(format!("cpu{cpu}/cpuidle/state{state}"));
            fs::create_dir_all(&directory).expect("directories");
            fs::write(directory.join("name"), format!("{name}\n")).expect("file");
            fs::write(directory.join("time"), format!("{time}\n")).expect("file");
        };
        fs::create_dir_all(root.join("cpu2")).expect("an offline CPU");
        fs::create_dir_all(root.join("cpufreq")).expect("no CPU");
        assert_eq!(IdleTimes::under(&root).expect("read"), None, "no idle states");
        for cpu in [0, 1] {
            write(cpu, 0, "C1", 1_000);
            write(cpu, 1, "C6", 5_000);
        }
        let before = IdleTimes::under(&root).expect("read").expect("states");
        write(0, 0, "C1", 2_000);
        write(1, 1, "C6", 10_000);
        let after = IdleTimes::under(&root).expect("read").expect("states");
        fs::remove_dir_all(&root).expect("removed");
        assert_eq!(after.shares_since(&before, 10_000), [("C1".to_owned(), 5), ("C6".to_owned(), 25)]);
    }
}
