//! A CPU: executes one segment of work after another, and accounts its time.

use std::collections::VecDeque;

use super::World;
use super::gro::List;
use super::napi::Poll;
use super::nic::Packet;
use super::softirq::Softirq;
use crate::ids::{CpuId, NapiId, QueueId, TaskId, ThreadId};
use crate::watch::{Class, Fact, Watch};

/// The activity of a CPU until its next event.
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
    /// In a driver's poll: at its start, or while packets are added to a list.
    Poll,
    /// Delivers packets of the list to their sockets; this is the last one.
    Packet(Packet),
    /// Delivers packets to their sockets and wakes the thread of the last one.
    Wake(ThreadId),
    /// Checks an epoll.
    Epoll,
    /// Puts a thread to sleep.
    Sleep,
    /// Processes a request.
    Request,
    /// Busy-polls a NAPI that another task is polling.
    Contend,
    /// Busy-polls an empty ring.
    Spin,
    /// Loops only for events.
    EventSpin,
}

impl Doing {
    /// How its time is accounted while softirqs run outside threads.
    #[inline]
    const fn class_in_softirq(self) -> Class {
        match self {
            Self::Poll | Self::Packet(_) | Self::Wake(_) => Class::Softirq,
            _ => self.class_in_thread(),
        }
    }

    /// How its time is accounted otherwise: polls outside softirqs belong to a thread.
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

    /// Whether an interrupt's softirq may run on top, that is, bottom halves are enabled.
    const fn softirq_may_run(self) -> bool {
        !matches!(self, Self::HardIrq | Self::Poll | Self::Packet(_) | Self::Wake(_))
    }
}

/// A CPU.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) doing: Doing,
    /// How its time is currently accounted.
    class: Class,
    since: u64,
    /// If a segment begins with leaving the idle state: the end of that, and the end of the interrupt
    /// handling that follows.
    awake_at: u64,
    handled_at: u64,
    /// The time that interrupts took from the running segment.
    irq_time: u64,
    /// `rq->curr`; `None` is the idle task.
    pub(crate) task: Option<TaskId>,
    /// The other tasks of the run queue, first in, first out.
    pub(crate) waiting: VecDeque<TaskId>,
    pub(crate) slice_end: u64,
    /// The interrupted activity, and how much of it is left.
    pub(crate) paused: Option<(Doing, u64)>,
    /// The cost of interrupts to handle after leaving the idle state.
    irq_cost: u64,
    /// `softnet_data.poll_list`.
    pub(crate) poll_list: VecDeque<NapiId>,
    pub(crate) softirq: Softirq,
    pub(crate) poll: Poll,
    pub(crate) list: List,
    spent: [u64; 5],
    /// The queue that transmits its answers.
    pub(crate) transmit_queue: QueueId,
}

impl Cpu {
    pub(crate) fn new(transmit_queue: QueueId) -> Self {
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

    /// Starts an activity.
    #[inline]
    fn begin(&mut self, doing: Doing, now: u64) {
        self.doing = doing;
        self.class = if self.softirq.inline() { doing.class_in_softirq() } else { doing.class_in_thread() };
        self.since = now;
    }

    /// Accounted time, by class.
    pub(crate) const fn spent(&self) -> &[u64; 5] {
        &self.spent
    }
}

impl<W: Watch> World<W> {
    /// Starts a segment of work.
    #[inline]
    pub(crate) fn segment(&mut self, cpu: CpuId, doing: Doing, cost: u64) {
        let cost = self.slowed(cpu, cost);
        self.cpus[cpu].begin(doing, self.now);
        self.calendar.set(cpu.source(), self.now + cost);
    }

    /// The duration of work, which is longer while the sibling hyper-thread is busy.
    #[inline]
    fn slowed(&self, cpu: CpuId, cost: u64) -> u64 {
        match self.sibling(cpu) {
            Some(sibling) if self.cpus[sibling].doing != Doing::Idle => cost * self.costs.smt_permille / 1000,
            Some(_) | None => cost,
        }
    }

    /// The other hyper-thread of a CPU's core.
    #[inline]
    pub(crate) fn sibling(&self, cpu: CpuId) -> Option<CpuId> {
        if !self.topology.smt {
            return None;
        }
        let half = self.cpus.len() / 2;
        let number = cpu.index();
        Some(CpuId::new(if number < half { number + half } else { number - half }))
    }

    /// Accounts the time since the segment began, or since it was last accounted.
    #[inline]
    pub(crate) fn account(&mut self, cpu: CpuId) {
        let state = &self.cpus[cpu];
        if state.since < state.handled_at || state.irq_time > 0 {
            self.account_irqs(cpu);
        }
        self.spend_until(cpu, self.cpus[cpu].class, self.now);
    }

    /// Accounts the part of that time that interrupts took, including leaving the idle state.
    fn account_irqs(&mut self, cpu: CpuId) {
        if self.cpus[cpu].since < self.cpus[cpu].handled_at {
            self.spend_until(cpu, Class::Idle, self.cpus[cpu].awake_at);
            self.spend_until(cpu, Class::Irq, self.cpus[cpu].handled_at);
        }
        let state = &mut self.cpus[cpu];
        let irq = state.irq_time.min(self.now - state.since);
        state.irq_time -= irq;
        let until = state.since + irq;
        self.spend_until(cpu, Class::Irq, until);
    }

