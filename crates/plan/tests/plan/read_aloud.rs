//! Prints placements, plans, refusals and findings as text, for snapshots.

use std::fmt::Write as _;

use model::{Finding, Host, Plan, Policy};
use plan::{Placement, Refusal, Resolved, desired, diff, place};

/// Plans a policy, from placement to changes.
pub(crate) fn planned(policy: &Policy, host: &Host, resolved: &Resolved) -> Result<Plan, Refusal> {
    diff(&desired(&place(policy, host, resolved)?, host)?, host)
}

pub(crate) fn plan(plan: &Plan) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        let _ = writeln!(text, "step: {}", step.object());
        for change in step.changes() {
            let _ = writeln!(text, "  {change}\n    because {}", change.because());
        }
    }
    if plan.is_empty() { "nothing to do\n".to_owned() } else { text }
}

pub(crate) fn refusal(refusal: &Refusal) -> String {
    let mut text = format!("{:?}: {refusal}\n", refusal.kind);
    for line in &refusal.evidence {
        let _ = writeln!(text, "  {line}");
    }
    if let Some(nearest) = &refusal.nearest {
        let _ = writeln!(text, "  nearest: {nearest}");
    }
    text
}

pub(crate) fn placement(placement: &Placement) -> String {
    let mut text = String::new();
    for part in &placement.parts {
        let _ = writeln!(text, "{} → {}", part.intent.target, part.delivery.mode);
        let _ = writeln!(text, "  because {}", part.delivery.because);
        for queue in &part.queues {
            let _ = write!(text, "  {}", queue.queue);
            for also in &queue.also {
                let _ = write!(text, " and {also}");
            }
            let irq = queue.irq.map_or_else(|| "no irq".to_owned(), |irq| format!("irq {irq}"));
            let _ = writeln!(text, ": {irq} on CPUs {}", queue.cpus);
        }
        for process in &part.processes {
            let fds: Vec<String> = process.epolls.iter().map(|e| e.fd.to_string()).collect();
            let _ = writeln!(
                text,
                "  {}: epolls {}; {} thread(s)",
                process.id,
                fds.join(" "),
                process.threads.len()
            );
        }
        for note in &part.notes {
            let _ = writeln!(text, "  note: {note}");
        }
    }
    text
}

pub(crate) fn findings(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let _ =
            writeln!(text, "{} {} {}: {}", finding.severity, finding.rule, finding.object, finding.summary);
        for line in &finding.evidence {
            let _ = writeln!(text, "    {line}");
        }
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "    → {remedy}");
        }
    }
    text
}
