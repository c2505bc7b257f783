//! Tests rules whose kinds some kernels lack, and rules that are offloaded to a NIC.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use libtest_mimic::{Failed, Trial};
use tc_rules::kernel::{Devices, Loader, Options, dump};
use tc_rules::{Batch, Expected, RuleMatch};
use testkit::{Need, test};

use crate::rules::{HOOK, Stage, text};

pub(crate) fn tests() -> Vec<Trial> {
    use Need::{Netdevsim, Root};
    vec![
        test("every_kind_of_rule_is_dumped_as_it_was_loaded", &[Root, Need::EVERY_RULE_KIND], every_kind),
        test(
            "flower_rules_are_loaded_and_are_as_the_kernel_dumps_them",
            &[Root, Need::FLOWER, Need::GACT],
            flower,
        ),
        test(
            "rules_with_cookies_are_known_by_them_until_somebody_changes_one",
            &[Root, Need::FLOWER, Need::GACT],
            cookies,
        ),
        test("tunnels_are_set_and_unset_by_rules", &[Root, Need::FLOWER, Need::TUNNEL_KEY], tunnels),
        test(
            "rules_of_a_chain_are_reached_by_goto",
            &[Root, Need::FLOWER, Need::GACT, Need::MATCHALL],
            chains,
        ),
        test(
            "a_rule_for_hardware_is_where_the_nic_took_it",
            &[Root, Need::FLOWER, Need::GACT, Netdevsim],
            in_hardware,
        ),
        test(
            "a_rule_that_a_nic_refuses_has_its_line_and_the_drivers_words",
            &[Root, Need::FLOWER, Need::GACT, Need::MATCHALL, Netdevsim],
            refused_by_a_nic,
        ),
        test(
            "a_rule_for_hardware_is_refused_where_there_is_none",
            &[Root, Need::FLOWER, Need::GACT],
            refused_without_hardware,
        ),
    ]
}

/// The kinds of classifiers, matches and actions to test: the golden lines with them are loaded, and the
/// kernel must accept at least one line of each kind.
const KINDS: &[&str] = &[
    "basic match",
    "cgroup",
    "flow map",
    "flow key",
    "flow hash",
    "fw",
    "route",
    "cmp(",
    "u32(",
    "nbyte(",
    "meta(",
    "canid(",
    "bpf bytecode",
    "action nat",
    "action sample",
    "action mpls",
    "action connmark",
    "action ctinfo",
    "action skbmod",
    "action simple",
    "action ife",
    "action gate",
    "action bpf",
    "police",
];

fn every_kind() -> Result<(), Failed> {
    let stage = Stage::new("every_kind");
    let device = stage.hook();
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    let (mut wrong, mut refused) = (String::new(), String::new());
    let lines = include_str!("../golden/lines.batch").lines();
    let of_kinds = |line: &&str| KINDS.iter().any(|kind| line.contains(kind));
    for line in lines.filter(|line| line.starts_with("filter add dev d0 ")).filter(of_kinds) {
        // Rules of classifiers without offload name no hook.
        let hooked = ["ingress", "egress", "parent"].iter().any(|hook| line.contains(hook));
        let line = if hooked { line.to_owned() } else { line.replacen("dev d0", "dev d0 ingress", 1) };
        stage.run("tc", &["qdisc", "del", "dev", "d0", "clsact"]);
        assert!(stage.run("tc", &["qdisc", "add", "dev", "d0", "clsact"]).status.success());
        let mut devices = Devices::of(&stage.netns);
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut devices).expect("read").expect("a command");
        let Some(rule) = command.rule().filter(|rule| rule.hook == device).cloned() else { continue };
        let mut loader = Loader::open(&stage.netns, Options::default())?;
        loader.push(1, command)?;
        let account = loader.finish()?;
        if let Some(answer) = account.refused.first() {
            writeln!(refused, "{line}\n  {:?}", answer.cause())?;
            continue;
        }
        taken.extend(KINDS.iter().copied().filter(|kind| line.contains(kind)));
        let mut expected = Expected::default();
        expected.add(&rule, 1);
        let mut dumped_rules = Vec::new();
        dump::rules(&stage.netns, device, |dumped| match dumped {
            dump::Dumped::Begin => dumped_rules.clear(),
            dump::Dumped::Rule(rule) => dumped_rules.push(Some(rule.clone())),
            dump::Dumped::Unknown => dumped_rules.push(None),
        })?;
        for found in &dumped_rules {
            let Some(found) = found else {
                writeln!(wrong, "{line} is unknown in the dump")?;
                continue;
            };
            if expected.match_rule(found) != RuleMatch::Expected(1) {
                writeln!(wrong, "{line}\n  {:?}\n  {:?}", found.canonical(), rule.canonical())?;
            }
            if found.line(&mut devices).is_none() {
                writeln!(wrong, "{line}\n  has no line: {:?}", found.words(&mut devices))?;
            }
        }
        if !expected.missing().is_empty() {
            writeln!(wrong, "{line}\n  is missing")?;
        }
    }
    let absent: Vec<&&str> = KINDS.iter().filter(|kind| !taken.contains(**kind)).collect();
    assert!(wrong.is_empty(), "{wrong}");
    assert!(absent.is_empty(), "the kernel accepted no line of {absent:?}: {refused}");
    Ok(())
}

