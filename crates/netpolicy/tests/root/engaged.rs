//! Tests that suspension engages on a NIC with interrupts, and that `doctor` reports it from the counters.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libtest_mimic::{Failed, Trial};
use model::{Finding, Nanoseconds, Severity};
use testkit::asked_server::AskedServer;
use testkit::wire::Wire;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Suspension, Need::Memcached, Need::VirtioNics];
    const ON_A_VETH: &[Need] = &[Need::Root, Need::Bpf, Need::Suspension, Need::Memcached, Need::Wire];
    vec![
        test("doctor/suspension_is_engaged_on_a_nic_with_interrupts", NEEDS, on_a_nic),
        test("doctor/the_timeout_that_a_running_server_needs_is_measured", ON_A_VETH, needed),
    ]
}

/// The timers to set in turn. On a slow emulated CPU, a timer of 20 µs would expire many times during one
/// iteration of the server's loop. Other load on the host slows the guest further, so each timer is tried
/// several times.
const FLUSHES: [Nanoseconds; 2] = [Nanoseconds::from_millis(5), Nanoseconds::from_millis(20)];
/// How often to try the timers.
const ATTEMPTS: usize = 4;
/// The number of keys per request. The emulated client and server are equally slow; with small requests, they
/// would idle while they wait for each other.
const KEYS: usize = 100;
/// The longest iteration of the server's loop.
const TURN: Nanoseconds = Nanoseconds::from_millis(1000);

/// Returns the findings of `doctor` while the server receives requests.
fn findings(served: &AskedServer) -> Result<Vec<Finding>, Failed> {
    let (done, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let output = std::thread::scope(|scope| {
        let client = scope.spawn(|| served.ask_while(|| !done.load(Ordering::Relaxed), &answered));
        let output = Command::new(env!("CARGO_BIN_EXE_netpolicy"))
            .args(["--netns", &served.wire().near, "-o", "json", "doctor", "--seconds", "3"])
            .output();
        done.store(true, Ordering::Relaxed);
        client.join().map_err(|_| "the client panicked")??;
        Ok::<_, Failed>(output?)
    })?;
    let document: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(serde_json::from_value(document["data"]["findings"].clone())?)
}

fn on_a_nic() -> Result<(), Failed> {
    let wire = Wire::between("virtio")?;
    wire.in_near("ethtool -L near0 combined 1")?;
    let served = AskedServer::behind(wire, &[])?.asked_for(KEYS);
    let mut seen = Vec::new();
    for flush in FLUSHES.into_iter().cycle().take(FLUSHES.len() * ATTEMPTS) {
        served.suspend_by(flush, TURN)?;
        let findings = findings(&served)?;
        let of_near = || findings.iter().filter(|finding| finding.object.starts_with("near0 rx-0"));
        if let Some(engaged) = of_near().find(|finding| finding.rule == "engaged") {
            assert_eq!(engaged.severity, Severity::Ok);
            return Ok(());
        }
        let said: Vec<String> = of_near()
            .map(|one| format!("{}: {} ({})", one.rule, one.summary, one.evidence.join("; ")))
            .collect();
        seen.push(format!("{flush}: {}", said.join("\n    ")));
    }
    Err(format!("never engaged:\n{}", seen.join("\n")).into())
}

/// The server's batches take milliseconds: a timeout of 300 µs is too short for them, and one of 5 s far too
/// long.
fn needed() -> Result<(), Failed> {
    const TRIES: usize = 5;
    let served = AskedServer::behind(Wire::new(1)?, &[])?.asked_for(KEYS);
    for (timeout, rule, severity) in [
        (Nanoseconds::from_micros(300), "suspension-shorter-than-batch", Severity::Warning),
        (Nanoseconds::from_millis(5_000), "suspension-longer-than-needed", Severity::Note),
    ] {
        served.suspend_by(Nanoseconds::from_micros(200), timeout)?;
        let mut seen = Vec::new();
        // `doctor` proposes no timeout if the server had to wait a tenth of a second for a CPU.
        let found = std::iter::repeat_with(|| findings(&served)).take(TRIES).find_map(|findings| {
            let findings = match findings {
                Ok(findings) => findings,
                Err(error) => return Some(Err(error)),
            };
            let found = findings.iter().find(|finding| finding.rule == rule).cloned();
            seen.extend(findings.into_iter().filter(|_| found.is_none()));
            found.map(Ok)
        });
        let found = found.ok_or_else(|| format!("no {rule}: {seen:#?}"))??;
        assert_eq!(found.severity, severity);
        assert!(found.object.starts_with("near0 rx-0"), "{found:?}");
        let batch = found.evidence.iter().find(|line| line.contains("batches of memcached["));
        assert!(batch.is_some_and(|line| line.starts_with("longest of ")), "{found:?}");
    }
    // With the usual timeout, the finding's evidence names the timeout that the service needs.
    served.suspend()?;
    let findings = findings(&served)?;
    let is_measured = |finding: &Finding| {
        finding.object.starts_with("near0 rx-0")
            && finding.evidence.iter().any(|line| line.contains("batches of memcached["))
    };
    assert!(findings.iter().any(is_measured), "{findings:#?}");
    Ok(())
}
