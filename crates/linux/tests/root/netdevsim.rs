//! Tests NICs simulated by netdevsim: queues with NAPIs that survive when the device goes down, and writable
//! rings, channels and interrupt moderation.

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::{Cause, Errno, Kernel};
use model::host::Confidence;
use model::nic::{ChannelKind, CoalesceParam, RingKind};
use model::{EmptyPolls, Nanoseconds, NapiId, NapiKnob, NicKnob, Offload, QueueIndex, RxQueue, Setting};
use netlink::netdev::{NapiChange, Netdev};
use testkit::wire::Wire;
use testkit::{Need, test};

use super::nic::there_and_back;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Wire, Need::Netdevsim];
    vec![
        test("netdevsim/rings_and_channels_are_written_read_back_and_put_back", NEEDS, rings_and_channels),
        test("netdevsim/moderation_is_written_read_back_and_put_back", NEEDS, moderation),
        test("netdevsim/the_offload_of_rules_is_switched_and_put_back", NEEDS, rule_offload),
        test("netdevsim/what_a_nic_refuses_leaves_it_as_it_was", NEEDS, refusals),
        test("netdevsim/each_queue_leads_to_its_napi", NEEDS, edges),
        test("netdevsim/napis_and_their_settings_survive_a_device_that_goes_down", NEEDS, down_and_up),
    ]
}

fn rings_and_channels() -> Result<(), Failed> {
    let wire = Wire::simulated(4)?;
    let device = wire.near0()?.id;
    there_and_back(
        &wire,
        &[
            Setting::Nic(device, NicKnob::Ring(RingKind::Rx, 1024)),
            Setting::Nic(device, NicKnob::Ring(RingKind::Tx, 2048)),
        ],
    )?;
    there_and_back(&wire, &[Setting::Nic(device, NicKnob::Channels(ChannelKind::Combined, 2))])
}

fn moderation() -> Result<(), Failed> {
    let wire = Wire::simulated(1)?;
    let device = wire.near0()?.id;
    let values = [
        (CoalesceParam::RxUsecs, 50),
        (CoalesceParam::RxMaxFrames, 32),
        (CoalesceParam::TxUsecs, 100),
        (CoalesceParam::TxMaxFrames, 64),
        (CoalesceParam::AdaptiveRx, 1),
        (CoalesceParam::AdaptiveTx, 1),
    ];
    let all = values.map(|(param, value)| Setting::Nic(device, NicKnob::Coalescing(param, value)));
    for one in &all {
        there_and_back(&wire, std::slice::from_ref(one))?;
    }
    there_and_back(&wire, &all)
}

fn rule_offload() -> Result<(), Failed> {
    let wire = Wire::simulated(1)?;
    let device = wire.near0()?.id;
    there_and_back(&wire, &[Setting::Nic(device, NicKnob::Offload(Offload::TcOffload, true))])
}

fn refusals() -> Result<(), Failed> {
    let wire = Wire::simulated(2)?;
    let device = wire.near0()?.id;
    let before = wire.near0()?;
    let mut kernel = Kernel::new();
    for refused in [
        Setting::Nic(device, NicKnob::Ring(RingKind::Rx, 4097)),
        Setting::Nic(device, NicKnob::Channels(ChannelKind::Combined, 3)),
        Setting::Nic(device, NicKnob::Channels(ChannelKind::Combined, 0)),
        Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 1)),
    ] {
        let error = kernel.write(std::slice::from_ref(&refused)).expect_err("it is refused");
        assert!(matches!(error.cause, Cause::Extack { errno: Errno::INVAL, .. }), "{refused:?}: {error}");
        assert!(error.what.starts_with(&format!("near0: {}", refused.knob())), "{error}");
    }
    // The kernel accepts either all settings that are written together, or none.
    let mixed = [
        Setting::Nic(device, NicKnob::Ring(RingKind::Tx, 1024)),
        Setting::Nic(device, NicKnob::Ring(RingKind::Rx, 4097)),
    ];
    kernel.write(&mixed).expect_err("the kernel refuses one of them");
    assert_eq!(wire.near0()?, before);
    Ok(())
}

fn napi_ids(wire: &Wire) -> Result<Vec<NapiId>, Failed> {
    let near = wire.near0()?;
    let edges: Option<Vec<_>> = near.rx_queues.iter().map(|queue| queue.napi).collect();
    let edges = edges.ok_or("a queue without a NAPI")?;
    assert!(edges.iter().all(|edge| edge.confidence == Confidence::Stated), "{edges:?}");
    assert!(edges.iter().all(|edge| near.napis.iter().any(|napi| napi.id == edge.napi)), "{near:?}");
    Ok(edges.iter().map(|edge| edge.napi).collect())
}

fn edges() -> Result<(), Failed> {
    let wire = Wire::simulated(3)?;
    let mut napis = napi_ids(&wire)?;
    napis.sort();
    napis.dedup();
    assert_eq!(napis.len(), 3, "each queue has its own settings");
    Ok(())
}

fn down_and_up() -> Result<(), Failed> {
    let wire = Wire::simulated(2)?;
    let napis = napi_ids(&wire)?;
    let change = NapiChange {
        defer_hard_irqs: Some(EmptyPolls(7)),
        gro_flush_timeout: Some(Nanoseconds::from_micros(70)),
        irq_suspend_timeout: Some(Nanoseconds::from_millis(7)),
        threaded: None,
    };
    let set = || Netdev::open_here().map(|mut netdev| netdev.set_napi(napis[1], &change));
    wire.near()?.run(set)??.map_err(|refused| format!("napi-set: {refused:?}"))?;
    wire.in_near("ip link set near0 down")?;
    assert_eq!(wire.near0()?.napis.len(), 0, "a device that is down has no NAPIs");
    wire.in_near("ip link set near0 up")?;
    assert_eq!(napi_ids(&wire)?, napis);
    let device = wire.near0()?.id;
    let (set, unset) = (RxQueue { device, index: QueueIndex(1) }, RxQueue { device, index: QueueIndex(0) });
    let wanted = [
        Setting::Napi(set, NapiKnob::DeferHardIrqs(EmptyPolls(7))),
        Setting::Napi(set, NapiKnob::GroFlushTimeout(Nanoseconds::from_micros(70))),
        Setting::Napi(set, NapiKnob::IrqSuspendTimeout(Nanoseconds::from_millis(7))),
    ];
    assert_eq!(Kernel::new().read(&wanted)?, wanted);
    let default = [Setting::Napi(unset, NapiKnob::DeferHardIrqs(EmptyPolls(0)))];
    assert_eq!(Kernel::new().read(&default)?, default);
    Ok(())
}
