//! Compares the run time of two programs, in alternation: `show`, `tc load` of one rule, and a 64-queue
//! device policy that is applied and rolled back.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latency::measure::statistics::paired_ratio;
use linux::lab::{Lab, LabOptions, MemcachedOptions, SERVER_DEVICE};

use super::{Done, scratch};

/// The number of pairs of runs. Each pair runs both programs, and the order alternates.
const PAIRS: usize = 200;
const QUEUES: u32 = 64;

/// Prints the time of each command with both programs, and their ratio with its interval.
pub(crate) fn compare(program: &str, other: &str) -> Done<()> {
    println!("{program} against {other}: {PAIRS} pairs each, in turn");
    let lab = Lab::new(&LabOptions::with_queues(QUEUES))?;
    let _server = lab.start_memcached(&MemcachedOptions::default())?;
    let scratch = scratch()?;
    let netns = format!("pid:{}", lab.server_pid());
    let run = |program: &str, words: &[&str]| -> Done<Duration> {
        let mut command = Command::new(program);
        // Each program gets a separate journal, because an older program cannot read a newer one's.
        let state = scratch.path().join(program.replace('/', "-"));
        command.args(["--quiet", "--netns", &netns, "--state-dir"]).arg(state).args(words);
        let began = Instant::now();
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
        let took = began.elapsed();
        if output.status.success() {
            return Ok(took);
        }
        Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into())
    };

    pairs("show, 64 queues and memcached", [program, other], |program| run(program, &["show"]))?;

    let rule = scratch.path().join("rule");
    std::fs::write(
        &rule,
        format!(
            "filter add dev {SERVER_DEVICE} ingress protocol ip pref 1 u32 match ip src 192.0.2.1/32 classid 1:1\n"
        ),
    )?;
    tc(&lab, &["qdisc", "add", "dev", SERVER_DEVICE, "clsact"])?;
    pairs("tc load of one rule", [program, other], |program| {
        let took = run(program, &["tc", "load", &text(&rule)?])?;
        tc(&lab, &["filter", "del", "dev", SERVER_DEVICE, "ingress"])?;
        Ok(took)
    })?;

    let policies = scratch.path().join("policy.toml");
    std::fs::write(
        &policies,
        format!("[device.{SERVER_DEVICE}]\npolicy = \"latency\"\ndelivery = \"defer50\"\n"),
    )?;
    let policies = text(&policies)?;
    pairs("apply of a device policy, 64 queues, and its rollback", [program, other], |program| {
        let applied = run(program, &["--policy-file", &policies, "apply"])?;
        Ok(applied + run(program, &["rollback"])?)
    })
}

/// Runs both programs in alternation.
fn pairs(what: &str, programs: [&str; 2], mut run: impl FnMut(&str) -> Done<Duration>) -> Done<()> {
    let mut took = [Vec::with_capacity(PAIRS), Vec::with_capacity(PAIRS)];
    for program in programs {
        run(program)?; // the first fills caches, and is not counted
    }
    for pair in 0..PAIRS {
        for turn in 0..2 {
            let which = (pair + turn) % 2;
            took[which].push(run(programs[which])?.as_secs_f64());
        }
    }
    let [this, other] = &took;
    let ratio = paired_ratio(other, this).ok_or("too few pairs")?;
    let median = |times: &[f64]| {
        let mut sorted = times.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[(sorted.len() - 1) / 2] * 1e3
    };
    println!(
        "{what}: median {:.2} ms against {:.2} ms, ratio {:.3} [{:.3}, {:.3}]",
        median(this),
        median(other),
        ratio.estimate,
        ratio.low,
        ratio.high
    );
    Ok(())
}

fn tc(lab: &Lab, words: &[&str]) -> Done<()> {
    let status = lab.server().run(|| Command::new("tc").args(words).status())??;
    if status.success() { Ok(()) } else { Err(format!("tc {words:?}: {status}").into()) }
}

fn text(path: &Path) -> Done<String> {
    Ok(path.to_str().ok_or("a path that is not text")?.to_owned())
}
