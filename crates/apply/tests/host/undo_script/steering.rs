//! Runs the undo script on RSS contexts, ntuple rules and indirection tables, with a fake `ethtool` that
//! prints like ethtool 6.1; and on the qdiscs of a real device.

use libtest_mimic::Failed;
use model::{
    DeviceId, FlowMatch, FlowRule, IfIndex, Label, NetnsId, NicKnob, Qdisc, QdiscKind, QdiscOption, Qdiscs,
    QueueIndex, QueueSpan, Setting, SteerTo,
};

use super::change;
use super::stage::{Child, Stage};

/// Parses the flow of an ntuple rule.
pub(super) fn flow(text: &str) -> Result<FlowMatch, Failed> {
    Ok(format!("{text} drop").parse::<FlowRule>()?.flow)
}

/// Returns the loopback device, on which the fake `ethtool` operates.
fn loopback() -> Result<DeviceId, Failed> {
    let own: u64 = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/net")?);
    Ok(DeviceId { netns: NetnsId(own), ifindex: IfIndex(1), name: Label::new("lo") })
}

pub(super) fn rules_and_contexts_go_back() -> Result<(), Failed> {
    let device = loopback()?;
    let span = QueueSpan { first: 2, count: 2 };
    let to = |text: &str, from, to| -> Result<_, Failed> {
        let flow = flow(text)?;
        Ok(change(
            Setting::Nic(device, NicKnob::FlowRule(flow, from)),
            Setting::Nic(device, NicKnob::FlowRule(flow, to)),
        ))
    };
    let queue = |queue| Some(SteerTo::Queue(QueueIndex(queue)));
    let changes = [
        change(
            Setting::Nic(device, NicKnob::RssContext(span, false)),
            Setting::Nic(device, NicKnob::RssContext(span, true)),
        ),
        to("tcp4 dst-port 80", None, Some(SteerTo::Context(span)))?,
        to("udp6 dst-ip fe80::1 src-port 53", Some(SteerTo::Drop), queue(3))?,
        to("ether dst 02:00:00:00:00:07 proto 0x0800", queue(1), queue(2))?,
        to("tcp4 dst-port 443", None, queue(1))?,
    ];
    let stage = Stage::new(&changes)?;
    stage.program("ethtool", ETHTOOL)?;
    let nic = stage.directory().join("nic");
    let set = "table 0 1 2 3 0 1 2 3\n\
               context 5 2 3 2 3 2 3 2 3\n\
               rule 9 tcp4 dst-port 80 context 5\n\
               rule 7 udp6 dst-ip fe80::1 src-port 53 action 3\n\
               rule 6 ether dst 02:00:00:00:00:07 proto 0x800 action 2\n\
               rule 2 tcp4 dst-port 443 action 4\n";
    std::fs::write(&nic, set)?;
    let (status, said) = stage.run(&["--by-hand"])?;
    let left = "table 0 1 2 3 0 1 2 3\n\
                rule 2 tcp4 dst-port 443 action 4\n\
                rule 6 ether dst 02:00:00:00:00:07 proto 0x0800 action 1\n\
                rule 7 udp6 dst-ip fe80::1 src-port 53 action -1\n";
    assert_eq!((status, std::fs::read_to_string(&nic)?.as_str()), (0, left), "{said}");
    assert!(said.contains("tcp4 dst-port 443: action: left alone: is queue 4, we had set queue 1"), "{said}");
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 0 && said.matches("already").count() == 4, "{said}");

    // The script does not remove an RSS context to which another program's rule refers, and reports that.
    std::fs::write(&nic, format!("context 5 2 3 2 3\nrule 1 tcp4 dst-port 81 context 5\n{left}"))?;
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 5 && said.contains("rss-context 2-3: present: NOT restored: should be no"), "{said}");
    std::fs::write(&nic, format!("context 4 2 3 2 3\ncontext 5 2 3 2 3\n{left}"))?;
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 5 && said.contains("which of these contexts is meant is not known: 4 5"), "{said}");
    Ok(())
}