/// Returns the rules of d0 as tc prints them.
fn shown_by_tc(stage: &Stage) -> String {
    let output = stage.run("tc", &["-s", "filter", "show", "dev", "d0", "ingress"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Loads the rules, and checks that the kernel has the same.
fn load(stage: &Stage, rules: &str, count: u64) -> serde_json::Value {
    let file = stage.file(&format!("{HOOK}{rules}"));
    let (code, report) = stage.netpolicy(&["tc", "load", text(&file)]);
    assert_eq!((code, &report["loaded"]), (0, &(count + 1).into()), "{report}");
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"], &report["extra"]), (0, &count.into(), &0.into()), "{report}");
    report
}

fn flower() -> Result<(), Failed> {
    let stage = Stage::new("flower");
    let rule = |n: u32| {
        format!(
            "filter add dev d0 protocol ip ingress prio 1 handle {} flower skip_hw src_ip 10.0.{}.{} \
             ip_proto tcp dst_port 80 action {}\n",
            n + 1,
            n / 256,
            n % 256,
            if n.is_multiple_of(2) { "drop" } else { "pass" }
        )
    };
    let rules: String = (0..1000).map(rule).collect();
    load(&stage, &rules, 1000);
    let shown = shown_by_tc(&stage);
    assert_eq!(shown.matches("gact action drop").count(), 500);
    assert_eq!(shown.matches("src_ip 10.0.3.231").count(), 1);
    // A dump can be loaded, and dumping it again gives the same.
    let dumped = stage.run(testkit::programs::netpolicy(), &["tc", "dump", "--dev", "d0"]);
    let dumped = String::from_utf8(dumped.stdout)?;
    let other = Stage::new("flower_other");
    load(&other, &dumped, 1000);
    // A diff with a file in which one rule was changed reports that rule.
    let changed =
        stage.file(&format!("{HOOK}{}", rules.replace("10.0.3.231 ip_proto tcp", "10.0.3.231 ip_proto udp")));
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&changed)]);
    assert_eq!((code, &report["same"]), (3, &999.into()), "{report}");
    Ok(())
}

