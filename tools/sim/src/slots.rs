//! Numbers the event sources and the tasks.

use crate::ids::{ClientQueueId, ClientThreadId, CpuId, NapiId, QueueId, SourceId, TaskId, ThreadId};
use crate::scenario::Scenario;

/// The first number of each kind of event source and task, in ascending order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    // Sources of events. The CPUs come first.
    nics_from: usize,
    timers_from: usize,
    tick: usize,
    client_queues_from: usize,
    client_threads_from: usize,
    sources: usize,
    // Tasks. The application's threads come first.
    kthreads_from: usize,
    ksoftirqds_from: usize,
    housekeepers_from: usize,
}

/// The owner of an event source.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Cpu(CpuId),
    Nic(QueueId),
    Timer(NapiId),
    Tick,
    ClientQueue(ClientQueueId),
    ClientThread(ClientThreadId),
}

impl Slots {
    /// Numbers the event sources and tasks of a scenario's machine.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let (cpus, queues) = (scenario.hardware.cpus as usize, scenario.hardware.queues as usize);
        let threads = scenario.application.threads as usize;
        let client_threads = scenario.clients.threads as usize;
        let client_queues = if client_threads > 0 { scenario.clients.queues as usize } else { 0 };
        let tick = cpus + 2 * queues;
        Self {
            nics_from: cpus,
            timers_from: cpus + queues,
            tick,
            client_queues_from: tick + 1,
            client_threads_from: tick + 1 + client_queues,
            sources: tick + 1 + client_queues + client_threads,
            kthreads_from: threads,
            ksoftirqds_from: threads + queues,
            housekeepers_from: threads + queues + cpus,
        }
    }

    pub(crate) const fn sources(self) -> usize {
        self.sources
    }

    #[inline]
    pub(crate) const fn nic(self, queue: QueueId) -> SourceId {
        SourceId::new(self.nics_from + queue.index())
    }

    #[inline]
    pub(crate) const fn timer(self, napi: NapiId) -> SourceId {
        SourceId::new(self.timers_from + napi.index())
    }

    pub(crate) const fn tick(self) -> SourceId {
        SourceId::new(self.tick)
    }

    pub(crate) const fn client_queue(self, queue: ClientQueueId) -> SourceId {
        SourceId::new(self.client_queues_from + queue.index())
    }

    pub(crate) const fn client_thread(self, thread: ClientThreadId) -> SourceId {
        SourceId::new(self.client_threads_from + thread.index())
    }

    #[inline]
    pub(crate) const fn owner(self, source: SourceId) -> Owner {
        let number = source.index();
        if number < self.nics_from {
            Owner::Cpu(CpuId::new(number))
        } else if number < self.timers_from {
            Owner::Nic(QueueId::new(number - self.nics_from))
        } else if number < self.tick {
            Owner::Timer(NapiId::new(number - self.timers_from))
        } else if number == self.tick {
            Owner::Tick
        } else if number < self.client_threads_from {
            Owner::ClientQueue(ClientQueueId::new(number - self.client_queues_from))
        } else {
            Owner::ClientThread(ClientThreadId::new(number - self.client_threads_from))
        }
    }

    #[inline]
    pub(crate) const fn kthread(self, napi: NapiId) -> TaskId {
        TaskId::new(self.kthreads_from + napi.index())
    }

    pub(crate) const fn ksoftirqd(self, cpu: CpuId) -> TaskId {
        TaskId::new(self.ksoftirqds_from + cpu.index())
    }

    pub(crate) const fn housekeeper(self, cpu: CpuId) -> TaskId {
        TaskId::new(self.housekeepers_from + cpu.index())
    }

    /// Returns the application's thread that this task is; `None` for other tasks.
    #[inline]
    pub(crate) const fn thread_of(self, task: TaskId) -> Option<ThreadId> {
        if task.index() < self.kthreads_from { Some(ThreadId::new(task.index())) } else { None }
    }

    /// Returns the NAPI whose thread this task is; `None` for other tasks.
    #[inline]
    pub(crate) const fn napi_of(self, task: TaskId) -> Option<NapiId> {
        if task.index() >= self.kthreads_from && task.index() < self.ksoftirqds_from {
            Some(NapiId::new(task.index() - self.kthreads_from))
        } else {
            None
        }
    }
}

impl CpuId {
    /// The CPU's source of events.
    #[inline]
    pub(crate) const fn source(self) -> SourceId {
        SourceId::new(self.index())
    }
}

impl ThreadId {
    /// The thread's task.
    #[inline]
    pub(crate) const fn task(self) -> TaskId {
        TaskId::new(self.index())
    }
}
