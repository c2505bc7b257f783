//! Tests a recipe on devices that support all of it, half of it, and none of it.

use std::sync::Arc;

use model::host::{Coalesce, PacketSizes, Pair, Rings};
use model::nic::NicRequest;
use model::{
    Case, CoalesceParam, DeliveryMode, EpollNapis, Host, Intent, IrqKnob, Mechanism, Offload, PacketSize,
    Pid, Policy, PolicyName, Reason, Recipe, RecipeEntry, RecipeValue, RingKind, Setting, When,
};
use plan::{Desired, Resolved, desired, diff, place};

use crate::made::{device, host, on_device, on_service, policy, server, tx_queues, with_irqs};

const BULK: PolicyName = PolicyName::Bulk;

fn with(mut policy: Policy, name: PolicyName, mechanism: Mechanism, value: RecipeValue) -> Policy {
    let because = Reason::new(format!("{mechanism} {value} is good"), "recipe of a test");
    let recipe = Arc::make_mut(&mut policy.recipes).policies.entry(name).or_default();
    recipe.entries.insert(mechanism, RecipeEntry::new(value, because));
    policy
}

/// Adds the complete recipe for `bulk`.
fn full(policy: Policy) -> Policy {
    let values = [
        (Mechanism::Coalescing(CoalesceParam::RxUsecs), RecipeValue::Number(50)),
        (Mechanism::Coalescing(CoalesceParam::AdaptiveRx), RecipeValue::Switch(false)),
        (Mechanism::Ring(RingKind::Rx), RecipeValue::Max),
        (Mechanism::Offload(Offload::Gro), RecipeValue::Switch(true)),
        (Mechanism::Offload(Offload::GroHw), RecipeValue::Switch(true)),
        (Mechanism::RpsCpus, RecipeValue::CpusIfShort),
        (Mechanism::Xps, RecipeValue::Switch(true)),
        (Mechanism::WakeLatency, RecipeValue::Number(100)),
        (Mechanism::RpsFlowCount, RecipeValue::Keep),
    ];
    values.into_iter().fold(policy, |policy, (mechanism, value)| with(policy, BULK, mechanism, value))
}

/// A host with four CPUs, and a NIC with two queues whose driver supports everything.
fn rich() -> Host {
    let mut host = host();
    let mut nic = device(2, "eth0", &[300, 301]);
    let coalesce = Coalesce { rx_usecs: Some(8), adaptive_rx: Some(true), ..Coalesce::default() };
    nic.coalesce = Some(coalesce);
    nic.rings = Some(Rings { rx: Pair { current: 512, max: 4096 }, ..Rings::default() });
    nic.offloads = [(Offload::Gro, true), (Offload::GroHw, false)].into();
    nic.tx_queues = tx_queues(2);
    for queue in &mut nic.rx_queues {
        queue.coalesce = Some(coalesce);
    }
    host.devices.push(nic);
    with_irqs(host, 40)
}

fn wanted(policy: &Policy, host: &Host) -> Desired {
    let resolved = Resolved::default().with(1, [Pid(812)]);
    desired(&place(policy, host, &resolved).expect("placed"), host).expect("desired")
}

/// Returns the desired knobs and their values, without those of the delivery mode.
fn beside_the_mode(desired: &Desired) -> Vec<String> {
    let of_mode = ["defer-hard-irqs", "gro-flush-timeout", "irq-suspend-timeout"];
    let settings = desired.wanted.iter().map(|wanted| &wanted.setting);
    settings.filter(|setting| !of_mode.contains(&setting.knob())).map(ToString::to_string).collect()
}