fn cookies() -> Result<(), Failed> {
    let stage = Stage::new("cookies");
    let rule = |number: u32, action: &str| {
        format!(
            "filter add dev d0 ingress protocol ip prio 1 handle {number} flower dst_ip 10.0.{}.{} action {action}\n",
            number >> 8,
            number & 255
        )
    };
    let rules: String = (1..=300).map(|number| rule(number, "drop")).collect();
    let file = stage.file(&format!("{HOOK}{rules}"));
    let (code, report) = stage.netpolicy(&["tc", "load", "--cookies", text(&file)]);
    assert_eq!((code, &report["cookies"]), (0, &300.into()), "{report}");
    let compared = |same: u32, by_cookie: u32, different: &[u32], extra: u32| {
        let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
        assert_eq!(code, i32::from(!different.is_empty() || extra > 0) * 3, "{report}");
        let counts = (&report["same"], &report["by_cookie"], &report["different"], &report["extra"]);
        assert_eq!(counts, (&same.into(), &by_cookie.into(), &serde_json::json!(different), &extra.into()));
    };
    let tc = |line: &str| {
        let output = stage.run("tc", &line.trim().split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    compared(300, 300, &[], 0);
    // A replaced rule loses its cookie, and is compared in full.
    tc(&rule(7, "pass").replace("add", "replace"));
    compared(299, 299, &[8], 0);
    tc(&rule(7, "drop").replace("add", "replace"));
    compared(300, 299, &[], 0);
    tc(&rule(400, "drop"));
    compared(300, 299, &[], 1);
    tc("filter del dev d0 ingress protocol ip prio 1 handle 400 flower");
    // u32 has no terse dump: with such a rule, the kernel dumps every rule in full.
    tc("filter add dev d0 ingress protocol ip prio 9 u32 match u32 0 0 action drop");
    compared(300, 0, &[], 0);
    tc("filter del dev d0 ingress prio 9");
    // A dump includes the cookies, and a load of the dump sets them again.
    let dumped = stage.run(testkit::programs::netpolicy(), &["tc", "dump", "--dev", "d0", "--qdisc"]);
    let other = Stage::new("cookies_other");
    let again = other.file(&String::from_utf8(dumped.stdout)?);
    assert_eq!(other.netpolicy(&["tc", "load", text(&again)]).0, 0);
    assert_eq!(other.netpolicy(&["tc", "diff", text(&again)]).0, 0);
    // Changing an action by its index keeps the rule's cookie, so the change goes unnoticed.
    let listed = stage.run(
        "tc",
        &[
            "-j", "filter", "get", "dev", "d0", "ingress", "protocol", "ip", "prio", "1", "handle", "9",
            "flower",
        ],
    );
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
    let index = &listed[0]["options"]["actions"][0]["index"];
    tc(&format!("actions change action pass index {index}"));
    compared(300, 299, &[], 0);
    Ok(())
}

fn tunnels() -> Result<(), Failed> {
    let stage = Stage::new("tunnels");
    let rules = "filter add dev d0 protocol ip ingress prio 1 handle 1 flower src_ip 10.0.0.1 action tunnel_key set id 7 \
                 src_ip 192.0.2.1 dst_ip 192.0.2.2 dst_port 4789 ttl 64 nocsum action mirred egress redirect dev d1\n\
                 filter add dev d0 protocol ip ingress prio 1 handle 2 flower enc_dst_ip 192.0.2.1 enc_src_ip 192.0.2.2 \
                 enc_key_id 7 enc_dst_port 4789 action tunnel_key unset action mirred egress redirect dev d1\n";
    load(&stage, rules, 2);
    let shown = shown_by_tc(&stage);
    for word in ["tunnel_key", "key_id 7", "enc_key_id 7", "nocsum", "unset", "Egress Redirect to device d1"]
    {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    Ok(())
}

fn chains() -> Result<(), Failed> {
    let stage = Stage::new("chains");
    let rules = "filter add dev d0 protocol ip ingress prio 1 handle 1 flower dst_ip 10.9.0.2 action goto chain 5\n\
                 filter add dev d0 protocol all ingress chain 5 prio 1 handle 1 matchall action drop\n";
    load(&stage, rules, 2);
    // Check with packets: a packet to this address leaves d1, arrives at d0, and is dropped in the chain.
    for command in [
        "link set d0 up",
        "link set d1 up",
        "addr add 10.9.0.1/24 dev d1",
        "neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev d1",
        "neigh add 10.9.0.3 lladdr 02:00:00:00:00:03 dev d1",
    ] {
        let output = stage.run("ip", &command.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let send = || -> std::io::Result<()> {
        let socket = std::net::UdpSocket::bind("10.9.0.1:0")?;
        for (address, packets) in [("10.9.0.2:9", 3), ("10.9.0.3:9", 4)] {
            for _ in 0..packets {
                socket.send_to(b"x", address)?;
            }
        }
        Ok(())
    };
    stage.netns.run(send)??;
    let shown = shown_by_tc(&stage);
    let in_chain = shown.split("chain 5").last().expect("some text");
    assert!(in_chain.contains("Sent") && in_chain.contains(" 3 pkt (dropped 3,"), "{shown}");
    Ok(())
}

/// A stage whose d0 is a simulated NIC of netdevsim.
struct Hardware {
    stage: Stage,
    number: u32,
}

impl Hardware {
    fn new(name: &str) -> Self {
        let stage = Stage::new(name);
        let number = 1_000_000 + std::process::id();
        let order = format!("{number} 1 1");
        let made = stage.netns.run(|| std::fs::write("/sys/bus/netdevsim/new_device", order));
        made.expect("inside").expect("a simulated NIC");
        let hardware = Self { stage, number };
        for command in ["link del d0", "link set eth0 name d0", "link set d0 up"] {
            let output = hardware.stage.run("ip", &command.split(' ').collect::<Vec<_>>());
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let switched = hardware.stage.run("ethtool", &["-K", "d0", "hw-tc-offload", "on"]);
        assert!(switched.status.success(), "{}", String::from_utf8_lossy(&switched.stderr));
        hardware
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        let _ = std::fs::write("/sys/bus/netdevsim/del_device", self.number.to_string());
    }
}

fn in_hardware() -> Result<(), Failed> {
    let hardware = Hardware::new("in_hardware");
    let rule = |handle: u32, flag: &str| {
        format!(
            "filter add dev d0 protocol ip ingress prio 1 handle {handle} flower {flag} dst_ip 10.0.0.{handle} action drop\n"
        )
    };
    let rules = rule(1, "skip_sw") + &rule(2, "") + &rule(3, "skip_hw");
    let report = load(&hardware.stage, &rules, 3);
    assert_eq!((&report["in_hardware"], &report["not_in_hardware"]), (&2.into(), &1.into()), "{report}");
    let shown = shown_by_tc(&hardware.stage);
    assert_eq!(shown.matches("in_hw in_hw_count 1").count(), 2, "{shown}");
    assert_eq!(shown.matches("not_in_hw").count(), 1, "{shown}");
    Ok(())
}

fn refused_by_a_nic() -> Result<(), Failed> {
    let hardware = Hardware::new("refused_by_a_nic");
    // netdevsim offloads only flower, not matchall.
    let flower =
        "filter add dev d0 protocol ip ingress prio 1 handle 1 flower skip_sw dst_ip 10.0.0.1 action drop\n";
    let matchall = "filter add dev d0 protocol ip ingress prio 2 handle 1 matchall skip_sw action drop\n";
    let after = flower.replace("handle 1", "handle 2").replace("10.0.0.1", "10.0.0.2");
    let file = hardware.stage.file(&format!("{HOOK}{flower}{matchall}{after}"));
    let (code, report) = hardware.stage.netpolicy(&["tc", "load", text(&file), "--keep-going"]);
    assert_eq!((code, &report["loaded"]), (1, &3.into()), "{report}");
    let refused = &report["refused"][0];
    assert_eq!(refused["line"], 3, "{report}");
    let words = refused["words"].as_str().expect("words");
    assert!(words.contains("netdevsim: offload type not supported"), "{words}");
    assert_eq!(hardware.stage.rules(), 2);
    // The load is undone completely.
    let all = format!("{}{matchall}", flower.replace("prio 1", "prio 7"));
    let file = hardware.stage.file(&all);
    let (code, report) = hardware.stage.netpolicy(&["tc", "load", "--atomic", text(&file)]);
    assert_eq!((code, &report["undone"]), (4, &true.into()), "{report}");
    assert_eq!(hardware.stage.rules(), 2);
    Ok(())
}

fn refused_without_hardware() -> Result<(), Failed> {
    let stage = Stage::new("refused_without_hardware");
    let rule =
        "filter add dev d0 protocol ip ingress prio 1 handle 1 flower skip_sw dst_ip 10.0.0.1 action drop\n";
    let file = stage.file(&format!("{HOOK}{rule}"));
    let (code, report) = stage.netpolicy(&["tc", "load", text(&file)]);
    assert_eq!(
        (code, &report["loaded"], &report["refused"][0]["line"]),
        (1, &1.into(), &2.into()),
        "{report}"
    );
    let words = report["refused"][0]["words"].as_str().expect("words");
    assert!(words.contains("EOPNOTSUPP"), "{words}");
    assert_eq!(stage.rules(), 0);
    Ok(())
}
