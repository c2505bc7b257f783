//! Measures many loaders at the same time, each on a separate device or all on one, with and without per-CPU
//! counters: rules per second, memory per rule, and where the loaders' time is spent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linux::machine;
use linux::netlink::rtlink::{RtLink, VethEnd};
use session::Fault;
use std::os::fd::AsFd as _;
use tc_rules::Lookup as _;
use tc_rules::kernel::Devices;

use super::ratio::{Ratio, median};
use super::{BUCKETS, Bench, PEER, RULES_PER_TABLE};

/// The tunnel device that rules redirect to.
const TUNNEL: &str = "npvx";

/// The sampling interval of the run that shows where the loaders' time is spent.
const LOOKED_EVERY: Duration = Duration::from_millis(5);

/// Kernel memory that a rule may take, in KiB, and the share of the available memory that all rules of a run
/// may take. Measured: 1 to 3 KiB with two CPUs; the published figure of 6.7 KiB is for 24 CPUs.
const RULE_KIB: u64 = 16;
const MEMORY_PART: u64 = 2;

/// The match and the actions of the rules.
#[derive(Clone, Copy)]
struct Profile {
    name: &'static str,
    is_flower: bool,
    actions: &'static [&'static str],
}

const PROFILES: [Profile; 4] = [
    Profile { name: "u32 + mirred", is_flower: false, actions: &["mirred egress redirect dev np1"] },
    Profile {
        name: "u32 + mirred to vxlan",
        is_flower: false,
        actions: &["mirred egress redirect dev npvx"],
    },
    Profile { name: "flower + gact drop", is_flower: true, actions: &["drop"] },
    Profile {
        name: "flower + tunnel_key + mirred to vxlan",
        is_flower: true,
        actions: &[
            "tunnel_key set id 1 src_ip 2.2.2.2 dst_ip 2.2.2.3 dst_port 4789",
            "mirred egress redirect dev npvx",
        ],
    },
];

impl Profile {
    /// Returns the rules of one loader for a device. Each loader on a device has its own priority and hash
    /// tables.
    fn rules(self, device: &str, loader: u32, count: u32, lean: bool) -> String {
        let suffix = if lean { " no_percpu" } else { "" };
        let mut actions = String::new();
        for action in self.actions {
            let _ = write!(actions, " action {action}{suffix}");
        }
        let (priority, mut text) = (loader + 1, String::new());
        for rule in 0..count {
            let [_, high, middle, low] = rule.to_be_bytes();
            let start = format!("filter add dev {device} ingress protocol ip prio {priority}");
            let _ = if self.is_flower {
                writeln!(
                    text,
                    "{start} handle {} flower skip_hw src_mac e4:11:0:{high:x}:{middle:x}:{low:x} dst_mac e4:12:0:0:0:0{actions}",
                    rule + 1
                )
            } else {
                let table = first_table(loader, count) + rule / RULES_PER_TABLE;
                let (bucket, node) = (rule % RULES_PER_TABLE % BUCKETS, rule % RULES_PER_TABLE / BUCKETS + 1);
                writeln!(
                    text,
                    "{start} handle {table:x}:{bucket:x}:{node:x} u32 ht {table:x}:{bucket:x}: match ip src 10.{high}.{middle}.{low} \
                     match ip dst 11.{high}.{middle}.{low}{actions}"
                )
            };
        }
        text
    }

    /// Returns the lines that create the hash tables of one loader.
    fn tables(self, device: &str, loader: u32, count: u32) -> String {
        let mut text = String::new();
        let tables = if self.is_flower { 0 } else { count.div_ceil(RULES_PER_TABLE) };
        let first = first_table(loader, count);
        for table in first..first + tables {
            let _ = writeln!(
                text,
                "filter add dev {device} ingress protocol ip prio {} handle {table:x}: u32 divisor {BUCKETS}",
                loader + 1
            );
        }
        text
    }
}

/// Returns the number of a loader's first hash table: loaders on one device have distinct tables.
fn first_table(loader: u32, count: u32) -> u32 {
    1 + loader * count.div_ceil(RULES_PER_TABLE)
}

fn device(number: u32) -> String {
    format!("npd{number}")
}

/// The program that loads the rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Tc,
    Netpolicy,
}

/// The loads of one combination of loader and counters.
#[derive(Default)]
struct Loads {
    seconds: Vec<f64>,
    /// The maximum growth of memory in a run, in KiB: per-CPU and slab. Later runs partly reuse what earlier
    /// ones freed.
    memory: [f64; 2],
    time: Time,
}

