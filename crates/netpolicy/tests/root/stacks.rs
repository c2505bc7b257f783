//! Tests stacked devices of each kind: a policy for the upper device reaches the queues below it, the daemon
//! follows members that join, leave and fail, and the host is restored afterwards.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};

use libtest_mimic::{Failed, Trial};
use linux::lab::{CLIENT_ADDRESS, CLIENT_DEVICE, MemcachedOptions, SERVER_ADDRESS, SERVER_DEVICE};
use linux::{Netns, Processes, observe};
use model::{Host, IfIndex, NapiId};
use testkit::operator::{Operator, Started, at_work, flushes_of, waited_for};
use testkit::wire::run;
use testkit::{Need, test};

/// The kinds of stacked devices, as arguments of `ip link add`.
pub(crate) mod kind {
    pub(super) const BOND: &str = "type bond";
    pub(crate) const BRIDGE: &str = "type bridge";
    pub(super) const GENEVE: &str = "type geneve id 7 remote 192.0.2.9";
    pub(super) const IPVLAN: &str = "link v0 type ipvlan mode l2";
    pub(crate) const MACVLAN: &str = "link v0 type macvlan mode private";
    pub(super) const TEAM: &str = "type team";
    pub(super) const VLAN: &str = "link v0 type vlan id 7";
    pub(super) const VRF: &str = "type vrf table 10";
    pub(super) const VXLAN: &str = "type vxlan id 7 dstport 4789 remote 192.0.2.9";
}

/// The modes of a bond. Kernel: 6.18, `drivers/net/bonding/bond_main.c` `bond_mode_tbl`.
const MODES: [&str; 7] =
    ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];

/// A device on top of the operator's, and how to create it with `ip`. `DEV` is the operator's device.
struct Stack {
    name: String,
    upper: &'static str,
    /// The devices below the upper device, from the top down.
    below: &'static [&'static str],
    needs: Vec<Need>,
    made: Vec<String>,
}

impl Stack {
    fn new(
        name: &str,
        kinds: &[&'static str],
        upper: &'static str,
        below: &'static [&'static str],
        made: &[&str],
    ) -> Self {
        let needs = [Need::Root, Need::Suspension].into_iter().chain(kinds.iter().copied().map(Need::Link));
        let made = made.iter().map(|command| command.replace("DEV", SERVER_DEVICE)).collect();
        Self { name: name.to_owned(), upper, below, needs: needs.collect(), made }
    }
}

/// Makes a device a member of another. A bond or a team accepts only devices that are down.
const JOINS: [&str; 3] = ["link set DEV down", "link set DEV master UPPER", "link set DEV up"];

