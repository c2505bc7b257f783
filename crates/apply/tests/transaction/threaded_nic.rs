//! A fake NIC whose NAPIs are polled by kernel threads, with the behaviour of a real kernel and driver.
//! Threads appear late, die and are recreated with other pids. The driver rejects half of a change, rounds a
//! value, resets the device or drops the link. Tests that the whole NIC is restored, whichever step of a plan
//! for `threaded-busy` fails and however it fails.

use apply::{Knobs, UndoState};
use model::{
    Change, CpuSet, EmptyPolls, KthreadKnob, Nanoseconds, NapiKnob, Plan, RxQueue, Scheduling, Setting, Step,
    Threading,
};

use crate::faulty_host::HostError;
use crate::scene::{Scene, asked, change, cpus, queue, second};

/// The number of reads after which a requested thread exists.
const LATE_READS: usize = 2;

/// A fault of the NIC. Reads and writes are counted together, from 0.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Call N fails.
    Refuse(usize),
    /// Call N takes effect, but is reported as failed.
    LoseAck(usize),
    /// Only the first setting of a write takes effect, and the write is reported as failed.
    Half(usize),
    /// Call N is reported as successful, but sets other values.
    Round(usize),
    /// The NIC is reset before this call: its NAPIs are recreated, and their settings are lost.
    Reset(usize),
    /// Before this call, the threads die and new ones with default attributes start; the NAPIs keep their
    /// settings.
    Threads(usize),
    /// The link goes down before this call, and the NAPIs disappear with it.
    Down(usize),
}

/// A kernel thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    cpus: CpuSet,
    scheduling: Scheduling,
}

/// A NAPI with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Napi {
    threading: Threading,
    defer: u32,
    flush: Nanoseconds,
    thread: Option<Thread>,
}

#[derive(Clone, Debug)]
struct Nic {
    napis: Vec<Napi>,
    /// The remaining number of reads until the requested threads exist.
    awaited: usize,
    up: bool,
    fault: Option<Fault>,
    calls: usize,
}

/// A new thread.
fn begins() -> Thread {
    Thread { cpus: cpus(0..4), scheduling: Scheduling::Other(0) }
}

fn idle() -> Napi {
    Napi { threading: Threading::Off, defer: 0, flush: Nanoseconds(0), thread: None }
}

/// Returns a NIC with two queues. The NAPI of the second one already has a thread, which is pinned to a CPU.
fn before() -> Nic {
    let thread = Thread { cpus: cpus([3]), scheduling: Scheduling::Other(-5) };
    let second = Napi { threading: Threading::On, defer: 7, thread: Some(thread), ..idle() };
    Nic { napis: vec![idle(), second], awaited: 0, up: true, fault: None, calls: 0 }
}

/// Returns a NIC with default values, as after a reset.
fn fresh() -> Nic {
    Nic { napis: vec![idle(), idle()], ..before() }
}

impl Nic {
    fn next_fault(&mut self) -> Option<Fault> {
        let this = self.calls;
        self.calls += 1;
        let fault = self.fault.filter(|fault| match fault {
            Fault::Refuse(n)
            | Fault::LoseAck(n)
            | Fault::Half(n)
            | Fault::Round(n)
            | Fault::Reset(n)
            | Fault::Threads(n)
            | Fault::Down(n) => *n == this,
        });
        match fault {
            Some(Fault::Reset(_)) => self.napis.iter_mut().for_each(|napi| *napi = idle()),
            Some(Fault::Threads(_)) => {
                self.napis
                    .iter_mut()
                    .filter_map(|napi| napi.thread.as_mut())
                    .for_each(|thread| *thread = begins());
            }
            Some(Fault::Down(_)) => self.up = false,
            _ => {}
        }
        fault
    }

    fn napi(&mut self, queue: RxQueue) -> Result<&mut Napi, HostError> {
        match self.up {
            true => Ok(&mut self.napis[usize::try_from(queue.index.0).expect("small")]),
            // The device exists without its NAPIs; when they return, they have their settings again.
            false => Err(HostError { what: format!("{queue}: its device has no NAPI now"), gone: false }),
        }
    }

