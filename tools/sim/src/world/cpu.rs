//! Models a CPU, which executes one segment of work after another and accounts its time.

use super::parts::Doing;
use super::state::World;
use crate::ids::CpuId;
use crate::watch::{Class, Fact, Watch};

impl<W: Watch> World<W> {
    /// Starts a segment of work.
    #[inline]
    pub(crate) fn segment(&mut self, cpu: CpuId, doing: Doing, cost: u64) {
        let cost = self.slowed(cpu, cost);
        self.cpus[cpu].begin(doing, self.now);
        self.calendar.set(cpu.source(), self.now + cost);
    }

    /// Returns the duration of work, which is longer while the sibling hyper-thread is busy.
    #[inline]
    fn slowed(&self, cpu: CpuId, cost: u64) -> u64 {
        match self.sibling(cpu) {
            Some(sibling) if self.cpus[sibling].doing != Doing::Idle => cost * self.costs.smt_permille / 1000,
            Some(_) | None => cost,
        }
    }

    /// Returns the other hyper-thread of a CPU's core; `None` without SMT.
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

    /// Accounts the part of the unaccounted time that interrupts took, including leaving the idle state.
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
