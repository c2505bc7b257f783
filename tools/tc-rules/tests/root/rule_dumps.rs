//! The output of `tc dump` can be loaded by netpolicy and by tc, with the same result.

use libtest_mimic::{Failed, Trial};
use testkit::{Need, test};

use crate::rules::{Stage, text};

pub(crate) fn tests() -> Vec<Trial> {
    use Need::Root;
    vec![
        test("a_dump_of_a_shared_block_loads_whatever_the_order_of_its_priorities", &[Root], shared_block),
        test("a_table_of_both_hooks_is_dumped_once", &[Root], both_hooks),
        test("a_table_is_dumped_before_a_rule_that_leads_to_it", &[Root], linked),
        test("a_block_of_two_devices_is_dumped_once", &[Root], two_devices),
        test("empty_chains_are_dumped", &[Root], empty_chains),
        test("templates_of_chains_are_dumped", &[Root, Need::FLOWER, Need::GACT], templates),
        test(
            "options_of_erspan_are_dumped_as_tc_takes_them",
            &[Root, Need::FLOWER, Need::TUNNEL_KEY],
            erspan,
        ),
        test("any_rules_of_u32_are_dumped_as_they_load", &[Root], || any(Kinds::U32)),
        test("any_rules_are_dumped_as_they_load", &[Root, Need::FLOWER, Need::GACT, Need::MATCHALL], || {
            any(Kinds::All)
        }),
    ]
}

const REDIRECT: &str = "action mirred egress redirect dev d1";

