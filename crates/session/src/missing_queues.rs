//! Finds queues that were removed together with their settings, and the commands that restore both.

use std::collections::BTreeMap;

use apply::{Knobs, TransactionName, UnrestoredSetting};
use linux::{Cause, Kernel, KernelError, Netns};
use model::{ChannelKind, DeviceId, NicKnob, Object, Setting, quoted};

/// Returns the commands that recreate the queues of these settings and then roll back; `None` if all these
/// queues exist.
pub fn recovery_commands<'s>(
    stuck: impl IntoIterator<Item = &'s UnrestoredSetting>,
    transactions: &[TransactionName],
) -> Option<String> {
    let mut kernel = Kernel::new();
    let mut queues: BTreeMap<(DeviceId, ChannelKind), u32> = BTreeMap::new();
    for UnrestoredSetting { change, .. } in stuck {
        let (device, kind, index) = match change.from().object() {
            Object::Queue(queue) => (queue.device, ChannelKind::Rx, queue.index.0),
            Object::TxQueue(queue) => (queue.device, ChannelKind::Tx, queue.index.0),
            _ => continue,
        };
        if is_away(&mut kernel, change.from()) {
            let kind = if has_combined(&mut kernel, device) { ChannelKind::Combined } else { kind };
            let most = queues.entry((device, kind)).or_default();
            *most = (*most).max(index + 1);
        }
    }
    if queues.is_empty() {
        return None;
    }
    let back = queues.into_iter().map(|((device, kind), count)| {
        let kind = match kind {
            ChannelKind::Combined => "combined",
            ChannelKind::Rx => "rx",
            ChannelKind::Tx => "tx",
        };
        format!("{}ethtool -L {} {kind} {count}", inside(device), quoted(device.name.as_str()))
    });
    let roll_back = transactions.iter().map(|name| format!("netpolicy rollback {name}"));
    let commands: Vec<String> = back.chain(roll_back).collect();
    Some(format!("bring the queues back, then roll back: {}", commands.join(" && ")))
}

fn is_away(kernel: &mut Kernel, setting: &Setting) -> bool {
    let read = kernel.read(std::slice::from_ref(setting));
    matches!(read, Err(KernelError { cause: Cause::Away(_), .. }))
}

fn has_combined(kernel: &mut Kernel, device: DeviceId) -> bool {
    let read = kernel.read(&[Setting::Nic(device, NicKnob::Channels(ChannelKind::Combined, 0))]);
    matches!(read.as_deref(), Ok([Setting::Nic(_, NicKnob::Channels(_, 1..))]))
}

/// Returns the prefix of a command for a device in another namespace.
fn inside(device: DeviceId) -> String {
    if Netns::is_current(device.netns) {
        return String::new();
    }
    let netns = Netns::with_id(device.netns).map(|netns| quoted(&netns.path().to_string_lossy()));
    netns.map_or_else(|_| String::new(), |file| format!("nsenter --net={file} "))
}
