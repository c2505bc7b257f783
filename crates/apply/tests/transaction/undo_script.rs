//! Tests the text of the undo script; `tests/host` tests that it works.

use apply::{Begin, FORMAT, TransactionName, device_cookie_name, undo_script};
use model::setting::Threading;
use model::{
    Change, DeviceId, DeviceNapiKnob, EmptyPolls, Fd, IfIndex, KthreadKnob, Label, Nanoseconds, NapiKnob,
    NetnsId, Plan, ProcessKnob, RingId, RingNapi, Scheduling, Setting, Slice, Step, UtilClamp,
};

use crate::scene::{asked, change, cpus, latency_plan, process, queue};

fn script(plan: Plan) -> String {
    let name: TransactionName = "20261121T040500.123456Z-1a2b".parse().expect("a name");
    undo_script(
        name,
        &Begin {
            format: FORMAT,
            boot_id: "this-boot".to_owned(),
            asked: asked(),
            owned_by: None,
            left_in_force: false,
            kept_by_daemon: false,
            replaces: Vec::new(),
            object_cookies: [(device_cookie_name(queue(2).device), "4711".to_owned())].into(),
            plan,
        },
    )
}

/// Returns a plan that changes every kind of knob.
fn every_knob() -> Plan {
    let device = DeviceId { netns: NetnsId(4_026_532_999), ifindex: IfIndex(3), name: Label::new("veth1") };
    let ring = RingId { process: process(), fd: Fd(9) };
    let napi = RingNapi { busy_poll_usecs: 50, prefer_busy_poll: true };
    let step = |changes: Vec<Change>| Step::new(changes);
    let mut plan = latency_plan();
    plan.steps.extend([
        step(vec![change(
            Setting::Process(ProcessKnob::IoUring(ring, None)),
            Setting::Process(ProcessKnob::IoUring(ring, Some(napi))),
        )]),
        step(vec![
            change(
                Setting::DeviceNapis(device, DeviceNapiKnob::DeferHardIrqs(EmptyPolls(0))),
                Setting::DeviceNapis(device, DeviceNapiKnob::DeferHardIrqs(EmptyPolls(100))),
            ),
            change(
                Setting::DeviceNapis(device, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(0))),
                Setting::DeviceNapis(device, DeviceNapiKnob::GroFlushTimeout(Nanoseconds::from_micros(20))),
            ),
            change(
                Setting::DeviceNapis(device, DeviceNapiKnob::Threaded(Threading::Off)),
                Setting::DeviceNapis(device, DeviceNapiKnob::Threaded(Threading::On)),
            ),
        ]),
        step(vec![change(
            Setting::Napi(queue(2), NapiKnob::Threaded(Threading::Off)),
            Setting::Napi(queue(2), NapiKnob::Threaded(Threading::On)),
        )]),
        step(vec![
            change(
                Setting::Kthread(queue(2), KthreadKnob::Affinity(cpus(0..4))),
                Setting::Kthread(queue(2), KthreadKnob::Affinity(cpus([1]))),
            ),
            change(
                Setting::Kthread(queue(2), KthreadKnob::Scheduling(Scheduling::Other(0))),
                Setting::Kthread(queue(2), KthreadKnob::Scheduling(Scheduling::Fifo(50))),
            ),
            change(
                Setting::Kthread(queue(2), KthreadKnob::UtilClamp(UtilClamp::NONE)),
                Setting::Kthread(queue(2), KthreadKnob::UtilClamp(UtilClamp { min: 512, max: 1024 })),
            ),
            change(
                Setting::Kthread(queue(2), KthreadKnob::Slice(Slice::Default)),
                Setting::Kthread(queue(2), KthreadKnob::Slice(Slice::Own(Slice::LEAST))),
            ),
        ]),
    ]);
    plan
}

#[test]
fn the_script_for_one_queue_is_short_enough_to_read() {
    let plan = Plan { steps: vec![latency_plan().steps[1].clone()] };
    insta::assert_snapshot!(script(plan));
}

#[test]
fn the_script_for_every_knob() {
    insta::assert_snapshot!(script(every_knob()));
}
