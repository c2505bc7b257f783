//! A snapshot of the kernel's own counters: CPU time, interrupts, softirqs, packets received by busy polling.
//!
//! The files are opened once, and each snapshot reads them again with three calls.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use model::Cpu;
use model::evidence::{Counters, CpuCounters, CpuTicks};
use sys::clock::monotonic;
use sys::error::KernelError;
use sys::netns::Netns;

/// The maximum size of a file: for each CPU, `/proc/softirqs` has 11 bytes per kind, and ten kinds.
const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The files that hold the counters, kept open.
#[derive(Debug)]
pub struct CounterSource {
    stat: File,
    softirqs: File,
    netstat: File,
    buffer: Vec<u8>,
}

impl CounterSource {
    /// Opens the host's counters, and those of TCP in this network namespace.
    ///
    /// # Errors
    /// If `/proc` is not mounted, or the namespace cannot be entered.
    pub fn open(netns: &Netns) -> Result<Self, KernelError> {
        Ok(Self {
            stat: open("/proc/stat")?,
            softirqs: open("/proc/softirqs")?,
            // An open file of /proc/net keeps showing the namespace that it was opened in.
            netstat: netns.run(|| open("/proc/thread-self/net/netstat"))??,
            buffer: vec![0; 16 * 1024],
        })
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// If a file cannot be read or does not have the kernel's format.
    pub fn snapshot(&mut self) -> Result<Counters, KernelError> {
        let at = monotonic();
        let (mut cpus, irqs, context_switches) =
            parse_with(&self.stat, &mut self.buffer, "/proc/stat", parse_stat)?;
        let softirqs = parse_with(&self.softirqs, &mut self.buffer, "/proc/softirqs", parse_softirqs)?;
        let busy_poll_rx_packets =
            parse_with(&self.netstat, &mut self.buffer, "/proc/net/netstat", |text| {
                Some(busy_poll_rx_packets(text))
            })?;
        for (cpu, counts) in softirqs {
            // A CPU without a line in /proc/stat is not online.
            if let Some(counters) = cpus.iter_mut().find(|counters| counters.cpu == cpu) {
                counters.softirqs = counts;
            }
        }
        Ok(Counters { at, cpus, irqs, context_switches, busy_poll_rx_packets })
    }
}

fn open(path: &str) -> Result<File, KernelError> {
    File::open(path).map_err(|error| KernelError::io(path, &error))
}

/// Reads a file from its beginning and parses it.
fn parse_with<T>(
    file: &File,
    buffer: &mut Vec<u8>,
    path: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, KernelError> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            if length >= FILE_BYTES_MAX {
                return Err(KernelError::malformed(path, format!("longer than {FILE_BYTES_MAX} bytes")));
            }
            buffer.resize(length * 2, 0);
        }
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(KernelError::io(path, &error)),
        }
    }
    let text = std::str::from_utf8(&buffer[..length]).ok().and_then(parse);
    text.ok_or_else(|| KernelError::malformed(path, "not in the format of proc(5)"))
}

/// Parses `/proc/stat`: the CPUs, hard interrupts, context switches.
///
/// Kernel: 6.18, `fs/proc/stat.c` `show_stat()`.
fn parse_stat(text: &str) -> Option<(Vec<CpuCounters>, u64, u64)> {
    let (mut cpus, mut irqs, mut context_switches) = (Vec::new(), None, None);
    for line in text.lines() {
        let (name, numbers) = line.split_once(' ')?;
        let mut numbers = numbers.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        match name {
            "cpu" => {} // the sum of the others
            "intr" => irqs = next(),
            "ctxt" => context_switches = next(),
            _ => {
                let Some(cpu) = name.strip_prefix("cpu").and_then(|number| number.parse().ok()) else {
                    continue;
                };
                let ticks = CpuTicks {
                    user: next()?,
                    nice: next()?,
                    system: next()?,
                    idle: next()?,
                    iowait: next()?,
                    irq: next()?,
                    softirq: next()?,
                    steal: next()?,
                };
                cpus.push(CpuCounters { cpu: Cpu(cpu), ticks, softirqs: BTreeMap::new() });
            }
        }
    }
    Some((cpus, irqs?, context_switches?))
}

