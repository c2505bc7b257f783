//! Reads interrupts from `/proc/interrupts` and `/proc/irq`.
//!
//! Kernel: 6.18, `kernel/irq/proc.c` `show_interrupts()`, `Documentation/core-api/irq/irq-affinity.rst`.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Irq, Unread};
use model::{Cpu, CpuSet, IrqNumber, NumaNode, QueueIndex};
use netlink::netdev::QueueType;
use sys::error::{Cause, Errno, KernelError};

use super::sources::UnreadExt;

const INTERRUPTS: &str = "/proc/interrupts";

/// The path at which a container mounts the host's procfs, the same as for node_exporter. A container runtime
/// mounts `/proc/irq` read-only, and Kubernetes accepts `procMount: Unmasked` only with a user namespace,
/// which excludes the host's network.
const HOST_PROC: &str = "/host/proc";

/// `include/uapi/linux/magic.h` `PROC_SUPER_MAGIC`.
const PROC_SUPER_MAGIC: u64 = 0x9fa0;

/// The numbered interrupts in `/proc/interrupts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interrupts {
    lines: BTreeMap<IrqNumber, Line>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Line {
    name: String,
    counts: Vec<(Cpu, u64)>,
}

/// Returns how often these interrupts have fired since boot, in total. Interrupts that do not exist count as
/// zero.
///
/// # Errors
/// If `/proc/interrupts` cannot be read.
pub fn count_interrupts(of: &BTreeSet<IrqNumber>) -> Result<u64, KernelError> {
    let text = std::fs::read_to_string(INTERRUPTS).map_err(|error| KernelError::io(INTERRUPTS, &error))?;
    Ok(Interrupts::parse(&text).count(of))
}

impl Interrupts {
    fn count(&self, of: &BTreeSet<IrqNumber>) -> u64 {
        let lines = of.iter().filter_map(|irq| self.lines.get(irq));
        lines.flat_map(|line| &line.counts).map(|(_, count)| count).sum()
    }

    pub(super) fn read(unread: &mut Vec<Unread>) -> Self {
        let text = std::fs::read_to_string(INTERRUPTS).map_err(|error| KernelError::io(INTERRUPTS, &error));
        Self::parse(&text.or_unread(unread))
    }

    /// Parses the text of the file. Lines without a numbered interrupt (`NMI:`, `ERR:`) are ignored.
    pub(super) fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let header = lines.next().unwrap_or("").split_ascii_whitespace();
        let cpus: Vec<Cpu> = header.filter_map(|c| c.strip_prefix("CPU")?.parse().ok()).map(Cpu).collect();
        Self { lines: lines.filter_map(|line| parse_line(&cpus, line)).collect() }
    }

    /// Returns the name that the driver gave an interrupt.
    pub(super) fn name(&self, irq: IrqNumber) -> Option<&str> {
        self.lines.get(&irq).map(|line| line.name.as_str())
    }
}

/// Parses a line such as ` 38:     0   2916  PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0`: the
/// number, a count for each online CPU, the chip, the chip's own interrupt number, on some architectures the
/// trigger, and the drivers' names.
fn parse_line(cpus: &[Cpu], line: &str) -> Option<(IrqNumber, Line)> {
    let (number, mut rest) = line.split_once(':')?;
    let number = number.trim().parse().ok().map(IrqNumber)?;
    let mut counts = Vec::new();
    for &cpu in cpus {
        let (count, behind) = word(rest);
        let count: u64 = count.parse().ok()?;
        if count > 0 {
            counts.push((cpu, count));
        }
        rest = behind;
    }
    let (_chip, behind) = word(rest);
    let (_hardware_number, behind) = word(behind);
    let names = match word(behind) {
        ("Edge" | "Level", behind) => behind,
        _ => behind,
    };
    Some((number, Line { name: names.trim().to_owned(), counts }))
}

/// Splits a text after its first word.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

/// Returns the queue that an interrupt serves, if the driver's name for the interrupt shows it:
/// `eth0-TxRx-3`, `virtio2-input.0`, `mlx5_comp3@pci:0000:08:00.0`, `eth0-rx-0`, or the device's name and a
/// number (sfc). An interrupt that serves both directions counts as the receive queue's.
pub(super) fn queue_in_name(name: &str, device: &str) -> Option<(QueueType, QueueIndex)> {
    /// Words in drivers' names for a vector that receives, or receives and sends.
    const RECEIVE: [&str; 6] = ["rx", "rxtx", "input", "comp", "fp", "rxq"];
    /// Words in drivers' names for a vector that only sends.
    const SEND: [&str; 3] = ["tx", "output", "txq"];
    let own = name.split(['@', ' ', ',']).next().unwrap_or("");
    let head = own.trim_end_matches(|c: char| c.is_ascii_digit());
    let index = own[head.len()..].parse().ok().map(QueueIndex)?;
    let head = head.trim_end_matches(['-', '.', '_']);
    let lower = head.to_ascii_lowercase();
    if RECEIVE.iter().any(|word| lower.ends_with(word)) || head == device {
        Some((QueueType::Rx, index))
    } else if SEND.iter().any(|word| lower.ends_with(word)) {
        Some((QueueType::Tx, index))
    } else {
        None
    }
}

