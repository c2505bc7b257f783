//! Measures flower rules in the two profiles for which figures were published with `no_percpu`.

use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use linux::machine;
use linux::netlink::rtlink::{RtLink, VethEnd};
use session::Fault;
use tc_rules::Lookup as _;
use tc_rules::kernel::{Devices, dump};

use super::ratio::{Ratio, median};
use super::{Bench, CHECKED_RULES, DEVICE, parse};

/// The device of the second worker.
const SECOND: &str = "np2";
const SECOND_PEER: &str = "np3";

/// The number of CPUs of the machine from which the published figures come.
const PUBLISHED_CPUS: f64 = 24.0;

/// The match and the actions of the rules.
#[derive(Clone, Copy)]
struct Profile {
    name: &'static str,
    matches: &'static str,
    actions: &'static [&'static str],
    /// The goal: the minimum speed-up of no_percpu over percpu.
    lean_goal: f64,
    /// The published values for 24 CPUs: thousands of rules per second, and KB per rule, each with and
    /// without per-CPU counters.
    published: [f64; 4],
}

const PROFILES: [Profile; 2] = [
    Profile {
        name: "gact drop",
        matches: "dst_mac e4:12:0:0:0:0",
        actions: &["drop"],
        lean_goal: 1.25,
        published: [203.0, 259.0, 3.91, 2.51],
    },
    Profile {
        name: "tunnel_key + mirred",
        matches: "dst_mac e4:12:0:0:0:0 src_ip 192.168.111.1 dst_ip 192.168.111.2 ip_proto udp dst_port 1 src_port 1",
        actions: &[
            "tunnel_key set id 1 src_ip 2.2.2.2 dst_ip 2.2.2.3 dst_port 4789",
            "mirred egress redirect dev np1",
        ],
        lean_goal: 1.4,
        published: [92.0, 204.0, 6.73, 3.91],
    },
];

impl Profile {
    /// Returns `count` rules for a device and a priority; `lean` adds no_percpu to their actions.
    fn rules(&self, device: &str, priority: u32, count: u32, lean: bool) -> String {
        let suffix = if lean { " no_percpu" } else { "" };
        let mut text = String::new();
        for rule in 1..=count {
            let [_, high, middle, low] = rule.to_be_bytes();
            let _ = write!(
                text,
                "filter add dev {device} protocol ip ingress prio {priority} handle {rule} flower skip_hw \
                 src_mac e4:11:0:{high:x}:{middle:x}:{low:x} {}",
                self.matches
            );
            for action in self.actions {
                let _ = write!(text, " action {action}{suffix}");
            }
            text.push('\n');
        }
        text
    }
}