#[test]
fn a_device_gets_what_it_has_and_what_stops_its_queues_is_proposed() {
    let host = rich();
    let desired = wanted(&full(policy([on_device(2, "eth0", BULK)])), &host);
    assert_eq!(
        beside_the_mode(&desired),
        [
            "eth0: rx-usecs 50",
            "eth0: adaptive-rx off",
            "eth0: rx-gro on",
            "eth0 rx-0: rps_cpus 0-3",
            "eth0 rx-1: rps_cpus 0-3",
            "eth0 tx-0: xps_cpus 0,2",
            "eth0 tx-1: xps_cpus 1,3",
        ]
    );
    let proposed: Vec<String> = desired.proposed.iter().map(|wanted| wanted.setting.to_string()).collect();
    assert_eq!(proposed, ["eth0: rx-ring 4096", "eth0: rx-gro-hw on"]);
    assert!(desired.notes.iter().any(|note| note.contains("not set without --disruptive")));
    assert_eq!(desired.wake_latency.map(|(micros, _)| micros), Some(100));
    assert!(desired.wanted[0].because.source.contains("policy bulk, recipe of a test"));
}

#[test]
fn with_permission_what_stops_queues_comes_first_and_alone() {
    let mut asked = full(policy([on_device(2, "eth0", BULK)]));
    asked.disruptive = true;
    let desired = wanted(&asked, &rich());
    assert!(desired.first_stage && desired.proposed.is_empty());
    assert_eq!(beside_the_mode(&desired), ["eth0: rx-ring 4096", "eth0: rx-gro-hw on"]);
}

#[test]
fn what_a_device_lacks_is_left_out_and_named_and_nothing_is_refused() {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300, 301, 302, 303]));
    let desired = wanted(&full(policy([on_device(2, "eth0", BULK)])), &host);
    assert_eq!(
        beside_the_mode(&desired),
        [
            "eth0 rx-0: rps_cpus none",
            "eth0 rx-1: rps_cpus none",
            "eth0 rx-2: rps_cpus none",
            "eth0 rx-3: rps_cpus none"
        ],
        "as many queues as cores"
    );
    assert_eq!(
        desired.left_out,
        ["eth0 has no adaptive-rx, rx-gro, rx-gro-hw, rx-ring, rx-usecs, xps: left out of policy bulk"]
    );
}

#[test]
fn an_experts_word_goes_before_the_recipe() {
    let mut intent = on_device(2, "eth0", BULK);
    intent.nic = vec![NicRequest::Coalescing(CoalesceParam::RxUsecs, 12), NicRequest::Xps(false)];
    let settings = beside_the_mode(&wanted(&full(policy([intent])), &rich()));
    assert!(settings.contains(&"eth0: rx-usecs 12".to_owned()), "{settings:?}");
    assert!(settings.contains(&"eth0 tx-0: xps_cpus none".to_owned()), "{settings:?}");
    assert_eq!(settings.iter().filter(|setting| setting.contains("rx-usecs")).count(), 1);
}

#[test]
fn a_driver_may_be_left_alone() {
    let mut asked = full(policy([on_device(2, "eth0", BULK)]));
    let keep = RecipeEntry::new(RecipeValue::Keep, Reason::new("it refuses", "the driver"));
    let of_driver = Arc::make_mut(&mut asked.recipes)
        .drivers
        .entry("ice".to_owned())
        .or_default()
        .entry(None)
        .or_default();
    of_driver.entries.insert(Mechanism::Coalescing(CoalesceParam::RxUsecs), keep);
    let settings = beside_the_mode(&wanted(&asked, &rich()));
    assert!(!settings.iter().any(|setting| setting.contains("rx-usecs")), "{settings:?}");
}

#[test]
fn where_requests_share_a_device_each_sets_the_moderation_of_its_own_queues() {
    let mut host = rich();
    host.processes.push(server(812, "memcached", &[&[301]]));
    let asked = full(policy([on_device(2, "eth0", BULK), on_service(5, "memcached", PolicyName::Latency)]));
    let asked = with(
        asked,
        PolicyName::Latency,
        Mechanism::Coalescing(CoalesceParam::RxUsecs),
        RecipeValue::Number(0),
    );
    let settings = beside_the_mode(&wanted(&asked, &host));
    assert!(settings.contains(&"eth0 rx-0: rx-usecs 50".to_owned()), "{settings:?}");
    assert!(settings.contains(&"eth0 rx-1: rx-usecs 0".to_owned()), "{settings:?}");
    assert!(!settings.iter().any(|setting| setting.starts_with("eth0: rx-usecs")), "{settings:?}");
    for queue in &mut host.devices[0].rx_queues {
        queue.coalesce = None;
    }
    let settings = beside_the_mode(&wanted(&asked, &host));
    assert!(
        !settings.iter().any(|setting| setting.contains("rx-usecs")),
        "no moderation of single queues: {settings:?}"
    );
}