/// Parses `/proc/softirqs`: a column for each possible CPU, a line for each kind.
///
/// Kernel: 6.18, `fs/proc/softirqs.c` `show_softirqs()`.
fn parse_softirqs(text: &str) -> Option<Vec<(Cpu, BTreeMap<String, u64>)>> {
    let mut lines = text.lines();
    let mut cpus = Vec::new();
    for name in lines.next()?.split_ascii_whitespace() {
        cpus.push((Cpu(name.strip_prefix("CPU")?.parse().ok()?), BTreeMap::new()));
    }
    for line in lines {
        let (kind, counts) = line.split_once(':')?;
        let mut counts = counts.split_ascii_whitespace();
        for (_, kinds) in &mut cpus {
            kinds.insert(kind.trim().to_owned(), counts.next()?.parse().ok()?);
        }
    }
    Some(cpus)
}

/// Finds `TcpExt: BusyPollRxPackets`. Lines come in pairs: names, then values. Returns `None` on kernels
/// without `CONFIG_NET_RX_BUSY_POLL`.
///
/// Kernel: 6.18, `net/ipv4/proc.c` `netstat_seq_show()`.
fn busy_poll_rx_packets(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let column = lines.next()?.split_ascii_whitespace().position(|name| name == "BusyPollRxPackets")?;
    lines.next()?.split_ascii_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "\
cpu  30 3 12 140 5 1 7 2 0 0
cpu0 10 1 4 70 2 0 3 1 0 0
cpu8 20 2 8 70 3 1 4 1 0 0
intr 1234 5 0 9
ctxt 777
btime 1700000000
softirq 99 1 2 3
";

    #[test]
    fn stat_gives_ticks_of_each_cpu_and_the_hosts_sums() {
        let (cpus, irqs, switches) = parse_stat(STAT).expect("in the kernel's format");
        assert_eq!((irqs, switches, cpus.len()), (1234, 777, 2));
        let expected =
            CpuTicks { user: 20, nice: 2, system: 8, idle: 70, iowait: 3, irq: 1, softirq: 4, steal: 1 };
        assert_eq!((cpus[1].cpu, cpus[1].ticks), (Cpu(8), expected));
    }

    #[test]
    fn softirqs_are_counted_by_column_and_kind() {
        let text = "                    CPU0       CPU8\n          HI:          1          2\n      NET_RX:        300        400\n";
        let cpus = parse_softirqs(text).expect("in the kernel's format");
        assert_eq!(cpus[1].0, Cpu(8));
        assert_eq!(cpus[1].1["NET_RX"], 400);
        assert_eq!(cpus[0].1["HI"], 1);
        assert_eq!(parse_softirqs("CPU0 CPU1\nHI: 1\n"), None, "a column is missing");
    }

    #[test]
    fn busy_polling_is_found_by_its_name_not_its_place() {
        let text = "TcpExt: A BusyPollRxPackets C\nTcpExt: 1 22 3\nIpExt: X\nIpExt: 4\n";
        assert_eq!(busy_poll_rx_packets(text), Some(22));
        assert_eq!(busy_poll_rx_packets("TcpExt: A\nTcpExt: 1\n"), None);
    }

    #[test]
    fn this_hosts_counters_only_grow() {
        let mut source = CounterSource::open(&Netns::own().expect("own")).expect("opens");
        let (before, after) = (source.snapshot().expect("reads"), source.snapshot().expect("reads again"));
        assert!(after.at > before.at);
        assert!(after.context_switches >= before.context_switches && before.context_switches > 0);
        let timers = |counters: &Counters| counters.cpus[0].softirqs["TIMER"];
        assert!(timers(&after) >= timers(&before) && timers(&before) > 0);
        assert!(after.busy_poll_rx_packets >= before.busy_poll_rx_packets);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "(TcpExt: |cpu|CPU|intr |[0-9 :\n]){0,40}") {
            let _ = (parse_stat(&text), parse_softirqs(&text), busy_poll_rx_packets(&text));
        }
    }
}
