//! Creates two network namespaces and a veth between them with `ip` and `ethtool`, so that the tested code
//! does not create its own environment.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use apply::Knobs;
use libtest_mimic::Failed;
use linux::{Kernel, Netns, Processes, observe};
use model::host::Device;
use model::nic::{ChannelKind, CoalesceParam, RingKind};
use model::{
    CpuSet, EmptyPolls, Host, IrqKnob, Nanoseconds, NapiId, NapiKnob, NicKnob, Offload, RxQueueKnob, Setting,
    Threading, TxQueue, TxQueueKnob,
};
use netlink::netdev::{NapiChange, Netdev};

static MADE: AtomicU32 = AtomicU32::new(0);

/// A wire, by default a veth between two namespaces. The near end of a veth, `near0`, has NAPIs, because GRO
/// is on there; at its far end, `far0`, TSO is off.
#[derive(Debug)]
pub struct Wire {
    pub near: String,
    pub far: String,
    /// The original names of both ends if they are existing NICs, which get these names back.
    lent: Option<[String; 2]>,
    /// The number of the simulated NIC at the near end, if there is one.
    simulated: Option<u32>,
    /// The former settings of an existing NIC at the near end, and of its interrupts.
    before: Vec<Setting>,
}

impl Wire {
    fn unmade(lent: Option<[String; 2]>) -> Self {
        let unique = format!("np-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        Self {
            near: format!("{unique}-near"),
            far: format!("{unique}-far"),
            lent,
            simulated: None,
            before: Vec::new(),
        }
    }

    pub fn new(queues: u32) -> Result<Self, Failed> {
        let wire = Self::unmade(None);
        run(&format!("ip netns add {}", wire.near))?;
        run(&format!("ip netns add {}", wire.far))?;
        wire.connect(queues)?;
        Ok(wire)
    }