#[test]
fn a_layout_of_the_recipe_moves_interrupts_and_one_without_cpus_for_it_is_a_note() {
    let mut host = rich();
    let one_to_one = RecipeValue::Layout("one-to-one".parse().expect("a layout"));
    let asked = with(policy([on_device(2, "eth0", BULK)]), BULK, Mechanism::Layout, one_to_one);
    let plan = diff(&wanted(&asked, &host), &host).expect("planned");
    let moved: Vec<String> = plan
        .changes()
        .filter(|change| matches!(change.to(), Setting::Irq(_, IrqKnob::Affinity(..))))
        .map(ToString::to_string)
        .collect();
    assert_eq!(moved, ["irq 40: smp_affinity 0-3 → 0", "irq 41: smp_affinity 0-3 → 1"]);
    host.topology.isolated = host.topology.online.clone();
    let placement = place(&asked, &host, &Resolved::default()).expect("placed");
    assert!(placement.parts[0].notes.iter().any(|note| note.contains("interrupts are not moved")));
}

#[test]
fn packets_above_64_kib_are_for_drivers_that_take_them_and_as_large_as_these_do() {
    let big = |mut host: Host, tso_max_size| {
        host.devices[0].packet_sizes = PacketSizes {
            gso_max_size: Some(PacketSize::LEGACY),
            gro_max_size: Some(PacketSize::LEGACY),
            tso_max_size,
            ..PacketSizes::default()
        };
        host
    };
    let asked = |value: RecipeValue| {
        let sizes = [PacketSize::Gso, PacketSize::Gro];
        sizes.into_iter().fold(policy([on_device(2, "eth0", BULK)]), |policy, size| {
            with(policy, BULK, Mechanism::PacketSize(size), value.clone())
        })
    };
    let bounds = |value, tso_max_size| beside_the_mode(&wanted(&asked(value), &big(rich(), tso_max_size)));
    let cases = [
        (
            RecipeValue::Number(185_000),
            Some(PacketSize::MAX),
            vec!["gso_max_size 185000", "gro_max_size 185000"],
        ),
        (RecipeValue::Number(185_000), Some(100_000), vec!["gso_max_size 100000", "gro_max_size 185000"]),
        (RecipeValue::Max, Some(100_000), vec!["gso_max_size 100000", "gro_max_size 524280"]),
        (RecipeValue::Number(185_000), Some(PacketSize::LEGACY), vec![]),
        (
            RecipeValue::Number(16_384),
            Some(PacketSize::LEGACY),
            vec!["gso_max_size 16384", "gro_max_size 16384"],
        ),
        (RecipeValue::Number(185_000), None, vec![]),
    ];
    for (value, driver, expected) in cases {
        let expected: Vec<String> = expected.iter().map(|bound| format!("eth0: {bound}")).collect();
        assert_eq!(bounds(value.clone(), driver), expected, "{value} with {driver:?}");
    }
    let old = wanted(&asked(RecipeValue::Max), &big(rich(), None));
    assert_eq!(old.left_out, ["eth0 has no gro_max_size, gso_max_size: left out of policy bulk"]);
}

/// Adds recipes in which `latency` busy-waits, except on a veth, and except if an epoll's connections are on
/// several NAPIs.
fn with_cases(mut policy: Policy) -> Policy {
    let of = |mode: DeliveryMode, measured_on: &[&str]| Recipe {
        entries: [(
            Mechanism::Delivery,
            RecipeEntry {
                measured_on: measured_on.iter().map(ToString::to_string).collect(),
                ..RecipeEntry::new(
                    RecipeValue::Delivery(mode),
                    Reason::new(format!("{mode} is best here"), "a test"),
                )
            },
        )]
        .into(),
    };
    let suspend20: DeliveryMode = "suspend20".parse().expect("a mode");
    let several = When { epoll_napis: Some(EpollNapis::Several), ..When::default() };
    let recipes = Arc::make_mut(&mut policy.recipes);
    recipes.policies.insert(PolicyName::Latency, of(suspend20, &["mlx5_core"]));
    let interrupt = of(DeliveryMode::Interrupt, &[]);
    recipes.cases.insert(
        "several".to_owned(),
        Case { when: several, policies: [(Some(PolicyName::Latency), interrupt.clone())].into() },
    );
    recipes.drivers.entry("veth".to_owned()).or_default().insert(Some(PolicyName::Latency), interrupt);
    policy
}

