//! A lab with memcached, the settings of a test, and a load during which packets are counted and the host
//! observed.

use std::sync::Mutex;

use apply::Knobs;
use bpf::delivery::{DeliveryCounter, Snapshot, between};
use libtest_mimic::Failed;
use linux::lab::{Lab, LabOptions, Memcached, MemcachedOptions};
use linux::{Kernel, Netns, Processes, observe};
use load::{Edge, Environment};
use model::{
    Arrivals, Cpu, Delivered, DeliveryParams, Host, KeySize, MemcachedWorkload, Nanoseconds, NapiId,
    NapiKnob, OfferedLoad, ProcessKnob, Setting, Threading, ValueSize, Waiting,
};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use testkit::last_cpu;

/// The niceness of both ends, so that delivery does not depend on other load on this machine.
const FIRST: i32 = -19;

/// The length of the count: enough for thousands of requests even on a busy machine.
const WINDOW: Nanoseconds = Nanoseconds::from_millis(1_000);

/// The CPU of the client; the server uses the last one.
const CLIENT: Cpu = Cpu(0);

/// A lab with memcached in it.
pub(crate) struct Stage {
    lab: Lab,
    server: Memcached,
}

/// Observations and counts under load.
pub(crate) struct Seen {
    /// The host, observed while the connections were open.
    pub(crate) host: Host,
    /// The counts of packet delivery.
    pub(crate) delivered: Delivered,
    /// Requests that were answered during the count.
    pub(crate) answered: u64,
}

impl Seen {
    /// The total counts of the server's NAPIs: packets, packets delivered by the application, and softirq
    /// polls.
    pub(crate) fn sums(&self) -> Sums {
        let ours = |id: NapiId| self.host.napi(id).is_some();
        let mut sums = Sums::default();
        for napi in self.delivered.napis.iter().filter(|napi| ours(napi.napi)) {
            sums.packets += napi.total().packets;
            sums.by_application += napi.application.packets;
            sums.softirq_polls += napi.softirq().polls;
        }
        sums
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) packets: u64,
    pub(crate) by_application: u64,
    pub(crate) softirq_polls: u64,
}

impl Stage {
    pub(crate) fn new(lab: &LabOptions, mut server: MemcachedOptions) -> Result<Self, Failed> {
        if server.cpus.is_empty() {
            server.cpus = [last_cpu()?].into_iter().collect();
        }
        let lab = Lab::new(lab)?;
        let server = lab.start_memcached(&server)?;
        let stage = Self { lab, server };
        for task in std::fs::read_dir(format!("/proc/{}/task", stage.server.process().pid))? {
            let tid =
                task?.file_name().to_string_lossy().parse().ok().and_then(rustix::process::Pid::from_raw);
            setpriority_process(tid, FIRST)?; // of this thread only
        }
        Ok(stage)
    }

    /// Writes a mode's values on every queue and every epoll, bypassing the planner, which would refuse some
    /// of them.
    pub(crate) fn set(&self, params: &DeliveryParams, threaded: Threading) -> Result<(), Failed> {
        let host = self.observe()?;
        let mut settings = Vec::new();
        for queue in
            host.devices.iter().flat_map(|device| &device.rx_queues).filter(|queue| queue.napi.is_some())
        {
            settings.push(vec![
                Setting::Napi(queue.id, NapiKnob::DeferHardIrqs(params.defer_hard_irqs)),
                Setting::Napi(queue.id, NapiKnob::GroFlushTimeout(params.gro_flush_timeout)),
                Setting::Napi(queue.id, NapiKnob::IrqSuspendTimeout(params.irq_suspend_timeout)),
            ]);
            if threaded != Threading::Off {
                settings.push(vec![Setting::Napi(queue.id, NapiKnob::Threaded(threaded))]);
            }
        }
        for epoll in host.processes.iter().flat_map(|process| &process.epolls) {
            settings.push(vec![Setting::Process(ProcessKnob::Epoll(epoll.id, params.epoll))]);
        }
        let mut kernel = Kernel::new();
        for object in settings {
            kernel.write(&object)?;
            assert_eq!(kernel.read(&object)?, object, "the written settings are in force");
        }
        Ok(())
    }

    /// The server's host, with memcached in it.
    fn observe(&self) -> Result<Host, Failed> {
        Ok(observe(self.lab.server(), &Processes::Only(vec![self.server.process().pid]))?)
    }

    /// Offers a load; counts packets and observes the host during that load.
    pub(crate) fn under(&self, load: OfferedLoad, connections: u32, depth: u32) -> Result<Seen, Failed> {
        let workload = MemcachedWorkload {
            threads: 1,
            connections_per_thread: connections,
            depth,
            arrivals: Arrivals::Exponential,
            set_share: 0.1,
            keys: 1_000,
            key_size: KeySize::Fixed(30),
            value_size: ValueSize::Fixed(200),
            preload: true,
            warmup: Nanoseconds::from_millis(200),
            window: WINDOW,
            drain: Nanoseconds::from_millis(300),
            seed: 7,
            waiting: Waiting::Spin,
        };
        let watch = Watch { stage: self, looks: Mutex::new(Looks::new(DeliveryCounter::load()?)) };
        let run = load::memcached(self.server.address(), &workload, load, &watch)?;
        let origin = model::evidence::Origin::Simulated(model::evidence::SimulatedFrom {
            scenario: String::new(),
            seed: workload.seed,
            parameters: std::collections::BTreeMap::new(),
        });
        let evidence = run.into_evidence("", origin);
        let looks = watch.looks.into_inner().map_err(|_| "an observation of the host panicked")?;
        let [opened, closed]: [_; 2] =
            looks.snapshots.try_into().map_err(|_| "an edge of the window was not observed")?;
        let host = looks.host.ok_or("the host was not observed")??;
        let delivered = between(&opened?, &closed?);
        Ok(Seen { host, delivered, answered: evidence.requests.answered })
    }
}

/// The counter's snapshots at the start and end of the window, and the host as observed at the start.
struct Looks {
    counter: DeliveryCounter,
    snapshots: Vec<Result<Snapshot, linux::KernelError>>,
    host: Option<Result<Host, Failed>>,
}

impl Looks {
    fn new(counter: DeliveryCounter) -> Self {
        Self { counter, snapshots: Vec::new(), host: None }
    }
}

struct Watch<'s> {
    stage: &'s Stage,
    looks: Mutex<Looks>,
}

impl Environment for Watch<'_> {
    fn on_thread_start(&self, _thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let client: &Netns = self.stage.lab.client();
        client.enter()?;
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(CLIENT.0 as usize);
        rustix::thread::sched_setaffinity(None, &cpus)?;
        Ok(setpriority_process(Some(gettid()), FIRST)?)
    }

    fn at_edge(&self, edge: Edge) {
        let Ok(mut looks) = self.looks.lock() else { return };
        let snapshot = looks.counter.snapshot();
        looks.snapshots.push(snapshot);
        // The client closes its connections once it has all answers, so observe them during the run.
        if edge == Edge::Opens {
            looks.host = Some(self.stage.observe());
        }
    }
}
