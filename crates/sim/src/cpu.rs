//! A CPU: one segment of work after another, and the account of its time.

use std::collections::VecDeque;

use crate::gro::List;
use crate::napi::Poll;
use crate::softirq::Softirq;
use crate::watch::{Class, Fact, Watch};
use crate::world::World;

/// What a CPU does until its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing.
    Idle,
    /// It leaves the idle state.
    IdleExit,
    /// It switches to its task.
    SwitchIn,
    /// It handles an interrupt.
    HardIrq,
    /// It is in a driver's poll: it enters, or packets get as far as a list.
    Poll,
    /// It brings packets of the list to their sockets, the last one this: a connection's number, or [`crate::nic::ACK`].
    Packet(u32),
    /// It brings packets to their sockets and wakes the task of the last one.
    Wake(usize),
    /// It looks into an epoll.
    Epoll,
    /// It puts a thread to sleep.
    Sleep,
    /// It works on a request.
    Request,
    /// It busy-polls a NAPI that someone else has.
    Contend,
    /// It busy-polls an empty ring.
    Spin,
    /// It loops for events alone.
    EventSpin,
}

impl Doing {
    /// On what its time goes while softirqs run outside threads.
    #[inline]
    const fn class_in_softirq(self) -> Class {
        match self {
            Self::Poll | Self::Packet(_) | Self::Wake(_) => Class::Softirq,
            _ => self.class_in_thread(),
        }
    }

    /// On what its time goes otherwise: polls outside softirqs are a thread's.
    #[inline]
    const fn class_in_thread(self) -> Class {
        match self {
            Self::Idle | Self::IdleExit => Class::Idle,
            Self::HardIrq => Class::Irq,
            Self::Request => Class::User,
            Self::Poll
            | Self::Packet(_)
            | Self::Wake(_)
            | Self::SwitchIn
            | Self::Epoll
            | Self::Sleep
            | Self::Contend
            | Self::Spin
            | Self::EventSpin => Class::System,
        }
    }

    /// Whether an interrupt's softirq may run on top: bottom halves are not disabled.
    const fn softirq_may_run(self) -> bool {
        !matches!(self, Self::HardIrq | Self::Poll | Self::Packet(_) | Self::Wake(_))
    }
}

/// A CPU.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) doing: Doing,
    /// On what its time goes meanwhile.
    class: Class,
    since: u64,
    /// Until when a segment that begins with leaving the idle state does so, and until when it handles an interrupt next.
    awake_at: u64,
    handled_at: u64,
    /// Time of the rest of the running segment that interrupts took.
    irq_time: u64,
    /// `rq->curr`; `None` is the idle task.
    pub(crate) task: Option<usize>,
    /// The others of the run queue, first in, first out.
    pub(crate) waiting: VecDeque<usize>,
    pub(crate) slice_end: u64,
    /// What an interrupt interrupted, and how much of it was left.
    pub(crate) paused: Option<(Doing, u64)>,
    /// Interrupts to handle once the idle state is left.
    irq_cost: u64,
    /// `softnet_data.poll_list`.
    pub(crate) poll_list: VecDeque<usize>,
    pub(crate) softirq: Softirq,
    pub(crate) poll: Poll,
    pub(crate) list: List,
    spent: [u64; 5],
    /// The queue that its answers leave by.
    pub(crate) transmit_queue: usize,
}

impl Cpu {
    pub(crate) fn new(transmit_queue: usize) -> Self {
        Self {
            doing: Doing::Idle,
            class: Class::Idle,
            since: 0,
            awake_at: 0,
            handled_at: 0,
            irq_time: 0,
            task: None,
            waiting: VecDeque::new(),
            slice_end: 0,
            paused: None,
            irq_cost: 0,
            poll_list: VecDeque::new(),
            softirq: Softirq::default(),
            poll: Poll::default(),
            list: List::default(),
            spent: [0; 5],
            transmit_queue,
        }
    }

    /// The CPU does this from now on.
    #[inline]
    fn begin(&mut self, doing: Doing, now: u64) {
        self.doing = doing;
        self.class = if self.softirq.inline() { doing.class_in_softirq() } else { doing.class_in_thread() };
        self.since = now;
    }

    /// Time spent so far, by class.
    pub(crate) const fn spent(&self) -> &[u64; 5] {
        &self.spent
    }
}

impl<W: Watch> World<W> {
    /// Begins a segment of work.
    #[inline]
    pub(crate) fn segment(&mut self, c: usize, doing: Doing, cost: u64) {
        let cost = self.slowed(c, cost);
        self.cpus[c].begin(doing, self.now);
        self.calendar.set(c, self.now + cost);
    }

    /// Work takes longer while the hyper-thread beside is busy.
    #[inline]
    fn slowed(&self, c: usize, cost: u64) -> u64 {
        match self.sibling(c) {
            Some(sibling) if self.cpus[sibling].doing != Doing::Idle => cost * self.costs.smt_permille / 1000,
            Some(_) | None => cost,
        }
    }

    /// The other hyper-thread of a CPU's core.
    #[inline]
    pub(crate) fn sibling(&self, c: usize) -> Option<usize> {
        if !self.topology.smt {
            return None;
        }
        let half = self.cpus.len() / 2;
        Some(if c < half { c + half } else { c - half })
    }

