//! Two network namespaces and a veth between them, created with `ip` and `ethtool`, so that the tested code
//! does not create its own environment.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Failed;
use linux::{Netns, Processes, observe};
use model::host::Device;
use model::{EmptyPolls, Host, Nanoseconds, NapiId};
use netlink::netdev::{NapiChange, Netdev};

static MADE: AtomicU32 = AtomicU32::new(0);

/// The near end, `near0`, has NAPIs: GRO is on there, and TSO is off at the far end, `far0`.
#[derive(Debug)]
pub struct Wire {
    pub near: String,
    pub far: String,
    /// The original names of its ends, to which they return, if they are existing NICs.
    lent: Option<[String; 2]>,
    /// The number of the simulated NIC at its near end, if it is one.
    simulated: Option<u32>,
    /// Commands that undo the changes in the near namespace.
    back: Vec<String>,
}

impl Wire {
    fn unmade(lent: Option<[String; 2]>) -> Self {
        let unique = format!("np-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        Self {
            near: format!("{unique}-near"),
            far: format!("{unique}-far"),
            lent,
            simulated: None,
            back: Vec::new(),
        }
    }

    pub fn new(queues: u32) -> Result<Self, Failed> {
        let wire = Self::unmade(None);
        let (near, far) = (&wire.near, &wire.far);
        run(&format!("ip netns add {near}"))?;
        run(&format!("ip netns add {far}"))?;
        let count = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!("ip -n {near} link add near0 {count} type veth peer name far0 netns {far} {count}"))?;
        run(&format!("ip -n {near} addr add 192.0.2.1/24 dev near0"))?;
        run(&format!("ip -n {far} addr add 192.0.2.2/24 dev far0"))?;
        run(&format!("ip netns exec {far} ethtool -K far0 tso off"))?;
        run(&format!("ip netns exec {near} ethtool -K near0 gro on"))?;
        run(&format!("ip -n {near} link set near0 up"))?;
        run(&format!("ip -n {far} link set far0 up"))?;
        Ok(wire)
    }

    /// Creates a wire from two connected NICs of a guest: `virtio1` or `igb1` is the near end.
    pub fn between(nics: &str) -> Result<Self, Failed> {
        let lent = [format!("{nics}1"), format!("{nics}0")];
        let wire = Self::unmade(Some(lent.clone()));
        for (netns, nic, end, address) in
            [(&wire.near, &lent[0], "near0", "192.0.2.1/24"), (&wire.far, &lent[1], "far0", "192.0.2.2/24")]
        {
            run(&format!("ip netns add {netns}"))?;
            run(&format!("ip link set {nic} netns {netns} name {end}"))?;
            run(&format!("ip -n {netns} addr add {address} dev {end}"))?;
            run(&format!("ip -n {netns} link set {end} up"))?;
        }
        Ok(wire)
    }

    /// Creates a wire whose near end is a NIC that netdevsim simulates, with nothing at its other end.
    ///
    /// Kernel: 6.18, `drivers/net/netdevsim/bus.c` `new_device_store()`: it is created in the writer's
    /// namespace.
    pub fn simulated(queues: u32) -> Result<Self, Failed> {
        let mut wire = Self::unmade(None);
        run(&format!("ip netns add {}", wire.near))?;
        // Numbers are global in the kernel; another test process may create one, too.
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

    /// The same for a command that another one undoes when this is dropped: a NIC that existed before keeps
    /// its settings.
    pub fn in_near_for_now(&mut self, command: &str, back: &str) -> Result<String, Failed> {
        self.back.push(back.to_owned());
        self.in_near(command)
    }

    /// Resets the NAPIs of a namespace to defer and suspend nothing: an existing NIC would keep the settings.
    fn rest(netns: &str) -> Result<(), Failed> {
        const NOTHING: NapiChange = NapiChange {
            defer_hard_irqs: Some(EmptyPolls(0)),
            gro_flush_timeout: Some(Nanoseconds::ZERO),
            irq_suspend_timeout: Some(Nanoseconds::ZERO),
            threaded: None,
        };
        let set = || -> Result<(), String> {
            let mut netdev = Netdev::open_here().map_err(|error| error.to_string())?;
            for napi in netdev.napis(None).map_err(|error| error.to_string())? {
                netdev.set_napi(NapiId(napi.id), &NOTHING).map_err(|refused| format!("{refused:?}"))?;
            }
            Ok(())
        };
        Ok(Netns::named(netns)?.run(set)??)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // If anything fails here, the next test that needs it reports it.
        for back in std::mem::take(&mut self.back).iter().rev() {
            let _ = self.in_near(back);
        }
        if let Some([near, far]) = &self.lent {
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

/// Runs a command line, split at spaces; returns its output.
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
