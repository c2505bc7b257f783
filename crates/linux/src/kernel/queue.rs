//! Reads and writes settings of receive and transmit queues: interrupt moderation by ioctl, software steering
//! by files in sysfs.

use model::{Cpu, CpuSet, DeviceId, QueueIndex, RxQueue, RxQueueKnob, Setting, TxQueue, TxQueueKnob};
use sys::error::KernelError;

use super::describe::lacking;
use super::netns_handles::NetnsHandles;
use crate::observe::device as observed;

pub(super) fn read_rx(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    like: &[&RxQueueKnob],
) -> Result<Vec<RxQueueKnob>, KernelError> {
    like.iter().map(|like| read_rx_knob(handles, queue, like)).collect()
}

fn read_rx_knob(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    like: &RxQueueKnob,
) -> Result<RxQueueKnob, KernelError> {
    match like {
        RxQueueKnob::Coalescing(param, _) => {
            let name = handles.name(queue.device)?;
            let queues = handles.ioctl()?.queue_coalesce(&name, position(queue.index) + 1)?;
            let value = queues
                .and_then(|mut queues| queues.pop())
                .and_then(|coalesce| coalesce.of(param.of_device()));
            let found = value.map(|value| RxQueueKnob::Coalescing(*param, value));
            found.ok_or_else(|| lacking(&Setting::RxQueue(queue, like.clone())))
        }
        RxQueueKnob::RpsCpus(_) => {
            Ok(RxQueueKnob::RpsCpus(read_mask(handles, queue.device, &rx(queue, "rps_cpus"))?))
        }
        RxQueueKnob::RpsFlowCount(_) => {
            let file = rx(queue, "rps_flow_cnt");
            let text = handles.directory(queue.device)?.read(&file)?;
            let count = text.parse();
            let count =
                count.map_err(|_| KernelError::malformed(file, format!("`{text}` is not a number")))?;
            Ok(RxQueueKnob::RpsFlowCount(count))
        }
    }
}

/// Writes settings of a receive queue; those of its interrupt moderation in one call.
pub(super) fn write_rx(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    knobs: &[&RxQueueKnob],
) -> Result<(), KernelError> {
    let device = queue.device;
    let mut moderation = Vec::new();
    for knob in knobs {
        match knob {
            RxQueueKnob::Coalescing(param, value) => moderation.push((*param, *value)),
            RxQueueKnob::RpsCpus(_) | RxQueueKnob::RpsFlowCount(_) => {
                write_file(handles, device, &rx(queue, knob.facts().name), &knob.for_tools())?;
            }
        }
    }
    if !moderation.is_empty() {
        let name = handles.name(device)?;
        handles.ioctl()?.set_queue_coalesce(&name, position(queue.index), &moderation)?;
    }
    Ok(())
}

pub(super) fn read_tx(
    handles: &mut NetnsHandles,
    queue: TxQueue,
    like: &[&TxQueueKnob],
) -> Result<Vec<TxQueueKnob>, KernelError> {
    let one = |like: &&TxQueueKnob| {
        let file = tx(queue, like.facts().name);
        let mask = read_mask(handles, queue.device, &file)?;
        Ok(match like {
            TxQueueKnob::XpsCpus(_) => TxQueueKnob::XpsCpus(mask),
            TxQueueKnob::XpsRxQueues(_) => TxQueueKnob::XpsRxQueues(observed::queues_of(&mask)),
        })
    };
    like.iter().map(one).collect()
}

pub(super) fn write_tx(
    handles: &mut NetnsHandles,
    queue: TxQueue,
    knobs: &[&TxQueueKnob],
) -> Result<(), KernelError> {
    knobs.iter().try_for_each(|knob| {
        let mask = match knob {
            TxQueueKnob::XpsCpus(cpus) => cpus.to_mask(),
            TxQueueKnob::XpsRxQueues(queues) => {
                queues.iter().map(|index| Cpu(index.0)).collect::<CpuSet>().to_mask()
            }
        };
        write_file(handles, queue.device, &tx(queue, knob.facts().name), &mask)
    })
}

fn read_mask(handles: &mut NetnsHandles, device: DeviceId, file: &str) -> Result<CpuSet, KernelError> {
    let text = handles.directory(device)?.read(file)?;
    CpuSet::parse_mask(&text).map_err(|not| KernelError::malformed(file, not.to_string()))
}

fn write_file(
    handles: &mut NetnsHandles,
    device: DeviceId,
    file: &str,
    text: &str,
) -> Result<(), KernelError> {
    handles.directory(device)?.write(file, text).map_err(|error| error.needing("CAP_NET_ADMIN"))
}

fn rx(queue: RxQueue, file: &str) -> String {
    format!("queues/rx-{}/{file}", queue.index)
}

fn tx(queue: TxQueue, file: &str) -> String {
    format!("queues/tx-{}/{file}", queue.index)
}

fn position(index: QueueIndex) -> usize {
    usize::try_from(index.0).unwrap_or(usize::MAX - 1)
}
