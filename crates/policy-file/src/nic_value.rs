//! Formats the value of a device setting in the syntax of policy files.

use model::nic::NicRequest;

use crate::spelling::toml_string;

/// Formats the value of a request's key.
pub(crate) fn toml(request: &NicRequest) -> String {
    match request {
        NicRequest::Channels(_, n)
        | NicRequest::Ring(_, n)
        | NicRequest::PacketSize(_, n)
        | NicRequest::RssQueues(n)
        | NicRequest::RpsFlowCount(n) => n.to_string(),
        NicRequest::Coalescing(param, value) if param.is_switch() => (*value != 0).to_string(),
        NicRequest::Coalescing(_, value) => value.to_string(),
        NicRequest::Offload(_, on) | NicRequest::Xps(on) => on.to_string(),
        NicRequest::Sysctl(_, value) => value.to_string(),
        NicRequest::RssContexts(spans) => toml_string(&listed(spans)),
        NicRequest::FlowRules(rules) => toml_string(&listed(rules)),
        NicRequest::Qdisc(kind) => toml_string(kind.as_str()),
        NicRequest::RpsCpus(cpus) if cpus.is_empty() => toml_string("none"),
        NicRequest::RpsCpus(cpus) => toml_string(&cpus.to_string()),
        NicRequest::PrivateFlags(flags) => {
            let flags: Vec<String> =
                flags.iter().map(|(flag, on)| format!("{flag}={}", if *on { "on" } else { "off" })).collect();
            toml_string(&flags.join(","))
        }
    }
}

fn listed<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
