//! What a NIC does with single flows, its receive hash and its queueing disciplines, on the igb NICs of an emulated guest
//! and with its kernel's own fq and fq_codel.

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::Kernel;
use model::nic::ChannelKind;
use model::{
    FlowRule, Offload, Qdisc, QdiscKind, QdiscOption, Qdiscs, QueueIndex, QueueSpan, Setting, SteerTo,
};

use super::wire::Wire;
use super::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const IGB: &[Need] = &[Need::Root, Need::Wire, Need::IgbNics];
    const FAIR: &[Need] = &[Need::Root, Need::Wire, Need::FairQueues];
    vec![
        test("nics/a_rule_of_an_igb_is_made_changed_in_its_place_and_removed", IGB, rules),
        test("nics/what_an_igb_takes_no_rules_for_is_said_in_the_kernels_words", IGB, refused_rules),
        test("nics/a_table_that_was_the_drivers_own_is_so_again_after_its_undo", IGB, table_is_given_back),
        test("qdiscs/options_that_somebody_chose_are_read_written_and_put_back", FAIR, chosen_options),
    ]
}

/// An igb takes rules for frames alone, and none for a flow that has one.
fn rules() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let device = wire.near0()?.id;
    let mut kernel = Kernel::new();
    kernel.write(&[Setting::Offload(device, Offload::Ntuple, true)])?;
    let before = wire.near0()?;
    assert_eq!(before.flow_rules, Some(Vec::new()), "the premise");
    assert_eq!(before.rss_contexts, None, "an igb has no contexts");
    let rule: FlowRule = "ether dst 02:00:00:00:00:07 queue 1".parse()?;
    let to = |to| [Setting::FlowRule(device, rule.flow, to)];
    let queue = |queue| Some(SteerTo::Queue(QueueIndex(queue)));
    assert_eq!(kernel.read(&to(queue(0)))?, to(None));
    kernel.write(&to(queue(1)))?;
    assert_eq!(kernel.read(&to(None))?, to(queue(1)));
    let placed = wire.near0()?.flow_rules.ok_or("rules")?;
    assert_eq!(
        (placed.len(), placed[0].flow, placed[0].to),
        (1, Some(rule.flow), SteerTo::Queue(QueueIndex(1)))
    );
    let listed = wire.in_near("ethtool -n near0")?;
    assert!(listed.contains(&format!("Filter: {}", placed[0].location)), "{listed}");
    assert!(listed.contains("Dest MAC addr: 02:00:00:00:00:07 mask: 00:00:00:00:00:00"), "{listed}");
    assert!(listed.contains("Action: Direct to queue 1"), "{listed}");
    kernel.write(&to(queue(0)))?;
    let changed = wire.near0()?.flow_rules.ok_or("rules")?;
    assert_eq!(
        (changed.len(), changed[0].location, changed[0].to),
        (1, placed[0].location, SteerTo::Queue(QueueIndex(0)))
    );
    kernel.write(&to(None))?;
    assert_eq!(wire.near0()?, before);
    kernel.write(&[Setting::Offload(device, Offload::Ntuple, false)])?;
    Ok(())
}

fn refused_rules() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let before = wire.near0()?;
    let mut kernel = Kernel::new();
    for text in ["tcp4 dst-port 80 queue 1", "ether proto 0x88b5 queue 7", "ether proto 0x88b5 drop"] {
        let rule: FlowRule = text.parse()?;
        let error = kernel
            .write(&[Setting::FlowRule(before.id, rule.flow, Some(rule.to))])
            .expect_err("an igb cannot");
        assert!(error.to_string().starts_with(&format!("near0 ntuple {}: ", rule.flow)), "{error}");
        assert!(error.to_string().contains("EINVAL"), "{error}");
    }
    let context = Setting::RssContext(before.id, QueueSpan { first: 1, count: 1 }, true);
    let error = kernel.write(&[context]).expect_err("an igb cannot");
    assert!(error.to_string().contains("EOPNOTSUPP"), "{error}");
    assert_eq!(wire.near0()?, before);
    Ok(())
}

/// The kernel lets nobody take queues away that a table of somebody's leads to.
fn table_is_given_back() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let device = wire.near0()?.id;
    let mut kernel = Kernel::new();
    let wanted = [Setting::RssTable(device, vec![1; 128])];
    let original = kernel.read(&wanted)?;
    kernel.write(&wanted)?;
    let one = [Setting::Channels(device, ChannelKind::Combined, 1)];
    let error = kernel.write(&one).expect_err("queue 1 is in somebody's table");
    assert!(error.to_string().contains("EINVAL"), "{error}");
    kernel.write(&original)?;
    assert_eq!(kernel.read(&wanted)?, original);
    kernel.write(&one)?;
    kernel.write(&[Setting::Channels(device, ChannelKind::Combined, 2)])?;
    assert_eq!(kernel.read(&wanted)?, original, "the driver goes on adapting it");
    Ok(())
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
    let like = Setting::Qdiscs(device, Qdiscs::Other(String::new()));
    let mut kernel = Kernel::new();
    let recorded = kernel.read(std::slice::from_ref(&like))?;
    let [Setting::Qdiscs(_, Qdiscs::PerQueue { handle: Some(1), queues })] = recorded.as_slice() else {
        return Err(format!("{recorded:?}").into());
    };
    assert_eq!(queues[0].handle, Some(0x10));
    assert_eq!(queues[0].options.get(&QdiscOption::Target), Some(&2_999), "as the kernel shows 3 ms");
    assert_eq!((queues[0].options.len(), queues[1].options.len()), (9, 14), "{queues:?}");
    let fair = Qdiscs::PerQueue {
        handle: None,
        queues: vec![Qdisc::of(QdiscKind::Fq), Qdisc::of(QdiscKind::FqCodel)],
    };
    let wanted = [Setting::Qdiscs(device, fair)];
    kernel.write(&wanted)?;
    assert_eq!(kernel.read(&wanted)?, wanted, "what the kernel chooses is left out");
    kernel.write(&recorded)?;
    assert_eq!(kernel.read(&recorded)?, recorded);
    // The kernel chooses a handle for the second queue anew.
    let settled = |text: &str| -> Vec<String> {
        let words =
            |line: &str| line.split(' ').filter(|word| !word.starts_with("80")).collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    };
    assert_eq!(settled(&before), settled(&shown()?));
    // A filter on one of them is more than could be put back.
    wire.in_near("tc filter add dev near0 parent 10: protocol ip u32 match u32 0 0 flowid 10:1")?;
    let filtered = kernel.read(std::slice::from_ref(&like))?;
    assert!(matches!(&filtered[..], [Setting::Qdiscs(_, Qdiscs::Other(_))]), "{filtered:?}");
    Ok(())
}
