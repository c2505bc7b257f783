//! Tests findings of `doctor` on other tools that write the same settings.

use std::collections::BTreeSet;

use model::host::{ConflictingTool, ConflictingToolKind, Pair, Rings, RunningIrqbalance};
use model::{Finding, Host, IrqNumber, NicKnob, Pid, RingKind, Setting, Severity, Sysctl};
use plan::doctor::HostContext;
use plan::{RequestFacts, doctor_with};

use crate::made::{device, host, with_irqs};

fn nic(banned: Option<&[u32]>) -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300, 301]));
    let mut host = with_irqs(host, 30);
    for irq in &mut host.irqs {
        irq.affinity = "1".parse().expect("a CPU");
    }
    let banned = banned.map(|irqs| irqs.iter().copied().map(IrqNumber).collect::<BTreeSet<_>>());
    host.irqbalance = Some(RunningIrqbalance { pid: Pid(77), banned });
    host
}

fn asked(host: &Host) -> RequestFacts {
    let queues = host.devices[0].rx_queues.iter().map(|queue| queue.id).collect();
    RequestFacts {
        origin: "test".to_owned(),
        mode: "defer50".parse().expect("a mode"),
        queues,
        processes: Vec::new(),
        goal: None,
        wake_within: None,
    }
}

fn found(host: &Host, asked: &[RequestFacts], others: Vec<ConflictingTool>, rule: &str) -> Option<Finding> {
    let context = HostContext { others, ..HostContext::default() };
    doctor_with(host, None, asked, &context).into_iter().find(|finding| finding.rule == rule)
}

#[test]
fn a_placed_interrupt_that_irqbalance_may_move_is_a_warning_until_it_is_banned() {
    let host = nic(Some(&[30]));
    let finding = found(&host, &[asked(&host)], Vec::new(), "irqbalance-moves-placed").expect("found");
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(finding.summary, "it may move the placed interrupts 31 when the load changes");
    assert_eq!(finding.remedy.as_deref(), Some("netpolicy apply"));
    let host = nic(Some(&[30, 31]));
    assert_eq!(found(&host, &[asked(&host)], Vec::new(), "irqbalance-moves-placed"), None);
    let note = found(&host, &[], Vec::new(), "irqbalance-runs").expect("a note");
    assert_eq!(note.summary, "it is running, and ignores 2 of the 2 interrupts of devices");
}

#[test]
fn a_file_that_will_set_a_number_back_is_a_warning_and_one_that_agrees_is_none() {
    let mut host = nic(None);
    host.sysctls.insert(Sysctl::NetdevBudget, 300);
    let file = |value: &str| ConflictingTool {
        sysctl: Some((Sysctl::NetdevBudget, value.to_owned())),
        ..ConflictingTool::new(
            ConflictingToolKind::SysctlFile,
            "/etc/sysctl.d/90-net.conf:3",
            format!("net.core.netdev_budget={value}"),
        )
    };
    let warning = found(&host, &[], vec![file("600")], "others-set-sysctl").expect("found");
    assert_eq!(warning.severity, Severity::Warning);
    assert_eq!(warning.evidence, ["/etc/sysctl.d/90-net.conf:3: net.core.netdev_budget=600"]);
    for agreeing in ["300", "0x12c", "0454", "\"300\"", ">200", ">300", "<300", "<400"] {
        assert_eq!(found(&host, &[], vec![file(agreeing)], "others-set-sysctl"), None, "{agreeing}");
    }
    for other in [">301", "<299", "0x300", "none"] {
        let finding = found(&host, &[], vec![file(other)], "others-set-sysctl").expect(other);
        assert_eq!(finding.severity, Severity::Warning, "{other}");
    }
}

#[test]
fn device_settings_of_other_tools_are_reported_with_file_and_line() {
    let host = nic(None);
    let link = ConflictingTool {
        device: Some("eth*".to_owned()),
        ..ConflictingTool::new(
            ConflictingToolKind::LinkFile,
            "/etc/systemd/network/10-eth.link:5",
            "CombinedChannels=4",
        )
    };
    let note = found(&host, &[], vec![link], "others-set-device").expect("found");
    assert_eq!(note.summary, "systemd .link sets device settings, when udev adds the device");
    assert_eq!(note.evidence, ["/etc/systemd/network/10-eth.link:5 (eth*): CombinedChannels=4"]);
}