fn stacks() -> Vec<Stack> {
    use kind::{BOND, BRIDGE, GENEVE, IPVLAN, MACVLAN, TEAM, VLAN, VRF, VXLAN};
    const DEV: &[&str] = &[SERVER_DEVICE];
    const MAKE_BOND: &str = "link add bond0 type bond mode active-backup miimon 20";
    const INTO_BOND: [&str; 4] =
        ["link set DEV down", "link set DEV master bond0", "link set DEV up", "link set bond0 up"];
    let bonded = |more: &[&'static str]| [&[MAKE_BOND], &INTO_BOND[..], more].concat();
    let mut all: Vec<Stack> = MODES
        .iter()
        .map(|mode| {
            let made = format!("link add bond0 type bond mode {mode} miimon 20");
            let commands = [&[made.as_str()], &INTO_BOND[..]].concat();
            Stack::new(&format!("bond_{}", mode.replace(['-', '.'], "_")), &[BOND], "bond0", DEV, &commands)
        })
        .collect();
    let enslaved = |name: &str, kind, upper: &'static str, made: &str| {
        let joins = JOINS.map(|command| command.replace("UPPER", upper));
        let up = format!("link set {upper} up");
        Stack::new(name, &[kind], upper, DEV, &[made, &joins[0], &joins[1], &joins[2], &up])
    };
    all.push(enslaved("bridge", BRIDGE, "br0", "link add br0 type bridge"));
    all.push(enslaved("team", TEAM, "team0", "link add team0 type team"));
    all.push(enslaved("vrf", VRF, "vrf0", "link add vrf0 type vrf table 10"));
    let on_top = |name: &str, kind, upper: &'static str, made: &str| {
        Stack::new(name, &[kind], upper, DEV, &[made, &format!("link set {upper} up")])
    };
    all.push(on_top("vlan", VLAN, "lan7", "link add link DEV name lan7 type vlan id 7"));
    all.push(on_top("macvlan", MACVLAN, "mac0", "link add link DEV name mac0 type macvlan mode private"));
    all.push(on_top("ipvlan_l2", IPVLAN, "ipv0", "link add link DEV name ipv0 type ipvlan mode l2"));
    all.push(on_top("ipvlan_l3", IPVLAN, "ipv0", "link add link DEV name ipv0 type ipvlan mode l3"));
    all.push(on_top(
        "vxlan",
        VXLAN,
        "vx7",
        "link add vx7 type vxlan id 7 dstport 4789 remote 192.0.2.9 dev DEV",
    ));
    // The VXLAN names no device, so its packets leave by the route to the remote address.
    let vxlan = format!("link add vx7 type vxlan id 7 dstport 4789 remote {CLIENT_ADDRESS}");
    all.push(on_top("vxlan_by_route", VXLAN, "vx7", &vxlan));
    let geneve = format!("link add gen7 type geneve id 7 remote {CLIENT_ADDRESS}");
    all.push(on_top("geneve_by_route", GENEVE, "gen7", &geneve));
    all.push(Stack::new(
        "qinq",
        &[VLAN],
        "inner7",
        &["outer5", SERVER_DEVICE],
        &[
            "link add link DEV name outer5 type vlan proto 802.1ad id 5",
            "link set outer5 up",
            "link add link outer5 name inner7 type vlan id 7",
            "link set inner7 up",
        ],
    ));
    all.push(Stack::new(
        "vlan_on_bond",
        &[BOND, VLAN],
        "lan7",
        &["bond0", SERVER_DEVICE],
        &bonded(&["link add link bond0 name lan7 type vlan id 7", "link set lan7 up"]),
    ));
    all.push(Stack::new(
        "bridge_on_vlan_on_bond",
        &[BOND, VLAN, BRIDGE],
        "br0",
        &["lan7", "bond0", SERVER_DEVICE],
        &bonded(&[
            "link add link bond0 name lan7 type vlan id 7",
            "link add br0 type bridge",
            "link set lan7 master br0",
            "link set lan7 up",
            "link set br0 up",
        ]),
    ));
    all.push(Stack::new(
        "macvlan_on_bond",
        &[BOND, MACVLAN],
        "mac0",
        &["bond0", SERVER_DEVICE],
        &bonded(&["link add link bond0 name mac0 type macvlan mode private", "link set mac0 up"]),
    ));
    all.push(Stack::new(
        "bond_on_vlan",
        &[BOND, VLAN],
        "bond0",
        &["lan7", SERVER_DEVICE],
        &[
            "link add link DEV name lan7 type vlan id 7",
            MAKE_BOND,
            "link set lan7 master bond0",
            "link set lan7 up",
            "link set bond0 up",
        ],
    ));
    all
}

