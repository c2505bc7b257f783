//! All-or-nothing loads: a load determines what it will add before it begins, and removes that if it does not
//! succeed. It removes a new priority as a whole, with one message. In an existing priority, it removes every
//! rule of the file by its handle, and none of these handles may exist beforehand. So no journal is needed,
//! and a second process can undo the load after this one was killed. That process enters the load's namespace
//! through an inherited descriptor, because the operator's name for the namespace may by then refer to
//! another one, or to none.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linux::{Cause, Netns};
use model::IfIndex;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::FdFlags;
use session::{Exit, Fault, HostState};
use tc_rules::kernel::{Devices, Loader, Options, Refused, dump, undo};
use tc_rules::{Classifier, Filter, Group, Hook, NoPercpu, RuleMatch};

use super::diff::expected;
use super::file::BatchFile;
use super::place::UnremovedRules;
use super::survey::Survey;
use super::swap::{Places, Swap};
use cli::Context;

/// Tells the guard that it has the complete list of what the load is about to add. If this message is
/// missing, no rule was sent, and the last line may be incomplete.
const ARMED: &str = "armed";

/// Tells the guard to keep the load.
const KEEP: &str = "keep";

/// The groups of rules and chains to remove to undo a load.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// New priorities, which are removed as a whole.
    fresh: Vec<Group>,
    /// Existing priorities, from which the file's rules are removed individually.
    shared: BTreeSet<Group>,
    /// Chains that were unused before the load, each with the priority of the rule that may link to it by
    /// now. A chain to which no rule links is removed as a whole.
    chains: Vec<Group>,
}

impl Undo {
    /// Checks what exists before a load, and determines how to undo it.
    pub(super) fn prepare(
        netns: &Netns,
        file: &BatchFile,
        survey: &Survey,
        devices: &mut Devices<'_>,
    ) -> Result<Self, Fault> {
        let refused = |words: String| Fault::new(Exit::Refused, words);
        if let Some(line) = survey.irreversible {
            return Err(refused(format!(
                "{}:{line}: --atomic can only undo `filter add`, but this line is another command",
                file.name()
            )));
        }
        if survey.groups.iter().any(|group| group.priority == 0) {
            return Err(refused("--atomic needs a priority in every line, to know what to undo".to_owned()));
        }
        let mut there = BTreeSet::new();
        for hook in survey.hooks() {
            there.extend(dump::groups(netns, hook)?);
        }
        let (shared, fresh): (BTreeSet<Group>, BTreeSet<Group>) =
            survey.groups.iter().partition(|group| there.contains(group));
        let undo = Self { fresh: fresh.into_iter().collect(), shared, chains: Vec::new() };
        undo.handles_are_free(netns, file, devices)?;
        Ok(undo)
    }

    /// Describes how to undo a load into separate chains.
    pub(super) fn of_chains(swap: &Swap) -> Self {
        Self { chains: swap.groups(), ..Self::default() }
    }

    /// Refuses a file if one of its rules in a shared priority has no handle, or a handle that exists.
    fn handles_are_free(
        &self,
        netns: &Netns,
        file: &BatchFile,
        devices: &mut Devices<'_>,
    ) -> Result<(), Fault> {
        if self.shared.is_empty() {
            return Ok(());
        }
        let mut lines = BTreeSet::new();
        let mut without = None;
        file.each(
            devices,
            |line, command, _| {
                if let Some(rule) = command.rule().filter(|rule| self.shared.contains(&rule.group())) {
                    lines.insert(line);
                    if rule.handle == 0 || is_cut_short(rule) {
                        without.get_or_insert(line);
                    }
                }
                Ok(true)
            },
            |_| Ok(()),
        )?;
        if let Some(line) = without {
            return Err(Fault::new(
                Exit::Refused,
                format!(
                    "{}:{line}: its priority already exists, so --atomic needs an explicit handle here, for u32 with its table (800::501)",
                    file.name()
                ),
            ));
        }
        let (places, percpu) = (Places::default(), NoPercpu::AsWritten);
        let mut expected =
            expected(file, devices, &mut Survey::default(), &places, percpu, |line| lines.contains(&line))?;
        let mut taken = None;
        for hook in self.shared.iter().map(|group| group.hook).collect::<BTreeSet<Hook>>() {
            dump::rules(netns, hook, |dumped| {
                // If the dump restarts, keep what was found before: a rule that is dumped again still exists.
                if let dump::Dumped::Rule(rule) = dumped
                    && let RuleMatch::Expected(line) | RuleMatch::Different(line) = expected.match_rule(rule)
                {
                    taken.get_or_insert(line);
                }
            })?;
        }
        match taken {
            Some(line) => Err(Fault::new(
                Exit::Refused,
                format!("{}:{line}: a rule with this handle already exists; no rule was sent", file.name()),
            )),
            None => Ok(()),
        }
    }

