//! Tests which devices a section matches, and overlapping sections.

use std::collections::BTreeSet;

use model::host::{Device, DeviceLink, TxQueueState};
use model::nic::NicRequest;
use model::{
    Carries, CpuSet, DeviceCondition, DeviceSelector, Host, Intent, Patterns, Policy, PolicyName, QueueIndex,
    Setting, Target,
};
use plan::{RefusalKind, Resolved, desired, diff, place, select};
use proptest::prelude::*;

use crate::made::{device, host, intent, on_device, policy, veth};

/// Four devices: eth0 and eth1 with the driver `ice`, at 25 and 100 Gb/s, eth0 with the default route; ens3
/// with `igb`; and a bridge.
fn four_devices() -> Host {
    let mut host = host();
    let link = |pci: &str, speed, default_route| DeviceLink {
        pci: Some(pci.to_owned()),
        mac: Some("02:00:00:00:00:07".to_owned()),
        speed_mbps: Some(speed),
        default_route,
        ..DeviceLink::default()
    };
    host.devices.push(Device { link: link("0000:3b:00.0", 25_000, true), ..device(2, "eth0", &[259, 260]) });
    host.devices
        .push(Device { link: link("0000:3b:00.1", 100_000, false), ..device(3, "eth1", &[300, 301]) });
    let igb = "igb".to_owned();
    host.devices.push(Device {
        kind: igb,
        link: link("0000:05:00.0", 1000, false),
        ..device(4, "ens3", &[310])
    });
    host.devices.push(Device { kind: "bridge".to_owned(), ..device(5, "br0", &[]) });
    host
}

fn of_pattern(line: u32, pattern: &str) -> Intent {
    let selector = DeviceSelector::by_name(pattern.parse().expect("a pattern"));
    intent(line, Target::Devices(pattern.to_owned(), selector), PolicyName::Bulk)
}

fn of_match(line: u32, name: &str, meets: Vec<DeviceCondition>, not: Vec<DeviceCondition>) -> Intent {
    let selector = DeviceSelector { meets, not, by_name: false };
    intent(line, Target::Devices(name.to_owned(), selector), PolicyName::Latency)
}

fn patterns(text: &str) -> Patterns {
    text.parse().expect("a pattern")
}

/// Returns each matched device with the line of the section that applies to it.
fn decided(policy: &Policy, host: &Host) -> Vec<(String, String)> {
    let selection = select(policy, host);
    let mut decided: Vec<_> = selection
        .meets
        .iter()
        .flat_map(|(at, devices)| {
            let origin = &policy.intents[*at].origin;
            devices.iter().map(|device| (device.name.to_string(), origin.clone()))
        })
        .collect();
    decided.sort();
    decided
}

fn names<'a>(decided: &'a [(String, String)], origin: &str) -> Vec<&'a str> {
    decided.iter().filter(|(_, by)| by.ends_with(origin)).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn each_condition_finds_the_devices_that_meet_it() {
    let host = four_devices();
    for (condition, expected) in [
        (DeviceCondition::Driver(patterns("ice")), vec!["eth0", "eth1"]),
        (DeviceCondition::Pci(patterns("0000:3b:00.*")), vec!["eth0", "eth1"]),
        (DeviceCondition::Carries(Carries::DefaultRoute), vec!["eth0"]),
        (DeviceCondition::Speed(">=25G".parse().expect("a speed")), vec!["eth0", "eth1"]),
        (DeviceCondition::Speed("<25G".parse().expect("a speed")), vec!["ens3"]),
        (DeviceCondition::Name(patterns("e*")), vec!["ens3", "eth0", "eth1"]),
    ] {
        let words = condition.to_string();
        let policy = policy([of_match(2, "uplink", vec![condition], Vec::new())]);
        assert_eq!(names(&decided(&policy, &host), ":2"), expected, "{words}");
    }
}

#[test]
fn a_device_that_meets_any_condition_of_not_is_left_out() {
    let not = vec![
        DeviceCondition::Driver(patterns("igb")),
        DeviceCondition::Speed(">=100G".parse().expect("a speed")),
    ];
    let policy = policy([of_match(2, "most", vec![DeviceCondition::Name(patterns("*"))], not)]);
    assert_eq!(names(&decided(&policy, &four_devices()), ":2"), ["eth0"]);
}