#[test]
fn agents_of_kubernetes_are_named_with_what_they_set_and_left_running() {
    let host = nic(None);
    for (kind, summary) in [
        (ConflictingToolKind::NodeTuningOperator, "Node Tuning Operator sets device settings, while it runs"),
        (
            ConflictingToolKind::Katalyst,
            "katalyst sets device settings, whenever the load of its CPUs changes",
        ),
        (ConflictingToolKind::NriPlugin, "NRI plugin sets device settings, when a container starts or stops"),
        (ConflictingToolKind::Crio, "CRI-O sets device settings, when a container starts or stops"),
    ] {
        let agent = ConflictingTool::new(kind, "agent[7]", "interrupts");
        let note = found(&host, &[], vec![agent], "others-set-device").expect("found");
        assert!(note.summary.starts_with(summary), "{}", note.summary);
        assert_eq!(note.evidence[0], "agent[7]: interrupts");
        assert!(note.evidence[1].starts_with("netpolicy leaves it running"), "{:?}", note.evidence);
    }
}

#[test]
fn a_line_is_silent_where_the_device_has_what_it_sets_and_says_what_decides_where_that_is_not_known() {
    let mut host = nic(None);
    host.devices[0].rings = Some(Rings { rx: Pair { current: 512, max: 4096 }, ..Rings::default() });
    let id = host.devices[0].id;
    let ring = |size: u32, condition: Option<&str>| ConflictingTool {
        device: Some("eth0".to_owned()),
        sets: vec![Setting::Nic(id, NicKnob::Ring(RingKind::Rx, size))],
        condition: condition.map(str::to_owned),
        ..ConflictingTool::new(
            ConflictingToolKind::NetworkManager,
            "/etc/NetworkManager/system-connections/lan.nmconnection:9",
            format!("ring-rx={size}"),
        )
    };
    assert_eq!(found(&host, &[], vec![ring(512, None)], "others-set-device"), None);
    let line = "/etc/NetworkManager/system-connections/lan.nmconnection:9 (eth0): ring-rx=1024; now 512";
    let note =
        found(&host, &[], vec![ring(512, None), ring(1024, None)], "others-set-device").expect("found");
    assert_eq!(note.evidence, [line]);
    let note = found(&host, &[], vec![ring(1024, Some("driver=x*"))], "others-set-device").expect("found");
    assert_eq!(note.evidence, [format!("{line}, if driver=x*")]);
    // A device without rings cannot have the tool's ring size, so there is no finding.
    host.devices[0].rings = None;
    assert_eq!(found(&host, &[], vec![ring(1024, None)], "others-set-device"), None);
}

#[test]
fn a_default_mask_that_a_file_sets_is_reported_unless_it_is_in_force() {
    let mut host = nic(None);
    let file = ConflictingTool::new(
        ConflictingToolKind::SysctlFile,
        "/etc/sysctl.d/90-rps.conf:1",
        "net.core.rps_default_mask = 3",
    );
    let note = found(&host, &[], vec![file.clone()], "others-set-device").expect("found");
    assert_eq!(note.summary, "sysctl.d sets device settings, for receive queues that are created later");
    host.rps_default_mask = "0-1".parse().expect("a list");
    assert_eq!(found(&host, &[], vec![file.clone()], "others-set-device"), None);
    // The kernel rejects a mask in C notation, so the file sets nothing.
    let line = "net.core.rps_default_mask = 0x3".to_owned();
    let note = found(&host, &[], vec![ConflictingTool { line, ..file }], "others-set-device").expect("found");
    assert_eq!(
        note.evidence,
        [
            "/etc/sysctl.d/90-rps.conf:1: net.core.rps_default_mask = 0x3; the kernel rejects 0x3, and accepts 3"
        ]
    );
}
