//! An in-memory host that fails on demand.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use apply::{Knobs, ObjectCookies};
use model::host::{QueueConflict, QueueHolder};
use model::setting::Threading;
use model::{
    Change, Cpu, DeviceNapiKnob, EmptyPolls, HostKnob, IrqKnob, KthreadKnob, Nanoseconds, NapiKnob, NicKnob,
    Object, Plan, ProcessKnob, Qdiscs, QueueIndex, RingNapi, RxQueueKnob, Scheduling, Setting, Slice, Spread,
    SteerTo, TxQueueKnob,
};

/// A fault of a host. Reads and writes are counted separately, from 0.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Read N fails.
    RefuseRead(usize),
    /// Read N and all later ones fail.
    RefuseReadsFrom(usize),
    /// Write N fails, and nothing is written.
    RefuseWrite(usize),
    /// Write N and all later ones fail, and nothing is written.
    RefuseWritesFrom(usize),
    /// Write N takes effect, but is reported as failed.
    LoseAck(usize),
    /// Only the first setting of write N takes effect, and the write is reported as failed.
    WriteFirstOnly(usize),
    /// Write N is reported as successful, but sets other values.
    Round(usize),
    /// The object disappears before read N.
    VanishBeforeRead(usize),
    /// The object disappears before write N.
    VanishBeforeWrite(usize),
    /// Another program writes this setting before read N.
    ForeignBeforeRead(usize, Setting),
    /// Write N panics before anything is written.
    PanicInWrite(usize),
}

/// An in-memory host.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultyHost {
    pub(crate) settings: Vec<Setting>,
    pub(crate) faults: Vec<Fault>,
    /// The number of reads so far.
    pub(crate) reads: usize,
    /// The number of writes so far.
    pub(crate) writes: usize,
    /// The holders of the queues of the host's device.
    pub(crate) holders: Vec<QueueHolder>,
    /// The cookies of the host's objects.
    pub(crate) object_cookies: ObjectCookies,
    /// The cookies that the last call of `recall` set.
    pub(crate) recalled: ObjectCookies,
    /// The host's states as the journal grew, if the test records them.
    pub(crate) timeline: Option<Timeline>,
}

/// The states of a host, each with the length of the journal at that time.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// The directory of the journal whose length is recorded.
    pub(crate) journal_directory: PathBuf,
    /// The states, each with the journal length from which it applies.
    pub(crate) states: Vec<(u64, Vec<Setting>)>,
}

/// The host's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostError {
    pub(crate) what: String,
    pub(crate) gone: bool,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.gone { "gone" } else { "Operation not permitted (EPERM)" };
        write!(f, "{}: {why}", self.what)
    }
}

impl std::error::Error for HostError {}

impl FaultyHost {
    pub(crate) fn new(settings: &[Setting]) -> Self {
        Self { settings: settings.to_vec(), ..Self::default() }
    }

    pub(crate) fn with(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Returns a host with the same settings and no faults.
    pub(crate) fn healed(&self) -> Self {
        Self::new(&self.settings)
    }

    /// Writes a setting as another program would.
    pub(crate) fn set(&mut self, setting: &Setting) {
        if let Some(timeline) = &mut self.timeline {
            timeline.note(&self.settings);
        }
        let known = self.settings.iter_mut().find(|s| s.same_knob(setting));
        *known.expect("only existing objects are set") = setting.clone();
        if let Some(timeline) = &mut self.timeline {
            timeline.note(&self.settings);
        }
    }

    fn vanish(&mut self, object: Object) {
        self.settings.retain(|s| s.object() != object);
    }

    fn refused(what: &Setting) -> HostError {
        HostError { what: what.to_string(), gone: false }
    }

    fn check_there(&self, object: Object) -> Result<(), HostError> {
        if self.settings.iter().any(|s| s.object() == object) {
            Ok(())
        } else {
            Err(HostError { what: object.to_string(), gone: true })
        }
    }
}

impl Knobs for FaultyHost {
    type Error = HostError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, HostError> {
        let this = self.reads;
        self.reads += 1;
        for fault in self.faults.clone() {
            match fault {
                Fault::RefuseRead(n) if n == this => return Err(Self::refused(&like[0])),
                Fault::RefuseReadsFrom(n) if n <= this => return Err(Self::refused(&like[0])),
                Fault::VanishBeforeRead(n) if n == this => self.vanish(like[0].object()),
                Fault::ForeignBeforeRead(n, setting) if n == this => self.set(&setting),
                Fault::RefuseRead(_)
                | Fault::RefuseReadsFrom(_)
                | Fault::VanishBeforeRead(_)
                | Fault::ForeignBeforeRead(..)
                | Fault::RefuseWrite(_)
                | Fault::RefuseWritesFrom(_)
                | Fault::LoseAck(_)
                | Fault::WriteFirstOnly(_)
                | Fault::Round(_)
                | Fault::VanishBeforeWrite(_)
                | Fault::PanicInWrite(_) => {}
            }
        }
        if !self.recalled.is_empty() && self.recalled != self.object_cookies {
            return Err(HostError { what: like[0].object().to_string(), gone: true });
        }
        self.check_there(like[0].object())?;
        let known = |knob: &Setting| self.settings.iter().find(|s| s.same_knob(knob)).cloned();
        Ok(like.iter().map(|knob| known(knob).expect("a knob of an existing object")).collect())
    }

