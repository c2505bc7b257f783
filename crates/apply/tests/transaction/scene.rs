//! A fake host, a plan for it, and a journal that is removed at the end of the test.

use std::path::Path;
use std::time::Duration;

use apply::{Allow, CommitError, HeldPlan, Journal, Moment, TransactionName, TransactionOrigin};
use model::{
    Change, Cpu, CpuSet, DeviceId, EmptyPolls, EpollId, EpollParams, Fd, IfIndex, IrqKnob, IrqNumber, Label,
    Nanoseconds, NapiKnob, NetnsId, Pid, Plan, ProcessId, ProcessKnob, QueueIndex, Reason, RxQueue, Setting,
    Step, ThreadId,
};
use tempfile::TempDir;

use crate::faulty_host::{FaultyHost, HostError};

/// A journal in a temporary directory.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) journal: Journal,
    _directory: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        // Use a directory in memory if possible: on a disk, thousands of transactions would each wait for it.
        let base = [Path::new("/dev/shm"), Path::new(env!("CARGO_TARGET_TMPDIR"))];
        let base = base.into_iter().find(|d| d.is_dir()).expect("a directory for the scene");
        let directory = TempDir::with_prefix_in("netpolicy-apply-", base).expect("a directory");
        let journal = Journal::new(directory.path().join("journal"), "this-boot");
        Self { journal: journal.waiting(Duration::from_millis(60)), _directory: directory }
    }

    /// Returns the journal in the same directory, as seen after a reboot.
    pub(crate) fn after_reboot(&self) -> Journal {
        Journal::new(self.journal.directory(), "next-boot")
    }

    pub(crate) fn commit<'k>(
        &self,
        plan: Plan,
        host: &'k mut FaultyHost,
    ) -> Result<HeldPlan<'k, FaultyHost>, CommitError<HostError>> {
        apply::commit(plan, host, &self.journal, &asked(), Allow::default())
    }

    /// Commits and keeps a plan, and returns the transaction's name.
    pub(crate) fn keep(&self, plan: Plan, host: &mut FaultyHost) -> TransactionName {
        let held = self.commit(plan, host).expect("commits");
        let name = held.transaction().expect("a transaction");
        held.keep().expect("keeps");
        name
    }
}

/// Returns the moment this many seconds after the fixed time of the test's requests.
pub(crate) fn second(second: u64) -> Moment {
    let unix_micros = 1_795_233_900_123_456 + second * 1_000_000;
    Moment { unix_micros, since_boot: Nanoseconds((1_000 + second) * 1_000_000_000) }
}

pub(crate) fn asked() -> TransactionOrigin {
    TransactionOrigin {
        at: second(0),
        command: "netpolicy set device eth0 latency".to_owned(),
        kernel_release: "6.18.44".to_owned(),
        netpolicy: "0.1.0".to_owned(),
        deadline: None,
    }
}

pub(crate) fn queue(index: u32) -> RxQueue {
    let device = DeviceId { netns: NetnsId(4_026_531_840), ifindex: IfIndex(2), name: Label::new("eth0") };
    RxQueue { device, index: QueueIndex(index) }
}

pub(crate) fn process() -> ProcessId {
    ProcessId { pid: Pid(812), started: 4_711, comm: Label::new("memcached") }
}

pub(crate) fn epoll(fd: u32) -> EpollId {
    EpollId { process: process(), fd: Fd(fd) }
}

pub(crate) fn thread() -> ThreadId {
    ThreadId { process: process(), tid: Pid(815), started: 4_712, comm: Label::new("mc-worker") }
}

pub(crate) fn cpus(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().map(Cpu).collect()
}

pub(crate) fn change(from: Setting, to: Setting) -> Change {
    Change::new(from, to, Reason::new("short response times", "latency, napi.rst \"IRQ suspension\""))
}

pub(crate) fn gro(index: u32, from_us: u64, to_us: u64) -> Change {
    let span = |us| Setting::Napi(queue(index), NapiKnob::GroFlushTimeout(Nanoseconds::from_micros(us)));
    change(span(from_us), span(to_us))
}

fn queue_step(index: u32) -> Step {
    let queue = queue(index);
    Step::new(vec![
        change(
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(0))),
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100))),
        ),
        gro(index, 0, 20),
        change(
            Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds(0))),
            Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds::from_millis(20))),
        ),
    ])
}

/// Returns a small version of the `latency` plan for memcached: two queues, one epoll, one thread and one
/// interrupt.
pub(crate) fn latency_plan() -> Plan {
    let wanted =
        EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };
    let irq = IrqNumber(30);
    Plan {
        steps: vec![
            Step::new(vec![change(
                Setting::Irq(irq, IrqKnob::Affinity(cpus(0..4))),
                Setting::Irq(irq, IrqKnob::Affinity(cpus([1]))),
            )]),
            queue_step(0),
            queue_step(1),
            Step::new(vec![change(
                Setting::Process(ProcessKnob::Epoll(epoll(7), EpollParams::default())),
                Setting::Process(ProcessKnob::Epoll(epoll(7), wanted)),
            )]),
            Step::new(vec![change(
                Setting::Process(ProcessKnob::ThreadAffinity(thread(), cpus(0..4))),
                Setting::Process(ProcessKnob::ThreadAffinity(thread(), cpus([1]))),
            )]),
        ],
    }
}

/// Returns the host settings that a plan expects, and one queue that is not in the plan.
pub(crate) fn host_for(plan: &Plan) -> Vec<Setting> {
    let mut settings = vec![Setting::Napi(queue(9), NapiKnob::GroFlushTimeout(Nanoseconds(5)))];
    for change in plan.changes() {
        if !settings.iter().any(|s| s.same_knob(change.from())) {
            settings.push(change.from().clone());
        }
    }
    settings
}

/// Returns the host settings while a plan is in force.
pub(crate) fn host_after(plan: &Plan, before: &[Setting]) -> Vec<Setting> {
    let mut host = FaultyHost::new(before);
    plan.changes().for_each(|change| host.set(change.to()));
    host.settings
}