    /// Creates the veth, or recreates it after it was removed.
    pub fn connect(&self, queues: u32) -> Result<(), Failed> {
        let (near, far) = (&self.near, &self.far);
        let count = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!("ip -n {near} link add near0 {count} type veth peer name far0 netns {far} {count}"))?;
        run(&format!("ip -n {near} addr add 192.0.2.1/24 dev near0"))?;
        run(&format!("ip -n {far} addr add 192.0.2.2/24 dev far0"))?;
        run(&format!("ip netns exec {far} ethtool -K far0 tso off"))?;
        run(&format!("ip netns exec {near} ethtool -K near0 gro on"))?;
        run(&format!("ip -n {near} link set near0 up"))?;
        run(&format!("ip -n {far} link set far0 up"))?;
        Ok(())
    }

    /// Creates a wire from two connected NICs of a guest: `virtio1` or `igb1` is the near end. Dropping the
    /// wire restores their settings, even if the test fails.
    pub fn between(nics: &str) -> Result<Self, Failed> {
        let lent = [format!("{nics}1"), format!("{nics}0")];
        let mut wire = Self::unmade(Some(lent.clone()));
        for (netns, nic, end, address) in
            [(&wire.near, &lent[0], "near0", "192.0.2.1/24"), (&wire.far, &lent[1], "far0", "192.0.2.2/24")]
        {
            run(&format!("ip netns add {netns}"))?;
            run(&format!("ip link set {nic} netns {netns} name {end}"))?;
            run(&format!("ip -n {netns} addr add {address} dev {end}"))?;
            run(&format!("ip -n {netns} link set {end} up"))?;
        }
        wire.before = wire.settings()?;
        Ok(wire)
    }

    /// Returns those settings of a NIC and its interrupts that tests change, as far as the NIC has them, in
    /// the order in which they are restored.
    fn settings(&self) -> Result<Vec<Setting>, Failed> {
        let host = self.observe()?;
        let near = host.device_named("near0").ok_or("near0 was not observed")?;
        let nic = |knob| Setting::Nic(near.id, knob);
        let mut like = vec![nic(NicKnob::Channels(ChannelKind::Combined, 0))];
        like.extend([RingKind::Rx, RingKind::Tx].map(|kind| nic(NicKnob::Ring(kind, 0))));
        like.extend(CoalesceParam::ALL.iter().map(|param| nic(NicKnob::Coalescing(*param, 0))));
        like.extend(Offload::ALL.iter().map(|offload| nic(NicKnob::Offload(*offload, false))));
        for queue in &near.rx_queues {
            like.push(Setting::Napi(queue.id, NapiKnob::Threaded(Threading::Off)));
            like.push(Setting::RxQueue(queue.id, RxQueueKnob::RpsCpus(CpuSet::new())));
        }
        for queue in &near.tx_queues {
            let queue = TxQueue { device: near.id, index: queue.index };
            like.push(Setting::TxQueue(queue, TxQueueKnob::XpsCpus(CpuSet::new())));
        }
        like.extend(host.irqs.iter().map(|irq| Setting::Irq(irq.number, IrqKnob::Affinity(CpuSet::new()))));
        let mut kernel = Kernel::new();
        Ok(like.into_iter().filter_map(|one| kernel.read(&[one]).ok()).flatten().collect())
    }

    /// Restores an existing NIC. If a setting cannot be restored, the next test that needs the NIC reports
    /// it.
    fn restore(&self) {
        let mut kernel = Kernel::new();
        if let Ok(near) = self.near0() {
            for flow in near.flow_rules.iter().flatten().filter_map(|rule| rule.flow) {
                let _ = kernel.write(&[Setting::Nic(near.id, NicKnob::FlowRule(flow, None))]);
            }
        }
        // Reset the indirection table: a table that was written counts as the user's, whatever its content,
        // and can block changes to the number of queues.
        let _ = self.in_near("ethtool -X near0 default");
        for one in &self.before {
            let now = kernel.read(std::slice::from_ref(one));
            if now.is_ok_and(|now| now != std::slice::from_ref(one)) {
                let _ = kernel.write(std::slice::from_ref(one));
            }
        }
    }

    /// Creates a wire whose near end is a NIC that netdevsim simulates, with nothing at its other end.
    ///
    /// Kernel: 6.18, `drivers/net/netdevsim/bus.c` `new_device_store()`: the device is created in the
    /// writer's namespace.
    pub fn simulated(queues: u32) -> Result<Self, Failed> {
        let mut wire = Self::unmade(None);
        run(&format!("ip netns add {}", wire.near))?;
        // The kernel numbers these devices globally, and another test process may create one, too.
        let number = std::process::id() % 10_000 * 100 + MADE.fetch_add(1, Ordering::Relaxed) % 100;
        let order = format!("{number} 1 {queues}");
        wire.near()?.run(|| std::fs::write("/sys/bus/netdevsim/new_device", order))??;
        wire.simulated = Some(number);
        let listed = wire.in_near(&format!("ls /sys/bus/netdevsim/devices/netdevsim{number}/net"))?;
        wire.in_near(&format!("ip link set {listed} name near0"))?;
        wire.in_near("ip link set near0 up")?;
        Ok(wire)
    }

    pub fn near(&self) -> Result<Netns, Failed> {
        Ok(Netns::named(&self.near)?)
    }

    pub fn observe(&self) -> Result<Host, Failed> {
        Ok(observe(&self.near()?, &Processes::None)?)
    }

    /// Observes the near end.
    pub fn near0(&self) -> Result<Device, Failed> {
        let host = self.observe()?;
        host.device_named("near0").cloned().ok_or_else(|| Failed::from("near0 was not observed"))
    }

    /// Runs a command in the near namespace, where `/sys` also belongs to that namespace.
    pub fn in_near(&self, command: &str) -> Result<String, Failed> {
        run(&format!("ip netns exec {} {command}", self.near))
    }

    /// Sets the NAPIs of a namespace to defer and suspend nothing, because an existing NIC would keep the
    /// settings.
    fn rest(netns: &str) -> Result<(), Failed> {
        let nothing = NapiChange {
            defer_hard_irqs: Some(EmptyPolls(0)),
            gro_flush_timeout: Some(Nanoseconds::ZERO),
            irq_suspend_timeout: Some(Nanoseconds::ZERO),
            ..NapiChange::default()
        };
        let set = || -> Result<(), String> {
            let mut netdev = Netdev::open_here().map_err(|error| error.to_string())?;
            for napi in netdev.napis(None).map_err(|error| error.to_string())? {
                netdev.set_napi(NapiId(napi.id), &nothing).map_err(|refused| format!("{refused:?}"))?;
            }
            Ok(())
        };
        Ok(Netns::named(netns)?.run(set)??)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some([near, far]) = &self.lent {
            self.restore();
            for (netns, end, nic) in [(&self.near, "near0", near), (&self.far, "far0", far)] {
                let _ = Self::rest(netns);
                let back = format!("-n {netns} link set {end} down netns 1 name {nic}");
                let _ = Command::new("ip").args(back.split(' ')).status();
            }
        }
        if let Some(number) = self.simulated {
            let _ = std::fs::write("/sys/bus/netdevsim/del_device", number.to_string());
            let _ = Command::new("ip").args(["netns", "del", &self.near]).status();
            return;
        }
        for netns in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", netns]).status();
        }
    }
}

/// Runs a command line, split at spaces, and returns its output.
pub fn run(command: &str) -> Result<String, Failed> {
    let mut words = command.split(' ').filter(|word| !word.is_empty());
    let output = Command::new(words.next().unwrap_or("")).args(words).output()?;
    if !output.status.success() {
        return Err(
            format!("{command}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into()
        );
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