pub(super) fn a_table_goes_back() -> Result<(), Failed> {
    let device = loopback()?;
    let table = |from: &[u32], to: &[u32]| {
        change(
            Setting::Nic(device, NicKnob::RssTable(from.to_vec())),
            Setting::Nic(device, NicKnob::RssTable(to.to_vec())),
        )
    };
    for (was, expected) in [
        // The driver's default table is restored with ethtool's `default`.
        ([0, 1, 2, 3], "default 0 1 2 3\n"),
        ([0, 1, 2, 0], "table 0 1 2 0\n"),
        // Tables with contiguous blocks, such as those of `ethtool -X DEV weight 3 0 1` and of the igb
        // driver.
        ([0, 0, 0, 2], "table 0 0 0 2\n"),
        ([0, 0, 1, 1], "table 0 0 1 1\n"),
    ] {
        let stage = Stage::new(&[table(&was, &[0, 0, 0, 0])])?;
        stage.program("ethtool", ETHTOOL)?;
        std::fs::write(stage.directory().join("nic"), "table 0 0 0 0\n")?;
        let (status, said) = stage.run(&["--by-hand"])?;
        let now = std::fs::read_to_string(stage.directory().join("nic"))?;
        assert_eq!((status, now.as_str()), (0, expected), "{said}");
    }
    let stage = Stage::new(&[table(&[3, 0, 1, 1], &[0, 0, 0, 0])])?;
    stage.program("ethtool", ETHTOOL)?;
    std::fs::write(stage.directory().join("nic"), "table 0 0 0 0\n")?;
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 5 && said.contains("cannot write a table entry by entry"), "{said}");
    Ok(())
}

/// A fake `ethtool` with the arguments and output of ethtool 6.1. It keeps the NIC's state in a file.
const ETHTOOL: &str = r#"#!/bin/sh
# Most questions are for contexts that are not there: no Python for these.
if [ "$1 $3" = "-x context" ] && ! grep -q "^context $4 " "${0%/*}/../nic"; then
	echo "Cannot get RX flow hash configuration: No such file or directory" >&2
	exit 1
fi
exec python3 - "$0" "$@" <<'END'
import os, sys
del sys.argv[0]
file = os.path.join(os.path.dirname(sys.argv[0]), "..", "nic")
lines = open(file).read().splitlines()
option, name, *rest = sys.argv[1:]
assert name == "lo", sys.argv
def save(lines):
    open(file, "w").write("".join(line + "\n" for line in sorted(lines, key=lambda l: (l.split()[0] == "rule", l))))
def table(of):
    for line in lines:
        words = line.split()
        if words[:len(of)] == of:
            return words[len(of):]
    return None
def show(word, fields, value, any):
    text, mask = (fields[word], value) if word in fields else (any[0], any[1])
    return f"{text} mask: {mask}"
if option == "-x":
    entries = table(["context", rest[1]] if rest else ["table"]) or (None if rest else table(["default"]))
    if entries is None:
        sys.exit("Cannot get RX flow hash configuration: No such file or directory")
    print(f"RX flow hash indirection table for lo with 4 RX ring(s):")
    for at in range(0, len(entries), 8):
        print(f"{at:5}: " + "".join(f" {int(entry):5}" for entry in entries[at:at + 8]))
    print("RSS hash key:\nOperation not supported")
elif option == "-X" and rest[0] == "context" and rest[2] == "delete":
    if any(line.startswith("rule") and line.endswith("context " + rest[1]) for line in lines):
        sys.exit("Cannot set RX flow hash configuration: Device or resource busy")
    save([line for line in lines if line.split()[:2] != ["context", rest[1]]])
elif option == "-X" and rest == ["default"]:
    count = len(table(["table"]))
    save(["default " + " ".join(str(at % 4) for at in range(count))])
elif option == "-X" and rest[0] == "equal":
    count = len(table(["table"]) or table(["default"]))
    save(["table " + " ".join(str(at % int(rest[1])) for at in range(count))])
elif option == "-X" and rest[0] == "weight":
    count, weights = len(table(["table"]) or table(["default"])), [int(word) for word in rest[1:]]
    # As ethtool 6.1 deals them out: ethtool.c, fill_indir_table().
    entries, queue, partial = [], -1, 0
    for at in range(count):
        while at >= count * partial // sum(weights):
            queue, partial = queue + 1, partial + weights[queue + 1]
        entries.append(str(queue))
    save(["table " + " ".join(entries)])
