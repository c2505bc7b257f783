//! Tests that the parsers of lines and dumps never panic, whatever the input.

use model::IfIndex;
use proptest::prelude::*;
use tc_rules::batch::ReadError;
use tc_rules::{Batch, Expected, Filter, Table};

/// Words of the syntax: in random order, they get further into the parser than random letters.
const WORDS: &[&str] = &[
    "filter",
    "add",
    "replace",
    "del",
    "dev",
    "d0",
    "block",
    "7",
    "ingress",
    "egress",
    "parent",
    "ffff:",
    "protocol",
    "ip",
    "ipv6",
    "802.1Q",
    "arp",
    "prio",
    "chain",
    "handle",
    "1",
    "::1",
    "0x10",
    "flower",
    "u32",
    "matchall",
    "bpf",
    "skip_hw",
    "skip_sw",
    "src_mac",
    "02:00:00:00:00:01",
    "dst_ip",
    "1.2.3.4/8",
    "fe80::/10",
    "ip_proto",
    "tcp",
    "udp",
    "src_port",
    "80",
    "10-20",
    "80/0xff",
    "tcp_flags",
    "0x12",
    "vlan_id",
    "ct_state",
    "+trk-new",
    "enc_key_id",
    "geneve_opts",
    "0102:80:00/ffff:ff:ff",
    "erspan_opts",
    "1:2:0:0",
    "match",
    "at",
    "nexthdr+4",
    "ht",
    "1:2:",
    "divisor",
    "256",
    "sample",
    "link",
    "hashkey",
    "mask",
    "offset",
    "classid",
    "1:10",
    "action",
    "drop",
    "goto",
    "pass",
    "gact",
    "mirred",
    "redirect",
    "mirror",
    "index",
    "tunnel_key",
    "set",
    "unset",
    "id",
    "src_ip",
    "dst_port",
    "skbedit",
    "mark",
    "1/2",
    "vlan",
    "push",
    "pop",
    "pedit",
    "ex",
    "munge",
    "eth",
    "u16",
    "retain",
    "police",
    "rate",
    "1mbit",
    "burst",
    "10k",
    "conform-exceed",
    "drop/pipe",
    "ct",
    "commit",
    "nat",
    "src",
    "addr",
    "csum",
    "iph",
    "cookie",
    "abcd",
    "hw_stats",
    "immediate",
    "no_percpu",
    "qdisc",
    "clsact",
    "basic",
    "cgroup",
    "flow",
    "fw",
    "route",
    "keys",
    "baseclass",
    "from",
    "to",
    "indev",
    "cmp(",
    "cmp(u8",
    "u8",
    "eq",
    "gt",
    ")",
    "(",
    "not",
    "and",
    "or",
    "meta(",
    "nbyte(",
    "canid(sff",
    "sample",
    "group",
    "mpls",
    "label",
    "connmark",
    "zone",
    "simple",
    "sdata",
    "skbmod",
    "swap",
    "ife",
    "encode",
    "allow",
    "gate",
    "sched-entry",
    "open",
    "bytecode",
    "'1,6 0 0 0'",
    "'",
    "\"",
    "\\",
    "#",
    "",
    "0",
    "4294967296",
    "-1",
    "é",
];

fn table() -> Table {
    Table::of([("d0".to_owned(), IfIndex(3)), ("d1".to_owned(), IfIndex(4))])
}

/// Parses everything; every parsed rule can be formatted and decoded again.
fn read(text: &[u8]) {
    let mut table = table();
    let mut batch = Batch::new(text);
    for _ in 0..100 {
        match batch.next_command(&mut table) {
            Ok(Some((line, command))) => {
                let mut out = netlink::attr::AttrBuf::new();
                command.encode(line, 0, &mut out);
                let Some(rule) = command.rule().cloned() else { continue };
                let mut decoded = Filter::default();
                let _ = decoded.decode(&out.as_bytes()[16..]);
                let mut expected = Expected::default();
                expected.add(&rule, line);
                assert!(matches!(expected.match_rule(&rule), tc_rules::RuleMatch::Expected(_)), "{rule:?}");
                if let Some(words) = rule.words(&mut table).filter(|_| rule.verb == tc_rules::Verb::Add) {
                    let mut again = Batch::new(words.as_bytes());
                    match again.next_command(&mut table) {
                        Ok(Some((_, again))) => {
                            assert_eq!(
                                again.rule().map(Filter::canonical),
                                Some(rule.canonical()),
                                "{words}"
                            );
                        }
                        other => panic!("{words}: {:?}", other.err()),
                    }
                }
            }
            Ok(None) => return,
            Err(ReadError::Mistake(mistake)) => assert!(mistake.line > 0 && mistake.column > 0),
            Err(ReadError::Io(_)) => return,
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_of_lines_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        read(&text);
    }

    #[test]
    fn no_bytes_make_the_reader_of_dumps_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Filter::default().decode(&body);
    }

    #[test]
    fn no_kind_with_random_options_makes_the_reader_of_dumps_panic(
        kind in prop_oneof![Just("flower"), Just("u32"), Just("matchall"), Just("bpf"), Just("basic"), Just("cgroup"), Just("flow"), Just("fw"), Just("route")],
        options in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut body = netlink::attr::AttrBuf::after(&[1; 20]);
        body.text(1, kind).bytes(2, &options);
        let _ = Filter::default().decode(body.as_bytes());
    }

    #[test]
    fn a_number_reads_as_it_is_written(number in any::<u64>()) {
        use tc_rules::number::{Base, unsigned};
        prop_assert_eq!(unsigned(&number.to_string(), Base::Ten), Some(number));
        prop_assert_eq!(unsigned(&format!("{number:#x}"), Base::Prefix), Some(number));
        prop_assert_eq!(unsigned(&format!("{number:x}"), Base::Sixteen), Some(number));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_words_of_the_language_make_the_reader_of_lines_panic(
        words in proptest::collection::vec(proptest::sample::select(WORDS), 0..25),
    ) {
        read(words.join(" ").as_bytes());
        read(format!("filter add dev d0 ingress protocol ip prio 1 flower {}", words.join(" ")).as_bytes());
        read(format!("filter add dev d0 ingress protocol ip prio 1 u32 match {}", words.join(" ")).as_bytes());
        read(format!("filter add dev d0 ingress matchall action {}", words.join(" ")).as_bytes());
        read(format!("filter add dev d0 ingress basic match {}", words.join(" ")).as_bytes());
    }
}
