//! Devices that stand on others, one test for each kind: a policy for the upper device reaches the queues below, the daemon
//! follows what joins, leaves and fails, and the host is afterwards as it was.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use libtest_mimic::{Failed, Trial};
use linux::lab::{CLIENT_ADDRESS, CLIENT_DEVICE, SERVER_DEVICE};
use model::{Host, IfIndex, NapiId};

use crate::operator::{Operator, Started, at_work, flushes_of, waited_for};
use crate::{Need, test};

/// The kinds of devices that are stacked here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Bond,
    Bridge,
    Geneve,
    Ipvlan,
    Macvlan,
    Team,
    Vlan,
    Vrf,
    Vxlan,
}

impl Kind {
    /// Whether the running kernel makes such a device, tried in a namespace of its own.
    pub(crate) fn is_there(self) -> bool {
        static TRIED: Mutex<BTreeMap<Kind, bool>> = Mutex::new(BTreeMap::new());
        let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
        *tried.entry(self).or_insert_with(|| {
            let made = match self {
                Self::Bond => "type bond",
                Self::Bridge => "type bridge",
                Self::Geneve => "type geneve id 7 remote 192.0.2.9",
                Self::Ipvlan => "link v0 type ipvlan mode l2",
                Self::Macvlan => "link v0 type macvlan mode private",
                Self::Team => "type team",
                Self::Vlan => "link v0 type vlan id 7",
                Self::Vrf => "type vrf table 10",
                Self::Vxlan => "type vxlan id 7 dstport 4789 remote 192.0.2.9",
            };
            let script = format!("ip link add v0 type veth peer name v1 && ip link add name k0 {made}");
            let output = Command::new("unshare").args(["--net", "sh", "-c", &script]).output();
            output.is_ok_and(|output| output.status.success())
        })
    }
}

/// The modes of a bond. Kernel: 6.18, `drivers/net/bonding/bond_main.c` `bond_mode_tbl`.
const MODES: [&str; 7] =
    ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];

/// A device that stands on the operator's, and how `ip` makes it. `DEV` is the operator's device.
struct Stack {
    name: String,
    upper: &'static str,
    /// The devices below the upper one, from the top down.
    below: &'static [&'static str],
    needs: Vec<Need>,
    made: Vec<String>,
}

impl Stack {
    fn new(
        name: &str,
        kinds: &[Kind],
        upper: &'static str,
        below: &'static [&'static str],
        made: &[&str],
    ) -> Self {
        let needs = [Need::Root, Need::Suspension].into_iter().chain(kinds.iter().copied().map(Need::Link));
        let made = made.iter().map(|command| command.replace("DEV", SERVER_DEVICE)).collect();
        Self { name: name.to_owned(), upper, below, needs: needs.collect(), made }
    }
}

/// How a device becomes the member of another: what is up may join no bond and no team.
const JOINS: [&str; 3] = ["link set DEV down", "link set DEV master UPPER", "link set DEV up"];