    /// Undoes the load. Returns what could not be removed and still exists; a failed removal of a rule that
    /// was never loaded does not count.
    pub(super) fn undo(
        &self,
        netns: &Netns,
        file: &BatchFile,
        devices: &mut Devices<'_>,
    ) -> Result<Vec<UnremovedRules>, Fault> {
        let mut stuck = Vec::new();
        let mut there: BTreeMap<Hook, BTreeSet<Group>> = BTreeMap::new();
        for (group, cause) in undo::groups(netns, &self.fresh)? {
            let there = match there.entry(group.hook) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(dump::groups(netns, group.hook)?),
            };
            if there.contains(&group) {
                stuck.push(UnremovedRules::group(&group, cause, devices));
            }
        }
        for chain in &self.chains {
            if Swap::in_force(netns, chain.hook, chain.priority)? == Some(chain.chain) {
                continue;
            }
            // Without a priority, the message refers to the whole chain.
            for (group, cause) in undo::groups(netns, &[Group { priority: 0, ..*chain }])? {
                if dump::chains(netns, group.hook)?.contains(&group.chain) {
                    stuck.push(UnremovedRules::group(&group, cause, devices));
                }
            }
        }
        if !self.shared.is_empty() {
            let mut loader = Loader::open(netns, Options { stop_at_refusal: false, ..Options::default() })?;
            file.each(
                devices,
                |line, command, _| {
                    if let Some(rule) = command.rule().filter(|rule| self.shared.contains(&rule.group())) {
                        loader.push_removal(line, rule)?;
                    }
                    Ok(true)
                },
                |_| Ok(()),
            )?;
            let refused = loader.finish()?.refused.into_iter();
            let refused = refused.filter(|refused: &Refused| !refused.refusal.is_absent());
            let refused: BTreeMap<u32, Cause> =
                refused.map(|refused| (refused.line, refused.cause())).collect();
            let left = self.left_of(&refused.keys().copied().collect(), netns, file, devices)?;
            let left = refused.into_iter().filter(|(line, _)| left.contains(line));
            stuck.extend(
                left.map(|(line, cause)| UnremovedRules { what: format!("{}:{line}", file.name()), cause }),
            );
        }
        Ok(stuck)
    }

    /// Returns those of the lines, all in shared priorities, whose handles still exist in the kernel.
    fn left_of(
        &self,
        lines: &BTreeSet<u32>,
        netns: &Netns,
        file: &BatchFile,
        devices: &mut Devices<'_>,
    ) -> Result<BTreeSet<u32>, Fault> {
        let mut left = BTreeSet::new();
        if lines.is_empty() {
            return Ok(left);
        }
        let (places, percpu) = (Places::default(), NoPercpu::AsWritten);
        let mut expected =
            expected(file, devices, &mut Survey::default(), &places, percpu, |line| lines.contains(&line))?;
        for hook in self.shared.iter().map(|group| group.hook).collect::<BTreeSet<Hook>>() {
            let dumped = dump::rules(netns, hook, |dumped| {
                if let dump::Dumped::Rule(rule) = dumped
                    && let RuleMatch::Expected(line) | RuleMatch::Different(line) = expected.match_rule(rule)
                {
                    left.insert(line);
                }
            });
            match dumped {
                Err(error) if !error.is_absent() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(left)
    }

    /// Formats the groups for the guard, one line for each priority.
    fn written(&self) -> String {
        let line = |group: &Group, kind: &str| {
            let Group { hook, chain, priority } = group;
            format!("{kind} {} {} {} {chain} {priority}\n", hook.device.0, hook.block, hook.parent)
        };
        let fresh = self.fresh.iter().map(|group| line(group, "fresh"));
        let shared = self.shared.iter().map(|group| line(group, "shared"));
        fresh.chain(shared).chain(self.chains.iter().map(|group| line(group, "chain"))).collect()
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let (kind, numbers) = line.split_once(' ')?;
        let numbers: Vec<u32> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [device, block, parent, chain, priority] = numbers[..] else { return None };
        let hook = Hook { device: IfIndex(device), block, parent };
        let group = Group { hook, chain, priority: u16::try_from(priority).ok()? };
        match kind {
            "fresh" => self.fresh.push(group),
            "shared" => _ = self.shared.insert(group),
            "chain" => self.chains.push(group),
            _ => return None,
        }
        Some(())
    }
}

/// How long a load with `--atomic`, `--swap` or `--resume` waits for another one, and how often it checks.
const TURN_WITHIN: Duration = Duration::from_secs(60);
const TURN_ASKED_EVERY: Duration = Duration::from_millis(10);

/// How long a load waits before it reports that it is waiting.
const TURN_REPORTED_AFTER: Duration = Duration::from_secs(2);

/// A lock that keeps other loads from adding rules between the inspection of a namespace and the load. The
/// kernel releases it when its last holder exits.
#[derive(Debug)]
pub(super) struct LoadLock(OwnedFd);

impl LoadLock {
    /// Waits for the lock.
    pub(super) fn take(netns: &Netns, context: &Context) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::file("the lock of the network namespace", error);
        // Open the namespace again: the lock belongs to the open file, so a duplicated descriptor would share
        // it, and a reopened one has a separate lock.
        let path = format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd());
        let lock =
            rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let (began, mut reported) = (Instant::now(), false);
        loop {
            if !reported && began.elapsed() > TURN_REPORTED_AFTER {
                context
                    .console
                    .say("Waiting for another load in this network namespace: loads with --atomic, --swap or --resume run one at a time.");
                reported = true;
            }
            match flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
                Ok(()) => return Ok(Self(lock)),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failed(error)),
                Err(_) if began.elapsed() < TURN_WITHIN => std::thread::sleep(TURN_ASKED_EVERY),
                Err(_) => {
                    let words = "another load with --atomic, --swap or --resume has been under way in this network namespace for a minute; \
                                 nothing was sent";
                    return Err(Fault::new(Exit::Refused, words));
                }
            }
        }
    }

    /// A path to the namespace for a process that inherits the same descriptor.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }

    /// Sets whether processes started from now on inherit the descriptor, which they hold until they exit.
    fn is_inherited(&self, inherited: bool) -> Result<(), Fault> {
        let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
        let set = rustix::io::fcntl_setfd(&self.0, flags);
        set.map_err(|errno| Fault::file("the lock of the network namespace", errno.into()))
    }
}