#[test]
fn a_name_is_more_specific_than_a_match_and_a_match_than_a_pattern_and_a_longer_pattern_than_a_shorter() {
    let policy = policy([
        of_pattern(1, "*"),
        of_pattern(2, "eth*"),
        of_match(3, "ice", vec![DeviceCondition::Pci(patterns("0000:3b:00.1"))], Vec::new()),
        on_device(4, "eth0", PolicyName::Latency),
    ]);
    let decided = decided(&policy, &four_devices());
    assert_eq!(names(&decided, ":1"), ["ens3"]);
    assert_eq!(names(&decided, ":2"), Vec::<&str>::new());
    assert_eq!(names(&decided, ":3"), ["eth1"]);
    assert_eq!(names(&decided, ":4"), ["eth0"]);
}

#[test]
fn two_sections_that_are_equally_specific_are_refused_with_both_places() {
    let policy = policy([of_pattern(2, "eth*"), of_pattern(7, "*th0")]);
    let host = four_devices();
    let refusal = select(&policy, &host).without_clashes().expect_err("both mean eth0");
    assert_eq!(refusal.kind, RefusalKind::Conflict);
    assert_eq!(refusal.object, "device eth0");
    assert!(refusal.evidence[0].ends_with(":2") && refusal.evidence[1].ends_with(":7"), "{refusal:?}");
    // Callers that plan each request separately can still plan the device that only one section matches.
    let selection = select(&policy, &host);
    assert_eq!(selection.clashes.len(), 1);
    assert_eq!(names(&decided(&policy, &host), ":2"), ["eth1"]);
}

#[test]
fn a_section_that_meets_nothing_is_a_note_and_no_fault() {
    let policy =
        policy([of_match(2, "uplink", vec![DeviceCondition::Driver(patterns("mlx5_core"))], Vec::new())]);
    let host = four_devices();
    let selection = select(&policy, &host);
    let placement = place(&selection.policy, &host, &selection.noting(Resolved::default())).expect("places");
    assert_eq!(
        placement.parts[0].notes,
        ["matches no device (driver mlx5_core): nothing is set until one does"]
    );
    let wanted = desired(&placement, &host).expect("nothing");
    assert!(diff(&wanted, &host).expect("nothing").is_empty());
}

#[test]
fn a_device_without_a_napi_is_left_out_of_a_pattern_with_a_note_and_refused_by_its_name() {
    let host = four_devices();
    let by_pattern = policy([of_pattern(2, "*")]);
    let notes = select(&by_pattern, &host).notes.remove(&0).expect("notes");
    assert_eq!(notes, ["means eth0, eth1, ens3 here (name *)", "br0 has no NAPI: left out"]);
    let by_name = policy([on_device(2, "br0", PolicyName::Bulk)]);
    let selection = select(&by_name, &host).without_clashes().expect("one section");
    assert!(place(&selection.policy, &host, &Resolved::default()).is_err());
}

