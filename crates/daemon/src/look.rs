//! Looking: brings what is known of the host up to date, as far as the work says that something changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use apply::{Knob, Knobs};
use linux::{KernelError, Processes};
use model::host::{Socket, Unread};
use model::{
    Finding, Host, HostKnob, IfIndex, Interface, IrqKnob, Nanoseconds, Object, Pid, ProcessKnob, Setting,
    Severity, Target,
};
use session::{Fault, fullbusy};

use crate::daemon::{Daemon, now};
use crate::reconciler::{Depth, Event, Work};

/// Looking at all processes takes at most one part in so many of a CPU, and is not done more often than this.
const LOOK_SHARE: u64 = 2_000;
const LOOK_AT_ALL_EVERY: Nanoseconds = Nanoseconds::from_millis(60_000);

/// How many objects other than NAPIs and epolls are compared at one tick; the next ones at the next.
const COMPARED_MAX: usize = 64;

impl Daemon<'_> {
    /// Looks at what the work names. False if there is nothing to do for it.
    pub(crate) fn look(&mut self, work: &Work) -> Result<bool, Fault> {
        if work.policy {
            self.read_policy();
        }
        if work.policy || work.asked {
            self.wait_for_what_is_wanted()?;
        }
        if work.journal && !self.look_at_journal()? && work.is_of_the_journal_alone() {
            return Ok(false);
        }
        // New wants may mean processes that run already.
        if work.everything || work.policy || work.asked {
            self.look_at_everything()?;
            return Ok(true);
        }
        if work.cpus {
            self.observer.cpus(&mut self.host);
            self.rejected.clear();
        }
        for index in &work.devices {
            self.observer.device(&mut self.host, *index)?;
            self.forgive(|object| object.device().is_some_and(|device| device.ifindex == *index));
        }
        for name in &work.named {
            let index = self.host.device_named(name).map(|device| device.id.ifindex);
            if let Some(index) = index.filter(|index| !work.devices.contains(index)) {
                self.observer.device(&mut self.host, index)?;
            }
        }
        for (pid, depth) in &work.processes {
            self.look_at_process(*pid, *depth)?;
        }
        if work.tick {
            self.look_at_what_no_event_tells()?;
        }
        if work.wishes || work.tick {
            self.read_wishes();
            self.look_at_wishers();
        }
        self.watch_whom_we_know()?;
        Ok(true)
    }

    fn look_at_process(&mut self, pid: Pid, depth: Depth) -> Result<(), Fault> {
        let wanted = self.requests.means(pid) || self.requests.any_device();
        // What nothing can come to may have got a socket, of which no event tells but for a listener.
        let known = self.host.process(pid);
        let depth = if known.is_some_and(|process| !process.sockets.iter().any(Socket::can_receive)) {
            Depth::Whole
        } else {
            depth
        };
        let there = wanted
            && match depth {
                Depth::Epolls if self.host.process(pid).is_some() => {
                    self.observer.epolls(&mut self.host, pid)
                }
                Depth::Epolls | Depth::Whole => self.observer.process(&mut self.host, pid),
            };
        if !there {
            self.host.processes.retain(|process| process.id.pid != pid);
            if wanted {
                self.requests.ended(pid);
            }
            self.reconciler.forget(pid);
            if self.watched.remove(&pid) {
                self.sources.ignore(pid)?;
            }
        }
        self.forgive(|object| process_of(object) == Some(pid));
        Ok(())
    }

    /// What the kernel refused of such an object may be taken now.
    fn forgive(&mut self, changed: impl Fn(&Object) -> bool) {
        self.rejected.retain(|(object, _), _| !changed(object));
    }

    fn look_at_everything(&mut self) -> Result<(), Fault> {
        let begun = now();
        self.counters.whole_looks += 1;
        let mut unread = Vec::new();
        self.requests.find_all(self.observer.netns(), &mut unread)?;
        self.tell_unread(unread);
        self.find_wishers()?;
        let meant = self.requests.meant();
        let which = match self.requests.any_device() {
            true => Processes::Networking,
            false => Processes::Only(meant.iter().copied().collect()),
        };
        let wishes = std::mem::take(&mut self.host.wishes);
        self.host = self.observer.whole(&which)?;
        self.host.wishes = wishes;
        // One that has no socket yet is wanted all the same.
        for pid in meant {
            if self.host.process(pid).is_none() && !self.observer.process(&mut self.host, pid) {
                self.requests.ended(pid);
            }
        }
        let took = now().0.saturating_sub(begun.0);
        let pause = LOOK_AT_ALL_EVERY.0.max(took.saturating_mul(LOOK_SHARE));
        self.look_at_all = Nanoseconds(now().0.saturating_add(pause));
        self.watch_whom_we_know()
    }

    /// The ends and the children of these are told of.
    fn watch_whom_we_know(&mut self) -> Result<(), Fault> {
        let known: BTreeSet<Pid> = self.host.processes.iter().map(|process| process.id.pid).collect();
        for pid in known.difference(&self.watched).copied().collect::<Vec<_>>() {
            if let Err(error) = self.sources.watch(pid) {
                // Whoever does not fit is found by looking.
                self.find(not_told(&error));
                break;
            }
            self.watched.insert(pid);
        }
        for pid in self.watched.difference(&known).copied().collect::<Vec<_>>() {
            self.sources.ignore(pid)?;
            self.watched.remove(&pid);
        }
        Ok(())
    }

    /// What has no event: the values of NAPIs, the parameters of epolls, and whatever else is held.
    fn look_at_what_no_event_tells(&mut self) -> Result<(), Fault> {
        if self.sources.files().again() {
            let at = now();
            self.hear(&Event::Policy, at);
        }
        if !self.taken.is_empty() {
            // One that attended may have been killed, of which no event tells.
            self.taken = self.journal.claims()?;
        }
        if now() >= self.look_at_all || !self.sources.births_are_told() {
            return self.look_at_everything();
        }
        let by_device = |setting: &Setting| match setting.interface() {
            Interface::Napi | Interface::Kthread => setting.object().device(),
            _ => None,
        };
        let changes = || self.ledger.iter().map(|(_, change)| change.to());
        let wanted = self.placed.desired.wanted.iter().map(|wanted| &wanted.setting);
        let devices: BTreeSet<IfIndex> =
            changes().chain(wanted).filter_map(by_device).map(|device| device.ifindex).collect();
        let mut others: BTreeMap<Object, Vec<Setting>> = BTreeMap::new();
        for setting in changes() {
            if by_device(setting).is_none() && !matches!(setting, Setting::Process(ProcessKnob::Epoll(..))) {
                others.entry(setting.object()).or_default().push(setting.clone());
            }
        }
        for device in devices {
            self.observer.napis(&mut self.host, device)?;
        }
        let processes: Vec<Pid> = self
            .placed
            .placement
            .iter()
            .flat_map(|placement| &placement.parts)
            .filter(|part| part.params.epoll != model::EpollParams::default())
            .flat_map(|part| part.processes.iter().map(|process| process.id.pid))
            .collect();
        for pid in processes.into_iter().chain(self.requests.wishers()).collect::<BTreeSet<_>>() {
            self.look_at_process(pid, Depth::Epolls)?;
        }
        let after = self
            .compared
            .and_then(|last| others.range((Excluded(last), Unbounded)).next())
            .map(|(next, _)| *next);
        let begin = after.or_else(|| others.keys().next().copied());
        let Some(begin) = begin else { return Ok(()) };
        for (object, settings) in others.range(begin..).take(COMPARED_MAX) {
            self.compared = Some(*object);
            self.compare(*object, settings)?;
        }
        Ok(())
    }

    /// Reads settings that are held; if they are not as they should be, their object is looked at.
    fn compare(&mut self, object: Object, held: &[Setting]) -> Result<(), Fault> {
        match self.kernel.read(held) {
            Ok(found) if found == held => Ok(()),
            Ok(found) => {
                // What is read by itself is known by itself.
                for setting in &found {
                    self.take_in(setting);
                }
                self.look_at_object(object)
            }
            Err(_) => self.look_at_object(object),
        }
    }

    /// Looks at one object anew.
    pub(crate) fn look_at_object(&mut self, object: Object) -> Result<(), Fault> {
        if let Some(device) = object.device() {
            self.observer.device(&mut self.host, device.ifindex)?;
        } else if let Some(pid) = process_of(&object) {
            let depth = if matches!(object, Object::Epoll(_)) { Depth::Epolls } else { Depth::Whole };
            self.look_at_process(pid, depth)?;
        }
        Ok(())
    }

    /// A value that was read or written by itself, of an object that is not looked at otherwise.
    pub(crate) fn take_in(&mut self, setting: &Setting) {
        match setting {
            Setting::Irq(number, IrqKnob::Affinity(cpus)) => {
                for irq in self.host.irqs.iter_mut().filter(|irq| irq.number == *number) {
                    irq.affinity.clone_from(cpus);
                }
            }
            Setting::Host(HostKnob::Sysctl(sysctl, value)) => drop(self.host.sysctls.insert(*sysctl, *value)),
            _ => {}
        }
    }

    /// Reads the policy files. What cannot be read leaves the policy as it was.
    fn read_policy(&mut self) {
        self.policy_reads += 1;
        let merged = match self.session.policy(self.operator) {
            Ok(merged) => merged,
            Err(fault) => {
                let words = fault.cause.to_string();
                self.mistakes = Some(words.clone());
                self.find(Finding {
                    rule: "policy-file".to_owned(),
                    severity: Severity::Problem,
                    object: "policy files".to_owned(),
                    summary: "they are wrong, and the policy that was read before stays in force".to_owned(),
                    evidence: words.lines().map(str::to_owned).collect(),
                    remedy: Some("netpolicy plan".to_owned()),
                });
                return;
            }
        };
        self.mistakes = None;
        self.mended("policy-file", &BTreeSet::new());
        self.mended("from-outside", &BTreeSet::new());
        self.sections = merged.sections.len();
        let model::Policy { mut intents, recipes, .. } = merged.policy();
        intents.retain(|intent| {
            let refused = fullbusy::refuse_from_outside(&model::Policy {
                intents: vec![intent.clone()],
                ..model::Policy::default()
            })
            .err();
            if let Some(fault) = &refused {
                self.find(Finding {
                    rule: "from-outside".to_owned(),
                    severity: Severity::Problem,
                    object: intent.target.to_string(),
                    summary: fault.cause.to_string(),
                    evidence: Vec::new(),
                    remedy: fault.hint.clone(),
                });
            }
            refused.is_none()
        });
        self.requests.files_say(intents, recipes);
    }

    fn wait_for_what_is_wanted(&mut self) -> Result<(), Fault> {
        let netns = self.observer.netns().id();
        let waited = self.requests.waited();
        let told = self.sources.wait_for(netns, waited);
        if let Err(error) = &told {
            self.find(not_told(error));
        }
        Ok(())
    }

    pub(crate) fn tell_unread(&mut self, unread: Vec<Unread>) {
        for unread in unread {
            self.operator.detail(&format!("not read: {}: {}", unread.what, unread.why));
        }
    }

    /// Whether somebody rolled back what the daemon had set: that is left alone from now on, also where not all of it could be
    /// put back. Says whether there is anything new in the journal that concerns the daemon.
    pub(crate) fn look_at_journal(&mut self) -> Result<bool, Fault> {
        let taken = self.journal.claims()?;
        let claimed = taken != self.taken;
        self.taken = taken;
        let (before, half_before) = (self.own.clone(), self.half_undone.clone());
        let held = self.ledger.clone();
        let replaced = self.read_own()?;
        let missing: Vec<_> = before.difference(&self.own).copied().collect();
        let half = self.half_undone.difference(&half_before).copied();
        let missing: Vec<_> =
            missing.into_iter().filter(|name| !replaced.contains(name)).chain(half).collect();
        if missing.is_empty() {
            return Ok(claimed || before != self.own);
        }
        let gone = held.iter().filter(|(knob, _)| self.ledger.get(knob).is_none()).map(|(knob, _)| *knob);
        // Also what an older one of these holds, which nobody has rolled back: it is not set anew over the operator's word.
        let plans = missing.iter().filter_map(|name| self.journal.transaction(*name).ok());
        let rolled_back =
            plans.flat_map(|transaction| transaction.begin().plan.changes().cloned().collect::<Vec<_>>());
        let rolled_back = rolled_back.map(|change| (change.to().object(), change.to().knob()));
        let released: BTreeSet<Knob> = gone.chain(rolled_back).collect();
        self.counters.rollbacks += u64::try_from(missing.len()).unwrap_or(u64::MAX);
        self.reconciler.release(released);
        if self.own.is_subset(&self.half_undone) {
            self.phase = crate::status::Phase::Released;
        }
        self.tell_what_was_rolled_back(&missing);
        // What the roll back wrote has to be seen.
        let at = now();
        self.hear(&Event::Lost, at);
        Ok(true)
    }

    /// The process that a request for a task means, as it is now.
    pub(crate) fn process_meant(target: &Target) -> Result<Option<model::ProcessId>, Fault> {
        match target {
            Target::Task(pid) => Ok(Some(linux::process::identify(*pid)?)),
            _ => Ok(None),
        }
    }
}

fn not_told(error: &KernelError) -> Finding {
    Finding {
        rule: "not-told".to_owned(),
        severity: Severity::Warning,
        object: "images and ports".to_owned(),
        summary: "the kernel's tables are full: some processes are found by looking only".to_owned(),
        evidence: vec![error.to_string()],
        remedy: None,
    }
}

/// Whether it belongs to a process that has ended. One that is not looked at any more may live all the same.
pub(crate) fn has_ended(object: &Object, host: &Host) -> bool {
    let process = match object {
        Object::Epoll(epoll) => epoll.process,
        Object::Ring(ring) => ring.process,
        Object::Thread(thread) => thread.process,
        _ => return false,
    };
    host.process(process.pid).is_none_or(|known| known.id.started != process.started)
        && match linux::process::identify(process.pid) {
            Ok(now) => now.started != process.started,
            Err(error) => matches!(error.cause, linux::Cause::Gone(_)),
        }
}

/// The process whose object it is.
pub(crate) fn process_of(object: &Object) -> Option<Pid> {
    object.process().map(|process| process.pid)
}