pub(crate) fn tests() -> Vec<Trial> {
    use kind::{BOND, BRIDGE, TEAM, VLAN, VRF};
    let reached = stacks().into_iter().map(|stack| {
        let name = format!("stacks/a_policy_for_an_upper_device_reaches_the_queues_below/{}", stack.name);
        let needs = stack.needs.clone();
        test(name, &needs, move || reaches(&stack))
    });
    let followed = |name: &str, kinds: &[&'static str], made: &'static [&'static str], upper, mastered| {
        let needs = [Need::Root, Need::Suspension, Need::Link(VLAN)];
        let needs: Vec<Need> = needs.into_iter().chain(kinds.iter().copied().map(Need::Link)).collect();
        let name = format!("stacks/the_daemon_follows_members_and_vlans_of_a/{name}");
        test(name, &needs, move || follows(made, upper, mastered))
    };
    let on_nics = |members: Members, nics: &str| {
        let needs = [Need::Root, Need::Suspension, Need::Link(BOND), Need::Link(VLAN), members.need()];
        [
            test(
                format!("stacks/a_policy_for_a_vlan_on_a_bond_reaches_queues_and_interrupts_of/{nics}"),
                &needs,
                move || reaches_nics(members),
            ),
            test(
                format!("stacks/the_daemon_follows_members_of_a_vlan_on_a_bond_of/{nics}"),
                &needs,
                move || follows_nics(members),
            ),
        ]
    };
    let routed = |kind: &'static str, name: &str, made: &'static str| {
        let needs = [Need::Root, Need::Suspension, Need::Link(kind)];
        let name = format!("stacks/the_daemon_follows_a_tunnel_to_another_device_by_its_route/{name}");
        test(name, &needs, move || follows_the_route(made))
    };
    let bond: &[Need] = &[Need::Root, Need::Suspension, Need::Link(BOND)];
    let vlan_of_bond: &[Need] = &[Need::Root, Need::Suspension, Need::Link(BOND), Need::Link(VLAN)];
    let mut all: Vec<Trial> = reached.collect();
    all.extend([
        followed("bridge", &[BRIDGE], &["link add br0 type bridge"], "br0", "br0"),
        followed("team", &[TEAM], &["link add team0 type team"], "team0", "team0"),
        followed("vrf", &[VRF], &["link add vrf0 type vrf table 10"], "vrf0", "vrf0"),
        followed("vlan_on_bond", &[BOND], &VLAN_ON_BOND, "lan5", "bond0"),
        test("stacks/the_daemon_follows_a_bond_through_every_mode", bond, every_mode),
        test(
            "stacks/a_stack_that_the_kernel_refuses_leaves_the_policy_in_force",
            vlan_of_bond,
            refused_stacks,
        ),
        routed(kind::VXLAN, "vxlan", "type vxlan id 7 dstport 4789"),
        routed(kind::GENEVE, "geneve", "type geneve id 7"),
    ]);
    let served = |name: &str,
                  kinds: &[&'static str],
                  here: &'static [&'static str],
                  there: &'static [&'static str]| {
        let needs = [Need::Root, Need::Suspension, Need::Memcached].into_iter();
        let needs: Vec<Need> = needs.chain(kinds.iter().copied().map(Need::Link)).collect();
        let name = format!("stacks/a_services_queues_are_found_through_a/{name}");
        test(name, &needs, move || serves(here, there))
    };
    all.push(served("bridge", &[BRIDGE], &SERVED_BY_BRIDGE, &[]));
    all.push(served("vlan_on_bond", &[BOND, VLAN], &SERVED_BY_VLAN, &ASKED_BY_VLAN));
    all.extend(on_nics(Members::Netdevsims, "netdevsims"));
    all.extend(on_nics(Members::VethAndIgb, "igb_and_veth"));
    all
}

/// Moves the server's address from its veth to a device on top of it. `DEV` is the veth, `ADDRESS` the
/// server's or the client's address.
const SERVED_BY_BRIDGE: [&str; 4] =
    ["link add br0 type bridge", "link set DEV master br0", "addr add ADDRESS/24 dev br0", "link set br0 up"];
const SERVED_BY_VLAN: [&str; 8] = [
    "link add bond0 type bond mode active-backup miimon 20",
    "link set DEV down",
    "link set DEV master bond0",
    "link set DEV up",
    "link set bond0 up",
    "link add link bond0 name lan7 type vlan id 7",
    "addr add ADDRESS/24 dev lan7",
    "link set lan7 up",
];
/// Moves an address from a device to a VLAN on it.
const ASKED_BY_VLAN: [&str; 4] = [
    "addr flush dev DEV",
    "link add link DEV name lan7 type vlan id 7",
    "addr add ADDRESS/24 dev lan7",
    "link set lan7 up",
];

/// A bond in its simplest mode, and a VLAN on it.
const VLAN_ON_BOND: [&str; 4] = [
    "link add bond0 type bond mode active-backup miimon 20",
    "link set bond0 up",
    "link add link bond0 name lan5 type vlan id 5",
    "link set lan5 up",
];

/// `gro-flush-timeout` of suspend20 and of defer50, in nanoseconds.
const SUSPEND20: u64 = 20_000;
const DEFER50: u64 = 50_000;

fn ip(operator: &Operator, command: &str) -> Result<(), Failed> {
    operator.inside(&format!("ip {command}")).map(|_| ())
}

/// Returns the observed host, made comparable. NAPIs are numbered by their position on the device, because a
/// device that goes down and up gets new NAPI ids. Random addresses of bonds without a member are ignored:
/// such a bond gets a new one each time. Kernel: 6.18, `drivers/net/bonding/bond_main.c`
/// `__bond_release_one()`.
fn settled(operator: &Operator) -> Result<Host, Failed> {
    let mut host = operator.host()?;
    let empty: Vec<IfIndex> = host
        .devices
        .iter()
        .filter(|device| device.kind == "bond" && !host.is_upper(device))
        .map(|device| device.id.ifindex)
        .collect();
    for device in &mut host.devices {
        if empty.contains(&device.id.ifindex) || device.link.lower.is_some_and(|lower| empty.contains(&lower))
        {
            device.link.mac = None;
        }
    }
    for device in &mut host.devices {
        let known: Vec<NapiId> = device.napis.iter().map(|napi| napi.id).collect();
        let place = |napi: NapiId| {
            let at = known.iter().position(|id| *id == napi).unwrap_or(usize::MAX);
            NapiId(u32::try_from(at).unwrap_or(u32::MAX))
        };
        device.napis.iter_mut().for_each(|napi| napi.id = place(napi.id));
        let received = device.rx_queues.iter_mut().filter_map(|queue| queue.napi.as_mut());
        let sent = device.tx_queues.iter_mut().filter_map(|queue| queue.napi.as_mut());
        received.chain(sent).for_each(|edge| edge.napi = place(edge.napi));
    }
    Ok(host)
}