/// The lines of a dump, in which no rule is skipped.
fn dump(stage: &Stage, what: &[&str]) -> String {
    let output = stage.run(testkit::programs::netpolicy(), &[&["tc", "dump", "--qdisc"], what].concat());
    assert!(output.status.success(), "{what:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn sorted(lines: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    lines
}

/// Loads a file, then loads its dump in other namespaces, with netpolicy and with tc. Dumps of these
/// namespaces must have the same lines as the first, in any order.
fn loads_again(name: &str, file: &str, what: &[&str]) -> String {
    let stage = Stage::new(name);
    let (code, report) = stage.netpolicy(&["tc", "load", text(&stage.file(file))]);
    assert_eq!(code, 0, "{file}\n{report}");
    identity(&stage, name, what)
}

/// Dumps this namespace, loads the dump in another one, and checks that a dump there is identical.
fn identity(stage: &Stage, name: &str, what: &[&str]) -> String {
    let dumped = dump(stage, what);
    let own = Stage::new(&format!("{name}_own"));
    let (code, report) = own.netpolicy(&["tc", "load", text(&own.file(&dumped))]);
    assert_eq!(code, 0, "{dumped}\n{report}");
    assert_eq!(sorted(&dump(&own, what)), sorted(&dumped), "loaded by netpolicy");
    let foreign = Stage::new(&format!("{name}_tc"));
    let output = foreign.run("tc", &["-b", text(&foreign.file(&dumped))]);
    assert!(output.status.success(), "{dumped}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(sorted(&dump(&foreign, what)), sorted(&dumped), "loaded by tc");
    dumped
}

fn rule(place: &str, rest: &str, address: u8) -> String {
    format!("filter add {place} u32 {rest}match ip dst 10.0.0.{address}/32 {REDIRECT}\n")
}

fn shared_block() -> Result<(), Failed> {
    let rules = [
        "qdisc add dev d0 ingress_block 7 clsact\nqdisc add dev d1 ingress_block 7 clsact\n",
        &rule("block 7 protocol ip prio 5", "", 1),
        &rule("block 7 protocol ip prio 1", "", 2),
        &rule("block 7 protocol ip prio 3 chain 4", "", 3),
        &rule("block 7 protocol ip prio 2", "", 4),
    ]
    .concat();
    for what in [&[][..], &["--block", "7"], &["--dev", "d0"]] {
        let dumped = loads_again("shared", &rules, what);
        assert!(
            !dumped.contains(" ht "),
            "{what:?}: no rule may name the table that the kernel created: {dumped}"
        );
        assert_eq!(dumped.matches("filter add block 7 ").count(), 4, "{what:?}: {dumped}");
    }
    Ok(())
}

fn both_hooks() -> Result<(), Failed> {
    let rules = [
        "qdisc add dev d0 clsact\n",
        "filter add dev d0 ingress protocol ip prio 1 handle 9: u32 divisor 4\n",
        &rule("dev d0 ingress protocol ip prio 1", "ht 9:1: ", 1),
        &rule("dev d0 ingress protocol ip prio 1", "", 2),
        &rule("dev d0 egress protocol ip prio 1", "", 3),
        "filter add dev d0 egress protocol ip prio 1 u32 match u32 0 0 link 9:\n",
    ]
    .concat();
    for what in [&[][..], &["--dev", "d0"]] {
        let dumped = loads_again("both", &rules, what);
        assert_eq!(dumped.matches("divisor").count(), 1, "{what:?}: {dumped}");
        assert_eq!(dumped.lines().count(), 6, "{what:?}: {dumped}");
    }
    Ok(())
}

fn linked() -> Result<(), Failed> {
    let place = "filter add dev d0 ingress protocol ip";
    let rules = [
        "qdisc add dev d0 clsact\n".to_owned(),
        format!("{place} prio 3 handle 1: u32 divisor 1\n{place} prio 2 handle 2: u32 divisor 1\n"),
        rule("dev d0 ingress protocol ip prio 3", "ht 1: ", 1),
        // Links from the newer table to the older one, and from a lower priority number to a higher one.
        format!("{place} prio 2 u32 ht 2: match u32 0 0 link 1:\n{place} prio 1 u32 match u32 0 0 link 2:\n"),
    ];
    let dumped = loads_again("linked", &rules.concat(), &[]);
    assert_eq!(dumped.lines().count(), 6, "{dumped}");
    Ok(())
}

fn two_devices() -> Result<(), Failed> {
    let rules = [
        "qdisc add dev d0 ingress_block 7 egress_block 8 clsact\nqdisc add dev d1 ingress_block 8 ingress\n",
        "filter add block 7 protocol ip prio 1 handle 1: u32 divisor 1\n",
        "filter add block 8 protocol ip prio 1 handle 1: u32 divisor 2\n",
        &rule("block 7 protocol ip prio 1", "ht 1: ", 1),
        &rule("block 8 protocol ip prio 1", "ht 1:1: ", 2),
    ]
    .concat();
    let dumped = loads_again("two_devices", &rules, &[]);
    assert_eq!(dumped.lines().count(), 6, "{dumped}");
    // Dumping by device includes both blocks, and by block both devices.
    let dumped = loads_again("two_devices", &rules, &["--dev", "d0"]);
    assert_eq!(dumped.lines().count(), 5, "{dumped}");
    let dumped = loads_again("two_devices", &rules, &["--block", "8"]);
    assert_eq!(dumped.matches("filter add").count(), 2, "{dumped}");
    Ok(())
}

fn empty_chains() -> Result<(), Failed> {
    let rules = [
        "qdisc add dev d0 ingress_block 7 clsact\n",
        "chain add block 7 chain 3\nchain add dev d0 egress chain 9\nchain add dev d0 egress chain 10\n",
        &rule("dev d0 egress protocol ip prio 1 chain 10", "", 1),
    ]
    .concat();
    let dumped = loads_again("chains", &rules, &[]);
    let chains: Vec<&str> = dumped.lines().filter(|line| line.starts_with("chain")).collect();
    assert_eq!(chains, ["chain add block 7 chain 3", "chain add dev d0 egress chain 9"]);
    Ok(())
}

fn templates() -> Result<(), Failed> {
    let rules = "qdisc add dev d0 clsact\n\
                 chain add dev d0 ingress protocol ip chain 3 flower dst_mac 00:00:00:00:00:00/ff:ff:ff:ff:ff:ff\n\
                 chain add dev d0 ingress chain 4 flower src_mac 00:00:00:00:00:00/ff:ff:ff:00:00:00\n\
                 chain add dev d0 egress protocol ipv6 chain 3 flower dst_ip ::/64\n\
                 filter add dev d0 ingress protocol ip prio 1 chain 3 flower dst_mac 02:00:00:00:00:01 action drop\n\
                 filter add dev d0 egress protocol ipv6 prio 1 chain 3 flower dst_ip fe80::/64 action goto chain 5\n";
    let dumped = loads_again("templates", rules, &[]);
    assert_eq!(dumped.matches("chain add").count(), 3, "{dumped}");
    // The loaded template is in force: a rule that does not match it is refused.
    let other = Stage::new("templates_other");
    let wrong =
        "filter add dev d0 ingress protocol ip prio 1 chain 3 flower src_mac 02:00:00:00:00:01 action drop\n";
    let (code, report) = other.netpolicy(&["tc", "load", text(&other.file(&format!("{dumped}{wrong}")))]);
    assert_eq!((code, report["refused"].as_array().map(Vec::len)), (1, Some(1)), "{report}");
    Ok(())
}

fn erspan() -> Result<(), Failed> {
    let rules = "qdisc add dev d0 clsact\n\
                 filter add dev d0 ingress protocol ip prio 1 flower enc_key_id 5 erspan_opts 2:0:1:63 action drop\n\
                 filter add dev d0 ingress protocol ip prio 2 flower enc_key_id 5 erspan_opts 1:7:0:0 action drop\n\
                 filter add dev d0 ingress protocol ip prio 3 flower action tunnel_key set src_ip 1.1.1.1 dst_ip 2.2.2.2 id 5 \
                 dst_port 0 erspan_opts 2:0:1:63\n\
                 filter add dev d0 ingress protocol ip prio 4 flower action tunnel_key set src_ip 1.1.1.1 dst_ip 2.2.2.2 id 5 \
                 dst_port 0 erspan_opts 1:7\n";
    let dumped = loads_again("erspan", rules, &[]);
    assert_eq!(dumped.matches("erspan_opts 2:0:1:63").count(), 2, "{dumped}");
    Ok(())
}

/// The kinds of rules to use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kinds {
    U32,
    All,
}

/// The number of namespaces to fill, and of lines in each.
const ROUNDS: u64 = 12;
const LINES: u64 = 40;

/// Repeatable random numbers: SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        let at = self.below(u64::try_from(words.len()).expect("few words"));
        words[usize::try_from(at).expect("few words")]
    }
}