    fn value(&mut self, like: &Setting) -> Result<Setting, HostError> {
        Ok(match like {
            Setting::Napi(queue, NapiKnob::Threaded(_)) => {
                Setting::Napi(*queue, NapiKnob::Threaded(self.napi(*queue)?.threading))
            }
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(_)) => {
                Setting::Napi(*queue, NapiKnob::DeferHardIrqs(EmptyPolls(self.napi(*queue)?.defer)))
            }
            Setting::Napi(queue, NapiKnob::GroFlushTimeout(_)) => {
                Setting::Napi(*queue, NapiKnob::GroFlushTimeout(self.napi(*queue)?.flush))
            }
            Setting::Kthread(queue, KthreadKnob::Affinity(_)) => {
                let thread = self.napi(*queue)?.thread.clone();
                Setting::Kthread(*queue, KthreadKnob::Affinity(thread.unwrap_or_else(begins).cpus))
            }
            Setting::Kthread(queue, KthreadKnob::Scheduling(_)) => {
                let thread = self.napi(*queue)?.thread.clone();
                Setting::Kthread(*queue, KthreadKnob::Scheduling(thread.unwrap_or_else(begins).scheduling))
            }
            other => panic!("{other} is nothing of this NIC"),
        })
    }

    fn set(&mut self, setting: &Setting) -> Result<(), HostError> {
        let refused = |why: &str| HostError { what: format!("{setting}: {why}"), gone: false };
        let late = self.awaited > 0;
        match setting {
            Setting::Napi(queue, NapiKnob::Threaded(threading)) => {
                let napi = self.napi(*queue)?;
                if *threading == Threading::Off {
                    napi.thread = None;
                } else if napi.thread.is_none() {
                    napi.thread = Some(begins());
                    self.awaited = LATE_READS;
                }
                self.napi(*queue)?.threading = *threading;
            }
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(polls)) => self.napi(*queue)?.defer = polls.0,
            Setting::Napi(queue, NapiKnob::GroFlushTimeout(span)) => self.napi(*queue)?.flush = *span,
            Setting::Kthread(queue, KthreadKnob::Affinity(cpus)) => {
                let thread = self.napi(*queue)?.thread.as_mut().filter(|_| !late);
                thread.ok_or_else(|| refused("there is no such thread"))?.cpus.clone_from(cpus);
            }
            Setting::Kthread(queue, KthreadKnob::Scheduling(scheduling)) => {
                let thread = self.napi(*queue)?.thread.as_mut().filter(|_| !late);
                thread.ok_or_else(|| refused("there is no such thread"))?.scheduling = *scheduling;
            }
            other => panic!("{other} is nothing of this NIC"),
        }
        Ok(())
    }
}

fn rounded(setting: &Setting) -> Setting {
    match setting.clone() {
        // No driver busy-polls unless it is requested. Some drivers poll by thread if busy polling was
        // requested.
        Setting::Napi(queue, NapiKnob::Threaded(Threading::BusyPoll)) => {
            Setting::Napi(queue, NapiKnob::Threaded(Threading::On))
        }
        Setting::Napi(queue, NapiKnob::Threaded(_)) => {
            Setting::Napi(queue, NapiKnob::Threaded(Threading::BusyPoll))
        }
        Setting::Kthread(queue, KthreadKnob::Affinity(_)) => {
            Setting::Kthread(queue, KthreadKnob::Affinity(cpus([0])))
        }
        Setting::Kthread(queue, KthreadKnob::Scheduling(_)) => {
            Setting::Kthread(queue, KthreadKnob::Scheduling(Scheduling::Fifo(1)))
        }
        Setting::Napi(queue, NapiKnob::DeferHardIrqs(polls)) => {
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(polls.0 + 1)))
        }
        Setting::Napi(queue, NapiKnob::GroFlushTimeout(span)) => {
            Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(span.0 + 1)))
        }
        other => other,
    }
}

