//! A fake NIC that creates, numbers and removes RSS contexts and ntuple rules as the kernel and a driver do,
//! with their faults. Tests that the NIC is restored, whichever step of a plan fails and however it fails.

use apply::{Knobs, UndoState};
use model::{
    DeviceId, FlowMatch, FlowRule, IfIndex, Label, NetnsId, NicKnob, Plan, QueueIndex, QueueSpan, Setting,
    SteerTo, Step,
};

use crate::faulty_host::HostError;
use crate::scene::{Scene, asked, change, second};

/// The number of entries in an indirection table.
const ENTRIES: usize = 8;

/// The maximum number of ntuple rules.
const ROOM: u32 = 4;

/// A fault of the NIC at the n-th write.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The write fails.
    Refuse(usize),
    /// The write takes effect, but is reported as failed.
    LoseAck(usize),
    /// The driver rounds: a rule leads to another target, or a context has other queues.
    Round(usize),
    /// The NIC is reset before the write: all contexts and rules are lost, including earlier ones.
    Reset(usize),
    /// Another program creates a context with the same queues before the write.
    Twin(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Context {
    id: u32,
    table: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Queue(u32),
    Context(u32),
    Drop,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Placed {
    location: u32,
    flow: FlowMatch,
    action: Action,
}

#[derive(Clone, Debug, Default)]
struct Nic {
    contexts: Vec<Context>,
    rules: Vec<Placed>,
    fault: Option<Fault>,
    writes: usize,
}

fn refused(what: &Setting, why: &str) -> HostError {
    HostError { what: format!("{what}: {why}"), gone: false }
}

impl Nic {
    /// Returns the NIC's contexts and rules, without its faults.
    fn state(&self) -> (Vec<Context>, Vec<Placed>) {
        let mut rules = self.rules.clone();
        rules.sort_by_key(|rule| rule.location);
        (self.contexts.clone(), rules)
    }

    fn contexts_over(&self, queues: QueueSpan) -> Vec<u32> {
        let over = |context: &&Context| QueueSpan::of_table(&context.table) == Some(queues);
        self.contexts.iter().filter(over).map(|context| context.id).collect()
    }

    fn create(&mut self, queues: QueueSpan) {
        let id = (1..).find(|id| self.contexts.iter().all(|context| context.id != *id)).expect("a free id");
        self.contexts.push(Context { id, table: queues.table(ENTRIES) });
        self.contexts.sort_by_key(|context| context.id);
    }

    fn set_context(&mut self, setting: &Setting, queues: QueueSpan, there: bool) -> Result<(), HostError> {
        let own = self.contexts_over(queues);
        match (there, own.as_slice()) {
            (true, []) => self.create(queues),
            (true, _) | (false, []) => {}
            (false, [id]) => {
                if self.rules.iter().any(|rule| rule.action == Action::Context(*id)) {
                    return Err(refused(setting, "Device or resource busy (EBUSY)"));
                }
                self.contexts.retain(|context| context.id != *id);
            }
            (false, _) => return Err(refused(setting, "several contexts have these queues")),
        }
        Ok(())
    }

    fn set_rule(&mut self, setting: &Setting, flow: FlowMatch, to: Option<SteerTo>) -> Result<(), HostError> {
        let own = self.rules.iter().position(|rule| rule.flow == flow);
        let Some(to) = to else {
            if let Some(own) = own {
                self.rules.remove(own);
            }
            return Ok(());
        };
        let action = match to {
            SteerTo::Queue(queue) => Action::Queue(queue.0),
            SteerTo::Drop => Action::Drop,
            SteerTo::Context(queues) => {
                let id = self.contexts_over(queues).first().copied();
                Action::Context(id.ok_or_else(|| refused(setting, "there is no such context"))?)
            }
            SteerTo::Other => return Err(refused(setting, "Invalid argument (EINVAL)")),
        };
        match own {
            Some(own) => self.rules[own].action = action,
            None => {
                let free = (0..ROOM).rev().find(|at| self.rules.iter().all(|rule| rule.location != *at));
                let location = free.ok_or_else(|| refused(setting, "No space left on device (ENOSPC)"))?;
                self.rules.push(Placed { location, flow, action });
            }
        }
        Ok(())
    }

    fn to_of(&self, rule: &Placed) -> SteerTo {
        match rule.action {
            Action::Queue(queue) => SteerTo::Queue(QueueIndex(queue)),
            Action::Drop => SteerTo::Drop,
            Action::Context(id) => {
                let context = self.contexts.iter().find(|context| context.id == id);
                context.and_then(|c| QueueSpan::of_table(&c.table)).map_or(SteerTo::Other, SteerTo::Context)
            }
        }
    }
}

impl Knobs for Nic {
    type Error = HostError;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, HostError> {
        let one = |setting: &Setting| match setting {
            Setting::Nic(device, NicKnob::RssContext(queues, _)) => {
                Setting::Nic(*device, NicKnob::RssContext(*queues, !self.contexts_over(*queues).is_empty()))
            }
            Setting::Nic(device, NicKnob::FlowRule(flow, _)) => {
                let own = self.rules.iter().find(|rule| rule.flow == *flow);
                Setting::Nic(*device, NicKnob::FlowRule(*flow, own.map(|rule| self.to_of(rule))))
            }
            other => panic!("{other} is not a setting of this NIC"),
        };
        Ok(like.iter().map(one).collect())
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), HostError> {
        let this = self.writes;
        self.writes += 1;
        for setting in settings {
            match self.fault {
                Some(Fault::Refuse(n)) if n == this => return Err(refused(setting, "refused")),
                Some(Fault::Reset(n)) if n == this => {
                    self.contexts.clear();
                    self.rules.clear();
                }
                Some(Fault::Twin(n)) if n == this => self.create(WEB),
                _ => {}
            }
            let rounds = matches!(self.fault, Some(Fault::Round(n)) if n == this);
            match setting {
                Setting::Nic(_, NicKnob::RssContext(queues, there)) => {
                    // The real writer checks what it created, and removes a context that it cannot find
                    // again, so the fake fails without creating one.
                    if rounds && *there {
                        return Err(refused(setting, "the driver created another table"));
                    }
                    self.set_context(setting, *queues, *there)?;
                }
                Setting::Nic(_, NicKnob::FlowRule(flow, to)) => {
                    let to = if rounds && to.is_some() { Some(SteerTo::Drop) } else { *to };
                    self.set_rule(setting, *flow, to)?;
                }
                other => panic!("{other} is not a setting of this NIC"),
            }
        }
        match self.fault {
            Some(Fault::LoseAck(n)) if n == this => Err(refused(&settings[0], "no answer")),
            _ => Ok(()),
        }
    }

    fn is_gone(error: &HostError) -> bool {
        error.gone
    }
}

const WEB: QueueSpan = QueueSpan { first: 2, count: 2 };
const CACHE: QueueSpan = QueueSpan { first: 4, count: 4 };

fn device() -> DeviceId {
    DeviceId { netns: NetnsId(4_026_531_840), ifindex: IfIndex(2), name: Label::new("eth0") }
}

fn rule(text: &str) -> FlowRule {
    text.parse().expect("a rule")
}

/// Returns a NIC with an RSS context, a rule that refers to that context, and a rule that drops packets.
fn before() -> Nic {
    let mut nic = Nic::default();
    nic.create(QueueSpan { first: 0, count: 2 });
    for text in ["udp4 dst-port 53 context 0-1", "tcp4 dst-port 23 drop"] {
        let FlowRule { flow, to } = rule(text);
        let setting = Setting::Nic(device(), NicKnob::FlowRule(flow, Some(to)));
        nic.set_rule(&setting, flow, Some(to)).expect("room");
    }
    nic
}

/// Returns a plan that adds two RSS contexts with a rule for each, and gives a new target to the rule that
/// drops packets.
fn plan() -> Plan {
    let there = |queues| {
        change(
            Setting::Nic(device(), NicKnob::RssContext(queues, false)),
            Setting::Nic(device(), NicKnob::RssContext(queues, true)),
        )
    };
    let to = |text: &str, from| {
        let FlowRule { flow, to } = rule(text);
        change(
            Setting::Nic(device(), NicKnob::FlowRule(flow, from)),
            Setting::Nic(device(), NicKnob::FlowRule(flow, Some(to))),
        )
    };
    let steps = [
        there(WEB),
        there(CACHE),
        to("tcp4 dst-port 80 context 2-3", None),
        to("tcp4 dst-port 11211 context 4-7", None),
        to("tcp4 dst-port 23 queue 1", Some(SteerTo::Drop)),
    ];
    Plan { steps: steps.into_iter().map(|change| Step::new(vec![change])).collect() }
}

#[test]
fn contexts_and_rules_are_made_and_go_in_an_order_that_the_nic_takes() {
    let (scene, mut nic) = (Scene::new(), before());
    let held = apply::commit(plan(), &mut nic, &scene.journal, &asked(), apply::Allow::default());
    let held = held.expect("commits");
    let name = held.transaction().expect("a transaction");
    held.keep().expect("keeps");
    assert_eq!(nic.contexts.len(), 3);
    assert!(nic.rules.contains(&Placed {
        location: 0,
        flow: rule("tcp4 dst-port 11211 drop").flow,
        action: Action::Context(3)
    }));
    let undone = scene.journal.roll_back(name, &mut nic, second(1)).expect("rolls back");
    assert_eq!(undone.host(), UndoState::Restored);
    assert_eq!(nic.state(), before().state());
}

#[test]
fn a_nic_that_fails_at_any_step_in_any_way_is_as_it_was() {
    let steps = plan().steps.len();
    for fault in (0..steps).flat_map(|n| [Fault::Refuse(n), Fault::LoseAck(n), Fault::Round(n)]) {
        let scene = Scene::new();
        let mut nic = Nic { fault: Some(fault), ..before() };
        let outcome = apply::commit(plan(), &mut nic, &scene.journal, &asked(), apply::Allow::default());
        let error = outcome.map(drop).expect_err("fails");
        assert_eq!(nic.state(), before().state(), "{fault:?}: {error}");
    }
}

#[test]
fn a_nic_that_is_reset_on_the_way_keeps_nothing_of_the_plan() {
    for n in 0..plan().steps.len() {
        let scene = Scene::new();
        let mut nic = Nic { fault: Some(Fault::Reset(n)), ..before() };
        let outcome = apply::commit(plan(), &mut nic, &scene.journal, &asked(), apply::Allow::default());
        outcome.map(drop).expect_err("what was written, or was to be changed, no longer exists");
        let ours = |placed: &Placed| placed.flow != rule("tcp4 dst-port 23 drop").flow;
        assert!(nic.contexts.is_empty() && !nic.rules.iter().any(ours), "{n}: {nic:?}");
    }
}

#[test]
fn of_two_contexts_with_the_same_queues_none_is_removed() {
    let scene = Scene::new();
    let mut nic = before();
    let held = apply::commit(plan(), &mut nic, &scene.journal, &asked(), apply::Allow::default());
    let held = held.expect("commits");
    let name = held.transaction().expect("a transaction");
    held.keep().expect("keeps");
    nic.fault = Some(Fault::Twin(nic.writes));
    let refused =
        scene.journal.roll_back(name, &mut nic, second(1)).expect_err("not every change can be undone");
    let apply::RollBackError::Incomplete { undone, .. } = refused else { panic!("{refused}") };
    let stuck: Vec<String> = undone.stuck().map(|stuck| stuck.to_string()).collect();
    assert_eq!(nic.contexts_over(WEB).len(), 2, "neither of them");
    assert!(stuck.len() == 1 && stuck[0].contains("rss-context 2-3"), "{stuck:?}");
}
