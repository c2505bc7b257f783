//! NICs and their drivers: the script uses `ethtool`, `ip link` and `tc`.

use model::{ChannelKind, DeviceId, NicKnob, RingKind};

use super::call::{Call, Part, ShellWords, quoted};
use super::queueing;

pub(super) fn call(words: &ShellWords, device: DeviceId, which: &str, knob: &NicKnob) -> Call {
    let ethtool = |kind: &str, word: &str| by_ethtool(words, device, which, kind, word);
    let netns = device.netns;
    match knob {
        NicKnob::Channels(ChannelKind::Rx, _) => ethtool("channels", "rx"),
        NicKnob::Channels(ChannelKind::Tx, _) => ethtool("channels", "tx"),
        NicKnob::Channels(ChannelKind::Combined, _) => ethtool("channels", "combined"),
        NicKnob::Ring(RingKind::Rx, _) => ethtool("ring", "rx"),
        NicKnob::Ring(RingKind::Tx, _) => ethtool("ring", "tx"),
        NicKnob::Coalescing(param, _) => ethtool("coalesce", param.as_str()),
        NicKnob::Offload(offload, _) => ethtool("offload", offload.as_str()),
        NicKnob::PrivateFlag(flag, _) => ethtool("flag", flag.as_str()),
        NicKnob::RssTable(_) => ethtool("table", knob.facts().name),
        NicKnob::RssKey(_) => ethtool("key", knob.facts().name),
        NicKnob::PacketSize(size, _) => {
            let needs = [Part::Nic, Part::PacketSize];
            Call::in_netns(&needs, words, netns, "packet_size", &format!("{which} {size}"))
        }
        NicKnob::RssContext(queues, _) => {
            let of = format!("{which} {} {}", queues.first, queues.count);
            Call::in_netns(&[Part::Nic, Part::Steer], words, netns, "rss_context", &of)
        }
        NicKnob::FlowRule(flow, _) => {
            let of = format!("{which} {}", quoted(&flow.to_string()));
            Call::in_netns(&[Part::Nic, Part::Steer], words, netns, "flow_rule", &of)
        }
        NicKnob::Qdiscs(before) => {
            let commands: Vec<String> = queueing::commands(before).iter().map(|one| quoted(one)).collect();
            let mut call = Call::in_netns(&[Part::Nic, Part::Qdisc], words, netns, "qdiscs", which);
            call.line = format!("{} {}", call.line, commands.join(" "));
            call
        }
    }
}

/// Creates a call for a knob that ethtool sets; `kind` and `word` are ethtool's names.
pub(super) fn by_ethtool(words: &ShellWords, device: DeviceId, which: &str, kind: &str, word: &str) -> Call {
    let of = format!("{which} {kind} {}", quoted(word));
    Call::in_netns(&[Part::Nic, Part::Ethtool], words, device.netns, "by_ethtool", &of)
}