#[test]
fn the_mode_of_a_policy_goes_by_the_device_and_by_how_connections_come() {
    let latency = PolicyName::Latency;
    let mode = |kind: &str, workers: &[&[u32]]| {
        let mut host = host();
        let mut nic = device(2, "eth0", &[300, 301]);
        nic.kind = kind.to_owned();
        host.devices.push(nic);
        host.processes.push(server(812, "memcached", workers));
        let asked = with_cases(policy([on_service(2, "memcached", latency)]));
        let resolved = Resolved::default().with(0, [Pid(812)]);
        place(&asked, &host, &resolved).expect("placed").parts[0].delivery.mode.to_string()
    };
    assert_eq!(mode("ice", &[&[300], &[301]]), "suspend20");
    assert_eq!(mode("ice", &[&[300, 301], &[301]]), "interrupt", "one epoll mixes NAPIs");
    assert_eq!(mode("veth", &[&[300], &[301]]), "interrupt");
    assert_eq!(
        mode("veth", &[&[], &[]]),
        "interrupt",
        "no packet has arrived, and the host has no other device"
    );
    let asked = with_cases(policy([on_device(2, "eth0", latency)]));
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300]));
    let of_device = |host: &Host| {
        place(&asked, host, &Resolved::default()).expect("placed").parts[0].delivery.mode.to_string()
    };
    assert_eq!(of_device(&host), "suspend20");
    host.devices[0].kind = "veth".to_owned();
    assert_eq!(of_device(&host), "interrupt");
}

#[test]
fn devices_that_want_different_modes_are_named_and_the_general_word_holds() {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300]));
    let mut other = device(3, "veth0", &[400]);
    other.kind = "veth".to_owned();
    host.devices.push(other);
    host.processes.push(server(812, "memcached", &[&[300], &[400]]));
    let asked = with_cases(policy([on_service(2, "memcached", PolicyName::Latency)]));
    let placement = place(&asked, &host, &Resolved::default().with(0, [Pid(812)])).expect("placed");
    assert_eq!(placement.parts[0].delivery.mode.to_string(), "suspend20");
    let notes = &placement.parts[0].notes;
    assert!(
        notes.iter().any(|note| note.contains("different modes") && note.contains("(ice, veth)")),
        "{notes:?}"
    );
}

#[test]
fn what_was_not_measured_on_such_a_device_is_said_with_the_command_that_measures() {
    let notes = |kind: &str, expert: bool| {
        let mut host = host();
        let mut nic = device(2, "eth0", &[300]);
        nic.kind = kind.to_owned();
        host.devices.push(nic);
        let intent = on_device(2, "eth0", PolicyName::Latency);
        let mode: DeliveryMode = "suspend20".parse().expect("a mode");
        let intent = Intent { delivery: expert.then_some(mode), ..intent };
        let placement = place(&with_cases(policy([intent])), &host, &Resolved::default()).expect("placed");
        let notes = placement.parts[0].notes.clone();
        notes.into_iter().filter(|note| note.contains("not measured")).collect::<Vec<_>>()
    };
    let said = notes("ice", false);
    assert_eq!(
        said,
        [
            "policy latency: suspend20 was not measured on such a device (ice); `netpolicy bench policies` measures what the \
          policies gain and cost on this machine, in a lab"
        ]
    );
    assert_eq!(notes("mlx5_core", false), Vec::<String>::new(), "the mode was measured on such a device");
    assert_eq!(notes("veth", false), Vec::<String>::new(), "the kernel's default needs no measurement");
    assert_eq!(notes("ice", true), Vec::<String>::new(), "an expert claims no queues");
}