/// Waits until the host is as before: a device gets its carrier back some time after it is up again.
fn is_again(operator: &Operator, before: &Host) -> Result<(), Failed> {
    let waited = waited_for("the host as it was", || Ok((settled(operator)? == *before).then_some(())));
    let Err(failed) = waited else { return Ok(()) };
    let after = settled(operator)?;
    for (now, then) in after.devices.iter().zip(&before.devices) {
        assert_eq!(now, then, "{}", now.id);
    }
    assert_eq!(after, *before);
    Err(failed)
}

/// Waits until a device has a carrier.
fn is_up(operator: &Operator, device: &str) -> Result<(), Failed> {
    waited_for(&format!("the carrier of {device}"), || {
        Ok(operator.devices()?.device_named(device).is_some_and(|device| device.up).then_some(()))
    })
}

fn reaches(stack: &Stack) -> Result<(), Failed> {
    let upper = stack.upper;
    let operator = Operator::new(&format!("stacks-{}", stack.name), 2)?;
    for command in &stack.made {
        ip(&operator, command)?;
    }
    is_up(&operator, upper)?;
    let before = settled(&operator)?;
    let device = before.device_named(upper).ok_or("the upper device")?;
    let below: Vec<&str> = before.below(device).iter().map(|(_, lower)| lower.id.name.as_str()).collect();
    assert_eq!(below, stack.below);
    operator.asks(&format!("[device.{upper}]\ndelivery = \"suspend20\"\n"))?;
    let applied = operator.runs(&["apply"], 0)?;
    let words = format!("device {upper} is stacked on {SERVER_DEVICE}, whose queues are set");
    assert!(applied.words.contains(&words), "{}", applied.words);
    let host = operator.devices()?;
    assert_eq!(flushes_of(&host, host.device_named(SERVER_DEVICE)), [SUSPEND20; 2]);
    operator.runs(&["verify"], 0)?;
    let shown = operator.runs(&["show"], 0)?.data;
    let drawn = format!("└─ {SERVER_DEVICE} (veth, 2 queues)");
    assert!(shown.contains(&drawn), "{shown}");
    operator.runs(&["rollback"], 0)?;
    is_again(&operator, &before)
}

/// A second veth on the operator's host, with its other end on the client.
const SPARE: &str = "spare0";
const FAR: &str = "spare1";

/// The kinds of devices that join and leave a stacked device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Members {
    /// Two veths.
    Veths,
    /// Two NICs that netdevsim simulates.
    Netdevsims,
    /// A veth, and a guest's NIC with interrupts.
    VethAndIgb,
}

impl Members {
    const fn need(self) -> Need {
        match self {
            Self::Veths => Need::Root,
            Self::Netdevsims => Need::Netdevsim,
            Self::VethAndIgb => Need::IgbNics,
        }
    }
}

/// An operator with two devices that join and leave a stacked device.
struct Pair {
    operator: Operator,
    mastered: &'static str,
    members: Members,
    /// The device whose carrier fails, and its peer on the client.
    first: String,
    there: String,
    spare: String,
    /// Whether a daemon is running. For comparison, every event also happens once without a daemon, because
    /// events themselves change the host (a bridge without a member loses its address).
    is_followed: Cell<bool>,
}

/// Returns the device numbers of the simulated NICs. The numbers are global in the kernel, so they are
/// derived from the pid.
fn simulated() -> [u32; 2] {
    let own = std::process::id() % 10_000 * 100 + 90;
    [own, own + 1]
}

/// The guest's NIC that becomes a member of the stacked device, and the NIC's peer.
const IGB: [&str; 2] = ["igb1", "igb0"];