fn stacks() -> Vec<Stack> {
    use Kind::{Bond, Bridge, Geneve, Ipvlan, Macvlan, Team, Vlan, Vrf, Vxlan};
    const DEV: &[&str] = &[SERVER_DEVICE];
    const BOND: &str = "link add bond0 type bond mode active-backup miimon 20";
    const INTO_BOND: [&str; 4] =
        ["link set DEV down", "link set DEV master bond0", "link set DEV up", "link set bond0 up"];
    let bonded = |more: &[&'static str]| [&[BOND], &INTO_BOND[..], more].concat();
    let mut all: Vec<Stack> = MODES
        .iter()
        .map(|mode| {
            let made = format!("link add bond0 type bond mode {mode} miimon 20");
            let commands = [&[made.as_str()], &INTO_BOND[..]].concat();
            Stack::new(&format!("bond_{}", mode.replace(['-', '.'], "_")), &[Bond], "bond0", DEV, &commands)
        })
        .collect();
    let enslaved = |name: &str, kind, upper: &'static str, made: &str| {
        let joins = JOINS.map(|command| command.replace("UPPER", upper));
        let up = format!("link set {upper} up");
        Stack::new(name, &[kind], upper, DEV, &[made, &joins[0], &joins[1], &joins[2], &up])
    };
    all.push(enslaved("bridge", Bridge, "br0", "link add br0 type bridge"));
    all.push(enslaved("team", Team, "team0", "link add team0 type team"));
    all.push(enslaved("vrf", Vrf, "vrf0", "link add vrf0 type vrf table 10"));
    let on_top = |name: &str, kind, upper: &'static str, made: &str| {
        Stack::new(name, &[kind], upper, DEV, &[made, &format!("link set {upper} up")])
    };
    all.push(on_top("vlan", Vlan, "lan7", "link add link DEV name lan7 type vlan id 7"));
    all.push(on_top("macvlan", Macvlan, "mac0", "link add link DEV name mac0 type macvlan mode private"));
    all.push(on_top("ipvlan_l2", Ipvlan, "ipv0", "link add link DEV name ipv0 type ipvlan mode l2"));
    all.push(on_top("ipvlan_l3", Ipvlan, "ipv0", "link add link DEV name ipv0 type ipvlan mode l3"));
    all.push(on_top(
        "vxlan",
        Vxlan,
        "vx7",
        "link add vx7 type vxlan id 7 dstport 4789 remote 192.0.2.9 dev DEV",
    ));
    // Neither names a device: its packets leave by the route to its other end.
    let vxlan = format!("link add vx7 type vxlan id 7 dstport 4789 remote {CLIENT_ADDRESS}");
    all.push(on_top("vxlan_by_route", Vxlan, "vx7", &vxlan));
    let geneve = format!("link add gen7 type geneve id 7 remote {CLIENT_ADDRESS}");
    all.push(on_top("geneve_by_route", Geneve, "gen7", &geneve));
    all.push(Stack::new(
        "qinq",
        &[Vlan],
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
        &[Bond, Vlan],
        "lan7",
        &["bond0", SERVER_DEVICE],
        &bonded(&["link add link bond0 name lan7 type vlan id 7", "link set lan7 up"]),
    ));
    all.push(Stack::new(
        "bridge_on_vlan_on_bond",
        &[Bond, Vlan, Bridge],
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
        &[Bond, Macvlan],
        "mac0",
        &["bond0", SERVER_DEVICE],
        &bonded(&["link add link bond0 name mac0 type macvlan mode private", "link set mac0 up"]),
    ));
    all.push(Stack::new(
        "bond_on_vlan",
        &[Bond, Vlan],
        "bond0",
        &["lan7", SERVER_DEVICE],
        &[
            "link add link DEV name lan7 type vlan id 7",
            BOND,
            "link set lan7 master bond0",
            "link set lan7 up",
            "link set bond0 up",
        ],
    ));
    all
}

pub(crate) fn tests() -> Vec<Trial> {
    use Kind::{Bond, Bridge, Team, Vlan, Vrf};
    let reached = stacks().into_iter().map(|stack| {
        let name = format!("stacks/a_policy_for_an_upper_device_reaches_the_queues_below/{}", stack.name);
        let needs = stack.needs.clone();
        test(name, &needs, move || reaches(&stack))
    });
    let followed = |name: &str, kinds: &[Kind], made: &'static [&'static str], upper, mastered| {
        let needs = [Need::Root, Need::Suspension, Need::Link(Vlan)];
        let needs: Vec<Need> = needs.into_iter().chain(kinds.iter().copied().map(Need::Link)).collect();
        let name = format!("stacks/the_daemon_follows_members_and_vlans_of_a/{name}");
        test(name, &needs, move || follows(made, upper, mastered))
    };
    let bond: &[Need] = &[Need::Root, Need::Suspension, Need::Link(Bond)];
    let vlan_of_bond: &[Need] = &[Need::Root, Need::Suspension, Need::Link(Bond), Need::Link(Vlan)];
    let mut all: Vec<Trial> = reached.collect();
    all.extend([
        followed("bridge", &[Bridge], &["link add br0 type bridge"], "br0", "br0"),
        followed("team", &[Team], &["link add team0 type team"], "team0", "team0"),
        followed("vrf", &[Vrf], &["link add vrf0 type vrf table 10"], "vrf0", "vrf0"),
        followed(
            "vlan_on_bond",
            &[Bond],
            &[
                "link add bond0 type bond mode active-backup miimon 20",
                "link set bond0 up",
                "link add link bond0 name lan5 type vlan id 5",
                "link set lan5 up",
            ],
            "lan5",
            "bond0",
        ),
        test("stacks/the_daemon_follows_a_bond_through_every_mode", bond, every_mode),
        test(
            "stacks/a_stack_that_the_kernel_refuses_leaves_the_policy_in_force",
            vlan_of_bond,
            refused_stacks,
        ),
    ]);
    all
}

/// `gro-flush-timeout` of suspend20 and of defer50, in nanoseconds.
const SUSPEND20: u64 = 20_000;
const DEFER50: u64 = 50_000;

fn ip(operator: &Operator, command: &str) -> Result<(), Failed> {
    operator.inside(&format!("ip {command}")).map(|_| ())
}

/// The whole host; NAPIs are numbered by their place on their device, because a device that goes down and up gets new ones,
/// and a bond without a member has no address: the kernel gives it another one each time. Kernel: 6.18,
/// `drivers/net/bonding/bond_main.c` `__bond_release_one()`.
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