/// Reads the interrupts with these numbers; those that no longer exist are omitted.
pub(super) fn irqs(numbers: &BTreeSet<IrqNumber>, seen: &Interrupts, unread: &mut Vec<Unread>) -> Vec<Irq> {
    let mut irqs = Vec::new();
    for &number in numbers {
        let line = seen.lines.get(&number).cloned().unwrap_or_default();
        let affinity = match affinity(number) {
            Err(KernelError { cause: Cause::Gone(_), .. }) => continue,
            other => other.or_unread(unread),
        };
        irqs.push(Irq {
            number,
            name: line.name,
            affinity,
            effective_affinity: effective_affinity(number).or_unread(unread),
            node: node(number).or_unread(unread),
            counts: line.counts,
        });
    }
    irqs
}

/// Reads the CPUs to which an interrupt may be delivered.
///
/// # Errors
/// [`Cause::Gone`] if the interrupt no longer exists.
pub(crate) fn affinity(irq: IrqNumber) -> Result<CpuSet, KernelError> {
    cpus(irq, "smp_affinity_list")
}

/// Reads the CPUs to which an interrupt is actually delivered; empty on architectures that do not report
/// them.
fn effective_affinity(irq: IrqNumber) -> Result<CpuSet, KernelError> {
    match cpus(irq, "effective_affinity_list") {
        Err(KernelError { cause: Cause::Gone(_), .. }) => Ok(CpuSet::new()),
        other => other,
    }
}

/// Sets the CPUs to which an interrupt may be delivered.
///
/// # Errors
/// EIO if the interrupt cannot be moved; EINVAL for an empty set, which the kernel would interpret as a
/// request for its default; [`Cause::Gone`] if the interrupt no longer exists.
pub(crate) fn set_affinity(irq: IrqNumber, cpus: &CpuSet) -> Result<(), KernelError> {
    let path = format!("/proc/irq/{irq}/smp_affinity_list");
    if cpus.is_empty() {
        return Err(KernelError::errno(path, Errno::INVAL));
    }
    // Do not create or truncate: the file exists, or the interrupt is gone.
    let open = |path: &str| std::fs::OpenOptions::new().write(true).open(path);
    let file = match open(&path) {
        Err(error) if is_read_only(&error) => {
            let on_host = format!("{HOST_PROC}/irq/{irq}/smp_affinity_list");
            open(&on_host).and_then(on_procfs).or(Err(error))
        }
        file => file,
    };
    let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, cpus.to_string().as_bytes()));
    written.map_err(|error| failed(irq, path, &error).needing("root"))
}

fn is_read_only(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ROFS.raw_os_error())
}

/// Returns the file if it is on procfs. Only root can mount another file system at this path, but a write to
/// that file system must not look like success.
fn on_procfs(file: std::fs::File) -> std::io::Result<std::fs::File> {
    let magic = rustix::fs::fstatfs(&file)?.f_type;
    if u64::try_from(magic).is_ok_and(|magic| magic == PROC_SUPER_MAGIC) {
        return Ok(file);
    }
    Err(std::io::ErrorKind::Unsupported.into())
}

fn cpus(irq: IrqNumber, file: &str) -> Result<CpuSet, KernelError> {
    let path = format!("/proc/irq/{irq}/{file}");
    let text = std::fs::read_to_string(&path).map_err(|error| failed(irq, path.clone(), &error))?;
    text.parse().map_err(|not: model::cpu_set::NotACpuList| KernelError::malformed(path, not.to_string()))
}

fn node(irq: IrqNumber) -> Result<Option<NumaNode>, KernelError> {
    let path = format!("/proc/irq/{irq}/node");
    let text = std::fs::read_to_string(&path).map_err(|error| failed(irq, path, &error))?;
    Ok(text.trim().parse().ok().map(NumaNode)) // -1 for none
}