#[test]
fn a_device_that_cannot_have_a_setting_of_a_pattern_has_the_others_and_a_note_says_so() {
    let mut host = four_devices();
    // Neither an ifb nor a macvlan whose lower device is in another namespace has a NAPI.
    host.devices.push(Device { kind: "ifb".to_owned(), ..device(6, "ifb0", &[]) });
    host.devices.push(Device { kind: "macvlan".to_owned(), ..device(7, "mv0", &[]) });
    for device in &mut host.devices {
        let queues = if device.id.name.as_str() == "ens3" { 1 } else { 2 };
        device.tx_queues = (0..queues)
            .map(|index| TxQueueState {
                index: QueueIndex(index),
                napi: None,
                xps_cpus: CpuSet::new(),
                xps_rxqs: Vec::new(),
            })
            .collect();
    }
    let xps = |mut intent: Intent| {
        intent.nic = vec![NicRequest::Xps(true), NicRequest::RpsCpus("0".parse().expect("a list"))];
        intent
    };
    let changed = |policy: &Policy| -> BTreeSet<String> {
        let selection = select(policy, &host).without_clashes().expect("no clash");
        let placement = place(&selection.policy, &host, &Resolved::default()).expect("places");
        let plan = diff(&desired(&placement, &host).expect("desired"), &host).expect("a plan");
        plan.changes()
            .filter(|change| change.to().knob() == "xps_cpus")
            .filter_map(|change| Some(change.to().object().device()?.name.to_string()))
            .collect()
    };
    let mut plain = xps(of_pattern(2, "*"));
    plain.policy = PolicyName::None;
    let by_pattern = policy([plain]);
    let notes = select(&by_pattern, &host).notes.remove(&0).expect("notes");
    assert!(notes.contains(&"ens3 has one transmit queue: `xps` is left out".to_owned()), "{notes:?}");
    assert!(
        changed(&by_pattern).iter().eq(["br0", "eth0", "eth1", "ifb0", "mv0"]),
        "{:?}",
        changed(&by_pattern)
    );
    // A section with a policy still sets those settings that need no NAPI.
    let with_policy = policy([xps(of_pattern(2, "*"))]);
    let notes = select(&with_policy, &host).notes.remove(&0).expect("notes");
    let words = "mv0 has no NAPI: only xps, rps_cpus of the section is set there".to_owned();
    assert!(notes.contains(&words), "{notes:?}");
    // A section that names a device which cannot have the setting is refused before anything is set.
    let by_name = policy([xps(on_device(2, "ens3", PolicyName::None))]);
    let placement = place(&by_name, &host, &Resolved::default()).expect("places");
    let refusal = desired(&placement, &host).expect_err("one transmit queue");
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert!(refusal.to_string().contains("one transmit queue"), "{refusal}");
}

#[test]
fn what_is_planned_for_a_pattern_is_what_is_planned_for_each_name() {
    let host = four_devices();
    let changes = |policy: &Policy| -> Vec<Setting> {
        let selection = select(policy, &host).without_clashes().expect("no clash");
        let placement = place(&selection.policy, &host, &Resolved::default()).expect("places");
        let plan = diff(&desired(&placement, &host).expect("desired"), &host).expect("a plan");
        let mut settings: Vec<Setting> = plan.changes().map(|change| change.to().clone()).collect();
        settings.sort_by_key(|setting| setting.to_string());
        settings
    };
    let names = ["eth0", "eth1", "ens3"].map(|name| on_device(2, name, PolicyName::Bulk));
    let by_pattern = changes(&policy([of_pattern(2, "*")]));
    assert!(!by_pattern.is_empty());
    assert_eq!(by_pattern, changes(&policy(names)));
}

/// bond0 over eth0 and eth1, and a VLAN on bond0.
fn vlan_on_bond() -> Host {
    let mut host = four_devices();
    let bond = Device { kind: "bond".to_owned(), ..device(10, "bond0", &[]) };
    let mut vlan = Device { kind: "vlan".to_owned(), ..device(11, "bond0.7", &[]) };
    vlan.link.lower = Some(bond.id.ifindex);
    host.devices[0].link.master = Some(bond.id.ifindex);
    host.devices[1].link.master = Some(bond.id.ifindex);
    host.devices.extend([bond, vlan]);
    host
}

#[test]
fn a_policy_for_the_upper_device_reaches_the_queues_below_it() {
    let host = vlan_on_bond();
    for upper in ["bond0", "bond0.7"] {
        let policy = policy([on_device(2, upper, PolicyName::Bulk)]);
        assert_eq!(names(&decided(&policy, &host), ":2"), ["eth0", "eth1"], "{upper}");
        let selection = select(&policy, &host).without_clashes().expect("one section");
        let placement = place(&selection.policy, &host, &Resolved::default()).expect("places");
        let queues: usize = placement.parts.iter().map(|part| part.queues.len()).sum();
        assert_eq!(queues, 4, "{upper}");
        let wanted = desired(&placement, &host).expect("desired");
        assert!(wanted.wanted.iter().all(|wanted| {
            wanted.setting.object().device().is_none_or(|device| device.name.as_str().starts_with("eth"))
        }));
    }
}

#[test]
fn of_two_policies_for_devices_of_a_stack_the_nearer_decides_about_the_queues() {
    let host = vlan_on_bond();
    let policy = policy([
        on_device(2, "bond0.7", PolicyName::Latency),
        on_device(5, "bond0", PolicyName::Bulk),
        on_device(9, "eth1", PolicyName::Cpu),
    ]);
    let decided = decided(&policy, &host);
    assert_eq!(names(&decided, ":2"), Vec::<&str>::new());
    assert_eq!(names(&decided, ":5"), ["eth0"]);
    assert_eq!(names(&decided, ":9"), ["eth1"]);
}

