//! Compares observed devices with `ip`, `ethtool` and sysfs.

use libtest_mimic::{Failed, Trial};
use linux::{Errno, Netns, Processes, observe};
use model::host::Confidence;
use model::{EmptyPolls, Host, KernelVersion, Nanoseconds, Threading};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use testkit::wire::{Wire, run};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("devices_are_those_that_ip_lists", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(2)?;
            let host = wire.observe()?;
            let seen: Vec<_> = host
                .devices
                .iter()
                .map(|d| {
                    (u64::from(d.id.ifindex.0), d.id.name.to_string(), u64::from(d.mtu), d.kind.clone(), d.up)
                })
                .collect();
            assert_eq!(seen, listed_by_ip(&wire)?);
            assert_eq!(host.netns, wire.near()?.id());
            assert_eq!(host.unread, []);
            Ok(())
        }),
        test("a_veths_queues_have_their_napis_by_order", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(4)?;
            let near = wire.near0()?;
            let ids: Vec<_> = near.napis.iter().map(|n| n.id).collect();
            assert!(ids.is_sorted() && ids.len() == 4, "{ids:?}");
            let edges: Vec<_> =
                near.rx_queues.iter().map(|q| q.napi.map(|e| (e.napi, e.confidence))).collect();
            let expected: Vec<_> = ids.iter().map(|&id| Some((id, Confidence::ByOrder))).collect();
            assert_eq!(edges, expected);
            assert_eq!(near.tx_queues.len(), 4);
            assert!(near.peer.as_deref().is_some_and(|peer| peer.starts_with("if")), "{:?}", near.peer);
            Ok(())
        }),
        test("a_veth_without_gro_has_no_napis", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(2)?;
            wire.in_near("ethtool -K near0 gro off")?;
            let near = wire.near0()?;
            assert_eq!((near.napis.len(), near.features.gro), (0, Some(false)));
            assert!(near.rx_queues.iter().all(|queue| queue.napi.is_none()));
            Ok(())
        }),
        test("features_are_those_that_ethtool_lists", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(1)?;
            let near = wire.near0()?;
            let far = observe(&Netns::named(&wire.far)?, &Processes::None)?;
            let far = far.device_named("far0").ok_or("far0 was not observed")?.features;
            let of_near = wire.in_near("ethtool -k near0")?;
            let of_far = run(&format!("ip netns exec {} ethtool -k far0", wire.far))?;
            assert_eq!(near.features.gro, feature(&of_near, "generic-receive-offload"));
            assert_eq!(near.features.tso, feature(&of_near, "tcp-segmentation-offload"));
            assert_eq!(far.tso, feature(&of_far, "tcp-segmentation-offload"));
            assert_eq!((near.features.tso, far.tso), (Some(true), Some(false)));
            assert_eq!(near.features.ntuple, feature(&of_near, "ntuple-filters"));
            assert_eq!(near.features.tc_offload, feature(&of_near, "hw-tc-offload"));
            assert_eq!(near.features.gro_hw, feature(&of_near, "rx-gro-hw"));
            Ok(())
        }),
        test("channels_are_those_that_ethtool_lists", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(3)?;
            wire.in_near("ethtool -L near0 rx 2")?;
            let near = wire.near0()?;
            let channels = near.channels.ok_or("no channels")?;
            let listed = wire.in_near("ethtool -l near0")?;
            let rx: Vec<u32> = column(&listed, "RX:");
            let tx: Vec<u32> = column(&listed, "TX:");
            assert_eq!([channels.rx.max, channels.rx.current], rx[..]);
            assert_eq!([channels.tx.max, channels.tx.current], tx[..]);
            assert_eq!((near.rx_queues.len(), near.tx_queues.len()), (2, 3));
            assert_eq!(near.rings, None, "a veth has no rings");
            Ok(())
        }),
        test("steering_and_device_wide_settings_are_those_in_sysfs", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(2)?;
            let files = "/sys/class/net/near0";
            for (file, value) in [
                ("queues/rx-1/rps_cpus", "1"),
                ("queues/tx-0/xps_cpus", "1"),
                ("napi_defer_hard_irqs", "7"),
                ("gro_flush_timeout", "123456"),
            ] {
                write(&wire, &format!("{files}/{file}"), value)?;
            }
            let near = wire.near0()?;
            let rps: Vec<_> = near.rx_queues.iter().map(|q| q.rps_cpus.to_string()).collect();
            let xps: Vec<_> = near.tx_queues.iter().map(|q| q.xps_cpus.to_string()).collect();
            assert_eq!((rps, xps), (vec![String::new(), "0".into()], vec!["0".into(), String::new()]));
            assert_eq!(near.defer_hard_irqs, Some(EmptyPolls(7)));
            assert_eq!(near.gro_flush_timeout, Some(Nanoseconds(123_456)));
            assert_eq!(near.threaded, Some(Threading::Off));
            Ok(())
        }),
        test("what_the_kernel_can_do_follows_from_its_release", &[Need::Root, Need::Wire], || {
            let host = observe(&Netns::own()?, &Processes::None)?;
            assert_eq!(host.release, run("uname -r")?);
            let since = |major, minor| host.kernel >= KernelVersion::since(major, minor);
            let can = &host.capabilities;
            assert_eq!((can.napi_set, can.irq_suspend), (since(6, 13), since(6, 13)));
            assert_eq!((can.napi_threaded, can.epoll_params), (since(6, 17), since(6, 9)));
            assert!(can.net_admin && can.ptrace, "root has every capability here");
            Ok(())
        }),
        test("an_observer_without_privileges_sees_its_own_namespace", &[Need::Root], || {
            let privileged = observe(&Netns::own()?, &Processes::None)?;
            let lesser = std::thread::spawn(|| {
                let nothing = CapabilitySet::empty();
                set_capabilities(
                    None,
                    CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing },
                )?;
                Ok::<_, Errno>(Netns::own().and_then(|own| observe(&own, &Processes::None)))
            });
            let host = lesser.join().map_err(|_| "the thread panicked")???;
            let can = &host.capabilities;
            assert!(!can.net_admin && !can.ptrace && !can.bpf, "{can:?}");
            let queues =
                |host: &Host| host.devices.iter().map(|d| (d.id, d.rx_queues.clone())).collect::<Vec<_>>();
            assert_eq!(queues(&host), queues(&privileged));
            Ok(())
        }),
        test("the_cpus_are_those_that_lscpu_lists", &[Need::Root, Need::Wire], || {
            let topology = observe(&Netns::own()?, &Processes::None)?.topology;
            let listed = run("lscpu -p=CPU,NODE --online")?;
            let listed: Vec<_> = listed.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect();
            let seen: Vec<_> = topology
                .cpus
                .iter()
                .map(|c| format!("{},{}", c.cpu, c.node.map_or_else(String::new, |n| n.to_string())))
                .collect();
            assert_eq!(seen, listed);
            assert!(topology.cpus.iter().all(|c| c.siblings.contains(c.cpu) && c.llc.contains(c.cpu)));
            Ok(())
        }),
        test("interrupts_of_devices_are_named_and_counted", &[Need::Root, Need::Vectors], || {
            let host = observe(&Netns::own()?, &Processes::None)?;
            assert!(!host.irqs.is_empty(), "a device on this machine has interrupts");
            for irq in &host.irqs {
                let number = irq.number;
                let sysfs = |file: &str| run(&format!("cat /sys/kernel/irq/{number}/{file}"));
                assert_eq!(irq.name, sysfs("actions")?, "irq {number}");
                let counted: u64 =
                    sysfs("per_cpu_count")?.split(',').map(|n| n.parse::<u64>().unwrap_or(0)).sum();
                assert!(irq.count() <= counted, "irq {number}: {} > {counted}", irq.count());
                assert_eq!(
                    irq.affinity.to_string(),
                    run(&format!("cat /proc/irq/{number}/smp_affinity_list"))?
                );
            }
            Ok(())
        }),
    ]
}

