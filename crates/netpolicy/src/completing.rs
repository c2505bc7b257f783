//! Shell completion values, read from this host on demand. Unreadable values are omitted, because a shell
//! cannot show errors.

use clap_complete::engine::CompletionCandidate;
use linux::{Netns, Processes, observe};
use model::{DeliveryMode, Host, PolicyName};
use policy_file::{merge, parse};
use session::drop_in::{DROP_IN_DIRS, Sources, read};

fn offered(value: impl Into<std::ffi::OsString>, help: impl Into<String>) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(help.into().into()))
}

/// The policies.
pub(crate) fn policies() -> Vec<CompletionCandidate> {
    PolicyName::ALL.into_iter().map(|policy| offered(policy.as_str(), "a policy")).collect()
}

/// The delivery modes. For a mode with a parameter, the values in the kernel's documentation are offered.
pub(crate) fn modes() -> Vec<CompletionCandidate> {
    let documents = DeliveryMode::DOCUMENT.into_iter().chain(DeliveryMode::EPOLL_DOCUMENT);
    let mut modes: Vec<String> =
        documents.chain(DeliveryMode::THREADED).map(|mode| mode.to_string()).collect();
    modes.sort();
    modes.dedup();
    modes.into_iter().map(|mode| offered(mode, "a delivery mode")).collect()
}

/// The policies and delivery modes, for commands that accept either.
pub(crate) fn words() -> Vec<CompletionCandidate> {
    policies().into_iter().chain(modes()).collect()
}

/// The candidates of `compare` that exist on every host.
pub(crate) fn candidates() -> Vec<CompletionCandidate> {
    std::iter::once(offered("current", "the unchanged host")).chain(words()).collect()
}

fn host(processes: &Processes) -> Option<Host> {
    observe(&Netns::own().ok()?, processes).ok()
}

/// The devices of this network namespace, with their drivers.
pub(crate) fn devices() -> Vec<CompletionCandidate> {
    let Some(host) = host(&Processes::Only(Vec::new())) else { return Vec::new() };
    let device = |device: &model::host::Device| {
        offered(device.id.name.as_str(), format!("{} receive queues", device.rx_queues.len()))
    };
    host.devices.iter().map(device).collect()
}

/// The processes that have receiving sockets, with their names.
pub(crate) fn processes() -> Vec<CompletionCandidate> {
    let Some(host) = host(&Processes::Networking) else { return Vec::new() };
    host.processes
        .iter()
        .map(|process| offered(process.id.pid.to_string(), process.id.comm.as_str()))
        .collect()
}

/// The possible targets of `attach`: processes and services.
pub(crate) fn attachable() -> Vec<CompletionCandidate> {
    processes().into_iter().chain(served()).collect()
}

/// The services that the policy files name.
fn services() -> Vec<CompletionCandidate> {
    let dirs = Sources::Dirs(DROP_IN_DIRS.map(Into::into).to_vec());
    let files: Vec<_> =
        read(&dirs).unwrap_or_default().iter().filter_map(|(name, text)| parse(name, text).ok()).collect();
    let merged = merge(&files).map(|merged| merged.sections).unwrap_or_default();
    let services = merged.into_iter().filter(|section| section.kind.word() == "service");
    services.map(|section| offered(section.name, "a service of the policy files")).collect()
}

/// The names of services that can be measured: those of the policy files, and executables with receiving
/// sockets.
pub(crate) fn served() -> Vec<CompletionCandidate> {
    let Some(host) = host(&Processes::Networking) else { return services() };
    let name = |process: &model::host::Process| {
        let path = linux::process::started_as(process.id.pid).unwrap_or_else(|| process.exe.clone());
        path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
    };
    let names: std::collections::BTreeSet<String> = host.processes.iter().filter_map(name).collect();
    services().into_iter().chain(names.into_iter().map(|name| offered(name, "an executable"))).collect()
}

/// The names that can be explained: policies, devices, services, findings.
pub(crate) fn explained() -> Vec<CompletionCandidate> {
    let findings = crate::render::FindingKindReport::all().map(|kind| offered(kind.code(), "a finding"));
    policies().into_iter().chain(devices()).chain(services()).chain(findings).collect()
}
