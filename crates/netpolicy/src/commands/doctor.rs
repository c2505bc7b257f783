//! `doctor`: what is wrong, and why.

use std::time::{Duration, Instant};

use linux::bpf::delivery::Sampler;
use linux::pressure::PressureSource;
use linux::{Netns, Processes};
use model::{Delivered, Host, Severity};

use crate::args::Doctor;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::FindingsReport;
use crate::services;

/// Counting that takes longer says how far it is.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

/// Judges the host: its settings, and what was counted.
pub(crate) fn run(arguments: &Doctor, context: &Context) -> Result<Exit, Fault> {
    let netns = context.netns()?;
    let watched = match arguments.seconds {
        0 => None,
        _ => begin(&netns).map_err(|error| context.console.say(&format!("{error}"))).ok(),
    };
    let delivered = match arguments.seconds {
        0 => None,
        seconds => count(Duration::from_secs(seconds), context),
    };
    let mut host = linux::observe(&netns, &Processes::from(&arguments.processes))?;
    host.pressure = watched
        .and_then(|source| source.end(&host).map_err(|error| context.console.say(&format!("{error}"))).ok());
    let findings = plan::doctor(&host, delivered.as_ref(), &asked(context, &netns, &host));
    context.console.report(&FindingsReport::of(&findings, delivered.as_ref()))?;
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    context.console.say(&format!("{problems} problems, {warnings} warnings."));
    Ok(if problems > 0 { Exit::Pending } else { Exit::Done })
}

/// Begins to count where the receive path is too slow.
fn begin(netns: &Netns) -> Result<PressureSource, linux::KernelError> {
    PressureSource::begin(netns, &linux::observe(netns, &Processes::None)?)
}

/// What the policy files ask for on this host. Files that cannot be followed do not keep the doctor from looking.
fn asked(context: &Context, netns: &Netns, host: &Host) -> Vec<plan::Asked> {
    let placed = context.policy().and_then(|merged| {
        let policy = merged.policy();
        let (resolved, _) = services::resolve(&policy, netns)?;
        plan::place(&policy, host, &resolved).map_err(|refusal| Fault::refused(refusal, host))
    });
    match placed {
        Ok(placement) => placement.asked(),
        Err(fault) => {
            context.console.say(&format!("The policy files are left out of account: {}", fault.cause));
            Vec::new()
        }
    }
}

/// Counts who delivers packets; `None`, and says why, where BPF is not to be had.
fn count(span: Duration, context: &Context) -> Option<Delivered> {
    match delivered(span, context) {
        Ok(delivered) => Some(delivered),
        Err(error) => {
            context.console.say(&format!(
                "Who delivers packets could not be counted, so only the settings are judged: {error}"
            ));
            None
        }
    }
}

fn delivered(span: Duration, context: &Context) -> Result<Delivered, linux::KernelError> {
    let mut sampler = Sampler::load()?;
    sampler.begin();
    watch(span, context);
    sampler.end()
}

/// Lets the time pass, and shows how much is left of it where that is long.
fn watch(span: Duration, context: &Context) {
    const TICK: Duration = Duration::from_millis(200);
    let end = Instant::now() + span;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if span > PROGRESS_AFTER {
            context
                .console
                .progress(&format!("counting who delivers packets, {} s left", left.as_secs() + 1));
        }
        std::thread::sleep(left.min(TICK));
    }
    context.console.progress("");
}