    /// Accounts time up to `until`, or to now if that is sooner.
    #[inline]
    fn spend_until(&mut self, cpu: CpuId, class: Class, until: u64) {
        let state = &mut self.cpus[cpu];
        let until = until.min(self.now).max(state.since);
        let span = until - std::mem::replace(&mut state.since, until);
        state.spent[class as usize] += span;
        if W::ON {
            self.watch.see(self.now, Fact::Spent { cpu, class, span });
        }
    }

    /// Makes the CPU idle.
    pub(crate) fn go_idle(&mut self, cpu: CpuId) {
        self.cpus[cpu].begin(Doing::Idle, self.now);
        self.calendar.clear(cpu.source());
    }

    /// Interrupts the CPU for `cost`.
    pub(crate) fn interrupt(&mut self, cpu: CpuId, cost: u64) {
        let doing = self.cpus[cpu].doing;
        match doing {
            Doing::Idle => {
                self.account(cpu);
                let idle_exit = self.slowed(cpu, self.costs.idle_exit);
                self.handle_irq(cpu, self.now + idle_exit, cost);
            }
            Doing::IdleExit => self.cpus[cpu].irq_cost += cost,
            _ if doing.softirq_may_run() => {
                self.account(cpu);
                let extra = if doing == Doing::Request { self.costs.preempted } else { 0 };
                let left = self.calendar.due(cpu.source()).saturating_sub(self.now) + extra;
                self.cpus[cpu].paused = Some((doing, left));
                self.handle_irq(cpu, self.now, cost);
            }
            _ => {
                let state = &mut self.cpus[cpu];
                if self.now < state.handled_at {
                    state.handled_at += cost;
                } else {
                    state.irq_time += cost;
                }
                let due = self.calendar.due(cpu.source()) + cost;
                self.calendar.set(cpu.source(), due);
            }
        }
    }

    /// Handles an interrupt once the CPU is awake. No event falls between the wake-up, the interrupt and the
    /// start of the poll, so they form one segment.
    pub(crate) fn handle_irq(&mut self, cpu: CpuId, awake_at: u64, cost: u64) {
        let now = self.now;
        if self.softirqs_wait(cpu) {
            if awake_at == now {
                return self.segment(cpu, Doing::HardIrq, cost);
            }
            self.cpus[cpu].irq_cost = cost;
            self.cpus[cpu].begin(Doing::IdleExit, now);
            return self.calendar.set(cpu.source(), awake_at);
        }
        let handled_at = awake_at + self.slowed(cpu, cost);
        self.now = handled_at;
        self.softirq_begin(cpu);
        self.now = now;
        let state = &mut self.cpus[cpu];
        (state.since, state.awake_at, state.handled_at) = (now, awake_at, handled_at);
    }

    /// After softirqs have run, lets the CPU's task take its next step, as if it had been switched in at no
    /// cost.
    pub(crate) fn pause_before_onward(&mut self, cpu: CpuId) {
        self.cpus[cpu].paused = Some((Doing::SwitchIn, 0));
    }

    /// Resumes the interrupted activity after softirqs.
    pub(crate) fn resume(&mut self, cpu: CpuId) {
        match self.cpus[cpu].paused.take() {
            Some((Doing::EventSpin, left)) => {
                let left = if self.cpu_has_events(cpu) { self.spin_step() } else { left };
                self.segment(cpu, Doing::EventSpin, left);
            }
            Some((Doing::SwitchIn, 0)) => self.perform(cpu),
            Some((doing, left)) => {
                self.cpus[cpu].begin(doing, self.now);
                self.calendar.set(cpu.source(), self.now + left);
            }
            None => self.dispatch(cpu),
        }
    }

    /// Handles the end of a segment.
    pub(crate) fn cpu_event(&mut self, cpu: CpuId) {
        self.account(cpu);
        match self.cpus[cpu].doing {
            Doing::Idle => self.go_idle(cpu),
            Doing::IdleExit => match std::mem::take(&mut self.cpus[cpu].irq_cost) {
                0 => self.dispatch(cpu),
                cost => self.handle_irq(cpu, self.now, cost),
            },
            Doing::SwitchIn => self.perform(cpu),
            Doing::HardIrq => self.irq_exit(cpu),
            Doing::Poll => self.next_packet(cpu),
            Doing::Packet(packet) => self.delivered(cpu, packet),
            Doing::Wake(thread) => self.woken(cpu, thread),
            Doing::Epoll => self.epoll_looked(cpu),
            Doing::Sleep => self.fall_asleep(cpu),
            Doing::Request => self.request_done(cpu),
            Doing::Contend | Doing::Spin => self.busy_poll_turn(cpu),
            Doing::EventSpin => self.event_spun(cpu),
        }
    }
}