/// Index, name, MTU, kind and state of a device.
type Row = (u64, String, u64, String, bool);

/// Lists all devices with `ip`.
fn listed_by_ip(wire: &Wire) -> Result<Vec<Row>, Failed> {
    let listed: serde_json::Value = serde_json::from_str(&run(&format!("ip -n {} -j -d link", wire.near))?)?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("").to_owned();
    let rows = listed.as_array().ok_or("not a list")?.iter().map(|link| {
        let flags: Vec<_> = link["flags"].as_array().into_iter().flatten().map(text).collect();
        let up = ["UP", "LOWER_UP"].iter().all(|flag| flags.iter().any(|f| f == flag));
        let number = |key: &str| link[key].as_u64().unwrap_or(0);
        (number("ifindex"), text(&link["ifname"]), number("mtu"), text(&link["linkinfo"]["info_kind"]), up)
    });
    Ok(rows.collect())
}

/// Whether a feature is on in a line of `ethtool -k`.
fn feature(listed: &str, name: &str) -> Option<bool> {
    let line = listed.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "))?;
    Some(line.starts_with("on"))
}

/// The numbers after a heading of `ethtool -l`: the maximum, then the current.
fn column(listed: &str, heading: &str) -> Vec<u32> {
    listed.lines().filter_map(|line| line.strip_prefix(heading)?.trim().parse().ok()).collect()
}

/// Writes a file in the near namespace's sysfs with a shell.
fn write(wire: &Wire, path: &str, value: &str) -> Result<(), Failed> {
    let script = format!("echo {value} > {path}");
    let status =
        std::process::Command::new("ip").args(["netns", "exec", &wire.near, "sh", "-c", &script]).status()?;
    if status.success() { Ok(()) } else { Err(format!("{script}: {status}").into()) }
}
