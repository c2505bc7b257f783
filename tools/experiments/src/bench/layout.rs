//! Divides the CPUs between server and client.

use model::{Cpu, CpuSet};

/// The CPUs of server and client: interrupts and server must not compete with the generator for CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The server's CPUs: the upper half of the bench's CPUs.
    pub server: CpuSet,
    /// The client's CPUs: the lower half of the bench's CPUs.
    pub client: Vec<Cpu>,
}

impl Layout {
    /// Splits these CPUs into halves; with a single CPU, both sides share it.
    pub fn of(online: &CpuSet) -> Self {
        let cpus: Vec<Cpu> = online.iter().collect();
        let half = cpus.len() / 2;
        match half {
            0 => Self { server: online.clone(), client: cpus },
            _ => Self { server: cpus[half..].iter().copied().collect(), client: cpus[..half].to_vec() },
        }
    }

    /// Returns whether server and client share a CPU.
    pub fn is_shared(&self) -> bool {
        self.client.iter().any(|cpu| self.server.contains(*cpu))
    }

    /// Returns the CPUs that a client thread may run on: one CPU, assigned round robin. If server and client
    /// share CPUs, the scheduler places the client's threads among all of the client's CPUs, as it does for
    /// the server's.
    pub fn client_cpus(&self, thread: u32) -> Option<CpuSet> {
        if self.is_shared() {
            return Some(self.client.iter().copied().collect());
        }
        let turn = (thread as usize).checked_rem(self.client.len())?;
        self.client.get(turn).map(|cpu| [*cpu].into_iter().collect())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_server_has_the_upper_half_and_the_client_the_rest() {
        let layout = |online: &str| Layout::of(&online.parse().expect("cpulist"));
        assert_eq!((layout("0-1").server.to_string(), layout("0-1").client), ("1".to_owned(), vec![Cpu(0)]));
        assert_eq!(layout("0-7").server.to_string(), "4-7");
        assert_eq!(layout("0,2,5").server.to_string(), "2,5", "the server gets the odd CPU");
        let cpus = |layout: &Layout, thread| layout.client_cpus(thread).map(|cpus| cpus.to_string());
        assert_eq!(
            cpus(&layout("0-7"), 5).as_deref(),
            Some("1"),
            "further threads start over with the first CPU"
        );
        assert!(layout("3").is_shared() && !layout("0-1").is_shared());
        let shared = Layout { server: "0-1".parse().expect("cpulist"), client: vec![Cpu(0), Cpu(1)] };
        assert_eq!(cpus(&shared, 1).as_deref(), Some("0-1"), "shared CPUs are not assigned");
    }
}
