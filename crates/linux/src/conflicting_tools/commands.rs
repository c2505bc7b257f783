//! Recognises lines of scripts, units and udev rules whose commands configure a NIC.

use model::host::ConflictingToolKind;

/// The options of ethtool, long and short, for settings that netpolicy also changes.
const ETHTOOL_OPTIONS: [&str; 21] = [
    "-C",
    "--coalesce",
    "-G",
    "--set-ring",
    "-L",
    "--set-channels",
    "-X",
    "--set-rxfh-indir",
    "--rxfh",
    "-K",
    "--features",
    "--offload",
    "-N",
    "-U",
    "--config-nfc",
    "--config-ntuple",
    "--set-priv-flags",
    "-Q",
    "--per-queue",
    "--set-tunable",
    "--set-rxfh-context",
];

/// Files of a device or an interrupt that netpolicy also writes.
const FILES: [&str; 8] = [
    "rps_cpus",
    "rps_flow_cnt",
    "xps_cpus",
    "xps_rxqs",
    "napi_defer_hard_irqs",
    "gro_flush_timeout",
    "smp_affinity",
    "/threaded",
];

/// Programs that pin interrupts.
const PINNING: [&str; 3] = ["set_irq_affinity", "mlnx_tune", "irqbalance --oneshot"];

/// Returns the tool to which a line belongs if its command pins interrupts or sets a NIC; otherwise `None`.
pub(super) fn sets_by_command(line: &str) -> Option<ConflictingToolKind> {
    if ["perftune.py", "perftune "].iter().any(|word| line.contains(word)) {
        return Some(ConflictingToolKind::Perftune);
    }
    let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
    (has(&PINNING) || runs_ethtool(line) || writes(line)).then_some(ConflictingToolKind::IrqAffinityScript)
}

/// Whether a line runs ethtool to set something that netpolicy also sets: `/usr/sbin/ethtool  -G $IFACE rx
/// 4096`, `$ETHTOOL -K`.
pub(super) fn runs_ethtool(line: &str) -> bool {
    let mut words =
        line.split(|c: char| c.is_whitespace() || "\"';&|()`".contains(c)).filter(|word| !word.is_empty());
    let is_ethtool = |word: &str| {
        let name = word.trim_matches(['$', '{', '}']);
        name.rsplit(['/', '=']).next().is_some_and(|name| name.eq_ignore_ascii_case("ethtool"))
    };
    words.any(is_ethtool) && words.any(|word| ETHTOOL_OPTIONS.contains(&word))
}

/// Whether a line writes a file that netpolicy also writes: `echo 3 >
/// /sys/class/net/eth0/queues/rx-0/rps_cpus`.
pub(super) fn writes(line: &str) -> bool {
    FILES.iter().any(|file| line.contains(file))
        && ["> ", ">/", ">\"", ">$", "tee "].iter().any(|to| line.contains(to))
}

/// Returns the tool whose udev rule sets something that netpolicy also sets; `None` for any other rule.
pub(super) fn of_udev_rule(rule: &str) -> Option<ConflictingToolKind> {
    let assigns = rule.split("ATTR{").skip(1).any(|rest| {
        let Some((name, behind)) = rest.split_once('}') else { return false };
        // `==` and `!=` compare values and do not assign.
        let is_set = behind.trim_start().strip_prefix('=').is_some_and(|rest| !rest.starts_with('='));
        is_set
            && (name.starts_with("queues/") || FILES.iter().any(|file| name == file.trim_start_matches('/')))
    });
    let runs = rule.contains("RUN") || rule.contains("PROGRAM");
    if !assigns && !(runs && (runs_ethtool(rule) || sets_by_command(rule).is_some())) {
        return None;
    }
    let driver = |name: &str| rule.contains(&format!("\"{name}\""));
    Some(if driver("ena") {
        ConflictingToolKind::Ena
    } else if driver("hv_netvsc") || driver("mana") || rule.contains("azure") {
        ConflictingToolKind::Azure
    } else {
        ConflictingToolKind::UdevRule
    })
}