fn any(kinds: Kinds) -> Result<(), Failed> {
    let mut dumped = 0;
    for round in 0..ROUNDS {
        let mut chance = Chance(round);
        let stage = Stage::new("any");
        let file = any_lines(&mut chance, kinds);
        // Rules that the kernel refuses are skipped.
        let (code, report) = stage.netpolicy(&["tc", "load", "--keep-going", text(&stage.file(&file))]);
        assert!(code <= 1, "{file}\n{report}");
        dumped += identity(&stage, "any", &[]).lines().count();
    }
    assert!(dumped > 150, "{dumped} lines are few");
    Ok(())
}

/// A random file: every line is valid, but the kernel may refuse some.
fn any_lines(chance: &mut Chance, kinds: Kinds) -> String {
    let mut lines = vec![
        format!(
            "qdisc add dev d0 {}",
            chance.one_of(&["clsact", "ingress_block 7 clsact", "ingress_block 7 egress_block 8 clsact"])
        ),
        format!("qdisc add dev d1 {}", chance.one_of(&["clsact", "ingress", "ingress_block 7 clsact"])),
    ];
    for _ in 0..LINES {
        let place = chance.one_of(&[
            "dev d0 ingress",
            "dev d0 egress",
            "dev d1 ingress",
            "block 7",
            "block 7",
            "block 8",
        ]);
        let chain = chance.one_of(&["", "", " chain 3", " chain 9"]);
        if chance.below(12) == 0 {
            lines.push(format!("chain add {place}{chain}"));
            continue;
        }
        let priority = 1 + chance.below(5);
        let rule = if kinds == Kinds::U32 || chance.below(3) == 0 {
            any_of_u32(chance, priority)
        } else {
            any_of_flower_or_matchall(chance)
        };
        let action = chance.one_of(match kinds {
            Kinds::U32 => &[REDIRECT, "action mirred egress mirror dev d0", "classid 1:7"],
            Kinds::All => {
                &[REDIRECT, "action drop", "action pass classid 1:3", "action pipe action goto chain 5"]
            }
        });
        let action = if rule.contains("divisor") { "" } else { action };
        lines.push(format!("filter add {place} protocol ip prio {priority}{chain} {rule} {action}"));
    }
    lines.join("\n") + "\n"
}

/// A rule or a table of u32. A table has one priority: the kernel dumps its rules with that of the table.
fn any_of_u32(chance: &mut Chance, priority: u64) -> String {
    let table = 8 * priority + chance.below(2);
    let address = chance.below(250);
    match chance.below(5) {
        0 => format!("handle {table:x}: u32 divisor {}", 1 << chance.below(4)),
        1 => format!("u32 ht {table:x}: match ip src 10.1.0.{address}"),
        2 => {
            let other = 8 * (1 + chance.below(5)) + chance.below(2);
            format!("u32 match ip dst 10.2.0.{address} link {other:x}:")
        }
        3 => format!("handle ::{:x} u32 match ip dport {address} 0xffff", 1 + chance.below(0x7ff)),
        _ => format!("u32 match ip tos {address} 0xff match u16 0 0xff at nexthdr+2"),
    }
}

fn any_of_flower_or_matchall(chance: &mut Chance) -> String {
    let number = 1 + chance.below(250);
    match chance.below(4) {
        0 => "matchall".to_owned(),
        1 => format!("flower dst_ip 10.3.0.{number} ip_proto tcp dst_port {number}"),
        2 => format!("handle {number} flower src_ip 10.3.{number}.0/24 skip_hw"),
        _ => format!("flower dst_mac 02:00:00:00:00:{number:02x} ip_ttl {number}"),
    }
}