impl Bench<'_> {
    /// Whether this kernel supports the profiles.
    fn has_flower(&mut self) -> Result<bool, Fault> {
        self.prepare("")?;
        let lines: String =
            PROFILES.iter().zip(1..).map(|(p, priority)| p.rules(DEVICE, priority, 1, true)).collect();
        let file = self.files.file("needs", &lines)?;
        let has = self.status_of(&self.itself.clone(), &["tc", "load", &file.to_string_lossy()])?.success();
        self.prepare("")?;
        if has && Devices::of(&self.netns).device(SECOND).is_none() {
            let end = |name| VethEnd { name, queues: 1 };
            self.netns.run(|| {
                RtLink::open_here()?.create_veth(end(SECOND), end(SECOND_PEER), self.netns.as_fd())
            })??;
        }
        Ok(has)
    }

    fn status_of(&self, program: &Path, arguments: &[&str]) -> Result<ExitStatus, Fault> {
        self.spawn(program, arguments)?.wait().map_err(|error| Fault::file(program, error))
    }

    fn spawn(&self, program: &Path, arguments: &[&str]) -> Result<Child, Fault> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.netns.run(|| command.spawn())?.map_err(|error| Fault::file(program, error))
    }

    /// Runs the program concurrently, once for each list of arguments, starting from empty hooks. Returns the
    /// time in seconds.
    fn beside(&self, program: &Path, all: &[&[&str]]) -> Result<f64, Fault> {
        self.clear(&[DEVICE, SECOND])?;
        let began = Instant::now();
        let children =
            all.iter().map(|arguments| self.spawn(program, arguments)).collect::<Result<Vec<_>, _>>()?;
        let mut whole = true;
        for mut child in children {
            whole &= child.wait().map_err(|error| Fault::file(program, error))?.success();
        }
        let seconds = began.elapsed().as_secs_f64();
        if whole { Ok(seconds) } else { Err(Fault::failed(format!("{}: a load failed", program.display()))) }
    }

    /// Compares both profiles with tc, with one worker and with two, each worker with its own device.
    pub(super) fn flower(&mut self) -> Result<(), Fault> {
        if !self.has_flower()? {
            for profile in PROFILES {
                self.skipped(&format!("flower + {}", profile.name), NEEDS);
            }
            return Ok(());
        }
        for profile in PROFILES {
            self.profile(profile)?;
        }
        Ok(())
    }

    fn profile(&mut self, profile: Profile) -> Result<(), Fault> {
        let count = self.arguments.rules;
        let plain = profile.rules(DEVICE, 1, count, false);
        let lean = profile.rules(DEVICE, 1, count, true);
        let second = profile.rules(SECOND, 1, count, true);
        // The file has rules of both devices, alternating in runs of 64, like a file that a program generates
        // rule by rule.
        let mut both = String::new();
        let (first, other): (Vec<_>, Vec<_>) = (lean.lines().collect(), second.lines().collect());
        for (a, b) in first.chunks(64).zip(other.chunks(64)) {
            for line in a.iter().chain(b) {
                both.push_str(line);
                both.push('\n');
            }
        }
        let file = |name: &str, text: &str| -> Result<String, Fault> {
            Ok(self.files.file(name, text)?.to_string_lossy().into_owned())
        };
        let (plain, lean, second, both) =
            (file("plain", &plain)?, file("lean", &lean)?, file("second", &second)?, file("both", &both)?);
        let mut seconds: [Vec<f64>; 6] = Default::default();
        for repeat in 0..self.arguments.repeats {
            self.context.console.progress(&format!("{}: repeat {}", profile.name, repeat + 1));
            let tc = &self.arguments.tc;
            let measured = [
                self.beside(tc, &[&["-b", &plain]])?,
                self.beside(tc, &[&["-b", &lean]])?,
                self.beside(tc, &[&["-b", &lean], &["-b", &second]])?,
                self.beside(&self.itself, &[&["tc", "load", &plain]])?,
                self.beside(&self.itself, &[&["tc", "load", &lean]])?,
                self.beside(&self.itself, &[&["tc", "load", &both, "--workers", "2"]])?,
            ];
            for (all, one) in seconds.iter_mut().zip(measured) {
                all.push(one);
            }
        }
        self.context.console.progress("");
        let rules = f64::from(count);
        let [tc_plain, tc_lean, tc_two, percpu, one, two] = &seconds;
        // The two workers load twice as many rules as one, so compare with twice its time.
        let one_twice: Vec<f64> = one.iter().map(|seconds| 2.0 * seconds).collect();
        let (name, goal) = (profile.name, profile.lean_goal);
        let mut ratio = |what: String, goal: f64, slow: &[f64], fast: &[f64], rules: f64| {
            let ratio = Ratio::of(slow, fast);
            let measured =
                format!("{ratio} ({:.0} : {:.0} rules/s)", rules / median(fast), rules / median(slow));
            self.row(&what, format!(">= {goal} x"), measured, ratio.of_medians >= goal);
        };
        ratio(format!("flower + {name} no_percpu, 1 worker : tc -b"), 3.5, tc_lean, one, rules);
        ratio(format!("flower + {name} no_percpu, 2 workers : two tc -b"), 3.5, tc_two, two, 2.0 * rules);
        ratio(format!("flower + {name}, 2 workers : 1, own devices"), 1.5, &one_twice, two, 2.0 * rules);
        ratio(format!("flower + {name}, no_percpu : percpu, in the loader"), goal, percpu, one, rules);
        let [published_percpu, published_lean, ..] = profile.published;
        self.note(
            format!("flower + {name}, tc -b, thousand rules/s"),
            format!(
                "percpu {:.1}, no_percpu {:.1}: {:.2} x (published, 24 CPUs, 20 in parallel: {published_percpu}, {published_lean}: {:.2} x)",
                rules / median(tc_plain) / 1e3,
                rules / median(tc_lean) / 1e3,
                median(tc_plain) / median(tc_lean),
                published_lean / published_percpu
            ),
        );
        Ok(())
    }

    /// Measures the comparison of a file of flower rules with the kernel's rules.
    pub(super) fn flower_check(&mut self) -> Result<(), Fault> {
        let criterion = "flower, check of 100 000 rules";
        if !self.has_flower()? {
            self.skipped(criterion, NEEDS);
            return Ok(());
        }
        let [profile, _] = PROFILES;
        // Load the rules with cookies on one device, and without cookies on the other.
        self.clear(&[DEVICE, SECOND])?;
        let mut paths = Vec::new();
        for (device, options) in [(DEVICE, &["--cookies"][..]), (SECOND, &[])] {
            let file = self.files.file(device, &profile.rules(device, 1, CHECKED_RULES, true))?;
            let path = file.to_string_lossy().into_owned();
            self.timed(&self.itself, &[&["tc", "load", &path], options].concat())?;
            paths.push(path);
        }
        let mut seconds: [Vec<f64>; 5] = Default::default();
        for _ in 0..self.arguments.repeats {
            let began = Instant::now();
            dump::terse(&self.netns, self.hook(), |_| ())?;
            let kernel = began.elapsed().as_secs_f64();
            let began = Instant::now();
            parse(File::open(&paths[0]).map_err(|error| Fault::file(&paths[0], error))?)?;
            let reading = began.elapsed().as_secs_f64();
            let measured = [
                self.timed(&self.itself, &["tc", "diff", &paths[0]])?,
                self.timed(&self.itself, &["tc", "diff", &paths[1]])?,
                self.timed(&self.arguments.tc, &["filter", "show", "dev", DEVICE, "ingress"])?,
                kernel,
                reading,
            ];
            for (all, one) in seconds.iter_mut().zip(measured) {
                all.push(one);
            }
        }
        let [own, whole, tc, kernel, reading] = seconds.map(|seconds| median(&seconds));
        let measured = format!(
            "{own:.2} s, {:.1} x (tc filter show {tc:.2} s; only the terse dump {kernel:.2} s, only reading the file {reading:.2} s)",
            tc / own
        );
        self.row(
            &format!("{criterion} with cookies"),
            "< 1 s, >= 10 x",
            measured,
            own < 1.0 && tc / own >= 10.0,
        );
        self.note(format!("{criterion} without"), format!("{whole:.2} s, {:.1} x", tc / whole));
        Ok(())
    }

    /// Measures the kernel's memory per rule. No rules are removed in between, because freed per-CPU memory
    /// stays allocated. So the result is valid only on a kernel that has not held rules before.
    pub(super) fn footprint(&mut self) -> Result<(), Fault> {
        if !self.has_flower()? {
            self.skipped("memory per rule", NEEDS);
            return Ok(());
        }
        let (count, cpus) = (self.arguments.rules, f64::from(machine::possible_cpus()?));
        let rules = f64::from(count);
        let mut priority = 0;
        for profile in PROFILES {
            let mut kilobytes = [[0.0; 2]; 2];
            for (lean, cell) in [true, false].into_iter().zip(&mut kilobytes) {
                priority += 1;
                let file = self.files.file("footprint", &profile.rules(DEVICE, priority, count, lean))?;
                let before = kernel_memory()?;
                self.timed(&self.itself, &["tc", "load", &file.to_string_lossy()])?;
                let after = kernel_memory()?;
                *cell = [(after[0] - before[0]) / rules, (after[1] - before[1]) / rules];
            }
            let [lean, percpu] = kilobytes;
            let [.., published_percpu, published_lean] = profile.published;
            let less = (percpu[0] - lean[0]) / cpus * PUBLISHED_CPUS;
            self.note(
                format!("flower + {}, KB per rule, {cpus} CPUs", profile.name),
                format!(
                    "percpu {:.3} + {:.2} slab, no_percpu {:.3} + {:.2} slab; with 24 CPUs {less:.2} less (published: {:.2} less)",
                    percpu[0],
                    percpu[1],
                    lean[0],
                    lean[1],
                    published_percpu - published_lean
                ),
            );
        }
        Ok(())
    }
}

/// The reason why the flower parts are skipped.
const NEEDS: &str =
    "this kernel lacks flower, gact or tunnel_key; a guest has them (docs/reference/guests.md)";

/// The kernel's per-CPU and slab memory, in KiB.
fn kernel_memory() -> Result<[f64; 2], Fault> {
    let memory = machine::kernel_memory()?;
    Ok([memory.per_cpu as f64, memory.slab as f64])
}
