//! Every kind of action and classifier: a parsed rule can be formatted as an equivalent line, and decoded
//! from its own message.

use model::IfIndex;
use netlink::attr::AttrBuf;
use proptest::prelude::*;
use proptest::sample::select;
use tc_rules::batch::ReadError;
use tc_rules::{Batch, Expected, Filter, Table};

/// The alternatives at each position of a line; an empty word for nothing.
type Places = &'static [&'static [&'static str]];

const CONTROL: &[&str] =
    &["", "pass", "drop", "pipe", "continue", "reclassify", "goto chain 7", "jump 2", "trap"];
const INDEX: &[&str] = &["", "index 1", "index 4294967295"];

/// Each kind of action with its options: every combination is valid.
const ACTIONS: &[(&str, Places)] = &[
    (
        "nat",
        &[
            &["ingress", "egress", "e"],
            &["10.0.0.0/8", "1.2.3.4", "any", "10/255.0.0.0", "1.2.3.4/32"],
            &["5.6.7.8", "0.0.0.0"],
            CONTROL,
            INDEX,
        ],
    ),
    ("sample", &[&["rate 5", "rate 4294967295"], &["group 1"], &["", "trunc 0", "trunc 64"], CONTROL, INDEX]),
    ("connmark", &[&["", "zone 0", "zone 65535"], CONTROL, INDEX]),
    (
        "ctinfo",
        &[
            &["", "dscp 0x3f", "dscp 0xfc000000 0x1000000", "dscp 0 3"],
            &["", "cpmark", "cpmark 0xff"],
            &["", "zone 7"],
            CONTROL,
            INDEX,
        ],
    ),
    (
        "simple",
        &[&["sdata a", "sdata ''", "sdata 'two words'", "sdata \"it's\"", "sdata x#y\\"], CONTROL, INDEX],
    ),
    (
        "mpls",
        &[
            &[
                "pop protocol ip",
                "dec_ttl",
                "push label 0",
                "push protocol mpls_mc label 0xfffff",
                "mac_push label 7",
                "mac_push",
                "push label 7 ttl 255",
                "modify",
            ],
            CONTROL,
            INDEX,
        ],
    ),
    (
        "mpls",
        &[&["push label 2", "modify label 3"], &["", "tc 7"], &["", "ttl 1"], &["", "bos 1"], CONTROL, INDEX],
    ),
    (
        "skbmod",
        &[
            &["set dmac 1:2:3:4:5:6", "swap mac", "ecn", "set etype 0x800 ecn", "set etype 7"],
            &["", "set smac a:b:c:d:e:f", "swap mac", "etype 0"],
            CONTROL,
            INDEX,
        ],
    ),
    (
        "ife",
        &[
            &["encode"],
            &["", "allow mark", "use mark 5", "use mark 5 allow mark"],
            &["", "allow prio", "use prio 4294967295"],
            &["", "allow tcindex", "use tcindex 65535"],
            &["", "type 0xed3e", "type 0xfefe"],
            &["", "dst 1:2:3:4:5:6", "dst 0:0:0:0:0:0"],
            &["", "src 1:2:3:4:5:6"],
            CONTROL,
            INDEX,
        ],
    ),
    ("ife", &[&["decode"], CONTROL, INDEX]),
    (
        "gate",
        &[
            &["", "priority -1", "priority 7"],
            &["", "base-time 5s", "base-time 1"],
            &["", "cycle-time 300", "cycle-time-ext 1us"],
            &["", "clockid TAI", "clockid monotonic"],
            &["", "flags 3"],
            &["sched-entry open 100", "sched-entry close 100ns 1 2", "sched-entry open 1ms 3"],
            &["", "sched-entry open 200 -1 8000b", "sched-entry close 4294967295"],
            INDEX,
            CONTROL,
        ],
    ),
    ("bpf", &[&["bytecode '1,6 0 0 0'", "run bc '2,40 0 0 12,6 0 255 4294967295,'"], CONTROL, INDEX]),
];

const MATCH: &[&str] = &[
    "match 'cmp(u8 at 0 eq 1)'",
    "match 'cmp(u16 at 65535 layer link mask 0xff00 trans gt 7)'",
    "match cmp ( u32 at 4 layer 2 lt 4294967295 )",
    "match 'not u32(u8 0x11 0x0f at -13)'",
    "match 'u32(u16 1 0xffff at nexthdr+6) or u32(u32 0xaabbccdd 0xff00ff00 at -12)'",
    "match 'nbyte(abc at 3)'",
    "match 'nbyte(\"a \\x00\\\"\\7\" at 3 layer transport) AND NOT meta(random mask 0xf eq 3)'",
    "match 'meta(dev shift 1 eq \"ppp\")'",
    "match 'meta(\"eth0\" eq dev) and meta(7 lt vlan)'",
    "match 'canid(sff 1 eff 0x12345:ff sff 8ff:0)'",
    "match 'not (cmp(u8 at 0 eq 1) or (canid(eff 1) and meta(fwmark gt 24))) or (u32(u32 0 0 at 0))'",
];
const POLICE: &[&str] = &["", "police rate 1mbit burst 10k drop"];
const ACTION: &[&str] = &["", "action drop", "action nat egress 1.2.3.4 5.6.7.8 action pass"];
const CLASS: &[&str] = &["", "classid 1:2", "flowid 1:3 classid 1:2", "classid none"];

/// Each kind of classifier with the words before it and its options: every combination is valid.
const CLASSIFIERS: &[(&str, Places)] = &[
    ("", &[&["", "handle 7"], &["basic"], MATCH, CLASS, POLICE, ACTION]),
    ("", &[&["basic"], &["classid 1:2", "police rate 1mbit burst 10k drop"], ACTION]),
    ("", &[&["handle 1"], &["cgroup"], MATCH, POLICE, ACTION]),
    ("", &[&["handle 1"], &["cgroup"], ACTION]),
    (
        "",
        &[
            &["handle 0x5"],
            &[
                "flow map key mark",
                "flow key src and 0xf0 or 1 xor 7",
                "flow hash keys src,dst,proto,sk-gid",
                "flow hash keys p",
            ],
            &["", "rshift 0", "rshift 5", "addend -4"],
            &["", "divisor 1024", "divisor 0"],
            &["", "baseclass 1:5", "baseclass :7"],
            POLICE,
            ACTION,
        ],
    ),
    (
        "",
        &[
            &["handle 2"],
            &["flow hash keys dst,src addend 1.2.3.4 perturb 10", "flow key dst addend fe80::1"],
            MATCH,
            ACTION,
        ],
    ),
    (
        "",
        &[
            &["handle 1", "handle 0xff", "handle 7/0xf", "handle 7/0xffffffff"],
            &["fw"],
            &["", "indev d1"],
            &["classid 1:2", "flowid 1:1", "action pass"],
        ],
    ),
    (
        "",
        &[
            &["route"],
            &["to 1", "to cosmos", "from 255", "fromif d1", "to 255 from 0", "to 1 fromif d0", "classid 1:4"],
            &["", "order 5", "order 127"],
            CLASS,
            POLICE,
            ACTION,
        ],
    ),
    ("", &[&["handle 0x10001"], &["route from 1 to 1"], CLASS, ACTION]),
    (
        "",
        &[
            &["bpf bytecode '1,6 0 0 0'"],
            &["", "direct-action"],
            &["", "skip_hw"],
            &["", "classid 1:2"],
            ACTION,
        ],
    ),
];

fn table() -> Table {
    Table::of([("d0".to_owned(), IfIndex(3)), ("d1".to_owned(), IfIndex(4))])
}

fn read(line: &str) -> Result<Filter, ReadError> {
    let mut batch = Batch::new(line.as_bytes());
    let (_, command) = batch.next_command(&mut table())?.expect("a command");
    Ok(command.rule().expect("a rule").clone())
}

#[test]
fn the_name_of_pedit_may_be_there_again_before_each_change() {
    let beginning = "filter add dev d0 ingress protocol ip flower action";
    let once = format!("{beginning} pedit ex munge ip ttl set 64 munge ip tos set 0x10 pipe");
    for words in [
        "pedit pedit ex munge ip ttl set 64 munge ip tos set 0x10 pipe",
        "pedit ex pedit munge ip ttl set 64 pedit munge ip tos set 0x10 pipe",
    ] {
        let again = read(&format!("{beginning} {words}")).unwrap_or_else(|error| panic!("{words}\n{error}"));
        assert_eq!(again.canonical(), read(&once).expect("well-formed").canonical(), "{words}");
    }
    let late = read(&format!("{beginning} pedit munge ip ttl set 64 pedit ex munge ip tos set 0x10 pipe"));
    assert!(late.is_err_and(|error| error.to_string().contains("before the first")), "as tc refuses it");
}

/// Builds a line that starts with `beginning` and the kind, with one alternative for each position.
fn line(beginning: String, kind: &str, places: Places, choices: &[usize]) -> String {
    let said = places.iter().zip(choices).map(|(place, choice)| place[choice % place.len()]);
    said.fold(
        format!("{beginning}{kind}"),
        |line, word| if word.is_empty() { line } else { format!("{line} {word}") },
    )
}

/// Checks that a parsed rule survives formatting and decoding.
fn holds(line: &str) {
    let rule = read(line).unwrap_or_else(|error| panic!("{line}\n{error}"));
    let words = rule.words(&mut table()).unwrap_or_else(|| panic!("{line}: no words"));
    let again = read(&words).unwrap_or_else(|error| panic!("{line}\n{words}\n{error}"));
    assert_eq!(again.canonical(), rule.canonical(), "\n{line}\n{words}");
    let mut out = AttrBuf::new();
    tc_rules::Command::Filter(rule.clone()).encode(0, 0, &mut out);
    let mut body = out.as_bytes()[16..].to_vec();
    if rule.handle == 0 {
        body[8..12].copy_from_slice(&1_u32.to_ne_bytes()); // The action then looks as if the kernel had chosen its index.
    }
    let mut decoded = Filter::default();
    let known = decoded.decode(&body).unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(known.is_some(), "{line}: the bytes are not known");
    if rule.handle == 0 {
        decoded.handle = 0;
    }
    assert_eq!(decoded.canonical(), rule.canonical(), "\n{line}");
    let mut expected = Expected::default();
    expected.add(&rule, 1);
    assert!(matches!(expected.match_rule(&decoded), tc_rules::RuleMatch::Expected(1)), "{line}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_an_action_takes_has_words_and_bytes_that_mean_it(
        (kind, places) in select(ACTIONS),
        choices in proptest::collection::vec(0_usize..100, 10),
        end in select(vec!["", " cookie abcd", " no_percpu", " hw_stats disabled"]),
    ) {
        let action = line("filter add dev d0 ingress protocol ip prio 1 matchall action ".to_owned(), kind, places, &choices);
        holds(&format!("{action}{end}"));
        holds(&format!("{action}{end} action drop"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_a_classifier_takes_has_words_and_bytes_that_mean_it(
        (kind, places) in select(CLASSIFIERS),
        choices in proptest::collection::vec(0_usize..100, 10),
        hook in select(vec!["ingress", "parent 1:", "root", "egress"]),
    ) {
        holds(&line(format!("filter add dev d0 {hook} protocol ip prio 1"), kind, places, &choices));
    }
}

#[test]
fn an_action_that_is_only_named_has_words_that_are_taken_or_none() {
    for kind in [
        "sample",
        "simple",
        "skbmod",
        "gate",
        "bpf",
        "ife",
        "tunnel_key",
        "vlan",
        "skbedit",
        "mirred",
        "gact",
    ] {
        let line =
            format!("filter add dev d0 ingress protocol ip prio 1 handle 1 matchall action {kind} index 7");
        let mut out = AttrBuf::new();
        tc_rules::Command::Filter(read(&line).expect("a rule")).encode(0, 0, &mut out);
        // No other rule uses the action, so the kernel omits its index.
        let mut decoded = Filter::default();
        assert_eq!(decoded.decode(&out.as_bytes()[16..]), Ok(Some(())), "{kind}");
        if let Some(words) = decoded.words(&mut table()) {
            let again = read(&words).unwrap_or_else(|error| panic!("{words}\n{error}"));
            assert_eq!(again.canonical(), decoded.canonical(), "{words}");
        }
    }
}

/// An invalid line, the invalid word in it, and one of the words that would have been valid.
const WRONG: &[(&str, &str, &str)] = &[
    ("action nat ingres", "", ""),
    ("action nat inwards 1.2.3.4 5.6.7.8", "inwards", "ingress"),
    ("action nat ingress 1.2.3.4 5.6.7.0/24", "5.6.7.0/24", ""),
    ("action nat ingress fe80::1 5.6.7.8", "fe80::1", ""),
    ("action sample rat 5 group", "", ""),
    ("action sample ratio 5", "ratio", "rate"),
    ("action sample group 5", "", "rate"),
    ("action sample rate 5 group 1 trunk 4", "trunk", ""),
    ("action connmark zone 65536", "65536", ""),
    ("action ctinfo dscp 0xff", "0xff", ""),
    ("action ctinfo dscp 0x3f 0x1", "0x1", ""),
    ("action simple data x", "data", "sdata"),
    ("action simple sdata 12345678901234567890123456789012", "12345678901234567890123456789012", ""),
    ("action mpls shove label 4", "shove", "push"),
    ("action mpls push", "", ""),
    ("action mpls pop", "", ""),
    ("action mpls pop label 4", "label", ""),
    ("action mpls push label 0x100000", "0x100000", ""),
    ("action mpls modify protocol ip", "protocol", ""),
    ("action mpls push protocol ip label 4", "ip", ""),
    ("action mpls push pop", "pop", ""),
    ("action skbmod change", "change", "swap"),
    ("action skbmod set", "", "dmac"),
    ("action skbmod set dmac 1:2:3", "1:2:3", ""),
    ("action ife encipher", "encipher", "encode"),
    ("action ife encode allow marks", "marks", "mark"),
    ("action ife encode use tcindex 65536", "65536", ""),
    ("action ife decode allow mark", "allow", ""),
    ("action gate entry open 5", "entry", "sched-entry"),
    ("action gate sched-entry ajar 5", "ajar", ""),
    ("action gate sched-entry open 5s", "5s", ""),
    ("action gate clockid wall sched-entry open 5", "wall", ""),
    ("action bpf bytecod '1,6 0 0 0' pask", "pask", "pass"),
    ("action bpf code '1,6 0 0 0'", "code", "bytecode"),
    ("action bpf bytecode '2,6 0 0 0'", "2,6 0 0 0", ""),
    ("action bpf bytecode '1,6 0 0'", "1,6 0 0", ""),
    ("action bpf object-file x.o", "object-file", ""),
    ("action nut ingress", "nut", "nat"),
];

/// An invalid line with a classifier, the invalid word in it, and one of the words that would have been
/// valid.
const WRONG_CLASSIFIERS: &[(&str, &str, &str)] = &[
    ("bassic match x", "bassic", "basic"),
    ("basic mach x", "mach", "match"),
    ("basic match 'cpm(u8 at 0 eq 1)'", "cpm", "cmp"),
    ("basic match 'cmp(u7 at 0 eq 1)'", "u7", "u8"),
    ("basic match 'cmp(u8 att 0 eq 1)'", "att", "at"),
    ("basic match 'cmp(u8 at 0 layer phys eq 1)'", "phys", "link"),
    ("basic match 'cmp(u8 at 0)'", ")", "eq"),
    ("basic match 'cmp(u8 at 70000 eq 1)'", "70000", ""),
    ("basic match 'cmp(u8 at 0 eq 1) or'", "", ""),
    ("basic match 'cmp(u8 at 0 eq 1) cmp(u8 at 0 eq 1)'", "cmp(u8 at 0 eq 1)", ""),
    ("basic match '(cmp(u8 at 0 eq 1)'", "", ""),
    ("basic match '(cmp(u8 at 0 eq 1) if cmp(u8 at 0 eq 1))'", "if", "and"),
    ("basic match cmp u8 at 0 eq 1", "u8", ""),
    ("basic match 'u32(u8 0x100 0xff at 0)'", "0x100", ""),
    ("basic match 'u32(u8 1 0xff in 0)'", "in", "at"),
    ("basic match 'u32(u32 1 0xff at 2)'", "2", ""),
    ("basic match 'u32(u8 1 0xff at nexthdr+ 2)'", "nexthdr+", ""),
    ("basic match 'nbyte(\"\" at 0)'", "\"\"", ""),
    ("basic match 'nbyte(\"a at 0)'", "\"a at 0)", ""),
    ("basic match 'nbyte(\"\\777\" at 0)'", "\"\\777\" at 0)", ""),
    ("basic match 'meta(nfmark eq 1)'", "nfmark", "nf_mark"),
    ("basic match 'meta(dev is 1)'", "is", "eq"),
    ("basic match 'meta(\"a\" eq random)'", "random", ""),
    ("basic match 'canid(ssf 1)'", "ssf", "sff"),
    ("basic match 'canid(sff 20000000)'", "20000000", ""),
    ("basic match 'ipset(bulk src)'", "ipset", ""),
    ("cgroup classid 1:1", "classid", ""),
    ("cgroup action drop action pass match 'cmp(u8 at 0 eq 1)' match 'cmp(u8 at 0 eq 1)'", "match", ""),
    ("handle 1 flow map keys source", "source", "src"),
    ("handle 1 flow map keys src,dst", "", ""),
    ("handle 1 flow map keys mark addend 1.2.3.4", "1.2.3.4", ""),
    ("handle 1 flow map keys mark baseclass 1:", "1:", ""),
    ("handle 1 flow map keys mark diviser 7", "diviser", "divisor"),
    ("handle 1/x fw", "1/x", ""),
    ("handle 1 fw clasid 1:1", "clasid", "classid"),
    ("handle 1 fw indev a-name-that-is-too-long", "a-name-that-is-too-long", ""),
    ("route to 256", "256", ""),
    ("route too 5", "too", "to"),
    ("route fromif nosuch", "nosuch", ""),
];

#[test]
fn a_wrong_word_is_pointed_at_with_the_words_that_are_right() {
    let actions = WRONG.iter().map(|row| ("matchall ", row));
    for (kind, (line, wrong, right)) in actions.chain(WRONG_CLASSIFIERS.iter().map(|row| ("", row))) {
        let text = format!("filter add dev d0 ingress protocol ip {kind}{line}");
        let Err(ReadError::Mistake(mistake)) = read(&text) else { panic!("{line} was read") };
        assert_eq!(mistake.found, *wrong, "{line}: {mistake}");
        assert!(right.is_empty() || mistake.expected.contains(right), "{line}: {:?}", mistake.expected);
    }
}