elif option == "-n":
    rules = [line.split() for line in lines if line.startswith("rule")]
    print(f"4 RX rings available\nTotal {len(rules)} rules\n")
    for _, place, kind, *words in rules:
        fields = dict(zip(words[::2], words[1::2]))
        print(f"Filter: {place}")
        if kind == "ether":
            print("\tFlow Type: Raw Ethernet")
            print("\tSrc MAC addr: 00:00:00:00:00:00 mask: FF:FF:FF:FF:FF:FF")
            print("\tDest MAC addr: " + show("dst", fields, "00:00:00:00:00:00", ("00:00:00:00:00:00", "FF:FF:FF:FF:FF:FF")).upper().replace("MASK", "mask"))
            proto = fields.get("proto")
            print(f"\tEthertype: 0x{int(proto, 16):X} mask: 0x0" if proto else "\tEthertype: 0x0 mask: 0xFFFF")
        else:
            v6 = kind.endswith("6")
            none, all = ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") if v6 else ("0.0.0.0", "255.255.255.255")
            print(f"\tRule Type: {kind[:3].upper()} over IPv{kind[3]}")
            print("\tSrc IP addr: " + show("src-ip", fields, none, (none, all)))
            print("\tDest IP addr: " + show("dst-ip", fields, none, (none, all)))
            print("\tTraffic Class: 0x0 mask: 0xff" if v6 else "\tTOS: 0x0 mask: 0xff")
            print("\tSrc port: " + show("src-port", fields, "0x0", ("0", "0xffff")))
            print("\tDest port: " + show("dst-port", fields, "0x0", ("0", "0xffff")))
        if "context" in fields:
            print(f"\tRSS Context ID: {fields['context']}\n\tAction: Direct to queue 0\n")
        elif fields["action"] == "-1":
            print("\tAction: Drop\n")
        else:
            print(f"\tAction: Direct to queue {fields['action']}\n")
elif option == "-N" and rest[0] == "delete":
    assert any(line.split()[:2] == ["rule", rest[1]] for line in lines), sys.argv
    save([line for line in lines if line.split()[:2] != ["rule", rest[1]]])
elif option == "-N" and rest[0] == "flow-type" and rest[-2] == "loc":
    rule = " ".join(["rule", rest[-1], *rest[1:-2]])
    save([line for line in lines if line.split()[:2] != ["rule", rest[-1]]] + [rule])
else:
    sys.exit(f"bad command line argument(s): {sys.argv}")
END
"#;

pub(super) fn disciplines_go_back() -> Result<(), Failed> {
    let made = "ip link add name nptest0 numtxqueues 3 numrxqueues 3 type veth peer name nptest1 numtxqueues 3 \
                numrxqueues 3 && ip link set nptest0 up && echo ready && exec sleep 600";
    let child = Child::run("unshare", &["--net", "sh", "-c", made])?;
    let ifindex = IfIndex(child.ifindex("nptest0")?);
    let device = DeviceId { netns: NetnsId(child.netns()?), ifindex, name: Label::new("renamed-since") };
    let all = |qdiscs| Setting::Nic(device, NicKnob::Qdiscs(qdiscs));
    let default = Qdiscs::Default(vec!["noqueue".to_owned()]);
    let mut short = Qdisc::of(QdiscKind::Pfifo);
    short.options.insert(QdiscOption::Limit, 77);
    let fast = Qdisc::of(QdiscKind::PfifoFast);
    let queues = Qdiscs::PerQueue { handle: None, queues: vec![short.clone(), fast.clone(), short.clone()] };
    let tc = || -> Result<String, Failed> {
        let netns = format!("--net=/proc/{}/ns/net", child.process()?.pid);
        let output = std::process::Command::new("nsenter")
            .args([&netns, "tc", "qdisc", "show", "dev", "nptest0"])
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // Undoing a change makes the opposite change, so the scripts can switch the qdiscs back and forth.
    for (from, to, expected) in [
        (queues.clone(), default.clone(), "parent 8001:3 limit 77p"),
        (Qdiscs::Whole(short.clone()), queues.clone(), "root refcnt 4 limit 77p"),
        (queues, Qdiscs::Whole(short), "pfifo_fast"),
    ] {
        let (status, said) = Stage::new(&[change(all(from), all(to))])?.run(&["--by-hand"])?;
        let is = tc()?;
        let expected_words: Vec<&str> = expected.split(' ').filter(|word| !word.contains(':')).collect();
        assert!(status == 0 && expected_words.iter().all(|word| is.contains(word)), "{said}\n{is}");
    }
    let last = Stage::new(&[change(
        all(default),
        all(Qdiscs::PerQueue {
            handle: None,
            queues: vec![Qdisc::of(QdiscKind::Pfifo), fast, Qdisc::of(QdiscKind::Pfifo)],
        }),
    )])?;
    for said_of in ["restored to default noqueue", "is default noqueue already"] {
        let (status, said) = last.run(&["--by-hand"])?;
        assert!(status == 0 && said.contains(said_of), "{said}\n{}", tc()?);
    }
    Ok(())
}