impl Pair {
    fn new(name: &str, mastered: &'static str, members: Members) -> Result<Self, Failed> {
        let operator = Operator::new(&format!("stacks-{name}"), 2)?;
        let mut pair = Self {
            operator,
            mastered,
            members,
            first: SERVER_DEVICE.to_owned(),
            there: CLIENT_DEVICE.to_owned(),
            spare: SPARE.to_owned(),
            is_followed: Cell::new(false),
        };
        match members {
            Members::Veths => {
                let there = pair.operator.lab.client_path();
                let queues = "numrxqueues 2 numtxqueues 2";
                ip(
                    &pair.operator,
                    &format!(
                        "link add {SPARE} {queues} type veth peer name {FAR} {queues} netns {}",
                        there.display()
                    ),
                )?;
                pair.operator.inside(&format!("ethtool -K {SPARE} gro on"))?;
                pair.far(&format!("ip link set {FAR} up"))?;
            }
            Members::Netdevsims => {
                let [near, far] = simulated();
                let here = pair.operator.lab.server();
                let near = simulate(near, here, || pair.operator.inside("cat /proc/net/dev"))?;
                let far = simulate(far, pair.operator.lab.client(), || pair.far("cat /proc/net/dev"))?;
                for (near, far) in near.iter().zip(&far) {
                    pair.far(&format!("ip link set {far} up"))?;
                    pair.wires(near, far)?;
                }
                let [first, spare] = near;
                let [there, _] = far;
                (pair.first, pair.there, pair.spare) = (first, there, spare);
                ip(&pair.operator, &format!("link set {} up", pair.first))?;
            }
            Members::VethAndIgb => {
                let [near, far] = IGB;
                let client = pair.operator.lab.client_path();
                run(&format!("ip link set {near} netns {}", pair.operator.lab.server_pid()))?;
                run(&format!("ip link set {far} netns {}", client.display()))?;
                near.clone_into(&mut pair.spare);
                pair.far(&format!("ip link set {far} up"))?;
            }
        }
        ip(&pair.operator, &format!("link set {} up", pair.spare))?;
        for device in [&pair.first, &pair.spare] {
            is_up(&pair.operator, device)?;
        }
        Ok(pair)
    }

    /// Runs a command on the client's host.
    fn far(&self, command: &str) -> Result<String, Failed> {
        run(&format!("nsenter --net={} {command}", self.operator.lab.client_path().display()))
    }

    /// Connects two simulated NICs. Their namespaces are written as file descriptors of the writing process.
    /// Kernel: 6.9, `drivers/net/netdevsim/bus.c` `link_device_store()`.
    fn wires(&self, near: &str, far: &str) -> Result<(), Failed> {
        let index = |line: String| line.split(':').next().unwrap_or_default().to_owned();
        let ends = [
            (self.operator.lab.server(), index(self.operator.inside(&format!("ip -o link show {near}"))?)),
            (self.operator.lab.client(), index(self.far(&format!("ip -o link show {far}"))?)),
        ];
        let ends = ends.map(|(netns, index)| format!("{}:{index}", netns.as_fd().as_raw_fd()));
        Ok(std::fs::write("/sys/bus/netdevsim/link_device", ends.join(" "))?)
    }

    /// Returns the CPUs of the interrupts of a device's receive queues.
    fn affinities(&self, device: &str) -> Result<BTreeSet<String>, Failed> {
        let host = observe(self.operator.lab.server(), &Processes::None)?;
        let device = host.device_named(device).ok_or("the device")?;
        let irqs = device.rx_queues.iter().filter_map(|queue| host.irq(host.napi_of(queue.id)?.irq?.irq));
        Ok(irqs.map(|irq| irq.affinity.to_string()).collect())
    }

    fn joins(&self, device: &str) -> Result<(), Failed> {
        ip(&self.operator, &format!("link set {device} down"))?;
        ip(&self.operator, &format!("link set {device} master {}", self.mastered))?;
        ip(&self.operator, &format!("link set {device} up"))
    }

    fn leaves(&self, device: &str) -> Result<(), Failed> {
        ip(&self.operator, &format!("link set {device} nomaster"))?;
        ip(&self.operator, &format!("link set {device} up"))
    }

    /// If a daemon is running, waits until the queues of the first device and of the spare one have these
    /// timeouts.
    fn have(&self, event: &str, first: u64, spare: u64) -> Result<(), Failed> {
        if !self.is_followed.get() {
            return Ok(());
        }
        let seen = RefCell::new([Vec::new(), Vec::new()]);
        let converged = || {
            let host = self.operator.devices()?;
            let of = |name: &str| flushes_of(&host, host.device_named(name));
            let found = [of(&self.first), of(&self.spare)];
            let as_wanted = found == [[first; 2], [spare; 2]];
            seen.replace(found);
            Ok(as_wanted.then_some(()))
        };
        let waited = waited_for(&format!("{event}: timeouts of {first} and {spare} ns"), converged);
        if let Err(failed) = waited {
            let seen = seen.borrow();
            return Err(format!("{failed:?}, and saw {seen:?}, the daemon: {}", self.operator.said()?).into());
        }
        Ok(())
    }