/// Waits until the host is again as it was: a carrier comes back a little after its device.
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
        Ok(operator.host()?.device_named(device).is_some_and(|device| device.up).then_some(()))
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
    let words = format!("device {upper} stands on {SERVER_DEVICE}, whose queues are set");
    assert!(applied.words.contains(&words), "{}", applied.words);
    let host = operator.host()?;
    assert_eq!(flushes_of(&host, host.device_named(SERVER_DEVICE)), [SUSPEND20; 2]);
    operator.runs(&["verify"], 0)?;
    let shown = operator.runs(&["show"], 0)?.data;
    let drawn = format!("└─ {SERVER_DEVICE} (veth, 2 queues)");
    assert!(shown.contains(&drawn), "{shown}");
    operator.runs(&["rollback"], 0)?;
    is_again(&operator, &before)
}

/// A second device of the operator's, whose other end is the client's.
const SPARE: &str = "spare0";
const FAR: &str = "spare1";

/// An operator with two devices that join and leave a third.
struct Pair {
    operator: Operator,
    mastered: &'static str,
    /// Whether a daemon is at work. Events are made once without one: they change the host themselves (a bridge without a
    /// member loses its address), and what is compared is the host that they leave behind.
    is_followed: Cell<bool>,
}

impl Pair {
    fn new(name: &str, mastered: &'static str) -> Result<Self, Failed> {
        let operator = Operator::new(&format!("stacks-{name}"), 2)?;
        let there = operator.lab.client_path();
        let queues = "numrxqueues 2 numtxqueues 2";
        let veth =
            format!("link add {SPARE} {queues} type veth peer name {FAR} {queues} netns {}", there.display());
        ip(&operator, &veth)?;
        operator.inside(&format!("ethtool -K {SPARE} gro on"))?;
        ip(&operator, &format!("link set {SPARE} up"))?;
        let pair = Self { operator, mastered, is_followed: Cell::new(false) };
        pair.at_the_far_end(FAR, "up")?;
        is_up(&pair.operator, SPARE)?;
        Ok(pair)
    }

    /// Takes the other end of a device down or up: so its carrier goes and comes.
    fn at_the_far_end(&self, device: &str, state: &str) -> Result<(), Failed> {
        let there = format!("--net={}", self.operator.lab.client_path().display());
        let status = Command::new("nsenter").args([&there, "ip", "link", "set", device, state]).status()?;
        status.success().then_some(()).ok_or_else(|| format!("{device} {state}: {status}").into())
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

    /// Waits until the queues of the first device and of the spare one have these timeouts, if a daemon is at work.
    fn have(&self, event: &str, first: u64, spare: u64) -> Result<(), Failed> {
        if !self.is_followed.get() {
            return Ok(());
        }
        let converged = || {
            let host = self.operator.host()?;
            let of = |name| flushes_of(&host, host.device_named(name));
            Ok((of(SERVER_DEVICE) == [first; 2] && of(SPARE) == [spare; 2]).then_some(()))
        };
        let waited = waited_for(&format!("{event}: timeouts of {first} and {spare} ns"), converged);
        if let Err(failed) = waited {
            return Err(format!("{failed:?}, the daemon: {}", self.operator.said()?).into());
        }
        Ok(())
    }

    /// The first member's carrier goes and comes back: the queues of both keep their values.
    fn fails_over(&self) -> Result<(), Failed> {
        self.at_the_far_end(CLIENT_DEVICE, "down")?;
        waited_for("the lost carrier", || {
            let host = self.operator.host()?;
            Ok(host.device_named(SERVER_DEVICE).is_some_and(|device| !device.up).then_some(()))
        })?;
        self.have("a member failed", DEFER50, DEFER50)?;
        if self.operator.inside(&format!("ip -d link show {}", self.mastered))?.contains("active-backup") {
            let now = || self.operator.inside(&format!("ip -d link show {}", self.mastered));
            waited_for("the other member as the active one", || {
                Ok(now()?.contains(&format!("active_slave {SPARE}")).then_some(()))
            })?;
        }
        self.at_the_far_end(CLIENT_DEVICE, "up")?;
        is_up(&self.operator, SERVER_DEVICE)?;
        self.have("a member came back", DEFER50, DEFER50)
    }
}

/// A daemon that follows a device, and is ended as its unit ends it; what it set is taken back.
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
    let pair = Pair::new(&format!("follow-{upper}"), mastered)?;
    for command in made {
        ip(&pair.operator, command)?;
    }
    ip(&pair.operator, &format!("link set {mastered} up"))?;
    members_come_and_go(&pair)?;
    a_vlan_comes_and_goes(&pair)?;
    pair.leaves(SERVER_DEVICE)?;
    let before = settled(&pair.operator)?;

