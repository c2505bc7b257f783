//! Tests ntuple rules, the receive hash and the qdiscs of a NIC, on the igb NICs of an emulated guest, with
//! fq and fq_codel of the guest's kernel.

use std::collections::BTreeSet;

use apply::{Allow, Journal, Knobs};
use libtest_mimic::{Failed, Trial};
use linux::Kernel;
use model::host::{Device, DeviceLink, PlacedRule};
use model::nic::{ChannelKind, Rss};
use model::{
    Change, FlowRule, NicKnob, Offload, Plan, Qdisc, QdiscKind, QdiscOption, Qdiscs, QueueSpan, Reason,
    Setting, Step,
};
use testkit::scratch::Scratch;
use testkit::wire::Wire;
use testkit::{Need, test};

use super::transaction::asked;

pub(crate) fn tests() -> Vec<Trial> {
    const IGB: &[Need] = &[Need::Root, Need::Wire, Need::IgbNics];
    const WITHOUT: &[Need] = &[Need::Root, Need::Wire, Need::IgbWithoutRules];
    const RULES: &[Need] = &[Need::Root, Need::Wire, Need::IgbRules];
    const FAIR: &[Need] = &[Need::Root, Need::Wire, Need::FairQueues];
    vec![
        test(
            "nics/rules_and_contexts_that_an_igb_lacks_are_refused_in_the_kernels_words",
            WITHOUT,
            refused_rules,
        ),
        test("nics/a_rule_that_an_igb_takes_is_written_read_replaced_and_put_back", RULES, rules_taken),
        test("nics/a_rule_that_an_igb_refuses_undoes_those_that_it_took", RULES, refused_in_the_middle),
        test(
            "nics/a_drivers_own_table_is_not_taken_away_and_others_are_put_back",
            IGB,
            own_table_is_not_taken_away,
        ),
        test("nics/a_table_as_the_kernel_makes_it_binds_no_number_of_queues", IGB, table_is_given_back),
        test("qdiscs/chosen_options_are_read_written_and_restored", FAIR, chosen_options),
    ]
}

fn refused_rules() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let before = as_set(&wire)?;
    assert_eq!(
        (&before.flow_rules, &before.rss_contexts),
        (&Some(Vec::new()), &None),
        "as reported by the driver"
    );
    let mut kernel = Kernel::new();
    for text in ["tcp4 dst-port 80 queue 1", "ether proto 0x88b5 queue 7", "ether proto 0x88b5 drop"] {
        let rule: FlowRule = text.parse()?;
        let error = kernel
            .write(&[Setting::Nic(before.id, NicKnob::FlowRule(rule.flow, Some(rule.to)))])
            .expect_err("an igb cannot");
        assert!(error.to_string().starts_with(&format!("near0 ntuple {}: ", rule.flow)), "{error}");
        assert!(error.to_string().contains("EOPNOTSUPP"), "{error}");
    }
    let context = Setting::Nic(before.id, NicKnob::RssContext(QueueSpan { first: 1, count: 1 }, true));
    let error = kernel.write(&[context]).expect_err("an igb cannot");
    assert!(error.to_string().contains("EOPNOTSUPP"), "{error}");
    assert_eq!(as_set(&wire)?, before);
    Ok(())
}

fn rule(text: &str) -> Result<FlowRule, Failed> {
    Ok(text.parse()?)
}

/// Reads the output of `ethtool -n`: the locations of the rules, and the lines about an Ethernet type.
fn as_ethtool_lists(wire: &Wire) -> Result<(Vec<u32>, Vec<String>), Failed> {
    let listed = wire.in_near("ethtool -n near0")?;
    let of = |heading: &str| -> Vec<String> {
        listed.lines().filter_map(|line| Some(line.trim().strip_prefix(heading)?.trim().to_owned())).collect()
    };
    let actions = of("Action: Direct to queue").into_iter().chain(of("Ethertype:")).collect();
    Ok((of("Filter:").iter().filter_map(|place| place.parse().ok()).collect(), actions))
}

/// Observes the near end, without the state and the speed of its link, because the driver resets the link
/// when the feature is switched on or off.
fn as_set(wire: &Wire) -> Result<Device, Failed> {
    let near = wire.near0()?;
    Ok(Device { up: true, link: DeviceLink { speed_mbps: None, ..near.link }, ..near })
}