/// The number of samples in which loaders were running, and in which they waited, by reason.
#[derive(Default)]
struct Time {
    running: u64,
    waiting: BTreeMap<String, u64>,
}

impl Time {
    /// Adds a sample of a task: its state and, if it sleeps, its kernel stack.
    fn add(&mut self, state: char, stack: &str) {
        if state == 'R' {
            self.running += 1;
        } else {
            *self.waiting.entry(waits_for(stack)).or_default() += 1;
        }
    }

    fn describe(&self) -> String {
        let all = self.running + self.waiting.values().sum::<u64>();
        if all == 0 {
            return "too short to be sampled".to_owned();
        }
        let share = |part: u64| (part * 100).checked_div(all).unwrap_or(0);
        let mut parts: Vec<(u64, String)> =
            self.waiting.iter().map(|(what, &count)| (count, format!("{what} {} %", share(count)))).collect();
        parts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        let shown = parts.into_iter().map(|(_, words)| words).filter(|words| !words.ends_with(" 0 %"));
        let mut words = vec![format!("runnable {} %", share(self.running))];
        words.extend(shown.take(WAITS_SHOWN_MAX));
        words.join(", ")
    }
}

/// How many reasons for waiting are shown, longest first.
const WAITS_SHOWN_MAX: usize = 4;

/// Names what a sleeping task waits for, according to its kernel stack.
fn waits_for(stack: &str) -> String {
    let function = |line: &str| {
        let name = line.split_whitespace().nth(1)?.split('+').next()?;
        Some(name.to_owned())
    };
    let functions: Vec<String> = stack.lines().filter_map(function).collect();
    let has = |part: &str| functions.iter().any(|function| function.contains(part));
    if has("pcpu_alloc") {
        return "pcpu_alloc".to_owned();
    }
    // `tc_new_tfilter()` takes no mutex directly except rtnl.
    if has("rtnl_lock") || functions.first().is_some_and(|first| first == "tc_new_tfilter") {
        return "rtnl".to_owned();
    }
    let first = functions.iter().find(|function| !function.contains("mutex_lock"));
    first.cloned().unwrap_or_else(|| "unknown".to_owned())
}