    fn object_cookies(&mut self, _: &Plan) -> ObjectCookies {
        self.object_cookies.clone()
    }

    fn recall(&mut self, object_cookies: &ObjectCookies) {
        self.recalled.clone_from(object_cookies);
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), HostError> {
        let this = self.writes;
        self.writes += 1;
        let mut settings = settings.to_vec();
        let mut answer = Ok(());
        for fault in self.faults.clone() {
            match fault {
                Fault::RefuseWrite(n) if n == this => return Err(Self::refused(&settings[0])),
                Fault::RefuseWritesFrom(n) if n <= this => return Err(Self::refused(&settings[0])),
                Fault::LoseAck(n) if n == this => answer = Err(Self::refused(&settings[0])),
                Fault::WriteFirstOnly(n) if n == this => {
                    settings.truncate(1);
                    answer = Err(Self::refused(&settings[0]));
                }
                Fault::Round(n) if n == this => settings = settings.iter().map(nudged).collect(),
                Fault::VanishBeforeWrite(n) if n == this => self.vanish(settings[0].object()),
                Fault::PanicInWrite(n) if n == this => panic!("the host has a bug in its code"),
                Fault::RefuseRead(_)
                | Fault::RefuseReadsFrom(_)
                | Fault::VanishBeforeRead(_)
                | Fault::ForeignBeforeRead(..)
                | Fault::RefuseWrite(_)
                | Fault::RefuseWritesFrom(_)
                | Fault::LoseAck(_)
                | Fault::WriteFirstOnly(_)
                | Fault::Round(_)
                | Fault::VanishBeforeWrite(_)
                | Fault::PanicInWrite(_) => {}
            }
        }
        self.check_there(settings[0].object())?;
        for setting in &settings {
            self.set(setting);
        }
        answer
    }

    fn queue_conflict(&mut self, changes: &[&Change]) -> Result<Option<QueueConflict>, HostError> {
        Ok(changes.iter().find_map(|change| QueueConflict::by(change, &self.holders)))
    }