fn rules_taken() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let before = as_set(&wire)?;
    assert_eq!(
        (&before.flow_rules, before.offloads.get(&Offload::Ntuple)),
        (&Some(Vec::new()), Some(&false))
    );
    let mut kernel = Kernel::new();
    let ntuple = [Setting::Nic(before.id, NicKnob::Offload(Offload::Ntuple, true))];
    let off = kernel.read(&ntuple)?;
    kernel.write(&ntuple)?;
    let first = rule("ether proto 0x88b5 queue 1")?;
    let like = [Setting::Nic(before.id, NicKnob::FlowRule(first.flow, None))];
    assert_eq!(kernel.read(&like)?, like, "there is none");
    let wanted = [Setting::Nic(before.id, NicKnob::FlowRule(first.flow, Some(first.to)))];
    kernel.write(&wanted)?;
    assert_eq!(kernel.read(&like)?, wanted);
    let (places, said) = as_ethtool_lists(&wire)?;
    assert_eq!((places.len(), said.len()), (1, 2), "{said:?}");
    assert!(said[0] == "1" && said[1].starts_with("0x88B5"), "{said:?}");
    let observed = wire.near0()?.flow_rules.ok_or("as reported by the driver")?;
    assert_eq!(observed, [PlacedRule { location: places[0], flow: Some(first.flow), to: first.to }]);

    // The driver accepts no second rule for a flow, not even to replace the first one.
    let other = rule("ether proto 0x88b5 queue 0")?;
    let replaced = [Setting::Nic(before.id, NicKnob::FlowRule(other.flow, Some(other.to)))];
    kernel.write(&replaced)?;
    assert_eq!(kernel.read(&like)?, replaced);
    assert_eq!(as_ethtool_lists(&wire)?.0, places);

    kernel.write(&like)?;
    assert_eq!(kernel.read(&wanted)?, like);
    kernel.write(&off)?;
    assert_eq!(as_set(&wire)?, before);
    Ok(())
}

/// Checks the driver's errors, each in a transaction that is undone completely without touching a rule of
/// another program.
fn refused_in_the_middle() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    wire.in_near("ethtool -K near0 ntuple on")?;
    wire.in_near("ethtool -N near0 flow-type ether proto 0x88b6 action 1 loc 3")?;
    let before = as_set(&wire)?;
    let taken = rule("ether proto 0x88b5 queue 1")?;
    for (refused, errno) in [
        ("tcp4 dst-port 80 queue 1", "EINVAL"),
        ("ether proto 0x88cc drop", "EINVAL"),
        ("ether proto 0x88cc queue 7", "EINVAL"),
    ] {
        let refused = rule(refused)?;
        let because = || Reason::new("a test", "test");
        let insert = |rule: FlowRule| {
            let (from, to) = (
                Setting::Nic(before.id, NicKnob::FlowRule(rule.flow, None)),
                Setting::Nic(before.id, NicKnob::FlowRule(rule.flow, Some(rule.to))),
            );
            Step::new(vec![Change::new(from, to, because())])
        };
        let plan = Plan { steps: vec![insert(taken), insert(refused)] };
        let scratch = Scratch::new("igb-rules")?;
        let journal = Journal::new(scratch.directory().to_owned(), "this-boot");
        let mut kernel = Kernel::new();
        let error = apply::commit(plan, &mut kernel, &journal, &asked(), Allow::default());
        let error = error.map(drop).expect_err("the driver refuses the second rule").to_string();
        assert!(error.contains(&refused.flow.to_string()) && error.contains(errno), "{error}");
        assert_eq!(as_set(&wire)?, before, "{refused:?}");
    }
    Ok(())
}

/// Tests that a user's table is removed again, because the kernel refuses to remove queues to which a user's
/// table refers. The table of an igb's driver differs from the kernel's default, and can only be written as a
/// user's table: from then on it fixes the number of queues.
fn table_is_given_back() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    with_the_drivers_own_table(&wire, 2)?;
    let device = wire.near0()?.id;
    let mut kernel = Kernel::new();
    let wanted = [Setting::Nic(device, NicKnob::RssTable(vec![1; 128]))];
    kernel.write(&wanted)?;
    let one = [Setting::Nic(device, NicKnob::Channels(ChannelKind::Combined, 1))];
    let error = kernel.write(&one).expect_err("queue 1 is in a user's table");
    assert!(error.to_string().contains("EINVAL"), "{error}");
    let both = [Setting::Nic(device, NicKnob::RssTable(QueueSpan { first: 0, count: 2 }.table(128)))];
    kernel.write(&both)?;
    assert_eq!(kernel.read(&both)?, both);
    kernel.write(&one)?;
    kernel.write(&[Setting::Nic(device, NicKnob::Channels(ChannelKind::Combined, 2))])?;
    Ok(())
}

