//! Tests that a queue leads to the kernel thread of its NAPI, and that the thread's CPUs and class are set
//! and restored.

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::{Cause, Kernel, WakeLatency};
use model::{
    CpuSet, DeviceNapiKnob, KthreadKnob, NapiKnob, Pid, QueueIndex, RxQueue, Scheduling, Setting, Threading,
    UtilClamp,
};
use testkit::wire::{Wire, run};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Wire, Need::ThreadPerNapi];
    const CLAMPS: &[Need] = &[Need::Root, Need::Wire, Need::ThreadPerNapi, Need::UtilClamps];
    const NO_CLAMPS: &[Need] = &[Need::Root, Need::Wire, Need::ThreadPerNapi, Need::NoUtilClamps];
    vec![
        test("kthread/it_starts_as_predicted_is_placed_scheduled_and_restored", NEEDS, there_and_back),
        test("kthread/it_is_found_again_after_its_napi_was_replaced", NEEDS, replaced),
        test("kthread/a_queue_without_one_says_so_and_nothing_is_written", NEEDS, without),
        test("kthread/of_two_queues_each_has_its_own", NEEDS, of_two),
        test("kthread/a_clamp_is_set_read_back_and_put_back", CLAMPS, clamped),
        test("kthread/a_kernel_without_clamps_says_what_it_lacks", NO_CLAMPS, without_clamps),
        test(
            "a_wake_latency_is_held_as_long_as_its_holder_lives",
            &[Need::Root, Need::DmaLatency],
            wake_latency,
        ),
        test("kthread/it_is_found_by_its_name_where_nothing_else_names_it", NEEDS, by_name),
    ]
}

fn queue(wire: &Wire, index: u32) -> Result<RxQueue, Failed> {
    Ok(RxQueue { device: wire.near0()?.id, index: QueueIndex(index) })
}

fn both(queue: RxQueue, cpus: &str, class: Scheduling) -> Result<[Setting; 2], Failed> {
    let cpus: CpuSet = cpus.parse()?;
    Ok([
        Setting::Kthread(queue, KthreadKnob::Affinity(cpus)),
        Setting::Kthread(queue, KthreadKnob::Scheduling(class)),
    ])
}

/// Returns the CPUs and the scheduling class of a queue's thread, as the usual tools report them.
fn as_tools_say(wire: &Wire, index: usize) -> Result<(String, String), Failed> {
    let pid = thread_of(wire, index)?;
    let last = |text: String| text.rsplit(' ').next().unwrap_or_default().to_owned();
    let class = run(&format!("chrt -p {pid}"))?;
    let class: Vec<String> = class.lines().map(|line| last(line.to_owned())).collect();
    Ok((last(run(&format!("taskset -cp {pid}"))?), class.join(" ")))
}

fn thread_of(wire: &Wire, index: usize) -> Result<Pid, Failed> {
    Ok(wire.near0()?.napis[index].kthread.ok_or("a threaded NAPI has a thread")?)
}

fn there_and_back() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let queue = queue(&wire, 0)?;
    let mut kernel = Kernel::new();
    let wanted = both(queue, "0", Scheduling::Fifo(50))?;
    let predicted = kernel.read(&wanted)?;
    let host = wire.observe()?;
    assert_eq!(host.kthread_begins.as_ref().and_then(|begins| begins.scheduling), Some(Scheduling::Other(0)));
    kernel.write(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::On))])?;
    assert_eq!(
        kernel.read(&wanted)?,
        predicted,
        "the prediction before the thread existed equals its initial settings"
    );

    kernel.write(&wanted)?;
    assert_eq!(kernel.read(&wanted)?, wanted);
    assert_eq!(as_tools_say(&wire, 0)?, ("0".to_owned(), "SCHED_FIFO 50".to_owned()));
    let observed = wire.near0()?.rx_queues[0].kthread.clone().ok_or("it is observed")?;
    assert_eq!(
        (observed.cpus.to_string(), observed.scheduling),
        ("0".to_owned(), Some(Scheduling::Fifo(50)))
    );

    for class in [Scheduling::RoundRobin(3), Scheduling::Batch(7), Scheduling::Other(-5)] {
        let wanted = [Setting::Kthread(queue, KthreadKnob::Scheduling(class))];
        kernel.write(&wanted)?;
        assert_eq!(kernel.read(&wanted)?, wanted);
    }
    kernel.write(&predicted)?;
    assert_eq!(kernel.read(&wanted)?, predicted);
    kernel.write(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::Off))])?;
    assert_eq!(kernel.read(&wanted)?, predicted);
    Ok(())
}