impl Bench<'_> {
    /// Measures each profile that this kernel supports.
    pub(super) fn parallel(&mut self) -> Result<(), Fault> {
        let loaders = self.arguments.loaders;
        self.create_devices(loaders)?;
        let count = rules_that_fit(self.arguments.rules, loaders, available_kib()?);
        if count < self.arguments.rules {
            self.note("rules per loader", format!("{count}, limited by the available memory"));
        }
        for profile in PROFILES {
            for devices in [loaders, 1] {
                let all_on =
                    if devices == 1 { "one device".to_owned() } else { format!("{devices} devices") };
                let name = format!("{loaders} loaders on {all_on}, {}", profile.name);
                if self.supports(profile)? {
                    self.profile_of_many(profile, &name, devices, count)?;
                } else {
                    self.skipped(&name, "this kernel lacks the classifier or an action; a guest has them");
                }
            }
        }
        Ok(())
    }

    fn create_devices(&self, loaders: u32) -> Result<(), Fault> {
        let netns = &self.netns;
        for number in 0..loaders {
            let (near, far) = (device(number), format!("npe{number}"));
            if Devices::of(netns).device(&near).is_none() {
                let end = |name| VethEnd { name, queues: 1 };
                netns.run(|| RtLink::open_here()?.create_veth(end(&near), end(&far), netns.as_fd()))??;
            }
        }
        if Devices::of(netns).device(TUNNEL).is_none() {
            let vxlan = ["link", "add", TUNNEL, "type", "vxlan", "external", "dstport", "4789"];
            self.timed(Path::new("ip"), &vxlan)?;
        }
        debug_assert!(Devices::of(netns).device(PEER).is_some(), "rules redirect to it");
        Ok(())
    }

    /// Removes the rules of all loaders.
    fn clear_all(&self) -> Result<(), Fault> {
        let all: Vec<String> = (0..self.arguments.loaders).map(device).collect();
        self.clear(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn supports(&self, profile: Profile) -> Result<bool, Fault> {
        let first = device(0);
        self.clear_all()?;
        let line = format!("{}{}", profile.tables(&first, 0, 1), profile.rules(&first, 0, 1, true));
        let file = self.files.file("supports", &line)?;
        let mut loader = self.load_in_background(Who::Netpolicy, &file)?;
        Ok(loader.wait().map_err(|error| Fault::file(&self.itself, error))?.success())
    }

    fn load_in_background(&self, who: Who, file: &Path) -> Result<Child, Fault> {
        let mut command = match who {
            Who::Tc => Command::new(&self.arguments.tc),
            Who::Netpolicy => Command::new(&self.itself),
        };
        match who {
            Who::Tc => command.arg("-b"),
            Who::Netpolicy => command.args(["tc", "load"]),
        };
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.netns.run(|| command.spawn())?.map_err(|error| Fault::file(file, error))
    }

    fn profile_of_many(
        &mut self,
        profile: Profile,
        name: &str,
        devices: u32,
        count: u32,
    ) -> Result<(), Fault> {
        let loaders = self.arguments.loaders;
        let of_loader = |loader: u32| device(loader % devices);
        let mut files: [Vec<PathBuf>; 2] = Default::default();
        for (lean, files) in [true, false].into_iter().zip(&mut files) {
            for loader in 0..loaders {
                let text = profile.rules(&of_loader(loader), loader, count, lean);
                files.push(self.files.file(&format!("parallel-{lean}-{loader}"), &text)?);
            }
        }
        let tables: String =
            (0..loaders).map(|loader| profile.tables(&of_loader(loader), loader, count)).collect();
        // Run the loads without per-CPU counters first, so that they do not reuse the per-CPU memory of the
        // others.
        let cells = [(Who::Tc, 0), (Who::Netpolicy, 0), (Who::Tc, 1), (Who::Netpolicy, 1)];
        let mut loads: [Loads; 4] = Default::default();
        for repeat in 0..=self.arguments.repeats {
            self.context.console.progress(&format!("{name}: repeat {repeat}"));
            for ((who, counters), loads) in cells.into_iter().zip(&mut loads) {
                // The last run is sampled to show where the time goes; it is not timed, because sampling
                // takes time.
                let looked = repeat == self.arguments.repeats;
                self.clear_all()?;
                self.send(&tables)?;
                let before = memory()?;
                let (seconds, time) = self.load_at_once(who, &files[counters], looked)?;
                let after = memory()?;
                for (most, (after, before)) in loads.memory.iter_mut().zip(after.into_iter().zip(before)) {
                    *most = most.max(after - before);
                }
                match time {
                    Some(time) => loads.time = time,
                    None => loads.seconds.push(seconds),
                }
            }
        }
        self.context.console.progress("");
        self.clear_all()?;
        let rules = f64::from(count) * f64::from(loaders);
        let [tc_lean, own_lean, tc_percpu, own_percpu] = &loads;
        for (who, lean, percpu) in [("tc -b", tc_lean, tc_percpu), ("tc load", own_lean, own_percpu)] {
            self.note(
                format!("{name}, {who}: no_percpu : percpu"),
                format!(
                    "{} ({:.1} : {:.1} thousand rules/s)",
                    Ratio::of(&percpu.seconds, &lean.seconds),
                    rules / median(&lean.seconds) / 1e3,
                    rules / median(&percpu.seconds) / 1e3
                ),
            );
            let kib = |loads: &Loads| {
                let [percpu, slab] = loads.memory.map(|kib| kib / rules);
                format!("{:.2} ({percpu:.2} Percpu, {slab:.2} Slab)", percpu + slab)
            };
            self.note(
                format!("{name}, {who}: KiB per rule"),
                format!("no_percpu {}, percpu {}", kib(lean), kib(percpu)),
            );
            self.note(
                format!("{name}, {who}: time of the loaders, sampled from /proc/PID/stack"),
                format!("no_percpu: {}; percpu: {}", lean.time.describe(), percpu.time.describe()),
            );
        }
        for (what, tc, own) in [("no_percpu", tc_lean, own_lean), ("percpu", tc_percpu, own_percpu)] {
            let ratio = Ratio::of(&tc.seconds, &own.seconds).to_string();
            self.note(format!("{name}, {what}: tc load : tc -b"), ratio);
        }
        Ok(())
    }

    /// Starts a loader for each file. Returns the seconds until all have finished and, for the sampled run,
    /// where their time was spent.
    fn load_at_once(&self, who: Who, files: &[PathBuf], looked: bool) -> Result<(f64, Option<Time>), Fault> {
        let began = Instant::now();
        let loaders = files.iter().map(|file| self.load_in_background(who, file));
        let mut loaders = loaders.collect::<Result<Vec<_>, _>>()?;
        let pids: Vec<u32> = loaders.iter().map(Child::id).collect();
        let done = AtomicBool::new(false);
        let (whole, time) = std::thread::scope(|scope| {
            let looking = looked.then(|| scope.spawn(|| look(&pids, &done)));
            let mut whole = true;
            for loader in &mut loaders {
                whole &= loader.wait().is_ok_and(|status| status.success());
            }
            done.store(true, Ordering::Relaxed);
            (whole, looking.and_then(|looking| looking.join().ok()))
        });
        let seconds = began.elapsed().as_secs_f64();
        if whole { Ok((seconds, time)) } else { Err(Fault::failed("one of the parallel loads failed")) }
    }
}

/// Samples the states of the loaders' threads until they are done.
fn look(pids: &[u32], done: &AtomicBool) -> Time {
    let mut time = Time::default();
    while !done.load(Ordering::Relaxed) {
        for pid in pids {
            let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for thread in threads.flatten() {
                let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
                let stat = read("stat");
                let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
                match state {
                    None | Some('Z' | 'X') => {} // The thread has exited.
                    Some(state) => time.add(state, &read("stack")),
                }
            }
        }
        std::thread::sleep(LOOKED_EVERY);
    }
    time
}

/// Returns the number of rules for each loader that fit into the available memory, at most `asked`.
fn rules_that_fit(asked: u32, loaders: u32, available_kib: u64) -> u32 {
    let fit = available_kib / MEMORY_PART / RULE_KIB / u64::from(loaders.max(1));
    asked.min(u32::try_from(fit).unwrap_or(u32::MAX)).max(1)
}

/// Returns the memory that is still available to programs and the kernel, in KiB.
fn available_kib() -> Result<u64, Fault> {
    const MEMINFO: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(MEMINFO).map_err(|error| Fault::file(MEMINFO, error))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.ok_or_else(|| Fault::failed("/proc/meminfo has no MemAvailable"))
}

/// The kernel's per-CPU and slab memory, in KiB.
fn memory() -> Result<[f64; 2], Fault> {
    let memory = machine::kernel_memory()?;
    Ok([memory.per_cpu as f64, memory.slab as f64])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_stack_tells_the_allocator_from_rtnl_and_from_other_waits() {
        let allocator = "[<0>] pcpu_alloc_noprof+0x4f1/0x8d0\n[<0>] tcf_idr_create+0x9f/0x260\n[<0>] tc_new_tfilter+0x2\n";
        let rtnl =
            "[<0>] __mutex_lock.constprop.0+0x2/0x3\n[<0>] rtnl_lock+0x1/0x2\n[<0>] tc_new_tfilter+0x2/0x3\n";
        let other = "[<0>] __mutex_lock.constprop.0+0x2/0x3\n[<0>] tcf_chain_get+0x1/0x2\n";
        for (stack, what) in
            [(allocator, "pcpu_alloc"), (rtnl, "rtnl"), (other, "tcf_chain_get"), ("", "unknown")]
        {
            assert_eq!(waits_for(stack), what);
        }
        let mut time = Time::default();
        for (state, stack) in [('R', ""), ('D', rtnl), ('D', rtnl), ('S', allocator)] {
            time.add(state, stack);
        }
        assert_eq!(Time::default().describe(), "too short to be sampled");
        assert_eq!(time.describe(), "runnable 25 %, rtnl 50 %, pcpu_alloc 25 %");
    }

    #[test]
    fn the_rules_of_a_run_fit_into_half_of_the_memory() {
        assert_eq!(rules_that_fit(20_000, 20, 23 << 20), 20_000);
        assert_eq!(rules_that_fit(100_000, 20, 16 << 20), 26_214);
        assert_eq!(rules_that_fit(100_000, 20, 0), 1);
    }

    #[test]
    fn loaders_on_one_device_have_a_priority_and_hash_tables_each() {
        let [mirred, _, _, tunnel] = PROFILES;
        let tables: Vec<String> = (0..3).map(|loader| mirred.tables("npd0", loader, 5000)).collect();
        assert_eq!(tables.iter().map(|text| text.lines().count()).collect::<Vec<_>>(), [2, 2, 2]);
        assert!(
            tables[1]
                .starts_with("filter add dev npd0 ingress protocol ip prio 2 handle 3: u32 divisor 256\n")
        );
        let rules = mirred.rules("npd0", 1, 5000, true);
        assert_eq!(rules.lines().count(), 5000);
        assert!(rules.lines().last().is_some_and(|line| line.contains("prio 2 handle 4:87:4 u32 ht 4:87: ")
            && line.ends_with("action mirred egress redirect dev np1 no_percpu")));
        assert_eq!(tunnel.tables("npd0", 1, 5000), "");
        let rules = tunnel.rules("npd1", 1, 1, false);
        assert!(rules.ends_with("dst_port 4789 action mirred egress redirect dev npvx\n"), "{rules}");
    }
}