/// Whether a rule's handle leaves the u32 table to the kernel. Such a handle does not find the rule that was
/// added with it. Kernel: 6.18, `net/sched/cls_u32.c` `u32_change()` completes the handle, `u32_get()` does
/// not.
const fn is_cut_short(rule: &Filter) -> bool {
    matches!(rule.classifier, Classifier::U32(_)) && rule.handle < 1 << 20
}

/// A second process that undoes the load if this one dies.
#[derive(Debug)]
pub(super) struct Guarded(Child);

impl Guarded {
    /// Starts the guard. It inherits the file as its standard output, to read the rules again if necessary,
    /// and the descriptor of the namespace, with which this load holds the lock.
    pub(super) fn start(undo: &Undo, turn: &LoadLock, file: &BatchFile) -> Result<Self, Fault> {
        let failed = |error| Fault::file("the guard of an atomic load", error);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("--netns").arg(turn.path());
        let rules = Stdio::from(file.handle().map_err(failed)?);
        command.args(["tc", "guard"]).stdin(Stdio::piped()).stdout(rules);
        // Puts the guard in its own process group, so that Ctrl-C reaches only this process.
        turn.is_inherited(true)?;
        let child = command.process_group(0).spawn();
        turn.is_inherited(false)?;
        let mut child = child.map_err(failed)?;
        let stdin = child.stdin.as_mut();
        let sent = stdin.map_or(Ok(()), |stdin| {
            writeln!(stdin, "{}{ARMED}", undo.written()).and_then(|()| stdin.flush())
        });
        sent.map_err(failed)?;
        Ok(Self(child))
    }