    /// Takes the first member's carrier down and up: the queues of both members keep their values.
    fn fails_over(&self) -> Result<(), Failed> {
        self.far(&format!("ip link set {} down", self.there))?;
        waited_for("the lost carrier", || {
            let host = self.operator.devices()?;
            Ok(host.device_named(&self.first).is_some_and(|device| !device.up).then_some(()))
        })?;
        self.have("a member failed", DEFER50, DEFER50)?;
        if self.operator.inside(&format!("ip -d link show {}", self.mastered))?.contains("active-backup") {
            let now = || self.operator.inside(&format!("ip -d link show {}", self.mastered));
            waited_for("the other member as the active one", || {
                Ok(now()?.contains(&format!("active_slave {}", self.spare)).then_some(()))
            })?;
        }
        self.far(&format!("ip link set {} up", self.there))?;
        is_up(&self.operator, &self.first)?;
        self.have("a member came back", DEFER50, DEFER50)
    }
}

/// Removes the simulated NICs and other objects that outlive the namespaces.
impl Drop for Pair {
    fn drop(&mut self) {
        match self.members {
            Members::Veths => {}
            Members::Netdevsims => {
                for number in simulated() {
                    let _ = std::fs::write("/sys/bus/netdevsim/del_device", number.to_string());
                }
            }
            Members::VethAndIgb => {
                let [near, far] = IGB;
                let _ = self.operator.inside(&format!("ip link set {near} down nomaster netns 1"));
                let _ = self.far(&format!("ip link set {far} down netns 1"));
            }
        }
    }
}

/// Creates a simulated NIC in a namespace, with two ports of two queues each; returns the names of the
/// devices.
fn simulate(
    number: u32,
    netns: &Netns,
    listed: impl Fn() -> Result<String, Failed>,
) -> Result<[String; 2], Failed> {
    let names = || -> Result<BTreeSet<String>, Failed> {
        let named = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
        Ok(listed()?.lines().filter_map(named).collect())
    };
    let before = names()?;
    netns.run(|| std::fs::write("/sys/bus/netdevsim/new_device", format!("{number} 2 2")))??;
    let made: Vec<String> = names()?.difference(&before).cloned().collect();
    made.try_into().map_err(|made| format!("the ports of netdevsim{number}: {made:?}").into())
}

/// A daemon whose policy file names one device. `end` stops the daemon with SIGTERM, as systemd does, and
/// rolls back its settings.
struct Followed<'p> {
    pair: &'p Pair,
    daemon: Started,
}

impl<'p> Followed<'p> {
    fn begin(pair: &'p Pair, upper: &str) -> Result<Self, Failed> {
        let daemon = at_work(&pair.operator, &format!("[device.{upper}]\ndelivery = \"defer50\"\n"))?;
        pair.is_followed.set(true);
        Ok(Self { pair, daemon })
    }

    fn end(self) -> Result<(), Failed> {
        assert_eq!(self.daemon.terminated()?, Some(0));
        self.pair.is_followed.set(false);
        self.pair.operator.runs(&["rollback"], 0)?;
        Ok(())
    }
}

fn follows(made: &[&str], upper: &'static str, mastered: &'static str) -> Result<(), Failed> {
    let pair = Pair::new(&format!("follow-{upper}"), mastered, Members::Veths)?;
    for command in made {
        ip(&pair.operator, command)?;
    }
    ip(&pair.operator, &format!("link set {mastered} up"))?;
    members_come_and_go(&pair)?;
    a_vlan_comes_and_goes(&pair)?;
    pair.leaves(&pair.first)?;
    let before = settled(&pair.operator)?;

    let followed = Followed::begin(&pair, upper)?;
    members_come_and_go(&pair)?;
    followed.end()?;
    let followed = Followed::begin(&pair, "lan7")?;
    a_vlan_comes_and_goes(&pair)?;
    followed.end()?;
    pair.leaves(&pair.first)?;
    is_again(&pair.operator, &before)
}