    fn is_gone(error: &HostError) -> bool {
        error.gone
    }
}

/// Returns a setting of the same knob with a value that no test plans to set.
pub(crate) fn nudged(setting: &Setting) -> Setting {
    let mut setting = setting.clone();
    match &mut setting {
        Setting::Napi(_, NapiKnob::DeferHardIrqs(EmptyPolls(polls)))
        | Setting::DeviceNapis(_, DeviceNapiKnob::DeferHardIrqs(EmptyPolls(polls))) => {
            *polls += 7_777;
        }
        Setting::Napi(_, NapiKnob::GroFlushTimeout(Nanoseconds(span)))
        | Setting::Napi(_, NapiKnob::IrqSuspendTimeout(Nanoseconds(span)))
        | Setting::DeviceNapis(_, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(span))) => *span += 7_777,
        Setting::Napi(_, NapiKnob::Threaded(threading))
        | Setting::DeviceNapis(_, DeviceNapiKnob::Threaded(threading)) => {
            *threading = match *threading {
                Threading::Off | Threading::On => Threading::BusyPoll,
                Threading::BusyPoll => Threading::On,
            }
        }
        Setting::Process(ProcessKnob::Epoll(_, params)) => params.busy_poll_usecs += 7_777,
        Setting::Process(ProcessKnob::Socket(_, polling)) => polling.busy_poll_usecs += 7_777,
        Setting::Process(ProcessKnob::IoUring(_, napi)) => {
            let usecs = napi.map_or(0, |n| n.busy_poll_usecs) + 7_777;
            *napi = Some(RingNapi { busy_poll_usecs: usecs, prefer_busy_poll: true });
        }
        Setting::Nic(_, NicKnob::Channels(_, count))
        | Setting::Nic(_, NicKnob::Ring(_, count))
        | Setting::Nic(_, NicKnob::PacketSize(_, count))
        | Setting::Nic(_, NicKnob::Coalescing(_, count))
        | Setting::RxQueue(_, RxQueueKnob::Coalescing(_, count))
        | Setting::RxQueue(_, RxQueueKnob::RpsFlowCount(count)) => *count += 7_777,
        Setting::Nic(_, NicKnob::Offload(_, on))
        | Setting::Nic(_, NicKnob::PrivateFlag(_, on))
        | Setting::Irq(_, IrqKnob::Ban(on)) => *on = !*on,
        Setting::Nic(_, NicKnob::RssTable(table)) => table.push(7_777),
        Setting::Nic(_, NicKnob::RssKey(key)) => key.push(77),
        Setting::Nic(_, NicKnob::RssContext(_, there)) => *there = !*there,
        Setting::Nic(_, NicKnob::FlowRule(_, to)) => {
            *to = match *to {
                Some(SteerTo::Drop) => None,
                _ => Some(SteerTo::Drop),
            }
        }
        Setting::Process(ProcessKnob::Reuseport(_, spread)) => {
            *spread = if *spread == Spread::Hash { Spread::Foreign } else { Spread::Hash };
        }
        Setting::Nic(_, NicKnob::Qdiscs(qdiscs)) => {
            *qdiscs = match qdiscs {
                Qdiscs::Other(_) => Qdiscs::Default(Vec::new()),
                _ => Qdiscs::Other("htb".to_owned()),
            }
        }
        Setting::TxQueue(_, TxQueueKnob::XpsRxQueues(queues)) => queues.push(QueueIndex(7_777)),
        Setting::Host(HostKnob::Sysctl(_, value)) => *value += 7_777,
        Setting::Kthread(_, KthreadKnob::Scheduling(class)) => {
            *class = match *class {
                Scheduling::Fifo(77) => Scheduling::Fifo(78),
                _ => Scheduling::Fifo(77),
            };
        }
        Setting::Kthread(_, KthreadKnob::UtilClamp(clamp)) => {
            clamp.min = if clamp.min == 77 { 78 } else { 77 }
        }
        Setting::Kthread(_, KthreadKnob::Slice(slice)) => {
            let other = [Slice::LEAST, Slice::MOST].map(Slice::Own);
            *slice = if *slice == other[0] { other[1] } else { other[0] };
        }
        Setting::Irq(_, IrqKnob::Affinity(cpus))
        | Setting::Kthread(_, KthreadKnob::Affinity(cpus))
        | Setting::Process(ProcessKnob::ThreadAffinity(_, cpus))
        | Setting::RxQueue(_, RxQueueKnob::RpsCpus(cpus))
        | Setting::TxQueue(_, TxQueueKnob::XpsCpus(cpus)) => {
            let highest = cpus.iter().last().map_or(0, |cpu| cpu.0);
            cpus.insert(Cpu(highest + 77));
        }
    }
    setting
}

impl Timeline {
    pub(crate) fn of(journal_directory: PathBuf, host: &[Setting]) -> Self {
        Self { journal_directory, states: vec![(0, host.to_vec())] }
    }

    fn note(&mut self, settings: &[Setting]) {
        let length = journal_file(&self.journal_directory)
            .and_then(|journal| fs::metadata(journal).ok())
            .map_or(0, |metadata| metadata.len());
        self.states.push((length, settings.to_vec()));
    }

    /// Returns the states that the host may have had when the journal had this length.
    pub(crate) fn states_at(&self, length: u64) -> impl Iterator<Item = &[Setting]> {
        let until = self.states.iter().skip(1).map(|(from, _)| *from).chain([u64::MAX]);
        self.states
            .iter()
            .zip(until)
            .filter(move |((from, _), until)| *from <= length && length <= *until)
            .map(|((_, settings), _)| settings.as_slice())
    }
}

/// Returns the journal file of the only transaction in this directory.
pub(crate) fn journal_file(directory: &std::path::Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?;
    entries.filter_map(|e| Some(e.ok()?.path().join("journal.jsonl"))).find(|journal| journal.exists())
}
