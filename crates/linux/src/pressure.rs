//! Measures congestion of the receive path, as counted by the kernel: softirqs cut short, full backlogs, full
//! rings, and the time that `ksoftirqd` waits for its CPU.

use std::collections::BTreeMap;
use std::time::Instant;

use model::host::{CpuPressure, DevicePressure, Host, Pressure};
use model::{Cpu, DeviceId, Nanoseconds, Pid};
use sys::error::KernelError;
use sys::netns::Netns;
use sys::sysfs::SysFs;

/// The maximum number of processes that are searched for `ksoftirqd` threads, which have low pids on every
/// host.
const PROCESSES_MAX: usize = 65_536;

/// Counts congestion between [`PressureSource::begin`] and [`PressureSource::end`].
#[derive(Debug)]
pub struct PressureSource {
    sysfs: SysFs,
    ksoftirqd: BTreeMap<Cpu, Pid>,
    at: Instant,
    before: Counted,
}

/// The values of all counters since boot.
#[derive(Clone, Debug, Default)]
struct Counted {
    cpus: BTreeMap<Cpu, [u64; 3]>,
    ksoftirqd: BTreeMap<Cpu, [u64; 2]>,
    devices: BTreeMap<DeviceId, [u64; 3]>,
}

impl PressureSource {
    /// Starts counting on a host.
    ///
    /// # Errors
    /// If `/proc/net/softnet_stat` cannot be read, or sysfs cannot be reached.
    pub fn begin(netns: &Netns, host: &Host) -> Result<Self, KernelError> {
        let mut source = Self {
            sysfs: SysFs::open(netns)?,
            ksoftirqd: ksoftirqd(),
            at: Instant::now(),
            before: Counted::default(),
        };
        source.before = source.count(host)?;
        Ok(source)
    }

    /// Returns what was counted since [`PressureSource::begin`], on the devices that existed then and still
    /// exist.
    ///
    /// # Errors
    /// Those of [`PressureSource::begin`].
    pub fn end(self, host: &Host) -> Result<Pressure, KernelError> {
        let after = self.count(host)?;
        let since = |after: u64, before: u64| after.saturating_sub(before);
        let mut pressure = Pressure {
            interval: Nanoseconds(u64::try_from(self.at.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            ..Pressure::default()
        };
        for (&cpu, now) in &after.cpus {
            let Some(then) = self.before.cpus.get(&cpu) else { continue };
            let thread = |counted: &Counted| counted.ksoftirqd.get(&cpu).copied().unwrap_or_default();
            let (thread_now, thread_then) = (thread(&after), thread(&self.before));
            pressure.cpus.push(CpuPressure {
                cpu,
                processed: since(now[0], then[0]),
                dropped: since(now[1], then[1]),
                time_squeeze: since(now[2], then[2]),
                ksoftirqd_ran: Nanoseconds(since(thread_now[0], thread_then[0])),
                ksoftirqd_waited: Nanoseconds(since(thread_now[1], thread_then[1])),
            });
        }
        for (&device, now) in &after.devices {
            let Some(then) = self.before.devices.get(&device) else { continue };
            pressure.devices.push(DevicePressure {
                device,
                rx_packets: since(now[0], then[0]),
                rx_dropped: since(now[1], then[1]),
                rx_missed: since(now[2], then[2]),
            });
        }
        Ok(pressure)
    }

    fn count(&self, host: &Host) -> Result<Counted, KernelError> {
        const SOFTNET: &str = "/proc/net/softnet_stat";
        let text = std::fs::read_to_string(SOFTNET).map_err(|error| KernelError::io(SOFTNET, &error))?;
        let cpus = parse_softnet(&text)
            .ok_or_else(|| KernelError::malformed(SOFTNET, "not hexadecimal numbers in columns"))?;
        let mut counted = Counted { cpus, ..Counted::default() };
        for (&cpu, pid) in &self.ksoftirqd {
            // A CPU may go offline at any moment, and its `ksoftirqd` thread with it.
            let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
            counted.ksoftirqd.extend(parse_schedstat(&text).map(|spans| (cpu, spans)));
        }
        for device in &host.devices {
            let statistics = ["rx_packets", "rx_dropped", "rx_missed_errors"].map(|name| {
                let path = format!("class/net/{}/statistics/{name}", device.id.name);
                self.sysfs.read_if_any(&path).ok().flatten().and_then(|text| text.parse().ok())
            });
            if let [Some(packets), Some(dropped), Some(missed)] = statistics {
                counted.devices.insert(device.id, [packets, dropped, missed]);
            }
        }
        Ok(counted)
    }
}

/// Parses packets, drops and squeezes by CPU.
///
/// Kernel: 6.18, `net/core/net-procfs.c` `softnet_seq_show()`: since 5.10 the 13th column is the CPU; before,
/// the lines are in the order of the online CPUs.
fn parse_softnet(text: &str) -> Option<BTreeMap<Cpu, [u64; 3]>> {
    let mut cpus = BTreeMap::new();
    for (line, order) in text.lines().zip(0_u32..) {
        let columns: Vec<u64> = line
            .split_ascii_whitespace()
            .map(|c| u64::from_str_radix(c, 16))
            .collect::<Result<_, _>>()
            .ok()?;
        let [processed, dropped, squeezed, ..] = columns[..] else { return None };
        let cpu = columns.get(12).and_then(|cpu| u32::try_from(*cpu).ok()).unwrap_or(order);
        cpus.insert(Cpu(cpu), [processed, dropped, squeezed]);
    }
    Some(cpus)
}

/// Parses how long a thread ran and waited, in nanoseconds. Kernel: 6.18, `fs/proc/base.c`
/// `proc_pid_schedstat()`.
fn parse_schedstat(text: &str) -> Option<[u64; 2]> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
}

/// Finds the `ksoftirqd` thread of each CPU.
fn ksoftirqd() -> BTreeMap<Cpu, Pid> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten().take(PROCESSES_MAX) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if let Some(cpu) = comm.trim().strip_prefix("ksoftirqd/").and_then(|cpu| cpu.parse().ok()) {
            found.insert(Cpu(cpu), Pid(pid));
        }
    }
    found
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn softnet_names_its_cpus_where_the_kernel_does() {
        let text = "002a43ae 00000001 00000003 0 0 0 0 0 0 1 0 0 00000000 0 0\n\
                    006c74e6 00000000 00000002 0 0 0 0 0 0 0 0 0 00000008 0 0\n";
        let cpus = parse_softnet(text).expect("a valid softnet_stat");
        assert_eq!(cpus[&Cpu(0)], [0x2a_43ae, 1, 3]);
        assert_eq!(cpus[&Cpu(8)], [0x6c_74e6, 0, 2]);
        assert_eq!(parse_softnet("1 2 3\n4 5 6\n").expect("old")[&Cpu(1)], [4, 5, 6]);
        assert_eq!(parse_softnet("1 2\n"), None);
    }

    #[test]
    fn this_hosts_pressure_is_counted_on_every_cpu_and_device() {
        let netns = Netns::own().expect("own");
        let host = crate::observe(&netns, &crate::Processes::None).expect("observed");
        let source = PressureSource::begin(&netns, &host).expect("begins");
        let pressure = source.end(&host).expect("ends");
        assert_eq!(pressure.cpus.len(), host.topology.online.len());
        assert_eq!(pressure.devices.len(), host.devices.len());
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "[0-9a-fx \n]{0,200}") {
            let _ = (parse_softnet(&text), parse_schedstat(&text));
        }
    }
}