    /// Makes the guard undo the load, because this process could not; returns whether the guard succeeded.
    pub(super) fn takes_back(mut self) -> bool {
        drop(self.0.stdin.take());
        self.0.wait().is_ok_and(|status| status.code() == Some(Exit::RolledBack.code().into()))
    }

    /// Dismisses the guard: the load may stay, or has been removed.
    pub(super) fn dismiss(mut self) -> Result<(), Fault> {
        let failed = |error| Fault::file("the guard of an atomic load", error);
        if let Some(mut stdin) = self.0.stdin.take() {
            writeln!(stdin, "{KEEP}").map_err(failed)?;
        }
        self.0.wait().map_err(failed)?;
        Ok(())
    }
}

/// Runs the guard: reads what it would have to remove, and removes it unless it receives `KEEP`.
pub(crate) fn guard(context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    let (mut undo, mut armed, mut unknown) = (Undo::default(), false, None);
    for line in std::io::stdin().lock().lines() {
        match line {
            Ok(line) if line == KEEP => return Ok(Exit::Done),
            Ok(line) if line == ARMED => armed = true,
            Ok(line) if undo.read(&line).is_some() => {}
            Ok(line) => unknown = Some(line),
            Err(_) => break,
        }
    }
    if !armed {
        return Ok(Exit::Done); // the load died before it sent a rule, possibly within a line
    }
    if let Some(line) = unknown {
        return Err(Fault::new(Exit::Usage, format!("the guard does not understand `{line}`")));
    }
    let file = BatchFile::inherited();
    let stuck = file.and_then(|file| undo.undo(&netns, &file, &mut Devices::of(&netns)));
    let words = "an atomic load was interrupted";
    match stuck {
        Ok(stuck) if stuck.is_empty() => {
            context.console.say("An atomic load was interrupted and undone.");
            Ok(Exit::RolledBack)
        }
        Ok(stuck) => Err(not_restored(words, &stuck)),
        Err(fault) => Err(not_taken_back(fault)),
    }
}

/// Returns the error of a load of which these rules or chains could not be removed.
pub(super) fn not_restored(words: impl Into<String>, stuck: &[UnremovedRules]) -> Fault {
    let stuck = stuck.iter().map(ToString::to_string).collect();
    Fault::new(Exit::NotRestored, words.into()).leaving(HostState::NotRestored { stuck, undo: None })
}

/// Returns the error of a load that could not be undone because of `fault`.
pub(super) fn not_taken_back(fault: Fault) -> Fault {
    let stuck = vec!["what was loaded: `netpolicy tc diff` with its file names it".to_owned()];
    Fault { exit: Exit::NotRestored, ..fault }.leaving(HostState::NotRestored { stuck, undo: None })
}