fn replaced() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let queue = queue(&wire, 0)?;
    let mut kernel = Kernel::new();
    kernel.write(&[Setting::DeviceNapis(queue.device, DeviceNapiKnob::Threaded(Threading::On))])?;
    let wanted = both(queue, "0", Scheduling::RoundRobin(2))?;
    let began = kernel.read(&wanted)?;
    kernel.write(&wanted)?;
    let before = thread_of(&wire, 0)?;
    for state in ["down", "up"] {
        run(&format!("ip -n {} link set near0 {state}", wire.near))?;
    }
    assert_ne!(
        thread_of(&wire, 0)?,
        before,
        "the test requires that neither a veth's NAPI nor its thread survives"
    );
    assert_eq!(
        kernel.read(&wanted)?,
        began,
        "the reset is observed: the new thread has its initial settings"
    );
    kernel.write(&wanted)?;
    assert_eq!(kernel.read(&wanted)?, wanted);
    assert_eq!(as_tools_say(&wire, 0)?, ("0".to_owned(), "SCHED_RR 2".to_owned()));
    kernel.write(&[Setting::DeviceNapis(queue.device, DeviceNapiKnob::Threaded(Threading::Off))])?;
    Ok(())
}

fn without() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let setting = Setting::Kthread(queue(&wire, 0)?, KthreadKnob::Scheduling(Scheduling::Fifo(1)));
    let before = wire.near0()?;
    let error = Kernel::new().write(std::slice::from_ref(&setting)).expect_err("refused");
    assert!(matches!(error.cause, Cause::Absent { .. }), "{error}");
    assert!(error.to_string().contains("which has none because threaded is off"), "{error}");
    assert_eq!(wire.near0()?, before);
    Ok(())
}

fn of_two() -> Result<(), Failed> {
    let wire = Wire::new(2)?;
    let mut kernel = Kernel::new();
    let queues = [queue(&wire, 0)?, queue(&wire, 1)?];
    for queue in queues {
        kernel.write(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::On))])?;
    }
    kernel.write(&both(queues[1], "0", Scheduling::Fifo(1))?)?;
    assert_eq!(as_tools_say(&wire, 0)?.1, "SCHED_OTHER 0");
    assert_eq!(as_tools_say(&wire, 1)?, ("0".to_owned(), "SCHED_FIFO 1".to_owned()));
    Ok(())
}

/// Returns the utilisation clamp of a thread, as the kernel's debug output shows it.
fn as_the_kernel_shows(pid: Pid) -> Result<[u32; 2], Failed> {
    let shown = std::fs::read_to_string(format!("/proc/{pid}/sched"))?;
    let number = |name: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok()).ok_or(format!("no {name}"))
    };
    Ok([number("uclamp.min")?, number("uclamp.max")?])
}

