//! Finds node agents of Kubernetes that change the affinity of interrupts, by their processes and files,
//! because their configuration is stored in the cluster.
//!
//! - kubewharf/katalyst-core `pkg/agent/qrm-plugins/cpu/dynamicpolicy/irqtuner`,
//!   `cmd/katalyst-agent/app/options/dynamic/irqtuning`
//! - containers/nri-plugins `cmd/plugins/balloons/policy`,
//!   `cmd/plugins/topology-aware/policy/irq-affinity.go`; containerd `docs/NRI.md`
//! - cri-o `internal/runtimehandlerhooks/high_performance_hooks_linux.go`, `pkg/annotations`

use std::path::{Path, PathBuf};

use model::host::{ConflictingTool, ConflictingToolKind};

use super::files::{FILES_MAX, arguments, drop_ins, file_name, processes};
use super::{lines_of, of_host};

/// The Node Resource Interface (NRI) plugins that set the affinity of interrupts.
const NRI_PLUGINS: [&str; 2] = ["nri-resource-policy-balloons", "nri-resource-policy-topology-aware"];

/// The directory of the plugins that the container runtime starts itself; their files are named `10-NAME`.
const NRI_DIRECTORY: &str = "opt/nri/plugins";

/// Finds the node agents that run on this host.
pub(super) fn agents(root: &Path) -> Vec<ConflictingTool> {
    katalyst(root).into_iter().chain(nri(root)).chain(crio(root)).collect()
}

/// Finds katalyst's agents whose interrupt tuner is on, or may be on; it is off by default.
fn katalyst(root: &Path) -> Vec<ConflictingTool> {
    let mut found = Vec::new();
    for (pid, process) in processes(root, &["katalyst-agent"]) {
        let arguments = arguments(&process);
        let value = arguments.iter().rev().find_map(|argument| {
            let rest = argument.trim_start_matches('-').strip_prefix("enable-irq-tuner")?;
            if rest.is_empty() { Some("true") } else { rest.strip_prefix('=') }
        });
        let line = match value {
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => continue,
            Some(_) => "--enable-irq-tuner: interrupts on exclusive CPUs, RPS, XPS",
            // The command line cannot be read, so the tuner may be on.
            None if arguments.is_empty() => {
                "its irq tuner, if that is on: interrupts on exclusive CPUs, RPS, XPS"
            }
            None => continue,
        };
        found.push(of_host(ConflictingToolKind::Katalyst, format!("katalyst-agent[{pid}]"), line));
    }
    found
}

/// Finds the container runtime's plugins that set the affinity of interrupts: running plugins, and those that
/// the runtime starts itself.
fn nri(root: &Path) -> Vec<ConflictingTool> {
    let is_one = |name: &str| NRI_PLUGINS.iter().any(|plugin| name.ends_with(plugin));
    let mut found = Vec::new();
    // The kernel cuts names of processes to 15 bytes.
    for (pid, process) in processes(root, &["nri-resource-po"]) {
        let program = arguments(&process).first().map(|program| file_name(Path::new(program)));
        if let Some(name) = program.filter(|name| is_one(name)) {
            let line = "the affinity of interrupts, if its configuration claims any (irqClaim)";
            found.push(of_host(ConflictingToolKind::NriPlugin, format!("{name}[{pid}]"), line));
        }
    }
    let entries = std::fs::read_dir(root.join(NRI_DIRECTORY)).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.take(FILES_MAX).map(|entry| entry.path()).collect();
    files.retain(|path| is_one(&file_name(path)));
    files.sort();
    if found.is_empty() {
        let line = "the container runtime starts it if NRI is on; the affinity of interrupts, if it claims any (irqClaim)";
        let names = files.iter().map(|path| format!("/{NRI_DIRECTORY}/{}", file_name(path)));
        found.extend(names.map(|place| of_host(ConflictingToolKind::NriPlugin, place, line)));
    }
    found
}

/// Finds the lines of CRI-O's configuration that let pods turn the balancing of interrupts off. For such a pod,
/// CRI-O writes `default_smp_affinity` and the CPUs that irqbalance avoids.
fn crio(root: &Path) -> Vec<ConflictingTool> {
    if processes(root, &["crio"]).is_empty() {
        return Vec::new();
    }
    let mut files = vec![root.join("etc/crio/crio.conf")];
    files.extend(drop_ins(root, &["etc/crio/crio.conf.d"], "conf").into_iter().map(|(path, _)| path));
    lines_of(root, ConflictingToolKind::Crio, &files, |line| line.contains("irq-load-balancing.crio.io"))
}
