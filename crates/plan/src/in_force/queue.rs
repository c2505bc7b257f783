//! Finds the values of receive and transmit queues.

use model::host::{RxQueueState, TxQueueState};
use model::{RxQueueKnob, TxQueueKnob};

pub(super) fn rx(queue: &RxQueueState, like: &RxQueueKnob) -> Option<RxQueueKnob> {
    match like {
        RxQueueKnob::Coalescing(param, _) => {
            queue.coalesce?.of(param.of_device()).map(|value| RxQueueKnob::Coalescing(*param, value))
        }
        RxQueueKnob::RpsCpus(_) => Some(RxQueueKnob::RpsCpus(queue.rps_cpus.clone())),
        RxQueueKnob::RpsFlowCount(_) => queue.rps_flow_cnt.map(RxQueueKnob::RpsFlowCount),
    }
}

pub(super) fn tx(queue: &TxQueueState, like: &TxQueueKnob) -> TxQueueKnob {
    match like {
        TxQueueKnob::XpsCpus(_) => TxQueueKnob::XpsCpus(queue.xps_cpus.clone()),
        TxQueueKnob::XpsRxQueues(_) => TxQueueKnob::XpsRxQueues(queue.xps_rxqs.clone()),
    }
}