    /// Writes the time since the segment began, or was last accounted, to the CPU's account.
    #[inline]
    pub(crate) fn account(&mut self, c: usize) {
        let cpu = &self.cpus[c];
        if cpu.since < cpu.handled_at || cpu.irq_time > 0 {
            self.account_irqs(c);
        }
        self.spend_until(c, self.cpus[c].class, self.now);
    }

    /// Writes what of that time interrupts took, or leaving the idle state for one.
    fn account_irqs(&mut self, c: usize) {
        if self.cpus[c].since < self.cpus[c].handled_at {
            self.spend_until(c, Class::Idle, self.cpus[c].awake_at);
            self.spend_until(c, Class::Irq, self.cpus[c].handled_at);
        }
        let cpu = &mut self.cpus[c];
        let irq = cpu.irq_time.min(self.now - cpu.since);
        cpu.irq_time -= irq;
        let until = cpu.since + irq;
        self.spend_until(c, Class::Irq, until);
    }

    /// Writes time to the CPU's account, up to this moment or to now if that is sooner.
    #[inline]
    fn spend_until(&mut self, c: usize, class: Class, until: u64) {
        let cpu = &mut self.cpus[c];
        let until = until.min(self.now).max(cpu.since);
        let span = until - std::mem::replace(&mut cpu.since, until);
        cpu.spent[class as usize] += span;
        if W::ON {
            self.watch.see(self.now, Fact::Spent { cpu: c, class, span });
        }
    }

    /// The CPU has nothing to do.
    pub(crate) fn go_idle(&mut self, c: usize) {
        self.cpus[c].begin(Doing::Idle, self.now);
        self.calendar.clear(c);
    }

    /// An interrupt takes the CPU for `cost`.
    pub(crate) fn interrupt(&mut self, c: usize, cost: u64) {
        let doing = self.cpus[c].doing;
        match doing {
            Doing::Idle => {
                self.account(c);
                let idle_exit = self.slowed(c, self.costs.idle_exit);
                self.handle_irq(c, self.now + idle_exit, cost);
            }
            Doing::IdleExit => self.cpus[c].irq_cost += cost,
            _ if doing.softirq_may_run() => {
                self.account(c);
                let extra = if doing == Doing::Request { self.costs.preempted } else { 0 };
                let left = self.calendar.due(c).saturating_sub(self.now) + extra;
                self.cpus[c].paused = Some((doing, left));
                self.handle_irq(c, self.now, cost);
            }
            _ => {
                let cpu = &mut self.cpus[c];
                if self.now < cpu.handled_at {
                    cpu.handled_at += cost;
                } else {
                    cpu.irq_time += cost;
                }
                let due = self.calendar.due(c) + cost;
                self.calendar.set(c, due);
            }
        }
    }

    /// Handles an interrupt, from when the CPU is awake. Nobody sees it turn to the softirq that follows, so that this, the
    /// interrupt and the beginning of the poll are one segment.
    pub(crate) fn handle_irq(&mut self, c: usize, awake_at: u64, cost: u64) {
        let now = self.now;
        if self.softirqs_wait(c) {
            if awake_at == now {
                return self.segment(c, Doing::HardIrq, cost);
            }
            self.cpus[c].irq_cost = cost;
            self.cpus[c].begin(Doing::IdleExit, now);
            return self.calendar.set(c, awake_at);
        }
        let handled_at = awake_at + self.slowed(c, cost);
        self.now = handled_at;
        self.softirq_begin(c);
        self.now = now;
        let cpu = &mut self.cpus[c];
        (cpu.since, cpu.awake_at, cpu.handled_at) = (now, awake_at, handled_at);
    }

    /// When softirqs have run, the CPU's task takes its next step, as if it had been switched to in no time.
    pub(crate) fn pause_before_onward(&mut self, c: usize) {
        self.cpus[c].paused = Some((Doing::SwitchIn, 0));
    }

    /// Softirqs are done: back to what was interrupted.
    pub(crate) fn resume(&mut self, c: usize) {
        match self.cpus[c].paused.take() {
            Some((Doing::EventSpin, left)) => {
                let left = if self.cpu_has_events(c) { self.spin_step() } else { left };
                self.segment(c, Doing::EventSpin, left);
            }
            Some((Doing::SwitchIn, 0)) => self.perform(c),
            Some((doing, left)) => {
                self.cpus[c].begin(doing, self.now);
                self.calendar.set(c, self.now + left);
            }
            None => self.dispatch(c),
        }
    }

    /// A segment is over.
    pub(crate) fn cpu_event(&mut self, c: usize) {
        self.account(c);
        match self.cpus[c].doing {
            Doing::Idle => self.go_idle(c),
            Doing::IdleExit => match std::mem::take(&mut self.cpus[c].irq_cost) {
                0 => self.dispatch(c),
                cost => self.handle_irq(c, self.now, cost),
            },
            Doing::SwitchIn => self.perform(c),
            Doing::HardIrq => self.irq_exit(c),
            Doing::Poll => self.next_packet(c),
            Doing::Packet(packet) => self.delivered(c, packet),
            Doing::Wake(task) => self.woken(c, task),
            Doing::Epoll => self.epoll_looked(c),
            Doing::Sleep => self.fall_asleep(c),
            Doing::Request => self.request_done(c),
            Doing::Contend | Doing::Spin => self.busy_poll_turn(c),
            Doing::EventSpin => self.event_spun(c),
        }
    }
}