    let followed = Followed::begin(&pair, upper)?;
    members_come_and_go(&pair)?;
    followed.end()?;
    let followed = Followed::begin(&pair, "lan7")?;
    a_vlan_comes_and_goes(&pair)?;
    followed.end()?;
    pair.leaves(SERVER_DEVICE)?;
    is_again(&pair.operator, &before)
}

/// At the end the first device is a member.
fn members_come_and_go(pair: &Pair) -> Result<(), Failed> {
    pair.have("no member", 0, 0)?;
    pair.joins(SERVER_DEVICE)?;
    pair.have("the first member added", DEFER50, 0)?;
    pair.joins(SPARE)?;
    pair.have("a member added", DEFER50, DEFER50)?;
    pair.fails_over()?;
    pair.leaves(SERVER_DEVICE)?;
    pair.have("a member removed", 0, DEFER50)?;
    pair.joins(SERVER_DEVICE)?;
    pair.leaves(SPARE)?;
    pair.have("a member replaced", DEFER50, 0)
}

fn a_vlan_comes_and_goes(pair: &Pair) -> Result<(), Failed> {
    pair.have("no VLAN", 0, 0)?;
    // A VRF takes no VLAN: its member does.
    let carrier = if pair.mastered == "vrf0" { SERVER_DEVICE } else { pair.mastered };
    ip(&pair.operator, &format!("link add link {carrier} name lan7 type vlan id 7"))?;
    ip(&pair.operator, "link set lan7 up")?;
    pair.have("a VLAN added", DEFER50, 0)?;
    ip(&pair.operator, "link del lan7")?;
    pair.have("a VLAN removed", 0, 0)
}

fn every_mode() -> Result<(), Failed> {
    let pair = Pair::new("modes", "bond0")?;
    ip(&pair.operator, "link add bond0 type bond miimon 20")?;
    // The host that is compared is the one that the last mode leaves behind.
    modes_one_after_the_other(&pair, &MODES[MODES.len() - 1..])?;
    let before = settled(&pair.operator)?;
    let followed = Followed::begin(&pair, "bond0")?;
    modes_one_after_the_other(&pair, &MODES)?;
    followed.end()?;
    is_again(&pair.operator, &before)
}

fn modes_one_after_the_other(pair: &Pair, modes: &[&str]) -> Result<(), Failed> {
    for &mode in modes {
        // The kernel changes the mode of a bond that is down and has no member, and of no other.
        ip(&pair.operator, &format!("link set bond0 type bond mode {mode}"))?;
        ip(&pair.operator, "link set bond0 up")?;
        pair.joins(SERVER_DEVICE)?;
        pair.have(&format!("{mode}: mode changed"), DEFER50, 0)?;
        pair.joins(SPARE)?;
        pair.have(&format!("{mode}: a member added"), DEFER50, DEFER50)?;
        let other = if mode == "balance-xor" { "broadcast" } else { "balance-xor" };
        let refused = ip(&pair.operator, &format!("link set bond0 type bond mode {other}"));
        assert!(refused.is_err(), "{mode}: the mode of a bond with members");
        pair.fails_over()?;
        pair.leaves(SERVER_DEVICE)?;
        pair.have(&format!("{mode}: a member removed"), 0, DEFER50)?;
        pair.leaves(SPARE)?;
        pair.have(&format!("{mode}: no member left"), 0, 0)?;
        ip(&pair.operator, "link set bond0 down")?;
    }
    Ok(())
}

/// A bond takes a VLAN for a member, but none of its own: the kernel refuses circles, and what is up.
fn refused_stacks() -> Result<(), Failed> {
    let pair = Pair::new("refused", "bond0")?;
    let operator = &pair.operator;
    ip(operator, "link add bond0 type bond mode active-backup miimon 20")?;
    ip(operator, "link set bond0 up")?;
    pair.joins(SERVER_DEVICE)?;
    let followed = Followed::begin(&pair, "bond0")?;
    pair.have("the bond's member", DEFER50, 0)?;
    ip(operator, "link add link bond0 name lan7 type vlan id 7")?;
    let of_spare = format!("link set {SPARE} master bond0");
    for refused in ["link set lan7 master bond0", "link set bond0 master bond0", &of_spare] {
        assert!(ip(operator, refused).is_err(), "{refused}");
    }
    pair.have("the refusals", DEFER50, 0)?;
    let host = operator.host()?;
    let bond = host.device_named("bond0").ok_or("the bond")?;
    assert_eq!(host.below(bond).len(), 1, "nothing joined");
    followed.end()?;
    let host = operator.host()?;
    assert_eq!(flushes_of(&host, host.device_named(SERVER_DEVICE)), [0; 2]);
    Ok(())
}
