//! What a NIC and its driver can be told, on a veth: the queues, offloads and steering files that it has.

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::{Cause, Errno, Kernel};
use model::{
    ChannelKind, CoalesceParam, CpuSet, Offload, QueueIndex, RingKind, RxQueue, Setting, Sysctl, TxQueue,
};

use crate::wire::Wire;
use crate::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    let needs = &[Need::Root, Need::Wire];
    vec![
        test("queues_are_counted_set_and_put_back", needs, || {
            let wire = Wire::new(2)?;
            let device = wire.near0()?.id;
            let one = [
                Setting::Channels(device, ChannelKind::Rx, 1),
                Setting::Channels(device, ChannelKind::Tx, 1),
            ];
            there_and_back(&wire, &one)?;
            let mut kernel = Kernel::new();
            let many = [Setting::Channels(device, ChannelKind::Rx, 4711)];
            let before = kernel.read(&many)?;
            let error = kernel.write(&many).expect_err("more than it can have");
            assert!(matches!(error.cause, Cause::Extack { errno: Errno::INVAL, .. }), "{error}");
            assert!(error.what.starts_with("near0: rx-channels 4711: ethtool channels-set"), "{error}");
            assert_eq!(kernel.read(&many)?, before);
            Ok(())
        }),
        test("offloads_are_switched_together_and_put_back", needs, || {
            let wire = Wire::new(1)?;
            let device = wire.near0()?.id;
            there_and_back(
                &wire,
                &[
                    Setting::Offload(device, Offload::Tso, false),
                    Setting::Offload(device, Offload::Tso6, false),
                    Setting::Offload(device, Offload::Gro, false),
                ],
            )
        }),
        test("steering_files_are_written_in_the_devices_namespace_and_put_back", needs, || {
            let wire = Wire::new(2)?;
            let device = wire.near0()?.id;
            let (rx, tx) =
                (RxQueue { device, index: QueueIndex(1) }, TxQueue { device, index: QueueIndex(1) });
            let cpu: CpuSet = "0".parse()?;
            there_and_back(&wire, &[Setting::RpsCpus(rx, cpu.clone())])?;
            there_and_back(&wire, &[Setting::RpsFlowCount(rx, 4096)])?;
            there_and_back(&wire, &[Setting::XpsCpus(tx, cpu)])?;
            there_and_back(&wire, &[Setting::XpsRxQueues(tx, vec![QueueIndex(0), QueueIndex(1)])])
        }),
        test("a_count_of_flows_that_the_kernel_rounds_is_read_back_as_it_is", needs, || {
            let wire = Wire::new(1)?;
            let queue = RxQueue { device: wire.near0()?.id, index: QueueIndex(0) };
            let mut kernel = Kernel::new();
            kernel.write(&[Setting::RpsFlowCount(queue, 1000)])?;
            let read = kernel.read(&[Setting::RpsFlowCount(queue, 0)])?;
            assert_eq!(read, [Setting::RpsFlowCount(queue, 1024)]);
            Ok(())
        }),
        test("what_a_driver_lacks_is_said_in_the_kernels_words", needs, || {
            let wire = Wire::new(1)?;
            let device = wire.near0()?;
            assert_eq!((device.rings, device.coalesce, &device.rss), (None, None, &None));
            let queue = RxQueue { device: device.id, index: QueueIndex(0) };
            for lacking in [
                Setting::Ring(device.id, RingKind::Rx, 512),
                Setting::Coalescing(device.id, CoalesceParam::RxUsecs, 8),
                Setting::RssKey(device.id, vec![1; 40]),
                Setting::QueueCoalescing(queue, CoalesceParam::RxUsecs, 8),
            ] {
                let mut kernel = Kernel::new();
                let (read, written) = (
                    kernel.read(std::slice::from_ref(&lacking)),
                    kernel.write(std::slice::from_ref(&lacking)),
                );
                for error in [read.expect_err("lacking"), written.expect_err("lacking")] {
                    let (object, words) = (lacking.object().to_string(), error.to_string());
                    assert!(words.starts_with(&object) && words.contains(lacking.knob()), "{error}");
                    assert!(
                        error.number() == Some(Errno::OPNOTSUPP)
                            || matches!(error.cause, Cause::Absent { .. }),
                        "{error}"
                    );
                }
            }
            Ok(())
        }),
        test("numbers_of_the_host_are_read_and_not_shown_in_other_namespaces", needs, || {
            let wire = Wire::new(1)?;
            assert!(wire.observe()?.sysctls.is_empty());
            let text = std::fs::read_to_string("/proc/sys/net/core/netdev_budget")?;
            let read = Kernel::new().read(&[Setting::Sysctl(Sysctl::NetdevBudget, 0)])?;
            assert_eq!(read, [Setting::Sysctl(Sysctl::NetdevBudget, text.trim().parse()?)]);
            Ok(())
        }),
    ]
}

/// Writes, reads back, compares what is observed with what was read, and puts back: then the device is as it was.
pub(crate) fn there_and_back(wire: &Wire, wanted: &[Setting]) -> Result<(), Failed> {
    let before = wire.near0()?;
    let mut kernel = Kernel::new();
    let original = kernel.read(wanted)?;
    assert_ne!(original, wanted, "the premise: it is a change");
    kernel.write(wanted)?;
    assert_eq!(kernel.read(wanted)?, wanted);
    assert_ne!(without_moving(&wire.near0()?), without_moving(&before), "it is observed");
    kernel.write(&original)?;
    assert_eq!(kernel.read(wanted)?, original);
    assert_eq!(without_moving(&wire.near0()?), without_moving(&before));
    Ok(())
}

/// A veth's NAPIs are others after every change of its queues and of GRO.
fn without_moving(device: &model::host::Device) -> model::host::Device {
    let mut device = device.clone();
    device.napis.clear();
    for queue in &mut device.rx_queues {
        queue.napi = None;
    }
    device
}
