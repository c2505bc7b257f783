//! Records how the running kernel processes the packets of a lab, event by event, with the kernel's
//! tracepoints in a private tracefs instance that is removed afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use libtest_mimic::Failed;

/// A recorder, which records from its creation. It keeps only NAPI timers, device polls and non-empty returns
/// of `epoll_wait`.
pub(crate) struct Recorder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The script mounts tracefs in a separate namespace, so that the machine does not change. All CPUs use the
/// clock of the timers.
const SCRIPT: &str = "set -e
# Where it is mounted already, mounting it again is refused.
test -d /sys/kernel/tracing/events || mount -t tracefs none /sys/kernel/tracing
at=/sys/kernel/tracing/instances/$0
mkdir \"$at\"
trap 'echo 0 > \"$at/tracing_on\"; rmdir \"$at\"' EXIT
echo 4096 > \"$at/buffer_size_kb\"
echo mono > \"$at/trace_clock\"
for event in hrtimer_start hrtimer_expire_entry; do
  echo \"function == 0x$1\" > \"$at/events/timer/$event/filter\"
  echo 1 > \"$at/events/timer/$event/enable\"
done
echo 1 > \"$at/events/napi/napi_poll/enable\"
for event in \"$at\"/events/syscalls/sys_exit_epoll_*wait*; do
  echo 'ret > 0' > \"$event/filter\"
  echo 1 > \"$event/enable\"
done
echo recording
read end
echo 0 > \"$at/tracing_on\"
cat \"$at/trace\"
";

/// An event of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A NAPI's timer was set.
    Armed {
        /// The timer's address, used only as an identifier.
        timer: String,
        /// The time until the timer expires, in nanoseconds.
        span: u64,
    },
    /// A NAPI's timer expired.
    Expired {
        /// The timer.
        timer: String,
    },
    /// A poll ended.
    Polled {
        /// The NAPI's address, used only as an identifier.
        napi: String,
        /// The number of packets.
        work: u32,
        /// Whether a task polled in its own system call; otherwise a softirq did.
        by_task: bool,
    },
    /// `epoll_wait` returned.
    EpollReturned { events: u32 },
}

/// An event with its task and CPU.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) task: u32,
    pub(crate) cpu: u32,
    pub(crate) seen: Seen,
}

impl Recorder {
    /// Starts recording.
    pub(crate) fn start(name: &str) -> Result<Self, Failed> {
        let instance = format!("netpolicy-{}-{name}", std::process::id());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SCRIPT, &instance, &watchdog()?]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("stdin")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("stdout")?);
        let mut ready = String::new();
        output.read_line(&mut ready)?;
        if ready != "recording\n" {
            return Err(format!("tracefs refuses: {}", child.wait()?).into());
        }
        Ok(Self { child, input, output })
    }

    /// Ends the recording; returns the recorded events, with the polls of this device only.
    pub(crate) fn end(mut self, device: &str) -> Result<Vec<Line>, Failed> {
        self.input.write_all(b"end\n")?;
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("recording ended with {status}").into());
        }
        if text.contains("LOST") {
            return Err("the kernel's buffer was too small".into());
        }
        let lines: Vec<Line> = text.lines().filter_map(|line| read(line, device)).collect();
        if lines.is_empty() {
            return Err(
                format!("no event was recorded; the last lines of the recording:\n{}", tail(&text)).into()
            );
        }
        Ok(lines)
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Returns the address of the timer function of all NAPIs.
fn watchdog() -> Result<String, Failed> {
    let symbols = std::fs::read_to_string("/proc/kallsyms")?;
    let found = symbols.lines().find_map(|line| line.strip_suffix(" t napi_watchdog"));
    Ok(found.ok_or("the kernel names no napi_watchdog")?.to_owned())
}

/// Parses a line of the trace.
///
/// Kernel: 6.18, `kernel/trace/trace_output.c` `trace_print_context()`: `memcached-812     [001] ..s1.
/// 4711.123456: napi_poll: …`.
fn read(line: &str, device: &str) -> Option<Line> {
    let (head, event) = line.split_once(": ")?;
    let (task_and_cpu, flags_and_time) = head.split_once(']')?;
    let (task, cpu) = task_and_cpu.rsplit_once('[')?;
    let task = task.trim_end().rsplit_once('-')?.1.parse().ok()?;
    let (flags, time) = flags_and_time.trim().split_once(char::is_whitespace)?;
    let (name, what) =
        event.trim_start().split_once(": ").or_else(|| event.trim_start().split_once(" -> "))?;
    let value = |key: &str| {
        let rest = &what[what.find(key)? + key.len()..];
        rest.split_whitespace().next().map(str::to_owned)
    };
    let seen = match name {
        "napi_poll" if value("device ")? == device => Seen::Polled {
            napi: value("struct ")?,
            work: value("work ")?.parse().ok()?,
            // Column 3 of the flags marks hard and soft interrupts; a dot means task context.
            by_task: flags.chars().nth(2)? == '.',
        },
        "hrtimer_start" => {
            let (seconds, micros) = time.trim().split_once('.')?;
            let now = seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1000;
            let expires: u64 = value("expires=")?.parse().ok()?;
            Seen::Armed { timer: value("hrtimer=")?, span: expires.saturating_sub(now) }
        }
        "hrtimer_expire_entry" => Seen::Expired { timer: value("hrtimer=")? },
        _ if name.starts_with("sys_epoll") => {
            let events = what.trim_start_matches("0x");
            Seen::EpollReturned { events: u32::from_str_radix(events, 16).ok()? }
        }
        _ => return None,
    };
    Some(Line { task, cpu: cpu.parse().ok()?, seen })
}

/// Finds the NAPI that exchanged about this many packets, among the NAPIs of devices with this name, and its
/// timer, if that was set. A NAPI polls on the same CPU right after most expirations of its timer. The timers
/// of other tests' NAPIs are recorded, too.
pub(crate) fn ours(lines: &[Line], packets: u32) -> Option<(String, Option<String>)> {
    let mut work: BTreeMap<&str, u32> = BTreeMap::new();
    for line in lines {
        if let Seen::Polled { napi, work: taken, .. } = &line.seen {
            *work.entry(napi).or_default() += taken;
        }
    }
    let napi = work.into_iter().min_by_key(|(_, taken)| taken.abs_diff(packets))?.0;
    let mut before: BTreeMap<u32, &str> = BTreeMap::new();
    let (mut expired, mut followed): (BTreeMap<&str, u32>, BTreeMap<&str, u32>) = Default::default();
    for line in lines {
        match &line.seen {
            Seen::Expired { timer } => {
                *expired.entry(timer).or_default() += 1;
                before.insert(line.cpu, timer);
            }
            Seen::Polled { napi: polled, .. } if polled == napi => {
                if let Some(timer) = before.remove(&line.cpu) {
                    *followed.entry(timer).or_default() += 1;
                }
            }
            Seen::Armed { .. } | Seen::Polled { .. } | Seen::EpollReturned { .. } => {}
        }
    }
    followed.retain(|timer, times| *times * 2 > expired.get(timer).copied().unwrap_or_default());
    let timer = followed.into_iter().max_by_key(|(_, times)| *times).map(|(timer, _)| timer.to_owned());
    Some((napi.to_owned(), timer))
}