fn clamped() -> Result<(), Failed> {
    let wire = Wire::new(2)?;
    let (queue, other) = (queue(&wire, 0)?, queue(&wire, 1)?);
    let mut kernel = Kernel::new();
    kernel.write(&[
        Setting::Napi(queue, NapiKnob::Threaded(Threading::On)),
        Setting::Napi(other, NapiKnob::Threaded(Threading::On)),
    ])?;
    let begins = wire.observe()?.kthread_begins.and_then(|begins| begins.util_clamp);
    assert_eq!(begins, Some(UtilClamp::NONE), "as predicted");
    let of = |clamp| [Setting::Kthread(queue, KthreadKnob::UtilClamp(clamp))];
    let original = kernel.read(&of(UtilClamp::NONE))?;
    assert_eq!(original, of(UtilClamp::NONE));
    let class = [Setting::Kthread(queue, KthreadKnob::Scheduling(Scheduling::Fifo(7)))];
    kernel.write(&class)?;
    let pid = thread_of(&wire, 0)?;
    for (min, max) in [(256, 768), (0, 512), (1024, 1024)] {
        let wanted = of(UtilClamp { min, max });
        kernel.write(&wanted)?;
        assert_eq!(kernel.read(&wanted)?, wanted);
        assert_eq!(as_the_kernel_shows(pid)?, [u32::from(min), u32::from(max)]);
    }
    assert_eq!(kernel.read(&class)?, class, "the thread's class is unaffected");
    let neighbour = [Setting::Kthread(other, KthreadKnob::UtilClamp(UtilClamp::NONE))];
    assert_eq!(kernel.read(&neighbour)?, neighbour, "nor was the other queue's thread clamped");
    kernel.write(&original)?;
    assert_eq!(kernel.read(&original)?, original);
    assert_eq!(as_the_kernel_shows(pid)?, [0, 1024]);
    Ok(())
}

fn without_clamps() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let queue = queue(&wire, 0)?;
    let mut kernel = Kernel::new();
    kernel.write(&[Setting::Napi(queue, NapiKnob::Threaded(Threading::On))])?;
    assert_eq!(wire.observe()?.kthread_begins.and_then(|begins| begins.util_clamp), None);
    let wanted = [Setting::Kthread(queue, KthreadKnob::UtilClamp(UtilClamp { min: 256, max: 768 }))];
    for error in [kernel.read(&wanted).map(drop), kernel.write(&wanted)].map(|done| done.expect_err("absent"))
    {
        assert!(error.to_string().contains("CONFIG_UCLAMP_TASK"), "{error}");
    }
    Ok(())
}

/// Tests requests that have no effect: no idle state of this machine has such a long exit latency.
fn wake_latency() -> Result<(), Failed> {
    const LONG: u32 = WakeLatency::MICROS_MAX;
    let looser = WakeLatency::hold(LONG - 1)?;
    let in_force = looser.in_force();
    assert!(in_force < LONG, "{in_force}");
    let tighter = WakeLatency::hold(LONG - 2)?;
    assert!(tighter.in_force() < in_force || in_force < LONG - 1, "the least counts");
    drop(tighter);
    assert_eq!(WakeLatency::hold(LONG)?.in_force(), in_force, "a dropped request does not count");
    Ok(())
}

/// Tests the search by name, which kernels before 6.8 need; threads have the same names on those kernels as
/// on this one.
fn by_name() -> Result<(), Failed> {
    let wire = Wire::new(2)?;
    // No other test has a device of this name, so all threads with this name belong to this device. The
    // length of the name does not depend on the process's number: a thread's name of exactly 15 bytes might
    // be truncated.
    let name = format!("kt{:05}", std::process::id() % 100_000);
    for command in ["down".to_owned(), format!("name {name}"), "up".to_owned()] {
        run(&format!(
            "ip -n {} link set {} {command}",
            wire.near,
            if command == "up" { &name } else { "near0" }
        ))?;
    }
    let host = wire.observe()?;
    let device = host.device_named(&name).ok_or("the device")?;
    Kernel::new().write(&[Setting::DeviceNapis(device.id, DeviceNapiKnob::Threaded(Threading::On))])?;
    let host = wire.observe()?;
    let stated: Vec<_> =
        host.device_named(&name).ok_or("the device")?.napis.iter().filter_map(|n| n.kthread).collect();
    assert_eq!(linux::process::napi_threads_named(&name)?, stated);
    assert_eq!(stated.len(), 2);
    Ok(())
}
