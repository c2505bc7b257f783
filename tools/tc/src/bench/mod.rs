//! `tc bench`: measures the speed of rule loading against tc, in its own network namespace.

pub mod args;
mod flower;
mod parallel;
mod ratio;
mod report;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cli::{Context, OwnFiles};
use linux::Netns;
use linux::netlink::rtlink::{RtLink, VethEnd};
use model::IfIndex;
use session::{Exit, Fault};
use tc_rules::kernel::{Devices, Loader, Options, Portion, RECEIVE_BYTES, RuleSocket, dump, instances, undo};
use tc_rules::{Batch, Hook, Lookup, Table, command};

use self::args::{BenchPart, TcBench};
use self::ratio::{Ratio, median};
use self::report::BenchRow;
pub use self::report::RuleBenchReport;

/// The pair of devices in the benchmark's namespace.
const DEVICE: &str = "np0";
const PEER: &str = "np1";

/// How long the kernel may take to free removed rules, and the polling interval. The kernel frees removed
/// rules one by one, later and under rtnl, so a load that is measured in the meantime would wait for rtnl.
const FREED_WITHIN: Duration = Duration::from_secs(60);
const ASKED_EVERY: Duration = Duration::from_millis(10);

/// The measured kinds of actions.
const KINDS: [&str; 3] = ["mirred", "gact", "tunnel_key"];

/// The number of rules in the stream whose memory use is measured, and in the stream whose parsing is timed.
const STREAM_RULES: u64 = 10_000_000;
const PARSED_RULES: u64 = 1_000_000;

/// The number of rules loaded into one bucket.
const DEEP_RULES: u32 = 4000;

/// The number of classes, and of rules, in the file in which they alternate, and the maximum time to load it,
/// as a multiple of the time of `tc -b`.
const ALTERNATING: u32 = 3000;
const ALTERNATING_GOAL: f64 = 1.2;

/// The number of rules of the other criteria, as defined by the goals.
const FAILING_RULES: u32 = 20_000;
const ROLLED_BACK_RULES: u32 = 40_000;
const CHECKED_RULES: u32 = 100_000;

/// The buckets of a u32 hash table, and the rules per table. The kernel walks the rules of a bucket as a
/// list.
const BUCKETS: u32 = 256;
const RULES_PER_TABLE: u32 = 4096;

/// The environment of the measurements.
struct Bench<'a> {
    arguments: &'a TcBench,
    context: &'a Context,
    netns: Netns,
    device: IfIndex,
    files: OwnFiles,
    itself: PathBuf,
    rows: Vec<BenchRow>,
}

/// Runs the requested measurements, and prints the table of results.
pub(crate) fn run(arguments: &TcBench, context: &Context) -> Result<Exit, Fault> {
    let netns = Netns::create()?;
    netns.run(|| {
        let end = |name| VethEnd { name, queues: 1 };
        RtLink::open_here()?.create_veth(end(DEVICE), end(PEER), netns.as_fd())
    })??;
    let device =
        Devices::of(&netns).device(DEVICE).ok_or_else(|| Fault::failed("the new device is missing"))?;
    let itself = std::env::current_exe().map_err(|error| Fault::file("this program", error))?;
    let files = OwnFiles::new()?;
    let mut bench = Bench { arguments, context, netns, device, files, itself, rows: Vec::new() };
    for part in bench.parts() {
        match part {
            BenchPart::Footprint => bench.footprint()?,
            BenchPart::Loads => bench.loads()?,
            BenchPart::WithTc => bench.with_tc()?,
            BenchPart::OneRule => bench.one_rule()?,
            BenchPart::Parsing => bench.parsing()?,
            BenchPart::Memory => bench.memory()?,
            BenchPart::Failing => bench.failing()?,
            BenchPart::Rollback => bench.rollback()?,
            BenchPart::Check => bench.check()?,
            BenchPart::Flower => bench.flower()?,
            BenchPart::FlowerCheck => bench.flower_check()?,
            BenchPart::Parallel => bench.parallel()?,
        }
    }
    let report = RuleBenchReport {
        repeats: arguments.repeats,
        rules: arguments.rules,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        rows: bench.rows,
    };
    context.console.report(&report)?;
    Ok(Exit::Done)
}