impl Knobs for Nic {
    type Error = HostError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, HostError> {
        self.awaited = self.awaited.saturating_sub(1);
        if matches!(self.next_fault(), Some(Fault::Refuse(_))) {
            return Err(HostError { what: like[0].to_string(), gone: false });
        }
        like.iter().map(|setting| self.value(setting)).collect()
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), HostError> {
        let fault = self.next_fault();
        let failed = || HostError { what: format!("{}: refused", settings[0]), gone: false };
        if matches!(fault, Some(Fault::Refuse(_))) {
            return Err(failed());
        }
        // Like the real writer of thread settings, waits until the thread exists.
        if settings.iter().any(|one| {
            matches!(
                one,
                Setting::Kthread(_, KthreadKnob::Affinity(..))
                    | Setting::Kthread(_, KthreadKnob::Scheduling(..))
            )
        }) {
            self.awaited = 0;
        }
        for setting in settings {
            let rounds = matches!(fault, Some(Fault::Round(_)));
            self.set(&if rounds { rounded(setting) } else { setting.clone() })?;
            if matches!(fault, Some(Fault::Half(_))) {
                return Err(failed());
            }
        }
        if matches!(fault, Some(Fault::LoseAck(_))) { Err(failed()) } else { Ok(()) }
    }

    fn is_gone(error: &HostError) -> bool {
        error.gone
    }
}

/// Returns a plan for a busy-polling thread on each of the NIC's two queues, each with its own CPU and
/// with the scheduling class FIFO.
fn plan(nic: &Nic) -> Plan {
    let mut now = Nic { fault: None, ..nic.clone() };
    let mut to = |setting: Setting| change(now.value(&setting).expect("is up"), setting);
    let mut steps: Vec<Vec<Change>> = Vec::new();
    for index in 0..2 {
        let queue = queue(index);
        steps.push(vec![
            to(Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100)))),
            to(Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds::from_micros(20)))),
            to(Setting::Napi(queue, NapiKnob::Threaded(Threading::BusyPoll))),
        ]);
        steps.push(vec![
            to(Setting::Kthread(queue, KthreadKnob::Affinity(cpus([index + 1])))),
            to(Setting::Kthread(queue, KthreadKnob::Scheduling(Scheduling::Fifo(10)))),
        ]);
    }
    Plan { steps: steps.into_iter().map(Step::new).collect() }
}

/// Returns the number of reads and writes in a fault-free commit.
fn calls(nic: &Nic) -> usize {
    let (scene, mut nic) = (Scene::new(), nic.clone());
    let plan = plan(&nic);
    let held = apply::commit(plan, &mut nic, &scene.journal, &asked(), apply::Allow::default());
    held.expect("commits").keep().expect("keeps");
    nic.calls
}

fn are_busy(nic: &Nic) -> bool {
    let own = |(index, napi): (u32, &Napi)| {
        let thread = Thread { cpus: cpus([index + 1]), scheduling: Scheduling::Fifo(10) };
        napi.threading == Threading::BusyPoll && napi.thread.as_ref() == Some(&thread) && napi.defer == 100
    };
    (0..).zip(&nic.napis).all(own)
}

#[test]
fn threads_that_appear_late_are_placed_and_the_nic_goes_back_whole() {
    let (scene, mut nic) = (Scene::new(), before());
    let plan = plan(&nic);
    let held = apply::commit(plan, &mut nic, &scene.journal, &asked(), apply::Allow::default());
    let held = held.expect("commits");
    let name = held.transaction().expect("a transaction");
    held.keep().expect("keeps");
    assert!(are_busy(&nic), "{nic:?}");
    let undone = scene.journal.roll_back(name, &mut nic, second(1)).expect("rolls back");
    assert_eq!(undone.host(), UndoState::Restored);
    assert_eq!(nic.napis, before().napis, "also the thread that another program had placed");
}

