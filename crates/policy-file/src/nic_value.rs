//! The value of a device's setting, as a policy file writes it.

use model::nic::NicWish;

use crate::value::quoted;

/// The value behind the request's key.
pub(crate) fn toml(request: &NicWish) -> String {
    match request {
        NicWish::Channels(_, n)
        | NicWish::Ring(_, n)
        | NicWish::PacketSize(_, n)
        | NicWish::RssQueues(n)
        | NicWish::RpsFlowCount(n) => n.to_string(),
        NicWish::Coalescing(param, value) if param.is_switch() => (*value != 0).to_string(),
        NicWish::Coalescing(_, value) => value.to_string(),
        NicWish::Offload(_, on) | NicWish::Xps(on) => on.to_string(),
        NicWish::Sysctl(_, value) => value.to_string(),
        NicWish::RssContexts(spans) => quoted(&listed(spans)),
        NicWish::FlowRules(rules) => quoted(&listed(rules)),
        NicWish::Qdisc(kind) => quoted(kind.as_str()),
        NicWish::RpsCpus(cpus) if cpus.is_empty() => quoted("none"),
        NicWish::RpsCpus(cpus) => quoted(&cpus.to_string()),
        NicWish::PrivateFlags(flags) => {
            let flags: Vec<String> =
                flags.iter().map(|(flag, on)| format!("{flag}={}", if *on { "on" } else { "off" })).collect();
            quoted(&flags.join(","))
        }
    }
}

fn listed<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