fn failed(irq: IrqNumber, path: String, error: &std::io::Error) -> KernelError {
    if error.kind() == std::io::ErrorKind::NotFound {
        KernelError::gone(path, format!("there is no interrupt {irq}"))
    } else {
        KernelError::io(path, error)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    /// The content of `/proc/interrupts` in a virtual machine with virtio, Linux 6.18.
    const X86: &str = "           CPU0       CPU1       \n \
        24:          1          0  IO-APIC   5-edge      ACPI:Ged\n \
        38:          0       2916 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n \
        39:       2419          7 PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0\n\
        NMI:          0          0   Non-maskable interrupts\n\
        ERR:          0\n";

    /// The content of `/proc/interrupts` on an arm64 server, with CPU 1 offline and the trigger as a separate
    /// word.
    const ARM: &str = "           CPU0       CPU2       \n \
        11:    4003211    3990122     GICv3  30 Level     arch_timer\n\
        113:         17          0   ITS-MSI 524289 Edge      mlx5_comp0@pci:0000:01:00.0\n";

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(CPU[0-9]{1,3} ?|[ -~\n\u{e9}\u{2003}]){0,200}") {
            for (number, line) in Interrupts::parse(&text).lines {
                let _ = (number, queue_in_name(&line.name, "eth0"));
            }
        }

        #[test]
        fn no_name_makes_the_parser_panic(name in ".{0,40}", device in ".{0,15}") {
            let _ = queue_in_name(&name, &device);
        }
    }

    #[test]
    fn counts_belong_to_the_cpus_that_the_header_names() {
        let seen = Interrupts::parse(ARM);
        let line = &seen.lines[&IrqNumber(11)];
        assert_eq!(line.counts, [(Cpu(0), 4_003_211), (Cpu(2), 3_990_122)]);
        assert_eq!(seen.lines[&IrqNumber(113)].counts, [(Cpu(0), 17)], "zero is left out");
        let some = [IrqNumber(11), IrqNumber(113), IrqNumber(7)].into_iter().collect();
        assert_eq!(seen.count(&some), 4_003_211 + 3_990_122 + 17);
    }

    #[test]
    fn names_are_read_on_either_architecture() {
        assert_eq!(Interrupts::parse(X86).name(IrqNumber(38)), Some("virtio2-input.0"));
        assert_eq!(Interrupts::parse(X86).name(IrqNumber(24)), Some("ACPI:Ged"));
        assert_eq!(Interrupts::parse(ARM).name(IrqNumber(113)), Some("mlx5_comp0@pci:0000:01:00.0"));
        assert_eq!(Interrupts::parse(X86).lines.len(), 3, "NMI and ERR have no number");
    }

    #[test]
    fn a_line_with_too_few_counts_is_left_out() {
        assert_eq!(Interrupts::parse("  CPU0 CPU1\n 5: 1 IO-APIC 5-edge x\n"), Interrupts::default());
    }

    #[test]
    fn drivers_names_identify_the_queue() {
        use QueueType::{Rx, Tx};
        for (name, expected) in [
            ("virtio2-input.0", Some((Rx, 0))),
            ("virtio2-output.11", Some((Tx, 11))),
            ("virtio2-config", None),
            ("eth0-TxRx-3", Some((Rx, 3))),
            ("i40e-eth0-TxRx-12", Some((Rx, 12))),
            ("eth0-Tx-Rx-7", Some((Rx, 7))),
            ("eth0-rxtx-2", Some((Rx, 2))),
            ("eth0-tx-1", Some((Tx, 1))),
            ("mlx5_comp3@pci:0000:08:00.0", Some((Rx, 3))),
            ("mlx5_async0@pci:0000:08:00.0", None),
            ("eth0-fp-5", Some((Rx, 5))),
            ("eth0-4", Some((Rx, 4))),
            ("eth1-4", None),
            ("eth0", None),
            ("", None),
        ] {
            let expected = expected.map(|(kind, index)| (kind, QueueIndex(index)));
            assert_eq!(queue_in_name(name, "eth0"), expected, "{name}");
        }
    }

    #[test]
    fn only_a_file_of_procfs_is_taken_for_one_of_the_hosts() {
        let open = |path: &str| std::fs::File::open(path).expect("a file");
        assert!(on_procfs(open("/proc/self/status")).is_ok());
        let error = on_procfs(open("/sys/kernel/uevent_seqnum")).expect_err("sysfs");
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
        assert!(is_read_only(&std::io::Error::from(Errno::ROFS)) && !is_read_only(&error));
    }

    #[test]
    fn an_interrupt_that_is_not_there_is_gone() {
        let error = affinity(IrqNumber(999_999)).expect_err("gone");
        assert!(matches!(error.cause, Cause::Gone(_)), "{error}");
        let error = set_affinity(IrqNumber(999_999), &[Cpu(0)].into_iter().collect()).expect_err("gone");
        assert!(matches!(error.cause, Cause::Gone(_)), "{error}");
    }

    #[test]
    fn no_cpu_at_all_is_refused_before_the_kernel_guesses() {
        let error = set_affinity(IrqNumber(999_999), &CpuSet::new()).expect_err("refused");
        assert_eq!(error.number(), Some(Errno::INVAL));
    }
}