impl Bench<'_> {
    fn hook(&self) -> Hook {
        Hook { device: self.device, block: 0, parent: command::INGRESS }
    }

    /// Returns the requested parts; by default, all that are brief and do not need a freshly booted kernel.
    fn parts(&self) -> Vec<BenchPart> {
        let all = [
            BenchPart::Loads,
            BenchPart::WithTc,
            BenchPart::OneRule,
            BenchPart::Parsing,
            BenchPart::Memory,
            BenchPart::Failing,
            BenchPart::Rollback,
            BenchPart::Check,
            BenchPart::Flower,
            BenchPart::FlowerCheck,
        ];
        if self.arguments.only.is_empty() { all.to_vec() } else { self.arguments.only.clone() }
    }

    fn row(&mut self, criterion: &str, goal: impl Into<String>, measured: String, met: bool) {
        self.context.console.detail(&format!("{criterion}: {measured}"));
        let row = BenchRow { criterion: criterion.to_owned(), goal: goal.into(), measured, met: Some(met) };
        self.rows.push(row);
    }

    /// Adds a row without a goal.
    fn note(&mut self, criterion: impl Into<String>, measured: String) {
        let criterion = criterion.into();
        self.context.console.detail(&format!("{criterion}: {measured}"));
        self.rows.push(BenchRow { criterion, goal: String::new(), measured, met: None });
    }

    fn skipped(&mut self, criterion: &str, why: &str) {
        self.note(criterion, format!("skipped: {why}"));
    }

    /// Recreates the hook and the hash tables for this number of rules, but adds no rules.
    fn fresh(&self, rules: u32) -> Result<(), Fault> {
        self.prepare(&tables(rules))
    }

    /// Recreates the hook, and loads these lines.
    fn prepare(&self, lines: &str) -> Result<(), Fault> {
        self.clear(&[DEVICE])?;
        self.send(lines)
    }

    /// Recreates the hooks of these devices, and waits until the kernel has freed the old rules.
    fn clear(&self, devices: &[&str]) -> Result<(), Fault> {
        for device in devices {
            self.send(&format!("qdisc del dev {device} clsact\nqdisc add dev {device} clsact\n"))?;
        }
        let began = Instant::now();
        while instances::any(&self.netns, KINDS)? {
            if began.elapsed() > FREED_WITHIN {
                return Err(Fault::failed("the kernel has not freed the rules of the last load"));
            }
            std::thread::sleep(ASKED_EVERY);
        }
        Ok(())
    }

    /// Loads lines; the kernel may refuse the first one.
    fn send(&self, text: &str) -> Result<(), Fault> {
        let mut loader = Loader::open(&self.netns, Options { stop_at_refusal: false, ..Options::default() })?;
        let (mut batch, mut devices) = (Batch::new(text.as_bytes()), Devices::of(&self.netns));
        while let Ok(Some((line, command))) = batch.next_command(&mut devices) {
            loader.push(line, command)?;
        }
        let account = loader.finish()?;
        // When `clear` first calls this for a device, the qdisc that line 1 deletes does not exist yet.
        match account.refused.iter().find(|refused| refused.line > 1) {
            Some(refused) => Err(Fault::failed(format!("the hook of the benchmark: {refused}"))),
            None => Ok(()),
        }
    }

    /// Runs a program in the namespace, discards its output, and returns its run time in seconds. The program
    /// must succeed.
    fn timed(&self, program: &Path, arguments: &[&str]) -> Result<f64, Fault> {
        let began = Instant::now();
        let status = self.netns.run(|| {
            Command::new(program)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
        })?;
        let seconds = began.elapsed().as_secs_f64();
        match status {
            Ok(status) if status.success() => Ok(seconds),
            Ok(status) => {
                Err(Fault::failed(format!("{} {}: {status}", program.display(), arguments.join(" "))))
            }
            Err(error) => Err(Fault::file(program, error)),
        }
    }

    /// Returns the seconds that tc or netpolicy takes to load a file.
    fn load(&self, file: &Path, rules: u32, with: &[&str]) -> Result<f64, Fault> {
        self.fresh(rules)?;
        let file = file.to_string_lossy();
        if with == ["tc"] {
            return self.timed(&self.arguments.tc, &["-b", &file]);
        }
        self.timed(&self.itself, &[&["tc", "load", &file][..], with].concat())
    }

    /// Returns the seconds that the kernel takes for messages that are already encoded; with `verified`,
    /// including the read-back of one rule of each shape.
    fn floor(&self, file: &Path, rules: u32, verified: bool) -> Result<f64, Fault> {
        self.fresh(rules)?;
        let mut devices = Devices::of(&self.netns);
        let mut batch = Batch::new(File::open(file).map_err(|error| Fault::file(file, error))?);
        let mut portions = vec![Portion::default()];
        while let Some((line, command)) = batch.next_command(&mut devices).map_err(Fault::failed)? {
            if portions.last().is_some_and(Portion::is_full) {
                portions.push(Portion::default());
            }
            if let Some(portion) = portions.last_mut() {
                portion.push(line, command);
            }
        }
        let mut socket = RuleSocket::open(&self.netns, RECEIVE_BYTES)?;
        let began = Instant::now();
        for piece in portions.iter().flat_map(Portion::pieces) {
            let delivered = match verified {
                true => socket.deliver(piece, true)?,
                false => socket.deliver_unverified(piece)?,
            };
            if let Some(refused) = delivered.refused.first() {
                return Err(Fault::failed(refused.to_string()));
            }
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Compares the loads.
    fn loads(&mut self) -> Result<(), Fault> {
        let count = self.arguments.rules;
        let plain = self.files.file("plain", &u32_rules(self.arguments.rules, ""))?;
        let lean = self.files.file("no_percpu", &u32_rules(self.arguments.rules, " no_percpu"))?;
        let deep = self.files.file("deep", &deep_rules(DEEP_RULES))?;
        let mut seconds: [Vec<f64>; 11] = Default::default();
        for repeat in 0..self.arguments.repeats {
            self.context.console.progress(&format!("repeat {} of {}", repeat + 1, self.arguments.repeats));
            let measured = [
                self.load(&plain, count, &["tc"])?,
                self.load(&lean, count, &["tc"])?,
                self.load(&lean, count, &[])?,
                self.load(&lean, count, &["--share-actions"])?,
                self.load(&plain, count, &[])?,
                self.load(&plain, count, &["--no-percpu", "always"])?,
                self.load(&lean, count, &["--workers", "2"])?,
                self.floor(&lean, count, false)?,
                self.floor(&lean, count, true)?,
                self.load(&deep, 1, &["tc"])?,
                self.load(&deep, 1, &[])?,
            ];
            for (all, one) in seconds.iter_mut().zip(measured) {
                all.push(one);
            }
        }
        self.context.console.progress("");
        let [tc_plain, tc_lean, lean, shared, percpu, always, two, floor, verified, tc_deep, deep] = &seconds;
        let rules = f64::from(self.arguments.rules);
        let mut ratio = |what: &str, goal: f64, slow: &[f64], fast: &[f64]| {
            let ratio = Ratio::of(slow, fast);
            let measured =
                format!("{ratio} ({:.0} : {:.0} rules/s)", rules / median(fast), rules / median(slow));
            self.row(what, format!(">= {goal} x"), measured, ratio.of_medians >= goal);
        };
        ratio("u32 + mirred no_percpu, 1 worker : tc -b", 3.5, tc_lean, lean);
        ratio("the previous row with --share-actions : tc -b", 5.0, tc_lean, shared);
        ratio("--no-percpu always : tc -b of the plain file", 5.0, tc_plain, always);
        ratio("the kernel's own time : a load by one worker", 0.9, floor, lean);
        ratio("no_percpu : percpu, in the loader", 1.5, percpu, lean);
        // Add the results for a file without counter options, and for a file whose rules are not spread over
        // a table.
        let words = format!("{} ({:.0} rules/s)", Ratio::of(tc_plain, percpu), rules / median(percpu));
        self.note("a plain file without options : tc -b with the same file", words);
        let words =
            format!("{} ({:.0} rules/s)", Ratio::of(tc_deep, deep), f64::from(DEEP_RULES) / median(deep));
        self.note(format!("{DEEP_RULES} plain rules in one bucket, without handles : tc -b of it"), words);
        let words =
            format!("{} ({:.1} ms)", Ratio::of(verified, floor), (median(verified) - median(floor)) * 1e3);
        self.note("sending with the comparison of one rule of each shape : without", words);
        let words = format!("{} (u32 holds rtnl: one worker sends)", Ratio::of(lean, two));
        self.note("u32, 2 workers : 1", words);
        Ok(())
    }

    /// Measures loads of a file whose lines are alternately for tc and for netpolicy.
    fn with_tc(&mut self) -> Result<(), Fault> {
        let file = self.files.file("alternating", &alternating(ALTERNATING))?;
        let (path, tc) = (file.to_string_lossy(), &self.arguments.tc);
        let (mut own, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.arguments.repeats {
            own.push(self.timed(&self.itself, &["tc", "load", "--with-tc", &path])?);
            self.timed(tc, &["qdisc", "del", "dev", DEVICE, "root"])?;
            theirs.push(self.timed(tc, &["-b", &path])?);
            self.timed(tc, &["qdisc", "del", "dev", DEVICE, "root"])?;
        }
        let ratio = Ratio::of(&own, &theirs);
        self.row(
            "classes and rules in turn, --with-tc : tc -b",
            format!("<= {ALTERNATING_GOAL} x the time"),
            format!("{ratio} ({:.2} s : {:.2} s)", median(&own), median(&theirs)),
            ratio.of_medians <= ALTERNATING_GOAL,
        );
        Ok(())
    }

    /// Measures a file of one rule, including start-up.
    fn one_rule(&mut self) -> Result<(), Fault> {
        let file = self.files.file("one", &u32_rules(1, ""))?;
        let (mut tc, mut own) = (Vec::new(), Vec::new());
        for _ in 0..self.arguments.repeats.max(7) * 3 {
            tc.push(self.load(&file, 1, &["tc"])?);
            own.push(self.load(&file, 1, &[])?);
        }
        let ratio = Ratio::of(&own, &tc);
        let (tc, own) = (median(&tc) * 1e3, median(&own) * 1e3);
        self.row(
            "a file of one rule",
            "not slower than tc -b",
            format!("{ratio} ({own:.2} ms : {tc:.2} ms)"),
            own <= tc,
        );
        Ok(())
    }

    /// Measures how long this thread takes to parse and encode rules in memory.
    fn parsing(&mut self) -> Result<(), Fault> {
        let text = u32_rules(CHECKED_RULES, " no_percpu");
        let (mut flower, mut u32) = (Vec::new(), Vec::new());
        for _ in 0..self.arguments.repeats {
            let began = Instant::now();
            let parsed = parse(FlowerRules::new(PARSED_RULES))?;
            flower.push(parsed as f64 / began.elapsed().as_secs_f64());
            let began = Instant::now();
            let parsed = parse(text.as_bytes())?;
            u32.push(parsed as f64 / began.elapsed().as_secs_f64());
        }
        let (flower, u32) = (median(&flower) / 1e6, median(&u32) / 1e6);
        let measured = format!("{flower:.2} million rules/s (flower, drop), {u32:.2} million (u32, mirred)");
        self.row(
            "parsing and encoding, on one core",
            ">= 2 million rules/s",
            measured,
            flower >= 2.0 && u32 >= 2.0,
        );
        Ok(())
    }

    /// Measures the memory use of reading a stream, which must not grow with the stream's length.
    fn memory(&mut self) -> Result<(), Fault> {
        let before = resident()?;
        let parsed = parse(FlowerRules::new(STREAM_RULES))?;
        let (after, rules) = (resident()?, parsed / 1_000_000);
        let measured = format!("at most {after} MiB, {before} of them before ({rules} million rules)");
        self.row("a stream of 10 million rules", "< 100 MiB", measured, after < 100);
        Ok(())
    }

    /// Checks that refusals are reported, each with its line and the kernel's error message.
    fn failing(&mut self) -> Result<(), Fault> {
        self.fresh(1)?;
        // A second rule with the handle of the first one is refused.
        let mut text = "filter add dev np0 ingress protocol ip prio 1 handle 1:0:1 u32 ht 1:0: match u32 0 0 at 0 classid 1:1\n".to_owned();
        for _ in 0..FAILING_RULES {
            text.push_str("filter add dev np0 ingress protocol ip prio 1 handle 1:0:1 u32 ht 1:0: match u32 0 0 at 0 classid 1:1\n");
        }
        let mut loader = Loader::open(&self.netns, Options { stop_at_refusal: false, ..Options::default() })?;
        let (mut batch, mut devices) = (Batch::new(text.as_bytes()), Devices::of(&self.netns));
        while let Some((line, command)) = batch.next_command(&mut devices).map_err(Fault::failed)? {
            loader.push(line, command)?;
        }
        let account = loader.finish()?;
        let lines = account.refused.iter().map(|refused| refused.line);
        let exact = lines.eq(2..=FAILING_RULES + 1) && account.unknown.is_empty();
        let words = account.refused.iter().filter(|refused| refused.refusal.message.is_some()).count();
        let measured = format!(
            "{} reported, {} lost, {words} with the kernel's error message",
            account.refused.len(),
            account.unknown.len()
        );
        self.row("20 000 failing rules", "every refusal is reported with its line", measured, exact);
        Ok(())
    }

    /// Measures the rollback of a load into a separate priority.
    fn rollback(&mut self) -> Result<(), Fault> {
        let file = self.files.file("rollback", &u32_rules(ROLLED_BACK_RULES, " no_percpu"))?;
        let mut seconds = Vec::new();
        for _ in 0..self.arguments.repeats {
            self.load(&file, ROLLED_BACK_RULES, &[])?;
            let groups: Vec<_> = dump::groups(&self.netns, self.hook())?.into_iter().collect();
            let began = Instant::now();
            let stuck = undo::groups(&self.netns, &groups)?;
            seconds.push(began.elapsed().as_secs_f64());
            if !stuck.is_empty() || !dump::groups(&self.netns, self.hook())?.is_empty() {
                return Err(Fault::failed("the rollback left rules behind"));
            }
        }
        let seconds = median(&seconds);
        self.row("rollback of 40 000 rules", "< 0.3 s", format!("{seconds:.3} s"), seconds < 0.3);
        Ok(())
    }

    /// Measures the comparison of a file with the kernel's rules.
    fn check(&mut self) -> Result<(), Fault> {
        let file = self.files.file("check", &u32_rules(CHECKED_RULES, " no_percpu"))?;
        self.load(&file, CHECKED_RULES, &[])?;
        // The comparison needs a file of everything in the priority: the rules and their hash tables.
        let whole = self
            .files
            .file("whole", &format!("{}{}", tables(CHECKED_RULES), u32_rules(CHECKED_RULES, " no_percpu")))?;
        let path = whole.to_string_lossy();
        let (mut own, mut tc, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.arguments.repeats {
            own.push(self.timed(&self.itself, &["tc", "diff", &path])?);
            tc.push(self.timed(&self.arguments.tc, &["filter", "show", "dev", DEVICE, "ingress"])?);
            let began = Instant::now();
            dump::count(&self.netns, self.hook())?;
            kernel.push(began.elapsed().as_secs_f64());
        }
        let (own, tc, kernel) = (median(&own), median(&tc), median(&kernel));
        let measured = format!(
            "{own:.2} s, {:.1} x (tc filter show {tc:.2} s; the kernel's dump alone {kernel:.2} s: u32 has no terse one)",
            tc / own
        );
        self.row("check of 100 000 rules", "< 1 s, >= 10 x", measured, own < 1.0 && tc / own >= 10.0);
        Ok(())
    }
}

/// Returns rules of one priority without handles; the kernel puts all of them into the priority's first
/// bucket.
fn deep_rules(count: u32) -> String {
    let rule = |number: u32| {
        let address = format!("10.0.{}.{}", number >> 8 & 255, number & 255);
        format!(
            "filter add dev {DEVICE} ingress protocol ip prio 9 u32 match ip src {address} action mirred egress redirect dev \
             {PEER}\n"
        )
    };
    (0..count).map(rule).collect()
}

/// Returns `count` classes, each followed by a rule that leads to it. The rules are spread over a hash table.
fn alternating(count: u32) -> String {
    let mut text = format!(
        "qdisc add dev {DEVICE} root handle 1: htb\nfilter add dev {DEVICE} parent 1: protocol ip prio 1 handle 2: u32 divisor \
         {BUCKETS}\n"
    );
    for number in 1..=count {
        let (bucket, [.., high, low]) = (number % BUCKETS, number.to_be_bytes());
        let _ = writeln!(
            text,
            "class add dev {DEVICE} parent 1: classid 1:{number:x} htb rate 1mbit\n\
             filter add dev {DEVICE} parent 1: protocol ip prio 1 u32 ht 2:{bucket:x}: match ip src 10.0.{high}.{low} flowid 1:{number:x}"
        );
    }
    text
}

/// Returns the lines that create the hash tables for this many rules.
fn tables(rules: u32) -> String {
    let line = |table: u32| {
        format!(
            "filter add dev {DEVICE} ingress protocol ip prio 1 handle {table:x}: u32 divisor {BUCKETS}
"
        )
    };
    (1..=rules.div_ceil(RULES_PER_TABLE)).map(line).collect()
}

/// Returns u32 rules in hash tables; each rule redirects packets to the peer.
fn u32_rules(count: u32, suffix: &str) -> String {
    let mut text = String::new();
    for rule in 0..count {
        let [_, high, middle, low] = rule.to_be_bytes();
        let (table, local) = (rule / RULES_PER_TABLE + 1, rule % RULES_PER_TABLE);
        let (bucket, node) = (local % BUCKETS, local / BUCKETS + 1);
        let _ = writeln!(
            text,
            "filter add dev {DEVICE} ingress protocol ip prio 1 handle {table:x}:{bucket:x}:{node:x} u32 ht {table:x}:{bucket:x}: \
             match ip src 10.{high}.{middle}.{low} match ip dst 11.{high}.{middle}.{low} \
             action mirred egress redirect dev {PEER}{suffix}"
        );
    }
    text
}

/// Parses and encodes a whole input and returns the number of rules.
fn parse(input: impl Read) -> Result<u64, Fault> {
    let mut table = Table::of([(DEVICE.to_owned(), IfIndex(2)), (PEER.to_owned(), IfIndex(3))]);
    let (mut batch, mut portion, mut rules) = (Batch::new(input), Portion::default(), 0);
    while let Some((line, command)) = batch.next_command(&mut table).map_err(Fault::failed)? {
        portion.push(line, command);
        if portion.is_full() {
            portion.clear();
        }
        rules += 1;
    }
    Ok(rules)
}

/// A stream of flower rules, all equal and with the action drop, like the first of the published profiles.
struct FlowerRules {
    line: Vec<u8>,
    at: usize,
    left: u64,
}

impl FlowerRules {
    fn new(count: u64) -> Self {
        let line =
            b"filter add dev np0 protocol ip ingress prio 1 handle 1 flower skip_hw src_mac e4:11:0:0:0:0 \
                     dst_mac e4:12:0:0:0:0 action drop\n";
        // The buffer has many lines, so that producing the stream costs next to nothing.
        Self { line: line.repeat(1000), at: 0, left: count / 1000 }
    }
}

impl Read for FlowerRules {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let rest = &self.line[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        if self.at == self.line.len() {
            (self.at, self.left) = (0, self.left - 1);
        }
        Ok(count)
    }
}

/// The peak memory of this process, in MiB.
fn resident() -> Result<u64, Fault> {
    const STATUS: &str = "/proc/self/status";
    let status = std::fs::read_to_string(STATUS).map_err(|error| Fault::file(STATUS, error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kibibytes.ok_or_else(|| Fault::failed("/proc/self/status has no VmHWM"))? / 1024)
}