/// Repeats the test with NICs instead of veths, without the parts that do not depend on the kind of device.
fn follows_nics(members: Members) -> Result<(), Failed> {
    let pair = Pair::new("follow-nics", "bond0", members)?;
    for command in VLAN_ON_BOND {
        ip(&pair.operator, command)?;
    }
    members_come_and_go(&pair)?;
    pair.leaves(&pair.first)?;
    for device in [&pair.first, &pair.spare] {
        is_up(&pair.operator, device)?;
    }
    let before = settled(&pair.operator)?;
    let followed = Followed::begin(&pair, "lan5")?;
    members_come_and_go(&pair)?;
    followed.end()?;
    pair.leaves(&pair.first)?;
    is_again(&pair.operator, &before)
}

/// Lets members join, leave and fail. At the end, the first device is a member.
fn members_come_and_go(pair: &Pair) -> Result<(), Failed> {
    pair.have("no member", 0, 0)?;
    pair.joins(&pair.first)?;
    pair.have("the first member added", DEFER50, 0)?;
    pair.joins(&pair.spare)?;
    pair.have("a member added", DEFER50, DEFER50)?;
    pair.fails_over()?;
    pair.leaves(&pair.first)?;
    pair.have("a member removed", 0, DEFER50)?;
    pair.joins(&pair.first)?;
    pair.leaves(&pair.spare)?;
    pair.have("a member replaced", DEFER50, 0)
}

fn a_vlan_comes_and_goes(pair: &Pair) -> Result<(), Failed> {
    pair.have("no VLAN", 0, 0)?;
    // A VRF cannot carry a VLAN, so add it to the member.
    let carrier = if pair.mastered == "vrf0" { &pair.first } else { pair.mastered };
    ip(&pair.operator, &format!("link add link {carrier} name lan7 type vlan id 7"))?;
    ip(&pair.operator, "link set lan7 up")?;
    pair.have("a VLAN added", DEFER50, 0)?;
    ip(&pair.operator, "link del lan7")?;
    pair.have("a VLAN removed", 0, 0)
}

fn serves(here: &[&str], there: &[&str]) -> Result<(), Failed> {
    let operator = Operator::new("stacks-service", 1)?;
    ip(&operator, &format!("addr flush dev {SERVER_DEVICE}"))?;
    let of = |command: &str, device: &str, address: std::net::Ipv4Addr| {
        command.replace("DEV", device).replace("ADDRESS", &address.to_string())
    };
    for command in here {
        ip(&operator, &of(command, SERVER_DEVICE, SERVER_ADDRESS))?;
    }
    let client = operator.lab.client_path();
    for command in there {
        let command = of(command, CLIENT_DEVICE, CLIENT_ADDRESS);
        run(&format!("nsenter --net={} ip {command}", client.display()))?;
    }
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let mut stream = operator.lab.client().run(|| TcpStream::connect(server.address()))??;
    stream.write_all(b"version\r\n")?;
    stream.read_exact(&mut [0])?;
    let before = settled(&operator)?;

    operator.asks("[service.cache]\nmatch = { port = 11211 }\ndelivery = \"suspend20\"\n")?;
    operator.runs(&["apply"], 0)?;
    let host = operator.host()?;
    assert_eq!(flushes_of(&host, host.device_named(SERVER_DEVICE)), [SUSPEND20]);
    let process = host.process(server.process().pid).ok_or("the server")?;
    let prefers = |epoll: &model::host::Epoll| epoll.params.is_some_and(|params| params.prefer_busy_poll);
    assert!(process.epolls.iter().any(prefers), "{:?}", process.epolls);
    operator.runs(&["verify"], 0)?;
    operator.runs(&["rollback"], 0)?;
    is_again(&operator, &before)
}

fn reaches_nics(members: Members) -> Result<(), Failed> {
    let pair = Pair::new("nics", "bond0", members)?;
    let operator = &pair.operator;
    for command in VLAN_ON_BOND {
        ip(operator, command)?;
    }
    for device in [&pair.first, &pair.spare] {
        pair.joins(device)?;
        is_up(operator, device)?;
    }
    let (before, affinities) = (settled(operator)?, pair.affinities(&pair.spare)?);
    assert_eq!(
        affinities.is_empty(),
        members == Members::Netdevsims,
        "an igb has interrupts: {affinities:?}"
    );
    operator.asks("[device.lan5]\ndelivery = \"suspend20\"\ncpus = \"1\"\n")?;
    operator.runs(&["apply"], 0)?;
    let host = operator.devices()?;
    let shown = operator.runs(&["show"], 0)?.data;
    for name in [&pair.first, &pair.spare] {
        let device = host.device_named(name).ok_or("a member")?;
        assert_eq!(flushes_of(&host, [device]), [SUSPEND20; 2], "{name}");
        let drawn = format!("─ {name} ({}, 2 queues)", device.kind);
        assert!(shown.contains(&drawn), "{drawn}: {shown}");
    }
    let placed = pair.affinities(&pair.spare)?;
    assert!(placed.iter().all(|cpus| cpus == "1") && placed != affinities || placed.is_empty(), "{placed:?}");
    operator.runs(&["verify"], 0)?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(pair.affinities(&pair.spare)?, affinities);
    is_again(operator, &before)
}