#[test]
fn a_driver_that_refuses_half_or_rounds_at_any_step_leaves_the_nic_as_it_was() {
    for n in 0..calls(&before()) {
        for fault in [Fault::Refuse(n), Fault::LoseAck(n), Fault::Half(n), Fault::Round(n)] {
            let scene = Scene::new();
            let mut nic = Nic { fault: Some(fault), ..before() };
            let plan = plan(&nic);
            let outcome = apply::commit(plan, &mut nic, &scene.journal, &asked(), apply::Allow::default());
            let outcome = outcome.map(|held| held.keep().expect("keeps"));
            match (fault, outcome) {
                // These faults have no effect on a read: losing an acknowledgement, rejecting half of a
                // write, and rounding.
                (Fault::LoseAck(_) | Fault::Half(_) | Fault::Round(_), Ok(())) => {
                    assert!(are_busy(&nic), "{fault:?}: {nic:?}");
                }
                (_, Ok(())) => panic!("{fault:?}: a refused change is in force: {nic:?}"),
                (_, Err(error)) => assert_eq!(nic.napis, before().napis, "{fault:?}: {error}"),
            }
        }
    }
}

#[test]
fn a_nic_that_resets_itself_meanwhile_is_busy_or_as_a_reset_leaves_it() {
    let mut failed = 0;
    let all = calls(&fresh());
    for n in 0..all {
        let scene = Scene::new();
        let mut nic = Nic { fault: Some(Fault::Reset(n)), ..fresh() };
        let plan = plan(&nic);
        let steps = plan.steps.len();
        let outcome = apply::commit(plan, &mut nic, &scene.journal, &asked(), apply::Allow::default());
        match outcome.map(|held| held.keep().expect("keeps")) {
            // A reset during the final check may follow the read of the affected queue; the commit then does
            // not notice it.
            Ok(()) if n < all - steps => assert!(are_busy(&nic), "call {n}: {nic:?}"),
            Ok(()) => {}
            Err(error) => {
                failed += 1;
                assert_eq!(nic.napis, fresh().napis, "call {n}: {error}");
            }
        }
    }
    assert!(failed > 0, "the test requires that some resets lose what was written");
}

#[test]
fn threads_that_die_meanwhile_are_placed_again_or_all_is_as_it_was() {
    let all = calls(&fresh());
    for n in 0..all {
        let scene = Scene::new();
        let mut nic = Nic { fault: Some(Fault::Threads(n)), ..fresh() };
        let plan = plan(&nic);
        let steps = plan.steps.len();
        let outcome = apply::commit(plan, &mut nic, &scene.journal, &asked(), apply::Allow::default());
        match outcome.map(|held| held.keep().expect("keeps")) {
            Ok(()) if n < all - steps => assert!(are_busy(&nic), "call {n}: {nic:?}"),
            Ok(()) => {}
            Err(error) => assert_eq!(nic.napis, fresh().napis, "call {n}: {error}"),
        }
    }
}

/// While the link is down, there is no NAPI to restore. The NAPIs return with the link and have their
/// settings, which can then be undone.
#[test]
fn a_link_that_drops_meanwhile_leaves_what_is_named_until_it_is_back() {
    for n in 0..calls(&before()) {
        let scene = Scene::new();
        let mut nic = Nic { fault: Some(Fault::Down(n)), ..before() };
        let plan = plan(&nic);
        let outcome = apply::commit(plan, &mut nic, &scene.journal, &asked(), apply::Allow::default());
        let Err(error) = outcome.map(|held| held.keep().expect("keeps")) else {
            panic!("call {n}: the NIC was not read while it was down");
        };
        let changed = nic.napis != before().napis;
        // An unreadable setting may be reported as not restored although it is, but never the reverse.
        assert!(!changed || matches!(error.host, UndoState::NotRestored(_)), "call {n}: {error}");
        nic.up = true;
        for transaction in scene.journal.history().expect("reads").transactions {
            if transaction.standing().is_live() {
                let undone = scene.journal.roll_back(transaction.name(), &mut nic, second(1));
                undone.unwrap_or_else(|error| panic!("call {n}: {error}"));
            }
        }
        assert_eq!(nic.napis, before().napis, "call {n}");
    }
}