#[test]
fn two_vlans_on_one_device_with_policies_of_their_own_are_refused() {
    let mut host = four_devices();
    for (index, name) in [(20, "eth0.1"), (21, "eth0.2")] {
        let mut vlan = Device { kind: "vlan".to_owned(), ..device(index, name, &[]) };
        vlan.link.lower = Some(host.devices[0].id.ifindex);
        host.devices.push(vlan);
    }
    let policy =
        policy([on_device(2, "eth0.1", PolicyName::Latency), on_device(5, "eth0.2", PolicyName::Bulk)]);
    let refusal = select(&policy, &host).without_clashes().expect_err("one NIC cannot have two policies");
    assert!(refusal.message.contains("1 level(s) above"), "{refusal}");
}

#[test]
fn a_veth_pair_is_no_stack() {
    let mut host = host();
    host.devices.push(veth(2, "nkb0", &[259]));
    assert!(!host.is_upper(&host.devices[0]) && host.below(&host.devices[0]).is_empty());
}

fn sections() -> impl Strategy<Value = Vec<Intent>> {
    let patterns = prop::sample::select(vec!["*", "eth*", "e*", "eth[01]", "*0", "ens3", "?th0"]);
    let section = prop_oneof![
        patterns.prop_map(|pattern| of_pattern(0, pattern)),
        prop::sample::select(vec!["ice", "igb", "mlx5_core"]).prop_map(|driver| of_match(
            0,
            driver,
            vec![DeviceCondition::Driver(patterns_of(driver))],
            Vec::new()
        )),
        prop::sample::select(vec!["eth0", "ens3"]).prop_map(|name| on_device(0, name, PolicyName::Bulk)),
    ];
    prop::collection::vec(section, 1..6)
}

fn patterns_of(text: &str) -> Patterns {
    Patterns::exactly(text)
}

proptest! {
    #[test]
    fn the_order_of_sections_decides_nothing(sections in sections(), turn in 0_usize..6) {
        let host = four_devices();
        let mut seen = std::collections::BTreeSet::new();
        let sections: Vec<Intent> = sections
            .into_iter()
            .filter(|section| seen.insert(section.target.to_string()))
            .enumerate()
            .map(|(at, section)| Intent { origin: format!("file:{at}"), ..section })
            .collect();
        let mut turned = sections.clone();
        turned.rotate_left(turn % sections.len());
        turned.reverse();
        let (one, other) = (policy(sections), policy(turned));
        prop_assert_eq!(decided(&one, &host), decided(&other, &host));
        let clashes = |policy: &Policy| -> Vec<String> {
            let selection = select(policy, &host);
            let mut objects: Vec<String> =
                selection.clashes.values().map(|refusal| refusal.object.clone()).collect();
            objects.sort();
            objects
        };
        prop_assert_eq!(clashes(&one), clashes(&other));
    }

    #[test]
    fn every_device_is_some_sections_or_refused_or_met_by_none(sections in sections()) {
        let host = four_devices();
        let policy = policy(sections);
        let selection = select(&policy, &host);
        for device in host.devices.iter().filter(|device| !device.napis.is_empty()) {
            let owners = selection.meets.values().filter(|devices| devices.contains(&device.id)).count();
            let object = format!("device {}", device.id);
            let refused = selection.clashes.values().filter(|refusal| refusal.object == object).count();
            let met = policy.intents.iter().any(|intent| match &intent.target {
                Target::Devices(_, selector) => selector.selects(device),
                Target::Device(name) => name == device.id.name.as_str(),
                _ => false,
            });
            prop_assert_eq!(owners + refused, usize::from(met));
        }
    }

    #[test]
    fn to_select_again_adds_nothing(sections in sections()) {
        let host = four_devices();
        let once = select(&policy(sections), &host);
        if once.clashes.is_empty() {
            let twice = select(&once.policy, &host);
            prop_assert_eq!(once.policy.intents, twice.policy.intents);
        }
    }
}