/// Sets a channel count. The kernel accepts it only if no user's table refers to the removed queues.
fn combined(wire: &Wire, queues: u32) -> Result<(), Failed> {
    wire.in_near(&format!("ethtool -L near0 combined {queues}")).map(drop)
}

/// Gives the device this many queues and the driver's own table. The kernel would keep a table that a user
/// has set; the driver creates a new table when the number of queues changes.
fn with_the_drivers_own_table(wire: &Wire, queues: u32) -> Result<(), Failed> {
    wire.in_near("ethtool -X near0 default")?;
    if wire.near0()?.channels.ok_or("channels")?.combined.current == queues {
        combined(wire, queues - 1)?;
    }
    combined(wire, queues)
}

fn table_of(wire: &Wire) -> Result<Vec<u32>, Failed> {
    Ok(wire.near0()?.rss.ok_or("a receive hash")?.table)
}

/// Distributes the device's packets over two queues and undoes that in three ways: after a failure, on
/// release, and by the script. After each, the number of queues can be lowered.
fn put_back_from(wire: &Wire, before: &[u32]) -> Result<(), Failed> {
    let device = wire.near0()?.id;
    let because = || Reason::new("a test", "test");
    let entries = before.len();
    let change = |to: Setting, from: Setting| Step::new(vec![Change::new(from, to, because())]);
    let two = || {
        change(
            Setting::Nic(device, NicKnob::RssTable(QueueSpan { first: 0, count: 2 }.table(entries))),
            Setting::Nic(device, NicKnob::RssTable(before.to_vec())),
        )
    };
    let scratch = Scratch::new("igb-table")?;
    // The script checks that the host has not been rebooted since the changes.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let journal = Journal::new(scratch.directory().to_owned(), boot.trim());
    let mut kernel = Kernel::new();

    // Perform the first steps of dividing a device: write the table, and then a rule that this driver
    // refuses.
    let rule = rule("tcp4 dst-port 80 queue 1")?;
    let refused = change(
        Setting::Nic(device, NicKnob::FlowRule(rule.flow, Some(rule.to))),
        Setting::Nic(device, NicKnob::FlowRule(rule.flow, None)),
    );
    let plan = Plan { steps: vec![two(), refused] };
    let error = apply::commit(plan, &mut kernel, &journal, &asked(), Allow::default());
    let error = error.map(drop).expect_err("the driver refuses the rule");
    assert_eq!(error.host, apply::UndoState::Restored, "{error}");
    assert_eq!(table_of(wire)?, before);

    let held = apply::commit(Plan { steps: vec![two()] }, &mut kernel, &journal, &asked(), Allow::default())?;
    assert_eq!(table_of(wire)?, QueueSpan { first: 0, count: 2 }.table(entries));
    drop(held);
    assert_eq!(table_of(wire)?, before);

    let held = apply::commit(Plan { steps: vec![two()] }, &mut kernel, &journal, &asked(), Allow::default())?;
    let name = held.transaction().ok_or("the plan has changes")?;
    held.keep()?;
    let script = scratch.directory().join(name.to_string()).join("undo.sh");
    let said = wire.in_near(&format!("sh {} --by-hand", script.display()))?;
    assert_eq!(table_of(wire)?, before, "{said}");
    Ok(())
}

