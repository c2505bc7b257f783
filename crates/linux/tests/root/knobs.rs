//! Writes every setting of a queue and of a device through the kernel, reads it back, and restores it.

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::{Cause, Errno, Kernel};
use model::host::Device;
use model::{
    DeviceNapiKnob, EmptyPolls, KernelVersion, Nanoseconds, NapiKnob, QueueIndex, RxQueue, Setting, Threading,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use testkit::wire::{Wire, run};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "settings_of_a_queue_are_written_at_once_and_touch_no_other_queue",
            &[Need::Root, Need::Wire],
            || {
                let wire = Wire::new(2)?;
                let before = wire.near0()?;
                let wanted = suspended(queue(&before, 1));
                let mut kernel = Kernel::new();
                let original = kernel.read(&wanted)?;
                kernel.write(&wanted)?;
                assert_eq!(kernel.read(&wanted)?, wanted);
                let after = wire.near0()?;
                assert_eq!(after.napis[0], before.napis[0]);
                assert_eq!(after.napis[1].irq_suspend_timeout, Some(Nanoseconds(5_000_000_000)));
                assert_eq!(after.napis[1].defer_hard_irqs, Some(EmptyPolls(100)));
                kernel.write(&original)?;
                assert_eq!(wire.near0()?, before);
                Ok(())
            },
        ),
        test(
            "what_is_out_of_range_is_refused_in_the_kernels_words_and_changes_nothing",
            &[Need::Root, Need::Wire],
            || {
                let wire = Wire::new(1)?;
                let before = wire.near0()?;
                let queue = queue(&before, 0);
                let wrong = Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(4_000_000_000)));
                let both =
                    [Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(20_000))), wrong.clone()];
                let error = Kernel::new().write(&both).expect_err("refused");
                assert_eq!(error.what, wrong.to_string(), "the error names only the culprit");
                assert_eq!(
                    error.cause,
                    Cause::Extack { errno: Errno::RANGE, message: "integer out of range".to_owned() }
                );
                assert_eq!(wire.near0()?, before);
                Ok(())
            },
        ),
        test(
            "a_queue_gets_and_loses_its_kernel_thread",
            &[Need::Root, Need::Wire, Need::ThreadPerNapi],
            || {
                let wire = Wire::new(2)?;
                let queue = queue(&wire.near0()?, 1);
                let mut kernel = Kernel::new();
                kernel.write(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::On))])?;
                assert_eq!(
                    kernel.read(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::Off))])?,
                    [Setting::Napi(queue, NapiKnob::Threaded(Threading::On))]
                );
                let threaded = wire.near0()?;
                let comm =
                    threaded.napis[1].kthread.map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")));
                let comm = comm.ok_or("no kernel thread")??;
                assert!(comm.starts_with("napi/near0"), "{comm}");
                assert_eq!(threaded.napis[0].kthread, None);
                kernel.write(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::Off))])?;
                assert_eq!(wire.near0()?.napis[1].kthread, None);
                Ok(())
            },
        ),
        test(
            "busy_polling_threads_are_refused_by_kernels_that_lack_them",
            &[Need::Root, Need::Wire, Need::ThreadPerNapi],
            || {
                let wire = Wire::new(1)?;
                let setting =
                    Setting::Napi(queue(&wire.near0()?, 0), NapiKnob::Threaded(Threading::BusyPoll));
                let written = Kernel::new().write(std::slice::from_ref(&setting));
                if wire.observe()?.kernel >= KernelVersion::since(6, 19) {
                    assert_eq!(Kernel::new().read(std::slice::from_ref(&setting))?, [setting]);
                    written?;
                } else {
                    let error = written.expect_err("refused");
                    assert_eq!(error.what, setting.to_string());
                    assert!(matches!(error.cause, Cause::Absent { since: Some(_), .. }), "{error}");
                }
                Ok(())
            },
        ),
        test("device_wide_settings_are_written_in_the_devices_namespace", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(2)?;
            let before = wire.near0()?;
            let wanted = [
                Setting::DeviceNapis(before.id, DeviceNapiKnob::DeferHardIrqs(EmptyPolls(9))),
                Setting::DeviceNapis(before.id, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(30_000))),
                Setting::DeviceNapis(before.id, DeviceNapiKnob::Threaded(Threading::On)),
            ];
            let mut kernel = Kernel::new();
            let original = kernel.read(&wanted)?;
            kernel.write(&wanted)?;
            assert_eq!(kernel.read(&wanted)?, wanted);
            for (file, value) in
                [("napi_defer_hard_irqs", "9"), ("gro_flush_timeout", "30000"), ("threaded", "1")]
            {
                assert_eq!(wire.in_near(&format!("cat /sys/class/net/near0/{file}"))?, value);
            }
            kernel.write(&original)?;
            assert_eq!(kernel.read(&wanted)?, original);
            Ok(())
        }),
        test(
            "a_device_wide_value_that_is_refused_names_device_knob_and_value",
            &[Need::Root, Need::Wire],
            || {
                let wire = Wire::new(1)?;
                let setting = Setting::DeviceNapis(
                    wire.near0()?.id,
                    DeviceNapiKnob::DeferHardIrqs(EmptyPolls(4_000_000_000)),
                );
                let error = Kernel::new().write(std::slice::from_ref(&setting)).expect_err("refused");
                assert_eq!(error.number(), Some(Errno::RANGE), "{error}");
                assert!(error.what.starts_with(&setting.to_string()), "{error}");
                Ok(())
            },
        ),
        test(
            "a_queue_is_found_again_after_its_napi_was_replaced_and_its_device_renamed",
            &[Need::Root, Need::Wire],
            || {
                let wire = Wire::new(2)?;
                let before = wire.near0()?;
                let settings =
                    [Setting::Napi(queue(&before, 1), NapiKnob::GroFlushTimeout(Nanoseconds(40_000)))];
                let device =
                    [Setting::DeviceNapis(before.id, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(50_000)))];
                let mut kernel = Kernel::new();
                kernel.read(&settings)?;
                for command in ["set near0 down", "set near0 name other0", "set other0 up"] {
                    run(&format!("ip -n {} link {command}", wire.near))?;
                }
                let host = wire.observe()?;
                let after = host.device(before.id).ok_or("the device is the same one")?;
                assert_ne!(
                    after.napis[1].id, before.napis[1].id,
                    "the test requires that a veth's NAPIs do not survive"
                );
                kernel.write(&device)?;
                kernel.write(&settings)?;
                assert_eq!(kernel.read(&settings)?, settings);
                let host = wire.observe()?;
                let after = host.device(before.id).ok_or("the device is the same one")?;
                let spans: Vec<_> = after.napis.iter().map(|n| n.gro_flush_timeout).collect();
                assert_eq!(spans, [Some(Nanoseconds(50_000)), Some(Nanoseconds(40_000))]);
                Ok(())
            },
        ),
        test(
            "what_vanished_is_gone_and_what_is_merely_down_or_away_is_not",
            &[Need::Root, Need::Wire],
            || {
                let wire = Wire::new(2)?;
                let before = wire.near0()?;
                let (of_queue, of_device) = (
                    suspended(queue(&before, 1)),
                    [Setting::DeviceNapis(before.id, DeviceNapiKnob::Threaded(Threading::Off))],
                );
                let mut kernel = Kernel::new();
                run(&format!("ip -n {} link set near0 down", wire.near))?;
                let error = kernel.read(&of_queue).expect_err("down");
                assert!(matches!(error.cause, Cause::Absent { .. }), "{error}");
                run(&format!("ip -n {} link set near0 up", wire.near))?;
                kernel.write(&of_queue)?;
                wire.in_near("ethtool -L near0 rx 1")?;
                let error = kernel.read(&of_queue).expect_err("the queue does not exist");
                assert!(matches!(error.cause, Cause::Away(_)) && !Kernel::is_gone(&error), "{error}");
                wire.in_near("ethtool -L near0 rx 2")?;
                let found = kernel.read(&of_queue)?;
                assert!(of_queue.iter().any(|set| found.contains(set)), "the recreated queue has {found:?}");
                run(&format!("ip -n {} link del near0", wire.near))?;
                for settings in [&of_queue[..], &of_device[..]] {
                    let error = kernel.write(settings).expect_err("the device does not exist");
                    assert!(Kernel::is_gone(&error), "{error}");
                }
                drop(wire);
                let error = Kernel::new().read(&of_queue).expect_err("the namespace does not exist");
                assert!(Kernel::is_gone(&error), "{error}");
                Ok(())
            },
        ),
        test("an_unprivileged_callers_error_names_the_capability", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(1)?;
            let before = wire.near0()?;
            let wanted = suspended(queue(&before, 0));
            // Enter the namespace with all capabilities, and make the request with fewer.
            let mut kernel = Kernel::new();
            kernel.read(&wanted)?;
            let error = without_net_admin(|| kernel.write(&wanted))?.expect_err("denied");
            assert!(matches!(error.cause, Cause::Denied { errno: Errno::PERM, .. }), "{error}");
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
            assert_eq!(wire.near0()?, before);
            Ok(())
        }),
        test("a_queue_without_a_napi_says_so", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(2)?;
            let settings = suspended(queue(&wire.near0()?, 0));
            wire.in_near("ethtool -K near0 gro off")?;
            let error = Kernel::new().write(&settings).expect_err("no NAPI");
            assert!(matches!(error.cause, Cause::Absent { .. }), "{error}");
            assert!(error.to_string().starts_with("near0 rx-0: defer-hard-irqs 100, "), "{error}");
            Ok(())
        }),
    ]
}

fn queue(device: &Device, index: u32) -> RxQueue {
    RxQueue { device: device.id, index: QueueIndex(index) }
}

/// Returns the three settings of suspension, with a timeout that does not fit into 32 bits.
fn suspended(queue: RxQueue) -> Vec<Setting> {
    vec![
        Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100))),
        Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(20_000))),
        Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds(5_000_000_000))),
    ]
}

/// Runs `body` on a thread without CAP_NET_ADMIN.
fn without_net_admin<T: Send>(body: impl FnOnce() -> T + Send) -> Result<T, Failed> {
    let done = std::thread::scope(|scope| {
        let lesser = scope.spawn(|| {
            let mut sets = capabilities(None)?;
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets)?;
            Ok::<T, Errno>(body())
        });
        lesser.join()
    });
    Ok(done.map_err(|_| "the thread panicked")??)
}