/// Tests a tunnel that names no device while the route to its remote address, by which its packets leave,
/// changes.
fn follows_the_route(made: &str) -> Result<(), Failed> {
    const OTHER_END: &str = "198.51.100.9";
    let pair = Pair::new("routed", "none", Members::Veths)?;
    let goes_by = |device: &str| ip(&pair.operator, &format!("route replace {OTHER_END}/32 dev {device}"));
    goes_by(SERVER_DEVICE)?;
    ip(&pair.operator, &format!("link add tun7 {made} remote {OTHER_END}"))?;
    ip(&pair.operator, "link set tun7 up")?;
    let before = settled(&pair.operator)?;
    let followed = Followed::begin(&pair, "tun7")?;
    pair.have("the first route", DEFER50, 0)?;
    goes_by(SPARE)?;
    pair.have("another route", 0, DEFER50)?;
    followed.end()?;
    goes_by(SERVER_DEVICE)?;
    is_again(&pair.operator, &before)
}

fn every_mode() -> Result<(), Failed> {
    let pair = Pair::new("modes", "bond0", Members::Veths)?;
    ip(&pair.operator, "link add bond0 type bond miimon 20")?;
    // The reference for the comparison is the host after the last mode.
    modes_one_after_the_other(&pair, &MODES[MODES.len() - 1..])?;
    let before = settled(&pair.operator)?;
    let followed = Followed::begin(&pair, "bond0")?;
    modes_one_after_the_other(&pair, &MODES)?;
    followed.end()?;
    is_again(&pair.operator, &before)
}

fn modes_one_after_the_other(pair: &Pair, modes: &[&str]) -> Result<(), Failed> {
    for &mode in modes {
        // The kernel changes a bond's mode only while the bond is down and has no members.
        ip(&pair.operator, &format!("link set bond0 type bond mode {mode}"))?;
        ip(&pair.operator, "link set bond0 up")?;
        pair.joins(&pair.first)?;
        pair.have(&format!("{mode}: mode changed"), DEFER50, 0)?;
        pair.joins(&pair.spare)?;
        pair.have(&format!("{mode}: a member added"), DEFER50, DEFER50)?;
        let other = if mode == "balance-xor" { "broadcast" } else { "balance-xor" };
        let refused = ip(&pair.operator, &format!("link set bond0 type bond mode {other}"));
        assert!(refused.is_err(), "{mode}: the mode of a bond with members");
        pair.fails_over()?;
        pair.leaves(&pair.first)?;
        pair.have(&format!("{mode}: a member removed"), 0, DEFER50)?;
        pair.leaves(&pair.spare)?;
        pair.have(&format!("{mode}: no member left"), 0, 0)?;
        ip(&pair.operator, "link set bond0 down")?;
    }
    Ok(())
}

/// Tests refused members: a bond refuses a VLAN on itself, because that would be a loop, and devices that are
/// up. It accepts other VLANs.
fn refused_stacks() -> Result<(), Failed> {
    let pair = Pair::new("refused", "bond0", Members::Veths)?;
    let operator = &pair.operator;
    ip(operator, "link add bond0 type bond mode active-backup miimon 20")?;
    ip(operator, "link set bond0 up")?;
    pair.joins(&pair.first)?;
    let followed = Followed::begin(&pair, "bond0")?;
    pair.have("the bond's member", DEFER50, 0)?;
    ip(operator, "link add link bond0 name lan7 type vlan id 7")?;
    let of_spare = format!("link set {SPARE} master bond0");
    for refused in ["link set lan7 master bond0", "link set bond0 master bond0", &of_spare] {
        assert!(ip(operator, refused).is_err(), "{refused}");
    }
    pair.have("the refusals", DEFER50, 0)?;
    let host = operator.devices()?;
    let bond = host.device_named("bond0").ok_or("the bond")?;
    assert_eq!(host.below(bond).len(), 1, "nothing joined");
    followed.end()?;
    let host = operator.devices()?;
    assert_eq!(flushes_of(&host, host.device_named(SERVER_DEVICE)), [0; 2]);
    Ok(())
}