/// Tests that the driver's own table is not changed. It is divided into blocks, and cannot be restored: if it
/// is written, it fixes the number of queues. Therefore the change is refused beforehand. Changes of the
/// kernel's default table and of a user's table are undone exactly.
fn own_table_is_not_taken_away() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let channels = wire.near0()?.channels.ok_or("channels")?.combined;
    let queues = channels.max.min(4);
    assert!(queues >= 3, "{channels:?}");
    let fewer = queues - 1;
    with_the_drivers_own_table(&wire, queues)?;
    let own = table_of(&wire)?;
    assert!(Rss::is_in_blocks(&own), "the table that igb creates: {own:?}");
    let device = wire.near0()?.id;
    let from = Setting::Nic(device, NicKnob::RssTable(own.clone()));
    let to = Setting::Nic(device, NicKnob::RssTable(QueueSpan { first: 0, count: 2 }.table(own.len())));
    let step = || Step::new(vec![Change::new(from.clone(), to.clone(), Reason::new("a test", "test"))]);
    let scratch = Scratch::new("igb-own-table")?;
    let journal = Journal::new(scratch.directory().to_owned(), "this-boot");
    let mut kernel = Kernel::new();
    let plan = Plan { steps: vec![step()] };
    let error = apply::commit(plan, &mut kernel, &journal, &asked(), Allow::default());
    let error = error.map(drop).expect_err("the table could not be restored");
    assert!(matches!(*error.fault, apply::CommitFault::Irreversible(_)), "{error}");
    assert!(error.to_string().contains("ethtool -X DEVICE default"), "{error}");
    assert_eq!(table_of(&wire)?, own, "nothing was written");
    combined(&wire, fewer)?;
    combined(&wire, queues)?;
    assert_eq!(table_of(&wire)?, own, "the driver creates the table again");

    // The remedy that the error message names works.
    wire.in_near("ethtool -X near0 default")?;
    let default = table_of(&wire)?;
    assert_eq!(default, QueueSpan { first: 0, count: queues }.table(own.len()));
    put_back_from(&wire, &default)?;
    combined(&wire, fewer)?;
    combined(&wire, queues)?;
    assert_eq!(table_of(&wire)?, own, "the kernel's own table does not fix the number of queues");

    // A table that the user has set remains a user's table.
    wire.in_near("ethtool -X near0 weight 2 0 1")?;
    let chosen = table_of(&wire)?;
    put_back_from(&wire, &chosen)?;
    assert!(combined(&wire, 2).is_err(), "queue 2 is in a user's table");
    wire.in_near("ethtool -X near0 default")?;

    // With --allow-irreversible, packets reach the same queues as before after the change is undone.
    combined(&wire, fewer)?;
    combined(&wire, queues)?;
    let allow = Allow { irreversible: true, ..Allow::default() };
    drop(apply::commit(Plan { steps: vec![step()] }, &mut kernel, &journal, &asked(), allow)?);
    assert_eq!(table_of(&wire)?, own);
    wire.in_near("ethtool -X near0 default")?;
    combined(&wire, channels.current)
}

fn chosen_options() -> Result<(), Failed> {
    let wire = Wire::new(2)?;
    let device = wire.near0()?.id;
    for line in [
        "tc qdisc replace dev near0 root handle 1: mq",
        "tc qdisc replace dev near0 parent 1:1 handle 10: fq_codel limit 1000 target 3ms interval 47ms ce_threshold 1ms \
         quantum 300 flows 64 noecn drop_batch 8 memory_limit 4000000",
        "tc qdisc replace dev near0 parent 1:2 fq limit 500 flow_limit 50 quantum 2000 initial_quantum 9000 maxrate 80mbit \
         buckets 256 refill_delay 20ms orphan_mask 255 low_rate_threshold 1mbit ce_threshold 2ms timer_slack 5000 \
         horizon 5s horizon_cap nopacing",
    ] {
        wire.in_near(line)?;
    }
    let shown = || wire.in_near("tc qdisc show dev near0");
    let before = shown()?;
    let like = Setting::Nic(device, NicKnob::Qdiscs(Qdiscs::Other(String::new())));
    let mut kernel = Kernel::new();
    let recorded = kernel.read(std::slice::from_ref(&like))?;
    let [Setting::Nic(_, NicKnob::Qdiscs(Qdiscs::PerQueue { handle: Some(1), queues }))] =
        recorded.as_slice()
    else {
        return Err(format!("{recorded:?}").into());
    };
    assert_eq!(queues[0].handle, Some(0x10));
    assert_eq!(queues[0].options.get(&QdiscOption::Target), Some(&2_999), "as the kernel shows 3 ms");
    assert_eq!((queues[0].options.len(), queues[1].options.len()), (9, 14), "{queues:?}");
    let fair = Qdiscs::PerQueue {
        handle: None,
        queues: vec![Qdisc::of(QdiscKind::Fq), Qdisc::of(QdiscKind::FqCodel)],
    };
    let wanted = [Setting::Nic(device, NicKnob::Qdiscs(fair))];
    kernel.write(&wanted)?;
    assert_eq!(kernel.read(&wanted)?, wanted, "options chosen by the kernel are omitted");
    kernel.write(&recorded)?;
    assert_eq!(kernel.read(&recorded)?, recorded);
    // The second queue's handle differs, and the lines are ordered by handle.
    let settled = |text: &str| -> BTreeSet<String> {
        let chosen = |word: &&str| word.starts_with("80") || word.starts_with("ff");
        let words =
            |line: &str| line.split_whitespace().filter(|word| !chosen(word)).collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    };
    assert_eq!(settled(&before), settled(&shown()?));
    // A filter on one of the qdiscs could not be restored.
    wire.in_near("tc filter add dev near0 parent 10: protocol ip u32 match u32 0 0 flowid 10:1")?;
    let filtered = kernel.read(std::slice::from_ref(&like))?;
    assert!(matches!(&filtered[..], [Setting::Nic(_, NicKnob::Qdiscs(Qdiscs::Other(_)))]), "{filtered:?}");
    Ok(())
}
