//! Observes the parts of the host that may have changed.

use std::collections::{BTreeMap, BTreeSet};

use linux::{KernelError, Processes};
use model::{Finding, IfIndex, Object, Pid, ProcessKnob, Setting, Severity};
use session::{Fault, Silent, fullbusy};

use crate::daemon::{Daemon, now};
use crate::reconciler::{HostEvent, Scope, Work};
use crate::status::DaemonPhase;

impl Daemon<'_> {
    /// Observes the parts of the host that the work requires. Returns false if nothing else is to be done.
    pub(crate) fn look(&mut self, work: &Work) -> Result<bool, Fault> {
        if work.policy {
            self.read_policy();
        }
        if work.policy || work.asked {
            self.wait_for_what_is_wanted();
            self.follow_proofs();
        }
        if work.scan {
            self.scan()?;
            if work.is_a_scan_alone() {
                return Ok(false);
            }
        }
        if work.journal && !self.look_at_journal()? && work.is_of_the_journal_alone() {
            return Ok(false);
        }
        // New requests may match processes that are already running, so observe everything.
        if work.observe.everything || work.policy || work.asked {
            self.look_at_everything()?;
            return Ok(true);
        }
        if work.observe.cpus {
            self.known.cpus();
            self.rejections.clear();
        }
        for index in &work.observe.devices {
            self.known.device(*index)?;
            self.rejections.forgive(|object| object.device().is_some_and(|device| device.ifindex == *index));
        }
        for name in &work.observe.named {
            let index = self.known.host().device_named(name).map(|device| device.id.ifindex);
            if let Some(index) = index.filter(|index| !work.observe.devices.contains(index)) {
                self.known.device(index)?;
            }
        }
        for (pid, scope) in &work.observe.processes {
            self.look_at_process(*pid, *scope)?;
        }
        if work.tick {
            self.look_at_what_has_no_event()?;
        }
        if work.app_requests || work.tick {
            self.read_app_requests();
            self.look_at_askers();
        }
        self.watch_known_processes()?;
        Ok(true)
    }

    fn look_at_process(&mut self, pid: Pid, scope: Scope) -> Result<(), Fault> {
        let wanted = self.requests.means(pid) || self.requests.any_device();
        if !wanted || !self.known.process(pid, scope) {
            self.known.forget_process(pid);
            if wanted {
                self.requests.ended(pid);
            }
            self.reconciler.forget(pid);
            self.sources.stop_watching(pid)?;
        }
        self.rejections.forgive(|object| process_of(object) == Some(pid));
        Ok(())
    }

    fn look_at_everything(&mut self) -> Result<(), Fault> {
        let begun = now();
        self.telemetry.count(|counters| counters.passes.full_scans += 1);
        let mut unread = Vec::new();
        self.requests.find_all(&mut unread)?;
        self.telemetry.unread(unread);
        self.find_askers()?;
        let meant = self.requests.meant();
        let which = match self.requests.any_device() {
            true => Processes::NetworkingAnd(meant.iter().copied().collect()),
            false => Processes::Only(meant.iter().copied().collect()),
        };
        self.known.everything(&which)?;
        // Keep a process that has no sockets but still exists: it may make a request.
        for pid in meant {
            if !self.known.has_process(pid) {
                self.requests.ended(pid);
            }
        }
        self.known.looked_at_all(begun, now());
        self.watch_known_processes()
    }

    /// Watches all observed processes, for exits and new children.
    fn watch_known_processes(&mut self) -> Result<(), Fault> {
        let known = self.known.host().processes.iter().map(|process| process.id.pid).collect();
        if let Some(error) = self.sources.watch_alone(&known)? {
            self.telemetry.find(not_reported(&error));
        }
        Ok(())
    }

    /// Observes state whose changes cause no events: NAPI values, epoll parameters, and all other held
    /// settings.
    fn look_at_what_has_no_event(&mut self) -> Result<(), Fault> {
        self.sources.tick();
        if self.sources.files().again() {
            let at = now();
            self.note(&HostEvent::Policy, at);
        }
        if self.held.is_any_taken() {
            // The process that owned settings may have been killed, which no event reports.
            self.held.read_claims()?;
        }
        if self.known.isolation_changed() {
            // CPU isolation has changed: the kernel has moved threads, and other CPUs are usable now.
            self.known.cpus();
            self.rejections.clear();
        }
        if self.known.routes() {
            // Policy sections may now match other devices, and tunnels may use other lower devices.
            self.rejections.clear();
        }
        if self.known.are_all_due(now()) || !self.sources.sees_processes() {
            return self.look_at_everything();
        }
        let by_device = |setting: &Setting| match setting {
            Setting::Napi(queue, _) | Setting::Kthread(queue, _) => Some(queue.device),
            Setting::DeviceNapis(..)
            | Setting::Nic(..)
            | Setting::RxQueue(..)
            | Setting::TxQueue(..)
            | Setting::Irq(..)
            | Setting::Process(_)
            | Setting::Host(_) => None,
        };
        let held = || self.held.ledger().iter().map(|(_, change)| change.to());
        let devices: BTreeSet<IfIndex> =
            held().chain(self.plan.wanted()).filter_map(by_device).map(|device| device.ifindex).collect();
        let mut others: BTreeMap<Object, Vec<Setting>> = BTreeMap::new();
        for setting in held() {
            if by_device(setting).is_none() && !matches!(setting, Setting::Process(ProcessKnob::Epoll(..))) {
                others.entry(setting.object()).or_default().push(setting.clone());
            }
        }
        for device in devices {
            self.known.napis(device)?;
        }
        let mut processes: BTreeMap<Pid, Scope> = BTreeMap::new();
        processes.extend(self.plan.processes_with_epolls().into_iter().map(|pid| (pid, Scope::Epolls)));
        // Each connection needs a rule, but no event reports when a connection begins or ends, so observe
        // sockets, too.
        let scope = if self.plan.follows_connections() { Scope::Whole } else { Scope::Epolls };
        processes.extend(self.requests.requesters().into_iter().map(|pid| (pid, scope)));
        if scope == Scope::Whole {
            processes.extend(self.plan.processes_with_connections().into_iter().map(|pid| (pid, scope)));
        }
        for (pid, scope) in processes {
            self.look_at_process(pid, scope)?;
        }
        for pid in self.plan.processes_without_epolls() {
            self.look_at_process(pid, Scope::Whole)?;
        }
        for object in self.known.due_to_compare(&others) {
            self.known.compared(object);
            self.compare(object, &others[&object])?;
        }
        Ok(())
    }

    /// Reads the held settings of an object. If their values differ, observes the object again.
    fn compare(&mut self, object: Object, held: &[Setting]) -> Result<(), Fault> {
        match self.held.current(held) {
            Ok(found) if found == held => Ok(()),
            Ok(found) => {
                // Some settings are not part of any observation, so store their values individually.
                for setting in &found {
                    self.known.take_in(setting);
                }
                self.look_at_object(object)
            }
            Err(_) => self.look_at_object(object),
        }
    }

    /// Observes an object again.
    pub(crate) fn look_at_object(&mut self, object: Object) -> Result<(), Fault> {
        if let Some(device) = object.device() {
            self.known.device(device.ifindex)?;
        } else if let Some(pid) = process_of(&object) {
            let scope = if matches!(object, Object::Epoll(_)) { Scope::Epolls } else { Scope::Whole };
            self.look_at_process(pid, scope)?;
        }
        Ok(())
    }

    /// Reads the policy files. If this fails, the previous policy stays in effect.
    fn read_policy(&mut self) {
        let merged = match self.session.policy(self.telemetry.operator()) {
            Ok(merged) => merged,
            Err(fault) => {
                let words = fault.cause.to_string();
                self.telemetry.policy_read(Err(words.clone()));
                self.telemetry.find(Finding {
                    rule: "policy-file".to_owned(),
                    severity: Severity::Problem,
                    object: "policy files".to_owned(),
                    summary: "they have errors; the previous policy stays in force".to_owned(),
                    evidence: words.lines().map(str::to_owned).collect(),
                    remedy: Some("netpolicy plan".to_owned()),
                });
                return;
            }
        };
        self.telemetry.policy_read(Ok(merged.sections.len()));
        self.telemetry.mended("policy-file", &BTreeSet::new());
        self.telemetry.mended("from-outside", &BTreeSet::new());
        let model::Policy { mut intents, recipes, .. } = merged.policy();
        intents.retain(|intent| {
            let refused = fullbusy::refuse_from_outside(&model::Policy {
                intents: vec![intent.clone()],
                ..model::Policy::default()
            })
            .err();
            if let Some(fault) = &refused {
                self.telemetry.find(Finding {
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
        self.quality.goals.measure(merged.sample());
        self.quality.search.allow(merged.searches());
    }

    /// Whether the requests in the policy files have changed since the files were last read.
    pub(crate) fn files_changed(&self) -> bool {
        self.session
            .policy(&Silent)
            .is_ok_and(|merged| merged.policy().intents != self.requests.of_files().intents)
    }

    fn wait_for_what_is_wanted(&mut self) {
        let netns = self.known.netns().id();
        if let Err(error) = self.sources.wait_for(netns, self.requests.waited()) {
            self.telemetry.find(not_reported(&error));
        }
    }

    /// Makes the daemon leave alone the settings that an operator rolled back, even if some of them could not
    /// be restored. Returns whether anything in the journal that concerns the daemon has changed.
    pub(crate) fn look_at_journal(&mut self) -> Result<bool, Fault> {
        let news = self.held.news()?;
        if news.rolled_back.is_empty() {
            return Ok(news.any);
        }
        let rolled_back = u64::try_from(news.rolled_back.len()).unwrap_or(u64::MAX);
        self.telemetry.count(|counters| counters.rollbacks += rolled_back);
        self.reconciler.release(news.released);
        if news.all {
            self.telemetry.enter(DaemonPhase::Released);
        }
        self.report_rolled_back(&news.rolled_back);
        // The rollback has changed values, so observe everything.
        let at = now();
        self.note(&HostEvent::Lost, at);
        Ok(true)
    }
}

fn not_reported(error: &KernelError) -> Finding {
    Finding {
        rule: "found-by-scan".to_owned(),
        severity: Severity::Warning,
        object: "BPF filters for executables and ports".to_owned(),
        summary: "the BPF maps are full: some processes are found by scans only".to_owned(),
        evidence: vec![error.to_string()],
        remedy: None,
    }
}

/// Returns the process to which an object belongs, if any.
pub(crate) fn process_of(object: &Object) -> Option<Pid> {
    object.process().map(|process| process.pid)
}
